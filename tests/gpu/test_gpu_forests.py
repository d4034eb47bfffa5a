"""Chains that move by forests on a GPU: the reference's labels, and what they should sample."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from examples import POSSIBLE
from triton_setup import direct, indirect, needs_device, run_interpreted

import proxfield as pf
from helpers import random_field, random_marginals
from proxfield.core.engines.plan import Chains, Explored
from proxfield.core.engines.reference import ReferenceProgram
from proxfield.core.lowering.lowered import Lowered
from proxfield.generate import grid, grid_edges

FIELDS = [name for name, e in POSSIBLE.items() if not e.field().lower().extras]
"""Fields whose terms are all tables."""


@indirect
def test_interpreted() -> None:
    run_interpreted(__file__)


def explore(lowered: Lowered, chains: Chains, dtype: str = "float64") -> Explored:
    from proxfield.core.engines.triton.program import GpuProgram

    return GpuProgram(lowered, dtype).explore(chains)


def check_equal(lowered: Lowered, seed: int, sweeps: tuple[int, ...] = (3, 7, 1, 0)) -> None:
    """The reference's labels in every chain that moves by forests."""
    rng = np.random.default_rng(seed)
    count = len(sweeps)
    chains = Chains.make(
        np.stack([random_marginals(lowered.layout, rng) for _ in range(count)]),
        hot=[1.0, 2.0, 5.0, 0.5][:count], cold=[1.0, 0.3, 1.0, 0.01][:count], sweeps=sweeps,
        seeds=rng.integers(2**63, size=count).astype(np.uint64) * np.uint64(2), drawn=True,
        forests=True, polish=0,
    )  # fmt: skip
    found, expected = explore(lowered, chains), ReferenceProgram(lowered).explore(chains)
    np.testing.assert_array_equal(found.q, expected.q)
    np.testing.assert_allclose(found.free_energy, expected.free_energy, rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(found.sweeps, sweeps)


@direct
@pytest.mark.parametrize("name", FIELDS)
def test_every_example(name: str) -> None:
    lowered = POSSIBLE[name].field().lower()
    if lowered.infeasible or not lowered.layout.n_vars:
        pytest.skip("chains need variables and a possible labelling")
    check_equal(lowered, 1)


@direct
@pytest.mark.parametrize("seed", range(6))
def test_random_fields(seed: int) -> None:
    check_equal(random_field(np.random.default_rng(seed)).lower(), seed)


def dense(n: int = 24) -> Lowered:
    """Every variable interacts with every other one: most are in no forest."""
    pairs = np.array(list(itertools.combinations(range(n), 2)))
    weights = np.random.default_rng(0).normal(size=len(pairs))
    return pf.Field(n, n_labels=2, terms=[pf.Ising(pairs, weights)]).lower()


@direct
def test_variables_in_no_forest_are_visited_in_order() -> None:
    from proxfield.core.lowering.lowered import graph_of, make_forests

    lowered = dense()
    assert len(make_forests(graph_of(lowered), np.ones(24, dtype=bool)).rest) > 3
    check_equal(lowered, 2)


@direct
def test_several_blocks_on_a_level(monkeypatch: pytest.MonkeyPatch) -> None:
    from proxfield.core.engines.triton.program import GpuProgram
    from proxfield.core.engines.triton.sweeps import chains as module

    monkeypatch.setattr(module, "FOREST_THREADS", 32)
    lowered = grid(9, 9, strength=2.0, seed=2).lower()
    program: Any = GpuProgram(lowered, "float64")
    program._sweeper.working = program._sweeper.working._replace(block=8)
    starts = np.full((2, 162), 0.5)
    chains = Chains.make(
        starts, hot=2.0, sweeps=5, seeds=[3, 4], drawn=True, forests=True, polish=0
    )
    expected = ReferenceProgram(lowered).explore(chains)
    np.testing.assert_array_equal(program.explore(chains).q, expected.q)


@direct
def test_chains_of_every_kind_together() -> None:
    """Those that visit single variables, or cool marginals, are as if they were alone."""
    lowered = grid(5, 4, strength=2.0, seed=1).lower()
    starts = np.full((4, 40), 0.5)
    kinds = {"drawn": [True, True, False, True], "forests": [True, False, True, True]}
    options = {"hot": 2.0, "sweeps": [4, 5, 3, 2], "seeds": np.arange(4), **kinds}
    found = explore(lowered, Chains.make(starts, **options))
    for k in range(4):
        alone = {name: [values[k]] for name, values in options.items() if name != "hot"}
        one = explore(lowered, Chains.make(starts[:1], hot=2.0, **alone))
        np.testing.assert_array_equal(found.q[k], one.q[0])
        assert found.sweeps[k] == one.sweeps[0]


@direct
def test_single_precision_starts_from_new_energies() -> None:
    """Strong unary energies, replaced after packing, decide all labels."""
    import torch

    from proxfield.core.engines.triton.program import GpuProgram

    edges = grid_edges(4, 5)
    lowered = pf.Field(20, n_labels=3, terms=[pf.Potts(edges, 0.3)]).lower()
    program: Any = GpuProgram(lowered, "float32")
    wanted = np.arange(20) % 3
    unary = np.full((20, 3), 60.0)
    unary[np.arange(20), wanted] = 0.0
    program.set_unary(torch.tensor(unary.ravel()))
    chains = Chains.make(
        np.full((1, 60), 1 / 3), sweeps=8, drawn=True, forests=True, polish=0, seeds=[5]
    )
    np.testing.assert_array_equal(program.explore(chains).q.reshape(20, 3).argmax(1), wanted)


@needs_device
def test_forests_sample_the_field() -> None:
    """Frequencies of labellings against enumeration: many chains at temperature 1."""
    lowered = pf.Field(3, n_labels=2, terms=[pf.Ising([[0, 1], [1, 2], [0, 2]], 0.7)]).lower()
    count = 4000
    chains = Chains.make(
        np.full((count, 6), 0.5), sweeps=6, seeds=np.arange(count), drawn=True, forests=True,
        polish=0,
    )  # fmt: skip
    q = explore(lowered, chains).q
    found = np.bincount(q[:, 1::2].astype(int) @ [4, 2, 1], minlength=8) / count
    every = np.array(list(itertools.product([0, 1], repeat=3)))
    p = np.exp([-lowered.energy(labels) for labels in every])
    assert np.abs(found - p / p.sum()).max() < 4 * np.sqrt(0.25 / count)


@needs_device
def test_larger_fields() -> None:
    rng = np.random.default_rng(0)
    check_equal(grid(40, 40, strength=3.0, seed=1).lower(), 1, (2, 3))
    edges = grid_edges(15, 14)
    field = pf.Field(210, n_labels=7, terms=[pf.Potts(edges, rng.normal(size=len(edges)))])
    field.add(pf.Pairwise([[0, 99], [5, 120]], rng.normal(size=(2, 7, 7))))
    check_equal(field.lower(), 2, (2, 3))
