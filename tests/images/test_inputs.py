"""Inputs as people have them: logits, masks, smaller maps, batches, labels to ignore, scribbles."""

from __future__ import annotations

import itertools
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import ndimage

import proxfield as pf
from proxfield.images.axes import is_reduced, resize_linear
from proxfield.images.inputs import flags_of, runs_of

SIZE = (12, 18)
SOFT = {"spatial_weight": 0.5, "bilateral_weight": 0.9}
"""Weights that leave probabilities between 0 and 1, where differences show."""


def scene(seed: int = 0, size: tuple[int, ...] = SIZE, n_labels: int = 4) -> tuple[Any, Any]:
    """An 8-bit RGB image and logits.  # (*size, 3), (n_labels, *size)"""
    rng = np.random.default_rng(seed)
    truth = np.broadcast_to(np.arange(size[-1]) * n_labels // size[-1], size)
    colors = rng.integers(0, 255, size=(n_labels, 3))
    image = np.clip(colors[truth] + rng.normal(0, 8, size=(*size, 3)), 0, 255).astype(np.uint8)
    scores = 1.5 * np.eye(n_labels)[truth] + rng.normal(0, 1, size=(*size, n_labels))
    return image, np.moveaxis(scores, -1, 0).astype(np.float32)


def softmax(scores: Any) -> Any:
    p = np.exp(scores - scores.max(axis=0))
    return p / p.sum(axis=0)


def sigmoid(scores: Any) -> Any:
    return 1 / (1 + np.exp(-scores))


def refine(image: Any, probabilities: Any = None, **options: Any) -> Any:
    return pf.DenseCRF(image, probabilities, **{**SOFT, **options}).infer(max_iters=4)


def error(*args: Any, call: Any = pf.DenseCRF, **options: Any) -> str:
    """The message of a refusal: one line."""
    with pytest.raises(pf.InputError) as caught:
        call(*args, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# ---- logits ----


def test_logits_are_those_of_their_softmax() -> None:
    image, scores = scene()
    expected = refine(image, softmax(scores)).probabilities
    for given, axis in ((scores, 0), (scores + 500, 0), (np.moveaxis(scores, 0, -1), -1)):
        found = refine(image, logits=given).probabilities
        np.testing.assert_allclose(np.moveaxis(found, axis, 0), expected, atol=2e-5)
    kept = scores.copy()
    pf.DenseCRF(image, logits=scores)
    np.testing.assert_array_equal(scores, kept)


def test_logits_are_clipped_like_probabilities() -> None:
    image, scores = scene()
    scores[:, 0, 0] = (200, -200, -200, -200)
    energies = pf.DenseCRF(image, logits=scores).terms[0].energies
    np.testing.assert_allclose(energies[0], [0] + [-np.log(1e-5)] * 3, rtol=1e-6)
    energies = pf.DenseCRF(image, logits=scores, clip=0).terms[0].energies
    np.testing.assert_allclose(energies[0], [0, 400, 400, 400])


def test_bad_logits() -> None:
    image, scores = scene()
    scores[2, 3, 4] = np.nan
    assert "logits of pixel (3, 4) hold nan, expected finite" in error(image, logits=scores)
    assert "one of them" in error(image, softmax(scores), logits=scores)
    assert "pass logits= instead" in error(image, scene()[1], labels_axis=0)


# ---- masks ----


@pytest.mark.parametrize("shape", [SIZE, (1, *SIZE), (*SIZE, 1), (1, 1, *SIZE)])
def test_masks_are_probabilities_of_foreground(shape: tuple[int, ...]) -> None:
    image, scores = scene(n_labels=2)
    foreground = sigmoid(scores[1] - scores[0])
    expected = refine(image, np.stack([1 - foreground, foreground]))
    for given in ({"probabilities": foreground}, {"logits": scores[1] - scores[0]}):
        ((name, values),) = given.items()
        result = refine(image, **{name: values.reshape(shape)})
        assert result.field.n_labels == 2
        assert result.probabilities.shape == shape
        found = result.probabilities.reshape(SIZE)
        np.testing.assert_allclose(found, expected.probabilities[1], atol=2e-5)
        np.testing.assert_array_equal(result.labels, expected.labels)
    gray = refine(image[..., 0], foreground.reshape(shape))
    assert gray.labels.shape == SIZE


def test_masks_without_an_image_and_of_volumes() -> None:
    rng = np.random.default_rng(1)
    mask = rng.random((5, 6))
    crf = pf.DenseCRF(None, mask, labels_axis=None)
    assert (crf.pixels, crf.n_labels) == ((5, 6), 2)
    volume = rng.random((4, 5, 6))
    result = pf.DenseCRF(volume, volume).infer(max_iters=1)
    assert result.probabilities.shape == (4, 5, 6) == result.labels.shape
    assert pf.DenseCRF(None, rng.dirichlet([1, 1, 1], 7)).n_labels == 3  # points, not a mask


def test_continue_from_a_mask() -> None:
    image, scores = scene(n_labels=2)
    crf = pf.DenseCRF(image, sigmoid(scores[0]), **SOFT)
    first = crf.infer(max_iters=4)
    again = crf.infer(init=first.probabilities, max_iters=6)
    np.testing.assert_allclose(again.q, crf.infer(max_iters=10).q, atol=1e-5)


def test_bad_masks() -> None:
    image, scores = scene(n_labels=2)
    message = error(image, 9 * np.abs(scores[0]))
    assert "expected probabilities of foreground" in message and "pass logits=" in message
    assert "mask with one number per pixel" in error(image, np.ones((5, 3)), labels_axis=None)
    assert "labels_axis=None" in error(image, energies=scores[0], labels_axis=None)


# ---- smaller maps ----


@pytest.mark.parametrize("size", [(24, 36), (23, 35), (13, 40)])
def test_interpolation(size: tuple[int, int]) -> None:
    values = np.random.default_rng(0).normal(size=(3, *SIZE))
    found = resize_linear(values, size, (1, 2))
    zoom = (size[0] / SIZE[0], size[1] / SIZE[1])
    each = [ndimage.zoom(v, zoom, order=1, mode="nearest", grid_mode=True) for v in values]
    np.testing.assert_allclose(found, each, atol=1e-12)


def test_interpolation_is_that_of_torch() -> None:
    torch = pytest.importorskip("torch", reason="torch isn't installed")
    values = np.random.default_rng(0).normal(size=(1, 3, *SIZE)).astype(np.float32)
    there = torch.nn.functional.interpolate(
        torch.from_numpy(values), (50, 70), mode="bilinear", align_corners=False
    )
    np.testing.assert_allclose(resize_linear(values, (50, 70), (2, 3)), there.numpy(), atol=1e-5)


@pytest.mark.parametrize("axis", [0, -1])
def test_smaller_maps_are_enlarged(axis: int, caplog: pytest.LogCaptureFixture) -> None:
    image, _ = scene(size=(24, 36))
    _, small = scene(size=(6, 9), n_labels=5)
    assert "more than one way; pass labels_axis" in error(image, logits=small[:4])
    large = resize_linear(small, (24, 36), (1, 2))
    p = resize_linear(softmax(small), (24, 36), (1, 2))
    caplog.set_level(logging.INFO, logger="proxfield")
    for given, full in (
        ({"logits": small}, {"logits": large}),
        ({"probabilities": softmax(small)}, {"probabilities": p}),
    ):
        ((name, values),) = given.items()
        found = refine(image, **{name: np.moveaxis(values, 0, axis)})
        expected = refine(image, **full)
        np.testing.assert_allclose(
            np.moveaxis(found.probabilities, axis, 0), expected.probabilities, atol=1e-5
        )
        assert found.labels.shape == (24, 36)
    assert "logits of 6×9 pixels are enlarged to 24×36" in caplog.text
    assert caplog.text.count("enlarged") == 2
    mask = refine(image, softmax(small)[0])
    assert mask.probabilities.shape == (24, 36)
    one = refine(image, softmax(small)[None, :1])
    np.testing.assert_allclose(one.probabilities[0, 0], mask.probabilities)


def test_maps_of_other_proportions_are_refused() -> None:
    image, _ = scene(size=(24, 36))
    for size in ((9, 6), (12, 36), (24, 35), (48, 72)):
        assert "don't match" in error(image, softmax(scene(size=size)[1]))
    assert is_reduced((41, 41), (321, 321)) and is_reduced((47, 63), (375, 500))
    assert not is_reduced((47, 50), (375, 500))


# ---- batches ----


def test_a_batch_of_one() -> None:
    image, scores = scene()
    p = softmax(scores)
    expected = refine(image, p)
    planes = image.transpose(2, 0, 1)
    for picture in (image, planes, image[None], planes[None]):
        for batch in (None, True):
            found = refine(picture, p[None], batch=batch)
            assert found.probabilities.shape == (1, *p.shape)
            np.testing.assert_array_equal(found.probabilities[0], expected.probabilities)
            np.testing.assert_array_equal(found.labels, expected.labels)
    last = refine(image[None], np.moveaxis(p, 0, -1)[None])
    np.testing.assert_array_equal(np.moveaxis(last.probabilities[0], -1, 0), expected.probabilities)
    again = last.field.infer(init=last.probabilities, max_iters=1)
    assert again.probabilities.shape == (1, *SIZE, 4)
    first = refine(image[None], p[None], labels_axis=1, channel_axis=-1)
    np.testing.assert_array_equal(first.probabilities[0], expected.probabilities)
    gray = refine(image[None, ..., 0], p[None])
    np.testing.assert_array_equal(gray.probabilities[0], refine(image[..., 0], p).probabilities)


@pytest.mark.parametrize("color", [True, False])
@pytest.mark.parametrize("axis", [1, -1])
@pytest.mark.parametrize("what", ["probabilities", "logits"])
def test_batches_are_never_read_as_volumes(color: bool, axis: int, what: str) -> None:
    pairs = [scene(seed) for seed in range(3)]
    images = np.stack([image if color else image[..., 0] for image, _ in pairs])
    maps = np.stack([s if what == "logits" else softmax(s) for _, s in pairs])
    given = {what: np.moveaxis(maps, 1, axis)}
    message = error(images, **given)
    assert "may be a batch of 3 images or a volume; refine_batch(…)" in message
    assert "batch=False" in message
    assert "holds one image, not a batch of 3" in error(images, **given, batch=True)
    assert "may be a batch" in error(None, **given)
    if axis == -1:
        assert pf.DenseCRF(images, **given, batch=False).pixels == (3, *SIZE)
        assert pf.DenseCRF(images, **given, spacing=(2, 1, 1)).pixels == (3, *SIZE)
    else:
        assert "don't match" in error(images, **given, batch=False)
    refined = pf.refine_batch(images, **given, max_iters=2)
    assert refined.shape == given[what].shape


def test_volumes_with_labels_first_are_no_batches() -> None:
    image, scores = scene(size=(3, *SIZE))
    assert pf.DenseCRF(image, softmax(scores)).pixels == (3, *SIZE)
    assert pf.DenseCRF(image[..., 0], logits=scores).pixels == (3, *SIZE)
    assert pf.DenseCRF(None, softmax(scores)).pixels == (3, *SIZE)
    assert "batch='yes'" in error(image, softmax(scores), batch="yes")
    labels = scores.argmax(axis=0)
    make = pf.DenseCRF.from_labels
    assert "batch of 3" in error(image, labels, call=make)
    assert make(image, labels, batch=False).pixels == (3, *SIZE)


@pytest.mark.slow
def test_a_batch_of_logits_and_in_processes() -> None:
    pairs = [scene(seed) for seed in range(3)]
    images, scores = [image for image, _ in pairs], [s for _, s in pairs]
    one = pf.refine_batch(images, logits=scores, max_iters=3, **SOFT)
    assert one.shape == (3, 4, *SIZE)
    np.testing.assert_allclose(
        one[1], pf.refine_batch(images[1:], logits=scores[1:], max_iters=3, **SOFT)[0]
    )
    two = pf.refine_batch(images, logits=scores, max_iters=3, jobs=2, **SOFT)
    np.testing.assert_allclose(one, two, atol=1e-6)
    labels = pf.refine_batch(images, logits=scores, jobs=2, output="labels", threads=1)
    np.testing.assert_array_equal(labels, pf.refine_batch(images, logits=scores, output="labels"))
    call = pf.refine_batch
    scores[1][0, 0, 0] = np.inf
    message = error(images, logits=scores, jobs=2, call=call)
    assert message == (
        "image 1 of the batch: logits of pixel (0, 0) hold inf, expected finite numbers"
    )
    scores[1][0, 0, 0] = 0.0
    results = pf.refine_batch(images, logits=scores, max_iters=3, jobs=2, output="results", **SOFT)
    assert [r.iterations for r in results] == [3, 3, 3]
    np.testing.assert_allclose(results[2].probabilities, one[2], atol=1e-6)
    for bad in (0, True, "2"):
        assert "jobs=" in error(images, scores, jobs=bad, call=call)
    assert "one of them" in error(images, call=call)


# ---- labels to ignore ----


def test_255_is_ignored_and_carried_through(tmp_path: Path) -> None:
    image, scores = scene()
    labels = scores.argmax(axis=0).astype(np.uint8)
    void = np.zeros(SIZE, dtype=bool)
    void[:3, 4:9] = void[8, 8] = void[-1, -1] = True
    marked = np.where(void, 255, labels).astype(np.uint8)
    crf = pf.DenseCRF.from_labels(image, marked, preset="krahenbuehl")
    assert crf.n_labels == 4
    np.testing.assert_allclose(crf.terms[0].energies[void.ravel()], np.log(4), rtol=1e-6)
    result = crf.infer()
    np.testing.assert_array_equal(result.labels == 255, void)
    unsure = pf.DenseCRF.from_labels(image, marked, unsure=255, preset="krahenbuehl").infer()
    assert (unsure.labels < 4).all()
    np.testing.assert_array_equal(unsure.labels[~void], result.labels[~void])
    np.testing.assert_array_equal(unsure.q, result.q)
    assert result.map_labels.max() < 4
    result.save(tmp_path / "r.npz")
    again = pf.DenseResult.load(tmp_path / "r.npz") if hasattr(pf, "DenseResult") else None
    again = pf.Result.load(tmp_path / "r.npz") if again is None else again
    np.testing.assert_array_equal(again.labels, result.labels)
    assert again.field == crf


def test_other_values_to_ignore() -> None:
    image, scores = scene()
    labels = scores.argmax(axis=0)
    make = pf.DenseCRF.from_labels
    other = np.where(labels == 3, -1, labels)
    assert (make(image, other, ignore=-1).infer(max_iters=1).labels[labels == 3] == -1).all()
    assert make(image, np.where(labels == 3, 255, labels), ignore=None).n_labels == 256
    assert make(image, np.where(labels == 3, 255, labels), 300).n_labels == 300
    assert make(image, np.where(labels == 3, 300, labels)).n_labels == 301
    binary = np.where(labels > 1, 255, 0)
    message = error(image, binary, call=make)
    assert "only 0 and 255" in message and "pass labels // 255" in message
    foreground = make(image, binary // 255).infer().labels  # what it recommends works
    assert 0 < (foreground != (binary > 0)).sum() < binary.size / 2
    assert make(image, binary, 2).infer(max_iters=1).labels.max() == 255
    for bad in ("255", 2.5, True):
        assert "ignore=" in error(image, labels, ignore=bad, call=make)
    assert "expected different" in error(image, labels, ignore=0, unsure=0, call=make)


def test_runs() -> None:
    rng = np.random.default_rng(0)
    for flags in (rng.random(50) < 0.4, np.zeros(5, bool), np.ones(5, bool)):
        np.testing.assert_array_equal(flags_of(runs_of(flags), len(flags)), flags)


# ---- scribbles ----


def test_scribbles_are_hard_constraints() -> None:
    image, scores = scene()
    strokes = np.full(SIZE, 255, dtype=np.uint8)
    strokes[5, 2:15] = 3
    strokes[9, 1:4] = 0
    for batch in (softmax(scores), softmax(scores)[None]):
        result = refine(image, batch, scribbles=strokes)
        p = result.probabilities.reshape(4, *SIZE)
        assert (p[3, 5, 2:15] == 1).all() and (p[0, 9, 1:4] == 1).all()
    plain = refine(image, softmax(scores))
    assert (plain.labels[5, 2:15] != 3).any()
    assert p[3].mean() > plain.probabilities[3].mean()  # neighbors follow
    np.testing.assert_array_equal(
        refine(image, softmax(scores), scribbles=strokes.astype(int) - 256 * (strokes == 255)).q,
        result.q,
    )
    energies = -np.log(softmax(scores)).transpose(1, 2, 0).copy()
    kept = energies.copy()
    pf.DenseCRF(image, energies=energies, labels_axis=-1, scribbles=strokes)
    np.testing.assert_array_equal(energies, kept)


def test_scribbles_on_the_lattice_and_with_label_maps() -> None:
    image, scores = scene(size=(50, 60))
    strokes = np.full((50, 60), -1)
    strokes[20, 10:50] = 2
    options = {"scribbles": strokes, "preset": "krahenbuehl"}
    result = pf.DenseCRF.from_labels(image, scores.argmax(axis=0), **options).infer()
    assert [t.filter.name for t in result.field.terms[1:]] == ["lattice", "lattice"]
    assert (result.labels[20, 10:50] == 2).all()
    assert np.isfinite(result.free_energy)


def test_bad_scribbles() -> None:
    image, scores = scene()
    p = softmax(scores)
    assert "scribbles of shape (12, 17)" in error(image, p, scribbles=np.zeros((12, 17), int))
    assert "hold label 4, expected 0 to 3" in error(image, p, scribbles=np.full(SIZE, 4))
    assert "whole numbers" in error(image, p, scribbles=np.zeros(SIZE))


# ---- results in the form of what was given ----


def test_forms_there_and_back() -> None:
    image, scores = scene()
    p = softmax(scores)
    for given in (p, np.moveaxis(p, 0, -1), p[None], p[0], p[:1], p[None, :1]):
        crf = pf.DenseCRF(image, given)
        maps = np.random.default_rng(0).dirichlet(np.ones(crf.n_labels), SIZE).astype(np.float32)
        axis = crf.labels_axis
        there = maps[..., 1] if axis is None else np.moveaxis(maps, -1, axis)
        result = crf.infer(init=there.reshape(given.shape), max_iters=0)
        np.testing.assert_allclose(result.q.reshape(maps.shape), maps, atol=1e-6)
        assert result.probabilities.shape == given.shape
        np.testing.assert_allclose(result.probabilities, there.reshape(given.shape), atol=1e-6)


def test_combinations_of_layouts() -> None:
    """Channels and labels first or last, with and without a first axis."""
    image, scores = scene(size=(8, 9))
    expected = refine(image, logits=scores)
    for c, a, lead, picture_lead in itertools.product((0, -1), (0, -1), (0, 1), (0, 1)):
        if picture_lead and not lead:
            continue
        picture = np.moveaxis(image, -1, c)[(None,) * picture_lead]
        values = np.moveaxis(scores, 0, a)[(None,) * lead]
        found = refine(picture, logits=values)
        np.testing.assert_array_equal(found.q, expected.q)
        assert found.probabilities.shape == values.shape
