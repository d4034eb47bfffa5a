"""The fields of `seeded_results.py`, by name: seeded, and made with the public API alone.

Arguments whose name or default may change are given by position, or explicitly.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import proxfield as pf

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from random_fields import random_field as random_field

Array = NDArray[Any]
Build = Callable[[np.random.Generator], pf.Field]

SMALL: dict[str, Build] = {}
"""Iterated by every rule, on every kernel set, in both types, from every start."""
LARGE: dict[str, Build] = {}
"""Large enough for the kernels that use several threads; few iterations of some rules."""
TINY: dict[str, Build] = {}
"""Small enough for Triton's interpreter."""


def field_in(group: dict[str, Build]) -> Callable[[Build], Build]:
    """Register a builder under its name."""

    def add(build: Build) -> Build:
        group[build.__name__.replace("_", "-")] = build
        return build

    return add


@cache
def make_field(name: str) -> pf.Field:
    """A field by its name; the same object every time."""
    return {**SMALL, **LARGE, **TINY}[name](np.random.default_rng(20160627))


# ---- binary ----


@field_in(SMALL)
def ising_grid(rng: np.random.Generator) -> pf.Field:
    return pf.generate.grid(9, 9, strength=2.0, seed=1)


@field_in(SMALL)
def repulsive_grid(rng: np.random.Generator) -> pf.Field:
    return pf.generate.grid(8, 8, strength=3.0, wrap=True, sign="repulsive", seed=2)


@field_in(SMALL)
def rbm(rng: np.random.Generator) -> pf.Field:
    return pf.generate.rbm(16, 10, strength=0.4, seed=3)


@field_in(SMALL)
def segmentation(rng: np.random.Generator) -> pf.Field:
    return pf.generate.segmentation(60, strength=0.8, seed=4)


# ---- more labels, tables ----


@field_in(SMALL)
def potts(rng: np.random.Generator) -> pf.Field:
    edges = pf.generate.grid_edges(6, 7)
    weights = rng.normal(scale=1.5, size=len(edges))
    return pf.Field(np.full(42, 4), terms=[unary(rng, 42, 4), pf.Potts(edges, weights)])


@field_in(SMALL)
def tables(rng: np.random.Generator) -> pf.Field:
    """Variables of 1 to 5 labels, a table of its own for each edge, parallel edges."""
    cards = rng.integers(1, 6, 14)
    field = pf.Field(cards)
    for v, c in enumerate(cards):
        field.add(pf.Unary(rng.normal(size=(1, c)), [v]))
    for _ in range(24):
        i, j = rng.choice(14, 2, replace=False)
        field.add(pf.Pairwise([[i, j]], rng.normal(scale=1.5, size=(1, cards[i], cards[j]))))
    first = rng.integers(0, 7, 9)
    return field.add(pf.Potts(np.stack([first, first + 7], axis=1), rng.normal(size=9)))


@field_in(SMALL)
def shared_tables(rng: np.random.Generator) -> pf.Field:
    edges = pf.generate.grid_edges(5, 6)
    index = rng.integers(0, 3, len(edges))
    pairs = pf.Pairwise(edges, rng.normal(size=(3, 3, 3)), index)
    return pf.Field(np.full(30, 3), terms=[unary(rng, 30, 3), pairs])


@field_in(SMALL)
def factors(rng: np.random.Generator) -> pf.Field:
    """Factors of three and four variables beside a few edges and a constant."""
    three = [rng.choice(12, 3, replace=False) for _ in range(8)]
    four = [rng.choice(12, 4, replace=False) for _ in range(5)]
    field = pf.Field(np.full(12, 3), terms=[unary(rng, 12, 3), pf.Constant(1.25)])
    field.add(pf.Factor(np.array(three), rng.normal(size=(8, 3, 3, 3))))
    field.add(pf.Factor(np.array(four), rng.normal(scale=0.7, size=(5, 3, 3, 3, 3))))
    return field.add(pf.Potts([[0, 5], [5, 9], [9, 11]], [0.8, -1.5, 2.0]))


# ---- forbidden configurations, evidence ----


@field_in(SMALL)
def forbidden(rng: np.random.Generator) -> pf.Field:
    """A grid to be colored: neighbors must differ, and some labels are impossible."""
    edges = pf.generate.grid_edges(4, 5)
    differ = np.where(np.eye(3, dtype=bool), np.inf, rng.normal(size=(len(edges), 3, 3)))
    energies = rng.normal(size=(20, 3))
    energies[[0, 7], [2, 1]] = np.inf
    return pf.Field(np.full(20, 3), terms=[pf.Unary(energies), pf.Pairwise(edges, differ)])


@field_in(SMALL)
def forbidden_few(rng: np.random.Generator) -> pf.Field:
    """Three forbidden configurations of three variables each."""
    table = rng.normal(size=(6, 2, 2, 2))
    table[[0, 2, 4], [0, 1, 1], [1, 1, 0], [0, 1, 0]] = np.inf
    scopes = np.array([rng.choice(10, 3, replace=False) for _ in range(6)])
    return pf.Field(np.full(10, 2), terms=[unary(rng, 10, 2), pf.Factor(scopes, table)])


@field_in(SMALL)
def contradiction(rng: np.random.Generator) -> pf.Field:
    """No labelling is possible: an odd cycle of variables that must differ."""
    differ = np.where(np.eye(2, dtype=bool), np.inf, 0.0)
    edges = [[0, 1], [1, 2], [2, 0], [2, 3]]
    return pf.Field(np.full(4, 2), terms=[unary(rng, 4, 2), pf.Pairwise(edges, differ)])


@field_in(SMALL)
def evidence(rng: np.random.Generator) -> pf.Field:
    return tables(rng).condition({3: 0, 8: 0, 11: 0})


# ---- terms that couple many variables ----


@field_in(SMALL)
def gaussian_exact(rng: np.random.Generator) -> pf.Field:
    """All pairs, attractive and repulsive, and a Potts edge besides."""
    field = pf.Field(np.full(24, 3), terms=[unary(rng, 24, 3)])
    field.add(gaussian(rng.normal(size=(24, 2)), 2.0, "exact"))
    vector = rng.normal(size=3)
    field.add(gaussian(rng.normal(size=(24, 5)), -1.5, "exact", vector, "none"))
    return field.add(pf.Potts([[0, 5], [3, 20]], [1.0, -2.0]))


@field_in(SMALL)
def gaussian_lattice(rng: np.random.Generator) -> pf.Field:
    """Two permutohedral lattices, one of them with self-interaction: the dense kernels."""
    field = pf.Field(np.full(300, 4), terms=[unary(rng, 300, 4)])
    field.add(gaussian(3 * rng.normal(size=(300, 2)), 3.0, "lattice", self_message=True))
    matrix = rng.normal(size=(4, 4))
    return field.add(gaussian(rng.normal(size=(300, 5)), 1.0, "lattice", matrix, "after"))


@field_in(SMALL)
def gaussian_and_tables(rng: np.random.Generator) -> pf.Field:
    """A lattice beside edges and variables that it isn't about: the general kernels."""
    field = pf.Field([3] * 60 + [2] * 4, terms=[pf.Unary(rng.normal(size=(60, 3)), range(60))])
    field.add(gaussian(rng.normal(size=(60, 3)), 2.0, "lattice", None, "before"))
    field.add(pf.Pairwise([[60, 1], [61, 7], [62, 30]], rng.normal(size=(3, 2, 3))))
    return field.add(pf.Ising([[60, 61], [62, 63]], [0.7, -0.9]))


@field_in(SMALL)
def consistency(rng: np.random.Generator) -> pf.Field:
    segments = [rng.choice(20, k, replace=False) for k in (3, 4, 6, 9)]
    term = pf.Consistency(segments, rng.exponential(size=(4, 3)))
    edges = pf.generate.grid_edges(4, 5)
    return pf.Field(np.full(20, 3), terms=[unary(rng, 20, 3), term, pf.Potts(edges, 0.4)])


@field_in(SMALL)
def consistency_tables(rng: np.random.Generator) -> pf.Field:
    term = pf.Consistency(np.arange(12) // 4, [1.0, 2.0, 0.5], tables=True)
    return pf.Field(np.full(12, 3), terms=[unary(rng, 12, 3), term])


@field_in(SMALL)
def cooccurrence(rng: np.random.Generator) -> pf.Field:
    """Presences of classes summed out, beside a lattice."""
    term = pf.Cooccurrence(counts(), pixels=40, kappa=1.5, beta=1.2)
    field = pf.Field(np.full(40, 4), terms=[unary(rng, 40, 4), term])
    return field.add(gaussian(rng.normal(size=(40, 2)), 1.0, "lattice"))


@field_in(SMALL)
def cooccurrence_variables(rng: np.random.Generator) -> pf.Field:
    term = pf.Cooccurrence(counts(), pixels=20, latent="variables", kappa=1.5, beta=1.2)
    return pf.Field([4] * 20 + [2] * 3, terms=[pf.Unary(rng.normal(size=(20, 4)), range(20)), term])


@field_in(SMALL)
def cooccurrence_tables(rng: np.random.Generator) -> pf.Field:
    term = pf.Cooccurrence(
        counts(), pixels=12, latent="variables", kappa=1.5, beta=1.2, tables=True
    )
    return pf.Field([4] * 12 + [2] * 3, terms=[pf.Unary(rng.normal(size=(12, 4)), range(12)), term])


# ---- tiny and large ones ----


@field_in(TINY)
def tiny_spins(rng: np.random.Generator) -> pf.Field:
    return pf.generate.grid(3, 4, strength=2.0, seed=6)


@field_in(TINY)
def tiny_potts(rng: np.random.Generator) -> pf.Field:
    """Edges with and without tables, an observed variable."""
    field = pf.Field([2, 3, 4, 3, 2]).add(pf.Unary(rng.normal(size=(2, 3)), [1, 3]))
    field.add(pf.Potts([[0, 1], [2, 1], [2, 3], [3, 4]], [0.8, -1.3, 0.5, -0.9]))
    return field.add(pf.Pairwise([[0, 3], [4, 1]], rng.normal(size=(2, 2, 3)))).condition({2: 1})


@field_in(TINY)
def tiny_factors(rng: np.random.Generator) -> pf.Field:
    field = pf.Field(np.full(5, 2), terms=[unary(rng, 5, 2)])
    field.add(pf.Factor([[0, 1, 2], [3, 1, 4]], rng.normal(size=(2, 2, 2, 2))))
    return field.add(pf.Factor([[4, 0, 2, 3]], rng.normal(size=(1, 2, 2, 2, 2))))


@field_in(TINY)
def tiny_forbidden(rng: np.random.Generator) -> pf.Field:
    differ = np.where(np.eye(3, dtype=bool), np.inf, 0.5)
    terms = [unary(rng, 4, 3), pf.Pairwise([[0, 1], [1, 2]], differ), pf.Potts([[2, 3]], [-1.0])]
    return pf.Field(np.full(4, 3), terms=terms)


@field_in(TINY)
def tiny_gaussian(rng: np.random.Generator) -> pf.Field:
    """Both filters, a segment and the presence of classes."""
    field = pf.Field([4] * 8 + [2] * 3, terms=[pf.Unary(rng.normal(size=(8, 4)), range(8))])
    field.add(gaussian(rng.normal(size=(8, 2)), 2.0, "exact"))
    field.add(gaussian(rng.normal(size=(8, 3)), -1.0, "lattice", rng.normal(size=4), "after"))
    field.add(pf.Consistency([[0, 1, 2, 5], [3, 4]], [1.0, 0.5]))
    return field.add(pf.Cooccurrence(counts(), pixels=8, latent="variables", kappa=1.5, beta=1.2))


@field_in(TINY)
def tiny_presence(rng: np.random.Generator) -> pf.Field:
    term = pf.Cooccurrence(counts(), pixels=7, kappa=1.5, beta=1.2)
    return pf.Field(np.full(7, 4), terms=[unary(rng, 7, 4), term])


@field_in(LARGE)
def large_grid(rng: np.random.Generator) -> pf.Field:
    """Couplings along diagonals of the matrix."""
    return pf.generate.grid(320, 320, strength=1.5, seed=5)


@field_in(LARGE)
def large_scattered(rng: np.random.Generator) -> pf.Field:
    """Couplings in compressed rows."""
    first, gap = rng.integers(0, 30_000, 240_000), rng.integers(1, 30_000, 240_000)
    spins = pf.Ising(np.stack([first, first + gap], axis=1), rng.normal(scale=0.3, size=240_000))
    return pf.Field(np.full(60_000, 2), terms=[unary(rng, 60_000, 2), spins])


@field_in(LARGE)
def large_potts(rng: np.random.Generator) -> pf.Field:
    edges = pf.generate.grid_edges(250, 300)
    weights = rng.normal(size=len(edges))
    return pf.Field(np.full(75_000, 3), terms=[unary(rng, 75_000, 3), pf.Potts(edges, weights)])


@field_in(LARGE)
def large_factors(rng: np.random.Generator) -> pf.Field:
    first = rng.integers(0, 8_000, (24_000, 1))
    scopes = (first + rng.integers(1, 2_600, (24_000, 3)).cumsum(1)) % 8_000
    index = rng.integers(0, 5, 24_000)
    term = pf.Factor(scopes, rng.normal(scale=0.4, size=(5, 2, 2, 2)), index)
    edges = pf.generate.grid_edges(80, 100)
    return pf.Field(
        np.full(8_000, 2),
        terms=[unary(rng, 8_000, 2), term, pf.Potts(edges, rng.normal(size=len(edges)))],
    )


# ---- parts ----


def unary(rng: np.random.Generator, n: int, labels: int) -> pf.Unary:
    """Random unary energies."""
    return pf.Unary(rng.normal(size=(n, labels)))


def gaussian(
    features: Array,
    weight: float,
    filter: str,
    compatibility: Array | None = None,
    normalization: str = "symmetric",
    *,
    self_message: bool = False,
) -> pf.Gaussian:
    """A Gaussian term with every default given."""
    given = {} if compatibility is None else {"compatibility": compatibility}
    return pf.Gaussian(
        features,
        weight,
        normalization=normalization,
        self_message=self_message,
        filter=filter,
        **given,
    )


def counts() -> pf.CooccurrenceStatistics:
    """Statistics of four classes in thirty images."""
    maps = np.random.default_rng(11).random((30, 4)) < [0.9, 0.6, 0.4, 0.2]
    return pf.CooccurrenceStatistics.from_label_maps([np.flatnonzero(m) for m in maps], 4)


def picture(height: int, width: int, labels: int, seed: int) -> tuple[Array, Array]:
    """A generated image and noisy probabilities.  # (h, w, 3) uint8, (h, w, labels)

    Whole numbers and powers only up to the last lines, so that it is the same everywhere.
    """
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    truth = (x * labels // width + (y * 3 // height) % 2) % labels
    truth[(x - width // 2) ** 2 + (y - height // 2) ** 2 < (min(height, width) // 4) ** 2] = 0
    colors = rng.integers(20, 236, (labels, 3))
    image = np.clip(colors[truth] + rng.integers(-15, 16, (height, width, 3)), 0, 255)
    scores = 1.0 + 8.0 * rng.random((height, width, labels)) ** 4
    scores[y, x, truth] += 1.5
    return image.astype(np.uint8), scores / scores.sum(axis=-1, keepdims=True)
