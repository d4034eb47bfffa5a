"""Updates of one rank within limits, with trace and checkpoints; `stages` says what is updated."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from proxfield.core.engines.base import Rows, State
from proxfield.core.engines.plan import Plan
from proxfield.core.solve.history import History, Limits, Progress
from proxfield.core.solve.request import Request
from proxfield.core.solve.rules.anneal import Anneal
from proxfield.core.solve.rules.auto import Auto
from proxfield.core.solve.rules.base import Rule
from proxfield.core.solve.rules.parallel import Fixed
from proxfield.core.solve.rules.registry import make_rule
from proxfield.core.solve.session import name_oscillation
from proxfield.core.solve.starts import observed, starting_point
from proxfield.core.terms.base import Floats
from proxfield.distributed.checkpoint import Checkpoints
from proxfield.distributed.part_result import PartResult
from proxfield.distributed.partition import Partition
from proxfield.distributed.program import PartProgram
from proxfield.result import Status, Trace


@dataclass(frozen=True)
class Moving:
    """What iterates on one rank.

    Attributes:
        program: This rank's program.
        plan: How its variables move.
        colors: Of an `Order`, the number of colors of the whole field.
        state: Where they are; changed in place.
        limit: Maximum number of updates.
        interrupted: Set by Ctrl-C on this rank.
    """

    program: PartProgram
    plan: Plan
    colors: int
    state: State
    limit: int
    interrupted: threading.Event

    def restart(self, q: Floats) -> None:
        """Continue from some marginals, without moments."""
        self.state.arrays = self.program.start(q).arrays
        self.state.memory.clear()
        self.program.shared_f = None


@dataclass
class Driver:
    """One rank's updates, and what is known about them."""

    partition: Partition
    request: Request
    every: int
    checkpoints: Checkpoints | None = None
    checkpoint_seconds: float = np.inf
    iterations: int = 0
    elapsed: float = 0.0
    clock_begun: float = 0.0
    """When the clock showed 0 seconds of inference."""
    saved: float = 0.0
    """Seconds at the last checkpoint."""
    waiting: int = 0
    """Updates to wait since the last test for a fixed point failed."""
    test_at: int = 0
    """The update from which on it may be tested again."""
    level: int = 0
    """Of annealing, the present temperature's number; of a chain, its sweep (from 1); −1 after."""
    level_end: int = 0
    """The update at which it ends; 0 before it has begun."""
    escapes: int = 0
    """Saddles left so far."""
    saddles: dict[int, float] = field(default_factory=dict)
    """F there, by the number of updates: the next one begins elsewhere."""
    best_f: float = np.inf
    best_q: NDArray[np.float64] | None = None
    rows: list[Rows] = field(default_factory=list)
    moments: list[NDArray[np.float64]] = field(default_factory=list)

    def now(self) -> float:
        """Rank 0's clock."""
        return float(self.partition.transport.broadcast(np.array([self.request.now()]))[0])

    def _start(self) -> NDArray[np.float64]:
        """This rank's marginals to start from."""
        part, init, seed = self.partition, self.request.init, self.request.seed
        layout = part.lowered.layout
        if init == "random":  # the same start as on one process, where the whole field is known
            noise = part.random(lambda generator, size: generator.exponential(size=size), seed)
            return observed(part.field, layout, layout.normalize(noise))
        if init == "uniform" and part.lowered.layout.common and (part.field.evidence < 0).all():
            common = part.lowered.layout.common
            return np.broadcast_to(1.0 / common, part.lowered.layout.size)
        return starting_point(part.field, part.lowered, init, seed)

    # ---- limits ----

    @cached_property
    def moves(self) -> Rule:
        """The rule that moves the state."""
        rule = self.request.rule
        if isinstance(rule, Auto):
            return Fixed(step="certified-local")
        return make_rule(rule.inner) if isinstance(rule, Anneal) else rule

    @property
    def _standing(self) -> bool:
        """Whether the last update hardly changed q."""
        return not self.rows or bool(self.rows[-1].change[-1] <= self.request.tol)

    @property
    def _limit(self) -> Status:
        """The status of an end that isn't known to be a minimum."""
        return Status.MAX_ITERS if self.request.budget is None else Status.BUDGET

    def _spent(self, run: Moving) -> Status | None:
        """The limit that has been reached, if one has."""
        if self.iterations >= run.limit:
            return Status.MAX_ITERS
        over = self.request.budget is not None and self.elapsed >= self.request.budget
        return Status.BUDGET if over else None

    def _stands(self, run: Moving) -> bool:
        """Whether this is a fixed point."""
        residual, rounding = run.program.residual(run.state)
        return residual <= self.request.tol + rounding

    # ---- updates ----

    def _iterate(self, run: Moving, end: int, until: float, tol: float) -> Status:
        """Update until a limit or a fixed point is reached.

        Args:
            run: What moves.
            end: The update at which this ends.
            until: Seconds at which it ends.
            tol: A negative one never stops.
        """
        request, program, state = self.request, run.program, run.state
        per_update = 0.0
        while True:
            if self.iterations >= end:
                return Status.MAX_ITERS
            n = min(self.every, end - self.iterations)
            if self.iterations < self.test_at:
                n = min(n, self.test_at - self.iterations)
            if until < np.inf:
                left = until - self.elapsed
                if left <= per_update:
                    return Status.BUDGET
                n = 1 if per_update == 0.0 else max(1, min(n, int(left / per_update)))
            kept = program.program.marginals(state) if request.keep == "best" else None
            asked = run.interrupted.is_set()
            rows, stop = program.advance(state, run.plan, n, run.colors, asked)
            before, self.elapsed = self.elapsed, self.now() - self.clock_begun
            per_update = max(0.5 * per_update, (self.elapsed - before) / n)
            self._take(rows, before, kept)
            change = float(rows.change[-1])
            if np.isnan(change):
                return Status.DIVERGED
            if change <= tol and self.iterations >= min(self.test_at, end):
                if self._stands(run):
                    return Status.CONVERGED
                self.waiting = max(1, 2 * self.waiting)
                self.test_at = self.iterations + self.waiting
            if stop:
                return Status.INTERRUPTED
            if request.callback is not None and self._asked_to_stop(run, rows):
                return Status.STOPPED
            self._checkpoint(state)

    def _take(self, rows: Rows, before: float, kept: NDArray[np.float64] | None) -> None:
        n = len(rows)
        self.rows.append(rows)
        self.moments.append(np.linspace(before, self.elapsed, n + 1)[1:])
        self.iterations += n
        if kept is not None and rows.free_energy[0] < self.best_f:
            self.best_f, self.best_q = float(rows.free_energy[0]), kept

    def _asked_to_stop(self, run: Moving, rows: Rows) -> bool:
        callback = self.request.callback
        assert callback is not None
        reduction = self.partition.lowered.reduction
        answer = callback(
            Progress(
                iteration=self.iterations,
                seconds=self.elapsed,
                free_energy=float(rows.free_energy[-1]),
                change=float(rows.change[-1]),
                max_iters=run.limit,
                budget=self.request.budget,
                marginals=lambda: reduction.expand(run.program.program.marginals(run.state)),
            )
        )
        return bool(self.partition.transport.reduce(np.array([float(bool(answer))]), "max")[0])

    # ---- checkpoints ----

    def _checkpoint(self, state: State) -> None:
        if self.checkpoints is None or self.elapsed - self.saved < self.checkpoint_seconds:
            return
        f, change, seconds, twice = self._trace()
        best = np.zeros(0) if self.best_q is None else self.best_q
        self.checkpoints.save(
            state,
            {
                "iterations": self.iterations,
                "elapsed": self.elapsed,
                "waiting": self.waiting,
                "test_at": self.test_at,
                "level": self.level,
                "level_end": self.level_end,
                "escapes": self.escapes,
                "best_f": self.best_f,
                "period2": twice,
                "best": best,
                "free_energy": f,
                "change": change,
                "seconds": seconds,
            },
        )
        self.saved = self.elapsed

    def _resume(self, state: State) -> None:
        assert self.checkpoints is not None
        found = self.checkpoints.load(state)
        if found is None:
            return
        self.iterations, self.elapsed = int(found["iterations"]), float(found["elapsed"])
        self.waiting, self.test_at = int(found["waiting"]), int(found["test_at"])
        self.level, self.level_end = int(found["level"]), int(found["level_end"])
        self.escapes, self.best_f = int(found["escapes"]), float(found["best_f"])
        self.best_q = found["best"] if len(found["best"]) else None
        self.rows = [Rows(found["free_energy"], found["change"], float(found["period2"]))]
        self.moments = [found["seconds"]]

    def _trace(
        self,
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64], float]:
        none = np.zeros(0)
        f = np.concatenate([none, *(r.free_energy for r in self.rows)])
        for at, value in self.saddles.items():
            f[at : at + 1] = value
        return (
            f,
            np.concatenate([none, *(r.change for r in self.rows)]),
            np.concatenate([none, *self.moments]),
            self.rows[-1].period2 if self.rows else np.inf,
        )

    # ---- the end ----

    def _finish(
        self, program: PartProgram, state: State, status: Status, last: float, setup: float
    ) -> PartResult:
        part, request = self.partition, self.request
        history = History(Limits(2**62))
        history.iterations = self.iterations
        f, change, seconds, history.period2 = self._trace()
        if not request.trace:
            f = np.full(len(f), np.nan)
        history.append(0, [seconds], [Rows(f, change)], last, True, request.trace)
        if status in (Status.MAX_ITERS, Status.BUDGET) and self.moves.may_oscillate:
            status = name_oscillation(history, status)
        q = program.marginals(state)
        if self.best_q is not None and self.best_f < last:
            q, last = self.best_q, self.best_f
            ended = self._limit if isinstance(request.rule, Auto) else Status.OVERSHOT
            status = ended if status is Status.CONVERGED else status
        return PartResult(
            field=part.field,
            q=part.lowered.reduction.expand(q),
            free_energy=last,
            status=status,
            iterations=history.iterations,
            seconds=self.elapsed,
            rule=request.rule.name,
            params=request.rule.params,
            trace=history.make_trace(),
            setup_seconds=setup,
            kernels=request.kernels,
            partition=part,
            wall_seconds=program.seconds,
            cpu_seconds=program.cpu_seconds,
            bytes_sent=part.transport.bytes_sent,
        )

    def _infeasible(self) -> PartResult:
        part, request = self.partition, self.request
        layout = part.field.layout
        return PartResult(
            field=part.field,
            q=np.repeat(1.0 / layout.cardinalities, layout.cardinalities),
            free_energy=np.inf,
            status=Status.INFEASIBLE,
            iterations=0,
            seconds=0.0,
            rule=request.rule.name,
            params=request.rule.params,
            trace=Trace(),
            kernels=request.kernels,
            partition=part,
        )
