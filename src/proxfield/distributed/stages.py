"""What one rank does with a rule: its plan, levels of temperature, chains, saddles."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from proxfield.core.engines.base import Rows
from proxfield.core.engines.plan import Order, Plan, Update
from proxfield.core.solve.history import OVERTIME_SHARE
from proxfield.core.solve.rules.anneal import COOLING, Anneal, at_temperature
from proxfield.core.solve.rules.auto import Auto
from proxfield.core.solve.rules.session import Judgement, Problem, Verdict
from proxfield.core.solve.session import FEWEST_PRODUCTS, MAX_ESCAPES, THOROUGH_FACTOR
from proxfield.core.solve.stationarity import MAX_PRODUCTS
from proxfield.distributed.chains import PLAIN_SHARE, SAMPLING, sample, seed_of, temperatures
from proxfield.distributed.coloring import shared_colors
from proxfield.distributed.curvature import SpreadCurvature, curvature_of
from proxfield.distributed.driver import Driver, Moving
from proxfield.distributed.part_result import PartResult
from proxfield.distributed.partition import Partition
from proxfield.distributed.program import LARGE_SIZE, PartProgram
from proxfield.distributed.stationarity import judge_spread, nudged_part
from proxfield.errors import UnsupportedError
from proxfield.result import Status


@dataclass
class Inference(Driver):
    """One call of `infer` on one rank."""

    curvature: SpreadCurvature | None = None

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
        """A descent, then a cooling chain, from which another one starts.

        Returns:
            Why the run has to end, if so.
        """
        part, request, budget = self.partition, self.request, self.request.budget
        ends = temperatures(run.program, self._own_bounds())
        if self.level < 0 or ends is None:
            return None
        seconds = np.inf if budget is None else budget
        if self.level == 0:
            if self.iterations == 0:
                run.restart(nudged_part(part, run.program.marginals(run.state), request.seed))
            end, until = max(1, int(PLAIN_SHARE * run.limit)), PLAIN_SHARE * seconds
            status = self._iterate(run, end, until, request.tol)
            if status in (Status.INTERRUPTED, Status.STOPPED):
                return status
            self.best_f = run.program.free_energy(run.state)
            self.best_q = np.asarray(run.program.marginals(run.state), dtype=np.float64)
            self.level = 1
        sweeps = max(1, int(SAMPLING * run.limit))
        while self.level <= sweeps:
            done = (self.level - 1) / sweeps
            if budget is not None:
                spent = self.elapsed / max(budget, 1e-9) - PLAIN_SHARE
                done = max(done, spent / SAMPLING)
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
        self.level, self.test_at, self.waiting = -1, 0, 0
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
