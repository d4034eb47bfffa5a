"""Edges of few distinct distances run along diagonals, with the numbers of the reference."""

from __future__ import annotations

import numpy as np
import pytest

import proxfield as pf
from proxfield.core.engines import compile_program
from proxfield.core.engines.numba.binary import BLOCK
from proxfield.core.engines.numba.pack import MAX_DIAGONALS, grid_distances, pack_binary
from proxfield.core.engines.plan import Kind, Update


def banded(n: int, distances: list[int], fill: float = 0.8, seed: int = 0) -> pf.Field:
    """A binary field with random couplings of variables at these distances, in random order."""
    rng = np.random.default_rng(seed)
    edges = np.concatenate(
        [np.stack([np.arange(n - d), np.arange(n - d) + d], axis=1) for d in distances]
    )
    edges = rng.permutation(edges[rng.random(len(edges)) < fill])
    field = pf.Field(n, n_labels=2).add(pf.Unary(rng.normal(size=(n, 2))))
    return field.add(pf.Ising(edges, rng.normal(size=len(edges)) / len(distances)))


COUNTS = (1, 2, 3, 4, 16, 17, 32, MAX_DIAGONALS)


@pytest.mark.parametrize("count", [*COUNTS, MAX_DIAGONALS + 1])
def test_up_to_64_distances_are_diagonals(count: int) -> None:
    distances = list(range(1, 2 * count, 2))
    low = banded(400, distances).lower()
    assert low.ising is not None
    few = count <= MAX_DIAGONALS
    assert grid_distances(low.ising.edges, 400).tolist() == (distances if few else [])
    pack = pack_binary(low, np.dtype("float64"), rows_only=False)
    assert len(pack.distance) == (count if few else 0)
    dense = np.zeros((400, 400))
    for (i, j), weight in zip(low.ising.edges.tolist(), low.ising.weights.tolist(), strict=True):
        dense[i, j] = 4.0 * weight
    for number, distance in enumerate(pack.distance):
        found = pack.diagonal[number, pack.pad : pack.pad + 400 - distance]
        np.testing.assert_array_equal(found, np.diagonal(dense, distance))


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("n", [300, BLOCK + 77])
def test_diagonals_give_the_numbers_of_the_reference(count: int, dtype: str, n: int) -> None:
    low = banded(n, list(range(1, 2 * count, 2)), seed=count).lower()
    rng = np.random.default_rng(1)
    q = rng.dirichlet([1.0, 1.0], size=n).ravel()
    plan = Update(Kind.PROXIMAL, rng.uniform(0.2, 1.0, n))
    tolerance = 1e-10 if dtype == "float64" else 2e-4
    ours, plain = compile_program(low, "cpu", dtype), compile_program(low, "reference")
    np.testing.assert_allclose(ours.gradient(q), plain.gradient(q), atol=tolerance)
    for trace in (True, False):
        states = ours.start(q), plain.start(q)
        for program, state in zip((ours, plain), states, strict=True):
            program.advance(state, plan, 5, -1.0, trace)
        found = ours.marginals(states[0]), plain.marginals(states[1])
        np.testing.assert_allclose(*found, atol=tolerance)
        energies = ours.free_energy(states[0]), plain.free_energy(states[1])
        np.testing.assert_allclose(*energies, rtol=tolerance)
