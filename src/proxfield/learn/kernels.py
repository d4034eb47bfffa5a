"""Compiled parts of learning over a `Structure`; `reference` has the same in numpy.

Factors of one free variable are rows (a variable, a base and a kind), those of two are edges. All
kernels run on one thread and add in the order of the factors, so results don't vary.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from proxfield.core.compiled.jit import inlined, kernel
from proxfield.core.compiled.math import exp_negative


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


@inlined
def known_part(
    variables: Any, base: Any, kind: Any, strides: Any, y: Any, e: int
) -> tuple[int, int]:
    """Where a factor's entry at the known labels is, others being 0; how many aren't known."""
    at, unknown = np.int64(base[e]), 0
    for p in range(variables.shape[1]):
        label = y[variables[e, p]]
        if label < 0:
            unknown += 1
        else:
            at += label * strides[kind[e], p]
    return at, unknown


@kernel
def add_conditionals(
    w: Any, variables: Any, base: Any, kind: Any, strides: Any, offsets: Any, y: Any, out: Any
) -> None:
    """Add the energies of each free variable's labels, the others of a factor being y.

    A factor with a variable whose y isn't known (-1) says nothing about its other variables.
    """
    k = variables.shape[1]
    for e in range(len(base)):
        at, unknown = known_part(variables, base, kind, strides, y, e)
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
        at, unknown = known_part(variables, base, kind, strides, y, e)
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


# ---- marginals of any variables ----


@inlined
def _add_edge(
    w: Any, i: Any, j: Any, base: Any, down: Any, along: Any, offsets: Any, q: Any, out: Any
) -> None:
    """Add the gradient of one edge's expected energy; unsigned places need no test of the sign."""
    a, b = np.uint64(offsets[i]), np.uint64(offsets[j])
    rows = np.uint64(offsets[i + 1]) - a
    columns = np.uint64(offsets[j + 1]) - b
    step, at = np.uint64(down), np.uint64(base)
    if along == 1:
        for r in range(rows):
            total, weight = 0.0, q[a + r]
            for c in range(columns):
                total += w[at + c] * q[b + c]
            for c in range(columns):
                out[b + c] += w[at + c] * weight
            out[a + r] += total
            at += step
        return
    across = np.uint64(along)
    for r in range(rows):
        total, weight = 0.0, q[a + r]
        for c in range(columns):
            value = w[at + c * across]
            total += value * q[b + c]
            out[b + c] += value * weight
        out[a + r] += total
        at += step


@inlined
def _pull_edge(
    i: Any, j: Any, base: Any, down: Any, along: Any, offsets: Any, q: Any, d: Any, dw: Any
) -> None:
    """Add the gradient in one edge's table, from dL/dg."""
    a, b = np.uint64(offsets[i]), np.uint64(offsets[j])
    rows = np.uint64(offsets[i + 1]) - a
    columns = np.uint64(offsets[j + 1]) - b
    step, across, at = np.uint64(down), np.uint64(along), np.uint64(base)
    for r in range(rows):
        qa, da = q[a + r], d[a + r]
        if across == 1:
            for c in range(columns):
                dw[at + c] += da * q[b + c] + qa * d[b + c]
        else:
            for c in range(columns):
                dw[at + c * across] += da * q[b + c] + qa * d[b + c]
        at += step


@kernel
def add_gradient(
    w: Any, variables: Any, base: Any, kind: Any, strides: Any, offsets: Any, q: Any, out: Any
) -> None:
    """Add the gradient of the expected energy of factors of two or more free variables."""
    k = variables.shape[1]
    x = np.empty(k, dtype=np.int64)
    for e in range(len(base)):
        if k == 2:
            i, j = variables[e, 0], variables[e, 1]
            down, along = strides[kind[e], 0], strides[kind[e], 1]
            _add_edge(w, i, j, base[e], down, along, offsets, q, out)
            continue
        steps = strides[kind[e]]
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
        if k == 2:
            i, j = variables[e, 0], variables[e, 1]
            down, along = strides[kind[e], 0], strides[kind[e], 1]
            _add_edge(w, i, j, base[e], down, along, offsets, d, out)
            _pull_edge(i, j, base[e], down, along, offsets, q, d, dw)
            continue
        steps = strides[kind[e]]
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
