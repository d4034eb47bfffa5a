"""The exact filter: every pair of points, in blocks. The oracle, and right for small fields."""

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import ArrayLike, NDArray

from proxfield.core.common.arrays import Doubles, Floats
from proxfield.core.compiled.jit import parallel_kernel, threads_for
from proxfield.core.filters.plan import HostPlan, check_features

POINTS = 4096
"""Points that a task handles."""
ROWS = 16
"""Output rows a task computes together, so that each input row is read once for all."""


class ExactFilter(HostPlan):
    """K itself, without approximation: n² weights for each application.

    Args:
        features: One row per point, in units of standard deviations.  # (n, d)

    Example:
        >>> ExactFilter([[0.0], [1.0]]).apply(np.array([[1.0], [0.0]])).round(3)
        array([[1.   ],
               [0.607]])
    """

    name = "exact"

    def __init__(self, features: ArrayLike) -> None:
        self.features = check_features(features)
        self.n = len(self.features)

    def apply(self, values: Floats) -> Floats:
        out = np.empty(values.shape, dtype=values.dtype)
        with threads_for(len(values) * values.size):
            exact_filter(self.features, np.ascontiguousarray(values), out)
        return out

    def matrix(self) -> NDArray[np.float64]:
        """K as a dense array, in plain numpy.  # (n, n)"""
        f = self.features.astype(np.float64)
        square = np.zeros((len(f), len(f)))
        for column in f.T:  # differences, not norms and products: those cancel
            square += (column[:, None] - column[None, :]) ** 2
        return np.exp(-0.5 * square)


@parallel_kernel
def exact_filter(features: Floats, values: Floats, out: Floats) -> None:
    """out_i = Σ_j exp(−½‖f_i − f_j‖²) v_j over all pairs; weights and sums in float64."""
    n, d = features.shape
    c = values.shape[1]
    tasks = (n + ROWS - 1) // ROWS
    for task in numba.prange(tasks):
        first = task * ROWS
        rows = min(ROWS, n - first)
        total = np.zeros((rows, c))
        for j in range(n):
            for r in range(rows):
                square = 0.0
                for k in range(d):
                    gap = np.float64(features[first + r, k]) - np.float64(features[j, k])
                    square += gap * gap
                w = np.exp(-0.5 * square)
                for k in range(c):
                    total[r, k] += w * values[j, k]
        for r in range(rows):
            for k in range(c):
                out[first + r, k] = total[r, k]


@parallel_kernel
def add_dots(a: Floats, b: Floats, out: Doubles) -> None:
    """out_i += a_i·b_i.  # (n, c), (n, c) -> (n,)"""
    n, c = a.shape
    for task in numba.prange((n + POINTS - 1) // POINTS):
        for i in range(task * POINTS, min(n, (task + 1) * POINTS)):
            total = a.dtype.type(0.0)
            for k in range(c):
                total += a[i, k] * b[i, k]
            out[i] += total
