"""How rules that promise a local minimum end: a monotone descent that leaves saddles."""

from __future__ import annotations

from dataclasses import replace

from proxfield.core.engines.plan import prefers_search
from proxfield.core.solve.rules.backtracking import Backtracking
from proxfield.core.solve.rules.base import Rule
from proxfield.core.solve.rules.parallel import Fixed
from proxfield.core.solve.rules.schedules import Sweep
from proxfield.core.solve.rules.session import Outcome, Session, Verdict
from proxfield.core.terms.base import Doubles
from proxfield.errors import UnsupportedError
from proxfield.result import Status


def descent(session: Session) -> Rule:
    """The monotone rule that suits a field: sweeps, or certified steps of all variables."""
    if not session.sweepable:
        return Backtracking() if prefers_search(session.problem.lowered) else Fixed()
    return Fixed(step="certified-local") if session.parallel else Sweep()


def polish(session: Session, q: Doubles) -> Outcome:
    """Descend to a local minimum of F; see `Session.settle`."""
    rule = descent(session)
    rule.prepare(session.problem)
    with session.loop.clock():
        plan = rule.plan(session.problem)
    return session.settle(rule, plan, q)


def end_at_minimum(session: Session, outcome: Outcome) -> Outcome:
    """From the best of several runs on to a local minimum, as far as the limits allow."""
    loop, found = session.loop, outcome.judgement
    if outcome.status in (Status.INTERRUPTED, Status.STOPPED):
        return outcome
    if (
        outcome.status is Status.CONVERGED
        and found is not None
        and found.verdict is Verdict.MINIMUM
    ):
        return outcome
    on_saddle = outcome.status is Status.SADDLE
    if found is not None and found.lower is not None and found.free_energy < outcome.free_energy:
        outcome = replace(
            outcome, q=found.lower, free_energy=found.free_energy, status=Status.SADDLE
        )
    if loop.spent is not None:
        outcome = outcome if on_saddle else session.step_off(outcome)
        return replace(outcome, status=loop.spent)
    start = session.without_symmetry(outcome.q) if on_saddle else outcome.q
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
