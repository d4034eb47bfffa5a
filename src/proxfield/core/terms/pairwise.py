"""Pairwise terms: a table per edge, Potts weights, Ising couplings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from proxfield.core.common.arrays import Floats, Ints
from proxfield.core.terms.base import Layout, Tables, Term, as_floats, as_indices, check_scopes
from proxfield.core.terms.factor import Factor
from proxfield.errors import InputError

if TYPE_CHECKING:
    from proxfield.core.lowering.builder import Builder


CHUNK = 1 << 20
"""Variables of a grid worked on at a time."""
EDGE_BYTES = 120
"""Per edge: sorted keys, merged edges, and rows of both ends in two programs."""


@dataclass(frozen=True, eq=False, init=False)
class Pairwise(Factor):
    """A table per edge, or tables shared between edges: a `Factor` of two variables.

    Args:
        scopes: Edges.  # (m, 2)
        tables: One shared table (a, b), or one per edge, or a few with ``index``.  # (T, a, b)
        index: Which table each edge uses.  # (m,)

    Example:
        >>> import proxfield as pf
        >>> pf.Field([2, 2, 2]).add(Pairwise([[0, 1], [1, 2]], [[0, 3], [5, 0]])).energy([0, 1, 0])
        8.0
    """

    name = "pairwise"
    arity = 2


@dataclass(frozen=True, eq=False)
class _Weighted(Term):
    """Edges with one weight each; what `Potts` and `Ising` share."""

    degree = 2
    edges: Ints
    weights: Floats

    def __init__(self, edges: ArrayLike, weights: ArrayLike) -> None:
        pairs = np.asarray(edges)
        if pairs.size == 0:
            pairs = pairs.reshape(0, 2)
        pairs = as_indices(pairs, "edges", 2)
        if pairs.shape[1] != 2:
            raise InputError(f"edges must have shape (m, 2), not {pairs.shape}")
        values = as_floats(weights, f"{self.name} weights")
        if values.ndim > 1 or (values.ndim == 1 and len(values) != len(pairs)):
            raise InputError(f"{len(pairs)} edges but weights of shape {values.shape}")
        self._hold(pairs, np.full(len(pairs), float(values)) if values.ndim == 0 else values)

    @property
    def n_edges(self) -> int:
        """Number of edges."""
        return len(self.edges)

    def workspace(self, layout: Layout) -> int:
        return EDGE_BYTES * self.n_edges

    def neighbors(self, layout: Layout) -> Ints:
        return self.edges

    def _sum_abs(self, layout: Layout, scale: float) -> Floats:
        out = np.zeros(layout.n_vars)
        for end in (0, 1):
            np.add.at(out, self.edges[:, end], scale * np.abs(self.weights))
        return out


class Potts(_Weighted):
    """Each edge pays its weight when the labels at its ends differ: E = Σ w_e [x_i ≠ x_j].

    Positive weights attract (neighbors want to agree), negative ones repel. The
    numbers of labels at the two ends may differ; labels are compared by number.

    Args:
        edges: Pairs of variables.  # (m, 2)
        weights: One per edge, or one number for all.  # (m,)

    Example:
        >>> import proxfield as pf
        >>> pf.Field([3, 3, 3]).add(Potts([[0, 1], [1, 2]], 2.0)).energy([0, 2, 2])
        2.0
    """

    name = "potts"

    def validate(self, layout: Layout) -> None:
        check_scopes(layout, self.edges, "edge")

    def labelling_energy(self, layout: Layout, labels: Ints) -> float:
        a, b = labels[self.edges].T
        return float(self.weights[a != b].sum())

    def add_gradient(self, layout: Layout, q: Floats, out: Floats) -> None:
        for here, there in (self.edges.T, self.edges.T[::-1]):
            # w·(1 − q_there(l)), where q_there(l) = 0 for labels that end doesn't have
            cards = layout.cardinalities[here]
            width = int(cards.max(initial=0))
            for label in range(width):
                rows = np.flatnonzero(cards > label)
                other = there[rows]
                has = layout.cardinalities[other] > label
                agree = np.zeros(len(rows))
                agree[has] = q[layout.offsets[other[has]] + label]
                np.add.at(out, layout.offsets[here[rows]] + label, self.weights[rows] * (1 - agree))

    def curvature(self, layout: Layout) -> Floats:
        return self._sum_abs(layout, 1.0)  # the centered identity has norm 1 (or less)

    def lipschitz(self, layout: Layout) -> float:
        # the matrix [x ≠ y] is 1·1ᵀ − I, of norm c − 1 (at least 1)
        top = max(1, int(layout.cardinalities.max(initial=1)) - 1)
        return float(self._sum_abs(layout, top).max(initial=0.0))

    def lower(self, layout: Layout, builder: Builder) -> None:
        builder.add_potts(self.edges, self.weights)

    def as_tables(self, layout: Layout) -> Iterator[Tables]:
        cards = layout.cardinalities[self.edges]
        for shape in np.unique(cards, axis=0):
            rows = (cards == shape).all(axis=1)
            differ = 1.0 - np.eye(int(shape[0]), int(shape[1]))
            yield self.edges[rows], self.weights[rows, None, None] * differ, None


class Ising(_Weighted):
    """Spins: E = Σ J_e s_i s_j, where label 0 is the spin s = −1 and label 1 is s = +1.

    Negative couplings attract (equal spins are cheap), positive ones repel.

    Args:
        edges: Pairs of binary variables.  # (m, 2)
        weights: The couplings, one per edge or one number for all.  # (m,)

    Example:
        >>> import proxfield as pf
        >>> pf.Field([2, 2]).add(Ising([[0, 1]], -1.5)).energy([0, 1])
        1.5
    """

    name = "ising"

    def validate(self, layout: Layout) -> None:
        check_scopes(layout, self.edges, "edge")
        if len(self.edges) and layout.common != 2 and (layout.cardinalities[self.edges] != 2).any():
            v = int(self.edges[layout.cardinalities[self.edges] != 2][0])
            c = int(layout.cardinalities[v])
            where = layout.show(v)
            raise InputError(f"an Ising edge needs binary variables; {where} has {c} label(s)")

    def labelling_energy(self, layout: Layout, labels: Ints) -> float:
        a, b = 2 * labels[self.edges].T - 1
        return float((self.weights * a * b).sum())

    def add_gradient(self, layout: Layout, q: Floats, out: Floats) -> None:
        for here, there in (self.edges.T, self.edges.T[::-1]):
            o = layout.offsets[there]
            pull = self.weights * (q[o + 1] - q[o])  # J · E[s_there]
            np.add.at(out, layout.offsets[here], -pull)
            np.add.at(out, layout.offsets[here] + 1, pull)

    def curvature(self, layout: Layout) -> Floats:
        return self._sum_abs(layout, 2.0)  # the norm of J·[[1, −1], [−1, 1]]

    def lipschitz(self, layout: Layout) -> float:
        return float(self._sum_abs(layout, 2.0).max(initial=0.0))

    def lower(self, layout: Layout, builder: Builder) -> None:
        builder.add_ising(self.edges, self.weights)

    def as_tables(self, layout: Layout) -> Iterator[Tables]:
        product = np.array([[1.0, -1.0], [-1.0, 1.0]])
        yield self.edges, self.weights[:, None, None] * product, None


class BandedIsing(Ising):
    """Couplings J·s_i·s_j between variables at a few distances j − i, as on grids.

    Edges are listed only when something asks for them.
    """

    distances: Ints  # ascending, positive  # (D,)
    padded: Floats
    """4 J of i and i + distance at [d, pad + i], 0 without a coupling, where pad is the largest
    distance.  # (D, n + 2 pad)"""

    def __init__(self, distances: Ints, padded: Floats) -> None:
        object.__setattr__(self, "distances", distances)
        object.__setattr__(self, "padded", padded)

    @property
    def pad(self) -> int:
        """Entries without a variable at each end of ``padded``."""
        return int(self.distances[-1]) if len(self.distances) else 0

    @property
    def couplings(self) -> Floats:
        """4 J of each variable and the one at each distance.  # (D, n)"""
        return self.padded[:, self.pad : self.padded.shape[1] - self.pad]

    @property
    def n_edges(self) -> int:
        return int(np.count_nonzero(self.couplings))

    @cached_property
    def _listed(self) -> tuple[Ints, NDArray[np.float64]]:
        which, first = np.nonzero(self.couplings)
        order = np.lexsort((which, first))
        which, first = which[order], first[order]
        edges = np.stack([first, first + self.distances[which]], axis=1).astype(np.int64)
        return edges, 0.25 * self.couplings[which, first].astype(np.float64)

    @property
    def edges(self) -> Ints:
        """The edges.  # (m, 2)"""
        return self._listed[0]

    @property
    def weights(self) -> NDArray[np.float64]:
        """J of each edge.  # (m,)"""
        return self._listed[1]

    def _sum_abs(self, layout: Layout, scale: float) -> NDArray[np.float64]:
        out, values = np.zeros(layout.n_vars), self.couplings
        for distance, row in zip(self.distances.tolist(), values, strict=True):
            for start in range(0, layout.n_vars, CHUNK):
                size = (0.25 * scale) * np.abs(row[start : start + CHUNK].astype(np.float64))
                out[start : start + len(size)] += size
                after = size[: max(0, layout.n_vars - start - distance)]
                out[start + distance : start + distance + len(after)] += after
        return out
