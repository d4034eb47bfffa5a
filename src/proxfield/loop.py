"""The one iteration loop: advance by a plan, look at the clock, keep the trace, stop."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from proxfield.kernels.base import Order, Plan, Program, Rows, State
from proxfield.lowering import Lowered
from proxfield.result import Status, Trace

LOOK_SECONDS = 0.05
"""Aim of a look at the clock, the callback and Ctrl-C."""
FIRST_CHUNK = 4


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

    def next(self, left: float, most: int) -> int:
        """Iterations to make now, with so many seconds and iterations left."""
        if self.per_iteration > 0 and np.isfinite(left):
            self.chunk = min(self.chunk, max(1, int(left / self.per_iteration)))
        return min(self.chunk, most)

    def learn(self, made: int, seconds: float) -> None:
        """So many iterations took so many seconds."""
        self.per_iteration = seconds / max(1, made)
        aim = int(LOOK_SECONDS / max(self.per_iteration, 1e-9))
        self.chunk = max(1, min(4 * self.chunk, aim))


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
    best: tuple[float, NDArray[np.float64]] | None = None
    period2: float = np.inf
    """Difference of the last state from the one two updates before it."""

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
    ) -> Status:
        """Iterate until converged or a limit is reached.

        Args:
            program: What to iterate with.
            plan: How the state moves.
            state: Where it is; changed in place.
            limit: Most iterations of this call.
            visible: Is the program's F the user's F? If not, the trace shows +inf.
            keep_best: Remember the best state seen at a look.
            tol: Instead of the loop's own; a negative one never stops.
            until: Seconds (of the whole inference) at which this call ends.
        """
        self.warm_up(program, plan, state)
        tol = self.tol if tol is None else tol
        budget = min(x for x in (self.budget, until, np.inf) if x is not None)
        end = self.max_iters if limit is None else min(self.max_iters, self.iterations + limit)
        pace = Pace()
        first, base, start = self.iterations, self.elapsed, time.perf_counter()
        batches: list[Rows] = []
        moments: list[NDArray[np.float64]] = []
        try:
            while self.iterations < end:
                left = budget - self.elapsed
                if left <= 0:
                    return Status.BUDGET
                n = pace.next(left, end - self.iterations)
                before = program.marginals(state) if keep_best else None
                begun = self.elapsed
                rows = program.advance(state, plan, n, tol, self.trace)
                self.elapsed = base + time.perf_counter() - start
                batches.append(rows)
                moments.append(spread(begun, self.elapsed, len(rows)))
                self.iterations += len(rows)
                if before is not None:
                    self.remember(float(rows.free_energy[0]), before)
                stop = ending(rows, tol) or self._asked_to_stop(rows, program, state)
                if stop is not None:
                    return stop
                pace.learn(len(rows), self.elapsed - begun)
        except KeyboardInterrupt:
            return Status.INTERRUPTED
        finally:
            self.elapsed = base + time.perf_counter() - start
            self.period2 = batches[-1].period2 if batches else np.inf
            self.append(first, moments, batches, program.free_energy(state), visible)
        return Status.MAX_ITERS

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
        if np.isfinite(f) and (self.best is None or f < self.best[0]):
            self.best = (f, q)

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

    def report(self, free_energy: float, q: NDArray[np.float64]) -> bool:
        """Tell the callback about progress made elsewhere; True if it asks to stop."""
        if self.callback is None:
            return False
        return bool(
            self.callback(
                Progress(
                    iteration=self.iterations,
                    seconds=self.elapsed,
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
