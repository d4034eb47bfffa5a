"""Unary energies: rows per variable, from probabilities and from logits."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import proxfield as pf


@pytest.mark.parametrize("rows", [0, 1, 2, 4])
def test_rows_without_variables_are_for_all(rows: int) -> None:
    with pytest.raises(pf.InputError, match=f"{rows} rows of unary energies for 3 variables, exp"):
        pf.Field(3, 2, [pf.Unary(np.zeros((rows, 2)))])
    pf.Field(3, 2, [pf.Unary(np.zeros((min(rows, 3), 2)), range(min(rows, 3)))])
    pf.Field(3, 2, [pf.Unary(np.zeros((3, 2)))])


def test_probabilities_become_energies() -> None:
    p = np.array([[0.25, 0.75], [1.0, 0.0]])
    term = pf.Unary.from_probabilities(p)
    np.testing.assert_array_equal(term.energies, [[-np.log(0.25), -np.log(0.75)], [0, np.inf]])
    assert not np.signbit(term.energies).any()
    some = pf.Unary.from_probabilities(p, [2, 0])
    assert some.variables.tolist() == [2, 0]
    clipped = pf.Unary.from_probabilities(p, clip=0.01)
    assert clipped.energies[1, 1] == pytest.approx(-np.log(0.01))
    scaled = pf.Unary.from_probabilities(4 * p, normalize=True)
    np.testing.assert_allclose(scaled.energies, term.energies)
    result = pf.infer(pf.Field(2, 2, [pf.Unary.from_probabilities(p)]), "fixed")
    np.testing.assert_allclose(result.marginals, p, atol=1e-12)
    assert result.log_z_bound == pytest.approx(0.0, abs=1e-12)


def test_logits_become_energies() -> None:
    logits = np.array([[1000.0, 1001.0], [0.0, -np.inf]])
    term = pf.Unary.from_logits(logits, [1, 0])
    assert term.variables.tolist() == [1, 0]
    odds = np.log1p(np.exp(-1.0))
    np.testing.assert_allclose(term.energies, [[1 + odds, odds], [0, np.inf]], atol=1e-12)
    result = pf.infer(pf.Field(2, 2, [pf.Unary.from_logits(logits)]), "fixed")
    np.testing.assert_allclose(result.marginals[0, 1], 1 / (1 + np.exp(-1.0)))


def test_single_precision_stays() -> None:
    p = np.array([[0.25, 0.75]], dtype=np.float32)
    assert pf.Unary.from_probabilities(p).energies.dtype == np.float32
    assert pf.Unary.from_probabilities(p, clip=0.1, normalize=True).energies.dtype == np.float32
    assert pf.Unary.from_logits(p).energies.dtype == np.float32
    assert pf.Unary.from_probabilities([[1, 0]]).energies.dtype == np.float64
    given = p.copy()
    pf.Unary.from_probabilities(given, normalize=True)
    np.testing.assert_array_equal(given, p)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: pf.Unary.from_probabilities([[0.5, 0.6]]), "row 0 sum to 1.1, expected 1 (norm"),
        (lambda: pf.Unary.from_probabilities([[1, 0], [2, -1]]), "row 1 hold [2.0, -1.0], expect"),
        (lambda: pf.Unary.from_probabilities([[np.nan, 1]]), "expected 0 to 1 (from_logits"),
        (lambda: pf.Unary.from_probabilities([[0, 0]], normalize=True), "sum to 0, expected one"),
        (lambda: pf.Unary.from_probabilities([0.5, 0.5]), "shape (variables, labels), not (2,)"),
        (lambda: pf.Unary.from_probabilities([["a", "b"]]), "must be numbers in one rectangular"),
        (lambda: pf.Unary.from_probabilities([[1.0, 0.0]], clip=1.5), "clip=1.5, expected 0 or"),
        (lambda: pf.Unary.from_logits([[np.nan, 1]]), "logits in row 0 hold [nan, 1.0]"),
        (lambda: pf.Unary.from_logits([[0, 1], [np.inf, 1]]), "logits in row 1 hold [inf, 1.0]"),
        (lambda: pf.Unary.from_logits([[-np.inf, -np.inf]]), "at least one of them finite"),
        (lambda: pf.Unary.from_logits(np.zeros((2, 0))), "not (2, 0)"),
    ],
)
def test_bad_input_gets_one_line(make: Callable[[], object], message: str) -> None:
    with pytest.raises(pf.InputError) as caught:
        make()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
