"""Dense CRFs for images: axes, kinds of images, label maps, batches, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import proxfield as pf
from proxfield.errors import InputWarning
from proxfield.images.cooccurrence import CooccurrenceStatistics

SIZE = (21, 24)


def scene(size: tuple[int, ...] = SIZE, n_labels: int = 3, seed: int = 0) -> tuple[Any, Any]:
    """An image of stripes, 8-bit RGB, and noisy probabilities of its stripes.  # (*size, L)"""
    rng = np.random.default_rng(seed)
    truth = np.broadcast_to(np.arange(size[-1]) * n_labels // size[-1], size)
    colors = rng.integers(0, 255, size=(n_labels, 3))
    image = np.clip(colors[truth] + rng.normal(0, 8, size=(*size, 3)), 0, 255).astype(np.uint8)
    scores = 1.5 * np.eye(n_labels)[truth] + rng.normal(0, 1, size=(*size, n_labels))
    p = np.exp(scores)
    return image, p / p.sum(axis=-1, keepdims=True)


@pytest.fixture(scope="module")
def refined() -> Any:
    """The plain case: RGB, channels and labels last, published settings."""
    return pf.DenseCRF(*scene(), preset="krahenbuehl").infer()


SOFT: dict[str, Any] = {"preset": "krahenbuehl", "spatial_weight": 0.5, "bilateral_weight": 0.9}
"""Published bandwidths, and weights with probabilities between 0 and 1, where differences show."""


def soft(image: Any, p: Any = None, **options: Any) -> Any:
    """Inference with these weights."""
    return pf.DenseCRF(image, p, **{**SOFT, **options}).infer()


@pytest.fixture(scope="module")
def softly() -> Any:
    """The plain case with these weights."""
    result = soft(*scene())
    assert ((result.q > 0.1) & (result.q < 0.9)).mean() > 0.3
    return result


def error(*args: Any, call: Any = pf.DenseCRF, **options: Any) -> str:
    """The message of a refusal: one line."""
    with pytest.raises(pf.InputError) as caught:
        call(*args, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# ---- what it computes ----


def test_equals_a_field_built_by_hand(softly: Any) -> None:
    image, p = scene()
    places = np.stack(np.mgrid[: SIZE[0], : SIZE[1]], axis=-1).reshape(-1, 2)
    seen = np.concatenate([places / 80, image.reshape(-1, 3) / 13], axis=1)
    field = pf.Field(len(places), n_labels=3)
    field.add(pf.Unary(-np.log(p.reshape(-1, 3))))
    field.add(pf.Gaussian(places / 3, 0.5, self_message=True))
    field.add(pf.Gaussian(seen, 0.9, self_message=True))
    by_hand = pf.infer(field, "fixed", init="unary", max_iters=10)
    np.testing.assert_allclose(softly.q, by_hand.q, atol=2e-5)
    assert softly.free_energy == pytest.approx(by_hand.free_energy, rel=1e-6)
    assert np.array_equal(softly.labels, by_hand.labels.reshape(SIZE))


def test_the_defaults(refined: Any) -> None:
    spatial, bilateral = refined.field.terms[1:]
    assert (spatial.weight, bilateral.weight) == (3.0, 10.0)
    spatial, bilateral = pf.DenseCRF(*scene()).terms[1:]
    assert (spatial.weight, bilateral.weight) == (1.0, 1.0)
    assert spatial.self_message and spatial.normalization == "symmetric"


def test_the_labels_follow_the_image(refined: Any) -> None:
    truth = np.broadcast_to(np.arange(SIZE[1]) * 3 // SIZE[1], SIZE)
    before = (scene()[1].argmax(axis=-1) == truth).mean()
    assert before < 0.8
    assert (refined.labels == truth).mean() > 0.99


def test_larger_images_are_filtered_on_the_lattice() -> None:
    image, p = scene((46, 50))
    large, exact = soft(image, p), soft(image, p, filter="exact")
    assert [t.filter.name for t in large.field.terms[1:]] == ["lattice", "lattice"]
    assert (large.labels == exact.labels).mean() > 0.98
    np.testing.assert_allclose(large.probabilities, exact.probabilities, atol=0.1)


def test_everything_of_a_result(refined: Any) -> None:
    assert isinstance(refined, pf.Result)
    assert refined.probabilities.shape == (*SIZE, 3)
    assert refined.marginals.shape == (SIZE[0] * SIZE[1], 3)
    assert refined.labels.shape == refined.map_labels.shape == SIZE
    assert refined.sample(2).shape == (2, *SIZE)
    assert refined.map_energy == refined.field.energy(refined.map_labels.ravel())
    assert (np.diff(refined.trace.free_energy) <= 1e-3).all()
    assert refined.summary()["iterations"] == refined.iterations <= 10
    assert "max-iters" in repr(refined) or "converged" in repr(refined)
    assert repr(refined.field) == "DenseCRF(21×24 pixels, 3 labels, terms: unary, 2 gaussian)"


def test_the_engine_takes_it_as_any_field(refined: Any) -> None:
    crf = pf.DenseCRF(*scene(), preset="krahenbuehl")
    plain = pf.infer(crf, "fixed", init="unary", max_iters=10, dtype="float32")
    assert plain.labels.shape == (SIZE[0] * SIZE[1],)
    np.testing.assert_array_equal(plain.q, refined.q)
    assert crf.add(pf.Unary(np.zeros((504, 3)))) is crf


@pytest.mark.parametrize("rule", ["full-parallel", "adaptive", "adam", "adhoc"])
def test_other_rules(rule: str) -> None:
    result = pf.DenseCRF(*scene((8, 30))).infer(rule, max_iters=4)
    assert result.rule == rule
    assert result.labels.shape == (8, 30)


def test_continue_from_maps(softly: Any) -> None:
    crf = pf.DenseCRF(*scene(), **SOFT)
    first = crf.infer(max_iters=4)
    for start in (first, first.probabilities):
        again = crf.infer(init=start, max_iters=6)
        np.testing.assert_allclose(again.probabilities, softly.probabilities, atol=1e-5)
    image, p = scene()
    planes = pf.DenseCRF(image, p.transpose(2, 0, 1), **SOFT)
    again = planes.infer(init=planes.infer(max_iters=4).probabilities, max_iters=6)
    np.testing.assert_allclose(again.labels, softly.labels)
    np.testing.assert_allclose(again.q, softly.q, atol=1e-5)


def test_float64_and_repulsive_compatibilities() -> None:
    image, p = scene((6, 30))
    mu = np.ones((3, 3)) - np.eye(3)
    attract = pf.DenseCRF(image, p, compatibility=mu, **SOFT).infer(dtype="float64")
    potts = pf.DenseCRF(image, p, **SOFT).infer(dtype="float64")
    np.testing.assert_allclose(attract.probabilities, potts.probabilities, atol=1e-9)
    repel = pf.DenseCRF(image, p, compatibility=-mu).infer(max_iters=50)
    assert (np.diff(repel.trace.free_energy) <= 1e-3).all()


# ---- axes ----


def test_labels_and_channels_first_or_last(softly: Any) -> None:
    image, p = scene()
    planes = image.transpose(2, 0, 1)
    maps = p.transpose(2, 0, 1)
    for picture in (image, planes):
        last, first = soft(picture, p), soft(picture, maps)
        np.testing.assert_array_equal(last.probabilities, softly.probabilities)
        assert first.probabilities.shape == (3, *SIZE)
        np.testing.assert_array_equal(first.probabilities, softly.probabilities.transpose(2, 0, 1))


def test_gray_is_one_channel() -> None:
    image, p = scene()
    gray = image[..., 0]
    plain = soft(gray, p)
    for other in (gray[..., None], gray[None]):
        np.testing.assert_array_equal(soft(other, p).probabilities, plain.probabilities)


def test_shapes_that_leave_it_open() -> None:
    rng = np.random.default_rng(1)
    image = rng.integers(0, 255, size=(5, 5, 5), dtype=np.uint8)
    p = rng.dirichlet(np.ones(5), size=(5, 5))
    assert "pass channel_axis=0 or -1" in error(image, p)
    crf = pf.DenseCRF(image, p, channel_axis=0)
    assert (crf.pixels, crf.labels_axis) == ((5, 5), 2)  # where it sums to 1
    assert "pass labels_axis=0 or -1" in error(image, energies=p)
    uniform = np.full((5, 5, 5), 0.2)
    assert "pass labels_axis=0 or -1" in error(image, uniform)
    assert pf.DenseCRF(image, uniform, labels_axis=0, channel_axis=-1).labels_axis == 0


def test_many_channels_can_only_be_pixels() -> None:
    """An RGB image with three labels has two readings; one has too many channels."""
    image, p = scene()
    assert pf.DenseCRF(image, energies=-np.log(p)).pixels == SIZE


def test_labels_of_a_field_without_image_sum_to_one() -> None:
    _, p = scene(n_labels=4)
    assert pf.DenseCRF(None, p).labels_axis == 2
    crf = pf.DenseCRF(None, p.transpose(2, 0, 1))
    assert (crf.labels_axis, crf.pixels) == (0, SIZE)
    assert [t.name for t in crf.terms] == ["unary", "gaussian"]


def test_multispectral_and_axes_of_ones_own() -> None:
    image, p = scene()
    many = np.concatenate([image] * 6, axis=-1)
    assert pf.DenseCRF(many, p).terms[2].features.shape == (504, 20)
    odd = pf.DenseCRF(image.transpose(0, 2, 1), p.transpose(0, 2, 1), labels_axis=1, channel_axis=1)
    assert odd.infer(max_iters=2).probabilities.shape == (21, 3, 24)
    assert "23 features, expected at most 20" in error(
        np.concatenate([image] * 7, axis=-1), p, channel_axis=-1
    )


# ---- kinds of images ----


def test_volumes_and_signals() -> None:
    image, p = scene((4, 5, 18))
    result = pf.DenseCRF(image, p, batch=False).infer()
    assert result.labels.shape == (4, 5, 18)
    gray = pf.DenseCRF(image[..., 0], p.transpose(3, 0, 1, 2)).infer(max_iters=2)
    assert gray.probabilities.shape == (3, 4, 5, 18)
    signal, p = scene((40,))
    assert pf.DenseCRF(signal[:, 0], p).infer(max_iters=2).labels.shape == (40,)


def test_spacing_is_a_change_of_sigma() -> None:
    image, p = scene((4, 6, 12))
    flat = soft(image, p, spacing=(4, 1, 1))
    other = soft(image, p, spatial_sigma=(0.75, 3, 3), bilateral_sigma=(20, 80, 80))
    np.testing.assert_allclose(flat.probabilities, other.probabilities, atol=1e-6)
    cubes = soft(image, p, batch=False)
    assert np.abs(flat.probabilities - cubes.probabilities).max() > 1e-3


@pytest.mark.parametrize(
    ("scale", "dtype"), [(1 / 255, np.float32), (257, np.uint16), (1, np.float64), (100, np.int64)]
)
def test_colors_in_other_units(scale: float, dtype: Any, softly: Any) -> None:
    image, p = scene()
    other = soft((image * float(scale)).astype(dtype), p, bilateral_color=13 * scale)
    np.testing.assert_allclose(other.probabilities, softly.probabilities, atol=1e-5)
    wider = soft((image * float(scale)).astype(dtype), p, bilateral_color=30 * scale)
    assert np.abs(wider.probabilities - softly.probabilities).max() > 1e-3


def test_the_bandwidth_of_colors_if_none_is_given(softly: Any) -> None:
    image, p = scene()
    deep = image.astype(np.uint16) * 257
    for other in (image.astype(np.int32), image.astype(np.uint16), image / 255.0, deep):
        result = soft(other, p)
        np.testing.assert_allclose(result.probabilities, softly.probabilities, atol=1e-5)
    mask = image[..., 0] > 100
    np.testing.assert_array_equal(
        pf.DenseCRF(mask, p, **SOFT).terms[2].features[:, 2], mask.ravel() * 255 / 13
    )
    wide = image.astype(np.float32)
    assert "values from 0 to 2" in error(wide, p) and "(5 for colors up to 255)" in error(wide, p)
    for wild in (wide, image.astype(np.int32) * 257, image - 300.0):
        assert "pass bilateral_color" in error(wild, p)
        assert len(pf.DenseCRF(wild, p, bilateral_weight=0).terms) == 2
    per_channel = soft(image, p, bilateral_color=(13, 13, 13))
    np.testing.assert_array_equal(per_channel.probabilities, softly.probabilities)
    features = pf.DenseCRF(image, p, bilateral_color=(1, 2, 5)).terms[2].features
    np.testing.assert_allclose(features[:, 2:] * (1, 2, 5), image.reshape(-1, 3))


def test_weights_of_zero_leave_terms_out() -> None:
    image, p = scene((5, 30))
    crf = pf.DenseCRF(image, p, spatial_weight=0, bilateral_weight=0)
    assert [t.name for t in crf.terms] == ["unary"]
    np.testing.assert_allclose(crf.infer().probabilities, p, atol=1e-6)


# ---- unaries ----


def test_inputs_are_left_alone_and_may_have_any_floats(softly: Any) -> None:
    image, p = scene()
    for dtype, atol in ((np.float16, 3e-3), (np.float32, 1e-5), (np.float64, 1e-9)):
        given = p.astype(dtype)
        kept = given.copy()
        result = soft(image, given)
        np.testing.assert_array_equal(given, kept)
        np.testing.assert_allclose(result.probabilities, softly.probabilities, atol=atol)


def test_energies_clip_and_normalize() -> None:
    image, p = scene((5, 30))
    by_p = soft(image, p)
    by_energy = soft(image, energies=-np.log(p), labels_axis=-1)
    np.testing.assert_allclose(by_p.probabilities, by_energy.probabilities, atol=1e-5)
    scaled = soft(image, 7 * p, normalize=True, labels_axis=-1)
    np.testing.assert_allclose(by_p.probabilities, scaled.probabilities, atol=1e-5)
    assert scaled.free_energy == pytest.approx(by_p.free_energy, rel=1e-5)
    p[0, 0] = 1.0, 0.0, 0.0
    energies = pf.DenseCRF(image, p).terms[0].energies
    assert energies[0, 1] == pytest.approx(-np.log(1e-5))
    assert pf.DenseCRF(image, p, clip=0.01).terms[0].energies[0, 1] == pytest.approx(-np.log(0.01))
    hard = pf.DenseCRF(image, p, clip=0.0).infer(max_iters=3)
    assert hard.probabilities[0, 0].tolist() == [1.0, 0.0, 0.0]
    one_hot = np.eye(3, dtype=np.uint8)[np.zeros((5, 30), dtype=int)]
    assert (pf.DenseCRF(image, one_hot).infer(max_iters=1).labels == 0).all()


def test_from_labels() -> None:
    image, p = scene()
    labels = p.argmax(axis=-1)
    maps = np.where(np.eye(3, dtype=bool)[labels], 0.8, 0.1)
    with pytest.warns(InputWarning, match="no pixel changed: 3 labels of confidence 0.8"):
        by_labels = pf.DenseCRF.from_labels(image, labels, 3, confidence=0.8, **SOFT).infer()
    by_maps = soft(image, maps)
    np.testing.assert_allclose(by_labels.probabilities, by_maps.probabilities, atol=1e-5)
    unsure = labels.copy()
    unsure[:5] = 255
    crf = pf.DenseCRF.from_labels(image.transpose(2, 0, 1), unsure, confidence=0.8, unsure=255)
    assert crf.n_labels == 3
    np.testing.assert_allclose(crf.terms[0].energies[:120], np.log(3), rtol=1e-6)
    np.testing.assert_allclose(crf.terms[0].energies[120:], -np.log(maps.reshape(-1, 3)[120:]))
    sure = pf.DenseCRF.from_labels(None, [[0, 1]], 2, confidence=1.0)
    np.testing.assert_allclose(sure.terms[0].energies, [[0, -np.log(1e-5)], [-np.log(1e-5), 0]])
    assert pf.DenseCRF.from_labels(None, [[0, 0]]).n_labels == 1


def test_points() -> None:
    rng = np.random.default_rng(3)
    points = rng.normal(size=(50, 3))
    normals = rng.normal(size=(50, 3))
    p = rng.dirichlet(np.ones(4), size=50)
    crf = pf.DenseCRF.from_features(
        [points / 0.5, np.hstack([points, normals])], p, weights=[0.5, 0.8]
    )
    field = pf.Field(50, n_labels=4).add(pf.Unary(-np.log(p)))
    field.add(pf.Gaussian(points / 0.5, 0.5, self_message=True))
    field.add(pf.Gaussian(np.hstack([points, normals]), 0.8, self_message=True))
    by_hand = pf.infer(field, "fixed", init="unary", max_iters=10)
    np.testing.assert_allclose(crf.infer().probabilities, by_hand.marginals, atol=1e-5)
    single = pf.DenseCRF.from_features(points.tolist(), energies=-np.log(p))
    assert len(single.terms) == 2 and single.pixels == (50,)
    make = pf.DenseCRF.from_features
    assert "49 rows of features for 50 points" in error(points[1:], p, call=make)
    assert "weights" in error([points, normals], p, weights=[1, 2, 3], call=make)
    assert "expected 1 to 20" in error(np.zeros((50, 21)), p, call=make)


def test_cooccurrence(tmp_path: Path) -> None:
    image, p = scene()
    seen = CooccurrenceStatistics(9, [9, 5, 4], [[9, 5, 4], [5, 5, 0], [4, 0, 4]])
    seen.save(tmp_path / "seen.json")
    crf = pf.DenseCRF(image, p, cooccurrence=seen)
    assert [t.name for t in crf.terms][-1] == "cooccurrence"
    by_name = pf.DenseCRF(image, p, cooccurrence=tmp_path / "seen.json")
    first, second = crf.infer(), by_name.infer()
    np.testing.assert_array_equal(first.probabilities, second.probabilities)
    assert (np.diff(first.trace.free_energy) <= 1e-3).all()
    assert "4, but the statistics count 3" in error(*scene(n_labels=4), cooccurrence=seen)
    assert "missing.json" in error(image, p, cooccurrence="missing.json")


# ---- batches ----


def test_a_batch_is_one_by_one() -> None:
    scenes = [scene((9, 12), seed=k) for k in range(3)]
    images, maps = (np.stack(x) for x in zip(*scenes, strict=True))
    one_by_one = [pf.DenseCRF(*pair, **SOFT).infer(max_iters=3) for pair in scenes]
    q = pf.refine_batch(images, maps, max_iters=3, **SOFT)
    assert q.shape == (3, 9, 12, 3)
    np.testing.assert_array_equal(q, [r.probabilities for r in one_by_one])
    labels = pf.refine_batch(images, maps, output="labels", max_iters=3, rule="fixed", **SOFT)
    np.testing.assert_array_equal(labels, [r.labels for r in one_by_one])
    planes, tables = images.transpose(0, 3, 1, 2), maps.transpose(0, 3, 1, 2)
    first = pf.refine_batch(planes, tables, max_iters=3, **SOFT)
    np.testing.assert_array_equal(first, q.transpose(0, 3, 1, 2))
    results = pf.refine_batch(images, maps, output="results", spatial_weight=0.0, max_iters=1)
    assert isinstance(results, list)
    assert [len(r.field.terms) for r in results] == [2, 2, 2]
    assert pf.refine_batch(None, maps, max_iters=1, output="labels").shape == (3, 9, 12)


def test_a_batch_of_different_sizes() -> None:
    pairs = [scene((9, 12)), scene((7, 30))]
    images, maps = ([pair[k] for pair in pairs] for k in range(2))
    found = pf.refine_batch(images, maps, max_iters=1, output="labels")
    assert [x.shape for x in found] == [(9, 12), (7, 30)]
    assert pf.refine_batch([], []) == []


def test_bad_batches() -> None:
    image, p = scene((9, 12))
    assert "2 images, but probabilities for 1" in error([image, image], [p], call=pf.refine_batch)
    assert "output='maps'" in error([image], [p], output="maps", call=pf.refine_batch)
    message = error([image, image], [p, 2 * p], call=pf.refine_batch, labels_axis=-1)
    assert message.startswith("image 1 of the batch: probabilities of pixel (0, 0) sum to 2")
    assert "gamma" in error([image], [p], gamma=3, call=pf.refine_batch)


# ---- what is refused ----


def spoil(p: Any, at: tuple[int, ...], value: float) -> Any:
    """Probabilities with one other value."""
    out = p.copy()
    out[at] = value
    return out


def test_wrong_shapes() -> None:
    image, p = scene()
    message = error(image[:-1], p)
    assert "(20, 24, 3)" in message and "(21, 24, 3)" in message
    assert "(20, 24)" in error(image, p[1:, :, 0]) and "don't match" in error(image, p[1:, :, 0])
    assert "axis of labels" in error(image, p[0, 0])
    assert "don't match" in error(np.zeros((2, 21, 24, 3)), p)
    assert "don't match" in error(image, p, channel_axis=None)
    assert "don't match" in error(image[..., 0], p.transpose(2, 0, 1), labels_axis=-1)
    assert "labels_axis=5" in error(image, p, labels_axis=5)
    assert "labels_axis='end'" in error(image, p, labels_axis="end")
    assert "channel_axis=-4" in error(image, p, channel_axis=-4)


@pytest.mark.parametrize("shape", [(0, 24), (21, 0)])
def test_images_without_pixels(shape: tuple[int, int]) -> None:
    assert "expected at least one pixel" in error(np.zeros((*shape, 3)), np.zeros((*shape, 3)))
    assert "expected at least one pixel" in error(None, np.zeros((*shape, 3)))
    make = pf.DenseCRF.from_labels
    assert "expected at least one pixel" in error(None, np.zeros(shape, dtype=int), call=make)


def test_probabilities_that_are_none() -> None:
    image, p = scene()
    message = error(image, spoil(p, (3, 7), 0.9), labels_axis=-1)
    assert "pixel (3, 7) sum to 2.7, expected 1" in message and "normalize=True" in message
    assert pf.DenseCRF(image, spoil(p, (3, 7), 0.9), labels_axis=-1, normalize=True).n_labels == 3
    small = spoil(p, (3, 7, 0), p[3, 7, 0] + 5e-4)
    assert pf.DenseCRF(image, small).n_labels == 3  # within the tolerance
    for value in (np.nan, np.inf, -0.1, -np.inf, 1e300):
        message = error(image, spoil(p, (3, 7, 1), value), labels_axis=-1)
        assert "pixel (3, 7) hold" in message, value
    assert "pixel (3, 7) are all 0" in error(
        image, spoil(p, (3, 7), 0.0), labels_axis=-1, normalize=True
    )
    maps = spoil(p, (3, 7), 0.9).transpose(2, 0, 1)
    assert "pixel (3, 7) sum to 2.7" in error(image, maps, labels_axis=0)
    assert "one of them" in error(image)
    assert "one of them" in error(image, p, energies=p)
    assert "NaN" in error(image, energies=spoil(p, (3, 7, 1), np.nan))
    assert "clip=1.5" in error(image, p, clip=1.5)
    assert "real numbers" in error(image, p + 0j)
    assert "rectangular" in error(image, [[1.0], [1.0, 2.0]])


def test_images_that_are_none() -> None:
    image, p = scene()
    broken = image.astype(float)
    broken[4, 5, 1] = np.nan
    assert "NaN or infinite values, at pixel (4, 5)" in error(broken, p)
    assert "real numbers, not <U" in error(image.astype(str), p)


@pytest.mark.parametrize(
    "options",
    [
        {"spatial_sigma": 0},
        {"spatial_sigma": (1, 2, 3)},
        {"bilateral_sigma": -1},
        {"bilateral_color": 0},
        {"bilateral_color": (1, 2)},
        {"spacing": np.nan},
        {"spacing": "wide"},
        {"spatial_weight": np.nan},
        {"bilateral_weight": np.inf},
        {"normalization": "half"},
        {"filter": "slow"},
        {"compatibility": np.ones((2, 2))},
    ],
)
def test_parameters_that_make_no_sense(options: dict[str, Any]) -> None:
    (name,) = options
    assert name.split("_")[-1] in error(*scene(), **options)


def test_labels_out_of_range() -> None:
    image, p = scene()
    labels = p.argmax(axis=-1)
    make = pf.DenseCRF.from_labels
    message = error(image, spoil(labels, (2, 3), 7), 3, call=make)
    assert message.startswith("pixel (2, 3) has label 7, expected 0 to 2; unsure=")
    assert "label -1" in error(image, spoil(labels, (2, 3), -1), call=make)
    assert "not float64" in error(image, labels * 1.0, call=make)
    assert "confidence=0" in error(image, labels, confidence=0, call=make)
    assert "n_labels=0" in error(image, labels, 0, call=make)
    assert "(20, 24, 3)" in error(image[:-1], labels, call=make)


def test_weight_0_omits_terms_everywhere() -> None:
    image, p = scene()
    without = pf.DenseCRF(None, p, spatial_weight=0).infer()
    for crf in (
        pf.DenseCRF(image, p, spatial_weight=0, bilateral_weight=0),
        pf.DenseCRF.from_features(np.zeros((p[..., 0].size, 2)), p, weights=0.0),
        pf.DenseCRF.from_features([np.zeros((p[..., 0].size, 2))] * 2, p, weights=[0, 0]),
    ):
        assert list(crf.kinds) == ["unary"]
        np.testing.assert_array_equal(crf.infer().q, without.q)


def test_potts_has_a_name() -> None:
    image, p = scene()
    assert pf.DenseCRF(image, p, compatibility="potts") == pf.DenseCRF(image, p)
    assert pf.DenseCRF(image, p, compatibility=None) == pf.DenseCRF(image, p)
    assert "expected potts" in error(image, p, compatibility="ising")
