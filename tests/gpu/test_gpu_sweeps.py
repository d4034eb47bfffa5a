"""Sweeps, descent and chains on a GPU, against the reference.

Without a CUDA device the tests run in Triton's interpreter, in a process of their own, because
the interpreter has to be chosen before Triton is imported.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from examples import HARD_TABLES, POSSIBLE, SOFT
from numpy.typing import NDArray
from triton_setup import direct, indirect, needs_device, run_interpreted, torch

import proxfield as pf
from helpers import grid_edges
from proxfield.core.compiled.graphs import greedy_colors
from proxfield.core.compiled.math import uniforms
from proxfield.core.engines.plan import Chains, Order
from proxfield.core.engines.reference import ReferenceProgram
from proxfield.core.engines.triton.sweeps.sweeps import grouped, level_of
from proxfield.core.lowering.lowered import Lowered
from proxfield.core.terms.base import expectation

EXACT = {"float64": 1e-10, "float32": 2e-5}
"""How far marginals may be from the reference's."""


@indirect
def test_interpreted() -> None:
    run_interpreted(__file__)


def lowered_of(name: str) -> Lowered:
    return POSSIBLE[name].field().lower()


def without_extras(names: Any) -> list[str]:
    return [name for name in names if not lowered_of(name).extras and lowered_of(name).layout.size]


SOME = [
    "pairwise-nonsquare", "potts-mixed-cardinalities", "ising-grid", "strong-repulsion",
    "inf-unary", "inf-unary-binary",
    *[name for name in without_extras(SOFT) if "factor" in SOFT[name].terms][:3],
]  # fmt: skip
"""Fields for tests that take longer."""


def start_of(lowered: Lowered, seed: int = 0) -> NDArray[np.float64]:
    """Random marginals."""
    q = np.random.default_rng(seed).random(lowered.layout.size) + 0.05
    return lowered.layout.normalize(q)


def sweeper_of(lowered: Lowered, dtype: str = "float64") -> Any:
    from proxfield.core.engines.triton.sweeps.sweeps import Sweeper

    return Sweeper(lowered, dtype)


def tensor(sweeper: Any, values: Any) -> Any:
    return torch.tensor(values, dtype=sweeper.dtype, device=sweeper.device)


def numpy(values: Any) -> Any:
    return values.detach().cpu().double().numpy()


@pytest.fixture(params=[True, False], ids=["levels", "in turn"])
def by_levels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[bool]:
    """Strict orders by levels, or a single program."""
    from proxfield.core.engines.triton.sweeps import sweeps

    monkeypatch.setattr(sweeps, "GROUPED_FROM", 0 if request.param else 10**9)
    yield request.param


def compare_sweeps(
    lowered: Lowered, plan: Order, dtype: str, beta: float = 1.0, sweeps: int = 1
) -> None:
    """Some sweeps beside the reference's."""
    reference, sweeper = ReferenceProgram(lowered), sweeper_of(lowered, dtype)
    start = start_of(lowered)
    state = reference.start(start)
    q = tensor(sweeper, start)
    for _ in range(sweeps):
        before = reference.free_energy(state)
        old = state.arrays.q.copy()
        visited = np.array([int(i) for i in plan.variables])
        reference._sweep(state.arrays, Order(visited, inverse_temperature=beta))
        delta, change = sweeper.sweep(q, plan.variables, plan.starts, beta)
        assert delta.dtype == change.dtype == torch.float64
        np.testing.assert_allclose(numpy(q), state.arrays.q, rtol=0, atol=EXACT[dtype])
        f = reference.free_energy(state)
        scale = 1 + abs(f)
        if np.isfinite(before):
            assert abs(float(delta) - (f - before)) < 10 * EXACT[dtype] * scale
        elif np.isfinite(f):
            assert float(delta) == -np.inf
        assert abs(float(change) - np.abs(state.arrays.q - old).max()) < EXACT[dtype]
        if np.isfinite(f):
            assert abs(float(sweeper.free_energy(q)) - f) < 10 * EXACT[dtype] * scale


@direct
@pytest.mark.parametrize("name", SOME)
def test_sweeps_are_the_references(name: str, by_levels: bool) -> None:
    lowered = lowered_of(name)
    compare_sweeps(lowered, Order(np.arange(lowered.layout.n_vars)), "float64")


@direct
@pytest.mark.parametrize("name", without_extras(POSSIBLE))
def test_random_orders_and_temperatures(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from proxfield.core.engines.triton.sweeps import sweeps

    monkeypatch.setattr(sweeps, "GROUPED_FROM", 0)  # by levels, however small
    lowered = lowered_of(name)
    order = np.random.default_rng(3).permutation(lowered.layout.n_vars)
    compare_sweeps(lowered, Order(order), "float32", beta=0.6)


@direct
@pytest.mark.parametrize("name", SOME)
def test_color_groups(name: str) -> None:
    lowered = lowered_of(name)
    colors = greedy_colors(*lowered.neighbor_rows())
    order = np.argsort(colors, kind="stable")
    starts = np.concatenate([[0], np.cumsum(np.bincount(colors))])
    compare_sweeps(lowered, Order(torch.tensor(order), starts), "float64", sweeps=3)


@direct
def test_levels_keep_the_order() -> None:
    row, column = grid_field(6, 7).lower().neighbor_rows()
    order = np.random.default_rng(0).permutation(42)
    level = level_of(row, column, order)
    rank = np.argsort(order)
    here = np.repeat(np.arange(42), np.diff(row))
    assert ((level[here] < level[column]) == (rank[here] < rank[column])).all()
    assert level_of(row, column, np.arange(42)).max() == 6 + 7 - 2


def grid_field(rows: int, columns: int, n_labels: int = 2, scale: float = 1.0) -> pf.Field:
    rng = np.random.default_rng(5)
    edges = grid_edges(rows, columns)
    n = rows * columns
    return pf.Field(
        n,
        n_labels=n_labels,
        terms=[
            pf.Potts(edges, rng.normal(scale=scale, size=len(edges))),
            pf.Unary(rng.normal(size=(n, n_labels))),
        ],
    )


def field_of_all(n: int = 40) -> pf.Field:
    """Mixed labels, edges, tables and larger tables; several blocks of variables."""
    rng = np.random.default_rng(8)
    cards = np.tile([2, 3, 5, 2], n // 4)
    terms: list[Any] = [pf.Potts([[i, i + 1] for i in range(n - 1)], rng.normal(size=n - 1))]
    for i in range(0, n - 6, 5):
        a, b, c = i, i + 3, i + 6
        terms.append(pf.Pairwise([[b, a]], rng.normal(size=(cards[b], cards[a]))))
        terms.append(pf.Factor([a, b, c], rng.normal(size=(cards[a], cards[b], cards[c]))))
    scope = [1, n // 4, 7, n // 2]
    terms.append(pf.Factor(scope, rng.normal(size=tuple(cards[scope]))))
    return pf.Field(cards.tolist(), terms=terms)


@direct
def test_many_blocks(dtype: str) -> None:
    """More variables in a group than one program takes."""
    for field in (grid_field(9, 30), field_of_all(140)):
        lowered = field.lower()
        row, column = lowered.neighbor_rows()
        colors = greedy_colors(row, column)
        assert np.bincount(colors).max() > sweeper_of(lowered).working.block
        order, starts = grouped(np.arange(lowered.layout.n_vars), colors, np.diff(row))
        compare_sweeps(lowered, Order(order, starts), dtype)


@direct
def test_every_kind_of_term_in_turn(by_levels: bool) -> None:
    lowered = field_of_all(16).lower()
    compare_sweeps(lowered, Order(np.arange(16)[::-1].copy()), "float64")


@needs_device
def test_larger_fields(by_levels: bool, dtype: str) -> None:
    for field in (grid_field(30, 40, 3), field_of_all(400), grid_field(9, 9, 70)):
        lowered = field.lower()
        order = np.random.default_rng(1).permutation(lowered.layout.n_vars)
        compare_sweeps(lowered, Order(order), dtype)


@direct
def test_no_possible_label_keeps_q() -> None:
    """Two variables that a forbidden pair leaves nothing, given the third."""
    table = np.full((2, 2), np.inf)
    table[1, 1] = 0.0
    lowered = pf.Field(3, n_labels=2, terms=[pf.Pairwise([[0, 1], [1, 2]], table)]).lower()
    if lowered.layout.n_vars < 3:  # propagation has solved it: by hand, then
        lowered = unpropagated(table)
    sweeper = sweeper_of(lowered)
    q = tensor(sweeper, [1.0, 0.0, 0.4, 0.6, 0.0, 1.0])
    delta, change = sweeper.sweep(q, np.array([1]), np.array([0, 1]), 1.0)
    assert numpy(q).tolist() == [1.0, 0.0, 0.4, 0.6, 0.0, 1.0]
    assert float(delta) == float(change) == 0.0
    assert numpy(sweeper.descend(q, 1))[2:4].tolist() == [0.4, 0.6]


def unpropagated(table: NDArray[np.float64]) -> Lowered:
    from proxfield.core.lowering.builder import Builder
    from proxfield.core.lowering.reduction import Reduction
    from proxfield.core.terms.base import Layout

    layout = Layout(np.full(3, 2))
    builder = Builder(Reduction(layout, np.ones(6, dtype=bool)))
    builder.add_tables(np.array([[0, 1], [1, 2]]), table[None], np.zeros(2, dtype=np.int64))
    return builder.finish()


@direct
@pytest.mark.parametrize("name", [*SOME, *without_extras(HARD_TABLES)])
def test_descent(name: str) -> None:
    lowered, dtype = lowered_of(name), "float32" if len(name) % 2 else "float64"
    lowered = lowered.soften(100.0) if lowered.hard else lowered
    sweeper = sweeper_of(lowered, dtype)
    # the reference visits variables in the order of their numbers: let both
    sweeper.__dict__["colors"] = one_by_one(sweeper)
    start = start_of(lowered, 4)
    expected = ReferenceProgram(lowered).descend(start, 30)
    np.testing.assert_array_equal(numpy(sweeper.descend(tensor(sweeper, start), 30)), expected)


def one_by_one(sweeper: Any) -> Any:
    """Groups that do what the order of numbers does."""
    row, column = sweeper._neighbors
    order = np.arange(sweeper.n)
    return sweeper._visits(*grouped(order, level_of(row, column, order), np.diff(row)))


@direct
def test_descent_by_colors_never_rises() -> None:
    for field in (grid_field(5, 9, 3, 3.0), field_of_all(16)):
        lowered = field.lower()
        sweeper = sweeper_of(lowered)
        q = tensor(sweeper, start_of(lowered))
        start = numpy(q)
        energies = [lowered.constant + expectation(start, lowered.unary)]
        energies[0] += sum(t.energy(lowered.layout, start) for t in lowered.terms)
        for _ in range(6):
            q = sweeper.descend(q, 1)
            assert set(numpy(q).tolist()) == {0.0, 1.0}
            energies.append(lowered.energy(lowered.layout.best_labels(numpy(q))))
        assert (np.diff(energies) <= 1e-9).all()
        assert energies[-1] == energies[-2] < energies[0]


@direct
def test_descent_keeps_held_ties() -> None:
    lowered = pf.Field(2, n_labels=3, terms=[pf.Unary([[1.0, 1.0, 1.0], [2.0, 0.0, 0.0]])]).lower()
    sweeper = sweeper_of(lowered)
    q = tensor(sweeper, [0.0, 0.0, 1.0, 0.2, 0.3, 0.5])
    assert numpy(sweeper.descend(q, 5)).tolist() == [0.0, 0.0, 1.0, 0.0, 1.0, 0.0]
    assert numpy(q).tolist() == [0.0, 0.0, 1.0, 0.2, 0.3, 0.5]
    sweeper.set_unary(np.array([0.0, 1.0, 1.0, 2.0, 1.0, 0.0]))
    assert numpy(sweeper.descend(q, 5)).tolist() == [1.0, 0.0, 0.0, 0.0, 0.0, 1.0]


@direct
def test_nothing_left_to_visit() -> None:
    """A field that propagation alone decides."""
    from proxfield.core.engines.triton.sweeps.chains import explore

    lowered = lowered_of("inf-decides-all")
    assert lowered.layout.n_vars == 0
    sweeper = sweeper_of(lowered)
    q = tensor(sweeper, np.zeros(0))
    for starts in (None, np.array([0])):
        delta, change = sweeper.sweep(q, np.arange(0), starts)
        assert float(delta) == float(change) == 0.0
    assert sweeper.descend(q, 3).shape == (0,)
    ended = explore(sweeper, Chains.make(np.zeros((2, 0)), sweeps=3))
    assert ended.q.shape == (2, 0) and ended.free_energy.tolist() == [lowered.constant] * 2


# ---- chains ----


@direct
def test_uniforms_are_the_same_numbers() -> None:
    """A chain that draws from its start shows them: label k of many equally likely ones."""
    from proxfield.core.engines.triton.sweeps.chains import explore

    n, n_labels = 3, 1024
    lowered = pf.Field(n, n_labels=n_labels, terms=[]).lower()
    seeds = [0, 1, 2**64 - 1, 0x9E3779B97F4A7C15]
    starts = np.full((4, n * n_labels), 1 / n_labels)
    chains = Chains.make(starts, seeds=np.array(seeds, dtype=np.uint64), drawn=True, polish=0)
    q = explore(sweeper_of(lowered), chains).q.reshape(4, n, n_labels)
    for b, seed in enumerate(seeds):
        expected = np.floor(uniforms(seed, np.arange(n)) * n_labels)
        assert q[b].argmax(axis=1).tolist() == expected.tolist()


def many_chains(lowered: Lowered, polish: int = 20, metropolis: bool = False) -> Chains:
    starts = np.stack([start_of(lowered, seed) for seed in range(3)])
    seeds = np.array([1, 2**64 - 9, 3], dtype=np.uint64)
    return Chains.make(
        starts, hot=[3.0, 5.0, 2.0], sweeps=[3, 0, 2], seeds=seeds, drawn=[True, True, False],
        polish=polish, tol=1e-3, metropolis=metropolis,
    )  # fmt: skip


@direct
@pytest.mark.parametrize("metropolis", [False, True])
@pytest.mark.parametrize("name", SOME)
def test_chains_are_the_references(name: str, metropolis: bool) -> None:
    """In the same order, with the same numbers, the same chains."""
    from proxfield.core.engines.triton.sweeps.chains import explore

    lowered = lowered_of(name)
    chains = many_chains(lowered, 6, metropolis)
    sweeper = sweeper_of(lowered)
    found = explore(sweeper, chains, one_by_one(sweeper))
    expected = ReferenceProgram(lowered).explore(chains)
    np.testing.assert_allclose(found.q, expected.q, rtol=0, atol=1e-9)
    np.testing.assert_allclose(found.free_energy, expected.free_energy, rtol=1e-9, atol=1e-9)
    assert found.sweeps.tolist() == expected.sweeps.tolist()


@direct
@pytest.mark.parametrize("name", ["grid", "all", "inf-unary"])
def test_chains_by_colors(name: str) -> None:
    """F is that of what is returned; the same seeds give the same bits; polishing descends."""
    from proxfield.core.engines.triton.sweeps.chains import explore

    makers = {"grid": lambda: grid_field(2, 3, 3), "all": lambda: field_of_all(8)}
    lowered = makers[name]().lower() if name in makers else lowered_of(name)
    dtype = "float64" if name == "all" else "float32"
    chains, sweeper = many_chains(lowered, polish=4), sweeper_of(lowered, dtype)
    kept = chains.starts.copy()
    found, again = explore(sweeper, chains), explore(sweeper, chains)
    assert (chains.starts == kept).all()
    assert (found.q == again.q).all() and (found.free_energy == again.free_energy).all()
    assert (found.sweeps > chains.sweeps).all()
    exact = [ReferenceProgram(lowered)._free_energy(q) for q in found.q]
    np.testing.assert_allclose(found.free_energy, exact, rtol=EXACT[dtype], atol=EXACT[dtype])
    polished = explore(sweeper, Chains.make(found.q[:2], polish=3, tol=0.0))
    assert (polished.free_energy <= found.free_energy[:2] + EXACT[dtype]).all()


@direct
def test_pieces_of_chains(monkeypatch: pytest.MonkeyPatch) -> None:
    """More chains than one launch takes."""
    from proxfield.core.engines.triton.sweeps import chains as module

    lowered = grid_field(3, 3).lower()
    chains, sweeper = many_chains(lowered), sweeper_of(lowered)
    whole = module.explore(sweeper, chains)
    monkeypatch.setattr(module, "MAX_CHAINS", 2)
    parts = module.explore(sweeper, chains)
    np.testing.assert_array_equal(parts.q, whole.q)
    np.testing.assert_array_equal(parts.free_energy, whole.free_energy)
    np.testing.assert_array_equal(parts.sweeps, whole.sweeps)


@direct
def test_draws_follow_the_field() -> None:
    """Ends of long chains at temperature 1 are samples: compare with enumeration."""
    from proxfield.core.engines.triton.sweeps.chains import explore

    copies = 200  # of one small field, side by side: lanes are quick in the interpreter, too
    at = 3 * np.arange(copies)[:, None] + np.arange(3)
    cards = (2, 3, 2)
    rng = np.random.default_rng(2)
    pair, factor, unary = rng.normal(size=(2, 3)), rng.normal(size=cards), [0.2, np.inf, -0.3]
    field = pf.Field(
        list(cards) * copies,
        terms=[
            pf.Pairwise(at[:, :2], pair),
            pf.Factor(at, factor),
            pf.Unary(np.tile(unary, (copies, 1)), at[:, 1]),
        ],
    )
    lowered = field.lower()
    start = lowered.layout.normalize(np.ones(lowered.layout.size))[None]
    chains = Chains.make(start, hot=1.0, sweeps=5, seeds=5, drawn=True, polish=0)
    q = explore(sweeper_of(lowered), chains).q[0]
    assert set(np.unique(q)) == {0.0, 1.0}
    labels = lowered.layout.best_labels(q).reshape(copies, 3)
    weight = np.exp(-(pair[:, :, None] + factor + np.array(unary)[:, None])).ravel()
    expected = copies * weight / weight.sum()
    seen = np.bincount(np.ravel_multi_index(tuple(labels.T), cards), minlength=len(weight))
    assert (seen[expected == 0] == 0).all()
    possible = expected > 0
    statistic = ((seen - expected)[possible] ** 2 / expected[possible]).sum()
    assert statistic < 2.5 * possible.sum(), (seen, expected)  # seeds are fixed


@needs_device
def test_recorded_sweeps(monkeypatch: pytest.MonkeyPatch) -> None:
    from proxfield.core.engines.triton.sweeps import chains as module

    lowered = grid_field(20, 20, 3).lower()
    sweeper = sweeper_of(lowered, "float32")
    starts = np.stack([start_of(lowered, seed) for seed in range(9)])
    chains = Chains.make(starts, hot=4.0, sweeps=30, seeds=np.arange(9), drawn=True)
    monkeypatch.setattr(module, "RECORD_FROM", 10**9)
    plain = module.explore(sweeper, chains)
    monkeypatch.setattr(module, "RECORD_FROM", 0)
    recorded = module.explore(sweeper, chains)
    np.testing.assert_array_equal(recorded.q, plain.q)
