"""Small fields, one or several per registered term; every kernel set must agree on all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

import proxfield as pf
from helpers import grid_edges, repulsive_grid

INF = np.inf


@dataclass(frozen=True)
class Example:
    """A field by name, and which registered terms it shows."""

    build: Callable[[np.random.Generator], pf.Field]
    terms: tuple[str, ...]

    @cache  # noqa: B019 - examples live as long as the tests
    def field(self) -> pf.Field:
        """The field; the same every time, and not to be changed."""
        return self.build(np.random.default_rng(20160627))


SOFT: dict[str, Example] = {}
"""Finite energies."""
HARD_LABELS: dict[str, Example] = {}
"""+inf in unary energies only."""
HARD_TABLES: dict[str, Example] = {}
"""+inf in tables, with at least one possible labelling."""
NOT_EXPECTED: dict[str, Example] = {}
"""Finite energies that aren't an expectation over labellings, so that -F bounds nothing."""
CONTRADICTIONS: dict[str, Example] = {}
"""No labelling is possible."""

Build = Callable[[np.random.Generator], pf.Field]


def example(group: dict[str, Example], *terms: str) -> Callable[[Build], Build]:
    """Register a builder under its name."""

    def add(build: Build) -> Build:
        group[build.__name__.replace("_", "-")] = Example(build, terms)
        return build

    return add


# ---- one term at a time ----


@example(SOFT, "constant")
def constant(rng: np.random.Generator) -> pf.Field:
    return pf.Field([2, 3], terms=[pf.Constant(1.7)])


@example(SOFT, "unary")
def unary(rng: np.random.Generator) -> pf.Field:
    rows = pf.Unary(rng.normal(size=(4, 3)))
    again = pf.Unary(rng.normal(size=(3, 3)), [2, 0, 2])
    return pf.Field(4, n_labels=3, terms=[rows, again])


@example(SOFT, "pairwise")
def pairwise_own(rng: np.random.Generator) -> pf.Field:
    edges = [[0, 1], [2, 1], [3, 2], [0, 3], [1, 3]]
    return pf.Field(4, n_labels=3, terms=[pf.Pairwise(edges, rng.normal(size=(5, 3, 3)))])


@example(SOFT, "pairwise")
def pairwise_shared(rng: np.random.Generator) -> pf.Field:
    edges = [[0, 1], [1, 2], [2, 3], [4, 3]]
    tables = pf.Pairwise(edges, rng.normal(size=(2, 3, 3)), [0, 1, 0, 0])
    return pf.Field(5, n_labels=3, terms=[tables, pf.Unary(rng.normal(size=(5, 3)))])


@example(SOFT, "pairwise")
def pairwise_nonsquare(rng: np.random.Generator) -> pf.Field:
    return pf.Field(
        [2, 3, 4, 2],
        terms=[
            pf.Pairwise([[0, 1], [3, 1]], rng.normal(size=(2, 2, 3))),
            pf.Pairwise([[2, 1]], rng.normal(size=(4, 3))),
            pf.Pairwise([[2, 0], [2, 3]], rng.normal(size=(4, 2))),
        ],
    )


@example(SOFT, "pairwise")
def pairwise_binary(rng: np.random.Generator) -> pf.Field:
    edges = [[0, 1], [2, 1], [3, 2], [0, 3], [4, 1]]
    return pf.Field(5, n_labels=2, terms=[pf.Pairwise(edges, rng.normal(size=(5, 2, 2)))])


@example(SOFT, "potts")
def potts_mixed_cardinalities(rng: np.random.Generator) -> pf.Field:
    edges = [[0, 1], [2, 1], [2, 3], [3, 4], [0, 4], [1, 4]]
    potts = pf.Potts(edges, [0.8, -1.3, 0.5, -0.4, 1.1, -0.9])
    field = pf.Field([2, 3, 4, 3, 2], terms=[potts])
    return field.add(pf.Unary(rng.normal(size=(2, 3)), [1, 3]))


@example(SOFT, "potts")
def potts_both_signs(rng: np.random.Generator) -> pf.Field:
    edges = [[0, 1], [1, 2], [2, 3], [3, 0], [0, 2]]
    potts = pf.Potts(edges, rng.normal(size=5))
    return pf.Field(4, n_labels=3, terms=[potts, pf.Unary(rng.normal(size=(4, 3)))])


@example(SOFT, "potts")
def potts_binary(rng: np.random.Generator) -> pf.Field:
    potts = pf.Potts(grid_edges(2, 3), rng.normal(size=7))
    return pf.Field(6, n_labels=2, terms=[potts, pf.Unary(rng.normal(size=(6, 2)))])


@example(SOFT, "ising")
def ising_grid(rng: np.random.Generator) -> pf.Field:
    ising = pf.Ising(grid_edges(3, 3), rng.normal(scale=0.7, size=12))
    return pf.Field(9, n_labels=2, terms=[ising, pf.Unary(rng.normal(size=(9, 2)))])


@example(SOFT, "ising")
def ising_scattered(rng: np.random.Generator) -> pf.Field:
    """Edges of many distances: compressed rows instead of diagonals."""
    ising = pf.Ising([[0, 8], [3, 1], [7, 2], [4, 8]], rng.normal(size=4))
    return pf.Field(9, n_labels=2, terms=[ising, pf.Unary(rng.normal(size=(9, 2)))])


@example(SOFT, "ising")
def ising_among_more_labels(rng: np.random.Generator) -> pf.Field:
    ising = pf.Ising([[0, 2], [2, 3]], [0.7, -1.2])
    return pf.Field([2, 3, 2, 2], terms=[ising, pf.Pairwise([[1, 2]], rng.normal(size=(3, 2)))])


@example(SOFT, "potts")
def strong_repulsion_binary(rng: np.random.Generator) -> pf.Field:
    """Undamped steps raise F here, so that a safeguard has something to do."""
    return repulsive_grid(3, weight=6.0, bias=1.0)


@example(SOFT, "potts")
def strong_repulsion(rng: np.random.Generator) -> pf.Field:
    potts = pf.Potts([[0, 1], [1, 2], [2, 0], [2, 3]], -9.0)
    return pf.Field(4, n_labels=3, terms=[potts, pf.Unary(rng.normal(scale=0.5, size=(4, 3)))])


@example(SOFT, "factor")
def factor_arity_3(rng: np.random.Generator) -> pf.Field:
    scopes = [[0, 1, 2], [3, 1, 0], [2, 4, 3]]
    return pf.Field(5, n_labels=2, terms=[pf.Factor(scopes, rng.normal(size=(3, 2, 2, 2)))])


@example(SOFT, "factor")
def factor_arity_4(rng: np.random.Generator) -> pf.Field:
    factor = pf.Factor([[0, 1, 2, 3], [4, 3, 2, 1]], rng.normal(size=(1, 2, 2, 2, 2)))
    return pf.Field(5, n_labels=2, terms=[factor, pf.Unary(rng.normal(size=(5, 2)))])


@example(SOFT, "factor")
def factor_arity_5(rng: np.random.Generator) -> pf.Field:
    factor = pf.Factor([[0, 1, 2, 3, 4], [5, 3, 1, 4, 2]], rng.normal(size=(2, *[2] * 5)))
    return pf.Field(6, n_labels=2, terms=[factor])


@example(SOFT, "factor")
def factor_mixed_shapes(rng: np.random.Generator) -> pf.Field:
    return pf.Field(
        [2, 3, 4, 3, 2],
        terms=[
            pf.Factor([2, 0, 1], rng.normal(size=(4, 2, 3))),
            pf.Factor([[0, 1, 3, 4], [4, 3, 1, 0]], rng.normal(size=(2, 2, 3, 3, 2))),
            pf.Factor([[1], [3]], rng.normal(size=(2, 3))),
            pf.Factor([[4, 2]], rng.normal(size=(2, 4))),
        ],
    )


@example(SOFT, "consistency")
def consistency(rng: np.random.Generator) -> pf.Field:
    """Segments that overlap, one of a single variable, with a weight per label."""
    segments = [[0, 1, 2], [3, 2], [4, 3, 1, 0], [4]]
    term = pf.Consistency(segments, rng.exponential(size=(4, 3)), tables=True)
    return pf.Field(5, n_labels=3, terms=[term, pf.Unary(rng.normal(size=(5, 3)))])


@example(SOFT, "consistency")
def consistency_binary(rng: np.random.Generator) -> pf.Field:
    term = pf.Consistency([0, 1, 0, -1, 1, 0, 1], [1.7, 2.3])
    return pf.Field(7, n_labels=2, terms=[term, pf.Unary(rng.normal(size=(7, 2)))])


def class_presence(rng: np.random.Generator, *, tables: bool) -> pf.Field:
    """Three pixels and the presence of two classes, with strangers around them.

    The implicit form has no place here: its E(q) isn't an expectation over labellings.
    """
    counts = pf.CooccurrenceStatistics(9, [9, 5, 4], [[9, 5, 4], [5, 5, 1], [4, 1, 4]])
    options = {"latent": "variables", "presence": 5, "kappa": 1.5, "beta": 1.2}
    term = pf.Cooccurrence(counts, pixels=3, first=1, tables=tables, **options)
    unary = pf.Unary(rng.normal(size=(3, 3)), [1, 2, 3])
    return pf.Field([2, 3, 3, 3, 2, 2, 2], terms=[term, unary, pf.Potts([[0, 1], [4, 2]], 0.7)])


@example(SOFT, "cooccurrence")
def cooccurrence(rng: np.random.Generator) -> pf.Field:
    return class_presence(rng, tables=False)


@example(SOFT, "cooccurrence")
def cooccurrence_in_tables(rng: np.random.Generator) -> pf.Field:
    return class_presence(rng, tables=True)


def gaussian_field(rng: np.random.Generator, n_labels: int, *kinds: dict[str, object]) -> pf.Field:
    """Six points, seen by one Gaussian term or several."""
    field = pf.Field(6, n_labels=n_labels).add(pf.Unary(rng.normal(size=(6, n_labels))))
    for k, options in enumerate(kinds):
        field.add(pf.Gaussian(rng.normal(size=(6, 2 + 3 * k)), **options))
    return field


@example(SOFT, "gaussian")
def gaussian(rng: np.random.Generator) -> pf.Field:
    return gaussian_field(rng, 3, {"weight": 2.0}, {"weight": 1.0, "normalization": "none"})


@example(SOFT, "gaussian")
def gaussian_repulsive(rng: np.random.Generator) -> pf.Field:
    matrix = rng.normal(size=(3, 3))
    return gaussian_field(rng, 3, {"weight": -4.0}, {"compatibility": matrix})


@example(SOFT, "gaussian")
def gaussian_lattice(rng: np.random.Generator) -> pf.Field:
    other = {"weight": 1.0, "normalization": "after", "filter": "lattice"}
    return gaussian_field(rng, 3, {"weight": 2.0, "filter": "lattice"}, other)


@example(SOFT, "gaussian")
def gaussian_lattice_repulsive(rng: np.random.Generator) -> pf.Field:
    diagonal = {"compatibility": 3 * rng.normal(size=2), "filter": "lattice"}
    return gaussian_field(rng, 2, {"weight": -9.0, "filter": "lattice"}, diagonal)


@example(SOFT, "gaussian")
def gaussian_lattice_and_others(rng: np.random.Generator) -> pf.Field:
    """Both filters, and variables that no Gaussian term is about."""
    points = rng.normal(size=(4, 2))
    return pf.Field(
        [3, 3, 3, 3, 2, 3],
        terms=[
            pf.Gaussian(points, 1.5, filter="lattice"),
            pf.Gaussian(points[:3], -2.0, filter="exact", first=1),
            pf.Unary(rng.normal(size=(4, 3)), [0, 2, 3, 5]),
            pf.Unary(rng.normal(size=(1, 2)), [4]),
        ],
    )


@example(SOFT, "gaussian")
def gaussian_and_tables(rng: np.random.Generator) -> pf.Field:
    """A Gaussian term beside edges: iterated by the general kernels."""
    field = gaussian_field(rng, 3, {"weight": 2.0, "filter": "lattice"})
    return field.add(pf.Potts([[0, 1], [2, 5]], [1.0, -2.0]))


def people(rng: np.random.Generator, **options: object) -> pf.Field:
    """Six locations in cameras of different size: boxes, other shapes, and one without a mask."""
    boxes = pf.Boxes(
        4, 6, [[0, 0, 2, 3], [1, 0, 3, 4], [2, 1, 5, 4], [4, 0, 6, 2], [3, 3, 4, 4], [0, 0, 0, 0]]
    )
    shapes = rng.random((6, 5, 3)) < 0.5
    shapes[2] = False  # out of sight
    silhouettes = [boxes, pf.Runs.from_masks(shapes), boxes]
    masks = [rng.random((4, 6)) < 0.5, rng.random((5, 3)), None]
    term = pf.Occupancy(silhouettes, masks, **options)
    return pf.Field(6, n_labels=2, terms=[term, pf.Unary(rng.normal(size=(6, 2)))])


@example(SOFT, "grid-pairwise")
def grid_pairwise(rng: np.random.Generator) -> pf.Field:
    """Two axes, with offsets in all directions and tables by an index."""
    field = pf.Field(7, n_labels=2, terms=[pf.Unary(rng.normal(size=(7, 2)))])
    for offset in ((0, 1), (1, 0), (1, -1), (-1, -1), (0, -2)):
        count = (2 - abs(offset[0])) * (3 - abs(offset[1]))
        index = rng.integers(0, 3, size=count)
        field.add(pf.GridPairwise((2, 3), offset, rng.normal(size=(3, 2, 2)), index, first=1))
    return field


@example(SOFT, "grid-pairwise")
def grid_pairwise_among_others(rng: np.random.Generator) -> pf.Field:
    """Three axes and three labels, beside edges and variables with other numbers of labels."""
    field = pf.Field([2, *[3] * 4, 4])
    field.add(pf.GridPairwise((2, 1, 2), (1, 0, -1), rng.normal(size=(3, 3)), first=1))
    field.add(pf.GridPairwise((4,), (-1,), rng.normal(size=(3, 3, 3)), first=1))
    return field.add(pf.Pairwise([[0, 2], [0, 4]], rng.normal(size=(2, 2, 3))))


@example(SOFT, "grid-pairwise", "ising")
def grid_pairwise_with_evidence(rng: np.random.Generator) -> pf.Field:
    field = pf.Field(6, n_labels=2, terms=[pf.Ising([[0, 1], [1, 5]], 0.7)])
    for offset in ((0, 1), (1, 1)):
        field.add(pf.GridPairwise((2, 3), offset, rng.normal(size=(2, 2))))
    return field.condition({4: 1})


@example(SOFT, "occupancy")
def occupancy(rng: np.random.Generator) -> pf.Field:
    return people(rng, strength=3.0)


@example(SOFT, "occupancy")
def occupancy_among_more_labels(rng: np.random.Generator) -> pf.Field:
    runs = pf.Runs(2, 3, [[0, 1, 2], [1, 0, 3], [0, 0, 3]], [0, 2, 3])
    term = pf.Occupancy([runs], [rng.random((2, 3))], first=1)
    return pf.Field([3, 2, 2, 2], terms=[term, pf.Potts([[0, 1], [2, 3]], [1.0, -2.0])])


@example(SOFT, "occupancy")
def occupancy_with_evidence(rng: np.random.Generator) -> pf.Field:
    """One location is certainly occupied: every pixel that it covers is foreground."""
    return people(rng, strength=5.0).condition({1: 1, 3: 0})


@example(NOT_EXPECTED, "occupancy")
def occupancy_ratio(rng: np.random.Generator) -> pf.Field:
    return people(rng, model="ratio", variance=0.1)


@example(NOT_EXPECTED, "occupancy")
def occupancy_ratio_with_evidence(rng: np.random.Generator) -> pf.Field:
    return people(rng, model="ratio", variance=0.3, floor=0.1).condition({2: 1})


# ---- together, and at the edges ----


def add_all_terms(field: pf.Field, rng: np.random.Generator) -> pf.Field:
    """One of each registered term over five variables with 2, 3, 2, 3, 2 labels."""
    return (
        field.add(pf.Constant(-2.5))
        .add(pf.Unary(rng.normal(size=(3, 2)), [0, 2, 4]))
        .add(pf.Pairwise([[1, 3]], rng.normal(size=(3, 3))))
        .add(pf.Pairwise([[0, 1], [4, 1]], rng.normal(size=(2, 3))))
        .add(pf.Potts([[1, 3], [2, 3], [0, 4]], [0.9, -1.4, 0.6]))
        .add(pf.Ising([[0, 2], [4, 2]], [-0.8, 1.1]))
        .add(pf.Factor([0, 1, 2, 3], rng.normal(size=(2, 3, 2, 3))))
    )


ALL_TERMS = ("constant", "unary", "pairwise", "potts", "ising", "factor")


@example(SOFT, *ALL_TERMS)
def all_terms(rng: np.random.Generator) -> pf.Field:
    return add_all_terms(pf.Field([2, 3, 2, 3, 2]), rng)


@example(SOFT, *ALL_TERMS)
def all_terms_with_evidence(rng: np.random.Generator) -> pf.Field:
    return all_terms(rng).condition({1: 2, 4: 0})


@example(SOFT, *ALL_TERMS)
def all_observed(rng: np.random.Generator) -> pf.Field:
    return all_terms(rng).condition({0: 1, 1: 2, 2: 0, 3: 0, 4: 1})


@example(SOFT, "ising", "unary")
def binary_evidence(rng: np.random.Generator) -> pf.Field:
    return ising_grid(rng).condition({4: 1, 0: 0})


@example(SOFT, "unary", "pairwise", "potts", "factor")
def one_label_variables(rng: np.random.Generator) -> pf.Field:
    return pf.Field(
        [1, 2, 1, 3, 2],
        terms=[
            pf.Unary([[0.7], [-1.1]], [0, 2]),
            pf.Pairwise([[0, 1], [2, 4]], rng.normal(size=(2, 1, 2))),
            pf.Potts([[1, 2], [3, 0], [3, 4]], [1.3, -0.7, 0.9]),
            pf.Factor([1, 2, 3], rng.normal(size=(2, 1, 3))),
        ],
    )


@example(SOFT, "unary", "potts")
def isolated_variables(rng: np.random.Generator) -> pf.Field:
    field = pf.Field([3, 2, 3, 4, 3], terms=[pf.Potts([[0, 2]], [-1.2])])
    return field.add(pf.Unary(rng.normal(size=(1, 4)), [3]))


@example(SOFT, "pairwise", "potts", "ising", "factor")
def repeated_scopes(rng: np.random.Generator) -> pf.Field:
    return pf.Field(
        [2, 3, 2, 3],
        terms=[
            pf.Pairwise([[0, 2], [2, 0], [0, 2]], rng.normal(size=(3, 2, 2))),
            pf.Ising([[0, 2], [2, 0]], [0.4, -0.9]),
            pf.Potts([[1, 3], [3, 1]], [0.8, 0.5]),
            pf.Pairwise([[3, 1], [1, 3]], rng.normal(size=(2, 3, 3))),
            pf.Factor([[0, 1, 2], [0, 1, 2], [2, 1, 0]], rng.normal(size=(3, 2, 3, 2))),
        ],
    )


# ---- impossible labels and configurations ----


@example(HARD_LABELS, "gaussian")
def gaussian_lattice_with_impossible_labels(rng: np.random.Generator) -> pf.Field:
    energies = rng.normal(size=(6, 3))
    energies[[1, 1, 4], [0, 2, 1]] = INF
    other = {"weight": -3.0, "filter": "lattice"}
    return gaussian_field(rng, 3, {"weight": 2.0, "filter": "lattice"}, other).add(
        pf.Unary(energies)
    )


@example(HARD_LABELS, "unary", "ising")
def inf_unary_binary(rng: np.random.Generator) -> pf.Field:
    rows = rng.normal(size=(5, 2))
    rows[1, 0] = rows[3, 1] = INF
    ising = pf.Ising([[0, 1], [1, 2], [2, 3], [3, 4]], rng.normal(size=4))
    return pf.Field(5, n_labels=2, terms=[pf.Unary(rows), ising])


@example(HARD_LABELS, "unary", "pairwise")
def inf_unary(rng: np.random.Generator) -> pf.Field:
    rows = rng.normal(size=(4, 3))
    rows[0, 1] = rows[2, 0] = rows[2, 2] = INF
    tables = pf.Pairwise([[0, 1], [1, 2], [3, 2]], rng.normal(size=(3, 3, 3)))
    return pf.Field(4, n_labels=3, terms=[pf.Unary(rows), tables])


@example(HARD_LABELS, *ALL_TERMS)
def inf_unary_all_terms(rng: np.random.Generator) -> pf.Field:
    return all_terms(rng).add(pf.Unary([[0.3, INF, -0.2]], [1])).add(pf.Unary([[INF, 0.0]], [2]))


@example(HARD_LABELS, "unary", "consistency")
def inf_unary_consistency(rng: np.random.Generator) -> pf.Field:
    """A label that is impossible for one member takes away all pull towards it."""
    rows = rng.normal(size=(5, 3))
    rows[1, 2] = rows[4, 0] = INF
    term = pf.Consistency([[0, 1, 2, 3], [3, 4]], [1.5, 0.8])
    return pf.Field(5, n_labels=3, terms=[pf.Unary(rows), term])


@example(HARD_LABELS, "unary", "cooccurrence")
def inf_unary_cooccurrence(rng: np.random.Generator) -> pf.Field:
    """A class that must be present, and one that a pixel can't show."""
    field = class_presence(rng, tables=False).add(pf.Unary([[INF, 0.0]], [5]))
    return field.add(pf.Unary([[0.0, 0.5, INF]], [2]))


@example(HARD_TABLES, "pairwise")
def inf_pairwise_binary(rng: np.random.Generator) -> pf.Field:
    tables = rng.normal(size=(4, 2, 2))
    tables[[0, 2], [0, 1], [1, 1]] = INF
    pairs = pf.Pairwise([[0, 1], [1, 2], [3, 2], [0, 3]], tables)
    return pf.Field(4, n_labels=2, terms=[pairs, pf.Unary(rng.normal(size=(4, 2)))])


@example(HARD_TABLES, "pairwise")
def inf_pairwise_coloring(rng: np.random.Generator) -> pf.Field:
    different = np.where(np.eye(3, dtype=bool), INF, 0.0)
    edges = [[0, 1], [1, 2], [2, 3], [3, 0], [0, 2]]
    field = pf.Field(4, n_labels=3, terms=[pf.Pairwise(edges, different)])
    return field.add(pf.Unary(rng.normal(size=(4, 3))))


@example(HARD_TABLES, "factor")
def inf_factor(rng: np.random.Generator) -> pf.Field:
    """Parity checks, and a mixed table with a few zeros of probability."""
    odd = np.where(np.indices((2, 2, 2)).sum(axis=0) % 2 == 1, 0.0, INF)
    mixed = rng.normal(size=(2, 3, 2))
    mixed[0, 1, :] = mixed[1, 0, 1] = INF
    return pf.Field(
        [2, 2, 2, 3, 2],
        terms=[
            pf.Factor([[0, 1, 2], [1, 2, 4]], odd),
            pf.Factor([0, 3, 4], mixed),
            pf.Unary(rng.normal(size=(4, 2)), [0, 1, 2, 4]),
        ],
    )


@example(HARD_TABLES, "unary", "pairwise", "factor")
def inf_everywhere(rng: np.random.Generator) -> pf.Field:
    tables = rng.normal(size=(3, 3))
    tables[0, 0] = tables[2, 1] = INF
    factor = rng.normal(size=(3, 2, 3))
    factor[0, 1, 2] = factor[1, 0, 0] = INF
    return pf.Field(
        [3, 2, 3, 3],
        terms=[
            pf.Unary([[0.1, INF, 0.4]], [3]),
            pf.Pairwise([[0, 2], [3, 0]], tables),
            pf.Factor([0, 1, 2], factor),
            pf.Potts([[2, 3]], [-0.8]),
        ],
    )


@example(HARD_TABLES, "pairwise")
def inf_decides_all(rng: np.random.Generator) -> pf.Field:
    """Equality along a chain with one end fixed: propagation alone solves it."""
    same = np.where(np.eye(3, dtype=bool), 0.5, INF)
    field = pf.Field(3, n_labels=3, terms=[pf.Pairwise([[0, 1], [2, 1]], same)])
    return field.add(pf.Unary([[INF, 1.0, INF]], [0]))


@example(CONTRADICTIONS, "unary")
def no_label(rng: np.random.Generator) -> pf.Field:
    return pf.Field([2, 3], terms=[pf.Unary([[INF, INF]], [0])])


@example(CONTRADICTIONS, "constant")
def no_constant(rng: np.random.Generator) -> pf.Field:
    return pf.Field([2, 3], terms=[pf.Constant(INF)])


@example(CONTRADICTIONS, "pairwise")
def no_pair(rng: np.random.Generator) -> pf.Field:
    """x = y and x ≠ y; evidence makes propagation see it."""
    same = np.where(np.eye(2, dtype=bool), 0.0, INF)
    field = pf.Field([2, 2, 2], terms=[pf.Pairwise([[0, 1]], same)])
    return field.add(pf.Pairwise([[0, 1]], same[::-1])).condition({0: 1})


@example(CONTRADICTIONS, "factor")
def no_table(rng: np.random.Generator) -> pf.Field:
    return pf.Field(3, n_labels=2, terms=[pf.Factor([0, 1, 2], np.full((2, 2, 2), INF))])


@example(CONTRADICTIONS, "unary")
def no_evidence(rng: np.random.Generator) -> pf.Field:
    return pf.Field(2, n_labels=2, terms=[pf.Unary([[0.0, INF], [0.0, 1.0]])]).condition({0: 1})


POSSIBLE = {**SOFT, **HARD_LABELS, **HARD_TABLES}
FINITE_TABLES = {**SOFT, **HARD_LABELS}
FINITE = {**FINITE_TABLES, **NOT_EXPECTED}
