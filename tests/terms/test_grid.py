"""Tables over the pixels of a grid: the same as with lists of edges, in any number of axes."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest

import proxfield as pf
from proxfield.core.lowering.merging import band_edges
from proxfield.core.terms.grid import Shift

SHAPES = [(5,), (3, 4), (1, 4), (2, 3, 4), (2, 1, 3, 2)]


def pairs(shape: tuple[int, ...], offset: tuple[int, ...]) -> list[list[int]]:
    """All pairs of pixels, one by one."""
    out = []
    for p in itertools.product(*map(range, shape)):
        there = tuple(np.add(p, offset))
        if all(0 <= x < n for x, n in zip(there, shape, strict=True)):
            out.append([int(np.ravel_multi_index(x, shape)) for x in (p, there)])
    return out


def draw_term(shape: tuple[int, ...], seed: int, n_labels: int) -> pf.GridPairwise:
    rng = np.random.default_rng(seed)
    offset = tuple(int(rng.integers(-2, 3)) for _ in shape)
    offset = offset if any(offset) else (1, *offset[1:])
    tables = rng.normal(size=(3, n_labels, n_labels))
    return pf.GridPairwise(shape, offset, tables, rng.integers(0, 3, len(pairs(shape, offset))), 2)


@pytest.mark.parametrize("shape", SHAPES)
def test_edges_are_all_pairs_at_the_offset(shape: tuple[int, ...]) -> None:
    for offset in itertools.product(range(-2, 3), repeat=len(shape)):
        if any(offset):
            shift = Shift(shape, offset)
            assert shift.edges().tolist() == pairs(shape, offset)
            assert shift.n_edges == len(pairs(shape, offset))


@pytest.mark.parametrize("n_labels", [2, 3])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", range(6))
def test_same_as_a_list_of_edges(shape: tuple[int, ...], seed: int, n_labels: int) -> None:
    term = draw_term(shape, seed, n_labels)
    n = int(np.prod(shape)) + 3
    edges = np.array(pairs(shape, term.offset), dtype=np.int64).reshape(-1, 2) + 2
    listed = pf.Pairwise(edges, term.tables, term.index)
    layout = pf.Field(n, n_labels=n_labels).layout
    rng = np.random.default_rng(seed + 100)
    q = layout.normalize(rng.random(layout.size))
    found, expected = np.ones(layout.size), np.ones(layout.size)
    term.add_gradient(layout, q, found)
    listed.add_gradient(layout, q, expected)
    np.testing.assert_allclose(found, expected, atol=1e-12)
    assert term.energy(layout, q) == pytest.approx(listed.energy(layout, q), abs=1e-12)
    labels = rng.integers(0, n_labels, size=n)
    same = listed.labelling_energy(layout, labels)
    assert term.labelling_energy(layout, labels) == pytest.approx(same, abs=1e-12)
    np.testing.assert_allclose(term.curvature(layout), listed.curvature(layout), atol=1e-12)
    assert term.lipschitz(layout) == pytest.approx(listed.lipschitz(layout))
    assert term.neighbors(layout).tolist() == edges.tolist()


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("n_labels", [2, 3])
@pytest.mark.parametrize("observed", [False, True])
def test_lowering_gives_the_same_field(seed: int, n_labels: int, observed: bool) -> None:
    """Several offsets, some opposite to each other, and edges beside them."""
    rng = np.random.default_rng(seed)
    shape = SHAPES[seed % len(SHAPES)]
    n = int(np.prod(shape)) + 2
    grids = [draw_term(shape, seed * 10 + k, n_labels) for k in range(4)]
    back = tuple(-o for o in grids[0].offset)
    grids.append(pf.GridPairwise(shape, back, rng.normal(size=(n_labels, n_labels)), first=2))
    more = pf.Pairwise([[0, 1], [2, 3], [n - 1, 0]], rng.normal(size=(n_labels, n_labels)))
    by_grid = pf.Field(n, n_labels=n_labels, terms=[more, *grids])
    by_edges = pf.Field(n, n_labels=n_labels, terms=[more])
    for grid in grids:
        by_edges.add(pf.Pairwise(*grid.explicit()))
    if observed:
        seen = {2: 1, n - 1: 0}
        by_grid, by_edges = by_grid.condition(seen), by_edges.condition(seen)
    found, expected = by_grid.lower(), by_edges.lower()
    np.testing.assert_allclose(found.unary, expected.unary, atol=1e-12)
    assert found.constant == pytest.approx(expected.constant)
    if n_labels == 2:
        assert found.ising is not None and expected.ising is not None
        assert found.ising.edges.tolist() == expected.ising.edges.tolist()
        np.testing.assert_allclose(found.ising.weights, expected.ising.weights, atol=1e-12)
        assert not found.factors
    for _ in range(5):
        labels = rng.integers(0, n_labels, size=found.layout.n_vars)
        assert found.energy(labels) == pytest.approx(expected.energy(labels))


def test_symmetric_tables_leave_no_bias() -> None:
    table = np.array([[0.1, 0.3], [0.3, 0.1]])
    lowered = pf.Field(9, n_labels=2, terms=[pf.GridPairwise((3, 3), (0, 1), table)]).lower()
    assert not lowered.unary.any()


def test_couplings_that_cancel_are_dropped() -> None:
    table = np.array([[0.0, 0.3], [0.1, 0.0]])
    terms = [pf.GridPairwise((3,), (1,), table), pf.GridPairwise((3,), (-1,), -table.T)]
    assert pf.Field(3, n_labels=2, terms=terms).lower().ising is None


def test_many_small_grids_are_no_large_array() -> None:
    """Grids of different widths in one field: their diagonals would be mostly empty."""
    field = pf.Field(sum(2 * k for k in range(3, 40)), n_labels=2)
    bands, first = [], 0
    for width in range(3, 40):
        field.add(pf.GridPairwise((2, width), (1, 0), [[0.0, 1.0], [1.0, 0.0]], first=first))
        bands.append((Shift((2, width), (1, 0), first), np.full((1, width), -0.5)))
        first += 2 * width
    assert len(band_edges(bands, first)) == len(bands)
    lowered = field.lower()
    assert lowered.ising is not None
    assert (np.diff(lowered.ising.edges[:, 0]) > 0).all()
    assert (lowered.ising.weights == -0.5).all()
    assert len(lowered.ising.edges) == sum(range(3, 40))


def test_an_index_may_have_the_shape_of_the_grid() -> None:
    tables = np.arange(8.0).reshape(2, 2, 2)
    flat = pf.GridPairwise((3, 3), (1, 0), tables, [0, 1, 0, 1, 1, 0])
    assert pf.GridPairwise((3, 3), (1, 0), tables, [[0, 1, 0], [1, 1, 0]]).index is not None
    again = pf.GridPairwise((3, 3), (1, 0), tables, [[0, 1, 0], [1, 1, 0]])
    assert pf.Field(9, 2, [flat]) == pf.Field(9, 2, [again])


def test_offsets_beyond_the_grid_have_no_pairs() -> None:
    term = pf.GridPairwise((2, 3), (2, 0), np.eye(2))
    field = pf.Field(6, n_labels=2, terms=[term])
    assert field.energy([0] * 6) == 0.0
    assert field.lower().ising is None


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: pf.GridPairwise((), (), np.eye(2)), "a grid of shape (), expected sizes"),
        (lambda: pf.GridPairwise((2, 0), (0, 1), np.eye(2)), "expected sizes of at least 1"),
        (lambda: pf.GridPairwise((2, 2), (1,), np.eye(2)), "expected one per axis"),
        (lambda: pf.GridPairwise((2, 2), (0, 0), np.eye(2)), "isn't 0 along all axes"),
        (lambda: pf.GridPairwise((2, 2), (0, 0.5), np.eye(2)), "must be integers"),
        (lambda: pf.GridPairwise((2, 2), (0, 1), np.ones((2, 3))), "tables of shape (2, 3)"),
        (lambda: pf.GridPairwise((2, 2), (0, 1), [[0, np.inf], [0, 0]]), "hold +inf"),
        (lambda: pf.GridPairwise((2, 2), (0, 1), [[0, np.nan], [0, 0]]), "hold NaN"),
        (lambda: pf.GridPairwise((3, 3), (0, 1), np.ones((2, 2, 2))), "6 pairs of pixels but 2"),
        (lambda: pf.GridPairwise((2, 2), (0, 1), np.eye(2), [0]), "expected (2,) or (2, 1)"),
        (lambda: pf.GridPairwise((2, 2), (0, 1), np.eye(2), [0, 1]), "out of range 0 to 0"),
        (lambda: pf.GridPairwise((2, 2), (0, 1), np.eye(2), first=-1), "first=-1, expected"),
    ],
)
def test_bad_grids(make: Callable[[], pf.Term], message: str) -> None:
    with pytest.raises(pf.InputError) as error:
        make()
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_grids_that_do_not_fit_the_field() -> None:
    with pytest.raises(pf.InputError, match="needs variables 1 to 4, expected at most 3"):
        pf.Field(4, n_labels=2).add(pf.GridPairwise((2, 2), (0, 1), np.eye(2), first=1))
    with pytest.raises(pf.InputError, match=r"variable 3 has 3 label\(s\), but the grid's"):
        pf.Field([2, 2, 2, 3]).add(pf.GridPairwise((2, 2), (0, 1), np.eye(2)))
