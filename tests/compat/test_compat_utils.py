"""The utilities, against their formulas."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

from proxfield.compat.pydensecrf import utils


def test_unary_from_labels_with_unknowns() -> None:
    found = utils.unary_from_labels(np.array([[0, 1], [2, 3]]), 3, gt_prob=0.7)
    right, wrong, unknown = -np.log(0.7), -np.log(0.15), np.log(3)
    expected = np.array(
        [
            [unknown, right, wrong, wrong],
            [unknown, wrong, right, wrong],
            [unknown, wrong, wrong, right],
        ]
    )
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert found.dtype == np.float32 and found.flags.c_contiguous


def test_unary_from_labels_without_unknowns() -> None:
    found = utils.unary_from_labels([0, 1], 2, 0.9, zero_unsure=False)
    right, wrong = -np.log(0.9), -np.log(0.1)
    np.testing.assert_allclose(found, [[right, wrong], [wrong, right]], rtol=1e-6)


def test_unsigned_labels() -> None:
    """0 − 1 must not become 255."""
    labels = np.array([0, 1, 2])
    np.testing.assert_array_equal(
        utils.unary_from_labels(labels.astype(np.uint8), 2, 0.7),
        utils.unary_from_labels(labels, 2, 0.7),
    )


@pytest.mark.parametrize("gt_prob", [0.0, 1.0, -0.5, 1.5])
def test_gt_prob_is_a_probability(gt_prob: float) -> None:
    with pytest.raises(AssertionError, match="gt_prob"):
        utils.unary_from_labels([1, 2], 2, gt_prob)


@pytest.mark.parametrize(
    ("labels", "unsure"), [([0, 3], True), ([0, 2], False), ([-1, 1], False), ([0.5, 1], True)]
)
def test_labels_out_of_range(labels: list[float], unsure: bool) -> None:
    with pytest.raises(ValueError, match="labels"):
        utils.unary_from_labels(labels, 2, 0.7, zero_unsure=unsure)


def test_one_label_is_nothing_to_infer() -> None:
    with pytest.raises(ValueError, match="less than 2"):
        utils.unary_from_labels([1], 1, 0.7)


@pytest.mark.parametrize("shape", [(2,), (2, 5), (2, 3, 4), (2, 3, 4, 5)])
def test_unary_from_softmax(shape: tuple[int, ...]) -> None:
    p = np.random.default_rng(0).uniform(0.1, 0.9, shape)
    found = utils.unary_from_softmax(p)
    np.testing.assert_allclose(found, -np.log(p).reshape(2, -1), rtol=1e-5)
    assert found.dtype == np.float32 and found.flags.c_contiguous


def test_unary_from_softmax_scales_then_clips() -> None:
    p = np.array([[0.0, 0.3], [1.0, 0.7]])
    mixed = 0.5 * p + 0.5 / 2
    np.testing.assert_allclose(utils.unary_from_softmax(p, scale=0.5), -np.log(mixed), rtol=1e-6)
    found = utils.unary_from_softmax(p, scale=0.5, clip=0.3)
    np.testing.assert_allclose(found, -np.log(np.maximum(mixed, 0.3)), rtol=1e-6)
    assert utils.unary_from_softmax(p)[0, 0] == pytest.approx(-np.log(1e-5))
    assert utils.unary_from_softmax(p, clip=None)[0, 0] == np.inf
    assert utils.unary_from_softmax(2 * p)[1, 0] == 0.0  # nothing is likelier than 1


@pytest.mark.parametrize("scale", [0, -1, 1.1])
def test_scale_is_in_range(scale: float) -> None:
    with pytest.raises(AssertionError, match="scale"):
        utils.unary_from_softmax([[0.5], [0.5]], scale=scale)


def test_old_names(caplog: pytest.LogCaptureFixture) -> None:
    labels, p = np.array([0, 1, 2]), np.array([[0.0, 0.3], [1.0, 0.7]])
    with caplog.at_level(logging.WARNING):
        np.testing.assert_array_equal(
            utils.compute_unary(labels, 2, 0.7), utils.unary_from_labels(labels, 2, 0.7)
        )
        np.testing.assert_array_equal(
            utils.softmax_to_unary(p, 0.5), utils.unary_from_softmax(p, scale=0.5, clip=None)
        )
        assert utils.softmax_to_unary(p)[0, 0] == np.inf
    assert sum("deprecated" in r.message for r in caplog.records) == 3


@pytest.mark.parametrize("shape", [(5,), (3, 4), (2, 3, 4), (2, 1, 3, 2)])
def test_positions(shape: tuple[int, ...]) -> None:
    sdims = tuple(range(2, 2 + len(shape)))
    found = utils.create_pairwise_gaussian(sdims, shape)
    at = [np.array(i) / sdims for i in np.ndindex(*shape)]
    np.testing.assert_allclose(found, np.transpose(at), rtol=1e-6)
    assert found.dtype == np.float32 and found.flags.c_contiguous
    same = utils.create_pairwise_gaussian(list(sdims), list(shape))
    np.testing.assert_array_equal(found, same)


@pytest.mark.parametrize("chdim", [0, 1, 2, 3])
def test_positions_and_colors(chdim: int) -> None:
    volume = np.random.default_rng(0).integers(0, 255, (2, 3, 4, 5)).astype(np.uint8)
    schan = (2.0, 3.0, 4.0, 5.0, 6.0)
    expected = [[*(np.array(i) / (1, 2, 3)), *(volume[i] / schan)] for i in np.ndindex(2, 3, 4)]
    image = np.moveaxis(volume, -1, chdim)
    found = utils.create_pairwise_bilateral((1, 2, 3), schan, image, chdim=chdim)
    np.testing.assert_allclose(found, np.transpose(expected), rtol=1e-6)
    assert found.dtype == np.float32 and found.flags.c_contiguous


def test_one_width_for_all() -> None:
    image = np.arange(12).reshape(2, 3, 2)
    np.testing.assert_array_equal(
        utils.create_pairwise_bilateral(4, 5, image, chdim=2),
        utils.create_pairwise_bilateral((4, 4), (5, 5), image, chdim=2),
    )


@pytest.mark.parametrize("schan", [5, (5,), [5.0]])
def test_gray(schan: Any) -> None:
    image = np.arange(6).reshape(2, 3)
    found = utils.create_pairwise_bilateral((1, 1), schan, image)
    np.testing.assert_allclose(found[2], image.ravel() / 5, rtol=1e-6)
    same = utils.create_pairwise_bilateral((1, 1), schan, image[..., None], chdim=2)
    np.testing.assert_array_equal(found, same)
    volume = utils.create_pairwise_bilateral((1, 1, 1), schan, np.zeros((2, 3, 4)))
    assert volume.shape == (4, 24)


def test_channels_that_are_last_are_found() -> None:
    image = np.arange(12).reshape(2, 3, 2)
    np.testing.assert_array_equal(
        utils.create_pairwise_bilateral((1, 1), (5, 6), image),
        utils.create_pairwise_bilateral((1, 1), (5, 6), image, chdim=2),
    )


def test_widths_that_are_missing() -> None:
    image = np.arange(12).reshape(2, 3, 2)
    with pytest.warns(UserWarning, match="schan has 1 values for 2 channels"):
        found = utils.create_pairwise_bilateral((1, 1), (5,), image, chdim=2)
    np.testing.assert_allclose(found[3], image[..., 1].ravel())
    with pytest.raises(ValueError, match="schan has 3 values"):
        utils.create_pairwise_bilateral((1, 1), (5, 5, 5), image, chdim=2)
    with pytest.raises(ValueError, match="sdims has 1 values"):
        utils.create_pairwise_gaussian((1,), (2, 3))


def test_private_names() -> None:
    image = np.random.default_rng(0).integers(0, 255, (4, 5, 3))
    np.testing.assert_array_equal(
        utils._create_pairwise_gaussian_2d(2, 3, (4, 5)),
        utils.create_pairwise_gaussian((2, 3), (4, 5)),
    )
    np.testing.assert_array_equal(
        utils._create_pairwise_bilateral_2d(2, 3, 4, 5, 6, image),
        utils.create_pairwise_bilateral((2, 3), (4, 5, 6), image, chdim=2),
    )
