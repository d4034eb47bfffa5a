"""A cooling chain over several ranks: each samples its own labels, and tells them after each sweep.

Labels of a rank are drawn one after another, given all others of its own and those that the ghosts
had before the sweep. At the cut that isn't a heat bath, since both ends of a term move at once; the
labelling is a start for a descent, whose F is that of the whole field.
"""

from __future__ import annotations

import numpy as np

from proxfield.core.engines.base import State
from proxfield.core.engines.plan import Chains
from proxfield.core.solve.search.search import COLD_SHARE, HOT_SHARE
from proxfield.core.terms.base import Doubles
from proxfield.distributed.partition import Partition
from proxfield.distributed.program import PartProgram

PLAIN_SHARE, SAMPLING = 0.2, 0.6
"""Shares of the updates or of the budget: a descent from the start, and sampling. The rest descends
from the chain's labelling, and the better of the two ends is the result."""
CONVEX = 2.0
"""Largest λ_i up to which F has one minimum, and nothing is sampled."""


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
