"""`pf.gaussian_filter` and `pf.bilateral_filter`: sums, means, shapes and messages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import proxfield as pf
from lattice_reference import lattice_matrix


def points(n: int = 40, d: int = 3, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, d)), rng.normal(size=(n, 2))


def kernel(f: Any, g: Any, sigma: Any = 1.0) -> Any:
    gap = (f[:, None] - g[None]) / sigma
    return np.exp(-0.5 * (gap**2).sum(-1))


@pytest.mark.parametrize("sigma", [1.0, 0.5, [0.5, 1.0, 2.0]])
@pytest.mark.parametrize("normalize", [True, False])
def test_exact(sigma: Any, normalize: bool) -> None:
    f, v = points()
    k = kernel(f, f, sigma)
    expected = k @ v / (k.sum(1, keepdims=True) if normalize else 1.0)
    options: Any = {"sigma": sigma, "normalize": normalize}
    np.testing.assert_allclose(pf.gaussian_filter(v, f, **options), expected, rtol=1e-12)
    one = pf.gaussian_filter(v[:, 0], f, filter="exact", **options)
    np.testing.assert_allclose(one, expected[:, 0], rtol=1e-12)


@pytest.mark.parametrize("normalize", [True, False])
def test_lattice_is_its_matrix(normalize: bool) -> None:
    f, v = points()
    k = lattice_matrix(f / 0.7)
    expected = k @ v / (k.sum(1, keepdims=True) if normalize else 1.0)
    out = pf.gaussian_filter(v, f, sigma=0.7, normalize=normalize, filter="lattice")
    np.testing.assert_allclose(out, expected, rtol=1e-6, atol=1e-6)
    mean = kernel(f, f, 0.7) @ v / kernel(f, f, 0.7).sum(1, keepdims=True)
    if normalize:
        assert np.linalg.norm(out - mean) < 0.2 * np.linalg.norm(mean)


@pytest.mark.parametrize("filter", ["exact", "lattice"])
def test_at_other_points(filter: str) -> None:
    f, v = points()
    g = points(7, seed=1)[0]
    g[-1] = 1e3  # far from everything
    out = pf.gaussian_filter(v, f, at=g, filter=filter)
    k = kernel(g, f) if filter == "exact" else lattice_matrix(np.concatenate([f, g]))[40:, :40]
    expected = k @ v / (k.sum(1, keepdims=True) + 1e-20)
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-6)
    assert (out[-1] == 0).all()
    one = pf.gaussian_filter(v[:, 0], f, at=g.reshape(7, 1, 3), filter=filter)
    np.testing.assert_allclose(one, expected[:, :1], rtol=1e-5, atol=1e-6)


def test_shapes_and_types() -> None:
    rng = np.random.default_rng(0)
    image = rng.random((6, 7, 3))
    place = np.stack(np.mgrid[:6, :7], axis=-1)  # whole numbers
    rows = pf.gaussian_filter(image.reshape(42, 3), place.reshape(42, 2), sigma=2.0)
    out = pf.gaussian_filter(image, place, sigma=2.0)
    assert out.shape == (6, 7, 3)
    np.testing.assert_array_equal(out.reshape(42, 3), rows)
    gray = pf.gaussian_filter(image[..., 0], place, sigma=2.0)
    np.testing.assert_allclose(gray, out[..., 0], rtol=1e-12)
    assert out.dtype == np.float64
    single = pf.gaussian_filter(image.astype(np.float32), place, sigma=2.0)
    assert single.dtype == np.float32
    np.testing.assert_allclose(single, out, rtol=1e-5)
    assert pf.gaussian_filter(image.astype(np.float16), place).dtype == np.float32
    assert pf.gaussian_filter(image > 0.5, place).dtype == np.float64
    assert pf.gaussian_filter(image, place, dtype="float32").dtype == np.float32
    assert pf.gaussian_filter(np.zeros((0, 3)), np.zeros((0, 2))).shape == (0, 3)
    assert pf.gaussian_filter(np.zeros(0), np.zeros((0, 2)), at=np.ones((4, 2))).tolist() == [0] * 4
    assert pf.gaussian_filter(np.zeros((4, 0)), np.zeros((4, 2))).shape == (4, 0)


def test_arguments_are_left_alone() -> None:
    f, v = points()
    before = f.copy(), v.copy()
    for kind in ("exact", "lattice"):
        pf.gaussian_filter(v, f, filter=kind, sigma=2.0)
        pf.gaussian_filter(v, f, filter=kind)
    assert (f == before[0]).all()
    assert (v == before[1]).all()


def test_auto_is_the_lattice_for_many_points() -> None:
    rng = np.random.default_rng(0)
    for n, kind in ((2000, "exact"), (2001, "lattice")):
        f, v = rng.normal(size=(n, 2)), rng.normal(size=n)
        assert (pf.gaussian_filter(v, f) == pf.gaussian_filter(v, f, filter=kind)).all()


def test_threads_do_not_matter() -> None:
    rng = np.random.default_rng(0)
    f, v = rng.normal(size=(30_000, 2)), rng.normal(size=(30_000, 8))
    one, two = (pf.gaussian_filter(v, f, sigma=0.1, threads=k) for k in (1, 2))
    assert (one == two).all()


@pytest.mark.parametrize(
    ("values", "features", "options", "what"),
    [
        (np.zeros(4), np.zeros((3, 2)), {}, r"\(4,\) for features of shape \(3, 2\), expected"),
        (np.zeros((3, 4, 5)), np.zeros((3, 2)), {}, "expected"),
        (np.zeros(3), np.zeros(3), {}, "needs an axis too"),
        (np.zeros(3), np.zeros((3, 0)), {}, "expected"),
        (np.zeros(3), np.zeros((3, 21)), {}, "21 features per point"),
        (np.zeros(3), np.full((3, 1), np.nan), {}, "NaN"),
        ([0.0, np.inf, 1.0], np.zeros((3, 1)), {}, "leave these points out"),
        (["a", "b", "c"], np.zeros((3, 1)), {}, "values must be real numbers"),
        (np.zeros(3), [["a"], ["b"], ["c"]], {}, "features must be real numbers"),
        (np.zeros(3), np.zeros((3, 1)), {"sigma": 0.0}, "above 0"),
        (np.zeros(3), np.zeros((3, 1)), {"sigma": [1.0, 2.0]}, "a number or 1"),
        (np.zeros(3), np.zeros((3, 1)), {"filter": "fast"}, "unknown filter"),
        (np.zeros(3), np.zeros((3, 1)), {"dtype": "int8"}, "float32"),
        (np.zeros(3), np.zeros((3, 1)), {"threads": 0}, "1 or more"),
        (np.zeros(3), np.zeros((3, 1)), {"at": np.zeros((2, 2))}, "as the features"),
        (np.zeros(3), [[0.0], [1.0], [2.0]], {"sigma": 1e-300}, "standard deviations|infinite"),
    ],
)
def test_messages(values: Any, features: Any, options: Any, what: str) -> None:
    with pytest.raises(pf.InputError, match=what) as caught:
        pf.gaussian_filter(values, features, **options)
    assert "\n" not in str(caught.value)


# ---- the bilateral filter ----


def test_bilateral_is_the_filter_of_places_and_colors() -> None:
    image = np.random.default_rng(0).random((9, 11, 3))
    place = np.stack(np.mgrid[:9, :11], axis=-1) / 2.0
    features = np.concatenate([place, image / 0.3], axis=-1)
    expected = pf.gaussian_filter(image, features)
    np.testing.assert_allclose(pf.bilateral_filter(image, 2.0, 0.3), expected, rtol=1e-12)
    first = pf.bilateral_filter(np.moveaxis(image, -1, 0), 2.0, 0.3)
    np.testing.assert_allclose(np.moveaxis(first, 0, -1), expected, rtol=1e-12)
    guided = pf.bilateral_filter(image[..., 0], 2.0, 0.3, guide=image)
    np.testing.assert_allclose(guided, expected[..., 0], rtol=1e-12)


def test_bilateral_of_gray_images_and_volumes() -> None:
    rng = np.random.default_rng(0)
    gray, volume = rng.random((9, 11)), rng.random((5, 6, 7))
    place = np.stack(np.mgrid[:9, :11], axis=-1) / [2.0, 1.0]
    features = np.concatenate([place, gray[..., None] / 0.3], axis=-1)
    out = pf.bilateral_filter(gray, (2.0, 1.0), 0.3)
    np.testing.assert_allclose(out, pf.gaussian_filter(gray, features), rtol=1e-12)
    assert pf.bilateral_filter(volume, 1.0, 0.3, channel_axis=None).shape == volume.shape


def test_bilateral_keeps_the_type() -> None:
    image = np.random.default_rng(0).integers(0, 256, (9, 11, 3)).astype(np.uint8)
    out = pf.bilateral_filter(image, 2.0, 30.0)
    assert out.dtype == np.uint8
    exact = pf.bilateral_filter(image.astype(np.float64), 2.0, 30.0)
    assert np.abs(out - exact).max() <= 0.5 + 1e-3
    white = np.full((4, 5), 65535, dtype=np.uint16)
    assert (pf.bilateral_filter(white, 1.0, 1.0) == 65535).all()
    assert pf.bilateral_filter(image.astype(np.float32), 2.0, 30.0).dtype == np.float32


@pytest.mark.parametrize(
    ("image", "options", "what"),
    [
        (np.zeros((5, 6, 7)), {}, "channel_axis"),
        (np.zeros((3, 6, 3)), {}, "channel_axis"),
        (np.zeros((5, 6)), {"guide": np.zeros((5, 7))}, "guide"),
        (np.zeros((5, 6, 3)), {"channel_axis": 5}, "channel_axis=5"),
        (np.zeros((0, 6)), {}, "at least one pixel"),
        (np.zeros((5, 6)), {"sigma_space": -1.0}, "sigma_space"),
        (np.zeros((5, 6)), {"sigma_color": (1.0, 2.0)}, "sigma_color"),
    ],
)
def test_bilateral_messages(image: Any, options: Any, what: str) -> None:
    with pytest.raises(pf.InputError, match=what):
        pf.bilateral_filter(image, **{"sigma_space": 1.0, "sigma_color": 1.0, **options})
