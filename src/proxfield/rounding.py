"""From marginals to one labelling."""

from __future__ import annotations

from typing import TYPE_CHECKING

from proxfield.kernels import compile_program
from proxfield.terms.base import Floats, Ints

if TYPE_CHECKING:
    from proxfield.result import Result

SWEEPS = 100
"""Most rounds of greedy improvement; it usually ends after a handful."""


def round_marginals(result: Result) -> Ints:
    """Round coordinate by coordinate, then improve greedily until no label changes.

    Giving variable i the label of least expected energy under the others' q can't raise
    E(q), because E is linear in q_i. Fields with terms that don't know their neighbours
    fall back to plain rounding.
    """
    lowered = result.field.lower()
    if lowered.infeasible or lowered.extras:
        return result.labels
    reduction = lowered.reduction
    program = compile_program(lowered)

    def improve(q: Floats) -> Ints:
        return lowered.layout.best_labels(program.descend(q, SWEEPS))

    start = reduction.restrict(result.q)
    found = [improve(start)]
    if result.feasible is not None:
        found.append(result.feasible)
    best = min(found, key=lowered.energy)
    return reduction.expand_labels(best)
