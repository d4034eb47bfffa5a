"""How near the fixed point updates must be for the implicit gradient to be right.

Random dense fields of 6 to 39 points and 2 to 5 labels, with attractive, repulsive and mixed tables
of many strengths, are updated 1 to 200 times. After each number of updates: two residuals, and the
cosine between the implicit gradient (for unaries, features and tables together) and the exact one.
For each limit on a residual the worst cosine among the runs below it says what the limit is worth.
Runs whose linear system isn't solved are left out: there the layer takes the exact gradient.

    python benchmarks/implicit_tolerance.py --json benchmarks/results/implicit_tolerance.json
    python benchmarks/implicit_tolerance.py --fields 5
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path
from typing import Any

import torch

from proxfield.core.filters.torch.operator import PlannedOperator
from proxfield.errors import GradientWarning
from proxfield.torch.dense import dense_energies
from proxfield.torch.solve import relative_residual, softmax

UPDATES = (1, 2, 3, 5, 8, 12, 20, 30, 50, 80, 120, 200)
LIMITS = (1e-1, 1e-2, 1e-3, 1e-4, 3e-5, 1e-5, 1e-6)


def draw_field(random: torch.Generator) -> tuple[Any, Any, Any]:
    """Unaries, features and a table, in float64."""
    like = {"generator": random, "dtype": torch.float64}
    n_labels, points, kind = (
        int(torch.randint(low, high, (), generator=random))
        for low, high in ((2, 6), (6, 40), (0, 3))
    )
    unary = 2 * torch.rand((), **like) * torch.randn(1, points, n_labels, **like)
    features = 2 * torch.rand((), **like) * torch.randn(1, points, 2, **like)
    strength = 10 ** (1.7 * torch.rand((), **like) - 0.5)
    same = torch.eye(n_labels, dtype=torch.float64)
    table = torch.randn(n_labels, n_labels, **like)
    table = strength * (-same, same, 0.5 * (table + table.T))[kind]
    return unary, features, table[None]


def compare(unary: Any, features: Any, table: Any, weigh: Any, updates: int) -> dict[str, float]:
    """Residuals after the updates, and the cosine; without one if the system wasn't solved."""
    inputs = [x.clone().requires_grad_() for x in (unary, features, table)]
    flat = []
    for kind in ("exact", "implicit"):
        theta, _ = dense_energies(
            inputs[0], [inputs[1]], inputs[2], max_iters=updates, tol=0.0, gradient=kind,
            implicit_tol=float("inf"),
        )  # fmt: skip
        try:
            grads = torch.autograd.grad((softmax(theta) * weigh).sum(), inputs)
        except GradientWarning:
            return {}
        flat.append(torch.cat([g.ravel() for g in grads]))
    q = softmax(theta.detach())
    target = unary + PlannedOperator(features, "symmetric", True).apply(q) @ table[0]
    a, b = flat
    return {
        "absolute": float((softmax(target) - q).abs().max()),
        "relative": relative_residual(q, target),
        "cosine": float(a @ b / (a.norm() * b.norm()).clamp(min=1e-300)),
    }


def main() -> None:
    """Measure and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--fields", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("error", GradientWarning)
    from proxfield.torch import solve

    random = torch.Generator().manual_seed(options.seed)
    runs = []
    for _ in range(options.fields):
        field = draw_field(random)
        weigh = torch.randn(field[0].shape, generator=random, dtype=torch.float64)
        for updates in UPDATES:
            solve._told.clear()  # the warning comes once per process
            runs.append(compare(*field, weigh, updates))
    solved = [run for run in runs if run]
    found: dict[str, Any] = {
        "fields": options.fields, "seed": options.seed, "runs": len(runs), "solved": len(solved),
    }  # fmt: skip
    for kind in ("relative", "absolute"):
        found[kind] = []
        for limit in LIMITS:
            below = [run["cosine"] for run in solved if run[kind] <= limit]
            found[kind].append(
                {
                    "limit": limit,
                    "runs": len(below),
                    "worst_cosine": min(below, default=None),
                    "share_below_0.999": sum(c < 0.999 for c in below) / max(1, len(below)),
                }
            )
    text = json.dumps(found, indent=2)
    print(text)
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
