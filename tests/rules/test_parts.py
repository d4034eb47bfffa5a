"""Two labellings combined part by part: against enumeration of all combinations."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import proxfield as pf
from proxfield.core.lowering.lowered import Lowered, interaction_scale
from proxfield.core.solve.search.parts import Parts
from random_fields import random_field

TABLES = ("constant", "unary", "pairwise", "potts", "ising", "factor")


def lowered_fields(count: int) -> list[Lowered]:
    """Random lowered fields of every kind of table, without forbidden configurations."""
    out = []
    for seed in itertools.count():
        lowered = random_field(seed, kinds=TABLES).field.lower()
        if not (lowered.infeasible or lowered.hard or lowered.forbids) and lowered.layout.n_vars:
            out.append(lowered)
        if len(out) == count:
            return out
    raise AssertionError


def neighbors(lowered: Lowered) -> np.ndarray:
    """Which variables share a term, straight from the scopes."""
    n = lowered.layout.n_vars
    touch = np.zeros((n, n), dtype=bool)
    for term in lowered.terms:
        for scope in getattr(term, "edges", None) if hasattr(term, "edges") else term.scopes:
            touch[np.ix_(scope, scope)] = True
    return touch


def parts(lowered: Lowered, differs: np.ndarray) -> list[list[int]]:
    """Connected components of the variables that differ."""
    touch, left, out = neighbors(lowered), set(np.flatnonzero(differs).tolist()), []
    while left:
        part = [left.pop()]
        for i in part:
            near = [j for j in left if touch[i, j]]
            part += near
            left -= set(near)
        out.append(sorted(part))
    return out


@pytest.mark.parametrize("number", range(40))
def test_every_combination_of_parts(number: int) -> None:
    lowered = lowered_fields(number + 1)[number]
    rng, cards = np.random.default_rng(number), lowered.layout.cardinalities
    x, y = rng.integers(cards), rng.integers(cards)
    found, change = Parts(lowered).best_labels(x, y)
    energies = []
    components = parts(lowered, x != y)
    for chosen in itertools.product([False, True], repeat=min(len(components), 10)):
        z = x.copy()
        for take, part in zip(chosen, components, strict=False):
            z[part] = np.where(take, y[part], x[part])
        energies.append(lowered.energy(z))
    if len(components) <= 10:
        assert lowered.energy(found) == pytest.approx(min(energies), rel=1e-9, abs=1e-9)
    size = 1e-9 * (1 + abs(lowered.energy(x)) + lowered.magnitude)
    assert lowered.energy(x) + change == pytest.approx(lowered.energy(found), abs=size)
    assert ((found == x) | (found == y)).all()


def test_components() -> None:
    grid = pf.generate.grid(6, 7, seed=1).lower()
    differs = np.random.default_rng(0).random(42) < 0.4
    component, count = Parts(grid).of(differs)
    expected = parts(grid, differs)
    assert count == len(expected)
    assert (component[~differs] == -1).all()
    found = [np.flatnonzero(component == k).tolist() for k in range(count)]
    assert sorted(found) == sorted(expected)


def test_a_known_difference_decides_where_all_is_one_part() -> None:
    field = pf.Field(2, n_labels=2).add(pf.Ising([[0, 1]], 1.0)).lower()
    combined, x, y = Parts(field), np.array([0, 1]), np.array([1, 1])
    assert combined.best_labels(x, y)[0].tolist() == [0, 1]
    assert combined.best_labels(x, y, 2.0)[0].tolist() == [0, 1]
    assert combined.best_labels(x, y, -1.0)[0].tolist() == [1, 1]  # it is believed


def test_the_scale_of_interactions() -> None:
    star = [[0, i] for i in range(1, 5)]
    ising = pf.Field(5, n_labels=2).add(pf.Ising(star, 3.0))
    potts = pf.Field(5, n_labels=2).add(pf.Potts(star, -6.0))
    table = pf.Field(5, n_labels=2).add(pf.Pairwise(star, [[3.0, 1.0], [-1.0, 9.0]]))
    for field in (ising, potts, table):  # each is 3·s·t, up to unary energies and the sign
        assert interaction_scale(field.lower()) == pytest.approx(3.6)
    three = pf.Field(3, n_labels=2).add(pf.Factor([[0, 1, 2]], np.full((2, 2, 2), 5.0)))
    assert interaction_scale(three.lower()) == 0.0
    assert interaction_scale(pf.Field(3, n_labels=2).lower()) == 0.0
