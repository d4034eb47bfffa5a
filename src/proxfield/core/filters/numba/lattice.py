"""The permutohedral lattice, compiled: filtering over its vertices.

Points are handled in chunks. Each chunk numbers the vertices it touches by itself (its *rows*),
so that threads build and splat without sharing anything, and the rows of one chunk stay in
cache; rows of all chunks that stand for one vertex are then added up in a fixed order. The same
input gives the same bits on any number of threads.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from proxfield.core.common.arrays import Doubles, Floats, Ints
from proxfield.core.compiled.jit import inlined, kernel, parallel_kernel
from proxfield.core.compiled.simd import (
    LANES,
    add_scaled,
    blend,
    clear,
    gather_row,
    load_row,
    put_scaled,
    scatter_row,
)

CHUNK = 8192
"""Maximum number of points per chunk."""
RUN = 128
"""Maximum number of points per run, a multiple of 16."""
FEW_VERTICES = 200_000
"""Vertices below which one channel is blurred on one thread."""
CACHE_BYTES = 2**24
"""Bytes that a thread can blur in without being slowed down by memory."""
VERTICES = 512
"""Vertices that a task blurs."""
CHANNEL_VERTICES = 4096
"""Vertices that a task blurs where there is one channel only."""

Indices = NDArray[np.uint32]
"""Of vertices or rows; unsigned, so that none is counted from the end."""
Rows = NDArray[np.uint16]
"""Rows of corners within a chunk; see `chunk_size`."""


class Chunks(NamedTuple):
    """Which points are handled together: a chunk is some *runs*, a run consecutive points."""

    run: Ints  # first run of each chunk  # (chunks + 1,) int64
    begin: Ints  # first point of each run  # (runs,) int64
    end: Ints  # the point after its last  # (runs,) int64


class Points(NamedTuple):
    """Where points lie among the rows: the part of a lattice that iterations read."""

    row: Rows  # row of each corner, within the chunk  # (n, d + 1) uint16
    weight: NDArray[np.float32]  # weight of each corner  # (n, d + 1) float32
    chunk: Ints  # first row of each chunk  # (chunks + 1,)
    chunks: Chunks


def chunk_size(d: int) -> int:
    """Maximum number of points per chunk so that 16 bits number its rows; d features.

    Example:
        >>> chunk_size(5), chunk_size(8)
        (8192, 4096)
    """
    size = CHUNK
    while size * (d + 1) > 2**16:
        size //= 2
    return size


def make_chunks(n: int, width: int = 0, most: int = CHUNK) -> Chunks:
    """Points divided into chunks: blocks of an image, which touch fewer vertices than strips.

    width: Points in a row of the image they are the pixels of; 0 if they aren't.
    most: Maximum number of points per chunk, a multiple of ``RUN``.
    """
    if width <= RUN or n <= most or n % width:
        begin = np.arange(0, n, RUN)
        run = np.append(np.arange(0, len(begin), most // RUN), len(begin))
        return Chunks(run, begin, np.minimum(begin + RUN, n))
    height = n // width
    across = -(-width // RUN)
    long = -(-width // (16 * across)) * 16  # whole vectors
    down = -(-height // (most // long))
    left = np.arange(0, width, long)
    top = np.arange(down + 1) * height // down
    blocks = [np.arange(a, b) * width + left[:, None] for a, b in pairwise(top)]
    begin = np.concatenate([block.ravel() for block in blocks])
    size = np.repeat(np.diff(top), len(left))  # runs of each chunk
    end = begin + np.minimum(long, width - begin % width)
    return Chunks(np.append(0, np.cumsum(size)), begin, end)


@parallel_kernel
def splat(points: Points, factor: Floats, values: Floats, stride: int, rows: Floats) -> None:
    """Spread values, times each point's factor, over rows. values: flat, ``stride`` a point."""
    corners = points.row.shape[1]
    corner, weight, chunk = points.row.reshape(-1), points.weight.reshape(-1), points.chunk
    run, first, end = points.chunks
    width = rows.shape[1]
    flat = rows.reshape(-1)
    for c in numba.prange(len(chunk) - 1):
        begin = chunk[c]
        for r in range(begin * width, chunk[c + 1] * width, LANES):
            clear(flat, r)
        mine = np.zeros(width, dtype=rows.dtype)
        for r in range(run[c], run[c + 1]):
            for i in range(first[r], end[r]):
                load_row(mine, 0, values, i * stride, stride)
                scatter_row(
                    flat, mine, 0, width, corner, weight, i * corners, corners, begin, factor[i]
                )


@parallel_kernel
def slice_all(points: Points, rows: Floats, out: Floats) -> None:
    """out[i] = the filtered values of each point.  # (n, width)"""
    corners = points.row.shape[1]
    width = rows.shape[1]
    corner, weight, chunk = points.row.reshape(-1), points.weight.reshape(-1), points.chunk
    run, first, end = points.chunks
    flat, seen = rows.reshape(-1), out.reshape(-1)
    for c in numba.prange(len(chunk) - 1):
        begin = chunk[c]
        for r in range(run[c], run[c + 1]):
            for i in range(first[r], end[r]):
                for l in range(width):
                    out[i, l] = 0.0
                gather_row(
                    seen, i * width, flat, width, corner, weight, i * corners, corners, begin, 1.0
                )


@parallel_kernel
def collect(start: Ints, member: Indices, rows: Floats, planes: Floats) -> None:
    """Add up the rows of each vertex, in order; eight channels to a plane.

    planes: (width / 8, vertices + 1, 8)
    """
    n = len(start) - 1
    groups = len(planes)
    width = rows.shape[1]
    source = rows.reshape(-1)
    target = planes.reshape(-1)
    plane = planes.shape[1] * LANES
    for task in numba.prange((n + VERTICES - 1) // VERTICES):
        for v in range(task * VERTICES, min(n, (task + 1) * VERTICES)):
            own = v * LANES
            if start[v] == start[v + 1]:
                for g in range(groups):
                    clear(target, own + g * plane)
                continue
            at = member[start[v]] * width
            for g in range(groups):
                put_scaled(target, own + g * plane, source, at + g * LANES, 1.0)
            for r in range(start[v] + 1, start[v + 1]):
                at = member[r] * width
                for g in range(groups):
                    add_scaled(target, own + g * plane, source, at + g * LANES, 1.0)


@parallel_kernel
def blur_axis(near: Indices, side: float, groups: int, stride: int, a: Floats, b: Floats) -> None:
    """Blur along one axis: a vertex keeps 1 − 2·side of itself and gets ``side`` of both neighbors.

    All planes in one loop, because a loop over threads takes time to start.
    """
    n = len(near)
    middle = 1.0 - 2.0 * side
    tasks = (n + VERTICES - 1) // VERTICES
    for task in numba.prange(tasks * groups):
        base = (task // tasks) * stride
        first = (task % tasks) * VERTICES
        for v in range(first, min(n, first + VERTICES)):
            at = base + v * LANES
            left, right = base + near[v, 0] * LANES, base + near[v, 1] * LANES
            blend(b, at, a, at, left, right, middle, side)


@parallel_kernel
def distribute(vertex: Indices, planes: Floats, weight: float, rows: Floats) -> None:
    """Give each row its vertex's values times a weight."""
    n = len(vertex)
    groups = len(planes)
    width = rows.shape[1]
    source = planes.reshape(-1)
    target = rows.reshape(-1)
    plane = planes.shape[1] * LANES
    for task in numba.prange((n + VERTICES - 1) // VERTICES):
        for r in range(task * VERTICES, min(n, (task + 1) * VERTICES)):
            at = vertex[r] * LANES
            for g in range(groups):
                put_scaled(target, r * width + g * LANES, source, at + g * plane, weight)


def share_tasks(costs: Ints, threads: int) -> Ints:
    """Consecutive tasks for each thread, of about the same cost: bounds.  # (threads + 1,)"""
    middle = np.cumsum(costs) - costs / 2
    shares = np.arange(1, threads) * (costs.sum() / threads)
    return np.concatenate([[0], np.searchsorted(middle, shares), [len(costs)]])


@parallel_kernel
def blur_apart(
    start: tuple[Ints, ...], member: tuple[Indices, ...], vertex: tuple[Indices, ...],
    next_to: tuple[Indices, ...], order: tuple[Ints, ...], side: Doubles, weight: Floats,
    rows: tuple[Floats, ...], bounds: Ints, spare: Floats,
) -> None:  # fmt: skip
    """`collect`, blurs along all axes and `distribute` for several lattices at once.

    A task is eight channels of one lattice, which a thread takes all the way, so that none waits
    for another: for lattices that fit into caches, and at least as many tasks as threads.

    bounds: First task of each thread, and the end; see `share_tasks`.  # (threads + 1,)
    spare: (threads, 2, most vertices + 1, 8)
    """
    groups = rows[0].shape[1] // LANES
    for thread in numba.prange(len(spare)):
        here, there = spare[thread, 0].reshape(-1), spare[thread, 1].reshape(-1)
        for task in range(bounds[thread], bounds[thread + 1]):
            t = task // groups
            blur_group(
                start[t], member[t], vertex[t], next_to[t], order[t], side[t], weight[t],
                rows[t], task % groups * LANES, here, there,
            )  # fmt: skip


@inlined
def blur_group(
    start: Ints, member: Indices, vertex: Indices, next_to: Indices, order: Ints, side: float,
    weight: float, rows: Floats, channel: int, here: Floats, there: Floats,
) -> None:  # fmt: skip
    """Eight channels of one lattice, from ``channel`` on."""
    width, flat = rows.shape[1], rows.reshape(-1)
    n = next_to.shape[1]
    middle = 1.0 - 2.0 * side
    clear(here, n * LANES)  # what a missing neighbor holds
    clear(there, n * LANES)
    for v in range(n):
        clear(here, v * LANES)
        for r in range(start[v], start[v + 1]):
            add_scaled(here, v * LANES, flat, member[r] * width + channel, 1.0)
    for k in range(len(order)):
        near = next_to[order[k]]
        a = here if k % 2 == 0 else there
        b = there if k % 2 == 0 else here
        for v in range(n):
            at, left, right = v * LANES, near[v, 0] * LANES, near[v, 1] * LANES
            blend(b, at, a, at, left, right, middle, side)
    for r in range(len(vertex)):
        put_scaled(flat, r * width + channel, here, vertex[r] * LANES, weight)


@parallel_kernel
def mix_labels(rows: Floats, table: Floats) -> None:
    """Multiply each row with a matrix over the labels."""
    n = len(rows)
    labels = len(table)
    for task in numba.prange((n + VERTICES - 1) // VERTICES):
        mine = np.empty(labels, dtype=rows.dtype)
        for r in range(task * VERTICES, min(n, (task + 1) * VERTICES)):
            for l in range(labels):
                mine[l] = rows[r, l]
                rows[r, l] = 0.0
            for m in range(labels):
                for l in range(labels):
                    rows[r, l] += mine[m] * table[m, l]


@parallel_kernel
def self_weights(
    points: Points, vertex: Indices, next_to: Indices, side: float, out: Floats
) -> None:
    """K_ii of each point: the squared norm of its own splat, blurred by half (K = S C Cᵀ Sᵀ)."""
    row, weight, chunk = points.row, points.weight, points.chunk
    run, first, end = points.chunks
    axes, vertices, _ = next_to.shape
    for c in numba.prange(len(chunk) - 1):
        here, there = np.zeros(vertices + 1), np.zeros(vertices + 1)
        live, after = np.empty(vertices + 1, np.int32), np.empty(vertices + 1, np.int32)
        for r in range(run[c], run[c + 1]):
            for i in range(first[r], end[r]):
                count = 0
                for k in range(axes):
                    if weight[i, k] > 0:
                        v = vertex[chunk[c] + row[i, k]]
                        here[v] = weight[i, k]
                        live[count] = v
                        count += 1
                for axis in range(axes - 1, -1, -1):
                    fresh = 0
                    for k in range(count):
                        v = live[k]
                        for near in range(3):
                            w = v if near == 2 else next_to[axis, v, near]
                            if w < vertices:
                                if there[w] == 0.0:
                                    after[fresh] = w
                                    fresh += 1
                                there[w] += here[v] * (1.0 - 2.0 * side if near == 2 else side)
                        here[v] = 0.0
                    here, there = there, here
                    live, after = after, live
                    count = fresh
                total = 0.0
                for k in range(count):
                    total += here[live[k]] ** 2
                    here[live[k]] = 0.0
                out[i] = total


@parallel_kernel
def splat_one(points: Points, values: Floats, rows: Floats) -> None:
    """`splat` for one number per point.  # rows: (n_rows,)"""
    row, weight, chunk = points.row, points.weight, points.chunk
    run, first, end = points.chunks
    corners = row.shape[1]
    for c in numba.prange(len(chunk) - 1):
        mine = rows[chunk[c] : chunk[c + 1]]
        mine[:] = 0.0
        for r in range(run[c], run[c + 1]):
            for i in range(first[r], end[r]):
                for k in range(corners):
                    mine[row[i, k]] += weight[i, k] * values[i]


@parallel_kernel
def collect_one(start: Ints, member: Indices, rows: Floats, vertices: Floats) -> None:
    """`collect` for one channel."""
    n = len(start) - 1
    for task in numba.prange((n + VERTICES - 1) // VERTICES):
        last = min(n, (task + 1) * VERTICES)
        collect_some(start, member, rows, vertices, task * VERTICES, last)


@inlined
def collect_some(
    start: Ints, member: Indices, rows: Floats, vertices: Floats, first: int, end: int
) -> None:
    """Add up the rows of some vertices."""
    for v in range(first, end):
        total = 0.0
        for r in range(start[v], start[v + 1]):
            total += np.float64(rows[member[r]])
        vertices[v] = total


@parallel_kernel
def blur_axis_one(near: Indices, side: float, a: Floats, b: Floats) -> None:
    """One axis, for one channel."""
    for task in numba.prange((len(near) + CHANNEL_VERTICES - 1) // CHANNEL_VERTICES):
        end = min(len(near), (task + 1) * CHANNEL_VERTICES)
        blur_some(near, side, a, b, task * CHANNEL_VERTICES, end)


@kernel
def blur_few(next_to: Indices, order: Ints, side: float, here: Floats, there: Floats) -> None:
    """Blurs along all axes for one channel, on one thread: waking others would cost more."""
    for k in range(len(order)):
        a = here if k % 2 == 0 else there
        b = there if k % 2 == 0 else here
        blur_some(next_to[order[k]], side, a, b, 0, next_to.shape[1])


@parallel_kernel
def blur_apart_one(
    start: tuple[Ints, ...], member: tuple[Indices, ...], vertex: tuple[Indices, ...],
    next_to: tuple[Indices, ...], order: tuple[Ints, ...], side: Doubles, weight: Floats,
    rows: tuple[Floats, ...], spare: Floats,
) -> None:  # fmt: skip
    """`blur_apart` for one channel, one thread a lattice.  # spare: (lattices, 2, vertices + 1)"""
    for t in numba.prange(len(weight)):  # tuples may be longer
        mine, here, named = rows[t], spare[t, 0], vertex[t]
        n = next_to[t].shape[1]
        spare[t, :, n] = 0.0  # what a missing neighbor holds
        collect_some(start[t], member[t], mine, here, 0, n)
        blur_few(next_to[t], order[t], side[t], here, spare[t, 1])
        for r in range(len(named)):
            mine[r] = here[named[r]] * weight[t]


@inlined
def blur_some(near: Indices, side: float, a: Floats, b: Floats, first: int, end: int) -> None:
    """One axis for some vertices."""
    middle = 1.0 - 2.0 * side
    for v in range(first, end):
        b[v] = middle * a[v] + side * (a[near[v, 0]] + a[near[v, 1]])


@parallel_kernel
def slice_one(points: Points, vertex: Indices, vertices: Floats, out: Floats) -> None:
    """The filtered value of each point, directly from the vertices, for one channel.  # (n,)"""
    row, weight, chunk = points.row, points.weight, points.chunk
    run, first, end = points.chunks
    corners = row.shape[1]
    for c in numba.prange(len(chunk) - 1):
        mine = vertex[chunk[c] : chunk[c + 1]]
        for r in range(run[c], run[c + 1]):
            for i in range(first[r], end[r]):
                total = 0.0
                for k in range(corners):
                    total += weight[i, k] * np.float64(vertices[mine[row[i, k]]])
                out[i] = total
