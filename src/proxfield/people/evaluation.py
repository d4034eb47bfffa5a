"""How good detections are: MODA, MODP, precision and recall on the ground.

In each frame detections are assigned to people so that as many pairs as possible are closer than
the radius, and among such assignments so that the sum of distances is smallest (Hungarian
algorithm). With m misses, f false alarms, g people and matches at distances d_k:

- MODA = 1 − Σ (m + f) / Σ g over all frames (Bernardin & Stiefelhagen 2008; Kasturi et al. 2009),
  negative where false alarms outnumber matches;
- MODP = mean over all matches of 1 − d_k/radius. This is how published results on WILDTRACK are
  computed; Kasturi et al. take the mean of each frame first, then that of the frames.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import linear_sum_assignment

from proxfield.core.common.arrays import Doubles, Ints
from proxfield.core.common.checks import check_real, whole_numbers
from proxfield.core.common.records import Record, plain
from proxfield.errors import InputError, shown
from proxfield.io.files import display_name, read_bytes
from proxfield.people.detections import Detections

RADIUS = 0.5
"""Maximum distance of a match in meters."""
SLACK = 1e-9
"""Relative rounding error of distances: positions on a grid are often at the radius exactly."""
HEADER = ("frame", "people", "matches", "misses", "false_alarms", "moda", "modp")


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What was found and what wasn't, frame by frame and in all.

    Args:
        frames: Numbers of the frames.  # (F,)
        people: Number of people in each frame.  # (F,)
        matches: Number of people that were found.  # (F,)
        false_alarms: Number of detections that are nobody.  # (F,)
        closeness: Sum of 1 − d/radius over the matches of each frame.  # (F,)
        radius: Maximum distance of a match in meters.
    """

    frames: Ints
    people: Ints
    matches: Ints
    false_alarms: Ints
    closeness: Doubles
    radius: float

    @property
    def misses(self) -> Ints:
        """Number of people in each frame who weren't found.  # (F,)"""
        return np.asarray(self.people - self.matches)

    @property
    def moda(self) -> float:
        """1 − (misses + false alarms)/people; NaN without people."""
        wrong = self.misses.sum() + self.false_alarms.sum()
        return 1 - _ratio(wrong, self.people.sum())

    @property
    def modp(self) -> float:
        """Mean of 1 − d/radius over all matches; NaN without any."""
        return _ratio(self.closeness.sum(), self.matches.sum())

    @property
    def precision(self) -> float:
        """Share of the detections that are people; NaN without detections."""
        return _ratio(self.matches.sum(), self.matches.sum() + self.false_alarms.sum())

    @property
    def recall(self) -> float:
        """Share of the people who were found; NaN without people."""
        return _ratio(self.matches.sum(), self.people.sum())

    def summary(self) -> Record:
        """Numbers for all frames together, by name."""
        shares = ("moda", "modp", "precision", "recall")
        counts = ("people", "matches", "misses", "false_alarms")
        return {
            **{name: getattr(self, name) for name in shares},
            **{name: int(getattr(self, name).sum()) for name in counts},
            "frames": len(self.frames),
            "radius": self.radius,
        }

    def per_frame(self) -> list[Record]:
        """Numbers of each frame, by name; those that aren't defined are NaN."""
        wrong = self.misses + self.false_alarms
        columns = (self.frames, self.people, self.matches, self.misses, self.false_alarms)
        out = []
        for k in range(len(self.frames)):
            moda = 1 - _ratio(wrong[k], self.people[k])
            modp = _ratio(self.closeness[k], self.matches[k])
            out.append(dict(zip(HEADER, (*(int(c[k]) for c in columns), moda, modp), strict=True)))
        return out

    def to_json(self, *, per_frame: bool = False) -> Record:
        """The summary as JSON has it, None for what isn't defined; frames on request."""
        frames = {"per_frame": self.per_frame()} if per_frame else {}
        return {key: plain(value) for key, value in {**self.summary(), **frames}.items()}

    def to_csv(self) -> str:
        """One line per frame; what isn't defined is left empty."""
        rows = [HEADER] + [
            ["" if v != v else f"{v:.9g}" for v in row.values()] for row in self.per_frame()
        ]
        return "".join(",".join(row) + "\n" for row in rows)

    def __repr__(self) -> str:
        return (
            f"<Evaluation: MODA {self.moda:.3f}, MODP {self.modp:.3f}, precision "
            f"{self.precision:.3f}, recall {self.recall:.3f}, {len(self.frames)} frames, "
            f"radius {self.radius:g} m>"
        )


def evaluate(
    detections: Detections,
    truth: Detections,
    radius: float = RADIUS,
    *,
    roi: ArrayLike | None = None,
    frames: Sequence[int] | None = None,
) -> Evaluation:
    """Compare detections with the truth.

    Args:
        detections: What was found. Detections in frames that the truth doesn't have are ignored.
        truth: Where people are. Its `frames` are compared, also those without detections.
        radius: Detections and people match if they are closer, in meters.
        roi: Corners of the region of interest; detections and people outside are dropped. By
            default there is none.  # (k, 2)
        frames: Compare these frames only; the truth must have them.

    Raises:
        InputError: If there is nothing to compare.

    Example:
        >>> truth = Detections([0, 0, 1], [0.0, 2.0, 0.0], [0.0, 0.0, 0.0])
        >>> found = Detections([0, 0], [0.1, 5.0], [0.0, 0.0])
        >>> evaluate(found, truth, 0.5)
        <Evaluation: MODA 0.000, MODP 0.800, precision 0.500, recall 0.333, 2 frames, radius 0.5 m>
    """
    check_real("radius", radius, lambda v: 0 < v < math.inf, "a number of meters above 0")
    wanted = truth.frames if frames is None else np.unique(whole_numbers(frames, "frames"))
    lost = np.setdiff1d(wanted, truth.frames)
    if lost.size:
        raise InputError(f"the truth doesn't have frame {lost[0]}")
    if not wanted.size:
        raise InputError("the truth has no frames")
    if detections.frames.size and not np.isin(detections.frames, wanted).any():
        raise InputError(
            f"no frame in common: the truth has {_span(wanted)}, the detections "
            f"{_span(detections.frames)}"
        )
    sides = []
    for side, name in ((truth, "the truth"), (detections, "the detections")):
        some = side.select(np.isin(side.frame, wanted))
        if np.isnan(some.positions).any():
            raise InputError(f"{name} have no coordinates, expected x and y in meters")
        if roi is not None:
            some = some.select(inside(some.positions, roi))
        order = np.argsort(some.frame, kind="stable")
        bounds = np.searchsorted(some.frame[order], np.append(wanted, wanted[-1] + 1))
        # frames aren't always consecutive, those between them were dropped before
        sides.append(np.split(some.positions[order], bounds[1:-1]))
    rows = [match(found, people, radius) for people, found in zip(*sides, strict=True)]
    counts = np.array([len(d) for d in rows], dtype=np.int64)
    people = np.array([len(p) for p in sides[0]], dtype=np.int64)
    found = np.array([len(p) for p in sides[1]], dtype=np.int64)
    closeness = np.array([float((1 - d / radius).sum()) for d in rows])
    return Evaluation(wanted, people, counts, found - counts, closeness, float(radius))


def match(found: Doubles, people: Doubles, radius: float) -> Doubles:
    """Distances of the pairs of detections and people that match.

    Args:
        found: Positions of detections.  # (n, 2)
        people: Positions of people.  # (m, 2)
        radius: Pairs are closer than this.

    Returns:
        The distance of each pair, as many pairs as possible.  # (k,)
    """
    if not len(found) or not len(people):
        return np.zeros(0)
    far = np.linalg.norm(found[:, None] - people[None], axis=2)
    near = far < radius * (1 - SLACK)
    # one pair more is worth more than any sum of distances
    cost = np.where(near, far / radius, 2.0 * min(far.shape))
    rows, columns = linear_sum_assignment(cost)
    return np.asarray(far[rows, columns][near[rows, columns]])


def inside(points: Doubles, polygon: ArrayLike) -> NDArray[np.bool_]:
    """Which points are in a polygon, its border included.

    Args:
        points: Any number of points.  # (n, 2)
        polygon: Its corners in order; the last is joined to the first.  # (k, 2)

    Example:
        >>> inside(np.array([[0.5, 0.5], [1.0, 0.2], [2.0, 2.0]]), [[0, 0], [1, 0], [1, 1], [0, 1]])
        array([ True,  True, False])
    """
    corners = np.asarray(polygon, dtype=float)
    if corners.ndim != 2 or corners.shape[1] != 2 or len(corners) < 3:
        raise InputError(f"a region of shape {corners.shape}, expected at least 3 corners of x, y")
    if not np.isfinite(corners).all():
        raise InputError("corners of the region must be finite numbers")
    x, y = points[:, :1], points[:, 1:]
    ax, ay = corners.T
    bx, by = np.roll(corners, -1, axis=0).T
    side = (bx - ax) * (y - ay) - (by - ay) * (x - ax)  # (n, k)
    crossed = (ay <= y) != (by <= y)
    odd = (crossed & ((side > 0) == (by > ay))).sum(axis=1) % 2 == 1
    dx, dy = bx - ax, by - ay
    along = (x - ax) * dx + (y - ay) * dy
    share = np.clip(along / np.maximum(dx**2 + dy**2, 1e-300), 0.0, 1.0)  # nearest point of a side
    away = np.hypot(x - ax - share * dx, y - ay - share * dy)
    on = away <= 1e-9 * max(1.0, float(np.abs(corners).max()))
    return np.asarray(odd | on.any(axis=1))


def parse_polygon(text: str) -> Doubles:
    """Corners from a text, ``"x,y x,y x,y"``, or from a file of that, lines or JSON.

    Raises:
        InputError: If these are no corners.

    Example:
        >>> parse_polygon("0,0 4,0 4,3").tolist()
        [[0.0, 0.0], [4.0, 0.0], [4.0, 3.0]]
    """
    found = _corners(text)
    if found is not None:
        return found
    if any(c.isspace() for c in text.strip()) and "," in text:
        raise InputError(f"region {shown(text)}, expected corners: x,y x,y x,y")
    data, name = read_bytes(text)
    found = _corners(data.decode("utf-8", "replace"))
    if found is None:
        raise InputError(
            "expected at least 3 corners: x,y on each line, or a JSON list of [x, y]",
            path=display_name(name),
        )
    return found


def _corners(text: str) -> Doubles | None:
    """At least three pairs of numbers, None for anything else."""
    pairs = text.replace("[", " ").replace("]", " ").replace(",", " ").split()
    try:
        numbers = np.array([float(word) for word in pairs])
    except ValueError:
        return None
    if numbers.size < 6 or numbers.size % 2 or not np.isfinite(numbers).all():
        return None
    return numbers.reshape(-1, 2)


def _span(frames: Ints) -> str:
    return f"{frames[0]} to {frames[-1]}" if len(frames) > 1 else f"{frames[0]}"


def _ratio(part: float, whole: float) -> float:
    return float(part) / float(whole) if whole else math.nan
