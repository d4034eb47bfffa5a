"""Schedules: one variable at a time, or one colour of the graph at a time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from proxfield.inference.session import Problem
from proxfield.lowering.lowered import Lowered
from proxfield.rules.base import Rule
from proxfield.rules.plan import Order, Plan
from proxfield.terms.base import Ints


@dataclass(frozen=True)
class Sweep(Rule):
    """Coordinate descent: each variable in turn takes its exact optimum. F never rises.

    Args:
        order: "natural", or "random" (a new seeded order for every sweep).
    """

    name = "sweep"
    summary = "one variable at a time; never raises F, can't run in parallel"
    monotone = True
    order: str = "natural"

    def check(self) -> None:
        self._word("order", "natural", "random")

    def prepare(self, problem: Problem) -> None:
        pass

    def plan(self, problem: Problem) -> Plan:
        shuffle = np.random.default_rng(problem.seed) if self.order == "random" else None
        return Order(np.arange(problem.n_vars), shuffle=shuffle)


@dataclass(frozen=True)
class Colored(Rule):
    """Coordinate descent by graph colour: variables that share no term move together.

    Exactly a sweep in colour order, hence monotone, but parallel within a colour.
    """

    name = "colored"
    summary = "sweep in parallel by graph colour; monotone, best on sparse graphs"
    monotone = True

    def prepare(self, problem: Problem) -> None:
        from proxfield.compiled.coloring import greedy_colors

        greedy_colors(np.zeros(1, dtype=np.int64), np.zeros(0, dtype=np.int32))

    def plan(self, problem: Problem) -> Plan:
        colors = color_graph(problem.lowered)
        order = np.argsort(colors, kind="stable")
        counts = np.bincount(colors, minlength=1)
        return Order(order, starts=np.concatenate([[0], np.cumsum(counts)]))


def color_graph(lowered: Lowered) -> Ints:
    """A greedy colouring: no two variables of one term get the same colour.  # (n_vars,)"""
    from proxfield.backends.numba.pack import compressed_rows
    from proxfield.compiled.coloring import greedy_colors

    n = lowered.layout.n_vars
    none = np.zeros((0, 2), dtype=np.int64)
    pairs = np.concatenate([none, *(t.neighbours(lowered.layout) for t in lowered.terms)])
    row, column, _ = compressed_rows(n, pairs, [])
    colors: Ints = greedy_colors(row, column)
    return colors
