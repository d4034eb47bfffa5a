"""The lattice on a device against its plain reference, and at its edges."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from device_terms import (
    DEVICE,
    INTERPRETED,
    needs_device,
    needs_interpreter,
    poisoned,
    run_interpreted,
    torch,
)

from lattice_reference import lattice_factors, lattice_matrix, suitable_blur
from proxfield.core.filters.geometry import COARSE, SEPARABLE, STAR, Blur
from proxfield.core.filters.torch.plans import DeviceLattice
from proxfield.core.filters.triton import lattice, segments
from proxfield.core.filters.triton.lattice import LatticePlan
from proxfield.core.filters.triton.segments import SegmentSum
from proxfield.errors import InputError

__all__ = ["poisoned"]  # a fixture
pytestmark = pytest.mark.usefixtures("poisoned")

FEW = 12 if INTERPRETED else 60
"""Points: each vertex is a program, and the interpreter takes its time for it."""
BLUR = pytest.mark.parametrize("blur", [SEPARABLE, COARSE, STAR], ids=lambda blur: blur.name)
SIZES = pytest.mark.parametrize(
    "d, n", [(d, n) for d in ((1, 2, 5) if INTERPRETED else (1, 2, 3, 5, 8)) for n in (1, 7, FEW)]
)


def cloud(n: int, d: int, spread: float = 1.5) -> Any:
    return spread * np.random.default_rng(1000 * d + n).normal(size=(n, d))


def plan_of(features: Any, blur: Blur | None = None) -> LatticePlan:
    return LatticePlan(torch.from_numpy(features).to(DEVICE), blur)


def matrix(features: Any, dtype: Any = torch.float64, blur: Blur | None = None) -> Any:
    eye = torch.eye(len(features), dtype=dtype, device=DEVICE)
    return plan_of(features, blur).apply(eye).cpu().numpy()


@BLUR
@SIZES
def test_it_is_the_reference_matrix(d: int, n: int, blur: Blur) -> None:
    features = cloud(n, d)
    expected = lattice_matrix(features, blur)
    found = matrix(features, blur=blur)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-13 * expected.max())


def test_single_precision() -> None:
    features = cloud(FEW, 3)
    expected = lattice_matrix(features)
    single = matrix(features, torch.float32)
    assert single.dtype == np.float32
    np.testing.assert_allclose(single, expected, rtol=0, atol=2e-6 * expected.max())


@BLUR
@SIZES
def test_symmetric_without_negative_entries_or_eigenvalues(d: int, n: int, blur: Blur) -> None:
    k = matrix(cloud(n, d), blur=blur)
    assert np.linalg.norm(k - k.T) < 1e-14 * np.linalg.norm(k)
    assert k.min() >= 0.0
    assert np.linalg.eigvalsh(k)[0] > -1e-12 * n * k.max()


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_points_of_an_image(kind: Any) -> None:
    """Whole and half numbers fall onto edges of simplices, where rounding decides."""
    grid = np.stack(np.mgrid[: FEW // 6, :7], axis=-1).reshape(-1, 2) / 3.0
    color = np.random.default_rng(0).integers(0, 4, (len(grid), 3)) / 2.0
    features = np.concatenate([grid, color], axis=1).astype(kind)
    for f in (features, features[:, :2]):
        expected = lattice_matrix(f)
        np.testing.assert_allclose(matrix(f), expected, rtol=0, atol=1e-13 * expected.max())


@pytest.mark.parametrize("d", [1, 2, 5])
def test_duplicates_and_distant_points(d: int) -> None:
    features = cloud(FEW, d)
    features[4:8] = features[:4]
    features[9:] += 1e6
    features[10] -= 5e7
    expected = lattice_matrix(features)
    # places so far away are only known to 1e-8 themselves
    np.testing.assert_allclose(matrix(features), expected, rtol=0, atol=1e-7 * expected.max())


@pytest.mark.parametrize("c", [1, 2, 21, 65])
def test_channels_do_not_mix(c: int) -> None:
    features = cloud(FEW, 3)
    values = torch.from_numpy(np.random.default_rng(c).normal(size=(FEW, c))).to(DEVICE)
    plan = plan_of(features)
    out = plan.apply(values)
    expected = lattice_matrix(features) @ values.cpu().numpy()
    np.testing.assert_allclose(out.cpu(), expected, rtol=0, atol=1e-13 * abs(expected).max())
    assert bool((plan.apply(values) == out).all())
    view = torch.stack([values, values], dim=2)[:, :, 1]
    assert bool((plan.apply(view) == out).all())


def test_long_lists_are_added_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many points at one vertex: pieces of pieces."""
    monkeypatch.setattr(segments, "PIECE", 4)
    monkeypatch.setattr(lattice, "POINTS_PER_PASS", 40)
    features = cloud(90, 2, 0.02)
    features[50:] += 3.0
    expected = lattice_matrix(features)
    np.testing.assert_allclose(matrix(features), expected, rtol=0, atol=1e-13 * expected.max())
    table = torch.arange(70, dtype=torch.float64, device=DEVICE)[:, None]
    counts = torch.tensor([69, 0, 1], device=DEVICE)
    total = SegmentSum(torch.tensor([0, 5, 69], device=DEVICE), counts)(table)
    assert total[:, 0].tolist() == [69 * 34, 0, 69]


def test_symmetric_by_probes() -> None:
    n = 40 if INTERPRETED else 500
    plan = plan_of(cloud(n, 5, 0.3))
    u, v = (torch.rand(n, 3, device=DEVICE) for _ in range(2))
    a, b = (u.double() * plan.apply(v)).sum(0), (v.double() * plan.apply(u)).sum(0)
    np.testing.assert_allclose(a.cpu(), b.cpu(), rtol=1e-6)


@pytest.mark.parametrize("d", [1, 2, 5])
def test_gradient_for_features(d: int) -> None:
    """Σ_j k_ij (a_i·b_j + b_i·a_j) (f_j − f_i), with the reference's k."""
    features = cloud(FEW, d) + 20.0
    rng = np.random.default_rng(d)
    a, b = rng.normal(size=(2, FEW, 3))
    w = lattice_matrix(features) * (a @ b.T + b @ a.T)
    expected = w @ features - w.sum(1, keepdims=True) * features
    plan = DeviceLattice(torch.from_numpy(features).to(DEVICE))
    found, totals = plan.pull(*(torch.from_numpy(x).to(DEVICE) for x in (a, b)))
    np.testing.assert_allclose(found.cpu(), expected, rtol=0, atol=1e-10 * abs(expected).max())
    np.testing.assert_allclose(totals.cpu(), w.sum(1, keepdims=True), rtol=0, atol=1e-11)


def test_bad_and_empty_input() -> None:
    with pytest.raises(InputError, match="floating-point tensor"):
        LatticePlan(torch.ones(3))
    plan = plan_of(cloud(5, 2))
    with pytest.raises(InputError, match="for 5 points"):
        plan.apply(torch.ones(4, 1))
    assert plan.apply(torch.ones(5, 0, device=DEVICE)).shape == (5, 0)
    none = plan_of(np.zeros((0, 2)))
    assert none.apply(torch.ones(0, 3)).shape == (0, 3)
    assert none.nbytes == 0 < plan.nbytes


@pytest.mark.parametrize(
    "d, spread, kind", [(5, 3.0, STAR), (5, 1.5, COARSE), (5, 0.1, SEPARABLE), (2, 1.5, SEPARABLE)]
)
def test_the_reference_chooses_the_same_blur(d: int, spread: float, kind: Blur) -> None:
    features = cloud(40_000, d, spread)
    chosen = LatticePlan(torch.from_numpy(features).to(DEVICE)).blur
    assert chosen is suitable_blur(features) is kind


@BLUR
@needs_device
def test_many_points_on_a_device(blur: Blur) -> None:
    y, x = np.mgrid[:120, :160]
    color = np.random.default_rng(0).normal(size=(y.size, 3)) + (x.reshape(-1, 1) > 80)
    features = np.concatenate([np.stack([y, x], -1).reshape(-1, 2) / 30.0, color], axis=1)
    half, middle = lattice_factors(features, blur)
    plan = plan_of(features, blur)
    v = torch.rand(len(features), 21, device=DEVICE)
    out = plan.apply(v)
    expected = half @ (middle @ (half.T @ v.double().cpu().numpy()))
    np.testing.assert_allclose(out.cpu(), expected, rtol=2e-5)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        again = plan.apply(v)
    again.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert bool((again == out).all())


@needs_interpreter
@pytest.mark.skipif(DEVICE == "cuda", reason="the kernels ran on the device")
def test_kernels_in_the_interpreter() -> None:
    run_interpreted(__file__)
