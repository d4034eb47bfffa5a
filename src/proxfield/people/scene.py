"""A scene: what people at each location would cover in each camera; also kept in a file."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from proxfield.core.common.records import Record
from proxfield.core.terms.base import Doubles, Floats, as_floats
from proxfield.core.terms.unary import Unary
from proxfield.errors import InputError
from proxfield.field import Field
from proxfield.io.files import Source, Target, atomic_write
from proxfield.io.pom import PomFile, read_pom
from proxfield.people import cameras as rectangles
from proxfield.people.cameras import Camera
from proxfield.people.occupancy import Occupancy
from proxfield.people.silhouettes import Boxes, Silhouettes

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
        some = [s.scaled(scale) for s in self.silhouettes if isinstance(s, Boxes)]
        if len(some) < len(self.silhouettes):
            raise InputError(
                "silhouettes of runs can't be scaled; make them at the resolution wanted"
            )
        return replace(self, silhouettes=tuple(some))

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


# ---- rectangles of a calibration, computed once and kept in a file ----


VERSION = "1"
"""Of how rectangles are computed; another one makes files with old ones void."""
SEARCHED = 40.0
"""Distance in meters around the cameras within which the ground that they see is searched."""
MIN_PIXELS = 0.025
"""Height of a person, as a share of the image's, from which on a camera sees them well."""


def fingerprint(parts: Iterable[object]) -> str:
    """A hash of the content of arrays, numbers and texts."""
    total = hashlib.sha256()
    for part in parts:
        array = np.asarray(part)
        total.update(f"{array.dtype.str}{array.shape}|".encode())
        total.update(array.tobytes())
    return total.hexdigest()


def scene_fingerprint(scene: Scene) -> str:
    """A hash of locations and silhouettes, without the prior."""
    parts: list[object] = [*scene.names, scene.shape is not None]
    parts += [] if scene.positions is None else [scene.positions]
    for s in scene.silhouettes:
        parts += [s.height, s.width, *s.to_arrays().values()]
    return fingerprint(parts)


def read_cache(
    cache: Target,
    cameras: Sequence[Camera],
    positions: ArrayLike,
    shape: tuple[int, int] | None,
    person: tuple[float, float],
) -> Scene | None:
    """`Scene.from_cameras` with the rectangles from a file; None if it has no such.

    The file has a hash of the cameras and the locations, so that rectangles of others never count.

    Args:
        cache: The file, ``.npz``.
        cameras: Calibrated for the images that the masks will be of.
        positions: Of the locations, in meters.  # (n, 2)
        shape: Rows and columns of the grid of locations.
        person: Height and radius of a person in meters.
    """
    ground = np.asarray(positions, dtype=np.float64)
    try:
        with np.load(Path(cache), allow_pickle=False) as stored:
            if str(stored["key"]) != _key(cameras, ground, person):
                return None
            boxes = [stored[f"boxes_{k}"] for k in range(len(cameras))]
        kept = tuple(Boxes(c.height, c.width, b) for c, b in zip(cameras, boxes, strict=True))
    except Exception:  # a damaged archive fails in many ways, and all of them mean: compute again
        return None
    return Scene(kept, ground, shape, tuple(camera.name for camera in cameras))


def write_cache(
    cache: Target, cameras: Sequence[Camera], scene: Scene, person: tuple[float, float]
) -> None:
    """Keep the rectangles of a scene for `read_cache`."""
    assert scene.positions is not None
    arrays: Record = {"key": np.array(_key(cameras, scene.positions, person))}
    for k, s in enumerate(scene.silhouettes):
        arrays[f"boxes_{k}"] = s.to_arrays()["boxes"]
    stream = BytesIO()
    np.savez_compressed(stream, **arrays)
    atomic_write(cache, stream.getvalue())


def _key(cameras: Sequence[Camera], ground: Doubles, person: tuple[float, float]) -> str:
    parts: list[object] = [VERSION, rectangles.AROUND, *person, rectangles.MIN_VISIBLE, ground]
    for c in cameras:
        lens = np.zeros(0) if c.distortion is None else c.distortion
        parts += [c.width, c.height, c.matrix, c.rotation, c.translation, lens]
    return fingerprint(parts)


def visible_region(cameras: Sequence[Camera]) -> tuple[float, float, float, float]:
    """The rectangle on the ground around all places where some camera sees people well.

    Generous, since nobody is found outside of it; a region that is known is better.

    Returns:
        Smallest x and y, largest x and y, in whole meters.

    Raises:
        InputError: If there is no such place.
    """
    centers = np.array([camera.center[:2] for camera in cameras])
    low, high = centers.min(axis=0) - SEARCHED, centers.max(axis=0) + SEARCHED
    step = max(1.0, float(np.max(high - low)) / 200)
    places, _ = grid_positions(
        (float(np.floor(low[0])), float(high[0])), (float(np.floor(low[1])), float(high[1])), step
    )
    seen = np.zeros(len(places), dtype=bool)
    for camera in cameras:
        boxes = camera.silhouettes(places).boxes
        seen |= (boxes[:, 3] - boxes[:, 1]) >= max(1.0, MIN_PIXELS * camera.height)
    inside = places[seen]
    if not len(inside):
        raise InputError(
            "no place on the ground is seen by any camera; check the unit of the calibration"
        )
    x0, y0 = np.floor(inside.min(axis=0)).tolist()
    x1, y1 = np.ceil(inside.max(axis=0)).tolist()
    return x0, y0, x1, y1
