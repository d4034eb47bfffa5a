"""How often the status OSCILLATING is false: runs that have it and converge when they go on.

Each rule runs on small fields of four kinds (grids of two labels, of several, two coupled layers,
random terms), once per length of ``--lengths``. A claim is false if the same run with ``--longest``
iterations reaches a fixed point; a status flips if a longer run of the same field doesn't have it
any more. The seed decides everything; times play no part.

    python benchmarks/statuses.py [--fields 2000] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

import proxfield as pf
from proxfield.generate import SIGNS, grid, rbm
from seeded_fields import random_field

RULES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("full-parallel", {}),
    ("adhoc", {}),
    ("adhoc", {"eta": 0.9}),
    ("fixed", {"step": 0.7}),
    ("fixed", {"step": 1.5}),
    ("momentum", {}),
    ("momentum", {"variant": "printed"}),
    ("adam", {}),
    ("adam", {"variant": "printed"}),
)
LENGTHS = (50, 100, 150, 250, 500)


def draw(seed: int) -> pf.Field:
    """A small field, with couplings from 0.2 to 10 that attract, repel or do both."""
    rng = np.random.default_rng(seed)
    strength = float(10 ** rng.uniform(-0.7, 1.0))
    rows, cols = (int(x) for x in rng.integers(2, 8, size=2))
    sign = str(rng.choice(SIGNS))
    match seed % 4:
        case 0:
            wrap = bool(rng.random() < 0.3)
            return grid(rows, cols, strength=strength, sign=sign, wrap=wrap, seed=seed)
        case 1:
            labels = int(rng.integers(3, 6))
            return grid(rows, cols, strength=strength, n_labels=labels, sign=sign, seed=seed)
        case 2:
            return rbm(rows, cols, strength=strength / 2, seed=seed)
        case _:
            return random_field(seed, scale=strength).field


def examine(rule: str, params: dict[str, Any], fields: int, longest: int) -> Counter[str]:
    """Counts over ``fields`` fields that the rule accepts."""
    found: Counter[str] = Counter()
    seed = 0
    while found["fields"] < fields:
        seed += 1
        field = draw(seed)
        if field.lower().hard or field.lower().infeasible:
            continue  # these are searched, not iterated

        def status(length: int, field: pf.Field = field) -> pf.Status:
            return pf.infer(field, rule, max_iters=length, threads=1, **params).status

        found["fields"] += 1
        named = [status(length) is pf.Status.OSCILLATING for length in LENGTHS]
        found["runs"] += len(LENGTHS)
        if any(named):
            false = status(longest) in (pf.Status.CONVERGED, pf.Status.SADDLE)
            found["oscillating"] += sum(named)
            found["false"] += sum(named) * false
            found["flips"] += named != sorted(named)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fields", type=int, default=2000)
    parser.add_argument("--longest", type=int, default=5000)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows = []
    print("| rule | fields | runs | OSCILLATING | false | fields whose status flips |")
    print("|---|---|---|---|---|---|")
    for rule, params in RULES:
        found = examine(rule, params, args.fields, args.longest)
        words = ", ".join([f"`{rule}`", *(f"{k}={v}" for k, v in params.items())])
        counts = {k: found[k] for k in ("fields", "runs", "oscillating", "false", "flips")}
        print(f"| {words} | " + " | ".join(map(str, counts.values())) + " |", flush=True)
        rows.append({"rule": rule, "params": params, **counts})
    if args.json:
        about = {"lengths": LENGTHS, "longest": args.longest, "version": pf.__version__}
        args.json.write_text(json.dumps({**about, "rules": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
