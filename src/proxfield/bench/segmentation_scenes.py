"""Seeded scenes with known labels, and the dense CRFs that segment them.

Three kinds of scenes (sea, meadow, street) share the sky and nothing else, and a classifier that
takes boats for cows and water for grass: what may occur together helps to tell them apart.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from proxfield.core.common.arrays import Ints
from proxfield.core.terms.cooccurrence import Cooccurrence
from proxfield.core.terms.gaussian import Gaussian
from proxfield.core.terms.unary import Unary
from proxfield.field import Field
from proxfield.images.cooccurrence import CooccurrenceStatistics

RECIPE = "scenes-1"
"""Changes whenever a change here changes a field, so that old results aren't taken for new."""
CLASSES = ("sky", "water", "grass", "road", "boat", "cow", "car")
COLORS = np.array(
    [[150, 185, 225], [70, 110, 140], [95, 130, 70], [115, 112, 108], [185, 175, 165],
     [120, 85, 65], [150, 60, 60]], dtype=np.float64,
)  # fmt: skip
KINDS = {"sea": (1, 4), "meadow": (2, 5), "street": (3, 6)}
"""Ground and things of each kind of scene, as class numbers."""
SHAPE = (72, 96)
MAPS = 60
"""Label maps in which classes that occur together are counted."""
CONFUSION = 0.9
"""By how much a classifier prefers the true class to those of the same role."""
NOISE = (0.9, 0.8)
"""Spread of its errors: of blocks of 8 × 8 pixels, and of single pixels."""


@dataclass(frozen=True)
class DrawnScene:
    """An image with its labels, and what a classifier says of it.

    Attributes:
        image: Colors.  # (h, w, 3) uint8
        truth: True classes.  # (h, w)
        log_probabilities: Of each class.  # (h, w, L)
    """

    image: NDArray[np.uint8]
    truth: Ints
    log_probabilities: NDArray[np.float64]


@dataclass(frozen=True)
class SceneInstance:
    """One scene of the benchmark, made when asked for."""

    name: str
    seed: int
    suite: str = "scenes"
    digest: str = RECIPE

    @property
    def make(self) -> Callable[[], DrawnScene]:
        """Makes it."""
        return partial(make_scene, self.seed)

    @property
    def reference(self) -> None:
        """There are no exact answers."""
        return


def scene_instances(count: int, seed: int = 0) -> list[SceneInstance]:
    """As many scenes of different kinds."""
    kinds = list(KINDS)
    return [
        SceneInstance(f"{kinds[k % len(kinds)]}-{k // len(kinds)}", seed * 10_000 + k)
        for k in range(count)
    ]


def make_labels(seed: int) -> Ints:
    """The labels of a scene: sky, ground below it, and things on the ground.  # (h, w)"""
    rng = np.random.default_rng([2016, seed])
    ground, thing = list(KINDS.values())[seed % len(KINDS)]
    h, w = SHAPE
    y, x = np.mgrid[:h, :w]
    slope = rng.uniform(-0.1, 0.1)
    horizon = h * rng.uniform(0.3, 0.55) + slope * (x - w / 2) + 1.5 * np.sin(x / rng.uniform(5, 9))
    labels = np.where(y < horizon, 0, ground)
    for _ in range(rng.integers(2, 5)):
        cy, cx = h * rng.uniform(0.55, 0.9), w * rng.uniform(0.1, 0.9)
        tall, wide = rng.uniform(4, 8), rng.uniform(7, 13)
        labels[((y - cy) / tall) ** 2 + ((x - cx) / wide) ** 2 < 1] = thing
    return labels.astype(np.int64)


def make_scene(seed: int) -> DrawnScene:
    """A scene of a seed."""
    truth = make_labels(seed)
    rng = np.random.default_rng([2017, seed])
    h, w = SHAPE
    shade = 1 + 0.12 * np.sin(np.arange(w) / 13 + rng.uniform(0, 6))
    image = COLORS[truth] * shade[None, :, None] + rng.normal(scale=7.0, size=(h, w, 3))
    n_labels = len(CLASSES)
    roles = np.array([0, 1, 1, 1, 2, 2, 2])
    same = roles[truth][..., None] == roles
    right = truth[..., None] == np.arange(n_labels)
    logits = 1.2 * same + CONFUSION * right
    blocks = rng.normal(scale=NOISE[0], size=(-(-h // 8), -(-w // 8), n_labels))
    logits = logits + np.kron(blocks, np.ones((8, 8, 1)))[:h, :w]
    logits += rng.normal(scale=NOISE[1], size=logits.shape)
    log_p = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
    return DrawnScene(image.clip(0, 255).astype(np.uint8), truth, log_p)


def counts() -> CooccurrenceStatistics:
    """Classes that occur together in other scenes."""
    return CooccurrenceStatistics.from_label_maps(
        [make_labels(1_000_000 + k) for k in range(MAPS)], len(CLASSES)
    )


def make_field(scene: DrawnScene, cooccurrence: bool) -> Field:
    """The dense CRF of a scene.

    Args:
        scene: The scene.
        cooccurrence: Whether the presence of each class is a variable, and classes that don't
            occur together repel each other.
    """
    h, w, n_labels = scene.log_probabilities.shape
    n = h * w
    place = np.moveaxis(np.mgrid[:h, :w], 0, -1).reshape(n, 2).astype(np.float64)
    color = scene.image.reshape(n, 3).astype(np.float64)
    extra = [2] * n_labels if cooccurrence else []
    field = Field([n_labels] * n + extra)
    field.add(Unary(-scene.log_probabilities.reshape(n, n_labels), np.arange(n)))
    field.add(Gaussian(place / 2.0, 1.5))
    field.add(Gaussian(np.concatenate([place / 20, color / 12], axis=1), 3.0))
    if cooccurrence:
        field.add(Cooccurrence(counts(), pixels=n, always=(), latent="variables"))
    return field
