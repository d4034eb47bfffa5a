"""The exact Gaussian filter, and sums over channels for gradients of features, compiled."""

from __future__ import annotations

import numba
import numpy as np

from proxfield.core.common.arrays import Doubles, Floats
from proxfield.core.compiled.jit import parallel_kernel

POINTS = 4096
"""Points that a task handles."""
ROWS = 16
"""Output rows a task computes together, so that each input row is read once for all."""


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
                for l in range(c):
                    total[r, l] += w * values[j, l]
        for r in range(rows):
            for l in range(c):
                out[first + r, l] = total[r, l]


@parallel_kernel
def scale_rows(values: Floats, factor: Floats, out: Floats) -> None:
    """out_i = factor_i v_i.  # (n, c), (n,) -> (n, c)"""
    n, c = values.shape
    for task in numba.prange((n + POINTS - 1) // POINTS):
        for i in range(task * POINTS, min(n, (task + 1) * POINTS)):
            own = factor[i]
            for l in range(c):
                out[i, l] = own * values[i, l]


@parallel_kernel
def add_dots(a: Floats, b: Floats, out: Doubles) -> None:
    """out_i += a_i·b_i.  # (n, c), (n, c) -> (n,)"""
    n, c = a.shape
    for task in numba.prange((n + POINTS - 1) // POINTS):
        for i in range(task * POINTS, min(n, (task + 1) * POINTS)):
            total = a.dtype.type(0.0)
            for l in range(c):
                total += a[i, l] * b[i, l]
            out[i] += total
