"""The permutohedral lattice: Gaussian filtering of many points in time linear in their number.

Points are splatted onto the corners of the simplex they lie in, the values at the lattice's
vertices are blurred, and sliced back: K = S B Sᵀ. Blurs along different axes don't commute where
vertices are missing, so blurring one way, as is usual, is not symmetric. Here B is an operator
times its own transpose: symmetric to the last bit's rounding, and without negative eigenvalues,
by construction. Two blurs instead of one allow a finer lattice.
`proxfield.core.filters.geometry.Blur` says which kinds there are.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from proxfield.core.common.arrays import Floats, Ints, group_positions
from proxfield.core.compiled.jit import max_threads, threads_for
from proxfield.core.compiled.simd import LANES, padded
from proxfield.core.filters import geometry
from proxfield.core.filters.geometry import SAMPLE_STRIDE, STAR, Blur, choose_blur, vertex_codes
from proxfield.core.filters.numba import lattice as kernels
from proxfield.core.filters.numba import lattice_build as building
from proxfield.core.filters.numba import star
from proxfield.core.filters.numba.lattice import Chunks, Indices, Points, Rows, chunk_size
from proxfield.core.filters.plan import HostPlan, check_features

LONGEST_ROW = 2**16
"""Pixels in a row of an image that is known for one."""
CHANNELS = 32
"""Channels filtered together by `apply`."""


def image_width(features: Floats) -> int:
    """Length of an image's rows, if the points look like its pixels in order; else 0.

    Some feature then rises (or falls) along a row and starts again with the next. Only the first
    row and the first column are looked at: what is made of it is a matter of speed.
    """
    n, d = features.shape
    longest = 0  # colors may repeat within a row
    for k in range(d):
        first = features[:, k]
        # strictly monotone up to where it turns back
        step = np.diff(first[: min(n, LONGEST_ROW)])
        if len(step) == 0 or step[0] == 0:
            continue
        turn = np.flatnonzero(np.sign(step) != np.sign(step[0]))
        width = int(turn[0]) + 1 if len(turn) else 0
        if 1 < width < n and n % width == 0 and (first[::width] == first[0]).all():
            longest = max(longest, width)
    return longest


def suitable_blur(points: Floats) -> Blur:
    """The blur for some points, from the vertices that a sample of them touches."""
    n, d = points.shape
    sample = np.ascontiguousarray(points[::SAMPLE_STRIDE])
    row, weight = corner_arrays(*sample.shape)
    touched = place_points(
        sample, STAR, kernels.make_chunks(len(sample), 0, chunk_size(d)), row, weight
    ).touched
    return choose_blur(n, d, touched)


def corner_arrays(n: int, d: int) -> tuple[Rows, NDArray[np.float32]]:
    """Room for rows and weights of the corners of each point's simplex.  # (n, d + 1) each"""
    return np.empty((n, d + 1), dtype=np.uint16), np.empty((n, d + 1), dtype=np.float32)


def place_points(
    features: Floats, blur: Blur, chunks: Chunks, row: Rows, weight: NDArray[np.float32]
) -> TouchedVertices:
    """Find the simplices of all points; fills `corner_arrays`."""
    n, d = features.shape
    factor, scale = geometry.axis_scales(d, blur), np.sqrt(geometry.peak(d, blur))
    code, _ = vertex_codes(d)
    number = len(chunks.run) - 1
    together = 2 * max_threads()
    found = np.empty((together, min(n, chunk_size(d)) * (d + 1)), dtype=np.int64)
    scratch = building.Scratch.make(together, d)
    table, keys, count = building.empty_table(), np.empty(0, dtype=np.int64), 0
    vertex: list[NDArray[np.uint32]] = []
    for first in range(0, number, together):
        counts = np.zeros(min(together, number - first), dtype=np.int64)
        building.place(
            features, factor, code, scale, chunks, first, found, counts, row, weight, scratch
        )
        for c, size in enumerate(counts):
            vertex.append(np.empty(size, dtype=np.uint32))
            table, keys, count = building.merge(table, keys, count, found[c, :size], vertex[-1])
    return TouchedVertices(table, keys[:count], vertex)


class RowsByVertex(NamedTuple):
    """Which rows stand for which vertex."""

    vertex: Indices  # of each row  # (n_rows,)
    start: Ints  # first of each vertex among the members  # (n_vertices + 1,)
    member: Indices  # rows in the order of their vertices  # (n_rows,)


@dataclass
class TouchedVertices:
    """Vertices that points touch."""

    table: building.Table  # hash table of the keys
    keys: Ints
    vertex: list[NDArray[np.uint32]]  # of each row, per chunk; unsigned: never from the end

    @property
    def touched(self) -> int:
        """How many there are."""
        return len(self.keys)

    def neighbors(self, stride: Ints) -> NDArray[np.int32]:
        """Neighbors back and forth along each axis, −1 for none; then the table is freed.

        stride: What a step along each axis adds to a key.  # (axes,) -> (touched, axes, 2)
        """
        near = np.full((self.touched, len(stride), 2), -1, dtype=np.int32)
        building.find_neighbors(self.table, self.keys, stride, near)
        self.table = self.table[:0].copy()
        return near


class Separable:
    """Along one axis after another, and back; with vertices between those that points touch."""

    def __init__(self, placed: TouchedVertices, stride: Ints, blur: Blur) -> None:
        near = placed.neighbors(stride)
        missed = np.empty(np.count_nonzero(near < 0), dtype=np.int64)
        times = np.zeros(len(missed), dtype=np.int32)
        count = building.find_missed(placed.keys, stride, near, missed, times)
        often = times[:count] >= geometry.MIN_TOUCHED
        keys = missed[:count][often]
        added = np.cumsum(often, dtype=np.int32)  # number of each vertex that is missed
        added += placed.touched - 1
        added[~often] = -1
        placed_count, placed.keys = placed.touched, placed.keys[:0].copy()
        beside = np.full((len(stride), placed_count + len(keys), 2), -1, dtype=np.int32)
        building.link_touched(near, added, beside)
        del near, added, missed, times  # what isn't needed any more makes room for the rest
        number = np.empty(len(keys), dtype=np.uint32)
        table, keys, count = building.merge(building.empty_table(), keys[:0], 0, keys, number)
        near = TouchedVertices(table, keys[:count], []).neighbors(stride).swapaxes(0, 1)
        np.copyto(beside[:, placed_count:], near + placed_count, where=near >= 0)
        self.next_to = beside.view(np.uint32)
        """Neighbors along each axis; ``n_vertices`` stands for none.  # (d + 1, vertices, 2)"""
        number = building.renumber(self.next_to)
        for vertex in placed.vertex:
            vertex[:] = number[vertex]
        self.n_vertices = self.next_to.shape[1]
        self.share = blur.share(len(stride) - 1)

    @cached_property
    def there_and_back(self) -> NDArray[np.int64]:
        """Axes in the order of their blurs, an even number."""
        axes = range(len(self.next_to))
        return np.array([*reversed(axes), *axes])

    def _along_axes(self, here: Floats, there: Floats) -> Iterator[tuple[Indices, Floats, Floats]]:
        """Neighbors along one axis after another, from and into which array values are blurred."""
        for k, axis in enumerate(self.there_and_back):
            yield self.next_to[axis], *((here, there) if k % 2 == 0 else (there, here))

    def workspace(self, own: RowsByVertex, width: int, dtype: np.dtype[np.floating]) -> Floats:
        """What `rows` works in, for rows of ``width`` channels."""
        # (2 · groups of channels, n_vertices + 1 or more, LANES)
        return np.empty((2 * width // LANES, self.n_vertices + 1, LANES), dtype=dtype)

    def rows(self, own: RowsByVertex, rows: Floats, factor: float, spare: Floats) -> Floats:
        """Rows as splatted → rows to slice from, times a factor.  # (n_rows, width)

        The result is in one of the two arrays; the other one is the workspace from then on.
        """
        groups = rows.shape[1] // LANES
        planes, there = spare[:groups], spare[groups : 2 * groups]
        spare[:, self.n_vertices] = 0.0  # what a missing neighbor holds
        kernels.collect(own.start, own.member, rows, planes)
        together = groups if spare.nbytes <= kernels.CACHE_BYTES else 1  # or one by one
        for p in range(0, groups, together):
            some = slice(p, p + together)
            main, other = planes[some].reshape(-1), there[some].reshape(-1)
            for near, a, b in self._along_axes(main, other):
                kernels.blur_axis(
                    near, self.share, len(planes[some]), planes.shape[1] * LANES, a, b
                )
        kernels.distribute(own.vertex, planes, rows.dtype.type(factor), rows)
        return rows

    def one(self, here: Floats, there: Floats, few: bool) -> Floats:
        """One number per vertex, blurred, in one of two arrays; few: by one thread.

        here: The numbers; overwritten.  # (n_vertices + 1,)
        """
        here[self.n_vertices] = there[self.n_vertices] = 0.0
        if few:
            kernels.blur_few(self.next_to, self.there_and_back, self.share, here, there)
            return here
        for near, a, b in self._along_axes(here, there):
            kernels.blur_axis_one(near, self.share, a, b)
        return here

    def self_weights(self, points: Points, vertex: Indices, out: Floats) -> None:
        """K_ii of each point.  # (n,)"""
        kernels.self_weights(points, vertex, self.next_to, self.share, out)


class Star:
    """Along all axes at once, three times; over the vertices that points touch."""

    def __init__(self, placed: TouchedVertices, stride: Ints, blur: Blur) -> None:
        self.start, self.member = star.vertex_lists(placed.neighbors(stride))
        """What each vertex adds up: first of each list  # (n_vertices + 1,), and all lists."""
        self.n_vertices = placed.touched
        self.share = blur.share(len(stride) - 1)
        self.middle = blur.middle_share(len(stride) - 1)
        self.more = 0.5 - 2 * self.middle
        """What the blur in the middle keeps of a vertex besides two shares."""
        self._by_row: tuple[RowsByVertex, tuple[Ints, Indices]] | None = None

    def workspace(self, own: RowsByVertex, width: int, dtype: np.dtype[np.floating]) -> Floats:
        return np.empty((len(own.vertex), width), dtype=dtype)

    def rows(self, own: RowsByVertex, rows: Floats, factor: float, spare: Floats) -> Floats:
        kind, lists = rows.dtype.type, (self.start, self.member)
        if self._by_row is None or self._by_row[0] is not own:
            self._by_row = own, star.join_lists(*lists, own.start, own.member)
        # there are at least as many rows as vertices, so values at vertices fit into either array
        star.to_vertices(*self._by_row[1], kind(self.share), kind(0.0), rows, spare)
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


class LatticeFilter(HostPlan):
    """An approximate Gaussian filter over the permutohedral lattice.

    Args:
        features: One row per point, in units of standard deviations.  # (n, d)
        blur: The kind of blur; by default it is chosen by how sparse the points are.

    Example:
        >>> grid = np.stack(np.mgrid[:20, :20], axis=-1).reshape(-1, 2) / 3.0
        >>> lattice, one = LatticeFilter(grid), np.zeros((400, 1))
        >>> one[210] = 1.0
        >>> lattice.apply(one)[211] / lattice.apply(one)[210] > 0.9
        array([ True])
    """

    name = "lattice"

    def __init__(self, features: ArrayLike, blur: Blur | None = None) -> None:
        points = check_features(features)
        n, d = points.shape
        self.n = n
        self.row, self.weight = corner_arrays(n, d)
        """Row of each corner of a point's simplex, counted within the point's chunk; barycentric
        weights, times √`peak` (they count twice: to splat and to slice)."""
        self._diagonal: NDArray[np.float64] | None = None
        self.width = image_width(points)
        """Points in a row of the image, or 0."""
        self.chunks = kernels.make_chunks(n, self.width, chunk_size(d))
        """Which points are handled together."""
        with threads_for(10 * self.row.size):
            self.kind = suitable_blur(points) if blur is None else blur
            """The kind of blur."""
            placed = place_points(points, self.kind, self.chunks, self.row, self.weight)
            self.touched = placed.touched
            """How many vertices points touch."""
            blurring = Star if self.kind is STAR else Separable
            self.blurring: Separable | Star = blurring(placed, vertex_codes(d)[1], self.kind)
            """The blur over all vertices."""
            self._set_rows(placed.vertex)

    def _set_rows(self, vertex: list[Indices]) -> None:
        """Which vertices the rows of each chunk stand for."""
        self.chunk = np.cumsum([0, *(len(v) for v in vertex)])
        """First row of each chunk.  # (chunks + 1,)"""
        rows = np.concatenate([np.zeros(0, dtype=np.uint32), *vertex])
        start, member = group_positions(rows.view(np.int32), self.n_vertices)
        self.own = RowsByVertex(rows, start, member.astype(np.uint32))
        """Which rows stand for which vertex."""

    def regrouped(self, width: int, most: int) -> LatticeFilter:
        """This filter in other chunks (arguments of `make_chunks`); all the rest is shared."""
        out = copy.copy(self)
        out.width, out.row = width, np.empty_like(self.row)
        out.chunks = kernels.make_chunks(len(self.row), width, most)
        vertex, chunk = building.regroup(
            self.own.vertex, self.points, out.chunks, self.n_vertices, out.row
        )
        out._set_rows(np.split(vertex, chunk[1:-1]))
        return out

    def like(self, features: Floats) -> LatticeFilter:
        return LatticeFilter(features, self.kind)

    @property
    def n_vertices(self) -> int:
        """All vertices."""
        return self.blurring.n_vertices

    @property
    def n_rows(self) -> int:
        """Rows of all chunks."""
        return len(self.own.vertex)

    @property
    def points(self) -> Points:
        """What kernels read of it."""
        return Points(self.row, self.weight, self.chunk, self.chunks)

    @property
    def nbytes(self) -> int:
        parts = [*vars(self).values(), *self.own, *vars(self.blurring).values()]
        return sum(part.nbytes for part in parts if isinstance(part, np.ndarray))

    def blur(self, rows: Floats, table: Floats, spare: Floats) -> Floats:
        """`Separable.rows`, times a compatibility: a number (1, 1) or a matrix (labels, labels)."""
        factor = float(table[0, 0]) if len(table) == 1 else 1.0
        out = self.blurring.rows(self.own, rows, factor, spare)
        if len(table) > 1:
            kernels.mix_labels(out, table)
        return out

    def apply(self, values: Floats) -> Floats:
        with threads_for(self.row.size * values.shape[1]):
            if values.shape[1] != 1:
                return self._apply(values)
            rows = np.empty(self.n_rows, dtype=values.dtype)
            spare = np.empty((2, self.n_vertices + 1), dtype=values.dtype)
            kernels.splat_one(self.points, values.reshape(-1), rows)
            few = self.n_vertices < kernels.FEW_VERTICES
            blurred = self.blur_one(rows, spare[0], spare[1], few)
            out = np.empty_like(values)
            kernels.slice_one(self.points, self.own.vertex, blurred, out.reshape(-1))
            return out

    def blur_one(self, rows: Floats, here: Floats, there: Floats, few: bool) -> Floats:
        """Rows of one channel as splatted → values at the vertices, in one of two arrays.

        few: by one thread (in the end; adding up rows takes all).
        """
        kernels.collect_one(self.own.start, self.own.member, rows, here)
        return self.blurring.one(here, there, few)

    def _apply(self, values: Floats) -> Floats:
        n, c = values.shape
        out = np.empty((n, c), dtype=values.dtype)
        one, ones = np.ones((1, 1), dtype=values.dtype), np.ones(n, dtype=values.dtype)
        for first in range(0, c, CHANNELS):
            part = np.ascontiguousarray(values[:, first : first + CHANNELS])
            width = part.shape[1]
            rows = np.empty((self.n_rows, padded(width)), dtype=values.dtype)
            kernels.splat(self.points, ones, part.reshape(-1), width, rows)
            spare = self.blurring.workspace(self.own, rows.shape[1], values.dtype)
            rows = self.blur(rows, one, spare)
            seen = np.empty((n, rows.shape[1]), dtype=values.dtype)
            kernels.slice_all(self.points, rows, seen)
            out[:, first : first + width] = seen[:, :width]
        return out

    def diagonal(self) -> NDArray[np.float64]:
        if self._diagonal is None:
            out = np.empty(len(self.row))
            with threads_for(100 * self.row.size):
                self.blurring.self_weights(self.points, self.own.vertex, out)
            self._diagonal = out
        return self._diagonal
