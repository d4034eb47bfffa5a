"""Vertices of a lattice that no point touches but that lie between touched ones, compiled.

Mass that is blurred into a vertex that isn't there is lost; these pass it on. All vertices are
then numbered breadth first: neighbors lie near each other in memory, and blurs over more vertices
than fit into caches take about half the time.
"""

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray

from proxfield.core.common.arrays import Ints
from proxfield.core.compiled.jit import kernel, parallel_kernel
from proxfield.core.filters.numba.lattice import VERTICES, Indices
from proxfield.core.filters.numba.lattice_build import FREE, SLOTS, Table, find, merge, with_room


def find_bridges(
    keys: Ints, stride: Ints, near: NDArray[np.int32], least: int
) -> tuple[Ints, NDArray[np.int32]]:
    """Vertices that no point touches but that have at least ``least`` touched neighbors.

    Args:
        keys: Of the touched vertices.
        stride: What a step along each axis adds to a key.
        near: Their neighbors among themselves, −1 for none; −2 − k becomes the k-th of those that
            are missing.  # (touched, axes, 2)
        least: How often a vertex must be missed.

    Returns:
        The keys of the vertices to add; and of each one that is missing the number, or −1 if it
        isn't added.
    """
    missed = np.empty(np.count_nonzero(near < 0), dtype=np.int64)
    times = np.zeros(len(missed), dtype=np.int32)
    count = find_missed(keys, stride, near, missed, times)
    often = times[:count] >= least
    added = np.cumsum(often, dtype=np.int32)
    added += len(keys) - 1
    added[~often] = -1
    return missed[:count][often], added


def link_bridges(beside: NDArray[np.int32], keys: Ints, stride: Ints) -> Indices:
    """Neighbors of all vertices; larger than any vertex: none.  # (axes, vertices, 2)

    Args:
        beside: As from `link_touched`; filled in.
        keys: Of the vertices that were added, which come last.
        stride: What a step along each axis adds to a key.
    """
    table, none = np.full(SLOTS, FREE, dtype=np.int32), keys[:0]
    table, keys, count = merge(table, none, 0, keys, np.empty(len(keys), dtype=np.uint32))
    link_added(table, keys, beside.shape[1] - count, stride, beside)
    return beside.view(np.uint32)


def renumber(beside: Indices) -> Indices:
    """Number vertices breadth first.

    Args:
        beside: Neighbors as from `link_bridges`; in new numbers afterwards, where the number of
            vertices stands for none.  # (axes, vertices, 2)

    Returns:
        The new numbers, and one that stands for none.
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
    """Vertices that touched ones miss; returns how many.

    Args:
        keys: Of the touched vertices.
        stride: What a step along each axis adds to a key.
        near: Their neighbors; −2 − k becomes the k-th missed one.  # (touched, axes, 2)
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
        beside: Out; −1 before, and then for none.  # (axes, vertices, 2)
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


@parallel_kernel
def link_added(
    table: Table, keys: Ints, first: int, stride: Ints, beside: NDArray[np.int32]
) -> None:
    """Neighbors of added vertices among themselves: all look forth, so nobody need look back.

    Args:
        table: Hash table of their keys.
        keys: These.
        first: Number of the first of them among all vertices.
        stride: What a step along each axis adds to a key.
        beside: Filled in.  # (axes, vertices, 2)
    """
    n = beside.shape[1] - first
    for task in numba.prange((n + VERTICES - 1) // VERTICES):
        for i in range(task * VERTICES, min(n, (task + 1) * VERTICES)):
            for axis in range(len(stride)):
                if beside[axis, first + i, 1] < 0:
                    other = table[find(keys[i] + stride[axis], table, keys)]
                    if other != FREE:
                        beside[axis, first + i, 1] = first + other
                        beside[axis, first + other, 0] = first + i


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
