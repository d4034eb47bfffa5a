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


@inlined
def locate(
    features: Any, factor: Any, code: Any, scale: float, elevated: Any, rank: Any, key: Any,
    weight: Any,
) -> None:  # fmt: skip
    """The simplices that a few points lie in (Adams, Baek, Davis 2010).

    Loops over the points are innermost, so that they become vector instructions.

    Args:
        features: (m, d), with m ≤ `BATCH`.
        factor: Scales of the features.  # (d,)
        code: What a coordinate counts in a key; the last one counts nothing.  # (d + 1,)
        scale: Multiplies the weights.
        elevated: Scratch.  # (d + 2, BATCH)
        rank: Scratch.  # (d + 2, BATCH)
        key: Keys of the d + 1 corners, out.  # (d + 1, BATCH)
        weight: Their barycentric weights, out.  # (d + 2, BATCH)
    """
    m, d = features.shape
    inverse = 1.0 / (d + 1)
    total, excess = elevated[d + 1], rank[d + 1]
    for i in range(m):
        total[i] = 0.0
        excess[i] = 0
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
            elevated[k, i] -= nearest  # what is left, in units of d + 1
            whole = np.int64(nearest)
            excess[i] += whole
            key[0, i] += whole * code[k]
            rank[k, i] = 0
    for a in range(d):
        for b in range(a + 1, d + 1):
            for i in range(m):
                less = np.int64(elevated[a, i] < elevated[b, i])
                rank[a, i] += less
                rank[b, i] += 1 - less
    for k in range(d + 1):  # the rounded point may lie off the plane: step back onto it
        for i in range(m):
            r = rank[k, i] + excess[i]
            turn = np.int64(r < 0) - np.int64(r > d)
            rank[k, i] = r + turn * (d + 1)
            elevated[k, i] -= turn
            key[0, i] += turn * code[k]
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
        for i in range(m):
            weight[c, i] = 0.0
        for k in range(d + 1):
            for i in range(m):
                x = elevated[k, i]
                weight[c, i] += (x if rank[k, i] == d - c else 0.0) - (
                    x if rank[k, i] == d + 1 - c else 0.0
                )
    for i in range(m):
        weight[0, i] += 1.0 + weight[d + 1, i]
    for c in range(d + 1):
        for i in range(m):
            weight[c, i] *= scale


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
    elevated, bary = np.empty((d + 2, BATCH)), np.empty((d + 2, BATCH))
    rank = np.empty((d + 2, BATCH), dtype=np.int64)
    corner = np.empty((d + 1, BATCH), dtype=np.int64)
    last_key = np.full(d + 1, NOTHING)
    last_row = np.zeros(d + 1, dtype=np.int32)
    count = 0
    for first in range(0, n, BATCH):
        m = min(BATCH, n - first)
        locate(features[first : first + m], factor, code, scale, elevated, rank, corner, bary)
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


@kernel
def bridges(own: Any, stride: Any, near: Any, least: int) -> Any:
    """Vertices that no point touches but that have at least ``least`` touched neighbours.

    Mass that is blurred into a vertex that isn't there is lost; these pass it on. Returns a
    table of them: keys, and numbers that go on after the touched ones (−1: too few neighbours),
    and their keys in order.
    """
    count = len(own)
    keys = np.full(4096, NOTHING, dtype=np.int64)
    which = np.empty(4096, dtype=np.int32)
    seen = np.empty(1024, dtype=np.int32)
    used = 0
    for i in range(count):
        for axis in range(len(stride)):
            for side in range(2):
                if near[axis, i, side] >= 0:
                    continue
                key = own[i] + (2 * side - 1) * stride[axis]
                slot = find(key, keys)
                if keys[slot] == NOTHING:
                    if 3 * used >= len(keys):
                        keys, which = grown(keys, which)
                        slot = find(key, keys)
                    if used == len(seen):
                        longer = np.empty(2 * used, dtype=np.int32)
                        longer[:used] = seen
                        seen = longer
                    keys[slot] = key
                    which[slot] = used
                    seen[used] = 0
                    used += 1
                seen[which[slot]] += 1
    total = count
    for k in range(used):  # numbers in the order of discovery
        if seen[k] >= least:
            seen[k] = total
            total += 1
        else:
            seen[k] = -1
    added = np.empty(total - count, dtype=np.int64)
    for slot in range(len(keys)):
        if keys[slot] != NOTHING:
            which[slot] = seen[which[slot]]
            if which[slot] >= 0:
                added[which[slot] - count] = keys[slot]
    return keys, which, added


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
                            j = which[slot]
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
