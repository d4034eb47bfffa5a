"""Building fields: seconds and memory of constructing, lowering, packing and first iterations.

Every case runs in a process of its own, after a small field of the same kind has compiled the
kernels. Memory is the peak of the resident set above what the process held when the case
began, that is, beyond the arrays that the user gives (edges int64, weights and tables float64).

- ``build``: terms, `Field.add`, `Field.lower` and packing for the CPU kernels.
- ``infer``: the same and some iterations, against `Field.memory_estimate`, which counts from
  the finished field on. Its memory is the peak above what the process held with the field.

Run: python benchmarks/building.py [CASE ...] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import proxfield as pf
from proxfield.core.engines import compile_program
from proxfield.core.solve.curvature import Curvature

Build = Callable[[], pf.Field]


def resident() -> int:
    """Bytes of the resident set now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def reset_peak() -> None:
    """Forget the peak of the resident set."""
    Path("/proc/self/clear_refs").write_text("5")


def peak() -> int:
    """Largest resident set since `reset_peak`, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no VmHWM in /proc/self/status")


def grid_edges(rows: int, columns: int) -> np.ndarray:
    """Edges of a grid, those along rows first.  # (m, 2)"""
    at = np.arange(rows * columns).reshape(rows, columns)
    along = np.stack([at[:, :-1].ravel(), at[:, 1:].ravel()], axis=1)
    down = np.stack([at[:-1].ravel(), at[1:].ravel()], axis=1)
    return np.concatenate([along, down])


def ising_grid(n: int, *, ordered: bool = False, unary: bool = False) -> tuple[int, Build]:
    """A square grid of about n spins, given as arrays."""
    side = round(n**0.5)
    edges = grid_edges(side, side)
    if ordered:
        edges = edges[np.lexsort((edges[:, 1], edges[:, 0]))]
    rng = np.random.default_rng(0)
    weights = rng.normal(size=len(edges))
    energies = rng.normal(size=(side * side, 2)) if unary else None

    def build() -> pf.Field:
        field = pf.Field(side * side, n_labels=2).add(pf.Ising(edges, weights))
        return field if energies is None else field.add(pf.Unary(energies))

    return side * side, build


def complete(n: int) -> tuple[int, Build]:
    """All pairs of n spins."""
    i, j = np.triu_indices(n, 1)
    edges = np.stack([i, j], axis=1)
    weights = np.random.default_rng(0).normal(size=len(edges))
    return n, lambda: pf.Field(n, n_labels=2).add(pf.Ising(edges, weights))


def potts_grid(n: int, n_labels: int) -> tuple[int, Build]:
    """A square grid of about n variables with Potts weights."""
    side = round(n**0.5)
    edges = grid_edges(side, side)
    rng = np.random.default_rng(0)
    weights, energies = rng.normal(size=len(edges)), rng.normal(size=(side * side, n_labels))

    def build() -> pf.Field:
        field = pf.Field(side * side, n_labels=n_labels)
        return field.add(pf.Unary(energies)).add(pf.Potts(edges, weights))

    return side * side, build


def factors(n: int, m: int, arity: int, n_labels: int) -> tuple[int, Build]:
    """m random scopes, each with a table of its own."""
    rng = np.random.default_rng(0)
    scopes = rng.integers(n, size=(m, arity))
    ordered = np.sort(scopes, axis=1)
    good = (ordered[:, 1:] != ordered[:, :-1]).all(axis=1)
    scopes = np.ascontiguousarray(scopes[good])
    tables = rng.normal(size=(len(scopes), *(n_labels,) * arity))
    return n, lambda: pf.Field(n, n_labels=n_labels).add(pf.Factor(scopes, tables))


def equality_chain(n: int) -> tuple[int, Build]:
    """Neighbors that must agree, with one end observed."""
    edges = np.stack([np.arange(n - 1), np.arange(1, n)], axis=1)
    table = np.where(np.eye(2, dtype=bool), 0.0, np.inf)
    return n, lambda: pf.Field(n, n_labels=2).add(pf.Pairwise(edges, table)).condition({0: 1})


CASES: dict[str, tuple[str, Callable[[], tuple[int, Build]]]] = {
    "ising grid 2e6": ("build", lambda: ising_grid(2_000_000)),
    "ising grid 2e6, edges in order": ("build", lambda: ising_grid(2_000_000, ordered=True)),
    "ising grid 2e6 with unaries": ("build", lambda: ising_grid(2_000_000, unary=True)),
    "factors 3, 1e6": ("build", lambda: factors(400_000, 1_000_000, 3, 2)),
    "factors 3, 1e6, ternary": ("build", lambda: factors(300_000, 1_000_000, 3, 3)),
    "equality chain 2e4": ("build", lambda: equality_chain(20_000)),
    "equality chain 1e6": ("build", lambda: equality_chain(1_000_000)),
    "infer: ising grid 1e7": ("infer", lambda: ising_grid(10_000_000)),
    "infer: complete 3000": ("infer", lambda: complete(3000)),
    "infer: potts grid 1e6, 5 labels": ("infer", lambda: potts_grid(1_000_000, 5)),
    "infer: factors 3, 1e6": ("infer", lambda: factors(400_000, 1_000_000, 3, 2)),
    "infer: pairwise 1e6, 4 labels": ("infer", lambda: factors(400_000, 1_000_000, 2, 4)),
}
SMALL: dict[str, Build] = {
    "ising": lambda: ising_grid(64)[1](),
    "complete": lambda: complete(9)[1](),
    "potts": lambda: potts_grid(64, 5)[1](),
    "factors": lambda: factors(30, 40, 3, 2)[1](),
    "pairwise": lambda: factors(30, 40, 2, 4)[1](),
    "equality": lambda: equality_chain(9)[1](),
}
RULES = ("fixed", "adaptive", "momentum", "adam", "sweep", "colored", "anneal", "auto")


def measure_build(name: str, n: int, build: Build) -> dict[str, Any]:
    """Seconds of each part of building, and its peak of memory."""
    before = resident()
    reset_peak()
    out: dict[str, Any] = {"n_vars": n}
    start = time.perf_counter()
    field = build()
    out["field_s"] = time.perf_counter() - start
    start = time.perf_counter()
    lowered = field.lower()
    out["lower_s"] = time.perf_counter() - start
    start = time.perf_counter()
    program = compile_program(lowered, "cpu")
    out["pack_s"] = time.perf_counter() - start
    out["peak_bytes_per_variable"] = (peak() - before) / n
    del program
    start = time.perf_counter()
    if not lowered.hard:
        assert np.isfinite(Curvature(lowered, field).local).all()
    out["curvature_s"] = time.perf_counter() - start
    return out


def measure_infer(name: str, n: int, build: Build, rule: str) -> dict[str, Any]:
    """Peak of memory of lowering and iterating, beside the field."""
    field = build()
    estimate = field.memory_estimate(chains=4)  # as lowering checks it
    before = resident()
    reset_peak()
    start = time.perf_counter()
    result = pf.infer(field, rule, max_iters=3, trace=False)
    seconds = time.perf_counter() - start
    used = peak() - before
    return {
        "n_vars": n,
        "rule": rule,
        "used_bytes": used,
        "estimate_bytes": estimate,
        "estimate_over_used": estimate / used,
        "seconds": seconds,
        "iterations": result.iterations,
    }


def run_case(name: str, rule: str) -> dict[str, Any]:
    """One case, in this process."""
    kind, make = CASES[name]
    for word, small in SMALL.items():
        if word in name:
            field = small()
            if kind == "infer":
                pf.infer(field, rule, max_iters=3)
            compile_program(field.lower(), "cpu")
    n, build = make()
    found = measure_build(name, n, build) if kind == "build" else None
    return found or measure_infer(name, n, build, rule)


def main() -> None:
    """Run the cases asked for, all of them by default."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"among: {'; '.join(CASES)}")
    parser.add_argument("--rules", nargs="*", default=["fixed", "sweep", "adam"], choices=RULES)
    parser.add_argument("--json", type=Path, help="where to write the results")
    parser.add_argument("--one", nargs=2, metavar=("CASE", "RULE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(run_case(*options.one)))
        return
    results: dict[str, Any] = {"numpy": np.__version__, "python": platform.python_version()}
    for name in options.cases or CASES:
        for rule in options.rules if CASES[name][0] == "infer" else [""]:
            command = [sys.executable, __file__, "--one", name, rule]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            results[f"{name} {rule}".strip()] = found = json.loads(done.stdout)
            shown = {k: round(v, 3) if isinstance(v, float) else v for k, v in found.items()}
            print(f"{name} {rule}".strip(), shown, flush=True)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
