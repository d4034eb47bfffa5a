"""Fields with forbidden configurations: penalties, a feasible labelling, exact steps.

While q gives weight to a forbidden configuration, F is +inf and says nothing. So the rule
runs on a field where a forbidden configuration costs a finite penalty, which grows from
stage to stage; a labelling of finite energy is then found by rounding and, where that
fails, by search; and exact coordinate descent from it lowers the true F, which stays finite.

`search_forbidden` is what `solve_map` does instead.

Every stage counts as time of inference and keeps to the budget, the callback and Ctrl-C.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from proxfield.core.engines import compile_program
from proxfield.core.engines.base import Program
from proxfield.core.engines.plan import Order
from proxfield.core.engines.registry import on_host
from proxfield.core.lowering.lowered import Lowered, interaction_scale
from proxfield.core.solve.curvature import Curvature
from proxfield.core.solve.history import Limits
from proxfield.core.solve.loop import Loop, warm_up
from proxfield.core.solve.pace import LOOK_SECONDS
from proxfield.core.solve.problem import Outcome, Problem
from proxfield.core.solve.rules.base import Rule
from proxfield.core.solve.rules.portfolio import HALTED
from proxfield.core.solve.rules.schedules import Sweep
from proxfield.core.solve.search import tuned
from proxfield.core.solve.search.labelling import LabellingSearch
from proxfield.core.solve.session import Session
from proxfield.core.terms.base import Floats, Ints
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
    loop, problem = session.loop, session.problem
    penalty, build_seconds = FIRST_PENALTY, 0.0
    while penalty <= LAST_PENALTY:
        if build_seconds > session.seconds_left:
            return Status.BUDGET
        begun = loop.now()
        with nullcontext() if penalty == FIRST_PENALTY else loop.clock():
            soft = problem.lowered.soften(penalty)
            program = session.compile(soft)
            seconds = problem.curvature.seconds
            curvature = Curvature(soft, None, on_host(session.kernels), seconds, loop.now)
        build_seconds = loop.now() - begun
        rule.prepare(Problem(soft, curvature, problem.seed))
        with loop.clock():
            plan = rule.plan(Problem(soft, curvature, problem.seed))
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


@dataclass
class Finder:
    """Looks for a labelling of finite energy, and keeps the best one found."""

    session: Session

    def __post_init__(self) -> None:
        lowered, kernels = self.session.problem.lowered, self.session.kernels
        self.lowered: Lowered = lowered
        self.q: NDArray[np.float64] = self.session.start
        self.labels: Ints | None = None
        self.energy = np.inf
        self.steep: Program = compile_program(lowered.soften(ROUNDING_PENALTY), kernels)
        self.steep.descend(self.q, 0)  # compile outside the clock
        now = self.session.loop.now
        begun = now()
        self.take(self.steep.descend(self.q, 1))
        self.sweep_seconds = now() - begun

    def round(self, q: Floats, spent: float = 0.0) -> bool:
        """Round under a steep penalty, if there is time; is the result feasible?

        Args:
            q: Marginals.
            spent: Seconds since the loop's clock was last read.
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

        Returns:
            Why the inference has to stop, if it does, and whether it is proved that no
            labelling is feasible.
        """
        rng = np.random.default_rng(self.session.problem.seed)
        layout = self.lowered.layout
        deadline = Deadline(self.session.loop, self.session.limits, self.q)
        if self.session.limits.budget is not None:
            deadline.longest = self.sweep_seconds
        with self.session.loop.clock():
            for _ in range(RESTARTS):
                if deadline.left() < 2 * self.sweep_seconds:
                    break
                noise = rng.gumbel(size=layout.size) + np.log(np.maximum(self.q, 1e-12))
                best = np.full(layout.n_vars, -np.inf)
                np.maximum.at(best, layout.owner, noise)
                start = (noise == best[layout.owner]).astype(np.float64)
                if self.round(start, deadline.seconds_since()):
                    return stopped, False
                if deadline.over():
                    return deadline.status or stopped, False
            self.labels, proved = backtrack(self.lowered, self.q, deadline)
        return deadline.status or stopped, proved


class Deadline:
    """The limits of an inference, for work that isn't made of iterations."""

    def __init__(self, loop: Loop, limits: Limits, q: NDArray[np.float64]) -> None:
        self.loop, self.limits, self.q, self.now = loop, limits, q, loop.now
        self.begun = self.looked = self.now()
        self.base = loop.elapsed
        self.seconds = SEARCH_SECONDS
        if limits.budget is not None:
            self.seconds = max(GRACE_SECONDS, limits.seconds_left(loop.elapsed))
        self.status: Status | None = None
        self.longest = 0.0
        """Duration of the longest step so far; the next one must fit."""

    @contextmanager
    def timing(self) -> Iterator[None]:
        """A step whose duration counts."""
        begun = self.now()
        yield
        self.longest = max(self.longest, self.now() - begun)

    def seconds_since(self) -> float:
        """Seconds since the work began."""
        return self.now() - self.begun

    def left(self) -> float:
        """Seconds until the end."""
        return self.seconds - self.seconds_since()

    def over(self) -> bool:
        """Whether it is time to stop; calls the callback from time to time."""
        now = self.now()
        if self.status is None and now - self.looked > LOOK_SECONDS:
            self.looked = now
            if self.loop.report(np.inf, self.q, seconds=self.base + now - self.begun):
                self.status = Status.STOPPED
        if self.status is None and now - self.begun + self.longest >= self.seconds:
            self.status = None if self.limits.budget is None else Status.BUDGET
            return True
        return self.status is not None


def backtrack(lowered: Lowered, q: Floats, deadline: Deadline) -> tuple[Ints | None, bool]:
    """Depth-first search with arc consistency; smallest domain and likeliest label first.

    Returns:
        A labelling or None, and whether it is proved that there is none: a search that runs out
        of places proves it.
    """
    layout = lowered.layout
    factors = [f for f in lowered.factors if f.hard]

    def prune(keep: NDArray[np.bool_]) -> int:
        with deadline.timing():
            return int(sum(f.prune(layout, keep) for f in factors))

    def propagate(keep: NDArray[np.bool_]) -> NDArray[np.bool_] | None:
        while prune(keep):
            if not bool((layout.sum_by_variable(keep) > 0).all()):
                return None
            if deadline.over():
                break
        return keep if bool((layout.sum_by_variable(keep) > 0).all()) else None

    stack = [np.ones(layout.size, dtype=bool)]
    while stack:
        if deadline.over():
            return None, False
        kept = propagate(stack.pop())
        if kept is None:
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
    start = one_hot(layout.offsets, labels).astype(np.float64)
    natural = Order(np.arange(layout.n_vars))
    if stopped is not None:
        state = program.start(start)
        warm_up(program, natural, state, loop.trace)
        with loop.clock():
            late = (
                2 * finder.sweep_seconds > max(0.0, session.seconds_left) + session.limits.overtime
            )
            if stopped is Status.INTERRUPTED or late:
                return Outcome(start, finder.energy, stopped, labels)  # no entropy: F is E
            once = loop.aside(Limits(1, session.limits.tol))
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
            other, made = in_order(session, order, start, finder.energy, min(ORDER_SWEEPS, most))
            most -= made
            if other.free_energy < best.free_energy:
                best = other
            elif other.status is Status.INTERRUPTED:
                best.status = other.status
    except KeyboardInterrupt:
        best.status = Status.INTERRUPTED
    best.labels = labels
    return best


def in_order(
    session: Session, order: Order, start: NDArray[np.float64], first: float, most: int
) -> tuple[Outcome, int]:
    """Where sweeps in some order lead, within the limits, and how many were made.

    Args:
        session: The inference; its trace doesn't show these sweeps.
        order: The order.
        start: Where to start.
        first: F there.
        most: Maximum number of sweeps.
    """
    left = None if session.limits.budget is None else session.seconds_left
    program, loop = session.program, session.loop.aside(Limits(most, session.limits.tol, left))
    with session.loop.clock():
        state = program.start(start)
        status = loop.run(program, order, state, first=first)
        return Outcome(program.marginals(state), loop.last, status), loop.iterations


# ---- solve_map ----


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
    if found.status in HALTED or np.isfinite(found.free_energy):
        if found.status in HALTED or session.spent is not None:
            return found
        return searched_on(soft, found, lowered, scale)
    try:
        finder = Finder(session.within(share_left(session, tuned.REPAIR_SHARE)))
        stopped, proved = finder.search(None)
    except KeyboardInterrupt:
        return replace(found, status=Status.INTERRUPTED)
    if proved:
        return replace(found, status=Status.INFEASIBLE)
    if finder.labels is not None:
        found = replace(found, labels=finder.labels, free_energy=lowered.energy(finder.labels))
    if stopped in HALTED:
        return replace(found, status=stopped)
    if session.spent is not None:
        return replace(found, status=session.spent)
    return searched_on(soft, found, lowered, scale)


def searched_on(soft: Session, found: Outcome, lowered: Lowered, scale: float) -> Outcome:
    """The better labelling after another search, which starts from one that was found."""
    assert found.labels is not None
    start = one_hot(lowered.layout.offsets, found.labels).astype(np.float64, copy=False)
    later = LabellingSearch(soft.restarted(start), lowered, scale).run()
    return replace(found, status=later.status) if found.free_energy < later.free_energy else later


def spreads(lowered: Lowered) -> NDArray[np.float64]:
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
