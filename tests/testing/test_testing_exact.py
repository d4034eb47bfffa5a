"""The package's exact answers against plain loops."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

import proxfield as pf
from helpers import Chain, energies, random_marginals
from proxfield.testing import enumerate_field, fixed_point_residual, labelling_energies, labellings
from random_fields import random_field

SEEDS = range(60)


def test_labellings_agree_with_the_evidence_and_none_is_missing() -> None:
    field = pf.Field([2, 3, 1, 2]).condition({1: 2})
    want = [x for x in itertools.product(range(2), range(3), range(1), range(2)) if x[1] == 2]
    assert list(map(tuple, labellings(field))) == want


@pytest.mark.parametrize("seed", SEEDS)
def test_enumeration_agrees_with_plain_loops(seed: int) -> None:
    field, _ = random_field(seed, scale=2.0)
    exact = enumerate_field(field)
    want = energies(field)
    np.testing.assert_allclose(exact.energies, want, rtol=1e-9, atol=1e-9)
    z = math.fsum(math.exp(-e) for e in want)
    marginals = [np.zeros(c) for c in field.cardinalities]
    for x, e in zip(exact.labellings, want, strict=True):
        for v, label in enumerate(x):
            marginals[v][label] += math.exp(-e)
    assert exact.feasible == (z > 0)
    assert exact.min_energy == pytest.approx(float(want.min()), rel=1e-9, abs=1e-9)
    if z > 0:
        assert field.energy(exact.labels) == pytest.approx(exact.min_energy, abs=1e-9)
        assert exact.log_z == pytest.approx(math.log(z), abs=1e-9)
        np.testing.assert_allclose(exact.marginals, np.concatenate(marginals) / z, atol=1e-12)
    else:
        assert exact.log_z == -np.inf and np.isnan(exact.marginals).all()


def test_large_energies_do_not_overflow() -> None:
    field = pf.Field([2], terms=[pf.Unary([[-1e8, 1e8]])])
    exact = enumerate_field(field)
    assert (exact.log_z, exact.min_energy) == (1e8, -1e8)
    assert exact.marginals.tolist() == [1.0, 0.0]


def test_a_term_without_tables_is_enumerated_too() -> None:
    chain = Chain(1.3)
    field = pf.Field(4, n_labels=3, terms=[chain])
    known = pf.Field(4, n_labels=3, terms=[chain.as_potts(4)])
    x = labellings(field)
    np.testing.assert_allclose(labelling_energies(field, x), labelling_energies(known, x))


def test_too_many_labellings_are_refused() -> None:
    with pytest.raises(pf.InputError, match=r"1.07e\+09 labellings are too many"):
        enumerate_field(pf.Field(30, n_labels=2))


# ---- the residual ----


def plain_residual(field: pf.Field, q: np.ndarray) -> float:
    """From differences of expected energies: E is linear in one variable's marginals."""
    worst = 0.0
    layout = field.layout
    for v in range(field.n_vars):
        block = slice(layout.offsets[v], layout.offsets[v + 1])
        at_corner = []
        for label in range(int(field.cardinalities[v])):
            corner = q.copy()
            corner[block] = np.eye(int(field.cardinalities[v]))[label]
            at_corner.append(field.expected_energy(corner))
        e = np.array(at_corner)
        target = np.exp(e.min() - e)
        if field.evidence[v] >= 0:
            target = np.eye(len(e))[field.evidence[v]]
        worst = max(worst, float(np.abs(target / target.sum() - q[block]).max()))
    return worst


MULTILINEAR = ("constant", "unary", "pairwise", "potts", "ising", "factor", "consistency")


@pytest.mark.parametrize("seed", SEEDS)
def test_residual_is_that_of_expected_energies(seed: int) -> None:
    field, about = random_field(seed, scale=1.0, kinds=MULTILINEAR)
    if not about.feasible:
        pytest.skip("no target")
    q = random_marginals(field.layout, np.random.default_rng(seed))
    if "forbidden-configuration" in about.features or "impossible-label" in about.features:
        labels = about.labels
        assert labels is not None
        q[:] = 0.0
        q[field.layout.offsets[:-1] + labels] = 1.0
    assert fixed_point_residual(field, q) == pytest.approx(plain_residual(field, q), abs=1e-9)


def test_residual_of_a_converged_result_is_small() -> None:
    field, _ = random_field(5, kinds=["unary", "potts"], scale=1.0)
    result = pf.infer(field, "sweep", tol=1e-10, kernels="reference")
    assert fixed_point_residual(field, result.marginals) < 1e-8
    uniform = 1.0 / np.repeat(field.cardinalities, field.cardinalities)
    assert fixed_point_residual(field, uniform) > 1e-3


def test_residual_with_evidence_and_impossible_labels() -> None:
    field = pf.Field(3, n_labels=2, terms=[pf.Unary([[0, 0], [0, np.inf], [0, 0]])])
    field = field.condition({2: 1})
    fixed = np.array([[0.5, 0.5], [1.0, 0.0], [0.0, 1.0]])
    assert fixed_point_residual(field, fixed) == 0.0
    assert fixed_point_residual(field, np.full((3, 2), 0.5)) == 0.5
    assert fixed_point_residual(pf.Field(0, n_labels=2), np.zeros((0, 2))) == 0.0


def test_residual_where_nothing_is_possible() -> None:
    field = pf.Field(2, n_labels=2, terms=[pf.Unary([[np.inf, np.inf], [0, np.inf]])])
    assert fixed_point_residual(field, np.full((2, 2), 0.5)) == np.inf
    other = pf.Field(1, n_labels=2, terms=[pf.Unary([[0, np.inf]])]).condition({0: 1})
    assert fixed_point_residual(other, np.array([[0.0, 1.0]])) == np.inf
