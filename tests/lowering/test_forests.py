"""Induced forests: trees, in the order of messages, that cover the field."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import proxfield as pf
from helpers import random_field, repulsive_grid
from proxfield.core.lowering.lowered import FieldGraph, Lowered, graph_of, make_forests


def pairs_of(lowered: Lowered) -> set[tuple[int, int]]:
    terms = [t for t in lowered.terms if t.degree == 2]
    edges = [t.neighbors(lowered.layout) for t in terms]
    return {(min(e), max(e)) for some in edges for e in some.tolist()}


def closes_cycle(kept: set[int], i: int, pairs: set[tuple[int, int]]) -> bool:
    """Whether a variable would join two neighbors that are connected already."""
    tree = {j: j for j in kept}
    for a, b in pairs:
        if a in kept and b in kept:
            old, new = tree[a], tree[b]
            tree = {j: new if t == old else t for j, t in tree.items()}
    mine = [tree[a + b - i] for a, b in pairs if i in (a, b) and a + b - i in kept]
    return len(set(mine)) < len(mine)


def check(lowered: Lowered, graph: FieldGraph, usable: np.ndarray) -> None:
    forests, pairs = make_forests(graph, usable), pairs_of(lowered)
    factors = [set(s) for f in lowered.factors if f.degree > 2 for s in f.scopes.tolist()]
    seen: set[int] = set()
    for begin, end in itertools.pairwise(forests.start):
        node, above = forests.node[begin:end].tolist(), forests.above[begin:end].tolist()
        kept = set(node)
        assert len(kept) == len(node) and usable[node].all()
        inside = {pair for pair in pairs if kept.issuperset(pair)}
        assert inside == {(min(e), max(e)) for e in zip(node, above, strict=True) if e[1] >= 0}
        place = {i: k for k, i in enumerate(node)}
        assert all(p < 0 or place[p] > k for k, p in enumerate(above))  # children first
        assert all(len(kept & scope) <= 1 for scope in factors)
        for k in range(begin, end):
            if forests.above[k] >= 0:
                assert graph.column[forests.edge[k]] == forests.above[k]
                row = graph.row[forests.node[k] : forests.node[k] + 2]
                assert row[0] <= forests.edge[k] < row[1]
        for i in set(np.flatnonzero(usable).tolist()) - kept:  # none can be added
            clash = any(i in scope and scope & kept for scope in factors)
            assert clash or closes_cycle(kept, i, pairs)
        seen |= kept
    assert seen | set(forests.rest.tolist()) == set(np.flatnonzero(usable).tolist())
    assert not seen & set(forests.rest.tolist())


@pytest.mark.parametrize("seed", range(20))
def test_forests_of_random_fields(seed: int) -> None:
    rng = np.random.default_rng(seed)
    lowered = random_field(rng, n_labels=(2, 3), n_vars=(3, 9)).lower()
    check(lowered, graph_of(lowered), rng.random(lowered.layout.n_vars) < 0.9)


def test_forests_of_a_grid_cover_it() -> None:
    lowered = repulsive_grid(12).lower()
    graph, usable = graph_of(lowered), np.ones(144, dtype=bool)
    check(lowered, graph, usable)
    forests = make_forests(graph, usable)
    assert len(forests.rest) == 0
    assert (np.diff(forests.start) > 0.55 * 144).all()
    again, other = make_forests(graph, usable), make_forests(graph, usable, seed=1)
    assert (again.node == forests.node).all()
    assert not np.array_equal(other.node, forests.node)


def test_dense_graphs_leave_a_rest() -> None:
    """A forest of a complete graph has two variables: the others are visited one by one."""
    edges = np.array(list(itertools.combinations(range(30), 2)))
    lowered = pf.Field(30, n_labels=2, terms=[pf.Ising(edges, 0.1)]).lower()
    forests = make_forests(graph_of(lowered), np.ones(30, dtype=bool))
    assert (np.diff(forests.start) == 2).all()
    assert len(forests.rest) == 30 - 16


def test_a_tree_is_its_own_forest() -> None:
    edges = [[0, 1], [1, 2], [1, 3], [3, 4], [6, 7]]
    lowered = pf.Field(8, n_labels=3, terms=[pf.Potts(edges, 1.0)]).lower()
    forests = make_forests(graph_of(lowered), np.ones(8, dtype=bool), count=1)
    assert sorted(forests.node) == list(range(8))
    assert (forests.above < 0).sum() == 3


def test_nothing_to_do() -> None:
    graph = graph_of(pf.Field(2, n_labels=2, terms=[pf.Ising([[0, 1]], 1.0)]).lower())
    forests = make_forests(graph, np.zeros(2, dtype=bool))
    assert forests.start.tolist() == [0] * 9 and len(forests.rest) == 0
