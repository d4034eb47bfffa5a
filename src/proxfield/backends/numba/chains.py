"""Compiled chains of marginals: cool down, one variable at a time, then polish; many at once.

A chain starts from marginals and cools them by sweeps. It ends with sweeps at temperature 1, near a
local minimum of F. Chains of one call are independent and run on different threads. Those that
sample labellings (`binary_chains`, `general_chains`) end here too, with their labelling as the
start and no sweeps but those at temperature 1.
"""

from __future__ import annotations

import numba
import numpy as np

from proxfield.backends.numba import general_sweep
from proxfield.backends.numba.binary import BinaryPack
from proxfield.backends.numba.binary import entropy_of as binary_entropy_of
from proxfield.backends.numba.draws import temperature_at
from proxfield.backends.numba.general import GeneralPack, contract, pairwise_into
from proxfield.backends.numba.general import entropy_of as general_entropy_of
from proxfield.compiled.jit import NO, embedded, inlined, parallel_kernel
from proxfield.compiled.math import exp_ratio
from proxfield.terms.base import Doubles, Floats, Ints

SURE = 40.0
"""Energies (over the temperature) from which on a label is certain to rounding."""
NEGLIGIBLE = 1e-12
"""Changes of a marginal that aren't made."""


@embedded
def binary_chain(
    pack: BinaryPack, v: Floats, x: Doubles, hot: float, cold: float, sweeps: int, polish: int,
    tol: float,
) -> tuple[float, int]:  # fmt: skip
    """One chain; returns (free energy without the constant, sweeps of polish).

    ``x`` is room for the local fields, which are kept: a variable that hardly moves costs one
    comparison, and most of them stop moving soon.
    """
    n = len(pack.bias)
    pad = pack.pad
    for c in range(len(pack.clamped)):
        v[pad + pack.clamped[c]] = -0.5 if pack.clamp[c] > 0 else 0.5
    for i in range(n):
        x[i] = pack.bias[i]
        for e in range(pack.row[i], pack.row[i + 1]):
            x[i] += pack.weight[e] * v[pad + pack.column[e]]
    done = polish
    for t in range(sweeps + polish):
        beta = 1.0 / temperature_at(t, sweeps, hot, cold) if t < sweeps else 1.0
        change = 0.0
        c = 0
        for i in range(n):
            if c < len(pack.clamped) and pack.clamped[c] == i:
                c += 1
                continue
            y = beta * x[i]
            small = 0.0
            if abs(y) < SURE:
                num, den = exp_ratio(-abs(y))
                small = num / (num + den)
            value = small - 0.5 if y > 0 else 0.5 - small
            before = np.float64(v[pad + i])
            if abs(value - before) <= NEGLIGIBLE:
                continue
            v[pad + i] = value
            moved = np.float64(v[pad + i]) - before
            change = max(change, abs(moved))
            for e in range(pack.row[i], pack.row[i + 1]):
                x[pack.column[e]] += pack.weight[e] * moved
        if t >= sweeps and change <= tol:
            done = t + 1 - sweeps
            break
    f = 0.0
    for i in range(n):
        value = np.float64(v[pad + i])
        f += 0.5 * value * (pack.bias[i] + x[i]) - binary_entropy_of(value)
    return f, done


@parallel_kernel
def binary_chains(
    pack: BinaryPack, v: Floats, a: Floats, hot: Doubles, cold: Doubles, sweeps: Ints, polish: int,
    tol: float, f: Doubles, done: Ints,
) -> None:  # fmt: skip
    """Many chains.  # v: (chains, n + 2 pad), a: (chains, n), the rest: (chains,)"""
    for b in numba.prange(len(hot)):
        x = np.empty(len(pack.bias))
        f[b], done[b] = binary_chain(pack, v[b], x, hot[b], cold[b], sweeps[b], polish, tol)


@embedded
def general_chain(
    pack: GeneralPack, q: Floats, theta: Floats, h: Doubles, hot: float, cold: float,
    sweeps: int, polish: int, tol: float,
) -> tuple[float, int]:  # fmt: skip
    """One chain; returns (free energy without the constant, sweeps of polish)."""
    n = len(pack.offset) - 1
    scratch = np.empty(pack.scratch, dtype=pack.table.dtype)
    g = np.empty(2 * general_sweep.widest(pack))
    for i in range(n):
        o, end = pack.offset[i], pack.offset[i + 1]
        total = 0.0
        for l in range(o, end):  # impossible labels go first
            q[l] = 0.0 if pack.unary[l] == np.inf else q[l]
            total += q[l]
        if total == 0.0:  # all weight was on impossible labels: the others share it
            for l in range(o, end):
                q[l] = 0.0 if pack.unary[l] == np.inf else 1.0
                total += q[l]
        for l in range(o, end):
            q[l] /= total
    done = polish
    for t in range(sweeps + polish):
        beta = 1.0 / temperature_at(t, sweeps, hot, cold) if t < sweeps else 1.0
        change = 0.0
        for i in range(n):
            _, c = general_sweep.visit(pack, q, theta, h, i, beta, NO, g, scratch)
            change = max(change, c)
        if t >= sweeps and change <= tol:
            done = t + 1 - sweeps
            break
    return free_energy_of(pack, q, g, scratch), done


@inlined
def free_energy_of(pack: GeneralPack, q: Floats, g: Doubles, scratch: Floats) -> float:
    """F without the constant, variable by variable."""
    f = 0.0
    for i in range(len(pack.offset) - 1):
        o, end = pack.offset[i], pack.offset[i + 1]
        c = end - o
        out, message = g[:c], g[c : 2 * c]
        for l in range(c):
            out[l] = 0.0
        pairwise_into(pack, q, i, out)
        for l in range(c):
            if q[o + l] > 0.0:
                f += q[o + l] * (np.float64(pack.unary[o + l]) + 0.5 * out[l])
        for k in range(pack.slot_row[i], pack.slot_row[i + 1]):
            s = pack.slot_list[k]
            factor = pack.slot_factor[s]
            share = 1.0 / (pack.factor_slot[factor + 1] - pack.factor_slot[factor])
            contract(pack, q, factor, s - pack.factor_slot[factor], scratch, message)
            for l in range(c):
                if q[o + l] > 0.0:
                    f += share * q[o + l] * message[l]
        f -= general_entropy_of(q[o:end])
    return f


@parallel_kernel
def general_chains(
    pack: GeneralPack, q: Floats, theta: Floats, hot: Doubles, cold: Doubles, sweeps: Ints,
    polish: int, tol: float, f: Doubles, done: Ints,
) -> None:  # fmt: skip
    """Many chains.  # q, theta: (chains, size), the rest: (chains,)"""
    for b in numba.prange(len(hot)):
        h = np.zeros(len(pack.offset) - 1)
        f[b], done[b] = general_chain(
            pack, q[b], theta[b], h, hot[b], cold[b], sweeps[b], polish, tol
        )
