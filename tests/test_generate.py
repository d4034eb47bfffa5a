"""Seeded random fields."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import proxfield as pf
from proxfield.errors import InputError, MemoryLimitError
from proxfield.generate import _touching, _voronoi, grid, grid_edges, rbm, segmentation
from proxfield.io import format_model


@pytest.mark.parametrize("wrap", [False, True])
@pytest.mark.parametrize(("rows", "cols"), [(1, 1), (1, 5), (2, 2), (2, 3), (3, 3), (4, 6)])
def test_grid_edges_against_the_definition(rows: int, cols: int, wrap: bool) -> None:
    expected = set()
    for (r, c), (s, d) in itertools.permutations(np.ndindex(rows, cols), 2):
        dr, dc = abs(r - s), abs(c - d)
        if wrap:
            dr, dc = min(dr, rows - dr), min(dc, cols - dc)
        if dr + dc == 1:
            expected.add(frozenset((r * cols + c, s * cols + d)))
    edges = grid_edges(rows, cols, wrap)
    assert edges.shape == (len(expected), 2)  # hence no edge twice
    assert {frozenset(e) for e in edges.tolist()} == expected


@pytest.mark.parametrize(
    "make",
    [lambda s: grid(5, 6, seed=s), lambda s: rbm(4, 3, seed=s), lambda s: segmentation(40, seed=s)],
)
def test_the_seed_decides(make) -> None:  # type: ignore[no-untyped-def]
    assert format_model(make(3)) == format_model(make(3)) != format_model(make(4))


def test_grid_of_spins() -> None:
    field = grid(30, 30, strength=2.5)
    unary, ising = field.terms
    assert isinstance(unary, pf.Unary) and isinstance(ising, pf.Ising)
    assert (unary.energies[:, 0] == -unary.energies[:, 1]).all()
    assert 0.9 < np.abs(unary.energies).max() <= 1
    assert 2.3 < ising.weights.max() <= 2.5 and -2.5 <= ising.weights.min() < -2.3


@pytest.mark.parametrize("n_labels", [2, 3, 5])
@pytest.mark.parametrize("sign", ["attractive", "repulsive"])
def test_signs(n_labels: int, sign: str) -> None:
    field = grid(1, 2, n_labels=n_labels, sign=sign)
    pair = field.terms[1]
    equal = pair.labelling_energy(field.layout, np.array([0, 0]))
    differ = pair.labelling_energy(field.layout, np.array([0, 1]))
    assert (equal < differ) == (sign == "attractive")
    assert equal != differ


def test_mixed_potts_has_both_signs() -> None:
    potts = grid(10, 10, n_labels=3).terms[1]
    assert isinstance(potts, pf.Potts)
    assert potts.weights.min() < 0 < potts.weights.max()


def test_rbm_is_bipartite_and_dense() -> None:
    field = rbm(5, 3, strength=0.5)
    edges = field.terms[1].edges  # type: ignore[attr-defined]
    assert {tuple(e) for e in edges.tolist()} == set(itertools.product(range(5), range(5, 8)))
    assert np.abs(field.terms[1].weights).max() <= 0.5  # type: ignore[attr-defined]


@pytest.mark.parametrize("regions", [1, 2, 3, 50, 400])
def test_segmentation_is_attractive_and_connected(regions: int) -> None:
    field = segmentation(regions)
    potts = field.terms[1]
    assert isinstance(potts, pf.Potts)
    assert field.n_vars == regions
    assert (potts.weights > 0).all()
    group = np.arange(regions)  # regions of one picture hang together
    for _ in range(regions):
        low = np.minimum(*group[potts.edges.T])
        before = group.copy()
        np.minimum.at(group, potts.edges[:, 0], low)
        np.minimum.at(group, potts.edges[:, 1], low)
        if (group == before).all():
            break
    assert (group == 0).all()


def test_segmentation_has_two_regions() -> None:
    result = pf.infer(segmentation(400))
    assert result.converged
    assert 0.2 < result.map_labels.mean() < 0.8
    clean = pf.infer(segmentation(400, noise=0.0, strength=0.1))
    agree = (clean.map_labels == result.map_labels).mean()
    assert agree > 0.8  # neighbors make up for the noise


def test_voronoi_against_brute_force() -> None:
    rng = np.random.default_rng(0)
    for side, count in ((1, 1), (2, 3), (7, 5), (40, 60)):
        points = rng.choice(side * side, count, replace=False)
        cells = _voronoi(side, points)
        y, x = np.mgrid[0:side, 0:side][..., None]
        away = (y - points // side) ** 2 + (x - points % side) ** 2
        chosen = np.take_along_axis(away, cells[..., None], 2)[..., 0]
        assert (chosen == away.min(axis=2)).mean() > 0.99
        assert len(np.unique(cells)) == count


def test_touching_counts_the_border() -> None:
    edges, border = _touching(np.array([[0, 0, 1], [0, 2, 1]]))
    assert dict(zip(map(tuple, edges.tolist()), border.tolist(), strict=True)) == {
        (0, 1): 1,
        (0, 2): 2,
        (1, 2): 1,
    }


@pytest.mark.parametrize(
    "call",
    [
        lambda: grid(0, 3),
        lambda: grid(3, -1),
        lambda: grid(2, 2, strength=float("nan")),
        lambda: grid(2, 2, strength=float("inf")),
        lambda: grid(2, 2, strength=-1.0),
        lambda: grid(2, 2, n_labels=1),
        lambda: grid(2, 2, sign="both"),
        lambda: grid(2, 2, seed=-1),
        lambda: grid_edges(0, 1),
        lambda: rbm(0, 1),
        lambda: rbm(1, 0),
        lambda: segmentation(0),
        lambda: segmentation(3, noise=float("nan")),
        lambda: segmentation(3, strength=-0.1),
    ],
)
def test_bad_arguments(call) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InputError, match="expected"):
        call()


def test_too_large_is_refused_before_allocating() -> None:
    for call in (
        lambda: grid(10**6, 10**6),
        lambda: rbm(10**6, 10**6),
        lambda: segmentation(10**11),
    ):
        with pytest.raises(MemoryLimitError):
            call()
