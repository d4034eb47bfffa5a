"""The colors of labels: the same in label maps, overlays, figures and the studio."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

# Okabe and Ito's colors first, then others as far from these and from each other.
TABLE = (
    *("#4D4D4D", "#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7"),
    *("#7A3FBF", "#8B5E3C", "#B5E61D", "#E6194B", "#00CED1", "#FFB3A7", "#1B5E20", "#B0B7FF"),
    *("#800040", "#FFFFFF", "#33FF99", "#A0895A"),
)
"""Colors of the first labels."""
GOLDEN = 0.618033988749895
IGNORED = 255
IGNORED_COLOR = (224, 224, 192)
"""Of pixels to ignore, as in the label maps of PASCAL VOC."""


def label_colors(count: int, palette: Sequence[int] | None = None) -> NDArray[np.uint8]:
    """A color for each label: of a palette, from `TABLE`, and beyond it made up.  # (count, 3)

    255, which stands for pixels to ignore, has a color of its own.

    Example:
        >>> label_colors(3)[1].tolist()
        [230, 159, 0]
    """
    from colorsys import hsv_to_rgb

    if palette is not None:
        given = np.array(palette, dtype=np.uint8)[: 3 * count].reshape(-1, 3)
        return np.concatenate([given, label_colors(count)[len(given) :]])
    known = [[int(c[i : i + 2], 16) for i in (1, 3, 5)] for c in TABLE[:count]]
    for k in range(count - len(known)):  # hues a golden section apart never come close soon
        tone = hsv_to_rgb(k * GOLDEN % 1, (0.55, 0.9)[k % 2], (0.95, 0.65, 0.8)[k % 3])
        known.append([round(255 * part) for part in tone])
    if count > IGNORED:
        known[IGNORED] = [*IGNORED_COLOR]
    return np.array(known, dtype=np.uint8).reshape(-1, 3)
