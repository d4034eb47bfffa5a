"""Masks of the foreground: pictures of each camera and frame, or boxes of a detector filled.

Every source of masks offers the same: `frames`, those that it has, and `read`, the masks of all
cameras in one of them.
"""

from __future__ import annotations

import glob
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from proxfield.core.common.arrays import Doubles, Pixels
from proxfield.core.common.checks import check_real
from proxfield.errors import InputError, shown
from proxfield.io.files import Target, display_name, naming
from proxfield.io.images import read_image

Size = tuple[int, int]
"""Width and height."""


@dataclass(frozen=True)
class MaskFiles:
    """Masks in pictures: the mean of red, green and blue, divided by 255.

    Args:
        pattern: Names of the files, with places for the camera and the frame: ``%c`` and ``%f``,
            or ``{camera}`` and ``{frame}``. ``.npy`` files are read too.
        cameras: Names of the cameras, as in files' names.
        sizes: Width and height of each camera's images; files may have this size or be scaled
            already. By default any.
        scale: Resolution of the masks relative to the files; 0.25 averages 4×4 pixels.
        missing: What to do about a frame that a camera doesn't have: "error", or "skip", which
            leaves its mask out.

    Raises:
        InputError: If a camera has no masks at all.
    """

    pattern: str
    cameras: tuple[str, ...]
    sizes: tuple[Size, ...] | None = None
    scale: float = 1.0
    missing: str = "error"

    def __post_init__(self) -> None:
        check_source(self.scale, self.sizes, self.cameras, self.missing)
        places = fields(self.pattern)
        if "frame" not in places:
            raise InputError(f"masks {shown(self.pattern)}: expected a place for the frame, %f")
        if len(self.cameras) > 1 and "camera" not in places:
            raise InputError(
                f"masks {shown(self.pattern)}: expected a place for the camera, %c, since there "
                f"are {len(self.cameras)} cameras"
            )
        for camera in self.cameras:
            if not find_frames(self.pattern, camera):
                raise InputError(
                    f"camera {camera} has no masks, expected files like "
                    f"{display_name(fill(self.pattern, camera=camera, frame=0))}"
                )

    def frames(self) -> list[int]:
        """Frames that any camera has, in order."""
        found = [find_frames(self.pattern, camera) for camera in self.cameras]
        return sorted(set().union(*found))

    def read(self, frame: int) -> list[Doubles | None]:
        """The masks of a frame, one per camera.

        Raises:
            InputError: If a file is missing, damaged or of another size.
        """
        masks: list[Doubles | None] = []
        for k, camera in enumerate(self.cameras):
            path = fill(self.pattern, camera=camera, frame=frame)
            if Path(path).exists():
                size = None if self.sizes is None else self.sizes[k]
                masks.append(read_mask(path, size, self.scale))
            elif self.missing == "skip":
                masks.append(None)
            else:
                raise missing_file(self.pattern, camera, frame)
        if all(mask is None for mask in masks):
            raise InputError(f"frame {frame} has no masks in any camera")
        return masks


def read_mask(path: Target, size: Size | None = None, scale: float = 1.0) -> Doubles:
    """One mask, 0 to 1.

    Args:
        path: A picture or a ``.npy`` file.
        size: Width and height that it must have, unless it is scaled already.
        scale: Resolution of the result relative to the size.

    Raises:
        InputError: If the file can't be read or has another size.
    """
    with naming(path):
        mask = as_mask(read_image(path))
    height, width = mask.shape
    full = (width, height) if size is None else size
    wanted = scaled_size(full, scale)
    if (width, height) == wanted:
        return mask
    if (width, height) != tuple(full):
        raise InputError(
            f"the mask has {width}×{height} pixels, expected {full[0]}×{full[1]} as the "
            "silhouettes have",
            path=display_name(path),
        )
    return resize(mask, *wanted)


def as_mask(pixels: Pixels) -> Doubles:
    """Pixels as a mask: whole numbers are shares of the largest, colors are averaged.

    Raises:
        InputError: If this is no mask, or one of 8 or 16 bits whose largest value is 1.

    Example:
        >>> as_mask(np.array([[[255, 0, 0], [255, 255, 255]]], dtype=np.uint8)).round(2)
        array([[0.33, 1.  ]])
    """
    values = np.asarray(pixels)
    if values.dtype in (np.uint8, np.uint16) and values.size and values.max() == 1:
        # 0 and 1 of segmentation tools, or a soft mask of almost nothing: no way to tell
        raise InputError(
            "has no value above 1, expected 255 (65535 in 16 bits) for foreground: multiply masks "
            "of 0 and 1 by that"
        )
    full = {np.dtype(np.uint8): 255.0, np.dtype(np.uint16): 65535.0}.get(values.dtype, 1.0)
    if values.ndim == 3 and values.shape[2] in (1, 3):
        full, values = full * values.shape[2], values.sum(axis=2, dtype=np.float64)
    if values.ndim != 2 or not values.size:
        raise InputError(f"holds an array of shape {values.shape}, expected a mask")
    out = np.asarray(values / full, dtype=np.float64)
    if not ((out >= 0) & (out <= 1)).all():
        raise InputError("has values outside of 0 to 1, expected a mask")
    return out


def check_scale(scale: float) -> None:
    """Refuse what isn't a scale."""
    check_real("scale", scale, lambda v: 0 < v <= 16, "a number above 0, 0.25 for a quarter")


def scaled_size(size: Size, scale: float) -> Size:
    """Width and height at another resolution, at least one pixel each.

    Example:
        >>> scaled_size((1920, 1080), 0.25)
        (480, 270)
    """
    check_scale(scale)
    return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))


def resize(mask: Doubles, width: int, height: int) -> Doubles:
    """A mask at another resolution: each pixel is the average over the area that it covers.

    Example:
        >>> resize(np.array([[0.0, 1.0, 1.0]]), 2, 1).round(3).tolist()
        [[0.333, 1.0]]
    """
    rows, columns = mask.shape
    if rows % height == 0 and columns % width == 0:
        blocks = mask.reshape(height, rows // height, width, columns // width)
        return np.asarray(blocks.mean(axis=(1, 3)))
    return np.asarray(np.clip(_shrink(_shrink(mask, width).T, height).T, 0.0, 1.0))


def _shrink(mask: Doubles, count: int) -> Doubles:
    """Averages over ``count`` equal parts of each row."""
    edges = np.arange(count + 1) * (mask.shape[1] / count)
    whole = np.minimum(edges.astype(np.int64), mask.shape[1] - 1)
    sums = np.zeros((mask.shape[0], mask.shape[1] + 1))
    np.cumsum(mask, axis=1, out=sums[:, 1:])
    at = sums[:, whole] + (edges - whole) * mask[:, whole]
    return np.asarray(np.diff(at, axis=1) * (count / mask.shape[1]))


def fill_boxes(boxes: Doubles, values: Doubles, size: Size, scale: float = 1.0) -> Doubles:
    """A mask of filled boxes; a pixel that a box covers in part has that part of its value.

    Args:
        boxes: Left, top, right and bottom in pixels of the full resolution.  # (n, 4)
        values: Of each box; the largest counts where they overlap.  # (n,)
        size: Width and height at full resolution.
        scale: Resolution of the mask relative to that.

    Example:
        >>> fill_boxes(np.array([[0.0, 0.0, 1.5, 1.0]]), np.array([1.0]), (3, 2)).tolist()
        [[1.0, 0.5, 0.0], [0.0, 0.0, 0.0]]
    """
    width, height = scaled_size(size, scale)
    out = np.zeros((height, width))
    by = np.array([width / size[0], height / size[1]] * 2)
    for box, value in zip(np.asarray(boxes, dtype=float).reshape(-1, 4) * by, values, strict=True):
        across, first, last = _cover(box[0], box[2], width)
        down, top, bottom = _cover(box[1], box[3], height)
        part = out[top:bottom, first:last]
        np.maximum(part, value * down[:, None] * across, out=part)
    return out


def _cover(low: float, high: float, limit: int) -> tuple[Doubles, int, int]:
    """How much of each pixel is between two coordinates; the first one, and the one after."""
    first = max(0, math.floor(max(low, 0.0)))
    end = max(first, min(limit, math.ceil(min(high, float(limit)))))
    at = np.arange(first, end)
    return np.clip(np.minimum(high, at + 1) - np.maximum(low, at), 0.0, 1.0), first, end


def check_source(
    scale: float, sizes: Sequence[Size] | None, cameras: Sequence[str], missing: str = "error"
) -> None:
    """Refuse what sources of masks have in common."""
    check_scale(scale)
    if missing not in ("error", "skip"):
        raise InputError(f"missing={shown(missing)}, expected error or skip")
    if sizes is not None and len(sizes) != len(cameras):
        raise InputError(f"{len(sizes)} sizes for {len(cameras)} cameras")


_PERCENT = {"%c": "camera", "%f": "frame", "%i": "iteration"}
_PLACE = re.compile(r"%[cfi]|\{(camera|frame|iteration)(?::0?([0-9]{1,2})d?)?\}")


def fill(pattern: Target, *, camera: str | int | None = None, frame: int | None = None) -> str:
    """The name of a file.

    Example:
        >>> fill("view-f%f-c%c.png", camera=1, frame=170), fill("{camera}/{frame:05d}.png",
        ...     camera="left", frame=7)
        ('view-f170-c1.png', 'left/00007.png')
    """
    values = {"camera": camera, "frame": frame, "iteration": None}
    text = str(pattern)

    def put(match: re.Match[str]) -> str:
        key, width = _key(match)
        value = values[key]
        if value is None:
            raise InputError(f"{shown(text)} has a place for the {key}, which has no value here")
        return str(value).zfill(width) if key != "camera" else str(value)

    return _PLACE.sub(put, text)


def fields(pattern: Target) -> set[str]:
    """What a pattern has places for.

    Example:
        >>> sorted(fields("view-f%f-c%c.png"))
        ['camera', 'frame']
    """
    return {_key(match)[0] for match in _PLACE.finditer(str(pattern))}


def find_frames(pattern: Target, camera: str | int) -> list[int]:
    """Frames of a camera for which there are files, in order.

    Args:
        pattern: With a place for the frame, in the file's name or in a folder's.
        camera: Its name or number.

    Raises:
        InputError: If the pattern has no place for the frame, or one for the iteration.
    """
    text = str(Path(pattern))
    if "frame" not in fields(text):
        raise InputError(f"{shown(text)} has no place for the frame, expected %f or {{frame}}")
    parts = _PLACE.sub(
        lambda m: "\0" if _key(m)[0] == "frame" else fill(m[0], camera=camera), text
    ).split("\0")
    number = re.compile("([0-9]{1,18})".join(map(re.escape, parts)))
    top = Path(text).anchor
    out = set()
    wild = re.sub(r"\*{2,}", "*", "*".join(map(glob.escape, parts)))
    for path in Path(top).glob(wild[len(top) :]):
        found = number.fullmatch(str(path))
        # other digits, or other numbers in the other places: not the file of this frame
        if found and str(path) == fill(text, camera=camera, frame=int(found[1])) and path.is_file():
            out.add(int(found[1]))
    return sorted(out)


def _key(match: re.Match[str]) -> tuple[str, int]:
    """What a place is for, and how many digits its number has at least."""
    return match[1] or _PERCENT[match[0]], int(match[2] or 0)


def missing_file(pattern: Target, camera: str | int, frame: int) -> InputError:
    """The error for a frame that a camera doesn't have."""
    name = display_name(fill(pattern, camera=camera, frame=frame))
    return InputError(f"no such file: frame {frame} of camera {camera} is missing", path=name)
