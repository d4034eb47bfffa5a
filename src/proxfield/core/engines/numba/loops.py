"""Compiled loops over blocks and variables: iterations, evaluations and sweeps of any field.

A field is either a `BinaryPack` or a `GeneralPack`; the other argument is None, and what it is
needed for isn't compiled. `binary` and `general` say what happens to one block, or to one variable.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numba
import numpy as np

from proxfield.core.common.arrays import Doubles, Floats, Ints
from proxfield.core.compiled.jit import kernel, merged, parallel_kernel
from proxfield.core.engines.numba import binary as pairs
from proxfield.core.engines.numba import general as tables
from proxfield.core.engines.numba.binary import BLOCK, BinaryPack
from proxfield.core.engines.numba.general import GeneralPack
from proxfield.core.engines.numba.kinds import Motion

Arrays: TypeAlias = Any
"""The state: `BinaryArrays` or `GeneralArrays`, as the pack."""
GROUP = 1024
"""Variables of a color that one thread takes at a time."""
FACTORS = 256
"""Factors whose messages one thread computes at a time."""


@merged
def send_messages(general: GeneralPack, st: Arrays, phase: int) -> None:
    """All messages of tables over three or more variables."""
    scratch = np.empty(general.scratch, dtype=general.table.dtype)
    for f in range(len(general.factor_start)):
        tables.messages_of(general, st.q[phase], st.message, f, scratch)


@kernel
def run(
    binary: BinaryPack | None, general: GeneralPack | None, st: Arrays, motion: Motion, tol: float,
    phase: int, entropy: float, constant: float, f_out: Doubles, change_out: Doubles, f: float,
) -> tuple[int, int, float, float, float]:  # fmt: skip
    """Many iterations in one call, as many as ``f_out`` and ``change_out`` have room for.

    ``f`` is F of the state it starts from; the adaptive rule also needs its gradient in ``g``,
    and leaves that of the state it ends in, because it looks at F after each step.
    Returns (iterations done, buffer in use, its entropy, difference from two updates
    before, its F if adaptive).
    """
    n, n_blocks, twice = 0, 0, np.inf
    if binary is not None:
        n = len(binary.bias)
        n_blocks = (n + BLOCK - 1) // BLOCK
    if general is not None:
        n_blocks = len(general.block) - 1
    for it in range(len(f_out)):
        energy, h, change, twice = 0.0, 0.0, 0.0, 0.0
        hb, cb, tb = 0.0, 0.0, 0.0
        old, new = st.q[phase], st.q[1 - phase]
        if motion.adaptive:
            f_out[it] = f
            for redo in (False, True):
                energy, h, change, twice = 0.0, 0.0, 0.0, 0.0
                for b in range(n_blocks):
                    if binary is not None:
                        i0, i1 = b * BLOCK, min(n, b * BLOCK + BLOCK)
                        g = st.g[i0:i1]
                        hb, cb, tb = pairs.update_block(
                            binary, motion, st, g, old, new, i0, i1, redo
                        )
                    if general is not None:
                        i0, i1 = general.block[b], general.block[b + 1]
                        hb, cb, tb = tables.update_block(
                            general, motion, st, old, new, i0, i1, redo
                        )
                    h += hb
                    change = cb if cb > change or cb != cb else change
                    twice = max(twice, tb)
                if binary is not None:
                    for b in range(n_blocks):
                        i0, i1 = b * BLOCK, min(n, b * BLOCK + BLOCK)
                        g = st.g[i0:i1]
                        energy += pairs.gradient_block(binary, new, g, i0, i1, True)
                if general is not None:
                    send_messages(general, st, 1 - phase)
                    for b in range(n_blocks):
                        i0, i1 = general.block[b], general.block[b + 1]
                        energy += tables.gradient_block(general, new, st.message, st.g, i0, i1)
                if not constant + energy - h > f + motion.slack * (1.0 + abs(f)):
                    break  # F did not rise; otherwise again with the certified step
            f = constant + energy - h
        else:
            if binary is not None:
                for i0 in range(0, n, BLOCK):
                    i1 = min(n, i0 + BLOCK)
                    g = st.g[: i1 - i0]  # one block's room for all: it stays in the cache
                    energy += pairs.gradient_block(binary, old, g, i0, i1, motion.trace)
                    hb, cb, tb = pairs.update_block(binary, motion, st, g, old, new, i0, i1, False)
                    h += hb
                    change = cb if cb > change or cb != cb else change
                    twice = max(twice, tb)
            if general is not None:
                send_messages(general, st, phase)
                for b in range(n_blocks):
                    i0, i1 = general.block[b], general.block[b + 1]
                    energy += tables.gradient_block(general, old, st.message, st.g, i0, i1)
                    hb, cb, tb = tables.update_block(general, motion, st, old, new, i0, i1, False)
                    h += hb
                    change = cb if cb > change or cb != cb else change
                    twice = max(twice, tb)
            f_out[it] = constant + energy - entropy
        change = change if h == h else np.nan
        change_out[it] = change
        entropy = h
        phase = 1 - phase
        if not change > tol:  # NaN ends it too
            return it + 1, phase, entropy, twice, f
    return len(f_out), phase, entropy, twice, f


@kernel
def evaluate(
    binary: BinaryPack | None, general: GeneralPack | None, st: Arrays, phase: int, whole: bool
) -> tuple[float, float]:
    """Gradient into ``g``; returns (energy without the constant, entropy) of the buffer in use.

    The entropy is 0 unless ``whole``.
    """
    energy, entropy = 0.0, 0.0
    q = st.q[phase]
    if binary is not None:
        n = len(binary.bias)
        for i0 in range(0, n, BLOCK):
            i1 = min(n, i0 + BLOCK)
            energy += pairs.gradient_block(binary, q, st.g[i0:i1], i0, i1, True)
            h = 0.0
            for i in range(i0, i1 if whole else i0):
                h += pairs.entropy_of(np.float64(q[binary.pad + i]))
            entropy += h
    if general is not None:
        send_messages(general, st, phase)
        for b in range(len(general.block) - 1):
            i0, i1 = general.block[b], general.block[b + 1]
            energy += tables.gradient_block(general, q, st.message, st.g, i0, i1)
            if whole:
                entropy += tables.entropy_of(q[general.offset[i0] : general.offset[i1]])
    return energy, entropy


@kernel
def entropies(
    binary: BinaryPack | None, general: GeneralPack | None, st: Arrays, phase: int, h: Doubles
) -> float:
    """Entropy of every variable into ``h``; returns the sum."""
    total = 0.0
    for i in range(len(h)):
        if binary is not None:
            h[i] = pairs.entropy_of(np.float64(st.q[phase, binary.pad + i]))
        if general is not None:
            h[i] = tables.entropy_of(st.q[phase, general.offset[i] : general.offset[i + 1]])
        total += h[i]
    return total


# ---- blocks over threads: partial sums (energy, entropy, change, difference)  # (n_blocks, 4) ----


@parallel_kernel
def send_parallel(general: GeneralPack, st: Arrays, phase: int) -> None:
    """All messages, factors over threads."""
    n = len(general.factor_start)
    for b in numba.prange((n + FACTORS - 1) // FACTORS):
        scratch = np.empty(general.scratch, dtype=general.table.dtype)
        for f in range(b * FACTORS, min(n, b * FACTORS + FACTORS)):
            tables.messages_of(general, st.q[phase], st.message, f, scratch)


@parallel_kernel
def step_parallel(
    binary: BinaryPack | None, general: GeneralPack | None, st: Arrays, motion: Motion, phase: int,
    parts: Doubles,
) -> None:  # fmt: skip
    """One iteration."""
    for b in numba.prange(len(parts)):
        energy, h, change, twice = 0.0, 0.0, 0.0, 0.0
        old, new = st.q[phase], st.q[1 - phase]
        if binary is not None:
            i0, i1 = b * BLOCK, min(len(binary.bias), b * BLOCK + BLOCK)
            g = np.empty(i1 - i0, dtype=st.g.dtype)
            energy = pairs.gradient_block(binary, old, g, i0, i1, motion.trace)
            h, change, twice = pairs.update_block(binary, motion, st, g, old, new, i0, i1, False)
        if general is not None:
            i0, i1 = general.block[b], general.block[b + 1]
            energy = tables.gradient_block(general, old, st.message, st.g, i0, i1)
            h, change, twice = tables.update_block(general, motion, st, old, new, i0, i1, False)
        parts[b, 0] = energy
        parts[b, 1] = h
        parts[b, 2] = change
        parts[b, 3] = twice


@parallel_kernel
def see_parallel(
    binary: BinaryPack | None, general: GeneralPack | None, st: Arrays, phase: int, parts: Doubles
) -> None:
    """The gradient alone, for the safeguard."""
    for b in numba.prange(len(parts)):
        q = st.q[phase]
        if binary is not None:
            i0, i1 = b * BLOCK, min(len(binary.bias), b * BLOCK + BLOCK)
            parts[b, 0] = pairs.gradient_block(binary, q, st.g[i0:i1], i0, i1, True)
        if general is not None:
            i0, i1 = general.block[b], general.block[b + 1]
            parts[b, 0] = tables.gradient_block(general, q, st.message, st.g, i0, i1)


@parallel_kernel
def entropy_parallel(
    binary: BinaryPack | None, general: GeneralPack | None, st: Arrays, phase: int, parts: Doubles
) -> None:
    """Entropies of the blocks alone."""
    for b in numba.prange(len(parts)):
        h = 0.0
        if binary is not None:
            for i in range(b * BLOCK, min(len(binary.bias), b * BLOCK + BLOCK)):
                h += pairs.entropy_of(np.float64(st.q[phase, binary.pad + i]))
        if general is not None:
            for i in range(general.block[b], general.block[b + 1]):
                h += tables.entropy_of(st.q[phase, general.offset[i] : general.offset[i + 1]])
        parts[b, 1] = h


@parallel_kernel
def move_parallel(
    binary: BinaryPack | None, general: GeneralPack | None, st: Arrays, motion: Motion, phase: int,
    redo: bool, parts: Doubles,
) -> None:  # fmt: skip
    """The update alone; ``redo`` starts again from where the last one started."""
    for b in numba.prange(len(parts)):
        h, change, twice = 0.0, 0.0, 0.0
        old, new = st.q[phase], st.q[1 - phase]
        if binary is not None:
            i0, i1 = b * BLOCK, min(len(binary.bias), b * BLOCK + BLOCK)
            g = st.g[i0:i1]
            h, change, twice = pairs.update_block(binary, motion, st, g, old, new, i0, i1, redo)
        if general is not None:
            i0, i1 = general.block[b], general.block[b + 1]
            h, change, twice = tables.update_block(general, motion, st, old, new, i0, i1, redo)
        parts[b, 1] = h
        parts[b, 2] = change
        parts[b, 3] = twice


# ---- one variable at a time, or a color at a time ----


@merged
def rooms(general: GeneralPack | None, q: Floats) -> tuple[Doubles, Floats]:
    """What visits work in."""
    widest, scratch = 0, 0
    if general is not None:
        widest, scratch = general.widest, general.scratch
    return np.empty(2 * widest), np.empty(scratch, dtype=q.dtype)


@kernel
def sweep(
    binary: BinaryPack | None, general: GeneralPack | None, q: Floats, theta: Floats, h: Doubles,
    order: Ints, tol: float, beta: float, f: float, f_out: Doubles, change_out: Doubles,
) -> tuple[int, float]:  # fmt: skip
    """Whole sweeps in the given order(s), one row of ``order`` each; returns (sweeps done, F).

    f_out, change_out: F before and the largest change of each, as many as sweeps are wanted.
    """
    room, scratch = rooms(general, q)
    for it in range(len(f_out)):
        f_out[it] = f
        change = 0.0
        row = order[it % len(order)]
        for k in range(len(row)):
            delta, c = 0.0, 0.0
            if binary is not None:
                delta, c = pairs.visit(binary, q, theta, h, row[k], beta)
            if general is not None:
                delta, c = tables.visit(general, q, theta, h, row[k], beta, room, scratch)
            f += delta
            change = max(change, c)
        change_out[it] = change
        if change <= tol:
            return it + 1, f
    return len(f_out), f


@parallel_kernel
def sweep_color(
    binary: BinaryPack | None, general: GeneralPack | None, q: Floats, theta: Floats, h: Doubles,
    members: Ints, beta: float, parts: Doubles,
) -> None:  # fmt: skip
    """One color: members don't interact, so threads may share them.  # parts: (n_blocks, 2)"""
    n = len(members)
    for b in numba.prange(len(parts)):
        room, scratch = rooms(general, q)
        delta, change = 0.0, 0.0
        for k in range(b * GROUP, min(n, b * GROUP + GROUP)):
            d, c = 0.0, 0.0
            if binary is not None:
                d, c = pairs.visit(binary, q, theta, h, members[k], beta)
            if general is not None:
                d, c = tables.visit(general, q, theta, h, members[k], beta, room, scratch)
            delta += d
            change = max(change, c)
        parts[b, 0] = delta
        parts[b, 1] = change
