"""Occupancy maps on the CPU: cameras as the kernels read them, and the term's implementation."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from proxfield.backends.numba.occupancy_kernels import (
    ROWS,
    Cameras,
    Room,
    exact_parallel,
    exact_serial,
    ratio_parallel,
    ratio_serial,
)
from proxfield.backends.numba.occupancy_visits import BoxVisits
from proxfield.compiled.jit import PARALLEL_WORK, current_threads
from proxfield.terms.base import Doubles, Floats, Layout, Visits
from proxfield.terms.occupancy import (
    SMALLEST,
    ExactOccupancy,
    Occupancy,
    RatioOccupancy,
    log_empty,
)
from proxfield.terms.silhouettes import Boxes, Runs, Silhouettes

LOG_SMALLEST = float(np.log(SMALLEST))


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
        if isinstance(term, ExactOccupancy):
            images, self.constant = term.weights, term.constant
        else:
            images, self.constant = tuple(1.0 - 2.0 * mask for mask in term.masks), 0.0
        packed = [_pack(s, image) for s, image in zip(term.silhouettes, images, strict=True)]
        self.cameras = _join(packed)
        self.room = _room(self.cameras, term.n_locations, apart=False)
        self.ratio: tuple[Doubles, Doubles, float] | None = None
        if isinstance(term, RatioOccupancy):
            sums = [float(mask.sum()) for mask in term.masks]
            ground = np.array([term.floor * mask.size for mask in term.masks])
            inside = np.array([float(p.image.sum()) for p in packed])
            self.ratio = ground, ground + np.array(sums) + inside, term.variance
        self.apart: tuple[Room, Doubles, Doubles] | None = None  # each camera's own
        self.work = 2 * len(self.cameras.image) + 8 * len(self.cameras.owner)

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
        logs = np.maximum(log_empty[self.variables], LOG_SMALLEST)
        energy = self._evaluate(logs)
        out[self.variables] -= self.room.slopes
        return energy

    def _evaluate(self, logs: Doubles) -> float:
        """The energy; ∂E/∂p_i is left in ``room.slopes``."""
        several = len(self.cameras.height) > 1 and self.work >= PARALLEL_WORK
        if several and current_threads() > 1:
            return self.constant + self._evaluate_apart(logs)
        if self.ratio is None:
            energy: float = exact_serial(self.cameras, self.room, logs)
        else:
            energy = ratio_serial(self.cameras, self.room, logs, *self.ratio)
        return self.constant + energy

    def _evaluate_apart(self, logs: Doubles) -> float:
        """Cameras over threads; sums in the order of the cameras."""
        if self.apart is None:
            count, n = len(self.cameras.height), len(self.room.slopes)
            room = _room(self.cameras, n, apart=True)
            self.apart = room, np.zeros((count, n)), np.zeros(count)
        room, slopes, energies = self.apart
        if self.ratio is None:
            exact_parallel(self.cameras, room, logs, slopes, energies)
        else:
            ratio_parallel(self.cameras, room, logs, *self.ratio, slopes, energies)
        np.sum(slopes, axis=0, out=self.room.slopes)
        return float(sum(energies.tolist()))


def _room(cameras: Cameras, n: int, *, apart: bool) -> Room:
    """Room for all cameras one after another, which fits into the cache, or each its own."""
    sizes = np.diff(cameras.plane)
    count, widest = len(sizes), int(cameras.width.max(initial=0)) + 1
    start = cameras.plane[:-1] if apart else np.zeros(count, dtype=np.int64)
    size = int(sizes.sum() if apart else sizes.max(initial=0))
    rows = np.zeros((count, ROWS + 1, widest))
    return Room(start, np.zeros(size), np.zeros(size), rows, np.zeros(n), np.zeros(n))


class _Packed(NamedTuple):
    """One camera: positions in its own plane."""

    height: int
    width: int
    boxes: bool
    corner: NDArray[np.int32]
    owner: NDArray[np.int32]
    image: Doubles  # what is covered, with a column more  # (height, width + 1)


def _pack(s: Silhouettes, image: Doubles) -> _Packed:
    """The part of a camera's image that silhouettes cover, and their corners in it."""
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
    stride = x1 - x0 + 1
    rows, columns = [top - y0, top - y0, bottom - y0, bottom - y0], [left, right, left, right]
    corner = np.stack([y * stride + x - x0 for y, x in zip(rows, columns, strict=True)], axis=1)
    inside = np.zeros((y1 - y0, stride))
    inside[:, :-1] = image[y0:y1, x0:x1]
    return _Packed(
        y1 - y0, x1 - x0, isinstance(s, Boxes), corner.astype(np.int32), owner.astype(np.int32),
        inside,
    )  # fmt: skip


def _join(packed: list[_Packed]) -> Cameras:
    """All cameras, each plane with a row more than its image."""
    sizes = [(p.height + 1) * (p.width + 1) for p in packed]
    counts = [len(p.owner) for p in packed]
    image = np.zeros(sum(sizes))
    plane = np.cumsum([0, *sizes])
    for start, p in zip(plane, packed, strict=False):
        image[start : start + p.image.size] = p.image.ravel()
    corners = [p.corner for p in packed]
    owners = [p.owner for p in packed]
    return Cameras(
        np.array([p.height for p in packed], dtype=np.int64),
        np.array([p.width for p in packed], dtype=np.int64),
        plane,
        np.cumsum([0, *counts]),
        np.array([p.boxes for p in packed], dtype=np.bool_),
        np.concatenate([np.zeros((0, 4), dtype=np.int32), *corners]),
        np.concatenate([np.zeros(0, dtype=np.int32), *owners]),
        image,
    )
