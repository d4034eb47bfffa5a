"""The Lanczos method with thick restarts, a few products at a time, and steps that it certifies.

It can stop after any product and go on later, which lets iterations of a field run in between. So
a better certified step is looked for while iterations go on with the first one (`StepRefinement`).
The bounds λ_i of single variables certify a step at once. H never exceeds diag(λ_i), mostly by
far: ρ, the largest eigenvalue of diag(λ_i)^-½ P H P diag(λ_i)^-½, is at most 1, and ρ λ_i certify
larger steps. ρ is found a few products after every few iterations. How many of both depends on the
field alone: seconds don't show in a run that ends before its budget. Runs without a budget look for
λ first, as updates count there and not seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from proxfield.core.common.arrays import Array
from proxfield.core.engines.plan import damping_for
from proxfield.core.lowering.lowered import Lowered
from proxfield.core.solve.history import Clock
from proxfield.core.terms.base import Doubles, Floats

BASIS = 18
"""Vectors kept at most; together with temporary ones they fit into `Field.memory_estimate`."""
KEPT = 6
"""Ritz vectors that a restart goes on with."""
COLUMNS = 1 << 14
"""Entries of the basis that a restart combines at a time."""
BREAKDOWN = 1e-12
"""A new direction of this relative length is rounding: the basis spans an invariant space."""
PRODUCTS = 5
"""Products between two runs of iterations."""
CALL_WORK = 1 << 17
VECTOR_WORK = 32
"""What a product takes beside its arithmetic, and per entry of the vectors: in entries and edge
ends of an iteration."""
ITERATION_SHARE = 4
"""Time for iterations, in times of the search: it gets about a fifth, as λ does of a budget."""
TOLERANCE = 0.01
MARGIN = 0.02
"""Relative residual at which ρ is found, and the share by which it is then enlarged: few products
count for more here than the last percent of a step."""
MIN_GAIN = 1.1
"""Factor by which steps have to grow on average; where they can't, the search ends early."""


class HostVectors:
    """Vectors of numpy, and what is done with them beside arithmetic; a device has its own kind.

    Attributes:
        columns: Entries of the basis that a restart combines at a time.
    """

    columns = COLUMNS

    def length(self, vector: Doubles) -> float:
        """The Euclidean length; squares of large entries don't overflow in it."""
        from scipy.linalg import norm

        return float(norm(vector, check_finite=False))

    def zeros(self, *shape: int) -> Doubles:
        """As `numpy.zeros`."""
        return np.zeros(shape)

    def put(self, values: Floats) -> Doubles:
        """An array of numpy as one of this kind."""
        return np.asarray(values, dtype=np.float64)

    get = put
    """An array of this kind as one of numpy."""


HOST = HostVectors()


@dataclass(eq=False)
class Lanczos:
    """The largest eigenvalue of a symmetric operator, approached from below.

    Attributes:
        value: The largest Ritz value so far: no eigenvalue is known to be larger, and the
            largest eigenvalue isn't smaller.
        converged: Whether the residual is below ``tol``.
        products: Products made.
    """

    apply: Callable[[Array], Array]
    size: int
    tol: float = 5e-4  # relative residual at which the eigenvalue is found
    most: int = 1000  # products
    vectors: HostVectors = HOST

    def __post_init__(self) -> None:
        self.value, self.converged, self.products = -np.inf, False, 0
        width = min(BASIS, self.size)
        self._projected = np.zeros((width, width))
        self._used = self._kept = 0
        self._length = 0.0
        self._overflowed = False

    @cached_property
    def _basis(self) -> Array:
        """Orthonormal vectors, made when the first product is.  # (width, size)"""
        return self.vectors.zeros(len(self._projected), self.size)

    @cached_property
    def _next(self) -> Array:
        """The vector to multiply with next.  # (size,)"""
        start = np.random.default_rng(0).normal(size=self.size)
        return self.vectors.put(start / HOST.length(start))

    @property
    def exhausted(self) -> bool:
        """Whether it ended, with or without an eigenvalue."""
        return self.converged or self._overflowed or self.products >= self.most

    def advance(self, products: int, late: Callable[[], bool] = lambda: False) -> None:
        """Make up to so many products, fewer if it converges or the time is over."""
        for k in range(products):
            if self.exhausted or late():
                return
            residual = self._extend()
            if self._overflowed:
                return
            full = self._used == len(self._basis)
            if residual <= BREAKDOWN or full or k + 1 == products:
                self._look(residual, full)

    def _onto(self, basis: Array, vector: Array) -> Array:
        """Scalar products with some vectors, or with one.  # (k, size), (size,) -> (k,)"""
        return basis @ vector

    def _extend(self) -> float:
        """One product: the basis grows by a vector; returns the length of what is left."""
        j = self._used
        self._basis[j] = self._next
        known = self._basis[: j + 1]
        get, new = self.vectors.get, 1.0 * self.apply(self._next)  # a copy
        size = self.vectors.length(new)
        if not size < np.inf:
            self._overflowed = True
            return np.inf
        if j == self._kept:  # after a restart, H couples it to every vector that was kept
            onto = self._onto(known, new)
            new -= onto @ known
            part = get(onto)
        else:
            part = np.zeros(j + 1)
            part[j - 1], part[j] = self._length, float(self._onto(self._next, new))
            new -= self._length * known[j - 1]
            new -= part[j] * known[j]
        again = self._onto(known, new)  # once more: the basis stays orthogonal to rounding
        new -= again @ known
        part = part + get(again)
        self._projected[: j + 1, j] = self._projected[j, : j + 1] = part
        self._used += 1
        self.products += 1
        self._length = self.vectors.length(new)
        if self._length <= BREAKDOWN * size:
            return 0.0
        self._next = new / self._length
        return self._length

    def _look(self, residual: float, full: bool) -> None:
        """Ritz values of the basis; a full one starts again from the best of its vectors."""
        m = self._used
        values, vectors = np.linalg.eigh(self._projected[:m, :m])
        self.value = max(self.value, float(values[-1]))
        error = residual * abs(float(vectors[-1, -1]))
        self.converged = residual == 0.0 or error <= self.tol * abs(float(values[-1]))
        if self.converged or not full:
            return
        kept = min(KEPT, m - 1)
        mix, columns = self.vectors.put(vectors[:, -kept:].T), self.vectors.columns
        for start in range(0, self.size, columns):
            some = self._basis[:, start : start + columns]
            some[:kept] = mix @ some
        self._projected[:] = 0.0
        self._projected[np.arange(kept), np.arange(kept)] = values[-kept:]
        self._used = self._kept = kept


@dataclass
class StepRefinement:
    """The search for ρ, and the step that it certifies."""

    lanczos: Lanczos  # finds ρ
    scaled: Doubles  # λ_i of the terms whose H it multiplies with
    others: Doubles  # λ_i of all other terms
    every: int  # iterations between two pieces of work
    seconds: float  # at most
    now: Clock
    ended: bool = False  # whether there is nothing more to find
    step: Doubles | None = None  # of each variable, once it is found
    spent: float = field(default=0.0, init=False)

    def advance(self, late: Callable[[], bool]) -> None:
        """Do a piece of the work; ``late`` tells whether the time of the whole run is over."""
        lanczos, begun = self.lanczos, self.now()
        lanczos.advance(PRODUCTS, late)
        self.spent += self.now() - begun
        # what the bounds certify if ρ is 1, what Lanczos has so far (it isn't less), and enlarged
        ratios = (min(1.0, max(0.0, r * lanczos.value)) for r in (1.0, 1.0 + MARGIN))
        first, most, found = (
            1.0 / (1.0 + damping_for(ratio * self.scaled + self.others)) for ratio in (1.0, *ratios)
        )
        stopped = late() or self.spent > self.seconds
        too_large = most.mean() < MIN_GAIN * first.mean()
        self.ended = bool(stopped or lanczos.exhausted or too_large)
        if lanczos.converged and not stopped:
            self.step = found if found.mean() > first.mean() else None


def iterations_between(lowered: Lowered) -> int:
    """Iterations between two pieces, by the work of both: the same on every machine."""
    work = lowered.layout.size + sum(
        2 * len(t.edges) for t in (lowered.ising, lowered.potts) if t is not None
    )
    work += sum(f.degree * len(f.scopes) * f.tables[0].size for f in lowered.factors)
    vectors = VECTOR_WORK * lowered.layout.n_vars
    pieces = ITERATION_SHARE * PRODUCTS
    return int(np.ceil(pieces * (1.0 + (CALL_WORK + vectors) / max(1, work))))
