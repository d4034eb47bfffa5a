"""One call of `infer` on one rank: updates, temperatures, saddles, checkpoints, the end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from proxfield.backends.base import Rows, State
from proxfield.distributed.chains import SAMPLING, sample, seed_of, temperatures
from proxfield.distributed.checkpoint import Checkpoints
from proxfield.distributed.coloring import shared_colors
from proxfield.distributed.curvature import SpreadCurvature, curvature_of
from proxfield.distributed.part_result import PartResult
from proxfield.distributed.partition import Partition
from proxfield.distributed.program import LARGE_SIZE, PartProgram
from proxfield.distributed.stationarity import judge_spread, nudged_part
from proxfield.errors import UnsupportedError
from proxfield.inference.history import OVERTIME_SHARE, History, Progress
from proxfield.inference.request import Request
from proxfield.inference.session import (
    FEWEST_PRODUCTS,
    MAX_ESCAPES,
    THOROUGH_FACTOR,
    name_oscillation,
)
from proxfield.inference.starts import observed, starting_point
from proxfield.inference.stationarity import MAX_PRODUCTS
from proxfield.result import Status
from proxfield.rules.anneal import COOLING, Anneal, at_temperature
from proxfield.rules.auto import Auto
from proxfield.rules.base import Rule
from proxfield.rules.parallel import Fixed
from proxfield.rules.plan import Order, Plan, Update
from proxfield.rules.registry import make_rule
from proxfield.rules.session import Judgement, Problem, Verdict
from proxfield.terms.base import Floats


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
class Inference:
    """One call of `infer` on one rank."""

    partition: Partition
    request: Request
    every: int
    checkpoints: Checkpoints | None = None
    checkpoint_seconds: float = np.inf
    iterations: int = 0
    elapsed: float = 0.0
    waiting: int = 0
    """Updates to wait since the last test for a fixed point failed."""
    test_at: int = 0
    """The update from which on it may be tested again."""
    level: int = 0
    """Of annealing: the present temperature's number."""
    level_end: int = 0
    """The update at which it ends; 0 before it has begun."""
    escapes: int = 0
    """Saddles left so far."""
    saddles: dict[int, float] = field(default_factory=dict)
    """F there, by the number of updates: the next one begins elsewhere."""
    curvature: SpreadCurvature | None = None
    best_f: float = np.inf
    best_q: NDArray[np.float64] | None = None
    rows: list[Rows] = field(default_factory=list)
    moments: list[NDArray[np.float64]] = field(default_factory=list)

    def now(self) -> float:
        """Rank 0's clock."""
        return float(self.partition.transport.broadcast(np.array([self.request.now()]))[0])

    def solve(self) -> PartResult:
        """Iterate to the limits."""
        part, request = self.partition, self.request
        begun = self.now()
        if part.lowered.infeasible or np.isinf(
            part.transport.reduce(np.array([min(part.lowered.constant, 1e300)]), "max")[0]
        ):
            return self._infeasible()
        program = PartProgram(part, request.kernels, request.dtype, request.threads)
        plan, colors, limit = self._plan()
        state = program.start(self._start())
        if self.checkpoints is not None:
            self._resume(state)
        if part.lowered.layout.size < LARGE_SIZE:  # it takes a second state
            program.program.warm_up(warm_plan(plan), state, True)
        self.clock_begun = self.now() - self.elapsed
        self.saved = self.elapsed
        setup = self.clock_begun + self.elapsed - begun
        with noted_interrupt() as interrupted:
            run = Moving(program, plan, colors, state, limit, interrupted)
            status = None
            if isinstance(request.rule, Anneal):
                status = self._cool(run)
            elif isinstance(request.rule, Auto):
                status = self._sample(run)
            status = self._settle(run) if status is None else status
        last = program.free_energy(state) if status is not Status.DIVERGED else np.nan
        if status is Status.DIVERGED:
            state = program.start(self._start())
            last = program.free_energy(state)
        return self._finish(program, state, status, last, setup)

    @cached_property
    def moves(self) -> Rule:
        """The rule that moves the state."""
        rule = self.request.rule
        if isinstance(rule, Auto):
            return Fixed(step="certified-local")
        return make_rule(rule.inner) if isinstance(rule, Anneal) else rule

    @property
    def problem(self) -> Problem:
        """What plans are made from: the whole field where it is known, else this rank's part."""
        part = self.partition
        if part.curvature_of_whole is not None and part.whole is not None:
            return Problem(part.whole, part.curvature_of_whole, self.request.seed)
        if self.curvature is None:
            self.curvature = curvature_of(part, "cpu")
        return Problem(part.lowered, self.curvature, self.request.seed)

    def _plan(self) -> tuple[Plan, int, int]:
        """The plan of this rank's variables, the number of colors, and the limit on updates."""
        part, request = self.partition, self.request
        extras = part.transport.reduce(np.array([float(len(part.cut.extras))]))[0]
        if extras and (self.moves.name == "colored" or isinstance(request.rule, Auto)):
            raise UnsupportedError(
                f"{request.rule.name} over several ranks needs every term lowered to tables; "
                "use anneal"
            )
        if self.moves.name == "colored":
            order, starts = shared_colors(part)
            plan: Plan = Order(order, starts)
            limit, colors = 1000, len(starts) - 1
        else:
            plan = restricted(self.moves.plan(self.problem), part)
            limit, colors = self.moves.default_iterations(self.problem), 0
        if request.max_iters is not None:
            return plan, colors, request.max_iters
        return plan, colors, 2**62 if request.budget is not None else limit

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

    # ---- annealing, chains, and saddles ----

    def _own_bounds(self) -> NDArray[np.float64]:
        """λ_i of this rank's variables.  # (n_vars,)"""
        part, local = self.partition, self.problem.curvature.local
        if part.whole is None or part.owner is None:
            return local
        return np.asarray(local[part.owner[part.whole.reduction.free] == part.rank])

    def _cool(self, run: Moving) -> Status | None:
        """Lower the temperature to 1; returns why the run has to end, if it does."""
        rule, problem = self.request.rule, self.problem
        assert isinstance(rule, Anneal)
        if self.level < 0:  # a resumed run, which has cooled down already
            return None
        plan = run.plan if isinstance(run.plan, Order) else self.moves.plan(problem)
        hot = rule.hot or max(1.0, problem.curvature.smallest / 2)
        levels = max(1, min(rule.levels, int(COOLING * run.limit)))
        while self.level < levels:
            temperature = hot ** (1.0 - self.level / max(1, levels - 1))
            share = COOLING * (self.level + 1) / levels
            if self.level_end == 0:
                self.level_end = max(self.iterations + 1, int(share * run.limit))
            until = np.inf if self.request.budget is None else share * self.request.budget
            cooled = restricted(at_temperature(plan, temperature, problem), self.partition)
            status = self._iterate(replace(run, plan=cooled), self.level_end, until, tol=-1.0)
            if status not in (Status.MAX_ITERS, Status.BUDGET):
                return status
            self.level, self.level_end = self.level + 1, 0
            if self.request.budget is not None:  # levels that there is no time for are left out
                used = self.elapsed / (COOLING * max(self.request.budget, 1e-9))
                self.level = max(self.level, int(levels * used))
        self.level = -1
        run.restart(run.program.program.marginals(run.state))
        return None

    def _sample(self, run: Moving) -> Status | None:
        """A cooling chain, from which the descent starts; returns why the run has to end, if so."""
        part, request, budget = self.partition, self.request, self.request.budget
        ends = temperatures(run.program, self._own_bounds())
        if self.level < 0 or ends is None:
            return None
        sweeps = max(1, int(SAMPLING * run.limit))
        while self.level < sweeps:
            done = self.level / sweeps
            if budget is not None:
                done = max(done, self.elapsed / (SAMPLING * max(budget, 1e-9)))
            if done >= 1.0:
                break
            f = run.program.free_energy(run.state)  # exchanges the ghosts too
            temperature = ends[0] * (ends[1] / ends[0]) ** done
            seed = seed_of(part, request.seed, self.level)
            run.restart(sample(run.program, run.state, temperature, seed))
            stop = run.program.maximum(float(run.interrupted.is_set())) > 0
            before, self.elapsed = self.elapsed, self.now() - self.clock_begun
            rows = Rows(np.array([f]), np.array([1.0]))
            self._take(rows, before, None)
            self.level += 1
            if stop:
                return Status.INTERRUPTED
            if request.callback is not None and self._asked_to_stop(run, rows):
                return Status.STOPPED
            self._checkpoint(run.state)
        self.level = -1
        return None

    def _settle(self, run: Moving) -> Status:
        """Iterate to a fixed point, and test whether it is a saddle; annealing leaves those."""
        thorough = isinstance(self.request.rule, (Anneal, Auto))
        part, seed = self.partition, self.request.seed
        while True:
            budget = np.inf if self.request.budget is None else self.request.budget
            status = self._iterate(run, run.limit, budget, self.request.tol)
            at_limit = thorough and status in (Status.MAX_ITERS, Status.BUDGET)
            if at_limit:
                at_limit = self._standing and self._stands(run)
            if status is not Status.CONVERGED and not at_limit:
                return status
            found = self._judge(run, thorough)
            self.elapsed = self.now() - self.clock_begun
            spent = self._spent(run)
            if found.verdict is not Verdict.SADDLE or found.lower is None:
                sure = found.verdict is Verdict.MINIMUM or not thorough
                return status if at_limit or sure else spent or self._limit
            if not thorough:
                return Status.SADDLE
            if spent is not None or self.escapes >= MAX_ESCAPES:
                run.restart(found.lower)
                return spent or self._limit
            self.saddles[self.iterations] = run.program.free_energy(run.state)
            run.restart(nudged_part(part, found.lower, seed + self.escapes))
            self.escapes += 1

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

    def _judge(self, run: Moving, thorough: bool) -> Judgement:
        largest = run.program.maximum(float(self.partition.lowered.layout.size))
        if largest >= LARGE_SIZE:  # it takes a dozen vectors in float64
            return Judgement(Verdict.UNDECIDED)
        products = int(np.clip(2 * self.iterations, FEWEST_PRODUCTS, MAX_PRODUCTS))
        budget = self.request.budget

        def late() -> bool:
            if budget is None:
                return False
            return self.now() - self.clock_begun > budget + OVERTIME_SHARE * budget

        most = THOROUGH_FACTOR * MAX_PRODUCTS if thorough else products
        return judge_spread(run.program, run.state, self.request.seed, most, late)

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
        history = History(2**62, request.tol, request.budget, trace=request.trace)
        history.iterations = self.iterations
        f, change, seconds, history.period2 = self._trace()
        if not request.trace:
            f = np.full(len(f), np.nan)
        history.append(0, [seconds], [Rows(f, change)], last, True)
        if status in (Status.MAX_ITERS, Status.BUDGET) and not self.moves.never_rises:
            status = name_oscillation(history, status)
        q = program.marginals(state)
        if self.best_q is not None and self.best_f < last:
            q, last = self.best_q, self.best_f
            status = Status.OVERSHOT if status is Status.CONVERGED else status
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
            trace=History(0).make_trace(),
            kernels=request.kernels,
            partition=part,
        )


def restricted(plan: Plan, part: Partition) -> Plan:
    """A plan of the whole field, for one rank's variables."""
    if not isinstance(plan, Update) or part.whole is None or part.owner is None:
        return plan
    own = part.owner[part.whole.reduction.free] == part.rank
    fallback = None if plan.fallback is None else np.ascontiguousarray(plan.fallback[own])
    return replace(plan, step=np.ascontiguousarray(plan.step[own]), fallback=fallback)


def warm_plan(plan: Plan) -> Plan:
    """The plan that the rank's own program will execute."""
    if isinstance(plan, Update) and plan.watches:
        return replace(plan, adaptive=False, fallback=None, search=None)
    return plan


@contextmanager
def noted_interrupt() -> Iterator[threading.Event]:
    """Note Ctrl-C instead of raising it, so that all ranks end together; a second one is raised."""
    asked = threading.Event()
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield asked
        return

    def note(*_: object) -> None:
        asked.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    signal.signal(signal.SIGINT, note)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
