"""The permutohedral lattice, compiled: where points lie, and which vertices there are.

A vertex is known by one 64-bit key: Σ_j coordinate_j · code_j, wrapping around, with fixed random
codes. It is linear, so a step along an axis adds a constant. Two vertices have the same key with
probability 2⁻⁶⁴: under one in 10⁵ for any pair among ten million vertices.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from proxfield.kernels.jit import inlined, kernel, parallel_kernel
from proxfield.kernels.lattice import CHUNK, VERTICES

BATCH = 64
"""Points that are put onto the lattice together."""
MIX = -7046029254386353131
"""An odd number with well-mixed bits (2⁶⁴ over the golden ratio)."""
NOTHING = -(2**63)
"""The key of a free slot."""
SHARES = 16
"""Into so many parts keys are divided, so that threads can count them apart."""


@inlined
def locate(
    features: Any, factor: Any, code: Any, scale: float, elevated: Any, rest: Any, rank: Any,
    key: Any, weight: Any,
) -> None:  # fmt: skip
    """The simplices that a few points lie in (Adams, Baek, Davis 2010).

    Loops over the points are innermost, so that they become vector instructions. Positions are
    float64; what is left of them after rounding, at most 1 in size, is float32.

    Args:
        features: (m, d), with m ≤ `BATCH`.
        factor: Scales of the features.  # (d,)
        code: What a coordinate counts in a key; the last one counts nothing.  # (d + 1,)
        scale: Multiplies the weights.
        elevated: Scratch.  # (d + 2, BATCH) float64
        rest: Scratch.  # (d + 1, BATCH) float32
        rank: Scratch.  # (d + 2, BATCH) int32
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
def find(key: int, keys: Any) -> int:
    """The slot that holds a key, or the free slot where it belongs."""
    mask = len(keys) - 1
    h = key * MIX
    slot = (h >> 32) & mask
    while keys[slot] != key and keys[slot] != NOTHING:
        slot = (slot + 1) & mask
    return slot


@inlined
def grown(keys: Any, numbers: Any) -> Any:
    """A table four times as large with the same entries."""
    more = np.full(4 * len(keys), NOTHING, dtype=np.int64)
    moved = np.empty(4 * len(keys), dtype=np.int32)
    for i in range(len(keys)):
        if keys[i] != NOTHING:
            slot = find(keys[i], more)
            more[slot] = keys[i]
            moved[slot] = numbers[i]
    return more, moved


@inlined
def place_chunk(
    features: Any, factor: Any, code: Any, scale: float, out: Any, row: Any, weight: Any
) -> int:
    """Rows and weights of one chunk's points; the keys of its rows; returns how many."""
    n, d = features.shape
    keys = np.full(4096, NOTHING, dtype=np.int64)
    numbers = np.empty(4096, dtype=np.int32)
    elevated = np.empty((d + 2, BATCH))
    rest = np.empty((d + 1, BATCH), dtype=np.float32)
    bary = np.empty((d + 2, BATCH), dtype=np.float32)
    rank = np.empty((d + 2, BATCH), dtype=np.int32)
    corner = np.empty((d + 1, BATCH), dtype=np.int64)
    last_key = np.full(d + 1, NOTHING)
    last_row = np.zeros(d + 1, dtype=np.int32)
    count = 0
    for first in range(0, n, BATCH):
        m = min(BATCH, n - first)
        some = features[first : first + m]
        locate(some, factor, code, scale, elevated, rest, rank, corner, bary)
        for i in range(m):
            for k in range(d + 1):
                weight[first + i, k] = bary[k, i]
                key = corner[k, i]
                if key != last_key[k]:  # neighbours in an image often share corners
                    slot = find(key, keys)
                    if keys[slot] == NOTHING:
                        if 3 * count >= len(keys):
                            keys, numbers = grown(keys, numbers)
                            slot = find(key, keys)
                        keys[slot] = key
                        numbers[slot] = count
                        out[count] = key
                        count += 1
                    last_key[k] = key
                    last_row[k] = numbers[slot]
                row[first + i, k] = last_row[k]
    return count


@parallel_kernel
def place(
    features: Any, factor: Any, code: Any, scale: float, first: int, out: Any, count: Any,
    row: Any, weight: Any,
) -> None:  # fmt: skip
    """Some chunks, over threads; ``out`` (keys) and ``count`` have one entry for each."""
    n = len(features)
    for c in numba.prange(len(count)):
        a = min(n, (first + c) * CHUNK)
        b = min(n, a + CHUNK)
        count[c] = place_chunk(features[a:b], factor, code, scale, out[c], row[a:b], weight[a:b])


@kernel
def merge(keys: Any, numbers: Any, count: int, more: Any, vertex: Any) -> Any:
    """Give a chunk's rows their vertices, new ones at the end; returns (keys, numbers, count)."""
    for i in range(len(more)):
        slot = find(more[i], keys)
        if keys[slot] == NOTHING:
            if 3 * count >= len(keys):
                keys, numbers = grown(keys, numbers)
                slot = find(more[i], keys)
            keys[slot] = more[i]
            numbers[slot] = count
            count += 1
        vertex[i] = numbers[slot]
    return keys, numbers, count


@parallel_kernel
def meet(keys: Any, numbers: Any, own: Any, stride: Any, near: Any) -> None:
    """Neighbours of touched vertices among themselves.  # near: (axes, vertices, 2), −1 before"""
    for task in numba.prange((len(own) + VERTICES - 1) // VERTICES):
        for i in range(task * VERTICES, min(len(own), (task + 1) * VERTICES)):
            for axis in range(len(stride)):
                slot = find(own[i] + stride[axis], keys)
                if keys[slot] != NOTHING:
                    near[axis, i, 1] = numbers[slot]
                    near[axis, numbers[slot], 0] = i


@inlined
def share_of(key: int) -> int:
    """Which of `SHARES` a key belongs to; other bits than those `find` looks at."""
    h = key * MIX
    return (h >> 60) & (SHARES - 1)


@parallel_kernel
def gaps(own: Any, stride: Any, near: Any) -> Any:
    """Keys of missing neighbours of touched vertices, as often as they are missed.

    Returns them by share (and within one in the order of the vertices, whatever the number of
    threads), and where each share starts.
    """
    count = len(own)
    tasks = (count + VERTICES - 1) // VERTICES
    place = np.zeros((tasks, SHARES), dtype=np.int64)
    for task in numba.prange(tasks):
        for i in range(task * VERTICES, min(count, (task + 1) * VERTICES)):
            for axis in range(len(stride)):
                for side in range(2):
                    if near[axis, i, side] < 0:
                        place[task, share_of(own[i] + (2 * side - 1) * stride[axis])] += 1
    start = np.zeros(SHARES + 1, dtype=np.int64)
    total = 0
    for share in range(SHARES):
        for task in range(tasks):
            here = place[task, share]
            place[task, share] = total
            total += here
        start[share + 1] = total
    missed = np.empty(total, dtype=np.int64)
    for task in numba.prange(tasks):
        for i in range(task * VERTICES, min(count, (task + 1) * VERTICES)):
            for axis in range(len(stride)):
                for side in range(2):
                    if near[axis, i, side] < 0:
                        key = own[i] + (2 * side - 1) * stride[axis]
                        share = share_of(key)
                        missed[place[task, share]] = key
                        place[task, share] += 1
    return missed, start


@inlined
def often(missed: Any, least: int) -> int:
    """Move the keys that occur ``least`` times to the front, each once; returns how many."""
    keys = np.full(1024, NOTHING, dtype=np.int64)
    which = np.empty(1024, dtype=np.int32)
    seen = np.zeros(len(missed), dtype=np.int32)
    used, found = 0, 0
    for m in range(len(missed)):
        key = missed[m]
        slot = find(key, keys)
        if keys[slot] == NOTHING:
            if 2 * used >= len(keys):
                keys, which = grown(keys, which)
                slot = find(key, keys)
            keys[slot] = key
            which[slot] = used
            used += 1
        seen[which[slot]] += 1
        if seen[which[slot]] == least:
            missed[found] = key  # never ahead of what is still to be read
            found += 1
    return found


@parallel_kernel
def bridges(missed: Any, start: Any, least: int) -> Any:
    """Vertices that no point touches but that have at least ``least`` touched neighbours.

    Mass that is blurred into a vertex that isn't there is lost; these pass it on. Takes `gaps`
    (and changes them); returns keys in order. Their numbers go on after the touched ones.
    """
    first = np.zeros(SHARES + 1, dtype=np.int64)
    for share in numba.prange(SHARES):
        first[share + 1] = often(missed[start[share] : start[share + 1]], least)
    for share in range(SHARES):
        first[share + 1] += first[share]
    added = np.empty(first[SHARES], dtype=np.int64)
    for share in range(SHARES):
        many = first[share + 1] - first[share]
        added[first[share] : first[share + 1]] = missed[start[share] : start[share] + many]
    return added


@kernel
def table_of(added: Any) -> Any:
    """A table of keys and their positions."""
    size = 16
    while size < 3 * len(added):
        size *= 2
    keys = np.full(size, NOTHING, dtype=np.int64)
    numbers = np.empty(size, dtype=np.int32)
    for k in range(len(added)):
        slot = find(added[k], keys)
        keys[slot] = added[k]
        numbers[slot] = k
    return keys, numbers


@parallel_kernel
def join(
    keys: Any, numbers: Any, more: Any, which: Any, added: Any, stride: Any, count: int, near: Any
) -> None:
    """Neighbours of added vertices.  # near: (axes, all vertices, 2), −1 before"""
    for task in numba.prange((len(added) + VERTICES - 1) // VERTICES):
        for k in range(task * VERTICES, min(len(added), (task + 1) * VERTICES)):
            for axis in range(len(stride)):
                for side in range(2):
                    key = added[k] + (2 * side - 1) * stride[axis]
                    j = -1
                    slot = find(key, keys)
                    if keys[slot] != NOTHING:
                        j = numbers[slot]
                    else:
                        slot = find(key, more)
                        if more[slot] != NOTHING:
                            j = count + which[slot]
                    if j >= 0:
                        near[axis, count + k, side] = j
                        near[axis, j, 1 - side] = count + k


@kernel
def keys_in_order(keys: Any, numbers: Any, count: int) -> Any:
    """The keys of a table by their numbers."""
    out = np.empty(count, dtype=np.int64)
    for slot in range(len(keys)):
        if keys[slot] != NOTHING:
            out[numbers[slot]] = keys[slot]
    return out


@kernel
def rows_by_vertex(vertex: Any, total: int) -> Any:
    """Rows in the order of their vertices: (first of each vertex, rows); a counting sort."""
    start = np.zeros(total + 1, dtype=np.int64)
    for v in vertex:
        start[v + 1] += 1
    for v in range(total):
        start[v + 1] += start[v]
    member = np.empty(len(vertex), dtype=np.int32)
    free = start[:-1].copy()
    for r in range(len(vertex)):
        member[free[vertex[r]]] = r
        free[vertex[r]] += 1
    return start, member
