"""The kernels' own exp, logarithm and entropy against numpy, over the whole range."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from helpers import Array
from proxfield.core.compiled import math
from proxfield.core.compiled.jit import kernel

EPS = float(np.finfo(np.float64).eps)


@kernel
def exps(x: Array, out: Array) -> None:
    for i in range(len(x)):
        out[i] = math.exp_negative(x[i])


@kernel
def ratios(x: Array, out: Array) -> None:
    for i in range(len(x)):
        n, d = math.exp_ratio(x[i])
        out[i] = n / (n + d)


@kernel
def logs(x: Array, out: Array) -> None:
    for i in range(len(x)):
        out[i] = math.log1m(x[i])


@kernel
def round_trips(x: Array, out: Array) -> None:
    for i in range(len(x)):
        out[i] = math.from_bits(math.as_bits(x[i]))


@kernel
def largest_by_bits(x: Array) -> float:
    top = 0
    for i in range(len(x)):
        top = max(top, math.as_bits(x[i]))
    return math.from_bits(top)


def mapped(function: Callable[[Array, Array], None], x: Array) -> Array:
    out = np.full_like(x, np.nan)
    function(x, out)
    return out


def negative_numbers() -> Array:
    rng = np.random.default_rng(0)
    return -np.concatenate(
        [
            [0.0, 1e-300, 1e-17, 1e-8, 699.999],
            np.linspace(0, 1, 20_001),
            np.linspace(0, 699.9, 200_001),
            10 ** rng.uniform(-12, 2.8, 50_000),
            np.arange(1000) * np.log(2) / 2,  # where the reduction switches
        ]
    )


def test_exp_over_the_whole_range() -> None:
    x = negative_numbers()
    np.testing.assert_allclose(mapped(exps, x), np.exp(x), rtol=8 * EPS)


def test_exp_underflows_to_zero_and_takes_infinity() -> None:
    x = np.array([-700.0, -700.1, -745.0, -1e4, -1e300, -np.inf])
    assert (mapped(exps, x) == 0.0).all()
    assert mapped(exps, np.array([-699.9]))[0] > 0.0
    assert mapped(exps, np.array([0.0]))[0] == 1.0


def test_logistic() -> None:
    x = negative_numbers()
    e = np.exp(x)
    np.testing.assert_allclose(mapped(ratios, x), e / (1 + e), rtol=8 * EPS)
    assert mapped(ratios, np.array([0.0]))[0] == 0.5
    assert 0 <= mapped(ratios, np.array([-np.inf]))[0] < 1e-300


def test_log() -> None:
    rng = np.random.default_rng(1)
    t = np.concatenate(
        [np.linspace(0, 0.5, 100_001), 10 ** rng.uniform(-300, np.log10(0.5), 50_000)]
    )
    np.testing.assert_allclose(mapped(logs, t), -np.log1p(-t), rtol=8 * EPS)


def test_bits_keep_order() -> None:
    x = 10.0 ** np.random.default_rng(2).permutation(np.arange(-300, 301))
    np.testing.assert_array_equal(mapped(round_trips, x), x)
    assert largest_by_bits(x) == x.max()
    assert largest_by_bits(np.zeros(3)) == 0.0


@pytest.mark.parametrize("function", [exps, ratios, logs])
def test_single_numbers_and_vectors_agree(function: Callable[[Array, Array], None]) -> None:
    """Whatever LLVM vectorizes, the remainder of a loop gives the same bits."""
    x = np.linspace(0, 0.5, 67)
    x = x if function is logs else -x
    one_by_one = np.array([mapped(function, x[i : i + 1])[0] for i in range(len(x))])
    np.testing.assert_allclose(mapped(function, x), one_by_one, rtol=2 * EPS)


@kernel
def normal_logs(x: Array, out: Array) -> None:
    for i in range(len(x)):
        out[i] = math.log_normal(x[i])


@kernel
def softplus(x: Array, out: Array) -> None:
    for i in range(len(x)):
        out[i] = math.softplus(x[i])


def test_log_over_the_whole_range() -> None:
    rng = np.random.default_rng(0)
    x = np.concatenate([[2.0**-54, 1.0, 2.0**54], 10 ** rng.uniform(-300, 300, 50_000)])
    x = np.concatenate([x, rng.uniform(size=50_000) + 2.0**-54, np.linspace(0.7, 1.42, 20_001)])
    np.testing.assert_allclose(mapped(normal_logs, x), np.log(x), rtol=4 * EPS, atol=4 * EPS)


def test_softplus_within_its_error() -> None:
    d = np.concatenate([np.linspace(0, 20, 100_001), [1e3, 1e300]])
    assert np.abs(mapped(softplus, d) - np.log1p(np.exp(-d))).max() < 2e-6
