"""Masks of people in the images of cameras, drawn with the errors of background subtraction.

Every body is drawn into its rectangle. Errors are smooth, as those of background subtraction are:
patches of bodies are missing, small spots and blobs of the background are taken for foreground.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from proxfield.core.common.checks import check_real, one_of, whole_number
from proxfield.core.terms.base import Floats

EXPONENT = 2.5
"""Of the superellipse that stands for a body."""
PATCHES = (6, 3)
"""Cells of the random texture over a body, down and across: missing patches are about as large."""
SPOT = 5.0
"""Distance in pixels of the cells of the texture behind the speckle."""
BLOB = (0.25, 0.6)
"""Smallest and largest blob, relative to the median body of the image."""

Mask = NDArray[np.uint8]
Shape = Callable[[Floats, Floats, float], NDArray[np.bool_]]


@dataclass(frozen=True)
class Noise:
    """Errors of masks.

    Args:
        missing: Share of each body that is missing, in smooth patches.
        speckle: Share of the image that is foreground for no reason, in small spots.
        blobs: Number of ellipses per image that are foreground for no reason.
        soft: Width in pixels over which edges are blurred; 0 for masks of 0 and 255 alone.

    Example:
        >>> Noise.none()
        Noise(missing=0.0, speckle=0.0, blobs=0, soft=0)
    """

    missing: float = 0.15
    speckle: float = 0.01
    blobs: int = 6
    soft: int = 0

    def __post_init__(self) -> None:
        for name in ("missing", "speckle"):
            share = getattr(self, name)
            check_real(name, share, lambda v: 0 <= v < 1, "a share, at least 0, below 1")
        for name in ("blobs", "soft"):
            object.__setattr__(self, name, whole_number(getattr(self, name), name, 0))

    @classmethod
    def none(cls) -> Noise:
        """Perfect masks."""
        return cls(0.0, 0.0, 0, 0)


def superellipse(u: Floats, v: Floats, stride: float) -> NDArray[np.bool_]:
    """|u|^2.5 + |v|^2.5 ≤ 1; arguments as those of `person`, the stride doesn't matter."""
    return np.asarray(np.abs(u) ** EXPONENT + np.abs(v) ** EXPONENT <= 1)


def ellipse(u: Floats, v: Floats, stride: float) -> NDArray[np.bool_]:
    """The ellipse in a rectangle; arguments as those of `person`, the stride doesn't matter."""
    return np.asarray(u**2 + v**2 <= 1)


def person(u: Floats, v: Floats, stride: float) -> NDArray[np.bool_]:
    """Which points of a rectangle belong to a head, shoulders with arms, torso and two legs.

    Args:
        u: Across, −1 to 1.  # (1, columns)
        v: Down, −1 to 1.  # (rows, 1)
        stride: How far apart the feet are, 0 to 1.
    """
    head = (u / 0.4) ** 2 + ((v + 0.84) / 0.16) ** 2 <= 1
    # rounded shoulders, slimmer at the hips
    torso = (np.abs(u) / (0.95 - 0.2 * (v + 0.3))) ** 4 + np.abs((v + 0.27) / 0.47) ** 4 <= 1
    down = (v - 0.1) / 0.9  # 0 at the hips, 1 at the feet
    apart = 0.3 + 0.32 * stride * down
    leg = np.abs(np.abs(u) - apart) <= 0.36 - 0.08 * down
    return np.asarray(head | torso | (leg & (down >= 0)))


SHAPES: dict[str, Shape] = {"person": person, "superellipse": superellipse}


def draw_boxes(
    boxes: ArrayLike,
    width: int,
    height: int,
    *,
    noise: Noise | None = None,
    shape: str = "superellipse",
    strides: ArrayLike | None = None,
    seed: int | Sequence[int] = 0,
) -> Mask:
    """The mask of one camera: the union of bodies in rectangles, with errors.

    Args:
        boxes: Left, top, right and bottom of each body in pixels; they may reach out of the image,
            and those with NaN aren't drawn.  # (n, 4)
        width: Columns of the image.
        height: Rows of the image.
        noise: Errors; `Noise` by default.
        shape: "superellipse" or "person".
        strides: How far apart each person's feet are, 0 to 1; ½ by default.  # (n,)
        seed: Random seed, one number or several.

    Returns:
        0 for background, 255 for foreground, values between with soft edges.  # (height, width)

    Example:
        >>> draw_boxes([[0, 0, 4, 3]], 5, 3, noise=Noise.none())[1].tolist()
        [255, 255, 255, 255, 0]
    """
    one_of("shape", shape, SHAPES)
    errors = Noise() if noise is None else noise
    rng = np.random.default_rng(seed)
    rectangles = np.asarray(boxes, dtype=np.float64).reshape(-1, 4)
    inside = np.zeros((height, width), dtype=bool)
    steps = np.broadcast_to(0.5 if strides is None else np.asarray(strides), len(rectangles))
    for box, stride in zip(rectangles, steps.tolist(), strict=True):
        _add_body(inside, box, SHAPES[shape], stride, errors.missing, rng)
    # blobs anywhere in the image, somewhat smaller than its bodies
    corners = np.clip(rectangles[np.isfinite(rectangles).all(axis=1)], 0, [width, height] * 2)
    size = corners[:, 2:] - corners[:, :2]
    size = size[(size > 0).all(axis=1)]
    usual = np.median(size, axis=0) if len(size) else np.array([width, height]) / 20
    half = 0.5 * usual * rng.uniform(*BLOB, size=(errors.blobs, 2))
    middle = rng.uniform(0, [width, height], size=(errors.blobs, 2))
    for box in np.concatenate([middle - half, middle + half], axis=1):
        _add_body(inside, box, ellipse, 0.0, 0.0, rng)
    if errors.speckle:
        texture = smooth_noise(rng, height, width, round(height / SPOT), round(width / SPOT))
        inside |= texture > np.quantile(texture, 1 - errors.speckle)
    if errors.soft:
        blurred = _blur(inside.astype(float), errors.soft)
        return np.rint(255 * blurred).astype(np.uint8)
    return np.where(inside, 255, 0).astype(np.uint8)


def smooth_noise(
    rng: np.random.Generator, rows: int, columns: int, down: int, across: int
) -> NDArray[np.float32]:
    """A smooth random texture: normal values on a coarse grid, interpolated.

    Args:
        rng: Source of randomness.
        rows: Of the result.
        columns: Of the result.
        down: Number of cells of the coarse grid from top to bottom.
        across: Number of cells from left to right.
    """
    coarse = rng.standard_normal((max(1, down) + 1, max(1, across) + 1), dtype=np.float32)
    for axis, (count, cells) in enumerate(((rows, max(1, down)), (columns, max(1, across)))):
        at = (np.arange(count, dtype=np.float32) + 0.5) * (cells / count)
        cell = np.minimum(at.astype(np.int64), cells - 1)
        share = at - cell
        share = (share * share * (3 - 2 * share)).reshape((-1, 1) if axis == 0 else (1, -1))
        low, high = coarse.take(cell, axis), coarse.take(cell + 1, axis)
        coarse = low + share * (high - low)
    return np.asarray(coarse, dtype=np.float32)


def _add_body(
    inside: NDArray[np.bool_],
    box: Floats,
    outline: Shape,
    stride: float,
    missing: float,
    rng: np.random.Generator,
) -> None:
    """Draw one body, less its missing patches, into a mask."""
    if not np.isfinite(box).all() or box[2] <= box[0] or box[3] <= box[1]:
        return
    height, width = inside.shape
    edge = np.floor(np.clip(box, -1, [width + 1, height + 1] * 2) + 0.5).astype(np.int64)
    left, top = np.maximum(edge[:2], 0)
    right, bottom = np.minimum(edge[2:], [width, height])
    if right <= left or bottom <= top:
        return
    u = (2 * np.arange(left, right) + 1 - box[0] - box[2]) / (box[2] - box[0])
    v = (2 * np.arange(top, bottom) + 1 - box[1] - box[3]) / (box[3] - box[1])
    body = outline(u[None, :], v[:, None], stride)
    if missing and body.any():
        texture = smooth_noise(rng, len(v), len(u), *PATCHES)
        body = body & (texture >= np.quantile(texture[body], missing))
    inside[top:bottom, left:right] |= body


def _blur(image: Floats, width: int) -> NDArray[np.float64]:
    """Mean over a window of 2 · width + 1 pixels, along both axes."""
    out = np.asarray(image, dtype=float)
    wide = 2 * width + 1
    for axis, n in enumerate(out.shape):
        pad = [(width + 1, width) if a == axis else (0, 0) for a in (0, 1)]
        total = np.pad(out, pad, mode="edge").cumsum(axis=axis)
        out = (total.take(np.arange(wide, wide + n), axis) - total.take(np.arange(n), axis)) / wide
    return np.asarray(np.clip(out, 0.0, 1.0))
