"""The one iteration loop: advance by a plan, look at the clock, keep the trace, stop.

Everything that iterates goes through it: one field (`Loop.run`), fields that iterate together
(`run_together`), and updates alone, as a differentiable layer makes them (`make_updates`).
"""

from __future__ import annotations

from contextlib import nullcontext
from copy import Error as CopyError
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from proxfield.core.common.interrupts import finish_first
from proxfield.core.engines.base import Batch, Program, Rows, State, Updates
from proxfield.core.engines.plan import Order, Update
from proxfield.core.solve.history import History, Limits, Seen
from proxfield.core.solve.pace import FIRST_CHUNK, Pace, advance, advance_in_parts, sweep_parts
from proxfield.core.solve.stationarity import fixed_points, is_fixed_point
from proxfield.result import Status

if TYPE_CHECKING:
    from proxfield.core.solve.refinement import StepRefinement

P = TypeVar("P")
S = TypeVar("S")


@dataclass
class Loop(History):
    """Iterates one field, and keeps the history that all its runs share."""

    live: tuple[Program, State] | None = None
    """Where the present run stands, if its F is the user's."""
    running: Run | None = None
    """The present run."""
    resumed: Run | None = None
    """A run that was interrupted; the next one continues it."""

    def run(
        self,
        program: Batch[P, S],
        plan: P,
        state: S,
        limits: Limits | None = None,
        *,
        visible: bool = True,
        keep_best: bool = False,
        first: float | None = None,
        trace: bool | None = None,
    ) -> Status:
        """Iterate until converged or a limit is reached.

        Converged means that softmax(−g(q)) is within the tolerance of q. It is tested where an
        update changed q by less than that; if it fails, the next test waits twice as many
        iterations.

        Args:
            program: What to iterate with.
            plan: How the state moves.
            state: Where it is; changed in place.
            limits: Where this call ends; by default where the inference does.
            visible: Is the program's F the user's F? If not, the trace shows +inf.
            keep_best: Remember the state of lowest F.
            first: F of the state, where it is known.
            trace: Keep F of every state? By default as for the whole inference.
        """
        limits = self.limits if limits is None else limits
        trace = self.trace if trace is None else trace
        self.live = None
        if visible and isinstance(program, Program):
            self.live = program, cast(State, state)
        warm_up(program, plan, state, trace)
        if first is not None:
            self.last, self.known = first, state
        elif limits.budget is not None and self.iterations == 0 and self.known is not state:
            self.measure(program, state)
        run, self.resumed = self.resumed or Run(self, limits), None
        run.limits, self.running = limits, run
        drive = Drive(program, plan, state, [run], trace, keep_best=keep_best, visible=visible)
        status = drive.to_the_end()[0]
        self.running = None
        return status

    def measure(self, program: Batch[P, S], state: S) -> float:
        """F of the start, timed, outside the clock: what comes after it is planned by that."""
        self.last, self.known = float(self.costs.evaluate(program, state, self.now)[0]), state
        return self.last

    def is_fixed_point(self, program: Program, state: State, tol: float) -> bool:
        """As in `stationarity`, timed."""
        begun = self.now()
        answer = is_fixed_point(program, state, tol)
        self.costs.residual = self.now() - begun
        return answer

    def aside(self, limits: Limits) -> Loop:
        """A loop for updates that the trace doesn't show, within limits of its own."""
        return Loop(limits, now=self.now, costs=self.costs)


def warm_up(program: Batch[P, S], plan: P, state: S, trace: bool) -> None:
    """Compile (or load) what the plan needs, outside the clock."""
    if isinstance(plan, Order):  # don't draw from the generator
        plan = cast(P, Order(plan.variables, plan.starts))
    program.warm_up(plan, state, trace)


def make_updates(
    program: Updates[P, S], plan: P, state: S, max_iters: int, tol: float = -1.0
) -> Status:
    """Nothing but updates: no F, no test for a fixed point, no look at the clock.

    Args:
        program: What to update.
        plan: How the state moves.
        state: Where it is; changed in place.
        max_iters: Maximum number of updates.
        tol: Change of q that is enough to stop; a negative one never stops.

    Raises:
        KeyboardInterrupt: At Ctrl-C.
    """
    limits = Limits(max_iters, tol)
    runs = [Run(Loop(limits, trace=False), limits)]
    drive = Drive(cast("Batch[P, S]", program), plan, state, runs, False, bare=True)
    return drive.to_the_end()[0]


def run_together(
    loops: list[Loop], program: Batch[P, S], plan: P, state: S, keep_best: bool = False
) -> list[Status]:
    """Iterate fields together, each to its own end and within its own limits.

    Args:
        loops: Of each field, with its limits; none has run yet, and all use the same clock.
        program: The fields.
        plan: How they move.
        state: Where they are; changed in place.
        keep_best: Remember the state of lowest F of each.
    """
    warm_up(program, plan, state, loops[0].trace)
    if loops[0].limits.budget is not None:
        first = loops[0].costs.evaluate(program, state, loops[0].now)
        for loop, f in zip(loops, first, strict=True):
            loop.last, loop.known = float(f), state
            loop.costs.evaluation = loops[0].costs.evaluation
    runs = [Run(loop, loop.limits) for loop in loops]
    return Drive(program, plan, state, runs, loops[0].trace, keep_best=keep_best).to_the_end()


@dataclass
class Run:
    """One field's part in a call of the loop."""

    loop: Loop
    limits: Limits
    status: Status | None = None
    """Why it stopped, once it has."""
    rows: list[Rows] = field(default_factory=list)
    moments: list[NDArray[np.float64]] = field(default_factory=list)
    waiting: int = 0
    """Iterations to wait since the last test for a fixed point failed."""
    test_at: int = 0
    """The iteration from which on it may be tested again."""

    def __post_init__(self) -> None:
        self.first, self.base = self.loop.iterations, self.loop.elapsed

    @property
    def quiet(self) -> bool:
        """Whether it continues whatever the change of q."""
        return self.loop.iterations < self.test_at

    @property
    def seconds_left(self) -> float:
        return self.limits.seconds_left(self.loop.elapsed)

    def iterations_left(self) -> int:
        """Until the next test, or the end."""
        end = self.limits.max_iters
        return (min(self.test_at, end) if self.quiet else end) - self.loop.iterations

    def take(self, rows: Rows, seconds: float) -> None:
        """Some updates were made, and so many seconds have passed since the run began."""
        begun, self.loop.elapsed = self.loop.elapsed, self.base + seconds
        self.rows.append(rows)
        self.moments.append(np.linspace(begun, self.loop.elapsed, len(rows) + 1)[1:])
        self.loop.iterations += len(rows)

    def ending(self) -> Status | None:
        """Why the last of the updates ends the run, if it does; a fixed point is yet to test."""
        rows, loop, limits = self.rows[-1], self.loop, self.limits
        change = float(rows.change[-1]) if len(rows) else 0.0
        if change <= limits.tol:
            if loop.iterations < min(
                self.test_at, limits.max_iters
            ):  # looks must not show in the result
                return None
            return Status.CONVERGED if loop.may_test(limits) else Status.BUDGET
        return Status.DIVERGED if np.isnan(change) else None

    def go_on(self) -> None:
        """It isn't at a fixed point yet, although q hardly moves."""
        self.waiting = max(1, 2 * self.waiting)
        self.test_at = self.loop.iterations + self.waiting


@dataclass(frozen=True)
class Before(Generic[S]):
    """What was there before some updates: marginals of each field, or a copy of the state."""

    marginals: list[NDArray[np.float64]]
    state: S | None = None


class Drive(Generic[P, S]):
    """A state on its way: all fields of a program until each has stopped.

    Args:
        program: The fields; where ``bare``, it need only be `Updates`.
        plan: How they move.
        state: Where they are.
        runs: Of each field.
        trace: Find F of every state.
        keep_best: Remember the state of lowest F.
        visible: Is the program's F the user's?
        bare: See `make_updates`.
    """

    def __init__(
        self,
        program: Batch[P, S],
        plan: P,
        state: S,
        runs: list[Run],
        trace: bool,
        *,
        keep_best: bool = False,
        visible: bool = True,
        bare: bool = False,
    ) -> None:
        self.program, self.plan, self.state, self.runs = program, plan, state, runs
        self.keep_best, self.visible, self.bare = keep_best, visible, bare
        lead = runs[0].loop
        self.trace, self.now = trace, lead.now
        hurry = any(run.limits.budget is not None for run in runs)
        slow = program.slow
        first = max(1, runs[0].limits.max_iters) if bare else 1 if slow else FIRST_CHUNK
        self.pace = Pace(program.looks_every or first, fixed=program.looks_every > 0)
        if hurry:
            self.pace.per_iteration = lead.costs.iteration(plan)
            self.pace.ending = lead.costs.evaluation
        self.parts = sweep_parts(plan) if slow and hurry and program.cuts_sweeps else []
        self.blind = program.fields > 1 and not (self.trace or getattr(plan, "watches", False))
        """Whether F of the states isn't known, so that none of them can be the best."""
        self.refinement: StepRefinement | None = None
        """A better step for the plan, while it is looked for."""
        if isinstance(plan, Update) and plan.refinement is not None:
            self.plan = cast(P, plan.refined())
            if not (bare or plan.refinement.ended):
                self.refinement, self.refine_at = plan.refinement, plan.refinement.every
        self.begun = self.now()

    def to_the_end(self) -> list[Status]:
        """Why each field stopped."""
        try:
            while moving := self.moving():
                groups: tuple[list[int], list[int]] = [], []
                for k in moving:
                    groups[self.runs[k].quiet].append(k)
                for some in groups:
                    if some:
                        self.advance(some)
        except KeyboardInterrupt:
            if self.bare:
                raise
            for run in self.runs:
                run.status = run.status or Status.INTERRUPTED
        finally:
            self.finish()
        return [run.status or Status.MAX_ITERS for run in self.runs]

    def moving(self) -> list[int]:
        """Fields that neither stopped nor reached a limit."""
        part = 1 / len(self.parts) if self.parts else 1.0
        seconds = 0.0 if self.bare else self.now() - self.begun
        for run in self.runs:
            if run.status is not None:
                continue
            run.loop.elapsed = run.base + seconds
            if run.loop.iterations >= run.limits.max_iters:
                run.status = Status.MAX_ITERS
            elif self.pace.too_late(run.seconds_left, part):
                run.status = Status.BUDGET
        return [k for k, run in enumerate(self.runs) if run.status is None]

    def advance(self, some: list[int]) -> None:
        """Some updates of some fields, which are all quiet or all not; then look at them."""
        runs, pace = [self.runs[k] for k in some], self.pace
        left = min(run.seconds_left for run in runs)
        n = pace.next(left, min(run.iterations_left() for run in runs))
        if self.refinement is not None:
            n = min(n, self.refine_at - (runs[0].loop.iterations - runs[0].first))
        tol = -1.0 if runs[0].quiet else runs[0].limits.tol
        since, cut = self.now() - self.begun, False
        with nullcontext() if self.bare else finish_first():
            before: Before[S] | None = None
            if self.keep_best and not self.blind:
                before, n = self.snapshot(n)
            if self.parts and pace.until_end(left) < 2 * pace.per_iteration:
                rows, cut = self.part_of_a_sweep(runs[0])
                found = [rows]
            else:
                wanted = np.zeros(self.program.fields, dtype=bool)
                wanted[some] = True
                found = advance(self.program, self.state, self.plan, n, tol, self.trace, wanted)
            seconds = self.now() - self.begun
            for k in some:
                self.runs[k].take(found[k], seconds)
                if before is not None:
                    self.remember(k, before, found[k])
        self.look(some, cut)
        still = [run for run in runs if run.status is None]
        if still:
            pace.learn(max(len(found[k]) for k in some), seconds - since)
        for run in still:
            run.loop.costs.iterations[type(self.plan)] = pace.per_iteration
        if still:
            self.refine(runs[0])

    def refine(self, run: Run) -> None:
        """Look further for a better step of the only field, after so many of its iterations."""
        refinement = self.refinement
        if refinement is None or run.loop.iterations - run.first < self.refine_at:
            return
        deadline = self.begun + self.pace.until_end(run.limits.seconds_left(run.base))
        refinement.advance(lambda: self.now() > deadline)
        self.refine_at += refinement.every
        if refinement.ended:
            self.refinement = None
            self.plan = cast(P, cast(Update, self.plan).refined())

    def part_of_a_sweep(self, run: Run) -> tuple[Rows, bool]:
        """One sweep, or as much of it as fits, of the only field."""

        def advance_by(part: Order) -> Rows:
            plan, wanted = cast(P, part), np.ones(1, dtype=bool)
            return self.program.advance_each(self.state, plan, 1, -1.0, self.trace, wanted)[0]

        deadline = self.begun + self.pace.until_end(run.limits.seconds_left(run.base))
        return advance_in_parts(advance_by, self.parts, deadline, self.now)

    def look(self, some: list[int], cut: bool) -> None:
        """Stop what has converged, diverged or been asked to stop."""
        runs = {k: self.runs[k] for k in some}
        stops = {k: Status.BUDGET if cut else run.ending() for k, run in runs.items()}
        test = [k for k in some if stops[k] is Status.CONVERGED and not self.bare]
        if test:
            begun = self.now()
            reached = fixed_points(self.program, self.state, runs[test[0]].limits.tol)
            seconds = self.now() - begun
            for k in test:
                runs[k].loop.costs.residual = seconds
                if not reached[k]:
                    stops[k] = None
                    runs[k].go_on()
        for k, run in runs.items():
            run.status = stops[k]
            marginals = partial(self.marginals_of, k)
            if run.status is None and run.loop.asked_to_stop(run.rows[-1], marginals):
                run.status = Status.STOPPED

    def marginals_of(self, which: int) -> NDArray[np.float64]:
        """A copy of one field's marginals."""
        return self.program.marginals_each(self.state)[which]

    def finish(self) -> None:
        """F of the last states, and the rows of all."""
        wanted = [run.rows or run.loop.known is not self.state for run in self.runs]
        f = np.zeros(0)
        if any(wanted) and not self.bare:
            f = self.program.free_energy_each(self.state)
        seconds = self.now() - self.begun
        for k, run in enumerate(self.runs):
            loop = run.loop
            loop.period2 = run.rows[-1].period2 if run.rows else np.inf
            if self.bare:
                loop.last = np.nan
            elif wanted[k]:  # runs that had no time keep what they know
                loop.last, loop.known = float(f[k]), self.state
            loop.append(run.first, run.moments, run.rows, loop.last, self.visible, self.trace)
            if len(self.runs) == 1:  # of several, each has the time when it stopped
                loop.elapsed = run.base + seconds

    # ---- the best state seen ----

    def snapshot(self, n: int) -> tuple[Before[S], int]:
        """What is needed to find the best of the next states, and how many updates to make.

        A copy of the state, to make any of the next n again. Of several fields the marginals
        alone, since a copy would be kept as long as it holds the best state of one of them.
        """
        if n == 1 or self.program.fields > 1:
            return Before(self.program.marginals_each(self.state)), n
        try:
            return Before([], self.program.copy(self.state)), n
        except (TypeError, CopyError):
            if not getattr(self.state, "memory", None):
                raise
            return Before(self.program.marginals_each(self.state)), 1  # a custom rule's memory

    def remember(self, which: int, before: Before[S], rows: Rows) -> None:
        """Keep the state of lowest F among those that some updates started from."""
        if len(rows) == 0 or np.isnan(rows.free_energy).all():
            return
        loop, program, plan, trace = self.runs[which].loop, self.program, self.plan, self.trace
        kept = before.state
        if kept is None:
            loop.remember(float(rows.free_energy[0]), before.marginals[which])
            return
        k = int(np.nanargmin(rows.free_energy))
        f = float(rows.free_energy[k])
        if not np.isfinite(f) or (loop.best is not None and f >= loop.best.free_energy):
            return

        def recover() -> tuple[float, NDArray[np.float64]]:
            again = program.copy(kept)
            program.advance_each(again, plan, k, -1.0, trace, np.ones(1, dtype=bool))
            return float(program.free_energy_each(again)[0]), program.marginals_each(again)[0]

        loop.best = Seen(f, recover)
