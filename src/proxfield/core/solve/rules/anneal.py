"""Annealing: a temperature schedule around any rule.

At temperature T the objective E − T·H is convex as soon as T ≥ μ/2, where −μ is the smallest
eigenvalue of the projected Hessian: there the minimum is unique and doesn't depend on
the start. From there T falls geometrically to 1, with the step certified for each T.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from proxfield.core.engines.plan import Custom, Order, Plan
from proxfield.core.solve.rules.base import Outcome, Problem, Rule
from proxfield.core.solve.rules.portfolio import HALTED, RunsOthers
from proxfield.core.solve.rules.registry import make_rule
from proxfield.core.solve.session import Session
from proxfield.errors import InputError, shown
from proxfield.result import Status

COOLING = 0.8
"""Share of the iterations or of the budget that goes into cooling; the rest polishes at T = 1."""


@dataclass(frozen=True)
class Anneal(RunsOthers):
    """Cool down from a temperature at which the objective is convex.

    At temperature T the objective E − T·H is convex as soon as T ≥ μ/2, where −μ is the smallest
    eigenvalue of the projected Hessian: there the minimum is unique and doesn't depend on the
    start. From there T falls geometrically to 1, with the step certified for each T.

    Args:
        inner: The rule that moves the state: any named one.
        hot: The temperature to start at; μ/2 by default (at least 1).
        levels: Temperatures on the way, spaced geometrically.
    """

    name = "anneal"
    summary = "lowers the temperature from a convex objective, with any rule; no randomness"
    inner: str = "fixed"
    hot: float | None = None
    levels: int = 100

    def check(self) -> None:
        if self.hot is not None:
            self._number("hot", 0.0, np.inf, closed=False)
        self._count("levels")
        if type(make_rule(self.inner)).solve is not Rule.solve:
            raise InputError(
                f"anneal: inner={shown(self.inner)} runs other rules itself; name a plain one"
            )

    @property
    def mover(self) -> Rule:
        return make_rule(self.inner)

    def plan(self, problem: Problem) -> Plan:
        return self.mover.plan(problem)

    def solve(self, session: Session) -> Outcome:
        loop, limits, inner = session.loop, session.limits, self.mover
        inner.prepare(session.problem)
        session.problem.curvature.prepare()
        with loop.clock():
            plan = inner.plan(session.problem)
            hot = self.hot or max(1.0, session.problem.curvature.smallest / 2)
        memory = session.memory  # a run over several processes may continue from a checkpoint
        if "cooled" in memory:
            return session.settle(inner, plan, session.start)
        state = session.begin(session.start)
        levels = max(1, min(self.levels, int(COOLING * limits.max_iters)))
        begun_at, begun = memory.setdefault("begun", [loop.iterations, loop.elapsed])
        loop.begin_stage()
        k = int(memory.get("level", 0))
        while k < levels:
            temperature = hot ** (1.0 - k / max(1, levels - 1))
            share = COOLING * (k + 1) / levels
            last = begun_at + int(share * (limits.max_iters - begun_at))
            last = memory.setdefault("end", max(loop.iterations + 1, last))
            until = None if limits.budget is None else begun + share * (limits.budget - begun)
            colder = at_temperature(plan, temperature, session.problem)
            part = limits.until(last, until, tol=-1.0)
            first = loop.known_at(session.start) if k == 0 else None
            status = session.iterate(colder, state, part, self, first)
            if begun_at == loop.iterations:
                loop.tell(session.start, loop.last)
            if status in (*HALTED, Status.DIVERGED):
                return session.best_seen(self, state, status)
            k += 1
            if limits.budget is not None:  # levels that there is no time for are left out
                used = (loop.elapsed - begun) / (COOLING * max(limits.budget - begun, 1e-9))
                k = max(k, int(levels * used))
            memory["level"] = k
            del memory["end"]
        memory["cooled"] = True
        end = session.program.marginals(state)
        loop.tell(end, loop.last)
        return session.settle(inner, plan, end)


def at_temperature(plan: Plan, temperature: float, problem: Problem) -> Plan:
    """A plan for E − T·H: targets divided by T, and the step certified for λ/T."""
    if isinstance(plan, Custom):
        raise InputError("a custom rule can't be annealed: its function doesn't know temperatures")
    if isinstance(plan, Order):
        return replace(plan, inverse_temperature=1.0 / temperature)
    if plan.search is not None:
        raise InputError("backtracking can't be annealed: it looks at F, whose minimum moves")
    if not (plan.step < 1.0).any():
        return replace(plan, inverse_temperature=1.0 / temperature)
    certified = 1.0 / (1.0 + problem.curvature.damping(1.0 / temperature))
    step = np.maximum(plan.step, certified)
    colder = replace(plan, step=step, inverse_temperature=1 / temperature)
    return replace(colder, adaptive=False, fallback=None, refinement=None)
