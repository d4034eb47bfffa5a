"""Merging edges, scopes and tables: the same sums in the same order, and no needless copies."""

from __future__ import annotations

import numpy as np
import pytest

import proxfield as pf
from proxfield.core.lowering import merging
from proxfield.core.lowering.merging import (
    add_at,
    compact_index,
    deduplicate,
    group_positions,
    merge_edges,
    merge_scopes,
    row_hashes,
)


def plain_merge(items: list) -> dict[tuple[int, int], float]:
    """Weights added one after the other, in the order in which they come."""
    total: dict[tuple[int, int], float] = {}
    for edges, weights in items:
        for edge, weight in zip(edges.tolist(), weights.tolist(), strict=True):
            key = (min(edge), max(edge))
            total[key] = total.get(key, 0.0) + weight
    return {key: total[key] for key in sorted(total) if total[key] != 0}


@pytest.mark.parametrize("seed", range(30))
def test_edges_merge_to_the_bit(seed: int) -> None:
    rng = np.random.default_rng(seed)
    items = []
    for _ in range(int(rng.integers(1, 4))):
        edges = rng.integers(int(rng.choice([3, 8, 40])), size=(int(rng.integers(0, 60)), 2))
        edges = edges[edges[:, 0] != edges[:, 1]]
        weights = rng.normal(size=len(edges)) * 10.0 ** rng.integers(-8, 8, size=len(edges))
        items.append((edges, np.where(rng.random(len(edges)) < 0.1, 0.0, weights)))
    expected = plain_merge(items)
    found = merge_edges(items)
    if not expected:
        assert found is None
        return
    assert found is not None
    assert list(map(tuple, found[0].tolist())) == list(expected)
    assert found[1].tolist() == list(expected.values())


def test_edges_in_order_are_not_copied() -> None:
    edges = np.stack([np.arange(50), np.arange(50) + 2], axis=1)
    weights = np.arange(1.0, 51.0)
    found = merge_edges([(edges, weights)])
    assert found is not None
    assert found[0] is edges
    assert found[1] is weights
    term = pf.Ising(edges, weights)
    lowered = pf.Field(52, n_labels=2, terms=[term]).lower()
    assert lowered.ising is not None
    assert lowered.ising.edges is term.edges


def test_a_term_keeps_arrays_of_its_own() -> None:
    edges, weights = np.array([[0, 1]]), np.array([2.0])
    field = pf.Field(2, n_labels=2, terms=[pf.Ising(edges, weights), pf.Unary(np.zeros((2, 2)))])
    field.lower()
    edges[:], weights[:] = 7, 9.0
    assert field.energy([1, 1]) == 2.0


@pytest.fixture(params=[False, True], ids=["hashed", "colliding"])
def collisions(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Hashes as they are, or only two different ones."""
    if request.param:
        monkeypatch.setattr(merging, "row_hashes", lambda rows: row_hashes(rows) % np.uint64(2))
    monkeypatch.setattr(merging, "LARGEST_KEY", 0)  # scopes by hashes too
    return bool(request.param)


@pytest.mark.usefixtures("collisions")
def test_equal_tables_and_scopes_are_found_whatever_the_hashes() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        tables = rng.integers(0, 3, size=(40, 2, 2)).astype(float)
        index = rng.integers(40, size=60)
        kept, where = deduplicate(tables, index)
        np.testing.assert_array_equal(kept[where], tables[index])
        assert len(kept) == len(np.unique(tables[index], axis=0))
        scopes = rng.integers(0, 4, size=(60, 3))
        merged, sums, which = merge_scopes(scopes, tables, index)
        assert len(np.unique(merged, axis=0)) == len(merged)
        assert len(merged) == len(np.unique(scopes, axis=0))
        for scope, row in zip(merged, which, strict=True):
            same = (scopes == scope).all(axis=1)
            np.testing.assert_allclose(sums[row], tables[index[same]].sum(axis=0))


def test_different_rows_have_different_hashes() -> None:
    rows = np.random.default_rng(1).normal(size=(100_000, 4))
    assert len(np.unique(row_hashes(rows))) == len(rows)
    numbers = np.stack(np.meshgrid(np.arange(300), np.arange(300)), axis=-1).reshape(-1, 2)
    assert len(np.unique(row_hashes(numbers))) == len(numbers)
    assert row_hashes(np.array([[0.0]])) == row_hashes(np.array([[-0.0]]))


def test_positions_are_a_stable_argsort() -> None:
    values = np.random.default_rng(2).integers(0, 20, size=500)
    starts, order = group_positions(values, 22)
    np.testing.assert_array_equal(order, np.argsort(values, kind="stable"))
    np.testing.assert_array_equal(np.diff(starts), np.bincount(values, minlength=22))
    starts, order = group_positions(values[:0], 3)
    assert starts.tolist() == [0, 0, 0, 0]
    assert len(order) == 0


def test_compact_index() -> None:
    used, index = compact_index(np.array([5, 2, 5]), 9)
    assert used is not None
    assert used.tolist() == [2, 5]
    assert index.tolist() == [1, 0, 1]
    everything = np.array([1, 0, 1])
    used, index = compact_index(everything, 2)
    assert used is None
    assert index is everything


@pytest.mark.parametrize("count", [0, 1, 5, 6, 200])
def test_adding_at_entries_is_numpys_to_the_bit(count: int) -> None:
    rng = np.random.default_rng(count)
    entries = rng.integers(6, size=count)
    values = rng.normal(size=count) * 10.0 ** rng.integers(-8, 8, size=count)
    expected = rng.normal(size=6)
    found = expected.copy()
    np.add.at(expected, entries, values)
    add_at(found, entries, values)
    assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize("order", ["rows", "columns", "random"])
@pytest.mark.parametrize("forbidden", [False, True])
def test_tables_by_index_are_lowered_as_edge_by_edge(order: str, forbidden: bool) -> None:
    """Tables that many edges share are reduced once; the bits are those of each by itself."""
    rng = np.random.default_rng(3)
    pairs = np.array([(i, j) for i in range(30) for j in range(i + 1, 30)])
    pairs = pairs[rng.random(len(pairs)) < 0.4]
    if order == "columns":
        pairs = pairs[np.lexsort(pairs.T)]
    elif order == "random":
        pairs = rng.permutation(pairs)
    tables, index = rng.normal(size=(9, 2, 2)), rng.integers(9, size=len(pairs))
    if forbidden:
        tables[4, 0, 1] = np.inf
    unary = rng.normal(size=(30, 2))
    low = pf.Field(30, 2, [pf.Unary(unary), pf.Factor(pairs, tables, index)]).lower()
    soft = [k for k in range(len(pairs)) if np.isfinite(tables[index[k]]).all()]
    bias, coupling, constants = unary.copy(), {}, []
    sides = {}
    for k in soft:
        (aa, ab), (ba, bb) = 0.25 * tables[index[k]]
        sides[k] = ((ba + bb) - (aa + ab), (ab + bb) - (aa + ba))
        coupling[tuple(pairs[k].tolist())] = (aa + bb) - (ab + ba)
        constants.append((aa + bb) + (ab + ba))
    for end in (0, 1):
        for k in soft:
            bias[pairs[k, end]] += [-sides[k][end], sides[k][end]]
    assert low.unary.tobytes() == bias.tobytes()
    assert low.constant == np.array(constants).sum()
    assert low.ising is not None
    assert dict(zip(map(tuple, low.ising.edges.tolist()), low.ising.weights, strict=True)) == (
        coupling
    )
    assert sum(len(f.scopes) for f in low.factors) == len(pairs) - len(soft)
