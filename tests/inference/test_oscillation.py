"""The status OSCILLATING: only where q alternates between two states and will forever."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import proxfield as pf
from helpers import Array, repulsive_grid
from proxfield.generate import grid

LENGTHS = (50, 100, 150, 250, 300)
ALTERNATING = (
    ("full-parallel", {}), ("adhoc", {"eta": 0.9}), ("fixed", {"step": 1.0}),
    ("fixed", {"step": 1.5}),
)  # fmt: skip
OVERSHOOTING = (
    ("momentum", {}), ("momentum", {"variant": "printed"}), ("adam", {}),
    ("adam", {"variant": "printed"}),
)  # fmt: skip
SIGNS = ("mixed", "repulsive", "attractive")


def sample(seeds: int) -> list[pf.Field]:
    return [grid(4, 4, strength=3.0, sign=s, seed=k) for k in range(seeds) for s in SIGNS]


def statuses(field: pf.Field, rule: str, params: dict[str, Any], *lengths: int) -> list[pf.Status]:
    return [pf.infer(field, rule, max_iters=k, **params).status for k in lengths]


def test_a_rule_that_oscillates_is_told(kernels: str) -> None:
    for rule, params in (("full-parallel", {}), ("fixed", {"step": 1.0})):
        result = pf.infer(repulsive_grid(), rule, max_iters=100, kernels=kernels, **params)
        assert result.status is pf.Status.OSCILLATING, rule
        assert "rule='fixed'" in result.message


@pytest.mark.parametrize("rule", ["momentum", "adam"])
def test_a_rule_that_overshoots_does_not_oscillate(rule: str, kernels: str) -> None:
    """F goes up and down on the way, but with more iterations these converge."""
    for sign in SIGNS:
        field = grid(3, 3, strength=3.0, sign=sign, seed=2)
        short = pf.infer(field, rule, max_iters=150, kernels=kernels)
        assert np.diff(short.trace.free_energy).max() > 0
        assert short.status in (pf.Status.MAX_ITERS, pf.Status.CONVERGED)
        assert pf.infer(field, rule, max_iters=5000, kernels=kernels).converged


@pytest.mark.parametrize(("rule", "params"), [*ALTERNATING, *OVERSHOOTING])
def test_what_oscillates_does_not_converge(rule: str, params: dict[str, Any]) -> None:
    named = 0
    for field in sample(4):
        found = statuses(field, rule, params, *LENGTHS)
        if pf.Status.OSCILLATING in found:
            named += 1
            (longest,) = statuses(field, rule, params, 5000)
            assert longest is pf.Status.OSCILLATING
    assert (named > 0) == ((rule, params) in ALTERNATING)


@pytest.mark.parametrize(("rule", "params"), [*ALTERNATING, *OVERSHOOTING])
def test_the_status_does_not_flip_as_max_iters_grows(rule: str, params: dict[str, Any]) -> None:
    for field in sample(4):
        found = statuses(field, rule, params, *LENGTHS)
        named = [status is pf.Status.OSCILLATING for status in found]
        assert named == sorted(named), found


def test_a_rule_that_overshoots_is_not_judged_by_its_swings() -> None:
    """Here q alternates for hundreds of updates, and diverges later."""
    field, params = grid(2, 2, strength=5.0, seed=3), {"variant": "printed"}
    found = statuses(field, "adam", params, 250, 300, 5000)
    assert found == [pf.Status.MAX_ITERS, pf.Status.MAX_ITERS, pf.Status.DIVERGED]


# ---- what counts, with a rule whose path is given ----


def following(path: Array) -> pf.CustomRule:
    """A rule that gives the only binary variable one natural parameter after another."""

    def move(theta: Array, q: Array, g: Array, memory: dict[str, Any]) -> Array:
        memory["at"] = memory.get("at", -1) + 1
        return np.array([0.0, path[memory["at"] % len(path)]])

    return pf.CustomRule(move)


def after(path: Array, updates: int, kernels: str) -> pf.Status:
    field = pf.Field(1, 2).add(pf.Unary([[0.0, 4.0]]))
    return pf.infer(field, following(path), max_iters=updates, kernels=kernels).status


def test_marginals_that_repeat_are_an_oscillation(kernels: str) -> None:
    """Though F is the same at both ends: the field is symmetric."""
    field, cycle = pf.Field(1, 2), following(np.array([1.0, -1.0]))
    start = [[1 / (1 + np.e), np.e / (1 + np.e)]]
    for updates in (20, 21, 22, 23):  # however they are divided among calls of the kernels
        result = pf.infer(field, cycle, init=start, max_iters=updates, kernels=kernels)
        assert np.ptp(result.trace.free_energy) < 1e-12
        assert result.status is pf.Status.OSCILLATING


def test_a_few_repetitions_prove_nothing(kernels: str) -> None:
    path = np.append(np.linspace(0.0, 2.0, 80), np.tile([0.0, 1.0], 40))
    assert after(path, 90, kernels) is pf.Status.MAX_ITERS
    assert after(path, 110, kernels) is pf.Status.OSCILLATING


def test_swings_that_decay_are_no_oscillation(kernels: str) -> None:
    swings = (-1.0) ** np.arange(100)
    assert after(swings, 100, kernels) is pf.Status.OSCILLATING
    assert after(swings * 0.999 ** np.arange(100), 100, kernels) is pf.Status.MAX_ITERS


def test_swings_of_rounding_are_no_oscillation(kernels: str) -> None:
    field, rule = pf.Field(1, 2), following(np.array([1e-9, -1e-9]))
    result = pf.infer(field, rule, max_iters=50, tol=0.0, kernels=kernels)
    assert result.status is pf.Status.MAX_ITERS


def test_free_energies_that_go_up_and_down_are_no_oscillation(kernels: str) -> None:
    """A cycle of three states has steady F too; where it ends isn't known."""
    assert after(np.array([0.0, 1.0, 2.0]), 60, kernels) is pf.Status.MAX_ITERS
