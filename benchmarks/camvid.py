"""Semantic segmentation on real images: mean IoU of the unaries, of pydensecrf's setting, and of
every rule, with and without co-occurrence, after 10 and 100 iterations.

    python benchmarks/camvid.py --data FOLDER [--json FILE] [--images N]

FOLDER holds ``camvid_val/<stem>.png`` with ``<stem>_gt.png`` (class numbers; 11 is void) and
``camvid_unary/<stem>.npz`` (key ``prob``, uint8: p = exp(−(prob/20)²) at half the size) with
``cooccurrence.json``. The data are not part of the project.

The dense CRF is that of pydensecrf's best setting on these images: Gaussian σ 3 px weight 3,
bilateral σ 40 px / 5 levels weight 5. Co-occurrence is the paper's: κ = 20, β = 0.005 N;
"variables" keeps the presence of each class as a variable, "implicit" sums it out. Rows of the
table compare like with like: after 10 iterations over all images, and after 10 and 100 over those
that went on (``--long``).
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from joblib import Parallel, delayed
from PIL import Image

import proxfield as pf
from proxfield.core.engines import compile_program
from proxfield.core.solve.curvature import Curvature
from proxfield.core.solve.rules.base import Problem
from proxfield.core.solve.rules.registry import make_rule

CLASSES = [
    "sky", "building", "pole", "road", "pavement", "tree",
    "sign", "fence", "car", "pedestrian", "bicyclist",
]  # fmt: skip
LOOKS = (10, 100)
RULES: dict[str, tuple[str, dict[str, Any]]] = {
    "full-parallel": ("full-parallel", {}),
    "adhoc": ("adhoc", {}),
    "fixed (certified)": ("fixed", {"step": "certified-local"}),
    "fixed (step 0.5)": ("fixed", {"step": 0.5}),
    "momentum": ("momentum", {}),
    "adam": ("adam", {}),
}
FORMS = ("none", "variables", "implicit")


def read_unary(path: Path, shape: tuple[int, int]) -> np.ndarray:
    """Probabilities at the image's size.  # (h, w, classes) float32"""
    p = np.exp(-((np.load(path)["prob"] / 20.0) ** 2))
    p /= p.sum(axis=-1, keepdims=True)
    size = (shape[1], shape[0])
    channels = [
        np.asarray(Image.fromarray(c.astype(np.float32)).resize(size, Image.Resampling.BILINEAR))
        for c in np.moveaxis(p, -1, 0)
    ]
    up = np.stack(channels, axis=-1)
    return up / up.sum(axis=-1, keepdims=True)


def build(image: np.ndarray, p: np.ndarray, form: str, statistics: Any) -> pf.Field:
    """The field of one image."""
    h, w, n_labels = p.shape
    n = h * w
    y, x = np.mgrid[:h, :w].reshape(2, n).astype(np.float32)
    place = np.stack([x, y], axis=1)
    both = np.concatenate([place / 40, image.reshape(n, 3).astype(np.float32) / 5], axis=1)
    energies = -np.log(np.maximum(p.reshape(n, n_labels), 1e-5)).astype(np.float32)
    if form == "variables":
        field = pf.Field(np.append(np.full(n, n_labels), np.full(n_labels, 2)))
        field.add(pf.Unary(energies, np.arange(n)))
    else:
        field = pf.Field(n, n_labels=n_labels).add(pf.Unary(energies))
    field.add(pf.Gaussian(place / 3, 3.0, self_message=True, filter="lattice"))
    field.add(pf.Gaussian(both, 5.0, self_message=True, filter="lattice"))
    if form != "none":
        term = pf.Cooccurrence(statistics, pixels=n, always=(), latent=form)
        field.add(term)
    return field


def start(field: pf.Field, n: int, n_labels: int, p: np.ndarray) -> np.ndarray:
    """Marginals of the unaries; presence variables even."""
    q = np.full(field.layout.size, 0.5, dtype=np.float32)
    q[: n * n_labels] = np.maximum(p.reshape(-1), 1e-5)
    rows = q[: n * n_labels].reshape(n, n_labels)
    rows /= rows.sum(axis=1, keepdims=True)
    return q


def add_confusion(total: np.ndarray, truth: np.ndarray, guess: np.ndarray) -> None:
    """Count pixels by true and guessed class; void is left out."""
    seen = truth < len(total)
    np.add.at(total, (truth[seen], guess[seen]), 1)


def scores(confusion: np.ndarray) -> dict[str, Any]:
    """Pixel accuracy, mean IoU and IoU of each class."""
    hit = np.diag(confusion)
    iou = hit / (confusion.sum(axis=0) + confusion.sum(axis=1) - hit)
    return {
        "accuracy": float(hit.sum() / confusion.sum()),
        "mean_iou": float(iou.mean()),
        "iou": dict(zip(CLASSES, iou.round(4).tolist(), strict=True)),
    }


def refine(
    data: Path, stem: str, goes_on: bool, threads: int | None
) -> tuple[dict[str, np.ndarray], dict[str, float], dict[str, float]]:
    """One image by every rule and form: confusions, last changes, seconds."""
    statistics = pf.CooccurrenceStatistics.load(
        data / "camvid_unary/cooccurrence.json", min_pixels=100
    )
    image = np.asarray(Image.open(data / f"camvid_val/{stem}.png").convert("RGB"))
    truth = np.asarray(Image.open(data / f"camvid_val/{stem}_gt.png"))
    p = read_unary(data / f"camvid_unary/{stem}.npz", truth.shape)
    h, w, n_labels = p.shape
    confusion: dict[str, np.ndarray] = {}
    moving: dict[str, float] = {}
    seconds: dict[str, float] = {}

    def add(key: str, guess: np.ndarray) -> None:
        confusion[key] = np.zeros((len(CLASSES), len(CLASSES)), dtype=np.int64)
        add_confusion(confusion[key], truth, guess.argmax(axis=-1))

    for key in ("unaries", *(["unaries, long"] if goes_on else [])):
        add(key, p)
    for form in FORMS:
        field = build(image, p, form, statistics)
        lowered = field.lower()
        program = compile_program(lowered, "cpu", "float32", threads)
        problem = Problem(lowered, Curvature(lowered, field, "cpu"))
        for name, (rule, params) in RULES.items():
            begun = time.perf_counter()
            plan = make_rule(rule, params).plan(problem)
            state = program.start(start(field, h * w, n_labels, p))
            done = 0
            for look in LOOKS if goes_on else LOOKS[:1]:
                rows = program.advance(state, plan, look - done, 0.0, False)
                done = look
                guess = program.marginals(state)[: h * w * n_labels].reshape(h, w, n_labels)
                sets = ["long"] if goes_on else []
                for which in [*sets, *(["all"] if look == LOOKS[0] else [])]:
                    key = f"{form}|{name}|{look}|{which}"
                    add(key, guess)
                    moving[key] = float(rows.change[-1])
            seconds[f"{form}|{name}"] = time.perf_counter() - begun
    print(stem, flush=True)
    return confusion, moving, seconds


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--images", type=int, help="only the first N")
    parser.add_argument(
        "--long", type=int, default=26, help="100 iterations on every k-th: N images"
    )
    parser.add_argument("--threads", type=int, help="for each image")
    parser.add_argument("--jobs", type=int, default=1, help="images at a time")
    options = parser.parse_args()
    stems = sorted(p.stem for p in (options.data / "camvid_unary").glob("*.npz"))[: options.images]
    every = -(-len(stems) // (options.long or len(stems)))
    confusion: dict[str, np.ndarray] = {}
    moving: dict[str, list[float]] = {}
    seconds: dict[str, float] = {}
    tasks = (
        delayed(refine)(options.data, stem, k % every == 0, options.threads)
        for k, stem in enumerate(stems)
    )
    for found, moved, spent in Parallel(n_jobs=options.jobs)(tasks):
        for key, counts in found.items():
            confusion[key] = confusion.get(key, 0) + counts
        for key, change in moved.items():
            moving.setdefault(key, []).append(change)
        for key, each in spent.items():
            seconds[key] = seconds.get(key, 0.0) + each
    out: dict[str, Any] = {"images": len(stems)}
    for key in ("unaries", "unaries, long"):
        out[key] = scores(confusion.pop(key))
    out["runs"] = [
        {
            "cooccurrence": key.split("|")[0],
            "rule": key.split("|")[1],
            "iterations": int(key.split("|")[2]),
            "images": len(moving[key]),
            "still_moving": sum(m > 0.01 for m in moving[key]),
            "largest_change": max(moving[key]),
            **scores(total),
        }
        for key, total in confusion.items()
    ]
    out["seconds_per_image_of_100_iterations"] = {k: v / len(stems) for k, v in seconds.items()}
    print(f"unaries: {out['unaries']['mean_iou']:.4f}")
    for run in out["runs"]:
        print(
            f"{run['cooccurrence']:10} {run['rule']:18} {run['iterations']:4} iterations, "
            f"{run['images']:2} images: "
            f"mean IoU {run['mean_iou']:.4f}, accuracy {run['accuracy']:.4f}, "
            f"still moving on {run['still_moving']} images"
        )
    if options.json:
        options.json.write_text(json.dumps(out, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
