"""Backtracking: the step is found by looking at F, so that no bound on the curvature is needed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from proxfield.core.engines.plan import Kind, Plan, Search, Update
from proxfield.core.solve.rules.base import Problem, Rule
from proxfield.errors import InputError


@dataclass(frozen=True)
class Backtracking(Rule):
    """θ ← θ − s (θ − θ*) with the largest step s found so far that doesn't raise F.

    For terms that can't bound their curvature, and for those whose bound is cautious. The step
    starts small and grows slowly: from s = 1 a field of high order can jump to a state from
    which it doesn't return, and settle at a poor minimum.

    Args:
        first: The step of the first update.
        growth: Factor by which the step grows after every update.
        shrinkage: Factor by which it shrinks when F rose; that update is made again.
        largest: Maximum step.

    Example:
        >>> import proxfield as pf
        >>> field = pf.Field(2, 2).add(pf.Potts([[0, 1]], -1.0))
        >>> pf.infer(field, "backtracking", init="random").status.name
        'CONVERGED'
    """

    name = "backtracking"
    step: ClassVar[None] = None
    summary = "the step is found by looking at F; needs no curvature, F never rises"
    monotone = True
    first: float = 0.2
    growth: float = 1.1
    shrinkage: float = 0.5
    largest: float = 0.7

    def check(self) -> None:
        self._number("first", 0.0, 1.0)
        self._number("largest", 0.0, 1.0)
        self._number("growth", 0.0, np.inf, closed=False)
        self._number("shrinkage", 0.0, 1.0, closed=False)
        if self.growth < 1:
            raise InputError(f"backtracking: growth={self.growth:g}, expected 1 or more")
        if self.first > self.largest:
            raise InputError(
                f"backtracking: first={self.first:g} is above largest={self.largest:g}"
            )

    def plan(self, problem: Problem) -> Plan:
        search = Search(self.first, self.growth, self.shrinkage, self.largest)
        return Update(Kind.PROXIMAL, np.full(problem.n_vars, self.first), search=search)
