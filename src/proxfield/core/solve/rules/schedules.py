"""Schedules: one variable at a time, or one color of the graph at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from proxfield.core.engines.plan import Order, Plan
from proxfield.core.solve.rules.base import Problem, Rule


@dataclass(frozen=True)
class Sweep(Rule):
    """Coordinate descent: each variable in turn takes its exact optimum. F never rises.

    Args:
        order: "natural", or "random" (a new seeded order for every sweep).
    """

    name = "sweep"
    step: ClassVar[None] = None
    summary = "one variable at a time; never raises F, can't run in parallel"
    monotone = True
    visits_variables = True
    needs_whole_field = "a rank would wait for all variables of the ranks before it: use colored"
    order: str = "natural"

    def check(self) -> None:
        self._word("order", "natural", "random")

    def plan(self, problem: Problem) -> Plan:
        shuffle = np.random.default_rng(problem.seed) if self.order == "random" else None
        return Order(np.arange(problem.n_vars), shuffle=shuffle)


@dataclass(frozen=True)
class Colored(Rule):
    """Coordinate descent by graph color: variables that share no term move together.

    Exactly a sweep in color order, hence monotone, but parallel within a color.
    """

    name = "colored"
    step: ClassVar[None] = None
    summary = "sweep in parallel by graph color; monotone, best on sparse graphs"
    monotone = True
    visits_variables = True

    def prepare(self, problem: Problem) -> None:
        _ = problem.coloring

    def plan(self, problem: Problem) -> Plan:
        order, starts = problem.coloring
        return Order(order, starts=starts)
