"""Tables between the pixels of a grid and those at an offset, without lists of edges."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from proxfield.core.common.arrays import Floats, Ints
from proxfield.core.terms.base import Layout, Tables, Term, as_floats, as_indices, table_index
from proxfield.core.terms.factor import SLOT_BYTES, Factor
from proxfield.core.terms.pairwise import EDGE_BYTES
from proxfield.errors import InputError, shown

if TYPE_CHECKING:
    from proxfield.core.lowering.builder import Builder


@dataclass(frozen=True)
class Shift:
    """Pairs of pixels p and p + offset of a grid: all of them for which both exist."""

    shape: tuple[int, ...]  # pixels along each axis; they are numbered in C order
    offset: tuple[int, ...]  # from the first pixel of a pair to the second; not all 0
    first: int = 0  # the variable of the first pixel

    @property
    def n_pixels(self) -> int:
        """Number of variables."""
        return math.prod(self.shape)

    @property
    def here(self) -> tuple[slice, ...]:
        """The first pixels of all pairs, as slices of the grid."""
        pairs = zip(self.shape, self.offset, strict=True)
        return tuple(slice(max(0, -o), max(0, n - max(0, o))) for n, o in pairs)

    @property
    def there(self) -> tuple[slice, ...]:
        """The second pixels of all pairs, as slices of the grid."""
        return Shift(self.shape, tuple(-o for o in self.offset)).here

    @property
    def sizes(self) -> tuple[int, ...]:
        """Shape of the part of the grid where a pair begins."""
        return tuple(max(0, n - abs(o)) for n, o in zip(self.shape, self.offset, strict=True))

    @property
    def n_edges(self) -> int:
        """Number of pairs."""
        return math.prod(self.sizes)

    @property
    def distance(self) -> int:
        """Number of the second variable minus that of the first: the same for all pairs."""
        out = 0
        for n, o in zip(self.shape, self.offset, strict=True):
            out = out * n + o
        return out

    def edges(self) -> Ints:
        """The pairs as edges, in C order of the first pixels.  # (m, 2)"""
        number = self.first + np.arange(self.n_pixels, dtype=np.int64).reshape(self.shape)
        begins = number[self.here].ravel()
        return np.stack([begins, begins + self.distance], axis=1)

    def over_pixels(self, values: Floats) -> Floats:
        """Entries of the grid's variables as maps, a view.  # (n_pixels·k,) -> (*shape, k)"""
        return values.reshape(*self.shape, -1)


@dataclass(frozen=True, eq=False, init=False)
class GridPairwise(Term):
    """Tables between each pixel p of a grid and p + offset, wherever both exist.

    The energies of ``Pairwise(edges, tables, index)`` for these pairs, without a list of edges:
    a field over an image has one such term per offset. Binary grids are lowered to diagonals
    directly; each distinct table is reduced once.

    Args:
        shape: Pixels along each axis, any number of axes. Variables are numbered in C order, and
            all have the same number of labels K.
        offset: From the first pixel of a pair to the second, along each axis.
        tables: One table, or several; rows are labels of the first pixel. Finite: configurations
            are forbidden by `Pairwise`.  # (K, K) or (T, K, K)
        index: Which table each pair uses, in C order of the first pixels; by default the only
            one there is (T = 1), or each its own (T = m).  # (m,) or (*sizes)
        first: The variable of the first pixel.

    Example:
        >>> import proxfield as pf
        >>> differ = [[0.0, 1.0], [1.0, 0.0]]
        >>> down = GridPairwise((2, 3), (1, 0), differ)
        >>> pf.Field(6, n_labels=2).add(down).energy([0, 0, 1, 1, 0, 0])
        2.0
    """

    name = "grid-pairwise"
    degree = 2
    shape: tuple[int, ...]
    offset: tuple[int, ...]
    tables: Floats
    index: Ints | None
    first: int

    def __init__(
        self,
        shape: Sequence[int] | Ints,
        offset: Sequence[int] | Ints,
        tables: ArrayLike,
        index: ArrayLike | None = None,
        first: int = 0,
    ) -> None:
        sizes = tuple(as_indices(shape, "a grid's shape", 1).tolist())
        steps = tuple(as_indices(offset, "a grid's offset", 1).tolist())
        if not sizes or min(sizes) < 1:
            raise InputError(f"a grid of shape {sizes}, expected sizes of at least 1")
        if len(steps) != len(sizes):
            raise InputError(f"offset {steps} for a grid of shape {sizes}, expected one per axis")
        if not any(steps):
            raise InputError(f"offset {steps}, expected one that isn't 0 along all axes")
        if isinstance(first, bool) or not isinstance(first, int | np.integer) or first < 0:
            raise InputError(f"first={shown(first)}, expected a variable's number")
        table = as_floats(tables, "a grid's tables")
        table = table[None] if table.ndim == 2 else table
        if table.ndim != 3 or table.shape[1] != table.shape[2] or not table.size:
            raise InputError(
                f"tables of shape {np.shape(tables)}, expected (labels, labels), or "
                "(tables, labels, labels) for several"
            )
        shift = Shift(sizes, steps, int(first))
        if index is not None and np.shape(index) not in ((shift.n_edges,), shift.sizes):
            raise InputError(
                f"an index of shape {np.shape(index)} for a grid of shape {sizes} with offset "
                f"{steps}, expected ({shift.n_edges},) or {shift.sizes}"
            )
        which = None
        if index is not None or len(table) > 1:
            given = None if index is None else np.ravel(index)
            which = table_index(given, shift.n_edges, len(table), "pairs of pixels")
        self._hold(sizes, steps, table, which, int(first))

    @cached_property
    def shift(self) -> Shift:
        """Which pixels are paired."""
        return Shift(self.shape, self.offset, self.first)

    @property
    def n_labels(self) -> int:
        """Labels per variable."""
        return int(self.tables.shape[1])

    def explicit(self) -> Tables:
        """The same energies with a list of edges.  # (m, 2), (T, K, K), (m,)"""
        m = self.shift.n_edges
        index = np.zeros(m, dtype=np.int64) if self.index is None else self.index
        return self.shift.edges(), self.tables, index

    def validate(self, layout: Layout) -> None:
        end = self.first + self.shift.n_pixels
        if end > layout.n_vars:
            raise InputError(
                f"a grid of shape {self.shape} needs variables {self.first} to {end - 1}, "
                f"expected at most {layout.n_vars - 1}"
            )
        if layout.common == self.n_labels:
            return
        wrong = layout.cardinalities[self.first : end] != self.n_labels
        if wrong.any():
            v = self.first + int(np.flatnonzero(wrong)[0])
            raise InputError(
                f"{layout.show(v)} has {int(layout.cardinalities[v])} label(s), but the grid's "
                f"tables have {self.n_labels}"
            )

    def _per_edge(self, numbers: Floats) -> Floats:
        """A number of each table, for each pair.  # (T,) -> (*sizes) or (1,)"""
        return numbers if self.index is None else numbers[self.index].reshape(self.shift.sizes)

    def _maps(self, layout: Layout, values: Floats) -> Floats:
        """The grid's part of a flat state.  # (size,) -> (*shape, K), a view"""
        start = layout.start(self.first)
        return self.shift.over_pixels(values[start : start + self.shift.n_pixels * self.n_labels])

    def labelling_energy(self, layout: Layout, labels: Ints) -> float:
        s = self.shift
        grid = labels[self.first : self.first + s.n_pixels].reshape(self.shape)
        index = 0 if self.index is None else self.index.reshape(s.sizes)
        return float(self.tables[index, grid[s.here], grid[s.there]].sum())

    def add_gradient(self, layout: Layout, q: Floats, out: Floats) -> None:
        s = self.shift
        seen, to = self._maps(layout, q), self._maps(layout, out)
        for a in range(self.n_labels):
            for b in range(self.n_labels):
                energy = self._per_edge(self.tables[:, a, b])
                to[..., a][s.here] += energy * seen[..., b][s.there]
                to[..., b][s.there] += energy * seen[..., a][s.here]

    def _norms(self, layout: Layout, *, centered: bool) -> Floats:
        """Sums of the tables' norms at each variable.  # (n_vars,)"""
        s = self.shift
        count = len(self.tables)
        alone = Factor.trusted(np.array([[0, 1]] * count), self.tables, np.arange(count))
        norms = self._per_edge(alone.table_norms(0, 1, centered=centered))
        out = np.zeros(layout.n_vars)
        grid = out[self.first : self.first + s.n_pixels].reshape(self.shape)
        grid[s.here] += norms
        grid[s.there] += norms
        return out

    def curvature(self, layout: Layout) -> Floats:
        return self._norms(layout, centered=True)

    def lipschitz(self, layout: Layout) -> float:
        return float(self._norms(layout, centered=False).max(initial=0.0))

    def workspace(self, layout: Layout) -> int:
        m = self.shift.n_edges
        if self.n_labels == 2:
            return EDGE_BYTES * m + 2 * self.tables.nbytes
        return 2 * m * (SLOT_BYTES + 16 * self.n_labels) + 4 * self.tables.nbytes

    def neighbors(self, layout: Layout) -> Ints:
        return self.shift.edges()

    def lower(self, layout: Layout, builder: Builder) -> None:
        builder.add_grid(self.shift, self.tables, self.index)

    def as_tables(self, layout: Layout) -> Iterator[Tables]:
        yield self.explicit()
