"""Compiled kernels for fields of binary variables with Ising couplings.

One number per variable: a = θ(1) − θ(0), m = q(1) = 1 / (1 + exp(a)). With v = m − ½ the
gradient difference is g = bias + W v and the energy bias·v + v·W·v / 2 (W is 4 J): at
uniform marginals both are exactly 0, so the symmetry of a field survives rounding. Edges with few distinct distances j − i (grids of any
dimension) are stored as diagonals, which need no indices and run at vector speed; all
other edges are in compressed rows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np

from proxfield.kernels.jit import inlined, kernel, parallel_kernel
from proxfield.kernels.math import as_bits, binary_entropy, exp_ratio, from_bits

HALF = np.float32(0.5)
"""Exact in every type; as float32 it doesn't widen float32 arithmetic."""
CLAMP = 1000.0
"""|a| of a variable with an impossible label: its probability underflows to nothing."""
BLOCK = 1024
"""Variables a block: small enough for the first cache, and the unit of parallel work and of sums."""


class BinaryPack(NamedTuple):
    """The field."""

    bias: Any  # (n,)
    distance: Any  # of each diagonal, positive  # (D,)
    diagonal: Any  # coupling of i and i + distance at [d, pad + i]  # (D, n + 2 pad)
    pad: int
    row: Any  # compressed rows of the other couplings  # (n + 1,)
    column: Any
    weight: Any
    clamped: Any  # variables with an impossible label, ascending
    clamp: Any  # their a: ±CLAMP


class BinaryArrays(NamedTuple):
    """The state. ``m`` is two buffers, padded with ½ so that diagonals need no bounds."""

    m: Any  # (2, n + 2 pad)
    a: Any  # (n,)
    g: Any
    u: Any
    v: Any
    a_before: Any  # before the last update, for the safeguard
    g_before: Any


class Motion(NamedTuple):
    """An `Update` as plain numbers."""

    kind: int
    step: Any  # (n,)
    inverse: Any  # 1 / step = 1 + damping  # (n,)
    fallback: Any  # a certified step, for redoing one that raised F  # (n,)
    gamma1: float
    gamma2: float
    epsilon: float
    adaptive: bool
    beta: float
    trace: bool
    slack: float


@inlined
def gradient_block(pack: Any, m: Any, g: Any, i0: int, i1: int) -> float:
    """g = bias + W v for one block; returns its share of the energy, Σ v (bias + g) / 2."""
    pad = pack.pad
    here = g[i0:i1]
    bias = pack.bias[i0:i1]
    mine = m[pad + i0 : pad + i1]
    n_diagonals = len(pack.distance)
    n = i1 - i0
    if n_diagonals == 0:
        for k in range(n):
            here[k] = bias[k]
    for d in range(0, n_diagonals, 2):
        e = min(d + 1, n_diagonals - 1)
        s, t = pack.distance[d], pack.distance[e]
        w_up, w_down = pack.diagonal[d, pad + i0 : pad + i1], pack.diagonal[d, pad + i0 - s : pad + i1 - s]
        m_up, m_down = m[pad + i0 + s : pad + i1 + s], m[pad + i0 - s : pad + i1 - s]
        x_up, x_down = pack.diagonal[e, pad + i0 : pad + i1], pack.diagonal[e, pad + i0 - t : pad + i1 - t]
        n_up, n_down = m[pad + i0 + t : pad + i1 + t], m[pad + i0 - t : pad + i1 - t]
        first = bias if d == 0 else here
        if e > d:
            for k in range(n):
                here[k] = first[k] + (
                    w_up[k] * (m_up[k] - HALF) + w_down[k] * (m_down[k] - HALF)
                    + x_up[k] * (n_up[k] - HALF) + x_down[k] * (n_down[k] - HALF)
                )
        else:
            for k in range(n):
                here[k] = first[k] + (
                    w_up[k] * (m_up[k] - HALF) + w_down[k] * (m_down[k] - HALF)
                )
    if len(pack.column) > 0:
        for k in range(n):
            total = 0.0
            for e in range(pack.row[i0 + k], pack.row[i0 + k + 1]):
                total += pack.weight[e] * (m[pad + pack.column[e]] - HALF)
            here[k] += total
    energy = 0.0
    for k in range(n):
        energy += (mine[k] - HALF) * (np.float64(bias[k]) + here[k])
    return 0.5 * energy


@inlined
def move_block(motion: Any, st: Any, old: Any, pad: int, i0: int, i1: int, redo: bool) -> None:
    """New ``a`` of one block by the rule (not for MEAN)."""
    a, g, u, v = st.a[i0:i1], st.g[i0:i1], st.u[i0:i1], st.v[i0:i1]
    step, inverse = motion.step[i0:i1], motion.inverse[i0:i1]
    kind, g1, g2, eps, beta = motion.kind, motion.gamma1, motion.gamma2, motion.epsilon, motion.beta
    n = i1 - i0
    if kind == 0 and motion.adaptive and not redo:
        m = old[pad + i0 : pad + i1]
        keep_a, keep_g = st.a_before[i0:i1], st.g_before[i0:i1]
        for k in range(n):
            keep_a[k] = a[k]
            keep_g[k] = g[k]
            damping = (inverse[k] - 1.0) * (4.0 * m[k] * (1.0 - m[k]))
            a[k] -= (a[k] - beta * g[k]) / (1.0 + damping)
    elif kind == 0:
        if redo:
            step = motion.fallback[i0:i1]
        for k in range(n):
            a[k] -= step[k] * (a[k] - beta * g[k])
    elif kind == 2:
        for k in range(n):
            u[k] = g1 * u[k] + (1.0 - g1) * (a[k] - beta * g[k])
            a[k] -= step[k] * u[k]
    elif kind == 3:
        for k in range(n):
            u[k] = g1 * u[k] + (1.0 - g1) * beta * g[k]
            a[k] -= step[k] * (a[k] - u[k])
    # The centred residual of a binary variable is ±r/2, so √v is √V/2 of the difference's V,
    # and both labels move: the factor 2 and the 2ε.
    elif kind == 4:
        for k in range(n):
            r = a[k] - beta * g[k]
            u[k] = g1 * u[k] + (1.0 - g1) * r
            v[k] = g2 * v[k] + (1.0 - g2) * r * r
            a[k] -= 2.0 * step[k] * u[k] / (np.sqrt(v[k]) + 2.0 * eps)
    elif kind == 5:
        for k in range(n):
            r = beta * g[k]
            u[k] = g1 * u[k] + (1.0 - g1) * r
            v[k] = (1.0 - g2) * v[k] + g2 * r * r
            a[k] -= 2.0 * step[k] * (a[k] - u[k]) / (np.sqrt(v[k]) + 2.0 * eps)


@inlined
def entropy_of(m: float) -> float:
    """Entropy of (m, 1 − m)."""
    if m <= 0.0 or m >= 1.0:
        return 0.0
    return -(m * np.log(m) + (1.0 - m) * np.log(1.0 - m))


@inlined
def clamp_block(pack: Any, a: Any, i0: int, i1: int) -> None:
    """Variables with an impossible label don't move."""
    if len(pack.clamped) > 0:
        for c in range(np.searchsorted(pack.clamped, i0), np.searchsorted(pack.clamped, i1)):
            a[pack.clamped[c]] = pack.clamp[c]


@inlined
def update_block(pack: Any, motion: Any, st: Any, old: Any, new: Any, pad: int, i0: int, i1: int, redo: bool) -> Any:
    """Move one block; returns its entropy, largest scaled change and difference from two before."""
    n = i1 - i0
    a = st.a[i0:i1]
    mo, mn = old[pad + i0 : pad + i1], new[pad + i0 : pad + i1]
    step, inverse = motion.step[i0:i1], motion.inverse[i0:i1]
    entropy, change, twice = 0.0, 0, 0
    if motion.kind == 1:
        g = st.g[i0:i1]
        for k in range(n):
            x = motion.beta * g[k]
            a[k] = x
            num, den = exp_ratio(-abs(x))
            s = step[k]
            value = (1.0 - s) * mo[k] + s * ((num if x > 0 else den) / (num + den))
            twice = max(twice, as_bits(abs(np.float64(value) - mn[k])))
            mn[k] = value
            change = max(change, as_bits(abs(np.float64(value) - mo[k]) * inverse[k]))
            if motion.trace and 0.0 < value < 1.0:
                entropy -= value * np.log(value) + (1.0 - value) * np.log(1.0 - value)
        if len(pack.clamped) > 0:
            clamp_block(pack, st.a, i0, i1)
            for c in range(np.searchsorted(pack.clamped, i0), np.searchsorted(pack.clamped, i1)):
                i = pack.clamped[c] - i0
                entropy -= entropy_of(np.float64(mn[i]))
                mn[i] = 0.0 if pack.clamp[c] > 0 else 1.0
        return entropy, from_bits(change), from_bits(twice)
    move_block(motion, st, old, pad, i0, i1, redo)
    clamp_block(pack, st.a, i0, i1)
    for k in range(n):
        x = a[k]
        num, den = exp_ratio(-abs(x))
        value = (num if x > 0 else den) / (num + den)
        d2 = as_bits(abs(np.float64(value) - mn[k]))
        twice = d2 if d2 > twice else twice
        mn[k] = value
    if redo:
        safe = motion.fallback[i0:i1]
        for k in range(n):
            d1 = as_bits(abs(np.float64(mn[k]) - mo[k]) / safe[k])
            change = d1 if d1 > change else change
    elif motion.adaptive:
        for k in range(n):
            damping = (inverse[k] - 1.0) * (4.0 * mo[k] * (1.0 - mo[k]))
            d1 = as_bits(abs(np.float64(mn[k]) - mo[k]) * (1.0 + damping))
            change = d1 if d1 > change else change
    else:
        for k in range(n):
            d1 = as_bits(abs(np.float64(mn[k]) - mo[k]) * inverse[k])
            change = d1 if d1 > change else change
    if motion.trace:
        for k in range(n):
            x = np.float64(a[k])
            value = np.float64(mn[k])
            entropy += binary_entropy(value if x > 0 else 1.0 - value, abs(x))
    return entropy, from_bits(change), from_bits(twice)


@kernel
def run(pack: Any, st: Any, motion: Any, n_iters: int, tol: float, phase: int, entropy: float,
        constant: float, f_out: Any, change_out: Any, f_last: float) -> Any:
    """Many iterations in one call.

    Returns (iterations done, buffer in use, its entropy, difference from two updates
    before, F of the last state seen).
    """
    n = len(pack.bias)
    pad = pack.pad
    twice = np.inf
    for it in range(n_iters):
        old, new = st.m[phase], st.m[1 - phase]
        energy, h, change, twice = 0.0, 0.0, 0.0, 0.0
        if motion.adaptive:
            for i0 in range(0, n, BLOCK):
                energy += gradient_block(pack, old, st.g, i0, min(n, i0 + BLOCK))
            f = constant + energy - entropy
            if f > f_last + motion.slack:  # redo the last step from where it started, certified
                h = 0.0
                for i0 in range(0, n, BLOCK):
                    i1 = min(n, i0 + BLOCK)
                    for k in range(i0, i1):
                        st.a[k] = st.a_before[k]
                        st.g[k] = st.g_before[k]
                    hb, cb, tb = update_block(pack, motion, st, new, old, pad, i0, i1, True)
                    h += hb
                    change = max(change, cb)
                entropy, energy, h = h, 0.0, 0.0
                if it > 0:
                    change_out[it - 1] = change
                change = 0.0
                for i0 in range(0, n, BLOCK):
                    energy += gradient_block(pack, old, st.g, i0, min(n, i0 + BLOCK))
                f = constant + energy - entropy
            for i0 in range(0, n, BLOCK):
                hb, cb, tb = update_block(pack, motion, st, old, new, pad, i0, min(n, i0 + BLOCK), False)
                h += hb
                change = max(change, cb)
                twice = max(twice, tb)
        else:
            for i0 in range(0, n, BLOCK):
                i1 = min(n, i0 + BLOCK)
                energy += gradient_block(pack, old, st.g, i0, i1)
                hb, cb, tb = update_block(pack, motion, st, old, new, pad, i0, i1, False)
                h += hb
                change = max(change, cb)
                twice = max(twice, tb)
            f = constant + energy - entropy
        f_last = f
        f_out[it] = f
        change_out[it] = change
        entropy = h
        phase = 1 - phase
        if change <= tol:
            return it + 1, phase, entropy, twice, f_last
    return n_iters, phase, entropy, twice, f_last


@kernel
def evaluate(pack: Any, st: Any, phase: int) -> Any:
    """Gradient into ``g``; returns (energy without the constant, entropy) of the buffer in use."""
    n = len(pack.bias)
    energy, entropy = 0.0, 0.0
    for i0 in range(0, n, BLOCK):
        i1 = min(n, i0 + BLOCK)
        energy += gradient_block(pack, st.m[phase], st.g, i0, i1)
        h = 0.0
        for i in range(i0, i1):
            h += entropy_of(np.float64(st.m[phase, pack.pad + i]))
        entropy += h
    return energy, entropy


@parallel_kernel
def fused_parallel(pack: Any, st: Any, motion: Any, phase: int, parts: Any) -> None:
    """One iteration, blocks over threads; partial sums per block.  # parts: (n_blocks, 4)"""
    n = len(pack.bias)
    old, new = st.m[phase], st.m[1 - phase]
    for b in numba.prange(len(parts)):
        i0 = b * BLOCK
        i1 = min(n, i0 + BLOCK)
        parts[b, 0] = gradient_block(pack, old, st.g, i0, i1)
        h, c, t = update_block(pack, motion, st, old, new, pack.pad, i0, i1, False)
        parts[b, 1] = h
        parts[b, 2] = c
        parts[b, 3] = t


@parallel_kernel
def gradient_parallel(pack: Any, st: Any, phase: int, parts: Any) -> None:
    """The gradient alone, for the safeguard."""
    n = len(pack.bias)
    for b in numba.prange(len(parts)):
        parts[b, 0] = gradient_block(pack, st.m[phase], st.g, b * BLOCK, min(n, b * BLOCK + BLOCK))


@parallel_kernel
def update_parallel(pack: Any, st: Any, motion: Any, old: int, new: int, redo: bool, parts: Any) -> None:
    """The update alone; ``redo`` starts again from where the last one started."""
    n = len(pack.bias)
    for b in numba.prange(len(parts)):
        i0 = b * BLOCK
        i1 = min(n, i0 + BLOCK)
        if redo:
            for k in range(i0, i1):
                st.a[k] = st.a_before[k]
                st.g[k] = st.g_before[k]
        h, c, t = update_block(pack, motion, st, st.m[old], st.m[new], pack.pad, i0, i1, redo)
        parts[b, 1] = h
        parts[b, 2] = c
        parts[b, 3] = t


@inlined
def visit(pack: Any, m: Any, a: Any, h: Any, i: int, greedy: bool) -> Any:
    """Minimise F (or, if greedy, E) over one variable; returns (change of F, change of m)."""
    x = np.float64(pack.bias[i])
    if len(pack.clamped) > 0:
        c = np.searchsorted(pack.clamped, i)
        if c < len(pack.clamped) and pack.clamped[c] == i:
            x = np.float64(pack.clamp[c])
            m[pack.pad + i] = 0.0 if x > 0 else 1.0
            h[i] = 0.0
            a[i] = x
            return 0.0, 0.0
    for e in range(pack.row[i], pack.row[i + 1]):
        x += pack.weight[e] * (m[pack.pad + pack.column[e]] - HALF)
    before = np.float64(m[pack.pad + i])
    if greedy:
        value = before if x == 0.0 and (before == 0.0 or before == 1.0) else (0.0 if x > 0 else 1.0)
        m[pack.pad + i] = value
        return x * (value - before), abs(value - before)
    num, den = exp_ratio(-abs(x))
    small = num / (num + den)
    value = small if x > 0 else 1.0 - small
    new_h = binary_entropy(small, abs(x))
    delta = x * (value - before) - (new_h - h[i])
    m[pack.pad + i] = value
    a[i] = x
    h[i] = new_h
    return delta, abs(np.float64(m[pack.pad + i]) - before)


@kernel
def sweep(pack: Any, m: Any, a: Any, h: Any, order: Any, n_iters: int, tol: float, greedy: bool,
          f: float, f_out: Any, change_out: Any) -> Any:
    """Whole sweeps in the given order(s), one row of ``order`` each; returns (sweeps done, F)."""
    for it in range(n_iters):
        f_out[it] = f
        change = 0.0
        row = order[it % len(order)]
        for k in range(len(row)):
            delta, c = visit(pack, m, a, h, row[k], greedy)
            f += delta
            change = max(change, c)
        change_out[it] = change
        if change <= tol:
            return it + 1, f
    return n_iters, f


@parallel_kernel
def color_parallel(pack: Any, m: Any, a: Any, h: Any, members: Any, parts: Any) -> None:
    """One colour: members don't interact, so threads may share them.  # parts: (n_blocks, 2)"""
    n = len(members)
    for b in numba.prange(len(parts)):
        delta, change = 0.0, 0.0
        for k in range(b * BLOCK, min(n, b * BLOCK + BLOCK)):
            d, c = visit(pack, m, a, h, members[k], False)
            delta += d
            change = max(change, c)
        parts[b, 0] = delta
        parts[b, 1] = change


@kernel
def entropies(m: Any, pad: int, h: Any) -> float:
    """Entropy of every variable into ``h``; returns the sum."""
    total = 0.0
    for i in range(len(h)):
        h[i] = entropy_of(np.float64(m[pad + i]))
        total += h[i]
    return total
