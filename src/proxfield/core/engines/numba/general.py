"""Compiled kernels for any field: mixed labels, Potts weights, tables of any arity.

Pairwise energies are in compressed rows by variable. A table over three or more
variables sends a message to each of its slots (factor, position), one after another
inside the factor, and variables add up their messages: no two threads write to one place.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from proxfield.core.common.arrays import Doubles, Floats, Ints
from proxfield.core.compiled.jit import inlined, kernel, merged
from proxfield.core.compiled.math import exp_negative
from proxfield.core.engines.numba.kinds import Motion, move_variable


class GeneralPack(NamedTuple):
    """The field."""

    offset: Ints  # (n + 1,)
    unary: Floats  # (size,)
    block: Ints  # bounds of blocks of variables  # (n_blocks + 1,)
    # agreement energies w·[x_i = x_j]: −w of a Potts weight w, 2J of an Ising coupling J
    agree_row: Ints  # (n + 1,)
    agree_column: NDArray[np.int32]
    agree_weight: Floats
    # pairwise tables
    table_row: Ints  # (n + 1,)
    table_column: NDArray[np.int32]
    table_start: Ints  # position of the table; −1 − position for transposed edges
    table: Floats  # all energies, flat
    # tables over three or more variables
    factor_slot: Ints  # first slot of each factor  # (n_factors + 1,)
    slot_variable: Ints  # (n_slots,)
    slot_message: Ints  # where the slot's message starts  # (n_slots + 1,)
    factor_start: Ints  # position of the factor's table  # (n_factors,)
    slot_row: Ints  # slots by variable  # (n + 1,)
    slot_list: Ints
    slot_factor: Ints  # (n_slots,)
    scratch: int  # maximum number of entries that a contraction leaves
    widest: int  # largest number of labels of a variable
    hard: bool  # do tables hold +inf?


class GeneralArrays(NamedTuple):
    """The state; ``q`` is two buffers."""

    q: Floats  # (2, size)
    theta: Floats
    g: Floats
    u: Floats
    v: Floats
    message: Floats  # (total message length,)
    theta_before: Floats
    g_before: Floats


@inlined
def message_of_three(pack: GeneralPack, q: Floats, factor: int, position: int, out: Floats) -> None:
    """One message of a factor of three variables, without forbidden configurations."""
    s = pack.factor_slot[factor]
    first, second = (1 if position == 0 else 0), (1 if position == 2 else 2)
    i, j, k = pack.slot_variable[s], pack.slot_variable[s + 1], pack.slot_variable[s + 2]
    nj, nk = pack.offset[j + 1] - pack.offset[j], pack.offset[k + 1] - pack.offset[k]
    stride_i, stride_j, stride_k = nj * nk, nk, 1
    own = stride_i if position == 0 else (stride_j if position == 1 else stride_k)
    a = i if first == 0 else j
    b = j if second == 1 else k
    stride_a = stride_i if first == 0 else stride_j
    stride_b = stride_j if second == 1 else stride_k
    oa, ob = pack.offset[a], pack.offset[b]
    na, nb = pack.offset[a + 1] - oa, pack.offset[b + 1] - ob
    start = pack.factor_start[factor]
    for l in range(len(out)):
        total = 0.0
        for x in range(na):
            inner = 0.0
            at = start + l * own + x * stride_a
            for y in range(nb):
                inner += pack.table[at + y * stride_b] * q[ob + y]
            total += inner * q[oa + x]
        out[l] = total


@inlined
def contract(
    pack: GeneralPack, q: Floats, factor: int, position: int, scratch: Floats, out: Floats
) -> None:
    """Expected table of one factor for each label at one position, into ``out``.

    Axes before the position are summed out first (whole rows at a time), then those
    behind it. In place: a sum never overwrites what is still to be read.
    """
    first = pack.factor_slot[factor]
    last = pack.factor_slot[factor + 1]
    if last - first == 3 and not pack.hard:
        message_of_three(pack, q, factor, position, out)
        return
    size = 1
    for s in range(first, last):
        size *= pack.offset[pack.slot_variable[s] + 1] - pack.offset[pack.slot_variable[s]]
    start = pack.factor_start[factor]
    source = pack.table[start : start + size]
    for s in range(first, first + position):
        i = pack.slot_variable[s]
        c = pack.offset[i + 1] - pack.offset[i]
        rest = size // c
        w = np.float64(q[pack.offset[i]])
        for r in range(rest):
            scratch[r] = w * source[r] if w != 0.0 else 0.0
        for l in range(1, c):
            w = np.float64(q[pack.offset[i] + l])
            if w != 0.0:  # 0 · inf is 0
                row = source[l * rest : (l + 1) * rest]
                for r in range(rest):
                    scratch[r] += w * row[r]
        size = rest
        source = scratch[:size]
    for s in range(last - 1, first + position, -1):
        i = pack.slot_variable[s]
        o = pack.offset[i]
        c = pack.offset[i + 1] - o
        rest = size // c
        for r in range(rest):
            total = 0.0
            for l in range(c):
                w = np.float64(q[o + l])
                if w != 0.0:  # 0 · inf is 0
                    total += w * source[r * c + l]
            scratch[r] = total
        size = rest
        source = scratch[:size]
    for l in range(size):
        out[l] = source[l]


@inlined
def messages_of_three(pack: GeneralPack, q: Floats, message: Floats, factor: int) -> None:
    """All messages of a factor of three variables, in one pass over its table."""
    s = pack.factor_slot[factor]
    oa = pack.offset[pack.slot_variable[s]]
    ob = pack.offset[pack.slot_variable[s + 1]]
    oc = pack.offset[pack.slot_variable[s + 2]]
    ma, mb, mc = pack.slot_message[s], pack.slot_message[s + 1], pack.slot_message[s + 2]
    na, nb, nc = mb - ma, mc - mb, pack.slot_message[s + 3] - mc
    at = pack.factor_start[factor]
    for k in range(ma, mc + nc):
        message[k] = 0.0
    for a in range(na):
        total = 0.0
        for b in range(nb):
            inner = 0.0
            both = q[oa + a] * q[ob + b]
            for c in range(nc):
                t = pack.table[at]
                inner += t * q[oc + c]
                message[mc + c] += both * t
                at += 1
            total += inner * q[ob + b]
            message[mb + b] += inner * q[oa + a]
        message[ma + a] = total


@inlined
def messages_of(
    pack: GeneralPack, q: Floats, message: Floats, factor: int, scratch: Floats
) -> None:
    """All messages of one factor."""
    if pack.factor_slot[factor + 1] - pack.factor_slot[factor] == 3 and not pack.hard:
        messages_of_three(pack, q, message, factor)
        return
    for s in range(pack.factor_slot[factor], pack.factor_slot[factor + 1]):
        out = message[pack.slot_message[s] : pack.slot_message[s + 1]]
        contract(pack, q, factor, s - pack.factor_slot[factor], scratch, out)


@inlined
def pairwise_into(pack: GeneralPack, q: Floats, i: int, out: Floats) -> None:
    """Add the pairwise gradient of one variable to ``out``."""
    c = len(out)
    for e in range(pack.agree_row[i], pack.agree_row[i + 1]):
        o = pack.offset[pack.agree_column[e]]
        both = min(c, pack.offset[pack.agree_column[e] + 1] - o)
        w = pack.agree_weight[e]
        theirs = q[o : o + both]
        for l in range(both):
            out[l] += w * theirs[l]
    for e in range(pack.table_row[i], pack.table_row[i + 1]):
        o = pack.offset[pack.table_column[e]]
        d = pack.offset[pack.table_column[e] + 1] - o
        start = pack.table_start[e]
        if start < 0 or pack.hard:  # walk the other variable's labels outside
            across, along = (d, 1) if start >= 0 else (1, c)
            base = start if start >= 0 else -1 - start
            for m in range(d):
                w = q[o + m]
                if w != 0.0:  # 0 · inf is 0
                    for l in range(c):
                        out[l] += w * pack.table[base + l * across + m * along]
        else:
            theirs = q[o : o + d]
            for l in range(c):
                row = pack.table[start + l * d : start + l * d + d]
                total = 0.0
                for m in range(d):
                    total += row[m] * theirs[m]
                out[l] += total


@merged
def gradient_block(
    pack: GeneralPack, q: Floats, message: Floats, g: Floats, i0: int, i1: int
) -> float:
    """Gradient of one block of variables; returns its share of the energy.

    A term of degree k gives each of its variables 1/k of its energy.
    """
    energy = 0.0
    for i in range(i0, i1):
        o, end = pack.offset[i], pack.offset[i + 1]
        mine = q[o:end]
        out = g[o:end]
        own = pack.unary[o:end]
        for l in range(end - o):
            out[l] = own[l]
        pairwise_into(pack, q, i, out)
        for l in range(end - o):
            if mine[l] > 0.0:
                energy += 0.5 * mine[l] * (np.float64(own[l]) + out[l])
        for k in range(pack.slot_row[i], pack.slot_row[i + 1]):
            s = pack.slot_list[k]
            f = pack.slot_factor[s]
            share = 1.0 / (pack.factor_slot[f + 1] - pack.factor_slot[f])
            start = pack.slot_message[s]
            for l in range(end - o):
                out[l] += message[start + l]
                if mine[l] > 0.0:
                    energy += share * mine[l] * np.float64(message[start + l])
    return energy


@inlined
def entropy_of(q: Floats) -> float:
    """−Σ q log q."""
    h = 0.0
    for l in range(len(q)):
        p = np.float64(q[l])
        if p > 0.0:
            h -= p * np.log(p)
    return h


@inlined
def softmax_into(theta: Floats, e: Floats) -> tuple[float, float]:
    """e = exp(−θ) with θ shifted so that its minimum is 0; returns (Σ e, entropy of e / Σ e).

    (0, 0) where no label is possible.
    """
    low = np.float64(np.inf)
    for l in range(len(theta)):
        low = min(low, np.float64(theta[l]))
    if low == np.inf:
        return 0.0, 0.0
    total, weighted = 0.0, 0.0
    for l in range(len(theta)):
        t = np.float64(theta[l]) - low
        theta[l] = t
        p = exp_negative(-t)
        e[l] = p
        total += p
        weighted += p * t if p > 0.0 else 0.0
    return total, np.log(total) + weighted / total


@merged
def update_block(
    pack: GeneralPack, motion: Motion, st: GeneralArrays, old: Floats, new: Floats,
    i0: int, i1: int, redo: bool,
) -> tuple[float, float, float]:  # fmt: skip
    """Move one block; returns its entropy, largest scaled change and difference from two before."""
    entropy, change, twice = 0.0, 0.0, 0.0
    for i in range(i0, i1):
        o, end = pack.offset[i], pack.offset[i + 1]
        c = end - o
        q, out, theta, g = old[o:end], new[o:end], st.theta[o:end], st.g[o:end]
        step = np.float64(motion.step[i])
        if redo:
            step = np.float64(motion.fallback[i])
            for l in range(c):
                theta[l] = st.theta_before[o + l]
                g[l] = st.g_before[o + l]
        elif motion.adaptive:
            spread = 0.0
            for l in range(c):
                spread = max(spread, 4.0 * np.float64(q[l]) * (1.0 - q[l]))
                st.theta_before[o + l] = theta[l]
                st.g_before[o + l] = g[l]
            step = 1.0 / (1.0 + (1.0 / step - 1.0) * spread)
        mix = step if motion.mean else 1.0
        if motion.mean and motion.moments == 0:  # it is the target that is mixed in
            for l in range(c):
                theta[l] = motion.beta * g[l]
        else:
            move_variable(motion, step, st.theta, st.g, st.u, st.v, o, o, c)
        total, h = softmax_into(theta, g)  # g has done its work and holds exp(−θ)
        moved, whole = 0.0, 1.0
        if mix < 1.0:  # weight that an impossible label still had goes to the others
            for l in range(c):
                if theta[l] == np.inf:
                    whole -= (1.0 - mix) * q[l]
        for l in range(c):
            p = np.float64(g[l]) / total if total > 0.0 else np.float64(q[l])
            p = ((1.0 - mix) * q[l] + mix * p) / whole if theta[l] < np.inf or total == 0.0 else 0.0
            moved = max(moved, abs(p - q[l]))
            twice = max(twice, abs(p - out[l]) / step)
            out[l] = p
        entropy += h if mix == 1.0 else entropy_of(out)
        change = max(change, moved / step)
    return entropy, change, twice


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
    pack: GeneralPack, q: Floats, theta: Floats, h: Doubles, i: int, beta: float, g: Doubles,
    scratch: Floats,
) -> tuple[float, float]:  # fmt: skip
    """Minimize E − H/β (E if β = ∞) over one variable; returns (change of F, of q)."""
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
    if beta == np.inf:
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
