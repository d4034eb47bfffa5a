"""The second-order test of a field over several ranks: is a fixed point a minimum, or a saddle?"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from proxfield.core.common.arrays import Array, Floats
from proxfield.core.engines.base import State
from proxfield.core.solve.session import FEWEST_PRODUCTS
from proxfield.core.solve.stationarity import (
    DIRECTION,
    MIN_MARGINAL,
    NOISE_SCALE,
    OFFSET,
    Judgement,
    Scaled,
    Verdict,
    judge,
    shifted,
)
from proxfield.distributed.partition import Partition
from proxfield.distributed.program import PartProgram


class SpreadScaled(Scaled):
    """`Scaled` where each rank holds its own entries of a vector. Every method is collective."""

    def __init__(self, program: PartProgram, state: State, quadratic: bool) -> None:
        self.program = program
        part = program.partition
        self._entries = int(program.total(float(part.lowered.layout.size)))
        super().__init__(program.tangent(state), quadratic, MIN_MARGINAL[program.dtype.name])

    @property
    def entries(self) -> int:
        return self._entries

    def noise(self, seed: int) -> NDArray[np.float64]:
        return normal(self.program.partition, seed, DIRECTION)

    def dot(self, a: Array, b: Array) -> float:
        return self.program.total(float((a * b).sum()))

    def largest(self, a: Array) -> float:
        return self.program.maximum(float(np.abs(a).max(initial=0.0)))


def judge_spread(
    program: PartProgram, state: State, seed: int, max_products: int, late: Callable[[], bool]
) -> Judgement:
    """`proxfield.core.solve.stationarity.judge` over several ranks. Collective.

    Args:
        program: The field.
        state: A fixed point; not changed.
        seed: Random seed of the first direction.
        max_products: Maximum number of products with H.
        late: Is it time to give up? Collective.
    """
    part = program.partition
    terms = [*part.lowered.terms, *part.cut.pairs, *part.cut.larger]
    terms += [term for term, _ in part.cut.extras]
    higher = any(term.degree != 2 for term in terms)
    if program.maximum(float(bool(terms))) == 0.0:
        return Judgement(Verdict.MINIMUM)
    space = SpreadScaled(program, state, program.maximum(float(higher)) == 0.0)
    return judge(
        program, state, seed=seed, max_products=max_products, min_products=FEWEST_PRODUCTS,
        late=late, space=space,
    )  # fmt: skip


def nudged_part(part: Partition, q: Floats, seed: int) -> NDArray[np.float64]:
    """This rank's marginals with θ shifted by a little seeded noise."""
    return shifted(part.lowered.layout, q, NOISE_SCALE * normal(part, seed, OFFSET))


def normal(part: Partition, *seed: int) -> NDArray[np.float64]:
    """Normal random numbers, one for each of this rank's entries."""
    return part.random(lambda generator, size: generator.normal(size=size), *seed)
