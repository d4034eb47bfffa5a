"""Fields with forbidden configurations: penalties, a feasible labelling, exact steps.

While q gives weight to a forbidden configuration, F is +inf and says nothing. So the rule
runs on a field where a forbidden configuration costs a finite penalty, which grows from
stage to stage; a labelling of finite energy is then found by rounding and, where that
fails, by search; and exact coordinate descent from it lowers the true F, which stays finite.
"""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

from proxfield.curvature import Curvature
from proxfield.kernels import compile_program
from proxfield.kernels.base import Order, Program
from proxfield.lowering import Lowered
from proxfield.result import Status, one_hot
from proxfield.rules import Rule
from proxfield.session import Outcome, Problem, Session
from proxfield.terms.base import Floats, Ints

FIRST_PENALTY = 2.0
LAST_PENALTY = 64.0
STAGE_ITERATIONS = 100
RESTARTS = 20
ORDERS = 8
"""Sweep orders tried from a feasible labelling; the best bound is kept."""
SEARCH_SECONDS = 5.0
STEEP = 1e6
"""Penalty for rounding: no saving elsewhere makes up for a violation."""


def solve_hard(session: Session, rule: Rule) -> Outcome:
    """Infer in a field whose tables hold +inf; see the module's text."""
    loop, lowered, seed = session.loop, session.problem.lowered, session.problem.seed
    steep = compile_program(lowered.soften(STEEP), session.kernels)
    q = session.start
    labels: Ints | None = None
    stopped: Status | None = None
    penalty = FIRST_PENALTY
    while penalty <= LAST_PENALTY and stopped is None:
        soft = lowered.soften(penalty)
        program = session.compile(soft)
        plan = rule.plan(Problem(soft, Curvature(soft, None, session.kernels), seed))
        state = program.start(q)
        status = loop.run(program, plan, state, limit=STAGE_ITERATIONS, visible=False)
        q = program.marginals(state)
        labels = better(lowered, labels, round_to_feasible(lowered, steep, q))
        if status in (Status.BUDGET, Status.INTERRUPTED, Status.STOPPED):
            stopped = status
        elif loop.iterations >= loop.max_iters:
            stopped = Status.MAX_ITERS
        penalty *= 2.0
    proved = False
    if labels is None and stopped is not Status.INTERRUPTED:
        labels, proved = search(lowered, steep, q, seed)
    if labels is None:
        status = Status.INFEASIBLE if proved else Status.NO_FEASIBLE
        return Outcome(q, np.inf, stopped if stopped is Status.INTERRUPTED else status)
    outcome = descend_exactly(session, labels, stopped)
    return rule.improve(session, outcome) if stopped is None else outcome


def better(lowered: Lowered, a: Ints | None, b: Ints | None) -> Ints | None:
    """The labelling of lower energy of two that may be missing."""
    if a is None or b is None:
        return b if a is None else a
    return min(a, b, key=lowered.energy)


def round_to_feasible(lowered: Lowered, steep: Program, q: Floats) -> Ints | None:
    """Round under a steep penalty; None if a violation is left."""
    hot = steep.descend(q, 50)
    labels = lowered.layout.best_labels(hot)
    return labels if np.isfinite(lowered.energy(labels)) else None


def search(lowered: Lowered, steep: Program, q: Floats, seed: int) -> tuple[Ints | None, bool]:
    """Repair random roundings; if none works, backtrack with propagation.

    Returns a labelling or None, and whether it is proved that there is none.
    """
    rng = np.random.default_rng(seed)
    layout = lowered.layout
    for _ in range(RESTARTS):
        noise = rng.gumbel(size=layout.size) + np.log(np.maximum(q, 1e-12))
        best = np.full(layout.n_vars, -np.inf)
        np.maximum.at(best, layout.owner, noise)
        start = (noise == best[layout.owner]).astype(np.float64)
        found = round_to_feasible(lowered, steep, start)
        if found is not None:
            return found, False
    return backtrack(lowered, q, time.monotonic() + SEARCH_SECONDS)


def backtrack(lowered: Lowered, q: Floats, deadline: float) -> tuple[Ints | None, bool]:
    """Depth-first search with arc consistency; smallest domain and likeliest label first.

    Returns as `search` does: a search that runs out of places proves that there is none.
    """
    layout = lowered.layout
    factors = [f for f in lowered.factors if f.hard]

    def propagate(keep: NDArray[np.bool_]) -> NDArray[np.bool_] | None:
        while sum(f.prune(layout, keep) for f in factors):
            pass
        return keep if bool((layout.sum_by_variable(keep) > 0).all()) else None

    stack = [np.ones(layout.size, dtype=bool)]
    while stack and time.monotonic() < deadline:
        kept = propagate(stack.pop())
        if kept is None:
            continue
        sizes = layout.sum_by_variable(kept)
        open_ = np.flatnonzero(sizes > 1)
        if len(open_) == 0:
            return np.asarray(np.flatnonzero(kept) - layout.offsets[:-1]), False
        i = int(open_[sizes[open_].argmin()])
        at = np.arange(layout.offsets[i], layout.offsets[i + 1])
        for entry in sorted(at[kept[at]], key=lambda e: q[e]):  # the last pushed is tried first
            child = kept.copy()
            child[at] = False
            child[entry] = True
            stack.append(child)
    return None, not stack


def descend_exactly(session: Session, labels: Ints, stopped: Status | None) -> Outcome:
    """Coordinate descent on the true F from a feasible labelling, in several orders.

    From a point of finite F each exact update keeps F finite: the label that was held
    stays possible. What the first variables gain in entropy the others lose, so the
    order matters and several are tried.
    """
    program, loop = session.program, session.loop
    layout = session.problem.lowered.layout
    start = one_hot(layout.offsets, labels)
    rng = np.random.default_rng(session.problem.seed)
    best: Outcome | None = None
    for attempt in range(ORDERS):
        order = np.arange(layout.n_vars) if attempt == 0 else rng.permutation(layout.n_vars)
        state = program.start(start)
        if attempt == 0 and stopped is None:
            status = loop.run(program, Order(order), state)
        else:  # further orders, and a last polish at a limit, aren't iterations of the rule
            rows = program.advance(state, Order(order), 50, loop.tol, True)
            status = Status.CONVERGED if rows.change[-1] <= loop.tol else Status.MAX_ITERS
        f = program.free_energy(state)
        if best is None or f < best.free_energy:
            best = Outcome(program.marginals(state), f, status, labels)
        if stopped is not None:
            best.status = stopped
            break
    assert best is not None
    return best
