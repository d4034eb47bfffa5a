"""How long the parts of an inference take, and how many of them fit between two looks at the clock.

F of the start is timed before the clock starts. Whatever follows is only begun if it is expected
to end in time: an iteration and the evaluation of F after it, or a part of a sweep.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from proxfield.core.engines.base import Batch, Rows
from proxfield.core.engines.plan import Custom, Order, Update

P = TypeVar("P")
S = TypeVar("S")
Clock = Callable[[], float]
"""Gives the time in seconds, from any origin."""

LOOK_SECONDS = 0.05
"""Aim of a look at the clock, the callback and Ctrl-C."""
FIRST_CHUNK = 4
"""Iterations before the first look at the clock."""
ENDING_ITERATIONS = 1.5
"""What the last F and the copy of the marginals take, in iterations, where F was never timed."""
FIRST_EVALUATIONS = 3
SHORT_EVALUATION = 0.005
"""How often F of the start is timed where it takes fewer seconds than this (once, where more)."""
ITERATION_COST: dict[type, float] = {Update: 2.0, Order: 12.0, Custom: 3.0}
"""Duration of an iteration in evaluations of F, before one has been timed."""
RESIDUAL_COST = 12.0
"""The same for the fixed-point test."""
SWEEP_PARTS = 32
"""Parts of a sweep between two looks at the clock, where a whole one may not fit the budget."""


@dataclass
class Costs:
    """Durations in seconds, measured as an inference goes on.

    Attributes:
        evaluation: One evaluation of F.
        iterations: One iteration, by type of plan.
        residual: One fixed-point test.

    Example:
        >>> costs = Costs(evaluation=0.5)
        >>> costs.iteration(Order(np.arange(3)))
        6.0
        >>> costs.iterations[Order] = 0.1
        >>> costs.iteration(Order(np.arange(3)))
        0.1
    """

    evaluation: float = 0.0
    iterations: dict[type, float] = field(default_factory=dict)
    residual: float | None = None

    def evaluate(self, program: Batch[P, S], state: S, now: Clock) -> NDArray[np.float64]:
        """F of each field, timed; the shortest of a few evaluations counts.  # (fields,)"""
        for _ in range(FIRST_EVALUATIONS):
            begun = now()
            f = program.free_energy_each(state)
            seconds = now() - begun
            self.evaluation = min(self.evaluation or np.inf, seconds)
            if seconds > SHORT_EVALUATION:
                break
        return f

    def iteration(self, plan: object) -> float:
        """Duration of an iteration: as measured last, or a guess."""
        guess = ITERATION_COST.get(type(plan), 1.0) * self.evaluation
        return self.iterations.get(type(plan), guess)

    def test(self) -> float:
        """Duration of a fixed-point test: as measured last, or a guess."""
        return RESIDUAL_COST * self.evaluation if self.residual is None else self.residual


@dataclass
class Pace:
    """How many iterations to make before the next look at the clock.

    Example:
        >>> pace = Pace()
        >>> first = pace.next(np.inf, 1000)
        >>> pace.learn(first, 1e-3)
        >>> first, pace.next(np.inf, 1000)
        (4, 16)
    """

    chunk: int = FIRST_CHUNK
    per_iteration: float = 0.0
    fixed: bool = False
    """Whether the program looks after a fixed number of iterations, unless the end comes first."""
    ending: float | None = None
    """Seconds that the end takes (F of the last state); None: as long as some iterations."""

    def until_end(self, left: float) -> float:
        """What is left for iterations of so many seconds."""
        ending = ENDING_ITERATIONS * self.per_iteration if self.ending is None else self.ending
        return left - ending

    def next(self, left: float, most: int) -> int:
        """Iterations to make now, with so many seconds and iterations left."""
        if self.per_iteration > 0 and np.isfinite(left):
            fits = max(1, int(self.until_end(left) / self.per_iteration))
            if self.fixed:
                return min(self.chunk, fits, most)
            self.chunk = min(self.chunk, fits)
        return min(self.chunk, most)

    def too_late(self, left: float, part: float = 1.0) -> bool:
        """Would this part of an iteration end after so many seconds?"""
        return left <= 0 or self.until_end(left) < part * self.per_iteration

    def learn(self, made: int, seconds: float) -> None:
        """So many iterations took so many seconds."""
        self.per_iteration = seconds / max(1, made)
        aim = int(LOOK_SECONDS / max(self.per_iteration, 1e-9))
        if not self.fixed:
            self.chunk = max(1, min(4 * self.chunk, aim))


def advance(
    program: Batch[P, S],
    state: S,
    plan: P,
    n: int,
    tol: float,
    trace: bool,
    wanted: NDArray[np.bool_],
) -> list[Rows]:
    """Up to n iterations; random orders that weren't used are given back to the generator."""
    shuffle = plan.shuffle if isinstance(plan, Order) else None
    drawn = shuffle.bit_generator.state if shuffle else {}
    rows = program.advance_each(state, plan, n, tol, trace, wanted)
    made = max(len(r) for r in rows)
    if isinstance(plan, Order) and shuffle and made < n:
        shuffle.bit_generator.state = drawn
        for _ in range(made):
            shuffle.permutation(plan.variables)
    return rows


def sweep_parts(plan: object) -> list[Order]:
    """A sweep as several sweeps over some of the variables, none for other plans.

    Example:
        >>> [part.variables.tolist() for part in sweep_parts(Order(np.arange(3)))]
        [[0], [1], [2]]
    """
    if not isinstance(plan, Order) or plan.shuffle is not None:
        return []
    bounds = np.array([0, len(plan.variables)]) if plan.starts is None else plan.starts
    each = max(1, len(plan.variables) // SWEEP_PARTS)
    cuts = [(k, min(k + each, b)) for a, b in pairwise(bounds) for k in range(int(a), int(b), each)]
    return [
        replace(
            plan,
            variables=plan.variables[a:b],
            starts=None if plan.starts is None else np.array([0, b - a]),
        )
        for a, b in cuts
    ]


def advance_in_parts(
    advance_by: Callable[[Order], Rows], parts: list[Order], deadline: float, now: Clock
) -> tuple[Rows, bool]:
    """One sweep, or as much of it as fits.

    Args:
        advance_by: Makes one iteration of an order.
        parts: The sweep.
        deadline: When to end, as the clock counts.
        now: The clock.

    Returns:
        One row, and whether the sweep was cut short.
    """
    f, change, longest = np.nan, 0.0, 0.0
    for k, part in enumerate(parts):
        begun = now()
        rows = advance_by(part)
        ended = now()
        longest = max(longest, ended - begun)
        f = rows.free_energy[0] if k == 0 else f
        change = max(change, float(rows.change[-1]))
        if ended + longest > deadline and k + 1 < len(parts):
            return Rows(np.array([f]), np.array([change])), True
    return Rows(np.array([f]), np.array([change])), False
