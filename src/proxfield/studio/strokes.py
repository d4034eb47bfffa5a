"""Scribbles: strokes of a brush that fix the labels of pixels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from proxfield.core.common.arrays import Pixels
from proxfield.images.known import NO_STROKE, runs_of

Points = Sequence[Sequence[float]]
ERASER = -1
"""The label of strokes that take others away."""
MAX_POINTS = 5000
"""Points of a stroke; a browser sends a few hundred."""


@dataclass(frozen=True)
class Stroke:
    """One stroke.

    Attributes:
        label: The label that its pixels get, or `ERASER`.
        points: x and y as shares of the width and the height.  # (n, 2)
        radius: Of the brush, in pixels.
    """

    label: int
    points: Points
    radius: float


def draw(
    strokes: Sequence[Stroke], shape: tuple[int, int], base: Pixels | None = None
) -> NDArray[np.int64] | None:
    """A map of labels, `NO_STROKE` where there is none; None if nothing is drawn.

    Args:
        strokes: In the order in which they were drawn: later ones cover earlier ones.
        shape: Height and width.
        base: Labels that were known before.

    Example:
        >>> print(draw([Stroke(1, [(0.1, 0.5), (0.9, 0.5)], 0.5)], (3, 5)))
        [[255 255 255 255 255]
         [  1   1   1   1   1]
         [255 255 255 255 255]]
    """
    out = np.full(shape, NO_STROKE, dtype=np.int64)
    if base is not None:
        out[:] = base
        out[out < 0] = NO_STROKE
    for stroke in strokes:
        label = NO_STROKE if stroke.label == ERASER else stroke.label
        for y, x in _covered(stroke, shape):
            out[y, x] = label
    return out if (out != NO_STROKE).any() else None


def _covered(
    stroke: Stroke, shape: tuple[int, int]
) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Pixels within the radius of the line through the points, and those of the points."""
    height, width = shape
    points = np.asarray(stroke.points[:MAX_POINTS], dtype=np.float64).reshape(-1, 2)
    points = points[np.isfinite(points).all(axis=1)]
    points = np.clip(points, 0.0, 1.0) * (width, height) - 0.5
    found = []
    if len(points) == 1:
        points = np.repeat(points, 2, axis=0)
    for start, end in pairwise(points):
        low = np.maximum(np.floor(np.minimum(start, end) - stroke.radius), 0).astype(int)
        high = np.ceil(np.maximum(start, end) + stroke.radius).astype(int)
        high = np.minimum(high, (width - 1, height - 1))
        y, x = np.mgrid[low[1] : high[1] + 1, low[0] : high[0] + 1]
        line = end - start
        length = float(line @ line)
        along = ((x - start[0]) * line[0] + (y - start[1]) * line[1]) / length if length else 0.0
        t = np.clip(along, 0.0, 1.0)
        apart = (x - start[0] - t * line[0]) ** 2 + (y - start[1] - t * line[1]) ** 2
        near = apart <= stroke.radius**2
        for point in (start, end):  # a thin brush may pass between the centers of pixels
            near |= (x == round(point[0])) & (y == round(point[1]))
        found.append((y[near], x[near]))
    return found


def as_runs(scribbles: NDArray[np.int64]) -> dict[int, tuple[int, ...]]:
    """Each label's pixels as starts and ends of runs in the flattened map; for code.

    Example:
        >>> as_runs(np.array([[255, 2, 2], [255, 255, 0]]))
        {0: (5, 6), 2: (1, 3)}
    """
    labels = np.unique(scribbles[scribbles != NO_STROKE]).tolist()
    return {label: runs_of(scribbles == label) for label in labels}
