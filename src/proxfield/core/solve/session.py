"""What a rule works with: the problem, the loop, limits, the start, and ways to run plans."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from proxfield.core.common.logs import log
from proxfield.core.engines import compile_program
from proxfield.core.engines.base import Program, State, slack
from proxfield.core.engines.plan import Chains, Explored, Plan
from proxfield.core.engines.registry import on_host, program_for
from proxfield.core.lowering.lowered import Lowered
from proxfield.core.solve.curvature import Curvature
from proxfield.core.solve.history import History, Limits, Seen
from proxfield.core.solve.loop import Loop
from proxfield.core.solve.pace import SHORT_EVALUATION
from proxfield.core.solve.problem import Judgement, Outcome, Problem, Verdict
from proxfield.core.solve.stationarity import MAX_PRODUCTS, judge, nudged, proves_minimum
from proxfield.core.terms.base import Floats, Layout, offers
from proxfield.result import Status

if TYPE_CHECKING:
    from proxfield.core.solve.rules.base import Rule

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
    limits: Limits
    start: NDArray[np.float64]  # marginals of the lowered field
    kernels: str = "cpu"
    dtype: str = "float64"
    threads: int | None = None
    keep: str = "last"
    limited: bool = True
    """Whether the user limited iterations or seconds."""
    made: Program | None = None
    """`program`, once it has been asked for."""
    memory: dict[str, Any] = field(default_factory=dict)
    """Where a rule of several stages stands, for checkpoints: numbers by name."""

    @property
    def program(self) -> Program:
        """The field, packed for the requested kernels."""
        if self.made is None:
            lowered = self.problem.lowered
            self.made = program_for(lowered, self.kernels, self.dtype, self.threads)
        return self.made

    @property
    def spent(self) -> Status | None:
        """The limit that has been reached, if one has."""
        return self.loop.spent(self.limits)

    @property
    def seconds_left(self) -> float:
        """What is left of the budget; infinite without one."""
        return self.limits.seconds_left(self.loop.elapsed)

    @property
    def iterations_left(self) -> int:
        """Iterations until the limit."""
        return self.limits.max_iters - self.loop.iterations

    @property
    def limit(self) -> Status:
        """The status of an end that isn't known to be a minimum: more of this would help."""
        return Status.MAX_ITERS if self.limits.budget is None else Status.BUDGET

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
        return self.nudged(q, self.problem.seed)

    def best_seen(self, rule: Rule, state: State, status: Status) -> Outcome:
        """The outcome of iterations that ended so: the best state seen."""
        loop, program = self.loop, self.program
        last = Outcome(program.marginals(state), loop.last, status)
        first = partial(program.free_energy, program.start(self.start))
        return conclude(loop, rule, last, first, self.start, "best")

    def restarted(self, start: NDArray[np.float64], limits: Limits | None = None) -> Session:
        """The same session from another start, perhaps within narrower limits."""
        return self.within(self.limits if limits is None else limits, start)

    def within(self, limits: Limits, start: NDArray[np.float64] | None = None) -> Session:
        """The same session within other limits."""
        start = self.start if start is None else start
        return replace(self, limits=limits, start=start, made=self.program, memory={})

    def with_energies(self, lowered: Lowered) -> Session:
        """The same session of a field with the same variables and other energies."""
        problem = self.problem
        host, seconds = on_host(self.kernels), problem.curvature.seconds
        curvature = Curvature(lowered, None, host, seconds, self.loop.now)
        return replace(
            self, problem=replace(problem, lowered=lowered, curvature=curvature), made=None
        )

    # ---- iterations; an inference over several processes does some of this in its own way ----

    def begin(self, start: NDArray[np.float64]) -> State:
        """The state that moves, at some marginals."""
        return self.program.start(start)

    def own(self, plan: Plan) -> Plan:
        """The plan of this process's variables."""
        return plan

    def looks_back(self, rule: Rule) -> bool:
        """Whether the state of lowest F is remembered, since the last one may be worse."""
        return self.keep == "best" or not rule.never_rises

    def nudged(self, q: Floats, seed: int) -> NDArray[np.float64]:
        """Marginals shifted by a little seeded noise."""
        return nudged(self.problem.lowered.layout, q, seed)

    def iterate(
        self,
        plan: Plan,
        state: State,
        limits: Limits,
        *,
        keep_best: bool = False,
        first: float | None = None,
    ) -> Status:
        """Iterate a state; arguments as of `Loop.run`."""
        trace = self.loop.trace or self.keep == "best"
        return self.loop.run(
            self.program,
            self.own(plan),
            state,
            limits,
            keep_best=keep_best,
            first=first,
            trace=trace,
        )

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
        state = self.begin(start)
        loop.begin_stage()
        status = self.iterate(
            plan,
            state,
            self.limits,
            keep_best=self.looks_back(rule),
            first=loop.known_at(start),
        )

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
            at_limit = thorough and at_limit and loop.standing(self.limits.tol)
            if at_limit:  # a run without time may still stand on the saddle that it started from
                at_limit = self._stands(state)
            if outcome.status is Status.CONVERGED or at_limit:
                outcome.judgement = self.judge(state, thorough)
                if outcome.judgement.verdict is SADDLE:
                    outcome.status = Status.SADDLE
        label, f, n = outcome.status.label, outcome.free_energy, loop.iterations
        log.debug("%s: %s with F = %.9g, iteration %d", rule.name, label, f, n)
        return outcome

    def _stands(self, state: State) -> bool:
        """Whether this is known to be a fixed point; False if there is no time for the test."""
        if not self.loop.may_test(self.limits):
            return False
        return self.loop.is_fixed_point(self.program, state, self.limits.tol)

    def judge(self, state: State, thorough: bool) -> Judgement:
        """Whether a fixed point is a minimum of F.

        Args:
            state: The fixed point.
            thorough: Test until it is decided, unless the budget ends first.
        """
        lowered, loop = self.problem.lowered, self.loop
        if all(offers(t, "spectrum") for t in lowered.terms):
            # no eigenvalue of S exceeds 1/2, and none of the terms' is below these
            lowest = sum(t.spectrum(lowered.layout)[0] for t in lowered.terms)
            if lowest > -2.0:
                return Judgement(MINIMUM)
        deadline, now = self.deadline(), loop.now

        def late() -> bool:
            return now() > deadline

        host = self.kernels in HOST_KERNELS
        if host and proves_minimum(lowered, self.program.marginals(state), late):
            return Judgement(MINIMUM)
        if self.limits.budget is not None:
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

    def deadline(self) -> float:
        """When tests of the result have to end, as the clock counts."""
        if self.limits.budget is None:
            return np.inf
        return self.loop.now() + max(0.0, self.seconds_left) + self.limits.overtime

    def step_off(self, outcome: Outcome) -> Outcome:
        """If an outcome at a limit stands on a saddle, the point of lower F beside it."""
        with self.loop.clock():
            state = self.program.start(outcome.q)
            if self._stands(state):
                found = self.judge(state, thorough=False)
                if found.lower is not None:
                    return replace(outcome, q=found.lower, free_energy=found.free_energy)
        return outcome

    def off_center(self, start: NDArray[np.float64]) -> NDArray[np.float64]:
        """A start off the center, if the budget is too short to find out that it is a saddle.

        Part of the set-up, not of the clock.
        """
        loop, layout = self.loop, self.problem.lowered.layout
        budget = self.limits.budget
        long = budget is not None and loop.costs.evaluation > SHORT_EVALUATION
        if not long or loop.iterations > 0 or not is_uniform(layout, start):
            return start
        if SADDLE_TESTS * loop.costs.test() < (budget or 0.0):
            return start
        return self.nudged(start, self.problem.seed)

    def settle(self, rule: Rule, plan: Plan, start: NDArray[np.float64]) -> Outcome:
        """Iterate to a local minimum: like `run_plan`, but a saddle is left and F goes on falling.

        CONVERGED then means a minimum, as far as the second-order test can tell; where a limit
        leaves no time to tell, the status is that limit.
        """
        loop = self.loop
        outcome = self.run_plan(rule, plan, self.off_center(start), thorough=True)
        for attempt in range(MAX_ESCAPES):
            found = outcome.judgement
            if outcome.status is not Status.SADDLE or found is None or found.lower is None:
                break
            if self.spent is not None:
                return Outcome(found.lower, found.free_energy, self.spent)
            loop.set_aside(Seen.at(found.free_energy, found.lower))
            loop.tell(found.lower, found.free_energy)
            again = self.nudged(found.lower, self.problem.seed + attempt)
            outcome = self.run_plan(rule, plan, again, thorough=True)
            f = outcome.free_energy
            if found.free_energy < f - self.slack(f):  # a limit came too soon
                outcome = replace(outcome, q=found.lower, free_energy=found.free_energy)
                outcome.judgement = None
        ended = outcome.status in (Status.CONVERGED, Status.SADDLE)
        if ended and (outcome.judgement is None or outcome.judgement.verdict is not MINIMUM):
            outcome.status = self.limit
        return outcome


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
