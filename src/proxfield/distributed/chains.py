"""`auto` over several ranks: a descent, then a cooling chain, from which another descent starts.

Each rank samples its own labels, and tells them after each sweep.

Labels of a rank are drawn one after another, given all others of its own and those that the ghosts
had before the sweep. At the cut that isn't a heat bath, since both ends of a term move at once; the
labelling is a start for a descent, whose F is that of the whole field.
"""

from __future__ import annotations

import numpy as np

from proxfield.core.engines.base import State
from proxfield.core.engines.plan import Chains
from proxfield.core.solve.rules.base import Outcome, Rule
from proxfield.core.solve.rules.portfolio import better_of
from proxfield.core.solve.search.tuned import COLD_SHARE, HOT_SHARE
from proxfield.core.terms.base import Doubles
from proxfield.distributed.partition import Partition
from proxfield.distributed.program import PartProgram
from proxfield.distributed.session import PartSession
from proxfield.distributed.stationarity import nudged_part
from proxfield.result import Status

PLAIN_SHARE, SAMPLING = 0.2, 0.6
"""Shares of the updates or of the budget: a descent from the start, and sampling. The rest descends
from the chain's labelling, and the better of the two ends is the result."""
CONVEX = 2.0
"""Largest λ_i up to which F has one minimum, and nothing is sampled."""


def explored(session: PartSession, rule: Rule) -> Outcome:
    """Where a rule that explores ends: the better one of two descents. Collective.

    Args:
        session: The inference.
        rule: The rule, whose `mover` descends.
    """
    loop, limits, memory = session.loop, session.limits, session.memory
    program, mover, seed = session.program, rule.mover, session.problem.seed
    mover.prepare(session.problem)
    with loop.clock():
        plan = mover.plan(session.problem)
        ends = temperatures(program, session.own_bounds)
    if ends is None:
        return session.settle(mover, plan, session.start)
    if "sampled" in memory:  # a resumed run
        return best_of_two(session, session.settle(mover, plan, session.start))
    first = loop.iterations == 0
    state = session.begin(
        nudged_part(session.partition, session.start, seed) if first else session.start
    )
    if "sweep" not in memory:
        most = max(1, int(PLAIN_SHARE * limits.max_iters))
        budget = None if limits.budget is None else PLAIN_SHARE * limits.budget
        status = session.iterate(plan, state, limits.until(most, budget))
        if status in (Status.INTERRUPTED, Status.STOPPED):
            return session.best_seen(mover, state, status)
        loop.keep(loop.last, np.asarray(program.marginals(state), dtype=np.float64))
        memory["sweep"] = 1
    sweeps = max(1, int(SAMPLING * limits.max_iters))
    f = program.free_energy(state)  # exchanges the ghosts too
    while memory["sweep"] <= sweeps:
        done = (memory["sweep"] - 1) / sweeps
        if limits.budget is not None:
            done = max(done, (loop.elapsed / limits.budget - PLAIN_SHARE) / SAMPLING)
        if done >= 1.0:
            break
        with loop.clock():
            temperature = ends[0] * (ends[1] / ends[0]) ** done
            own_seed = seed_of(session.partition, seed, memory["sweep"])
            q = sample(program, state, temperature, own_seed)
            state = session.begin(q)
            f = program.free_energy(state)
        memory["sweep"] += 1
        loop.note(1, loop.elapsed, f)
        program.stop_asked = program.maximum(float(program.interrupted.is_set())) > 0
        try:
            halted = Status.STOPPED if loop.report(f, q.copy) else None
        except KeyboardInterrupt:
            halted = Status.INTERRUPTED
        if halted is not None:
            return session.best_seen(mover, state, halted)
    memory["sampled"] = True
    return best_of_two(session, session.settle(mover, plan, program.marginals(state)))


def best_of_two(session: PartSession, after: Outcome) -> Outcome:
    """The end of the second descent, or that of the first if its F is lower."""
    seen = session.loop.earlier
    if seen is None or after.status in (Status.INTERRUPTED, Status.STOPPED):
        return after
    f, q = seen.recover()
    return better_of(session, Outcome(q, f, after.status), after)


def temperatures(program: PartProgram, local: Doubles) -> tuple[float, float] | None:
    """Where to begin and to end, from the couplings; None where F is convex. Collective.

    Args:
        program: This rank's program.
        local: λ_i of its variables.  # (n_vars,)
    """
    if program.maximum(float(local.max(initial=0.0))) <= CONVEX:
        return None
    positive = local[local > 0.0]
    mean = program.total(float(positive.sum())) / program.total(float(len(positive)))
    return max(1.0, HOT_SHARE * mean), min(1.0, COLD_SHARE * mean)


def sample(program: PartProgram, state: State, temperature: float, seed: int) -> Doubles:
    """One sweep of this rank's variables, whose ghosts were exchanged; returns marginals.

    Args:
        program: This rank's program.
        state: Where it is; not changed.
        temperature: The temperature.
        seed: A seed of this rank and sweep.
    """
    start = program.program.marginals(state)
    chain = Chains.make(
        start[None], hot=temperature, cold=temperature, sweeps=1, seeds=seed, drawn=True, polish=0
    )
    return np.asarray(program.program.explore(chain, 1).q[0])


def seed_of(part: Partition, seed: int, sweep: int) -> int:
    """A seed for one sweep of one rank."""
    return int(np.random.SeedSequence([seed, part.rank, sweep]).generate_state(1)[0])
