"""How sensitive the searches are to their constants (`proxfield.core.solve.search.tuned`).

Each is halved and doubled; the table shows how much of what a search gains is lost, in percent: of
what `auto` gains over sweeps, `solve_map` over a short search, 8 modes over one, summed over kinds
of fields and seeds, with the standard error, and of the kind that loses most. Runs are limited by
iterations, so the figures don't depend on the machine.

    python benchmarks/search_constants.py [NAME …]
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

import proxfield as pf
from proxfield.core.solve.search import tuned
from proxfield.generate import grid

SEEDS = range(3)
MIN_GAIN = 1.0
"""Gain, in nats, below which a kind of fields isn't the one that loses most."""
CONSTANTS = {
    "auto": "HOT_SHARE COLD_SHARE PART_CHANGE MEMORY CURIOSITY MANY_PARTS COOLING_SWEEPS "
    "REHEAT_POLISH PLAIN_SHARE POLISH_SWEEPS END_SWEEPS CHAINS_PER_ROUND FLAT_GAIN "
    "LABELLED_SWEEPS RIVAL_ITERATIONS",
    "map": "FIRST_HEAT COLD ZERO_SWEEPS ROUND_SWEEPS LONGEST_SHARE QUIET_ROUNDS MAP_MEMORY "
    "MAP_CURIOSITY SHARPNESS ANEW_SWEEPS RELABELLED_SWEEPS RELABELLED_HEATS FOREST_DEGREE "
    "CHAINS_PER_ROUND OPENING_SWEEPS",
    "modes": "SEARCH_SHARE SWEEPS_PER_MODE SAMPLE_CHAINS MAX_SAMPLES MIN_CELL_SWEEPS PATCH_CHANGE "
    "TRIAL_SWEEPS TRIAL_TOL MAX_STATES MIN_DISTANCE MAX_TRIALS MAX_UNCERTAIN MAX_CURVATURE "
    "MAX_REFINEMENTS MAX_OVERLAP MAX_COMBINATIONS MAX_COMPARISONS MAX_NEW_PATCHES WORTH_SCALE "
    "MIN_GAIN",
}


def all_pairs(n: int, n_labels: int, weight: float, seed: int) -> pf.Field:
    """Every pair of variables, coupled at random."""
    rng, edges = np.random.default_rng(seed), np.stack(np.triu_indices(n, 1), axis=1)
    return coupled(n, n_labels, 1.0, edges, weight * rng.normal(size=len(edges)), rng)


def sparse(n: int, n_labels: int, weight: float, seed: int) -> pf.Field:
    """A random graph with three neighbors per variable."""
    rng = np.random.default_rng(seed)
    edges = rng.integers(n, size=(3 * n // 2, 2))
    edges = np.unique(np.sort(edges[edges[:, 0] != edges[:, 1]], axis=1), axis=0)
    return coupled(n, n_labels, 0.3, edges, weight * rng.normal(size=len(edges)), rng)


def coupled(
    n: int, n_labels: int, unary: float, edges: NDArray[Any], weights: NDArray[Any],
    rng: np.random.Generator,
) -> pf.Field:  # fmt: skip
    """A field of unary energies and weighted edges."""
    field = pf.Field(n, n_labels).add(pf.Unary(unary * rng.normal(size=(n, n_labels))))
    return field.add((pf.Ising if n_labels == 2 else pf.Potts)(edges, weights))


def triples(n: int, seed: int) -> pf.Field:
    """Random tables over three variables."""
    rng = np.random.default_rng(seed)
    scopes = np.array([rng.choice(n, 3, replace=False) for _ in range(2 * n)])
    field = pf.Field(n, 2).add(pf.Unary(rng.normal(size=(n, 2))))
    return field.add(pf.Factor(scopes, 2.0 * rng.normal(size=(2 * n, 2, 2, 2))))


FIELDS = {
    "grid": grid(15, 15, strength=3.0, seed=1),
    "grid, 3 labels": grid(12, 12, n_labels=3, strength=2.0, seed=2),
    "all pairs": all_pairs(60, 2, 0.4, 3),
    "all pairs, 3 labels": all_pairs(36, 3, 0.5, 4),
    "triples": triples(60, 5),
    "large grid": grid(40, 40, strength=1.5, seed=6),
    "sparse": sparse(300, 2, 1.5, 7),
    "sparse, 4 labels": sparse(200, 4, 2.0, 8),
}


def auto(field: pf.Field, seed: int, max_iters: int = 1500) -> float:
    """F that `auto` finds."""
    return pf.infer(field, max_iters=max_iters, seed=seed, trace=False).free_energy


def modes(field: pf.Field, seed: int) -> float:
    """F of a mixture."""
    return pf.infer(field, modes=8, max_iters=2500, seed=seed, trace=False).free_energy


def energy(field: pf.Field, seed: int, max_iters: int = 2500) -> float:
    """The energy that `solve_map` finds."""
    return pf.solve_map(field, max_iters=max_iters, seed=seed).energy


SEARCHES: dict[str, tuple[Callable[..., float], Callable[..., float]]] = {
    "auto": (auto, lambda field, seed: pf.infer(field, "sweep", max_iters=1500).free_energy),
    "map": (energy, lambda field, seed: energy(field, seed, 25)),
    "modes": (modes, lambda field, seed: auto(field, seed, 2500)),
}
"""Searches, and what each is compared with."""


def run(search: Callable[..., float]) -> NDArray[np.float64]:
    """What a search finds.  # (fields, seeds)"""
    return np.array([[search(field, seed) for seed in SEEDS] for field in FIELDS.values()])


def changed(value: Any, factor: float) -> Any:
    """A constant times a factor; shares stay below 1, numbers of things whole."""
    if isinstance(value, tuple):
        return tuple(changed(x, factor) for x in value)
    if isinstance(value, int):
        return max(1, round(factor * value))
    return 1 - (1 - value) / factor if value > 0.5 and value < 1 else factor * value


@contextlib.contextmanager
def constant(name: str, value: Any) -> Iterator[None]:
    """A constant with another value."""
    old = getattr(tuned, name)
    setattr(tuned, name, value)
    try:
        yield
    finally:
        setattr(tuned, name, old)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="constants; all by default")
    wanted = parser.parse_args().names
    print("| search | constant | value | halved: loss, worst | doubled: loss, worst |")
    print("|---|---|---|---|---|")
    for name, (search, plain) in SEARCHES.items():
        constants = [c for c in CONSTANTS[name].split() if not wanted or c in wanted]
        if not constants:
            continue
        usual = run(search)
        gain = (run(plain) - usual).mean(axis=1)
        for key in constants:
            value, cells = getattr(tuned, key), []
            for factor in (0.5, 2.0):
                with constant(key, changed(value, factor)):
                    loss = 100 * (run(search) - usual) / len(SEEDS)
                error = np.sqrt(loss.size) * loss.std() / gain.sum()
                worst = (loss.sum(axis=1) / gain)[gain > MIN_GAIN].max()
                cells.append(f"{loss.sum() / gain.sum():+.1f} ± {error:.1f}, {worst:+.0f}")
            print(f"| {name} | {key} | {value} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
