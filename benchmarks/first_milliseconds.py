"""The first milliseconds of `fixed` and `adaptive` beside `adhoc`, on the paper's models.

For each model: F after every update against seconds of inference, counted in CPU time of one
thread by giving the inference that clock. At every time from ``--after`` on, F of the certified
rules should not be above that of ``adhoc``, which needs no curvature and starts at once. Of some
repeats, each rule's fastest counts. Where F is above, it is either behind for a while (it
falls below later) or ends above: within the time, or because ``adhoc``, whose F may rise, came to
rest at a better local minimum.

    python benchmarks/first_milliseconds.py FOLDER [--json FILE]

FOLDER has the models as ``DBN/*.uai.xz``, ``GRID/*.uai.xz`` and ``SEG/*.uai.xz``.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

import proxfield as pf
from proxfield.bench.machine import metadata
from proxfield.core.solve.infer import infer_one
from proxfield.core.solve.request import Request
from proxfield.core.solve.rules.registry import make_rule
from proxfield.result import Trace

RULES = ("fixed", "adaptive")
PEER = "adhoc"
KINDS = ("never", "behind for a while", "ends above")
SLACK = 1e-6
"""Relative difference of F that counts as none."""


def run(field: pf.Field, rule: str, budget: float) -> pf.Result:
    """One inference whose seconds are CPU seconds of this thread."""
    request = Request(make_rule(rule), now=time.thread_time, budget=budget, threads=1)
    return infer_one(field, request, request.open(field))


def fastest(traces: list[Trace]) -> Trace:
    """The one that needed least time for as many updates as all of them made."""
    common = min(len(t) for t in traces) - 1
    return min(traces, key=lambda t: float(t.seconds[common]))


def at(trace: Trace, times: np.ndarray) -> np.ndarray:
    """F of the last state reached at each time."""
    return trace.free_energy[np.searchsorted(trace.seconds, times, side="right") - 1]


def compare(rule: Trace, peer: Trace, after: float, budget: float) -> dict[str, Any]:
    """When and how far F of a rule is above that of the peer."""
    times = np.unique(np.concatenate([rule.seconds, peer.seconds, [after, budget]]))
    times = times[(times >= after) & (times <= budget)]
    f, g = at(rule, times), at(peer, times)
    above = f - g
    bad = above > SLACK * (1.0 + np.abs(g))
    kind = "never" if not bad.any() else "ends above" if bad[-1] else "behind for a while"
    return {
        "first update": round(1e3 * float(rule.seconds[min(1, len(rule) - 1)]), 3),
        "updates": len(rule) - 1,
        "above": kind,
        "above until": round(1e3 * float(times[bad][-1]), 2) if bad.any() else None,
        "largest": round(float(above[bad].max()), 3) if bad.any() else 0.0,
        "at the end": round(float(above[-1]), 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--after", type=float, default=1e-3, help="seconds from which to compare")
    parser.add_argument("--budget", type=float, default=0.05, help="seconds of each inference")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for path in sorted(args.folder.glob("*/*.uai.xz")):
        field = pf.read_uai(path)
        names = (PEER, *RULES)
        for name in names:
            run(field, name, args.budget)  # compiles, and warms the caches
        runs: dict[str, list[Trace]] = {name: [] for name in names}
        for _ in range(args.repeats):
            for name in names:
                runs[name].append(run(field, name, args.budget).trace)
        best = {name: fastest(traces) for name, traces in runs.items()}
        for name in RULES:
            row = {"family": path.parent.name, "model": path.name.split(".uai")[0], "rule": name}
            rows.append(row | compare(best[name], best[PEER], args.after, args.budget))
    summary = summarize(rows)
    for line in summary:
        print(line)
    if args.json:
        about = metadata("none", 1)
        about["command"] = f"python benchmarks/first_milliseconds.py FOLDER --json {args.json}"
        out = {**about, "after": args.after, "budget": args.budget, "summary": summary}
        lines = ",\n  ".join(json.dumps(row, ensure_ascii=False) for row in rows)
        text = json.dumps(out, indent=1, ensure_ascii=False)
        args.json.write_text(f'{text[:-2]},\n "rows": [\n  {lines}\n ]\n}}\n', encoding="utf-8")


def summarize(rows: list[dict[str, Any]]) -> list[str]:
    """One line per family and rule, and one per model where F is above."""
    lines = []
    for family in dict.fromkeys(row["family"] for row in rows):
        for rule in RULES:
            mine = [r for r in rows if r["family"] == family and r["rule"] == rule]
            counts = {k: sum(r["above"] == k for r in mine) for k in KINDS}
            first = float(np.median([r["first update"] for r in mine]))
            end = float(np.mean([r["at the end"] for r in mine]))
            lines.append(
                f"{family} {rule}: first update after {first:.2f} ms (median); "
                + ", ".join(f"{k} {n}" for k, n in counts.items())
                + f" of {len(mine)} models; F − F({PEER}) at the end {end:+.2f} on average"
            )
    lines.extend(
        f"  {row['model']} {row['rule']}: {row['above']}, until {row['above until']} ms, "
        f"by at most {row['largest']}, at the end {row['at the end']:+}"
        for row in rows
        if row["above"] != "never"
    )
    return lines


if __name__ == "__main__":
    main()
