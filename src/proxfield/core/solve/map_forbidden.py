"""MAP where configurations are forbidden: a search under penalties that keeps what is feasible.

A forbidden configuration costs a penalty that no change of a single variable outweighs. The search
runs on that field, and the labelling of lowest true energy that it comes across is kept. Where
half of the limits found none that is feasible, repair and backtracking look for one
(`core.solve.forbidden`), and the search goes on from there.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from proxfield.core.lowering.interactions import interaction_scale
from proxfield.core.lowering.lowered import Lowered
from proxfield.core.solve.forbidden import HALTED, Finder
from proxfield.core.solve.history import Limits
from proxfield.core.solve.problem import Outcome
from proxfield.core.solve.search.map_search import Search
from proxfield.core.solve.session import Session
from proxfield.result import Status, one_hot

FIRST_SHARE = 0.5
"""Share of the limits for the search before repair and backtracking."""
REPAIR_SHARE = 0.5
"""Share of what is left of the budget for these."""


def search_forbidden(session: Session) -> Outcome:
    """Search in a field whose tables hold +inf."""
    lowered = session.problem.lowered
    soft = softened(session)
    scale = interaction_scale(lowered.soften(0.0))
    first = Search(soft.within(share_left(session, FIRST_SHARE)), lowered, scale)
    found = first.run()
    if found.status in HALTED or np.isfinite(found.free_energy):
        if found.status in HALTED or session.spent is not None:
            return found
        return best_of(found, Search(started(soft, found), lowered, scale).run())
    try:
        finder = Finder(session.within(share_left(session, REPAIR_SHARE)))
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
    return best_of(found, Search(started(soft, found), lowered, scale).run())


def best_of(before: Outcome, after: Outcome) -> Outcome:
    """The later of two outcomes, with the better labelling."""
    if before.free_energy < after.free_energy:
        return replace(before, status=after.status)
    return after


def started(session: Session, found: Outcome) -> Session:
    """The session at a labelling."""
    assert found.labels is not None
    offsets = session.problem.lowered.layout.offsets
    return session.restarted(one_hot(offsets, found.labels).astype(np.float64, copy=False))


def softened(session: Session) -> Session:
    """The session of the field with penalties."""
    lowered = session.problem.lowered
    return session.with_energies(lowered.soften(single_penalty(lowered)))


def single_penalty(lowered: Lowered) -> float:
    """A penalty above every change of finite energy that one variable can make."""
    layout = lowered.layout
    n = layout.n_vars
    total = np.zeros(n)
    if n:
        most = np.where(np.isfinite(lowered.unary), lowered.unary, -np.inf)
        total += np.maximum.reduceat(most, layout.offsets[:-1])
        total -= np.minimum.reduceat(lowered.unary, layout.offsets[:-1])
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
    return 1.0 + float(total.max(initial=0.0))


def share_left(session: Session, share: float) -> Limits:
    """Limits with a share of what is left of a session's."""
    loop, limits = session.loop, session.limits
    if limits.budget is not None:
        return limits.until(seconds=loop.elapsed + share * max(0.0, session.seconds_left))
    return limits.until(loop.iterations + int(share * max(0, session.iterations_left)))
