"""Terms: three ways to say an energy agree, and bad input gets one line."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest

import proxfield as pf
from helpers import Chain, energies, energy_tensor, random_field, random_marginals
from proxfield.core.terms.base import expectation, missing, offers

EYE = np.eye(2)


@pytest.mark.parametrize("seed", range(20))
def test_labelling_energy_is_what_the_tables_say(seed: int) -> None:
    field = random_field(np.random.default_rng(seed))
    np.testing.assert_allclose(energy_tensor(field).ravel(), energies(field), atol=1e-12)


@pytest.mark.parametrize("seed", range(20))
def test_energy_is_expected_energy(seed: int) -> None:
    """Term by term: E_t(q) = Σ_x Q(x) E_t(x), and ⟨q, gradient⟩ / degree where there is one."""
    rng = np.random.default_rng(seed)
    field = random_field(rng, n_labels=(2, 3))
    layout = field.layout
    q = random_marginals(layout, rng)
    labels = list(itertools.product(*map(range, field.cardinalities)))
    weight = [q[layout.offsets[:-1] + x].prod() for x in np.array(labels)]
    for term in field.terms:
        each = [term.labelling_energy(layout, np.array(x)) for x in labels]
        assert term.energy(layout, q) == pytest.approx(np.dot(weight, each), abs=1e-10)
        if term.degree is not None:
            g = np.zeros(layout.size)
            term.add_gradient(layout, q, g)
            assert q @ g / term.degree == pytest.approx(np.dot(weight, each), abs=1e-10)


def test_add_gradient_adds() -> None:
    field = random_field(np.random.default_rng(3), n_vars=(5, 5))
    q = random_marginals(field.layout, np.random.default_rng(4))
    for term in field.terms:
        once, on_top = np.zeros(field.layout.size), np.full(field.layout.size, 7.0)
        term.add_gradient(field.layout, q, once)
        term.add_gradient(field.layout, q, on_top)
        np.testing.assert_allclose(on_top - 7.0, once, atol=1e-12)


def test_small_examples_by_hand() -> None:
    table = [[0, 1, 2], [3, 4, 5]]
    cases = [
        (pf.Constant(2.5), [1, 2, 1], 2.5),
        (pf.Unary([[1.0, 2.0]], [2]), [0, 0, 1], 2.0),
        (pf.Unary([[1.0, 2.0], [10.0, 20.0]], [0, 0]), [1, 0, 0], 22.0),
        (pf.Pairwise([[0, 1], [2, 1]], table), [1, 2, 0], 5.0 + 2.0),
        (pf.Pairwise([[0, 1]], [table, np.add(table, 9)], [1]), [0, 1, 0], 10.0),
        (pf.Potts([[0, 1], [0, 2]], [2.0, 5.0]), [1, 2, 1], 2.0),
        (pf.Ising([[0, 2]], -1.5), [0, 0, 0], -1.5),
        (pf.Ising([[0, 2]], -1.5), [0, 0, 1], 1.5),
        (pf.Factor([2, 1, 0], np.arange(12).reshape(2, 3, 2)), [1, 2, 0], 5.0),
    ]
    for term, labels, expected in cases:
        assert pf.Field([2, 3, 2], terms=[term]).energy(labels) == expected


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: pf.Constant(np.nan), "NaN"),
        (lambda: pf.Constant(-np.inf), "never -inf"),
        (lambda: pf.Constant("x"), "must be numbers"),
        (lambda: pf.Unary([0.0, 1.0]), "must have shape (variables, labels), not (2,)"),
        (lambda: pf.Unary([[0, np.nan]]), "unary energies hold NaN"),
        (lambda: pf.Unary([[0, -np.inf]]), "an energy may be +inf (impossible), never -inf"),
        (lambda: pf.Unary([[0, 1]], [0, 1]), "1 rows of energies for 2 variables"),
        (lambda: pf.Unary([[0, 1]], [0.5]), "variables must be integers"),
        (lambda: pf.Pairwise([[0, 1, 2]], np.zeros((2, 2, 2))), "takes 2 variables a scope, not 3"),
        (lambda: pf.Pairwise([[0, 1]], np.zeros(2)), "need 2 dimensions (or 3 for several)"),
        (lambda: pf.Pairwise([[0, 1]] * 3, np.zeros((2, 2, 2))), "3 scopes but 2 tables"),
        (lambda: pf.Pairwise([[0, 1]], [EYE], [0, 0]), "1 scopes but 2 table indices"),
        (lambda: pf.Pairwise([[0, 1]], [EYE], [1]), "table index out of range 0 to 0"),
        (lambda: pf.Pairwise([[0, 1]], [EYE], [-1]), "table index out of range"),
        (lambda: pf.Factor([[0.0, 1.0]], EYE), "scopes must be integers"),
        (lambda: pf.Factor([0, 1], EYE * np.nan), "a table's energies hold NaN"),
        (lambda: pf.Factor([], 3.0), "needs at least one variable; Constant(3.0), say, is an"),
        (lambda: pf.Factor([[]], 1.0), "needs at least one variable; Constant"),
        (lambda: pf.Gaussian(np.zeros((3, 2)), 1.0, first=1.5), "first=1.5, expected a whole"),
        (lambda: pf.Boxes(2.5, 3, [[0, 0, 1, 1]]), "height=2.5, expected a whole number, 1 or"),
        (lambda: pf.Potts([[0, 1, 2]], 1.0), "edges must have shape (m, 2), not (1, 3)"),
        (lambda: pf.Potts([0, 1], 1.0), "edges must have 2 dimension(s)"),
        (lambda: pf.Potts([[0, 1]], [1.0, 2.0]), "1 edges but weights of shape (2,)"),
        (lambda: pf.Potts([[0, 1]], np.inf), "potts weights hold +inf; use a table"),
        (lambda: pf.Ising([[0, 1]], np.nan), "ising weights hold NaN"),
    ],
)
def test_bad_terms_get_one_line(make: Callable[[], object], message: str) -> None:
    with pytest.raises(pf.InputError) as caught:
        make()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("term", "message"),
    [
        (pf.Unary([[0, 1]], [3]), "unary row 0 names variable 3, expected 0 to 2"),
        (pf.Unary([[0, 1]], [1]), "variable 1 has 3 labels, but its unary row has 2"),
        (pf.Pairwise([[0, 1]], EYE), "scope [0, 1] has labels [2, 3], but its table has shape"),
        (pf.Pairwise([[0, 2], [2, 2]], EYE), "scope 1 names a variable twice: [2, 2]"),
        (pf.Factor([[0, 2, 0]], np.zeros((2, 2, 2))), "scope 0 names a variable twice"),
        (pf.Factor([0, -1], EYE), "scope 0 names variable -1, expected 0 to 2"),
        (pf.Potts([[0, 1], [1, 3]], 1.0), "edge 1 names variable 3"),
        (pf.Potts([[1, 1]], 1.0), "edge 0 names a variable twice"),
        (pf.Ising([[0, 1]], 1.0), "needs binary variables; variable 1 has 3 label(s)"),
    ],
)
def test_terms_that_do_not_fit(term: pf.Term, message: str) -> None:
    with pytest.raises(pf.InputError) as caught:
        pf.Field([2, 3, 2], terms=[term])
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "term",
    [
        pf.Unary(np.zeros((0, 2)), np.zeros(0, dtype=int)),
        pf.Pairwise(np.zeros((0, 2), dtype=int), np.zeros((0, 2, 2))),
        pf.Potts([], []),
        pf.Ising(np.zeros((0, 2), dtype=int), 1.0),
        pf.Factor(np.zeros((0, 3), dtype=int), np.zeros((1, 2, 2, 2))),
    ],
    ids=lambda t: t.name,
)
def test_terms_over_nothing(term: pf.Term, kernels: str) -> None:
    field = pf.Field(3, n_labels=2, terms=[term, pf.Constant(1.0)])
    assert field.energy([0, 1, 0]) == 1.0
    result = pf.infer(field, kernels=kernels)
    assert result.free_energy == pytest.approx(1.0 - 3 * np.log(2))


def test_terms_copy_what_they_are_given() -> None:
    rows, weights = np.zeros((1, 2)), np.ones(1)
    unary, potts = pf.Unary(rows), pf.Potts([[0, 1]], weights)
    rows[:], weights[:] = 5.0, 5.0
    assert unary.energies.max() == 0.0
    assert potts.weights.max() == 1.0


def test_weights_may_be_one_number() -> None:
    assert pf.Potts([[0, 1], [1, 2]], 2.0).weights.tolist() == [2.0, 2.0]


def test_registry_names_are_the_terms_names() -> None:
    assert {"constant", "pairwise", "gaussian", "occupancy"} < set(pf.TERMS)
    for name, term in pf.TERMS.items():
        assert term.name == name
        assert getattr(pf, term.__name__) is term


def test_optional_methods() -> None:
    assert offers(pf.Constant(0.0), "lower")
    assert not offers(Chain(1.0), "lower")
    layout = pf.Field(3, n_labels=2).layout
    for method in ("curvature", "lipschitz", "neighbors"):
        with pytest.raises(TypeError, match=f"Chain has no method '{method}'"):
            getattr(Chain(1.0), method)(layout)
    assert "energy" in str(missing(Chain(1.0), "energy", "F"))


def test_a_term_without_degree_must_give_its_energy() -> None:
    class Odd(Chain):
        degree = None

    with pytest.raises(TypeError, match="Odd has no method 'energy'"):
        Odd(1.0).energy(pf.Field(3, n_labels=2).layout, np.full(6, 0.5))


def test_expectation_treats_zero_times_infinity_as_zero() -> None:
    assert expectation(np.array([0.0, 1.0]), np.array([np.inf, 2.0])) == 2.0
    assert expectation(np.array([0.5, 0.5]), np.array([np.inf, 2.0])) == np.inf


def test_hard_messages_count_only_weight() -> None:
    """A forbidden configuration costs nothing while nobody uses it."""
    table = np.array([[np.inf, 1.0], [2.0, 3.0]])
    field = pf.Field([2, 2], terms=[pf.Pairwise([[0, 1]], table)])
    g = np.zeros(4)
    field.terms[0].add_gradient(field.layout, np.array([0.0, 1.0, 0.4, 0.6]), g)
    assert g.tolist() == [np.inf, pytest.approx(2.6), 2.0, 3.0]
