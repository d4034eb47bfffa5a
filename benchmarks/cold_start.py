"""How long does a first call take, with nothing compiled yet?

Each case runs in a fresh process. CPU seconds are user and system time of that process and its
children, imports included; compiled kernels are counted by numba's own events. ``command`` cases
are whole commands, ``proxfield solve`` of a grid of 100 binary variables by several rules; these
and ``fresh`` cases start from an empty cache. ``after`` cases follow a dense inference with default
settings that filled the cache, and what they add is the difference from the same case with all of
it cached.

    python benchmarks/cold_start.py [--repeats 1] [--json FILE]

Timings depend on what else the machine does; CPU seconds do so less than wall time.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from proxfield.bench.machine import metadata
from proxfield.core.compiled.jit import max_threads

SCRIPT = """
import json, os, sys, time
import numpy as np
import proxfield as pf

def image(shape, labels, channels, smooth=False, **options):
    at = np.indices(shape).sum(axis=0)
    pixels = np.stack([at * (c + 1) // 2 % 256 for c in range(channels)], axis=-1)
    if not smooth:  # as sparse among the vertices of a lattice as pixels of photographs are
        pixels = pixels + np.random.default_rng(1).normal(scale=12, size=pixels.shape)
    pixels = pixels.clip(0, 255).astype(np.uint8)
    if channels == 1:
        pixels = pixels[..., 0]
    p = np.random.default_rng(0).dirichlet(np.ones(labels), size=shape)
    return pf.DenseCRF(pixels, p, **options)

def grid(labels):
    import tempfile
    from proxfield.generate import grid
    with tempfile.TemporaryDirectory() as folder:
        pf.write_uai(grid(20, 20, n_labels=labels), f"{folder}/grid.uai")
        return pf.read_uai(f"{folder}/grid.uai")

from proxfield.core.compiled.notice import compiled_kernels
with compiled_kernels() as names:
    CASE
spent = os.times()
print(json.dumps({"cpu": sum(spent[:4]), "kernels": len(names)}))
"""
COMMAND = """
import json, os, subprocess, sys, tempfile
import proxfield as pf
from proxfield.generate import grid
with tempfile.TemporaryDirectory() as folder:
    pf.write_uai(grid(10, 10, seed=1), f"{folder}/grid.uai")
    before = os.times()
    subprocess.run(
        [sys.executable, "-m", "proxfield", "solve", f"{folder}/grid.uai", "--rule", "CASE"],
        check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )
    after = os.times()
print(json.dumps({"cpu": sum(after[2:4]) - sum(before[2:4])}))
"""
RULES = ("fixed", "momentum", "adam", "sweep", "auto")
DENSE = "image((240, 320), 21, 3).infer(max_iters=10)"
FRESH = {
    "dense, 320×240, 21 labels, 3 channels, with texture": DENSE,
    "dense, smooth colors": "image((240, 320), 21, 3, smooth=True).infer(max_iters=10)",
    "dense, float64": 'image((240, 320), 21, 3).infer(max_iters=10, dtype="float64")',
    "sparse, UAI grid, 2 labels": "pf.infer(grid(2))",
    "sparse, UAI grid, 4 labels": "pf.infer(grid(4))",
}
AFTER = {
    "the same again": DENSE,
    "smooth colors": "image((240, 320), 21, 3, smooth=True).infer(max_iters=10)",
    "2 labels": "image((240, 320), 2, 3).infer(max_iters=10)",
    "1 channel": "image((240, 320), 21, 1).infer(max_iters=10)",
    "6 channels": "image((240, 320), 21, 6).infer(max_iters=10)",
    "a volume": "image((24, 48, 48), 5, 1, batch=False).infer(max_iters=10)",
    **{
        f"normalization={name}": f"image((240, 320), 21, 3, normalization='{name}').infer()"
        for name in ("none", "before", "after")
    },
    "step=0.5": "image((240, 320), 21, 3).infer(step=0.5, max_iters=10)",
}


def measure(case: str, cache: str, script: str = SCRIPT) -> dict[str, Any]:
    """One case in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", script.replace("CASE", case)],
        env={**os.environ, "PROXFIELD_CACHE_DIR": cache, "PROXFIELD_QUIET": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def best(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The row with the least CPU time."""
    return min(rows, key=lambda row: float(row["cpu"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--json")
    args = parser.parse_args()
    about = metadata("none", max_threads())
    about["command"] = f"python benchmarks/cold_start.py --repeats {args.repeats}"
    out: dict[str, Any] = {**about, "command": {}, "fresh": {}, "after": {}}
    print("| proxfield solve, 100 variables | CPU seconds | with kernels cached |\n|---|---|---|")
    for rule in RULES:
        rows = []
        for _ in range(args.repeats):
            with tempfile.TemporaryDirectory() as cache:
                rows.append(measure(rule, cache, COMMAND))
                rows[-1]["again"] = measure(rule, cache, COMMAND)["cpu"]
        out["command"][rule] = row = best(rows)
        print(f"| --rule {rule} | {row['cpu']:.2f} | {row['again']:.2f} |", flush=True)
    print()
    print("| case | CPU seconds | kernels compiled |\n|---|---|---|")
    for name, case in FRESH.items():
        rows = []
        for _ in range(args.repeats):
            with tempfile.TemporaryDirectory() as cache:
                rows.append(measure(case, cache))
        out["fresh"][name] = row = best(rows)
        print(f"| {name} | {row['cpu']:.1f} | {row['kernels']} |", flush=True)
    print("\n| then | CPU seconds more than cached | kernels compiled |\n|---|---|---|")
    for name, case in AFTER.items():
        rows = []
        for _ in range(args.repeats):
            with tempfile.TemporaryDirectory() as cache:
                measure(DENSE, cache)
                first, again = measure(case, cache), measure(case, cache)
            more = first["cpu"] - again["cpu"]
            rows.append({"cpu": more, "cached": again["cpu"], "kernels": first["kernels"]})
        out["after"][name] = row = best(rows)
        print(f"| {name} | {row['cpu']:.1f} | {row['kernels']} |", flush=True)
    if args.json:
        Path(args.json).write_text(
            json.dumps(out, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
        )


if __name__ == "__main__":
    main()
