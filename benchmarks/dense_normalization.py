"""What carries over from pydensecrf in each normalization: sums of the kernel, and labels.

Without normalization a weight multiplies the plain sums of the kernel; here they are compared with the
exact ones. For all normalizations, labels after 10 iterations are compared with the peer's.

    python benchmarks/dense_normalization.py --peer PYTHON [--image FILE] [--json FILE]

The peer is a Python that can import pydensecrf (see dense_speed.py); without --image it needs
scikit-image too, for a crop of its picture "astronaut".
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

CROP = (slice(100, 220), slice(150, 310))
TERMS: dict[str, tuple[float, float | None]] = {
    "σ 3": (3, None),
    "80/13": (80, 13),
    "30/5": (30, 5),
}
NORMALIZATIONS = ("none", "before", "after", "symmetric")
WEIGHTS = (3.0, 9.0)
WEAK = 1e-3
"""A weight at which one update is linear in the sums of the kernel."""


def measure(dcrf: Any, image: np.ndarray) -> dict[str, np.ndarray]:
    """Sums of the kernel without normalization, and labels, with either library."""
    h, w = image.shape[:2]
    out = {}
    for name, (place, color) in TERMS.items():
        unary = np.zeros((2, h * w), dtype=np.float32)
        unary[1] = 2.0
        crf = dcrf.DenseCRF2D(w, h, 2)
        crf.setUnaryEnergy(unary)
        if color is None:
            crf.addPairwiseGaussian(place, WEAK, normalization=0)
        else:
            crf.addPairwiseBilateral(place, color, image, WEAK, normalization=0)
        q = np.array(crf.inference(1)).astype(float)
        start = np.tanh(1.0)  # difference of the labels' probabilities
        out[f"sums {name}"] = (np.log(q[0] / q[1]) - 2.0) / WEAK / start
    bright = np.clip(image.mean(axis=-1).ravel() / 255, 0.05, 0.95)
    unary = -np.log(np.stack([1 - bright, bright])).astype(np.float32)
    for number, name in enumerate(NORMALIZATIONS):
        crf = dcrf.DenseCRF2D(w, h, 2)
        crf.setUnaryEnergy(np.ascontiguousarray(unary))
        crf.addPairwiseGaussian(3, WEIGHTS[0], normalization=number)
        crf.addPairwiseBilateral(80, 13, image, WEIGHTS[1], normalization=number)
        out[f"labels {name}"] = np.argmax(np.array(crf.inference(10)), axis=0)
    return out


def exact_sums(image: np.ndarray, place: float, color: float | None) -> np.ndarray:
    """Σ_j k_ij of all pixels, in blocks."""
    y, x = np.mgrid[: image.shape[0], : image.shape[1]]
    columns = [y / place, x / place]
    if color is not None:
        columns += [image[..., k] / color for k in range(3)]
    points = np.stack(columns, axis=-1).reshape(len(y.ravel()), -1)
    sums = np.empty(len(points))
    for start in range(0, len(points), 500):
        block = points[start : start + 500, None] - points[None]
        sums[start : start + 500] = np.exp(-0.5 * (block**2).sum(axis=-1)).sum(axis=1)
    return sums


def as_peer(folder: str, image: str | None) -> None:
    """Measure the original, in its own interpreter."""
    import pydensecrf.densecrf as dcrf

    if image is None:
        from skimage import data

        pixels = data.astronaut()[CROP]
    else:
        from PIL import Image

        pixels = np.array(Image.open(image).convert("RGB"))
    pixels = np.ascontiguousarray(pixels)
    np.savez(Path(folder) / "peer.npz", image=pixels, **measure(dcrf, pixels))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer", help="a Python that can import pydensecrf")
    parser.add_argument("--image", help="a picture; by default a crop of astronaut")
    parser.add_argument("--json", help="write the figures there")
    parser.add_argument("--as-peer", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.as_peer is not None:
        as_peer(args.as_peer, args.image)
        return
    if args.peer is None:
        parser.error("expected --peer")
    from proxfield.compat.pydensecrf import densecrf

    with tempfile.TemporaryDirectory() as folder:
        more = [] if args.image is None else ["--image", args.image]
        subprocess.run([args.peer, __file__, "--as-peer", folder, *more], check=True)
        with np.load(Path(folder) / "peer.npz") as stored:
            peer = dict(stored)
    image = peer["image"]
    ours = measure(densecrf, image)
    figures: dict[str, Any] = {"shape": image.shape}
    for name, term in TERMS.items():
        exact = exact_sums(image.astype(float), *term)
        for who, found in (("peer", peer), ("ours", ours)):
            share = np.percentile(found[f"sums {name}"] / exact, [5, 50, 95])
            figures[f"sums {name} {who}"] = share.round(3).tolist()
    for name in NORMALIZATIONS:
        same = peer[f"labels {name}"] == ours[f"labels {name}"]
        figures[f"labels {name}"] = round(float(same.mean()), 4)
    for key, value in figures.items():
        print(f"{key:24} {value}")
    if args.json:
        Path(args.json).write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
