"""exp, the logistic function and log that LLVM can vectorize, and random numbers by counting.

The library versions are calls, which stop a loop from using vector registers; these are
a few multiplications. Accuracy: a few units in the last place (tested against numpy).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.extending import overload
from numpy.typing import NDArray

from proxfield.core.compiled.jit import exact, inlined

LOG2_E = 1.4426950408889634
LN2_HIGH = 6.93147180369123816490e-01
LN2_LOW = 1.90821492927058770002e-10
FLOOR = -700.0
"""exp below this would be subnormal; such a probability is 0 for every purpose."""
MAGNITUDE = 2**63 - 1
"""All bits of a float but the sign."""
ROOT_HALF = 4604544271217802189
"""The bits of √½."""


@inlined
def from_bits(x: int) -> float:
    """Reinterpret 64 bits as a float: the inverse of `as_bits`."""
    return np.int64(x).view(np.float64)


@inlined
def as_bits(x: float) -> int:
    """Reinterpret a float as 64 bits. Floats ≥ 0 keep their order as integers, whose maximum
    vectorizes (that of floats doesn't, because of NaN). The sign is dropped, so that every
    NaN is larger than every number."""
    return np.float64(x).view(np.int64) & MAGNITUDE


@exact
def exp_ratio(x: float) -> tuple[float, float]:
    """Two positive numbers (N, D) with exp(x) = N / D, for x ≤ 0.

    x = k·ln 2 + r with |r| ≤ ln 2 / 2, and the [5/5] Padé approximant of exp(r), whose
    error there is below 1e-15. A caller that divides anyway saves one division.
    """
    x = FLOOR if x < FLOOR else x  # this way round NaN stays NaN
    k = np.floor(x * LOG2_E + 0.5)
    r = x - k * LN2_HIGH
    r = r - k * LN2_LOW
    rr = r * r
    even = (30.0 * rr + 3360.0) * rr + 30240.0
    odd = r * ((rr + 420.0) * rr + 15120.0)
    scale = from_bits((np.int64(np.int32(k)) + 1023) << 52)
    return (even + odd) * scale, even - odd


@inlined
def exp_negative(x: float) -> float:
    """exp(x) for x ≤ 0; 0 below -700."""
    n, d = exp_ratio(x)
    return 0.0 if x <= FLOOR else n / d


@inlined
def log1m(t: float) -> float:
    """−log(1 − t) for t in [0, ½].

    With s = t / (2 − t) ≤ 1/3 it is 2·atanh(s): s times a polynomial in s² (fitted at
    Chebyshev points of [0, 1/9], error below 5e-16).
    """
    s = t / (2.0 - t)
    z = s * s
    p = 0.17780763826113302
    p = p * z + 0.09880789048764786
    p = p * z + 0.13591305485579894
    p = p * z + 0.15363676248891633
    p = p * z + 0.1818285980047391
    p = p * z + 0.22222190861346283
    p = p * z + 0.2857142911165716
    p = p * z + 0.399999999952876
    p = p * z + 0.6666666666668257
    p = p * z + 2.0
    return p * s


@exact
def exp_single(x: float) -> float:
    """exp(x) for x ≤ 0 in float32, error below 2 units in the last place; 0 below -87.

    x = k·ln 2 + r as above, and a polynomial of degree 6 in r (its Taylor series).
    """
    y = np.float32(-87.0) if x < np.float32(-87.0) else x
    k = np.floor(y * np.float32(LOG2_E) + np.float32(0.5))
    r = y - k * np.float32(0.693359375)
    r = r + k * np.float32(2.12194440e-4)
    p = np.float32(1 / 720) * r + np.float32(1 / 120)
    p = p * r + np.float32(1 / 24)
    p = p * r + np.float32(1 / 6)
    p = p * r + np.float32(0.5)
    p = p * r + np.float32(1.0)
    p = p * r + np.float32(1.0)
    scale = np.int32((np.int32(k) + np.int32(127)) << np.int32(23)).view(np.float32)
    return np.float32(0.0) if x < np.float32(-87.0) else p * scale


def exp_nonpositive(x: float) -> float:
    """exp(x) for x ≤ 0 in the type of x; compiled, one of the two above."""
    return np.exp(x)


@overload(exp_nonpositive, strict=False)
def _exp_nonpositive(x: Any) -> Any:
    if x == types.float32:
        return lambda x: exp_single(x)
    return lambda x: exp_negative(x)


@exact
def log_normal(x: float) -> float:
    """log(x) for positive numbers that are neither subnormal nor infinite.

    x = 2^k·m with m in [√½, √2), and log m = 2·atanh(s), s = (m − 1) / (m + 1): s times a
    polynomial in s² (fitted at Chebyshev points of [0, 0.0295], error below 1e-15).
    """
    bits = np.float64(x).view(np.int64)
    k = (bits - ROOT_HALF) >> 52
    m = from_bits(bits - (k << 52))
    s = (m - 1.0) / (m + 1.0)
    z = s * s
    p = 0.14811949609402167
    p = p * z + 0.15312308568292024
    p = p * z + 0.1818363993218333
    p = p * z + 0.22222196909414682
    p = p * z + 0.2857142876188523
    p = p * z + 0.3999999999929819
    p = p * z + 0.6666666666666765
    p = p * z + 2.0
    return np.float64(np.int32(k)) * (LN2_HIGH + LN2_LOW) + p * s


SOFTPLUS_LIMIT = 16.0
"""From here on `softplus` is constant, 1e-7."""
SOFTPLUS_STEPS = 128.0
"""Entries of its table per unit."""
SOFTPLUS_LAST = SOFTPLUS_LIMIT * SOFTPLUS_STEPS
SOFTPLUS = np.log1p(np.exp(-np.arange(int(SOFTPLUS_LAST) + 2) / SOFTPLUS_STEPS))


@inlined
def softplus(d: float) -> float:
    """log(1 + exp(−d)) for d ≥ 0, interpolated in a table: the error is below 2e-6."""
    y = d * SOFTPLUS_STEPS
    y = SOFTPLUS_LAST if y > SOFTPLUS_LAST else y
    k = np.int64(y)
    return SOFTPLUS[k] + (y - k) * (SOFTPLUS[k + 1] - SOFTPLUS[k])


# ---- random numbers: the same for the same (seed, counter) in every engine ----

# A stateless generator needs no order: threads, batches and other devices draw the same numbers.
# The mixing function is SplitMix64's.

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31, _S11 = (np.uint64(k) for k in (30, 27, 31, 11))
_SCALE = 2.0**-53


@inlined
def uniform(seed: Any, counter: Any) -> Any:
    """A number in [0, 1); ``seed`` and ``counter`` are uint64."""
    z = seed + (counter + np.uint64(1)) * _GOLDEN
    z = (z ^ (z >> _S30)) * _FIRST
    z = (z ^ (z >> _S27)) * _SECOND
    z = z ^ (z >> _S31)
    return np.float64(z >> _S11) * _SCALE


def uniforms(seed: int, counters: NDArray[np.integer[Any]]) -> NDArray[np.float64]:
    """The numbers of `uniform`, in numpy.

    Example:
        >>> bool((uniforms(1, np.arange(3)) == uniforms(1, np.arange(3))).all())
        True
    """
    with np.errstate(over="ignore"):
        return np.asarray(uniform(np.uint64(seed), counters.astype(np.uint64)))
