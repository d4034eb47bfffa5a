"""Damped updates of mean field from uniform marginals, and their exact adjoint.

Whatever is learned through marginals makes these updates: a program that keeps its states
(`proxfield.core.engines.recorded`), driven by the one loop.
"""

from __future__ import annotations

from typing import Any

from proxfield.core.common.arrays import Doubles
from proxfield.core.common.checks import is_real, whole_number
from proxfield.core.engines.recorded import Recorded
from proxfield.core.solve.loop import make_updates
from proxfield.errors import InputError, shown
from proxfield.learn.structure import Structure


class Unrolled:
    """Updates that were made, with their adjoint.

    Args:
        updates: A program with its parameters.
        n_updates: Number of updates, 1 or more.
        step: Their step, above 0 and at most 1.

    Attributes:
        q: Marginals after the last update.  # (size,)
    """

    def __init__(self, updates: Recorded[Any], n_updates: int, step: float) -> None:
        self.updates, self.step, self.state = updates, float(step), updates.start()
        make_updates(updates, self.step, self.state, n_updates)
        self.q: Doubles = updates.marginals(self.state)

    @property
    def change(self) -> float:
        """Mean change of a label's probability by the last update, divided by the step."""
        return self.updates.moved(self.state) / self.step

    def backward(self, d: Doubles) -> Doubles:
        """From the gradient of a loss in q to the one in the parameters.  # (size,) -> (any,)"""
        return self.updates.pull_back(self.state, self.step, d)


def check_updates(n_updates: int, step: float) -> None:
    """Raise `InputError` unless these are a number of updates and a step."""
    whole_number(n_updates, "n_updates", 1)
    if not is_real(step) or not 0 < step <= 1:
        raise InputError(f"step={shown(step)}, expected a number above 0, at most 1")


def unroll(
    structure: Structure, w: Doubles, n_updates: int, step: float, device: str = "cpu"
) -> Unrolled:
    """The updates of all instances over the tables w; arguments are checked.

    Args:
        structure: The instances.
        w: Their tables, which are the parameters.  # (n_entries,)
        n_updates: Number of updates.
        step: Their step.
        device: "cpu" for compiled kernels, otherwise a device of torch.
    """
    check_updates(n_updates, step)
    return Unrolled(updates_of(structure, w, device), n_updates, step)


def updates_of(structure: Structure, w: Doubles, device: str) -> Recorded[Any]:
    """The program of the instances on a device."""
    s = structure
    if device != "cpu":
        from proxfield.core.engines.torch.tied import TorchUpdates

        return TorchUpdates(s.on_torch(device), w)
    from proxfield.core.engines.numba.tied import SpinUpdates, TableUpdates

    if s.binary:
        return SpinUpdates(s.order(1), s.order(2), s.runs, s.ptr, w)
    return TableUpdates([s.factors[k] for k in sorted(s.factors)], s.offsets, w)
