"""`auto`, the default: chooses for the user and spends the budget well.

- Where the curvature shows that F is convex, one minimum is all there is: sweep to it.
- Otherwise a search by sampling (`search.minimum`): one cooling, then reheats of the best state.
  Sampling crosses the barriers at which deterministic rules stop.
- Fields with terms that can only be iterated as a whole: annealing (backtracking where a term has
  no bound on its curvature, or a relative one), ADAM and momentum.

It always ends with sweeps (or the certified rule) to the tolerance, and leaves saddles: where it
says CONVERGED, it is at a local minimum.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from proxfield.core.common.logs import log
from proxfield.core.engines.plan import Plan, prefers_search
from proxfield.core.solve.rules.anneal import Anneal
from proxfield.core.solve.rules.backtracking import Backtracking
from proxfield.core.solve.rules.base import Outcome, Problem, Rule
from proxfield.core.solve.rules.parallel import Adam, Fixed, Momentum
from proxfield.core.solve.rules.portfolio import best_of, better_of, end_at_minimum, polish, visits
from proxfield.core.solve.rules.schedules import Sweep
from proxfield.core.solve.search import tuned
from proxfield.core.solve.search.minimum import MinimumSearch
from proxfield.core.solve.session import Session


@dataclass(frozen=True)
class Auto(Rule):
    """Needs no parameter: uses its budget (or max_iters sweeps) and ends at a local minimum."""

    name = "auto"
    summary = "the default: explores within the budget, ends at a local minimum"
    explores = True

    @property
    def mover(self) -> Rule:
        return Fixed(step="certified-local")

    def plan(self, problem: Problem) -> Plan:
        return Sweep().plan(problem)

    def default_iterations(self, problem: Problem) -> int:
        """As many sweeps as take some tenths of a second."""
        return int(np.clip(tuned.DEFAULT_VISITS / max(1, visits(problem.lowered)), 200, 20_000))

    def solve(self, session: Session) -> Outcome:
        if not session.program.sweepable:
            first = Backtracking() if prefers_search(session.problem.lowered) else Anneal()
            members: list[Rule] = [first, Adam(), Momentum()]
            log.debug("auto: variables can't be visited one by one; %s, adam, momentum", first.name)
            return best_of(session, [(rule.name, rule, session.start) for rule in members])
        local = session.problem.curvature.local  # part of the set-up
        scale = float(local.max(initial=0.0))
        # then E − H is convex: λ_i bounds |eigenvalues|, and H's curvature is at least 2
        if scale <= 2.0:
            log.debug("auto: F is convex (λ = %.3g); one descent", scale)
            return polish(session, session.start)
        if session.iterations_left < 4 * tuned.MIN_SWEEPS:
            return polish(session, session.nudged(session.start))
        log.debug("auto: F may have many minima (λ = %.3g); cooled chains", scale)
        return MinimumSearch(session, float(local[local > 0.0].mean())).run(session.start, np.inf)

    def improve(self, session: Session, outcome: Outcome) -> Outcome:
        loop = session.loop
        loop.keep(outcome.free_energy, outcome.q)
        if session.iterations_left < 4 * tuned.MIN_SWEEPS:
            return end_at_minimum(session, outcome)
        found = MinimumSearch(session, tuned.HARD_SCALE).run(outcome.q, outcome.free_energy)
        return replace(better_of(session, outcome, found), labels=outcome.labels)
