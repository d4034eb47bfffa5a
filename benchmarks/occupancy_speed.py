"""Occupancy maps on one CPU thread: milliseconds of an iteration, and what they depend on.

- ``smidm``: 2 cameras of 160×120 pixels and 1332 locations, the example of the published program.
- ``wildtrack``: 7 cameras at a quarter of full HD, locations 10 cm apart (43,200).
- ``regular``: a camera and a regular grid of locations, every number of pixels with every number
  of locations. The cost is linear in both: a fit of ms = a + b·pixels + c·boxes is printed.

- ``cold``: whole frames of ``wildtrack`` by `Detector` with its defaults, everything from masks to
  detections, after one frame of the scene. ``--only-cold`` measures nothing else.

An iteration is an update of all locations by ``fixed`` with a small step, energy and gradient
included, in float64; ``kernel`` is the energy and the gradient alone. The least of some repetitions
counts, because other work on a machine only adds to it; the median is there too.

"settled" is the iteration from where 100 of these end, with many locations almost certain.

Run: python benchmarks/occupancy_speed.py [--data FOLDER] [--repeats N] [--json FILE]
    [--only-cold] [--no-regular] [--processor]

FOLDER holds ``smidm`` and ``wildtrack`` (see people_data.py); without it, only regular scenes run.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

import proxfield as pf
from proxfield.core.compiled.jit import thread_count
from proxfield.people.detect import Detector
from proxfield.people.numba.occupancy import OccupancyOnCpu
from proxfield.people.occupancy import Occupancy
from proxfield.people.scene import Scene

STEP = 0.05
ITERATIONS = 40
COLD_FRAMES = 5
PIXELS = ((120, 160), (240, 320), (480, 640), (960, 1280))
"""Heights and widths of regular scenes."""
LOCATIONS = (1_000, 10_000, 100_000)


def regular(height: int, width: int, n: int) -> list[pf.Boxes]:
    """Boxes an eighth as wide and a quarter as high as the image, on a grid over all of it."""
    rows = max(1, round((n * height / width) ** 0.5))
    columns = -(-n // rows)
    across, down = width // 8, height // 4
    left = np.linspace(0, width - across, columns).astype(np.int64)
    top = np.linspace(0, height - down, rows).astype(np.int64)
    y, x = (a.ravel()[:n] for a in np.meshgrid(top, left, indexing="ij"))
    return [pf.Boxes(height, width, np.stack([x, y, x + across, y + down], axis=1))]


def blobs(silhouettes: list[Any] | tuple[Any, ...], seed: int = 0) -> list[np.ndarray]:
    """Masks in which a few people stand."""
    rng = np.random.default_rng(seed)
    there = rng.choice(silhouettes[0].n_locations, size=8, replace=False)
    return [
        np.clip(s.cover(np.isin(np.arange(s.n_locations), there).astype(float)), 0, 1)
        for s in silhouettes
    ]


def smidm(folder: Path) -> tuple[list[pf.Boxes], list[np.ndarray]]:
    """The silhouettes and the masks of the first frame."""
    from PIL import Image

    from proxfield.io.pom import read_pom

    pom = read_pom(folder / "test.pom")
    paths = [folder / "images" / f"view-f160-c{c}.png" for c in pom.cameras]
    masks = [np.asarray(Image.open(p).convert("RGB")).mean(axis=2) / 255 for p in paths]
    pairs = zip(pom.sizes, pom.boxes, strict=True)
    return [pf.Boxes(height, width, boxes) for (width, height), boxes in pairs], masks


def wildtrack(folder: Path) -> tuple[list[pf.Boxes], list[np.ndarray]]:
    """The silhouettes and the masks of the first frame."""
    scene, (masks,) = wildtrack_frames(folder, 1)
    return list(scene.silhouettes), masks


@cache
def wildtrack_frames(folder: Path, count: int) -> tuple[Scene, list[list[np.ndarray]]]:
    """The scene and the masks of the first frames."""
    from people_data import wildtrack as recording

    found = recording(folder, spacing=0.1)
    return found.scene, [masks for _, masks, _ in islice(found, count)]


def cold(folder: Path, repeats: int) -> list[dict[str, Any]]:
    """Milliseconds of whole frames on one thread, and of the processor."""
    scene, frames = wildtrack_frames(folder, COLD_FRAMES + 1)
    rows = []
    for rule, params in (("backtracking", {}), ("fixed", {"step": 0.2})):
        detector = Detector(rule=rule, params=params, threads=1)
        detector.detect(scene, frames[0])
        wall, cpu = [], []
        for k in range(repeats * COLD_FRAMES):
            begun, used = time.perf_counter(), time.process_time()
            found = detector.detect(scene, frames[1 + k % COLD_FRAMES])
            cpu.append(1e3 * (time.process_time() - used))
            wall.append(1e3 * (time.perf_counter() - begun))
        least = [min(wall[k::COLD_FRAMES]) for k in range(COLD_FRAMES)]
        rows.append(
            {
                "rule": rule,
                "iterations": found.result.iterations,
                "frame_ms": statistics.mean(least),
                "frame_least_ms": min(wall),
                "frame_median_ms": statistics.median(wall),
                "processor_median_ms": statistics.median(cpu),
                "frames_ms": least,
            }
        )
        print(
            f"cold frame {rule:12} {rows[-1]['frame_ms']:.1f} ms (least of each of {COLD_FRAMES} "
            f"frames, mean; median of all {rows[-1]['frame_median_ms']:.1f}, of the processor's "
            f"time {rows[-1]['processor_median_ms']:.1f})",
            flush=True,
        )
    return rows


def measure(term: Occupancy, prior: float, repeats: int) -> dict[str, Any]:
    """Milliseconds of an iteration and of the kernel alone."""
    n = term.n_locations
    energies = np.tile([0.0, np.log((1 - prior) / prior)], (n, 1))
    field = pf.Field(n, 2, [pf.Unary(energies), term])
    options: dict[str, Any] = {"init": "unary", "tol": 0.0, "threads": 1, "dtype": "float64"}
    whole = []
    for _ in range(repeats + 1):
        result = pf.infer(field, "fixed", step=STEP, max_iters=ITERATIONS, **options)
        whole.append(1e3 * result.seconds / result.iterations)
    own = OccupancyOnCpu(term, field.layout, "float64")
    logs = np.log(result.q[::2].clip(1e-30))
    out, alone = np.zeros(n), []
    with thread_count(1):
        for _ in range(repeats + 1):
            begun = time.perf_counter()
            for _ in range(ITERATIONS):
                own.add_binary_gradient(logs, out)
            alone.append(1e3 * (time.perf_counter() - begun) / ITERATIONS)
    late = pf.infer(field, "fixed", step=STEP, max_iters=100, **options)
    settled = []
    options["init"] = late
    for _ in range(repeats + 1):
        result = pf.infer(field, "fixed", step=STEP, max_iters=ITERATIONS, **options)
        settled.append(1e3 * result.seconds / result.iterations)
    return {
        "model": term.model,
        "locations": n,
        "cameras": len(term.silhouettes),
        "pixels": sum(s.height * s.width for s in term.silhouettes),
        "boxes": sum(int(s.visible.sum()) for s in term.silhouettes),
        "iteration_ms": min(whole[1:]),
        "iteration_median_ms": statistics.median(whole[1:]),
        "kernel_ms": min(alone[1:]),
        "kernel_median_ms": statistics.median(alone[1:]),
        "settled_ms": min(settled[1:]),
        "settled_median_ms": statistics.median(settled[1:]),
        "settled_certain": int((late.q[::2] < 1e-6).sum()),
    }


def show(name: str, row: dict[str, Any]) -> None:
    """One line per case."""
    print(
        f"{name:10} {row['model']:6} {row['locations']:>7} locations {row['boxes']:>7} boxes "
        f"{row['pixels']:>8} pixels  iteration {row['iteration_ms']:8.3f} ms "
        f"(median {row['iteration_median_ms']:.3f})  kernel {row['kernel_ms']:8.3f} ms  "
        f"settled {row['settled_ms']:8.3f} ms ({row['settled_certain']} with p < 1e-6)",
        flush=True,
    )


def fit(rows: list[dict[str, Any]]) -> dict[str, float]:
    """ns per pixel and per box, and the largest relative error, of kernels that grow linearly."""
    design = np.array([[1.0, r["pixels"], r["boxes"]] for r in rows])
    ms = np.array([r["kernel_ms"] for r in rows])
    found, *_ = np.linalg.lstsq(design / ms[:, None], np.ones(len(ms)), rcond=None)
    error = np.abs(design @ found / ms - 1)
    return {
        "ns_per_pixel": 1e6 * float(found[1]),
        "ns_per_box": 1e6 * float(found[2]),
        "largest_relative_error": float(error.max()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", type=Path, help="folder with smidm and wildtrack")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--only-cold", action="store_true", help="whole frames only")
    parser.add_argument("--no-regular", action="store_true", help="no regular scenes")
    parser.add_argument(
        "--processor", action="store_true", help="seconds of the processor, for busy machines"
    )
    parser.add_argument("--json", type=Path, help="also write the figures here")
    args = parser.parse_args()
    if args.processor:  # everything here runs on one thread
        time.perf_counter = time.process_time
    found: dict[str, Any] = {
        "machine": {"cpu": platform.processor() or platform.machine(), "load": os.getloadavg()[0]},
        "seconds": "of the processor" if args.processor else "of the clock",
        "cases": [],
        "regular": [],
        "fit": {},
        "cold": [],
    }
    if args.data is not None and (args.data / "wildtrack").exists():
        found["cold"] = cold(args.data / "wildtrack", args.repeats)
    if args.only_cold:
        return
    for name, load, prior in (("smidm", smidm, 0.01), ("wildtrack", wildtrack, 1e-4)):
        if args.data is None or not (args.data / name).exists():
            continue
        silhouettes, masks = load(args.data / name)
        for model in ("exact", "ratio"):
            row = measure(Occupancy(silhouettes, masks, model=model), prior, args.repeats)
            show(name, row)
            found["cases"].append({"name": name, **row})
    for model in () if args.no_regular else ("exact", "ratio"):
        rows = []
        for height, width in PIXELS:
            for n in LOCATIONS:
                silhouettes = regular(height, width, n)
                term = Occupancy(silhouettes, blobs(silhouettes), model=model)
                rows.append(measure(term, 1e-3, max(3, args.repeats // 3)))
                show("regular", rows[-1])
        found["regular"] += rows
        found["fit"][model] = fit(rows)
        print(f"{model}: " + ", ".join(f"{k} {v:.3g}" for k, v in found["fit"][model].items()))
    if args.json is not None:
        args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
