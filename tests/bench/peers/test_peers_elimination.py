"""Factor graphs of fields, and exact answers by elimination."""

from __future__ import annotations

import numpy as np
import pytest

import proxfield as pf
from proxfield.bench.peers.graph import Elimination, elimination_order, factor_graph
from proxfield.errors import InputError, UnsupportedError
from proxfield.generate import grid, grid_edges
from proxfield.testing import enumerate_field
from random_fields import random_field


def test_elimination_agrees_with_enumeration() -> None:
    compared = 0
    for seed in range(60):
        field, _ = random_field(seed)
        try:
            graph, exact = factor_graph(field), enumerate_field(field)
        except (UnsupportedError, InputError):
            continue  # terms without tables, or too many labellings
        compared += 1
        found = Elimination(graph)
        if not exact.feasible:
            assert found.log_z == -np.inf, seed
            continue
        assert found.log_z == pytest.approx(exact.log_z, rel=1e-9, abs=1e-8), seed
        np.testing.assert_allclose(found.marginals(), exact.marginals, atol=1e-6)
        lowest = field.energy(found.best_labels())
        assert lowest == pytest.approx(exact.min_energy, rel=1e-9, abs=1e-8), seed
    assert compared > 40


def test_answers_can_be_asked_for_again_and_in_any_order() -> None:
    exact = Elimination(factor_graph(grid(4, 5, strength=2.0)))
    first = exact.marginals()
    exact.best_labels()
    np.testing.assert_array_equal(exact.marginals(), first)


def test_a_grid_beyond_enumeration_keeps_its_symmetry() -> None:
    field = pf.Field(144, n_labels=2).add(pf.Ising(grid_edges(12, 12), -0.4))
    q = Elimination(factor_graph(field)).marginals()
    np.testing.assert_allclose(q, 0.5, atol=1e-9)  # nothing prefers a label


def test_chain_order_has_width_one() -> None:
    graph = factor_graph(pf.Field(9, n_labels=2).add(pf.Potts([(i, i + 1) for i in range(8)], 1.0)))
    Elimination(graph, limit=4)  # pairs of two labels: any wider table would be refused
    assert sorted(elimination_order(graph)) == list(range(9))


def test_tables_that_are_too_large_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="treewidth is too large"):
        Elimination(factor_graph(grid(6, 6)), limit=32)


def test_evidence_and_equal_scopes_are_merged() -> None:
    field = pf.Field([2, 3, 2])
    field.add(pf.Pairwise([[0, 1]], [[0.0, 1, 2], [3, 4, 5]]))
    field.add(pf.Pairwise([[1, 0]], [[10.0, 20], [30, 40], [50, 60]]))
    field.add(pf.Unary([[7.0, 8.0]], variables=[2]))
    graph = factor_graph(field.condition({2: 1}))
    ((scope, table),) = graph.factors
    assert scope == (0, 1)
    np.testing.assert_array_equal(table, [[10, 31, 52], [23, 44, 65]])
    assert graph.constant == 8.0
    assert graph.expand_labels([1, 2]).tolist() == [1, 2, 1]
    rows = [np.array([0.25, 0.75]), np.array([0.2, 0.3, 0.5])]
    assert graph.expand(rows).tolist() == [0.25, 0.75, 0.2, 0.3, 0.5, 0.0, 1.0]
