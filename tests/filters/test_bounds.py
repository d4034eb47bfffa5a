"""The certified damping and the eigenvalue bounds of Gaussian terms, for each array library."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from proxfield.core.engines.plan import damping_for
from proxfield.core.filters.operator import kernel_range, product_range

TABLES = {
    "potts": -2.0 * np.eye(3),
    "repulsive": np.diag([1.0, 2.0, 3.0]),
    "mixed": np.array([[0.0, 2.0, -1.0], [2.0, 0.5, 1.0], [-1.0, 1.0, 0.0]]),
}


@pytest.fixture(params=["numpy", "torch"])
def array(request: Any) -> Any:
    """What makes an array of the library from nested lists or a numpy array."""
    if request.param == "numpy":
        return lambda values: np.array(values, dtype=np.float64)
    torch = pytest.importorskip("torch")
    return lambda values: torch.tensor(np.array(values), dtype=torch.float64)


def kernel(n: int = 12, d: int = 2, seed: int = 0) -> Any:
    f = np.random.default_rng(seed).normal(size=(n, d))
    return np.exp(-0.5 * ((f[:, None] - f) ** 2).sum(-1))


def normalized(k: Any, normalization: str) -> Any:
    mass = k.sum(1)
    if normalization == "symmetric":
        return k / np.sqrt(np.outer(mass, mass))
    if normalization == "none":
        return k
    return 0.5 * (k / mass + (k / mass).T)


def test_certified_damping(array: Any) -> None:
    found = damping_for(array([-3.0, 0.0, 2.0, 6.0, np.inf]))
    np.testing.assert_array_equal(np.asarray(found), [0.0, 0.0, 0.0, 1.0, np.inf])
    assert type(found) is type(array([0.0])) and found.dtype == array([0.0]).dtype


def test_certified_damping_of_numbers_and_of_float32() -> None:
    assert float(damping_for(6)) == 1.0
    assert damping_for(np.float32([0.1])).dtype == np.float64
    assert damping_for(np.float32([0.1, 9.3]))[1] == np.float64(np.float32(9.3)) / 4 - 0.5


def test_certified_damping_has_a_gradient() -> None:
    torch = pytest.importorskip("torch")
    curvature = torch.tensor([-1.0, 1.0, 6.0], requires_grad=True)
    damping_for(curvature).sum().backward()
    assert curvature.grad.tolist() == [0.0, 0.0, 0.25]


@pytest.mark.parametrize("normalization", ["none", "before", "after", "symmetric"])
@pytest.mark.parametrize("keep", [True, False])
def test_kernel_range_holds_the_eigenvalues(array: Any, normalization: str, keep: bool) -> None:
    for seed in range(20):
        k = kernel(seed=seed)
        a = normalized(k, normalization)
        own = np.diag(a)
        values = np.linalg.eigvalsh(a if keep else a - np.diag(own))
        given = [array(k.sum(1)), array(a.sum(1)), None if keep else array(own)]
        low, high = (float(x) for x in kernel_range(normalization, *given))
        assert low <= values[0] + 1e-12 and values[-1] <= high + 1e-12
        # not looser than the formula says
        top = 1.0 if normalization == "symmetric" else a.sum(1).max()
        assert high == pytest.approx(top - (0.0 if keep else own.min()), rel=1e-12)
        most, least = k.sum(1).max(), k.sum(1).min()
        down = 0.0
        if normalization in ("before", "after"):
            down = min(top, (most - least) ** 2 / (8 * least * (most + least)))
        assert low == pytest.approx(-down - (0.0 if keep else own.max()), rel=1e-12)


def test_kernel_range_of_several_sets(array: Any) -> None:
    k = np.stack([kernel(seed=s) for s in range(3)])
    a = np.stack([normalized(x, "before") for x in k])
    parts = [k.sum(2), a.sum(2), np.diagonal(a, axis1=1, axis2=2)]
    low, high = kernel_range("before", *(array(x) for x in parts))
    for i in range(3):
        one = kernel_range("before", *(array(x[i]) for x in parts))
        assert (float(low[i]), float(high[i])) == tuple(float(x) for x in one)


@pytest.mark.parametrize("table", TABLES)
def test_product_range_holds_the_eigenvalues_on_centered_blocks(array: Any, table: str) -> None:
    a, matrix = normalized(kernel(6), "symmetric"), TABLES[table]
    centering = np.kron(np.eye(6), np.eye(3) - 1 / 3)
    values = np.linalg.eigvalsh(centering @ np.kron(a, matrix) @ centering)
    ends = np.linalg.eigvalsh(a)
    low, high = product_range(array(ends[0]), array(ends[-1]), array(matrix))
    # tight, given the ends themselves: products of eigenvalues are eigenvalues
    assert float(low) == pytest.approx(values[0], abs=1e-12)
    assert float(high) == pytest.approx(values[-1], abs=1e-12)
    assert float(low) <= 0.0 <= float(high)
