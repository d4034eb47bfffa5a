"""Does F ever rise? Certified and searched steps on random scenes of occupancy maps.

Scenes have 1 to 40 locations, 1 to 4 cameras of 2 to 16 pixels a side, overlapping rectangles or
runs, hard and soft masks, weights and priors of all sizes; starts are random, some next to the
corners. Every rule makes 30 updates per scene; a rise is one beyond 1e-10 (1 + |F|).

    python benchmarks/occupancy_descent.py [--scenes 10000] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np

import proxfield as pf

ITERATIONS = 30
RULES = {
    "exact, fixed, certified-relative": ("exact", "fixed", {"step": "certified-relative"}),
    "exact, fixed, certified": ("exact", "fixed", {}),
    "exact, backtracking": ("exact", "backtracking", {}),
    "exact, backtracking from 1": ("exact", "backtracking", {"first": 1.0, "largest": 1.0}),
    "ratio, backtracking": ("ratio", "backtracking", {}),
}


def scene(rng: np.random.Generator, model: str) -> tuple[pf.Field, np.ndarray]:
    """A random scene and a start."""
    n = int(rng.integers(1, 41))
    silhouettes: list[pf.Silhouettes] = []
    masks = []
    for _ in range(int(rng.integers(1, 5))):
        height, width = rng.integers(2, 17, 2).tolist()
        if rng.random() < 0.2:
            inside = rng.random((n, height, width)) < rng.random()
            silhouettes.append(pf.Runs.from_masks(inside))
        else:
            x = np.sort(rng.integers(0, width + 1, (n, 2)), axis=1)
            y = np.sort(rng.integers(0, height + 1, (n, 2)), axis=1)
            boxes = np.stack([x[:, 0], y[:, 0], x[:, 1], y[:, 1]], axis=1)
            silhouettes.append(pf.Boxes(height, width, boxes))
        soft = rng.random((height, width))
        masks.append(soft if rng.random() < 0.5 else (soft < rng.random()).astype(float))
    miss, false_alarm = rng.uniform(0.02, 0.45, 2)
    term = pf.Occupancy(
        silhouettes, masks, model=model, miss=miss, false_alarm=false_alarm,
        strength=float(10 ** rng.uniform(-1, 2.5)), variance=float(10 ** rng.uniform(-3, 0)),
    )  # fmt: skip
    prior = rng.normal(size=(n, 2)) * 10 ** rng.uniform(-1, 1)
    q = rng.beta(*([10 ** rng.uniform(-1.5, 1)] * 2), size=n)
    start = np.stack([1 - q, q], axis=1)
    return pf.Field(n, 2, [term, pf.Unary(prior)]), start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scenes", type=int, default=10_000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results = {}
    for name, (model, rule, params) in RULES.items():
        begun, rises, worst, states = time.perf_counter(), 0, 0.0, 0
        for seed in range(options.scenes):
            field, start = scene(np.random.default_rng(seed), model)
            f = pf.infer(
                field, rule, init=start, max_iters=ITERATIONS, tol=0.0, threads=1, **params
            ).trace.free_energy
            f = f[np.isfinite(f)]
            excess = np.diff(f) - 1e-10 * (1 + np.abs(f[:-1]))
            rises += int((excess > 0).sum())
            worst = max(worst, float(excess.max(initial=0.0)))
            states += len(f)
        seconds = time.perf_counter() - begun
        print(
            f"{name:36} {rises} rises in {options.scenes} scenes, {states} states, {seconds:.0f} s"
        )
        results[name] = {"rises": rises, "worst": worst, "scenes": options.scenes, "states": states}
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
