"""Errors that pydensecrf's users and tests expect, and its refusals that are lifted here."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from proxfield.compat.pydensecrf import densecrf as dcrf
from proxfield.compat.pydensecrf import eigen

N, L, W, H = 6, 3, 3, 2
F4 = np.float32
FEATURES = np.arange(12, dtype=F4).reshape(2, N)
IMAGE = np.arange(18, dtype=np.uint8).reshape(H, W, 3)
UNARY = np.linspace(0, 1, L * N, dtype=F4).reshape(L, N)


def crf() -> dcrf.DenseCRF2D:
    out = dcrf.DenseCRF2D(W, H, L)
    out.setUnaryEnergy(UNARY)
    return out


def bilateral(image: Any, **options: Any) -> None:
    crf().addPairwiseBilateral(**{"sxy": 3, "srgb": 5, "rgbim": image, "compat": 3, **options})


REFUSED: dict[str, tuple[type[Exception], str, Callable[[], object]]] = {
    "unary of another N": (
        ValueError,
        "Bad shape for unary energy (Need (3, 6), got (3, 7))",
        lambda: crf().setUnaryEnergy(np.zeros((L, N + 1), F4)),
    ),
    "unary of another L": (
        ValueError,
        "Bad shape for unary energy (Need (3, 6), got (4, 6))",
        lambda: crf().setUnaryEnergy(np.zeros((L + 1, N), F4)),
    ),
    "unary of a turned image": (
        ValueError,
        "Bad shape for unary energy (Need (3, 6), got (3, 3, 2))",
        lambda: crf().setUnaryEnergy(np.zeros((L, W, H), F4)),
    ),
    "no unary": (TypeError, "'u'", lambda: crf().setUnaryEnergy(None)),
    "unary of text": (TypeError, "'u'", lambda: crf().setUnaryEnergy("energies")),
    "array as Unary": (TypeError, "expected Unary", lambda: crf().setUnary(UNARY)),
    "None as Unary": (TypeError, "expected Unary", lambda: crf().setUnary(None)),
    "empty Unary": (TypeError, "ConstUnary", lambda: crf().setUnary(dcrf.Unary())),
    "ConstUnary of another N": (
        ValueError,
        "Bad shape for unary energy (Need (3, 6), got (3, 2))",
        lambda: crf().setUnary(dcrf.ConstUnary(np.zeros((L, 2), F4))),
    ),
    "logistic sizes": (
        ValueError,
        "Bad shape for logistic unary",
        lambda: dcrf.LogisticUnary(np.zeros((L, 2), F4), np.zeros((3, N), F4)),
    ),
    "features of another N": (
        ValueError,
        "Bad shape for pairwise energy (Need (?, 6), got (2, 7))",
        lambda: crf().addPairwiseEnergy(np.zeros((2, N + 1), F4), 3),
    ),
    "flat features": (
        ValueError,
        "Bad shape for pairwise energy (Need (?, 6), got (6,))",
        lambda: crf().addPairwiseEnergy(np.zeros(N, F4), 3),
    ),
    "image of another size": (
        ValueError,
        "Bad shape for pairwise bilateral (Need (2, 3, 3), got (2, 2, 3))",
        lambda: bilateral(IMAGE[:, :2]),
    ),
    "turned image": (ValueError, "width before the height", lambda: bilateral(np.zeros((W, H, 3)))),
    "image of 4 dimensions": (
        ValueError,
        "Bad shape for pairwise bilateral (Need (2, 3, 3)",
        lambda: bilateral(IMAGE[..., None]),
    ),
    "no image": (TypeError, "'rgbim'", lambda: bilateral(None)),
    "sigma of 0": (ValueError, "not 0", lambda: crf().addPairwiseGaussian(0, 3)),
    "a sigma of 0": (ValueError, "not 0", lambda: bilateral(IMAGE, srgb=(1, 0, 1))),
    "sigma of None": (TypeError, "sxy", lambda: crf().addPairwiseGaussian(None, 3)),
    "too few sigmas": (ValueError, "2 values", lambda: bilateral(IMAGE, srgb=(1, 2))),
    "kernel 7": (ValueError, "KernelType", lambda: crf().addPairwiseEnergy(FEATURES, 3, 7)),
    "normalization 7": (
        ValueError,
        "NormalizationType",
        lambda: crf().addPairwiseEnergy(FEATURES, 3, 1, 7),
    ),
    "no compat": (TypeError, "compat", lambda: crf().addPairwiseEnergy(FEATURES)),
    "array as Q": (TypeError, "MatrixXf", lambda: crf().klDivergence(np.zeros((L, N), F4))),
    "step of an array": (TypeError, "MatrixXf", lambda: crf().stepInference(UNARY, None, None)),
    "Q of another size": (
        ValueError,
        "Bad shape for Q",
        lambda: crf().stepInference(eigen.matrixXf(np.zeros((L, 2), F4)), None, None),
    ),
    "Q of integers": (
        ValueError,
        "float32",
        lambda: crf().stepInference(np.zeros_like(eigen.MatrixXf(L, N), dtype=int), None, None),
    ),
    "no labels": (ValueError, "0 labels", lambda: dcrf.DenseCRF(3, 0)),
    "too few arguments": (TypeError, "nlabels", lambda: dcrf.DenseCRF2D(3, 2)),
    "matrix of None": (TypeError, "None", lambda: eigen.matrixXf(None)),
    "matrix of a list": (TypeError, "list", lambda: eigen.matrixXf([[1.0]])),
    "matrix of 3 dimensions": (
        ValueError,
        "expected 2, got 3",
        lambda: eigen.matrixXf(np.zeros((1, 2, 3), F4)),
    ),
    "matrix of float64": (ValueError, "float64", lambda: eigen.matrixXf(np.zeros((2, 3)))),
    "vector of float64": (ValueError, "float64", lambda: eigen.vectorXf(np.zeros(3))),
    "vector of 2 dimensions": (
        ValueError,
        "expected 1, got 2",
        lambda: eigen.vectorXf(np.zeros((2, 3), F4)),
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    error, text, call = REFUSED[case]
    with pytest.raises(error, match=re.escape(text)):
        call()


@pytest.mark.parametrize(
    ("compat", "error"),
    [
        (None, TypeError),
        ([1.0, 2.0, 3.0], TypeError),
        ("3", TypeError),
        (np.ones(L), ValueError),
        (np.eye(L), ValueError),
        (np.ones(L, dtype=np.int64), ValueError),
        (np.ones(L + 1, F4), ValueError),
        (np.ones((L, L + 1), F4), ValueError),
        (np.ones((1, L, L), F4), ValueError),
        (float("nan"), ValueError),
    ],
    ids=lambda value: "" if isinstance(value, type) else " ".join(repr(value).split()),
)
def test_refused_compatibilities(compat: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        crf().addPairwiseEnergy(FEATURES, compat)
    with pytest.raises(error):
        crf().addPairwiseGaussian(3, compat)
    with pytest.raises(error):
        bilateral(IMAGE, compat=compat)


def test_energies_that_leave_no_distribution_are_refused() -> None:
    for bad in (np.nan, -np.inf):
        one = dcrf.DenseCRF(2, 2)
        one.setUnaryEnergy(np.array([[0, 0], [0, bad]]))
        with pytest.raises(ValueError, match="variable 1"):
            one.inference(1)
    one = dcrf.DenseCRF(2, 2)
    one.setUnaryEnergy(np.array([[np.inf, 0], [np.inf, 0]]))
    one.addPairwiseEnergy(np.zeros((1, 2)), 1)
    with pytest.raises(ValueError, match="variable 0"):
        one.inference(1)


# ---- lifted ----


def result(
    unary: Any = UNARY, features: Any = FEATURES, image: Any = IMAGE, **options: Any
) -> np.ndarray[Any, Any]:
    """Marginals with all kinds of pairwise terms."""
    out = dcrf.DenseCRF2D(W, H, L)
    out.setUnaryEnergy(unary)
    out.addPairwiseEnergy(features, 1)
    out.addPairwiseGaussian(options.get("sxy", (2, 2)), 1)
    out.addPairwiseBilateral(options.get("sxy", (2, 2)), options.get("srgb", 5), image, 1)
    return np.array(out.inference(3))


def read_only(array: Any) -> Any:
    out = array.copy()
    out.flags.writeable = False
    return out


@pytest.mark.parametrize(
    "relaxed",
    [
        {"unary": UNARY.astype(np.float64), "features": FEATURES.astype(np.float64)},
        {"unary": np.asfortranarray(UNARY), "features": np.asfortranarray(FEATURES)},
        {"unary": read_only(UNARY), "features": read_only(FEATURES), "image": read_only(IMAGE)},
        {"unary": UNARY.tolist(), "features": FEATURES.tolist(), "image": IMAGE.tolist()},
        {"unary": UNARY.reshape(L, H, W), "features": FEATURES.reshape(2, H, W)},
        {"image": np.asfortranarray(IMAGE)},
        {"image": IMAGE.astype(np.float64)},
        {"image": np.stack([IMAGE, IMAGE], axis=-1)[..., 0]},
        {"sxy": 2, "srgb": (5, 5, 5)},
        {"sxy": [2.0, 2.0], "srgb": [5.0, 5.0, 5.0]},
        {"sxy": np.array([2, 2]), "srgb": np.float32(5)},
    ],
    ids=lambda d: "-".join(f"{k}:{type(v).__name__}" for k, v in d.items()),
)
def test_types_orders_and_shapes_make_no_difference(relaxed: dict[str, Any]) -> None:
    np.testing.assert_array_equal(result(**relaxed), result())


def test_gray_images_and_any_number_of_channels() -> None:
    gray = IMAGE[..., 0]
    np.testing.assert_array_equal(result(image=gray), result(image=gray[..., None]))
    thrice = np.repeat(gray[..., None], 3, axis=2)
    same = result(image=thrice, srgb=5 * np.sqrt(3))  # three channels alike: √3 times the distance
    np.testing.assert_allclose(result(image=gray, srgb=5), same, atol=0.02)
    assert np.abs(result(image=np.zeros((H, W, 7))) - result()).max() > 1e-3


def test_a_float_image_with_a_width_for_bytes_is_mentioned() -> None:
    with pytest.warns(UserWarning, match="colors make no difference"):
        bilateral(IMAGE / 255.0, srgb=13)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bilateral(IMAGE / 255.0, srgb=0.05)
        bilateral(IMAGE.astype(float), srgb=13)


def test_the_field_keeps_copies() -> None:
    given, one = UNARY.copy(), dcrf.DenseCRF(N, L)
    one.setUnaryEnergy(given)
    given[:] = 0
    before = np.array(one.inference(0))
    assert np.ptp(before) > 0.1
    Q = one.inference(0)
    np.asarray(Q)[:] = 0  # what was handed out is the caller's
    np.testing.assert_array_equal(np.array(one.inference(0)), before)


def test_keyword_arguments() -> None:
    one = dcrf.DenseCRF2D(w=W, h=H, nlabels=L)
    one.setUnaryEnergy(u=UNARY)
    one.addPairwiseEnergy(features=FEATURES, compat=1, kernel=2, normalization=3)
    assert one.inference(niter=2).shape == (L, N)
