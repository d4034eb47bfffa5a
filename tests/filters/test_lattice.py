"""The lattice filter: against its plain reference and the exact filter, and at its edges."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from helpers import Array
from lattice_reference import (
    axis_blur,
    lattice_factors,
    lattice_matrix,
    simplices,
    suitable_blur,
)
from proxfield.core.compiled.jit import max_threads, thread_count
from proxfield.core.filters import FILTERS, choose, make_filter
from proxfield.core.filters.exact import ExactFilter
from proxfield.core.filters.geometry import COARSE, SEPARABLE, STAR, Blur
from proxfield.core.filters.lattice import CHANNELS, LatticeFilter, image_width
from proxfield.core.filters.numba.lattice import CHUNK, RUN, make_chunks
from proxfield.errors import InputError

BLUR = pytest.mark.parametrize("blur", [SEPARABLE, COARSE, STAR], ids=lambda blur: blur.name)
SIZES = pytest.mark.parametrize("d, n", [(d, n) for d in (1, 2, 3, 5, 8) for n in (1, 7, 300)])


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Nothing here is worth waking others for; tests of threads say so themselves."""
    with thread_count(1):
        yield


def cloud(n: int, d: int, spread: float = 1.5) -> Array:
    return spread * np.random.default_rng(1000 * d + n).normal(size=(n, d))


def matrix(features: Any, dtype: str = "float64", blur: Blur | None = None) -> Array:
    made = LatticeFilter(features, blur)
    return made.apply(np.eye(len(made.row), dtype=dtype))


# ---- the matrix ----


@SIZES
@BLUR
def test_kernels_multiply_with_the_reference_matrix(d: int, n: int, blur: Blur) -> None:
    features = cloud(n, d)
    expected = lattice_matrix(features, blur)
    np.testing.assert_allclose(
        matrix(features, blur=blur), expected, rtol=0, atol=1e-13 * expected.max()
    )


@SIZES
@BLUR
def test_symmetric_without_negative_entries_or_eigenvalues(d: int, n: int, blur: Blur) -> None:
    k = matrix(cloud(n, d), blur=blur)
    assert np.linalg.norm(k - k.T) < 1e-14 * np.linalg.norm(k)
    assert k.min() >= 0.0
    assert np.linalg.eigvalsh(k)[0] > -1e-12 * n * k.max()


@SIZES
@BLUR
def test_diagonal_is_that_of_the_matrix(d: int, n: int, blur: Blur) -> None:
    features = cloud(n, d)
    diagonal = LatticeFilter(features, blur).diagonal()
    np.testing.assert_allclose(diagonal, np.diag(matrix(features, blur=blur)), rtol=1e-12)
    assert (diagonal > 0).all()


@pytest.mark.parametrize("c", [1, 2, 7, 8, 9, CHANNELS, CHANNELS + 1])
@BLUR
def test_channels_do_not_mix(c: int, dtype: str, blur: Blur) -> None:
    """However many there are: one has kernels of its own, and so have groups of eight."""
    features = cloud(300, 3)
    values = np.random.default_rng(c).normal(size=(300, c)).astype(dtype)
    out = LatticeFilter(features, blur).apply(values)
    assert out.dtype == dtype
    assert out.shape == values.shape
    expected = lattice_matrix(features, blur) @ values.astype(np.float64)
    rounding = 1e-13 if dtype == "float64" else 1e-5
    np.testing.assert_allclose(out, expected, rtol=0, atol=rounding * abs(expected).max())


def test_values_may_be_views_and_stay_as_they_are() -> None:
    features = cloud(300, 3)
    values = np.random.default_rng(0).normal(size=(9, 600))
    view, before = values.T[::2], values.copy()
    made = LatticeFilter(features)
    np.testing.assert_array_equal(made.apply(view), made.apply(np.ascontiguousarray(view)))
    one = view[:, :1]
    np.testing.assert_array_equal(made.apply(one), made.apply(np.ascontiguousarray(one)))
    np.testing.assert_array_equal(values, before)


@BLUR
def test_symmetric_in_both_precisions_by_probes(dtype: str, blur: Blur) -> None:
    """⟨u, K v⟩ = ⟨v, K u⟩: to 10⁻⁶ even where each entry is only known to float32."""
    made = LatticeFilter(cloud(2000, 5), blur)
    u, v = np.random.default_rng(1).random(size=(2, 2000, 9)).astype(dtype)
    a = (u.astype(np.float64) * made.apply(v)).sum(axis=0)
    b = (v.astype(np.float64) * made.apply(u)).sum(axis=0)
    np.testing.assert_allclose(a, b, rtol=1e-12 if dtype == "float64" else 1e-6)


# ---- several chunks ----


@pytest.fixture(scope="module")
def large() -> Array:
    """Points of three chunks, in no order, so that chunks share vertices."""
    n = 2 * CHUNK + 1000
    return np.random.default_rng(2).random(size=(n, 2)) * 12


@BLUR
def test_several_chunks_are_one_matrix(large: Array, blur: Blur) -> None:
    made = LatticeFilter(large, blur)
    assert len(made.chunk) == 4
    assert made.n_rows > made.touched  # vertices that more than one chunk touches
    half, middle = lattice_factors(large, blur)
    v = np.random.default_rng(3).normal(size=(len(large), 3))
    expected = half @ (middle @ (half.T @ v))
    for columns in (slice(0, 1), slice(0, 3)):  # one channel, several
        out = made.apply(v[:, columns])
        np.testing.assert_allclose(
            out, expected[:, columns], rtol=0, atol=1e-12 * abs(expected).max()
        )
    own = np.asarray(half.multiply(half @ middle).sum(axis=1)).ravel()
    np.testing.assert_allclose(made.diagonal(), own, rtol=1e-12)


@BLUR
def test_several_chunks_are_symmetric_and_repeatable(large: Array, dtype: str, blur: Blur) -> None:
    u, v = np.random.default_rng(4).random(size=(2, len(large), 9)).astype(dtype)
    made, again = LatticeFilter(large, blur), LatticeFilter(large, blur)
    seen = made.apply(v)
    np.testing.assert_array_equal(seen, again.apply(v))
    np.testing.assert_array_equal(seen, made.apply(v))
    a = (u.astype(np.float64) * seen).sum(axis=0)
    b = (v.astype(np.float64) * made.apply(u)).sum(axis=0)
    np.testing.assert_allclose(a, b, rtol=1e-12 if dtype == "float64" else 1e-6)
    assert seen.min() >= 0


@pytest.mark.skipif(max_threads() < 2, reason="needs two threads")
@pytest.mark.parametrize("d", [2, 9])  # rows are of 16 bits, and of 32
@BLUR
def test_the_same_bits_on_any_number_of_threads(d: int, dtype: str, blur: Blur) -> None:
    rng = np.random.default_rng(5)
    features = rng.random(size=(2 * CHUNK + 1000, d)) * (3 if d < 5 else 0.4)
    values = rng.normal(size=(len(features), 11)).astype(dtype)
    seen = []
    for threads in (1, 2):
        with thread_count(threads):
            made = LatticeFilter(features, blur)
            parts = [made.row, made.weight, *made.own, made.chunk]
            neighbors = vars(made.blurring).values()
            parts += [part for part in neighbors if isinstance(part, np.ndarray)]
            parts += [made.diagonal()] if d < 5 else []  # takes long in many dimensions
            seen.append([*parts, made.apply(values), made.apply(values[:, :1])])
    for one, two in zip(*seen, strict=True):
        np.testing.assert_array_equal(one, two)


# ---- chunks that are blocks of an image ----


@pytest.mark.parametrize(
    "width, height",
    [(0, 1), (1, 20_000), (128, 200), (129, 200), (300, 100), (500, 375), (8000, 3), (300, 27)],
)
def test_every_point_is_in_one_chunk(width: int, height: int) -> None:
    n = width * height
    chunks = make_chunks(n, width)
    assert chunks.run[0] == 0 and chunks.run[-1] == len(chunks.begin) == len(chunks.end)
    runs = [np.arange(a, b) for a, b in zip(chunks.begin, chunks.end, strict=True)]
    assert all(0 < len(r) <= RUN for r in runs)
    np.testing.assert_array_equal(np.sort(np.concatenate([[], *runs])), np.arange(n))
    for a, b in pairwise(chunks.run):
        points = np.concatenate(runs[a:b])
        assert len(points) <= CHUNK
        if width > RUN and n > CHUNK:  # a rectangle
            assert len(np.unique(points // width)) * len(np.unique(points % width)) == len(points)


def pixels(height: int, width: int) -> Array:
    return np.stack(np.mgrid[:height, :width], axis=-1).reshape(-1, 2).astype(float)


@pytest.mark.parametrize("flip", [1, -1])
@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
def test_rows_of_an_image_are_recognized(order: list[int], flip: int) -> None:
    features = pixels(7, 11)[::flip, order] / 3
    assert image_width(features) == 11
    assert image_width(np.hstack([cloud(77, 2), features])) == 11
    assert image_width(np.vstack([features, features])) == 11  # two images
    stripes = np.tile([0.0, 1.0, 2.0, 3.0], 9)[:, None]  # start again before the row does
    assert image_width(np.hstack([stripes, pixels(3, 12)[::flip, order]])) == 12


@pytest.mark.parametrize(
    "features",
    [
        np.zeros((0, 2)),
        np.zeros((1, 2)),
        np.zeros((12, 2)),
        np.arange(12.0)[:, None],  # one row
        np.repeat(np.arange(4.0), 3)[:, None],  # the rows' numbers alone
        pixels(7, 11)[:-1],  # a pixel is missing
        cloud(12, 3),
    ],
)
def test_other_points_are_not_an_image(features: Array) -> None:
    assert image_width(features) == 0


@BLUR
def test_blocks_of_an_image_are_one_matrix(dtype: str, blur: Blur) -> None:
    """And touch fewer vertices than strips of it do."""
    height, width = 60, 320
    features = pixels(height, width) / 2
    made, strips = LatticeFilter(features, blur), LatticeFilter(features, blur).regrouped(0, CHUNK)
    assert (made.width, strips.width) == (width, 0)
    assert len(made.chunk) == len(strips.chunk) == 4
    assert made.n_rows < strips.n_rows
    v = np.random.default_rng(3).normal(size=(height * width, 3)).astype(dtype)
    half, middle = lattice_factors(features, blur)
    expected = half @ (middle @ (half.T @ v.astype(float)))
    tolerance = 1e-12 if dtype == "float64" else 1e-6
    for either in (made, strips):
        for columns in (slice(0, 1), slice(0, 3)):
            out = either.apply(v[:, columns])
            bound = tolerance * abs(expected).max()
            np.testing.assert_allclose(out, expected[:, columns], rtol=0, atol=bound)
    np.testing.assert_allclose(made.diagonal(), strips.diagonal(), rtol=1e-12)


@BLUR
def test_regrouping_there_and_back(blur: Blur) -> None:
    made = LatticeFilter(pixels(60, 320) / 2, blur)
    again = made.regrouped(0, CHUNK).regrouped(320, CHUNK)
    for name in ("row", "chunk"):
        np.testing.assert_array_equal(getattr(made, name), getattr(again, name))
    for one, two in zip(made.own, again.own, strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("d", [1, 7, 8, 15, 20])
def test_rows_of_a_chunk_are_numbered_by_sixteen_bits(d: int) -> None:
    """However many features there are, so that no kernel is compiled for another type."""
    rng = np.random.default_rng(d)
    made = LatticeFilter(rng.normal(size=(9000, d)) * 30, SEPARABLE if d < 8 else STAR)
    assert made.row.dtype == np.uint16
    assert np.diff(made.chunk).max() <= 2**16
    run, begin, end = made.chunks
    points = np.add.reduceat(end - begin, run[:-1])  # of each chunk; they are in order here
    corner = made.own.vertex[made.chunk[:-1].repeat(points)[:, None] + made.row]
    assert len(np.unique(corner[0])) == d + 1  # the corners of a simplex are d + 1 vertices
    assert made.touched == len(np.unique(corner))


# ---- where points lie ----


@pytest.mark.parametrize("at", [0.0, 3.3, -71.25])
@pytest.mark.parametrize("d", [1, 2, 5])
@BLUR
def test_points_in_one_place_see_each_other_alike(at: float, d: int, blur: Blur) -> None:
    k = matrix(np.full((40, d), at), blur=blur)
    assert k.min() > 0
    np.testing.assert_allclose(k, k[0, 0], rtol=1e-12)


@BLUR
def test_a_point_that_is_there_twice_counts_twice(blur: Blur) -> None:
    features = cloud(60, 3)
    values = np.random.default_rng(6).normal(size=(60, 2))
    twice = LatticeFilter(np.concatenate([features, features]), blur)
    out = twice.apply(np.concatenate([values, values]))
    expected = 2 * LatticeFilter(features, blur).apply(values)
    np.testing.assert_allclose(out, np.concatenate([expected, expected]), rtol=0, atol=1e-12)


@pytest.mark.parametrize("apart", [40.0, 1e4, 9e7])
@pytest.mark.parametrize("d", [1, 3, 6])
@BLUR
def test_far_points_do_not_see_each_other(apart: float, d: int, blur: Blur) -> None:
    """Each cloud is as if it were alone, wherever it lies."""
    near = cloud(30, d, 0.5)
    k = matrix(np.concatenate([near, near + apart / np.sqrt(d)]), blur=blur)
    assert (k[:30, 30:] == 0).all()
    assert (k[30:, :30] == 0).all()
    np.testing.assert_allclose(k[:30, :30], matrix(near, blur=blur), rtol=0, atol=1e-12)


@BLUR
def test_points_far_from_each_other_see_themselves_alone(blur: Blur) -> None:
    k = matrix(1000.0 * np.arange(50)[:, None] * np.ones(4), blur=blur)
    np.testing.assert_array_equal(k, np.diag(np.diag(k)))
    assert (np.diag(k) > 0.4).all()  # 1 for the Gaussian itself, less for one that is wider
    assert np.diag(k).mean() < 1
    assert (np.diag(k) < 1.4).all()  # most for a point at a vertex of the coarse lattice


def test_tiny_bandwidth_on_a_16_bit_image() -> None:
    """Coordinates far beyond 16 bits: every pixel is alone but for its equals."""
    rng = np.random.default_rng(7)
    colors = rng.integers(0, 65536, size=(4, 3))
    which = rng.integers(0, 4, size=(12, 10))
    yx = np.stack(np.mgrid[:12, :10], axis=-1)
    features = np.concatenate([yx / 30, colors[which] / 0.5], axis=-1).reshape(-1, 5)
    assert features.max() > 1e5
    k = matrix(features)
    same = which.ravel()[:, None] == which.ravel()
    assert (k[~same] == 0).all()
    assert (k[same] > 0).all()
    expected = lattice_matrix(features)
    np.testing.assert_allclose(k, expected, rtol=0, atol=1e-7 * expected.max())
    exact = ExactFilter(features).matrix()
    assert np.linalg.norm(normalized(k) - normalized(exact)) < 0.05 * np.linalg.norm(
        normalized(exact)
    )


@BLUR
def test_no_points(blur: Blur) -> None:
    made = LatticeFilter(np.zeros((0, 3)), blur)
    assert made.n_rows == made.n_vertices == 0
    for c in (0, 1, 5):
        assert made.apply(np.zeros((0, c))).shape == (0, c)
    assert made.diagonal().shape == (0,)


def test_no_channels() -> None:
    assert LatticeFilter(cloud(7, 2)).apply(np.zeros((7, 0))).shape == (7, 0)


# ---- what features may be ----


def test_float32_features_are_used_as_they_are() -> None:
    single = cloud(300, 5).astype(np.float32)
    np.testing.assert_array_equal(matrix(single), matrix(single.astype(np.float64)))


@pytest.mark.parametrize("kind", ["int64", "uint8", "bool", "float16", ">f8"])
def test_features_of_other_types_are_numbers(kind: str) -> None:
    features = np.random.default_rng(8).integers(0, 9, size=(50, 2)).astype(kind)
    np.testing.assert_array_equal(matrix(features), matrix(features.astype(np.float64)))


def test_features_may_be_lists_and_fortran_arrays() -> None:
    features = cloud(20, 3)
    expected = matrix(features)
    np.testing.assert_array_equal(matrix(features.tolist()), expected)
    np.testing.assert_array_equal(matrix(np.asfortranarray(features)), expected)


BAD: dict[str, tuple[Any, str]] = {
    "nan": ([[0.0, np.nan], [1.0, 2.0]], "NaN or infinite"),
    "inf": ([[0.0, np.inf], [1.0, 2.0]], "NaN or infinite"),
    "minus-inf": (np.array([[0.0], [-np.inf]], dtype=np.float32), "NaN or infinite"),
    "flat": (np.zeros(5), r"shape \(points, features\), not \(5,\)"),
    "scalar": (3.0, r"must have shape \(points, features\)"),
    "image": (np.zeros((4, 5, 3)), r"not \(4, 5, 3\)"),
    "21-columns": (np.zeros((2, 21)), "21 features per point, expected 1 to 20.*transpose"),
    "no-columns": (np.zeros((2, 0)), "0 features per point, expected 1 to 20"),
    "objects": (np.array([[None, 1]], dtype=object), "must be real numbers"),
    "text": ([["a", "b"]], "must be real numbers"),
    "complex": (np.zeros((2, 2), dtype=complex), "must be real numbers"),
    "ragged": ([[1.0], [1.0, 2.0]], "must be real numbers"),
    "span": ([[0.0], [1.1e8]], r"span 1.1e\+08 standard deviations.*bandwidth is too small"),
    "span-float32": (np.array([[-6e7], [6e7]], dtype=np.float32), "bandwidth is too small"),
    "absurd": ([[0.0], [1e300]], "bandwidth is too small"),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("name", FILTERS)
def test_features_that_make_no_sense(case: str, name: str) -> None:
    features, text = BAD[case]
    with pytest.raises(InputError, match=text):
        make_filter(name, features)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_span_beyond_all_numbers_is_an_error_not_a_warning(dtype: str) -> None:
    most = np.finfo(dtype).max
    with pytest.raises(InputError, match="bandwidth is too small"):
        LatticeFilter(np.array([[-most], [most]], dtype=dtype))


@BLUR
def test_twenty_features_are_not_too_many(blur: Blur) -> None:
    features = cloud(30, 20, 0.2)
    expected = lattice_matrix(features, blur)
    np.testing.assert_allclose(
        matrix(features, blur=blur), expected, rtol=0, atol=1e-12 * expected.max()
    )


def test_filters_by_name() -> None:
    assert (choose("auto", 2000), choose("auto", 2001)) == ("exact", "lattice")
    assert choose("lattice", 3) == "lattice"
    with pytest.raises(InputError, match="unknown filter 'grid', expected auto, exact, lattice"):
        choose("grid", 3)
    with pytest.raises(InputError, match="unknown filter 'auto', expected exact, lattice"):
        make_filter("auto", [[0.0]])


# ---- the Gaussian ----


def normalized(k: Array) -> Array:
    root = 1 / np.sqrt(k.sum(axis=1))
    return root[:, None] * k * root


@pytest.mark.parametrize(
    "d, side, within",
    [(1, 20, 0.002), (2, 8, 0.005), (3, 5, 0.015), (4, 4, 0.03), (5, 3, 0.06)],
)
def test_total_weight_is_that_of_the_gaussian(d: int, side: float, within: float) -> None:
    """Without any normalization. Mass is lost at missing vertices, more in more dimensions.

    Measured: 0.9998, 0.998, 0.994, 0.986, 0.963 of the exact sum.
    """
    features = np.random.default_rng(d).random(size=(2000, d)) * side
    total = LatticeFilter(features, SEPARABLE).apply(np.ones((2000, 1))).sum()
    assert total == pytest.approx(ExactFilter(features).matrix().sum(), rel=within)


def picture(height: int = 40, width: int = 60, noise: float = 6.0) -> tuple[Array, Array]:
    """Eight regions of one color each, with noise: places and colors of the pixels."""
    rng = np.random.default_rng(4)
    yx = np.stack(np.mgrid[:height, :width], axis=-1).reshape(-1, 2)
    centers = rng.random(size=(8, 2)) * [height, width]
    colors = rng.random(size=(8, 3)) * 255
    region = ((yx[:, None] - centers) ** 2).sum(axis=2).argmin(axis=1)
    seen = colors[region] + rng.normal(scale=noise, size=(len(yx), 3))
    return yx, np.clip(seen, 0, 255)


@pytest.mark.parametrize(
    "place, color, kind, within",
    [(3, None, SEPARABLE, 0.055), (80, 13, SEPARABLE, 0.07), (67, 3, SEPARABLE, 0.155)],
)
def test_close_to_the_exact_filter_on_a_picture(
    place: float, color: float | None, kind: Blur, within: float
) -> None:
    """After symmetric normalization. Measured: 0.045, 0.056, 0.143 in the Frobenius norm."""
    yx, seen = picture()
    features = yx / place if color is None else np.hstack([yx / place, seen / color])
    exact = normalized(ExactFilter(features).matrix())
    ours = normalized(matrix(features, "float32").astype(np.float64))
    assert LatticeFilter(features).kind is kind
    assert np.linalg.norm(ours - exact) < within * np.linalg.norm(exact)


@pytest.mark.parametrize("place, color", [(67, 3), (30, 3)])
def test_stars_are_closer_where_points_are_sparse(place: float, color: float) -> None:
    """Than one-way separable blurs on the usual lattice, which is what other programs have."""
    yx, seen = picture()
    features = np.hstack([yx / place, seen / color])
    exact = normalized(ExactFilter(features).matrix())
    star = normalized(lattice_matrix(features, STAR))
    usual = normalized(one_way_matrix(features))
    assert np.linalg.norm(star - exact) < 0.8 * np.linalg.norm(usual - exact)


@pytest.mark.parametrize("noise", [2.0, 20.0])
@pytest.mark.parametrize(
    "place, color", [(80, 13), (67, 3), (64, 5), (80, 5), (40, 5), (30, 3)], ids=str
)
def test_the_chosen_blur_is_closer_than_the_usual_lattice(
    place: float, color: float, noise: float
) -> None:
    """On smooth and on textured pictures, as filtered distributions show it too."""
    yx, seen = picture(30, 40, noise)
    features = np.hstack([yx / place, seen / color])
    exact = normalized(ExactFilter(features).matrix())
    ours = normalized(matrix(features).astype(np.float64))
    usual = normalized(one_way_matrix(features))
    q = np.random.default_rng(5).dirichlet(np.full(5, 0.2), size=len(features))
    assert np.linalg.norm(ours - exact) < np.linalg.norm(usual - exact)
    assert np.linalg.norm((ours - exact) @ q) < np.linalg.norm((usual - exact) @ q)


def one_way_matrix(features: Array) -> Array:
    """The lattice of Adams, Baek and Davis: blurred along all axes once, not symmetric."""
    usual = Usual("usual", along=None)
    d = features.shape[1]
    corners, weights = simplices(features, usual)
    keys, where = np.unique(corners.reshape(-1, d + 1), axis=0, return_inverse=True)
    number = {tuple(key): i for i, key in enumerate(keys.tolist())}
    splat = np.zeros((len(number), len(features)))
    np.add.at(splat, (where.ravel(), np.repeat(np.arange(len(features)), d + 1)), weights.ravel())
    blurred = splat
    for axis in range(d + 1):
        blurred = axis_blur(number, axis, 0.25) @ blurred
    return splat.T @ blurred


class Usual(Blur):
    """The spacing for a single blur with a quarter for each neighbor."""

    def variance(self, d: int) -> float:
        return 0.5 + 1 / 6


# ---- the choice of the blur ----


def test_the_blur_depends_on_how_sparse_points_are() -> None:
    """Many points among the same vertices are dense enough for separable blurs."""
    features = cloud(40_000, 5, spread=3.0)
    assert LatticeFilter(features).kind is STAR
    assert LatticeFilter(features / 2).kind is COARSE
    assert LatticeFilter(features / 4).kind is SEPARABLE
    assert LatticeFilter(np.repeat(features[:1000], 80, axis=0)).kind is SEPARABLE
    assert LatticeFilter(features[:4000]).kind is SEPARABLE  # so few that it takes little time
    assert LatticeFilter(pixels(60, 60) / 3).kind is SEPARABLE  # two features: never too many


@pytest.mark.parametrize("d, n, spread", [(3, 20_000, 2.0), (5, 20_000, 0.3), (5, 20_000, 1.0)])
def test_the_reference_chooses_the_same_blur(d: int, n: int, spread: float) -> None:
    features = cloud(n, d, spread)
    assert LatticeFilter(features).kind is suitable_blur(features)


# ---- the exact filter, by which all this is measured ----


@pytest.mark.parametrize("n", [0, 1, 7, 100])
def test_exact_filter_multiplies_with_its_matrix(n: int, dtype: str) -> None:
    features = cloud(n, 3)
    made = ExactFilter(features)
    k = np.array([[np.exp(-0.5 * ((a - b) ** 2).sum()) for b in features] for a in features])
    k = k.reshape(n, n)
    np.testing.assert_allclose(made.matrix(), k, rtol=1e-12)
    values = np.random.default_rng(9).normal(size=(n, 4)).astype(dtype)
    out = made.apply(values)
    assert out.dtype == dtype
    np.testing.assert_allclose(out, k @ values, atol=1e-12 if dtype == "float64" else 1e-5)
    np.testing.assert_array_equal(made.diagonal(), np.diag(k))
