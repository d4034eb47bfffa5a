"""Refining with the presets on several sets of images with known labels: better than no CRF?

    python benchmarks/refine_sets.py [--data FOLDER] [--json FILE] [--picture FILE]

Sets: generated scenes; and, with FOLDER (that of ``camvid.py``), every fourth road scene with the
network's probabilities p as they are ("road scenes"), with p^½, normalized ("less sure"), at an
eighth of the image's size ("coarse", as networks for photographs give them), and with noise that is
correlated over a few pixels ("noisy", as pixel-wise classifiers give them). ``--picture`` draws one
generated scene (the page docs/concepts/when-a-crf-helps.md shows it).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from scipy.ndimage import gaussian_filter

import proxfield as pf
from proxfield.images.metrics import count_regions, mean_iou, read_truth
from tune_camvid import VOID, Scene, read_scenes

COLORS = np.array([[150, 190, 225], [95, 95, 100], [70, 110, 55], [225, 215, 205], [190, 60, 45]])
"""Sky, road, trees, poles, signs."""
GENERATED = 6
LOW_CONTRAST = 0.15
FACTOR = 8


def resized(p: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """Probabilities at another size, bilinear.  # (h, w, labels)"""
    size = (shape[1], shape[0])
    bilinear = Image.Resampling.BILINEAR
    planes = [
        Image.fromarray(c.astype(np.float32)).resize(size, bilinear) for c in p.T.swapaxes(1, 2)
    ]
    out = np.stack([np.asarray(plane) for plane in planes], axis=-1)
    return out / out.sum(axis=-1, keepdims=True)


def generated(seed: int, contrast: float = 1.0) -> Scene:
    """A street with thin poles and small signs, and a classifier that sees it coarsely.

    Args:
        seed: Random seed.
        contrast: Of the colors: at 0.15, those of neighbors differ by little more than their noise.
    """
    rng = np.random.default_rng(seed)
    h, w = 160, 240
    y, x = np.mgrid[:h, :w]
    truth = np.where(y > 105 + 6 * np.sin(x / 40 + seed), 1, 0)
    for _ in range(4):
        cx, cy, r = rng.integers(0, w), rng.integers(60, 100), rng.integers(14, 30)
        wave = 3 * np.sin(np.arctan2(y - cy, x - cx) * 9)
        truth[((x - cx) ** 2 + (y - cy) ** 2 < (r + wave) ** 2) & (y < 110)] = 2
    for _ in range(4):
        cx, top = rng.integers(10, w - 10), rng.integers(30, 60)
        truth[(abs(x - cx) < 2) & (y > top) & (y < 125)] = 3
        truth[(abs(x - cx) < 6) & (abs(y - top) < 6)] = 4
    light = 1 + 0.12 * np.sin(x / 25 + seed) * np.cos(y / 30)
    texture = gaussian_filter(rng.normal(size=(h, w)), 1.5)
    colors = contrast * COLORS + (1 - contrast) * COLORS.mean(axis=0)
    image = colors[truth] * (light + 0.5 * texture * (truth == 2))[..., None]
    image = gaussian_filter(image, (0.6, 0.6, 0)) + rng.normal(0, 4, (h, w, 3))
    scores = gaussian_filter(3.2 * np.eye(5)[truth], (1.6, 1.6, 0))
    p = np.exp(scores + 1.1 * gaussian_filter(rng.normal(size=scores.shape), (2, 2, 0)) * 5)
    p = (p / p.sum(axis=-1, keepdims=True)).astype(np.float32)
    return image.clip(0, 255).astype(np.uint8), p, truth.astype(np.uint8)


def less_sure(scene: Scene) -> Scene:
    """p^½, normalized."""
    image, p, truth = scene
    q = np.sqrt(p)
    return image, q / q.sum(axis=-1, keepdims=True), truth


def coarse(scene: Scene) -> Scene:
    """Probabilities at an eighth of the size, resized."""
    image, p, truth = scene
    h, w, labels = p.shape
    blocks = p.reshape(h // FACTOR, FACTOR, w // FACTOR, FACTOR, labels).mean(axis=(1, 3))
    return image, resized(blocks, (h, w)), truth


def noisy(scene: Scene) -> Scene:
    """Noise in log p, correlated over a few pixels."""
    image, p, truth = scene
    rng = np.random.default_rng(int(truth.sum()) % 2**31)
    noise = gaussian_filter(rng.normal(size=p.shape).astype(np.float32), (2, 2, 0))
    q = np.maximum(p, 1e-5) * np.exp(1.5 * noise / noise.std())
    return image, q / q.sum(axis=-1, keepdims=True), truth


def score(scenes: list[Scene], preset: str | None) -> float:
    """Mean IoU from one confusion matrix."""
    total: Any = 0
    for image, p, truth in scenes:
        labels = p.argmax(axis=-1)
        if preset is not None:
            labels = pf.DenseCRF(image, p, preset=preset, labels_axis=-1).infer().labels
        known = read_truth(truth, labels.shape, p.shape[-1], (VOID,))
        total = total + count_regions(known, labels, p.shape[-1])
    return mean_iou(total)


def draw(path: Path) -> None:
    """Image, truth, the classifier's labels, refined gently and strongly; two contrasts below
    each other."""
    picture = []
    for contrast in (1.0, LOW_CONTRAST):
        image, p, truth = generated(1, contrast)
        maps = {"no CRF": p.argmax(axis=-1)}
        for preset in ("gentle", "krahenbuehl"):
            maps[preset] = pf.DenseCRF(image, p, preset=preset).infer().labels
        gap = np.full((image.shape[0], 6, 3), 255)
        panels = [image, gap, COLORS[truth]]
        for name, labels in maps.items():
            panels += [gap, COLORS[labels]]
            counts = count_regions(truth.astype(np.int64), labels, len(COLORS))
            right, true, found = counts
            each = (right / np.maximum(1, true + found - right)).round(2)
            print(f"contrast {contrast:g} {name:12} {mean_iou(counts):.4f} {each}")
        row = np.concatenate(panels, axis=1)
        picture += [row, np.full((6, row.shape[1], 3), 255)]
    rows = np.concatenate(picture[:-1]).astype(np.uint8)
    Image.fromarray(rows).save(path, optimize=True)


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--every", type=int, default=4)
    options = parser.parse_args()
    if options.picture:
        draw(options.picture)
        return
    sets: dict[str, Callable[[], list[Scene]]] = {
        "generated, clear colors": lambda: [generated(k) for k in range(GENERATED)],
        "generated, similar colors": lambda: [generated(k, LOW_CONTRAST) for k in range(GENERATED)],
    }
    if options.data:
        roads = read_scenes(options.data)[:: options.every]
        sets["road scenes"] = lambda: roads
        for name, change in (("less sure", less_sure), ("coarse", coarse), ("noisy", noisy)):
            sets[f"road scenes, {name}"] = lambda change=change: [change(s) for s in roads]
    out: dict[str, dict[str, float]] = {}
    for name, make in sets.items():
        scenes = make()
        out[name] = {"images": len(scenes), "no CRF": score(scenes, None)}
        out[name].update({preset: score(scenes, preset) for preset in pf.PRESETS})
        print(name, {k: round(v, 4) for k, v in out[name].items()}, flush=True)
        if options.json:
            options.json.write_text(json.dumps(out, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
