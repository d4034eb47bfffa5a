"""A scene: what people at each location would cover in each camera."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from proxfield.core.terms.base import Doubles, Floats, as_floats
from proxfield.core.terms.unary import Unary
from proxfield.errors import InputError
from proxfield.field import Field
from proxfield.io.files import Source
from proxfield.io.pom import PomFile, read_pom
from proxfield.people.cameras import Camera
from proxfield.people.occupancy import Occupancy
from proxfield.people.silhouettes import Boxes, Runs, Silhouettes

PRIOR = 1e-3
"""Prior probability that somebody is at a location."""


@dataclass(frozen=True, eq=False)
class Scene:
    """Locations on the ground and what people there would cover in each camera.

    Args:
        silhouettes: Of each camera.
        positions: Of the locations, in meters; None if they aren't known.  # (n, 2)
        shape: Rows and columns, where the locations are those of a grid, row by row.
        names: Of the cameras, as in files' names.
        prior: Probability that somebody is at a location: one number, or one per location.

    Example:
        >>> scene = Scene((Boxes(2, 4, [[0, 0, 2, 2], [2, 0, 4, 2]]),))
        >>> scene.field([[[1, 1, 0, 0], [1, 1, 0, 0]]]).n_vars
        2
    """

    silhouettes: tuple[Silhouettes, ...]
    positions: Doubles | None = None
    shape: tuple[int, int] | None = None
    names: tuple[str, ...] = ()
    prior: float | Doubles = PRIOR

    def __post_init__(self) -> None:
        counts = {s.n_locations for s in self.silhouettes}
        if len(counts) != 1:
            raise InputError(f"cameras with different numbers of locations: {sorted(counts)}")
        if not any(s.visible.any() for s in self.silhouettes):
            raise InputError("no location is visible in any camera")
        prior = as_floats(self.prior, "priors")
        if prior.ndim and prior.shape != (self.n_locations,):
            raise InputError(f"priors of shape {prior.shape} for {self.n_locations} locations")
        if (prior <= 0).any() or (prior >= 1).any():
            raise InputError("priors must be above 0 and below 1")
        if not self.names:
            names = tuple(str(k) for k in range(len(self.silhouettes)))
            object.__setattr__(self, "names", names)
        if self.positions is not None:
            positions = as_floats(self.positions, "positions")
            if positions.shape != (self.n_locations, 2):
                raise InputError(
                    f"positions of shape {positions.shape} for {self.n_locations} locations"
                )
            object.__setattr__(self, "positions", positions)

    @classmethod
    def from_cameras(
        cls,
        cameras: Sequence[Camera],
        positions: ArrayLike,
        shape: tuple[int, int] | None = None,
        *,
        prior: float | Doubles = PRIOR,
        **person: float,
    ) -> Scene:
        """A scene from calibrated cameras.

        Args:
            cameras: Calibrated for the images that the masks will be of.
            positions: Of the locations, in meters.  # (n, 2)
            shape: Rows and columns of the grid of locations.
            prior: As in `Scene`.
            **person: As in `Camera.silhouettes`.
        """
        ground = as_floats(positions, "positions")
        seen = tuple(camera.silhouettes(ground, **person) for camera in cameras)
        return cls(seen, ground, shape, tuple(camera.name for camera in cameras), prior)

    @classmethod
    def from_pom(
        cls,
        source: Source | PomFile,
        *,
        positions: ArrayLike | None = None,
        shape: tuple[int, int] | None = None,
        prior: float | Doubles | None = None,
        size: tuple[int, int] | None = None,
        clip: bool = False,
    ) -> Scene:
        """A scene from a ``.pom`` file of the original program.

        Args:
            source: The file, or what was read from it.
            positions: Of the locations, in meters; the file doesn't have them.  # (n, 2)
            shape: Rows and columns of the grid of locations.
            prior: Instead of the file's.
            size: Width and height of images, for files that don't say; see `read_pom`.
            clip: Cut rectangles that reach outside of the image.

        Raises:
            InputError: If the file can't be read, with the line of what is wrong.
        """
        pom = source if isinstance(source, PomFile) else read_pom(source, size=size, clip=clip)
        pairs = zip(pom.sizes, pom.boxes, strict=True)
        return cls(
            tuple(Boxes(height, width, boxes) for (width, height), boxes in pairs),
            None if positions is None else as_floats(positions, "positions"),
            shape,
            tuple(str(camera) for camera in pom.cameras),
            pom.prior if prior is None else prior,
        )

    def to_pom(self, **settings: Any) -> PomFile:
        """The scene as a ``.pom`` file has it, for `proxfield.io.pom.write_pom`.

        Args:
            **settings: Other attributes of `PomFile`: ``input_format``, ``process``, …

        Raises:
            InputError: If a silhouette isn't a rectangle or priors differ between locations.
        """
        boxes = [s.boxes for s in self.silhouettes if isinstance(s, Boxes)]
        if len(boxes) != len(self.silhouettes):
            raise InputError("a .pom file has rectangles only, not silhouettes of runs")
        if np.ndim(self.prior) and "prior" not in settings:
            raise InputError("a .pom file has one prior for all locations; give prior=")
        numbers = [int(n) if n.isascii() and n.isdigit() else -1 for n in self.names]
        own = min(numbers) >= 0 and len(set(numbers)) == len(numbers)
        return PomFile(
            tuple(numbers) if own else tuple(range(len(boxes))),
            tuple((s.width, s.height) for s in self.silhouettes),
            tuple(boxes),
            **{"prior": float(np.mean(self.prior)), **settings},
        )

    @property
    def n_locations(self) -> int:
        """Number of locations."""
        return self.silhouettes[0].n_locations

    def scaled(self, scale: float) -> Scene:
        """The same scene for images of another resolution: 0.25 for a quarter."""
        return replace(self, silhouettes=tuple(scaled(s, scale) for s in self.silhouettes))

    def field(
        self,
        masks: Sequence[ArrayLike | None],
        *,
        prior: float | Floats | None = None,
        **model: Any,
    ) -> Field:
        """The field of one frame: one binary variable per location.

        Args:
            masks: Of each camera; None for one that is missing.
            prior: Instead of the scene's.
            **model: As in `Occupancy`: ``model``, ``miss``, ``strength`` and others.
        """
        given = self if prior is None else replace(self, prior=np.asarray(prior, dtype=float))
        return Field(
            self.n_locations, 2, [given._priors, Occupancy(self.silhouettes, masks, **model)]
        )

    @cached_property
    def _priors(self) -> Unary:
        """Shared by all frames: a GPU then copies it once for all of them."""
        energies = np.zeros((self.n_locations, 2))
        energies[:, 1] = np.log1p(-np.asarray(self.prior)) - np.log(self.prior)
        return Unary(energies)


def scaled(silhouettes: Silhouettes, scale: float) -> Silhouettes:
    """Silhouettes for images of another resolution; what was visible still covers a pixel."""
    height = max(1, round(silhouettes.height * scale))
    width = max(1, round(silhouettes.width * scale))
    if isinstance(silhouettes, Runs):
        raise InputError("silhouettes of runs can't be scaled; make them at the resolution wanted")
    assert isinstance(silhouettes, Boxes)
    by = np.tile([width / silhouettes.width, height / silhouettes.height], 2)
    boxes = np.floor(silhouettes.boxes * by + 0.5).astype(np.int64)
    first = np.minimum(boxes[:, :2], [width - 1, height - 1])
    last = np.maximum(boxes[:, 2:], first + 1)
    out = np.where(silhouettes.visible[:, None], np.concatenate([first, last], axis=1), 0)
    return Boxes(height, width, out)


def grid_positions(
    x: tuple[float, float], y: tuple[float, float], spacing: float
) -> tuple[NDArray[np.float64], tuple[int, int]]:
    """Locations on a regular grid, row by row, and its shape.

    Args:
        x: First and last x in meters.
        y: First and last y in meters.
        spacing: Distance of neighbors in meters.

    Example:
        >>> grid_positions((0, 1), (0, 0.5), 0.5)[1]
        (2, 3)
    """
    columns = np.arange(x[0], x[1] + 1e-9, spacing)
    rows = np.arange(y[0], y[1] + 1e-9, spacing)
    across, down = np.meshgrid(columns, rows)
    return np.stack([across.ravel(), down.ravel()], axis=1), across.shape
