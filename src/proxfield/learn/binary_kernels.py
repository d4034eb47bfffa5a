"""Compiled parts of learning for binary variables and pairs, in spins; `kernels` has the others.

Label 0 is s = −1. θ is half the log odds and m = tanh θ the mean spin. Edges come in runs: within
one, both ends move on by one variable from edge to edge, as they do along the rows of a grid, so
that loops over a run are loops over contiguous numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from proxfield.core.compiled.jit import inlined, kernel
from proxfield.core.compiled.math import exp_negative


@kernel
def add_fields(
    w: Any, variables: Any, base: Any, kind: Any, strides: Any, y: Any, out: Any
) -> None:
    """Add E_v(1) − E_v(0) of both ends of edges, the other being y; nothing where it is -1."""
    for e in range(len(base)):
        at = np.int64(base[e])
        s0, s1 = strides[kind[e], 0], strides[kind[e], 1]
        i, k = variables[e, 0], variables[e, 1]
        yi, yk = y[i], y[k]
        if yk >= 0:
            out[i] += w[at + yk * s1 + s0] - w[at + yk * s1]
        if yi >= 0:
            out[k] += w[at + yi * s0 + s1] - w[at + yi * s0]


@kernel
def pull_fields(
    d: Any, variables: Any, base: Any, kind: Any, strides: Any, y: Any, out: Any
) -> None:
    """The transpose of `add_fields`."""
    for e in range(len(base)):
        at = np.int64(base[e])
        s0, s1 = strides[kind[e], 0], strides[kind[e], 1]
        i, k = variables[e, 0], variables[e, 1]
        yi, yk = y[i], y[k]
        if yk >= 0:
            out[at + yk * s1 + s0] += d[i]
            out[at + yk * s1] -= d[i]
        if yi >= 0:
            out[at + yi * s0 + s1] += d[k]
            out[at + yi * s0] -= d[k]


@inlined
def _tanh(x: float) -> float:
    e = exp_negative(-2.0 * abs(x))
    t = (1.0 - e) / (1.0 + e)
    return t if x >= 0 else -t


@kernel
def couplings(w: Any, base: Any, kind: Any, strides: Any, variables: Any, j: Any, h: Any) -> None:
    """Tables of edges as J·s·t + a·s + b·t: J of each edge, and a and b added to h."""
    for e in range(len(base)):
        at = np.int64(base[e])
        s0, s1 = strides[kind[e], 0], strides[kind[e], 1]
        w00, w01, w10, w11 = w[at], w[at + s1], w[at + s0], w[at + s0 + s1]
        j[e] = 0.25 * (w00 - w01 - w10 + w11)
        h[variables[e, 0]] += 0.25 * (w10 + w11 - w00 - w01)
        h[variables[e, 1]] += 0.25 * (w01 + w11 - w00 - w10)


@kernel
def pull_couplings(
    dj: Any, dh: Any, base: Any, kind: Any, strides: Any, variables: Any, out: Any
) -> None:
    """The transpose of `couplings`."""
    for e in range(len(base)):
        at = np.int64(base[e])
        s0, s1 = strides[kind[e], 0], strides[kind[e], 1]
        x, a, b = 0.25 * dj[e], 0.25 * dh[variables[e, 0]], 0.25 * dh[variables[e, 1]]
        out[at] += x - a - b
        out[at + s1] += -x - a + b
        out[at + s0] += -x + a - b
        out[at + s0 + s1] += x + a + b


@inlined
def _couple(variables: Any, j: Any, start: int, stop: int, x: Any, out: Any) -> None:
    """out += J x for the edges of one run."""
    size, first = np.uint64(stop - start), np.uint64(start)  # unsigned: no test for negative ones
    i, k = np.uint64(variables[start, 0]), np.uint64(variables[start, 1])
    for e in range(size):
        out[i + e] += j[first + e] * x[k + e]
    for e in range(size):
        out[k + e] += j[first + e] * x[i + e]


@kernel
def forward(
    h: Any, variables: Any, j: Any, runs: Any, run_ptr: Any, ptr: Any, step: float, m: Any,
    theta: Any,
) -> None:  # fmt: skip
    """Damped updates θ ← (1 − step)·θ − step·(h + J m) from m = 0; all m are kept.

    Args:
        h: Fields.  # (n,)
        variables: Ends of edges.  # (edges, 2)
        j: Their couplings.
        runs: First edge of each run, and the number of edges.
        run_ptr: First run of each instance.
        ptr: First variable of each instance.
        step: The step.
        m: Mean spins before each update and after the last.  # (updates + 1, n)
        theta: Half the log odds: 0 before, those after the last update then.  # (n,)
    """
    force = np.empty(len(h))
    for a in range(len(ptr) - 1):  # all updates of an instance while it is in the cache
        v0, v1 = ptr[a], ptr[a + 1]
        m[0, v0:v1] = 0.0
        for t in range(len(m) - 1):
            force[v0:v1] = h[v0:v1]
            if t > 0:
                for r in range(run_ptr[a], run_ptr[a + 1]):
                    _couple(variables, j, runs[r], runs[r + 1], m[t], force)
            for v in range(v0, v1):
                theta[v] = (1.0 - step) * theta[v] - step * force[v]
                m[t + 1, v] = _tanh(theta[v])


@kernel
def backward(
    adjoint: Any, m: Any, variables: Any, j: Any, runs: Any, run_ptr: Any, ptr: Any, step: float,
    dh: Any, dj: Any,
) -> None:  # fmt: skip
    """The adjoint of `forward`: from dL/dθ of the last state to dL/dh and dL/dJ."""
    last, back = len(m) - 1, np.empty(len(adjoint))
    for a in range(len(ptr) - 1):
        v0, v1 = ptr[a], ptr[a + 1]
        for v in range(v0, v1):
            dh[v] = 0.0
        for t in range(last - 1, -1, -1):
            before = m[t]
            for v in range(v0, v1):
                dh[v] -= step * adjoint[v]
                back[v] = 0.0
            if t == 0:  # m is 0: neither J nor what came before matters
                continue
            for r in range(run_ptr[a], run_ptr[a + 1]):
                start, stop = runs[r], runs[r + 1]
                _couple(variables, j, start, stop, adjoint, back)
                size, first = np.uint64(stop - start), np.uint64(start)
                i, k = np.uint64(variables[start, 0]), np.uint64(variables[start, 1])
                for e in range(size):
                    change = adjoint[i + e] * before[k + e] + adjoint[k + e] * before[i + e]
                    dj[first + e] -= step * change
            for v in range(v0, v1):
                slope_v = 1.0 - before[v] * before[v]
                adjoint[v] = (1.0 - step) * adjoint[v] - step * slope_v * back[v]
