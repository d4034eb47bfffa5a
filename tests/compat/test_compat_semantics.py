"""What the stand-in computes, against formulas for kernels that are known in closed form."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import proxfield as pf
from proxfield.compat.pydensecrf import densecrf as dcrf
from proxfield.compat.pydensecrf import densecrf as dense
from proxfield.compat.pydensecrf import eigen
from proxfield.compat.pydensecrf.utils import create_pairwise_bilateral, create_pairwise_gaussian

Array = NDArray[Any]
N, L = 7, 3
RNG = np.random.default_rng(5)
UNARY = RNG.normal(size=(L, N)).astype(np.float32)
MATRIX = RNG.normal(size=(L, L)).astype(np.float32)
EYE = np.eye(L, dtype=np.float32)

ALIKE = np.zeros((2, N), dtype=np.float32)  # K = 11ᵀ/N when normalized
APART = np.stack([np.arange(N), np.arange(N)]).astype(np.float32) * 1000  # K = I
KERNELS = {"alike": (ALIKE, np.full((N, N), 1 / N)), "apart": (APART, np.eye(N))}


def softmax(energies: Array) -> Array:
    e = np.exp(-(energies - energies.min(axis=0)))
    return np.asarray(e / e.sum(axis=0))


def crf(features: Array, compat: Any, unary: Array = UNARY, **options: Any) -> dcrf.DenseCRF:
    out = dcrf.DenseCRF(unary.shape[1], unary.shape[0])
    out.setUnaryEnergy(unary)
    out.addPairwiseEnergy(features, compat, **options)
    return out


def table(compat: Any) -> Array:
    """μ up to a constant."""
    if np.ndim(compat) == 0:
        return -float(compat) * np.eye(L)
    return np.diag(compat) if np.ndim(compat) == 1 else 0.5 * (compat + compat.T)


ATTRACTIVE = {
    "number": 3,
    "vector": np.array([-1.0, -3.0, -0.5], dtype=np.float32),
    "matrix": -(EYE + np.array([[0, 0.5, 0.2], [0.1, 0, 0.2], [0, 0, 0]], dtype=np.float32)),
}


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("compat", ATTRACTIVE)
def test_the_update_is_the_originals(kernel: str, compat: str) -> None:
    """q ← softmax(−U − μ K q), undamped, with each variable's message to itself."""
    features, k = KERNELS[kernel]
    mu = table(ATTRACTIVE[compat])
    q = softmax(UNARY)
    for n in range(4):
        found = np.array(crf(features, ATTRACTIVE[compat]).inference(n))
        np.testing.assert_allclose(found, q, atol=2e-5)
        q = softmax(UNARY + mu @ q @ k)


@pytest.mark.parametrize("n", [0, -1, -5])
def test_no_iterations(n: int) -> None:
    np.testing.assert_allclose(np.array(crf(ALIKE, 3).inference(n)), softmax(UNARY), atol=1e-6)


def test_without_unary_or_without_pairwise() -> None:
    bare = dcrf.DenseCRF(N, L)
    np.testing.assert_allclose(np.array(bare.inference(3)), 1 / L, atol=1e-6)
    bare.setUnaryEnergy(UNARY)
    np.testing.assert_allclose(np.array(bare.inference(3)), softmax(UNARY), atol=1e-6)


GRID = create_pairwise_gaussian((2, 2), (8, 9))
SMOOTH = RNG.normal(size=(L, 72)).astype(np.float32)


@pytest.mark.parametrize(
    "compat",
    [np.full(L, -3, dtype=np.float32), -3 * EYE, 3 * (1 - EYE), 3 * (1 - EYE) + 7],
    ids=["vector", "diagonal", "off-diagonal", "shifted"],
)
def test_equal_compatibilities(compat: Array) -> None:
    potts = np.array(crf(GRID, 3, SMOOTH).inference(5))
    np.testing.assert_allclose(np.array(crf(GRID, compat, SMOOTH).inference(5)), potts, atol=1e-4)
    assert np.abs(potts - softmax(SMOOTH)).max() > 0.1


def test_a_matrix_counts_as_its_symmetric_part() -> None:
    lopsided = np.array(crf(GRID, MATRIX, SMOOTH).inference(5))
    even = np.array(crf(GRID, 0.5 * (MATRIX + MATRIX.T), SMOOTH).inference(5))
    np.testing.assert_allclose(lopsided, even, atol=1e-6)


def test_unaries_in_every_form() -> None:
    expected = np.array(crf(ALIKE, 3).inference(2))
    weights = RNG.normal(size=(L, 2)).astype(np.float32)
    features = RNG.normal(size=(2, N)).astype(np.float32)
    for unary, same in (
        (dcrf.ConstUnary(UNARY), expected),
        (dcrf.LogisticUnary(weights, features), crf(ALIKE, 3, weights @ features).inference(2)),
    ):
        one = crf(ALIKE, 3)
        one.setUnary(unary)
        np.testing.assert_allclose(np.array(one.inference(2)), np.array(same), atol=1e-6)
    one = crf(ALIKE, 3)
    one.setUnaryEnergy(weights, features)
    np.testing.assert_allclose(np.array(one.inference(0)), softmax(weights @ features), atol=1e-5)


def test_impossible_labels_stay_impossible() -> None:
    unary = UNARY.copy()
    unary[1, 2] = np.inf
    q = np.array(crf(ALIKE, 3, unary).inference(4))
    assert q[1, 2] == 0.0 and np.isfinite(q).all()
    np.testing.assert_allclose(q.sum(axis=0), 1, atol=1e-5)


# ---- step by step ----


@pytest.mark.parametrize("compat", [3, MATRIX, -4], ids=["attractive", "mixed", "repulsive"])
def test_steps_equal_inference(compat: Any) -> None:
    one = crf(GRID, compat, SMOOTH)
    Q, tmp1, tmp2 = one.startInference()
    live = np.asarray(Q)
    assert np.array(tmp1).shape == np.array(tmp2).shape == (0, 0)
    np.testing.assert_allclose(live, softmax(SMOOTH), atol=1e-6)
    for n in range(1, 5):
        assert one.stepInference(Q, tmp1, tmp2) is None
        np.testing.assert_allclose(live, np.array(one.inference(n)), atol=1e-4)


def test_the_matrix_shares_the_engines_memory() -> None:
    Q = np.asarray(crf(GRID, 3, SMOOTH).inference(1))
    assert Q.flags.f_contiguous and Q.dtype == np.float32 and Q.flags.writeable


def test_changes_after_an_inference_count() -> None:
    one = crf(GRID, 3, SMOOTH)
    first = np.array(one.inference(3))
    one.addPairwiseEnergy(GRID * 0.1, 2)
    second = np.array(one.inference(3))
    one.setUnaryEnergy(-SMOOTH)
    third = np.array(one.inference(3))
    assert np.abs(first - second).max() > 1e-3 and np.abs(second - third).max() > 1e-3


# ---- repulsion ----


@pytest.mark.parametrize(
    "compat", [-6, 6 * EYE, np.full(L, 6, dtype=np.float32)], ids=["number", "matrix", "vector"]
)
def test_repulsion_converges_and_lowers_the_free_energy(compat: Any) -> None:
    """The undamped update flips all variables for ever here."""
    one = crf(ALIKE, compat)
    field = pf.Field(N, L, [pf.Unary(UNARY.T)]).add(
        pf.Gaussian(ALIKE.T, 1.0, table(compat), self_message=True, filter=dense.FILTER)
    )
    undamped = [softmax(UNARY)]
    for _ in range(101):
        undamped.append(softmax(UNARY + table(compat) @ undamped[-1] @ KERNELS["alike"][1]))
    assert np.abs(undamped[-1] - undamped[-2]).max() > 0.5
    Q, tmp1, tmp2 = one.startInference()
    fall, late = [], np.array(Q)
    for _ in range(100):
        fall.append(field.free_energy(np.array(Q).T))
        late = np.array(Q)
        one.stepInference(Q, tmp1, tmp2)
    assert np.abs(np.array(Q) - late).max() < 1e-3
    assert (np.diff(fall) < 1e-5).all() and fall[0] - fall[-1] > 0.1


# ---- the reported divergence ----


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    "compat", [2.5, np.array([-1, 2, 0.5], np.float32), MATRIX], ids=["number", "vector", "matrix"]
)
def test_kl_divergence_is_what_the_original_reports(kernel: str, compat: Any) -> None:
    features, k = KERNELS[kernel]
    one = crf(features, compat)
    q = RNG.dirichlet(np.ones(L), N).T.astype(np.float32)
    expected = (q * np.log(q) + UNARY * q + q * (table(compat) @ q @ k)).sum()
    assert one.klDivergence(eigen.matrixXf(q)) == pytest.approx(expected, rel=1e-4)


def test_kl_divergence_counts_zeros_as_nothing() -> None:
    one = dcrf.DenseCRF(1, 2)
    one.setUnaryEnergy([[0.5], [np.inf]])
    assert one.klDivergence(eigen.matrixXf(np.array([[1], [0]], np.float32))) == pytest.approx(0.5)


def test_half_of_its_last_sum_gives_the_free_energy() -> None:
    one = crf(GRID, -2 * EYE, SMOOTH)
    term = pf.Gaussian(GRID.T, -2.0, EYE, self_message=True, filter=dense.FILTER)
    field = pf.Field(72, L, [pf.Unary(SMOOTH.T), term])
    Q = one.inference(3)
    q = np.array(Q, dtype=np.float64)
    alone = float((q * np.log(q) + SMOOTH * q).sum())
    expected = alone + 0.5 * (one.klDivergence(Q) - alone)
    assert field.free_energy(q.T) == pytest.approx(expected, rel=1e-4)


# ---- images ----


def scene() -> tuple[Array, Array]:
    """A picture and the energies of three labels; most of them are right."""
    rng = np.random.default_rng(1)
    h, w = 20, 30
    right = np.zeros((h, w), dtype=int)
    right[:, 10:], right[12:, 15:] = 1, 2
    colors = np.array([(200, 30, 30), (30, 200, 30), (30, 30, 200)])
    image = np.clip(colors[right] + rng.normal(0, 8, (h, w, 3)), 0, 255).astype(np.uint8)
    seen = np.where(rng.random((h, w)) < 0.25, rng.integers(0, 3, (h, w)), right)
    energies = np.where(np.arange(3)[:, None, None] == seen, 0.3, 1.5)
    return image, energies.reshape(3, -1).astype(np.float32)


def test_both_classes_give_the_same_labels() -> None:
    """They order the features differently: (x, y) here, (y, x) there."""
    image, unary = scene()
    h, w = image.shape[:2]
    flat = dcrf.DenseCRF(h * w, 3)
    flat.setUnaryEnergy(unary)
    flat.addPairwiseEnergy(create_pairwise_gaussian((3, 3), (h, w)), 3)
    flat.addPairwiseEnergy(create_pairwise_bilateral((20, 20), (13,) * 3, image, chdim=2), 10)
    grid = dcrf.DenseCRF2D(w, h, 3)
    grid.setUnaryEnergy(unary)
    grid.addPairwiseGaussian(sxy=3, compat=3)
    grid.addPairwiseBilateral(sxy=20, srgb=13, rgbim=image, compat=10)
    labels = np.argmax(grid.inference(5), axis=0)
    np.testing.assert_array_equal(np.argmax(flat.inference(5), axis=0), labels)
    assert (labels != unary.argmin(axis=0)).sum() > 50  # it cleaned up
    assert len(np.unique(labels)) == 3


@pytest.mark.parametrize("sxy", [(2, 5), (5, 2)])
def test_x_comes_before_y(sxy: tuple[int, int]) -> None:
    image, unary = scene()
    h, w = image.shape[:2]
    y, x = np.mgrid[:h, :w]
    features = np.stack([x / sxy[0], y / sxy[1]]).reshape(2, -1)
    by_hand, grid = dcrf.DenseCRF(h * w, 3), dcrf.DenseCRF2D(w, h, 3)
    for one in (by_hand, grid):
        one.setUnaryEnergy(unary)
    by_hand.addPairwiseEnergy(features, 3)
    grid.addPairwiseGaussian(sxy, 3)
    np.testing.assert_allclose(
        np.array(grid.inference(3)), np.array(by_hand.inference(3)), atol=1e-4
    )
    colors = [image[..., k] / s for k, s in enumerate((10, 20, 30))]
    by_hand.addPairwiseEnergy(np.stack([*features.reshape(2, h, w), *colors]), 5)
    grid.addPairwiseBilateral(sxy, (10, 20, 30), image, 5)
    np.testing.assert_allclose(
        np.array(grid.inference(3)), np.array(by_hand.inference(3)), atol=1e-4
    )


@pytest.mark.parametrize("kernel", list(dcrf.KernelType))
def test_kinds_of_kernel_make_no_difference(kernel: int) -> None:
    expected = np.array(crf(GRID, 3, SMOOTH).inference(3))
    np.testing.assert_array_equal(
        np.array(crf(GRID, 3, SMOOTH, kernel=int(kernel)).inference(3)), expected
    )


def test_normalizations_by_number() -> None:
    found = [np.array(crf(GRID, 2, SMOOTH, normalization=k).inference(3)) for k in range(4)]
    np.testing.assert_array_equal(found[1], found[2])  # both stand for their symmetric part
    for a, b in ((0, 1), (0, 3), (1, 3)):
        assert np.abs(found[a] - found[b]).max() > 1e-3
