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

from proxfield.backends.numba.binary import BinaryPack
from proxfield.backends.numba.draws import BLOCK, logits, temperature_at
from proxfield.compiled.jit import inlined, kernel, parallel_kernel
from proxfield.compiled.math import softplus
from proxfield.compiled.random import uniform
from proxfield.lowering.forests import Forests
from proxfield.terms.base import Doubles, Floats, Ints

GROUP = 16
"""Visits that are looked at together."""
HELD = 1e300
"""Size of the local field of a variable with an impossible label, which nothing outweighs."""


class BinaryForests(NamedTuple):
    """`Forests` with what their moves read."""

    start: Ints  # first entry of each forest  # (forests + 1,)
    node: NDArray[np.int32]  # variables, children before their parents
    parent: NDArray[np.int32]  # position of the parent within the forest; −1 at roots
    above: NDArray[np.int32]  # the parent
    weight: Doubles  # its coupling; 0 at roots
    rest: NDArray[np.int32]  # variables to be visited one by one


def pack_binary_forests(pack: BinaryPack, forests: Forests) -> BinaryForests:
    """Forests with the couplings along their edges."""
    start, node, parent, rest = forests
    base = np.repeat(start[:-1], np.diff(start)) if len(start) > 1 else start[:0]
    above = np.where(parent >= 0, node[base + np.maximum(parent, 0)], -1).astype(np.int32)
    weight = np.zeros(len(node))
    edge_weights(pack.row, pack.column, pack.weight, node, above, weight)
    return BinaryForests(start, node, parent, above, weight, rest)


@kernel
def edge_weights(
    row: Ints, column: NDArray[np.int32], weight: Floats, node: NDArray[np.int32],
    above: NDArray[np.int32], out: Doubles,
) -> None:  # fmt: skip
    """Couplings between variables and their parents."""
    for k in range(len(node)):
        for e in range(row[node[k]], row[node[k] + 1]):
            if column[e] == above[k]:
                out[k] = weight[e]


@inlined
def flip(pack: BinaryPack, v: Doubles, x: Doubles, i: int) -> None:
    """Change one label and the local fields of the neighbors."""
    change = -2.0 * v[i]
    v[i] = -v[i]
    for e in range(pack.row[i], pack.row[i + 1]):
        x[pack.column[e]] += change * pack.weight[e]


@inlined
def visit_all(
    pack: BinaryPack, v: Doubles, x: Doubles, seed: np.uint64, first: np.uint64, heat: float,
    r: Doubles,
) -> None:  # fmt: skip
    """A heat-bath move of one variable after another.

    v_i becomes −½ if x_i is above its random threshold: it changes where (x_i − r_i) v_i > 0.
    """
    n = len(x)
    for begin in range(0, n, BLOCK):
        count = min(BLOCK, n - begin)
        logits(seed, first + np.uint64(begin), count, heat, r)
        for group in range(0, count, GROUP):
            size = min(GROUP, count - group)
            changes = np.int32(0)
            if size == GROUP:
                for k in range(group, group + GROUP):
                    changes += np.int32((x[begin + k] - r[k]) * v[begin + k] > 0.0)
                if changes == 0:
                    continue
            for k in range(group, group + size):
                if (x[begin + k] - r[k]) * v[begin + k] > 0.0:
                    flip(pack, v, x, begin + k)


@inlined
def sample_forest(
    pack: BinaryPack, forests: BinaryForests, which: int, v: Doubles, x: Doubles,
    seed: np.uint64, first: np.uint64, heat: float, r: Doubles, a: Doubles,
) -> None:  # fmt: skip
    """Sample all variables of a forest given the others.

    Up, from the leaves: ``a`` is x without the part of the parent, with the children summed out.
    A child with the local field h and the coupling w adds to its parent's
    −2T·atanh(tanh(h / 2T)·tanh(w / 4T)), here as |h − w/2| and |h + w/2| with their softplus. Down,
    from the roots: each given its parent.
    """
    start, end = forests.start[which], forests.start[which + 1]
    node, parent = forests.node[start:end], forests.parent[start:end]
    above, weight = forests.above[start:end], forests.weight[start:end]
    cold = 1.0 / heat
    size = end - start
    for k in range(size):
        a[k] = x[node[k]]
    for k in range(size):
        p = parent[k]
        if p < 0:
            continue
        w = weight[k]
        h = a[k] - w * v[above[k]]
        a[k] = h
        unequal, equal = abs(h - 0.5 * w), abs(h + 0.5 * w)
        message = 0.5 * (unequal - equal)
        message += heat * (softplus(cold * unequal) - softplus(cold * equal))
        a[p] += message - w * v[node[k]]
    for begin in range(0, size, BLOCK):
        count = min(BLOCK, size - begin)
        logits(seed, first + np.uint64(begin), count, heat, r)
        for j in range(count):
            k = size - 1 - begin - j
            i = node[k]
            h = a[k]
            if parent[k] >= 0:
                h += weight[k] * v[above[k]]
            if (h - r[j]) * v[i] > 0.0:
                flip(pack, v, x, i)
    for k in range(len(forests.rest)):
        i = forests.rest[k]
        logits(seed, first + np.uint64(size + k), 1, heat, r)
        if (x[i] - r[0]) * v[i] > 0.0:
            flip(pack, v, x, i)


@inlined
def begin_chain(pack: BinaryPack, q: Floats, seed: np.uint64, v: Doubles, x: Doubles) -> None:
    """Draw a labelling from the marginals v + ½, and make its local fields."""
    n = len(x)
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
    pack: BinaryPack, forests: BinaryForests, q: Floats, hot: Doubles, cold: Doubles, sweeps: Ints,
    seeds: NDArray[np.uint64], drawn: NDArray[np.bool_], by_forests: NDArray[np.bool_],
) -> None:  # fmt: skip
    """Run all chains that are drawn; ``q`` becomes their labelling.  # q: (chains, n + 2 pad)"""
    for b in numba.prange(len(hot)):
        if drawn[b]:
            n, seed = len(pack.bias), seeds[b]
            v, x, a, r = np.empty(n), np.empty(n), np.empty(n), np.empty(BLOCK)
            begin_chain(pack, q[b], seed, v, x)
            for t in range(sweeps[b]):
                heat = temperature_at(t, sweeps[b], hot[b], cold[b])
                first = np.uint64(n) * np.uint64(t + 1)
                if by_forests[b]:
                    which = np.int64((seed + np.uint64(t)) % np.uint64(len(forests.start) - 1))
                    sample_forest(pack, forests, which, v, x, seed, first, heat, r, a)
                else:
                    visit_all(pack, v, x, seed, first, heat, r)
            for i in range(n):
                q[b, pack.pad + i] = v[i]
