"""A generated picture with a classifier's mistakes, for a studio that is opened without files."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

NAMES = ("sky", "mountain", "field", "house", "tree")
"""What the labels stand for."""
SHAPE = (375, 500)
COLORS = ((160, 185, 205), (135, 130, 140), (125, 145, 85), (170, 120, 100), (78, 108, 66))
"""Mean color of each label."""


@dataclass(frozen=True)
class Scene:
    """A picture, what a classifier says about it, and the truth."""

    image: NDArray[np.uint8]  # (height, width, 3)
    probabilities: NDArray[np.float32]  # (height, width, labels)
    truth: NDArray[np.uint8]  # (height, width)


def demo_scene(seed: int = 0) -> Scene:
    """A landscape of five labels, and probabilities that are coarse and partly wrong.

    Args:
        seed: Random seed of the texture and of the classifier's mistakes.

    Example:
        >>> scene = demo_scene()
        >>> scene.image.shape, scene.probabilities.shape, int(scene.truth.max())
        ((375, 500, 3), (375, 500, 5), 4)
    """
    rng = np.random.default_rng(seed)
    truth = _draw_truth()
    return Scene(_paint(truth, rng), _classify(truth, rng), truth)


def _draw_truth() -> NDArray[np.uint8]:
    height, width = SHAPE
    y, x = np.mgrid[:height, :width]
    truth = np.zeros(SHAPE, dtype=np.uint8)
    ridge = 150 - 55 * np.sin(x / 70.0) - 22 * np.sin(x / 23.0 + 1) + 0.05 * x
    truth[y > ridge] = 1
    truth[y > 225 + 14 * np.sin(x / 95.0 + 2)] = 2
    body = (np.abs(x - 335) < 62) & (y > 190) & (y < 290)
    roof = (y <= 190) & (y > 130) & (np.abs(x - 335) < (y - 130) * 1.35)
    chimney = (np.abs(x - 372) < 8) & (y > 120) & (y < 180)
    truth[body | roof | chimney] = 3
    for left, top, size in ((105, 215, 46), (165, 245, 34), (450, 240, 38)):
        crown = (x - left) ** 2 + (1.25 * (y - top)) ** 2 < size**2
        trunk = (np.abs(x - left) < 5) & (y > top) & (y < top + 1.6 * size)
        truth[crown | trunk] = 4
    return truth


def _paint(truth: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.uint8]:
    from scipy.ndimage import gaussian_filter

    height, width = SHAPE
    y, x = np.mgrid[:height, :width]
    image = np.array(COLORS, dtype=np.float64)[truth]
    image += 28 * (0.5 - y / height)[..., None] + 14 * (x / width - 0.5)[..., None]
    texture = gaussian_filter(rng.normal(size=SHAPE), 2.5)
    strength = np.array([5.0, 13.0, 12.0, 9.0, 16.0])[truth]
    image += (strength * texture / texture.std())[..., None]
    image += rng.normal(scale=8.0, size=image.shape)
    return np.asarray(image.round().clip(0, 255), dtype=np.uint8)


def _classify(truth: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.float32]:
    """Scores that are blurred like a network's small maps, with patches of doubt."""
    from scipy.ndimage import gaussian_filter

    n_labels = len(NAMES)
    scores = np.empty((*SHAPE, n_labels))
    for label in range(n_labels):
        coarse = gaussian_filter((truth == label).astype(np.float64), 7.0)
        patches = gaussian_filter(rng.normal(size=SHAPE), 14.0)
        speckle = gaussian_filter(rng.normal(size=SHAPE), 1.2)
        scores[..., label] = 4.5 * coarse
        scores[..., label] += 1.3 * patches / patches.std() + 0.6 * speckle / speckle.std()
    scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.asarray(scores / scores.sum(axis=-1, keepdims=True), dtype=np.float32)
