"""Sums over channels, point by point: what gradients for features are made of."""

from __future__ import annotations

import numba

from proxfield.core.common.arrays import Doubles, Floats
from proxfield.core.compiled.jit import parallel_kernel

POINTS = 4096
"""Points that a task handles."""


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
