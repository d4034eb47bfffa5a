"""Chains that sample labellings: single variables and forests, against numpy and enumeration."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import proxfield as pf
from conformance.examples import POSSIBLE, Example
from helpers import random_field, random_marginals, repulsive_grid
from proxfield.core.engines import compile_program
from proxfield.core.engines.plan import Chains, Explored
from proxfield.core.lowering.lowered import Lowered

INF = np.inf
MOVES: dict[str, dict[str, bool]] = {
    "heat bath": {},
    "metropolis": {"metropolis": True},
    "forests": {"forests": True},
}
all_moves = pytest.mark.parametrize("moves", MOVES.values(), ids=list(MOVES))


def explore(lowered: Lowered, kernels: str = "cpu", **options: Any) -> Explored:
    """Drawn chains from uniform starts unless others are given."""
    starts = options.pop("starts", None)
    if starts is None:
        start = lowered.layout.normalize(np.ones(lowered.layout.size))
        starts = np.repeat(start[None], options.pop("count", 1), axis=0)
    options = {"drawn": True, "polish": 0, **options}
    return compile_program(lowered, kernels).explore(Chains.make(starts, **options))


# ---- the same as in numpy ----


def check_equal(lowered: Lowered, seed: int) -> None:
    rng = np.random.default_rng(seed)
    starts = np.stack([random_marginals(lowered.layout, rng) for _ in range(8)])
    options = {
        "hot": [1.0, 2.0, 5.0, 0.5, 1.0, 2.0, 5.0, 0.5],
        "cold": [1.0, 0.3, 1.0, 0.01, 1.0, 0.3, 1.0, 0.01],
        "sweeps": [3, 12, 1, 9, 4, 11, 1, 0],
        "seeds": rng.integers(2**63, size=8).astype(np.uint64) * np.uint64(2),
        "forests": np.arange(8) < 4,
    }
    for options["metropolis"] in (False, True):
        a, b = (explore(lowered, k, starts=starts, **options) for k in ("reference", "cpu"))
        np.testing.assert_array_equal(a.q, b.q)
        np.testing.assert_allclose(a.free_energy, b.free_energy, rtol=1e-9, atol=1e-9)
        np.testing.assert_array_equal(b.sweeps, options["sweeps"])
        assert set(np.unique(b.q)) <= {0.0, 1.0}
        for q, f in zip(b.q, b.free_energy, strict=True):
            energy = lowered.energy(lowered.layout.best_labels(q))
            assert energy == pytest.approx(f, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("seed", range(12))
def test_chains_are_the_references(seed: int) -> None:
    check_equal(random_field(np.random.default_rng(seed)).lower(), seed)


@pytest.mark.parametrize("example", POSSIBLE.values(), ids=list(POSSIBLE))
def test_chains_are_the_references_on_every_example(example: Example) -> None:
    lowered = example.field().lower()
    if lowered.extras or lowered.infeasible or lowered.layout.n_vars == 0:
        pytest.skip("chains need variables, and every term in tables")
    check_equal(lowered, 1)


@all_moves
def test_what_is_kept_stays_right(moves: dict[str, bool]) -> None:
    """Long chains, hot enough for many changes: an error in one update would add up."""
    rng = np.random.default_rng(3)
    pairs = np.array(list(itertools.combinations(range(7), 2)))
    table = rng.normal(size=(len(pairs), 2, 2))
    tables = pf.Field(7, n_labels=2, terms=[pf.Pairwise(pairs, table)])
    mixed = pf.Field([2, 3, 4, 3], terms=[pf.Potts([[0, 1], [1, 2], [2, 3]], 1.5)])
    mixed.add(pf.Pairwise([[0, 2]], rng.normal(size=(2, 4))))
    mixed.add(pf.Pairwise([[1, 3]], rng.normal(size=(3, 3))))
    for field in (tables, mixed, repulsive_grid(4, weight=1.0, bias=0.3)):
        lowered = field.lower()
        options = {"hot": 3.0, "cold": 1.0, "sweeps": 150, **moves}
        options |= {"seeds": np.arange(8), "count": 8}
        a, b = (explore(lowered, kernels, **options) for kernels in ("reference", "cpu"))
        np.testing.assert_array_equal(a.q, b.q)


@all_moves
def test_groups_and_blocks_of_visits(moves: dict[str, bool]) -> None:
    """More variables than are looked at together, at most random numbers at a time, and a rest."""
    rng = np.random.default_rng(0)
    n = 1061
    edges = np.stack([np.arange(n - 1), np.arange(1, n)], axis=1)
    field = pf.Field(n, n_labels=2, terms=[pf.Ising(edges, rng.normal(size=n - 1))])
    field.add(pf.Unary(rng.normal(size=(n, 2))))
    lowered = field.lower()
    options = {"hot": 2.0, "cold": 1.0, "sweeps": 2, "seeds": 9, **moves}
    program = compile_program(lowered, "reference")
    a = program.explore(Chains.make(np.full((1, 2 * n), 0.5), drawn=True, polish=0, **options))
    np.testing.assert_array_equal(a.q, explore(lowered, **options).q)


@all_moves
@pytest.mark.parametrize("binary", [True, False], ids=["binary", "general"])
def test_threads_and_types_change_nothing(moves: dict[str, bool], binary: bool) -> None:
    field = repulsive_grid(6, weight=1.0, bias=0.3)
    if not binary:
        field.add(pf.Factor([0, 1, 2], np.arange(8.0).reshape(2, 2, 2)))
    lowered = field.lower()
    starts = np.full((5, lowered.layout.size), 0.5)
    chains = Chains.make(
        starts, hot=3.0, sweeps=20, seeds=np.arange(5), drawn=True, **moves, polish=0
    )
    one, two = (compile_program(lowered, threads=k).explore(chains) for k in (1, 2))
    np.testing.assert_array_equal(one.q, two.q)
    assert len(np.unique(one.q, axis=0)) > 1
    single = compile_program(lowered, dtype="float32").explore(chains)
    np.testing.assert_array_equal(one.q, single.q)  # no threshold is so close here


# ---- the distribution ----


def binary_field() -> pf.Field:
    """A cycle with a chord, and a variable that its unary energy decides."""
    rng = np.random.default_rng(4)
    edges = [[0, 1], [1, 2], [2, 3], [3, 4], [4, 0], [1, 3]]
    unary = rng.normal(scale=0.5, size=(5, 2))
    unary[2, 1] = INF
    return pf.Field(5, n_labels=2, terms=[pf.Unary(unary), pf.Ising(edges, rng.normal(size=6))])


def mixed_field() -> pf.Field:
    """Mixed numbers of labels, a table, Potts weights, a larger table, an impossible label."""
    rng = np.random.default_rng(2)
    unary = rng.normal(size=(1, 3))
    unary[0, 1] = INF
    return pf.Field(
        [2, 3, 2, 4],
        terms=[
            pf.Pairwise([[0, 1]], rng.normal(size=(2, 3))),
            pf.Potts([[1, 3], [2, 3]], [0.8, -0.6]),
            pf.Factor([0, 2, 3], rng.normal(size=(2, 2, 4))),
            pf.Unary(unary, [1]),
        ],
    )


def hard_field() -> pf.Field:
    """Neighbors on a path mustn't agree: with three labels every labelling can be reached."""
    forbid = np.where(np.eye(3) > 0, INF, np.random.default_rng(1).normal(size=(3, 3)))
    return pf.Field(4, n_labels=3, terms=[pf.Pairwise([[0, 1], [1, 2], [2, 3]], forbid)])


def check_distribution(field: pf.Field, ended: Explored, heat: float) -> None:
    """The ends of independent chains against exp(−E / T), by χ²."""
    lowered = field.lower()
    shape = tuple(lowered.layout.cardinalities)
    labels = np.array([lowered.layout.best_labels(q) for q in ended.q])
    seen = np.bincount(np.ravel_multi_index(tuple(labels.T), shape), minlength=np.prod(shape))
    energy = np.array([lowered.energy(np.array(x)) for x in np.ndindex(shape)])
    p = np.exp((energy.min() - energy) / heat)
    expected = len(ended.q) * p / p.sum()
    assert (seen[expected == 0] == 0).all()
    often = expected >= 5
    rare = expected[~often].sum()
    statistic = ((seen - expected)[often] ** 2 / expected[often]).sum()
    if rare > 1:
        statistic += (seen[~often].sum() - rare) ** 2 / rare
    freedom = often.sum()
    assert statistic < freedom + 4 * np.sqrt(2 * freedom), (statistic, freedom)  # fixed seeds


@all_moves
@pytest.mark.parametrize("heat", [1.0, 2.5])
@pytest.mark.parametrize("make", [binary_field, mixed_field, hard_field])
def test_chains_sample_the_field(make: Any, heat: float, moves: dict[str, bool]) -> None:
    field, count = make(), 6000
    ended = explore(
        field.lower(), count=count, hot=heat, cold=heat, sweeps=40, seeds=np.arange(count),
        **moves,
    )  # fmt: skip
    check_distribution(field, ended, heat)


@pytest.mark.parametrize("n_labels", [2, 3])
def test_one_move_samples_a_tree_exactly(n_labels: int) -> None:
    """Strong couplings, and a start far from equilibrium: single visits wouldn't get away."""
    rng = np.random.default_rng(6)
    edges = [[0, 1], [1, 2], [1, 3], [3, 4]]
    field = pf.Field(5, n_labels=n_labels)
    field.add(pf.Unary(rng.normal(size=(5, n_labels))))
    field.add(pf.Pairwise(edges, 6.0 * rng.normal(size=(4, n_labels, n_labels))))
    lowered, count = field.lower(), 6000
    worst = max(np.ndindex((n_labels,) * 5), key=lambda x: lowered.energy(np.array(x)))
    start = np.eye(n_labels)[list(worst)].ravel()
    ended = explore(
        lowered, starts=np.repeat(start[None], count, axis=0), sweeps=1, seeds=np.arange(count),
        forests=True,
    )  # fmt: skip
    check_distribution(field, ended, 1.0)


# ---- temperatures and slices ----


@all_moves
@pytest.mark.parametrize("seed", range(4))
def test_cold_chains_find_the_lowest_energy(seed: int, moves: dict[str, bool]) -> None:
    field = random_field(np.random.default_rng(seed), n_labels=(2, 3), n_vars=(4, 6))
    lowered = field.lower()
    ended = explore(lowered, count=8, hot=20.0, cold=1e-3, sweeps=200, seeds=np.arange(8), **moves)
    lowest = min(lowered.energy(np.array(x)) for x in np.ndindex(*lowered.layout.cardinalities))
    assert ended.free_energy.min() == pytest.approx(lowest, abs=1e-9)


@all_moves
@pytest.mark.parametrize("weight", [1e-8, 1e8])
def test_energies_of_any_size(weight: float, moves: dict[str, bool]) -> None:
    """Neither overflow nor underflow: a chain of labels follows its fixed end at T → 0."""
    edges = [[i, i + 1] for i in range(9)]
    for n_labels in (2, 3):
        first = pf.Unary([[0.0] + [2 * weight] * (n_labels - 1)], [0])
        terms = [first, pf.Potts(edges, weight)]
        lowered = pf.Field(10, n_labels=n_labels, terms=terms).lower()
        heat = 1e-3 * weight
        start = np.eye(n_labels)[np.arange(10) % n_labels].ravel()[None]
        ended = explore(lowered, starts=start, hot=heat, cold=heat, sweeps=400, **moves)
        if "forests" in moves:
            assert (lowered.layout.best_labels(ended.q[0]) == 0).all()
        assert np.isfinite(ended.free_energy).all()


@all_moves
def test_a_slice_starts_where_the_last_one_ended(moves: dict[str, bool]) -> None:
    lowered = repulsive_grid(5, weight=1.0, bias=0.3).lower()
    first = explore(lowered, count=3, hot=2.0, sweeps=9, seeds=np.arange(3), **moves)
    again = explore(lowered, starts=first.q, sweeps=0, seeds=7, **moves)
    np.testing.assert_array_equal(first.q, again.q)
    np.testing.assert_allclose(first.free_energy, again.free_energy)


def test_metropolis_moves_leave_labels_more_often() -> None:
    """With two labels of equal energy every visit moves; a heat bath stays half of the time."""
    lowered = pf.Field(200, n_labels=2).lower()
    start = np.tile([1.0, 0.0], 200)[None]
    for kernels in ("reference", "cpu"):
        once = explore(lowered, kernels, starts=start, sweeps=1, metropolis=True)
        np.testing.assert_array_equal(once.q, 1 - start)
        assert 60 < (explore(lowered, kernels, starts=start, sweeps=1).q == start).sum() / 2 < 140


def test_cooled_marginals_end_at_cold() -> None:
    """Without draws, the last sweeps are at the last temperature, in both kernel sets."""
    field = repulsive_grid(3, weight=0.2, bias=1.0)
    lowered = field.lower()
    options = {"drawn": False, "hot": 0.5, "cold": 0.5, "sweeps": 60}
    a, b = (explore(lowered, kernels, **options) for kernels in ("reference", "cpu"))
    np.testing.assert_allclose(a.q, b.q, atol=1e-9)
    g = compile_program(lowered).gradient(b.q[0]).reshape(-1, 2)
    p = 1 / (1 + np.exp((g[:, 1] - g[:, 0]) / 0.5))
    np.testing.assert_allclose(b.q[0].reshape(-1, 2)[:, 1], p, atol=1e-6)
