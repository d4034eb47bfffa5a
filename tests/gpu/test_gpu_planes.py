"""Tables that many edges share, in planes: against the reference, and against tiles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from test_gpu_program import (
    adaptive_plan,
    assert_rows,
    assert_same,
    compare,
    marginals_of,
    plan_of,
    potts_grid,
    program_of,
)
from triton_setup import direct, indirect, run_interpreted

import proxfield as pf
from proxfield.core.engines.plan import Kind
from proxfield.core.engines.reference import ReferenceProgram
from proxfield.core.lowering.lowered import Lowered
from proxfield.core.solve import curvature as module
from proxfield.core.solve.curvature import Curvature
from proxfield.generate import grid_edges


@indirect
def test_interpreted() -> None:
    run_interpreted(__file__)


def random_tables(n_labels: int, count: int, symmetric: bool, seed: int = 0) -> NDArray[np.float64]:
    tables = np.random.default_rng(seed).normal(size=(count, n_labels, n_labels))
    return tables + tables.transpose(0, 2, 1) if symmetric else tables


def table_grid(
    shape: tuple[int, int], n_labels: int, count: int = 1, symmetric: bool = False,
    potts: bool = False, hard: bool = False,
) -> Lowered:  # fmt: skip
    """A grid with shared tables; edges run in both directions, so that both ends are first ends."""
    rng = np.random.default_rng(shape[0])
    n, edges = shape[0] * shape[1], grid_edges(*shape)
    edges[::3] = edges[::3, ::-1]
    unary = rng.normal(size=(n, n_labels))
    if hard:
        unary[3, 1] = unary[5, :-1] = np.inf
    field = pf.Field(n, n_labels=n_labels, terms=[pf.Unary(unary)])
    if potts:
        number = np.arange(n).reshape(shape)
        beside = np.stack([number[:-1, :-1].ravel(), number[1:, 1:].ravel()], axis=1)
        field.add(pf.Potts(beside, rng.normal(size=len(beside))))
    index = rng.integers(count, size=len(edges))
    return field.add(pf.Pairwise(edges, random_tables(n_labels, count, symmetric), index)).lower()


def pack_of(lowered: Lowered, dtype: str = "float64", form: str | None = "planes") -> Any:
    return program_of(lowered, dtype, form).batch.pack


@direct
@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize("hard", [False, True])
def test_every_kind(kind: Kind, hard: bool) -> None:
    """Two blocks, of which the last isn't full; 5 labels aren't a power of two."""
    lowered = table_grid((13, 11), 5, hard=hard)
    compare(lowered, plan_of(kind, 143), "float64", "planes", 3)


GROUPS = [
    (1, True, False, 1), (1, False, False, 2), (1, False, True, 2), (3, True, True, 3),
    (4, False, False, 8),
]  # fmt: skip
"""Number of tables, symmetric, with Potts weights beside them, and groups of edges."""


@direct
@pytest.mark.parametrize(
    ("dtype", "n_labels"), [("float64", 3), ("float32", 3), ("float64", 9), ("float32", 21)]
)
@pytest.mark.parametrize(("count", "symmetric", "potts", "groups"), GROUPS)
def test_groups(
    dtype: str, n_labels: int, count: int, symmetric: bool, potts: bool, groups: int
) -> None:
    lowered = table_grid((12, 11), n_labels, count, symmetric, potts)
    pack = pack_of(lowered, dtype)
    assert (pack.groups, pack.degree >= 0) == (groups, potts)
    assert pack.dot == (dtype == "float32" and n_labels > 8)
    compare(lowered, plan_of(Kind.PROXIMAL, 132, flat=True), dtype, "planes", 2)


@direct
@pytest.mark.parametrize(("dtype", "n_labels"), [("float64", 3), ("float32", 12)])
def test_adaptive_steps(dtype: str, n_labels: int) -> None:
    lowered = table_grid((12, 11), n_labels, potts=True)
    compare(lowered, adaptive_plan(lowered), dtype, "planes", 3)


@direct
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_planes_and_tiles(dtype: str) -> None:
    """The same rows and marginals, F of them to the accuracy of sums in the state's type."""
    lowered = table_grid((7, 19), 9)
    q, plan = marginals_of(lowered), plan_of(Kind.ADAM, 133)
    programs = [program_of(lowered, dtype, form) for form in ("planes", "tiles")]
    states = [program.start(q) for program in programs]
    rows = [p.advance(s, plan, 1, 0.0, True) for p, s in zip(programs, states, strict=True)]
    tolerance = 1e-12 if dtype == "float64" else 5e-6
    assert_rows(rows[0], rows[1], tolerance)
    found = [p.marginals(s) for p, s in zip(programs, states, strict=True)]
    assert_same(found[0], found[1], tolerance)


@direct
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
def test_errors_are_those_of_float32(scale: float) -> None:
    """Products in parts of lower precision lose nothing: F and θ after an update."""
    lowered = table_grid((12, 11), 21)
    tables = scale * random_tables(21, 1, False)
    scaled = pf.Field(132, n_labels=21, terms=[pf.Pairwise(lowered.factors[0].scopes, tables)])
    lowered = scaled.lower()
    q = marginals_of(lowered)
    slow, fast = ReferenceProgram(lowered), program_of(lowered, "float32", "planes")
    plan = plan_of(Kind.PROXIMAL, 132)
    a, b = slow.start(q), fast.start(q)
    expected = slow.advance(a, plan, 1, 0.0, True).free_energy[0]
    size = scale * len(lowered.factors[0].scopes)
    assert fast.advance(b, plan, 1, 0.0, True).free_energy[0] == pytest.approx(
        expected, abs=3e-7 * (size + 132)
    )
    gap = np.log(fast.marginals(b) + 1e-30) - np.log(slow.marginals(a) + 1e-30)
    assert np.abs(gap[slow.marginals(a) > 1e-20]).max() < 2e-5 * max(1.0, scale)


@direct
def test_degrees_that_differ() -> None:
    """A hub with more neighbors than all blocks look at."""
    edges = np.array([[0, k] for k in range(1, 140)] + [[k, k + 1] for k in range(1, 139)])
    field = pf.Field(
        140, n_labels=5, terms=[pf.Unary(np.random.default_rng(0).normal(size=(140, 5)))]
    )
    tables = 0.1 * random_tables(5, 2, False)
    lowered = field.add(pf.Pairwise(edges, tables, np.arange(len(edges)) % 2)).lower()
    assert pack_of(lowered).table_degree == 0
    for dtype in ("float64", "float32"):
        compare(lowered, plan_of(Kind.MOMENTUM, 140), dtype, "planes", 2)


@direct
def test_grids_without_edges_are_the_same_field() -> None:
    """`GridPairwise` and `Pairwise` share groups: of a table and its transpose there are two."""
    table = random_tables(6, 1, False)[0]
    field = pf.Field(
        143, n_labels=6, terms=[pf.Unary(np.random.default_rng(1).normal(size=(143, 6)))]
    )
    field.add(pf.GridPairwise((13, 11), (1, 0), table))
    field.add(pf.GridPairwise((13, 11), (0, 1), table.T))
    lowered = field.lower()
    assert pack_of(lowered).groups == 2
    compare(lowered, plan_of(Kind.PROXIMAL, 143), "float64", "planes")


@direct
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("potts", [False, True])
def test_products_on_the_device(
    symmetric: bool, potts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the Hessian, and λ by them, against the host's."""
    lowered = table_grid((13, 11), 5, 2, symmetric, potts)
    program = program_of(lowered, "float32", "planes")
    products = program.products()
    apply, size, _ = Curvature(lowered)._projected
    v = np.random.default_rng(2).normal(size=size)
    found = products.get(products.apply(products.put(v)))
    np.testing.assert_allclose(found, apply(v), rtol=1e-10, atol=1e-10)
    if potts and not symmetric:  # the interpreter takes long for this
        monkeypatch.setattr(module, "MIN_DEVICE_SIZE", 1)
        there = Curvature(lowered, program=lambda low: program)
        assert there.largest == pytest.approx(Curvature(lowered).largest, rel=1e-9)


@direct
def test_which_fields_are_stored_in_planes() -> None:
    shape = (80, 80)
    assert pack_of(table_grid(shape, 3), form=None).form == "planes"
    assert pack_of(table_grid(shape, 3, potts=True), form=None).form == "planes"
    assert pack_of(table_grid(shape, 3, 4), form=None).form == "planes"
    assert pack_of(table_grid(shape, 3, 5), form=None).form == "tiles"  # ten groups
    assert pack_of(table_grid(shape, 3, 8, symmetric=True), form=None).form == "planes"
    assert pack_of(table_grid(shape, 33), form=None).form == "tiles"
    edges = grid_edges(*shape)

    def form(term: Any, more: Any = None) -> str:
        field = pf.Field(6400, n_labels=3, terms=[term] if more is None else [term, more])
        return str(pack_of(field.lower(), form=None).form)

    tables = random_tables(3, 1, False)
    far = np.random.default_rng(1).permutation(6400)[edges]
    assert form(pf.Pairwise(far, tables)) == "tiles"
    assert form(pf.Pairwise(edges, tables), pf.Factor([[0, 1, 2]], np.ones((3, 3, 3)))) == "tiles"
    forbidden = tables.copy()
    forbidden[0, 1, 2] = np.inf
    assert form(pf.Pairwise(edges, forbidden)) == "tiles"
    assert form(pf.Pairwise(edges, 1e35 * tables)) == "tiles"
    assert potts_grid(80, 80, 3).factors == () and pack_of(potts_grid(80, 80, 3)).groups == 0
