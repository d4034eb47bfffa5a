"""How close the lattice is to the exact kernel, next to the usual one-way lattice.

On crops of 60×40 pixels the kernel matrix is formed exactly (float64) and by the lattice, both are
normalized symmetrically, and three errors are taken: of the matrix (Frobenius), and of filtered
signals: sharp random distributions over 21 labels, and a random labelling of five labels.

    python benchmarks/dense_accuracy.py [--image FILE] [--peer PYTHON] [--json FILE]

With ``--peer`` (a Python that can import pydensecrf, see dense_speed.py) the same is measured for
pydensecrf's kernel, column by column.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from dense_speed import make_image

SETTINGS = {"σ 3": (3.0, None), "80/13": (80.0, 13.0), "67/3": (67.0, 3.0), "10/13": (10.0, 13.0)}


def features(image: np.ndarray, place: float, color: float | None) -> np.ndarray:
    """Positions (x, y) and colors in standard deviations.  # (n, 2) or (n, 5)"""
    h, w = image.shape[:2]
    y, x = np.mgrid[:h, :w]
    columns = [x / place, y / place]
    if color is not None:
        columns += [image[..., k] / color for k in range(3)]
    return np.stack(columns, axis=-1).reshape(h * w, -1).astype(np.float64)


def normalize(kernel: np.ndarray) -> np.ndarray:
    """k_ij / √(n_i n_j)."""
    root = 1 / np.sqrt(kernel.sum(axis=1) + 1e-20)
    return root[:, None] * kernel * root


def errors(kernel: np.ndarray, exact: np.ndarray) -> dict[str, float]:
    """Relative errors of a normalized kernel matrix."""
    n = len(exact)
    rng = np.random.default_rng(0)
    sharp = np.exp(3 * rng.normal(size=(n, 21)))
    signals = {
        "distributions": sharp / sharp.sum(axis=1, keepdims=True),
        "labelling": np.eye(5)[rng.integers(0, 5, n)],
    }
    out = {"matrix": relative(kernel - exact, exact)}
    for name, signal in signals.items():
        out[name] = relative((kernel - exact) @ signal, exact @ signal)
    out["asymmetry"] = relative(kernel - kernel.T, kernel)
    return out


def relative(a: np.ndarray, b: np.ndarray) -> float:
    """‖a‖ / ‖b‖."""
    return float(np.linalg.norm(a) / np.linalg.norm(b))


def peer_kernel(image: np.ndarray, place: float, color: float | None) -> np.ndarray:
    """pydensecrf's normalized kernel: one update from a one-hot start shows one column."""
    from pydensecrf import densecrf

    h, w = image.shape[:2]
    crf = densecrf.DenseCRF2D(w, h, 2)
    if color is None:
        crf.addPairwiseGaussian(place, 1.0)
    else:
        crf.addPairwiseBilateral(place, color, np.array(image), 1.0)
    out = np.zeros((h * w, h * w))
    for j in range(h * w):
        energies = np.zeros((2, h * w), dtype=np.float32)
        energies[1, j] = 20
        crf.setUnaryEnergy(energies)
        q = np.array(crf.inference(1), dtype=np.float64)
        out[:, j] = np.log(q[0]) - np.log(q[1])
        out[j, j] -= 20
    return out


def crops(path: Path | None) -> list[np.ndarray]:
    """Three crops of 60×40 pixels."""
    if path is None:
        image = make_image(500, 375)
    else:
        from PIL import Image

        image = np.array(Image.open(path).convert("RGB"))
    corners = [(100, 150), (0, 0), (image.shape[0] - 40, 100)]
    return [np.array(image[y : y + 40, x : x + 60]) for y, x in corners]


def measure(images: list[np.ndarray], side: str) -> dict[str, dict[str, float]]:
    """Mean errors over the crops, for each setting."""
    out: dict[str, dict[str, float]] = {}
    for name, (place, color) in SETTINGS.items():
        rows = []
        for image in images:
            f = features(image, place, color)
            square = np.zeros((len(f), len(f)))
            for column in f.T:
                square += (column[:, None] - column) ** 2
            exact = normalize(np.exp(-0.5 * square))
            if side == "peer":
                kernel = peer_kernel(image, place, color)
            else:
                from proxfield.core.filters.lattice import LatticeFilter

                kernel = normalize(LatticeFilter(f).apply(np.eye(len(f))))
            rows.append(errors(kernel, exact))
        out[name] = {key: float(np.mean([r[key] for r in rows])) for key in rows[0]}
    return out


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--image", type=Path, help="take the crops from this picture")
    parser.add_argument("--peer", help="a Python that can import pydensecrf")
    parser.add_argument("--json", type=Path, help="where to keep the numbers")
    parser.add_argument("--side", choices=("ours", "peer"), default="ours", help=argparse.SUPPRESS)
    options = parser.parse_args()
    images = crops(options.image)
    if options.side == "peer":
        print(json.dumps(measure(images, "peer")))
        return
    result: dict[str, Any] = {"proxfield": measure(images, "ours")}
    if options.peer:
        command = [options.peer, __file__, "--side", "peer"]
        command += ["--image", str(options.image)] if options.image else []
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        result["pydensecrf"] = json.loads(text)
    for side, table in result.items():
        for setting, row in table.items():
            text = ", ".join(
                f"{k} {v:.2e}" if k == "asymmetry" else f"{k} {v:.3f}" for k, v in row.items()
            )
            print(f"{side:11} {setting:6} {text}")
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
