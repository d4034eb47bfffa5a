"""Occupancy maps on the CPU: cameras as the kernels read them, and the term's implementation."""

from __future__ import annotations

import weakref

import numpy as np
from numpy.typing import NDArray

from proxfield.core.common.arrays import Doubles, Floats, Ints
from proxfield.core.compiled.jit import PARALLEL_WORK, current_threads, kernel
from proxfield.core.compiled.math import exp_negative
from proxfield.core.compiled.simd import LANES, padded
from proxfield.core.terms.base import Layout, Visits
from proxfield.people.numba.occupancy_kernels import (
    Cameras,
    Ratio,
    Room,
    evaluate,
    evaluate_apart,
    finish_apart,
    turn_image,
)
from proxfield.people.occupancy import ExactOccupancy, Occupancy, RatioOccupancy, log_empty
from proxfield.people.silhouettes import Boxes, Runs, Silhouettes


@kernel
def sum_box(cover: Doubles, weights: Doubles, box: Ints, log_p: float) -> float:
    """Σ_{x ∈ R} w_x N_x/p over one rectangle.  # cover: log N, weights: (height, width)"""
    total = 0.0
    for y in range(box[1], box[3]):
        row, w = cover[y], weights[y]
        for x in range(box[0], box[2]):
            total += w[x] * exp_negative(row[x] - log_p)
    return total


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
            left, top, right, bottom = boxes[location]
            cover[top:bottom, left:right] += by
        self.logs[location] = new


KEPT_SCENES = 4
"""Scenes whose silhouettes stay packed for their next frame."""


class OccupancyOnCpu:
    """`Occupancy` on the CPU.

    Args:
        term: The term.
        layout: Layout of the field.
        dtype: Type of marginals and gradients; everything inside is float64.
    """

    def __init__(self, term: Occupancy, layout: Layout, dtype: str) -> None:
        self.term, self.layout = term, layout
        self.entries = term.entries(layout)
        self.variables = slice(term.first, term.first + term.n_locations)
        self.cameras, origins = _packed(term.silhouettes)
        self.image = np.zeros(int(self.cameras.plane[-1]))
        self.constant = term.constant if isinstance(term, ExactOccupancy) else 0.0
        exact = isinstance(term, ExactOccupancy)
        low, high = term.observed if isinstance(term, ExactOccupancy) else (1.0, -1.0)
        for c, (s, mask) in enumerate(term.images()):
            shares = s.per_area if exact else np.ones((1, 1))
            turn_image(mask, shares, low, high, origins[c], self.cameras, c, self.image)
        self.room = _room(self.cameras, term.n_locations, apart=False)
        self.ratio: Ratio | None = None
        if isinstance(term, RatioOccupancy):
            sums = [float(mask.sum()) for mask in term.masks]
            ground = np.array([term.floor * mask.size for mask in term.masks])
            ends = zip(self.cameras.plane, self.cameras.plane[1:], strict=False)
            inside = np.array([float(self.image[a:b].sum()) for a, b in ends])
            self.ratio = Ratio(ground, ground + np.array(sums) + inside, term.variance)
        self.apart: tuple[Room, Doubles, Doubles] | None = None  # each camera's own
        self.work = 2 * len(self.image) + 8 * len(self.cameras.owner)

    @staticmethod
    def accepts(term: Occupancy) -> bool:
        """Whether the silhouettes are of the two kinds that the kernels know."""
        return all(type(s) in (Boxes, Runs) for s in term.silhouettes)

    def visits(self, q: Floats) -> Visits:
        """As `Term.visits`, compiled where silhouettes are rectangles."""
        term = self.term
        if isinstance(term, ExactOccupancy) and all(type(s) is Boxes for s in term.silhouettes):
            return BoxVisits(term, self.layout, q)
        return term.visits(self.layout, q)

    def add_gradient(self, q: Floats, out: Floats) -> float:
        """Add dE/dq at flat marginals; returns the energy.  # (size,)"""
        energy = self._evaluate(log_empty(q[self.entries]))
        out[self.entries] += self.room.slopes
        return energy

    def add_binary_gradient(self, log_empty: Doubles, out: Floats) -> float:
        """Add dE/dq_i1 − dE/dq_i0 of every variable, from log q_i0; returns the energy.

        Args:
            log_empty: log q_i0.  # (n_vars,)
            out: Changed in place.  # (n_vars,)
        """
        energy = self._evaluate(log_empty[self.variables])
        out[self.variables] -= self.room.slopes
        return energy

    def _evaluate(self, logs: Doubles) -> float:
        """The energy; ∂E/∂p_i is left in ``room.slopes``."""
        several = len(self.cameras.height) > 1 and self.work >= PARALLEL_WORK
        if not several or current_threads() == 1:
            energy: float = evaluate(self.cameras, self.image, self.room, logs, self.ratio)
            return self.constant + energy
        # cameras over threads; sums in the order of the cameras
        if self.apart is None:
            count, n = len(self.cameras.height), len(self.room.slopes)
            room = _room(self.cameras, n, apart=True)._replace(slopes=self.room.slopes)
            self.apart = room, np.zeros((count, n)), np.zeros(count)
        room, slopes, energies = self.apart
        evaluate_apart(self.cameras, self.image, room, logs, self.ratio, slopes, energies)
        finish_apart(slopes, room)
        return self.constant + float(sum(energies.tolist()))


def _room(cameras: Cameras, n: int, *, apart: bool) -> Room:
    """Room for all cameras one after another, which fits into the cache, or each its own."""
    sizes = np.diff(cameras.plane)
    count, widest = len(sizes), int(cameras.stride.max(initial=LANES))
    start = cameras.plane[:-1] if apart else np.zeros(count, dtype=np.int64)
    size = int(sizes.sum() if apart else sizes.max(initial=0))
    return Room(
        start=start,
        cover=np.zeros(size),
        total=np.zeros(size),
        empty=np.zeros(size),
        turned=np.zeros((count, LANES * widest)),
        above=np.zeros((count, widest)),
        powers=np.zeros(n),
        slopes=np.zeros(n),
        few=np.zeros(len(cameras.owner), dtype=np.uint32),
    )


_Packed = tuple[Cameras, list[tuple[int, int]]]
"""Silhouettes of all cameras, and top and left of what those of each camera cover."""
_scenes: list[tuple[tuple[weakref.ref[Silhouettes], ...], _Packed]] = []
"""The scenes seen last, the latest at the end."""


def _packed(silhouettes: tuple[Silhouettes, ...]) -> _Packed:
    """The part of each camera's image that silhouettes cover, and their corners in it.

    Packed once for all frames of a scene.
    """
    alive = [entry for entry in _scenes if all(ref() is not None for ref in entry[0])]
    _scenes[:] = alive
    for keys, packed in alive:
        if len(keys) == len(silhouettes) and all(
            ref() is s for ref, s in zip(keys, silhouettes, strict=True)
        ):
            return packed
    sizes, origin = np.zeros((4, len(silhouettes)), dtype=np.int64), []
    corners = [np.zeros((0, 4), dtype=np.uint32)]
    owners = [np.zeros(0, dtype=np.uint32)]
    for c, s in enumerate(silhouettes):
        if isinstance(s, Boxes):
            owner = np.flatnonzero(s.visible)
            left, top, right, bottom = s.boxes[owner].T
        else:
            assert isinstance(s, Runs)
            owner = s.owner
            top, left, right = s.runs.T
            bottom = top + 1
        y0, x0 = (int(a.min()) if len(a) else 0 for a in (top, left))
        y1, x1 = (int(a.max()) if len(a) else 0 for a in (bottom, right))
        # a row after the image, where corners are, and a column on each side of it
        stride = padded(x1 - x0 + 2)
        sizes[:, c] = y1 - y0, x1 - x0, padded(y1 - y0 + 1), stride
        at = [(y - y0) * stride + x - x0 for y in (top, bottom) for x in (left, right)]
        corners.append(np.stack(at, axis=1).astype(np.uint32))
        owners.append(owner.astype(np.uint32))
        origin.append((y0, x0))
    height, width, rows, stride_of = sizes
    counts = [len(owner) for owner in owners[1:]]
    boxes: NDArray[np.bool_] = np.array([isinstance(s, Boxes) for s in silhouettes], dtype=np.bool_)
    cameras = Cameras(
        height, width, rows, stride_of,
        np.cumsum([0, *((rows + 1) * stride_of)]), np.cumsum([0, *counts]), boxes,
        np.concatenate(corners), np.concatenate(owners),
    )  # fmt: skip
    _scenes.append((tuple(weakref.ref(s) for s in silhouettes), (cameras, origin)))
    del _scenes[:-KEPT_SCENES]
    return cameras, origin
