"""Dense CRFs against pydensecrf, side by side: time, memory and growth with the image.

Each case is one image size and number of labels; both sides get the same image, unary energies,
weights (Gaussian σ 3 weight 3, bilateral σ 80 px / 13 levels weight 10) and 10 iterations, and the
time includes building the lattices. Runs are interleaved, each side in a process of its own that
has made one small run first (so kernels are compiled and libraries loaded). Memory is the peak of
the resident set above what it was with the inputs loaded.

    python benchmarks/dense_speed.py --peer PYTHON --json benchmarks/results/dense_speed.json

``--peer`` names a Python in which pydensecrf (``pip install pydensecrf2``) is importable; without
it only proxfield's own figures are taken. The image is generated (seeded): smooth regions, texture
and noise, so that lattices have about as many vertices per pixel as on photographs.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

CASES = [(500, 375, 21), (500, 375, 2), (1000, 750, 21), (2000, 1500, 21)]
GROWTH = [(500, 375), (1000, 750), (2000, 1500), (2828, 2121), (4000, 2000)]
ITERATIONS = 10


def make_image(width: int, height: int, seed: int = 0) -> np.ndarray:
    """A picture of colored regions with shading, texture and sensor noise.  # (h, w, 3) uint8"""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    y, x = y / height, x / width
    centers = rng.random((24, 2))
    colors = rng.integers(20, 235, (24, 3))
    nearest = np.zeros((height, width), dtype=np.int64)
    best = np.full((height, width), np.inf)
    for k, (cy, cx) in enumerate(centers):
        wave = 0.04 * np.sin(9 * x + k) * np.cos(7 * y - k)
        distance = (y - cy + wave) ** 2 + (x - cx + wave) ** 2
        nearest[distance < best] = k
        best = np.minimum(best, distance)
    shade = 1 + 0.25 * np.sin(5 * x + 3 * y)
    texture = 9 * np.sin(60 * x * (1 + y)) * np.sin(45 * y)
    image = colors[nearest] * shade[..., None] + texture[..., None]
    image += rng.normal(scale=4.0, size=image.shape)
    return np.clip(image, 0, 255).astype(np.uint8)


def make_energies(width: int, height: int, n_labels: int, seed: int = 1) -> np.ndarray:
    """Unary energies that favor regions, with noise.  # (labels, h · w) float32"""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    favorite = ((5 * x // width) + 5 * (4 * y // height)) % n_labels
    energies = rng.random((n_labels, height * width), dtype=np.float32) * 2 + 1
    energies[favorite.ravel(), np.arange(height * width)] -= 1.5
    return np.ascontiguousarray(energies)


def reset_peak() -> None:
    """Make the kernel forget the largest resident set so far."""
    Path("/proc/self/clear_refs").write_text("5")


def memory(key: str) -> float:
    """VmRSS or VmHWM in MB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) / 1024
    return float("nan")


def worker(side: str, threads: int) -> None:
    """Answer requests "width height labels" on stdin with one line of JSON each."""
    if side == "ours":
        import proxfield.compat.pydensecrf as settings
        from proxfield.compat.pydensecrf import densecrf

        settings.THREADS = threads
    else:
        from pydensecrf import densecrf
    inputs: dict[str, Any] = {}
    for line in sys.stdin:
        width, height, n_labels = (int(x) for x in line.split())
        if line not in inputs:
            inputs = {line: (make_image(width, height), make_energies(width, height, n_labels))}
        image, energies = inputs[line]
        before = memory("VmRSS")
        reset_peak()
        begun = time.perf_counter()
        crf = densecrf.DenseCRF2D(width, height, n_labels)
        crf.setUnaryEnergy(energies)
        crf.addPairwiseGaussian(3, 3)
        crf.addPairwiseBilateral(80, 13, image, 10)
        q = crf.inference(ITERATIONS)
        seconds = time.perf_counter() - begun
        answer = {
            "seconds": seconds,
            "megabytes": memory("VmHWM") - before,
            "labels": int(np.array(q).argmax(axis=0).sum()),
        }
        del q, crf
        print(json.dumps(answer), flush=True)


class Side:
    """A worker process."""

    def __init__(self, python: str, side: str, threads: int) -> None:
        self.process = subprocess.Popen(
            [python, __file__, "--worker", side, "--threads", str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": str(threads)},
        )
        self.ask(60, 40, 21)  # load and compile
        self.ask(60, 40, 2)
        self.ask(300, 200, 21)

    def ask(self, width: int, height: int, n_labels: int) -> dict[str, float]:
        """One run."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{width} {height} {n_labels}\n")
        self.process.stdin.flush()
        answer: dict[str, float] = json.loads(self.process.stdout.readline())
        return answer

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def compare(peer: str | None, repeats: int) -> list[dict[str, Any]]:
    """All cases, interleaved."""
    sides = {"ours, 1 thread": (sys.executable, "ours", 1)}
    sides["ours, 2 threads"] = (sys.executable, "ours", 2)
    if peer:
        sides["pydensecrf"] = (peer, "peer", 1)
    rows = []
    for width, height, n_labels in CASES:
        workers = {name: Side(*how) for name, how in sides.items()}
        runs: dict[str, list[dict[str, float]]] = {name: [] for name in workers}
        count = repeats if width < 1500 else max(3, repeats // 2 + 1)
        for _ in range(count):
            for name, side in workers.items():
                runs[name].append(side.ask(width, height, n_labels))
        for side in workers.values():
            side.close()
        row: dict[str, Any] = {"width": width, "height": height, "labels": n_labels, "runs": count}
        for name, answers in runs.items():
            seconds = sorted(a["seconds"] for a in answers)
            row[name] = {
                "median_seconds": seconds[len(seconds) // 2],
                "best_seconds": seconds[0],
                "worst_seconds": seconds[-1],
                "megabytes": max(a["megabytes"] for a in answers[:1]),
            }
        rows.append(row)
        print(describe(row), flush=True)
    return rows


def describe(row: dict[str, Any]) -> str:
    """One case as text."""
    out = [f"{row['width']}×{row['height']}, {row['labels']} labels ({row['runs']} runs each)"]
    peer = row.get("pydensecrf")
    for name in ("ours, 1 thread", "ours, 2 threads", "pydensecrf"):
        if name not in row:
            continue
        r = row[name]
        text = f"  {name:16} {r['median_seconds']:.3f} s ({r['best_seconds']:.3f} best)"
        text += f", {r['megabytes']:.0f} MB above the inputs"
        if peer and name != "pydensecrf":
            text += f"; {peer['median_seconds'] / r['median_seconds']:.2f} times as fast"
            text += f" ({peer['best_seconds'] / r['best_seconds']:.2f} by the best runs)"
            text += f", {100 * r['megabytes'] / peer['megabytes']:.0f} % of the memory"
        out.append(text)
    return "\n".join(out)


def growth(n_labels: int = 21) -> list[dict[str, Any]]:
    """Seconds per iteration and pixel for larger and larger images, on two threads."""
    import proxfield as pf
    from proxfield.core.engines import compile_program
    from proxfield.core.engines.plan import Kind, Update

    rows = []
    for width, height in [(120, 90), *GROWTH]:
        n = width * height
        y, x = np.mgrid[:height, :width].reshape(2, n).astype(np.float32)
        color = make_image(width, height).reshape(n, 3).astype(np.float32) / 13
        unary = np.ascontiguousarray(make_energies(width, height, n_labels).T)
        begun = time.perf_counter()
        spatial = pf.Gaussian(np.stack([x, y], 1) / 3, 3.0, self_message=True, filter="lattice")
        both = np.concatenate([np.stack([x, y], 1) / 80, color], axis=1)
        bilateral = pf.Gaussian(both, 10.0, self_message=True, filter="lattice")
        field = pf.Field(n, n_labels=n_labels, terms=[pf.Unary(unary), spatial, bilateral])
        program = compile_program(field.lower(), "cpu", "float32", 2)
        build = time.perf_counter() - begun
        state = program.start(np.full(n * n_labels, 1 / n_labels, dtype=np.float32))
        plan = Update(Kind.PROXIMAL, np.ones(n))
        program.advance(state, plan, 1, -1.0, False)
        begun = time.perf_counter()
        program.advance(state, plan, 5, -1.0, False)
        each = (time.perf_counter() - begun) / 5
        row = {"width": width, "height": height, "pixels": n, "build_seconds": build}
        row |= {"iteration_seconds": each, "nanoseconds_per_pixel": 1e9 * each / n}
        if n > 20_000:
            rows.append(row)
            print(
                f"{n / 1e6:5.2f} MP: {each * 1e3:7.1f} ms per iteration, "
                f"{row['nanoseconds_per_pixel']:.0f} ns per pixel; build {build:.2f} s",
                flush=True,
            )
        del program, state, field, spatial, bilateral
    return rows


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer", help="a Python that can import pydensecrf")
    parser.add_argument("--json", type=Path, help="where to keep the numbers")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--only", choices=("compare", "growth"))
    parser.add_argument("--worker", choices=("ours", "peer"), help=argparse.SUPPRESS)
    parser.add_argument("--threads", type=int, default=1, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options.worker, options.threads)
        return
    out: dict[str, Any] = {
        "machine": {"cores": os.cpu_count(), "system": platform.platform(), "cpu": cpu_name()},
        "iterations": ITERATIONS,
    }
    if options.only != "growth":
        out["compare"] = compare(options.peer, options.repeats)
    if options.only != "compare":
        out["growth"] = growth()
    if options.json:
        options.json.write_text(json.dumps(out, indent=1) + "\n")


def cpu_name() -> str:
    """The processor, where the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((x.split(":")[1].strip() for x in lines if x.startswith("model name")), "")


if __name__ == "__main__":
    main()
