"""A small image with a classifier's mistakes, as arrays and as files, for tests of the studio."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from proxfield.studio.inputs import StudioInputs

SHAPE = (60, 80)


def small_inputs() -> StudioInputs:
    """Three labels in stripes; one pixel in five is wrong. Its lattice is that of large images."""
    rng = np.random.default_rng(3)
    x = np.mgrid[: SHAPE[0], : SHAPE[1]][1]
    truth = (x * 3 // SHAPE[1]).astype(np.uint8)
    colors = np.array([[60, 70, 200], [200, 180, 60], [90, 200, 110]])
    image = colors[truth] + rng.normal(scale=12, size=(*SHAPE, 3))
    said = np.where(rng.random(SHAPE) < 0.2, rng.integers(0, 3, SHAPE), truth)
    probabilities = np.full((*SHAPE, 3), 0.2, dtype=np.float32)
    np.put_along_axis(probabilities, said[..., None].astype(np.int64), 0.6, axis=-1)
    return StudioInputs(image.clip(0, 255).astype(np.uint8), probabilities, truth=truth)


def write_files(folder: Path) -> dict[str, Path]:
    """The same as files: image, probs, truth, labels, logits."""
    from PIL import Image

    inputs = small_inputs()
    assert inputs.truth is not None
    paths = {
        "image": folder / "photo.png",
        "probs": folder / "photo.npy",
        "truth": folder / "truth.png",
        "labels": folder / "labels.png",
        "logits": folder / "logits.npy",
    }
    Image.fromarray(inputs.image).save(paths["image"])
    np.save(paths["probs"], inputs.unary)
    Image.fromarray(inputs.truth).save(paths["truth"])
    labels = inputs.unary.argmax(axis=-1).astype(np.uint8)
    labels[:2] = 255  # ignored
    Image.fromarray(labels).save(paths["labels"])
    np.save(paths["logits"], np.log(inputs.unary))
    return paths
