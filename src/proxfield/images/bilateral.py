"""The bilateral filter of images: Gaussian means over positions and colors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from proxfield.core.common.arrays import Pixels
from proxfield.core.filters.gaussian import gaussian_filter
from proxfield.errors import InputError, shown
from proxfield.images.pixels import numbers, widths

MOST_CHANNELS = 4
"""Length up to which an axis is taken for that of channels."""


def bilateral_filter(
    image: ArrayLike,
    sigma_space: float | Sequence[float],
    sigma_color: float | Sequence[float],
    *,
    guide: ArrayLike | None = None,
    channel_axis: int | str | None = "auto",
    filter: str = "auto",
    threads: int | None = None,
) -> Pixels:
    """Smooth an image within its edges: means over pixels that are near and alike.

    This is `proxfield.gaussian_filter` with positions and colors as features. With the lattice
    its time doesn't depend on the size of the window, which is the whole image.

    Args:
        image: Any number of dimensions and channels.  # (*pixels) or with an axis of channels
        sigma_space: Standard deviation of positions in pixels: one number, or one per axis.
        sigma_color: Standard deviation of colors in the units of the guide: one number, or one
            per channel.
        guide: The image whose colors are compared (joint bilateral filter); by default the image.
        channel_axis: Axis of channels (in the guide too, where it has one axis more than its
            pixels), or None. "auto": none in two dimensions; otherwise the first or last, if it is
            the only one of these with at most 4 entries.
        filter: "exact", "lattice" or "auto", as for `proxfield.gaussian_filter`.
        threads: Maximum number of threads.

    Returns:
        An image of the same shape and type; integers are rounded.

    Example:
        >>> noisy = np.array([[10, 12, 11, 90, 91], [11, 10, 12, 92, 90]], dtype=np.uint8)
        >>> bilateral_filter(noisy, sigma_space=3.0, sigma_color=10.0)
        array([[11, 11, 11, 91, 91],
               [11, 11, 11, 91, 91]], dtype=uint8)
    """
    given = numbers(image, "the image")
    axis = _channels(given, channel_axis)
    maps = given[..., None] if axis is None else np.moveaxis(given, axis, -1)
    pixels = maps.shape[:-1]
    colors = maps
    if guide is not None:
        other = numbers(guide, "the guide")
        if other.shape == pixels:
            colors = other[..., None]
        elif other.ndim != len(pixels) + 1:
            raise InputError(f"a guide of shape {other.shape} for an image of pixels {pixels}")
        else:
            own = axis if axis is not None and isinstance(channel_axis, int) else None
            if own is None:
                own = -1 if other.shape[:-1] == pixels else 0
            colors = np.moveaxis(other, own, -1)
        if colors.shape[:-1] != pixels:
            raise InputError(f"a guide of shape {other.shape} for an image of pixels {pixels}")
    kind = np.float32 if given.dtype.itemsize <= 2 or given.dtype == np.float32 else np.float64
    space = widths(sigma_space, len(pixels), "sigma_space", "axis")
    color = widths(sigma_color, colors.shape[-1], "sigma_color", "channel")
    places = np.stack(np.meshgrid(*map(np.arange, pixels), indexing="ij"), axis=-1) / space
    features = np.concatenate([places, colors / color], axis=-1).astype(kind)
    out = gaussian_filter(maps.astype(kind), features, filter=filter, threads=threads)
    if given.dtype.kind in "iub":
        out = np.rint(out)
        if given.dtype.kind != "b":
            limits = np.iinfo(given.dtype)
            out = np.clip(out, limits.min, limits.max)
    out = out[..., 0] if axis is None else np.moveaxis(out, -1, axis)
    return np.ascontiguousarray(out.astype(given.dtype))


def _channels(image: Pixels, axis: int | str | None) -> int | None:
    """The axis of channels."""
    if axis is None or (axis == "auto" and image.ndim <= 2):
        return None
    if axis == "auto":
        few = [k for k in (0, image.ndim - 1) if image.shape[k] <= MOST_CHANNELS]
        if len(few) == 1:
            return few[0]
        raise InputError(
            f"an image of shape {image.shape} can have channels or not; pass channel_axis=-1, 0 or "
            "None"
        )
    if isinstance(axis, bool) or not isinstance(axis, int) or not -image.ndim <= axis < image.ndim:
        raise InputError(
            f"channel_axis={shown(axis)} for an image with {image.ndim} axes, expected one of them"
        )
    return axis % image.ndim
