"""Decision trees that choose the table of a pixel, or of a pair of pixels, by what is observed.

A feature is the value of the pixel at some offset: one of K labels, or K if that pixel is hidden
or outside of the image. A node asks whether a feature has a certain value. Trees are grown
best-first: the leaf whose best test reduces the log loss of the training labels most is split
next. Gains are whole numbers (n log₂ n is rounded to multiples of 2⁻²⁰), so that ties are decided
in the same way everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from proxfield.core.common.arrays import Doubles
from proxfield.core.common.memory import check_memory
from proxfield.core.terms.base import Ints
from proxfield.errors import InputError

Bytes = NDArray[np.uint8]
GAIN_UNITS = 2**20
"""Units of gain per bit."""


@dataclass(frozen=True, eq=False)
class Tree:
    """A decision tree; node 0 is the root.

    Attributes:
        tests: Feature and value that each node asks for, −1 in leaves.  # (nodes, 2)
        children: The node to go to if the feature has that value, and if not.  # (nodes, 2)
    """

    tests: Ints
    children: Ints

    @property
    def n_leaves(self) -> int:
        """Number of leaves."""
        return int((self.tests[:, 0] < 0).sum())

    @property
    def leaf_of(self) -> Ints:
        """Number of the leaf that a node is; −1 for others.  # (nodes,)"""
        is_leaf = self.tests[:, 0] < 0
        return np.where(is_leaf, np.cumsum(is_leaf) - 1, -1)

    def apply(self, features: Bytes) -> Ints:
        """The leaf of each sample.  # (samples,)

        Args:
            features: Values of the features.  # (samples, features)

        Example:
            >>> tree = Tree(np.array([[1, 0], [-1, -1], [-1, -1]]), np.array([[1, 2]] * 3))
            >>> tree.apply(np.array([[5, 0], [0, 5]], dtype=np.uint8)).tolist()
            [0, 1]
        """
        node = np.zeros(len(features), dtype=np.int64)
        rows = np.arange(len(features))
        while True:
            feature, value = self.tests[node].T
            inner = feature >= 0
            if not inner.any():
                return np.asarray(self.leaf_of[node])
            other = features[rows, np.maximum(feature, 0)] != value
            node = np.where(inner, self.children[node, other.astype(int)], node)


def grow(
    features: Bytes, classes: Ints, n_values: int, n_classes: int, max_leaves: int, least: int = 1
) -> Tree:
    """Grow a tree that predicts classes, best-first.

    Args:
        features: Values of the features.  # (samples, features)
        classes: Class of each sample.  # (samples,)
        n_values: Number of values of a feature.
        n_classes: Number of classes.
        max_leaves: Maximum number of leaves.
        least: Minimum number of samples in a leaf.

    Returns:
        The tree; with fewer leaves if no more tests help.

    Example:
        >>> x = np.array([[0, 2], [1, 2], [2, 2], [1, 0]], dtype=np.uint8)
        >>> grow(x, np.array([0, 1, 0, 1]), 3, 2, 8).tests.tolist()
        [[0, 1], [-1, -1], [-1, -1]]
    """
    from proxfield.learn import tree_kernels

    entries = max_leaves * (n_classes * features.shape[1] * n_values + 8)
    check_memory(4 * entries, f"a tree of {max_leaves} leaves for {n_classes} classes")
    most = 2 * max_leaves - 1
    tests, children = np.empty((most, 2), dtype=np.int64), np.empty((most, 2), dtype=np.int64)
    counts = np.empty((max_leaves, n_classes, features.shape[1], n_values), dtype=np.int32)
    nodes = tree_kernels.grow(
        np.ascontiguousarray(features),
        np.ascontiguousarray(classes, dtype=np.int64),
        gain_scores(len(classes)),
        least,
        tests,
        children,
        counts,
    )
    return Tree(tests[:nodes].copy(), children[:nodes].copy())


def grow_reference(
    features: Bytes, classes: Ints, n_values: int, n_classes: int, max_leaves: int, least: int = 1
) -> Tree:
    """The same tree as `grow`, in numpy."""
    scores = gain_scores(len(classes))

    def best_split(samples: Ints) -> tuple[int, int, int]:
        """Gain, feature and value of the best test of a leaf; the first of equal ones."""
        best = (0, -1, -1)
        totals = np.bincount(classes[samples], minlength=n_classes)
        for f in range(features.shape[1]):
            seen = features[samples, f]
            for v in range(n_values):
                inside = np.bincount(classes[samples[seen == v]], minlength=n_classes)
                if min(inside.sum(), len(samples) - inside.sum()) < least:
                    continue
                gain = _purity(inside, scores) + _purity(totals - inside, scores)
                gain -= _purity(totals, scores)
                if gain > best[0]:
                    best = (gain, f, v)
        return best

    tests, children = [(-1, -1)], [(-1, -1)]
    everything = np.arange(len(classes))
    leaves = [(0, everything, best_split(everything))]  # node, samples, best test
    while len(leaves) < max_leaves:
        place = max(range(len(leaves)), key=lambda k: (leaves[k][2][0], -k))
        node, samples, (gain, f, v) = leaves[place]
        if gain <= 0:
            break
        first = len(tests)
        tests[node], children[node] = (f, v), (first, first + 1)
        tests += [(-1, -1)] * 2
        children += [(-1, -1)] * 2
        has = features[samples, f] == v
        parts = [samples[has], samples[~has]]
        leaves[place] = (first, parts[0], best_split(parts[0]))
        leaves.append((first + 1, parts[1], best_split(parts[1])))
    return Tree(np.array(tests), np.array(children))


def check_tree(tree: Tree, n_features: int, n_values: int) -> None:
    """Raise `InputError` unless every node is reached once and asks for what there is.

    Args:
        tree: A tree, from a file for example.
        n_features: Number of features.
        n_values: Largest value of a feature.
    """
    inner = tree.tests[:, 0] >= 0
    feature, value = tree.tests[inner].T
    reached = np.sort(tree.children[inner].ravel())
    if (
        not len(inner)
        or (feature >= n_features).any()
        or not ((value >= 0) & (value <= n_values)).all()
        or not np.array_equal(reached, np.arange(1, len(inner)))
        or (tree.children[inner] <= np.flatnonzero(inner)[:, None]).any()  # no cycles
    ):
        raise InputError("the file is damaged: a tree isn't one")


def gain_scores(n: int) -> Ints:
    """k log₂ k for k up to n, in units of gain.  # (n + 1,)"""
    k = np.arange(n + 1, dtype=np.float64)
    return np.rint(GAIN_UNITS * k * np.log2(np.maximum(k, 1))).astype(np.int64)


def _purity(counts: Ints, scores: Ints) -> int:
    """How far a leaf's labels are from evenly mixed, in units of gain; −n times the entropy."""
    return int(scores[counts].sum() - scores[counts.sum()])


def log_frequencies(leaves: Ints, classes: Ints, n_leaves: int, n_classes: int) -> Doubles:
    """Logarithms of the smoothed frequencies of classes in leaves.  # (leaves, classes)

    Example:
        >>> np.exp(log_frequencies(np.array([0, 0]), np.array([1, 1]), 1, 2)).tolist()
        [[0.25, 0.75]]
    """
    flat = np.bincount(leaves * n_classes + classes, minlength=n_leaves * n_classes)
    counts = flat.reshape(n_leaves, n_classes) + 1.0
    return np.asarray(np.log(counts / counts.sum(axis=1, keepdims=True)))
