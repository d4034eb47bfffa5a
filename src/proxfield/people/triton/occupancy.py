"""Occupancy maps on a device: one frame, or several with the same silhouettes together."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from proxfield.core.devices.cuda import torch
from proxfield.core.devices.tensors import Tensor, TorchDevice
from proxfield.core.engines.triton.device_pack import from_numpy
from proxfield.core.terms.base import Layout
from proxfield.people.numba import DIRECT, SMALLEST
from proxfield.people.occupancy import ExactOccupancy, Occupancy, RatioOccupancy
from proxfield.people.silhouettes import Boxes, Runs
from proxfield.people.triton import occupancy_kernels as kernels
from proxfield.people.triton import occupancy_plan as planning
from proxfield.people.triton.occupancy_plan import BAND, STRIP, Group, ScenePlan, plan_for

LOGS_BLOCK = 1024
"""Locations of one program that takes logarithms, or adds up cameras."""
COLLECT_BLOCK = 128
"""Locations of one program that sums over silhouettes."""
FLAGS = 256
"""Flags that are looked at together."""
DIRECT_BELOW = {"float32": 1e-3, "float64": DIRECT}
"""p_i below which pixels are summed one by one."""


class OccupancyFrames:
    """`Occupancy` terms with the same silhouettes and parameters on a device, as one term.

    Args:
        terms: One per frame; see `frame_key`.
        layout: Layout of one frame's field.
        dtype: "float32" or "float64": of marginals, gradients and weights.
        device: A device of torch.

    Example:
        >>> frames = OccupancyFrames(terms, layout, "float32", "cuda")  # doctest: +SKIP
        >>> energies = frames.add_gradient(q, shift)  # q of all frames  # doctest: +SKIP
    """

    capturable = True
    of_pairs = True
    """Where all variables have two labels, marginals are read in one launch (`update.binary`)."""

    def __init__(
        self, terms: Sequence[Occupancy], layout: Layout, dtype: str, device: TorchDevice
    ) -> None:
        first = terms[0]
        self.device = torch.device(device)
        self.frames, self.n = len(terms), first.n_locations
        self.entries, self.entry = layout.size, first.entries(layout).start
        """Entries of a frame's state, and the first that is of a location."""
        self.ratio = isinstance(first, RatioOccupancy)
        self.plan: ScenePlan | None = None
        """Without one no camera has a mask: the energy is 0."""
        if not first.silhouettes or not self.n:
            return
        self.plan = plan = plan_for(first.silhouettes, self.device)
        real = {"dtype": torch.float64, "device": self.device}
        kind = {"dtype": getattr(torch, dtype), "device": self.device}
        self.image = torch.zeros((self.frames, plan.size), **kind)
        """Weights w, or 1 − 2B.  # (frames, size)"""
        self.weighing = (0.0, 0.0, 0.0, 0.0)
        """Weights and the energy's constant per share: for B = 0, and the rise to B = 1."""
        if isinstance(first, ExactOccupancy):
            k, miss, alarm = first.strength, first.miss, first.false_alarm
            seen, unseen = np.log((1 - miss) / alarm), np.log(miss / (1 - alarm))
            hit, missed = np.log(1 - miss), np.log(miss)
            self.weighing = (k * unseen, k * (seen - unseen), -k * missed, -k * (hit - missed))
        self.dtype = dtype
        self.numbers = torch.tensor([first.variance, first.floor], **real)
        self.limits = torch.tensor([SMALLEST, np.log(DIRECT_BELOW[dtype])], **real)
        self.blocks = -(-self.n // LOGS_BLOCK)
        self.counts = torch.tensor([self.blocks], dtype=torch.int32, device=self.device)
        self.logs = torch.zeros((self.frames, self.n), **kind)
        self.flags = torch.zeros((self.frames, self.blocks), dtype=torch.int32, device=self.device)
        bands = sum(group.band_count for group in plan.groups)
        self.totals = torch.zeros((self.frames, bands), **real)
        self.factors = torch.zeros((self.frames, plan.cameras, 2), **real)
        self.energies = torch.zeros((self.frames, plan.cameras), **real)
        # images of some frames; those that aren't kept, of one group of cameras
        fit = max(
            1, planning.SCRATCH_BYTES // (planning.PIXEL_BYTES[dtype] * plan.size)
        )  # in the cache
        self.at_once = some = min(self.frames, fit)
        room = some * max(group.size for group in plan.groups)
        self.diff = torch.zeros(some * plan.size, **kind)
        """Differences: 0 for ever where no corner lies."""
        self.cover, self.sums = torch.zeros(room, **kind), torch.zeros(room, **real)
        columns = some * max(group.head_size for group in plan.groups)
        self.heads, self.feet = torch.zeros(columns, **kind), torch.zeros(columns, **real)
        if self.ratio:
            most = max(group.band_count for group in plan.groups)
            self.measured = torch.zeros((some, most, 2), **real)
        self.constants = torch.zeros(self.frames, **real)
        self.mask_sums = torch.zeros((self.frames, plan.cameras), **real)
        self.staging: Tensor | None = None
        self.masks: Tensor | None = None
        """Those of the present frames, on the device.  # (frames, pixels)"""
        self.set_terms(terms)

    @staticmethod
    def accepts(term: Occupancy) -> bool:
        """Whether every camera has silhouettes of a known kind."""
        return all(type(s) in (Boxes, Runs) for s in term.silhouettes)

    @staticmethod
    def frame_key(term: Occupancy) -> Hashable:
        """What terms have in common that can be one."""
        parameters = (term.miss, term.false_alarm, term.strength, term.variance, term.floor)
        return (type(term), term.n_locations, term.first, *map(id, term.silhouettes), *parameters)

    @staticmethod
    def kept_with(term: Occupancy, device: TorchDevice) -> dict[Hashable, Any]:
        """What lives as long as the silhouettes."""
        if not term.silhouettes or not term.n_locations:
            return {}
        return plan_for(term.silhouettes, device).kept

    def set_terms(self, terms: Sequence[Occupancy]) -> None:
        """Replace all frames by as many others with the same key."""
        if self.plan is None:
            return
        # 8-bit values, or numbers from 0 to 1
        flat: list[NDArray[Any]] = [mask.ravel() for term in terms for mask in term.compact]
        kinds = {mask.dtype for mask in flat}
        small = kinds == {np.dtype(np.uint8)}
        kind = torch.uint8 if small else torch.float64
        if self.staging is None or self.staging.dtype != kind:
            shape, pinned = (self.frames, self.plan.pixels), self.device.type == "cuda"
            self.staging = torch.empty(shape, dtype=kind, pin_memory=pinned)
        if not small:
            flat = [mask / 255.0 if mask.dtype == np.uint8 else mask for mask in flat]
        torch.cat([from_numpy(mask) for mask in flat], out=self.staging.view(-1))  # on all cores
        self.masks = self.staging.to(self.device)
        self._weigh(self.plan, self.masks)

    def take_frames(self, other: OccupancyFrames) -> None:
        """Replace all frames by those of another term with the same key."""
        if self.plan is not None and other.masks is not None:
            self._weigh(self.plan, other.masks)

    def _weigh(self, plan: ScenePlan, masks: Tensor) -> None:
        """What masks on the device make of the images."""
        one = 255.0 if masks.dtype == torch.uint8 else 1.0
        numbers = torch.tensor([one, *self.weighing], dtype=torch.float64, device=self.device)
        totals = torch.empty((self.frames, plan.lines), dtype=torch.float64, device=self.device)
        for group in plan.groups:
            kernels.weigh_masks[(group.lines, self.frames)](
                masks, plan.pixels, plan.shares[group.offset :], self.image[:, group.offset :],
                plan.size, group.mask_rows, numbers, totals[:, group.line :], plan.lines,
                RATIO=self.ratio, WIDTH=group.width, num_warps=group.warps,
            )  # fmt: skip
        if self.ratio:
            sums = [part.sum(1) for part in totals.split(plan.heights, 1)]
            self.mask_sums.copy_(torch.stack(sums, 1))
        else:
            self.constants.copy_(totals.sum(1))

    def add_gradient(self, q: Tensor, out: Tensor) -> Tensor:
        """Add dE/dq at ``q`` to ``out``.

        Args:
            q: Marginals of all frames, one after another.  # (frames · size,)
            out: Changed in place, of the same type.  # (frames · size,)

        Returns:
            The energy of each frame, on the device.  # (frames,) float64
        """
        plan = self.plan
        if plan is None:
            return torch.zeros(self.frames, dtype=torch.float64, device=q.device)
        kernels.take_logs[(self.blocks, self.frames)](
            q[self.entry :], self.entries, self.logs, self.flags, self.n, self.limits,
            self.limits[1:], BLOCK=LOGS_BLOCK, num_warps=4,
        )  # fmt: skip
        for first in range(0, self.frames, self.at_once):
            last = min(first + self.at_once, self.frames)
            at = first * self.entries + self.entry
            band = 0
            for group in plan.groups:
                self._look(plan, group, first, last, band, out[at:])
                band += group.band_count
        return self.energies.sum(1) if self.ratio else self.constants + self.totals.sum(1)

    def _look(
        self, plan: ScenePlan, group: Group, first: int, last: int, band: int, out: Tensor
    ) -> None:
        """What the cameras of a group add to the frames ``first`` to ``last``."""
        some = last - first
        logs = self.logs[first:last]
        diff = self.diff[self.at_once * group.offset :]
        images = kernels.Images(
            diff, self.cover, self.sums, group.size, self.image[first:, group.offset :], plan.size
        )
        bands = kernels.Bands(
            group.bands, group.band_count, group.band_owner, self.heads, self.feet, group.head_size
        )
        factors = kernels.MaskFactors(self.factors[first:], plan.cameras, group.first)
        grid = (group.band_count, some)
        tile = group.tile(self.dtype)
        group.scatter(logs, diff)
        if group.boxed:
            kernels.sum_bands[grid](images, bands, **tile)
        if self.ratio:
            kernels.measure_bands[grid](images, bands, self.measured, **tile)
            kernels.find_ratios[(group.count, some)](
                self.measured, group.band_count, group.band_first, group.bands_each, group.ground,
                self.mask_sums[first:], self.numbers, factors, self.energies[first:],
                WIDTH=256, num_warps=4,
            )  # fmt: skip
        kernels.weigh_bands[grid](
            images, bands, factors, self.flags[first:], self.counts, self.totals[first:, band:],
            self.totals.shape[1], RATIO=self.ratio, FLAGS=FLAGS, **tile,
        )  # fmt: skip
        blocks = -(-self.n // COLLECT_BLOCK)
        locations = kernels.Locations(self.n, logs, self.limits[1:], out, self.entries)
        collecting = {
            "RATIO": self.ratio, "BLOCK": COLLECT_BLOCK, "PIXELS": group.pixels_together,
            "num_warps": 8 if group.pixels_together > 1024 else 4,
        }  # fmt: skip
        if group.boxed:
            kernels.add_feet[(len(group.strips[0]), some)](
                self.feet, group.head_size, *group.strips, COLUMNS=STRIP, num_warps=4
            )
            boxes = kernels.BoxList(
                plan.boxes, group.with_boxes, group.numbers, group.base, group.heads, group.stride
            )
            kernels.collect_boxes[(blocks, some)](
                images, bands, boxes, locations, factors, BAND=BAND, **collecting
            )
        if group.other:
            kernels.collect_runs[(blocks, some)](
                images, group.runs, locations, factors, **collecting
            )


class OccupancyOnDevice(OccupancyFrames):
    """An `Occupancy` term on a device; see `DeviceTerm`."""

    frames_class = OccupancyFrames

    def __init__(self, term: Occupancy, layout: Layout, dtype: str, device: TorchDevice) -> None:
        super().__init__([term], layout, dtype, device)

    def add_gradient(self, q: Tensor, out: Tensor) -> Tensor:
        """See `DeviceTerm`."""
        return super().add_gradient(q, out)[0]


class RatioOnDevice(OccupancyOnDevice):
    """A term with ``model="ratio"``: a class of its own, since it needs other kernels."""
