"""Blocks and instances: their forms, their counts, and what they refuse; optimizers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from learn_cases import CASES, exact_counts, make_case
from scipy import sparse

from proxfield.errors import InputError
from proxfield.learn import Block, Parameters, TiedField, fit_pseudo, prepare, zero_parameters
from proxfield.learn.methods import LOSSES, Targets, find_loss
from proxfield.learn.optimize import minimize
from proxfield.learn.structure import class_weights


@pytest.mark.parametrize("kind", CASES)
def test_counts_of_marginals_are_means_over_labellings(kind: str) -> None:
    """For a field without interactions, expectations under q are exact ones."""
    (instance,), parameters = make_case(kind, count=1)
    alone = {k: v if k.startswith("unary") else 0.0 * v for k, v in parameters.items()}
    field = instance.field(alone)
    q = np.zeros(field.layout.size)
    unary = np.zeros(field.layout.size)
    for term in field.terms:
        if term.name == "unary":
            term.add_gradient(field.layout, q, unary)
    q = field.layout.normalize(np.exp(-unary))
    for v in np.flatnonzero(instance.observed >= 0):
        at = slice(field.layout.offsets[v], field.layout.offsets[v + 1])
        q[at] = np.eye(field.cardinalities[v])[instance.observed[v]]
    expected, _ = exact_counts(instance, alone)
    for name, counts in instance.counts(q).items():
        np.testing.assert_allclose(counts, expected[name], atol=1e-10)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Block("a", [[0, 1]]), "needs features or an index"),
        (lambda: Block("a", [[0, 1]], features=[[1]], index=[0]), "needs features or an index"),
        (lambda: Block("a", [[0.0, 1.0]], index=[0]), "must be integers"),
        (lambda: Block("a", [[0, 1]], index=[0, 1]), "1 factors but an index of shape"),
        (lambda: Block("a", [[0, 1]], index=[-1]), "holds -1, expected 0 or more"),
        (lambda: Block("a", [[0, 1]], index=[3], n_tables=2), "holds 3, expected at most 1"),
        (lambda: Block("a", [[0, 1]], features=[[np.nan]]), "hold NaN or infinite"),
        (lambda: Block("a", [0], features=sparse.csr_matrix([[np.inf]])), "hold NaN or infinite"),
        (lambda: Block("a", [[0, 1]], features=[["x"]]), "must be numbers"),
        (lambda: Block("a", [[0, 1]], features=[1.0]), "have shape"),
        (lambda: Block("a", [[0, 1]], index=[0], form="blue"), "form='blue', expected one of"),
        (lambda: Block("a", [[0, 1]], index=[0], form=np.ones(2)), "form of block 'a'"),
        (lambda: TiedField([], []), "no variables"),
        (lambda: TiedField([2, 0], []), "variable 1 has 0 labels"),
        (lambda: TiedField([2, 2], [], labels=[0, 2]), "variable 1 has 2, expected 0 to 1"),
        (lambda: TiedField([2, 2], [], labels=[0]), "1 labels for 2 variables"),
        (lambda: TiedField([2, 2], [], observed=[-2, 0]), "observed labels: variable 0 has -2"),
        (lambda: TiedField([2, 2], [Block("a", [[0, 2]], index=[0])]), "names variable 2"),
        (lambda: TiedField([2, 3], [Block("a", [0, 1], index=[0, 0])]), "different numbers of"),
        (lambda: prepare([]), "no instances"),
    ],
)
def test_bad_input(make: Any, message: str) -> None:
    with pytest.raises(InputError, match=message) as info:
        make()
    assert "\n" not in str(info.value)


def test_instances_must_fit_together_and_with_parameters() -> None:
    one = TiedField([2, 2], [Block("u", [0, 1], features=np.ones((2, 3)))], [0, 1])
    other = TiedField([2, 2], [Block("u", [0, 1], features=np.ones((2, 4)))], [0, 1])
    with pytest.raises(InputError, match=r"instance 1 has parameters 'u' of shape \(4, 2\)"):
        prepare([one, other])
    with pytest.raises(InputError, match="instance 1 has parameters"):
        zero_parameters([one, other])
    for bad, message in (
        ({}, "no parameters for block 'u'"),
        ({"u": np.ones((2, 2))}, "have shape"),
        ({"u": np.full((3, 2), np.nan)}, "hold NaN"),
    ):
        with pytest.raises(InputError, match=message):
            one.field(bad)
        with pytest.raises(InputError, match=message):
            fit_pseudo([one], bad)
    with pytest.raises(InputError, match="fixed parameters 'v' don't exist"):
        fit_pseudo([one], zero_parameters([one]), fixed=["v"])
    with pytest.raises(InputError, match="marginals have 3 entries, expected 4"):
        one.counts(np.ones(3))


def test_losses_of_perfect_and_of_unknown_marginals() -> None:
    targets = Targets(np.array([1, -1, 0]), np.array([0, 2, 4, 6]), np.ones(2))
    perfect = np.array([0.0, 1.0, 0.3, 0.7, 1.0, 0.0])
    for loss in LOSSES.values():
        value, gradient = loss(perfect, targets)
        assert value == pytest.approx(0.0, abs=1e-12)
        assert (gradient[2:4] == 0).all()
        assert loss(np.full(6, 0.5), targets)[0] > 0.3
    assert LOSSES["dice"](np.full(6, 0.5), targets)[0] == pytest.approx(0.5)
    assert LOSSES["iou"](np.full(6, 0.5), targets)[0] == pytest.approx(1 - 0.5 / 1.5)
    with pytest.raises(InputError, match="loss='x'"):
        find_loss("x")


def test_class_weights() -> None:
    bias = Block("bias", np.arange(5), index=np.zeros(5, int))
    two, three = (prepare([TiedField([n] * 5, [bias], labels=[0, 0, 0, 1, -1])]) for n in (2, 3))
    np.testing.assert_allclose(class_weights("balanced", three), [4 / 6, 2.0, 2.0])
    assert (class_weights(None, two) == 1).all()
    for bad in ("odd", [1.0], [1.0, -1.0], [0.0, 0.0], [np.nan, 1.0]):
        with pytest.raises(InputError, match="class_weight"):
            class_weights(bad, two)


def test_the_best_parameters_are_returned_and_not_the_last() -> None:
    seen: list[tuple[float, float]] = []

    def objective(parameters: Parameters) -> tuple[float, Parameters]:
        if len(seen) == 5:
            raise KeyboardInterrupt
        x = parameters["x"]
        value = float(np.cos(3 * x[0]) + 0.1 * x[0] ** 2)
        seen.append((value, float(x[0])))
        return value, {"x": -3 * np.sin(3 * x) + 0.2 * x}

    found = minimize(
        objective, {"x": np.array([0.2])}, l2=0.0, max_iters=50, tol=1e-12, method="test"
    )
    values = [value for value, _ in seen]
    assert values[-1] > min(values)  # the last one was worse
    assert float(found["x"][0]) == min(seen)[1]
