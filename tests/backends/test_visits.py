"""Sweeps over fields with terms that can't be lowered; binary fields with such terms."""

from __future__ import annotations

import numpy as np
import pytest

import proxfield as pf
from proxfield.core.engines import compile_program
from proxfield.core.engines.numba.programs import BinaryProgram
from scenes import random_boxes, random_scene


def beside_others(seed: int) -> pf.Field:
    """Locations between variables of two and three labels, with tables over all of them."""
    rng = np.random.default_rng(seed)
    n = 6
    term = pf.Occupancy([random_boxes(rng, n, 6, 7)], [rng.random((6, 7))], first=1)
    field = pf.Field([3, *[2] * n, 2, 3]).add(term)
    field = field.add(pf.Ising([[2, 4], [3, 7]], [1.0, -2.0]))
    field = field.add(pf.Pairwise([[0, 8]], rng.normal(size=(1, 3, 3))))
    return field.add(pf.Unary(rng.normal(size=(n, 2)), range(1, n + 1)))


@pytest.mark.parametrize("order", ["natural", "random"])
@pytest.mark.parametrize("seed", range(6))
def test_sweeps_agree_with_the_reference_and_descend(seed: int, order: str) -> None:
    field = beside_others(seed) if seed % 2 else random_scene(np.random.default_rng(seed))
    ours, theirs = (
        pf.infer(
            field, "sweep", order=order, kernels=k, init="random", seed=seed, max_iters=20, tol=0
        )
        for k in ("cpu", "reference")
    )
    count = min(len(ours.trace), len(theirs.trace))  # rounding lets one of them stop earlier
    f, g = (r.trace.free_energy[:count] for r in (ours, theirs))
    np.testing.assert_allclose(f, g, rtol=1e-9)
    np.testing.assert_allclose(ours.q, theirs.q, atol=1e-8)
    f = ours.trace.free_energy
    assert (np.diff(f) <= 1e-10 * (1 + np.abs(f[:-1]))).all()


def test_visits_are_the_gradient() -> None:
    """After any moves, each variable's part of the gradient is that of the whole."""
    rng = np.random.default_rng(3)
    field = beside_others(3)
    layout, term = field.layout, field.terms[0]
    q = layout.normalize(rng.random(layout.size))
    visits = term.visits(layout, q.copy())
    for i in rng.integers(0, field.n_vars, 40):
        at = slice(layout.offsets[i], layout.offsets[i + 1])
        whole = np.zeros(layout.size)
        term.add_gradient(layout, q, whole)
        np.testing.assert_allclose(visits.gradient(int(i)), whole[at], atol=1e-9)
        new = rng.random(at.stop - at.start) ** 4
        q[at] = new / new.sum()
        visits.move(int(i), q[at])


def test_what_cannot_be_visited_is_refused() -> None:
    ratio = random_scene(np.random.default_rng(0), model="ratio")
    with pytest.raises(pf.UnsupportedError, match="no method 'visits', needed for sweep"):
        pf.infer(ratio, "sweep")
    with pytest.raises(pf.UnsupportedError, match="no method 'neighbors'"):
        pf.infer(random_scene(np.random.default_rng(0)), "colored")


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("rule", ["fixed", "adhoc", "momentum", "adam", "backtracking", "adaptive"])
def test_binary_fields_with_terms_run_on_binary_kernels(rule: str, dtype: str) -> None:
    rng = np.random.default_rng(7)
    field = pf.Field(9, 2).add(pf.Consistency([0, 0, 0, 1, 1, 1, 1, -1, -1], 2.0))
    field = field.add(pf.Ising([[0, 4], [2, 8], [6, 7]], [1.0, -1.0, 0.5]))
    field = field.add(pf.Unary(rng.normal(size=(9, 2)))).condition({8: 1})
    assert isinstance(compile_program(field.lower()), BinaryProgram)
    options = {"init": "random", "max_iters": 12, "tol": 0.0}
    ours = pf.infer(field, rule, dtype=dtype, **options)
    theirs = pf.infer(field, rule, kernels="reference", **options)
    tol = 1e-9 if dtype == "float64" else 1e-4
    np.testing.assert_allclose(ours.q, theirs.q, atol=tol)
    np.testing.assert_allclose(ours.trace.free_energy, theirs.trace.free_energy, atol=10 * tol)


def test_probabilities_near_the_corners_keep_their_digits() -> None:
    """log p is taken from the natural parameter: ½ + v would round p to 0."""
    boxes = pf.Boxes(1, 2, [[0, 0, 1, 1], [0, 0, 2, 1]])
    term = pf.Occupancy([boxes], [[[1.0, 0.0]]], strength=200.0)
    field = pf.Field(2, 2, [term])
    ours, theirs = (
        pf.infer(field, "fixed", step=0.5, kernels=k, max_iters=60, tol=0)
        for k in ("cpu", "reference")
    )
    assert theirs.q.min() < 1e-17
    np.testing.assert_allclose(np.log(ours.q), np.log(theirs.q), rtol=1e-6)
