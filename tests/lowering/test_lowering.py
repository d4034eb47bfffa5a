"""Lowering keeps every energy, and finds the fast forms."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import proxfield as pf
from helpers import Chain, energies, labellings, random_field, random_marginals
from proxfield.core.lowering.merging import deduplicate, merge_edges, merge_scopes
from proxfield.core.lowering.reduction import Reduction

INF = np.inf


def assert_exact(field: pf.Field) -> None:
    """Each labelling that lowering leaves has its energy; what it takes out can't occur."""
    lowered = field.lower()
    reduction = lowered.reduction
    left = itertools.product(*map(range, lowered.layout.cardinalities))
    found = {}
    for x in left:
        full = reduction.expand_labels(np.array(x, dtype=np.int64))
        found[tuple(full)] = lowered.energy(np.array(x, dtype=np.int64))
    for x, energy in zip(labellings(field), energies(field), strict=True):
        if tuple(x) in found:
            assert found.pop(tuple(x)) == pytest.approx(energy, abs=1e-9)
        else:
            assert energy == INF
    assert not found


@pytest.mark.parametrize("seed", range(60))
def test_exact_on_every_labelling(seed: int) -> None:
    rng = np.random.default_rng(seed)
    field = random_field(rng)
    assert_exact(field)
    v = int(rng.integers(field.n_vars))
    assert_exact(field.condition({v: int(rng.integers(field.cardinalities[v]))}))


@pytest.mark.parametrize("seed", range(60, 100))
def test_exact_with_impossible_labels_and_tables(seed: int) -> None:
    rng = np.random.default_rng(seed)
    field = random_field(rng, n_labels=(2, 3))
    for v, c in enumerate(field.cardinalities):
        row = np.where(rng.random(c) < 0.2, INF, 0.0)
        row[rng.integers(c)] = 0.0
        field.add(pf.Unary(row[None], [v]))
    if seed % 2:
        i, j = rng.choice(field.n_vars, size=2, replace=False)
        shape = field.cardinalities[[i, j]]
        field.add(pf.Factor([i, j], np.where(rng.random(shape) < 0.3, INF, 1.0)))
    if not field.lower().infeasible:
        assert_exact(field)
    else:
        assert (energies(field) == INF).all()


@pytest.mark.parametrize("seed", range(5))
def test_softening_changes_only_what_is_forbidden(seed: int) -> None:
    rng = np.random.default_rng(seed)
    table = np.where(rng.random((3, 3)) < 0.3, INF, rng.normal(size=(3, 3)))
    table[0] = table[:, 0] = 0.0
    field = pf.Field(2, n_labels=3, terms=[pf.Pairwise([[0, 1]], table), pf.Constant(2.0)])
    lowered = field.lower()
    soft = lowered.soften(10.0)
    assert lowered.hard == bool(np.isinf(table).any())
    assert not soft.hard
    worst = table[np.isfinite(table)].max()
    for x in labellings(field):
        expected = min(table[tuple(x)], worst + 10.0) + 2.0
        assert soft.energy(x) == pytest.approx(expected)


# ---- fast forms ----


def test_unaries_merge() -> None:
    field = pf.Field(2, n_labels=3, terms=[pf.Unary(np.ones((2, 3))), pf.Unary([[1, 2, 3]], [1])])
    lowered = field.add(pf.Factor([[0]], [[5.0, 0.0, 0.0]])).lower()
    assert lowered.unary.tolist() == [6, 1, 1, 2, 3, 4]
    assert list(lowered.terms) == []


def test_binary_tables_become_ising() -> None:
    tables = np.random.default_rng(0).normal(size=(2, 2, 2))
    field = pf.Field(3, n_labels=2, terms=[pf.Pairwise([[0, 1], [2, 1]], tables)])
    lowered = field.lower()
    assert lowered.factors == ()
    assert lowered.potts is None
    assert lowered.ising.edges.tolist() == [[0, 1], [1, 2]]
    expected = (tables[:, 0, 0] + tables[:, 1, 1] - tables[:, 0, 1] - tables[:, 1, 0]) / 4
    np.testing.assert_allclose(lowered.ising.weights, expected)
    assert_exact(field)


def test_symmetric_tables_leave_no_bias() -> None:
    """So that a start at a symmetric saddle stays there, bit for bit."""
    field = pf.Field(2, n_labels=2, terms=[pf.Pairwise([[0, 1]], [[0.1, 0.7], [0.7, 0.1]])])
    assert (field.lower().unary == 0.0).all()
    assert (pf.infer(field, "fixed").q == 0.5).all()


def test_potts_tables_are_recognized() -> None:
    like = 0.3 + 1.7 * (1 - np.eye(3))
    unlike = like.copy()
    unlike[2, 1] += 1e-9
    edges = [[0, 1], [2, 1], [2, 3]]
    field = pf.Field(4, n_labels=3, terms=[pf.Pairwise(edges, [like, unlike, like])])
    lowered = field.lower()
    assert lowered.potts.edges.tolist() == [[0, 1], [2, 3]]
    np.testing.assert_allclose(lowered.potts.weights, 1.7)
    assert [f.scopes.tolist() for f in lowered.factors] == [[[1, 2]]]
    assert_exact(field)


def test_tables_with_inf_stay_tables() -> None:
    for n_labels in (2, 3):
        same = np.where(np.eye(n_labels, dtype=bool), 0.0, INF)
        lowered = pf.Field(2, n_labels=n_labels, terms=[pf.Pairwise([[0, 1]], same)]).lower()
        assert lowered.hard
        assert lowered.ising is None
        assert lowered.potts is None


def test_potts_between_binary_variables_becomes_ising() -> None:
    field = pf.Field([2, 2, 3], terms=[pf.Potts([[1, 0], [1, 2]], [4.0, 1.0])])
    lowered = field.lower()
    assert lowered.ising.edges.tolist() == [[0, 1]]
    assert lowered.ising.weights.tolist() == [-2.0]
    assert lowered.potts.edges.tolist() == [[1, 2]]
    assert_exact(field)


def test_parallel_edges_merge() -> None:
    field = pf.Field(
        2,
        n_labels=2,
        terms=[
            pf.Ising([[0, 1], [1, 0]], [1.0, 0.5]),
            pf.Potts([[0, 1]], [2.0]),
            pf.Pairwise([[1, 0]], [[0.0, 1.0], [3.0, 0.0]]),
        ],
    )
    lowered = field.lower()
    assert lowered.ising.edges.tolist() == [[0, 1]]
    assert lowered.ising.weights == pytest.approx([1.5 - 1.0 - 1.0])
    assert_exact(field)


def test_edges_that_cancel_are_dropped() -> None:
    field = pf.Field(2, n_labels=3, terms=[pf.Potts([[0, 1], [1, 0]], [2.0, -2.0])])
    assert field.lower().potts is None


def test_repeated_scopes_of_tables_merge() -> None:
    rng = np.random.default_rng(1)
    tables = rng.normal(size=(3, 3, 3))
    field = pf.Field(3, n_labels=3, terms=[pf.Pairwise([[0, 1], [1, 0], [1, 2]], tables)])
    (factor,) = field.lower().factors
    assert sorted(factor.scopes.tolist()) == [[0, 1], [1, 2]]
    row = factor.scopes.tolist().index([0, 1])
    np.testing.assert_allclose(factor.tables[factor.index[row]], tables[0] + tables[1].T)
    cube = rng.normal(size=(2, 2, 2, 2))
    field = pf.Field(3, n_labels=2, terms=[pf.Factor([[0, 1, 2], [0, 1, 2]], cube)])
    (factor,) = field.lower().factors
    np.testing.assert_allclose(factor.tables, cube.sum(axis=0)[None])


def test_equal_tables_are_stored_once() -> None:
    table = np.random.default_rng(2).normal(size=(3, 3))
    edges = np.stack([np.arange(50), np.arange(1, 51)], axis=1)
    field = pf.Field(51, n_labels=3, terms=[pf.Pairwise(edges, np.repeat(table[None], 50, axis=0))])
    (factor,) = field.lower().factors
    assert factor.tables.shape == (1, 3, 3)
    assert len(factor.scopes) == 50
    shared = pf.Field(51, n_labels=3, terms=[pf.Pairwise(edges, table)])
    np.testing.assert_array_equal(shared.lower().factors[0].tables, factor.tables)


def test_deduplicate_knows_minus_zero_and_infinity() -> None:
    tables = np.array([[0.0, INF], [-0.0, INF], [1.0, INF], [0.0, INF]])
    kept, index = deduplicate(tables, np.array([3, 0, 2, 1]))
    assert len(kept) == 2
    np.testing.assert_array_equal(kept[index], tables[[3, 0, 2, 1]])


def test_merging_scopes_of_many_variables() -> None:
    """Keys that don't fit in 64 bits take the slow way; both ways agree."""
    rng = np.random.default_rng(3)
    for top in (6, 2**40):
        scopes = rng.integers(0, 3, size=(20, 3)) * (top // 3)
        tables = rng.normal(size=(20, 2, 2, 2))
        merged, sums, index = merge_scopes(scopes, tables, np.arange(20))
        assert len(np.unique(merged, axis=0)) == len(merged)
        for scope, which in zip(merged, index, strict=True):
            same = (scopes == scope).all(axis=1)
            np.testing.assert_allclose(sums[which], tables[same].sum(axis=0))


def test_merge_edges() -> None:
    assert merge_edges([]) is None
    edges, weights = merge_edges([(np.array([[3, 1], [0, 2]]), np.array([1.0, 2.0]))])
    assert edges.tolist() == [[0, 2], [1, 3]]
    assert weights.tolist() == [2.0, 1.0]


# ---- what goes out ----


def test_evidence_takes_variables_out() -> None:
    cube = np.random.default_rng(4).normal(size=(2, 3, 4))
    field = pf.Field([2, 3, 4], terms=[pf.Factor([0, 1, 2], cube)])
    lowered = field.condition({1: 2}).lower()
    assert lowered.layout.cardinalities.tolist() == [2, 4]
    np.testing.assert_allclose(lowered.factors[0].tables[0], cube[:, 2])
    lowered = field.condition({1: 2, 0: 1}).lower()
    np.testing.assert_allclose(lowered.unary, cube[1, 2])
    lowered = field.condition({1: 2, 0: 1, 2: 3}).lower()
    assert lowered.constant == cube[1, 2, 3]


def test_labels_only_a_unary_forbids_stay() -> None:
    """A uniform start is over all labels, as in the paper."""
    field = pf.Field(2, n_labels=3, terms=[pf.Unary([[0, INF, 0], [0, 0, 0]])])
    lowered = field.lower()
    assert lowered.layout.size == 6
    assert lowered.unary[1] == INF
    assert not lowered.hard


def test_hard_tables_take_impossible_labels_out() -> None:
    """Propagation: x0 = x1 and x1 can't be 2, so x0 can't be 2 either."""
    same = np.where(np.eye(3, dtype=bool), 0.0, INF)
    field = pf.Field(2, n_labels=3, terms=[pf.Pairwise([[0, 1]], same)])
    field.add(pf.Unary([[0, 0, INF]], [1]))
    assert field.lower().layout.cardinalities.tolist() == [2, 2]
    assert_exact(field)
    decided = field.condition({0: 1}).lower()
    assert decided.layout.n_vars == 0
    assert decided.constant == 0.0


def test_terms_without_lower_keep_every_variable() -> None:
    field = pf.Field(4, n_labels=2, terms=[Chain(1.0), pf.Unary(np.ones((4, 2)))])
    lowered = field.condition({1: 0}).lower()
    assert [type(t) for t in lowered.extras] == [Chain]
    assert lowered.layout.n_vars == 4
    assert lowered.unary.tolist() == [1, 1, 1, INF, 1, 1, 1, 1]


def test_plain_lowering_keeps_raw_tables() -> None:
    from proxfield.core.lowering.lowered import lower

    field = pf.Field([2, 2, 3], terms=[pf.Potts([[0, 1], [1, 2]], 2.0), pf.Ising([[0, 1]], 1.0)])
    raw = lower(field.layout, field.terms, field.evidence, plain=True)
    assert raw.ising is None
    assert raw.potts is None
    table = next(f for f in raw.factors if f.shape == (2, 2)).tables[0]
    np.testing.assert_allclose(table, [[1, 1], [1, 1]])


# ---- there and back ----


@pytest.mark.parametrize("seed", range(10))
def test_reduction_round_trip(seed: int) -> None:
    rng = np.random.default_rng(seed)
    layout = pf.Field(rng.integers(1, 5, size=6)).layout
    keep = rng.random(layout.size) < 0.6
    keep[layout.offsets[:-1]] = True
    reduction = Reduction(layout, keep)
    q = random_marginals(reduction.layout, rng)
    full = reduction.expand(q)
    np.testing.assert_allclose(layout.sum_by_variable(full), 1.0)
    assert (full[~keep] == 0).all()
    np.testing.assert_allclose(reduction.restrict(full), q)
    labels = rng.integers(0, reduction.layout.cardinalities)
    back = reduction.expand_labels(labels)
    assert (back < layout.cardinalities).all()
    assert keep[layout.offsets[:-1] + back].all()
    hot = np.zeros(reduction.layout.size)
    hot[reduction.layout.offsets[:-1] + labels] = 1.0
    assert reduction.expand(hot)[layout.offsets[:-1] + back].all()


def test_restrict_starts_uniform_where_nothing_is_left() -> None:
    layout = pf.Field([3]).layout
    reduction = Reduction(layout, np.array([False, True, True]))
    assert reduction.restrict(np.array([1.0, 0.0, 0.0])).tolist() == [0.5, 0.5]


# ---- energies too large to add up ----


def chain_edges(n: int) -> np.ndarray:
    return np.stack([np.arange(n - 1), np.arange(1, n)], axis=1)


@pytest.mark.parametrize(
    "terms",
    [
        [pf.Unary([[1e308, -1e308]] * 3), pf.Unary([[1e308, -1e308]] * 3)],
        [pf.Unary([[0.0, 1.1e300]], [1])],
        [pf.Constant(-1e300), pf.Constant(-1e300)],
        [pf.Ising([[0, 1]], 1e308)],
        [pf.Ising(chain_edges(3), [-6e299, 6e299])],
        [pf.Potts([[0, 1], [1, 2]], -1e300)],
        [pf.Pairwise([[0, 1]], [[0.0, 1e301], [np.inf, 0.0]])],
        [pf.Factor([0, 1, 2], np.full((2, 2, 2), -1e307))],
        [pf.Gaussian(np.zeros((3, 1)), 1e301)],
        [pf.Gaussian(np.zeros((3, 1)), 1.0, compatibility=[1e301, 0.0], normalization="none")],
        [pf.Consistency([0, 0, 0], 1e301)],
    ],
)
def test_energies_that_could_overflow_are_refused(terms: list[pf.Term]) -> None:
    field = pf.Field(3, n_labels=2, terms=terms)
    with pytest.raises(pf.InputError, match=r"in size, expected at most 1e\+300") as caught:
        pf.infer(field)
    assert len(str(caught.value)) < 200
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("rule", ["fixed", "momentum", "sweep", "auto"])
def test_energies_below_the_limit_give_finite_bounds(rule: str) -> None:
    edges = chain_edges(80)
    weights = 1e297 * np.linspace(-1, 1, 79)
    field = pf.Field(80, n_labels=2, terms=[pf.Ising(edges, weights), pf.Unary([[0, INF]], [3])])
    result = pf.infer(field, rule, max_iters=30, init="random")
    assert np.isfinite(result.free_energy)
    assert result.log_z_bound < 1e299


def test_infinite_energies_do_not_count() -> None:
    table = np.where(np.eye(2, dtype=bool), 0.0, INF)
    field = pf.Field(2, n_labels=2, terms=[pf.Pairwise([[0, 1]], table), pf.Unary([[0, INF]], [0])])
    assert field.lower().magnitude == 0.0
    assert pf.Field(1, n_labels=2, terms=[pf.Constant(INF)]).lower().infeasible


def test_single_precision_has_a_limit_of_its_own() -> None:
    field = pf.Field(2, n_labels=2, terms=[pf.Ising([[0, 1]], 2e37)])
    assert np.isfinite(pf.infer(field, "sweep").free_energy)
    with pytest.raises(pf.InputError, match=r"2e\+37 in size, expected at most 1e\+37 for dtype"):
        pf.infer(field, "sweep", dtype="float32")


# ---- nothing to take out ----


def test_unary_energies_are_shared_only_as_float64() -> None:
    energies = np.array([[0.1, 0.2], [0.3, 0.4]])
    term = pf.Unary(energies)
    assert np.shares_memory(pf.Field(2, n_labels=2, terms=[term]).lower().unary, term.energies)
    single = pf.Field(2, n_labels=2, terms=[pf.Unary(energies.astype(np.float32))]).lower().unary
    assert single.dtype == np.float64
    both = pf.Field(2, n_labels=2, terms=[term, term]).lower().unary
    np.testing.assert_array_equal(both, 2 * energies.ravel())
    np.testing.assert_array_equal(term.energies, energies)
