"""Pixels as points: features that are computed when first used, and only then."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

import proxfield as pf
from proxfield.core.filters.points import PixelPoints
from proxfield.images.pixels import into_energies

SCALE = np.array([0.5, 0.25])


def points(**changes: Any) -> PixelPoints:
    """An image of 3×4 pixels with two channels."""
    given: dict[str, Any] = {
        "pixels": (3, 4),
        "scale": SCALE,
        "channels": np.arange(24, dtype=np.uint8).reshape(3, 4, 2),
        "color": np.array([2.0, 4.0]),
    }
    return PixelPoints(**{**given, **changes})


def test_features_are_positions_and_channels() -> None:
    found = points()
    features = found.array()
    assert features.shape == found.shape == (12, 4)
    for i in range(3):
        for j in range(4):
            values = np.arange(24).reshape(3, 4, 2)[i, j] / [2.0, 4.0]
            assert np.array_equal(features[4 * i + j], [0.5 * i, 0.25 * j, *values])


def test_computed_when_first_used() -> None:
    term = pf.Gaussian(points(), 2.0, self_message=True)
    assert "_features" not in vars(term)
    assert (term.n_points, term.nbytes) == (12, 12 * 4 * 8)
    again = copy.copy(term)
    assert np.array_equal(term.features, points().array())
    assert np.array_equal(again.features, term.features)
    assert np.array_equal(pickle.loads(pickle.dumps(term)).features, term.features)
    term.features = None
    assert term.features is None
    assert term.nbytes == 0


def test_the_image_may_change_afterwards() -> None:
    image = np.zeros((3, 4, 2), dtype=np.uint8)
    term = pf.Gaussian(points(channels=image))
    image[:] = 200
    assert term.features is not None
    assert float(term.features[:, 2:].max()) == 0.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"color": np.array([1e-9, 1.0])}, "span"),
        ({"scale": np.array([1e9, 1.0])}, "span"),
        ({"channels": np.full((3, 4, 2), 1e300), "color": np.array([1e-10, 1])}, "infinite"),
    ],
)
def test_too_wide_is_refused_at_once(changes: dict[str, Any], message: str) -> None:
    with np.errstate(over="ignore"), pytest.raises(pf.InputError, match=message):
        pf.Gaussian(points(**changes))


def test_kinds_are_told_apart() -> None:
    """Images of one size and kind have the same key, whatever their values."""
    key = points().key
    assert points(channels=np.zeros((3, 4, 2), dtype=np.uint8)).key == key
    others = [
        points(channels=np.zeros((3, 4, 2))),
        points(scale=2 * SCALE),
        points(color=np.array([2.0, 4.5])),
        PixelPoints((3, 4), SCALE),
        PixelPoints((4, 3), SCALE),
    ]
    assert len({key, *(other.key for other in others)}) == 6


@pytest.mark.parametrize("off", [-1.1e-3, -0.97e-3, 0.0, 0.97e-3, 1.1e-3])
def test_sums_are_compared_in_float64_where_it_matters(off: float) -> None:
    p = np.full((5000, 4), 0.25, dtype=np.float32)
    p[4321, 2] += np.float32(off)
    expected = -np.log(p)
    if abs(off) > 1e-3:
        with pytest.raises(pf.InputError, match=r"pixel \(86, 21\) sum to"):
            into_energies(p, (100, 50), 1e-5, False)
        return
    into_energies(p, (100, 50), 1e-5, False)
    assert np.array_equal(p, expected)
