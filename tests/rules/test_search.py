"""The search of `auto`: comparing part by part, draws that follow what pays, what it returns."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

import proxfield as pf
from clock import CountedClock
from conformance.examples import POSSIBLE, Example
from helpers import grid_edges, random_field, random_marginals
from proxfield.core.engines import compile_program
from proxfield.core.lowering.lowered import Lowered
from proxfield.core.solve.search.chains import Arms
from proxfield.core.solve.search.minimum import MinimumSearch
from proxfield.core.solve.search.parts import Parts
from proxfield.core.terms.base import Ints
from proxfield.generate import grid


def two_states(
    lowered: Lowered, seed: int, share: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Marginals, and others that differ in a share of the variables."""
    rng, layout = np.random.default_rng(seed), lowered.layout
    before, after = random_marginals(layout, rng), random_marginals(layout, rng)
    for q in (before, after):
        q[lowered.unary == np.inf] = 0.0
    before, after = layout.normalize(before), layout.normalize(after)
    moved = rng.random(layout.n_vars) < share
    return before, np.where(moved[layout.owner], after, before)


def check_gains(lowered: Lowered, seed: int, share: float = 0.4) -> int:
    program, parts = compile_program(lowered), Parts(lowered)

    def f_of(q: NDArray[np.float64]) -> float:
        return program.free_energy(program.start(q))

    before, after = two_states(lowered, seed, share)
    label, count = parts.of(parts.differing(before, after, 0.1))
    gains = parts.free_energy_changes(before, after, label, count, program.gradient)
    f, every = f_of(before), np.arange(count)
    atol = 1e-9 * (1 + lowered.magnitude)
    for k in every:
        alone = parts.merged(before, after, label, every == k)
        assert f_of(alone) - f == pytest.approx(gains[k], rel=1e-9, abs=atol)
    together = f_of(parts.merged(before, after, label, gains < 0))
    assert together - f == pytest.approx(gains[gains < 0].sum(), rel=1e-9, abs=atol)
    merged = parts.best_marginals(before, after, program.gradient, 0.1)
    if count > 1 and (gains < 0).any():
        assert merged is not None
        assert f_of(merged) <= f + atol
    else:
        assert merged is None
    return count


@pytest.mark.parametrize("example", POSSIBLE.values(), ids=list(POSSIBLE))
def test_f_is_a_sum_over_parts(example: Example) -> None:
    lowered = example.field().lower()
    if lowered.extras or lowered.hard or lowered.infeasible or lowered.layout.n_vars == 0:
        pytest.skip("no chains on this field, or they are compared as a whole")
    check_gains(lowered, seed=1)


@pytest.mark.parametrize("seed", range(20))
def test_f_is_a_sum_over_parts_of_random_fields(seed: int) -> None:
    check_gains(random_field(np.random.default_rng(seed)).lower(), seed)


def test_a_large_field_has_many_parts() -> None:
    assert check_gains(grid(12, 12, n_labels=3, seed=2).lower(), seed=2, share=0.2) > 8


def test_parts_are_connected_components() -> None:
    rng = np.random.default_rng(0)
    edges = rng.integers(60, size=(50, 2))
    edges = edges[edges[:, 0] != edges[:, 1]]
    lowered = pf.Field(60, 2).add(pf.Ising(edges, rng.normal(size=len(edges)))).lower()
    before, after = two_states(lowered, seed=3, share=0.7)
    inside = np.abs(after - before)[::2] > 0.1
    label, count = Parts(lowered).of(Parts(lowered).differing(before, after, 0.1))
    kept = edges[inside[edges].all(axis=1)]
    graph = coo_array((np.ones(len(kept)), kept.T), shape=(60, 60))
    _, expected = connected_components(graph, directed=False)
    assert count == len(np.unique(expected[inside]))
    assert (label[~inside] == -1).all()
    same = label[inside][:, None] == label[inside]
    np.testing.assert_array_equal(same, expected[inside][:, None] == expected[inside])


def test_components_are_judged_each_for_itself() -> None:
    """Of two states, one is better in one component and one in the other: the best of both."""
    edges = grid_edges(4, 4)
    rng = np.random.default_rng(5)
    field = pf.Field(32, 2).add(pf.Unary(rng.normal(size=(32, 2))))
    field = field.add(pf.Ising(np.concatenate([edges, edges + 16]), 1.0))
    lowered = field.lower()
    program, half = compile_program(lowered), lowered.layout.size // 2
    good = program.marginals(program.start(pf.infer(field, "auto", max_iters=500).q))
    bad = 1.0 - good
    one = np.concatenate([good[:half], bad[half:]])
    other = np.concatenate([bad[:half], good[half:]])
    merged = Parts(lowered).best_marginals(one, other, program.gradient, 0.1)
    np.testing.assert_array_equal(merged, good)


# ---- draws ----


def test_draws_follow_what_pays() -> None:
    arms = Arms({"a": 1.0, "b": 1.0, "c": 2.0}, memory=0.97, curiosity=0.25)
    rng = np.random.default_rng(0)
    np.testing.assert_allclose(arms.shares(), [0.25, 0.25, 0.5])
    for _ in range(50):
        for option, gain in enumerate([0.0, 4.0, 0.0]):
            arms.learn(option, gain, 1.0)
    assert arms.shares()[1] > 0.7 and arms.shares().min() > 0.05
    assert {arms.draw(rng, [True, False, True]) for _ in range(50)} == {0, 2}
    for _ in range(200):  # what paid once doesn't any more
        arms.learn(1, 0.0, 1.0)
        arms.learn(0, 1.0, 1.0)
    assert arms.shares()[0] > arms.shares()[1]


def test_an_expensive_option_has_to_gain_more() -> None:
    arms = Arms({"short": 1.0, "long": 1.0}, memory=0.97, curiosity=0.25)
    for _ in range(100):
        arms.learn(0, 1.0, 1.0)
        arms.learn(1, 2.0, 10.0)
    assert arms.shares()[0] > 0.6


def test_sharper_choices_and_several_at_once() -> None:
    """By hand: gains 1 and 2 for 100 each, beside an average outcome of cost 100."""
    arms = Arms({"a": 1.0, "b": 1.0}, memory=0.5, curiosity=0.2, sharpness=4.0, prior=100.0)
    arms.learn(np.array([0, 1]), [1.0, 2.0], 100.0)
    worse = (2.5 / 3.5) ** 4
    expected = 0.1 + 0.8 * np.array([worse, 1.0]) / (1.0 + worse)
    np.testing.assert_allclose(arms.shares(), expected)
    drawn = np.random.default_rng(0).choice(2, size=2000, p=arms.shares())
    assert drawn.mean() == pytest.approx(expected[1], abs=0.03)
    arms.learn(np.array([0, 0]), [1.0, 1.0], 0.0)  # both count, after what was known is halved
    np.testing.assert_allclose(arms.gain, [2.5, 1.0])


# ---- what the search returns ----


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("n_labels", [2, 3])
def test_f_is_never_above_the_start_or_plain_sweeps(seed: int, n_labels: int) -> None:
    field = grid(9, 9, n_labels=n_labels, strength=2.0, seed=seed)
    plain = pf.infer(field, "sweep")
    found = pf.infer(field, "auto", max_iters=1000, seed=seed)
    assert found.free_energy <= plain.free_energy + 1e-6
    again = pf.infer(field, "auto", init=found.q, max_iters=40, seed=seed + 1)
    assert again.free_energy <= found.free_energy + 1e-9


@pytest.mark.parametrize(("side", "n_labels"), [(12, 2), (6, 4)])
def test_a_seed_gives_the_same_bits(side: int, n_labels: int) -> None:
    field = grid(side, side, n_labels=n_labels, strength=3.0, seed=4)
    runs = [pf.infer(field, max_iters=1500, seed=3, threads=threads) for threads in (1, 1, 2)]
    for run in runs[1:]:
        np.testing.assert_array_equal(run.q, runs[0].q)
        assert run.free_energy == runs[0].free_energy
        np.testing.assert_array_equal(run.trace.free_energy, runs[0].trace.free_energy)
    other = pf.infer(field, max_iters=1500, seed=4)
    assert not np.array_equal(other.trace.free_energy, runs[0].trace.free_energy)


def test_disconnected_copies_reach_the_minimum_of_each() -> None:
    """Twenty copies at once: accepted as a whole, nearly every chain would be worse somewhere."""
    edges = grid_edges(5, 5)
    weights = 2.0 * np.random.default_rng(1).normal(size=len(edges))
    one = pf.Field(25, 2).add(pf.Ising(edges, weights))
    lowest = min(pf.infer(one, max_iters=3000, seed=s).free_energy for s in range(3))
    copies = pf.Field(25 * 20, 2)
    copies.add(pf.Ising(np.concatenate([edges + 25 * k for k in range(20)]), np.tile(weights, 20)))
    found = pf.infer(copies, max_iters=6000)
    assert found.free_energy == pytest.approx(20 * lowest, rel=1e-6)


@pytest.mark.parametrize("limits", [{"max_iters": 60}, {"budget": 0.3}])
def test_a_symmetric_field_leaves_its_saddle(limits: dict[str, float]) -> None:
    """Attractive, no field: uniform marginals are a fixed point far above the minimum."""
    n = 70
    field = pf.Field(n * n, 2).add(pf.Ising(grid_edges(n, n), -1.0))
    aligned = field.energy(np.zeros(n * n, dtype=int))
    pf.infer(field, max_iters=40)
    with CountedClock(update=0.002, look=0.0005):
        result = pf.infer(field, "auto", **limits)  # type: ignore[arg-type]
    assert result.free_energy < 0.8 * aligned


# ---- flat fields ----


def flat(monkeypatch: pytest.MonkeyPatch, gain: float = np.inf) -> None:
    """Small fields of any kind count as flat, if cooling gains no more than this per variable."""
    monkeypatch.setattr("proxfield.core.solve.search.tuned.FLAT_VARIABLES", 0)
    monkeypatch.setattr("proxfield.core.solve.search.tuned.FLAT_GAIN", gain)


def members(result: pf.Result) -> set[str]:
    assert result.trace.member is not None
    return set(result.trace.member)


def test_adam_competes_where_sampling_gains_little(monkeypatch: pytest.MonkeyPatch) -> None:
    field = grid(9, 9, n_labels=2, strength=2.0, seed=1)
    assert not {"adam", "momentum"} & members(pf.infer(field, max_iters=3000))
    flat(monkeypatch, gain=-np.inf)
    assert "adam" not in members(pf.infer(field, max_iters=3000))
    flat(monkeypatch)
    assert "adam" in members(pf.infer(field, max_iters=3000))
    assert "adam" not in members(pf.infer(field, max_iters=1500))  # too few iterations for it


def test_momentum_follows_where_adam_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    flat(monkeypatch)
    monkeypatch.setattr("proxfield.core.solve.search.tuned.POLISH_SWEEPS", 1)
    monkeypatch.setattr(
        "proxfield.core.solve.search.tuned.HOT_SHARE", 1e-9
    )  # a cooling that finds nothing
    field = grid(9, 9, n_labels=3, strength=2.0, seed=1)
    result = pf.infer(field, max_iters=12_000)
    assert {"adam", "momentum"} <= members(result)
    assert result.free_energy <= pf.infer(field, "adam").free_energy + 1e-6


@pytest.mark.parametrize("n_labels", [2, 3])
def test_flat_fields_keep_the_labelling_of_lowest_energy(
    n_labels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    field = grid(9, 9, n_labels=n_labels, strength=0.7, seed=3)
    assert pf.infer(field, max_iters=4000).feasible is None
    flat(monkeypatch)
    result = pf.infer(field, max_iters=4000)
    assert result.feasible is not None
    plain = replace(result, feasible=None)
    kept = field.energy(field.lower().reduction.expand_labels(result.feasible))
    assert result.map_energy <= min(kept, plain.map_energy)
    worse = replace(result, feasible=np.zeros(81, dtype=np.int64))
    assert worse.map_energy <= plain.map_energy


def test_the_labelling_is_the_best_that_chains_ended_with(monkeypatch: pytest.MonkeyPatch) -> None:
    flat(monkeypatch)
    seen, field = [np.inf], grid(9, 9, n_labels=2, strength=2.0, seed=3)
    keep = MinimumSearch._keep_labels

    def noted(self: MinimumSearch, labels: Ints, energy: float) -> None:
        assert energy == pytest.approx(field.energy(labels))
        seen.append(energy)
        keep(self, labels, energy)

    monkeypatch.setattr(MinimumSearch, "_keep_labels", noted)
    result = pf.infer(field, max_iters=4000)
    assert len(seen) > 3 and result.feasible is not None
    assert field.energy(result.feasible) == pytest.approx(min(seen))


def test_a_seed_gives_the_same_bits_on_flat_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    flat(monkeypatch)
    field = grid(9, 9, n_labels=2, strength=2.0, seed=3)
    one, two = (pf.infer(field, max_iters=4000, seed=2, threads=k) for k in (1, 2))
    np.testing.assert_array_equal(one.q, two.q)
    np.testing.assert_array_equal(one.map_labels, two.map_labels)


def test_limits_hold_while_rules_compete(monkeypatch: pytest.MonkeyPatch) -> None:
    flat(monkeypatch)
    field = grid(9, 9, n_labels=2, strength=2.0, seed=3)
    result = pf.infer(field, max_iters=4000)
    assert 3000 < result.iterations <= 4000
    calls = []

    def callback(progress: pf.Progress) -> bool:
        calls.append(progress)
        return progress.iteration > 700

    stopped = pf.infer(field, max_iters=4000, callback=callback)
    assert stopped.status is pf.Status.STOPPED and stopped.iterations < 4000
    assert stopped.free_energy <= min(p.free_energy for p in calls) + 1e-9
