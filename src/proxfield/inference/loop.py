"""The one iteration loop: advance by a plan, look at the clock, keep the trace, stop."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import Error as CopyError
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from proxfield.backends.base import Program, Rows, State
from proxfield.common.interrupts import finish_first
from proxfield.inference.pace import (
    FIRST_CHUNK,
    SHORT_EVALUATION,
    Costs,
    Pace,
    advance,
    advance_in_parts,
    sweep_parts,
)
from proxfield.inference.stationarity import is_fixed_point
from proxfield.lowering.lowered import Lowered
from proxfield.result import Status, Trace
from proxfield.rules.plan import Order, Plan

LARGE = 10_000
"""Entries of a field above which iterations are made one at a time at first."""
OVERTIME_SHARE, OVERTIME_SECONDS = 0.04, 0.005
"""Time beyond the budget that tests of the result may take."""


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


Callback = Callable[[Progress], Any]


@dataclass
class Loop:
    """Limits, clock and trace of one inference; stages of it may share one loop."""

    lowered: Lowered
    max_iters: int
    tol: float
    budget: float | None
    callback: Callback | None
    trace: bool
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
    known: State | None = None
    """The state whose F that is."""
    live: tuple[Program, State] | None = None
    """Where the present run stands, if its F is the user's."""
    costs: Costs = field(default_factory=Costs)
    told: list[tuple[NDArray[Any], float]] = field(default_factory=list)
    """Marginals (these very arrays) and their F."""

    def run(
        self,
        program: Program,
        plan: Plan,
        state: State,
        *,
        limit: int | None = None,
        visible: bool = True,
        keep_best: bool = False,
        tol: float | None = None,
        until: float | None = None,
        first: float | None = None,
    ) -> Status:
        """Iterate until converged or a limit is reached.

        Converged means that softmax(−g(q)) is within ``tol`` of q. It is tested where an update
        changed q by less than that; if it fails, the next test waits twice as many iterations.

        Args:
            program: What to iterate with.
            plan: How the state moves.
            state: Where it is; changed in place.
            limit: Maximum number of iterations of this call.
            visible: Is the program's F the user's F? If not, the trace shows +inf.
            keep_best: Remember the state of lowest F.
            tol: Instead of the loop's own; a negative one never stops.
            until: Seconds (of the whole inference) at which this call ends.
            first: F of the state, where it is known.
        """
        self.live = (program, state) if visible else None
        self.warm_up(program, plan, state)
        if first is not None:
            self.last, self.known = first, state
        elif self.budget is not None and self.iterations == 0 and self.known is not state:
            self.measure(program, state)
        tol = self.tol if tol is None else tol
        budget = min(x for x in (self.budget, until, np.inf) if x is not None)
        end = self.max_iters if limit is None else min(self.max_iters, self.iterations + limit)
        lowered = program.lowered
        slow = lowered.layout.size > LARGE or bool(lowered.extras)
        pace = Pace(1 if slow else FIRST_CHUNK)
        if budget < np.inf:
            pace.per_iteration, pace.ending = self.costs.iteration(plan), self.costs.evaluation
        parts = sweep_parts(plan) if slow and budget < np.inf and program.cuts_sweeps else []
        before_run, base, start = self.iterations, self.elapsed, time.perf_counter()
        batches: list[Rows] = []
        moments: list[NDArray[np.float64]] = []
        waiting, test_at = 0, 0  # iterations to wait after a failed test; when the next may be
        try:
            while self.iterations < end:
                left = budget - self.elapsed
                if pace.too_late(left, 1 / len(parts) if parts else 1.0):
                    return Status.BUDGET
                quiet = self.iterations < test_at
                most = (test_at if quiet else end) - self.iterations
                n = pace.next(budget - self.elapsed, min(most, end - self.iterations))
                with finish_first():
                    before = self._snapshot(program, state, n) if keep_best else None
                    n = 1 if isinstance(before, np.ndarray) else n
                    begun, cut = self.elapsed, False
                    if parts and pace.until_end(left) < 2 * pace.per_iteration:
                        deadline = start + pace.until_end(budget - base)
                        rows, cut = advance_in_parts(program, state, parts, self.trace, deadline)
                    else:
                        rows = advance(program, state, plan, n, -1.0 if quiet else tol, self.trace)
                    self.elapsed = base + time.perf_counter() - start
                    batches.append(rows)
                    moments.append(spread(begun, self.elapsed, len(rows)))
                    self.iterations += len(rows)
                    if before is not None:
                        self._remember(program, plan, before, rows)
                stop = Status.BUDGET if cut else ending(rows, tol)
                if stop is Status.CONVERGED:
                    if self.iterations < min(test_at, end):  # looks must not show in the result
                        stop = None
                    elif not self.may_test(budget - self.elapsed):
                        stop = Status.BUDGET
                    elif not self.is_fixed_point(program, state, tol):
                        waiting = max(1, 2 * waiting)
                        test_at, stop = self.iterations + waiting, None
                stop = stop or self._asked_to_stop(rows, program, state)
                if stop is not None:
                    return stop
                pace.learn(len(rows), self.elapsed - begun)
                self.costs.iterations[type(plan)] = pace.per_iteration
        except KeyboardInterrupt:
            return Status.INTERRUPTED
        finally:
            self.period2 = batches[-1].period2 if batches else np.inf
            if batches or self.known is not state:  # stages that had no time keep what they know
                self.last, self.known = program.free_energy(state), state
            self.append(before_run, moments, batches, self.last, visible)
            self.elapsed = base + time.perf_counter() - start
        return Status.MAX_ITERS

    def measure(self, program: Program, state: State) -> float:
        """F of the start, timed, outside the clock: what comes after it is planned by that."""
        self.last, self.known = self.costs.evaluate(program, state), state
        return self.last

    def may_test(self, left: float) -> bool:
        """Is there time for a fixed-point test with so many seconds left? Short ones always fit."""
        if self.budget is None or self.costs.evaluation < SHORT_EVALUATION:
            return True
        overtime = OVERTIME_SHARE * self.budget + OVERTIME_SECONDS
        return self.costs.test() <= max(0.0, left) + overtime

    def is_fixed_point(self, program: Program, state: State, tol: float) -> bool:
        """As in `stationarity`, timed."""
        begun = time.perf_counter()
        answer = is_fixed_point(program, state, tol)
        self.costs.residual = time.perf_counter() - begun
        return answer

    def tell(self, q: NDArray[Any], f: float) -> None:
        """Keep F of some marginals, for a run that starts from them."""
        self.told = [*self.told[-3:], (q, f)]

    def known_at(self, q: NDArray[Any]) -> float | None:
        """F of these marginals, if it was told."""
        return next((f for known, f in reversed(self.told) if known is q), None)

    @property
    def standing(self) -> bool:
        """Did the last run make no update, or one that hardly changed q?"""
        change = self.pieces[-1].change
        return len(change) == 0 or bool(change[-1] <= self.tol)

    @property
    def spent(self) -> Status | None:
        """The limit that has been reached, if one has."""
        if self.iterations >= self.max_iters:
            return Status.MAX_ITERS
        return Status.BUDGET if self.seconds_left() <= 0 else None

    def seconds_left(self) -> float:
        """What is left of the budget; infinite without one."""
        return np.inf if self.budget is None else self.budget - self.elapsed

    @contextmanager
    def clock(self) -> Iterator[None]:
        """Count what is done inside as seconds of inference."""
        begun = time.perf_counter()
        try:
            yield
        finally:
            self.elapsed += time.perf_counter() - begun

    def warm_up(self, program: Program, plan: Plan, state: State) -> None:
        """Compile (or load) what the plan needs, outside the clock."""
        if isinstance(plan, Order):
            plan = Order(plan.variables, plan.starts)  # don't draw from the generator
        program.warm_up(plan, state, self.trace)

    def remember(self, f: float, q: NDArray[np.float64]) -> None:
        """Keep a state if it is the best so far."""
        if np.isfinite(f) and (self.best is None or f < self.best.free_energy):
            self.best = Seen.at(f, q)

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

    def _snapshot(self, program: Program, state: State, n: int) -> State | NDArray[np.float64]:
        """What is needed to make any of the next n states again, or the marginals alone."""
        if n == 1:
            return program.marginals(state)
        try:
            return program.copy(state)
        except (TypeError, CopyError):
            if not state.memory:
                raise
            return program.marginals(state)  # a custom rule's memory that can't be copied

    def _remember(
        self, program: Program, plan: Plan, before: State | NDArray[np.float64], rows: Rows
    ) -> None:
        """Keep the state of lowest F among those that some updates started from."""
        if len(rows) == 0 or np.isnan(rows.free_energy).all():
            return
        k = int(np.nanargmin(rows.free_energy))
        f = float(rows.free_energy[k])
        if not np.isfinite(f) or (self.best is not None and f >= self.best.free_energy):
            return
        if isinstance(before, np.ndarray):
            self.remember(f, before)
            return
        trace = self.trace

        def recover() -> tuple[float, NDArray[np.float64]]:
            again = program.copy(before)
            program.advance(again, plan, k, -1.0, trace)
            return program.free_energy(again), program.marginals(again)

        self.best = Seen(f, recover)

    def append(
        self,
        first: int,
        moments: list[NDArray[np.float64]],
        batches: list[Rows],
        last: float,
        visible: bool,
    ) -> None:
        """Keep the rows of one run. A batch knows F *before* each update, a row F after it."""
        f = np.concatenate([np.zeros(0), *(rows.free_energy for rows in batches), [last]])
        if not visible:
            f[:] = np.inf
        change = np.concatenate([np.zeros(0), *(rows.change for rows in batches)])
        seconds = np.concatenate([np.zeros(0), *moments])
        if len(change) and np.isnan(change[-1]):  # updates that diverged leave no state
            lost = np.isnan(change) | (np.isnan(f[1:]) & self.trace)
            good = int(lost.argmax())
            self.iterations -= len(change) - good
            f, change, seconds = f[: good + 1], change[:good], seconds[:good]
        if not self.pieces:
            self._row(0, 0.0, float(f[0]), np.nan)
        k = len(f) - 1
        self.pieces.append(
            Trace(
                first + 1 + np.arange(k),
                seconds,
                f[1:],
                change,
                [self.member] * k,
            )
        )

    def _row(self, iteration: int, seconds: float, free_energy: float, change: float) -> None:
        s, f, c = (np.array([x], dtype=np.float64) for x in (seconds, free_energy, change))
        self.pieces.append(Trace(np.array([iteration]), s, f, c, [self.member]))

    def note(self, iterations: int, seconds: float, free_energy: float) -> None:
        """One row for many iterations made elsewhere (in chains): the best F after them."""
        self.iterations += iterations
        self.elapsed = seconds
        self._row(self.iterations, seconds, free_energy, np.nan)

    def _asked_to_stop(self, rows: Rows, program: Program, state: State) -> Status | None:
        if self.callback is not None:
            progress = Progress(
                iteration=self.iterations,
                seconds=self.elapsed,
                free_energy=float(rows.free_energy[-1]),
                change=float(rows.change[-1]),
                max_iters=self.max_iters,
                budget=self.budget,
                marginals=lambda: self.lowered.reduction.expand(program.marginals(state)),
            )
            if self.callback(progress):
                return Status.STOPPED
        return None

    def report(
        self, free_energy: float, q: NDArray[np.float64], seconds: float | None = None
    ) -> bool:
        """Tell the callback about progress made elsewhere; True if it asks to stop."""
        if self.callback is None:
            return False
        return bool(
            self.callback(
                Progress(
                    iteration=self.iterations,
                    seconds=self.elapsed if seconds is None else seconds,
                    free_energy=free_energy,
                    change=np.nan,
                    max_iters=self.max_iters,
                    budget=self.budget,
                    marginals=lambda: self.lowered.reduction.expand(q),
                )
            )
        )

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


def ending(rows: Rows, tol: float) -> Status | None:
    """Why the last of some updates ends an inference, if it does."""
    change = float(rows.change[-1]) if len(rows) else 0.0
    if change <= tol:
        return Status.CONVERGED
    return Status.DIVERGED if np.isnan(change) else None


def spread(begun: float, ended: float, count: int) -> NDArray[np.float64]:
    """When each of some updates made at one go was done, interpolated.  # (count,)"""
    return np.linspace(begun, ended, count + 1)[1:]
