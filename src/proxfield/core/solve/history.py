"""Limits, which are values, and the clock, trace and best states of one field's inference."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from proxfield.core.engines.base import Rows
from proxfield.core.solve.pace import SHORT_EVALUATION, Clock, Costs
from proxfield.core.terms.base import Floats
from proxfield.result import Status, Trace

OVERTIME_SHARE, OVERTIME_SECONDS = 0.04, 0.005
"""See `Limits.overtime`: a share of the budget, and seconds."""


@dataclass(frozen=True)
class Limits:
    """Where an inference ends, counted from its begin; a stage gets narrower ones.

    Attributes:
        max_iters: Maximum number of iterations.
        tol: Stop at a fixed point: where no entry of softmax(−g(q)) differs from q by more. A
            negative one never stops.
        budget: Maximum number of seconds, or None.

    Example:
        >>> Limits(100, budget=2.0).until(iterations=40, seconds=3.0)
        Limits(max_iters=40, tol=1e-06, budget=2.0)
    """

    max_iters: int
    tol: float = 1e-6
    budget: float | None = None

    def until(
        self, iterations: int | None = None, seconds: float | None = None, tol: float | None = None
    ) -> Limits:
        """These limits, or an earlier iteration and second, and another tolerance."""
        most = self.max_iters if iterations is None else min(self.max_iters, iterations)
        given = [x for x in (self.budget, seconds) if x is not None and x < np.inf]
        return Limits(most, self.tol if tol is None else tol, min(given, default=None))

    def share(self, share: float) -> Limits:
        """A share of them."""
        budget = None if self.budget is None else share * self.budget
        return replace(self, max_iters=int(np.ceil(share * self.max_iters)), budget=budget)

    def seconds_left(self, elapsed: float) -> float:
        """What is left of the budget; infinite without one."""
        return np.inf if self.budget is None else self.budget - elapsed

    @property
    def overtime(self) -> float:
        """Seconds beyond the budget that tests of the result may take."""
        return OVERTIME_SHARE * (self.budget or 0.0) + OVERTIME_SECONDS


@dataclass(frozen=True)
class Seen:
    """A state seen on the way.

    Attributes:
        free_energy: F, as it was traced.
        recover: Gives F and the marginals of that state.
    """

    free_energy: float
    recover: Callable[[], tuple[float, NDArray[np.float64]]]

    @classmethod
    def at(cls, f: float, q: NDArray[np.float64]) -> Seen:
        """A state whose F and marginals are at hand."""
        return cls(f, lambda: (f, q))


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


def unchanged(q: NDArray[np.float64]) -> NDArray[np.float64]:
    """Marginals of a field whose variables are the user's."""
    return q


@dataclass
class History:
    """Clock, trace and best states of one field's inference; its stages share them.

    Attributes:
        limits: Of the whole inference; a stage may have narrower ones.
        callback: Called now and then; returning something true stops the inference.
        trace: Keep F of every state?
        expand: From marginals of the field that iterates to the user's.
        now: The clock, in seconds. Another one may be given, for processes that must agree on
            when to stop.
    """

    limits: Limits
    callback: Callback | None = None
    trace: bool = True
    expand: Callable[[NDArray[np.float64]], NDArray[np.float64]] = unchanged
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

    # ---- limits and clock ----

    def spent(self, limits: Limits) -> Status | None:
        """Which of these limits has been reached, if one has."""
        if self.iterations >= limits.max_iters:
            return Status.MAX_ITERS
        return Status.BUDGET if limits.seconds_left(self.elapsed) <= 0 else None

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

    # ---- states ----

    def tell(self, q: Floats, f: float) -> None:
        """Keep F of some marginals, for a run that starts from them."""
        self.told = [*self.told[-3:], (q, f)]

    def known_at(self, q: Floats) -> float | None:
        """F of these marginals, if it was told."""
        return next((f for known, f in reversed(self.told) if known is q), None)

    def remember(self, f: float, q: NDArray[np.float64]) -> None:
        """Keep a state if it is the best so far."""
        if np.isfinite(f) and (self.best is None or f < self.best.free_energy):
            self.best = Seen.at(f, q)

    def replace_best(self, f: float, q: NDArray[np.float64]) -> None:
        """Keep this state, and forget the best one of the present plan."""
        self.best = None
        self.remember(f, q)

    def begin_stage(self) -> None:
        """Forget the best state of the last plan, but for Ctrl-C and ``keep="best"``."""
        self.set_aside(self.best)
        self.best = None

    def set_aside(self, seen: Seen | None) -> None:
        """Keep a state of an earlier stage if it is the best of these."""
        if seen is None or not np.isfinite(seen.free_energy):
            return
        if self.earlier is None or seen.free_energy < self.earlier.free_energy:
            self.earlier = seen

    def keep(self, f: float, q: NDArray[np.float64]) -> None:
        """Keep a state of an earlier stage, by its F and marginals, if it is the best of these."""
        self.set_aside(Seen.at(f, q))

    # ---- the trace ----

    def standing(self, tol: float) -> bool:
        """Whether the last run made no update, or one that hardly changed q."""
        change = self.pieces[-1].change
        return len(change) == 0 or bool(change[-1] <= tol)

    def append(
        self,
        first: int,
        moments: list[NDArray[np.float64]],
        batches: list[Rows],
        last: float,
        visible: bool,
        traced: bool,
    ) -> None:
        """Keep the rows of one run. A batch knows F *before* each update, a row F after it."""
        f = np.concatenate([np.zeros(0), *(rows.free_energy for rows in batches), [last]])
        if not visible:
            f[:] = np.inf
        change = np.concatenate([np.zeros(0), *(rows.change for rows in batches)])
        seconds = np.concatenate([np.zeros(0), *moments])
        if len(change) and np.isnan(change[-1]):  # updates that diverged leave no state
            lost = np.isnan(change) | (np.isnan(f[1:]) & traced)
            good = int(lost.argmax())
            self.iterations -= len(change) - good
            f, change, seconds = f[: good + 1], change[:good], seconds[:good]
        if not self.pieces:
            self._row(0, 0.0, float(f[0]), np.nan)
        k = len(f) - 1
        iterations = first + 1 + np.arange(k)
        self.pieces.append(Trace(iterations, seconds, f[1:], change, [self.member] * k))

    def _row(self, iteration: int, seconds: float, free_energy: float, change: float) -> None:
        s, f, c = (np.array([x], dtype=np.float64) for x in (seconds, free_energy, change))
        self.pieces.append(Trace(np.array([iteration]), s, f, c, [self.member]))

    def note(self, iterations: int, seconds: float, free_energy: float) -> None:
        """One row for many iterations made elsewhere (in chains): the best F after them."""
        self.iterations += iterations
        self.elapsed = seconds
        self._row(self.iterations, seconds, free_energy, np.nan)

    def make_trace(self) -> Trace:
        """The rows of all runs."""
        pieces = self.pieces or [Trace()]
        members = [m for piece in pieces for m in piece.member or []]
        return Trace(
            np.concatenate([p.iteration for p in pieces]),
            np.concatenate([p.seconds for p in pieces]),
            np.concatenate([p.free_energy for p in pieces]),
            np.concatenate([p.change for p in pieces]),
            members if any(members) else None,
        )

    # ---- the callback ----

    def asked_to_stop(self, rows: Rows, marginals: Callable[[], NDArray[np.float64]]) -> bool:
        """Tell the callback what some updates did; True if it asks to stop.

        Args:
            rows: The updates.
            marginals: Gives a copy of the marginals after them.
        """
        if self.callback is None:
            return False
        f, change = float(rows.free_energy[-1]), float(rows.change[-1])
        return bool(self.callback(self._progress(f, change, marginals)))

    def report(
        self, free_energy: float, q: NDArray[np.float64], seconds: float | None = None
    ) -> bool:
        """Tell the callback about progress made elsewhere; True if it asks to stop."""
        if self.callback is None:
            return False
        return bool(self.callback(self._progress(free_energy, np.nan, lambda: q, seconds)))

    def _progress(
        self,
        free_energy: float,
        change: float,
        marginals: Callable[[], NDArray[np.float64]],
        seconds: float | None = None,
    ) -> Progress:
        return Progress(
            iteration=self.iterations,
            seconds=self.elapsed if seconds is None else seconds,
            free_energy=free_energy,
            change=change,
            max_iters=self.limits.max_iters,
            budget=self.limits.budget,
            marginals=lambda: self.expand(marginals()),
        )
