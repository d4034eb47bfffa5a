"""Fields that differ in unary energies and in one term, iterated together: frames of a video.

The term is one that a device can evaluate for all fields at once (`terms.base.frames_class`).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager

import numpy as np

from proxfield.core.devices.cuda import find_device, torch
from proxfield.core.devices.tensors import TorchDevice
from proxfield.core.engines.plan import Update
from proxfield.core.engines.triton.batch import BatchProgram
from proxfield.core.engines.triton.device_pack import BatchState, upload
from proxfield.core.engines.triton.terms.base import DeviceTerm, frames_class
from proxfield.core.lowering.lowered import Lowered


class FramesProgram(BatchProgram):
    """Fields with one term each that isn't lowered; all of them are evaluated together.

    Fields with the same `batch_key` can be together. Rules move each by itself, as in any batch: F,
    change and the number of updates are its own, and so may be its step.
    """

    def __init__(
        self, lowereds: list[Lowered], dtype: str = "float32", device: TorchDevice = None
    ) -> None:
        self.layout = lowereds[0].layout
        self.extras = [low.extras[0] for low in lowereds]
        super().__init__(lowereds, dtype, device, terms=self._together)
        self._warm: set[Hashable] = set()
        self._stale = False
        """Whether the program in float64 still has other frames."""

    def _together(self, dtype: str) -> list[DeviceTerm]:
        kind = frames_class(self.extras[0])
        return [kind(self.extras, self.layout, dtype, self.device)]

    def warm_up(self, plan: Update, state: BatchState, trace: bool) -> None:
        """See `BatchProgram`; once per kind of update."""
        flat = bool((plan.step == plan.step[0]).all())
        key = (plan.kind, plan.adaptive, plan.search is None, trace, flat)
        if key not in self._warm:
            super().warm_up(plan, state, trace)
            self._warm.add(key)

    def set_frames(self, lowereds: list[Lowered]) -> None:
        """Replace all fields by others with the same `batch_key` that have unary energies only."""
        self.joined.lowereds = lowereds
        self.extras = [low.extras[0] for low in lowereds]
        constants = np.array([low.constant for low in lowereds], dtype=np.float64)
        assert self.pack.constants is not None, "made with the pack"
        self.pack.constants.copy_(torch.as_tensor(constants))
        for term in self.terms:
            term.set_terms(self.extras)  # type: ignore[attr-defined]
        self._stale = self._exact is not None
        self.set_unary(upload([low.unary for low in lowereds], self.device))

    @property
    def exact(self) -> BatchProgram:
        """See `BatchProgram`; it gets the present frames when it is first asked for them."""
        found = super().exact
        if self._stale:
            for theirs, mine in zip(found.terms, self.terms, strict=True):
                theirs.take_frames(mine)  # type: ignore[attr-defined]
            self._stale = False
        return found

    def release(self) -> None:
        """Forget the fields: a program that waits for others mustn't keep their scene alive."""
        self.joined.lowereds, self.extras = [], []
        if isinstance(self._exact, FramesProgram):
            self._exact.extras = []


def batch_key(lowered: Lowered) -> Hashable | None:
    """What fields have in common that can be frames of one program; None: it can't be one."""
    if len(lowered.extras) != 1 or lowered.layout.common is None:
        return None
    kind = frames_class(lowered.extras[0])
    if kind is None:
        return None
    return kind.frame_key(lowered.extras[0]), lowered.layout.n_vars, lowered.layout.common


MAX_KEPT = 2
"""Programs of one scene that are kept for the next frames."""


@contextmanager
def frames_program(
    lowereds: list[Lowered], dtype: str, device: TorchDevice
) -> Iterator[FramesProgram]:
    """A program of these fields; where one with other frames of the same scene is at hand, that.

    It keeps its compiled kernels and recorded graphs for the next frames as long as the scene is
    in use. Meanwhile nobody else gets it.
    """
    first, place = lowereds[0], find_device(device)
    key = (batch_key(first), len(lowereds), dtype)
    term = first.extras[0]
    kept: dict[Hashable, FramesProgram] = frames_class(term).kept_with(term, place)
    plain = not any(low.ising or low.potts or low.factors for low in lowereds)
    program = kept.pop(key, None) if plain else None  # atomic: threads don't share it
    if program is None:
        program = FramesProgram(lowereds, dtype, place)
    else:
        program.set_frames(lowereds)
    yield program  # after an error it isn't kept
    if plain:
        program.release()
        while len(kept) >= MAX_KEPT:
            kept.pop(next(iter(kept)), None)
        kept[key] = program
