"""`solve_map` whatever the size of the energies, and with chains that are slow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import proxfield as pf
from proxfield.core.engines.reference import ReferenceProgram
from proxfield.generate import grid
from proxfield.testing import enumerate_field
from random_fields import random_field

SCALES = [1e-300, 1e-160, 1e-80, 1e-12, 1.0, 1e90, 1e160, 1e290, 1e297]


def dense(n_vars: int, n_labels: int, scale: float) -> pf.Field:
    """Random tables for all pairs of variables."""
    rng = np.random.default_rng(n_vars)
    edges = [(i, j) for i in range(n_vars) for j in range(i)]
    tables = rng.normal(size=(len(edges), n_labels, n_labels))
    unary = rng.normal(size=(n_vars, n_labels))
    field = pf.Field(n_vars, n_labels).add(pf.Unary(unary * scale))
    return field.add(pf.Pairwise(edges, tables * scale))


def cubic(n_vars: int, n_labels: int, scale: float) -> pf.Field:
    """Random tables of three variables on a ring, some configurations forbidden."""
    rng = np.random.default_rng(n_vars)
    scopes = [(i, (i + 1) % n_vars, (i + 2) % n_vars) for i in range(n_vars)]
    tables = rng.normal(size=(n_vars, *[n_labels] * 3)) * scale
    tables[rng.random(tables.shape) < 0.1] = np.inf
    return pf.Field(n_vars, n_labels).add(pf.Factor(scopes, tables))


def chain(n_vars: int, n_labels: int, scale: float) -> pf.Field:
    """A forest, which is solved exactly."""
    rng = np.random.default_rng(n_vars)
    edges = [(i, i + 1) for i in range(n_vars - 1)]
    tables = rng.normal(size=(len(edges), n_labels, n_labels)) * scale
    return pf.Field(n_vars, n_labels).add(pf.Pairwise(edges, tables))


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("size", [(8, 2), (6, 3), (4, 6)])
@pytest.mark.parametrize("make", [dense, cubic, chain])
def test_the_optimum_is_found_at_every_scale(
    make: Any, size: tuple[int, int], scale: float
) -> None:
    field, exact = make(*size, scale), enumerate_field(make(*size, 1.0))
    for seed in range(3):
        result = pf.solve_map(field, seed=seed, max_iters=20_000)
        assert result.labels.tolist() == exact.labels.tolist()
        assert result.energy == field.energy(exact.labels)
        assert result.trace.energy[-1] == result.energy
        rounding = 1e-12 * abs(result.energy)
        assert (np.diff(result.trace.energy) <= rounding).all()


def test_a_search_is_the_same_at_every_scale() -> None:
    """A power of two changes no digit, so the same labellings are found in the same order."""
    first = pf.solve_map(scaled_grid(2.0**200), max_iters=500)
    for scale in (2.0**-900, 2.0**-100, 2.0**900):
        result = pf.solve_map(scaled_grid(scale), max_iters=500)
        assert result.labels.tolist() == first.labels.tolist()
        np.testing.assert_array_equal(result.trace.iteration, first.trace.iteration)
        np.testing.assert_array_equal(result.trace.energy / scale, first.trace.energy / 2.0**200)


def scaled_grid(scale: float) -> pf.Field:
    rng = np.random.default_rng(3)
    edges = pf.generate.grid_edges(9, 9)
    weights = rng.normal(size=len(edges)) * scale
    unary = rng.normal(size=(81, 3)) * scale
    return pf.Field(81, 3).add(pf.Unary(unary)).add(pf.Potts(edges, weights))


@pytest.mark.parametrize("scale", [2.0**-500, 2.0**500])
def test_the_callback_is_told_energies_of_the_field(
    scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxfield.core.solve.search.tuned.REPORT_SECONDS", -1.0)
    field, seen = scaled_grid(scale), []

    def look(progress: Any) -> None:
        labels = field.layout.best_labels(progress.marginals())
        seen.append((progress.free_energy / scale, field.energy(labels) / scale))

    pf.solve_map(field, max_iters=300, callback=look)
    told, energies = np.transpose(seen)
    np.testing.assert_allclose(told, energies, rtol=1e-12)


@pytest.mark.parametrize("scale", [1e-300, 1e-80, 1e160, 1e290])
def test_auto_runs_at_every_scale(scale: float) -> None:
    """Also on terms that aren't tables, whose bounds overflow; and with its search for modes."""
    tried = 0
    for seed in range(60):
        field = random_field(seed, scale=scale).field
        try:
            result = pf.infer(field, max_iters=100, modes=1 + seed % 2)
            labels = pf.solve_map(field, max_iters=100).labels
        except pf.UnsupportedError:
            continue  # forbidden configurations beside such terms
        tried += 1
        assert np.isfinite(result.q).all()
        assert len(labels) == field.n_vars
    assert tried > 40


@pytest.mark.slow
@pytest.mark.parametrize("kernels", ["cpu", "reference"])
@pytest.mark.parametrize("large", [1e40, 1e100, 1e200, 1e297])
def test_a_few_very_large_energies_forbid_and_change_nothing_else(
    large: float, kernels: str
) -> None:
    """As people write them for what is impossible."""
    for seed in range(3):
        rng = np.random.default_rng(seed)
        unary = rng.normal(size=(7, 3))
        pairs = np.array([(i, j) for i in range(7) for j in range(i)])
        weights = rng.normal(size=len(pairs))
        unary[0, 0] = large
        field = pf.Field(7, n_labels=3).add(pf.Unary(unary)).add(pf.Potts(pairs, weights))
        found = pf.solve_map(field, kernels=kernels, max_iters=2000)
        assert found.energy == pytest.approx(enumerate_field(field).min_energy)


def test_energies_that_overflow_are_refused() -> None:
    field = pf.Field(8, 2).add(pf.Unary(np.full((8, 2), 1e308)))
    for solve in (pf.solve_map, pf.infer):
        with pytest.raises(pf.InputError, match="expected at most 1e\\+300"):
            solve(field)


# ---- chains in plain numpy ----


@pytest.mark.parametrize("field", [grid(3, 3), grid(30, 50), grid(60, 80)], ids=repr)
def test_the_reference_ends_by_itself(field: pf.Field, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted in gradients of the whole field, of which a second holds some 10,000."""
    done, whole = [0], ReferenceProgram.interactions

    def counted(self: ReferenceProgram, q: Any) -> Any:
        done[0] += 1
        assert done[0] < 40_000
        return whole(self, q)

    monkeypatch.setattr(ReferenceProgram, "interactions", counted)
    result = pf.solve_map(field, kernels="reference")
    assert result.stable
    assert result.status is pf.MapStatus.MAX_ITERS
