"""What a rule works with (`rules.session`): the problem, the loop, the start, ways to run plans."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from proxfield.core.common.logs import log
from proxfield.core.engines import compile_program
from proxfield.core.engines.base import Program, State, slack
from proxfield.core.engines.plan import Chains, Explored, Plan
from proxfield.core.engines.registry import on_host, program_for
from proxfield.core.lowering.lowered import Lowered
from proxfield.core.solve.curvature import Curvature
from proxfield.core.solve.history import History, Seen
from proxfield.core.solve.loop import Loop
from proxfield.core.solve.pace import SHORT_EVALUATION
from proxfield.core.solve.rules.base import Rule
from proxfield.core.solve.rules.session import Judgement, Outcome, Problem, Verdict
from proxfield.core.solve.stationarity import MAX_PRODUCTS, judge, nudged, proves_minimum
from proxfield.core.terms.base import Floats, Layout, offers
from proxfield.result import Status

MINIMUM, SADDLE = Verdict.MINIMUM, Verdict.SADDLE

FIRST_PRODUCTS = 3
"""Products with H before the second-order test looks at the clock."""
HOST_KERNELS = ("cpu", "lazy", "reference")
"""Engines whose filters are those of the terms themselves."""
FEWEST_PRODUCTS = 24
"""Products with H that the second-order test may always make."""
QUICK_TEST_SECONDS = 0.01
"""Duration of that many products up to which they are made whatever the budget."""
THOROUGH_FACTOR = 10
"""How many times more products the test may make where a rule promises a local minimum."""
SADDLE_TESTS = 20
"""Fixed-point tests that take as long as leaving a saddle."""
MAX_ESCAPES = 100
SWINGS, STEADY, SMALLEST_SWING, REPEATED = 20, 0.99, 1e-5, 1e-4
"""What an oscillation is: so many updates change q by the same amount, as a share of the largest
change, which is more than rounding; and q is that of two updates before, as a share of the last."""


@dataclass
class Session:
    """One call of `infer`."""

    problem: Problem
    loop: Loop
    start: NDArray[np.float64]  # marginals of the lowered field
    kernels: str = "cpu"
    dtype: str = "float64"
    threads: int | None = None
    keep: str = "last"
    limited: bool = True
    """Whether the user limited iterations or seconds."""

    @cached_property
    def program(self) -> Program:
        """The field, packed for the requested kernels."""
        return program_for(self.problem.lowered, self.kernels, self.dtype, self.threads)

    @property
    def limit(self) -> Status:
        """The status of an end that isn't known to be a minimum: more of this would help."""
        return Status.MAX_ITERS if self.loop.budget is None else Status.BUDGET

    def compile(self, lowered: Lowered) -> Program:
        """Another lowered field, packed the same way."""
        return compile_program(lowered, self.kernels, self.dtype, self.threads)

    @property
    def sweepable(self) -> bool:
        """Whether single variables can be visited."""
        return self.program.sweepable

    @property
    def parallel(self) -> bool:
        """Whether one iteration spreads over threads."""
        return self.program.parallel

    @property
    def chain_threads(self) -> int:
        """Maximum number of threads that chains run on."""
        return self.program.threads

    def slack(self, f: float) -> float:
        """How much F may rise by rounding alone."""
        return slack(f, self.program.dtype)

    def measure(self, q: NDArray[np.float64]) -> float:
        """F of some marginals, timed, outside the clock."""
        return self.loop.measure(self.program, self.program.start(q))

    def evaluate(self, q: Floats) -> float:
        """F of some marginals."""
        return self.program.free_energy(self.program.start(q))

    def gradient(self, q: Floats) -> NDArray[np.float64]:
        """dE/dq.  # (layout.size,)"""
        return self.program.gradient(q)

    def warm_up_chains(self, start: NDArray[np.float64]) -> None:
        """Run once what `explore` needs, before the clock starts."""
        self.program.warm_up_chains(start)

    def explore(self, chains: Chains, threads: int | None = None) -> Explored:
        """Run independent cooling chains, each polished into a local minimum of F."""
        return self.program.explore(chains, threads)

    def without_symmetry(self, q: Floats) -> NDArray[np.float64]:
        """A start off the saddles that symmetries make, for runs too short to find them."""
        return nudged(self.problem.lowered.layout, q, self.problem.seed)

    def begin(self) -> Stage:
        """A stage at the session's start."""
        return Stage(self, self.program.start(self.start))

    def restarted(self, start: NDArray[np.float64]) -> Session:
        """The same session from another start."""
        other = replace(self, start=start)
        other.__dict__["program"] = self.program
        return other

    def with_energies(self, lowered: Lowered) -> Session:
        """The same session of a field with the same variables and other energies."""
        problem = self.problem
        host, seconds = on_host(self.kernels), problem.curvature.seconds
        curvature = Curvature(lowered, None, host, seconds, self.loop.now)
        return replace(self, problem=replace(problem, lowered=lowered, curvature=curvature))

    def run_plan(
        self, rule: Rule, plan: Plan, start: NDArray[np.float64], *, thorough: bool = False
    ) -> Outcome:
        """Iterate one plan to the loop's limits; a fixed point is tested for being a saddle.

        Args:
            rule: The rule whose plan it is.
            plan: How the state moves.
            start: Marginals of the lowered field.
            thorough: Test until it is decided, unless the budget ends first.
        """
        program, loop = self.program, self.loop
        state = program.start(start)
        loop.begin_stage()
        look_back = self.keep == "best" or not rule.never_rises
        trace, loop.trace = loop.trace, loop.trace or self.keep == "best"
        try:
            first = loop.known_at(start)
            status = loop.run(program, plan, state, keep_best=look_back, first=first)
        finally:
            loop.trace = trace

        def start_energy() -> float:
            return program.free_energy(program.start(start))

        last = Outcome(program.marginals(state), loop.last, status)
        outcome = conclude(loop, rule, last, start_energy, start, self.keep)
        loop.tell(outcome.q, outcome.free_energy)
        with loop.clock():
            if outcome.status is Status.OVERSHOT:
                state = program.start(outcome.q)
                if self._stands(state):  # the same fixed point, or another
                    outcome.status = Status.CONVERGED
            at_limit = outcome.status in (Status.MAX_ITERS, Status.BUDGET)
            at_limit = thorough and at_limit and loop.standing
            if at_limit:  # a run without time may still stand on the saddle that it started from
                at_limit = self._stands(state)
            if outcome.status is Status.CONVERGED or at_limit:
                outcome.judgement = self._judge(state, thorough)
                if outcome.judgement.verdict is SADDLE:
                    outcome.status = Status.SADDLE
        label, f, n = outcome.status.label, outcome.free_energy, loop.iterations
        log.debug("%s: %s with F = %.9g, iteration %d", rule.name, label, f, n)
        return outcome

    def _stands(self, state: State) -> bool:
        """Whether this is known to be a fixed point; False if there is no time for the test."""
        loop = self.loop
        if not loop.may_test(loop.seconds_left()):
            return False
        return loop.is_fixed_point(self.program, state)

    def _judge(self, state: State, thorough: bool) -> Judgement:
        lowered, loop = self.problem.lowered, self.loop
        if all(offers(t, "spectrum") for t in lowered.terms):
            # no eigenvalue of S exceeds 1/2, and none of the terms' is below these
            lowest = sum(t.spectrum(lowered.layout)[0] for t in lowered.terms)
            if lowest > -2.0:
                return Judgement(MINIMUM)
        deadline, now = np.inf, loop.now
        if loop.budget is not None:
            deadline = now() + max(0.0, loop.seconds_left()) + loop.overtime

        def late() -> bool:
            return now() > deadline

        host = self.kernels in HOST_KERNELS
        if host and proves_minimum(lowered, self.program.marginals(state), late):
            return Judgement(MINIMUM)
        if loop.budget is not None:
            long = loop.costs.evaluation > SHORT_EVALUATION
            if long and FIRST_PRODUCTS * loop.costs.test() > deadline - now():
                return Judgement(Verdict.UNDECIDED)
        products = int(np.clip(2 * loop.iterations, FEWEST_PRODUCTS, MAX_PRODUCTS))
        quick = 2 * FEWEST_PRODUCTS * loop.costs.evaluation < QUICK_TEST_SECONDS
        return judge(
            self.program,
            state,
            seed=self.problem.seed,
            max_products=THOROUGH_FACTOR * MAX_PRODUCTS if thorough else products,
            min_products=FEWEST_PRODUCTS if quick else 0,  # also on a machine that is busy
            late=late,
        )

    def step_off(self, outcome: Outcome) -> Outcome:
        """If an outcome at a limit stands on a saddle, the point of lower F beside it."""
        with self.loop.clock():
            state = self.program.start(outcome.q)
            if self._stands(state):
                found = self._judge(state, thorough=False)
                if found.lower is not None:
                    return replace(outcome, q=found.lower, free_energy=found.free_energy)
        return outcome

    def off_center(self, start: NDArray[np.float64]) -> NDArray[np.float64]:
        """A start off the center, if the budget is too short to find out that it is a saddle.

        Part of the set-up, not of the clock.
        """
        loop, layout = self.loop, self.problem.lowered.layout
        long = loop.budget is not None and loop.costs.evaluation > SHORT_EVALUATION
        if not long or loop.iterations > 0 or not is_uniform(layout, start):
            return start
        if SADDLE_TESTS * loop.costs.test() < (loop.budget or 0.0):
            return start
        return nudged(layout, start, self.problem.seed)

    def settle(self, rule: Rule, plan: Plan, start: NDArray[np.float64]) -> Outcome:
        """Iterate to a local minimum: like `run_plan`, but a saddle is left and F goes on falling.

        CONVERGED then means a minimum, as far as the second-order test can tell; where a limit
        leaves no time to tell, the status is that limit.
        """
        loop, layout = self.loop, self.problem.lowered.layout
        outcome = self.run_plan(rule, plan, self.off_center(start), thorough=True)
        for attempt in range(MAX_ESCAPES):
            found = outcome.judgement
            if outcome.status is not Status.SADDLE or found is None or found.lower is None:
                break
            if loop.spent is not None:
                return Outcome(found.lower, found.free_energy, loop.spent)
            loop.set_aside(Seen.at(found.free_energy, found.lower))
            loop.tell(found.lower, found.free_energy)
            again = nudged(layout, found.lower, self.problem.seed + attempt)
            outcome = self.run_plan(rule, plan, again, thorough=True)
            f = outcome.free_energy
            if found.free_energy < f - self.slack(f):  # a limit came too soon
                outcome = replace(outcome, q=found.lower, free_energy=found.free_energy)
                outcome.judgement = None
        ended = outcome.status in (Status.CONVERGED, Status.SADDLE)
        if ended and (outcome.judgement is None or outcome.judgement.verdict is not MINIMUM):
            outcome.status = self.limit
        return outcome


@dataclass(frozen=True)
class Stage:
    """A state that one plan after another moves."""

    session: Session
    state: State

    def run(
        self,
        plan: Plan,
        *,
        limit: int | None = None,
        until: float | None = None,
        tol: float | None = None,
        keep_best: bool = False,
        first: float | None = None,
    ) -> Status:
        """Iterate until converged or a limit is reached; arguments as of `Loop.run`."""
        return self.session.loop.run(
            self.session.program,
            plan,
            self.state,
            limit=limit,
            until=until,
            tol=tol,
            keep_best=keep_best,
            first=first,
        )

    @property
    def memory(self) -> dict[str, Any]:
        """What a `Custom` plan keeps from one update to the next."""
        return self.state.memory

    def marginals(self) -> NDArray[np.float64]:
        """A copy of the state's marginals.  # (layout.size,)"""
        return self.session.program.marginals(self.state)

    def conclude(self, rule: Rule, status: Status) -> Outcome:
        """The outcome of a stage that ended so: the best state seen."""
        loop, program, start = self.session.loop, self.session.program, self.session.start
        last = Outcome(self.marginals(), loop.last, status)
        first = partial(program.free_energy, program.start(start))
        return conclude(loop, rule, last, first, start, "best")


def is_uniform(layout: Layout, q: NDArray[np.float64]) -> bool:
    """Whether all labels of each variable are equally probable."""
    if layout.common is not None:
        return bool((q == q[:1]).all())
    return bool((q == (1.0 / layout.cardinalities)[layout.owner]).all())


def conclude(
    loop: Loop,
    rule: Rule,
    last: Outcome,
    first: Callable[[], float],
    start: NDArray[np.float64],
    keep: str = "last",
) -> Outcome:
    """What to hand back after a plan has run: a state seen before if that is the better one.

    Args:
        loop: The loop it ran in.
        rule: The rule it is of.
        last: The last state, and why it is the last.
        first: Gives F of the start.
        start: Marginals of the start.
        keep: As in `infer`.
    """
    q, f, status = last.q, last.free_energy, last.status
    if status is Status.DIVERGED:
        f, q = (first(), start) if loop.best is None else loop.best.recover()
    wanted = keep == "best" or status is Status.INTERRUPTED
    # around a fixed point that was reached, differences are rounding
    margin = slack(f, np.dtype("float64")) if status is Status.CONVERGED else 0.0
    for seen in (loop.best, loop.earlier):
        if wanted and seen is not None and seen.free_energy < f - margin:
            best_f, best_q = seen.recover()
            if best_f < f - margin:
                f, q = best_f, best_q
                status = Status.OVERSHOT if status is Status.CONVERGED else status
    if status in (Status.MAX_ITERS, Status.BUDGET) and rule.may_oscillate:
        status = name_oscillation(loop, status)
    return Outcome(q, f, status)


def name_oscillation(loop: History, status: Status) -> Status:
    """Call it oscillating where q alternates between two states, and its swings don't decay."""
    swings = loop.make_trace().change[-SWINGS:]
    if len(swings) < SWINGS or not swings.min() >= max(STEADY * swings.max(), SMALLEST_SWING):
        return status
    return Status.OSCILLATING if loop.period2 <= REPEATED * swings[-1] else status
