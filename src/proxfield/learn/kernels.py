"""Compiled parts of learning over a `Structure`; `reference` has the same in numpy.

Factors of one free variable are rows (a variable, a base and a kind), those of two are edges. All
kernels run on one thread and add in the order of the factors, so results don't vary.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from proxfield.compiled.jit import inlined, kernel
from proxfield.compiled.math import exp_negative


@kernel
def add_rows(
    w: Any, variable: Any, base: Any, kind: Any, strides: Any, offsets: Any, out: Any
) -> None:
    """Add the energies of factors of one free variable to those of its labels."""
    for e in range(len(base)):
        v = variable[e, 0]
        first = offsets[v]
        at = np.int64(base[e])
        step = strides[kind[e], 0]
        for l in range(offsets[v + 1] - first):
            out[first + l] += w[at + l * step]


@kernel
def pull_rows(
    d: Any, variable: Any, base: Any, kind: Any, strides: Any, offsets: Any, out: Any
) -> None:
    """The transpose of `add_rows`: from a gradient in energies to one in w."""
    for e in range(len(base)):
        v = variable[e, 0]
        first = offsets[v]
        at = np.int64(base[e])
        step = strides[kind[e], 0]
        for l in range(offsets[v + 1] - first):
            out[at + l * step] += d[first + l]


@kernel
def add_conditionals(
    w: Any, variables: Any, base: Any, kind: Any, strides: Any, offsets: Any, y: Any, out: Any
) -> None:
    """Add the energies of each free variable's labels, the others of a factor being y.

    A factor with a variable whose y isn't known (-1) says nothing about its other variables.
    """
    k = variables.shape[1]
    for e in range(len(base)):
        at = np.int64(base[e])
        unknown = 0
        for p in range(k):
            label = y[variables[e, p]]
            if label < 0:
                unknown += 1
            else:
                at += label * strides[kind[e], p]
        for p in range(k):
            v = variables[e, p]
            if unknown - (y[v] < 0) > 0:
                continue
            step = strides[kind[e], p]
            start = at - (y[v] * step if y[v] >= 0 else 0)
            first = offsets[v]
            for l in range(offsets[v + 1] - first):
                out[first + l] += w[start + l * step]


@kernel
def pull_conditionals(
    d: Any, variables: Any, base: Any, kind: Any, strides: Any, offsets: Any, y: Any, out: Any
) -> None:
    """The transpose of `add_conditionals`."""
    k = variables.shape[1]
    for e in range(len(base)):
        at = np.int64(base[e])
        unknown = 0
        for p in range(k):
            label = y[variables[e, p]]
            if label < 0:
                unknown += 1
            else:
                at += label * strides[kind[e], p]
        for p in range(k):
            v = variables[e, p]
            if unknown - (y[v] < 0) > 0:
                continue
            step = strides[kind[e], p]
            start = at - (y[v] * step if y[v] >= 0 else 0)
            first = offsets[v]
            for l in range(offsets[v + 1] - first):
                out[start + l * step] += d[first + l]


@kernel
def softmax(theta: Any, offsets: Any, q: Any) -> None:
    """q = softmax of θ, variable by variable."""
    for v in range(len(offsets) - 1):
        first, last = offsets[v], offsets[v + 1]
        top = theta[first]
        for a in range(first + 1, last):
            top = max(top, theta[a])
        total = 0.0
        for a in range(first, last):
            q[a] = exp_negative(theta[a] - top)
            total += q[a]
        for a in range(first, last):
            q[a] /= total


@kernel
def conditional_loss(energy: Any, offsets: Any, y: Any, weight: Any, d: Any) -> float:
    """Σ_v weight_v (E_v(y_v) + log Σ_l exp(−E_v(l))), and its gradient in the energies."""
    total = 0.0
    for v in range(len(y)):
        first, last = offsets[v], offsets[v + 1]
        label = y[v]
        if label < 0:
            for a in range(first, last):
                d[a] = 0.0
            continue
        low = energy[first]
        for a in range(first + 1, last):
            low = min(low, energy[a])
        z = 0.0
        for a in range(first, last):
            d[a] = exp_negative(low - energy[a])
            z += d[a]
        for a in range(first, last):
            d[a] = -weight[label] * d[a] / z
        d[first + label] += weight[label]
        total += weight[label] * (energy[first + label] - low + np.log(z))
    return total


# ---- marginals of binary variables: θ is half the log odds, m = tanh θ the mean spin ----


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


@inlined
def _couple(i: Any, k: Any, j: Any, first: int, last: int, x: Any, out: Any) -> None:
    """out += J x."""
    for e in range(first, last):
        out[i[e]] += j[e] * x[k[e]]
        out[k[e]] += j[e] * x[i[e]]


@kernel
def binary_forward(
    h: Any, i: Any, k: Any, j: Any, var_ptr: Any, edge_ptr: Any, step: float, m: Any
) -> None:
    """Damped updates θ ← (1 − step)·θ − step·(h + J m) from m = 0; all m are kept.

    Args:
        h: Fields.  # (n,)
        i: First end of each edge.  # (edges,)
        k: Second end of each edge.
        j: Its coupling.
        var_ptr: First variable of each instance.
        edge_ptr: First edge of each instance.
        step: The step.
        m: Mean spins before each update and after the last.  # (updates + 1, n)
    """
    n_updates = len(m) - 1
    largest = 0
    for a in range(len(var_ptr) - 1):
        largest = max(largest, var_ptr[a + 1] - var_ptr[a])
    theta, force = np.empty(largest), np.empty(len(h))
    for a in range(len(var_ptr) - 1):
        v0, v1 = var_ptr[a], var_ptr[a + 1]
        for v in range(v0, v1):
            theta[v - v0] = 0.0
            m[0, v] = 0.0
        for t in range(n_updates):
            for v in range(v0, v1):
                force[v] = h[v]
            _couple(i, k, j, edge_ptr[a], edge_ptr[a + 1], m[t], force)
            for v in range(v0, v1):
                theta[v - v0] = (1.0 - step) * theta[v - v0] - step * force[v]
                m[t + 1, v] = _tanh(theta[v - v0])


@kernel
def binary_backward(
    d: Any, m: Any, i: Any, k: Any, j: Any, var_ptr: Any, edge_ptr: Any, step: float,
    dh: Any, dj: Any,
) -> None:  # fmt: skip
    """The adjoint of `binary_forward`: from dL/dm of the last state to dL/dh and dL/dJ."""
    n_updates = len(m) - 1
    adjoint, back = np.empty(len(d)), np.empty(len(d))
    for a in range(len(var_ptr) - 1):
        v0, v1, e0, e1 = var_ptr[a], var_ptr[a + 1], edge_ptr[a], edge_ptr[a + 1]
        for v in range(v0, v1):
            adjoint[v] = d[v] * (1.0 - m[n_updates, v] * m[n_updates, v])
            dh[v] = 0.0
        for e in range(e0, e1):
            dj[e] = 0.0
        for t in range(n_updates - 1, -1, -1):
            before = m[t]
            for v in range(v0, v1):
                dh[v] -= step * adjoint[v]
                back[v] = 0.0
            if t == 0:  # m is 0: neither J nor what came before matters
                continue
            for e in range(e0, e1):
                p, r = i[e], k[e]
                back[p] += j[e] * adjoint[r]
                back[r] += j[e] * adjoint[p]
                dj[e] -= step * (adjoint[p] * before[r] + adjoint[r] * before[p])
            for v in range(v0, v1):
                slope = 1.0 - before[v] * before[v]
                adjoint[v] = (1.0 - step) * adjoint[v] - step * slope * back[v]


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


# ---- marginals of any variables ----


@kernel
def add_gradient(
    w: Any, variables: Any, base: Any, kind: Any, strides: Any, offsets: Any, q: Any, out: Any
) -> None:
    """Add the gradient of the expected energy of factors of two or more free variables."""
    k = variables.shape[1]
    x = np.empty(k, dtype=np.int64)
    for e in range(len(base)):
        steps = strides[kind[e]]
        if k == 2:
            a0, b0 = offsets[variables[e, 0]], offsets[variables[e, 1]]
            a1, b1 = offsets[variables[e, 0] + 1], offsets[variables[e, 1] + 1]
            for a in range(a0, a1):
                at = base[e] + (a - a0) * steps[0]
                total = 0.0
                qa = q[a]
                for b in range(b0, b1):
                    value = w[at + (b - b0) * steps[1]]
                    total += value * q[b]
                    out[b] += value * qa
                out[a] += total
            continue
        x[:] = 0
        while True:
            at = np.int64(base[e])
            for p in range(k):
                at += x[p] * steps[p]
            for p in range(k):
                product = w[at]
                for r in range(k):
                    if r != p:
                        product *= q[offsets[variables[e, r]] + x[r]]
                out[offsets[variables[e, p]] + x[p]] += product
            p = k - 1
            while p >= 0:
                v = variables[e, p]
                x[p] += 1
                if x[p] < offsets[v + 1] - offsets[v]:
                    break
                x[p] = 0
                p -= 1
            if p < 0:
                break


@kernel
def add_adjoint(
    w: Any, variables: Any, base: Any, kind: Any, strides: Any, offsets: Any, q: Any, d: Any,
    out: Any, dw: Any,
) -> None:  # fmt: skip
    """The adjoint of `add_gradient` at q: from dL/dg to what is added to dL/dq and dL/dw."""
    k = variables.shape[1]
    x = np.empty(k, dtype=np.int64)
    for e in range(len(base)):
        steps = strides[kind[e]]
        if k == 2:
            a0, b0 = offsets[variables[e, 0]], offsets[variables[e, 1]]
            a1, b1 = offsets[variables[e, 0] + 1], offsets[variables[e, 1] + 1]
            for a in range(a0, a1):
                at = base[e] + (a - a0) * steps[0]
                total = 0.0
                qa, da = q[a], d[a]
                for b in range(b0, b1):
                    place = at + (b - b0) * steps[1]
                    value = w[place]
                    total += value * d[b]
                    out[b] += value * da
                    dw[place] += da * q[b] + qa * d[b]
                out[a] += total
            continue
        x[:] = 0
        while True:
            at = np.int64(base[e])
            for p in range(k):
                at += x[p] * steps[p]
            for p in range(k):
                product = d[offsets[variables[e, p]] + x[p]]
                for r in range(k):
                    if r != p:
                        product *= q[offsets[variables[e, r]] + x[r]]
                dw[at] += product
            for p in range(k):  # d g_p / d q_r
                for r in range(k):
                    if r == p:
                        continue
                    product = w[at] * d[offsets[variables[e, p]] + x[p]]
                    for s in range(k):
                        if s not in (p, r):
                            product *= q[offsets[variables[e, s]] + x[s]]
                    out[offsets[variables[e, r]] + x[r]] += product
            p = k - 1
            while p >= 0:
                v = variables[e, p]
                x[p] += 1
                if x[p] < offsets[v + 1] - offsets[v]:
                    break
                x[p] = 0
                p -= 1
            if p < 0:
                break


@kernel
def pull_softmax(q: Any, d: Any, offsets: Any, out: Any) -> None:
    """From dL/dq to dL/dθ: q_l (d_l − Σ_k q_k d_k)."""
    for v in range(len(offsets) - 1):
        first, last = offsets[v], offsets[v + 1]
        mean = 0.0
        for a in range(first, last):
            mean += q[a] * d[a]
        for a in range(first, last):
            out[a] = q[a] * (d[a] - mean)
