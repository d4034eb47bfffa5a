"""Rectangles of a calibration, computed once and kept in a file."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from io import BytesIO
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from proxfield.core.common.arrays import Doubles
from proxfield.core.common.records import Record
from proxfield.errors import InputError
from proxfield.io.files import Target, atomic_write
from proxfield.people import cameras as rectangles
from proxfield.people.cameras import Camera
from proxfield.people.scene import Scene, grid_positions
from proxfield.people.silhouettes import Boxes

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
    kept = _read(Path(cache), _key(cameras, ground, person), cameras)
    if kept is None:
        return None
    return Scene(kept, ground, shape, tuple(camera.name for camera in cameras))


def write_cache(
    cache: Target, cameras: Sequence[Camera], scene: Scene, person: tuple[float, float]
) -> None:
    """Keep the rectangles of a scene for `read_cache`."""
    parts: Record = {
        f"boxes_{k}": s.boxes for k, s in enumerate(scene.silhouettes) if isinstance(s, Boxes)
    }
    assert scene.positions is not None
    stream = BytesIO()
    arrays: Record = {"key": np.array(_key(cameras, scene.positions, person)), **parts}
    np.savez_compressed(stream, **arrays)
    atomic_write(cache, stream.getvalue())


def _key(cameras: Sequence[Camera], ground: Doubles, person: tuple[float, float]) -> str:
    parts: list[object] = [VERSION, rectangles.AROUND, *person, rectangles.MIN_VISIBLE, ground]
    for c in cameras:
        lens = np.zeros(0) if c.distortion is None else c.distortion
        parts += [c.width, c.height, c.matrix, c.rotation, c.translation, lens]
    return fingerprint(parts)


def _read(path: Path, key: str, cameras: Sequence[Camera]) -> tuple[Boxes, ...] | None:
    """Rectangles from a file; None if it has others, or none that can be read."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            if str(stored["key"]) != key:
                return None
            boxes = [stored[f"boxes_{k}"] for k in range(len(cameras))]
        return tuple(Boxes(c.height, c.width, b) for c, b in zip(cameras, boxes, strict=True))
    except Exception:  # a damaged archive fails in many ways, and all of them mean: compute again
        return None


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
