"""From marginals to one labelling."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from proxfield.core.engines.base import Program
from proxfield.core.engines.registry import placed, program_for
from proxfield.core.lowering.lowered import Lowered
from proxfield.core.solve.request import moved, on_gpu
from proxfield.core.terms.base import Floats, Ints, expectation
from proxfield.result import one_hot

if TYPE_CHECKING:
    from proxfield.result import Result

MAX_SWEEPS = 100
"""Maximum number of rounds of greedy improvement; it usually ends after a handful."""
GREEDY_TRIALS = 30
"""Maximum number of greedy improvements tried where variables can't be visited one by one."""
TRIALS = 100
"""Changes of single variables that are tried in a field with terms over all pairs."""


def round_marginals(result: Result) -> Ints:
    """Round coordinate by coordinate, then improve greedily until no label changes.

    Giving variable i the label of least expected energy under the others' q can't raise
    E(q), because E is linear in q_i (or concave, for terms that sum out variables of their
    own). Fields whose terms can't be visited one variable at a time are rounded in groups; a
    group that raises E is halved, so that a group of one variable is the worst case. Each mode of
    a mixture is rounded, and its most probable labelling improved. So is the labelling that the
    search came across, if it kept one. The best of all is returned.
    """
    lowered = result.field.lower()
    if lowered.infeasible:
        return result.labels
    reduction = lowered.reduction
    program = rounding_program(lowered, result.kernels)
    lowered = program.lowered
    found = []
    starts: list[Floats] = [mode.q for mode in result.modes]
    starts += [one_hot(mode.layout.offsets, mode.labels) for mode in result.modes]
    reduced = [reduction.restrict(q) for q in starts or [result.q]]
    if result.feasible is not None:
        reduced.append(one_hot(lowered.layout.offsets, result.feasible))
    for start in reduced:
        if program.sweepable:
            found.append(lowered.layout.best_labels(program.descend(start, MAX_SWEEPS)))
        else:
            found.append(Groups(program).round(start))
    return reduction.expand_labels(min(found, key=lowered.energy))


def rounding_program(lowered: Lowered, kernels: str) -> Program:
    """The field in float64: where the result was found if that is a GPU, else on the CPU."""
    if not (on_gpu(kernels) and placed(kernels).device.available):
        from proxfield.core.engines.lazy import DESCENT, suits  # imports numba

        lazy = kernels in ("cpu", "reference") and suits(lowered, "float64", DESCENT)
        return program_for(lowered, "lazy" if lazy else "cpu")
    return program_for(moved(lowered, kernels, "float64"), kernels)


class Groups:
    """Rounding of groups of variables, with one evaluation of E and its gradient per group."""

    def __init__(self, program: Program) -> None:
        self.program, self.lowered = program, program.lowered
        self.layout = program.lowered.layout
        self.rng = np.random.default_rng(0)

    def energy(self, q: Floats) -> float:
        """E(q)."""
        e = self.lowered.constant + expectation(q, self.lowered.unary)
        return e + sum(term.energy(self.layout, q) for term in self.lowered.terms)

    def cheapest(self, q: Floats) -> Ints:
        """The label of least expected energy of each variable.  # (n_vars,)"""
        return self.layout.best_labels(-self.program.gradient(q))

    def round(self, q: Floats) -> Ints:
        """A labelling whose energy isn't above E(q)."""
        q, e = np.array(q, dtype=np.float64), self.energy(q)
        left = self.rng.permutation(self.layout.n_vars)
        size = len(left)
        while len(left):
            labels = self.cheapest(q)
            while True:
                trial, mine = q.copy(), np.zeros(self.layout.n_vars, dtype=bool)
                mine[left[:size]] = True
                trial[mine[self.layout.owner]] = 0.0
                trial[self.layout.offsets[:-1][mine] + labels[mine]] = 1.0
                new = self.energy(trial)
                if new <= e or size == 1:
                    break
                size = -(-size // 2)
            q, e, left = trial, new, left[size:]
            size = max(1, min(2 * size, len(left)))
        return self.improve(self.layout.best_labels(q), e)

    def improve(self, labels: Ints, e: float) -> Ints:
        """Give variables their cheapest labels as long as the energy falls."""
        share = 1.0
        for _ in range(GREEDY_TRIALS):
            better = self.cheapest(one_hot(self.layout.offsets, labels))
            moving = np.flatnonzero(better != labels)
            if len(moving) == 0:
                break
            some = self.rng.permutation(moving)[: max(1, int(share * len(moving)))]
            trial = labels.copy()
            trial[some] = better[some]
            new = self.lowered.energy(trial)
            if new < e:
                labels, e = trial, new
            elif len(some) == 1:
                break
            else:
                share /= 4
        return labels


def improved_singly(program: Program, labels: Ints, unit: float) -> tuple[Ints, bool]:
    """Change one variable after another while that lowers the energy, for some trials.

    Returns the labelling, and whether no change of one variable lowers its energy by more than
    rounding, given the unit of energies. The gradient tells where the energy is linear in each
    variable's marginals; for other terms it isn't known.
    """
    lowered, layout = program.lowered, program.lowered.layout
    groups = Groups(program)
    linear = all(
        term.degree is not None and not getattr(term, "self_message", False)
        for term in lowered.terms
    )
    energy = lowered.energy(labels)
    for _ in range(TRIALS):
        g = program.gradient(one_hot(layout.offsets, labels))
        cheapest = layout.best_labels(-g)
        gain = g[layout.offsets[:-1] + labels] - g[layout.offsets[:-1] + cheapest]
        gain[np.isnan(gain)] = 0.0
        if not gain.max(initial=0.0) > 1e-9 * (unit + abs(energy)):
            return labels, linear
        better = groups.improve(labels, energy)
        if np.array_equal(better, labels):
            better = labels.copy()
            i = int(gain.argmax())
            better[i] = cheapest[i]
        new = lowered.energy(better)
        if not new < energy:
            break
        labels, energy = better, new
    return labels, False
