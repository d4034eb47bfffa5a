"""Decision trees that choose the table of a pixel, or of a pair of pixels, by what is observed.

A feature is the value of the pixel at some offset: one of K labels, or K if that pixel is hidden
or outside of the image. A node asks whether a feature has a certain value. Trees are grown
best-first: the leaf whose best test reduces the log loss of the training labels most is split
next. Gains are whole numbers (n log₂ n is rounded to multiples of 2⁻²⁰), so that ties are decided
in the same way everywhere. A `Forest` holds the trees of a decision tree field, which choose the
tied parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from proxfield.core.common.arrays import Doubles
from proxfield.core.common.memory import check_memory
from proxfield.core.terms.base import Ints
from proxfield.errors import InputError
from proxfield.learn.blocks import Block, Parameters
from proxfield.learn.tied import TiedField

if TYPE_CHECKING:
    from proxfield.learn.holes import HoledImage

Bytes = NDArray[np.uint8]
GAIN_UNITS = 2**20
"""Units of gain per bit."""
UNARY, PAIRS = "unary", "pairs"
"""Names of the parameters: tables of the unary tree's leaves, and of all pair trees' leaves."""


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
    from proxfield.learn import kernels

    entries = max_leaves * (n_classes * features.shape[1] * n_values + 8)
    check_memory(4 * entries, f"a tree of {max_leaves} leaves for {n_classes} classes")
    most = 2 * max_leaves - 1
    tests, children = np.empty((most, 2), dtype=np.int64), np.empty((most, 2), dtype=np.int64)
    counts = np.empty((max_leaves, n_classes, features.shape[1], n_values), dtype=np.int32)
    nodes = kernels.grow(
        np.ascontiguousarray(features),
        np.ascontiguousarray(classes, dtype=np.int64),
        gain_scores(len(classes)),
        least,
        tests,
        children,
        counts,
    )
    return Tree(tests[:nodes].copy(), children[:nodes].copy())


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


def log_frequencies(leaves: Ints, classes: Ints, n_leaves: int, n_classes: int) -> Doubles:
    """Logarithms of the smoothed frequencies of classes in leaves.  # (leaves, classes)

    Example:
        >>> np.exp(log_frequencies(np.array([0, 0]), np.array([1, 1]), 1, 2)).tolist()
        [[0.25, 0.75]]
    """
    flat = np.bincount(leaves * n_classes + classes, minlength=n_leaves * n_classes)
    counts = flat.reshape(n_leaves, n_classes) + 1.0
    return np.asarray(np.log(counts / counts.sum(axis=1, keepdims=True)))


@dataclass(frozen=True, eq=False)
class Forest:
    """Which table each pixel, and each pair of pixels, gets.

    Attributes:
        n_labels: Number of labels, K.
        features: Offsets of the pixels that trees look at.  # (F, 2)
        offsets: Offsets of pairs.  # (m, 2)
        unary: The tree of single pixels.
        pairs: The tree of each offset; it looks at pixels around the first of the pair.
    """

    n_labels: int
    features: Ints
    offsets: Ints
    unary: Tree
    pairs: tuple[Tree, ...]

    @cached_property
    def starts(self) -> Ints:
        """Number of the first table of each pair tree, and of all tables.  # (m + 1,)"""
        return np.concatenate([[0], np.cumsum([tree.n_leaves for tree in self.pairs])]).astype(int)

    @property
    def reach(self) -> int:
        """Maximum distance, along an axis, of a pixel that is looked at."""
        return int(np.abs(self.features).max(initial=0))

    def instance(self, image: HoledImage) -> TiedField:
        """The variables, tied parameters and labels of an image.

        Variables are all pixels, row by row; only those in the hole aren't observed.
        """
        width = image.labels.shape[1]
        rows, columns = np.nonzero(image.hidden)
        leaf = image.leaves(self.unary, rows, columns, self.features)
        pixels = rows * width + columns
        blocks = [Block(UNARY, pixels.astype(np.int32), None, leaf, self.unary.n_leaves)]
        scopes, tables = [np.zeros((0, 2), dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
        for k, (down, right) in enumerate(self.offsets.tolist()):
            rows, columns = image.pairs((down, right))
            leaf = image.leaves(self.pairs[k], rows, columns, self.features)
            first = rows * width + columns
            scopes.append(np.stack([first, first + down * width + right], axis=1))
            tables.append(self.starts[k] + leaf)
        ends, index = np.concatenate(scopes).astype(np.int32), np.concatenate(tables)
        blocks.append(Block(PAIRS, ends, None, index, int(self.starts[-1])))
        hidden = image.hidden.ravel()
        labels = image.labels.ravel()
        return TiedField(
            np.full(labels.size, self.n_labels),
            blocks,
            labels=np.where(hidden, labels, -1),
            observed=np.where(hidden, -1, labels),
        )

    def frequencies(self, images: Sequence[HoledImage]) -> Parameters:
        """Parameters without pairs: unary energies −log of the labels' frequencies in leaves."""
        leaves, labels = [], []
        for image in images:
            rows, columns = np.nonzero(image.hidden)
            leaves.append(image.leaves(self.unary, rows, columns, self.features))
            labels.append(image.labels[rows, columns])
        n, k = self.unary.n_leaves, self.n_labels
        table: Doubles = -log_frequencies(np.concatenate(leaves), np.concatenate(labels), n, k)
        table -= table.mean(axis=1, keepdims=True)
        return {UNARY: table, PAIRS: np.zeros((int(self.starts[-1]), k, k))}


def grow_forest(
    images: Sequence[HoledImage],
    features: Ints,
    offsets: Ints,
    *,
    unary_leaves: int,
    pair_leaves: int,
    max_samples: int,
    seed: int,
) -> Forest:
    """Grow all trees of a decision tree field.

    The unary tree predicts the label of a hidden pixel, the tree of an offset those of a pair
    with at least one hidden pixel, both by what is seen around the (first) pixel.

    Args:
        images: Training images, with labels in their holes.
        features: Offsets of the pixels to look at.  # (F, 2)
        offsets: Offsets of pairs.  # (m, 2)
        unary_leaves: Maximum number of leaves of the unary tree.
        pair_leaves: Maximum number of leaves of each other tree.
        max_samples: Maximum number of pixels, or pairs, that a tree is grown from, drawn at random.
        seed: Random seed of these draws.
    """
    k = images[0].n_labels
    unary = _grow(images, features, None, k, unary_leaves, max_samples, seed)
    pairs = tuple(
        _grow(images, features, (down, right), k * k, pair_leaves, max_samples, seed)
        for down, right in offsets.tolist()
    )
    return Forest(k, features, offsets, unary, pairs)


def _grow(
    images: Sequence[HoledImage],
    features: Ints,
    offset: tuple[int, int] | None,
    n_classes: int,
    max_leaves: int,
    max_samples: int,
    seed: int,
) -> Tree:
    """The tree of an offset, or of single pixels."""
    places = [np.nonzero(i.hidden) if offset is None else i.pairs(offset) for i in images]
    bounds = np.concatenate([[0], np.cumsum([len(rows) for rows, _ in places])])
    total = int(bounds[-1])
    if total > max_samples:
        chosen = np.random.default_rng(seed).choice(total, max_samples, replace=False)
        chosen.sort()
    else:
        chosen = np.arange(total)
    seen, classes = [], []
    for image, (rows, columns), a, b in zip(images, places, bounds[:-1], bounds[1:], strict=True):
        some = chosen[np.searchsorted(chosen, a) : np.searchsorted(chosen, b)] - a
        r, c = rows[some], columns[some]
        seen.append(image.features(r, c, features))
        label = image.labels[r, c]
        if offset is not None:
            label = label * image.n_labels + image.labels[r + offset[0], c + offset[1]]
        classes.append(label)
    values = images[0].n_labels + 1
    return grow(np.concatenate(seen), np.concatenate(classes), values, n_classes, max_leaves)
