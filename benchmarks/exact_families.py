"""Gap to the exact log Z and error of the marginals, per family and rule.

Reads models with exact answers: ``DIR/<family>/<name>.uai`` beside ``<name>.uai.PR`` (log10 Z),
``<name>.uai.MAR`` and, where there is evidence, ``<name>.uai.evid``. Prints a Markdown table.
Rules get ``--max-iters`` iterations, ``auto`` one second.

    python benchmarks/exact_families.py DIR [--max-iters 1000] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path

import numpy as np

import proxfield as pf
from proxfield.io.results import read_evidence, read_mar, read_pr


def load(path: Path) -> tuple[pf.Field, float, np.ndarray]:
    """A field under its evidence, the exact log Z and the exact marginals, flat."""
    field = pf.read_uai(path)
    evidence = Path(f"{path}.evid")
    if evidence.exists():
        field = field.condition(read_evidence(evidence, field.cardinalities))
    return field, read_pr(f"{path}.PR"), np.concatenate(read_mar(f"{path}.MAR"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--max-iters", type=int, default=1000)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    models = sorted(args.data.glob("*/*.uai"))
    if not models:
        parser.error(f"no models below {args.data}")
    rows: dict[str, dict[str, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    worst = -np.inf
    names = [name for name, rule in pf.RULES.items() if not rule.special]
    for path in models:
        field, exact, marginals = load(path)
        for rule in names:
            limits = {"budget": 1.0} if rule == "auto" else {"max_iters": args.max_iters}
            result = pf.infer(field, rule, **limits)
            error = float(np.abs(result.q - marginals).mean())
            rows[path.parent.name][rule].append((exact - result.log_z_bound, error))
            worst = max(worst, result.log_z_bound - exact)
    print("| family | " + " | ".join(names) + " |")
    print("|---|" + "---|" * len(names))
    out = {}
    for family, by_rule in rows.items():
        means = {rule: np.mean(pairs, axis=0) for rule, pairs in by_rule.items()}
        count = len(by_rule[names[0]])
        cells = " | ".join(f"{gap:.2f}, {error:.3f}" for gap, error in means.values())
        print(f"| {family} ({count}) | {cells} |")
        out[family] = {r: {"gap": float(g), "error": float(e)} for r, (g, e) in means.items()}
    print(f"\nLargest bound − exact log Z over all {len(models)} models and rules: {worst:.2g}")
    if args.json:
        numbers = {"max_iters": args.max_iters, "largest_excess": worst, "families": out}
        args.json.write_text(json.dumps(numbers, indent=2) + "\n")


if __name__ == "__main__":
    main()
