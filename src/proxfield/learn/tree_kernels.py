"""Decision trees over features with few values, grown in numba."""

from __future__ import annotations

from typing import Any

import numpy as np

from proxfield.core.compiled.jit import inlined, kernel


@inlined
def count_values(
    features: Any, classes: Any, order: Any, start: int, stop: int, counts: Any
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
def find_split(counts: Any, scores: Any, least: int, best: Any) -> None:
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
def partition(features: Any, order: Any, start: int, stop: int, f: int, v: int, spare: Any) -> int:
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
    features: Any, classes: Any, scores: Any, least: int, tests: Any, children: Any, counts: Any
) -> int:
    """Grow a tree best-first; see `trees.grow_reference`, which does the same in numpy.

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
def gather(values: Any, starts: Any, steps: Any, out: Any) -> None:
    """Features of pixels: out[k, f] = values[starts[k] + steps[f]].  # values: flat, padded"""
    for k in range(len(starts)):
        start = starts[k]
        for f in range(len(steps)):
            out[k, f] = values[start + steps[f]]


@kernel
def descend(
    values: Any, starts: Any, steps: Any, tests: Any, children: Any, leaf_of: Any, out: Any
) -> None:
    """Leaves of pixels, by looking up only what the tests ask for.  # out: (len(starts),)"""
    for k in range(len(starts)):
        node = 0
        while tests[node, 0] >= 0:
            seen = values[starts[k] + steps[tests[node, 0]]]
            node = children[node, 0 if seen == tests[node, 1] else 1]
        out[k] = leaf_of[node]
