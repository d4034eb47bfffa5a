"""Pictures of images whose holes were filled: before, after, and how certain that is.

Needs Pillow.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from proxfield.core.common.arrays import Doubles
from proxfield.errors import InputError
from proxfield.io.images import import_pillow
from proxfield.io.palette import label_colors
from proxfield.viz.tiles import caption_picture, frame_picture, join_pictures

Picture = NDArray[np.uint8]
HOLE = np.array([198, 208, 224], dtype=np.uint8)
"""Color of hidden pixels."""
WRONG = np.array([213.0, 94.0, 0.0])
"""Color of pixels that aren't the true ones."""
CERTAIN, UNCERTAIN = np.array([247.0, 251.0, 255.0]), np.array([8.0, 48.0, 107.0])
"""Colors of no uncertainty and of all labels alike."""
BLACK_ON_WHITE = (255, 255, 255, 0, 0, 0)
"""Colors of two labels, where an image has no palette."""
WIDTH = 260
"""Least width of each picture; pixels are enlarged by a whole number."""


def uncertainty(marginals: ArrayLike) -> Doubles:
    """Probability of other labels than the most probable one, 1 if all are alike.  # (…, K) -> (…)

    The entropy would hardly tell 0.7 from 0.5; this is 0.6 for two labels of 0.7 and 0.3.

    Example:
        >>> uncertainty([[0.5, 0.5], [0.75, 0.25], [1.0, 0.0]]).tolist()
        [1.0, 0.5, 0.0]
    """
    q = np.asarray(marginals, dtype=np.float64)
    return np.asarray((1 - q.max(axis=-1)) / (1 - 1 / max(2, q.shape[-1])))


def inpainting_sheet(
    image: ArrayLike,
    mask: ArrayLike,
    marginals: ArrayLike,
    *,
    truth: bool = False,
    palette: Sequence[int] | None = None,
    title: str | None = None,
) -> Picture:
    """An image before and after, and its uncertainty, beside each other.

    Args:
        image: Label image.  # (height, width)
        mask: True where pixels were hidden.  # (height, width)
        marginals: Probabilities of labels.  # (height, width, K)
        truth: Whether the image has the true labels in the hole: draws them too, and what is wrong.
        palette: Colors of labels as from `read_labels`; black on white by default for two.
        title: A title.

    Returns:
        RGB.  # (h, w, 3)

    Raises:
        InputError: If shapes don't fit.
        MissingDependencyError: If Pillow isn't installed.
    """
    pillow = import_pillow()
    labels, hidden = np.asarray(image), np.asarray(mask, dtype=bool)
    q = np.asarray(marginals, dtype=np.float64)
    if labels.ndim != 2 or hidden.shape != labels.shape or q.shape[:2] != labels.shape:
        raise InputError(
            f"image {labels.shape}, mask {hidden.shape} and marginals {q.shape} don't fit"
        )
    count = q.shape[2]
    colors = label_colors(count, BLACK_ON_WHITE if palette is None and count == 2 else palette)
    found = np.where(hidden, q.argmax(axis=2), labels)
    seen = colors[np.where(hidden, 0, labels)]
    pictures = {
        "before": np.where(hidden[..., None], HOLE, seen),
        "after": colors[found],
        "uncertainty": _draw_uncertainty(q, hidden, seen),
    }
    if truth:
        wrong = hidden & (found != labels)
        share = 100 * (1 - wrong.sum() / max(1, hidden.sum()))
        pictures["truth"] = colors[labels]
        mixed = 0.35 * colors[labels] + 0.65 * WRONG
        name = f"wrong pixels ({share:.1f} % right)"
        pictures[name] = np.where(wrong[..., None], mixed, 0.75 * colors[labels] + 64)
    scale = max(1, -(-WIDTH // labels.shape[1]))
    tiles = []
    for name, pixels in pictures.items():
        small = pillow.fromarray(np.asarray(pixels, dtype=np.uint8))
        size = (small.width * scale, small.height * scale)
        tiles.append(caption_picture(frame_picture(small.resize(size, pillow.NEAREST)), name))
    sheet = join_pictures(tiles, 0)
    return np.array(caption_picture(sheet, title) if title else sheet)


def _draw_uncertainty(q: Doubles, hidden: NDArray[np.bool_], seen: Picture) -> Picture:
    """Hidden pixels from light (certain) to dark blue (all labels alike), others pale."""
    share = uncertainty(q)[..., None]
    hue = (1 - share) * CERTAIN + share * UNCERTAIN
    pale = 0.25 * seen + 0.75 * 255
    return np.asarray(np.where(hidden[..., None], hue, pale), dtype=np.uint8)
