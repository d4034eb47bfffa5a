"""Probabilities that are labels: masks and one-hot maps don't come back as they were, unsaid."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import proxfield as pf
from proxfield.errors import InputWarning
from proxfield.images.inputs import CONFIDENCE, NEGLIGIBLE, are_labels

SIZE = (40, 60)


def scene(n_labels: int = 2) -> tuple[Any, Any, Any]:
    """An image of vertical stripes, the true labels, and a label map with mistakes."""
    rng = np.random.default_rng(0)
    truth = np.broadcast_to(np.arange(SIZE[1]) * n_labels // SIZE[1], SIZE)
    colors = np.array([[40, 80, 160], [220, 90, 60], [90, 200, 70], [250, 250, 90]])
    image = colors[truth] + rng.normal(scale=3, size=(*SIZE, 3))
    mistakes = rng.random(SIZE) < 0.05
    labels = np.where(mistakes, (truth + 1) % n_labels, truth)
    return image.clip(0, 255).astype(np.uint8), truth, labels


def one_hot(labels: Any, n_labels: int = 2) -> Any:
    return np.eye(n_labels, dtype=np.float32)[labels]


IMAGE, TRUTH, MASK = scene()
FORMS: dict[str, Any] = {
    "whole numbers": MASK,
    "bool": MASK.astype(bool),
    "uint8": MASK.astype(np.uint8),
    "float16": MASK.astype(np.float16),
    "float64": MASK.astype(np.float64),
    "labels last": one_hot(MASK),
    "labels first": np.moveaxis(one_hot(MASK), -1, 0),
    "uint8, labels last": one_hot(MASK).astype(np.uint8),
    "a batch of one": np.moveaxis(one_hot(MASK), -1, 0)[None],
    "an axis of length 1": MASK[..., None],
    "nearly 0 and 1": 1e-8 + (1 - 2e-8) * one_hot(MASK).astype(np.float64),
    "a mask, nearly 0 and 1": 1e-8 + (1 - 2e-8) * MASK,
}


@pytest.mark.parametrize("form", FORMS)
def test_hard_probabilities_are_labels_with_a_stated_confidence(form: str) -> None:
    with pytest.warns(InputWarning, match=r"right with probability 0\.7; confidence= sets it"):
        crf = pf.DenseCRF(IMAGE, FORMS[form])
    assert crf.confidence == CONFIDENCE
    result = crf.infer()
    expected = pf.DenseCRF.from_labels(IMAGE, MASK, 2)
    np.testing.assert_allclose(crf.terms[0].energies, expected.terms[0].energies, rtol=1e-6)
    np.testing.assert_array_equal(result.labels, expected.infer().labels)
    assert result.changed.sum() > 50
    assert (result.labels == TRUTH).mean() > (MASK == TRUTH).mean() + 0.03
    assert result.probabilities.shape == FORMS[form].shape


@pytest.mark.parametrize("axis", [None, 0, -1])
def test_hard_logits_are_labels_too(axis: int | None) -> None:
    logits = 40.0 * (2 * MASK - 1) if axis is None else 80 * np.moveaxis(one_hot(MASK), -1, axis)
    with pytest.warns(InputWarning, match="logits leave no label in doubt"):
        crf = pf.DenseCRF(IMAGE, logits=logits)
    expected = pf.DenseCRF.from_labels(IMAGE, MASK, 2).terms[0].energies
    np.testing.assert_allclose(crf.terms[0].energies, expected, rtol=1e-5)


def test_smaller_hard_maps_are_labels_before_they_are_enlarged() -> None:
    for given in (MASK[::2, ::2], one_hot(MASK[::2, ::2])):
        with pytest.warns(InputWarning, match="are all 0 or 1"):
            crf = pf.DenseCRF(IMAGE, given)
        assert crf.terms[0].energies.max() == pytest.approx(-np.log(0.3), rel=1e-5)
        assert crf.infer().changed.sum() > 50


def test_hard_shares_of_255_are_labels_once_normalized() -> None:
    shares = 255 * one_hot(MASK).astype(np.uint8)
    with pytest.warns(InputWarning, match="are all 0 or 1"):
        assert pf.DenseCRF(IMAGE, shares, normalize=True).infer().changed.sum() > 50


def test_hard_volumes_and_points() -> None:
    volume, mask = np.stack([IMAGE] * 3), np.stack([MASK] * 3)
    with pytest.warns(InputWarning, match="are all 0 or 1"):
        assert pf.DenseCRF(volume, mask, batch=False).infer().changed.sum() > 150
    features = IMAGE.reshape(-1, 3) / 40.0
    with pytest.warns(InputWarning, match="are all 0 or 1"):
        crf = pf.DenseCRF.from_features(features, one_hot(MASK).reshape(-1, 2), weights=3.0)
    assert crf.infer().changed.sum() > 50


def test_a_given_confidence_is_used_without_a_word() -> None:
    crf = pf.DenseCRF(IMAGE, MASK, confidence=0.9)
    expected = pf.DenseCRF.from_labels(IMAGE, MASK, confidence=0.9)
    np.testing.assert_allclose(crf.terms[0].energies, expected.terms[0].energies, rtol=1e-6)
    certain = pf.DenseCRF(IMAGE, MASK, confidence=1)
    assert certain.confidence is None and not certain.infer().changed.any()
    with pytest.raises(pf.InputError, match="confidence=0, expected above 0 and at most 1"):
        pf.DenseCRF(IMAGE, MASK, confidence=0)


def test_probabilities_of_some_certain_pixels_stay_what_they_are() -> None:
    """A network's softmax: 0 counts as ``clip``, so that no label is ruled out."""
    p = one_hot(MASK)
    p[:, 20:40] = 0.3 * p[:, 20:40] + 0.35  # in doubt
    crf = pf.DenseCRF(IMAGE, p)
    assert crf.confidence is None
    assert crf.terms[0].energies.max() == pytest.approx(-np.log(1e-5), rel=1e-6)
    gentle, strong = crf.infer(), pf.DenseCRF(IMAGE, p, preset="krahenbuehl").infer()
    assert gentle.changed[:, 20:40].sum() > 10
    assert not gentle.changed[:, :20].any()
    assert strong.changed[:, :20].any()  # nothing is ruled out


def test_maps_of_one_label_have_nothing_to_say() -> None:
    for p in (np.zeros(SIZE), np.ones(SIZE), one_hot(np.zeros(SIZE, dtype=int))):
        assert pf.DenseCRF(IMAGE, p).confidence is None


def test_one_pixel_in_doubt_is_enough() -> None:
    for values in (MASK.astype(float), one_hot(MASK).astype(float)):
        axis = None if values.ndim == 2 else -1
        assert are_labels([values], axis, "probabilities")
        values[-1, -1] = 0.5
        assert not are_labels([values], axis, "probabilities")
    values = one_hot(MASK).astype(float)
    values[-1, -1] = 1 - 3 * NEGLIGIBLE, 3 * NEGLIGIBLE
    assert not are_labels([values], -1, "probabilities")


def test_logits_that_are_not_finite_are_still_refused() -> None:
    with np.errstate(divide="ignore"), pytest.raises(pf.InputError, match="hold -inf"):
        pf.DenseCRF(IMAGE, logits=np.log(one_hot(MASK)))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (255 * MASK, "pass mask / 255"),
        (255 * MASK.astype(np.uint8), "pass mask / 255"),
        (65535 * MASK, "pass mask / 65535"),
        (3 * MASK, r"a map of labels goes to DenseCRF.from_labels\(image, labels\)"),
        (2.5 * MASK - 1, "pass logits="),
    ],
)
def test_the_remedy_for_a_mask_works(given: Any, words: str) -> None:
    with pytest.raises(pf.InputError, match=words):
        pf.DenseCRF(IMAGE, given)
    if "mask /" in words:
        with pytest.warns(InputWarning, match="are all 0 or 1"):
            assert pf.DenseCRF(IMAGE, given / given.max()).infer().changed.sum() > 50
    elif "from_labels" in words:
        result = pf.DenseCRF.from_labels(IMAGE, given, preset="krahenbuehl").infer()
        assert result.changed.sum() > 50


def test_labels_that_no_term_can_outweigh_are_said() -> None:
    image, _, labels = scene(n_labels=4)
    match = "no pixel changed: 4 labels of confidence 0.7 outweigh the terms"
    with pytest.warns(InputWarning, match=match):
        pf.DenseCRF.from_labels(image, labels).infer()
    with pytest.warns(InputWarning, match=match):
        pf.DenseCRF(image, one_hot(labels, 4), confidence=0.7).infer()
    strong = pf.DenseCRF.from_labels(image, labels, preset="krahenbuehl")  # what it recommends
    assert strong.infer().changed.sum() > 50


def test_nothing_is_claimed_of_labels_and_other_terms_than_potts() -> None:
    image, _, labels = scene(n_labels=4)
    far = np.abs(np.subtract.outer(np.arange(4.0), np.arange(4.0)))
    crf = pf.DenseCRF.from_labels(image, labels, compatibility=0.1 * far)
    assert not crf.infer().changed.any()  # without a warning


@pytest.mark.parametrize("form", ["mask", "one-hot"])
def test_a_pixel_in_doubt_among_certain_ones_is_said(form: str) -> None:
    p = MASK.astype(float) if form == "mask" else one_hot(MASK)
    p[0, 0] = 0.5
    crf = pf.DenseCRF(IMAGE, p, confidence=0.7)  # of no use: these are probabilities
    with pytest.warns(InputWarning, match=r"no pixel changed: 0\.9996 of the pixels are certain"):
        assert not crf.infer().changed.any()
    p[:, :1] = 0.5  # more than a percent
    pf.DenseCRF(IMAGE, p).infer()


def test_maps_of_one_label_are_not_said_to_be_unchanged() -> None:
    p = np.zeros(SIZE)
    p[0, 0] = 0.3
    assert not pf.DenseCRF(IMAGE, p).infer().changed.any()


@pytest.mark.parametrize(
    ("confidence", "words"),
    [
        (0.25, r"=0\.25, expected above 1/4 \(4 labels.* and at most 1"),
        (0.1, r"=0\.1, expected above 1/4"),
        ("0.7", "='0.7', expected above 0 and at most 1"),
        (True, "=True, expected above 0 and at most 1"),
        (float("nan"), "=nan, expected above 0"),
    ],
)
def test_a_confidence_that_makes_other_labels_more_probable_is_refused(
    confidence: Any, words: str
) -> None:
    image, _, labels = scene(n_labels=4)
    with pytest.raises(pf.InputError, match=f"^confidence{words}"):
        pf.DenseCRF.from_labels(image, labels, confidence=confidence)
    with pytest.raises(pf.InputError, match=f"^confidence{words}"):
        pf.DenseCRF(image, one_hot(labels, 4), confidence=confidence)
    with pytest.raises(pf.InputError, match=r"confidence=0\.5, expected above 1/2"):
        pf.DenseCRF(IMAGE, MASK, confidence=0.5)
    pf.DenseCRF(image, one_hot(labels, 4), confidence=0.26)


def test_unsure_pixels_do_not_count_as_changed(tmp_path: Path) -> None:
    labels = np.full((4, 6), 1)
    labels[:, 4:] = 7
    crf = pf.DenseCRF.from_labels(None, labels, 2, unsure=7)
    result = crf.infer()
    assert (result.labels == 1).all() and not result.changed.any()
    crf.save(tmp_path / "x.npz")
    assert not pf.DenseCRF.load(tmp_path / "x.npz").infer().changed.any()


# ---- many images, tiles, settings ----


@pytest.mark.parametrize("jobs", [None, 2])
def test_batches_say_it_once(jobs: int | None) -> None:
    soft = (0.2 + 0.6 * MASK).astype(np.float32)
    with pytest.warns(InputWarning) as caught:
        labels = pf.refine_batch([IMAGE] * 3, [MASK, soft, MASK], output="labels", jobs=jobs)
    assert [str(w.message)[:50] for w in caught] == [
        "probabilities of 2 of 3 images are all 0 or 1: tak"
    ]
    assert (labels[0] != MASK).sum() > 50
    pf.refine_batch([IMAGE], [MASK], confidence=0.7)


@pytest.mark.slow
def test_tiles_are_labels_if_the_whole_image_is() -> None:
    image, mask = np.tile(IMAGE, (2, 2, 1)), np.tile(MASK, (2, 2))
    out = np.zeros(mask.shape, dtype=np.uint8)
    with pytest.warns(InputWarning, match="are all 0 or 1"):
        done = pf.refine_tiles(image, mask.astype(np.float32), out, tile=32, halo=30)
    whole = pf.DenseCRF(image, mask, confidence=0.7).infer()
    assert (out != whole.labels).mean() < 0.01
    assert done.confidence == CONFIDENCE
    assert done.refined == mask.size and done.changed == (out != mask).sum() > 200
    stacked = np.zeros((2, *mask.shape), dtype=np.float32)
    pf.refine_tiles(
        *(image, np.moveaxis(one_hot(mask), -1, 0), stacked),
        **{"tile": 32, "halo": 30, "output": "probabilities", "confidence": 0.7},
    )
    np.testing.assert_array_equal(stacked.argmax(axis=0), out)


def test_a_certain_tile_of_an_uncertain_image_stays_as_it_is() -> None:
    p = MASK.astype(np.float32)
    p[:, 32:] = 0.2 + 0.6 * p[:, 32:]
    out = np.zeros(SIZE, dtype=np.uint8)
    options: dict[str, Any] = {"spatial_sigma": 1.0, "bilateral_sigma": 2.0}
    done = pf.refine_tiles(IMAGE, p, out, tile=(40, 16), halo=0, **options)
    assert done.confidence is None
    np.testing.assert_array_equal(out[:, :32], MASK[:, :32])
    assert (out[:, 32:] != MASK[:, 32:]).any()


def test_tune_says_it(tmp_path: Path) -> None:
    images, truth = [IMAGE, IMAGE[::-1]], [TRUTH, TRUTH[::-1]]
    masks = [MASK, MASK[::-1]]
    options: dict[str, Any] = {"folds": 2, "trials": 2}
    with pytest.warns(InputWarning, match="probabilities of 2 of 2 images are all 0 or 1"):
        found = pf.tune(images, masks, truth, **options)
    assert found.improved and found.best.score > found.baseline
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pf.tune(images, masks, truth, confidence=0.7, **options)
    with pytest.raises(pf.InputError, match="confidence=2"):
        pf.tune(images, masks, truth, confidence=2, **options)


@pytest.mark.parametrize("confidence", [0.9, 1])
def test_a_tuned_confidence_is_part_of_the_settings(tmp_path: Path, confidence: float) -> None:
    images, truth, masks = [IMAGE, IMAGE[::-1]], [TRUTH, TRUTH[::-1]], [MASK, MASK[::-1]]
    options: dict[str, Any] = {"folds": 2, "trials": 2}
    found = pf.tune(images, masks, truth, confidence=confidence, **options)
    found.save(tmp_path / "crf.toml")
    config = pf.read_config(tmp_path / "crf.toml")
    assert config.confidence == confidence
    soft = [0.2 + 0.6 * mask for mask in masks]
    assert pf.tune(images, soft, truth, confidence=0.9, **options).config.confidence is None


def test_the_confidence_of_a_configuration_is_used_without_a_word() -> None:
    config = {"confidence": 0.8}
    expected = pf.DenseCRF(IMAGE, MASK, confidence=0.8)
    for crf in (
        pf.DenseCRF(IMAGE, MASK, preset=config),
        pf.DenseCRF.from_config(IMAGE, MASK, config),
        pf.DenseCRF.from_labels(IMAGE, MASK, preset=config),
    ):
        assert crf.confidence == crf.to_config().confidence == 0.8
        np.testing.assert_allclose(crf.terms[0].energies, expected.terms[0].energies, rtol=1e-6)
    own = pf.DenseCRF(IMAGE, MASK, preset=config, confidence=0.6)
    assert own.confidence == own.to_config().confidence == 0.6
    labels = pf.refine_batch([IMAGE], [MASK], output="labels", preset=config)
    np.testing.assert_array_equal(labels[0], expected.infer().labels)
    out = np.zeros(SIZE, dtype=np.uint8)
    done = pf.refine_tiles(IMAGE, MASK.astype(np.float32), out, preset=config)
    assert done.confidence == 0.8
    with pytest.raises(pf.InputError, match="confidence=2, expected above 0"):
        pf.DenseCRF(IMAGE, 0.2 + 0.6 * MASK, preset={"confidence": 2})


# ---- names and pictures in place of arrays ----


@pytest.mark.parametrize("name", ["photo.jpg", Path("photos") / "photo.jpg"])
def test_the_name_of_a_file_is_no_image(name: Any) -> None:
    with pytest.raises(pf.InputError, match=r"photo\.jpg', a file name.*io\.images\.read_image"):
        pf.DenseCRF(name, MASK)
    with pytest.raises(pf.InputError, match=r"io\.images\.read_probabilities"):
        pf.DenseCRF(IMAGE, name)
    with pytest.raises(pf.InputError, match=r"image 0 of the batch: the image is"):
        pf.refine_batch([name], [MASK])


@pytest.mark.parametrize("mode", ["RGB", "P", "RGBA", "L", "CMYK"])
def test_images_of_pillow(mode: str) -> None:
    pillow = pytest.importorskip("PIL.Image")
    given = pillow.fromarray(IMAGE).convert(mode)
    soft = 0.2 + 0.6 * MASK
    array = np.asarray(given if mode == "L" else given.convert("RGB"))
    found, expected = pf.DenseCRF(given, soft).infer(), pf.DenseCRF(array, soft).infer()
    np.testing.assert_array_equal(found.q, expected.q)
