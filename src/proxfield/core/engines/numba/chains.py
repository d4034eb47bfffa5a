"""Compiled chains: what those of all fields have in common, and chains of marginals.

A chain of marginals cools its start by sweeps. It ends with sweeps at temperature 1, near a
local minimum of F. Chains of one call are independent and run on different threads. Those that
sample labellings (`draw_binary`, `general_chains`) end here too, with their labelling as the
start and no sweeps but those at temperature 1.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from proxfield.core.common.arrays import Doubles, Floats, Ints
from proxfield.core.compiled.jit import embedded, inlined, parallel_kernel
from proxfield.core.compiled.math import exp_ratio, log_normal, softplus, uniform
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
    forests: NDArray[np.bool_]
    metropolis: bool

    @classmethod
    def of(cls, chains: Chains) -> Cooling:
        """The part of some chains that kernels read."""
        return cls._make(getattr(chains, name) for name in cls._fields)


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


# ---- chains that sample labellings of binary fields ----

# A chain keeps the local field x_i = bias_i + Σ_j w_ij v_j of every variable (v = ±½) and updates
# those of the neighbors when a label changes. A visit that changes nothing is a comparison of two
# numbers, and 16 visits are one pass of vector instructions: late in a cooling, when few labels
# change, its cost hardly depends on the number of neighbors.

GROUP = 16
"""Visits that are looked at together."""
HELD = 1e300
"""Size of the local field of a variable with an impossible label, which nothing outweighs."""


class BinaryForests(NamedTuple):
    """`Forests` with what their moves read."""

    start: Ints  # first entry of each forest  # (forests + 1,)
    node: NDArray[np.int32]  # variables, children before their parents
    above: NDArray[np.int32]  # the parent; −1 at roots
    weight: Doubles  # its coupling; 0 at roots
    rest: NDArray[np.int32]  # variables to be visited one by one


@inlined
def flip(
    row: Ints, column: NDArray[np.int32], weight: Floats, v: Doubles, x: Doubles, i: int
) -> None:
    """Change one label and the local fields of the neighbors."""
    change = -2.0 * v[i]
    v[i] = -v[i]
    for e in range(row[i], row[i + 1]):
        x[column[e]] += change * weight[e]


@embedded
def send_messages(
    forests: BinaryForests, start: int, end: int, v: Doubles, x: Doubles, heat: float, a: Doubles
) -> None:
    """Sum out the variables of a forest from the leaves up: ``a`` receives their local fields
    without the part of the parent, children summed out.

    A child with the local field h and the coupling w adds to its parent's
    −2T·atanh(tanh(h / 2T)·tanh(w / 4T)), here as |h − w/2| and |h + w/2| with their softplus.
    """
    cold = 1.0 / heat
    for k in range(start, end):
        a[forests.node[k]] = x[forests.node[k]]
    for k in range(start, end):
        i, p, w = forests.node[k], forests.above[k], forests.weight[k]
        if p < 0:
            continue
        h = a[i] - w * v[p]
        a[i] = h
        unequal, equal = abs(h - 0.5 * w), abs(h + 0.5 * w)
        message = 0.5 * (unequal - equal)
        message += heat * (softplus(cold * unequal) - softplus(cold * equal))
        a[p] += message - w * v[i]


@embedded
def visit_nodes(
    row: Ints, column: NDArray[np.int32], weight: Floats, forests: BinaryForests, end: int,
    size: int, begin: int, v: Doubles, x: Doubles, r: Doubles, a: Doubles,
) -> None:  # fmt: skip
    """Sample variables of a forest from the roots down, each given its parent; then the rest.

    r: The thresholds of as many visits as are to be made, of which the first has number ``begin``.
    """
    for k in range(begin, begin + len(r)):
        if k < size:
            i, p = forests.node[end - 1 - k], forests.above[end - 1 - k]
            h = a[i] if p < 0 else a[i] + forests.weight[end - 1 - k] * v[p]
        else:
            i = forests.rest[k - size]
            h = x[i]
        if (h - r[k - begin]) * v[i] > 0.0:
            flip(row, column, weight, v, x, i)


@inlined
def changes(x: float, v: float, r: float, metropolis: bool) -> bool:
    """Whether a variable with local field x and value v takes the other value.

    That costs −2 x v. A Metropolis move is made if this is below the random threshold −r. In a
    heat bath the value becomes −½ if x is above r, so it changes where (x − r) v > 0.
    """
    return 2.0 * x * v > (r if metropolis else 2.0 * r * v)


@embedded
def visit_block(
    row: Ints, column: NDArray[np.int32], weight: Floats, metropolis: bool, begin: int, count: int,
    v: Doubles, x: Doubles, r: Doubles,
) -> None:  # fmt: skip
    """Moves of one variable after another."""
    for group in range(0, count, GROUP):
        last = min(group + GROUP, count)
        if last == group + GROUP:
            moves = np.int32(0)
            for k in range(group, group + GROUP):
                moves += np.int32(changes(x[begin + k], v[begin + k], r[k], metropolis))
            if moves == 0:
                continue
        for k in range(group, last):
            if changes(x[begin + k], v[begin + k], r[k], metropolis):
                flip(row, column, weight, v, x, begin + k)


@embedded
def begin_chain(pack: BinaryPack, q: Floats, seed: np.uint64, v: Doubles, x: Doubles) -> None:
    """Draw a labelling from the marginals v + ½, and make its local fields."""
    n = len(pack.bias)
    for i in range(n):
        v[i] = -0.5 if uniform(seed, np.uint64(i)) < 0.5 - np.float64(q[pack.pad + i]) else 0.5
    for c in range(len(pack.clamped)):
        v[pack.clamped[c]] = -0.5 if pack.clamp[c] > 0 else 0.5
    for i in range(n):
        x[i] = pack.bias[i]
        for e in range(pack.row[i], pack.row[i + 1]):
            x[i] += pack.weight[e] * v[pack.column[e]]
    for c in range(len(pack.clamped)):
        x[pack.clamped[c]] = HELD if pack.clamp[c] > 0 else -HELD


@parallel_kernel
def draw_binary(
    pack: BinaryPack, forests: BinaryForests, q: Floats, schedule: Cooling, room: Doubles
) -> None:
    """Run all chains that are drawn; ``q`` becomes their labelling.

    ``room`` is for labels, local fields, those without parents, and random thresholds.
    # q: (chains, n + 2 pad), room: (chains, 4, max(n, BLOCK))
    """
    row, column, weight = pack.row, pack.column, pack.weight
    hot, cold, sweeps, seeds, drawn, by_forests, metropolis = schedule
    for b in numba.prange(len(hot)):
        if drawn[b]:
            n, seed = len(pack.bias), seeds[b]
            v, x, a, r = room[b, 0], room[b, 1], room[b, 2], room[b, 3]
            begin_chain(pack, q[b], seed, v, x)
            for t in range(sweeps[b]):
                heat = temperature_at(t, sweeps[b], hot[b], cold[b])
                start, end, visits = np.int64(0), np.int64(0), n
                if by_forests[b]:
                    which = np.int64((seed + np.uint64(t)) % np.uint64(len(forests.start) - 1))
                    start, end = forests.start[which], forests.start[which + 1]
                    visits = end - start + len(forests.rest)
                    send_messages(forests, start, end, v, x, heat, a)
                for begin in range(0, visits, BLOCK):
                    count = min(BLOCK, visits - begin)
                    first = np.uint64(n) * np.uint64(t + 1) + np.uint64(begin)
                    if metropolis and not by_forests[b]:
                        logs(seed, first, count, heat, r)
                    else:
                        logits(seed, first, count, heat, r)
                    if by_forests[b]:
                        size = end - start
                        visit_nodes(
                            row, column, weight, forests, end, size, begin, v, x, r[:count], a
                        )
                    else:
                        visit_block(row, column, weight, metropolis, begin, count, v, x, r)
            for i in range(n):
                q[b, pack.pad + i] = v[i]
