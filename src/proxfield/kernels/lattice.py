"""The permutohedral lattice, compiled: where points lie, and filtering over its vertices.

Points are handled in chunks. Each chunk numbers the vertices it touches by itself (its *rows*),
so that threads build and splat without sharing anything, and the rows of one chunk stay in
cache; rows of all chunks that stand for one vertex are then added up in a fixed order. The same
input gives the same bits on any number of threads.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np

from proxfield.kernels.jit import inlined, kernel, parallel_kernel
from proxfield.kernels.simd import LANES, add_scaled, blend, gather_row, put_scaled

CHUNK = 8192
"""Points of a chunk."""
VERTICES = 512
"""Vertices that a task blurs."""
MIX = -7046029254386353131
"""An odd number with well-mixed bits (2⁶⁴ over the golden ratio)."""
NOTHING = -(2**63)
"""The key of a free slot."""


class Points(NamedTuple):
    """Where points lie among the rows: the part of a lattice that iterations read."""

    row: Any  # row of each corner, within the chunk  # (n, d + 1) int32
    weight: Any  # weight of each corner  # (n, d + 1) float32
    chunk: Any  # first row of each chunk  # (chunks + 1,)


# ---- building ----
#
# A vertex is known by one 64-bit key: Σ_j coordinate_j · code_j, wrapping around, with fixed
# random codes. It is linear, so a step along an axis adds a constant. Two vertices have the
# same key with probability 2⁻⁶⁴: under one in 10⁵ for any pair among ten million vertices.


@inlined
def locate(feature: Any, factor: Any, elevated: Any, corner: Any, rank: Any, weight: Any) -> None:
    """The simplex a point lies in: its corner with remainder 0, the order of its coordinates,
    and the barycentric weights of its d + 1 corners (Adams, Baek, Davis 2010)."""
    d = len(feature)
    total = 0.0
    for k in range(d, 0, -1):
        x = feature[k - 1] * factor[k - 1]
        elevated[k] = total - k * x
        total += x
    elevated[0] = total
    excess = 0
    inverse = 1.0 / (d + 1)
    for k in range(d + 1):
        nearest = np.floor(elevated[k] * inverse + 0.5)
        corner[k] = np.int64(nearest)
        elevated[k] = elevated[k] * inverse - nearest  # what is left, in units of d + 1
        excess += np.int64(nearest)
        rank[k] = 0
    for i in range(d):
        x = elevated[i]
        behind = 0
        for j in range(i + 1, d + 1):
            less = np.int64(x < elevated[j])
            behind += less
            rank[j] += 1 - less
        rank[i] += behind
    for k in range(d + 2):
        weight[k] = 0.0
    for k in range(d + 1):  # the rounded point may lie off the plane: step back onto it
        r = rank[k] + excess
        turn = np.int64(r < 0) - np.int64(r > d)
        r += turn * (d + 1)
        corner[k] += turn
        rank[k] = r
        x = elevated[k] - turn
        weight[d - r] += x
        weight[d + 1 - r] -= x
    weight[0] += 1.0 + weight[d + 1]


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
    keys = np.full(2048, NOTHING, dtype=np.int64)
    numbers = np.empty(2048, dtype=np.int32)
    elevated = np.empty(d + 1)
    corner = np.empty(d + 1, dtype=np.int64)
    rank = np.empty(d + 1, dtype=np.int64)
    at_rank = np.empty(d + 1, dtype=np.int64)
    last = np.zeros(d + 1, dtype=np.int64)
    bary = np.empty(d + 2)
    every = np.int64(0)
    for j in range(d):
        every += code[j]
    last_key = np.int64(0)
    count = 0
    for i in range(n):
        locate(features[i], factor, elevated, corner, rank, bary)
        key = np.int64(0)
        for j in range(d):
            key += corner[j] * code[j]
        key *= d + 1
        same = i > 0 and key == last_key
        for k in range(d + 1):
            at_rank[rank[k]] = k
        for k in range(d + 1):
            same = same and at_rank[k] == last[k]
        last_key = key
        for k in range(d + 1):
            weight[i, k] = bary[k] * scale
        if same:  # neighbours in an image often share their simplex
            for k in range(d + 1):
                row[i, k] = row[i - 1, k]
            continue
        for k in range(d + 1):
            last[k] = at_rank[k]
        for k in range(d + 1):
            if k > 0:  # on to the next corner: all coordinates + 1, that of this rank − (d + 1)
                key += every
                j = at_rank[d + 1 - k]
                if j < d:
                    key -= (d + 1) * code[j]
            slot = find(key, keys)
            if keys[slot] == NOTHING:
                if 2 * count >= len(keys):
                    keys, numbers = grown(keys, numbers)
                    slot = find(key, keys)
                keys[slot] = key
                numbers[slot] = count
                out[count] = key
                count += 1
            row[i, k] = numbers[slot]
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
        count[c] = place_chunk(
            features[a:b], factor, code, scale, out[c], row[a:b], weight[a:b]
        )


@kernel
def merge(keys: Any, numbers: Any, count: int, more: Any, vertex: Any) -> Any:
    """Give a chunk's rows their vertices, new ones at the end; returns (keys, numbers, count)."""
    for i in range(len(more)):
        slot = find(more[i], keys)
        if keys[slot] == NOTHING:
            if 2 * count >= len(keys):
                keys, numbers = grown(keys, numbers)
                slot = find(more[i], keys)
            keys[slot] = more[i]
            numbers[slot] = count
            count += 1
        vertex[i] = numbers[slot]
    return keys, numbers, count


@kernel
def connect(keys: Any, numbers: Any, count: int, stride: Any, least: int) -> Any:
    """Neighbours of each vertex along each axis, with the vertices that fill gaps.

    Mass that is blurred into a vertex that isn't there is lost. A vertex that no point touches
    but that has at least ``least`` neighbours that are touched would pass it on: it is added.

    Returns:
        Neighbours (axes, vertices, 2); the number of vertices stands for none.
    """
    axes = len(stride)
    own = np.empty(count, dtype=np.int64)
    for slot in range(len(keys)):
        if keys[slot] != NOTHING:
            own[numbers[slot]] = keys[slot]
    near = np.full((axes, count, 2), -1, dtype=np.int32)
    for i in range(count):
        for axis in range(axes):
            slot = find(own[i] + stride[axis], keys)
            if keys[slot] != NOTHING:
                near[axis, i, 1] = numbers[slot]
                near[axis, numbers[slot], 0] = i
    # candidates, and how many neighbours each has
    spare = np.full(4096, NOTHING, dtype=np.int64)
    which = np.empty(4096, dtype=np.int32)
    seen = np.empty(1024, dtype=np.int32)
    used = 0
    for i in range(count):
        for axis in range(axes):
            for side in range(2):
                if near[axis, i, side] >= 0:
                    continue
                key = own[i] + (2 * side - 1) * stride[axis]
                slot = find(key, spare)
                if spare[slot] == NOTHING:
                    if 2 * used >= len(spare):
                        spare, which = grown(spare, which)
                        slot = find(key, spare)
                    if used == len(seen):
                        longer = np.empty(2 * used, dtype=np.int32)
                        longer[:used] = seen
                        seen = longer
                    spare[slot] = key
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
    out = np.full((axes, total, 2), total, dtype=np.int32)
    for axis in range(axes):
        for i in range(count):
            for side in range(2):
                if near[axis, i, side] >= 0:
                    out[axis, i, side] = near[axis, i, side]
    added = np.empty(total - count, dtype=np.int64)
    for slot in range(len(spare)):
        if spare[slot] != NOTHING and seen[which[slot]] >= 0:
            added[seen[which[slot]] - count] = spare[slot]
    for k in range(total - count):
        for axis in range(axes):
            for side in range(2):
                key = added[k] + (2 * side - 1) * stride[axis]
                j = -1
                slot = find(key, keys)
                if keys[slot] != NOTHING:
                    j = numbers[slot]
                else:
                    slot = find(key, spare)
                    if spare[slot] != NOTHING:
                        j = seen[which[slot]]
                if j >= 0:
                    out[axis, count + k, side] = j
                    out[axis, j, 1 - side] = count + k
    return out


# ---- filtering ----


@inlined
def splat_point(
    row: Any, weight: Any, begin: int, values: Any, at: int, flat: Any, width: int, i: int, s: Any
) -> None:
    """Spread a point's values (padded, at ``values[at]``) times ``s`` over its rows."""
    for k in range(row.shape[1]):
        where = (begin + row[i, k]) * width
        w = weight[i, k] * s
        for l in range(0, width, LANES):
            add_scaled(flat, where + l, values, at + l, w)


@parallel_kernel
def splat(points: Any, factor: Any, values: Any, stride: int, rows: Any) -> None:
    """Spread values, times each point's factor, over rows. values: flat, ``stride`` a point."""
    row, weight, chunk = points.row, points.weight, points.chunk
    n = len(row)
    width = rows.shape[1]
    flat = rows.reshape(-1)
    for c in numba.prange(len(chunk) - 1):
        begin = chunk[c]
        for r in range(begin * width, chunk[c + 1] * width):
            flat[r] = 0.0
        mine = np.zeros(width, dtype=rows.dtype)
        for i in range(c * CHUNK, min(n, (c + 1) * CHUNK)):
            for l in range(stride):
                mine[l] = values[i * stride + l]
            splat_point(row, weight, begin, mine, 0, flat, width, i, factor[i])


@parallel_kernel
def slice_all(points: Any, rows: Any, out: Any) -> None:
    """out[i] = what each point sees.  # (n, width)"""
    n, corners = points.row.shape
    width = rows.shape[1]
    corner, weight, chunk = points.row.reshape(-1), points.weight.reshape(-1), points.chunk
    flat, seen = rows.reshape(-1), out.reshape(-1)
    for c in numba.prange(len(chunk) - 1):
        for i in range(c * CHUNK, min(n, (c + 1) * CHUNK)):
            for l in range(width):
                out[i, l] = 0.0
            gather_row(
                seen, i * width, flat, width, corner, weight, i * corners, corners, chunk[c], 1.0
            )


@parallel_kernel
def collect(start: Any, member: Any, rows: Any, vertices: Any) -> None:
    """Add up the rows of each vertex, in order."""
    n = len(start) - 1
    width = rows.shape[1]
    source = rows.reshape(-1)
    target = vertices.reshape(-1)
    for task in numba.prange((n + VERTICES - 1) // VERTICES):
        for v in range(task * VERTICES, min(n, (task + 1) * VERTICES)):
            own = v * width
            if start[v] == start[v + 1]:
                for l in range(width):
                    target[own + l] = 0.0
                continue
            at = member[start[v]] * width
            for l in range(0, width, LANES):
                put_scaled(target, own + l, source, at + l, 1.0)
            for r in range(start[v] + 1, start[v + 1]):
                at = member[r] * width
                for l in range(0, width, LANES):
                    add_scaled(target, own + l, source, at + l, 1.0)


@parallel_kernel
def blur_axis(next_to: Any, side: Any, source: Any, target: Any) -> None:
    """One axis: a vertex keeps 1 − 2·side of itself and gets ``side`` of both neighbours."""
    n = len(next_to)
    width = source.shape[1]
    a = source.reshape(-1)
    b = target.reshape(-1)
    middle = 1.0 - 2.0 * side
    for task in numba.prange((n + VERTICES - 1) // VERTICES):
        for v in range(task * VERTICES, min(n, (task + 1) * VERTICES)):
            left = next_to[v, 0] * width
            right = next_to[v, 1] * width
            own = v * width
            for l in range(0, width, LANES):
                blend(b, own + l, a, own + l, left + l, right + l, middle, side)


@parallel_kernel
def distribute(vertex: Any, vertices: Any, table: Any, rows: Any) -> None:
    """Give each row its vertex's values times a compatibility: (1, 1) a number, else a matrix."""
    n = len(vertex)
    width = rows.shape[1]
    source = vertices.reshape(-1)
    target = rows.reshape(-1)
    labels = len(table)
    for task in numba.prange((n + VERTICES - 1) // VERTICES):
        for r in range(task * VERTICES, min(n, (task + 1) * VERTICES)):
            v = vertex[r]
            if labels == 1:
                for l in range(0, width, LANES):
                    put_scaled(target, r * width + l, source, v * width + l, table[0, 0])
            else:
                for l in range(width):
                    rows[r, l] = 0.0
                for m in range(labels):
                    w = vertices[v, m]
                    for l in range(labels):
                        rows[r, l] += w * table[m, l]


@parallel_kernel
def self_weights(points: Any, vertex: Any, next_to: Any, side: float, out: Any) -> None:
    """K_ii of each point: the squared norm of its own splat, blurred by half (K = S C Cᵀ Sᵀ)."""
    row, weight, chunk = points.row, points.weight, points.chunk
    n, corners = row.shape
    axes, vertices, _ = next_to.shape
    for c in numba.prange(len(chunk) - 1):
        here, there = np.zeros(vertices + 1), np.zeros(vertices + 1)
        live, after = np.empty(vertices + 1, np.int32), np.empty(vertices + 1, np.int32)
        for i in range(c * CHUNK, min(n, (c + 1) * CHUNK)):
            count = 0
            for k in range(corners):
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
