"""Occupancy maps on a device: one frame, or several with the same silhouettes together."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from proxfield.backends.triton.terms import occupancy_kernels as kernels
from proxfield.backends.triton.terms.occupancy_plan import Group, ScenePlan, plan_for
from proxfield.devices.cuda import torch
from proxfield.devices.tensors import Tensor, TorchDevice
from proxfield.errors import InputError
from proxfield.terms.base import Layout
from proxfield.terms.occupancy import DIRECT, SMALLEST, ExactOccupancy, Occupancy, RatioOccupancy
from proxfield.terms.silhouettes import Boxes, Runs

LOGS_BLOCK = 1024
"""Locations of one program that takes logarithms, or adds up cameras."""
COLLECT_BLOCK = 128
"""Locations of one program that sums over silhouettes."""
FLAGS = 256
"""Flags that are looked at together."""

Masks = Sequence[NDArray[Any]]
"""Of each camera: 8-bit values, or numbers from 0 to 1."""


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
        self.image = torch.zeros(
            (self.frames, plan.size), dtype=getattr(torch, dtype), device=self.device
        )
        """Weights w, or 1 − 2B.  # (frames, size)"""
        self.weighing = weighing(first)
        self.numbers = torch.tensor([first.variance, first.floor], **real)
        self.limits = torch.tensor([SMALLEST, np.log(DIRECT)], **real)
        self.blocks = -(-self.n // LOGS_BLOCK)
        self.counts = torch.tensor(
            [self.blocks, plan.cameras], dtype=torch.int32, device=self.device
        )
        self.logs = torch.zeros((self.frames, self.n), **real)
        self.flags = torch.zeros((self.frames, self.blocks), dtype=torch.int32, device=self.device)
        self.totals = torch.zeros((self.frames, plan.lines), **real)
        self.factors = torch.zeros((self.frames, plan.cameras, 2), **real)
        self.energies = torch.zeros((self.frames, plan.cameras), **real)
        # images of some frames and of one group of cameras
        self.at_once = some = min(self.frames, plan.frames_together)
        room = some * max(group.size for group in plan.groups)
        self.cover, self.sums = torch.zeros(room, **real), torch.zeros(room, **real)
        self.values = torch.zeros(some * max(1, *(g.cells for g in plan.groups)), **real)
        self.parts = torch.zeros((some, plan.cameras, self.n), **real)
        if self.ratio:
            lines = max(group.lines for group in plan.groups)
            self.measured = torch.zeros((some, lines, 2), **real)
        self.constants = torch.zeros(self.frames, **real)
        self.mask_sums = torch.zeros((self.frames, plan.cameras), **real)
        self.staging: Tensor | None = None
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
    def together(
        terms: Sequence[Occupancy], layout: Layout, dtype: str, device: TorchDevice
    ) -> OccupancyFrames:
        """Terms with the same key as one."""
        return OccupancyFrames(terms, layout, dtype, device)

    @staticmethod
    def kept_with(term: Occupancy, device: TorchDevice) -> dict[Hashable, Any]:
        """What lives as long as the silhouettes."""
        if not term.silhouettes or not term.n_locations:
            return {}
        return plan_for(term.silhouettes, device).kept

    # ---- masks ----

    def set_terms(self, terms: Sequence[Occupancy]) -> None:
        """Replace all frames by others with the same key."""
        self.set_masks([term.compact for term in terms])

    def set_masks(self, frames: Sequence[Masks]) -> None:
        """Replace the masks of all frames; silhouettes and parameters stay.

        Args:
            frames: Of each frame, the masks of its cameras.
        """
        plan = self.plan
        if len(frames) != self.frames:
            raise InputError(f"masks of {len(frames)} frames, expected {self.frames}")
        if plan is None:
            return
        masks = self._upload(frames)
        one = 255.0 if masks.dtype == torch.uint8 else 1.0
        numbers = torch.tensor([one, *self.weighing], dtype=torch.float64, device=self.device)
        totals = torch.empty((self.frames, plan.lines), dtype=torch.float64, device=self.device)
        for group in plan.groups:
            kernels.weigh_masks[(group.lines, self.frames)](
                masks, plan.pixels, plan.shares[group.offset :], self.image[:, group.offset :],
                plan.size, group.line_base, group.mask_base, group.line_columns, numbers, totals,
                plan.lines, group.line, RATIO=self.ratio, WIDTH=group.width,
                num_warps=group.warps,
            )  # fmt: skip
        if self.ratio:
            sums = [part.sum(1) for part in totals.split(plan.heights, 1)]
            self.mask_sums.copy_(torch.stack(sums, 1))
        else:
            self.constants.copy_(totals.sum(1))

    def _upload(self, frames: Sequence[Masks]) -> Tensor:
        """All masks on the device, one frame after another.  # (frames, pixels)"""
        assert self.plan is not None, "asked for by set_masks alone"
        kinds = {mask.dtype for masks in frames for mask in masks}
        small = kinds == {np.dtype(np.uint8)}
        kind = torch.uint8 if small else torch.float64
        if self.staging is None or self.staging.dtype != kind:
            pinned = self.device.type == "cuda"
            shape = (self.frames, self.plan.pixels)
            self.staging = torch.empty(shape, dtype=kind, pin_memory=pinned)
        for row, masks in zip(self.staging.numpy(), frames, strict=True):
            flat = [mask.ravel() for mask in masks]
            if not small:
                flat = [mask / 255.0 if mask.dtype == np.uint8 else mask for mask in flat]
            np.concatenate(flat, out=row)
        return self.staging.to(self.device)

    # ---- value and gradient ----

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
            for group in plan.groups:
                self._look(plan, group, first, last)
            kernels.add_cameras[(self.blocks, last - first)](
                self.parts, out[first * self.entries + self.entry :], self.entries, self.n,
                self.counts, BLOCK=LOGS_BLOCK, num_warps=4,
            )  # fmt: skip
        return self.energies.sum(1) if self.ratio else self.constants + self.totals.sum(1)

    def _look(self, plan: ScenePlan, group: Group, first: int, last: int) -> None:
        """What the cameras of a group add to the frames ``first`` to ``last``."""
        some, size = last - first, group.size
        logs = self.logs[first:last]
        cover, sums = self.cover[: some * size], self.sums[: some * size]
        image, factors = self.image[first:, group.offset :], self.factors[first:]
        group.spread(logs, self.values, cover)
        rows = group.line_base, group.line_columns
        if self.ratio:
            kernels.measure_rows[(group.lines, some)](
                cover, image, plan.size, size, *rows, self.measured, group.lines,
                WIDTH=group.width,
                num_warps=group.warps,
            )  # fmt: skip
            kernels.find_ratios[(group.count, some)](
                self.measured, group.lines, group.line_first, group.line_count, group.ground,
                self.mask_sums[first:], self.numbers, factors, self.energies[first:],
                plan.cameras, group.first, WIDTH=256, num_warps=4,
            )  # fmt: skip
        kernels.weigh_rows[(group.lines, some)](
            cover, sums, image, plan.size, size, *rows, group.line_owner, factors, plan.cameras,
            group.first, self.flags[first:], self.counts, self.totals[first:], plan.lines,
            group.line, RATIO=self.ratio, WIDTH=group.width, FLAGS=FLAGS,
            num_warps=group.warps,
        )  # fmt: skip
        blocks = -(-self.n // COLLECT_BLOCK)
        ends = logs, factors, self.limits[1:], self.parts, plan.cameras, group.first
        shape = {
            "RATIO": self.ratio, "BLOCK": COLLECT_BLOCK, "PIXELS": group.pixels_together,
            "num_warps": 8 if group.pixels_together > 1024 else 4,
        }  # fmt: skip
        if group.boxed:
            group.integrate(sums, some)
            kernels.collect_boxes[(blocks, len(group.boxed), some)](
                sums, cover, image, plan.size, size, plan.boxes, self.n, group.with_boxes,
                group.base, group.stride, *ends, **shape,
            )  # fmt: skip
        if group.other:
            kernels.collect_runs[(blocks, len(group.other), some)](
                sums, cover, image, plan.size, size, group.run_at, group.run_column,
                group.run_length, group.run_start, self.n, group.with_runs, *ends, **shape,
            )  # fmt: skip


class OccupancyOnDevice(OccupancyFrames):
    """An `Occupancy` term on a device; see `DeviceTerm`."""

    def __init__(self, term: Occupancy, layout: Layout, dtype: str, device: TorchDevice) -> None:
        super().__init__([term], layout, dtype, device)

    def add_gradient(self, q: Tensor, out: Tensor) -> Tensor:
        """See `DeviceTerm`."""
        return super().add_gradient(q, out)[0]


class RatioOnDevice(OccupancyOnDevice):
    """The same for ``model="ratio"``: a class of its own, since it needs other kernels."""


def weighing(term: Occupancy) -> tuple[float, float, float, float]:
    """What weights and the energy's constant are per share: for B = 0, and the rise to B = 1."""
    if not isinstance(term, ExactOccupancy):
        return 0.0, 0.0, 0.0, 0.0
    seen = np.log((1 - term.miss) / term.false_alarm)
    unseen = np.log(term.miss / (1 - term.false_alarm))
    hit, missed = np.log(1 - term.miss), np.log(term.miss)
    k = term.strength
    return k * unseen, k * (seen - unseen), -k * missed, -k * (hit - missed)
