"""Compiled updates of factors that share tables, and their adjoint in the tables.

`TableUpdates` serves any factors. `SpinUpdates` serves binary variables and pairs, as spins: label
0 is s = −1, θ is half of θ(1) − θ(0), and m = −tanh θ the mean spin. Edges come in runs: within
one, both ends move on by one variable from edge to edge, as they do along the rows of a grid, so
that loops over a run are loops over contiguous numbers. All kernels run on one thread and add in
the order of the factors, so results don't vary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from proxfield.core.common.arrays import Doubles, Ints
from proxfield.core.compiled.jit import inlined, kernel
from proxfield.core.compiled.math import exp_negative
from proxfield.core.engines.base import Rows
from proxfield.core.engines.recorded import ArrayUpdates, Factors, Recorded

# ---- any factors ----


class TableUpdates(ArrayUpdates):
    """Updates of factors over the tables w, which are the parameters.

    Args:
        factors: Factors of one, two and more variables.
        offsets: First entry of each variable.  # (n + 1,)
        w: The tables, one after another.  # (n_entries,)
    """

    def __init__(self, factors: Sequence[Factors], offsets: Ints, w: Doubles) -> None:
        super().__init__(int(offsets[-1]), len(w))
        self.offsets, self.w = offsets, w
        self.single = [f for f in factors if f.variables.shape[1] == 1]
        self.several = [f for f in factors if f.variables.shape[1] > 1]
        self.unary = np.zeros(self.size)
        for f in self.single:
            add_gradient(w, f, offsets, self.unary, self.unary)

    def softmax(self, theta: Doubles) -> Doubles:
        return np.asarray(softmax(theta, self.offsets))

    def covariance(self, q: Doubles, d: Doubles) -> Doubles:
        return np.asarray(covariance(q, d, self.offsets))

    def gradient(self, q: Doubles) -> tuple[Doubles, list[Doubles]]:
        g = self.unary.copy()
        for f in self.several:
            add_gradient(self.w, f, self.offsets, q, g)
        return g, []

    def pull(self, q: Doubles, parts: list[Doubles], dg: Doubles, out: Doubles) -> Doubles:
        back = np.zeros_like(q)
        for f in self.several:
            add_adjoint(self.w, f, self.offsets, q, dg, back, out)
        return back

    def pull_constant(self, total: Doubles, out: Doubles) -> None:
        for f in self.single:
            add_adjoint(self.w, f, self.offsets, total, total, total, out)


@kernel
def softmax(theta: Doubles, offsets: Ints) -> Doubles:
    """softmax(−θ), variable by variable."""
    q = np.empty_like(theta)
    for v in range(len(offsets) - 1):
        first, last = offsets[v], offsets[v + 1]
        low = theta[first]
        for a in range(first + 1, last):
            low = min(low, theta[a])
        total = 0.0
        for a in range(first, last):
            q[a] = exp_negative(low - theta[a])
            total += q[a]
        for a in range(first, last):
            q[a] /= total
    return q


@kernel
def covariance(q: Doubles, d: Doubles, offsets: Ints) -> Doubles:
    """(diag(q) − q qᵀ) d of each variable: q_l (d_l − Σ_k q_k d_k)."""
    out = np.empty_like(d)
    for v in range(len(offsets) - 1):
        first, last = offsets[v], offsets[v + 1]
        mean = 0.0
        for a in range(first, last):
            mean += q[a] * d[a]
        for a in range(first, last):
            out[a] = q[a] * (d[a] - mean)
    return out


@inlined
def _add_edge(
    w: Doubles, i: int, j: int, base: int, down: int, along: int, offsets: Ints, q: Doubles,
    out: Doubles,
) -> None:  # fmt: skip
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
    i: int, j: int, base: int, down: int, along: int, offsets: Ints, q: Doubles, d: Doubles,
    dw: Doubles,
) -> None:  # fmt: skip
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


@inlined
def _next(x: Ints, f: Factors, e: int, offsets: Ints) -> bool:
    """Go to the next configuration of a factor's variables; after the last to 0, and False."""
    for p in range(len(x) - 1, -1, -1):
        v = f.variables[e, p]
        x[p] += 1
        if x[p] < offsets[v + 1] - offsets[v]:
            return True
        x[p] = 0
    return False


@kernel
def add_gradient(w: Doubles, f: Factors, offsets: Ints, q: Doubles, out: Doubles) -> None:
    """Add the gradient of the factors' expected energy at q."""
    variables, base, kind, strides = f.variables, f.base, f.kind, f.strides
    k = variables.shape[1]
    x = np.zeros(k, dtype=np.int64)
    for e in range(len(base)):
        if k == 1:
            first, at, step = offsets[variables[e, 0]], np.int64(base[e]), strides[kind[e], 0]
            for l in range(offsets[variables[e, 0] + 1] - first):
                out[first + l] += w[at + l * step]
            continue
        if k == 2:
            i, j = variables[e, 0], variables[e, 1]
            down, along = strides[kind[e], 0], strides[kind[e], 1]
            _add_edge(w, i, j, base[e], down, along, offsets, q, out)
            continue
        steps, going = f.strides[f.kind[e]], True
        while going:
            at = np.int64(f.base[e])
            for p in range(k):
                at += x[p] * steps[p]
            for p in range(k):
                product = w[at]
                for r in range(k):
                    if r != p:
                        product *= q[offsets[f.variables[e, r]] + x[r]]
                out[offsets[f.variables[e, p]] + x[p]] += product
            going = _next(x, f, e, offsets)


@kernel
def add_adjoint(
    w: Doubles, f: Factors, offsets: Ints, q: Doubles, d: Doubles, out: Doubles, dw: Doubles
) -> None:
    """The adjoint of `add_gradient` at q: from d = dL/dg to what is added to dL/dq and dL/dw."""
    variables, base, kind, strides = f.variables, f.base, f.kind, f.strides
    k = variables.shape[1]
    x = np.zeros(k, dtype=np.int64)
    for e in range(len(base)):
        if k == 1:
            first, at, step = offsets[variables[e, 0]], np.int64(base[e]), strides[kind[e], 0]
            for l in range(offsets[variables[e, 0] + 1] - first):
                dw[at + l * step] += d[first + l]
            continue
        if k == 2:
            i, j = variables[e, 0], variables[e, 1]
            down, along = strides[kind[e], 0], strides[kind[e], 1]
            _add_edge(w, i, j, base[e], down, along, offsets, d, out)
            _pull_edge(i, j, base[e], down, along, offsets, q, d, dw)
            continue
        steps, going = f.strides[f.kind[e]], True
        while going:
            at = np.int64(f.base[e])
            for p in range(k):
                at += x[p] * steps[p]
            for p in range(k):
                product = d[offsets[f.variables[e, p]] + x[p]]
                for r in range(k):
                    if r != p:
                        product *= q[offsets[f.variables[e, r]] + x[r]]
                dw[at] += product
            for p in range(k):  # d g_p / d q_r
                for r in range(k):
                    if r == p:
                        continue
                    product = w[at] * d[offsets[f.variables[e, p]] + x[p]]
                    for s in range(k):
                        if s not in (p, r):
                            product *= q[offsets[f.variables[e, s]] + x[s]]
                    out[offsets[f.variables[e, r]] + x[r]] += product
            going = _next(x, f, e, offsets)


# ---- binary variables and pairs ----


class Spins(NamedTuple):
    """E = Σ h s + Σ J s t over instances that don't interact."""

    h: Doubles  # (n,)
    j: Doubles  # (edges,)
    variables: NDArray[np.int32]  # ends of edges  # (edges, 2)
    runs: Ints  # first edge of each run, and the number of edges  # (runs + 1,)
    run_ptr: Ints  # first run of each instance  # (n_instances + 1,)
    ptr: Ints  # first variable of each instance  # (n_instances + 1,)


@dataclass
class KeptSpins:
    """θ after the last update, and mean spins before each and after the last."""

    theta: Doubles  # (n,)
    m: Doubles  # (updates + 1, n)


class SpinUpdates(Recorded[KeptSpins]):
    """Updates of binary variables and pairs over the tables w, which are the parameters.

    Args:
        single: Factors of one variable.
        edges: Factors of two.
        runs: Runs of the edges; see `Spins`.
        ptr: First variable of each instance, and the number of variables.
        w: The tables, one after another.  # (n_entries,)
    """

    def __init__(
        self, single: Factors, edges: Factors, runs: tuple[Ints, Ints], ptr: Ints, w: Doubles
    ) -> None:
        self.single, self.edges, self.w = single, edges, w
        self.offsets = np.arange(0, 2 * ptr[-1] + 1, 2)
        h, j = as_spins(w, single, edges, self.offsets)
        self.spins = Spins(h, j, edges.variables, *runs, ptr)

    def start(self) -> KeptSpins:
        n = len(self.spins.h)
        return KeptSpins(np.zeros(n), np.zeros((1, n)))

    def advance_each(
        self, state: KeptSpins, plan: float, n: int, tol: float, trace: bool,
        wanted: NDArray[np.bool_] | None = None,
    ) -> list[Rows]:  # fmt: skip
        """All updates at once, without a look at the change: ``tol`` doesn't end them."""
        made = len(state.m) - 1
        m = np.empty((made + n + 1, len(state.theta)))
        m[: made + 1], state.m = state.m, m
        forward(self.spins, plan, made, m, state.theta)
        changes = np.full(n, np.nan)
        changes[-1] = 0.5 * np.abs(state.m[-1] - state.m[-2]).max(initial=0.0) / plan
        return [Rows(np.full(n, np.nan), changes)]

    def marginals(self, state: KeptSpins) -> Doubles:
        # from θ, not from m: small probabilities keep all their digits
        q = np.empty(2 * len(state.theta))
        q[0::2], q[1::2] = expit(2.0 * state.theta), expit(-2.0 * state.theta)
        return q

    def moved(self, state: KeptSpins) -> float:
        return float((0.5 * np.abs(state.m[-1] - state.m[-2])).mean())

    def pull_back(self, state: KeptSpins, step: float, d: Doubles) -> Doubles:
        q, dw = self.marginals(state), np.zeros_like(self.w)
        dh, dj = np.empty_like(self.spins.h), np.zeros_like(self.spins.j)
        a = -2.0 * q[0::2] * q[1::2] * (d[1::2] - d[0::2])
        backward(self.spins, step, a, state.m, dh, dj)
        pull_couplings(dj, dh, self.edges, dw)
        unary = np.stack([-0.5 * dh, 0.5 * dh], axis=1).ravel()
        add_adjoint(self.w, self.single, self.offsets, unary, unary, unary, dw)
        return dw


def as_spins(w: Doubles, single: Factors, edges: Factors, offsets: Ints) -> tuple[Doubles, Doubles]:
    """Fields h and couplings J of binary variables and pairs.  # (n,), (edges,)"""
    unary = np.zeros(offsets[-1])
    add_gradient(w, single, offsets, unary, unary)
    h, j = 0.5 * (unary[1::2] - unary[0::2]), np.empty(len(edges.base))
    couplings(w, edges, j, h)
    return h, j


@kernel
def couplings(w: Doubles, f: Factors, j: Doubles, h: Doubles) -> None:
    """Tables of edges as J·s·t + a·s + b·t: J of each edge, and a and b added to h."""
    for e in range(len(f.base)):
        at = np.int64(f.base[e])
        s0, s1 = f.strides[f.kind[e], 0], f.strides[f.kind[e], 1]
        w00, w01, w10, w11 = w[at], w[at + s1], w[at + s0], w[at + s0 + s1]
        j[e] = 0.25 * (w00 - w01 - w10 + w11)
        h[f.variables[e, 0]] += 0.25 * (w10 + w11 - w00 - w01)
        h[f.variables[e, 1]] += 0.25 * (w01 + w11 - w00 - w10)


@kernel
def pull_couplings(dj: Doubles, dh: Doubles, f: Factors, out: Doubles) -> None:
    """The transpose of `couplings`."""
    for e in range(len(f.base)):
        at = np.int64(f.base[e])
        s0, s1 = f.strides[f.kind[e], 0], f.strides[f.kind[e], 1]
        x = 0.25 * dj[e]
        a, b = 0.25 * dh[f.variables[e, 0]], 0.25 * dh[f.variables[e, 1]]
        out[at] += x - a - b
        out[at + s1] += -x - a + b
        out[at + s0] += -x + a - b
        out[at + s0 + s1] += x + a + b


@inlined
def _couple(
    variables: NDArray[np.int32], j: Doubles, start: int, stop: int, x: Doubles, out: Doubles
) -> None:
    """out += J x for the edges of one run."""
    size, first = np.uint64(stop - start), np.uint64(start)  # unsigned: no test for negative ones
    i, k = np.uint64(variables[start, 0]), np.uint64(variables[start, 1])
    for e in range(size):
        out[i + e] += j[first + e] * x[k + e]
    for e in range(size):
        out[k + e] += j[first + e] * x[i + e]


@kernel
def forward(f: Spins, step: float, made: int, m: Doubles, theta: Doubles) -> None:
    """Updates θ ← (1 − step)·θ + step·(h + J m); all m are kept.

    Args:
        f: The field.
        step: The step.
        made: Number of updates that were made before; their m and θ are given.
        m: Mean spins before each update and after the last.  # (updates + 1, n)
        theta: θ, changed in place.  # (n,)
    """
    variables, j, runs, run_ptr, force = f.variables, f.j, f.runs, f.run_ptr, np.empty(len(f.h))
    for a in range(len(f.ptr) - 1):  # all updates of an instance while it is in the cache
        v0, v1 = f.ptr[a], f.ptr[a + 1]
        for t in range(made, len(m) - 1):
            force[v0:v1] = f.h[v0:v1]
            if t > 0:
                for r in range(run_ptr[a], run_ptr[a + 1]):
                    _couple(variables, j, runs[r], runs[r + 1], m[t], force)
            for v in range(v0, v1):
                theta[v] = (1.0 - step) * theta[v] + step * force[v]
                e = exp_negative(-2.0 * abs(theta[v]))
                size = (1.0 - e) / (1.0 + e)  # of −tanh θ
                m[t + 1, v] = -size if theta[v] >= 0 else size


@kernel
def backward(f: Spins, step: float, adjoint: Doubles, m: Doubles, dh: Doubles, dj: Doubles) -> None:
    """The adjoint of `forward`: from dL/dθ of the last state to dL/dh and dL/dJ."""
    variables, j, runs, run_ptr = f.variables, f.j, f.runs, f.run_ptr
    last, back = len(m) - 1, np.empty(len(adjoint))
    for a in range(len(f.ptr) - 1):
        v0, v1 = f.ptr[a], f.ptr[a + 1]
        for v in range(v0, v1):
            dh[v] = 0.0
        for t in range(last - 1, -1, -1):
            before = m[t]
            for v in range(v0, v1):
                dh[v] += step * adjoint[v]
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
                    dj[first + e] += step * change
            for v in range(v0, v1):
                slope_v = 1.0 - before[v] * before[v]
                adjoint[v] = (1.0 - step) * adjoint[v] - step * slope_v * back[v]
