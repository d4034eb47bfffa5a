"""Curvature and the second-order test over several ranks: vectors are spread, products are sums."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from proxfield.core.common.arrays import Array
from proxfield.core.engines.base import State
from proxfield.core.solve.curvature import (
    LANCZOS_MARGIN,
    MAX_DENSE_SIZE,
    Curvature,
    by_lanczos,
    pairwise_operator,
)
from proxfield.core.solve.lanczos import (
    BASIS,
    PRODUCTS,
    HostVectors,
    Lanczos,
)
from proxfield.core.solve.stationarity import (
    DIRECTION,
    MIN_MARGINAL,
    NOISE_SCALE,
    OFFSET,
    Scaled,
    shifted,
)
from proxfield.core.terms.base import Doubles, Floats
from proxfield.distributed.partition import Partition
from proxfield.distributed.program import PartProgram
from proxfield.distributed.transport import Transport

EXACT_TOLERANCE = 1e-13
"""Relative residual for operators that one process would diagonalize."""


class SpreadVectors(HostVectors):
    """Vectors of which each rank holds a part."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport

    def length(self, vector: Doubles) -> float:
        """The Euclidean length over all ranks."""
        own = super().length(vector) if len(vector) else 0.0
        largest = self.transport.maximum(own)
        if largest == 0.0 or not largest < np.inf:
            return largest
        return largest * float(np.sqrt(self.transport.total((own / largest) ** 2)))


class SpreadLanczos(Lanczos):
    """`Lanczos` where scalar products are sums over ranks.

    Args:
        transport: Connects the ranks.
        apply: The operator, collective.
        start: This rank's part of the first vector; not normalized.
        tol: As in `Lanczos`.
        total: Entries of a whole vector.
    """

    def __init__(
        self, transport: Transport, apply: Callable[[Doubles], Doubles], start: Doubles, tol: float,
        total: int,
    ) -> None:  # fmt: skip
        vectors = SpreadVectors(transport)
        super().__init__(apply, len(start), tol, vectors=vectors)
        self.transport, self.first = transport, start / max(1e-300, vectors.length(start))
        width = min(BASIS, total)
        self._projected = np.zeros((width, width))

    @cached_property
    def _next(self) -> Doubles:
        return self.first

    def _onto(self, basis: Doubles, vector: Doubles) -> Doubles:
        found = self.transport.reduce(np.atleast_1d(basis @ vector))
        return found if basis.ndim == 2 else found[0]


@dataclass(eq=False)
class SpreadCurvature(Curvature):
    """Curvature of the whole field, with numbers per variable for this rank's own.

    `lowered` is the rank's part. Where the whole field was given, `Partition` has its curvature and
    this isn't needed.
    """

    partition: Partition = field(kw_only=True)
    ends: dict[int, float] = field(default_factory=dict, init=False, repr=False)
    """λ and μ by their sign, once found; not cached_property: before Python 3.12 that locks, and
    ranks may be threads."""

    def prepare(self) -> None:
        """Nothing is done ahead."""

    @cached_property
    def local(self) -> NDArray[np.float64]:
        total = self._local_of(list(self.lowered.terms))
        total[self.partition.cut.border] += self.partition.cut.local_curvature()
        return total

    @property
    def largest(self) -> float:
        return self._end(+1)

    @property
    def smallest(self) -> float:
        return self._end(-1)

    @property
    def lipschitz(self) -> float:
        return max(self.largest, self.smallest)

    def _end(self, sign: int) -> float:
        if sign not in self.ends:
            self.ends[sign] = self._found(sign)
        return self.ends[sign]

    def _highest(self, values: Floats) -> float:
        return self.partition.transport.maximum(float(np.max(values, initial=0.0)))

    def _found(self, sign: int) -> float:
        cut = self.partition.cut
        bound = self._highest(self.local)
        pairs = any(by_lanczos(t) for t in (*self.lowered.terms, *cut.pairs))
        if bound == 0.0 or not np.isfinite(bound) or self._highest(np.array([pairs])) == 0.0:
            return bound
        larger = [t for t in self.lowered.terms if not by_lanczos(t)]
        rest = self._local_of(larger)
        if cut.larger:
            rest[cut.border] += replace(cut, pairs=(), extras=()).local_curvature()
        part, layout = self.partition, self.lowered.layout
        total = int(part.transport.total(layout.size))
        small = total <= MAX_DENSE_SIZE
        apply, at = pairwise_operator(self.lowered, self.kernels), part.border_entries

        def product(v: Doubles) -> Doubles:
            """Sign · P H P v, collective."""
            centered = np.asarray(layout.center(v), dtype=np.float64)
            out = np.array(apply(centered))
            out[at] += part.cut.matrix @ part.routes.ghosts(centered[at])
            return sign * np.asarray(layout.center(out), dtype=np.float64)

        noise = np.random.default_rng([0, part.rank]).normal(size=layout.size)
        start = np.asarray(layout.center(noise), dtype=np.float64)
        tol = EXACT_TOLERANCE if small else LANCZOS_MARGIN / 2
        lanczos = SpreadLanczos(part.transport, product, start, tol, total)
        while not lanczos.exhausted:
            lanczos.advance(PRODUCTS)
        top = bound  # the largest eigenvalue of sign · P H P of the pairs, rounded up
        if lanczos.converged:
            top = lanczos.value + (1e-9 if small else LANCZOS_MARGIN) * abs(lanczos.value)
        return min(bound, max(0.0, top) + self._highest(rest))


class SpreadScaled(Scaled):
    """`Scaled` where each rank holds its own entries of a vector. Every method is collective."""

    def __init__(self, program: PartProgram, state: State, quadratic: bool) -> None:
        self.part, self.transport = program.partition, program.transport
        self._entries = int(self.transport.total(self.part.lowered.layout.size))
        super().__init__(program.tangent(state), quadratic, MIN_MARGINAL[program.dtype.name])

    @property
    def entries(self) -> int:
        return self._entries

    def noise(self, seed: int) -> NDArray[np.float64]:
        return normal(self.part, seed, DIRECTION)

    def dot(self, a: Array, b: Array) -> float:
        return self.transport.total(float((a * b).sum()))

    def largest(self, a: Array) -> float:
        return self.transport.maximum(float(np.abs(a).max(initial=0.0)))


def nudged_part(part: Partition, q: Floats, seed: int) -> NDArray[np.float64]:
    """This rank's marginals with θ shifted by a little seeded noise."""
    return shifted(part.lowered.layout, q, NOISE_SCALE * normal(part, seed, OFFSET))


def normal(part: Partition, *seed: int) -> NDArray[np.float64]:
    """Normal random numbers, one for each of this rank's entries."""
    return part.random(lambda generator, size: generator.normal(size=size), *seed)
