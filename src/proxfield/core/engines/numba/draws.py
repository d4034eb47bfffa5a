"""What drawn chains of all fields have in common: temperatures and random thresholds."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from proxfield.core.common.arrays import Doubles, Ints
from proxfield.core.compiled.jit import inlined
from proxfield.core.compiled.math import log_normal
from proxfield.core.compiled.random import uniform

BLOCK = 1024
"""Random numbers made at a time, at vector speed."""
LEAST = 2.0**-54
"""Added to uniform numbers, so that none is 0."""


class Schedule(NamedTuple):
    """What drawn chains do; see `proxfield.core.engines.plan.Chains`."""

    hot: Doubles
    cold: Doubles
    sweeps: Ints
    seeds: NDArray[np.uint64]
    drawn: NDArray[np.bool_]
    by_forests: NDArray[np.bool_]
    metropolis: bool


@inlined
def temperature_at(t: int, sweeps: int, hot: float, cold: float) -> float:
    """A geometric schedule from ``hot`` to ``cold``."""
    if sweeps <= 1:
        return cold
    return float(hot * (cold / hot) ** (t / (sweeps - 1.0)))


@inlined
def logits(seed: np.uint64, first: np.uint64, count: int, scale: float, out: Doubles) -> None:
    """scale·log(u / (1 − u)) of consecutive random numbers u.

    A label 0 of two, which is less probable by exp(−a), is drawn if log(u / (1 − u)) < a. Made
    ahead for many visits, the comparison is all that remains of a visit that changes nothing.
    """
    for k in range(count):
        u = uniform(seed, first + np.uint64(k)) + LEAST
        out[k] = scale * log_normal(u / (1.0 - u))


@inlined
def logs(seed: np.uint64, first: np.uint64, count: int, scale: float, out: Doubles) -> None:
    """scale·log(u) of consecutive random numbers u: a change that costs a is made if it is
    below −a."""
    for k in range(count):
        out[k] = scale * log_normal(uniform(seed, first + np.uint64(k)) + LEAST)
