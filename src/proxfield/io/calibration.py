"""Calibrations of cameras in files: our JSON, plain JSON, and the XML of OpenCV as in WILDTRACK.

A calibration says where a point X of the world is in an image, x = K (R X + t), with z upwards and
the ground at z = 0. Here lengths are in meters always; files say what they are in, or the caller.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import numpy as np

from proxfield.core.common.arrays import Floats
from proxfield.core.common.checks import is_exact
from proxfield.core.common.records import Record
from proxfield.errors import InputError, shown
from proxfield.io.files import (
    Target,
    atomic_write,
    decode_text,
    display_name,
    naming,
    parse_json,
    read_bytes,
)

FORMAT = "proxfield calibration"
UNITS = {"m": 1.0, "cm": 0.01, "mm": 0.001}
"""Lengths in meters."""
FARTHEST = 100.0
"""Distance in meters beyond which a camera is probably given in another unit."""
WILDTRACK_SIZE = (1920, 1080)
INTRINSIC = ("intrinsic_zero", "intrinsic", "intrinsic_original")
"""Folders of WILDTRACK, the first that there is: for images without distortion, or with it."""


@dataclass(frozen=True, eq=False)
class Calibration:
    """One camera."""

    name: str
    matrix: Floats  # K, in pixels: (3, 3)
    rotation: Floats  # R: (3, 3)
    translation: Floats  # t, in meters: (3,)
    distortion: Floats | None = None  # coefficients as in OpenCV: (4,), (5,) or more
    size: tuple[int, int] | None = None  # width and height, if the file says them

    @property
    def center(self) -> Floats:
        """Where the camera is, in meters.  # (3,)"""
        return np.asarray(-self.rotation.T @ self.translation)


def read_calibration(
    path: Target,
    *,
    cameras: Sequence[str] | None = None,
    size: tuple[int, int] | None = None,
    unit: str | None = None,
) -> tuple[Calibration, ...]:
    """Calibrations of several cameras.

    Args:
        path: A JSON file, or a folder like WILDTRACK's ``calibrations``, with ``extr_NAME.xml``
            and ``intr_NAME.xml`` in folders ``extrinsic`` and ``intrinsic_zero``, or side by side.
        cameras: Names of those that are wanted, in this order; by default all, in the order of
            the file, or of their names.
        size: Width and height of the images, where files don't say.
        unit: "m", "cm" or "mm"; by default what the file says, cm for WILDTRACK, else m.

    Raises:
        InputError: If files can't be read or contradict themselves.
    """
    if unit is not None and unit not in UNITS:
        raise InputError(f"unit={shown(unit)}, expected one of: {', '.join(UNITS)}")
    where = Path(path)
    with naming(path):
        found = _read_folder(where, unit) if where.is_dir() else _read_json(where, unit)
        known = {c.name: c for c in found}
        for name in cameras or ():
            if name not in known:
                raise InputError(
                    f"has no camera {shown(name)}, expected one of: {', '.join(known)}"
                )
        chosen = found if cameras is None else [known[name] for name in cameras]
        return tuple(_checked(c, size, unit) for c in chosen)


def write_calibration(path: Target, calibrations: Iterable[Calibration]) -> None:
    """Write calibrations as our JSON; see docs/reference/people-files.md."""
    cameras: Record = {}
    for c in calibrations:
        if c.name in cameras:
            raise InputError(f"two cameras are called {shown(c.name)}", path=display_name(path))
        cameras[c.name] = {
            "size": None if c.size is None else list(c.size),
            "K": c.matrix.tolist(),
            "R": c.rotation.tolist(),
            "t": c.translation.tolist(),
            "dist": None if c.distortion is None else c.distortion.tolist(),
        }
    content = {"format": FORMAT, "unit": "m", "cameras": cameras}
    atomic_write(path, json.dumps(content, indent=1, allow_nan=False) + "\n")


def _read_json(path: Path, unit: str | None) -> list[Calibration]:
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
    out = []
    for camera, value in cameras.items():
        if not isinstance(value, dict):
            raise InputError(f"camera {camera}: expected an object with K, R, t")
        arrays = {}
        for key, shape in (("K", (3, 3)), ("R", (3, 3)), ("t", (3,))):
            if key not in value:
                raise InputError(f"camera {camera} has no {key}, expected K, R and t")
            arrays[key] = _array(value[key], shape, f"camera {camera}: {key}")
        lens = value.get("dist")
        lens = None if lens is None else _array(lens, (-1,), f"camera {camera}: dist")
        shift = UNITS[unit or given] * arrays["t"]
        size = _size(value, camera)
        out.append(Calibration(camera, arrays["K"], arrays["R"], shift, lens, size))
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


def _read_folder(folder: Path, unit: str | None) -> list[Calibration]:
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
    return [
        _from_xml(camera, intrinsic[camera], extrinsic[camera], length, size)
        for camera in sorted(extrinsic)
    ]


def _by_camera(folder: Path, prefix: str) -> dict[str, Path]:
    return {p.stem.removeprefix(prefix): p for p in sorted(folder.glob(f"{prefix}*.xml"))}


def _from_xml(
    camera: str, inner: Path, outer: Path, length: float, size: tuple[int, int] | None
) -> Calibration:
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
    return Calibration(camera, matrix, rotation, length * shift, lens, size)


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


def _checked(c: Calibration, size: tuple[int, int] | None, unit: str | None) -> Calibration:
    """The same calibration with its size, if it doesn't contradict itself."""

    def refuse(message: str) -> InputError:
        return InputError(f"camera {c.name}: {message}")

    if size is not None and c.size is not None and tuple(size) != c.size:
        raise refuse(
            f"the calibration is for images of {c.size[0]}×{c.size[1]} pixels, not "
            f"{size[0]}×{size[1]}"
        )
    both = c.size if size is None else (int(size[0]), int(size[1]))
    k, r = c.matrix, c.rotation
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
    far = float(np.linalg.norm(c.center))
    if unit is None and far > FARTHEST:
        likely = [u for u in ("cm", "mm") if 1 <= far * UNITS[u] <= FARTHEST]
        hint = f", probably these are {' or '.join(likely)}" if likely else ""
        raise refuse(f"is {far:.0f} m away from the origin{hint}; say which unit lengths have")
    if c.center[2] <= 0:
        raise refuse(f"is {-c.center[2]:.2f} m below the ground; z must point upwards")
    lens = None if c.distortion is None or not np.any(c.distortion) else c.distortion
    if lens is not None and lens.size not in (4, 5, 8, 12, 14):
        raise refuse(f"{lens.size} distortion coefficients, expected 4, 5, 8, 12 or 14")
    return Calibration(c.name, k, r, c.translation, lens, both)
