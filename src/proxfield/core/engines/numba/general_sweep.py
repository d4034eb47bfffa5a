"""Compiled sweeps over any field: one variable at a time, or a color at a time."""

from __future__ import annotations

import numba
import numpy as np

from proxfield.core.common.arrays import Doubles, Floats, Ints
from proxfield.core.compiled.jit import NO, kernel, merged, parallel_kernel
from proxfield.core.compiled.math import exp_negative
from proxfield.core.engines.numba.general import GeneralPack, contract, entropy_of, pairwise_into

GROUP = 1024
"""Variables of a color that one thread takes at a time."""


@merged
def target_of(pack: GeneralPack, q: Floats, i: int, g: Doubles, scratch: Floats) -> None:
    """The gradient of one variable, into the first entries of ``g`` (the next hold messages)."""
    o, end = pack.offset[i], pack.offset[i + 1]
    c = end - o
    out, message = g[:c], g[c : 2 * c]
    for l in range(c):
        out[l] = pack.unary[o + l]
    pairwise_into(pack, q, i, out)
    for k in range(pack.slot_row[i], pack.slot_row[i + 1]):
        s = pack.slot_list[k]
        f = pack.slot_factor[s]
        contract(pack, q, f, s - pack.factor_slot[f], scratch, message)
        for l in range(c):
            out[l] += message[l]


@kernel
def gradient_of(pack: GeneralPack, q: Floats, i: int, g: Doubles, scratch: Floats) -> None:
    """`target_of`, to be called from Python."""
    target_of(pack, q, i, g, scratch)


@merged
def visit(
    pack: GeneralPack, q: Floats, theta: Floats, h: Doubles, i: int, beta: float, greedy: bool,
    g: Doubles, scratch: Floats,
) -> tuple[float, float]:  # fmt: skip
    """Minimize E − H/β (or, if greedy, E) over one variable; returns (change of F, of q)."""
    o, end = pack.offset[i], pack.offset[i + 1]
    c = end - o
    mine, out, message = q[o:end], g[:c], g[c : 2 * c]
    target_of(pack, q, i, g, scratch)
    local, best = 0.0, 0
    for l in range(c):
        if mine[l] > 0.0:
            local += mine[l] * out[l]
        if out[l] < out[best]:
            best = l
    if out[best] == np.inf:
        return 0.0, 0.0
    moved = 0.0
    if greedy:
        for l in range(c):  # an equally good label that is held stays
            if mine[l] == 1.0 and out[l] <= out[best]:
                best = l
        for l in range(c):
            value = 1.0 if l == best else 0.0
            moved = max(moved, abs(value - mine[l]))
            mine[l] = value
        return out[best] - local, moved
    low = out[best]
    total, new_h, new_local = 0.0, 0.0, 0.0
    for l in range(c):
        theta[o + l] = beta * (out[l] - low)
        message[l] = exp_negative(beta * (low - out[l]))
        total += message[l]
    for l in range(c):
        value = message[l] / total
        if value > 0.0:  # −log q = θ + log Σ exp(−θ)
            new_h += value * theta[o + l]
            new_local += value * out[l]
        moved = max(moved, abs(value - mine[l]))
        mine[l] = value
    new_h += np.log(total)
    delta = (new_local - new_h) - (local - h[i])
    h[i] = new_h
    return delta, moved


@kernel
def sweep(
    pack: GeneralPack,
    q: Floats,
    theta: Floats,
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
    scratch = np.empty(pack.scratch, dtype=pack.table.dtype)
    g = np.empty(2 * widest(pack))
    for it in range(len(f_out)):
        f_out[it] = f
        change = 0.0
        row = order[it % len(order)]
        for k in range(len(row)):
            delta, c = visit(pack, q, theta, h, row[k], beta, greedy, g, scratch)
            f += delta
            change = max(change, c)
        change_out[it] = change
        if change <= tol:
            return it + 1, f
    return len(f_out), f


@kernel
def widest(pack: GeneralPack) -> int:
    """Largest number of labels of a variable."""
    c = 1
    for i in range(len(pack.offset) - 1):
        c = max(c, pack.offset[i + 1] - pack.offset[i])
    return c


@parallel_kernel
def color_parallel(
    pack: GeneralPack,
    q: Floats,
    theta: Floats,
    h: Doubles,
    members: Ints,
    beta: float,
    parts: Doubles,
) -> None:
    """One color: members don't interact, so threads may share them.  # parts: (n_blocks, 2)"""
    n = len(members)
    wide = widest(pack)
    for b in numba.prange(len(parts)):
        scratch = np.empty(pack.scratch, dtype=pack.table.dtype)
        g = np.empty(2 * wide)
        delta, change = 0.0, 0.0
        for k in range(b * GROUP, min(n, b * GROUP + GROUP)):
            d, c = visit(pack, q, theta, h, members[k], beta, NO, g, scratch)
            delta += d
            change = max(change, c)
        parts[b, 0] = delta
        parts[b, 1] = change


@kernel
def entropies(q: Floats, offset: Ints, h: Doubles) -> float:
    """Entropy of every variable into ``h``; returns the sum."""
    total = 0.0
    for i in range(len(h)):
        h[i] = entropy_of(q[offset[i] : offset[i + 1]])
        total += h[i]
    return total
