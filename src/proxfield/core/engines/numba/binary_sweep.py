"""Compiled sweeps over binary fields: one variable at a time, or a color at a time."""

from __future__ import annotations

import numba
import numpy as np

from proxfield.core.common.arrays import Doubles, Floats, Ints
from proxfield.core.compiled.jit import NO, inlined, kernel, parallel_kernel
from proxfield.core.compiled.math import exp_ratio, log1m
from proxfield.core.engines.numba.binary import BinaryPack, entropy_of, first_from

GROUP = 1024
"""Variables of a color that one thread takes at a time."""


@inlined
def visit(
    pack: BinaryPack, v: Floats, a: Floats, h: Doubles, i: int, beta: float, greedy: bool
) -> tuple[float, float]:
    """Minimize E − H/β (or, if greedy, E) over one variable; returns (change of F, of v)."""
    here = pack.pad + i
    before = np.float64(v[here])
    if len(pack.clamped) > 0:
        c = first_from(pack.clamped, i)
        if c < len(pack.clamped) and pack.clamped[c] == i:
            v[here] = -0.5 if pack.clamp[c] > 0 else 0.5
            a[i] = pack.clamp[c]
            h[i] = 0.0
            return 0.0, abs(v[here] - before)
    x = np.float64(pack.bias[i])
    for e in range(pack.row[i], pack.row[i + 1]):
        x += pack.weight[e] * v[pack.pad + pack.column[e]]
    if greedy:
        value = before if x == 0.0 and abs(before) == 0.5 else (-0.5 if x > 0 else 0.5)
        v[here] = value
        return x * (value - before), abs(value - before)
    num, den = exp_ratio(-abs(beta * x))
    small = num / (num + den)
    value = small - 0.5 if x > 0 else 0.5 - small
    new_h = log1m(small) + abs(beta * x) * small
    delta = x * (value - before) - (new_h - h[i])
    v[here] = value
    a[i] = beta * x
    h[i] = new_h
    return delta, abs(np.float64(v[here]) - before)


@kernel
def sweep(
    pack: BinaryPack,
    v: Floats,
    a: Floats,
    h: Doubles,
    order: Ints,
    tol: float,
    beta: float,
    greedy: bool,
    f: float,
    f_out: Doubles,
    change_out: Doubles,
) -> tuple[int, float]:
    """Whole sweeps in the given order(s), one row of ``order`` each; returns (sweeps done, F).

    f_out, change_out: F before and the largest change of each, as many as sweeps are wanted.
    """
    for it in range(len(f_out)):
        f_out[it] = f
        change = 0.0
        row = order[it % len(order)]
        for k in range(len(row)):
            delta, c = visit(pack, v, a, h, row[k], beta, greedy)
            f += delta
            change = max(change, c)
        change_out[it] = change
        if change <= tol:
            return it + 1, f
    return len(f_out), f


@parallel_kernel
def color_parallel(
    pack: BinaryPack, v: Floats, a: Floats, h: Doubles, members: Ints, beta: float, parts: Doubles
) -> None:
    """One color: members don't interact, so threads may share them.  # parts: (n_blocks, 2)"""
    n = len(members)
    for b in numba.prange(len(parts)):
        delta, change = 0.0, 0.0
        for k in range(b * GROUP, min(n, b * GROUP + GROUP)):
            d, c = visit(pack, v, a, h, members[k], beta, NO)
            delta += d
            change = max(change, c)
        parts[b, 0] = delta
        parts[b, 1] = change


@kernel
def entropies(v: Floats, pad: int, h: Doubles) -> float:
    """Entropy of every variable into ``h``; returns the sum."""
    total = 0.0
    for i in range(len(h)):
        h[i] = entropy_of(np.float64(v[pad + i]))
        total += h[i]
    return total
