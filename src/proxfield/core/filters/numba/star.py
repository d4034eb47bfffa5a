"""The blur along all axes of the lattice at once, compiled: a vertex adds up lists of rows.

A list names the vertex itself first, twice, and each neighbor once, since in the outer blurs a
vertex keeps two shares and gets one from each neighbor; missing neighbors aren't in it. The first
of three blurs reads the rows of chunks as splatted (a vertex may have several), the last writes
them, so vertices and rows are never copied into each other.
"""

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray

from proxfield.core.common.arrays import Floats, Ints
from proxfield.core.compiled.jit import parallel_kernel
from proxfield.core.compiled.simd import LANES, add_scaled, put_scaled, sum_listed
from proxfield.core.filters.numba.lattice import CHANNEL_VERTICES, VERTICES, Indices, Points


def vertex_lists(near: NDArray[np.int32]) -> tuple[Ints, Indices]:
    """The list of each vertex: (first of each, members of all).

    near: Neighbors back and forth along each axis, −1 for none.  # (vertices, axes, 2)
    """
    n, axes, _ = near.shape
    listed = np.empty((n, 2 + 2 * axes), dtype=np.int32)
    listed[:, :2] = np.arange(n)[:, None]
    listed[:, 2:] = near.reshape(n, 2 * axes)
    at = np.flatnonzero(listed.ravel() >= 0)
    first = np.searchsorted(at, np.arange(n + 1) * (2 + 2 * axes))
    return first, listed.ravel()[at].view(np.uint32)


def join_lists(
    start: Ints, member: Indices, inner_start: Ints, inner: Indices
) -> tuple[Ints, Indices]:
    """Lists of lists: for each member of a list, all members of its own list.

    Example:
        >>> start, member = join_lists(
        ...     np.array([0, 2, 3]), np.array([1, 0, 1], "u4"), np.array([0, 1, 3]),
        ...     np.array([7, 8, 9], "u4"),
        ... )
        >>> start.tolist(), member.tolist()
        ([0, 3, 5], [8, 9, 7, 8, 9])
    """
    first = np.zeros(len(start), dtype=np.int64)
    fill_lists(start, member, inner_start, inner, first, member[:0])
    np.cumsum(first, out=first)
    out = np.empty(first[-1], dtype=np.uint32)
    fill_lists(start, member, inner_start, inner, first, out)
    return first, out


@parallel_kernel
def fill_lists(
    start: Ints, member: Indices, inner_start: Ints, inner: Indices, first: Ints, out: Indices
) -> None:
    """`join_lists`: the lengths into ``first`` if there is no room for members, else these."""
    n = len(start) - 1
    for task in numba.prange((n + VERTICES - 1) // VERTICES):
        for v in range(task * VERTICES, min(n, (task + 1) * VERTICES)):
            at = 0 if len(out) == 0 else first[v]
            for k in range(start[v], start[v + 1]):
                a, b = inner_start[member[k]], inner_start[member[k] + 1]
                if len(out) > 0:
                    for r in range(a, b):
                        out[at + r - a] = inner[r]
                at += b - a
            if len(out) == 0:
                first[v + 1] = at


@parallel_kernel
def to_vertices(
    start: Ints, member: Indices, share: float, more: float, here: Floats, there: Floats
) -> None:
    """The first blur, from rows by their lists; and the second, from vertices.

    In the second ``more`` of the vertex itself is kept; in the first it is 0.  # (…, width)
    """
    n = len(start) - 1
    width = here.shape[1]
    source, target = here.reshape(-1), there.reshape(-1)
    for task in numba.prange((n + VERTICES - 1) // VERTICES):
        for v in range(task * VERTICES, min(n, (task + 1) * VERTICES)):
            count = start[v + 1] - start[v]
            sum_listed(target, v * width, source, width, member, start[v], count, share)
            if more != 0.0:
                for at in range(v * width, (v + 1) * width, LANES):
                    add_scaled(target, at, source, at, more)


@parallel_kernel
def vertices_to_rows(
    start: Ints, member: Indices, share: float, row_start: Ints, row: Indices, vertices: Floats,
    rows: Floats,
) -> None:  # fmt: skip
    """The last blur, into all rows of each vertex.  # (n_vertices, width) -> (n_rows, width)"""
    n = len(start) - 1
    width = rows.shape[1]
    source, target = vertices.reshape(-1), rows.reshape(-1)
    for task in numba.prange((n + VERTICES - 1) // VERTICES):
        for v in range(task * VERTICES, min(n, (task + 1) * VERTICES)):
            count = start[v + 1] - start[v]
            first = np.int64(row[row_start[v]]) * width
            sum_listed(target, first, source, width, member, start[v], count, share)
            for k in range(row_start[v] + 1, row_start[v + 1]):
                to = np.int64(row[k]) * width
                for l in range(0, width, LANES):
                    put_scaled(target, to + l, target, first + l, 1.0)


@parallel_kernel
def blur_one_star(
    start: Ints, member: Indices, share: float, more: float, here: Floats, out: Floats
) -> None:
    """One blur of one channel; ``more`` of each vertex itself is kept."""
    n = len(start) - 1
    for task in numba.prange((n + CHANNEL_VERTICES - 1) // CHANNEL_VERTICES):
        last = min(n, (task + 1) * CHANNEL_VERTICES)
        for v in range(task * CHANNEL_VERTICES, last):
            total = here[v] + here[v]  # itself comes first, twice
            for k in range(start[v] + 2, start[v + 1]):
                total += here[member[k]]
            out[v] = share * total + more * here[v]


@parallel_kernel
def self_weights_star(
    points: Points, vertex: Indices, start: Ints, member: Indices, share: float, middle: float,
    more: float, out: Floats,
) -> None:  # fmt: skip
    """K_ii of each point: wᵀ M w, where w is its own splat after one blur (K = S T M T Sᵀ).

    middle: Share of neighbors in M, which keeps two of these of a vertex and ``more``.
    """
    row, weight, chunk = points.row, points.weight, points.chunk
    run, first, end = points.chunks
    corners = row.shape[1]
    for c in numba.prange(len(chunk) - 1):
        blurred = np.zeros(len(start) - 1)
        live = np.empty(corners * (2 * corners + 1), np.int64)  # itself and all neighbors
        for r in range(run[c], run[c + 1]):
            for i in range(first[r], end[r]):
                count = 0
                for k in range(corners):
                    v = vertex[chunk[c] + row[i, k]]
                    if weight[i, k] > 0:
                        for m in range(start[v], start[v + 1]):
                            u = member[m]
                            if blurred[u] == 0.0:
                                live[count] = u
                                count += 1
                            blurred[u] += share * weight[i, k]
                total = 0.0
                for k in range(count):
                    u = live[k]
                    seen = more * blurred[u]
                    for m in range(start[u], start[u + 1]):
                        seen += middle * blurred[member[m]]
                    total += blurred[u] * seen
                for k in range(count):
                    blurred[live[k]] = 0.0
                out[i] = total
