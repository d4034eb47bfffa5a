"""Detections: where people stand in each frame, found from probabilities of presence."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.spatial import cKDTree

from proxfield.core.common.arrays import Doubles, Ints
from proxfield.core.common.checks import check_real, whole_numbers
from proxfield.errors import InputError
from proxfield.io.files import Source, Target

RADIUS = 0.5
"""Minimum distance of two detections in meters."""
THRESHOLD = 0.5
"""Minimum probability of a detection."""
POOL = 0.35
"""Distance in meters over which probabilities are pooled: a person covers several locations of a
fine grid about as well, and mass spreads over them."""
NEGLIGIBLE = 1e-3
"""Share of the threshold below which a location doesn't count when probabilities are pooled."""
MAX_PAIRED = 5_000
"""Locations up to which all pairs within the pooling distance are listed."""
MAX_POOLED = 50_000
"""Maximum number of locations that are pooled: the most probable ones."""


@dataclass(frozen=True, eq=False)
class Detections:
    """People in a number of frames, or the truth about them.

    Args:
        frame: The frame of each detection.  # (n,)
        x: In meters; NaN where the positions of locations aren't known.  # (n,)
        y: In meters.  # (n,)
        score: Probabilities; 1 by default.  # (n,)
        location: Numbers of locations in the scene; -1, the default, for none.  # (n,)
        frames: All frames that were examined, also those in which nobody is; by default those
            of the detections. Comes sorted.

    Example:
        >>> found = Detections([0, 0, 2], [1.0, 3.0, 1.5], [0.0, 0.0, 0.0], frames=[0, 1, 2])
        >>> len(found), found.at(0).tolist()
        (3, [[1.0, 0.0], [3.0, 0.0]])
    """

    frame: Ints
    x: Doubles
    y: Doubles
    score: Doubles
    location: Ints
    frames: Ints

    def __init__(
        self,
        frame: ArrayLike,
        x: ArrayLike,
        y: ArrayLike,
        score: ArrayLike | None = None,
        location: ArrayLike | None = None,
        frames: ArrayLike | None = None,
    ) -> None:
        numbers = _whole(frame, "frame")
        n = len(numbers)
        values = {
            "frame": numbers,
            "x": _floats(x, "x"),
            "y": _floats(y, "y"),
            "score": np.ones(n) if score is None else _floats(score, "score"),
            "location": np.full(n, -1) if location is None else _whole(location, "location"),
        }
        for key, value in values.items():
            if value.shape != (n,):
                raise InputError(f"{key} has shape {value.shape}, expected ({n},) as frame has")
        for key in ("x", "y"):
            if np.isinf(values[key]).any():
                raise InputError(f"{key} holds infinite numbers")
        seen = np.unique(numbers if frames is None else _whole(frames, "frames"))
        lost = np.setdiff1d(numbers, seen)
        if lost.size:
            raise InputError(f"frames don't have {lost[0]}, which has detections")
        for key, value in {**values, "frames": seen}.items():
            object.__setattr__(self, key, value)

    def __len__(self) -> int:
        return len(self.frame)

    def __repr__(self) -> str:
        return f"<Detections: {len(self)} in {len(self.frames)} frames>"

    @property
    def positions(self) -> Doubles:
        """Where they are, in meters.  # (n, 2)"""
        return np.stack([self.x, self.y], axis=1)

    def at(self, frame: int) -> Doubles:
        """Positions of the detections of a frame.  # (k, 2)"""
        return np.asarray(self.positions[self.frame == frame])

    def select(self, keep: ArrayLike) -> Detections:
        """Some of the detections; all frames stay.

        Args:
            keep: True for those that stay, or their indices.  # (n,)
        """
        k = np.asarray(keep)
        return Detections(
            self.frame[k], self.x[k], self.y[k], self.score[k], self.location[k], self.frames
        )

    @classmethod
    def join(cls, parts: Iterable[Detections]) -> Detections:
        """The detections of several runs, in their order."""
        some = list(parts)
        if not some:
            return cls([], [], [])
        names = ("frame", "x", "y", "score", "location", "frames")
        return cls(*(np.concatenate([getattr(part, name) for part in some]) for name in names))

    @classmethod
    def from_map(
        cls,
        q: ArrayLike,
        positions: ArrayLike | None,
        frame: int = 0,
        *,
        radius: float = RADIUS,
        threshold: float = THRESHOLD,
        pool: float | None = None,
    ) -> Detections:
        """Detections of one frame from probabilities of presence.

        Args:
            q: Of each location.  # (n,)
            positions: Of the locations in meters. If None, every location of enough probability
                is a detection without coordinates.  # (n, 2)
            frame: Number of the frame.
            radius: As in `suppress`.
            threshold: As in `suppress`.
            pool: As in `suppress`.
        """
        if positions is None:
            where = np.flatnonzero(_probabilities(q) >= threshold)
            found = where, np.asarray(q, dtype=float)[where], np.full((len(where), 2), np.nan)
        else:
            found = suppress(q, positions, radius, threshold, pool=pool)
        location, score, xy = found
        return cls(np.full(len(location), frame), xy[:, 0], xy[:, 1], score, location, [frame])

    def save(self, path: Target) -> None:
        """Write a ``.csv`` or ``.json`` file."""
        from proxfield.people.detection_files import write_detections

        write_detections(path, self)

    @classmethod
    def load(cls, source: Source) -> Detections:
        """Read a ``.csv`` or ``.json`` file, or a folder of WILDTRACK's annotations."""
        from proxfield.people.detection_files import read_detections

        return read_detections(source)


def suppress(
    q: ArrayLike,
    positions: ArrayLike,
    radius: float = RADIUS,
    threshold: float = THRESHOLD,
    *,
    pool: float | None = None,
) -> tuple[Ints, Doubles, Doubles]:
    """Non-maximum suppression on the ground.

    The most probable location becomes a detection, locations within ``radius`` of it are dropped,
    and so on, while the probability is at least ``threshold``.

    On a fine grid the probability of one person is spread over several near-duplicates, none of
    which may reach the threshold. With ``pool`` a location stands for all within that distance:
    its probability is that of anybody being there, 1 − Π (1 − q_j), and the detection is at their
    mean, weighted by −log(1 − q_j).

    Args:
        q: Probability of presence of each location.  # (n,)
        positions: Of the locations in meters.  # (n, 2)
        radius: Minimum distance of two detections in meters.
        threshold: Minimum probability.
        pool: Distance in meters over which probabilities are pooled, at most ``radius``; 0: none
            are. By default 0.35, or the radius if that is less.

    Returns:
        Locations, probabilities and positions, the most probable first.  # (k,), (k,), (k, 2)

    Example:
        >>> ground = [[0.0, 0.0], [0.1, 0.0], [2.0, 0.0]]
        >>> suppress([0.4, 0.45, 0.9], ground, pool=0)[0].tolist()
        [2]
        >>> suppress([0.4, 0.45, 0.9], ground, pool=0.2)[0].tolist()
        [2, 1]
    """
    values = _probabilities(q)
    ground = np.asarray(positions, dtype=float)
    if ground.shape != (len(values), 2):
        raise InputError(f"positions of shape {ground.shape} for {len(values)} probabilities")
    check_real("radius", radius, lambda v: v > 0, "a number above 0")
    check_real("threshold", threshold, lambda v: 0 < v <= 1, "a number above 0")
    pool = min(POOL, radius) if pool is None else pool
    check_pool(pool, radius)
    some = np.flatnonzero(values >= (NEGLIGIBLE * threshold if pool else threshold))
    if pool and len(some) > MAX_POOLED:
        some = np.sort(some[np.argsort(-values[some], kind="stable")[:MAX_POOLED]])
    if not some.size:
        return np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros((0, 2))
    tree = cKDTree(ground[some])
    weight = -np.log1p(-np.minimum(values[some], 1 - 1e-15))
    least = -np.log1p(-min(threshold, 1 - 1e-15)) * (1 - 1e-12)
    found: list[int] = []
    scores: list[float] = []
    places: list[Doubles] = []
    order = np.argsort(-values[some], kind="stable")
    if pool and len(some) <= MAX_PAIRED:  # sums only fall: what is too little now stays so
        a, b = tree.query_pairs(pool, output_type="ndarray").T
        n = len(some)
        pooled = weight + np.bincount(a, weight[b], n) + np.bincount(b, weight[a], n)
        order = order[pooled[order] >= least * (1 - 1e-9)]
    # by their own probability: by the pooled one, a location between two people would come first
    for k in order.tolist():
        if weight[k] == 0:
            continue
        center = ground[some[k]]
        near = tree.query_ball_point(center, pool) if pool else [k]
        total = float(weight[near].sum())
        if total < least:
            continue
        found.append(int(some[k]))
        scores.append(float(-np.expm1(-total)) if pool else float(values[some[k]]))
        places.append((ground[some[near]] * weight[near][:, None]).sum(axis=0) / total)
        weight[tree.query_ball_point(center, radius)] = 0.0
    order = np.argsort(-np.array(scores), kind="stable")
    xy = np.array(places).reshape(-1, 2)
    return np.array(found, dtype=np.int64)[order], np.array(scores)[order], xy[order]


def check_pool(pool: float, radius: float) -> None:
    """Refuse to pool over more than the distance of two detections."""
    check_real("pool", pool, lambda v: 0 <= v <= radius, f"0 to the radius, {radius:g}")


def _probabilities(q: ArrayLike) -> Doubles:
    values = np.asarray(q, dtype=float)
    if values.ndim != 1 or not ((values >= 0) & (values <= 1)).all():
        raise InputError("q must be one probability per location, 0 to 1")
    return values


def _floats(values: ArrayLike, what: str) -> Doubles:
    try:
        return np.atleast_1d(np.asarray(values, dtype=np.float64))
    except (TypeError, ValueError):
        raise InputError(f"{what} must be numbers") from None


def _whole(values: ArrayLike, what: str) -> Ints:
    return np.atleast_1d(whole_numbers(values, what))
