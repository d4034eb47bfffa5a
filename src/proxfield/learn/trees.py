"""Images with holes, and decision trees that choose tables of pixels and pairs by what is observed.

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

import numpy as np
from numpy.typing import NDArray

from proxfield.core.common.arrays import Doubles, Ints
from proxfield.core.common.memory import check_memory
from proxfield.errors import InputError
from proxfield.learn.tied import Block, Parameters, TiedField

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


@dataclass(frozen=True, eq=False)
class HoledImage:
    """An image of labels of which some pixels are hidden.

    Attributes:
        labels: The labels; those of hidden pixels are known in training only.  # (height, width)
        hidden: True for hidden pixels.  # (height, width)
        n_labels: Number of labels, K.
        reach: Maximum distance, along an axis, of a pixel that is looked at.
    """

    labels: Ints
    hidden: NDArray[np.bool_]
    n_labels: int
    reach: int

    @cached_property
    def padded(self) -> Bytes:
        """What is seen: labels, or K for hidden pixels and all around the image.  # flat"""
        seen = np.where(self.hidden, self.n_labels, self.labels).astype(np.uint8)
        return np.pad(seen, self.reach, constant_values=self.n_labels).ravel()

    def positions(self, rows: Ints, columns: Ints) -> Ints:
        """Where pixels are in `padded`."""
        width = self.labels.shape[1] + 2 * self.reach
        return np.asarray((rows + self.reach) * width + columns + self.reach)

    def steps(self, offsets: Ints) -> Ints:
        """Distances in `padded` of pixels that lie as far apart as that.  # (len(offsets),)"""
        width = self.labels.shape[1] + 2 * self.reach
        return np.asarray(offsets[:, 0] * width + offsets[:, 1])

    def features(self, rows: Ints, columns: Ints, offsets: Ints) -> Bytes:
        """What is seen at some offsets from pixels.  # (len(rows), len(offsets))"""
        from proxfield.learn.kernels import gather

        out = np.empty((len(rows), len(offsets)), dtype=np.uint8)
        gather(self.padded, self.positions(rows, columns), self.steps(offsets), out)
        return out

    def leaves(self, tree: Tree, rows: Ints, columns: Ints, offsets: Ints) -> Ints:
        """The leaf of a tree for each of some pixels.  # (len(rows),)"""
        from proxfield.learn.kernels import descend

        out = np.empty(len(rows), dtype=np.int64)
        at, steps = self.positions(rows, columns), self.steps(offsets)
        descend(self.padded, at, steps, tree.tests, tree.children, tree.leaf_of, out)
        return out

    def pairs(self, offset: tuple[int, int]) -> tuple[Ints, Ints]:
        """Pixels whose pair with the pixel at an offset has a hidden one.  # rows, columns"""
        down, right = offset
        height, width = self.hidden.shape
        rows, columns = max(0, height - abs(down)), max(0, width - abs(right))  # of such pairs
        top, left = max(0, -down), max(0, -right)
        here = self.hidden[top : top + rows, left : left + columns]
        top, left = max(0, down), max(0, right)
        there = self.hidden[top : top + rows, left : left + columns]
        found = np.nonzero(here | there)
        return found[0] + max(0, -down), found[1] + max(0, -right)


def grow(
    features: Bytes, classes: Ints, n_values: int, n_classes: int, max_leaves: int, least: int = 1
) -> Tree:
    """Grow a tree that predicts classes, best-first; with fewer leaves if no more tests help.

    There are at least ``least`` samples in a leaf.  # (samples, features), (samples,)

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
    samples = np.ascontiguousarray(features), np.ascontiguousarray(classes, dtype=np.int64)
    nodes = kernels.grow(*samples, gain_scores(len(classes)), least, tests, children, counts)
    return Tree(tests[:nodes].copy(), children[:nodes].copy())


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
        hidden, labels = image.hidden.ravel(), image.labels.ravel()
        targets, observed = np.where(hidden, labels, -1), np.where(hidden, -1, labels)
        return TiedField(np.full(labels.size, self.n_labels), blocks, targets, observed)

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


def feature_offsets(count: int = 256, reach: int = 18) -> Ints:
    """Offsets of the pixels that trees look at: dense near the middle, sparse far from it.

    Points of a sunflower spiral whose radius grows faster than its square root would, rounded to
    pixels, each once, the nearest first.  # (count, 2)

    Example:
        >>> offsets = feature_offsets(256)
        >>> offsets.shape, int(np.abs(offsets).max())
        ((256, 2), 18)
    """
    side = 2 * reach + 1
    if not 1 <= count <= side * side - 1:
        raise InputError(f"{count} offsets within {reach}, expected at most {side * side - 1}")
    golden, points = np.pi * (3 - np.sqrt(5)), 4 * count
    while True:
        k = np.arange(1, points + 1)
        radius = reach * (k / points) ** 0.75
        spiral = np.stack([radius * np.sin(k * golden), radius * np.cos(k * golden)], axis=1)
        found = dict.fromkeys(map(tuple, np.rint(spiral).astype(int).tolist()))
        found.pop((0, 0), None)
        if len(found) >= count:
            break
        points *= 2
    every = np.array(list(found))
    chosen = np.rint(np.linspace(0, len(every) - 1, count)).astype(int)
    return np.asarray(every[chosen])


def pair_offsets() -> Ints:
    """Offsets of the pairs that interact: one of each two opposite ones.  # (32, 2)

    The eight neighbors at distances 1 and 2, and multiples of 3 up to 9 in rows and columns.

    Example:
        >>> len(pair_offsets()), pair_offsets()[:4].tolist()
        (32, [[0, 1], [0, 2], [0, 3], [0, 6]])
    """
    near = [(r * d, c * d) for d in (1, 2) for r in (-1, 0, 1) for c in (-1, 0, 1)]
    far = [(3 * r, 3 * c) for r in range(-3, 4) for c in range(-3, 4)]
    return np.array(sorted({pair for pair in (*near, *far) if pair > (0, 0)}))


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
    """Grow all trees of a decision tree field; arguments as for `DecisionTreeField`.

    The unary tree predicts the label of a hidden pixel, the tree of an offset those of a pair
    with at least one hidden pixel, both by what is seen around the (first) pixel.
    """
    k = images[0].n_labels

    def grown(offset: tuple[int, int] | None, n_classes: int, max_leaves: int) -> Tree:
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
        for image, (rows, columns), a, b in zip(
            images, places, bounds[:-1], bounds[1:], strict=True
        ):
            some = chosen[np.searchsorted(chosen, a) : np.searchsorted(chosen, b)] - a
            r, c = rows[some], columns[some]
            seen.append(image.features(r, c, features))
            label = image.labels[r, c]
            if offset is not None:
                label = label * k + image.labels[r + offset[0], c + offset[1]]
            classes.append(label)
        return grow(np.concatenate(seen), np.concatenate(classes), k + 1, n_classes, max_leaves)

    unary = grown(None, k, unary_leaves)
    pairs = tuple(grown((down, right), k * k, pair_leaves) for down, right in offsets.tolist())
    return Forest(k, features, offsets, unary, pairs)
