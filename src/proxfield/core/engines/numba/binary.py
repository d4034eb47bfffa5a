"""Compiled kernels for fields of binary variables with Ising couplings.

One number per variable: a = θ(1) − θ(0), and v = q(1) − ½ with q(1) = 1 / (1 + exp(a)). The
gradient difference is g = bias + W v and the energy bias·v + v·W·v / 2 (W is 4 J): at
uniform marginals both are exactly 0, so the symmetry of a field survives rounding. Edges
with few distinct distances j − i (grids of any dimension) are stored as diagonals, which
need no indices and run at vector speed; all other edges are in compressed rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from proxfield.core.common.arrays import Doubles, Floats, Ints
from proxfield.core.compiled.jit import inlined, kernel
from proxfield.core.compiled.math import as_bits, exp_ratio, from_bits, log1m
from proxfield.core.engines.numba.kinds import Motion, difference_move, move_differences, rates_of
from proxfield.core.engines.plan import Kind

CLAMP = 1000.0
"""|a| of a variable with an impossible label: its probability underflows to nothing."""
BLOCK = 8192
"""Variables per block: small enough for the caches; the unit of parallel work and of sums."""


class BinaryPack(NamedTuple):
    """The field."""

    bias: Floats  # (n,)
    distance: Ints  # of each diagonal, positive  # (D,)
    diagonal: Floats  # coupling of i and i + distance at [d, pad + i]  # (D, n + 2 pad)
    pad: int
    row: Ints  # compressed rows of the other couplings  # (n + 1,)
    column: NDArray[np.int32]
    weight: Floats
    clamped: Ints  # variables with an impossible label, ascending
    clamp: Floats  # their a: ±CLAMP


class BinaryArrays(NamedTuple):
    """The state, named as in `GeneralArrays`: ``q`` is v in two buffers, padded with 0 so that
    diagonals need no bounds, and ``theta`` is a."""

    q: Floats  # (2, n + 2 pad)
    theta: Floats  # (n,)
    g: Floats
    u: Floats  # moments
    v: Floats
    theta_before: Floats  # before the last update, for the safeguard
    g_before: Floats


@inlined
def first_from(ordered: Ints, least: int) -> int:
    """The first place in an ordered array with a number ≥ ``least``.

    It is ``np.searchsorted``, which takes long to compile.
    """
    low, high = np.int64(0), len(ordered)
    while low < high:
        middle = (low + high) // 2
        if ordered[middle] < least:
            low = middle + 1
        else:
            high = middle
    return low


@inlined
def gradient_block(
    pack: BinaryPack, v: Floats, here: Floats, i0: int, i1: int, energy_too: bool
) -> float:
    """g = bias + W v for one block, into ``here``; returns its energy, Σ v (bias + g) / 2."""
    pad = pack.pad
    bias = pack.bias[i0:i1]
    mine = v[pad + i0 : pad + i1]
    n_diagonals = len(pack.distance)
    n = i1 - i0
    if n_diagonals < 2:
        for k in range(n):
            here[k] = bias[k]
    else:  # the first two at once: all that a 2-D grid has
        s, t = pack.distance[0], pack.distance[1]
        w_up = pack.diagonal[0, pad + i0 : pad + i1]
        w_down = pack.diagonal[0, pad + i0 - s : pad + i1 - s]
        v_up = v[pad + i0 + s : pad + i1 + s]
        v_down = v[pad + i0 - s : pad + i1 - s]
        x_up = pack.diagonal[1, pad + i0 : pad + i1]
        x_down = pack.diagonal[1, pad + i0 - t : pad + i1 - t]
        y_up = v[pad + i0 + t : pad + i1 + t]
        y_down = v[pad + i0 - t : pad + i1 - t]
        if energy_too and n_diagonals == 2 and len(pack.column) == 0:
            energy = 0.0
            for k in range(n):  # one pass adds up the energy too
                total = bias[k] + (
                    (w_up[k] * v_up[k] + w_down[k] * v_down[k])
                    + (x_up[k] * y_up[k] + x_down[k] * y_down[k])
                )
                here[k] = total
                energy += mine[k] * (np.float64(bias[k]) + total)
            return 0.5 * energy
        for k in range(n):
            here[k] = bias[k] + (
                (w_up[k] * v_up[k] + w_down[k] * v_down[k])
                + (x_up[k] * y_up[k] + x_down[k] * y_down[k])
            )
    for d in range(0 if n_diagonals < 2 else 2, n_diagonals):
        s = pack.distance[d]
        w_up = pack.diagonal[d, pad + i0 : pad + i1]
        w_down = pack.diagonal[d, pad + i0 - s : pad + i1 - s]
        v_up = v[pad + i0 + s : pad + i1 + s]
        v_down = v[pad + i0 - s : pad + i1 - s]
        for k in range(n):  # added to g, and not to either bias or g: that would rule out vectors
            here[k] += w_up[k] * v_up[k] + w_down[k] * v_down[k]
    if len(pack.column) > 0:
        for k in range(n):
            total = 0.0
            for e in range(pack.row[i0 + k], pack.row[i0 + k + 1]):
                total += pack.weight[e] * v[pad + pack.column[e]]
            here[k] += total
    energy = 0.0
    if energy_too:
        for k in range(n):
            energy += mine[k] * (np.float64(bias[k]) + here[k])
    return 0.5 * energy


@inlined
def move_block(
    motion: Motion, st: BinaryArrays, g: Floats, old: Floats, i0: int, i1: int, redo: bool
) -> None:
    """New ``a`` of one block, if θ moves; ``g`` and ``old`` are the block's."""
    a, first, second = st.theta[i0:i1], st.u[i0:i1], st.v[i0:i1]
    step, inverse, beta = motion.step[i0:i1], motion.inverse[i0:i1], motion.beta
    n = i1 - i0
    if redo:  # again from where the last step started
        keep_a, keep_g, step = st.theta_before[i0:i1], st.g_before[i0:i1], motion.fallback[i0:i1]
        for k in range(n):
            a[k] = keep_a[k] - step[k] * (keep_a[k] - beta * keep_g[k])
    elif motion.adaptive:  # a proximal step
        keep_a, keep_g = st.theta_before[i0:i1], st.g_before[i0:i1]
        for k in range(n):
            keep_a[k] = a[k]
            keep_g[k] = g[k]
            damping = (inverse[k] - 1.0) * (1.0 - 4.0 * old[k] * old[k])  # 4 m (1 − m)
            a[k] -= (a[k] - beta * g[k]) / (1.0 + damping)
    else:
        move_differences(motion, a, g, first, second, step)


@inlined
def entropy_of(v: float) -> float:
    """Entropy of (½ − v, ½ + v)."""
    small = 0.5 - abs(v)
    if small <= 0.0:
        return 0.0
    return -(small * np.log(small) + (1.0 - small) * np.log(1.0 - small))


@inlined
def clamp_block(pack: BinaryPack, values: Floats, i0: int, i1: int) -> None:
    """Variables with an impossible label don't move: their ``a`` (or target) in one block."""
    if len(pack.clamped) > 0:
        for c in range(first_from(pack.clamped, i0), first_from(pack.clamped, i1)):
            values[pack.clamped[c] - i0] = pack.clamp[c]


Moved = tuple[float, float, float]
"""Entropy of a block, its largest scaled change, and the largest difference from two before."""
BlockMean = Callable[[BinaryPack, Motion, BinaryArrays, Floats, Floats, Floats, int, int], Moved]


def block_mean(kind: Kind, others: BlockMean) -> BlockMean:
    """q ← (1 − s) q + s q* of one block by one kind; rules of other kinds go to ``others``."""
    number = int(kind)
    difference = difference_move(kind)

    @inlined
    def mean_block(
        pack: BinaryPack, motion: Motion, st: BinaryArrays, g: Floats, old: Floats, new: Floats,
        i0: int, i1: int,
    ) -> Moved:  # fmt: skip
        """Returns as `update_block` does."""
        if motion.kind != number:
            return others(pack, motion, st, g, old, new, i0, i1)
        a, step, inverse = st.theta[i0:i1], motion.step[i0:i1], motion.inverse[i0:i1]
        first, second = st.u[i0:i1], st.v[i0:i1]
        rates = rates_of(motion)
        entropy, change, twice = 0.0, 0, 0
        clamp_block(pack, g, i0, i1)  # whose target is where they are: no change
        for k in range(i1 - i0):
            x = difference(rates, a[k], motion.beta * g[k], first, second, k, step[k])
            a[k] = x
            num, den = exp_ratio(-abs(x))
            half = 0.5 - num / (num + den)
            value = (1.0 - step[k]) * old[k] + step[k] * (-half if x > 0 else half)
            d2 = as_bits(abs(np.float64(value) - new[k]) * inverse[k])
            d1 = as_bits(abs(np.float64(value) - old[k]) * inverse[k])
            twice = d2 if d2 > twice else twice
            change = d1 if d1 > change else change
            new[k] = value
        if len(pack.clamped) > 0:
            clamp_block(pack, a, i0, i1)
            for c in range(first_from(pack.clamped, i0), first_from(pack.clamped, i1)):
                k = pack.clamped[c] - i0
                new[k] = -0.5 if pack.clamp[c] > 0 else 0.5
                d1 = as_bits(abs(np.float64(new[k]) - old[k]) * inverse[k])
                change = d1 if d1 > change else change
        if motion.trace:
            for k in range(i1 - i0):
                entropy += entropy_of(np.float64(new[k]))
        return entropy, from_bits(change), from_bits(twice)

    return mean_block


@inlined
def no_mean(
    pack: BinaryPack, motion: Motion, st: BinaryArrays, g: Floats, old: Floats, new: Floats,
    i0: int, i1: int,
) -> Moved:  # fmt: skip
    """For kinds that don't exist."""
    return 0.0, np.nan, np.nan


mean_kinds = no_mean
for _kind in Kind:
    if _kind.averages_marginals:
        mean_kinds = block_mean(_kind, mean_kinds)


@inlined
def centered_logistic(x: float) -> float:
    """1 / (1 + exp(x)) − ½."""
    num, den = exp_ratio(-abs(x))
    half = 0.5 - num / (num + den)
    return -half if x > 0 else half


@inlined
def update_block(
    pack: BinaryPack, motion: Motion, st: BinaryArrays, g: Floats, old: Floats, new: Floats,
    i0: int, i1: int, redo: bool,
) -> Moved:  # fmt: skip
    """Move one block; returns its entropy, largest scaled change and difference from two before."""
    n = i1 - i0
    pad = pack.pad
    before, after = old[pad + i0 : pad + i1], new[pad + i0 : pad + i1]
    if motion.mean:
        return mean_kinds(pack, motion, st, g, before, after, i0, i1)
    move_block(motion, st, g, before, i0, i1, redo)
    a = st.theta[i0:i1]
    clamp_block(pack, a, i0, i1)
    scale = motion.inverse[i0:i1]
    if redo or motion.adaptive:
        scale = g  # the gradient has done its work; its place holds 1 / step
        for k in range(n):
            damping = (motion.inverse[i0 + k] - 1.0) * (1.0 - 4.0 * before[k] * before[k])
            scale[k] = 1.0 / motion.fallback[i0 + k] if redo else 1.0 + damping
    change, twice = 0, 0
    if motion.flat > 0.0 and not (redo or motion.adaptive):
        for k in range(n):
            value = centered_logistic(np.float64(a[k]))
            d1 = as_bits(abs(value - before[k]))
            d2 = as_bits(abs(value - after[k]))
            change = d1 if d1 > change else change
            twice = d2 if d2 > twice else twice
            after[k] = value
        entropy = block_entropy(a, after) if motion.trace else 0.0
        return entropy, from_bits(change) / motion.flat, from_bits(twice) / motion.flat
    for k in range(n):
        value = centered_logistic(np.float64(a[k]))
        d1 = as_bits(abs(value - before[k]) * scale[k])
        d2 = as_bits(abs(value - after[k]) * scale[k])
        change = d1 if d1 > change else change
        twice = d2 if d2 > twice else twice
        after[k] = value
    entropy = block_entropy(a, after) if motion.trace else 0.0
    return entropy, from_bits(change), from_bits(twice)


@inlined
def block_entropy(a: Floats, v: Floats) -> float:
    """Σ −log(1 − t) + |a| t, where t is the smaller probability of each variable.

    One logarithm for 512 variables: the product of as many numbers in [½, 1] can't underflow.
    """
    entropy = 0.0
    for start in range(0, len(a), 512):
        end = min(len(a), start + 512)
        aa, vv = a[start:end], v[start:end]
        product, weighted = 1.0, 0.0
        for k in range(end - start):
            large = 0.5 + abs(np.float64(vv[k]))
            product *= large
            weighted += abs(np.float64(aa[k])) * (1.0 - large)
        entropy += weighted - np.log(product)
    return entropy


LOG_SMALLEST = np.log(1e-30)
"""Where logarithms of probabilities end: a zero counts as 1e-30."""


@kernel
def log_first(pack: BinaryPack, st: BinaryArrays, phase: int, natural: bool, out: Doubles) -> None:
    """log q_i(0) of each variable, by ``a`` where that says all about it.  # (n,)"""
    if natural:
        for i in range(len(out)):
            a = np.float64(st.theta[i])
            num, den = exp_ratio(-abs(a))
            value = (a if a < 0.0 else 0.0) - log1m(num / (num + den))
            out[i] = LOG_SMALLEST if value < LOG_SMALLEST else value
    else:
        for i in range(len(out)):
            q = 0.5 - np.float64(st.q[phase, pack.pad + i])
            out[i] = max(LOG_SMALLEST, np.log(max(q, 1e-30)))


@inlined
def visit(
    pack: BinaryPack, v: Floats, a: Floats, h: Doubles, i: int, beta: float
) -> tuple[float, float]:
    """Minimize E − H/β (E if β = ∞) over one variable; returns (change of F, of v)."""
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
    if beta == np.inf:
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
