"""Compiled parts of learning: conditionals, chains, and decision trees.

Conditionals and chains are over the `Factors` of a `Structure` (see
`proxfield.core.engines.recorded`). All kernels run on one thread and add in the order of the
factors, so results don't vary. `tests/learn/reference.py` computes the same in numpy.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from proxfield.core.common.arrays import Doubles, Ints
from proxfield.core.compiled.jit import inlined, kernel
from proxfield.core.compiled.math import exp_negative, uniform
from proxfield.core.engines.recorded import Factors
from proxfield.learn.optimize import FactorSlots

Bytes = NDArray[np.uint8]
Counts = NDArray[np.int32]

# ---- conditionals ----


@kernel
def add_conditionals(
    values: Doubles, f: Factors, offsets: Ints, y: Ints, out: Doubles, back: bool
) -> None:
    """Add the energies of each free variable's labels, the others of a factor being y.

    A factor with a variable whose y isn't known (-1) says nothing about its other variables.
    ``values`` are the tables and ``out`` the energies; for the transpose, ``back``, the other way.
    """
    variables, base, kind, strides = f.variables, f.base, f.kind, f.strides
    for e in range(len(base)):
        at, unknown = np.int64(base[e]), 0
        for p in range(variables.shape[1]):
            label = y[variables[e, p]]
            if label < 0:
                unknown += 1
            else:
                at += label * strides[kind[e], p]
        for p in range(variables.shape[1]):
            v, step = variables[e, p], strides[kind[e], p]
            if unknown - (y[v] < 0) > 0:
                continue
            first, start = offsets[v], at - (y[v] * step if y[v] >= 0 else 0)
            for l in range(offsets[v + 1] - first):
                if back:
                    out[start + l * step] += values[first + l]
                else:
                    out[first + l] += values[start + l * step]


@kernel
def conditional_loss(energy: Doubles, offsets: Ints, y: Ints, weight: Doubles, d: Doubles) -> float:
    """Σ_v weight_v (E_v(y_v) + log Σ_l exp(−E_v(l))), and its gradient in the energies."""
    total = 0.0
    for v in range(len(y)):
        first, last = offsets[v], offsets[v + 1]
        label = y[v]
        if label < 0:
            for a in range(first, last):
                d[a] = 0.0
            continue
        low = energy[first]
        for a in range(first + 1, last):
            low = min(low, energy[a])
        z = 0.0
        for a in range(first, last):
            d[a] = exp_negative(low - energy[a])
            z += d[a]
        for a in range(first, last):
            d[a] = -weight[label] * d[a] / z
        d[first + label] += weight[label]
        total += weight[label] * (energy[first + label] - low + np.log(z))
    return total


# ---- chains ----


@kernel
def count_labels(f: Factors, x: Ints, share: float, out: Doubles) -> None:
    """Add ``share`` to the entry of w that each factor has at a labelling."""
    for e in range(len(f.base)):
        at = np.int64(f.base[e])
        for p in range(f.variables.shape[1]):
            at += x[f.variables[e, p]] * f.strides[f.kind[e], p]
        out[at] += share


@kernel
def gibbs(
    w: Doubles, unary: Doubles, offsets: Ints, slots: FactorSlots, held: NDArray[np.bool_],
    seed: np.uint64, counter: np.uint64, x: Ints,
) -> None:  # fmt: skip
    """One Gibbs sweep: each variable that isn't held draws its label given all others.

    ``unary`` are the energies of single variables, ``counter`` is the number of the first random
    number, and the labels x are changed in place.
    """
    n = len(offsets) - 1
    largest = 0
    for v in range(n):
        largest = max(largest, offsets[v + 1] - offsets[v])
    energy = np.empty(largest)
    for v in range(n):
        if held[v]:
            continue
        first = offsets[v]
        labels = offsets[v + 1] - first
        for l in range(labels):
            energy[l] = unary[first + l]
        for s in range(slots.ptr[v], slots.ptr[v + 1]):
            e, p = slots.factor[s], slots.place[s]
            at = np.int64(slots.base[e])
            begin = slots.scope_ptr[e]
            for r in range(slots.scope_ptr[e + 1] - begin):
                if r != p:
                    at += x[slots.scope[begin + r]] * slots.strides[slots.kind[e], r]
            step = slots.strides[slots.kind[e], p]
            for l in range(labels):
                energy[l] += w[at + l * step]
        low = energy[0]
        for l in range(1, labels):
            low = min(low, energy[l])
        total = 0.0
        for l in range(labels):
            total += exp_negative(low - energy[l])
            energy[l] = total  # cumulative weights; the old entry isn't needed again
        draw = uniform(seed, counter + np.uint64(v)) * total
        label = 0
        while label < labels - 1 and energy[label] <= draw:
            label += 1
        x[v] = label


@kernel
def gibbs_binary(
    h: Doubles, ptr: Ints, other: NDArray[np.int32], j: Doubles, held: NDArray[np.bool_],
    seed: np.uint64, counter: np.uint64, x: Ints,
) -> None:  # fmt: skip
    """`gibbs` for binary variables and pairs: E = Σ h s + Σ J s t; a slot is a neighbor."""
    n = len(h)
    spin = np.empty(n)
    for v in range(n):
        spin[v] = 2.0 * x[v] - 1.0
    for v in range(n):
        if held[v]:
            continue
        force = h[v]
        for s in range(ptr[v], ptr[v + 1]):
            force += j[s] * spin[other[s]]
        e = exp_negative(-2.0 * abs(force))
        low = 1.0 / (1.0 + e)
        first = low if force >= 0 else e * low  # the probability of label 0
        x[v] = 0 if uniform(seed, counter + np.uint64(v)) < first else 1
        spin[v] = 2.0 * x[v] - 1.0


# ---- decision trees over features with few values ----


@inlined
def count_values(
    features: Bytes, classes: Ints, order: Ints, start: int, stop: int, counts: Counts
) -> None:
    """Count samples by class, feature and value.  # counts: (classes, features, values)"""
    counts[:] = 0
    n_values = counts.shape[2]
    for k in range(start, stop):
        sample = order[k]
        row = counts[classes[sample]].ravel()
        values = features[sample]
        for f in range(values.shape[0]):
            row[f * n_values + values[f]] += 1


@inlined
def find_split(counts: Counts, scores: Ints, least: int, best: Ints) -> None:
    """The test of largest gain: best = (gain, feature, value), gain 0 if there is none."""
    n_classes, n_features, n_values = counts.shape
    best[0], best[1], best[2] = 0, -1, -1
    size, whole = 0, 0
    totals = np.zeros(n_classes, dtype=np.int64)
    for c in range(n_classes):
        for v in range(n_values):
            totals[c] += counts[c, 0, v]
        size += totals[c]
        whole += scores[totals[c]]
    whole -= scores[size]
    for f in range(n_features):
        for v in range(n_values):
            inside, gain = 0, -whole
            for c in range(n_classes):
                count = counts[c, f, v]
                inside += count
                gain += scores[count] + scores[totals[c] - count]
            if inside < least or size - inside < least:
                continue
            gain -= scores[inside] + scores[size - inside]
            if gain > best[0]:
                best[0], best[1], best[2] = gain, f, v


@inlined
def partition(
    features: Bytes, order: Ints, start: int, stop: int, f: int, v: int, spare: Ints
) -> int:
    """Move samples with that value to the front, both parts in their order; returns the border."""
    middle, others = start, 0
    for k in range(start, stop):
        sample = order[k]
        if features[sample, f] == v:
            order[middle] = sample
            middle += 1
        else:
            spare[others] = sample
            others += 1
    for k in range(others):
        order[middle + k] = spare[k]
    return middle


@kernel
def grow(
    features: Bytes, classes: Ints, scores: Ints, least: int, tests: Ints, children: Ints,
    counts: Counts,
) -> int:  # fmt: skip
    """Grow a tree best-first.

    Args:
        features: Values of the features.  # (samples, features), uint8
        classes: Class of each sample.  # (samples,)
        scores: n log n in whole numbers.  # (samples + 1,)
        least: Minimum number of samples in a leaf.
        tests: Gets feature and value of each node, −1 in leaves.  # (nodes, 2)
        children: Gets the nodes for "has that value" and "has another".  # (nodes, 2)
        counts: Memory for counts, one per leaf.  # (leaves, classes, features, values)

    Returns:
        Number of nodes.
    """
    n, max_leaves = len(classes), len(counts)
    order = np.arange(n)
    spare = np.empty(n, dtype=np.int64)
    # of each leaf: its node, its samples and its best split
    node_of = np.zeros(max_leaves, dtype=np.int64)
    ranges = np.zeros((max_leaves, 2), dtype=np.int64)
    bests = np.zeros((max_leaves, 3), dtype=np.int64)
    tests[:] = -1
    children[:] = -1
    ranges[0, 1] = n
    count_values(features, classes, order, 0, n, counts[0])
    find_split(counts[0], scores, least, bests[0])
    nodes, leaves = 1, 1
    while leaves < max_leaves:
        leaf = 0
        for k in range(1, leaves):
            if bests[k, 0] > bests[leaf, 0]:
                leaf = k
        if bests[leaf, 0] <= 0:
            break
        f, v = bests[leaf, 1], bests[leaf, 2]
        start, stop = ranges[leaf]
        middle = partition(features, order, start, stop, f, v, spare)
        node = node_of[leaf]
        tests[node, 0], tests[node, 1] = f, v
        children[node, 0], children[node, 1] = nodes, nodes + 1
        # the first child keeps the leaf's place; only the smaller one is counted
        new = leaves
        node_of[leaf], node_of[new] = nodes, nodes + 1
        ranges[leaf, 1] = middle
        ranges[new, 0], ranges[new, 1] = middle, stop
        if middle - start <= stop - middle:
            counts[new] = counts[leaf]
            count_values(features, classes, order, start, middle, counts[leaf])
            counts[new] -= counts[leaf]
        else:
            count_values(features, classes, order, middle, stop, counts[new])
            counts[leaf] -= counts[new]
        find_split(counts[leaf], scores, least, bests[leaf])
        find_split(counts[new], scores, least, bests[new])
        nodes += 2
        leaves += 1
    return nodes


@kernel
def gather(values: Bytes, starts: Ints, steps: Ints, out: Bytes) -> None:
    """Features of pixels: out[k, f] = values[starts[k] + steps[f]].  # values: flat, padded"""
    for k in range(len(starts)):
        start = starts[k]
        for f in range(len(steps)):
            out[k, f] = values[start + steps[f]]


@kernel
def descend(
    values: Bytes, starts: Ints, steps: Ints, tests: Ints, children: Ints, leaf_of: Ints, out: Ints
) -> None:
    """Leaves of pixels, by looking up only what the tests ask for.  # out: (len(starts),)"""
    for k in range(len(starts)):
        node = 0
        while tests[node, 0] >= 0:
            seen = values[starts[k] + steps[tests[node, 0]]]
            node = children[node, 0 if seen == tests[node, 1] else 1]
        out[k] = leaf_of[node]
