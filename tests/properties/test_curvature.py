"""λ, μ, λ_i and L against dense eigenvalues, and what they certify."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import proxfield as pf
from helpers import (
    KERNELS,
    Array,
    exact_hessian,
    grid_edges,
    projected,
    random_field,
    random_marginals,
    repulsive_grid,
)
from proxfield.core.engines.plan import damping_for
from proxfield.core.solve.curvature import MAX_DENSE_SIZE, Curvature
from proxfield.core.terms.factor import small_block_norms, spectral_norms


def curvature_of(field: pf.Field, kernels: str = "cpu") -> Curvature:
    return Curvature(field.lower(), field, kernels)


def ends(field: pf.Field, q: Array | None = None) -> tuple[float, float]:
    """Smallest and largest eigenvalue of P H P."""
    values = np.linalg.eigvalsh(projected(field.layout, exact_hessian(field, q)))
    return float(values[0]), float(values[-1])


def assert_tight(bound: float, exact: float, share: float = 0.01, floor: float = 0.0) -> None:
    """From above, and within a share."""
    assert bound >= exact * (1 - 1e-12) - 1e-12
    assert bound <= exact * (1 + share) + floor + 1e-9


def large_pairwise(seed: int, sign: float) -> pf.Field:
    """Above the size up to which operators are diagonalized directly."""
    rng = np.random.default_rng(seed)
    edges = grid_edges(6, 7)
    field = pf.Field(42, n_labels=3, terms=[pf.Potts(edges, sign * rng.uniform(0, 2, len(edges)))])
    field.add(pf.Pairwise(edges[::3], rng.normal(size=(len(edges[::3]), 3, 3))))
    assert field.layout.size > MAX_DENSE_SIZE
    return field


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("seed", range(100, 140))
def test_pairwise_curvature_is_exact(seed: int, kernels: str) -> None:
    field = random_field(np.random.default_rng(seed), arity=2, n_vars=(2, 6))
    curvature = curvature_of(field, kernels)
    small, big = ends(field)
    assert_tight(curvature.largest, big)
    assert_tight(curvature.smallest, -small)


@pytest.mark.parametrize("sign", [-1.0, 1.0])
@pytest.mark.parametrize("seed", [150, 151, 152])
def test_large_pairwise_curvature_is_close(seed: int, sign: float) -> None:
    """Lanczos: its margin is a share of the larger of the two ends."""
    field = large_pairwise(seed, sign)
    curvature = curvature_of(field)
    small, big = ends(field)
    assert_tight(curvature.largest, big, floor=2e-3 * max(-small, big))
    assert_tight(curvature.smallest, -small, floor=2e-3 * max(-small, big))


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("seed", range(200, 230))
def test_pairwise_lipschitz_is_the_spectral_norm(seed: int, kernels: str) -> None:
    field = random_field(np.random.default_rng(seed), n_labels=(2, 3, 4), arity=2, n_vars=(2, 6))
    assert_tight(curvature_of(field, kernels).lipschitz, np.linalg.norm(exact_hessian(field), 2))


@pytest.mark.parametrize("seed", [150, 151])
def test_large_lipschitz_is_the_spectral_norm(seed: int) -> None:
    field = large_pairwise(seed, -1.0)
    assert_tight(curvature_of(field).lipschitz, np.linalg.norm(exact_hessian(field), 2))


@pytest.mark.parametrize("seed", range(300, 360))
def test_larger_factors_are_bounded(seed: int) -> None:
    """λ, μ and L bound the Hessian at any q; evidence and one-label variables included."""
    rng = np.random.default_rng(seed)
    field = random_field(rng, n_vars=(3, 5))
    curvature = curvature_of(field)
    wide = random_field(np.random.default_rng(seed), n_labels=(2, 3), n_vars=(3, 5))
    lipschitz = curvature_of(wide).lipschitz
    for _ in range(8):
        small, big = ends(field, random_marginals(field.layout, rng))
        assert curvature.largest >= big - 1e-9
        assert curvature.smallest >= -small - 1e-9
        norm = np.linalg.norm(exact_hessian(wide, random_marginals(wide.layout, rng)), 2)
        assert lipschitz >= norm - 1e-9


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("n", [12, 60])
def test_fields_without_pairs(n: int, kernels: str) -> None:
    """Tables over three variables alone: the pairwise operator is 0, at any size."""
    scopes = np.random.default_rng(n).permutation(n).reshape(-1, 3)
    tables = np.random.default_rng(n).normal(size=(len(scopes), 2, 2, 2))
    field = pf.Field(n, n_labels=2, terms=[pf.Factor(scopes, tables)])
    curvature = curvature_of(field, kernels)
    assert 0 < curvature.largest <= curvature.local.max()
    assert curvature.lipschitz > 0
    assert pf.infer(field, "fixed", kernels=kernels).converged


@pytest.mark.parametrize("seed", range(400, 440))
def test_local_bounds_dominate_the_hessian(seed: int) -> None:
    """|ΔᵀHΔ| ≤ Σ λ_i ‖Δ_i‖² for centered Δ, at any q; so max λ_i ≥ λ."""
    rng = np.random.default_rng(seed)
    field = random_field(rng, n_labels=(2, 3, 4))
    curvature = curvature_of(field)
    local = np.diag(curvature.local[field.layout.owner])
    for _ in range(5):
        hessian = projected(field.layout, exact_hessian(field, random_marginals(field.layout, rng)))
        for sign in (1, -1):
            assert np.linalg.eigvalsh(local + sign * hessian)[0] >= -1e-9 * (1 + local.max())
    assert curvature.local.max() >= curvature.largest


def test_evidence_takes_curvature_away() -> None:
    field = repulsive_grid(4)
    seen = field.condition(dict.fromkeys(range(8), 0))
    assert curvature_of(seen).largest < curvature_of(field).largest
    rest = pf.Field(8, n_labels=2, terms=[pf.Potts(grid_edges(2, 4), -3.0)])
    assert_tight(curvature_of(seen).largest, ends(rest)[1])


def test_attractive_dense_field_needs_no_damping() -> None:
    edges = list(itertools.combinations(range(12), 2))
    weights = np.random.default_rng(0).uniform(0.1, 0.3, len(edges))
    field = pf.Field(12, n_labels=4, terms=[pf.Potts(edges, weights)])
    assert (curvature_of(field).steps("certified") == 1.0).all()
    repelled = pf.Field(12, n_labels=4, terms=[pf.Potts(edges, -weights)])
    assert (curvature_of(repelled).steps("certified") < 1.0).all()


def test_steps() -> None:
    field = repulsive_grid()
    curvature = curvature_of(field)
    n = field.n_vars
    lam, local, lip = curvature.largest, curvature.local, curvature.lipschitz
    np.testing.assert_allclose(curvature.steps("certified"), 1 / (1 + (lam / 4 - 0.5)) * np.ones(n))
    np.testing.assert_allclose(
        curvature.steps("certified-local"), 1 / (1 + np.maximum(0, local / 4 - 0.5))
    )
    np.testing.assert_allclose(curvature.steps("lipschitz"), np.full(n, 1 / (1 + lip)))
    np.testing.assert_allclose(curvature.steps(0.3), np.full(n, 0.3))
    np.testing.assert_allclose(damping_for(np.array([-3.0, 0.0, 2.0, 6.0])), [0, 0, 0, 1])


def test_spectral_norms() -> None:
    rng = np.random.default_rng(500)
    for shape in [(2, 2), (2, 3), (4, 4)]:
        blocks = rng.normal(size=(5, *shape))
        raw = [np.linalg.svd(b, compute_uv=False)[0] for b in blocks]
        np.testing.assert_allclose(spectral_norms(blocks, centered=False), raw)
        left, right = (np.eye(c) - 1 / c for c in shape)
        flat = [np.linalg.svd(left @ b @ right, compute_uv=False)[0] for b in blocks]
        np.testing.assert_allclose(spectral_norms(blocks, centered=True), flat)


@pytest.mark.parametrize("shape", [(2, 2), (3, 3), (2, 3), (3, 2), (1, 3), (3, 2, 2), (2, 4, 3, 3)])
def test_norms_of_small_blocks(shape: tuple[int, ...]) -> None:
    tables = np.random.default_rng(1).normal(size=(6, *shape)) * 1e200  # squares would overflow
    for a in range(len(shape)):
        for b in range(a + 1, len(shape)):
            if max(shape[a], shape[b]) > 3:
                continue
            blocks = np.moveaxis(tables, (a + 1, b + 1), (-2, -1))
            blocks = blocks.reshape(6, -1, *blocks.shape[-2:])
            expected = spectral_norms(blocks / 1e200, centered=True).max(axis=1)
            np.testing.assert_allclose(small_block_norms(tables, a, b) / 1e200, expected)


def test_norms_that_come_too_late_are_bounds() -> None:
    rng = np.random.default_rng(2)
    scopes = np.array([[0, 1, 2], [2, 3, 4]])
    field = pf.Field(5, n_labels=5, terms=[pf.Factor(scopes, rng.normal(size=(2, 5, 5, 5)))])
    exact = Curvature(field.lower()).local
    late = Curvature(field.lower(), seconds=0.0).local
    assert (late > exact).all()
    assert (late < 3 * exact).all()
