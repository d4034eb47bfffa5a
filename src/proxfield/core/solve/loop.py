"""The one iteration loop: advance by a plan, look at the clock, keep the trace, stop.

Everything that iterates goes through it: one field (`Loop.run`), fields that iterate together
(`run_together`), and updates alone, as a differentiable layer makes them (`make_updates`).
"""

from __future__ import annotations

from collections.abc import Callable
from copy import Error as CopyError
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Generic, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from proxfield.core.common.arrays import Doubles
from proxfield.core.common.interrupts import finish_first
from proxfield.core.engines.base import Batch, Program, Rows, State, Updates
from proxfield.core.engines.plan import Order, Update
from proxfield.core.solve.history import FIRST_CHUNK, Clock, History, Limits, Pace, Seen, lower
from proxfield.core.solve.stationarity import fixed_points
from proxfield.result import Status, Trace

if TYPE_CHECKING:
    from proxfield.core.solve.lanczos import StepRefinement

P = TypeVar("P")
S = TypeVar("S")
SWEEP_PARTS = 32
"""Parts of a sweep between two looks at the clock, where a whole one may not fit the budget."""


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

    def fixed_points(self, program: Batch[P, S], state: S, tol: float) -> NDArray[np.bool_]:
        """Whether softmax(−g(q)) of each field is within ``tol`` of q, timed.  # (fields,)"""
        begun = self.now()
        reached = fixed_points(program, state, tol)
        self.costs.residual = self.now() - begun
        return reached


def warm_up(program: Batch[P, S], plan: P, state: S, trace: bool) -> None:
    """Compile (or load) what the plan needs, outside the clock."""
    if isinstance(plan, Order):  # don't draw from the generator
        plan = cast(P, Order(plan.variables, plan.starts))
    program.warm_up(plan, state, trace)


def advance(
    program: Updates[P, S],
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


def make_updates(
    program: Updates[P, S], plan: P, state: S, max_iters: int, tol: float = -1.0
) -> None:
    """Nothing but updates, in place: no F, no test for a fixed point, no look at the clock.

    A change of q by at most ``tol`` ends them. Ctrl-C raises KeyboardInterrupt.
    """
    if isinstance(plan, Update):
        plan = cast(P, plan.refined())
    if max_iters > 0:
        advance(program, state, plan, max_iters, tol, False, np.ones(1, dtype=bool))


def run_together(
    loops: list[Loop], program: Batch[P, S], plan: P, state: S, keep_best: bool = False
) -> list[Status]:
    """Iterate fields together, each to its own end and within its own limits.

    None of their loops has run yet, and all use the same clock. Other arguments are those of
    `Loop.run`.
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
    moments: list[Doubles] = field(default_factory=list)
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
        """Seconds until the end; infinite without a budget."""
        return self.limits.seconds_left(self.loop.elapsed)

    def ending(self) -> Status | None:
        """Why the last of the updates ends the run, if it does; a fixed point is yet to test."""
        rows, loop, limits = self.rows[-1], self.loop, self.limits
        change = float(rows.change[-1]) if len(rows) else 0.0
        if change <= limits.tol:
            # looks must not show in the result
            if loop.iterations < min(self.test_at, limits.max_iters):
                return None
            return Status.CONVERGED if loop.may_test(limits) else Status.BUDGET
        return Status.DIVERGED if np.isnan(change) else None

    def record(self, visible: bool, traced: bool) -> None:
        """Keep its rows. Updates know F *before* each of them, a row F after it."""
        loop, none = self.loop, np.zeros(0)
        f = np.concatenate([*(rows.free_energy for rows in self.rows), [loop.last]])
        if not visible:
            f[:] = np.inf
        change = np.concatenate([none, *(rows.change for rows in self.rows)])
        seconds = np.concatenate([none, *self.moments])
        if len(change) and np.isnan(change[-1]):  # updates that diverged leave no state
            lost = np.isnan(change) | (np.isnan(f[1:]) & traced)
            good = int(lost.argmax())
            loop.iterations -= len(change) - good
            f, change, seconds = f[: good + 1], change[:good], seconds[:good]
        if not loop.pieces:
            loop.add_row(0, 0.0, float(f[0]))
        k = len(f) - 1
        numbers = self.first + 1 + np.arange(k)
        loop.pieces.append(Trace(numbers, seconds, f[1:], change, [loop.member] * k))


@dataclass
class Drive(Generic[P, S]):
    """A state on its way: all fields of a program, each with a run, until each has stopped."""

    program: Batch[P, S]
    plan: P
    state: S
    runs: list[Run]
    trace: bool
    keep_best: bool = False
    visible: bool = True
    refinement: StepRefinement | None = None
    """A better step for the plan, while it is looked for."""

    def __post_init__(self) -> None:
        program, plan, lead = self.program, self.plan, self.runs[0].loop
        self.now, slow = lead.now, program.slow
        hurry = any(run.limits.budget is not None for run in self.runs)
        chunk = program.looks_every or (1 if slow else FIRST_CHUNK)
        self.pace = Pace(chunk, fixed=program.looks_every > 0)
        if hurry:
            self.pace.per_iteration = lead.costs.iteration(plan)
            self.pace.ending = lead.costs.evaluation
        self.parts = sweep_parts(plan) if slow and hurry and program.cuts_sweeps else []
        # without F of several fields, no state is known to be the best
        watched = program.fields == 1 or self.trace or getattr(plan, "watches", False)
        self.looks_back = self.keep_best and watched
        if isinstance(plan, Update) and plan.refinement is not None:
            self.plan = cast(P, plan.refined())
            if not plan.refinement.ended:
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
            for run in self.runs:
                run.status = run.status or Status.INTERRUPTED
        finally:
            self.finish()
        return [run.status or Status.MAX_ITERS for run in self.runs]

    def moving(self) -> list[int]:
        """Fields that neither stopped nor reached a limit."""
        part = 1 / len(self.parts) if self.parts else 1.0
        seconds = self.now() - self.begun
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
        quiet = runs[0].quiet
        ends = (min(r.test_at, r.limits.max_iters) if quiet else r.limits.max_iters for r in runs)
        n = pace.next(left, min(e - r.loop.iterations for e, r in zip(ends, runs, strict=True)))
        if self.refinement is not None:
            n = min(n, self.refine_at - (runs[0].loop.iterations - runs[0].first))
        tol = -1.0 if quiet else runs[0].limits.tol
        since, cut = self.now() - self.begun, False
        with finish_first():
            marginals, kept, n = self.snapshot(n) if self.looks_back else ([], None, n)
            wanted = np.zeros(self.program.fields, dtype=bool)
            wanted[some] = True
            if self.parts and pace.until_end(left) < 2 * pace.per_iteration:
                rows, cut = advance_in_parts(
                    lambda part: self.program.advance_each(
                        self.state, cast(P, part), 1, -1.0, self.trace, wanted
                    )[0],
                    self.parts,
                    self.deadline(runs[0]),
                    self.now,
                )
                found = [rows]
            else:
                found = advance(self.program, self.state, self.plan, n, tol, self.trace, wanted)
            seconds = self.now() - self.begun
            for k, run in zip(some, runs, strict=True):
                rows, before = found[k], run.loop.elapsed
                run.loop.elapsed = run.base + seconds
                run.rows.append(rows)
                run.moments.append(np.linspace(before, run.loop.elapsed, len(rows) + 1)[1:])
                run.loop.iterations += len(rows)
                if self.looks_back:
                    self.remember(k, marginals, kept, rows)
        self.look(some, cut)
        still = [run for run in runs if run.status is None]
        if still:
            pace.learn(max(len(found[k]) for k in some), seconds - since)
        for run in still:
            run.loop.costs.iterations[type(self.plan)] = pace.per_iteration
        if still:
            self.refine(runs[0])

    def deadline(self, run: Run) -> float:
        """When iterations have to end, as the clock counts."""
        return self.begun + self.pace.until_end(run.limits.seconds_left(run.base))

    def refine(self, run: Run) -> None:
        """Look further for a better step of the only field, after so many of its iterations."""
        refinement = self.refinement
        if refinement is None or run.loop.iterations - run.first < self.refine_at:
            return
        deadline = self.deadline(run)
        refinement.advance(lambda: self.now() > deadline)
        self.refine_at += refinement.every
        if refinement.ended:
            self.refinement = None
            self.plan = cast(P, cast(Update, self.plan).refined())

    def look(self, some: list[int], cut: bool) -> None:
        """Stop what has converged, diverged or been asked to stop."""
        runs = {k: self.runs[k] for k in some}
        stops = {k: Status.BUDGET if cut else run.ending() for k, run in runs.items()}
        test = [k for k in some if stops[k] is Status.CONVERGED]
        if test:
            first = runs[test[0]]
            reached = first.loop.fixed_points(self.program, self.state, first.limits.tol)
            for k in test:
                runs[k].loop.costs.residual = first.loop.costs.residual
                if not reached[k]:  # not a fixed point, although q hardly moves
                    stops[k] = None
                    runs[k].waiting = max(1, 2 * runs[k].waiting)
                    runs[k].test_at = runs[k].loop.iterations + runs[k].waiting
        for k, run in runs.items():
            run.status, rows = stops[k], run.rows[-1]
            if run.status is None and run.loop.callback is not None:
                f, change = float(rows.free_energy[-1]), float(rows.change[-1])
                marginals = partial(lambda k: self.program.marginals_each(self.state)[k], k)
                if run.loop.report(f, marginals, change):
                    run.status = Status.STOPPED

    def finish(self) -> None:
        """F of the last states, and the rows of all."""
        wanted = [run.rows or run.loop.known is not self.state for run in self.runs]
        f = self.program.free_energy_each(self.state) if any(wanted) else np.zeros(0)
        seconds = self.now() - self.begun
        for k, run in enumerate(self.runs):
            loop = run.loop
            loop.period2 = run.rows[-1].period2 if run.rows else np.inf
            if wanted[k]:  # runs that had no time keep what they know
                loop.last, loop.known = float(f[k]), self.state
            run.record(self.visible, self.trace)
            if len(self.runs) == 1:  # of several, each has the time when it stopped
                loop.elapsed = run.base + seconds

    def snapshot(self, n: int) -> tuple[list[Doubles], S | None, int]:
        """What is needed to find the best of the next states, and how many updates to make.

        A copy of the state, to make any of the next n again. Of several fields the marginals
        alone, since a copy would be kept as long as it holds the best state of one of them.
        """
        if n > 1 and self.program.fields == 1:
            try:
                return [], self.program.copy(self.state), n
            except (TypeError, CopyError):
                if not getattr(self.state, "memory", None):
                    raise
                n = 1  # a custom rule's memory
        return self.program.marginals_each(self.state), None, n

    def remember(self, which: int, marginals: list[Doubles], kept: S | None, rows: Rows) -> None:
        """Keep the state of lowest F among those that some updates started from."""
        if len(rows) == 0 or np.isnan(rows.free_energy).all():
            return
        loop, program, plan, trace = self.runs[which].loop, self.program, self.plan, self.trace
        if kept is None:
            loop.remember(float(rows.free_energy[0]), marginals[which])
            return
        k = int(np.nanargmin(rows.free_energy))

        def recover() -> tuple[float, Doubles]:
            again = program.copy(kept)
            program.advance_each(again, plan, k, -1.0, trace, np.ones(1, dtype=bool))
            return float(program.free_energy_each(again)[0]), program.marginals_each(again)[0]

        loop.best = lower(loop.best, Seen(float(rows.free_energy[k]), recover))


def sweep_parts(plan: object) -> list[Order]:
    """A sweep as several sweeps over some of the variables, none for other plans."""
    if not isinstance(plan, Order) or plan.shuffle is not None:
        return []
    bounds = np.array([0, len(plan.variables)]) if plan.starts is None else plan.starts
    each = max(1, len(plan.variables) // SWEEP_PARTS)
    cuts = [(k, min(k + each, b)) for a, b in pairwise(bounds) for k in range(int(a), int(b), each)]
    parts = [replace(plan, variables=plan.variables[a:b]) for a, b in cuts]
    if plan.starts is None:
        return parts
    return [replace(part, starts=np.array([0, len(part.variables)])) for part in parts]


def advance_in_parts(
    advance_by: Callable[[Order], Rows], parts: list[Order], deadline: float, now: Clock
) -> tuple[Rows, bool]:
    """One sweep, part by part, or as much as fits before a deadline; and whether it was cut."""
    f, change, longest, cut = np.nan, 0.0, 0.0, False
    for k, part in enumerate(parts):
        begun = now()
        rows = advance_by(part)
        ended = now()
        longest = max(longest, ended - begun)
        f = rows.free_energy[0] if k == 0 else f
        change = max(change, float(rows.change[-1]))
        if ended + longest > deadline and k + 1 < len(parts):
            cut = True
            break
    return Rows(np.array([f]), np.array([change])), cut
