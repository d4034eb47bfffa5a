"""Calibrated cameras: where points of the world are in an image, and what a person covers.

Files are our JSON, plain JSON, and the XML of OpenCV as in WILDTRACK. A calibration says where a
point X of the world is in an image, x = K (R X + t), with z upwards and the ground at z = 0. Here
lengths are in meters always; files say what they are in, or the caller.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
from numpy.typing import ArrayLike, NDArray

from proxfield.core.common.checks import is_exact, one_of
from proxfield.core.common.extras import install_hint
from proxfield.core.common.records import Record
from proxfield.core.terms.base import Floats, as_floats
from proxfield.errors import InputError, UnsupportedError, shown
from proxfield.io.files import (
    Target,
    atomic_write,
    decode_text,
    display_name,
    naming,
    parse_json,
    read_bytes,
)
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
FORMAT = "proxfield calibration"
UNITS = {"m": 1.0, "cm": 0.01, "mm": 0.001}
"""Lengths in meters."""
FARTHEST = 100.0
"""Distance in meters beyond which a camera is probably given in another unit."""
WILDTRACK_SIZE = (1920, 1080)
INTRINSIC = ("intrinsic_zero", "intrinsic", "intrinsic_original")
"""Folders of WILDTRACK, the first that there is: for images without distortion, or with it."""


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


# ---- calibrations in files ----


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
    if unit is not None:
        one_of("unit", unit, UNITS)
    where = Path(path)
    with naming(path):
        found = _read_folder(where, unit) if where.is_dir() else _read_json(where, unit)
        for name in names or ():
            if name not in found:
                raise InputError(
                    f"has no camera {shown(name)}, expected one of: {', '.join(found)}"
                )
        chosen = found if names is None else names
        return tuple(_checked(name, found[name], size, unit) for name in chosen)


def save_cameras(path: Target, cameras: Iterable[Camera]) -> None:
    """Write the calibrations of cameras as JSON, which `load_cameras` reads."""
    parts: Record = {}
    for c in cameras:
        if c.name in parts:
            raise InputError(f"two cameras are called {shown(c.name)}", path=display_name(path))
        parts[c.name] = {
            "size": [c.width, c.height],
            "K": c.matrix.tolist(),
            "R": c.rotation.tolist(),
            "t": c.translation.tolist(),
            "dist": None if c.distortion is None else c.distortion.tolist(),
        }
    content = {"format": FORMAT, "unit": "m", "cameras": parts}
    atomic_write(path, json.dumps(content, indent=1, allow_nan=False) + "\n")


def _read_json(path: Path, unit: str | None) -> dict[str, Record]:
    """What the file says about each camera: arguments of `Camera`, and the size if it has one."""
    data, name = read_bytes(path)
    content = parse_json(decode_text(data, name, "a calibration in JSON"), name)
    if not isinstance(content, dict):
        raise InputError("expected an object with the cameras by name")
    own = "cameras" in content
    given = content.get("unit", "m") if own else "m"
    if given not in UNITS:
        raise InputError(f"unit {shown(given)}, expected one of: {', '.join(UNITS)}")
    cameras = content["cameras"] if own else content
    if not isinstance(cameras, dict) or not cameras:
        raise InputError("has no cameras")
    out: dict[str, Record] = {}
    for camera, value in cameras.items():
        if not isinstance(value, dict):
            raise InputError(f"camera {camera}: expected an object with K, R, t")
        c = out[camera] = {}
        for key, name, shape in (
            ("K", "matrix", (3, 3)),
            ("R", "rotation", (3, 3)),
            ("t", "translation", (3,)),
        ):
            if key not in value:
                raise InputError(f"camera {camera} has no {key}, expected K, R and t")
            c[name] = _array(value[key], shape, f"camera {camera}: {key}")
        lens = value.get("dist")
        c["distortion"] = None if lens is None else _array(lens, (-1,), f"camera {camera}: dist")
        c["translation"] *= UNITS[unit or given]
        c["size"] = _size(value, camera)
    return out


def _size(value: Mapping[str, object], camera: str) -> tuple[int, int] | None:
    """Width and height, as one pair or by name."""
    given = value.get("size")
    if given is None and "width" in value and "height" in value:
        given = [value["width"], value["height"]]
    if given is None:
        return None
    if not isinstance(given, list) or len(given) != 2 or not all(is_exact(v) for v in given):
        raise InputError(f"camera {camera}: size {shown(given)}, expected two numbers")
    width, height = int(given[0]), int(given[1])
    if min(width, height) < 1:
        raise InputError(f"camera {camera}: images of {width}×{height} pixels")
    return width, height


def _array(value: object, shape: tuple[int, ...], what: str) -> Floats:
    try:
        array = np.asarray(value, dtype=np.float64)
        if array.dtype != np.float64 or not np.isfinite(array).all():
            raise ValueError
        return array.reshape(shape)
    except (TypeError, ValueError):
        count = "numbers" if shape == (-1,) else f"{math.prod(shape)} numbers"
        raise InputError(f"{what} isn't what it should be, expected {count}") from None


def _read_folder(folder: Path, unit: str | None) -> dict[str, Record]:
    """Pairs of files, ``extr_NAME.xml`` and ``intr_NAME.xml``."""
    if (folder / "calibrations").is_dir():
        folder = folder / "calibrations"
    inner = [folder / sub for sub in INTRINSIC if (folder / sub).is_dir()]
    outside = folder / "extrinsic" if (folder / "extrinsic").is_dir() else folder
    inside = inner[0] if inner else folder
    extrinsic = _by_camera(outside, "extr_")
    intrinsic = _by_camera(inside, "intr_")
    if not extrinsic and not intrinsic:
        raise InputError("the folder holds no extr_NAME.xml and intr_NAME.xml")
    for camera in sorted(set(extrinsic) ^ set(intrinsic)):
        what = "intrinsic" if camera in extrinsic else "extrinsic"
        raise InputError(f"camera {camera} has no {what} calibration")
    length = UNITS[unit or "cm"]
    size = WILDTRACK_SIZE if inner and inner[0].name == INTRINSIC[0] else None
    return {
        camera: _from_xml(intrinsic[camera], extrinsic[camera], length, size)
        for camera in sorted(extrinsic)
    }


def _by_camera(folder: Path, prefix: str) -> dict[str, Path]:
    return {p.stem.removeprefix(prefix): p for p in sorted(folder.glob(f"{prefix}*.xml"))}


def _from_xml(inner: Path, outer: Path, length: float, size: tuple[int, int] | None) -> Record:
    from scipy.spatial.transform import Rotation

    with naming(inner):
        root = _parse_xml(inner)
        matrix = _xml_numbers(root, 9, "camera_matrix").reshape(3, 3)
        lens = None
        if root.find("distortion_coefficients") is not None:
            lens = _xml_numbers(root, None, "distortion_coefficients")
        width, height = root.findtext("image_width"), root.findtext("image_height")
        if width is not None and height is not None:
            try:
                size = int(width), int(height)
            except ValueError:
                raise InputError("image_width isn't a number") from None
    with naming(outer):
        root = _parse_xml(outer)
        turn = _xml_numbers(root, None, "rvec", "R")
        if turn.size not in (3, 9):
            raise InputError(f"rvec has {turn.size} numbers, expected 3")
        shift = _xml_numbers(root, 3, "tvec", "T")
    rotation = Rotation.from_rotvec(turn).as_matrix() if turn.size == 3 else turn.reshape(3, 3)
    return {
        "matrix": matrix,
        "rotation": rotation,
        "translation": length * shift,
        "distortion": lens,
        "size": size,
    }


def _parse_xml(path: Path) -> ElementTree.Element:
    """The root of an XML file; entities, which may be bombs or name other files, are refused."""
    data, _ = read_bytes(path)
    if b"<!DOCTYPE" in data or b"<!ENTITY" in data or b"\0" in data:
        raise InputError("has a document type or entities, expected plain XML")
    try:
        return ElementTree.fromstring(data)
    except ElementTree.ParseError as error:
        name, line = display_name(path), error.position[0]
        raise InputError(f"isn't XML ({error.msg})", path=name, line=line) from None
    except (ValueError, LookupError) as error:  # an encoding that nobody knows
        raise InputError(f"isn't XML ({error})") from None


def _xml_numbers(root: ElementTree.Element, count: int | None, *tags: str) -> Floats:
    """Numbers of an element, or of the ``data`` in it."""
    for tag in tags:
        element = root.find(tag)
        if element is not None:
            break
    else:
        raise InputError(f"has no <{tags[0]}>")
    text = element.findtext("data") or element.text or ""
    try:
        numbers = np.array([float(word) for word in text.split()])
    except ValueError:
        raise InputError(f"<{tag}> has something that isn't a number") from None
    if (count is not None and numbers.size != count) or not np.isfinite(numbers).all():
        expected = "" if count is None else f", expected {count}"
        raise InputError(f"<{tag}> has {numbers.size} numbers{expected}")
    return numbers


def _checked(name: str, c: Record, size: tuple[int, int] | None, unit: str | None) -> Camera:
    """A camera as a file describes it, if that doesn't contradict itself."""

    def refuse(message: str) -> InputError:
        return InputError(f"camera {name}: {message}")

    own = c["size"]
    if size is not None and own is not None and tuple(size) != own:
        raise refuse(
            f"the calibration is for images of {own[0]}×{own[1]} pixels, not {size[0]}×{size[1]}"
        )
    both = own if size is None else (int(size[0]), int(size[1]))
    k, r, lens = c["matrix"], c["rotation"], c["distortion"]
    if k[0, 0] <= 0 or k[1, 1] <= 0 or k[1, 0] or not np.allclose(k[2], [0, 0, 1]):
        raise refuse(f"K isn't a camera matrix: {k.tolist()}")
    if both is not None and not (-0.5 < k[0, 2] / both[0] < 1.5 and -0.5 < k[1, 2] / both[1] < 1.5):
        raise refuse(
            f"its principal point ({k[0, 2]:.0f}, {k[1, 2]:.0f}) doesn't suit images of "
            f"{both[0]}×{both[1]} pixels"
        )
    if not np.allclose(r @ r.T, np.eye(3), atol=1e-3):
        raise refuse("R isn't a rotation: R Rᵀ ≠ 1")
    if np.linalg.det(r) < 0:
        raise refuse("R isn't a rotation but a reflection: det R < 0")
    center = -r.T @ c["translation"]
    far = float(np.linalg.norm(center))
    if unit is None and far > FARTHEST:
        likely = [u for u in ("cm", "mm") if 1 <= far * UNITS[u] <= FARTHEST]
        hint = f", probably these are {' or '.join(likely)}" if likely else ""
        raise refuse(f"is {far:.0f} m away from the origin{hint}; say which unit lengths have")
    if center[2] <= 0:
        raise refuse(f"is {-center[2]:.2f} m below the ground; z must point upwards")
    if lens is not None and lens.any() and lens.size not in (4, 5, 8, 12, 14):
        raise refuse(f"{lens.size} distortion coefficients, expected 4, 5, 8, 12 or 14")
    if both is None:
        raise refuse("the calibration doesn't say the size of images; give it")
    return Camera(both[0], both[1], k, r, c["translation"], lens, name)
