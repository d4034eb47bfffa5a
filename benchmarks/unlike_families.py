"""`auto` on fields unlike the paper's: is it ever worse than the best single rule?

Families: multi-label Potts grids with couplings of both signs, random tables over three and four
variables, dense random Ising fields and, with ``--data DIR``, the models with exact answers in
``DIR/<family>/*.uai``. Every rule gets the same budget, in CPU seconds of one thread; the table
shows the mean F per family (lower is better) and by how much ``auto`` is below the best other rule.

    python benchmarks/unlike_families.py [--data DIR] [--budget 0.3] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path

import numpy as np

import proxfield as pf
from auto_search import infer
from proxfield.generate import grid
from proxfield.io.results import read_evidence

RULES = ("sweep", "colored", "full-parallel", "adhoc", "fixed", "adaptive", "momentum", "adam")


def potts_grid(seed: int) -> pf.Field:
    """A 20×20 grid with 5 labels and Potts weights of both signs."""
    return grid(20, 20, n_labels=5, strength=3.0, seed=seed)


def tables(seed: int) -> pf.Field:
    """100 variables with 2 to 4 labels under random tables over 3 and 4 of them."""
    rng = np.random.default_rng(seed)
    cards = rng.integers(2, 5, 100)
    field = pf.Field(cards)
    for arity, count in ((3, 120), (4, 40)):
        for _ in range(count):
            scope = rng.choice(100, arity, replace=False)
            field.add(pf.Factor(scope, rng.normal(scale=2.0, size=cards[scope])))
    return field


def dense_ising(seed: int) -> pf.Field:
    """120 spins, every pair coupled at random."""
    rng = np.random.default_rng(seed)
    edges = np.array([(i, j) for i in range(120) for j in range(i + 1, 120)])
    field = pf.Field(120, n_labels=2).add(pf.Unary(rng.normal(size=(120, 2))))
    return field.add(pf.Ising(edges, rng.normal(scale=0.5, size=len(edges))))


def families(data: Path | None) -> dict[str, list[pf.Field]]:
    """The fields, by family."""
    out: dict[str, list[pf.Field]] = defaultdict(list)
    for seed in range(5):
        out["Potts, mixed signs"].append(potts_grid(seed))
        out["tables over 3 and 4"].append(tables(seed))
        out["dense Ising"].append(dense_ising(seed))
    for path in sorted(data.glob("*/*.uai")) if data else []:
        field = pf.read_uai(path)
        evidence = Path(f"{path}.evid")
        if evidence.exists():
            field = field.condition(read_evidence(evidence, field.cardinalities))
        out[path.parent.name].append(field)
    return dict(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--budget", type=float, default=0.3)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    names = [*RULES, "auto"]
    print("| family | " + " | ".join(names) + " | auto below the best other |")
    print("|---|" + "---|" * (len(names) + 1))
    out = {}
    for family, fields in families(args.data).items():
        means = {}
        for rule in names:
            infer(fields[0], rule, 0.02, 0)  # warm up
            results = [infer(f, rule, args.budget, 0) for f in fields]
            means[rule] = float(np.mean([r.free_energy for r in results]))
        best = min(means[r] for r in RULES)
        below = (best - means["auto"]) / abs(best)
        cells = " | ".join(f"{means[r]:.2f}" for r in names)
        print(f"| {family} ({len(fields)}) | {cells} | {100 * below:.2f} % |", flush=True)
        out[family] = {"mean_free_energy": means, "auto_below_best": below}
    if args.json:
        numbers = {"budget": args.budget, "families": out}
        args.json.write_text(json.dumps(numbers, indent=2) + "\n")


if __name__ == "__main__":
    main()
