"""The permutohedral lattice: Gaussian filtering of many points in time linear in their number.

Points are splatted onto the corners of the simplex they lie in, the values at the lattice's
vertices are blurred along its d + 1 axes, and sliced back. Blurs along different axes don't
commute where vertices are missing, so blurring one way is not symmetric. Here the blur is
B = C Cᵀ, all axes one way and then the same axes back: symmetric to the last bit's rounding,
and without negative eigenvalues, by construction. Two blurs instead of one allow a finer
lattice (its scale keeps the total variance that of the Gaussian), and vertices that no point
touches but that lie between vertices that are touched are added, since mass that is blurred
into a missing vertex is lost: together these make the error a third to a half smaller than the
usual lattice's.
"""

from __future__ import annotations

import copy
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from proxfield.common.arrays import Floats
from proxfield.compiled.jit import max_threads, threads_for
from proxfield.compiled.simd import LANES, padded
from proxfield.filters.geometry import MIN_TOUCHED, NEIGHBOR_SHARE, axis_scales, peak, vertex_codes
from proxfield.filters.numba import lattice as kernels
from proxfield.filters.numba import lattice_build as building
from proxfield.filters.numba.lattice import CACHE_BYTES, CHUNK, FEW_VERTICES, Points, make_chunks
from proxfield.filters.plan import HostPlan, check_features

LONGEST_ROW = 2**16
"""Pixels in a row of an image that is known for one."""
CHANNELS = 32
"""Channels filtered together by `apply`."""


def image_width(features: Floats) -> int:
    """Length of an image's rows, if the points look like its pixels in order; else 0.

    Some feature then rises (or falls) along a row and starts again with the next. Only the first
    row and the first column are looked at: what is made of it is a matter of speed.

    Example:
        >>> y, x = np.mgrid[:3, :5]
        >>> image_width(np.stack([y.ravel(), x.ravel()], axis=1))
        5
        >>> image_width(np.ones((15, 2)))
        0
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


class LatticeFilter(HostPlan):
    """An approximate Gaussian filter over the permutohedral lattice.

    Args:
        features: One row per point, in units of standard deviations.  # (n, d)

    Example:
        >>> grid = np.stack(np.mgrid[:20, :20], axis=-1).reshape(-1, 2) / 3.0
        >>> lattice, one = LatticeFilter(grid), np.zeros((400, 1))
        >>> one[210] = 1.0
        >>> lattice.apply(one)[211] / lattice.apply(one)[210] > 0.9
        array([ True])
    """

    name = "lattice"

    def __init__(self, features: ArrayLike) -> None:
        points = check_features(features)
        n, d = points.shape
        self.n = n
        small = CHUNK * (d + 1) <= 2**16
        self.row = np.empty((n, d + 1), dtype=np.uint16 if small else np.int32)
        """Row of each corner of a point's simplex, counted within the point's chunk."""
        self.weight = np.empty((n, d + 1), dtype=np.float32)
        """Barycentric weights, times √`peak` (they count twice: to splat and to slice)."""
        self.width = image_width(points)
        """Points in a row of the image, or 0."""
        self.chunks = make_chunks(n, self.width)
        """Which points are handled together."""
        with threads_for(10 * self.row.size):
            self._build(points)

    def _build(self, features: Floats) -> None:
        n, d = features.shape
        factor = axis_scales(d)
        code, stride = vertex_codes(d)
        chunks = len(self.chunks.run) - 1
        together = 2 * max_threads()
        found = np.empty((together, min(n, CHUNK) * (d + 1)), dtype=np.int64)
        table = np.full(building.SLOTS, building.FREE, dtype=np.int32)
        keys, count = np.empty(0, dtype=np.int64), 0
        vertex: list[NDArray[np.uint32]] = []  # unsigned: never counted from the end
        for first in range(0, chunks, together):
            counts = np.zeros(min(together, chunks - first), dtype=np.int64)
            building.place(
                features, factor, code, np.sqrt(peak(d)), self.chunks, first, found,
                counts, self.row, self.weight,
            )  # fmt: skip
            for c, size in enumerate(counts):
                vertex.append(np.empty(size, dtype=np.uint32))
                table, keys, count = building.merge(table, keys, count, found[c, :size], vertex[-1])
        self.chunk = np.cumsum([0, *(len(v) for v in vertex)])
        """First row of each chunk.  # (chunks + 1,)"""
        self.vertex = np.concatenate([np.zeros(0, dtype=np.uint32), *vertex])
        """Vertex of each row."""
        self.touched = int(count)
        """Vertices that points touch; the others come after them."""
        own = keys[:count]
        near = np.full((d + 1, count, 2), -1, dtype=np.int32)
        building.find_neighbors(table, own, stride, near)
        added = building.bridges(*building.missing_neighbors(own, stride, near), MIN_TOUCHED)
        next_to = np.full((d + 1, count + len(added), 2), -1, dtype=np.int32)
        next_to[:, :count] = near
        building.join(table, own, building.table_of(added), added, stride, next_to)
        self.next_to = next_to.view(np.uint32)  # −1 is the largest of these
        """Neighbors along each axis; ``n_vertices`` stands for none.  # (d + 1, vertices, 2)"""
        np.minimum(self.next_to, self.next_to.shape[1], out=self.next_to)
        self.n_vertices = self.next_to.shape[1]
        self._sort_rows()

    def _sort_rows(self) -> None:
        self.start, self.member = building.rows_by_vertex(self.vertex, self.n_vertices)
        """Rows by vertex: the first of each  # (n_vertices + 1,), and all in that order."""

    def regrouped(self, width: int) -> LatticeFilter:
        """The same filter in chunks for rows of another length; shares all the rest."""
        out = copy.copy(self)
        out.width, out.row = width, np.empty_like(self.row)
        out.chunks = make_chunks(len(self.row), width)
        out.vertex, out.chunk = building.regroup(
            self.vertex, self.points, out.chunks, self.n_vertices, out.row
        )
        out._sort_rows()
        return out

    @property
    def n_rows(self) -> int:
        """Rows of all chunks."""
        return len(self.vertex)

    @property
    def points(self) -> Points:
        """What kernels read of it."""
        return Points(self.row, self.weight, self.chunk, self.chunks)

    def blur(self, rows: Floats, table: Floats, spare: Floats) -> None:
        """Rows as splatted → rows to slice from, times a compatibility.

        Args:
            rows: Changed in place.  # (n_rows, width)
            table: A number (1, 1) or a matrix (labels, labels).
            spare: To work in.  # (2 · groups of channels, n_vertices + 1 or more, LANES)
        """
        number = table[0, 0] if len(table) == 1 else table.dtype.type(1.0)
        groups = rows.shape[1] // LANES
        planes, there = spare[:groups], spare[groups : 2 * groups]
        spare[:, self.n_vertices] = 0.0  # what a missing neighbor holds
        kernels.collect(self.start, self.member, rows, planes)
        together = groups if spare.nbytes <= CACHE_BYTES else 1  # else one by one, to stay in cache
        for p in range(0, groups, together):
            some = slice(p, p + together)
            kernels.blur_planes(
                self.next_to, self.there_and_back, NEIGHBOR_SHARE, planes[some], there[some]
            )
        kernels.distribute(self.vertex, planes, number, rows)
        if len(table) > 1:
            kernels.mix_labels(rows, table)

    def workspace(self, width: int, dtype: np.dtype[np.floating]) -> Floats:
        """What `blur` works in, for rows of ``width`` channels."""
        return np.empty((2 * width // LANES, self.n_vertices + 1, LANES), dtype=dtype)

    def apply(self, values: Floats) -> Floats:
        with threads_for(self.row.size * values.shape[1]):
            return self._apply_one(values) if values.shape[1] == 1 else self._apply(values)

    def _apply_one(self, values: Floats) -> Floats:
        rows = np.empty(self.n_rows, dtype=values.dtype)
        spare = np.empty((2, self.n_vertices + 1), dtype=values.dtype)
        kernels.splat_one(self.points, values.reshape(-1), rows)
        blurred = self.blur_one(rows, spare[0], spare[1], self.n_vertices < FEW_VERTICES)
        out = np.empty_like(values)
        kernels.slice_one(self.points, self.vertex, blurred, out.reshape(-1))
        return out

    def blur_one(self, rows: Floats, here: Floats, there: Floats, few: bool) -> Floats:
        """Rows of one channel as splatted → values at the vertices, in ``here``.

        few: by one thread (in the end; adding up rows takes all).
        """
        here[self.n_vertices] = there[self.n_vertices] = 0.0
        kernels.collect_one(self.start, self.member, rows, here)
        blur = kernels.blur_few if few else kernels.blur_one
        blur(self.next_to, self.there_and_back, NEIGHBOR_SHARE, here, there)
        return here

    @cached_property
    def there_and_back(self) -> NDArray[np.int64]:
        """Axes in the order of their blurs, an even number."""
        axes = range(len(self.next_to))
        return np.array([*reversed(axes), *axes])

    def _apply(self, values: Floats) -> Floats:
        n, c = values.shape
        out = np.empty((n, c), dtype=values.dtype)
        one, ones = np.ones((1, 1), dtype=values.dtype), np.ones(n, dtype=values.dtype)
        for first in range(0, c, CHANNELS):
            part = np.ascontiguousarray(values[:, first : first + CHANNELS])
            width = part.shape[1]
            rows = np.empty((self.n_rows, padded(width)), dtype=values.dtype)
            kernels.splat(self.points, ones, part.reshape(-1), width, rows)
            self.blur(rows, one, self.workspace(rows.shape[1], values.dtype))
            seen = np.empty((n, rows.shape[1]), dtype=values.dtype)
            kernels.slice_all(self.points, rows, seen)
            out[:, first : first + width] = seen[:, :width]
        return out

    def diagonal(self) -> NDArray[np.float64]:
        return self._diagonal

    @cached_property
    def _diagonal(self) -> NDArray[np.float64]:
        out = np.empty(len(self.row))
        with threads_for(100 * self.row.size):
            kernels.self_weights(self.points, self.vertex, self.next_to, NEIGHBOR_SHARE, out)
        return out
