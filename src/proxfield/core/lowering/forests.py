"""Induced forests of a lowered field, for moves that sample many variables at once."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from proxfield.core.lowering.lowered import Lowered
from proxfield.core.lowering.merging import compressed_rows, group_positions
from proxfield.core.terms.base import Ints

FORESTS = 8
"""Forests of a field, used in turn."""


class FieldGraph(NamedTuple):
    """Who interacts with whom."""

    row: Ints  # starts of each variable's neighbors by pairwise energies  # (n + 1,)
    column: NDArray[np.int32]  # each neighbor once
    member_row: Ints  # starts of each variable's factors over three or more variables  # (n + 1,)
    member: Ints
    n_factors: int


class Forests(NamedTuple):
    """Forests one after another."""

    start: Ints  # first entry of each  # (forests + 1,)
    node: NDArray[np.int32]  # variables, children before their parents
    above: NDArray[np.int32]  # the parent; −1 at roots
    edge: Ints  # position of the parent in ``FieldGraph.column``
    rest: NDArray[np.int32]  # usable variables that are in no forest


def graph_of(lowered: Lowered) -> FieldGraph:
    """The graph of a field whose terms are all lowered to tables."""
    n = lowered.layout.n_vars
    pairs = [t.edges for t in (lowered.ising, lowered.potts) if t is not None]
    pairs += [f.scopes for f in lowered.factors if f.degree == 2]
    if len(pairs) > 1:  # two kinds of energies may have an edge in common
        both = np.sort(np.concatenate(pairs), axis=1)
        key = np.unique(both[:, 0] * n + both[:, 1])
        pairs = [np.stack([key // n, key % n], axis=1)]
    row, column, _ = compressed_rows(n, np.concatenate([np.zeros((0, 2), np.int64), *pairs]), [])
    larger = [f.scopes for f in lowered.factors if f.degree > 2]
    arity = np.concatenate([np.zeros(0, np.int64), *(np.full(len(s), s.shape[1]) for s in larger)])
    slots = np.concatenate([np.zeros(0, np.int64), *(s.ravel() for s in larger)])
    member_row, order = group_positions(slots, n)
    member = np.repeat(np.arange(len(arity)), arity)[order]
    return FieldGraph(row, column, member_row, member.astype(np.int64), len(arity))


def make_forests(
    graph: FieldGraph, usable: NDArray[np.bool_], count: int = FORESTS, seed: int = 0
) -> Forests:
    """Induced forests; a variable that one doesn't hold comes first in the next.

    Conditioned on everything else, the variables of a forest form trees: they can be sampled
    exactly, all at once. On sparse graphs every usable variable is in some forest; those of a
    dense graph (whose forests are small) that are in none are in ``rest``.
    """
    from proxfield.core.compiled.graphs import induced_forest

    n = len(usable)
    covered = np.where(usable, 0, 2).astype(np.int8)
    taken = np.zeros(graph.n_factors, dtype=np.int8)
    room = np.empty((3, n), dtype=np.int64)
    arrays = tuple(np.empty(n, dtype=kind) for kind in (np.int32, np.int32, np.int64))
    parts = [tuple(array[:0].copy() for array in arrays)]
    for k in range(count):
        number = np.uint64(seed * count + k)
        kept = induced_forest(*graph[:4], taken, covered, number, room, *arrays)
        parts.append(tuple(array[:kept].copy() for array in arrays))
    start = np.cumsum([len(node) for node, _, _ in parts])
    node, above, edge = (np.concatenate(some) for some in zip(*parts, strict=True))
    return Forests(start, node, above, edge, np.flatnonzero(covered == 0).astype(np.int32))
