"""Calibrated cameras: where points of the world are in an image, and what a person covers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from proxfield.core.common.extras import install_hint
from proxfield.core.terms.base import Floats, as_floats
from proxfield.errors import InputError, UnsupportedError
from proxfield.io.calibration import Calibration, read_calibration, write_calibration
from proxfield.io.files import Target, display_name
from proxfield.people.silhouettes import Boxes

PERSON_HEIGHT = 1.75
"""Height of a person in meters."""
PERSON_RADIUS = 0.2
"""Radius in meters of the cylinder whose rectangle stands for a person in a mask.

Narrower than a person with arms: the corners of the rectangle around those are background."""
BOX_HEIGHT = 1.85
"""Height of the cylinder that stands for a detector's box: such boxes leave room."""
BOX_RADIUS = 0.4
"""Radius of that cylinder."""
MIN_VISIBLE = 0.25
"""Share of a person's rectangle that must be inside the image."""
AROUND = 8
"""Points on the upper and on the lower rim of the cylinder that are projected."""
NEAREST = 0.1
"""Distance in meters up to which points count as behind the camera."""


@dataclass(frozen=True, eq=False)
class Camera:
    """A calibrated camera: x = K (R X + t), in meters and pixels.

    Args:
        width: Columns of its images.
        height: Rows of its images.
        matrix: K.  # (3, 3)
        rotation: R.  # (3, 3)
        translation: t, in meters.  # (3,)
        distortion: Coefficients of lens distortion as in OpenCV; none by default.
        name: For messages and files.
    """

    width: int
    height: int
    matrix: Floats
    rotation: Floats
    translation: Floats
    distortion: Floats | None = None
    name: str = ""

    def __post_init__(self) -> None:
        for key, shape in (("matrix", (3, 3)), ("rotation", (3, 3)), ("translation", (3,))):
            value = as_floats(getattr(self, key), f"{key} of camera {self.name}")
            if value.size != np.prod(shape):
                raise InputError(
                    f"{key} of camera {self.name} has shape {value.shape}, expected {shape}"
                )
            object.__setattr__(self, key, value.reshape(shape))
        r = self.rotation
        if not np.allclose(r @ r.T, np.eye(3), atol=1e-3):
            raise InputError(f"the rotation of camera {self.name} isn't a rotation: R Rᵀ ≠ 1")
        if self.distortion is not None:
            lens = as_floats(self.distortion, f"distortion of camera {self.name}").ravel()
            object.__setattr__(self, "distortion", lens if lens.any() else None)

    def scaled(self, scale: float) -> Camera:
        """The same camera with images of another resolution: 0.25 for a quarter."""
        width, height = (max(1, round(n * scale)) for n in (self.width, self.height))
        factors = np.diag([width / self.width, height / self.height, 1.0])
        return replace(self, width=width, height=height, matrix=factors @ self.matrix)

    @cached_property
    def center(self) -> NDArray[np.float64]:
        """Where the camera is.  # (3,)"""
        return np.asarray(-self.rotation.T @ self.translation)

    def project(self, points: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Points of the world in the image.

        Args:
            points: In meters.  # (m, 3)

        Returns:
            Columns and rows in pixels, NaN for points behind the camera, and depths in meters.
            # (m, 2), (m,)
        """
        world = as_floats(points, "points").reshape(-1, 3)
        # (3, m): a product with few columns is many times slower
        seen = self.rotation @ world.T + self.translation[:, None]
        depth = seen[2]
        front = depth > NEAREST
        out = np.full((len(world), 2), np.nan)
        if self.distortion is None:
            image = self.matrix @ seen
            np.divide(image[:2].T, image[2][:, None], out=out, where=front[:, None])
        elif front.any():
            try:
                import cv2
            except ImportError:
                raise UnsupportedError(
                    f"camera {self.name} has lens distortion, which needs OpenCV: "
                    f"{install_hint('video')}"
                ) from None
            turn = cv2.Rodrigues(self.rotation)[0]
            found, _ = cv2.projectPoints(
                world[front], turn, self.translation, self.matrix, self.distortion
            )
            out[front] = found.reshape(-1, 2)
        return out, depth

    def rectangles(
        self,
        positions: ArrayLike,
        person_height: ArrayLike = PERSON_HEIGHT,
        person_radius: ArrayLike = PERSON_RADIUS,
    ) -> NDArray[np.float64]:
        """Rectangles around cylinders that stand on the ground, also outside of the image.

        Args:
            positions: On the ground, z = 0, in meters.  # (n, 2)
            person_height: In meters; one for all or one per position.
            person_radius: In meters; one for all or one per position.

        Returns:
            Left, top, right and bottom in pixels; NaN behind the camera.  # (n, 4)
        """
        ground = as_floats(positions, "positions").reshape(-1, 2)
        n = len(ground)
        radius = np.broadcast_to(np.asarray(person_radius, dtype=float), n)
        top = np.broadcast_to(np.asarray(person_height, dtype=float), n)
        angle = 2 * np.pi * np.arange(AROUND) / AROUND
        rim = radius[:, None, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)
        flat = (ground[:, None] + rim).reshape(-1, 2)
        levels = [np.c_[flat, np.repeat(z, AROUND)] for z in (np.zeros(n), top)]
        found, _ = self.project(np.concatenate(levels))
        xy = found.reshape(2, n, AROUND, 2)
        return np.concatenate([xy.min(axis=(0, 2)), xy.max(axis=(0, 2))], axis=1)

    def silhouettes(
        self,
        positions: ArrayLike,
        *,
        person_height: float = PERSON_HEIGHT,
        person_radius: float = PERSON_RADIUS,
        min_visible: float = MIN_VISIBLE,
    ) -> Boxes:
        """What people at positions on the ground would cover: rectangles around cylinders.

        Args:
            positions: On the ground, z = 0, in meters.  # (n, 2)
            person_height: In meters.
            person_radius: In meters.
            min_visible: Share of the rectangle that must be inside the image; otherwise the
                position counts as not visible.
        """
        outline = self.rectangles(positions, person_height, person_radius)
        hidden = np.isnan(outline).any(axis=1)
        outline[hidden] = 0.0
        low, high = outline[:, :2], outline[:, 2:]
        whole = np.prod(high - low, axis=1)
        limit = np.array([self.width, self.height])
        low, high = np.clip(low, 0, limit), np.clip(high, 0, limit)
        hidden |= np.prod(high - low, axis=1) < min_visible * np.maximum(whole, 1e-9)
        boxes = np.concatenate([np.floor(low + 0.5), np.floor(high + 0.5)], axis=1).astype(int)
        boxes[hidden] = 0
        return Boxes(self.height, self.width, boxes)


def load_cameras(
    path: Target,
    *,
    names: Sequence[str] | None = None,
    size: tuple[int, int] | None = None,
    unit: str | None = None,
) -> tuple[Camera, ...]:
    """Cameras from a calibration: a JSON file, or a folder like WILDTRACK's.

    Args:
        path: A JSON file, or a folder like WILDTRACK's ``calibrations``, with ``extr_NAME.xml``
            and ``intr_NAME.xml`` in folders ``extrinsic`` and ``intrinsic_zero``, or side by side.
        names: Of the cameras that are wanted, in this order; by default all, in the order of
            the file, or of their names.
        size: Width and height of the images, where files don't say.
        unit: "m", "cm" or "mm"; by default what the file says, cm for WILDTRACK, else m.

    Raises:
        InputError: If files can't be read, contradict themselves, or leave the size open.
    """
    out = []
    for c in read_calibration(path, cameras=names, size=size, unit=unit):
        if c.size is None:
            raise InputError(
                f"camera {c.name}: the calibration doesn't say the size of images; give it",
                path=display_name(path),
            )
        out.append(Camera(*c.size, c.matrix, c.rotation, c.translation, c.distortion, c.name))
    return tuple(out)


def save_cameras(path: Target, cameras: Iterable[Camera]) -> None:
    """Write the calibrations of cameras as JSON, which `load_cameras` reads."""
    parts = [
        Calibration(c.name, c.matrix, c.rotation, c.translation, c.distortion, (c.width, c.height))
        for c in cameras
    ]
    write_calibration(path, parts)
