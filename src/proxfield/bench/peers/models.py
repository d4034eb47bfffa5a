"""Small generated fields whose exact answers are known."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from proxfield.bench.peers.elimination import Elimination
from proxfield.bench.peers.graph import factor_graph
from proxfield.bench.suites import Instance, Reference
from proxfield.core.terms.base import Ints
from proxfield.core.terms.factor import Factor
from proxfield.core.terms.pairwise import Ising, Pairwise, Potts
from proxfield.core.terms.unary import Unary
from proxfield.errors import UnsupportedError
from proxfield.field import Field
from proxfield.generate import grid_edges

SIGNS = ("attractive", "repulsive", "mixed")
STRENGTHS = (0.3, 1.0, 3.0)
FIELDS = (0.1, 1.0)
RECIPE = "peers-1"
"""Changes whenever generated fields do."""


def spins(n: int, edges: Ints, strength: float, unary: float, sign: str, seed: int) -> Field:
    """Spins with E = Σ h_i s_i + Σ J_ij s_i s_j, |h| up to ``unary`` and |J| up to ``strength``."""
    rng = np.random.default_rng(seed)
    h = rng.uniform(-unary, unary, n)
    couplings = rng.uniform(-strength, strength, len(edges))
    if sign != "mixed":
        couplings = np.abs(couplings) * (1 if sign == "repulsive" else -1)
    field = Field(n, n_labels=2).add(Unary(np.stack([-h, h], axis=1)))
    return field.add(Ising(edges, couplings))


def colored_grid(side: int, strength: float, seed: int) -> Field:
    """A grid of three labels whose neighbors repel."""
    rng = np.random.default_rng(seed)
    field = Field(side * side, n_labels=3).add(Unary(rng.uniform(-1, 1, (side * side, 3))))
    edges = grid_edges(side, side)
    return field.add(Potts(edges, -strength * rng.random(len(edges))))


def random_graph(n: int, n_edges: int, strength: float, seed: int) -> Field:
    """Spins with mixed couplings on randomly chosen pairs."""
    rng = np.random.default_rng([seed, 1])
    pairs = np.stack(np.triu_indices(n, 1), axis=1)
    edges = pairs[np.sort(rng.choice(len(pairs), n_edges, replace=False))]
    return spins(n, edges, strength, 0.5, "mixed", seed)


def tree(n: int, strength: float, seed: int) -> Field:
    """A random tree of three labels with random tables."""
    rng = np.random.default_rng(seed)
    field = Field(n, n_labels=3).add(Unary(rng.normal(size=(n, 3))))
    edges = np.array([(rng.integers(v), v) for v in range(1, n)])
    return field.add(Pairwise(edges, strength * rng.normal(size=(n - 1, 3, 3))))


def larger_factors(n: int, strength: float, seed: int) -> Field:
    """Random tables over three or four neighbors of a ring, two or three labels."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(2, 4, n)
    field = Field(sizes)
    for first in range(0, n, 2):
        scope = (first + np.arange(3 + first // 2 % 2)) % n
        table = strength * rng.normal(size=tuple(sizes[scope]))
        field.add(Factor([scope.tolist()], table))
    return field


def with_zeros(side: int, share: float, seed: int) -> Field:
    """A grid of three labels; a share of all pairs of labels is impossible, but not all are.

    One labelling is drawn first and kept possible.
    """
    rng = np.random.default_rng(seed)
    n, edges = side * side, grid_edges(side, side)
    field = Field(n, n_labels=3).add(Unary(rng.normal(size=(n, 3))))
    tables = 0.5 * rng.normal(size=(len(edges), 3, 3))
    tables[rng.random(tables.shape) < share] = np.inf
    x = rng.integers(3, size=n)
    tables[np.arange(len(edges)), x[edges[:, 0]], x[edges[:, 1]]] = 0.0
    return field.add(Pairwise(edges, tables))


def _recipes(quick: bool) -> Iterator[tuple[str, str, Callable[[int], Field]]]:
    side = 5 if quick else 8
    edges, pairs = grid_edges(side, side), np.stack(np.triu_indices(14, 1), axis=1)
    strengths = STRENGTHS[1:2] if quick else STRENGTHS
    for sign in SIGNS:
        for strength in strengths:
            for unary in FIELDS[1:] if quick else FIELDS:
                make = partial(spins, side * side, edges, strength, unary, sign)
                yield f"grid {sign}", f"J {strength:g}, h {unary:g}", make
    for strength in strengths:
        yield "grid 3 labels, repulsive", f"J {strength:g}", partial(colored_grid, side, strength)
        yield "random graph", f"J {strength:g}", partial(random_graph, 20, 30, strength)
        coupled = partial(spins, 14, pairs, strength / np.sqrt(14), 0.5, "mixed")
        yield "complete graph", f"J {strength:g}", coupled
        yield "tree", f"J {strength:g}", partial(tree, 40, strength)
        yield "factors of 3 and 4", f"J {strength:g}", partial(larger_factors, 20, strength)
    for share in (0.2,) if quick else (0.1, 0.2, 0.3):
        yield "zeros", f"share {share:g}", partial(with_zeros, min(side, 6), share)


def generated_models(quick: bool, seeds: int) -> list[Instance[Field]]:
    """The generated models, with their exact answers.

    Args:
        quick: Fewer and smaller ones.
        seeds: Number of fields of each kind.
    """
    return [
        Instance(
            family, f"{name}, seed {seed}", RECIPE, make := partial(recipe, seed),
            partial(exact_reference, make),
        )
        for family, name, recipe in _recipes(quick)
        for seed in range(seeds)
    ]  # fmt: skip


def exact_reference(make: Callable[[], Field]) -> Reference:
    """Exact answers by elimination."""
    exact = Elimination(factor_graph(make()))
    return Reference(exact.log_z, exact.marginals())


def best_energy(field: Field) -> float | None:
    """The lowest energy of a labelling; None where elimination would take too much memory."""
    try:
        return field.energy(Elimination(factor_graph(field)).best_labels())
    except UnsupportedError:
        return None
