"""Settings of a dense CRF tuned on one half of the road scenes and measured on the other half.

    python benchmarks/tune_camvid.py --data FOLDER --json FILE [--store FILE] [--jobs N]

FOLDER is that of ``camvid.py``. The 26 images are one continuous clip, so the halves are its first
and its second 13 frames; frames taken in turn would be near copies of each other. `proxfield.tune`
(mean IoU, two folds) searches on every third frame of a half, to save time, and the settings it
returns are measured on all frames of the other half, beside the presets. With ``--store`` a run
that was stopped continues.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import proxfield as pf
from camvid import CLASSES, read_unary
from proxfield.images.metrics import accuracy, count_regions, mean_iou, read_truth

VOID = 11
MEASURED = ("gentle", "krahenbuehl")
"""Presets to measure too: the default, and the one that most people know."""

Scene = tuple[np.ndarray, np.ndarray, np.ndarray]
"""An image, probabilities, true labels."""


def read_scenes(data: Path) -> list[Scene]:
    """The 26 road scenes with a network's probabilities."""
    scenes = []
    for path in sorted((data / "camvid_unary").glob("*.npz")):
        image = np.asarray(Image.open(data / f"camvid_val/{path.stem}.png").convert("RGB"))
        truth = np.asarray(Image.open(data / f"camvid_val/{path.stem}_gt.png"))
        scenes.append((image, read_unary(path, truth.shape), truth))
    return scenes


def measure(scenes: list[Scene], preset: Any) -> dict[str, Any]:
    """Scores of one setting (None: no CRF), from one confusion matrix over the scenes."""
    total = np.zeros((3, len(CLASSES)), dtype=np.int64)
    for image, p, truth in scenes:
        labels = p.argmax(axis=-1)
        if preset is not None:
            labels = pf.DenseCRF(image, p, preset=preset).infer().labels
        known = read_truth(truth, labels.shape, len(CLASSES), (VOID,))
        total += count_regions(known, labels, len(CLASSES))
    right, true, found = total
    iou = right / np.maximum(1, true + found - right)
    return {
        "mean_iou": mean_iou(total),
        "accuracy": accuracy(total),
        "iou": dict(zip(CLASSES, iou.round(4).tolist(), strict=True)),
    }


def show(progress: pf.TuneProgress) -> None:
    """One line per trial."""
    best = progress.best
    where = "all" if progress.phase == 0 else f"fold {progress.phase}/{progress.phases}"
    now = "" if best is None else f"best {best.score:.4f} {best.point} {best.updates}"
    print(f"  {where} {progress.tried}: no CRF {progress.baseline:.4f}, {now}", flush=True)


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--store", type=Path)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--every", type=int, default=3, help="tune on every k-th frame of a half")
    parser.add_argument("--only", choices=["first", "second"], help="tune on this half alone")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--threads", type=int)
    options = parser.parse_args()
    scenes = read_scenes(options.data)
    middle = len(scenes) // 2
    halves = {"first": scenes[:middle], "second": scenes[middle:]}
    out: dict[str, Any] = {"images": len(scenes), "directions": []}
    out.update(trials=options.trials, tuned_on_every=options.every)
    for here, there in (("first", "second"), ("second", "first")):
        if options.only not in (None, here):
            continue
        images, probabilities, truth = zip(*halves[here][:: options.every], strict=True)
        found = pf.tune(
            images,
            probabilities,
            truth,
            ignore=VOID,
            trials=options.trials,
            folds=2,
            jobs=options.jobs,
            threads=options.threads,
            store=options.store,
            labels_axis=-1,
            callback=show,
        )
        print(f"{here} half: {found.verdict}\n{found.to_toml()}", flush=True)
        other = halves[there]
        scores = {"no CRF": measure(other, None), "tuned": measure(other, found.config)}
        scores.update({name: measure(other, name) for name in MEASURED})
        out["directions"].append(
            {
                "tuned_on": here,
                "measured_on": there,
                "improved": found.improved,
                "config": found.config,
                "no_crf_here": found.baseline,
                "held_out_here": found.held_out,
                "all_here": found.best.score,
                "settings_tried": len(found.table),
                "scores": scores,
            }
        )
        for name, score in scores.items():
            print(f"{there:7} {name:12} {score['mean_iou']:.4f} {score['accuracy']:.4f}")
    gains = [
        d["scores"]["tuned"]["mean_iou"] - d["scores"]["no CRF"]["mean_iou"]
        for d in out["directions"]
    ]
    out["gains"], out["mean_gain"] = gains, float(np.mean(gains))
    print(f"mean gain over the other half: {out['mean_gain']:+.4f} ({gains})")
    if options.json:
        options.json.write_text(json.dumps(out, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
