"""From masks to people: occupancy maps of frames, and the detections in them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from proxfield.core.common.checks import above_zero, check_real, one_of, whole_number
from proxfield.core.common.records import Record
from proxfield.core.solve.infer import infer
from proxfield.core.solve.many import infer_many
from proxfield.core.solve.rules.base import Rule
from proxfield.core.terms.base import Doubles
from proxfield.errors import InputError
from proxfield.field import Field
from proxfield.people.detections import POOL as POOL
from proxfield.people.detections import RADIUS, THRESHOLD, Detections, check_pool
from proxfield.people.occupancy import MODELS, STRENGTH
from proxfield.people.scene import Scene
from proxfield.result import Result

DENSITY = 0.003
"""Expected number of people per square meter."""
PASSES = 25
"""Maximum number of iterations per frame."""
WARM_WEIGHT = 0.5
"""Weight of the frame before in a warm start; the rest is the prior. With all weight on it, its
probabilities near 0 and 1 would hold where people have moved."""

Masks = Sequence[ArrayLike | None]
"""A mask per camera; None for one that is missing."""


@dataclass(frozen=True, eq=False)
class OccupancyMap:
    """Where people are in one frame.

    Attributes:
        scene: Locations and cameras.
        q: Probability that somebody is at each location.  # (n,)
        detections: People, after suppression of what isn't a maximum.
        result: Of the inference: status, F, iterations, trace.
        frame: Number of the frame.
    """

    scene: Scene
    q: Doubles
    detections: Detections
    result: Result
    frame: int = 0

    @property
    def image(self) -> NDArray[np.float64]:
        """q on the grid of the scene.  # (rows, columns)"""
        if self.scene.shape is None:
            raise InputError("the locations of this scene aren't those of a grid")
        return self.q.reshape(self.scene.shape)

    def __repr__(self) -> str:
        count, status = len(self.detections), self.result.status.label
        return f"<OccupancyMap of frame {self.frame}: {count} people, {status}>"


@dataclass(frozen=True, eq=False)
class Detector:
    """Finds people in frames: the model, the rule, and how maps become detections.

    The prior probability of a location is 1 − exp(−density · area of its cell), so that it follows
    the spacing of the grid: people don't become more likely where locations are closer together.

    Args:
        model: "exact" or "ratio"; see `Occupancy`.
        rule: Update rule, by name or as a `Rule`. "original" needs ``model="ratio"``.
        params: Parameters of a rule given by name.
        passes: Maximum number of iterations per frame; None: the rule's default.
        tol: As in `infer`.
        miss: As in `Occupancy` ("exact").
        false_alarm: As in `Occupancy` ("exact").
        strength: As in `Occupancy` ("exact").
        variance: As in `Occupancy` ("ratio").
        floor: As in `Occupancy` ("ratio").
        density: Expected number of people per square meter. None: the prior of the scene, as for
            scenes whose locations have no known distance.
        prior: Prior probability instead: one number, or one per location.  # () or (n,)
        radius: Minimum distance of two detections in meters.
        threshold: Minimum probability of a detection.
        pool: Distance in meters over which probabilities are pooled; see `suppress`. By default
            0.35, or the radius if that is less.
        device: As in `infer`.
        kernels: As in `infer`.
        threads: As in `infer`.

    Example:
        >>> from proxfield.people.simulate import simulate
        >>> square = simulate("square", people=3, size=(96, 72), spacing=1.0)
        >>> Detector().detect(square.scene, square.masks(0)).q.shape
        (441,)
    """

    model: str = "exact"
    rule: str | Rule = "backtracking"
    params: Mapping[str, Any] = field(default_factory=dict)
    passes: int | None = PASSES
    tol: float = 1e-6
    miss: float = 0.3
    false_alarm: float = 0.05
    strength: float = STRENGTH
    variance: float = 0.01
    floor: float = 0.01
    density: float | None = DENSITY
    prior: float | Doubles | None = None
    radius: float = RADIUS
    threshold: float = THRESHOLD
    pool: float | None = None
    device: str = "cpu"
    kernels: str | None = None
    threads: int | None = None

    def __post_init__(self) -> None:
        if self.density is not None:
            above_zero("density", self.density)
        one_of("model", self.model, MODELS)
        above_zero("radius", self.radius)
        check_real("threshold", self.threshold, lambda v: 0 < v <= 1, "above 0 and at most 1")
        if self.pool is not None:
            check_pool(self.pool, self.radius)
        if self.passes is not None:
            whole_number(self.passes, "passes", 0)

    def detect(
        self,
        scene: Scene,
        masks: Masks,
        *,
        start: OccupancyMap | ArrayLike | None = None,
        frame: int = 0,
    ) -> OccupancyMap:
        """Where people are in one frame.

        Args:
            scene: Locations and what people there would cover.
            masks: Of each camera; None for one that is missing.  # (height, width) each
            start: The map of the frame before, or its probabilities: a start that needs fewer
                iterations. It is mixed with the prior. By default the prior alone.  # (n,)
            frame: Number of the frame, for the detections.

        Raises:
            InputError: If masks or settings don't fit the scene.
        """
        prepared = self.prepare(scene)
        (result,) = self._solve(prepared, [masks], [start])
        return self._make_map(prepared, result, frame)

    def detect_many(
        self,
        scene: Scene,
        frames: Iterable[Masks],
        *,
        warm: bool = False,
        batch: int = 1,
    ) -> Iterator[OccupancyMap]:
        """Where people are, frame by frame, numbered from 0.

        Args:
            scene: Locations and what people there would cover.
            frames: The masks of each frame.
            warm: Start each frame from the one before.
            batch: Number of frames to solve together, which pays on a GPU; not with ``warm``.
        """
        size = whole_number(batch, "batch", 1)
        if warm and size > 1:
            raise InputError("a warm start needs the frame before: batch must be 1")
        prepared = self.prepare(scene)
        before: OccupancyMap | None = None
        rest, number = iter(frames), 0
        while some := list(islice(rest, size)):
            starts = [before if warm else None] * len(some)
            for result in self._solve(prepared, some, starts):
                before = self._make_map(prepared, result, number)
                number += 1
                yield before

    def prepare(self, scene: Scene) -> Scene:
        """The scene with the prior that the settings ask for."""
        if self.prior is not None:
            return replace(scene, prior=self.prior)
        area = None if self.density is None else cell_area(scene)
        if area is None or self.density is None:
            return scene
        return replace(scene, prior=float(-np.expm1(-self.density * area)))

    def field(self, scene: Scene, masks: Masks) -> Field:
        """The field of one frame of a scene from `prepare`."""
        names = ("model", "miss", "false_alarm", "strength", "variance", "floor")
        return scene.field(masks, **{name: getattr(self, name) for name in names})

    def _solve(
        self,
        scene: Scene,
        frames: Sequence[Masks],
        starts: Sequence[OccupancyMap | ArrayLike | None],
    ) -> list[Result]:
        """The one place where frames are solved."""
        fields = [self.field(scene, masks) for masks in frames]
        inits = ["unary" if s is None else warm_start(scene, s) for s in starts]
        names = ("tol", "device", "kernels", "threads")
        limits: Record = {"max_iters": self.passes, **{k: getattr(self, k) for k in names}}
        if len(fields) == 1:
            return [infer(fields[0], self.rule, init=inits[0], **limits, **self.params)]
        return infer_many(fields, self.rule, init=inits, **limits, **self.params)

    def _make_map(self, scene: Scene, result: Result, frame: int) -> OccupancyMap:
        q = np.clip(result.q[1::2], 0.0, 1.0)
        how: Record = {"radius": self.radius, "threshold": self.threshold, "pool": self.pool}
        found = Detections.from_map(q, scene.positions, frame, **how)
        return OccupancyMap(scene, q, found, result, frame)


def warm_start(scene: Scene, before: OccupancyMap | ArrayLike) -> NDArray[np.float64]:
    """Marginals to start from: the probabilities of the frame before, mixed with the prior.

    Args:
        scene: Whose prior is used.
        before: The map of the frame before, or its probabilities.  # (n,)

    Returns:
        Marginals.  # (n, 2)
    """
    q = np.asarray(before.q if isinstance(before, OccupancyMap) else before, dtype=float)
    if q.shape != (scene.n_locations,) or not ((q >= 0) & (q <= 1)).all():
        raise InputError(
            f"a start of shape {q.shape} for {scene.n_locations} locations, expected one "
            "probability per location"
        )
    mixed = WARM_WEIGHT * q + (1 - WARM_WEIGHT) * np.asarray(scene.prior)
    return np.stack([1 - mixed, mixed], axis=1)


def cell_area(scene: Scene) -> float | None:
    """Square meters of ground per location; None where distances aren't known.

    For locations that aren't a grid: the square of the median distance to the nearest other one.

    Example:
        >>> from proxfield.people.silhouettes import Boxes
        >>> boxes = Boxes(2, 2, [[0, 0, 1, 1], [1, 1, 2, 2]])
        >>> cell_area(Scene((boxes,), [[0.0, 0.0], [0.5, 0.0]]))
        0.25
    """
    places = scene.positions
    if places is None or len(places) < 2:
        return None
    if scene.shape is not None and min(scene.shape) > 1:
        grid = places.reshape(*scene.shape, 2)
        across, down = grid[0, 1] - grid[0, 0], grid[1, 0] - grid[0, 0]
        area = abs(float(across[0] * down[1] - across[1] * down[0]))
    else:
        from scipy.spatial import cKDTree

        near, _ = cKDTree(places).query(places, k=2)
        area = float(np.median(near[:, 1])) ** 2
    return area if area > 0 else None
