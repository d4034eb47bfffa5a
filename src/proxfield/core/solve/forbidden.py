"""Fields with forbidden configurations: penalties, a feasible labelling, exact steps.

While q gives weight to a forbidden configuration, F is +inf and says nothing. So the rule
runs on a field where a forbidden configuration costs a finite penalty, which grows from
stage to stage; a labelling of finite energy is then found by rounding and, where that
fails, by search; and exact coordinate descent from it lowers the true F, which stays finite.

`search_forbidden` is what `solve_map` does instead.

Every stage counts as time of inference and keeps to the budget, the callback and Ctrl-C.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from proxfield.core.engines.plan import Order
from proxfield.core.engines.registry import program_for
from proxfield.core.lowering.lowered import Lowered, interaction_scale
from proxfield.core.solve.history import LOOK_SECONDS, Limits
from proxfield.core.solve.loop import Loop, warm_up
from proxfield.core.solve.rules.base import Outcome, Rule
from proxfield.core.solve.rules.portfolio import HALTED
from proxfield.core.solve.rules.schedules import Sweep
from proxfield.core.solve.search import tuned
from proxfield.core.solve.search.labelling import LabellingSearch
from proxfield.core.solve.session import Session
from proxfield.core.terms.base import Doubles, Floats, Ints
from proxfield.result import Status, one_hot

FIRST_PENALTY = 2.0
LAST_PENALTY = 64.0
STAGE_ITERATIONS = 100
ROUND_SWEEPS = 50
"""Maximum number of greedy sweeps of a rounding."""
RESTARTS = 20
ORDERS = 8
"""Sweep orders tried from a feasible labelling; the best bound is kept."""
ORDER_SWEEPS = 50
"""Maximum number of sweeps in each order but the first."""
SEARCH_SECONDS = 5.0
"""Maximum time of the search where there is no budget."""
GRACE_SECONDS = 0.005
"""Time of the search where nothing is left of the budget."""
ROUNDING_PENALTY = 1e6
"""Penalty for rounding: no saving elsewhere makes up for a violation."""
LIMITS = (*HALTED, Status.MAX_ITERS, Status.BUDGET)


def solve_hard(session: Session, rule: Rule) -> Outcome:
    """Infer in a field whose tables hold +inf; see the module's text."""
    finder = Finder(session)
    stopped: Status | None = None
    proved = False
    try:
        stopped = penalize(session, rule, finder)
        if finder.labels is None and stopped not in HALTED:
            stopped, proved = finder.search(stopped)
    except KeyboardInterrupt:
        stopped = Status.INTERRUPTED
    if finder.labels is None:
        status = Status.INFEASIBLE if proved else Status.NO_FEASIBLE
        return Outcome(finder.q, np.inf, stopped if stopped in HALTED else status)
    stopped = stopped or session.spent
    outcome = descend_exactly(session, finder, stopped)
    if outcome.status in LIMITS:
        return outcome
    return rule.improve(session, outcome)


def penalize(session: Session, rule: Rule, finder: Finder) -> Status | None:
    """Iterate under growing penalties, rounding after each stage; why it stopped, if it did.

    Building the field of the first stage is part of the set-up, that of the others of the work.
    """
    loop = session.loop
    penalty, build_seconds = FIRST_PENALTY, 0.0
    while penalty <= LAST_PENALTY:
        if build_seconds > session.seconds_left:
            return Status.BUDGET
        begun = loop.now()
        with nullcontext() if penalty == FIRST_PENALTY else loop.clock():
            soft = session.with_energies(session.problem.lowered.soften(penalty))
            program = soft.program
        build_seconds = loop.now() - begun
        rule.prepare(soft.problem)
        with loop.clock():
            plan = rule.plan(soft.problem)
            state = program.start(finder.q)
        limits = session.limits.until(loop.iterations + STAGE_ITERATIONS)
        status = loop.run(program, plan, state, limits, visible=False)
        with loop.clock():
            finder.q = program.marginals(state)
            if not np.isfinite(finder.q).all():  # a rule that diverged left nothing
                finder.q = session.start
            finder.round(finder.q)
        if status in (Status.BUDGET, *HALTED):
            return status
        if session.spent is not None:
            return session.spent
        penalty *= 2.0
    return None


class Finder:
    """Looks for a labelling of finite energy, and keeps the best one found."""

    def __init__(self, session: Session) -> None:
        self.session, self.lowered = session, session.problem.lowered
        self.q = session.start
        self.labels: Ints | None = None
        self.energy = np.inf
        self.steep = program_for(self.lowered.soften(ROUNDING_PENALTY), session.kernels)
        self.steep.descend(self.q, 0)  # compile outside the clock
        begun = session.loop.now()
        self.take(self.steep.descend(self.q, 1))
        self.sweep_seconds = session.loop.now() - begun

    def round(self, q: Floats, spent: float = 0.0) -> bool:
        """Round marginals under a steep penalty, if there is time; is the result feasible?

        ``spent`` are seconds since the loop's clock was last read.
        """
        left = self.session.seconds_left - spent - self.sweep_seconds  # what follows a sweep
        sweeps = int(np.clip(left / max(self.sweep_seconds, 1e-9), 0, ROUND_SWEEPS))
        return sweeps > 0 and self.take(self.steep.descend(q, sweeps))

    def take(self, hot: Floats) -> bool:
        """Keep a labelling, given as marginals, if it is the best; is it feasible?"""
        labels = self.lowered.layout.best_labels(hot)
        energy = self.lowered.energy(labels)
        if energy < self.energy:
            self.labels, self.energy = labels, energy
        return bool(np.isfinite(energy))

    def search(self, stopped: Status | None) -> tuple[Status | None, bool]:
        """Repair random roundings; if none works, backtrack with propagation.

        Returns why the inference has to stop, if it does, and whether it is proved that no
        labelling is feasible.
        """
        rng = np.random.default_rng(self.session.problem.seed)
        layout = self.lowered.layout
        deadline = Deadline(self.session.loop, self.session.limits, self.q)
        if self.session.limits.budget is not None:
            deadline.longest = self.sweep_seconds
        with self.session.loop.clock():
            for _ in range(RESTARTS):
                if deadline.seconds - deadline.seconds_since() < 2 * self.sweep_seconds:
                    break
                noise = rng.gumbel(size=layout.size) + np.log(np.maximum(self.q, 1e-12))
                start = one_hot(layout.offsets, layout.best_labels(noise))
                if self.round(start, deadline.seconds_since()):
                    return stopped, False
                if deadline.over():
                    return deadline.status or stopped, False
            self.labels, proved = backtrack(self.lowered, self.q, deadline)
        return deadline.status or stopped, proved


class Deadline:
    """The limits of an inference, for work that isn't made of iterations."""

    def __init__(self, loop: Loop, limits: Limits, q: Doubles) -> None:
        self.loop, self.limits, self.q, self.now = loop, limits, q, loop.now
        self.begun, self.base = self.now(), loop.elapsed
        left = limits.seconds_left(loop.elapsed)
        self.seconds = SEARCH_SECONDS if limits.budget is None else max(GRACE_SECONDS, left)
        self.status: Status | None = None
        self.longest = self.looked = 0.0
        """Seconds of the longest step so far, as the next one must fit, and until the last look."""

    def seconds_since(self) -> float:
        """Seconds since the work began."""
        return self.now() - self.begun

    def over(self) -> bool:
        """Whether it is time to stop; calls the callback from time to time."""
        spent = self.seconds_since()
        if self.status is None and spent - self.looked > LOOK_SECONDS:
            self.looked = spent
            if self.loop.report(np.inf, self.q.copy, seconds=self.base + spent):
                self.status = Status.STOPPED
        if self.status is None and spent + self.longest >= self.seconds:
            self.status = None if self.limits.budget is None else Status.BUDGET
            return True
        return self.status is not None


def backtrack(lowered: Lowered, q: Floats, deadline: Deadline) -> tuple[Ints | None, bool]:
    """Depth-first search with arc consistency; smallest domain and likeliest label first.

    Returns a labelling or None, and whether it is proved that there is none: a search that runs out
    of places proves it.
    """
    layout = lowered.layout
    factors = [f for f in lowered.factors if f.hard]

    def propagate(keep: NDArray[np.bool_]) -> bool:
        """Prune until nothing more goes; whether each variable has a label left."""
        while True:
            begun = deadline.now()
            removed = int(sum(f.prune(layout, keep) for f in factors))
            deadline.longest = max(deadline.longest, deadline.now() - begun)
            possible = bool((layout.sum_by_variable(keep) > 0).all())
            if not removed or not possible or deadline.over():
                return possible

    stack = [np.ones(layout.size, dtype=bool)]
    while stack:
        if deadline.over():
            return None, False
        kept = stack.pop()
        if not propagate(kept):
            continue
        sizes = layout.sum_by_variable(kept)
        open_ = np.flatnonzero(sizes > 1)
        if len(open_) == 0:
            labels = np.asarray(np.flatnonzero(kept) - layout.offsets[:-1])
            if np.isfinite(lowered.energy(labels)):
                return labels, False
            continue
        i = int(open_[sizes[open_].argmin()])
        at = np.arange(layout.offsets[i], layout.offsets[i + 1])
        for entry in sorted(at[kept[at]], key=lambda e: q[e]):  # the last pushed is tried first
            child = kept.copy()
            child[at] = False
            child[entry] = True
            stack.append(child)
    return None, True


def descend_exactly(session: Session, finder: Finder, stopped: Status | None) -> Outcome:
    """Coordinate descent on the true F from a feasible labelling, in several orders.

    From a point of finite F each exact update keeps F finite: the label that was held
    stays possible. What the first variables gain in entropy the others lose, so the
    order matters and several are tried. At a limit there is time for one sweep, or for none.
    """
    program, loop, labels = session.program, session.loop, finder.labels
    assert labels is not None
    layout = session.problem.lowered.layout
    start = one_hot(layout.offsets, labels)
    natural = Order(np.arange(layout.n_vars))
    if stopped is not None:
        state = program.start(start)
        warm_up(program, natural, state, loop.trace)
        with loop.clock():
            left = max(0.0, session.seconds_left) + session.limits.overtime
            late = 2 * finder.sweep_seconds > left
            if stopped is Status.INTERRUPTED or late:
                return Outcome(start, finder.energy, stopped, labels)  # no entropy: F is E
            once = Loop(Limits(1, session.limits.tol), now=loop.now, costs=loop.costs)
            once.run(program, natural, state, first=finder.energy)
            return Outcome(program.marginals(state), once.last, stopped, labels)
    best = session.run_plan(Sweep(), natural, start)
    rng = np.random.default_rng(session.problem.seed)
    most = session.iterations_left  # sweeps in other orders; not in the trace
    try:
        for _ in range(1, ORDERS):
            if best.status in LIMITS or session.spent is not None or most <= 0:
                break
            order = Order(rng.permutation(layout.n_vars))
            budget = None if session.limits.budget is None else session.seconds_left
            limits = Limits(min(ORDER_SWEEPS, most), session.limits.tol, budget)
            tried = Loop(limits, now=loop.now, costs=loop.costs)
            with loop.clock():
                state = program.start(start)
                status = tried.run(program, order, state, first=finder.energy)
                q = program.marginals(state)
            most -= tried.iterations
            if tried.last < best.free_energy:
                best = Outcome(q, tried.last, status)
            elif status is Status.INTERRUPTED:
                best.status = status
    except KeyboardInterrupt:
        best.status = Status.INTERRUPTED
    best.labels = labels
    return best


def search_forbidden(session: Session) -> Outcome:
    """A labelling of low energy in a field whose tables hold +inf.

    A forbidden configuration costs a penalty that no change of a single variable outweighs. The
    search runs on that field, and the labelling of lowest true energy that it comes across is kept.
    Where a share of the limits found none that is feasible, repair and backtracking look for one,
    and the search goes on from there.
    """
    lowered = session.problem.lowered
    penalty = 1.0 + float(spreads(lowered).max(initial=0.0))  # no single change outweighs it
    soft = session.with_energies(lowered.soften(penalty))
    scale = interaction_scale(lowered.soften(0.0))
    first = soft.within(share_left(session, tuned.FIRST_SHARE))
    found = LabellingSearch(first, lowered, scale).run()
    if found.status not in HALTED and not np.isfinite(found.free_energy):
        try:
            finder = Finder(session.within(share_left(session, tuned.REPAIR_SHARE)))
            stopped, proved = finder.search(None)
        except KeyboardInterrupt:
            return replace(found, status=Status.INTERRUPTED)
        if proved:
            return replace(found, status=Status.INFEASIBLE)
        if finder.labels is not None:
            found = replace(found, labels=finder.labels, free_energy=lowered.energy(finder.labels))
        ended = stopped if stopped in HALTED else session.spent
        found = found if ended is None else replace(found, status=ended)
    if found.status in HALTED or session.spent is not None:
        return found
    assert found.labels is not None
    start = one_hot(lowered.layout.offsets, found.labels)
    later = LabellingSearch(soft.within(start=start), lowered, scale).run()
    return replace(found, status=later.status) if found.free_energy < later.free_energy else later


def spreads(lowered: Lowered) -> Doubles:
    """The largest change of finite energy that each variable can make.  # (n_vars,)"""
    n, offsets = lowered.layout.n_vars, lowered.layout.offsets[:-1]
    total = np.zeros(n)
    if n:
        most = np.where(np.isfinite(lowered.unary), lowered.unary, -np.inf)
        total += np.maximum.reduceat(most, offsets) - np.minimum.reduceat(lowered.unary, offsets)
    for term in (lowered.ising, lowered.potts):
        for end in () if term is None else term.edges.T:
            total += np.bincount(end, 2.0 * np.abs(term.weights), minlength=n)  # type: ignore[union-attr]
    for factor in lowered.factors:
        axes = tuple(range(1, factor.tables.ndim))
        finite = np.isfinite(factor.tables)
        most = np.where(finite, factor.tables, -np.inf).max(axis=axes)
        least = np.where(finite, factor.tables, np.inf).min(axis=axes)
        spread = np.where(np.isfinite(most), most - least, 0.0)[factor.index]
        for column in factor.scopes.T:
            total += np.bincount(column, spread, minlength=n)
    return total


def share_left(session: Session, share: float) -> Limits:
    """Limits with a share of what is left of a session's."""
    loop, limits = session.loop, session.limits
    if limits.budget is not None:
        return limits.until(seconds=loop.elapsed + share * max(0.0, session.seconds_left))
    return limits.until(loop.iterations + int(share * max(0, session.iterations_left)))
