"""Compiled chains that sample labellings of binary fields.

A chain keeps the local field x_i = bias_i + Σ_j w_ij v_j of every variable (v = ±½) and updates
those of the neighbors when a label changes. A visit that changes nothing is a comparison of
two numbers, and 16 visits are one pass of vector instructions: late in a cooling, when few labels
change, its cost hardly depends on the number of neighbors.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from proxfield.core.common.arrays import Doubles, Floats, Ints
from proxfield.core.compiled.jit import embedded, inlined, parallel_kernel
from proxfield.core.compiled.math import softplus
from proxfield.core.compiled.random import uniform
from proxfield.core.engines.numba.binary import BinaryPack
from proxfield.core.engines.numba.chains import BLOCK, Cooling, logits, logs, temperature_at
from proxfield.core.lowering.forests import Forests

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


def pack_binary_forests(pack: BinaryPack, forests: Forests) -> BinaryForests:
    """Forests with the couplings along their edges."""
    start, node, above, edge, rest = forests
    weight = np.zeros(len(node))
    weight[above >= 0] = pack.weight[edge[above >= 0]]
    return BinaryForests(start, node, above, weight, rest)


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
