"""The bound that proves a fixed point of a dense field to be a minimum, against eigenvalues."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

import proxfield as pf
from proxfield.core.solve import session
from proxfield.core.solve.stationarity import proves_minimum

COMPATIBILITIES = (None, [[0.0, 1.0, 2.0], [1.0, 0.0, -0.5], [2.0, -0.5, 0.3]])


def dense_field(seed: int, weight: float, **options: object) -> pf.Field:
    """Nine points with three labels, and two Gaussian terms."""
    rng = np.random.default_rng(seed)
    field = pf.Field(9, 3, [pf.Unary(rng.normal(size=(9, 3)))])
    field.add(pf.Gaussian(rng.normal(size=(9, 2)), weight=weight, **options))
    matrix = COMPATIBILITIES[seed % 2]
    if matrix is None:
        return field.add(pf.Gaussian(3.0 * rng.normal(size=(9, 1)), weight=0.3 * weight))
    scaled = weight * np.array(matrix)
    return field.add(pf.Gaussian(3.0 * rng.normal(size=(9, 1)), compatibility=scaled))


def hessian(field: pf.Field) -> NDArray[np.float64]:
    """H of all terms, from gradients at unit vectors."""
    lowered = field.lower()
    size = lowered.layout.size
    zero, out = np.zeros(size), np.zeros((size, size))
    for term in lowered.terms:
        base = np.zeros(size)
        term.add_gradient(lowered.layout, zero, base)
        for k in range(size):
            g = np.zeros(size)
            term.add_gradient(lowered.layout, np.eye(size)[k], g)
            out[k] += g - base
    return out


def lowest_eigenvalue(field: pf.Field, q: NDArray[np.float64]) -> float:
    """The smallest eigenvalue of Rᵀ H R at q.  # q: (n, labels)"""
    n, c = q.shape
    root = np.zeros((n * c, n * c))
    for i, row in enumerate(q):
        block = slice(i * c, (i + 1) * c)
        half = np.sqrt(row)
        root[block, block] = np.diag(half) @ (np.eye(c) - np.outer(half, half))
    return float(np.linalg.eigvalsh(root.T @ hessian(field) @ root)[0])


@pytest.mark.parametrize("filter", ["exact", "lattice"])
@pytest.mark.parametrize("normalization", ["symmetric", "none", "before"])
def test_what_is_proved_is_true(filter: str, normalization: str) -> None:
    proved = refuted = 0
    for seed in range(40):
        rng = np.random.default_rng([seed, 1])
        weight = float(rng.choice([-1.0, 1.0]) * rng.uniform(0.5, 8.0))
        field = dense_field(seed, weight, filter=filter, normalization=normalization)
        q = rng.dirichlet(np.full(3, rng.choice([0.02, 0.2, 1.0])), size=9)
        lowest = lowest_eigenvalue(field, q)
        if proves_minimum(field.lower(), q.ravel()):
            proved += 1
            assert lowest > -1.0
        refuted += lowest < -1.0
    assert proved >= 5 and refuted >= 5  # both happen, or the test would say nothing


def test_norms_bound_the_blocks_of_the_hessian() -> None:
    for seed in range(6):
        field = dense_field(seed, 2.0 * (-1.0) ** seed)
        lowered, h = field.lower(), hessian(field)
        center = np.eye(3) - 1.0 / 3.0
        for j in range(9):
            v = np.eye(9)[j]
            found = sum(term.coupling_norms(lowered.layout, v) for term in lowered.terms)
            for i in range(9):
                block = center @ h[3 * i : 3 * i + 3, 3 * j : 3 * j + 3] @ center
                assert found[i] >= np.linalg.norm(block, 2) - 1e-9


def test_other_terms_leave_it_open() -> None:
    field = dense_field(0, 0.1).add(pf.Potts([[0, 1]], 0.1))
    assert not proves_minimum(field.lower(), np.full(27, 1.0 / 3.0))


def test_it_ends_when_it_is_late() -> None:
    lowered, q = dense_field(0, 0.1).lower(), np.full(27, 1.0 / 3.0)
    assert proves_minimum(lowered, q)
    assert not proves_minimum(lowered, q, late=lambda: True)


def test_confident_images_need_no_products_with_the_hessian(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*args: object, **options: object) -> None:
        raise AssertionError("products with H although the bound proves it")

    monkeypatch.setattr(session, "judge", refuse)
    labels = np.kron(np.arange(6).reshape(2, 3), np.ones((5, 5), dtype=int))
    image = (40 * labels).astype(np.uint8)
    p = 0.99 * np.eye(6)[labels] + 0.01 / 6
    result = pf.DenseCRF(image, p, preset="krahenbuehl").infer(max_iters=50)
    assert result.status.name == "CONVERGED"
