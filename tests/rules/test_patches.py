"""Parts of states: how F changes, which may be taken together."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import proxfield as pf
from helpers import random_marginals
from proxfield.core.solve.search import tuned
from proxfield.core.solve.search.parts import Parts
from proxfield.core.solve.search.patches import Patches
from proxfield.generate import grid
from random_fields import random_field

TABLES = ["unary", "pairwise", "potts", "ising", "factor"]


def states(seed: int) -> tuple[Parts, np.ndarray, np.ndarray] | None:
    """A random field, a state of finite F and others that differ from it in places."""
    field, _ = random_field(seed, kinds=TABLES, scale=1.0, size=12)
    lowered = field.lower()
    if lowered.infeasible or lowered.hard or lowered.layout.n_vars < 3:
        return None
    rng = np.random.default_rng(seed)
    layout = lowered.layout
    possible = np.isfinite(lowered.unary)
    q = layout.normalize(random_marginals(layout, rng) * possible)
    others = []
    for _ in range(4):
        other = layout.normalize(random_marginals(layout, rng) * possible)
        moved = (rng.random(layout.n_vars) < 0.4)[layout.owner]
        others.append(np.where(moved, other, q))
    return Parts(lowered), q, np.stack(others)


def free_energy(parts: Parts, q: np.ndarray) -> float:
    """F by the reference kernels."""
    from proxfield.core.engines import compile_program

    program = compile_program(parts.lowered, "reference")
    return program.free_energy(program.start(q))


@pytest.mark.parametrize("lookup", [1 << 22, 0])
@pytest.mark.parametrize("seed", range(60))
def test_changes_are_those_of_the_free_energy(
    seed: int, lookup: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuned, "MAX_LOOKUP", lookup)
    found = states(seed)
    if found is None:
        return
    parts, q, others = found
    patches = Patches.between(parts, q, others)
    changes = patches.evaluate(q)
    before = free_energy(parts, q)
    for c in range(len(patches)):
        after = free_energy(parts, patches.put(c, q))
        assert changes.change[c] == pytest.approx(after - before, abs=1e-9)
        spread = np.abs(patches.put(c, q) - q).sum() / 2
        assert changes.spread[c] == pytest.approx(spread)


@pytest.mark.parametrize("seed", range(60))
def test_components_of_one_state_are_independent(seed: int) -> None:
    """Changes of several components of the same state add up, exactly."""
    found = states(seed)
    if found is None:
        return
    parts, q, others = found
    patches = Patches.between(parts, q, others[:1])
    change = patches.evaluate(q).change
    before = free_energy(parts, q)
    for pair in itertools.combinations(range(len(patches)), 2):
        both = patches.put(pair[1], patches.put(pair[0], q))
        assert free_energy(parts, both) - before == pytest.approx(
            change[list(pair)].sum(), abs=1e-9
        )


def test_the_best_combination_of_two_states() -> None:
    """Improving takes exactly the components that lower F: no other combination is better."""
    best_of_all = 0
    for seed in range(20):
        parts = Parts(grid(5, 5, strength=2.0, seed=seed).lower())
        rng = np.random.default_rng(seed)
        q, other = np.eye(2)[rng.integers(2, size=(2, 25))].reshape(2, 50)
        patches = Patches.between(parts, q, other[None])
        new = free_energy(parts, patches.improve(q, patches.evaluate(q)))
        subsets = itertools.product([False, True], repeat=len(patches))
        every = []
        for subset in subsets if len(patches) <= 6 else []:
            mixed = q
            for c in np.flatnonzero(subset):
                mixed = patches.put(int(c), mixed)
            every.append(free_energy(parts, mixed))
        if every:
            best_of_all += 1
            assert new == pytest.approx(min(every), abs=1e-9)
    assert best_of_all > 5


def test_the_best_combination_of_overlapping_parts() -> None:
    """Each of two neighbors may change with profit, but not both: the better one does."""
    field = pf.Field(2, 2).add(pf.Unary([[1.0, 0.0], [1.5, 0.0]]))
    field.add(pf.Pairwise([[0, 1]], [[0.0, 0.0], [0.0, 10.0]]))  # both at 1 cost 10
    parts = Parts(field.lower())
    values = np.array([0.0, 1.0, 0.0, 1.0])  # each variable at 1, by itself
    patches = Patches(parts, np.arange(3), np.arange(2), values)
    q = np.array([1.0, 0.0, 1.0, 0.0])
    np.testing.assert_allclose(patches.evaluate(q).change, [-1.0, -1.5])
    np.testing.assert_array_equal(patches.improve(q, patches.evaluate(q)), [1.0, 0.0, 0.0, 1.0])


def test_weight_outside_of_a_cell_is_refused() -> None:
    parts = Parts(grid(3, 3, seed=0).lower())
    q = np.eye(2)[np.zeros(9, dtype=int)].ravel()
    other = np.eye(2)[[1, 0, 0, 0, 0, 0, 0, 0, 1]].ravel()
    patches = Patches.between(parts, q, other[None])
    keep = np.ones(18, dtype=bool)
    keep[1] = False  # variable 0 has no label 1
    assert patches.evaluate(q, keep).allowed.tolist() == [False, True]
    assert patches.evaluate(q).allowed.all()


def test_selecting_and_joining() -> None:
    parts = Parts(grid(4, 4, seed=0).lower())
    rng = np.random.default_rng(0)
    q, *others = np.eye(2)[rng.integers(2, size=(4, 16))].reshape(4, 32)
    patches = Patches.between(parts, q, np.stack(others))
    change = patches.evaluate(q).change
    some = np.array([2, 0])
    np.testing.assert_allclose(patches.select(some).evaluate(q).change, change[some])
    again = patches.joined(patches.select(some))
    assert len(again) <= len(patches)  # each once
    np.testing.assert_allclose(sorted(set(again.evaluate(q).change)), sorted(set(change)))
    none = patches.select(np.zeros(0, dtype=np.int64))
    assert len(none.joined(patches.select(some))) == 2
    assert len(none.evaluate(q).change) == 0
    assert none.improve(q, none.evaluate(q)).tolist() == q.tolist()
    assert len(Patches.between(parts, q, q[None])) == 0
