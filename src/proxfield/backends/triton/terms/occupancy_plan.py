"""Silhouettes on a device: what the kernels of occupancy maps need of a scene, whatever its masks.

Made once per scene: terms with the same silhouettes share it.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from proxfield.backends.triton.device_pack import from_numpy, power_of_two
from proxfield.backends.triton.terms import occupancy_kernels as kernels
from proxfield.devices.cuda import torch
from proxfield.devices.tensors import Tensor, TorchDevice
from proxfield.errors import UnsupportedError
from proxfield.filters.triton.plans import resolved
from proxfield.terms.base import Ints
from proxfield.terms.silhouettes import Boxes, Runs, Silhouettes

SCRATCH_BYTES = 40 << 20
"""Bytes of images that are worked on together: what stays in the cache of a large GPU."""
ALIGNMENT = 16
"""Rows of images begin at multiples of this many pixels."""
CROWDED = 8
"""Corners at one pixel above which many lanes share them."""
CROWDED_CELLS, CROWDED_WIDTH, CELLS = 8, 32, 256
"""Pixels with many corners of one program, lanes for each; pixels with few."""
STRIP, STRIP_ROWS = 16, 64
"""Columns of a strip, and rows that are summed together."""
MAX_WIDTH = 2048
"""Columns of a row that are summed together."""
MAX_PIXELS = 2048
"""Pixels of a silhouette that are summed together at most."""
MAX_FRAME = 2**31 - 1
"""Pixels of one frame that 32-bit positions can count."""


@dataclass
class Strips:
    """Columns of images, in strips: what each program of a scan down the columns has."""

    base: Tensor
    columns: Tensor
    rows: Tensor
    stride: Tensor
    vertical: Tensor

    def __len__(self) -> int:
        return len(self.base)


class Group:
    """Consecutive cameras whose images are worked on together.

    Args:
        cameras: Their silhouettes.
        first: Number of the first one.
        offset: Where its image begins in a frame.
        line: Number of its first row among all rows of a frame.
        pixel: Number of its first pixel in masks without ends of rows.
        device: A device of torch.
    """

    def __init__(
        self,
        cameras: Sequence[Silhouettes],
        first: int,
        offset: int,
        line: int,
        pixel: int,
        device: TorchDevice,
    ) -> None:
        self.first, self.offset, self.line, self.device = first, offset, line, device
        self.count = len(cameras)
        strides = [stride_of(s) for s in cameras]
        sizes = [s.height * stride for s, stride in zip(cameras, strides, strict=True)]
        bases = [0, *accumulate(sizes)]
        self.size = bases.pop()
        """Pixels of the images of one frame, with the ends of rows."""
        self.base, self.stride = self._ints(bases), self._ints(strides)
        heights = [s.height for s in cameras]
        self.lines = sum(heights)
        self.line_first = self._ints([0, *accumulate(heights)][:-1])
        self.line_count = self._ints(heights)
        self.ground = self._ints([s.height * s.width for s in cameras])
        rows = zip(bases, strides, heights, strict=True)
        self.line_base = self._ints(np.concatenate([b + w * np.arange(h) for b, w, h in rows]))
        columns = np.repeat([s.width for s in cameras], heights)
        self.line_columns = self._ints(columns)
        self.mask_base = self._ints(pixel + np.cumsum(columns) - columns)
        self.pixels = int(columns.sum())
        self.line_owner = self._ints(np.repeat(np.arange(self.count), heights))
        self.width = min(MAX_WIDTH, max(16, power_of_two(max(s.width for s in cameras))))
        self.warps = max(4, self.width // 256)
        area = max(int(s.areas.max(initial=1)) for s in cameras)
        self.pixels_together = min(MAX_PIXELS, max(256, power_of_two(area // 16)))
        """Pixels of a silhouette that are summed together where they are visited one by one."""
        self.boxed = [k for k, s in enumerate(cameras) if isinstance(s, Boxes)]
        self.other = [k for k, s in enumerate(cameras) if isinstance(s, Runs)]
        self.strips = self._strips(cameras, bases, strides, range(self.count))
        self.vertical = self._strips(cameras, bases, strides, self.boxed)
        self.with_boxes, self.with_runs = self._ints(self.boxed), self._ints(self.other)
        self._list_corners(cameras, bases, strides)
        self._list_runs([cameras[k] for k in self.other], [bases[k] for k in self.other])

    def _ints(self, values: Sequence[int] | Ints) -> Tensor:
        return from_numpy(np.asarray(values, dtype=np.int32)).to(self.device)

    def _strips(
        self,
        cameras: Sequence[Silhouettes],
        bases: list[int],
        strides: list[int],
        which: Sequence[int],
    ) -> Strips:
        rows = [
            (bases[k] + x, min(STRIP, cameras[k].width - x), cameras[k].height, strides[k],
             isinstance(cameras[k], Boxes))
            for k in which
            for x in range(0, cameras[k].width, STRIP)
        ]  # fmt: skip
        table = np.array(rows, dtype=np.int64).reshape(-1, 5)
        return Strips(*(self._ints(column) for column in table.T))

    def _list_corners(
        self, cameras: Sequence[Silhouettes], bases: list[int], strides: list[int]
    ) -> None:
        """Lists of corners by the pixel where they lie, those with many corners first."""
        cells, entries = [], []
        for s, base, stride in zip(cameras, bases, strides, strict=True):
            cell, entry = corners(s, stride)
            cells.append(from_numpy(cell + base).to(self.device))
            entries.append(from_numpy(entry).to(self.device))
        cell, order = torch.sort(torch.cat(cells), stable=True)
        entry = torch.cat(entries)[order]
        place, count = torch.unique_consecutive(cell, return_counts=True)
        start = count.cumsum(0) - count
        self.cells = len(place)
        many = count > CROWDED
        order = torch.cat([torch.nonzero(many)[:, 0], torch.nonzero(~many)[:, 0]])
        self.crowded = int(many.sum())
        self.entry = entry.to(torch.int32)
        self.entry_start, self.entry_count = start[order], count[order].to(torch.int32)
        self.slot = torch.full((self.size,), -1, dtype=torch.int32, device=self.device)
        number = torch.arange(self.cells, dtype=torch.int32, device=self.device)
        self.slot[place[order]] = number

    def _list_runs(self, cameras: Sequence[Silhouettes], bases: list[int]) -> None:
        at, column, length, starts, before = [], [], [], [], 0
        for s, base in zip(cameras, bases, strict=True):
            assert isinstance(s, Runs)
            row, first, end = s.runs.T
            at.append(base + row * stride_of(s) + first)
            column.append(first)
            length.append(end - first)
            starts.append(s.starts + before)
            before += len(s.runs)
        none = [np.zeros(1, dtype=np.int64)]  # so that they have an address
        self.run_at, self.run_column, self.run_length, self.run_start = (
            self._ints(np.concatenate(part or none)) for part in (at, column, length, starts)
        )

    # ---- from differences to images ----

    def spread(self, logs: Tensor, values: Tensor, cover: Tensor) -> None:
        """Differences along the rows of Σ log p_i, of some frames.

        Args:
            logs: # (frames, n)
            values: Scratch.  # (frames, cells)
            cover: Written.  # (frames, size)
        """
        frames, n = logs.shape
        crowded = -(-self.crowded // CROWDED_CELLS)
        blocks = crowded + -(-(self.cells - self.crowded) // CELLS)
        if blocks:
            kernels.sum_corners[(blocks, frames)](
                logs, n, self.entry_start, self.entry_count, self.entry, values, self.cells,
                self.crowded, crowded, CELLS=CROWDED_CELLS, WIDE=CROWDED_WIDTH, BLOCK=CELLS,
                num_warps=4,
            )  # fmt: skip
        s = self.strips
        kernels.spread_columns[(len(s), frames)](
            values, self.cells, self.slot, cover, self.size, s.base, s.columns, s.rows, s.stride,
            s.vertical, ROWS=STRIP_ROWS, COLUMNS=STRIP, num_warps=4,
        )  # fmt: skip

    def integrate(self, sums: Tensor, frames: int) -> None:
        """Sum images of boxes down the columns, in place.  # (frames · size,)"""
        s = self.vertical
        kernels.sum_columns[(len(s), frames)](
            sums, self.size, s.base, s.columns, s.rows, s.stride, ROWS=STRIP_ROWS, COLUMNS=STRIP,
            num_warps=4,
        )  # fmt: skip

    def cover(self, values: Tensor) -> Tensor:
        """Each pixel's sum over the locations that cover it.  # (frames, n) -> (frames, size)"""
        frames = len(values)
        real = {"dtype": torch.float64, "device": self.device}
        out = torch.zeros((frames, self.size), **real)
        self.spread(values, torch.empty((frames, max(1, self.cells)), **real), out)
        kernels.finish_cover[(self.lines, frames)](
            out,
            self.size,
            self.line_base,
            self.line_columns,
            WIDTH=self.width,
            num_warps=self.warps,
        )
        return out


class ScenePlan:
    """The silhouettes of all cameras on a device.

    Args:
        silhouettes: Of each camera.
        device: A device of torch.

    Example:
        >>> plan = ScenePlan([Boxes(2, 3, [[0, 0, 2, 1]])], "cuda")  # doctest: +SKIP
    """

    def __init__(self, silhouettes: Sequence[Silhouettes], device: TorchDevice) -> None:
        self.device = torch.device(device)
        self.cameras = len(silhouettes)
        self.kept: dict[Hashable, Any] = {}
        """What others keep as long as the silhouettes are in use."""
        self.n = silhouettes[0].n_locations
        self.heights = [s.height for s in silhouettes]
        self.groups: list[Group] = []
        offset = line = first = pixel = 0
        for some in grouped(silhouettes):
            group = Group(some, first, offset, line, pixel, self.device)
            self.groups.append(group)
            offset, line, first = offset + group.size, line + group.lines, first + group.count
            pixel += group.pixels
        self.size, self.lines, self.pixels = offset, line, pixel
        """Pixels of a frame with the ends of rows, rows, and pixels without them."""
        if self.size > MAX_FRAME:
            raise UnsupportedError(f"{self.size:,} pixels per frame are too many for a GPU")
        boxes = np.zeros((self.cameras, 4, self.n), dtype=np.int32)
        for k, s in enumerate(silhouettes):
            if isinstance(s, Boxes):
                boxes[k] = s.boxes.T
        self.boxes = from_numpy(boxes).to(self.device)
        self.shares = self._shares(silhouettes)
        """1/(mean area of the silhouettes over each pixel), 0 where there are none.  # (size,)"""

    def _shares(self, silhouettes: Sequence[Silhouettes]) -> Tensor:
        out = torch.zeros(self.size, dtype=torch.float64, device=self.device)
        for group in self.groups:
            mine = out[group.offset : group.offset + group.size]
            for k in range(group.count):
                # a location has another area in each camera
                s = silhouettes[group.first + k]
                alone = group if group.count == 1 else Group([s], 0, 0, 0, 0, self.device)
                both = np.stack([s.visible, s.areas]).astype(np.float64)
                count, area = alone.cover(from_numpy(both).to(self.device))
                base = int(group.base[k])
                share = torch.where(count > 0.5, count / torch.where(count > 0.5, area, 1.0), 0.0)
                mine[base : base + alone.size] = share
        return out

    @property
    def frames_together(self) -> int:
        """Frames that are worked on together, so that their images stay in the cache."""
        return max(1, SCRATCH_BYTES // (16 * self.size))


def stride_of(silhouettes: Silhouettes) -> int:
    """Pixels from the beginning of a row to the next."""
    return -(-silhouettes.width // ALIGNMENT) * ALIGNMENT


def grouped(silhouettes: Sequence[Silhouettes]) -> list[list[Silhouettes]]:
    """Consecutive cameras whose images fit into the cache together; at least one each."""
    out: list[list[Silhouettes]] = []
    room = 0
    for s in silhouettes:
        held = 16 * s.height * stride_of(s)
        if not out or held > room:
            out.append([])
            room = SCRATCH_BYTES
        out[-1].append(s)
        room -= held
    return out


def corners(silhouettes: Silhouettes, stride: int) -> tuple[Ints, Ints]:
    """Where the differences of Σ log p_i lie: pixels, and 2 · location + 1 if subtracted.

    Those below or to the right of the image are left out: no pixel follows them.
    """
    s = silhouettes
    if isinstance(s, Boxes):
        left, top, right, bottom = s.boxes.T
        at = np.arange(s.n_locations)
        seen = right > left
        rows = np.concatenate([top, top, bottom, bottom])
        columns = np.concatenate([left, right, left, right])
        entry = np.concatenate([2 * at, 2 * at + 1, 2 * at + 1, 2 * at])
        real = np.tile(seen, 4) & (rows < s.height) & (columns < s.width)
    elif isinstance(s, Runs):
        row, first, end = s.runs.T
        rows, columns = np.concatenate([row, row]), np.concatenate([first, end])
        entry = np.concatenate([2 * s.owner, 2 * s.owner + 1])
        real = columns < s.width
    else:
        raise UnsupportedError(f"{type(s).__name__} can't be used on a GPU: Boxes or Runs can")
    return rows[real] * stride + columns[real], entry[real]


_PLANS: WeakKeyDictionary[Silhouettes, list[tuple[tuple[Silhouettes, ...], ScenePlan]]]
_PLANS = WeakKeyDictionary()
"""Plans by the first camera's silhouettes; each with those of all cameras."""


def plan_for(silhouettes: tuple[Silhouettes, ...], device: TorchDevice) -> ScenePlan:
    """The plan of some silhouettes; the same for the same objects."""
    place = resolved(device)
    known = _PLANS.setdefault(silhouettes[0], [])
    for others, plan in known:
        same = plan.device == place and len(others) == len(silhouettes) - 1
        if same and all(a is b for a, b in zip(others, silhouettes[1:], strict=True)):
            return plan
    plan = ScenePlan(silhouettes, place)
    # without the first camera itself, which would keep itself alive as its own key
    known.append((silhouettes[1:], plan))
    return plan
