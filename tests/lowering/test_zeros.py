"""Propagation of what is impossible: the same fixed point as the plain way, in linear time."""

from __future__ import annotations

import numpy as np
import pytest

import proxfield as pf
from proxfield.core.lowering import reduction
from proxfield.core.lowering.reduction import possible, to_bits
from proxfield.core.terms.base import Layout

INF = np.inf


def plain_possible(field: pf.Field) -> np.ndarray:
    """Every scope of every table again and again, until nothing changes."""
    layout = field.layout
    keep = np.ones(layout.size, dtype=bool)
    for v in np.flatnonzero(field.evidence >= 0):
        keep[layout.offsets[v] : layout.offsets[v + 1]] = False
        keep[layout.offsets[v] + field.evidence[v]] = True
    while True:
        before = keep.copy()
        for term in field.terms:
            for scopes, tables, index in term.as_tables(layout):
                if np.isfinite(tables).all():
                    continue
                for row, scope in enumerate(scopes):
                    table = tables[row if index is None else index[row]]
                    parts = [slice(layout.offsets[v], layout.offsets[v + 1]) for v in scope]
                    allowed = np.isfinite(table)
                    for p, part in enumerate(parts):
                        shape = [1] * len(parts)
                        shape[p] = -1
                        allowed = allowed & keep[part].reshape(shape)
                    for p, part in enumerate(parts):
                        others = tuple(a for a in range(len(parts)) if a != p)
                        keep[part] &= allowed.any(axis=others)
        if (keep == before).all():
            return keep


def random_hard_field(rng: np.random.Generator) -> pf.Field:
    n = int(rng.integers(3, 9))
    cards = rng.integers(1, 5, size=n)
    field = pf.Field(cards)
    for _ in range(int(rng.integers(2, 10))):
        k = int(rng.integers(1, min(4, n) + 1))
        scope = rng.choice(n, size=k, replace=False)
        table = np.where(rng.random(cards[scope]) < rng.choice([0.3, 0.6]), INF, 0.0)
        field.add(pf.Unary(table[None], scope) if k == 1 else pf.Factor(scope, table))
    v = int(rng.integers(n))
    return field.condition({v: int(rng.integers(cards[v]))}) if rng.random() < 0.5 else field


@pytest.mark.parametrize(
    ("few", "bits"), [(64, 4096), (0, 4096), (10**9, 4096), (10**9, 0), (1, 8)]
)
def test_same_fixed_point_as_the_plain_way(
    monkeypatch: pytest.MonkeyPatch, few: int, bits: int
) -> None:
    """However many tables are taken together, and as bits or as arrays."""
    monkeypatch.setattr(reduction, "FEW_FACTORS", few)
    monkeypatch.setattr(reduction, "MAX_BITS", bits)
    cleared = 0
    for seed in range(150):
        field = random_hard_field(np.random.default_rng(seed))
        found = possible(field.layout, field.terms, field.evidence)
        np.testing.assert_array_equal(found, plain_possible(field), err_msg=str(seed))
        cleared += int((~found).sum())
    assert cleared > 500


def equality_chain(n: int, n_labels: int = 2) -> pf.Field:
    edges = np.stack([np.arange(n - 1), np.arange(1, n)], axis=1)
    same = np.where(np.eye(n_labels, dtype=bool), 0.0, INF)
    return pf.Field(n, n_labels=n_labels).add(pf.Pairwise(edges, same))


@pytest.mark.parametrize(("n", "n_labels"), [(5000, 2), (500, 30), (20, 100)])
def test_long_chains_are_decided(n: int, n_labels: int) -> None:
    lowered = equality_chain(n, n_labels).condition({0: 1}).lower()
    assert lowered.layout.n_vars == 0
    assert (lowered.reduction.expand_labels(np.zeros(0, dtype=np.int64)) == 1).all()


@pytest.mark.parametrize(("n", "n_labels", "seen"), [(500, 2, 250), (500, 2, 0), (100, 30, 99)])
def test_each_scope_is_looked_at_a_few_times(
    n: int, n_labels: int, seen: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that long chains take linear time."""
    looks = 0
    plain = reduction.Propagation._lost

    def count(self: reduction.Propagation, *args: object) -> list[int]:
        nonlocal looks
        looks += 1
        return plain(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(reduction.Propagation, "_lost", count)
    field = equality_chain(n, n_labels).condition({seen: 0})
    assert possible(field.layout, field.terms, field.evidence).sum() == n
    assert n - 10 < looks < 2.2 * n


class Forbid(pf.Term):
    """A term of a user's own: variable 2 can't have label 0 once variable 1 can't."""

    name = "forbid"
    degree = 1

    def validate(self, layout: Layout) -> None:
        pass

    def labelling_energy(self, layout: Layout, labels: np.ndarray) -> float:
        return INF if labels[1] != 0 and labels[2] == 0 else 0.0

    def add_gradient(self, layout: Layout, q: np.ndarray, out: np.ndarray) -> None:
        pass

    def prune(self, layout: Layout, keep: np.ndarray) -> bool:
        first, second = layout.offsets[1], layout.offsets[2]
        if keep[first] or not keep[second]:
            return False
        keep[second] = False
        return True


def test_a_term_of_a_users_own_takes_part() -> None:
    """Tables forbid x1 = 0, the term then x2 = 0, and tables again x3 = 0."""
    same = np.where(np.eye(2, dtype=bool), 0.0, INF)
    field = pf.Field(4, n_labels=2, terms=[pf.Pairwise([[0, 1], [2, 3]], same), Forbid()])
    field = field.condition({0: 1})
    keep = possible(field.layout, field.terms, field.evidence)
    assert keep.reshape(4, 2).tolist() == [[False, True]] * 4


def test_bits() -> None:
    assert to_bits(np.array([True, False, True])) == 5
    assert to_bits(np.zeros(0, dtype=bool)) == 0
