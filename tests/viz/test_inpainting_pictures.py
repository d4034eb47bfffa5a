"""Sheets of images whose holes were filled."""

from __future__ import annotations

import numpy as np
import pytest

from proxfield.errors import InputError
from proxfield.viz.sheets import HOLE, UNCERTAIN, inpainting_sheet, uncertainty

pytest.importorskip("PIL")


def example() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    image = np.zeros((20, 26), dtype=int)
    image[:, 13:] = 1
    mask = np.zeros((20, 26), dtype=bool)
    mask[5:15, 8:18] = True
    q = np.stack([1.0 - image, image], axis=2)
    q[mask] = [0.5, 0.5]
    q[mask & (np.arange(26) > 15)] = [0.9, 0.1]  # wrong, and certain
    return image, mask, q


def tiles(sheet: np.ndarray, count: int) -> list[np.ndarray]:
    """The pictures of a sheet, one value per pixel of the image."""
    side = 10  # pixels are enlarged to a width of at least 260
    width, top = 26 * side + 2 + 8, 22 + 1
    found = [sheet[top : top + 200, k * width + 1 : k * width + 261] for k in range(count)]
    return [tile[5::side, 5::side] for tile in found]


def test_sheets_show_before_after_and_uncertainty() -> None:
    image, mask, q = example()
    sheet = inpainting_sheet(image, mask, q)
    assert sheet.shape == (22 + 202, 3 * 262 + 2 * 8, 3)
    before, after, unsure = tiles(sheet, 3)
    assert (before[mask] == HOLE).all()
    assert (before[~mask] == 255 * (1 - image[~mask, None])).all()
    assert (after[mask] == 255).all()  # label 0 is at least as probable
    assert (unsure[mask & (np.arange(26) <= 15)] == UNCERTAIN).all()
    certain = unsure[mask & (np.arange(26) > 15)]
    assert (certain.sum(axis=1) > UNCERTAIN.sum()).all()


def test_sheets_show_what_is_wrong() -> None:
    image, mask, q = example()
    sheet = inpainting_sheet(image, mask, q, truth=True, title="a title")
    assert sheet.shape[1] == 5 * 262 + 4 * 8
    truth, wrong = tiles(sheet[22:], 5)[3:]
    assert (truth == 255 * (1 - image[..., None])).all()
    errors = mask & (image == 1)
    assert (wrong[errors][:, 0] > wrong[errors][:, 2]).all()  # orange
    assert (wrong[~errors][:, 0] == wrong[~errors][:, 2]).all()  # gray


def test_palettes_and_several_labels() -> None:
    labels = np.arange(12).reshape(3, 4) % 3
    mask = np.zeros((3, 4), dtype=bool)
    q = np.eye(3)[labels]
    sheet = inpainting_sheet(labels, mask, q, palette=[9, 8, 7, 60, 50, 40, 1, 2, 3])
    assert [9, 8, 7] in sheet.reshape(-1, 3).tolist()
    with pytest.raises(InputError, match="don't fit"):
        inpainting_sheet(labels, mask[:2], q)


def test_uncertainty_is_a_share() -> None:
    q = np.array([[1 / 3, 1 / 3, 1 / 3], [1, 0, 0], [0.5, 0.5, 0]])
    np.testing.assert_allclose(uncertainty(q), [1, 0, 0.75], atol=1e-12)
