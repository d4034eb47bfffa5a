"""Limits, which are values, durations, and the clock, trace and best states of an inference.

F of the start is timed before the clock starts. Whatever follows is only begun if it is expected
to end in time: an iteration and the evaluation of F after it, or a part of a sweep.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from proxfield.core.engines.base import Batch
from proxfield.core.engines.plan import Custom, Order, Update
from proxfield.core.terms.base import Doubles, Floats
from proxfield.result import Trace

Clock = Callable[[], float]
"""Gives the time in seconds, from any origin."""

OVERTIME_SHARE, OVERTIME_SECONDS = 0.04, 0.005
"""See `Limits.overtime`: a share of the budget, and seconds."""
LOOK_SECONDS = 0.05
"""Aim of a look at the clock, the callback and Ctrl-C."""
FIRST_CHUNK = 4
"""Iterations before the first look at the clock."""
ENDING_ITERATIONS = 1.5
"""What the last F and the copy of the marginals take, in iterations, where F was never timed."""
FIRST_EVALUATIONS, SHORT_EVALUATION = 3, 0.005
"""How often F of the start is timed where it takes fewer seconds than this (once, where more)."""
ITERATION_COST: dict[type, float] = {Update: 2.0, Order: 12.0, Custom: 3.0}
"""Duration of an iteration in evaluations of F, before one has been timed."""
RESIDUAL_COST = 12.0
"""Duration of a fixed-point test in evaluations of F, before one has been timed."""


@dataclass(frozen=True)
class Limits:
    """Where an inference ends, counted from its begin; a stage gets narrower ones."""

    max_iters: int
    tol: float = 1e-6
    """Of a fixed point: no entry of softmax(−g(q)) differs from q by more; below 0: never stop."""
    budget: float | None = None  # seconds

    def until(
        self, iterations: int | None = None, seconds: float | None = None, tol: float | None = None
    ) -> Limits:
        """These limits, or an earlier iteration and second, and another tolerance."""
        most = self.max_iters if iterations is None else min(self.max_iters, iterations)
        given = [x for x in (self.budget, seconds) if x is not None and x < np.inf]
        return Limits(most, self.tol if tol is None else tol, min(given, default=None))

    def seconds_left(self, elapsed: float) -> float:
        """What is left of the budget; infinite without one."""
        return np.inf if self.budget is None else self.budget - elapsed

    @property
    def overtime(self) -> float:
        """Seconds beyond the budget that tests of the result may take."""
        return OVERTIME_SHARE * (self.budget or 0.0) + OVERTIME_SECONDS


@dataclass
class Costs:
    """Durations in seconds, measured as an inference goes on."""

    evaluation: float = 0.0
    """Of one evaluation of F."""
    iterations: dict[type, float] = field(default_factory=dict)
    """Of one iteration, by type of plan."""
    residual: float | None = None
    """Of one fixed-point test."""

    def evaluate(self, program: Batch[Any, Any], state: object, now: Clock) -> Doubles:
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
    """How many iterations to make before the next look at the clock."""

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


@dataclass(frozen=True)
class Seen:
    """A state seen on the way: F as it was traced, and how to get at F and its marginals."""

    free_energy: float
    recover: Callable[[], tuple[float, Doubles]]


def lower(known: Seen | None, seen: Seen | None) -> Seen | None:
    """The one of two states that has the lower F; +inf and NaN count as no state."""
    if seen is None or not np.isfinite(seen.free_energy):
        return known
    return seen if known is None or seen.free_energy < known.free_energy else known


@dataclass(frozen=True)
class Progress:
    """What a callback sees.

    Attributes:
        iteration: Updates made so far.
        seconds: Seconds so far.
        free_energy: The last F known (of the state before the last update).
        change: The last change of q over the step.
        max_iters: The limit on iterations.
        budget: The limit on seconds, or None.
        marginals: Call it for a copy of the marginals in the user's numbering, flat.
    """

    iteration: int
    seconds: float
    free_energy: float
    change: float
    max_iters: int
    budget: float | None
    marginals: Callable[[], NDArray[np.float64]]


Callback = Callable[[Progress], object]


@dataclass
class History:
    """Clock, trace and best states of one field's inference; its stages share them."""

    limits: Limits
    """Of the whole inference; a stage may have narrower ones."""
    callback: Callback | None = None
    trace: bool = True
    """Whether F of every state is kept."""
    expand: Callable[[Doubles], Doubles] = field(default=lambda q: q)
    """From marginals of the field that iterates to the user's."""
    now: Clock = field(default_factory=lambda: time.perf_counter)
    member: str = ""
    """Which member of a portfolio is running ("" outside of one)."""
    pieces: list[Trace] = field(default_factory=list)
    iterations: int = 0
    elapsed: float = 0.0
    best: Seen | None = None
    """The state of lowest F seen by the present plan, where it isn't sure to be the last one."""
    earlier: Seen | None = None
    """The state of lowest F of the stages before the present plan."""
    period2: float = np.inf
    """Difference of the last state from the one two updates before it."""
    last: float = np.inf
    """F of the state in which the last run ended."""
    known: object = None
    """The state whose F that is."""
    costs: Costs = field(default_factory=Costs)
    told: list[tuple[Floats, float]] = field(default_factory=list)
    """Marginals (these very arrays) and their F."""

    @contextmanager
    def clock(self) -> Iterator[None]:
        """Count what is done inside as seconds of inference."""
        begun = self.now()
        try:
            yield
        finally:
            self.elapsed += self.now() - begun

    def may_test(self, limits: Limits) -> bool:
        """Whether there is time for a fixed-point test; there always is for a short one."""
        if limits.budget is None or self.costs.evaluation < SHORT_EVALUATION:
            return True
        left = limits.seconds_left(self.elapsed)
        return self.costs.test() <= max(0.0, left) + limits.overtime

    def tell(self, q: Floats, f: float) -> None:
        """Keep F of some marginals, for a run that starts from them."""
        self.told = [*self.told[-3:], (q, f)]

    def known_at(self, q: Floats) -> float | None:
        """F of these marginals, if it was told."""
        return next((f for known, f in reversed(self.told) if known is q), None)

    def remember(self, f: float, q: Doubles) -> None:
        """Keep a state of the present plan if it is the best of these."""
        self.best = lower(self.best, Seen(f, lambda: (f, q)))

    def keep(self, f: float, q: Doubles) -> None:
        """Keep a state of an earlier stage if it is the best of these."""
        self.earlier = lower(self.earlier, Seen(f, lambda: (f, q)))

    def begin_stage(self) -> None:
        """Forget the best state of the last plan, but for Ctrl-C and ``keep="best"``."""
        self.earlier = lower(self.earlier, self.best)
        self.best = None

    def add_row(self, iteration: int, seconds: float, free_energy: float) -> None:
        """Keep one row."""
        s, f, c = (np.array([x], dtype=np.float64) for x in (seconds, free_energy, np.nan))
        self.pieces.append(Trace(np.array([iteration]), s, f, c, [self.member]))

    def note(self, iterations: int, seconds: float, free_energy: float) -> None:
        """One row for many iterations made elsewhere (in chains): the best F after them."""
        self.iterations += iterations
        self.elapsed = seconds
        self.add_row(self.iterations, seconds, free_energy)

    def make_trace(self) -> Trace:
        """The rows of all runs."""
        pieces = self.pieces or [Trace()]
        members = [m for piece in pieces for m in piece.member or []]
        names = ("iteration", "seconds", "free_energy", "change")
        count, s, f, change = (np.concatenate([getattr(p, x) for p in pieces]) for x in names)
        return Trace(count, s, f, change, members if any(members) else None)

    def report(
        self,
        free_energy: float,
        marginals: Callable[[], Doubles],
        change: float = np.nan,
        seconds: float | None = None,
    ) -> bool:
        """Tell the callback how far it is; True if it asks to stop."""
        if self.callback is None:
            return False
        seconds = self.elapsed if seconds is None else seconds
        limits = self.limits.max_iters, self.limits.budget
        known = self.iterations, seconds, free_energy, change, *limits
        progress = Progress(*known, lambda: self.expand(marginals()))
        return bool(self.callback(progress))
