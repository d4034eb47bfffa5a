"""Does a budget on the command line buy what it buys in a process that is already warm?

Runs ``proxfield solve MODEL --budget S`` in a fresh process for each model of the paper's suites
(compiled kernels are in the cache, but none is loaded), and `proxfield.infer` with the same budget
in this process, after one call for warming up. Prints mean F over each suite and the time that
each fresh process took; with ``--json`` writes all of it.

    python benchmarks/cold_budget.py DATA [--budget 0.05] [--suite SEG] [--json FILE]

DATA is a folder with ``DBN``, ``GRID`` and ``SEG``, as for ``proxfield bench --data``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import proxfield as pf
from proxfield.bench.machine import metadata
from proxfield.bench.suites import FieldInstance, load_suites
from proxfield.core.compiled.jit import max_threads


def model_file(data: Path, instance: FieldInstance) -> Path:
    """The file that an instance was read from."""
    return next((data / instance.suite).glob(f"{instance.name}.uai*"))


def cold(path: Path, budget: float) -> dict[str, float]:
    """One model by the command line, in a process of its own."""
    command = [sys.executable, "-m", "proxfield", "solve", str(path), "--json"]
    begun = time.perf_counter()
    done = subprocess.run(
        [*command, "--budget", str(budget)], capture_output=True, text=True, check=True
    )
    report = json.loads(done.stdout)
    return {
        "free_energy": report["free_energy"],
        "iterations": report["iterations"],
        "seconds": report["seconds"],
        "process_seconds": time.perf_counter() - begun,
    }


def warm(path: Path, budget: float) -> dict[str, float]:
    """The same in this process, the second time."""
    field = pf.read_uai(path)
    pf.infer(field, budget=budget)
    result = pf.infer(pf.read_uai(path), budget=budget)
    return {
        "free_energy": float(result.free_energy),
        "iterations": result.iterations,
        "seconds": result.seconds,
    }


def mean(rows: list[dict[str, Any]], how: str, key: str) -> float:
    """A mean over instances, each counted as often as the paper has it."""
    weights = [row["weight"] for row in rows]
    return float(np.average([row[how][key] for row in rows], weights=weights))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--budget", type=float, default=0.05)
    parser.add_argument("--suite", action="append", help="default: DBN and SEG")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    suites = load_suites(str(args.data), args.suite or ["DBN", "SEG"])
    about = metadata("DATA", max_threads())
    about["command"] = f"python benchmarks/cold_budget.py DATA --budget {args.budget}"
    out: dict[str, Any] = {"budget": args.budget, **about, "suites": {}}
    print("| suite | mean F, fresh process | mean F, warm process | sweeps, fresh | sweeps, warm |")
    print("|---|---|---|---|---|")
    for suite, instances in suites.items():
        cold(model_file(args.data, instances[0]), args.budget)  # compiles, if that is needed
        rows = []
        for instance in instances:
            path = model_file(args.data, instance)
            row = {"name": instance.name, "weight": instance.weight}
            row |= {"cold": cold(path, args.budget), "warm": warm(path, args.budget)}
            rows.append(row)
        means = {
            f"{how}_{key}": mean(rows, how, key)
            for how in ("cold", "warm")
            for key in ("free_energy", "iterations", "seconds")
        }
        means["process_seconds"] = mean(rows, "cold", "process_seconds")
        out["suites"][suite] = {**means, "instances": rows}
        print(
            f"| {suite} | {means['cold_free_energy']:.2f} | {means['warm_free_energy']:.2f} | "
            f"{means['cold_iterations']:.0f} | {means['warm_iterations']:.0f} |",
            flush=True,
        )
    if args.json:
        args.json.write_text(json.dumps(out, indent=1) + "\n")


if __name__ == "__main__":
    main()
