"""Random numbers by counting: the same number for the same (seed, counter) in every engine.

A stateless generator needs no order: threads, batches and other devices draw the same
numbers. The mixing function is SplitMix64's.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from proxfield.core.compiled.jit import inlined

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
