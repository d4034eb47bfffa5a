"""Curvature of a field over several ranks: λ by a Lanczos method whose vectors are spread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from proxfield.core.solve.curvature import (
    LANCZOS_MARGIN,
    MAX_DENSE_SIZE,
    Curvature,
    by_lanczos,
)
from proxfield.core.solve.lanczos import (
    BASIS,
    PRODUCTS,
    HostVectors,
    Lanczos,
    StepRefinement,
    length,
)
from proxfield.core.terms.base import Doubles, Floats
from proxfield.distributed.partition import Partition
from proxfield.distributed.transport import Transport

EXACT_TOLERANCE = 1e-13
"""Relative residual for operators that one process would diagonalize."""


class SpreadVectors(HostVectors):
    """Vectors of which each rank holds a part."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport

    def length(self, vector: Doubles) -> float:
        """The Euclidean length over all ranks."""
        own = length(vector) if len(vector) else 0.0
        largest = float(self.transport.reduce(np.array([own]), "max")[0])
        if largest == 0.0 or not largest < np.inf:
            return largest
        total = self.transport.reduce(np.array([(own / largest) ** 2]))
        return largest * float(np.sqrt(total[0]))


class SpreadLanczos(Lanczos):
    """`Lanczos` where scalar products are sums over ranks.

    Args:
        transport: Connects the ranks.
        apply: The operator, collective.
        size: Entries of this rank's part of a vector.
        start: This rank's part of the first vector; not normalized.
        tol: As in `Lanczos`.
        total: Entries of a whole vector.
    """

    def __init__(
        self,
        transport: Transport,
        apply: Callable[[Doubles], Doubles],
        size: int,
        start: Doubles,
        tol: float,
        total: int,
    ) -> None:
        vectors = SpreadVectors(transport)
        super().__init__(apply, size, tol, vectors=vectors)
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

    partition: Partition | None = None
    ends: dict[int, float] = field(default_factory=dict, init=False, repr=False)
    """λ and μ by their sign, once found; not cached_property: before Python 3.12 that locks, and
    ranks may be threads."""

    @property
    def part(self) -> Partition:
        """The partition."""
        assert self.partition is not None
        return self.partition

    def prepare(self) -> None:
        """Nothing is done ahead."""

    def refinement(self) -> StepRefinement | None:
        """λ is always found before the iteration."""
        return None

    @cached_property
    def local(self) -> NDArray[np.float64]:
        total = self._local_of(list(self.lowered.terms))
        total[self.part.cut.border] += self.part.cut.local_curvature()
        return total

    @property
    def largest(self) -> float:
        return self._kept(+1)

    @property
    def smallest(self) -> float:
        return self._kept(-1)

    @property
    def lipschitz(self) -> float:
        return max(self.largest, self.smallest)

    def _kept(self, sign: int) -> float:
        if sign not in self.ends:
            self.ends[sign] = self._end(sign)
        return self.ends[sign]

    def _highest(self, values: Floats) -> float:
        own = float(np.max(values, initial=0.0))
        return float(self.part.transport.reduce(np.array([own]), "max")[0])

    def _end(self, sign: int) -> float:
        cut = self.part.cut
        bound = self._highest(self.local)
        pairs = any(by_lanczos(t) for t in (*self.lowered.terms, *cut.pairs))
        if bound == 0.0 or not np.isfinite(bound) or self._highest(np.array([pairs])) == 0.0:
            return bound
        larger = [t for t in self.lowered.terms if not by_lanczos(t)]
        rest = self._local_of(larger)
        if cut.larger:
            rest[cut.border] += replace(cut, pairs=(), extras=()).local_curvature()
        return min(bound, max(0.0, self._top(sign, bound)) + self._highest(rest))

    def _top(self, sign: int, bound: float) -> float:
        """The largest eigenvalue of sign · P H P of the pairs, rounded up."""
        transport, layout = self.part.transport, self.lowered.layout
        total = int(transport.reduce(np.array([float(layout.size)]))[0])
        small = total <= MAX_DENSE_SIZE
        apply = self._operator()
        noise = np.random.default_rng([0, transport.rank]).normal(size=layout.size)
        start = np.asarray(layout.center(noise), dtype=np.float64)
        tol = EXACT_TOLERANCE if small else LANCZOS_MARGIN / 2
        lanczos = SpreadLanczos(
            transport, lambda v: sign * apply(v), layout.size, start, tol, total
        )
        while not lanczos.exhausted:
            lanczos.advance(PRODUCTS)
        if not lanczos.converged:
            return bound
        return lanczos.value + (1e-9 if small else LANCZOS_MARGIN) * abs(lanczos.value)

    def _operator(self) -> Callable[[Doubles], Doubles]:
        """v ↦ P H P v of the pairs, collective."""
        from proxfield.core.solve.curvature import pairwise_operator

        part, layout = self.part, self.lowered.layout
        apply, at = pairwise_operator(self.lowered, self.kernels), part.border_entries

        def product(v: Doubles) -> Doubles:
            centered = np.asarray(layout.center(v), dtype=np.float64)
            out = np.array(apply(centered))
            out[at] += part.cut.matrix @ part.ghost_values(centered[at])
            return np.asarray(layout.center(out), dtype=np.float64)

        return product


def curvature_of(partition: Partition, kernels: str) -> SpreadCurvature:
    """The curvature of a field over several ranks."""
    return SpreadCurvature(partition.lowered, None, kernels, partition=partition)
