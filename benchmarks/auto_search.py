"""What `auto` finds in a budget of CPU seconds, on models in ``DIR/*.uai`` (or ``.uai.xz``).

The budget is counted in CPU time of one thread, so that the figures mean something on a busy
machine. Prints the median F over seeds of each model, and the mean over models.

    python benchmarks/auto_search.py DIR [--budgets 0.05,0.3,1] [--seeds 3] [--rule auto]
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

import proxfield as pf
from proxfield.core.solve.infer import infer_one
from proxfield.core.solve.request import Request
from proxfield.core.solve.rules.registry import make_rule
from proxfield.io.results import read_evidence


def infer(field: pf.Field, rule: str, budget: float, seed: int) -> pf.Result:
    """`proxfield.infer` on one thread, with a budget of CPU seconds."""
    request = Request(
        make_rule(rule), budget=budget, seed=seed, threads=1, trace=False, now=time.process_time
    )
    return infer_one(field, request, request.open(field))


def load(path: Path) -> pf.Field:
    """A model under its evidence, if there is any."""
    field, evidence = pf.read_uai(path), Path(f"{path}.evid")
    if evidence.exists():
        field = field.condition(read_evidence(evidence, field.cardinalities))
    return field


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--budgets", default="0.05,0.3,1")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rule", default="auto")
    args = parser.parse_args()
    budgets = [float(b) for b in args.budgets.split(",")]
    models = sorted(p for p in args.data.glob("*.uai*") if p.name.endswith((".uai", ".uai.xz")))
    if not models:
        parser.error(f"no models in {args.data}")
    print("| model | " + " | ".join(f"{b:g} s" for b in budgets) + " |")
    print("|---|" + "---|" * len(budgets))
    rows = []
    for path in models:
        field = load(path)
        infer(field, args.rule, 0.02, 0)  # warm up
        rows.append(
            [
                np.median([infer(field, args.rule, b, s).free_energy for s in range(args.seeds)])
                for b in budgets
            ]
        )
        print(f"| {path.name} | " + " | ".join(f"{f:.2f}" for f in rows[-1]) + " |", flush=True)
    print("| mean | " + " | ".join(f"{f:.2f}" for f in np.mean(rows, axis=0)) + " |")


if __name__ == "__main__":
    main()
