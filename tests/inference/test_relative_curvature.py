"""Bounds on the curvature relative to the entropy's, and the steps that they certify."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import proxfield as pf
from proxfield.core.engines.plan import damping_for, relative_damping
from proxfield.core.solve.curvature import Curvature
from scenes import random_scene


def hessian(term: pf.Term, layout: pf.Layout, q: np.ndarray) -> np.ndarray:
    """H by differences of the gradient, in the flat layout."""
    step, columns = 1e-5, []
    for k in range(len(q)):
        up, down = q.copy(), q.copy()
        up[k] += step
        down[k] -= step
        g = [np.zeros(len(q)), np.zeros(len(q))]
        term.add_gradient(layout, up, g[0])
        term.add_gradient(layout, down, g[1])
        columns.append((g[0] - g[1]) / (2 * step))
    return np.stack(columns)


@pytest.mark.parametrize("seed", range(60))
def test_bounds_hold_everywhere(seed: int) -> None:
    """The largest eigenvalue of H relative to L/(q p) and to λ_i is at most 1, at random q."""
    rng = np.random.default_rng(seed)
    field = random_scene(rng)
    term, layout = field.lower().extras[0], field.layout
    relative, plain = term.relative_curvature(layout), term.curvature(layout)
    for concentration in (0.05, 0.5, 5.0):
        q1 = np.clip(rng.beta(concentration, concentration, field.n_vars), 1e-3, 1 - 1e-3)
        q = np.stack([1 - q1, q1], axis=1).ravel()
        h = hessian(term, layout, q)[::2, ::2]  # over p_i: Δ_i = (δ, −δ)
        for bound in (relative / (q1 * (1 - q1)), 2 * plain):
            seen = bound > 0
            root = 1 / np.sqrt(bound[seen])
            scaled = h[np.ix_(seen, seen)] * root[:, None] * root
            assert np.linalg.eigvalsh(scaled).max(initial=0.0) <= 1 + 1e-4
            assert np.abs(h[~seen]).max(initial=0.0) < 1e-6


@pytest.mark.parametrize("seed", range(100))
def test_certified_steps_never_raise_f(seed: int) -> None:
    rng = np.random.default_rng(1000 + seed)
    field = random_scene(rng)
    if seed % 2 and field.n_vars > 1:  # beside a term that has λ only
        i = np.arange(field.n_vars - 1)
        edges = np.stack([i, i + 1], axis=1)
        field = field.add(pf.Ising(edges, 3 * rng.normal(size=len(edges))))
    for step in ("certified", "certified-relative", "certified-local"):
        result = pf.infer(field, "fixed", step=step, init="random", seed=seed, max_iters=40, tol=0)
        f = result.trace.free_energy
        assert (np.diff(f) <= 1e-10 * (1 + np.abs(f[:-1]))).all(), step


def test_the_relative_bound_is_reached() -> None:
    """One pixel: by many locations of odds 1/(n − 1) where w > 0, by two of odds 1 where w < 0."""
    for seen, n, odds, share in ((1.0, 400, 1 / 399, 1 / np.e), (0.0, 2, 1.0, 0.25)):
        term = pf.Occupancy([pf.Boxes(1, 1, [[0, 0, 1, 1]] * n)], [[[seen]]])
        layout = pf.Layout(np.full(n, 2))
        q1 = np.full(n, odds / (1 + odds))
        h = hessian(term, layout, np.stack([1 - q1, q1], axis=1).ravel())[::2, ::2]
        root = np.sqrt(q1 * (1 - q1))
        top = np.linalg.eigvalsh(h * root[:, None] * root).max()
        bound = term.relative_curvature(layout)
        np.testing.assert_allclose(bound, share * abs(term.weights[0].item()))
        assert 0.99 * bound[0] <= top <= bound[0] * (1 + 1e-6)


def test_damping() -> None:
    assert relative_damping(np.zeros(1), 6.0) == damping_for(6.0)
    assert relative_damping(np.array([5.0]), 0.0) == 5.0
    # d = 20 satisfies both conditions; λ = 90 needs 22.5 − ½ + 10
    assert relative_damping(np.array([20.0]), 90.0) == 32.0


def crowd(n: int) -> pf.Field:
    """Everybody covers the same pixels: λ_i grows with n, L_i doesn't."""
    boxes = pf.Boxes(4, 4, np.tile([0, 0, 4, 4], (n, 1)))
    mask = np.zeros((4, 4))
    mask[:2] = 1.0
    return pf.Field(n, 2, [pf.Occupancy([boxes], [mask]), pf.Unary(np.tile([0.0, 3.0], (n, 1)))])


def test_certified_takes_the_larger_step() -> None:
    few, many = Curvature(crowd(2).lower()), Curvature(crowd(60).lower())
    np.testing.assert_allclose(few.steps("certified"), 1 / (1 + damping_for(few.largest)))
    np.testing.assert_array_equal(many.steps("certified"), many.steps("certified-relative"))
    assert many.steps("certified")[0] > 5 / (1 + damping_for(many.largest))
    assert few.steps("certified")[0] > few.steps("certified-relative")[0]


def test_temperature_scales_the_energy() -> None:
    curvature = Curvature(crowd(60).lower())
    bound, others = curvature.relative
    assert others == 0.0
    np.testing.assert_allclose(curvature.damping(0.5), 0.5 * bound)


def test_refused_without_such_a_term() -> None:
    field = pf.Field(2, 2).add(pf.Ising([[0, 1]], 1.0))
    with pytest.raises(pf.UnsupportedError, match=r'relative_curvature.*use step="certified"'):
        pf.infer(field, "fixed", step="certified-relative")
    ratio = random_scene(np.random.default_rng(0), model="ratio")
    with pytest.raises(pf.UnsupportedError, match="use the rule backtracking"):
        pf.infer(ratio, "fixed")


def test_subclass_with_another_gradient_offers_no_bound() -> None:
    class Doubled(type(crowd(2).terms[0])):  # type: ignore[misc]
        def add_gradient(self, layout: pf.Layout, q: Any, out: Any) -> None:
            super().add_gradient(layout, q, out)
            super().add_gradient(layout, q, out)

        def energy(self, layout: pf.Layout, q: Any) -> float:
            return float(2 * super().energy(layout, q))

    given = crowd(3).terms[0]
    doubled = Doubled(given.silhouettes, given.masks)
    with pytest.raises(pf.UnsupportedError, match="for another energy"):
        pf.infer(pf.Field(3, 2, [doubled]), "fixed")
