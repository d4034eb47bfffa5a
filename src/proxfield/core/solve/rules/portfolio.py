"""Rules that run others: from several starts, one after another, or at falling temperatures."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from proxfield.core.common.interrupts import finish_first
from proxfield.core.engines.plan import Chains, Plan, prefers_search
from proxfield.core.lowering.lowered import Lowered
from proxfield.core.solve.rules.backtracking import Backtracking
from proxfield.core.solve.rules.base import Outcome, Problem, Rule
from proxfield.core.solve.rules.parallel import Fixed
from proxfield.core.solve.rules.registry import make_rule
from proxfield.core.solve.rules.schedules import Sweep
from proxfield.core.solve.search import tuned
from proxfield.core.solve.session import Session
from proxfield.core.solve.stationarity import Verdict
from proxfield.core.terms.base import Doubles, Layout, offers
from proxfield.errors import InputError, UnsupportedError
from proxfield.result import Status

HALTED = (Status.INTERRUPTED, Status.STOPPED)


def perturbed(q: Doubles, layout: Layout, noise: float, seed: int) -> Doubles:
    """Marginals with their log-odds shaken by Gaussian noise.  # (size,)"""
    shaken = np.log(np.maximum(q, 1e-12))
    shaken = shaken + noise * np.random.default_rng(seed).normal(size=layout.size)
    top = np.maximum.reduceat(shaken, layout.offsets[:-1])
    return layout.normalize(np.exp(shaken - top[layout.owner]))


def best_of(session: Session, members: list[tuple[str, Rule, Doubles]]) -> Outcome:
    """Run members one after another, each with an equal share of what is left; keep the best."""
    loop, limits = session.loop, session.limits
    best: Outcome | None = None
    winner = ""
    unsupported: UnsupportedError | None = None
    if limits.budget is not None:
        loop.tell(session.start, session.measure(session.start))
        members = [(label, rule, session.off_center(start)) for label, rule, start in members]
    for k, (label, rule, start) in enumerate(members):
        if best is not None and session.spent is not None:
            break
        left = len(members) - k
        loop.member = label
        end = loop.iterations + max(1, session.iterations_left // left)
        until = loop.elapsed + max(0.0, session.seconds_left) / left
        try:
            outcome = rule.solve(session.within(limits.until(end, until), start))
        except UnsupportedError as error:  # this field has no such member; others may do
            unsupported = error
            continue
        if best is None or outcome.free_energy < best.free_energy:
            best, winner = outcome, label
            loop.keep(outcome.free_energy, outcome.q)
        if outcome.status in HALTED:
            best.status = outcome.status
            break
    if best is None:
        raise unsupported or UnsupportedError("no member to run")
    loop.member = winner
    best = end_at_minimum(session, best)
    loop.note(0, loop.elapsed, best.free_energy)  # the trace ends where the result is
    return best


def polish(session: Session, q: Doubles) -> Outcome:
    """Descend to a local minimum of F, by sweeps or certified steps; see `Session.settle`."""
    rule: Rule = Backtracking() if prefers_search(session.problem.lowered) else Fixed()
    if session.program.sweepable:
        rule = Fixed(step="certified-local") if session.program.parallel else Sweep()
    rule.prepare(session.problem)
    with session.loop.clock():
        plan = rule.plan(session.problem)
    return session.settle(rule, plan, q)


def end_at_minimum(session: Session, outcome: Outcome) -> Outcome:
    """From the best of several runs on to a local minimum, as far as the limits allow."""
    loop, found = session.loop, outcome.judgement
    proved = found is not None and found.verdict is Verdict.MINIMUM
    if outcome.status in HALTED or (outcome.status is Status.CONVERGED and proved):
        return outcome
    on_saddle = outcome.status is Status.SADDLE
    if found is not None and found.lower is not None and found.free_energy < outcome.free_energy:
        f = found.free_energy
        outcome = replace(outcome, q=found.lower, free_energy=f, status=Status.SADDLE)
    if session.spent is not None:
        with session.loop.clock():
            state = session.program.start(outcome.q)
            if not on_saddle and session.stands(state):  # perhaps on one that isn't known
                found = session.judge(state, thorough=False)
                if found.lower is not None:
                    outcome = replace(outcome, q=found.lower, free_energy=found.free_energy)
        return replace(outcome, status=session.spent)
    start = session.nudged(outcome.q) if on_saddle else outcome.q
    loop.tell(outcome.q, outcome.free_energy)
    try:
        end = better_of(session, outcome, polish(session, start))
    except UnsupportedError:  # a term without curvature: no certified step to go on with
        end = replace(outcome, status=Status.MAX_ITERS)
    return replace(end, labels=outcome.labels)


def better_of(session: Session, before: Outcome, after: Outcome) -> Outcome:
    """The later of two outcomes, but never marginals of higher F (a limit may come too soon)."""
    f = after.free_energy
    if not before.free_energy < f - session.slack(f):
        return after
    ended = after.status in (Status.CONVERGED, Status.SADDLE)
    status = session.limit if ended else after.status
    return replace(after, q=before.q, free_energy=before.free_energy, status=status, judgement=None)


def visits(lowered: Lowered) -> int:
    """Entries and edge ends that a sweep visits."""
    known = [t for t in lowered.terms if offers(t, "neighbors")]
    return lowered.layout.size + 2 * sum(len(t.neighbors(lowered.layout)) for t in known)


def large_sweep_seconds(lowered: Lowered) -> float:
    """The duration of a sweep on one thread, estimated for large fields; 0 for others."""
    return tuned.VISIT_SECONDS * visits(lowered) if lowered.layout.size > tuned.LARGE_SIZE else 0.0


class RunsOthers(Rule):
    """Runs other rules; the best of them goes on to a minimum."""

    def improve(self, session: Session, outcome: Outcome) -> Outcome:
        return end_at_minimum(session, outcome)


@dataclass(frozen=True)
class Restarts(RunsOthers):
    """One rule from several starts: the given one, then seeded perturbations of it.

    Sweeps from many starts advance together in one compiled call, over all threads.

    Args:
        inner: The rule to restart.
        count: How many starts.
        noise: Standard deviation of the noise on the start's log-odds.
    """

    name = "restarts"
    summary = "one rule from several perturbed starts; the best F is kept"
    inner: str = "sweep"
    count: int = 8
    noise: float = 1.0

    def check(self) -> None:
        self._count("count")
        self._number("noise", 0.0, np.inf, closed=False)
        make_rule(self.inner)

    @property
    def suits_dense_fields(self) -> bool:
        return make_rule(self.inner).suits_dense_fields

    def plan(self, problem: Problem) -> Plan:
        return make_rule(self.inner).plan(problem)

    def _starts(self, session: Session, count: int) -> list[Doubles]:
        layout, seed, start = session.problem.lowered.layout, session.problem.seed, session.start
        noisy = (perturbed(start, layout, self.noise, seed + k) for k in range(1, count))
        return [start, *noisy]

    def solve(self, session: Session) -> Outcome:
        if self.inner == "sweep" and session.program.sweepable:
            return self._together(session)
        inner = make_rule(self.inner)
        count = max(1, min(self.count, session.iterations_left))
        starts = self._starts(session, count)
        return best_of(session, [(f"start {k}", inner, q) for k, q in enumerate(starts)])

    def _together(self, session: Session) -> Outcome:
        """All starts in one batch, a few sweeps at a time; then polish the best."""
        loop, limits = session.loop, session.limits
        session.program.warm_up_chains(session.start)
        if limits.budget is not None:
            loop.tell(session.start, session.measure(session.start))
        with loop.clock():
            count = min(self.count, limits.max_iters // 2)
            if limits.budget is not None:  # starts and sweeps that half of it has time for
                sweep = large_sweep_seconds(session.problem.lowered)
                each = 4 * max(tuned.EVALUATIONS_PER_SWEEP * loop.costs.evaluation, sweep, 1e-9)
                count = min(count, int(session.seconds_left / each))
        if count < 2:
            return polish(session, session.nudged(session.start))
        with loop.clock():
            q = np.stack(self._starts(session, count))
        each = max(1, min(20, limits.max_iters // (2 * len(q))))
        done, step = 0, 1
        while done < each:
            begun, base = loop.now(), loop.elapsed
            with finish_first():
                ended = session.explore(Chains.make(q, polish=step, tol=limits.tol))
                spent, q = loop.now() - begun, ended.q
                done += step
                winner = int(ended.free_energy.argmin())
                loop.member = f"start {winner}"
                f = float(ended.free_energy[winner])
                loop.note(int(ended.sweeps.sum()), base + spent, f)
                loop.best = None
                loop.remember(f, q[winner])
            if loop.report(f, q[winner].copy):
                return Outcome(q[winner], f, Status.STOPPED)
            if limits.budget is not None:  # half of the budget is for the polish
                fits = (limits.budget / 2 - loop.elapsed) * step / max(spent, 1e-9)
                if fits < 1:
                    break
                step = max(1, min(2 * step, int(fits)))
            step = min(step if limits.budget is not None else each, max(1, each - done))
        return polish(session, q[winner])


@dataclass(frozen=True)
class Portfolio(RunsOthers):
    """Several rules one after another, each with an equal share; the best F is kept.

    Args:
        rules: Names of rules, separated by commas.
    """

    name = "portfolio"
    summary = "several rules in one budget; the best F is kept"
    rules: str = "anneal,momentum,adam,sweep"

    def _members(self) -> list[Rule]:
        self._need("rules", isinstance(self.rules, str), "names separated by commas")
        names = [name.strip() for name in self.rules.split(",") if name.strip()]
        if not names:
            raise InputError("portfolio: rules is empty, expected names separated by commas")
        return [make_rule(name) for name in names]

    def check(self) -> None:
        self._members()

    def plan(self, problem: Problem) -> Plan:
        return self._members()[0].plan(problem)

    def solve(self, session: Session) -> Outcome:
        return best_of(session, [(r.name, r, session.start) for r in self._members()])
