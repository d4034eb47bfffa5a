"""Lowered fields as the flat arrays that the compiled kernels read."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from proxfield.kernels.binary import CLAMP, BinaryPack
from proxfield.kernels.general import GeneralPack
from proxfield.lowering import Lowered
from proxfield.terms.base import Floats, Ints

MAX_DIAGONALS = 16
MIN_FILL = 0.2
"""Diagonals pay while at least this share of their entries holds a coupling."""
BLOCK_ENTRIES = 2048
"""Entries of a block of variables in the general kernels."""


def is_binary(lowered: Lowered) -> bool:
    """Can the field run on the compact binary kernels?"""
    plain = not (lowered.potts or lowered.factors or lowered.extras)
    return plain and bool((lowered.layout.cardinalities == 2).all())


def compressed_rows(
    n: int, ends: Ints, values: list[NDArray[np.generic]]
) -> tuple[Ints, NDArray[np.int32], list[NDArray[np.generic]]]:
    """Undirected edges as rows of both directions.

    Args:
        n: Number of variables.
        ends: Edges.  # (m, 2)
        values: Arrays of length 2m: for the forward directions, then the backward ones.

    Returns:
        Row starts (n + 1,), columns (2m,), and the values in the same order.
    """
    here = np.concatenate([ends[:, 0], ends[:, 1]])
    there = np.concatenate([ends[:, 1], ends[:, 0]])
    order = np.argsort(here, kind="stable")
    row = np.zeros(n + 1, dtype=np.int64)
    np.cumsum(np.bincount(here, minlength=n), out=row[1:])
    return row, there[order].astype(np.int32), [v[order] for v in values]


def pack_binary(lowered: Lowered, dtype: np.dtype[np.floating], *, rows_only: bool) -> BinaryPack:
    """Pack a binary field; ``rows_only`` keeps all edges in rows, as sweeps need them.

    Both forms of one field have the same padding, so they can share a state.
    """
    n = lowered.layout.n_vars
    unary = lowered.unary.reshape(n, 2)
    edges = np.zeros((0, 2), dtype=np.int64) if lowered.ising is None else lowered.ising.edges
    weights = np.zeros(0) if lowered.ising is None else 4.0 * lowered.ising.weights
    gap = edges[:, 1] - edges[:, 0]  # positive: lowering sorts the ends
    distances, counts = np.unique(gap, return_counts=True)
    best = np.sort(distances[np.argsort(-counts)][:MAX_DIAGONALS])
    fits = np.isin(gap, best)
    if not len(best) or fits.mean() < 1.0 or len(edges) < MIN_FILL * n * len(best):
        best, fits = best[:0], np.zeros(len(edges), dtype=bool)
    pad = int(best.max(initial=0))
    if rows_only:
        best, fits = best[:0], np.zeros(len(edges), dtype=bool)
    diagonal = np.zeros((len(best), n + 2 * pad), dtype=dtype)
    diagonal[np.searchsorted(best, gap[fits]), pad + edges[fits, 0]] = weights[fits]
    rest = weights[~fits].astype(dtype)
    row, column, (weight,) = compressed_rows(n, edges[~fits], [np.concatenate([rest, rest])])
    clamped = np.flatnonzero(np.isinf(unary).any(axis=1))
    bias = np.zeros(n)
    free = np.isfinite(unary).all(axis=1)
    bias[free] = unary[free, 1] - unary[free, 0]
    clamp = np.where(np.isinf(unary[clamped, 1]), CLAMP, -CLAMP)
    return BinaryPack(
        bias.astype(dtype), best, diagonal, pad, row, column, weight, clamped, clamp.astype(dtype)
    )


def binary_constant(lowered: Lowered) -> float:
    """The energy at uniform marginals, which the compact form leaves out.

    A variable with an impossible label counts with the energy of the other one.
    """
    unary = lowered.unary.reshape(-1, 2)
    free = np.isfinite(unary).all(axis=1)
    return lowered.constant + float(0.5 * unary[free].sum() + unary[~free].min(axis=1).sum())


def pack_general(lowered: Lowered, dtype: np.dtype[np.floating]) -> tuple[GeneralPack, float]:
    """Pack any field; also returns the constant that goes with it."""
    layout = lowered.layout
    n, offset = layout.n_vars, layout.offsets
    constant = lowered.constant
    ends: list[Ints] = []
    agree: list[Floats] = []
    if lowered.potts is not None:  # w·[x ≠ y] = w − w·[x = y]
        constant += float(lowered.potts.weights.sum())
        ends.append(lowered.potts.edges)
        agree.append(-lowered.potts.weights)
    if lowered.ising is not None:  # J·s·t = 2J·[s = t] − J
        constant -= float(lowered.ising.weights.sum())
        ends.append(lowered.ising.edges)
        agree.append(2.0 * lowered.ising.weights)
    none = np.zeros((0, 2), dtype=np.int64)
    w = np.concatenate([np.zeros(0), *agree]).astype(dtype)
    agree_row, agree_column, (agree_weight,) = compressed_rows(
        n, np.concatenate([none, *ends]), [np.concatenate([w, w])]
    )
    pairs = [f for f in lowered.factors if f.degree == 2]
    larger = [f for f in lowered.factors if f.degree > 2]
    tables: list[Floats] = []
    used = 0
    starts: list[Ints] = []
    for factor in (*pairs, *larger):
        starts.append(used + factor.index * int(np.prod(factor.shape)))
        tables.append(factor.tables.ravel())
        used += factor.tables.size
    start = np.concatenate([np.zeros(0, dtype=np.int64), *starts[: len(pairs)]])
    table_row, table_column, (table_start,) = compressed_rows(
        n, np.concatenate([none, *(f.scopes for f in pairs)]), [np.concatenate([start, -1 - start])]
    )
    arity = np.concatenate(
        [np.zeros(0, dtype=np.int64), *(np.full(len(f.scopes), f.degree) for f in larger)]
    )
    slots = np.concatenate([np.zeros(0, dtype=np.int64), *(f.scopes.ravel() for f in larger)])
    lengths = layout.cardinalities[slots] if len(slots) else slots
    by_variable = np.argsort(slots, kind="stable")
    slot_row = np.zeros(n + 1, dtype=np.int64)
    np.cumsum(np.bincount(slots, minlength=n), out=slot_row[1:])
    bounds = np.searchsorted(offset, np.arange(0, layout.size, BLOCK_ENTRIES))
    return (
        GeneralPack(
            offset=offset,
            unary=lowered.unary.astype(dtype),
            block=np.unique(np.concatenate([bounds, [n]])).astype(np.int64),
            agree_row=agree_row,
            agree_column=agree_column,
            agree_weight=agree_weight,
            table_row=table_row,
            table_column=table_column,
            table_start=table_start,
            table=np.concatenate([np.zeros(0), *tables]).astype(dtype),
            factor_slot=np.concatenate([[0], np.cumsum(arity)]).astype(np.int64),
            slot_variable=slots.astype(np.int64),
            slot_message=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
            factor_start=np.concatenate([np.zeros(0, dtype=np.int64), *starts[len(pairs) :]]),
            slot_row=slot_row,
            slot_list=by_variable.astype(np.int64),
            slot_factor=np.repeat(np.arange(len(arity)), arity).astype(np.int64),
            scratch=max([1, *(int(np.prod(f.shape)) // min(f.shape) for f in larger)]),
            hard=lowered.hard,
        ),
        constant,
    )
