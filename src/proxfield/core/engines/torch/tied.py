"""Updates of factors that share tables, in torch: `TorchProgram` with the tables as parameters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from proxfield.core.common.arrays import Doubles, Ints
from proxfield.core.devices.base import find
from proxfield.core.devices.cuda import need_torch, torch
from proxfield.core.devices.tensors import Tensor
from proxfield.core.engines.base import Rows, State
from proxfield.core.engines.plan import Update
from proxfield.core.engines.recorded import Factors, Recorded
from proxfield.core.engines.torch.energy import Energy
from proxfield.core.engines.torch.program import Recorder, TorchProgram, pull_back
from proxfield.core.lowering.lowered import lower_untouched
from proxfield.core.terms.base import Layout
from proxfield.core.terms.factor import Factor

T = TypeVar("T", bound=TorchProgram)


class TiedEnergy:
    """Factors over tables that come with each call, on a device.

    Args:
        factors: Factors of one, two and more variables.
        offsets: First entry of each variable.  # (n + 1,)
        device: "cpu" or another device of torch.

    Attributes:
        energy: The energy; its parameters are the entries of w in ``entries``.
        entries: Of tables of several variables.
        unary: Entries of tables of one variable.
        places: The flat entries of variables that those belong to.
    """

    def __init__(self, factors: Sequence[Factors], offsets: Ints, device: str) -> None:
        need_torch()
        where = torch.device("cpu") if device == "cpu" else find(device, any_of_torch=True).handle()
        cards = np.diff(offsets)
        none = np.zeros(0, dtype=np.int64)
        entries, unary, places, terms = [none], [none], [none], []
        for scopes, base, strides, shape in _alike(factors, cards):
            first, index = np.unique(base, return_inverse=True)
            at = first.reshape(-1, *(1,) * len(shape)) + np.tensordot(
                strides, np.indices(shape), axes=1
            )  # (tables, K_1, …)
            if len(shape) == 1:
                unary.append(at[index].ravel())
                places.append((offsets[scopes] + np.arange(shape[0])).ravel())
            else:
                entries.append(at.ravel())
                tables = np.broadcast_to(0.0, at.shape)  # only the shape counts
                terms.append(Factor.trusted(scopes, tables, index))
        self.entries, self.unary, self.places = map(np.concatenate, (entries, unary, places))
        self.lowered = lower_untouched(Layout(cards), [], False, np.dtype(np.float64))
        self.energy = Energy(self.lowered, torch.float64, where, given=terms)
        self.counts = [part.count for part, _ in self.energy.parts]

    def program(self, kind: type[T], unary: Tensor, numbers: Tensor) -> T:
        """A program for unary energies and entries of tables.  # (1, n, labels), (entries,)"""
        return kind(
            self.lowered, "float64", self.energy.device, unary=unary, energy=self.energy,
            weights=tuple(numbers.split(self.counts)) if self.counts else (),
        )  # fmt: skip


def _alike(
    factors: Sequence[Factors], cards: Ints
) -> Iterator[tuple[Ints, Ints, Ints, tuple[int, ...]]]:
    """Variables, bases, strides and numbers of labels of factors that are alike in the last two."""
    for f in factors:
        k = f.variables.shape[1]
        keys, which = np.unique(
            np.column_stack([f.kind, cards[f.variables]]), axis=0, return_inverse=True
        )
        for number, (kind, *shape) in enumerate(keys.tolist()):
            some = np.flatnonzero(which.ravel() == number)
            scopes, base = f.variables[some].astype(np.int64), f.base[some].astype(np.int64)
            yield scopes, base, f.strides[kind, :k], tuple(shape)


class TorchUpdates(Recorded[State]):
    """Updates over the tables w, which are the parameters.

    Args:
        tied: The factors.
        w: The tables, one after another.  # (n_entries,)
    """

    def __init__(self, tied: TiedEnergy, w: Doubles) -> None:
        self.tied, self.n_entries = tied, len(w)
        energy, size = tied.energy, tied.lowered.layout.size
        flat = np.bincount(tied.places, w[tied.unary], size).astype(np.float64)
        self.unary = energy.padding.pad(energy.tensor(flat)[None], np.inf)
        self.numbers = energy.tensor(w[tied.entries])
        self.program = tied.program(Recorder, self.unary, self.numbers)

    def _plan(self, step: float) -> Update:
        return Update.damped(np.full(self.tied.lowered.layout.n_vars, step))

    def start(self) -> State:
        q = torch.isfinite(self.unary).to(self.unary)
        return self.program.begin(self._plan(1.0), q / q.sum(dim=-1, keepdim=True))

    def advance_each(
        self, state: State, plan: float, n: int, tol: float, trace: bool, wanted: NDArray[np.bool_]
    ) -> list[Rows]:
        return self.program.advance_each(state, self._plan(plan), n, tol, trace, wanted)

    def marginals(self, state: State) -> Doubles:
        return self.program.marginals(state)

    def moved(self, state: State) -> float:
        before = self.tied.energy.padding.flatten(state.arrays.before)
        return float((self.tied.energy.padding.flatten(state.arrays.q) - before).abs().mean())

    def pull_back(self, state: State, step: float, d: Doubles) -> Doubles:
        energy = self.tied.energy
        grad = energy.padding.pad(energy.tensor(d)[None], 0.0)
        made = self.program.recording(state)
        make = partial(self.tied.program, TorchProgram)
        found, to_numbers = pull_back(make, made, grad, self.unary, self.numbers, None)
        flat = energy.padding.flatten(found)[0].cpu().numpy()
        out = np.bincount(self.tied.entries, to_numbers.cpu().numpy(), self.n_entries)
        return np.asarray(
            out + np.bincount(self.tied.unary, flat[self.tied.places], self.n_entries)
        )
