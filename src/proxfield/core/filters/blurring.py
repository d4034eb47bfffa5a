"""How the values at a lattice's vertices are blurred on the host; see `core.filters.geometry`.

Each blur knows the neighbors of all vertices in the form it needs. Rows are those of a lattice's
chunks (`core.filters.numba.lattice`): what is splatted comes in and what is sliced goes out.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from proxfield.core.common.arrays import Floats, Ints
from proxfield.core.compiled.simd import LANES
from proxfield.core.filters.geometry import MIN_TOUCHED, STAR, Blur
from proxfield.core.filters.numba import bridges, star
from proxfield.core.filters.numba import lattice as kernels
from proxfield.core.filters.numba import lattice_build as building
from proxfield.core.filters.numba.lattice import CACHE_BYTES, Indices, Points


class RowsByVertex(NamedTuple):
    """Which rows stand for which vertex."""

    vertex: Indices  # of each row  # (n_rows,)
    start: Ints  # first of each vertex among the members  # (n_vertices + 1,)
    member: Indices  # rows in the order of their vertices  # (n_rows,)


@dataclass
class TouchedVertices:
    """Vertices that points touch."""

    table: building.Table  # hash table of the keys
    keys: Ints  # of all vertices, the first ``touched``
    touched: int
    vertex: list[NDArray[np.uint32]]  # of each row, per chunk; unsigned: never from the end

    @property
    def touched_keys(self) -> Ints:
        """The keys that count."""
        return self.keys[: self.touched]

    def renumber(self, number: Indices) -> None:
        """Give vertices other numbers."""
        for vertex in self.vertex:
            vertex[:] = number[vertex]

    def forget_keys(self) -> None:
        """Free the memory of what is needed for finding neighbors only."""
        self.table, self.keys = self.table[:0].copy(), self.keys[:0].copy()


def neighbors(placed: TouchedVertices, stride: Ints) -> NDArray[np.int32]:
    """Neighbors back and forth along each axis, −1 for none.  # (touched, axes, 2)"""
    near = np.full((placed.touched, len(stride), 2), -1, dtype=np.int32)
    building.find_neighbors(placed.table, placed.touched_keys, stride, near)
    return near


class Blurring(ABC):
    """Neighbors of all vertices, and the blur over them."""

    n_vertices: int

    @abstractmethod
    def workspace(self, own: RowsByVertex, width: int, dtype: np.dtype[np.floating]) -> Floats:
        """What `rows` works in, for rows of ``width`` channels."""

    @abstractmethod
    def rows(self, own: RowsByVertex, rows: Floats, factor: float, spare: Floats) -> Floats:
        """Rows as splatted → rows to slice from, times a factor.

        Args:
            own: Which rows stand for which vertex.
            rows: As splatted; overwritten.  # (n_rows, width)
            factor: What they are multiplied with.
            spare: `workspace`.

        Returns:
            One of the two arrays, with the result; the other one is the workspace from then on.
        """

    @abstractmethod
    def one(self, here: Floats, there: Floats, few: bool) -> Floats:
        """One number per vertex.

        Args:
            here: The numbers; overwritten.  # (n_vertices + 1,)
            there: To work in.  # (n_vertices + 1,)
            few: By one thread.

        Returns:
            One of the two arrays, with the result.
        """

    @abstractmethod
    def self_weights(self, points: Points, vertex: Indices, out: Floats) -> None:
        """K_ii of each point.  # (n,)"""


class Separable(Blurring):
    """Along one axis after another, and back; with vertices between those that points touch.

    Args:
        placed: The vertices that points touch.
        stride: What a step along each axis adds to a key.  # (d + 1,)
        blur: The kind of blur.
    """

    def __init__(self, placed: TouchedVertices, stride: Ints, blur: Blur) -> None:
        near = neighbors(placed, stride)
        placed.table = placed.table[:0].copy()
        keys, added = bridges.find_bridges(placed.touched_keys, stride, near, MIN_TOUCHED)
        placed.forget_keys()
        beside = np.full((len(stride), placed.touched + len(keys), 2), -1, dtype=np.int32)
        bridges.link_touched(near, added, beside)
        del near, added  # what isn't needed any more makes room for the rest
        self.next_to = bridges.link_bridges(beside, keys, stride)
        """Neighbors along each axis; ``n_vertices`` stands for none.  # (d + 1, vertices, 2)"""
        placed.renumber(bridges.renumber(self.next_to))
        self.n_vertices = self.next_to.shape[1]
        self.share = blur.share(len(stride) - 1)

    @cached_property
    def there_and_back(self) -> NDArray[np.int64]:
        """Axes in the order of their blurs, an even number."""
        axes = range(len(self.next_to))
        return np.array([*reversed(axes), *axes])

    def workspace(self, own: RowsByVertex, width: int, dtype: np.dtype[np.floating]) -> Floats:
        # (2 · groups of channels, n_vertices + 1 or more, LANES)
        return np.empty((2 * width // LANES, self.n_vertices + 1, LANES), dtype=dtype)

    def rows(self, own: RowsByVertex, rows: Floats, factor: float, spare: Floats) -> Floats:
        groups = rows.shape[1] // LANES
        planes, there = spare[:groups], spare[groups : 2 * groups]
        spare[:, self.n_vertices] = 0.0  # what a missing neighbor holds
        kernels.collect(own.start, own.member, rows, planes)
        together = groups if spare.nbytes <= CACHE_BYTES else 1  # else one by one, to stay in cache
        for p in range(0, groups, together):
            some = slice(p, p + together)
            kernels.blur_planes(
                self.next_to, self.there_and_back, self.share, planes[some], there[some]
            )
        kernels.distribute(own.vertex, planes, rows.dtype.type(factor), rows)
        return rows

    def one(self, here: Floats, there: Floats, few: bool) -> Floats:
        here[self.n_vertices] = there[self.n_vertices] = 0.0
        blur = kernels.blur_few if few else kernels.blur_one
        blur(self.next_to, self.there_and_back, self.share, here, there)
        return here

    def self_weights(self, points: Points, vertex: Indices, out: Floats) -> None:
        kernels.self_weights(points, vertex, self.next_to, self.share, out)


class Star(Blurring):
    """Along all axes at once, three times; over the vertices that points touch.

    Args:
        placed: The vertices that points touch.
        stride: What a step along each axis adds to a key.  # (d + 1,)
        blur: The kind of blur.
    """

    def __init__(self, placed: TouchedVertices, stride: Ints, blur: Blur) -> None:
        near = neighbors(placed, stride)
        placed.forget_keys()
        self.start, self.member = star.vertex_lists(near)
        """What each vertex adds up: first of each list  # (n_vertices + 1,), and all lists."""
        self.n_vertices = placed.touched
        self.share = blur.share(len(stride) - 1)
        self.middle = blur.middle_share(len(stride) - 1)
        self.more = 0.5 - 2 * self.middle
        """What the blur in the middle keeps of a vertex besides two shares."""
        self._by_row: tuple[RowsByVertex, tuple[Ints, Indices]] | None = None

    def _row_lists(self, own: RowsByVertex) -> tuple[Ints, Indices]:
        if self._by_row is None or self._by_row[0] is not own:
            self._by_row = own, star.join_lists(self.start, self.member, own.start, own.member)
        return self._by_row[1]

    def workspace(self, own: RowsByVertex, width: int, dtype: np.dtype[np.floating]) -> Floats:
        return np.empty((len(own.vertex), width), dtype=dtype)

    def rows(self, own: RowsByVertex, rows: Floats, factor: float, spare: Floats) -> Floats:
        kind, lists = rows.dtype.type, (self.start, self.member)
        # there are at least as many rows as vertices, so values at vertices fit into either array
        star.to_vertices(*self._row_lists(own), kind(self.share), kind(0.0), rows, spare)
        star.to_vertices(*lists, kind(self.middle), kind(self.more), spare, rows)
        star.vertices_to_rows(*lists, kind(self.share * factor), own.start, own.member, rows, spare)
        return spare

    def one(self, here: Floats, there: Floats, few: bool) -> Floats:
        kind, lists = here.dtype.type, (self.start, self.member)
        star.blur_one_star(*lists, kind(self.share), kind(0.0), here, there)
        star.blur_one_star(*lists, kind(self.middle), kind(self.more), there, here)
        star.blur_one_star(*lists, kind(self.share), kind(0.0), here, there)
        return there

    def self_weights(self, points: Points, vertex: Indices, out: Floats) -> None:
        star.self_weights_star(
            points, vertex, self.start, self.member, self.share, self.middle, self.more, out
        )


def make_blurring(placed: TouchedVertices, stride: Ints, blur: Blur) -> Blurring:
    """The blur over all vertices; arguments of `Separable`."""
    return Star(placed, stride, blur) if blur is STAR else Separable(placed, stride, blur)
