"""Images with noisy probabilities and true labels, for dense CRFs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from proxfield.core.common.records import Record
from proxfield.errors import InputError
from proxfield.images.densecrf import DenseCRF
from proxfield.io.files import display_name, naming_damage

UPDATES = 10
"""Updates of mean field, as published dense CRFs make."""
SETTINGS: Record = {
    "spatial_sigma": 3,
    "spatial_weight": 3,
    "bilateral_sigma": 40,
    "bilateral_color": 5,
    "bilateral_weight": 5,
    "clip": 1e-5,
}
"""The same model for all tools, in the words of `DenseCRF`."""
EXACT_PIXELS = 4000
"""Maximum number of pixels for which the kernels are also summed over all pairs."""
VOID = 255
"""True label of pixels that don't count."""


@dataclass(frozen=True)
class NoisyScene:
    """An image, what a classifier says about it, and the truth.

    Attributes:
        suite: The set it belongs to.
        name: Its name.
        image: Colors.  # (height, width, 3) uint8
        probabilities: Of the labels.  # (height, width, labels) float32
        truth: True labels; `VOID` where unknown.  # (height, width)
    """

    suite: str
    name: str
    image: NDArray[np.uint8]
    probabilities: NDArray[np.float32]
    truth: NDArray[np.int64]


def make_scene(width: int, height: int, n_labels: int = 5, seed: int = 0) -> NoisyScene:
    """Colored regions with shading and noise; a classifier that is unsure and blurred at borders.

    Example:
        >>> make_scene(40, 30).probabilities.shape
        (30, 40, 5)
    """
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    centers = rng.random((3 * n_labels, 2)) * (height, width)
    away = (y[..., None] - centers[:, 0]) ** 2 + (x[..., None] - centers[:, 1]) ** 2
    truth = away.argmin(axis=-1) % n_labels
    colors = rng.integers(30, 226, (n_labels, 3))
    shade = 1 + 0.15 * np.sin(4 * x / width + 3 * y / height)
    image = colors[truth] * shade[..., None] + rng.normal(scale=5.0, size=(height, width, 3))
    block = 6  # pixels that a network's coarse map has in common
    coarse = truth[block // 2 :: block, block // 2 :: block]
    seen = np.repeat(np.repeat(coarse, block, axis=0), block, axis=1)
    seen = np.pad(seen, ((0, block), (0, block)), mode="edge")[:height, :width]
    scores = 1.5 * np.eye(n_labels)[seen] + rng.normal(scale=1.0, size=(height, width, n_labels))
    p = np.exp(scores)
    p /= p.sum(axis=-1, keepdims=True)
    pixels = np.clip(image, 0, 255).astype(np.uint8)
    name = f"{width}x{height}, seed {seed}"
    return NoisyScene("generated", name, pixels, p.astype(np.float32), truth)


def generated_scenes(quick: bool) -> list[NoisyScene]:
    """The images of the benchmark: small ones, and unless it must be quick some of 480 × 360."""
    if quick:
        return [make_scene(40, 30)]
    small = [make_scene(60, 45, seed=seed) for seed in range(3)]
    return [*small, *(make_scene(480, 360, seed=seed) for seed in range(3))]


def read_scenes(folder: str) -> list[NoisyScene]:
    """Scenes from a folder of ``.npz`` files with the arrays image, probabilities and truth.

    Raises:
        InputError: If there are none, or an array is missing or doesn't fit.
    """
    root = Path(folder)
    paths = sorted(root.glob("*.npz"))
    if not paths:
        none = "no .npz files, expected one per image"
        what = none if root.is_dir() else "no such folder, expected one with .npz files"
        raise InputError(what, path=display_name(root))
    return [_read_scene(path) for path in paths]


def _read_scene(path: Path) -> NoisyScene:
    name = display_name(path)
    with naming_damage(name), np.load(path, allow_pickle=False) as data:
        missing = {"image", "probabilities", "truth"} - set(data.files)
        if missing:
            what = f"no {', '.join(sorted(missing))}, expected image, probabilities and truth"
            raise InputError(what, path=name)
        found = {key: np.asarray(data[key]) for key in ("image", "probabilities", "truth")}
    image, p, truth = found["image"], found["probabilities"], found["truth"]
    if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8:
        raise InputError(f"image {image.dtype}{image.shape}, expected 8-bit colors", path=name)
    if p.ndim != 3 or p.shape[:2] != image.shape[:2] or truth.shape != image.shape[:2]:
        raise InputError(
            f"shapes {image.shape}, {p.shape}, {truth.shape} of image, probabilities and truth, "
            "expected the same height and width",
            path=name,
        )
    labels = truth.astype(np.int64)
    return NoisyScene(path.parent.name, path.stem, image, p.astype(np.float32), labels)


def exact_labels(scene: NoisyScene) -> NDArray[np.int64] | None:
    """The labels that the same updates give with sums over all pairs; None for large images."""
    if scene.truth.size > EXACT_PIXELS:
        return None
    crf = DenseCRF(scene.image, scene.probabilities, filter="exact", **SETTINGS)
    return np.asarray(crf.infer(max_iters=UPDATES, tol=None).labels, dtype=np.int64)
