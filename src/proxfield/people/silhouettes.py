"""What a person at each location would cover in the image of one camera.

Both kinds offer the same: `cover` spreads a number per location over the pixels that it covers,
`collect` sums an image over the pixels of each location. Neither visits the pixels of a silhouette
one by one: differences at its borders are summed up over the image, and sums over it are
differences of an integral image.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from proxfield.core.common.checks import whole_count
from proxfield.core.terms.base import Floats, Ints, as_indices
from proxfield.errors import InputError


class Silhouettes(ABC):
    """The pixels that a person at each location would cover in one camera.

    Attributes:
        height: Rows of the image.
        width: Columns of the image.
        n_locations: Number of locations; those that the camera doesn't see cover nothing.
    """

    height: int
    width: int

    @property
    @abstractmethod
    def n_locations(self) -> int: ...

    @abstractmethod
    def cover(self, values: Floats) -> NDArray[np.float64]:
        """Each pixel's sum over the locations that cover it.  # (n,) -> (height, width)"""

    @abstractmethod
    def collect(self, image: Floats) -> NDArray[np.float64]:
        """Each location's sum over the pixels that it covers.  # (height, width) -> (n,)"""

    @abstractmethod
    def pixels(self, location: int) -> Ints:
        """Flat positions of the pixels that a location covers."""

    @abstractmethod
    def to_arrays(self) -> dict[str, Ints]:
        """The silhouettes as arrays by name: arguments of the class."""

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays that describe the silhouettes."""
        return sum(part.nbytes for part in self.to_arrays().values())

    @cached_property
    def areas(self) -> Ints:
        """Number of pixels that each location covers.  # (n,)"""
        return np.rint(self.collect(np.ones((self.height, self.width)))).astype(np.int64)

    @cached_property
    def per_area(self) -> NDArray[np.float64]:
        """1 over the mean area of the silhouettes that cover each pixel, 0 where none does.

        Frames of a scene share it.  # (height, width)
        """
        count, area = self.cover(self.visible.astype(float)), self.cover(self.areas.astype(float))
        covered = count > 0.5
        return np.asarray(np.where(covered, count / np.where(covered, area, 1), 0.0))

    @cached_property
    def shares(self) -> float:
        """Σ of `per_area`."""
        return float(self.per_area.sum())

    @cached_property
    def visible(self) -> NDArray[np.bool_]:
        """Which locations the camera sees.  # (n,)"""
        return np.asarray(self.areas > 0)


@dataclass(frozen=True, eq=False)
class Boxes(Silhouettes):
    """Rectangles.

    Args:
        height: Rows of the image.
        width: Columns of the image.
        boxes: Left, top, right and bottom of each location's rectangle, right and bottom
            exclusive; empty (right ≤ left, say) where the location can't be seen.  # (n, 4)

    Example:
        >>> boxes = Boxes(2, 3, [[0, 0, 2, 1], [1, 0, 3, 2]])
        >>> boxes.cover(np.array([1.0, 10.0])).tolist()
        [[1.0, 11.0, 10.0], [0.0, 10.0, 10.0]]
        >>> boxes.collect(np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])).tolist()
        [3.0, 16.0]
    """

    height: int
    width: int
    boxes: Ints

    def __init__(self, height: int, width: int, boxes: ArrayLike) -> None:
        given = np.asarray(boxes)
        b = as_indices(given if given.size else given.reshape(0, 4), "boxes", 2)
        if b.shape[1] != 4:
            raise InputError(f"boxes need 4 columns (left, top, right, bottom), not {b.shape[1]}")
        height, width = whole_count(height, "height", 1), whole_count(width, "width", 1)
        b = np.where(((b[:, 2] <= b[:, 0]) | (b[:, 3] <= b[:, 1]))[:, None], 0, b)
        outside = (b[:, :2] < 0).any(axis=1) | (b[:, 2] > width) | (b[:, 3] > height)
        if outside.any():
            k = int(np.flatnonzero(outside)[0])
            raise InputError(
                f"the rectangle of location {k}, {b[k].tolist()}, is outside of the image of "
                f"{width}×{height} pixels; clip it first"
            )
        for name, value in (("height", height), ("width", width), ("boxes", b)):
            object.__setattr__(self, name, value)

    @property
    def n_locations(self) -> int:
        return len(self.boxes)

    def cover(self, values: Floats) -> NDArray[np.float64]:
        left, top, right, bottom = self.boxes.T
        out = np.zeros((self.height + 1, self.width + 1))
        np.add.at(out, (top, left), values)
        np.add.at(out, (top, right), -values)
        np.add.at(out, (bottom, left), -values)
        np.add.at(out, (bottom, right), values)
        return np.asarray(out.cumsum(axis=0).cumsum(axis=1)[:-1, :-1])

    def collect(self, image: Floats) -> NDArray[np.float64]:
        left, top, right, bottom = self.boxes.T
        total = np.zeros((self.height + 1, self.width + 1))
        total[1:, 1:] = image.cumsum(axis=0).cumsum(axis=1)
        return np.asarray(
            total[bottom, right] - total[top, right] - total[bottom, left] + total[top, left]
        )

    def to_arrays(self) -> dict[str, Ints]:
        return {"boxes": self.boxes}

    def scaled(self, scale: float) -> Boxes:
        """Those for images of another resolution; what was visible still covers a pixel."""
        height, width = (max(1, round(n * scale)) for n in (self.height, self.width))
        by = np.tile([width / self.width, height / self.height], 2)
        boxes = np.floor(self.boxes * by + 0.5).astype(np.int64)
        first = np.minimum(boxes[:, :2], [width - 1, height - 1])
        last = np.maximum(boxes[:, 2:], first + 1)
        out = np.where(self.visible[:, None], np.concatenate([first, last], axis=1), 0)
        return Boxes(height, width, out)

    def pixels(self, location: int) -> Ints:
        left, top, right, bottom = self.boxes[location]
        rows = np.arange(top, bottom)[:, None] * self.width
        return np.asarray((rows + np.arange(left, right)).ravel())


@dataclass(frozen=True, eq=False)
class Runs(Silhouettes):
    """Any shapes, as runs of pixels in rows.

    Args:
        height: Rows of the image.
        width: Columns of the image.
        runs: Row, first column and end (exclusive) of each run; the runs of a location follow
            each other and don't overlap.  # (R, 3)
        starts: Where the runs of each location begin, and R at the end.  # (n + 1,)

    Example:
        >>> runs = Runs(2, 3, [[0, 1, 2], [1, 0, 3]], [0, 2])
        >>> runs.cover(np.array([1.0])).tolist()
        [[0.0, 1.0, 0.0], [1.0, 1.0, 1.0]]
    """

    height: int
    width: int
    runs: Ints
    starts: Ints

    def __init__(self, height: int, width: int, runs: ArrayLike, starts: ArrayLike) -> None:
        given = np.asarray(runs)
        r = as_indices(given if given.size else given.reshape(0, 3), "runs", 2)
        s = as_indices(starts, "starts", 1)
        if r.shape[1] != 3:
            raise InputError(f"runs need 3 columns (row, first, end), not {r.shape[1]}")
        height, width = whole_count(height, "height", 1), whole_count(width, "width", 1)
        if len(s) < 1 or s[0] != 0 or s[-1] != len(r) or (np.diff(s) < 0).any():
            raise InputError("starts of runs don't divide the runs")
        row, first, end = r.T
        wrong = (row < 0) | (row >= height) | (first < 0) | (end > width) | (end <= first)
        if wrong.any():
            k = int(np.flatnonzero(wrong)[0])
            raise InputError(
                f"run {k}, {r[k].tolist()}, isn't inside the image of {width}×{height} pixels"
            )
        for name, value in (("height", height), ("width", width), ("runs", r), ("starts", s)):
            object.__setattr__(self, name, value)

    @classmethod
    def from_masks(cls, masks: ArrayLike) -> Runs:
        """Silhouettes from a mask per location.

        Args:
            masks: True where a person at the location covers the pixel.  # (n, height, width)
        """
        inside = np.asarray(masks, dtype=bool)
        if inside.ndim != 3:
            raise InputError(f"masks must have 3 dimensions, not shape {inside.shape}")
        padded = np.zeros((*inside.shape[:2], inside.shape[2] + 2), dtype=np.int8)
        padded[:, :, 1:-1] = inside
        edge = np.diff(padded, axis=2)
        location, row, first = np.nonzero(edge == 1)
        end = np.nonzero(edge == -1)[2]
        starts = np.searchsorted(location, np.arange(len(inside) + 1))
        height, width = inside.shape[1:]
        return cls(height, width, np.stack([row, first, end], axis=1), starts)

    @property
    def n_locations(self) -> int:
        return len(self.starts) - 1

    @cached_property
    def owner(self) -> Ints:
        """The location of each run.  # (R,)"""
        return np.repeat(np.arange(self.n_locations), np.diff(self.starts))

    def cover(self, values: Floats) -> NDArray[np.float64]:
        row, first, end = self.runs.T
        out = np.zeros((self.height, self.width + 1))
        np.add.at(out, (row, first), values[self.owner])
        np.add.at(out, (row, end), -values[self.owner])
        return np.asarray(out.cumsum(axis=1)[:, :-1])

    def collect(self, image: Floats) -> NDArray[np.float64]:
        row, first, end = self.runs.T
        total = np.zeros((self.height, self.width + 1))
        total[:, 1:] = image.cumsum(axis=1)
        sums = total[row, end] - total[row, first]
        return np.bincount(self.owner, weights=sums, minlength=self.n_locations).astype(float)

    def to_arrays(self) -> dict[str, Ints]:
        return {"runs": self.runs, "starts": self.starts}

    def pixels(self, location: int) -> Ints:
        some = self.runs[self.starts[location] : self.starts[location + 1]]
        parts = [row * self.width + np.arange(first, end) for row, first, end in some]
        return np.concatenate([np.zeros(0, dtype=np.int64), *parts])
