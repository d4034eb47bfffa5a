"""The estimate of memory is an upper bound, and not far from what is used."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

import proxfield as pf
from helpers import grid_edges
from proxfield.errors import UnsupportedError


def draw(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape)


@cache
def random_scopes(n: int, m: int, k: int) -> np.ndarray:
    rng = np.random.default_rng(1)
    return np.stack([rng.choice(n, size=k, replace=False) for _ in range(m)])


def chain(n: int) -> np.ndarray:
    return np.stack([np.arange(n - 1), np.arange(1, n)], axis=1)


def ising_grid(s: int) -> pf.Field:
    n, edges = (20 * s) ** 2, grid_edges(20 * s, 20 * s)
    return pf.Field(n, n_labels=2, terms=[pf.Ising(edges, draw(len(edges))), pf.Unary(draw(n, 2))])


def complete(s: int) -> pf.Field:
    edges = np.stack(np.triu_indices(40 * s, 1), axis=1)
    return pf.Field(40 * s, n_labels=2, terms=[pf.Ising(edges, draw(len(edges)))])


def potts_grid(s: int) -> pf.Field:
    n, edges = (12 * s) ** 2, grid_edges(12 * s, 12 * s)
    return pf.Field(n, n_labels=5, terms=[pf.Potts(edges, draw(len(edges))), pf.Unary(draw(n, 5))])


def tables(n: int, m: int, k: int, n_labels: int) -> pf.Field:
    field = pf.Field(n, n_labels=n_labels)
    return field.add(pf.Factor(random_scopes(n, m, k), draw(m, *(n_labels,) * k)))


def hard(s: int) -> pf.Field:
    table = draw(500 * s, 3, 3)
    table[np.random.default_rng(2).random(table.shape) < 0.1] = np.inf
    table[:, 0] = table[:, :, 0] = 0.0
    return pf.Field(500 * s, n_labels=3).add(pf.Pairwise(random_scopes(500 * s, 500 * s, 2), table))


def observed(s: int) -> pf.Field:
    field = pf.Field(1000 * s, n_labels=3, terms=[pf.Potts(chain(1000 * s), 0.5)])
    return field.add(pf.Unary(draw(1000 * s, 3))).condition(dict.fromkeys(range(0, 1000 * s, 9), 1))


def gaussian(s: int) -> pf.Field:
    n = 1000 * s
    features = 8 * np.random.default_rng(3).random((n, 5))
    return pf.Field(n, n_labels=3).add(pf.Unary(draw(n, 3))).add(pf.Gaussian(features, 2.0))


def consistency(s: int) -> pf.Field:
    n = 2000 * s
    segments = pf.Consistency(np.arange(n) // 20, 1.5)
    return pf.Field(n, n_labels=3, terms=[pf.Unary(draw(n, 3)), segments])


def pixels(s: int, n_labels: int) -> pf.Field:
    """A grid with twelve offsets and tables by an index."""
    shape = (20 * s, 20 * s)
    field = pf.Field(shape[0] * shape[1], n_labels=n_labels)
    for offset in [(a, b) for a in range(3) for b in range(1, 5)]:
        sizes = [n - o for n, o in zip(shape, offset, strict=True)]
        index = np.random.default_rng(4).integers(0, 6, size=sizes)
        field.add(pf.GridPairwise(shape, offset, draw(6, n_labels, n_labels), index))
    return field


FIELDS: dict[str, Callable[[int], pf.Field]] = {
    "ising": ising_grid,
    "complete": complete,
    "potts": potts_grid,
    "binary pixels": lambda s: pixels(s, 2),
    "pixels": lambda s: pixels(s, 3),
    "pairs": lambda s: tables(500 * s, 1000 * s, 2, 4),
    "binary pairs": lambda s: tables(1000 * s, 2000 * s, 2, 2),
    "triples": lambda s: tables(500 * s, 1000 * s, 3, 2),
    "larger": lambda s: tables(200 * s, 200 * s, 5, 3),
    "hard": hard,
    "observed": observed,
    "gaussian": gaussian,
    "consistency": consistency,
    "unary": lambda s: pf.Field(2000 * s, n_labels=4).add(pf.Unary(draw(2000 * s, 4))),
}
RULES = ["fixed", "adaptive", "adam", "sweep", "colored", "anneal", "restarts", "portfolio", "auto"]


def run(field: pf.Field, rule: str) -> None:
    pf.infer(field, rule, max_iters=40 if rule in ("auto", "restarts") else 3)


def used(field: pf.Field, rule: str) -> int:
    """Peak of what numpy and Python allocate while inferring."""
    tracemalloc.start()
    try:
        run(field, rule)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.slow
@pytest.mark.parametrize("name", FIELDS)
def test_estimate_is_an_upper_bound(name: str) -> None:
    most = 0
    for rule in RULES:
        try:
            run(FIELDS[name](5), rule)  # loads (or compiles) kernels
        except UnsupportedError:
            continue
        field = FIELDS[name](5)
        estimate = field.memory_estimate()
        spent = used(field, rule)
        assert spent <= estimate, rule
        most = max(most, spent)
    assert estimate < 3.5 * most


def test_more_chains_take_more() -> None:
    field = potts_grid(1)
    assert field.memory_estimate(chains=64) > 2 * field.memory_estimate()


def test_building_a_grid_is_lean() -> None:
    """Terms, lowering and packing, beyond the arrays that were given (372 bytes once)."""
    side = 300
    n, edges = side * side, grid_edges(side, side)
    weights, energies = draw(len(edges)), draw(n, 2)
    from proxfield.core.engines import compile_program

    compile_program(ising_grid(1).lower())
    tracemalloc.start()
    field = pf.Field(n, n_labels=2, terms=[pf.Ising(edges, weights), pf.Unary(energies)])
    compile_program(field.lower())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak / n < 200  # 144 at 2,000,000 variables: pieces of fixed size weigh less there
