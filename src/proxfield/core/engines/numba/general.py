"""Compiled kernels for any field: mixed labels, Potts weights, tables of any arity.

Pairwise energies are in compressed rows by variable. A table over three or more
variables sends a message to each of its slots (factor, position), one after another
inside the factor, and variables add up their messages: no two threads write to one place.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from proxfield.core.common.arrays import Doubles, Floats, Ints
from proxfield.core.compiled.jit import inlined, kernel, parallel_kernel
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


@inlined
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


@inlined
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


@kernel
def run(
    pack: GeneralPack,
    st: GeneralArrays,
    motion: Motion,
    n_iters: int,
    tol: float,
    phase: int,
    entropy: float,
    constant: float,
    f_out: Doubles,
    change_out: Doubles,
    f: float,
) -> tuple[int, int, float, float, float]:
    """Many iterations in one call; the same contract as the binary kernel's ``run``."""
    n_blocks = len(pack.block) - 1
    n_factors = len(pack.factor_start)
    scratch = np.empty(pack.scratch, dtype=pack.table.dtype)
    twice = np.inf
    for it in range(n_iters):
        old, new = st.q[phase], st.q[1 - phase]
        energy, h, change, twice = 0.0, 0.0, 0.0, 0.0
        if motion.adaptive:
            f_out[it] = f
            for redo in (False, True):
                energy, h, change, twice = 0.0, 0.0, 0.0, 0.0
                for b in range(n_blocks):
                    i0, i1 = pack.block[b], pack.block[b + 1]
                    hb, cb, tb = update_block(pack, motion, st, old, new, i0, i1, redo)
                    h += hb
                    change = max(change, cb)
                    twice = max(twice, tb)
                for k in range(n_factors):
                    messages_of(pack, new, st.message, k, scratch)
                for b in range(n_blocks):
                    i0, i1 = pack.block[b], pack.block[b + 1]
                    energy += gradient_block(pack, new, st.message, st.g, i0, i1)
                if not constant + energy - h > f + motion.slack * (1.0 + abs(f)):
                    break  # F did not rise; otherwise again with the certified step
            f = constant + energy - h
        else:
            for k in range(n_factors):
                messages_of(pack, old, st.message, k, scratch)
            for b in range(n_blocks):
                i0, i1 = pack.block[b], pack.block[b + 1]
                energy += gradient_block(pack, old, st.message, st.g, i0, i1)
                hb, cb, tb = update_block(pack, motion, st, old, new, i0, i1, False)
                h += hb
                change = max(change, cb)
                twice = max(twice, tb)
            f_out[it] = constant + energy - entropy
        change = change if h == h else np.nan
        change_out[it] = change
        entropy = h
        phase = 1 - phase
        if not change > tol:  # NaN ends it too
            return it + 1, phase, entropy, twice, f
    return n_iters, phase, entropy, twice, f


@kernel
def evaluate(pack: GeneralPack, st: GeneralArrays, phase: int) -> tuple[float, float]:
    """Gradient into ``g``; returns (energy without the constant, entropy) of the buffer in use."""
    scratch = np.empty(pack.scratch, dtype=pack.table.dtype)
    q = st.q[phase]
    for f in range(len(pack.factor_start)):
        messages_of(pack, q, st.message, f, scratch)
    energy, entropy = 0.0, 0.0
    for b in range(len(pack.block) - 1):
        energy += gradient_block(pack, q, st.message, st.g, pack.block[b], pack.block[b + 1])
        entropy += entropy_of(q[pack.offset[pack.block[b]] : pack.offset[pack.block[b + 1]]])
    return energy, entropy


@kernel
def energy_only(pack: GeneralPack, st: GeneralArrays, phase: int) -> float:
    """Gradient into ``g``; returns the energy, where the entropy is known."""
    scratch = np.empty(pack.scratch, dtype=pack.table.dtype)
    q = st.q[phase]
    for f in range(len(pack.factor_start)):
        messages_of(pack, q, st.message, f, scratch)
    energy = 0.0
    for b in range(len(pack.block) - 1):
        energy += gradient_block(pack, q, st.message, st.g, pack.block[b], pack.block[b + 1])
    return energy


@kernel
def update_only(
    pack: GeneralPack, st: GeneralArrays, motion: Motion, old: int, new: int, redo: bool
) -> tuple[float, float, float]:
    """An update from the gradient in ``g``, for fields with extra terms."""
    h, change, twice = 0.0, 0.0, 0.0
    for b in range(len(pack.block) - 1):
        hb, cb, tb = update_block(
            pack, motion, st, st.q[old], st.q[new], pack.block[b], pack.block[b + 1], redo
        )
        h += hb
        change = max(change, cb)
        twice = max(twice, tb)
    return h, change, twice


@parallel_kernel
def messages_parallel(pack: GeneralPack, st: GeneralArrays, phase: int) -> None:
    """All messages, factors over threads."""
    n = len(pack.factor_start)
    chunks = (n + 255) // 256
    for b in numba.prange(chunks):
        scratch = np.empty(pack.scratch, dtype=pack.table.dtype)
        for f in range(b * 256, min(n, b * 256 + 256)):
            messages_of(pack, st.q[phase], st.message, f, scratch)


@parallel_kernel
def gradient_parallel(pack: GeneralPack, st: GeneralArrays, phase: int, parts: Doubles) -> None:
    """The gradient, blocks over threads.  # parts: (n_blocks, 4)"""
    for b in numba.prange(len(parts)):
        parts[b, 0] = gradient_block(
            pack, st.q[phase], st.message, st.g, pack.block[b], pack.block[b + 1]
        )


@parallel_kernel
def entropy_parallel(pack: GeneralPack, st: GeneralArrays, phase: int, parts: Doubles) -> None:
    """Entropies of blocks of variables.  # parts: (n_blocks, 4), column 1"""
    for b in numba.prange(len(parts)):
        h = 0.0
        for i in range(pack.block[b], pack.block[b + 1]):
            h += entropy_of(st.q[phase, pack.offset[i] : pack.offset[i + 1]])
        parts[b, 1] = h


@parallel_kernel
def update_parallel(
    pack: GeneralPack, st: GeneralArrays, motion: Motion, old: int, new: int, redo: bool,
    parts: Doubles,
) -> None:  # fmt: skip
    """The update, blocks over threads."""
    for b in numba.prange(len(parts)):
        h, c, t = update_block(
            pack, motion, st, st.q[old], st.q[new], pack.block[b], pack.block[b + 1], redo
        )
        parts[b, 1] = h
        parts[b, 2] = c
        parts[b, 3] = t
