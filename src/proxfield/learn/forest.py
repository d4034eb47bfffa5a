"""The trees of a decision tree field, and the tied parameters that they choose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from proxfield.core.common.arrays import Doubles
from proxfield.core.terms.base import Ints
from proxfield.learn.blocks import Block, Parameters
from proxfield.learn.holes import HoledImage
from proxfield.learn.tied import TiedField
from proxfield.learn.trees import Tree, grow, log_frequencies

UNARY, PAIRS = "unary", "pairs"
"""Names of the parameters: tables of the unary tree's leaves, and of all pair trees' leaves."""


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

    def holed(self, labels: Ints, hidden: NDArray[np.bool_]) -> HoledImage:
        """An image with a hole, as the trees see it."""
        return HoledImage(labels, hidden, self.n_labels, self.reach)

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
