"""Gaussian filtering over any features: a bilateral filter of an image, and a point cloud.

    python examples/gaussian_filter.py [-o PICTURE]

The image has smooth regions with noise; the points lie on a sheet with a step, each with a noisy
height, and are filtered by their place on the sheet and by that height, so that the step stays.
Prints the errors before and after, and draws both (needs ``pip install "proxfield[plot]"``).
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np

import proxfield as pf


def picture(size: int, rng: np.random.Generator) -> tuple[Any, Any]:
    """An image of flat shapes in front of a gradient, and the same with noise."""
    y, x = np.mgrid[:size, :size] / size
    clean = np.stack([0.25 + 0.5 * x, 0.35 + 0.2 * y, 0.75 - 0.4 * x], axis=-1)
    clean[(x - 0.35) ** 2 + (y - 0.4) ** 2 < 0.06] = [0.95, 0.75, 0.2]
    clean[np.abs(x - 0.7) + np.abs(y - 0.65) < 0.2] = [0.8, 0.15, 0.25]
    return clean, clean + 0.08 * rng.normal(size=clean.shape)


def cloud(n: int, rng: np.random.Generator) -> tuple[Any, Any, Any]:
    """Places anywhere in a square, heights of a sheet with a step, and the same with noise."""
    place = rng.random((n, 2))
    height = 0.3 * np.sin(3.0 * place[:, 0]) + 0.5 * (place[:, 1] > 0.5 + 0.1 * place[:, 0])
    return place, height, height + 0.08 * rng.normal(size=n)


def error(found: Any, truth: Any) -> float:
    """Root of the mean squared error."""
    return float(np.sqrt(np.mean((found - truth) ** 2)))


def main() -> None:
    """Filter both, print errors, draw."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("-o", "--output", type=Path, help="write a picture")
    parser.add_argument("--size", type=int, default=200, help="pixels per side of the image")
    parser.add_argument("--points", type=int, default=20_000)
    options = parser.parse_args()
    rng = np.random.default_rng(0)

    clean, noisy = picture(options.size, rng)
    place = np.stack(np.mgrid[: options.size, : options.size], axis=-1)
    start = time.perf_counter()
    blurred = pf.gaussian_filter(noisy, place, sigma=4.0)
    filtered = pf.bilateral_filter(noisy, sigma_space=8.0, sigma_color=0.25)
    print(f"image, {time.perf_counter() - start:.2f} s: errors (root mean square)")
    print(f"  with noise       {error(noisy, clean):.4f}")
    print(f"  Gaussian blur    {error(blurred, clean):.4f}")
    print(f"  bilateral filter {error(filtered, clean):.4f}")

    where, truth, height = cloud(options.points, rng)
    start = time.perf_counter()
    smooth = pf.gaussian_filter(height, where, sigma=0.05)
    features = np.column_stack([where / 0.05, height / 0.2])
    kept = pf.gaussian_filter(height, features)
    print(f"points, {time.perf_counter() - start:.2f} s: errors")
    print(f"  with noise          {error(height, truth):.4f}")
    print(f"  by place            {error(smooth, truth):.4f}")
    print(f"  by place and height {error(kept, truth):.4f}")
    if options.output is not None:
        draw(options.output, (noisy, blurred, filtered), where, (height, smooth, kept))


def draw(path: Path, images: Any, where: Any, heights: Any) -> None:
    """Images above, points from the side below."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 3, figsize=(9.0, 6.0), constrained_layout=True)
    titles = ("with noise", "Gaussian blur", "bilateral filter")
    for axis, image, title in zip(axes[0], images, titles, strict=True):
        axis.imshow(np.clip(image, 0, 1))
        axis.set_title(title)
        axis.axis("off")
    titles = ("points with noise", "filtered by place", "by place and height")
    near = np.abs(where[:, 0] - 0.5) < 0.1  # a slice through the sheet
    for axis, height, title in zip(axes[1], heights, titles, strict=True):
        axis.scatter(where[near, 1], height[near], s=1.0, linewidths=0)
        axis.set_title(title)
        axis.set_ylim(-0.1, 1.1)
        axis.set_xlabel("place")
    axes[1][0].set_ylabel("height")
    figure.savefig(path, dpi=80)
    pyplot.close(figure)


if __name__ == "__main__":
    main()
