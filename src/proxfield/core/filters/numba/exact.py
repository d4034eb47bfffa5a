"""The exact Gaussian filter, compiled."""

from __future__ import annotations

import numba
import numpy as np

from proxfield.core.common.arrays import Floats
from proxfield.core.compiled.jit import parallel_kernel

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
