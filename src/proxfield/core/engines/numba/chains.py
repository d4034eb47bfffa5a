"""Compiled chains: what those of all fields have in common, and chains of marginals.

A chain of marginals cools its start by sweeps. It ends with sweeps at temperature 1, near a
local minimum of F. Chains of one call are independent and run on different threads. Those that
sample labellings (`binary_chains`, `general_chains`) end here too, with their labelling as the
start and no sweeps but those at temperature 1.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from proxfield.core.common.arrays import Doubles, Floats, Ints
from proxfield.core.compiled.jit import inlined, parallel_kernel
from proxfield.core.compiled.math import exp_ratio, log_normal
from proxfield.core.compiled.random import uniform
from proxfield.core.engines.numba.binary import BinaryPack
from proxfield.core.engines.numba.binary import entropy_of as binary_entropy_of
from proxfield.core.engines.numba.general import GeneralPack, contract, pairwise_into, visit
from proxfield.core.engines.numba.general import entropy_of as general_entropy_of
from proxfield.core.engines.plan import Chains

BLOCK = 1024
"""Random numbers made at a time, at vector speed."""
LEAST = 2.0**-54
"""Added to uniform numbers, so that none is 0."""
SURE = 40.0
"""Energies (over the temperature) from which on a label is certain to rounding."""
NEGLIGIBLE = 1e-12
"""Changes of a marginal that aren't made."""


class Cooling(NamedTuple):
    """What drawn chains do; see `proxfield.core.engines.plan.Chains`."""

    hot: Doubles
    cold: Doubles
    sweeps: Ints
    seeds: NDArray[np.uint64]
    drawn: NDArray[np.bool_]
    by_forests: NDArray[np.bool_]
    metropolis: bool

    @classmethod
    def of(cls, chains: Chains) -> Cooling:
        """The part of some chains that kernels read."""
        return cls(
            chains.hot, chains.cold, chains.sweeps, chains.seeds, chains.drawn, chains.forests,
            chains.metropolis,
        )  # fmt: skip


@inlined
def temperature_at(t: int, sweeps: int, hot: float, cold: float) -> float:
    """A geometric schedule from ``hot`` to ``cold``."""
    if sweeps <= 1:
        return cold
    return float(hot * (cold / hot) ** (t / (sweeps - 1.0)))


@inlined
def logits(seed: np.uint64, first: np.uint64, count: int, scale: float, out: Doubles) -> None:
    """scale·log(u / (1 − u)) of consecutive random numbers u.

    A label 0 of two, which is less probable by exp(−a), is drawn if log(u / (1 − u)) < a. Made
    ahead for many visits, the comparison is all that remains of a visit that changes nothing.
    """
    for k in range(count):
        u = uniform(seed, first + np.uint64(k)) + LEAST
        out[k] = scale * log_normal(u / (1.0 - u))


@inlined
def logs(seed: np.uint64, first: np.uint64, count: int, scale: float, out: Doubles) -> None:
    """scale·log(u) of consecutive random numbers u: a change that costs a is made if it is
    below −a."""
    for k in range(count):
        out[k] = scale * log_normal(uniform(seed, first + np.uint64(k)) + LEAST)


@parallel_kernel
def binary_chains(
    pack: BinaryPack, v: Floats, a: Floats, hot: Doubles, cold: Doubles, sweeps: Ints, polish: int,
    tol: float, f: Doubles, done: Ints,
) -> None:  # fmt: skip
    """Many chains: f receives free energies without the constant, done the sweeps of polish.

    Local fields x are kept: a variable that hardly moves costs one comparison, and most of them
    stop moving soon.
    # v: (chains, n + 2 pad), a: (chains, n), the rest: (chains,)
    """
    bias, pad, row, column, weight = pack.bias, pack.pad, pack.row, pack.column, pack.weight
    clamped, clamp = pack.clamped, pack.clamp
    for b in numba.prange(len(hot)):
        n, own = len(bias), v[b]
        x = np.empty(n)
        for c in range(len(clamped)):
            own[pad + clamped[c]] = -0.5 if clamp[c] > 0 else 0.5
        for i in range(n):
            x[i] = bias[i]
            for e in range(row[i], row[i + 1]):
                x[i] += weight[e] * own[pad + column[e]]
        done[b] = polish
        for t in range(sweeps[b] + polish):
            beta = 1.0 / temperature_at(t, sweeps[b], hot[b], cold[b]) if t < sweeps[b] else 1.0
            change = 0.0
            c = 0
            for i in range(n):
                if c < len(clamped) and clamped[c] == i:
                    c += 1
                    continue
                y = beta * x[i]
                small = 0.0
                if abs(y) < SURE:
                    num, den = exp_ratio(-abs(y))
                    small = num / (num + den)
                value = small - 0.5 if y > 0 else 0.5 - small
                before = np.float64(own[pad + i])
                if abs(value - before) <= NEGLIGIBLE:
                    continue
                own[pad + i] = value
                moved = np.float64(own[pad + i]) - before
                change = max(change, abs(moved))
                for e in range(row[i], row[i + 1]):
                    x[column[e]] += weight[e] * moved
            if t >= sweeps[b] and change <= tol:
                done[b] = t + 1 - sweeps[b]
                break
        total = 0.0
        for i in range(n):
            value = np.float64(own[pad + i])
            total += 0.5 * value * (bias[i] + x[i]) - binary_entropy_of(value)
        f[b] = total


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
    """Many chains: f receives free energies without the constant, done the sweeps of polish.

    # q, theta: (chains, size), the rest: (chains,)
    """
    offset, unary = pack.offset, pack.unary
    for b in numba.prange(len(hot)):
        n, own = len(offset) - 1, q[b]
        h = np.zeros(n)
        scratch = np.empty(pack.scratch, dtype=pack.table.dtype)
        g = np.empty(2 * pack.widest)
        for i in range(n):
            o, end = offset[i], offset[i + 1]
            total = 0.0
            for l in range(o, end):  # impossible labels go first
                own[l] = 0.0 if unary[l] == np.inf else own[l]
                total += own[l]
            if total == 0.0:  # all weight was on impossible labels: the others share it
                for l in range(o, end):
                    own[l] = 0.0 if unary[l] == np.inf else 1.0
                    total += own[l]
            for l in range(o, end):
                own[l] /= total
        done[b] = polish
        for t in range(sweeps[b] + polish):
            beta = 1.0 / temperature_at(t, sweeps[b], hot[b], cold[b]) if t < sweeps[b] else 1.0
            change = 0.0
            for i in range(n):
                _, c = visit(pack, own, theta[b], h, i, beta, g, scratch)
                change = max(change, c)
            if t >= sweeps[b] and change <= tol:
                done[b] = t + 1 - sweeps[b]
                break
        f[b] = free_energy_of(pack, own, g, scratch)
