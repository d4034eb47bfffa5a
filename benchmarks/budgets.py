"""How well budgets are kept: every rule, every kind of term, fields of 10² to 10⁷ variables.

Prints the worst excess over budget·1.1 + 20 ms, and what lies outside of the budget beside it
(lowering and packing the field, loading kernels). Run it on a quiet machine:

    python benchmarks/budgets.py [--largest 7] [--budgets 0.05,0.5] [--rules fixed,auto]
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import proxfield as pf
from proxfield.errors import UnsupportedError

ALLOWED_SHARE, ALLOWED_SECONDS = 1.1, 0.02
RULES = (
    "sweep", "colored", "full-parallel", "adhoc", "fixed", "adaptive", "momentum", "adam",
    "anneal", "restarts", "portfolio", "auto",
)  # fmt: skip


def grid_edges(n: int) -> np.ndarray:
    side = max(2, int(n**0.5))
    at = np.arange(side * side).reshape(side, side)
    pairs = [(at[:, :-1], at[:, 1:]), (at[:-1], at[1:])]
    return np.concatenate([np.stack([a.ravel(), b.ravel()], axis=1) for a, b in pairs])


def ising(n: int, rng: np.random.Generator) -> pf.Field:
    edges = grid_edges(n)
    count = int(edges.max()) + 1
    field = pf.Field(count, 2).add(pf.Unary(rng.normal(size=(count, 2))))
    return field.add(pf.Ising(edges, 2 * rng.normal(size=len(edges))))


def potts(n: int, rng: np.random.Generator) -> pf.Field:
    edges = grid_edges(n)
    count = int(edges.max()) + 1
    field = pf.Field(count, 5).add(pf.Unary(rng.normal(size=(count, 5))))
    return field.add(pf.Potts(edges, rng.normal(size=len(edges))))


def factors(n: int, rng: np.random.Generator) -> pf.Field:
    scopes = np.sort(rng.integers(n, size=(3 * n, 3)), axis=1)
    scopes = scopes[(np.diff(scopes, axis=1) > 0).all(axis=1)]
    return pf.Field(n, 2).add(pf.Factor(scopes, rng.normal(size=(len(scopes), 2, 2, 2))))


def forbidden(n: int, rng: np.random.Generator) -> pf.Field:
    edges = np.sort(rng.integers(n, size=(3 * n, 2)), axis=1)
    edges = np.unique(edges[edges[:, 0] < edges[:, 1]], axis=0)
    edges = rng.permutation(edges)[: int(2.33 * n)]
    return pf.Field(n, 3).add(pf.Pairwise(edges, np.where(np.eye(3, dtype=bool), np.inf, 0.0)))


def dense(n: int, rng: np.random.Generator) -> pf.Field:
    side = max(2, int(n**0.5))
    image = rng.integers(256, size=(side, side, 3)).astype(np.uint8)
    probabilities = rng.dirichlet(np.ones(3), size=(side, side))
    return pf.DenseCRF(image, probabilities, preset="krahenbuehl")


FIELDS: dict[str, tuple[Callable[[int, np.random.Generator], pf.Field], int]] = {
    "ising": (ising, 7),
    "potts, 5 labels": (potts, 6),
    "factors of 3": (factors, 6),
    "3-coloring (zeros)": (forbidden, 5),
    "dense image": (dense, 6),
}
"""How to make one of n variables, and the largest power of ten."""


def measure(field: pf.Field, rule: str, budget: float) -> dict[str, float] | None:
    """One inference with warm kernels; None where the rule can't run on the field."""
    begun = time.perf_counter()
    try:
        result = pf.infer(field, rule, budget=budget, tol=0.0)  # a DenseCRF is a Field
    except UnsupportedError:
        return None
    wall = time.perf_counter() - begun
    return {
        "seconds": result.seconds,
        "setup": wall - result.seconds,
        "excess": result.seconds - ALLOWED_SHARE * budget - ALLOWED_SECONDS,
        "iterations": result.iterations,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--largest", type=int, default=7, help="largest power of ten")
    parser.add_argument("--budgets", default="0.05,0.5", help="in seconds")
    parser.add_argument("--rules", default=",".join(RULES))
    parser.add_argument("--kinds", default="", help="fields whose name holds this")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/budgets.json"))
    options = parser.parse_args()
    rows: list[dict[str, object]] = []
    print(f"{'field':20} {'n':>9} {'build':>7} {'rule':14} {'budget':>6} {'used':>7} "
          f"{'setup':>7} {'iterations':>10}")  # fmt: skip
    for name, (make, most) in FIELDS.items():
        if options.kinds not in name:
            continue
        for power in range(2, min(most, options.largest) + 1):
            rng = np.random.default_rng(power)
            field = make(10**power, rng)
            begun = time.perf_counter()
            field.lower()
            build = time.perf_counter() - begun
            for rule in options.rules.split(","):
                measure(field, rule, 0.001)  # compile and load
                for budget in map(float, options.budgets.split(",")):
                    found = measure(field, rule, budget)
                    if found is None:
                        continue
                    rows.append(
                        {"field": name, "n": field.n_vars, "build": build, "rule": rule,
                         "budget": budget, **found}
                    )  # fmt: skip
                    over = "  OVER" if found["excess"] > 0 else ""
                    print(
                        f"{name:20} {field.n_vars:9d} {build:7.2f} {rule:14} {budget:6.2f} "
                        f"{found['seconds']:7.3f} {found['setup']:7.3f} "
                        f"{found['iterations']:10d}{over}",
                        flush=True,
                    )
                    save(options.output, rows)
    over = [r for r in rows if r["excess"] > 0]  # type: ignore[operator]
    print(f"{len(rows)} runs, {len(over)} over {ALLOWED_SHARE:g} budget + {ALLOWED_SECONDS:g} s")


def save(path: Path, rows: list[dict[str, object]]) -> None:
    """Write what has been measured so far."""
    about = {"machine": platform.platform(), "numpy": np.__version__}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"about": about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
