"""Images with holes: pixels that are hidden, and what is seen around them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from proxfield.core.terms.base import Ints
from proxfield.errors import InputError
from proxfield.learn.trees import Bytes, Tree

MAX_LABELS = 254
"""A value of a feature is a byte; one more is for hidden pixels."""


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


def feature_offsets(count: int = 256, reach: int = 18) -> Ints:
    """Offsets of the pixels that trees look at: dense near the middle, sparse far from it.

    Points of a sunflower spiral whose radius grows faster than its square root would, rounded to
    pixels, each once.

    Args:
        count: Number of offsets.
        reach: Their maximum distance along an axis.

    Returns:
        Rows and columns, the nearest first.  # (count, 2)

    Example:
        >>> offsets = feature_offsets(256)
        >>> offsets.shape, int(np.abs(offsets).max())
        ((256, 2), 18)
    """
    side = 2 * reach + 1
    if not 1 <= count <= side * side - 1:
        raise InputError(f"{count} offsets within {reach}, expected at most {side * side - 1}")
    golden = np.pi * (3 - np.sqrt(5))
    found: dict[tuple[int, int], None] = {}
    points = 4 * count
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


def check_images(
    images: ArrayLike, masks: ArrayLike, n_labels: int | None, *, known: bool
) -> tuple[list[Ints], list[NDArray[np.bool_]]]:
    """Images and masks as arrays of their own, checked.

    Args:
        images: Label images.  # (n, height, width), or a sequence of (height, width)
        masks: True where hidden; one of them serves all images of its shape.
        n_labels: Number of labels; None if it isn't known yet.
        known: Whether hidden pixels have labels, too (for training).

    Raises:
        InputError: What is wrong, and with which image.
    """
    pictures = as_arrays(images, "images")
    if not pictures:
        raise InputError("no images, expected at least one")
    given = np.asarray(masks) if not isinstance(masks, (list, tuple)) else None
    one = given is not None and given.ndim == 2
    covers = [given] * len(pictures) if one else as_arrays(masks, "masks")
    if len(covers) != len(pictures):
        raise InputError(f"{len(covers)} masks for {len(pictures)} images, expected one each")
    labels, hidden = [], []
    for k, (image, mask) in enumerate(zip(pictures, covers, strict=True)):
        where = f"image {k}"
        cover = np.asarray(mask)
        if image.ndim != 2 or not image.size:
            raise InputError(f"{where} has shape {image.shape}, expected height and width")
        if cover.shape != image.shape:
            raise InputError(f"{where} is {image.shape}, its mask {cover.shape}, expected equal")
        if cover.dtype.kind not in "bui" or image.dtype.kind not in "bui":
            kind = cover.dtype if cover.dtype.kind not in "bui" else image.dtype
            raise InputError(f"{where} has {kind}, expected whole numbers (masks: bool)")
        cover = cover.astype(bool)
        values = image.astype(np.int64)
        seen = values if known else values[~cover]
        top = MAX_LABELS if n_labels is None else n_labels
        low, high = (int(seen.min(initial=0)), int(seen.max(initial=0)))
        if low < 0 or high >= top:
            bad = low if low < 0 else high
            raise InputError(f"{where} has the label {bad}, expected 0 to {top - 1}")
        labels.append(values)
        hidden.append(cover)
    return labels, hidden


def as_arrays(values: Any, what: str) -> list[NDArray[Any]]:
    """A sequence of arrays, one for each image."""
    if isinstance(values, (str, bytes)) or not np.iterable(values):
        kind = type(values).__name__
        raise InputError(f"{what} are a {kind}, expected an array (n, height, width) or a list")
    return [_as_array(value, f"{what}: number {k}") for k, value in enumerate(values)]


def _as_array(value: Any, where: str) -> NDArray[Any]:
    try:
        return np.asarray(value)
    except ValueError:
        raise InputError(f"{where} has rows of different lengths, expected equal ones") from None
