"""Silhouettes on a device: what the kernels of occupancy maps need of a scene, whatever its masks.

Made once per scene: terms with the same silhouettes share it.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import accumulate
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from proxfield.core.devices.cuda import resolved, torch
from proxfield.core.devices.tensors import Tensor, TorchDevice
from proxfield.core.engines.triton.device_pack import from_numpy, power_of_two
from proxfield.core.terms.base import Ints
from proxfield.errors import UnsupportedError
from proxfield.people.silhouettes import Boxes, Runs, Silhouettes
from proxfield.people.triton import occupancy_kernels as kernels

SCRATCH_BYTES = 120 << 20
"""Bytes of images that are worked on together: about what the cache of a large GPU has use for."""
ALIGNMENT = 16
"""Rows of images begin at multiples of this many pixels."""
CROWDED = 8
"""Corners at one pixel above which many lanes share them."""
CROWDED_CELLS, CROWDED_WIDTH, CELLS = 8, 32, 256
"""Pixels with many corners of one program, lanes for each; pixels with few."""
BAND = 32
"""Rows of a band; a power of two."""
BAND_VALUES = {"float32": 2048, "float64": 1024}
"""Pixels of a band that are summed together."""
STRIP = 128
"""Columns of one program that adds up bands."""
MAX_WIDTH = 2048
"""Columns of a row that are summed together."""
PIXEL_BYTES = {"float32": 16, "float64": 24}
"""Bytes of images per pixel: differences, log N and integral images."""
MAX_PIXELS = 2048
"""Pixels of a silhouette that are summed together at most."""
MAX_FRAME = 2**31 - 1
"""Pixels of one frame that 32-bit positions can count."""


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
        self, cameras: Sequence[Silhouettes], first: int, offset: int, line: int, pixel: int,
        device: TorchDevice,
    ) -> None:  # fmt: skip
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
        self.ground = self._ints([s.height * s.width for s in cameras])
        rows = zip(bases, strides, heights, strict=True)
        line_base = self._ints(np.concatenate([b + w * np.arange(h) for b, w, h in rows]))
        columns = np.repeat([s.width for s in cameras], heights)
        mask_base = self._ints(pixel + np.cumsum(columns) - columns)
        self.mask_rows = kernels.MaskRows(line_base, mask_base, self._ints(columns))
        self.pixels = int(columns.sum())
        self.width = min(MAX_WIDTH, max(16, power_of_two(max(s.width for s in cameras))))
        self.warps = max(4, self.width // 256)
        self.pieces = max(s.width for s in cameras) > self.width
        """Whether rows are longer than what is summed together."""
        area = max(int(s.areas.max(initial=1)) for s in cameras)
        self.pixels_together = min(MAX_PIXELS, max(256, power_of_two(area // 16)))
        """Pixels of a silhouette that are summed together where they are visited one by one."""
        self.boxed = [k for k, s in enumerate(cameras) if isinstance(s, Boxes)]
        self.other = [k for k, s in enumerate(cameras) if isinstance(s, Runs)]
        self._list_bands(cameras, bases, strides)
        self.numbers = self._ints([len(self.boxed), len(self.other)])
        """Cameras with rectangles, and with runs."""
        self.with_boxes, self.with_runs = self._ints(self.boxed), self._ints(self.other)
        self._list_corners(cameras, bases, strides)
        self._list_runs([cameras[k] for k in self.other], [bases[k] for k in self.other])

    def _ints(self, values: Sequence[int] | Ints) -> Tensor:
        return from_numpy(np.asarray(values, dtype=np.int32)).to(self.device)

    def _list_bands(
        self, cameras: Sequence[Silhouettes], bases: list[int], strides: list[int]
    ) -> None:
        """Bands of rows: where each begins, where its columns' sums are, rows, columns, stride,
        and its number within the camera; −1 for silhouettes of runs.
        """
        rows, counts, heads, strips, head = [], [], [], [], 0
        for s, base, stride in zip(cameras, bases, strides, strict=True):
            boxed = isinstance(s, Boxes)
            counts.append(-(-s.height // BAND))
            heads.append(head)
            if boxed:
                parts = range(0, s.width, STRIP)
                strips += [(head + x, min(STRIP, s.width - x), stride, counts[-1]) for x in parts]
            for k in range(counts[-1]):
                height = min(BAND, s.height - k * BAND)
                number = k if boxed else -1
                rows.append((base + k * BAND * stride, head, height, s.width, stride, number))
                head += stride
        self.head_size = head
        """Columns of all bands, with the ends of rows."""
        self.band_count = len(rows)
        self.bands = self._ints(np.array(rows).T.ravel())
        self.band_owner = self._ints(np.repeat(np.arange(self.count), counts))
        self.band_first = self._ints([0, *accumulate(counts)][:-1])
        self.bands_each = self._ints(counts)
        self.heads = self._ints(heads)
        table = np.array(strips, dtype=np.int64).reshape(-1, 4)
        self.strips = [self._ints(column) for column in table.T]

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
        lists = count[order], entry, place[order]
        ints = (values.to(torch.int32) for values in lists)
        self.corners = kernels.PixelCorners(start[order], *ints)

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
        parts = (at, column, length, starts)
        place, columns, lengths, start = (self._ints(np.concatenate(p or none)) for p in parts)
        lists = place, columns, lengths, start, self.with_runs, self.numbers[1:]
        self.runs = kernels.RunList(*lists)

    def tile(self, dtype: str) -> dict[str, Any]:
        """What kernels over bands are compiled for."""
        rows = min(BAND, max(2, min(8, BAND_VALUES[dtype] // self.width)))
        shape = kernels.BandShape(rows, self.width, BAND // rows, self.pieces)
        return {"SHAPE": shape, "num_warps": min(16, max(4, self.width // 128))}

    def scatter(self, logs: Tensor, diff: Tensor) -> None:
        """Differences of Σ log p_i, of some frames.

        Args:
            logs: # (frames, n)
            diff: Written where corners lie; 0 elsewhere.  # (frames, size)
        """
        frames, n = logs.shape
        crowded = -(-self.crowded // CROWDED_CELLS)
        blocks = crowded + -(-(self.cells - self.crowded) // CELLS)
        if blocks:
            kernels.sum_corners[(blocks, frames)](
                logs, n, self.corners, diff, self.size, self.cells, self.crowded, crowded,
                CELLS=CROWDED_CELLS, WIDE=CROWDED_WIDTH, BLOCK=CELLS, num_warps=4,
            )  # fmt: skip


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
        together: list[list[Silhouettes]] = []
        room = 0
        for s in silhouettes:  # consecutive cameras whose images fit into the cache together
            held = PIXEL_BYTES["float32"] * s.height * stride_of(s)
            if not together or held > room:
                together.append([])
                room = SCRATCH_BYTES
            together[-1].append(s)
            room -= held
        for some in together:
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
        self.shares = torch.zeros(self.size, dtype=torch.float64, device=self.device)
        """1/(mean area of the silhouettes over each pixel), 0 where there are none.  # (size,)"""
        at = 0
        for s in silhouettes:  # a location has another area in each camera
            end = at + s.height * stride_of(s)
            # number of locations over each pixel, and the sum of their areas
            place, entry = (from_numpy(x).to(self.device) for x in corners(s, s.width))
            images = []
            for values in (s.visible, s.areas):
                each = from_numpy(values.astype(np.float64)).to(self.device)[entry >> 1]
                image = torch.zeros(s.height * s.width, dtype=torch.float64, device=self.device)
                # whole numbers: the order of sums doesn't matter
                image.index_add_(0, place, torch.where((entry & 1) != 0, -each, each))
                image = image.view(s.height, s.width)
                images.append((image.cumsum(0) if isinstance(s, Boxes) else image).cumsum(1))
            count, area = images
            share = torch.where(count > 0.5, count / torch.where(count > 0.5, area, 1.0), 0.0)
            self.shares[at:end].view(s.height, -1)[:, : s.width] = share
            at = end


def stride_of(silhouettes: Silhouettes) -> int:
    """Pixels from the beginning of a row to the next."""
    return -(-silhouettes.width // ALIGNMENT) * ALIGNMENT


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
