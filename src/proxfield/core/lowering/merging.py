"""Merging what lowering collects: repeated scopes, parallel edges, equal tables.

All of it is meant for millions of rows: sorted keys instead of rows, no temporary array that
a plain case doesn't need, and nothing is copied where there is nothing to merge.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from proxfield.core.common.arrays import group_positions as group_positions
from proxfield.core.terms.base import Doubles, Floats, Ints
from proxfield.core.terms.grid import Shift

V = TypeVar("V", bound=np.generic)

DEDUPLICATE_LIMIT = 50_000_000
"""Table entries above which equal tables aren't searched for (sorting would dominate)."""
LARGEST_KEY = 2**62
"""Scopes are numbered by one integer each while the largest number is below this."""
HASH_BLOCK = 1 << 16
"""Numbers hashed at a time: they stay in the cache while columns are taken one by one."""
SPARSEST_BANDS = 4
"""Entries of an array of diagonals, per coupling in it, up to which it is made."""

Weighted = tuple[Ints, Floats]
"""Edges and their weights.  # (m, 2), (m,)"""
Scoped = tuple[Ints, Floats, Ints]
"""Scopes, tables and the table of each scope.  # (m, k), (T, c_1, …, c_k), (m,)"""


def concatenate(items: list[Scoped]) -> Scoped:
    """Several (scopes, tables, index) of one shape as one."""
    if len(items) == 1:
        return items[0]
    shift = np.cumsum([0, *(len(t) for _, t, _ in items)])
    return (
        np.concatenate([s for s, _, _ in items]),
        np.concatenate([t for _, t, _ in items]),
        np.concatenate([i + d for (_, _, i), d in zip(items, shift, strict=False)]),
    )


def compact_index(index: Ints, count: int) -> tuple[Ints | None, Ints]:
    """Number the values that occur in ``index``, from 0 to ``count`` − 1, without gaps.

    Returns:
        The numbers that occur, in order (None if all do), and ``index`` in terms of these.
    """
    occurs = np.zeros(count, dtype=bool)
    occurs[index] = True
    if occurs.all():
        return None, index
    return np.flatnonzero(occurs), (np.cumsum(occurs) - 1)[index]


def row_hashes(rows: Floats | Ints) -> NDArray[np.uint64]:
    """One 64-bit number per row; equal rows have equal numbers.  # (m, k) -> (m,)"""
    out = np.zeros(len(rows), dtype=np.uint64)
    block = max(1, HASH_BLOCK // max(1, rows.shape[1]))
    for start in range(0, len(rows), block):
        some = out[start : start + block]
        # + 0 turns −0.0 into 0.0, its equal
        words = np.ascontiguousarray(rows[start : start + block] + 0).view(np.uint64)
        for column in words.T:  # take in a column, multiply, mix the high bits down
            some ^= column
            some *= np.uint64(0x9E3779B97F4A7C15)
            some ^= some >> np.uint64(29)
    return out


def add_at(out: Doubles, entries: Ints, values: Floats) -> None:
    """``np.add.at(out, entries, values)`` in the same order, and so with the same bits.

    numpy's own takes 40 times as long where an array's type isn't its one float64 object, as
    in arrays read from files.
    """
    if len(entries) < len(out):
        np.add.at(out, entries, values)
        return
    at = np.concatenate([np.arange(len(out)), entries])
    out[:] = np.bincount(at, weights=np.concatenate([out, values]))


def repeated(keys: Ints | NDArray[np.uint64]) -> NDArray[np.bool_] | None:
    """Which keys occur more than once; None if all are different.  # (m,)"""
    if (keys[1:] > keys[:-1]).all():
        return None
    ordered = np.sort(keys, kind="stable")  # edges mostly come in long runs, which it merges
    again = ordered[1:] == ordered[:-1]
    if not again.any():
        return None
    twice = np.unique(ordered[1:][again])
    at = np.minimum(np.searchsorted(twice, keys), len(twice) - 1)
    return np.asarray(twice[at] == keys)


def merge_scopes(scopes: Ints, tables: Floats, index: Ints) -> Scoped:
    """Add up the tables of scopes that occur more than once."""
    n, k = int(scopes.max(initial=0)) + 1, scopes.shape[1]
    if n**k < LARGEST_KEY:
        keys: Ints | NDArray[np.uint64] = np.ravel_multi_index(tuple(scopes.T), (n,) * k)
    else:
        keys = row_hashes(scopes)
    candidates = repeated(keys)
    if candidates is None:
        return scopes, tables, index
    rows = np.flatnonzero(candidates)  # few: a row whose key is unique occurs once
    some = scopes[rows]
    unique, where, count = np.unique(some, axis=0, return_inverse=True, return_counts=True)
    where = where.ravel()
    some_many = count[where] > 1  # different rows may have the same hash
    many = np.zeros(len(scopes), dtype=bool)
    many[rows[some_many]] = True
    number = np.cumsum(count > 1) - 1  # position of each repeated scope among the sums
    sums = np.zeros((int((count > 1).sum()), *tables.shape[1:]))
    np.add.at(sums, number[where[some_many]], tables[index[many]])
    return (
        np.concatenate([scopes[~many], unique[count > 1]]),
        np.concatenate([tables, sums]),
        np.concatenate([index[~many], len(tables) + np.arange(len(sums))]),
    )


def merge_edges(items: list[Weighted]) -> Weighted | None:
    """Add up the weights of parallel edges; edges that cancel are dropped.

    The result is in the order of the edges, the smaller end first. Edges that come like
    this are returned as they are, without a copy.
    """
    items = [item for item in items if len(item[0])]
    if not items:
        return None
    edges: Ints | None
    edges, weights = items[0]
    if len(items) > 1:
        edges = np.concatenate([e for e, _ in items])
        weights = np.concatenate([w for _, w in items])
    n = int(edges.max()) + 1
    keys = np.minimum(edges[:, 0], edges[:, 1])
    forward = bool((keys == edges[:, 0]).all())
    keys *= n
    keys += np.maximum(edges[:, 0], edges[:, 1])
    if not forward:
        edges = None
    if not (keys[1:] > keys[:-1]).all():
        edges = None
        # stable: parallel edges are added up in the order in which they were given
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        weights = weights[order]
        del order
        first = np.ones(len(keys), dtype=bool)
        np.not_equal(keys[1:], keys[:-1], out=first[1:])
        if not first.all():
            totals = np.bincount(np.cumsum(first) - 1, weights=weights)
            weights = totals.astype(np.float64, copy=False)
            keys = keys[first]
    if not weights.all():
        some = weights != 0
        keys, weights, edges = keys[some], weights[some], None
    if len(keys) == 0:
        return None
    if edges is None:
        edges = np.empty((len(keys), 2), dtype=np.int64)
        np.floor_divide(keys, n, out=edges[:, 0])
        np.remainder(keys, n, out=edges[:, 1])
    return edges, weights


def band_edges(bands: list[tuple[Shift, Floats]], n: int) -> list[Weighted]:
    """Couplings along the offsets of grids as sorted edges, parallel ones added up.

    All pairs of one offset lie on one diagonal of the matrix of couplings. With the diagonals in
    one array, by variables, sorted edges are its entries in their order: nothing is sorted.

    bands: Pairs of pixels, and the coupling of each  # (*sizes); n: number of variables.
    """
    bands = [(shift, values) for shift, values in bands if shift.n_edges]
    if not bands:
        return []
    distances = np.unique([abs(shift.distance) for shift, _ in bands])
    if n * len(distances) > SPARSEST_BANDS * sum(shift.n_edges for shift, _ in bands):
        return [(shift.edges(), values.ravel()) for shift, values in bands]  # many small grids
    table = np.zeros((n, len(distances)))
    for shift, values in bands:
        at = int(np.searchsorted(distances, abs(shift.distance)))
        column = table[shift.first : shift.first + shift.n_pixels, at].reshape(shift.shape)
        column[shift.here if shift.distance > 0 else shift.there] += values
    filled = np.flatnonzero(table)
    edges = np.empty((len(filled), 2), dtype=np.int64)
    which = np.empty_like(filled)
    np.divmod(filled, len(distances), out=(edges[:, 0], which))
    np.add(edges[:, 0], distances[which], out=edges[:, 1])
    return [(edges, table.ravel()[filled])]


def deduplicate(tables: Floats, index: Ints) -> tuple[Floats, Ints]:
    """Drop unused tables and store equal ones once."""
    used, index = compact_index(index, len(tables))
    tables = tables if used is None else tables[used]
    if tables.size > DEDUPLICATE_LIMIT or len(tables) < 2:
        return tables, index
    flat = tables.reshape(len(tables), -1)
    candidates = repeated(row_hashes(flat))
    if candidates is None:
        return tables, index
    rows = np.flatnonzero(candidates)
    some = np.ascontiguousarray(flat[rows] + 0.0)  # + 0.0 turns −0 into 0
    void = some.view(np.dtype((np.void, some.dtype.itemsize * some.shape[1]))).ravel()
    _, first, where = np.unique(void, return_index=True, return_inverse=True)
    stays = ~candidates
    stays[rows[first]] = True
    target = np.arange(len(tables))
    target[rows] = rows[first][where.ravel()]  # each table's equal that stays
    number = np.cumsum(stays) - 1
    return tables[stays], number[target][index]


def compressed_rows(
    n: int, ends: Ints, values: list[NDArray[V]]
) -> tuple[Ints, NDArray[np.int32], list[NDArray[V]]]:
    """Undirected edges as rows of both directions.

    values: Arrays of length 2m: for the forward directions, then the backward ones.

    Returns:
        Row starts (n + 1,), columns (2m,), and the values in the same order.
    """
    here = np.concatenate([ends[:, 0], ends[:, 1]], dtype=np.int32, casting="same_kind")
    row, order = group_positions(here, n)
    del here
    there = np.concatenate([ends[:, 1], ends[:, 0]], dtype=np.int32, casting="same_kind")
    return row, there[order], [v[order] for v in values]
