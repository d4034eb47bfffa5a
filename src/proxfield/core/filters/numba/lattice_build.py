"""The permutohedral lattice, compiled: where points lie, and which vertices there are.

A vertex is known by one 64-bit key: Σ_j coordinate_j · code_j, wrapping around, with fixed random
codes. It is linear, so a step along an axis adds a constant. Two vertices have the same key with
probability 2⁻⁶⁴: under one in 10⁵ for any pair among ten million vertices. Keys are kept in the
order of their numbers; a hash table holds numbers alone, which takes half the cache.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from proxfield.core.common.arrays import Doubles, Floats, Ints
from proxfield.core.compiled.jit import embedded, inlined, kernel, parallel_kernel
from proxfield.core.filters.numba.lattice import VERTICES, Chunks, Indices, Points, Rows

BATCH = 64
"""Points that are put onto the lattice together."""
MIX = -7046029254386353131
"""An odd number with well-mixed bits (2⁶⁴ over the golden ratio)."""
FREE = -1
"""What a free slot of a table holds."""
SLOTS = 4096
"""Slots that a table starts with: they stay in the fastest cache."""

Table = NDArray[np.int32]
"""A hash table: the number of the key in each slot, or `FREE`."""


def empty_table() -> Table:
    """A hash table without keys."""
    return np.full(SLOTS, FREE, dtype=np.int32)


@inlined
def locate(
    features: Floats, factor: Floats, code: Ints, scale: float, elevated: Doubles,
    rest: NDArray[np.float32], rank: NDArray[np.int32], key: Ints, weight: NDArray[np.float32],
) -> None:  # fmt: skip
    """The simplices that a few points lie in (Adams, Baek, Davis 2010).

    Loops over the points are innermost, so that they become vector instructions. Positions are
    float64; what is left of them after rounding, at most 1 in size, is float32.

    Args:
        features: (m, d), with m ≤ `BATCH`.
        factor: Scales of the features.  # (d,)
        code: What a coordinate counts in a key; the last one counts nothing.  # (d + 1,)
        scale: Multiplies the weights.
        elevated, rest, rank: As in `Scratch`.
        key: Keys of the d + 1 corners, out.  # (d + 1, BATCH)
        weight: Their barycentric weights, out.  # (d + 2, BATCH) float32
    """
    m, d = features.shape
    inverse = 1.0 / (d + 1)
    total, excess = elevated[d + 1], rank[d + 1]
    none, one, sides = np.int32(0), np.int32(1), np.int32(d + 1)
    zero = np.float32(0.0)
    for i in range(m):
        total[i] = 0.0
        excess[i] = none
    for k in range(d, 0, -1):
        for i in range(m):
            x = np.float64(features[i, k - 1]) * factor[k - 1]
            elevated[k, i] = (total[i] - k * x) * inverse
            total[i] += x
    for i in range(m):
        elevated[0, i] = total[i] * inverse
        key[0, i] = 0
    for k in range(d + 1):
        for i in range(m):
            nearest = np.floor(elevated[k, i] + 0.5)
            rest[k, i] = elevated[k, i] - nearest  # in units of d + 1
            whole = np.int64(nearest)
            excess[i] += np.int32(whole)
            key[0, i] += whole * code[k]
            rank[k, i] = none
    for a in range(d):
        for b in range(a + 1, d + 1):
            for i in range(m):
                less = one if rest[a, i] < rest[b, i] else none
                rank[a, i] += less
                rank[b, i] += one - less
    for k in range(d + 1):  # the rounded point may lie off the plane: step back onto it
        for i in range(m):
            r = rank[k, i] + excess[i]
            turn = (one if r < none else none) - (one if r >= sides else none)
            rank[k, i] = r + turn * sides
            rest[k, i] -= np.float32(turn)
            key[0, i] += np.int64(turn) * code[k]
    every = np.int64(0)
    for k in range(d):
        every += code[k]
    for i in range(m):
        key[0, i] *= d + 1
    for c in range(1, d + 1):  # the next corner: all coordinates + 1, that of one rank − (d + 1)
        for i in range(m):
            key[c, i] = key[c - 1, i] + every
        for k in range(d):
            step = (d + 1) * code[k]
            for i in range(m):
                key[c, i] -= step if rank[k, i] == d + 1 - c else 0
    for c in range(d + 2):
        low, high = np.int32(d - c), np.int32(d + 1 - c)
        for i in range(m):
            weight[c, i] = zero
        for k in range(d + 1):
            for i in range(m):
                x = rest[k, i]
                weight[c, i] += (x if rank[k, i] == low else zero) - (
                    x if rank[k, i] == high else zero
                )
    for i in range(m):
        weight[0, i] = (weight[0, i] + np.float32(1.0)) + weight[d + 1, i]
    for c in range(d + 1):
        for i in range(m):
            weight[c, i] = max(weight[c, i], zero) * np.float32(scale)


@inlined
def find(key: int, table: Table, keys: Ints) -> int:
    """The slot with a key's number, or the free slot where that belongs."""
    mask = len(table) - 1
    h = key * MIX
    slot = (h >> 32) & mask
    while table[slot] != FREE and keys[table[slot]] != key:
        slot = (slot + 1) & mask
    return slot


@inlined
def with_room(table: Table, keys: Ints, count: int, more: int) -> Table:
    """The table of the first ``count`` keys, or a larger one if ``more`` would crowd it."""
    size = len(table)
    while 2 * size < 3 * (count + more):
        size *= 4
    if size == len(table):
        return table
    out = np.full(size, FREE, dtype=np.int32)
    for v in range(count):
        out[find(keys[v], out, keys)] = v
    return out


class Scratch(NamedTuple):
    """What `place` works in, one of each for every chunk that is placed at the same time.

    Made outside: every kind of array that a kernel makes by itself takes time to compile.
    """

    elevated: Doubles  # (chunks, d + 2, BATCH)
    rest: NDArray[np.float32]  # (chunks, d + 1, BATCH)
    weight: NDArray[np.float32]  # (chunks, d + 2, BATCH)
    rank: NDArray[np.int32]  # (chunks, d + 2, BATCH)
    corner: Ints  # (chunks, d + 1, BATCH)

    @classmethod
    def make(cls, chunks: int, d: int) -> Scratch:
        """Arrays for a number of chunks that are placed together, and of features."""
        kinds = (2, np.float64), (1, np.float32), (2, np.float32), (2, np.int32), (1, np.int64)
        return cls(*(np.empty((chunks, d + more, BATCH), dtype=kind) for more, kind in kinds))


@embedded
def place_chunk(
    features: Floats, factor: Floats, code: Ints, scale: float, begin: Ints, end: Ints, keys: Ints,
    row: Rows, weight: NDArray[np.float32], scratch: Scratch, c: int,
) -> int:  # fmt: skip
    """Rows and weights of the points of some runs; the keys of the rows; returns how many.

    c: Which of the chunks in ``scratch`` this is.
    """
    d = features.shape[1]
    elevated, rest, bary, rank, corner = (
        scratch.elevated[c], scratch.rest[c], scratch.weight[c], scratch.rank[c], scratch.corner[c]
    )  # fmt: skip
    table = np.full(SLOTS, FREE, dtype=np.int32)
    count: int = np.int64(0)  # a plain 0 would have `with_room` compiled for it too
    for r in range(len(begin)):
        for first in range(begin[r], end[r], BATCH):
            m = min(BATCH, end[r] - first)
            some = features[first : first + m]
            locate(some, factor, code, scale, elevated, rest, rank, corner, bary)
            table = with_room(table, keys, count, m * (d + 1))
            for i in range(m):
                for k in range(d + 1):
                    key = corner[k, i]
                    slot = find(key, table, keys)
                    number = table[slot]
                    if number == FREE:
                        number = count
                        table[slot] = count
                        keys[count] = key
                        count += 1
                    row[first + i, k] = number
                    weight[first + i, k] = bary[k, i]
    return count


@parallel_kernel
def place(
    features: Floats, factor: Floats, code: Ints, scale: float, chunks: Chunks, first: int,
    keys: Ints, count: Ints, row: Rows, weight: NDArray[np.float32], scratch: Scratch,
) -> None:  # fmt: skip
    """Some chunks, over threads; ``keys`` and ``count`` have one entry for each."""
    run, begin, end = chunks
    for c in numba.prange(len(count)):
        a, b = run[first + c], run[first + c + 1]
        count[c] = place_chunk(
            features, factor, code, scale, begin[a:b], end[a:b], keys[c], row, weight, scratch, c
        )


@kernel
def regroup(
    vertex: Indices, points: Points, chunks: Chunks, total: int, row: Rows
) -> tuple[Indices, Ints]:
    """Number the rows of a lattice anew, for other chunks.

    Args:
        vertex: Of each row.
        points: As they are.
        chunks: As they shall be.
        total: Vertices.
        row: As `Points.row`, out.

    Returns:
        Vertex of each new row, and the first row of each chunk.
    """
    corners = row.shape[1]
    whose = np.empty(row.shape, dtype=np.uint32)
    run, begin, end = points.chunks
    for c in range(len(run) - 1):
        for r in range(run[c], run[c + 1]):
            for i in range(begin[r], end[r]):
                for k in range(corners):
                    whose[i, k] = vertex[points.chunk[c] + points.row[i, k]]
    run, begin, end = chunks
    seen = np.full(total, -1, dtype=np.int64)  # in which chunk …
    number = np.zeros(total, dtype=np.int32)  # … with which number
    out = np.empty(row.size, dtype=np.uint32)
    chunk = np.zeros(len(run), dtype=np.int64)
    for c in range(len(run) - 1):
        count = 0
        for r in range(run[c], run[c + 1]):
            for i in range(begin[r], end[r]):
                for k in range(corners):
                    v = whose[i, k]
                    if seen[v] != c:
                        seen[v] = c
                        number[v] = count
                        out[chunk[c] + count] = v
                        count += 1
                    row[i, k] = number[v]
        chunk[c + 1] = chunk[c] + count
    return out[: chunk[-1]].copy(), chunk


@kernel
def merge(
    table: Table, keys: Ints, count: int, more: Ints, vertex: Indices
) -> tuple[Table, Ints, int]:
    """Give a chunk's rows their vertices, new ones at the end; returns (table, keys, count)."""
    if count + len(more) > len(keys):
        longer = np.empty(2 * (count + len(more)), dtype=np.int64)
        for k in range(count):  # a slice would bring code for a message about its length
            longer[k] = keys[k]
        keys = longer
    table = with_room(table, keys, count, len(more))
    for i in range(len(more)):
        slot = find(more[i], table, keys)
        if table[slot] == FREE:
            table[slot] = count
            keys[count] = more[i]
            count += 1
        vertex[i] = table[slot]
    return table, keys, count


@parallel_kernel
def find_neighbors(table: Table, keys: Ints, stride: Ints, near: NDArray[np.int32]) -> None:
    """Neighbors of all vertices: all look forth, so nobody need look back.

    near: The neighbor one step back and forth along each axis; −1 before.  # (vertices, axes, 2)
    """
    count = len(keys)
    for task in numba.prange((count + VERTICES - 1) // VERTICES):
        for i in range(task * VERTICES, min(count, (task + 1) * VERTICES)):
            for axis in range(len(stride)):
                other = table[find(keys[i] + stride[axis], table, keys)]
                if other != FREE:
                    near[i, axis, 1] = other
                    near[other, axis, 0] = i


def renumber(beside: Indices) -> Indices:
    """Number vertices breadth first: neighbors then lie near each other in memory.

    Blurs over more vertices than fit into caches take about half the time. Returns the new numbers,
    and one that stands for none.

    beside: Neighbors, larger than any vertex for none; in new numbers afterwards, where the number
        of vertices stands for none.  # (axes, vertices, 2)
    """
    number: Indices
    order, number = breadth_first(beside)
    before = np.empty_like(beside[0])
    for plane in beside:  # one after another, to need little memory
        np.minimum(plane, len(order), out=before)
        np.take(number, before[order], out=plane)
    return number


@kernel
def find_missed(
    keys: Ints, stride: Ints, near: NDArray[np.int32], missed: Ints, times: NDArray[np.int32]
) -> int:
    """Vertices that touched ones (with these keys) miss; returns how many.

    Mass that is blurred into a vertex that isn't there is lost, so the ones that are missed often
    are added.

    Args:
        near: Their neighbors, −1 for none; −2 − k becomes the k-th missed one.
            # (touched, axes, 2)
        missed: Keys of the missed ones, out.
        times: How often each is missed, out; 0 before.
    """
    n, axes, _ = near.shape
    table = np.full(SLOTS, FREE, dtype=np.int32)
    count: int = np.int64(0)  # as in `place_chunk`
    for v in range(n):
        table = with_room(table, missed, count, 2 * axes)
        for axis in range(axes):
            for side in range(2):
                if near[v, axis, side] < 0:
                    key = keys[v] + (2 * side - 1) * stride[axis]
                    slot = find(key, table, missed)
                    other = table[slot]
                    if other == FREE:
                        other = count
                        table[slot] = count
                        missed[count] = key
                        count += 1
                    times[other] += 1
                    near[v, axis, side] = -2 - other
    return count


@parallel_kernel
def link_touched(
    near: NDArray[np.int32], added: NDArray[np.int32], beside: NDArray[np.int32]
) -> None:
    """Neighbors of touched vertices, and what these are to added ones.

    Args:
        near: As from `find_missed`.
        added: Number of each vertex that is missed, or −1 if it isn't added.
        beside: Neighbors of all vertices, out; −1 before, and then for none.  # (axes, vertices, 2)
    """
    n, axes, _ = near.shape
    for task in numba.prange((n + VERTICES - 1) // VERTICES):
        for v in range(task * VERTICES, min(n, (task + 1) * VERTICES)):
            for axis in range(axes):
                for side in range(2):
                    other = near[v, axis, side]
                    if other < 0:
                        other = added[-2 - other]
                        if other >= 0:
                            beside[axis, other, 1 - side] = v
                    beside[axis, v, side] = other


@kernel
def breadth_first(beside: Indices) -> tuple[Indices, Indices]:
    """Vertices in breadth-first order, and the number of each in it (and one that is none)."""
    axes, n, _ = beside.shape
    order, number = np.empty(n, dtype=np.uint32), np.full(n + 1, n + 1, dtype=np.uint32)
    number[n] = n  # as if it were numbered already: one question less for each neighbor
    first, last = 0, 0
    for k in range(n):
        if k == last:  # nothing is left that can be reached: the next one
            while number[first] < n:
                first += 1
            number[first] = last
            order[last] = first
            last += 1
        v = order[k]
        for axis in range(axes):
            for side in range(2):
                other = min(np.int64(beside[axis, v, side]), n)
                if number[other] > n:
                    number[other] = last
                    order[last] = other
                    last += 1
    return order, number
