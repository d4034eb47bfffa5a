"""Modes on models with exact answers: the gap to log Z and the error of marginals, per family.

Reads models as `exact_families.py` does. One mode and ``--modes`` modes get the same budget, in
seconds of CPU time of one thread, so that a busy machine doesn't matter. Prints a Markdown table of
medians over seeds, averaged over the models of each family.

    python benchmarks/modes.py DIR [--modes 16] [--budget 1.0] [--seeds 3] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from pathlib import Path

import numpy as np

import proxfield as pf
from exact_families import load
from proxfield.core.solve.infer import infer_one
from proxfield.core.solve.request import Request
from proxfield.core.solve.rules.registry import make_rule
from proxfield.core.solve.search.modes import infer_modes


def run(field: pf.Field, modes: int, budget: float, seed: int) -> pf.Result:
    """`auto` with a budget in seconds of CPU time."""
    request = Request(make_rule("auto"), budget=budget, seed=seed, threads=1, now=time.thread_time)
    session = request.open(field)
    if modes == 1:
        return infer_one(field, request, session)
    return infer_modes(field, request, session, modes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--modes", type=int, default=16)
    parser.add_argument("--budget", type=float, default=1.0)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    paths = sorted(args.data.glob("*/*.uai"))
    if not paths:
        parser.error(f"no models below {args.data}")
    counts = (1, args.modes)
    rows: dict[str, dict[str, dict[int, list[float]]]] = defaultdict(dict)
    worst, longest = -np.inf, 0.0
    for path in paths:
        field, exact, marginals = load(path)
        for k in counts:
            run(field, k, 0.05, 0)  # compiles
            numbers = []
            for seed in range(args.seeds):
                result = run(field, k, args.budget, seed)
                error = float(np.abs(result.q - marginals).mean())
                gap = exact - result.log_z_bound
                numbers.append((gap, error, len(result.modes) or 1, result.seconds))
                worst, longest = max(worst, -gap), max(longest, result.seconds)
            median = np.median(numbers, axis=0).tolist()
            rows[path.parent.name].setdefault(path.stem, {})[k] = median
    print(f"| family | gap, 1 mode | gap, {args.modes} | error, 1 mode | error, {args.modes} |")
    print("|---|---|---|---|---|")
    for family, models in rows.items():
        one, many = (np.mean([m[k] for m in models.values()], axis=0) for k in counts)
        print(
            f"| {family} ({len(models)}) | {one[0]:.2f} | {many[0]:.2f} "
            f"| {one[1]:.4f} | {many[1]:.4f} |"
        )
    print(f"\nLargest bound − exact log Z: {worst:.2g}; longest run: {longest:.3f} s of CPU time")
    if args.json:
        columns = ("gap", "error", "modes", "seconds")
        models = {
            f"{family}/{name}": {str(k): dict(zip(columns, v, strict=True)) for k, v in by.items()}
            for family, by_name in rows.items()
            for name, by in by_name.items()
        }
        about = {"modes": args.modes, "budget": args.budget, "seeds": args.seeds}
        out = {**about, "largest_excess": worst, "longest_seconds": longest, "models": models}
        args.json.write_text(json.dumps(out, indent=2) + "\n")


if __name__ == "__main__":
    main()
