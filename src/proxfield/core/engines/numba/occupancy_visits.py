"""Visiting one location of an occupancy map after another, compiled."""

from __future__ import annotations

import numpy as np

from proxfield.core.common.arrays import Doubles, Floats, Ints
from proxfield.core.compiled.jit import kernel
from proxfield.core.compiled.math import exp_negative
from proxfield.core.terms.base import Layout
from proxfield.core.terms.occupancy import ExactOccupancy, log_empty
from proxfield.core.terms.silhouettes import Boxes


@kernel
def sum_box(cover: Doubles, weights: Doubles, box: Ints, log_p: float) -> float:
    """Σ_{x ∈ R} w_x N_x/p over one rectangle.  # cover: log N, weights: (height, width)"""
    total = 0.0
    for y in range(box[1], box[3]):
        row, w = cover[y], weights[y]
        for x in range(box[0], box[2]):
            total += w[x] * exp_negative(row[x] - log_p)
    return total


@kernel
def shift_box(cover: Doubles, box: Ints, by: float) -> None:
    """Add a number to one rectangle."""
    for y in range(box[1], box[3]):
        for x in range(box[0], box[2]):
            cover[y, x] += by


class BoxVisits:
    """As `OccupancyVisits`, for rectangles."""

    def __init__(self, term: ExactOccupancy, layout: Layout, q: Floats) -> None:
        self.first, self.n = term.first, term.n_locations
        self.labels = layout.cardinalities
        self.logs = log_empty(q[term.entries(layout)])
        self.views = [
            (np.ascontiguousarray(s.cover(self.logs)), np.ascontiguousarray(w), s.boxes)
            for s, w in zip(term.silhouettes, term.weights, strict=True)
            if isinstance(s, Boxes)
        ]

    def gradient(self, variable: int) -> Floats:
        location = variable - self.first
        if not 0 <= location < self.n:
            return np.zeros(int(self.labels[variable]))
        log_p, total = float(self.logs[location]), 0.0
        for cover, weights, boxes in self.views:
            total += sum_box(cover, weights, boxes[location], log_p)
        return np.array([total, 0.0])

    def move(self, variable: int, q: Floats) -> None:
        location = variable - self.first
        if not 0 <= location < self.n:
            return
        new = float(log_empty(q[:1])[0])
        by = new - float(self.logs[location])
        for cover, _, boxes in self.views:
            shift_box(cover, boxes[location], by)
        self.logs[location] = new
