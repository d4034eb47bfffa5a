"""What a rule works with: the problem, the loop, limits, the start, and ways to run plans."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from proxfield.core.common.logs import log
from proxfield.core.common.records import Record
from proxfield.core.engines.base import Program, State, slack
from proxfield.core.engines.plan import Chains, Explored, Plan
from proxfield.core.engines.registry import on_host, program_for
from proxfield.core.lowering.lowered import Lowered
from proxfield.core.solve.curvature import Curvature
from proxfield.core.solve.history import SHORT_EVALUATION, Limits
from proxfield.core.solve.loop import Loop
from proxfield.core.solve.rules.base import Outcome, Problem, Rule
from proxfield.core.solve.stationarity import (
    MAX_PRODUCTS,
    NOISE_SCALE,
    OFFSET,
    Judgement,
    Verdict,
    judge,
    proves_minimum,
    shifted,
)
from proxfield.core.terms.base import Doubles, Floats, offers
from proxfield.result import Status

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
    start: Doubles  # marginals of the lowered field
    kernels: str = "cpu"
    dtype: str = "float64"
    threads: int | None = None
    keep: str = "last"
    limited: bool = True
    """Whether the user limited iterations or seconds."""
    made: Program | None = None
    memory: Record = field(default_factory=dict)
    """Where a rule of several stages stands, for checkpoints: numbers by name."""
    watch: Callable[[Doubles, float], None] | None = None
    """Sees the marginals that each chain ended with, and their F."""

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
        if self.iterations_left <= 0:
            return Status.MAX_ITERS
        return Status.BUDGET if self.seconds_left <= 0 else None

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

    def slack(self, f: float) -> float:
        """How much F may rise by rounding alone."""
        return slack(f, self.program.dtype)

    def measure(self, q: Doubles) -> float:
        """F of some marginals, timed, outside the clock."""
        return self.loop.measure(self.program, self.program.start(q))

    def evaluate(self, q: Floats) -> float:
        """F of some marginals."""
        return self.program.free_energy(self.program.start(q))

    def explore(self, chains: Chains, threads: int | None = None) -> Explored:
        """Run independent cooling chains, each polished into a local minimum of F."""
        ended = self.program.explore(chains, threads)
        if self.watch is not None:
            for q, f in zip(ended.q, ended.free_energy, strict=True):
                self.watch(q, f)
        return ended

    def best_seen(self, rule: Rule, state: State, status: Status) -> Outcome:
        """The outcome of iterations that ended so: the best state seen."""
        last = Outcome(self.program.marginals(state), self.loop.last, status)
        first = partial(self.evaluate, self.start)
        return conclude(self.loop, rule, last, first, self.start, "best")

    def within(self, limits: Limits | None = None, start: Doubles | None = None) -> Session:
        """The same session within other limits, or from another start."""
        limits, start = limits or self.limits, self.start if start is None else start
        return replace(self, limits=limits, start=start, made=self.program, memory={})

    def with_energies(self, lowered: Lowered) -> Session:
        """The same session of a field with the same variables and other energies."""
        problem, host = self.problem, on_host(self.kernels)
        curvature = Curvature(lowered, None, host, problem.curvature.seconds, self.loop.now)
        problem = replace(problem, lowered=lowered, curvature=curvature)
        return replace(self, problem=problem, made=None)

    # ---- iterations; an inference over several processes does some of this in its own way ----

    def begin(self, start: Doubles) -> State:
        """The state that moves, at some marginals."""
        return self.program.start(start)

    def own(self, plan: Plan) -> Plan:
        """The plan of this process's variables."""
        return plan

    def looks_back(self, rule: Rule) -> bool:
        """Whether the state of lowest F is remembered, since the last one may be worse."""
        return self.keep == "best" or not rule.never_rises

    def nudged(self, q: Floats, attempt: int = 0) -> Doubles:
        """Marginals shifted by a little seeded noise, off the saddles that symmetries make."""
        rng = np.random.default_rng([self.problem.seed + attempt, OFFSET])
        return shifted(self.problem.lowered.layout, q, NOISE_SCALE * rng.normal(size=len(q)))

    def iterate(
        self,
        plan: Plan,
        state: State,
        limits: Limits,
        rule: Rule | None = None,
        first: float | None = None,
    ) -> Status:
        """Iterate a state, and keep the best one if the plan's rule needs it; see `Loop.run`."""
        plan, best = self.own(plan), rule is not None and self.looks_back(rule)
        trace = self.loop.trace or self.keep == "best"
        return self.loop.run(
            self.program, plan, state, limits, keep_best=best, first=first, trace=trace
        )

    def run_plan(
        self, rule: Rule, plan: Plan, start: Doubles, *, thorough: bool = False
    ) -> Outcome:
        """Iterate a rule's plan to the limits; a fixed point is tested for being a saddle.

        A thorough test goes on until it is decided, unless the budget ends first.
        """
        program, loop = self.program, self.loop
        state = self.begin(start)
        loop.begin_stage()
        status = self.iterate(plan, state, self.limits, rule, loop.known_at(start))
        last = Outcome(program.marginals(state), loop.last, status)
        outcome = conclude(loop, rule, last, partial(self.evaluate, start), start, self.keep)
        loop.tell(outcome.q, outcome.free_energy)
        with loop.clock():
            if outcome.status is Status.OVERSHOT:
                state = program.start(outcome.q)
                if self.stands(state):  # the same fixed point, or another
                    outcome.status = Status.CONVERGED
            at_limit = thorough and outcome.status in (Status.MAX_ITERS, Status.BUDGET)
            if at_limit:  # a run without time may still stand on the saddle that it started from
                changes = loop.pieces[-1].change[-1:]
                at_limit = bool((changes <= self.limits.tol).all()) and self.stands(state)
            if outcome.status is Status.CONVERGED or at_limit:
                outcome.judgement = self.judge(state, thorough)
                if outcome.judgement.verdict is Verdict.SADDLE:
                    outcome.status = Status.SADDLE
        label, f, n = outcome.status.label, outcome.free_energy, loop.iterations
        log.debug("%s: %s with F = %.9g, iteration %d", rule.name, label, f, n)
        return outcome

    def stands(self, state: State) -> bool:
        """Whether this is known to be a fixed point; False if there is no time for the test."""
        loop, tol = self.loop, self.limits.tol
        return loop.may_test(self.limits) and bool(loop.fixed_points(self.program, state, tol)[0])

    def judge(self, state: State, thorough: bool) -> Judgement:
        """Whether a fixed point is a minimum of F; see `run_plan`."""
        lowered, loop = self.problem.lowered, self.loop
        if all(offers(t, "spectrum") for t in lowered.terms):
            # no eigenvalue of S exceeds 1/2, and none of the terms' is below these
            lowest = sum(t.spectrum(lowered.layout)[0] for t in lowered.terms)
            if lowest > -2.0:
                return Judgement(Verdict.MINIMUM)
        late = self.late()
        on_host = self.kernels in HOST_KERNELS
        if on_host and proves_minimum(lowered, self.program.marginals(state), late):
            return Judgement(Verdict.MINIMUM)
        long = self.limits.budget is not None and loop.costs.evaluation > SHORT_EVALUATION
        if long and late(FIRST_PRODUCTS * loop.costs.test()):
            return Judgement(Verdict.UNDECIDED)
        products = int(np.clip(2 * loop.iterations, FEWEST_PRODUCTS, MAX_PRODUCTS))
        quick = 2 * FEWEST_PRODUCTS * loop.costs.evaluation < QUICK_TEST_SECONDS
        most = THOROUGH_FACTOR * MAX_PRODUCTS if thorough else products
        least, seed = FEWEST_PRODUCTS if quick else 0, self.problem.seed  # also if it is busy here
        return judge(
            self.program, state, seed=seed, max_products=most, min_products=least, late=late
        )

    def late(self) -> Callable[..., bool]:
        """Tells, from now on, whether tests of the result have to end, so many seconds ahead."""
        if self.limits.budget is None:
            return lambda ahead=0.0: False
        now = self.loop.now
        deadline = now() + max(0.0, self.seconds_left) + self.limits.overtime
        return lambda ahead=0.0: now() + ahead > deadline

    def off_center(self, start: Doubles) -> Doubles:
        """A start off the center, if the budget is too short to find out that it is a saddle.

        Part of the set-up, not of the clock.
        """
        loop, budget, layout = self.loop, self.limits.budget, self.problem.lowered.layout
        if budget is None or loop.costs.evaluation <= SHORT_EVALUATION or loop.iterations > 0:
            return start
        if SADDLE_TESTS * loop.costs.test() < budget:
            return start
        alike = layout.common is not None
        uniform = start[:1] if alike else (1.0 / layout.cardinalities)[layout.owner]
        return self.nudged(start) if (start == uniform).all() else start

    def settle(self, rule: Rule, plan: Plan, start: Doubles) -> Outcome:
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
            loop.keep(found.free_energy, found.lower)
            loop.tell(found.lower, found.free_energy)
            again = self.nudged(found.lower, attempt)
            outcome = self.run_plan(rule, plan, again, thorough=True)
            f = outcome.free_energy
            if found.free_energy < f - self.slack(f):  # a limit came too soon
                outcome = replace(outcome, q=found.lower, free_energy=found.free_energy)
                outcome.judgement = None
        found = outcome.judgement
        proved = found is not None and found.verdict is Verdict.MINIMUM
        if outcome.status in (Status.CONVERGED, Status.SADDLE) and not proved:
            outcome.status = self.limit
        return outcome


def conclude(
    loop: Loop, rule: Rule, last: Outcome, first: Callable[[], float], start: Doubles, keep: str
) -> Outcome:
    """What to hand back after a plan of a rule has run in a loop: the best state, if so asked.

    ``last`` is the last state; ``first`` gives F of the start; ``keep`` is as in `infer`.
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
        # q alternates between two states, and its swings don't decay
        swings = loop.make_trace().change[-SWINGS:]
        if len(swings) == SWINGS and swings.min() >= max(STEADY * swings.max(), SMALLEST_SWING):
            repeats = loop.period2 <= REPEATED * swings[-1]
            status = Status.OSCILLATING if repeats else status
    return Outcome(q, f, status)
