"""Label maps as colors over the image they belong to. Needs Pillow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from proxfield.core.common.arrays import Pixels
from proxfield.errors import InputError, shown
from proxfield.io.files import Target, atomic_write, display_name
from proxfield.io.images import import_pillow, label_colors, png_bytes


def overlay(
    image: ArrayLike | None,
    labels: ArrayLike,
    *,
    palette: Sequence[int] | None = None,
    opacity: float = 0.5,
    names: Sequence[str] | None = None,
) -> NDArray[np.uint8]:
    """Labels blended over the image, with their borders in full color.

    Args:
        image: The picture; None for the colors alone.
            # (height, width), (height, width, channels) or (channels, height, width)
        labels: A label map.  # (height, width)
        palette: Colors as from `read_labels` (r, g, b, r, …).
        opacity: Opacity of the colors, 0 to 1.
        names: Names of the labels, for a legend of those that occur, below the picture.

    Returns:
        RGB.  # (height, width, 3), higher with a legend

    Example:
        >>> overlay(np.zeros((2, 2)), [[0, 1], [1, 1]], opacity=1.0)[0, 1].tolist()
        [230, 159, 0]
    """
    x = np.asarray(labels)
    if x.ndim != 2 or x.dtype.kind not in "iub" or x.size == 0 or x.min() < 0:
        raise InputError(f"an overlay needs a label map of two axes, not shape {x.shape}")
    if not 0 <= opacity <= 1:
        raise InputError(f"opacity={shown(opacity)}, expected 0 to 1")
    x = x.astype(np.int64)
    colors = label_colors(int(x.max()) + 1, palette)
    flat = colors[x].astype(np.float32)
    if image is None:
        out = flat
    else:
        border = np.zeros(x.shape, dtype=bool)  # pixels whose right or lower neighbor differs
        border[:, :-1] |= x[:, :-1] != x[:, 1:]
        border[:-1] |= x[:-1] != x[1:]
        share = np.full(x.shape, opacity, dtype=np.float32)
        share[border] = max(opacity, min(1.0, 1.8 * opacity))
        base = displayable(np.asarray(image), x.shape)
        out = base + share[..., None] * (flat - base)
    rgb = out.round().astype(np.uint8)
    return rgb if names is None else np.concatenate([rgb, _legend(rgb.shape[1], x, colors, names)])


def write_overlay(path: Target, image: ArrayLike | None, labels: ArrayLike, **look: Any) -> None:
    """Write an `overlay` as PNG.

    Raises:
        InputError: If the shapes don't match or the file can't be written.
    """
    if not str(path).lower().endswith(".png"):
        raise InputError("overlays are written as .png", path=display_name(path))
    atomic_write(path, png_bytes(import_pillow().fromarray(overlay(image, labels, **look))))


def displayable(image: Pixels, size: tuple[int, ...]) -> NDArray[np.float32]:
    """An image of any kind as RGB from 0 to 255: others than 8-bit are stretched."""
    if image.ndim == 3 and image.shape[:2] != size and image.shape[1:] == size:
        image = np.moveaxis(image, 0, -1)
    if image.shape[:2] != size or image.ndim > 3:
        raise InputError(f"labels of shape {size} over an image of shape {image.shape}")
    out = image.astype(np.float32)
    if out.ndim == 2 or out.shape[2] < 3:  # gray, or two channels that no eye knows
        out = out if out.ndim == 2 else out.mean(axis=2)
        out = np.repeat(out[..., None], 3, axis=2)
    out = out[..., :3]
    if image.dtype != np.uint8:
        low, high = np.percentile(out, (0.5, 99.5))
        out = (out - low) * (255 / (high - low) if high > low else 0.0)
    return np.clip(out, 0, 255)


def _legend(
    width: int, x: NDArray[np.int64], colors: NDArray[np.uint8], names: Sequence[str]
) -> NDArray[np.uint8]:
    """Squares and names of the labels that occur, in as many lines as they need."""
    import_pillow()
    from PIL import Image, ImageDraw, ImageFont

    font = ImageFont.load_default()
    side, line, gap = 10, 16, 6
    found = np.unique(x).tolist()
    texts = [names[label] if label < len(names) else str(label) for label in found]
    wide = side + 4 + round(max(font.getlength(text) for text in texts)) + 2 * gap
    columns = max(1, (width - gap) // wide)
    places = [
        (gap + k % columns * wide, gap + k // columns * line, label, text)
        for k, (label, text) in enumerate(zip(found, texts, strict=True))
    ]
    top = places[-1][1]
    picture = Image.new("RGB", (width, top + line + gap // 2), "white")
    draw = ImageDraw.Draw(picture)
    for at, down, label, text in places:
        r, g, b = colors[label].tolist()
        draw.rectangle((at, down, at + side, down + side), fill=(r, g, b), outline="#888888")
        draw.text((at + side + 4, down - 1), text, fill="black", font=font)
    return np.array(picture)
