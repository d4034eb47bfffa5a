"""Points whose features are computed when first used: a device can compute them by itself."""

from __future__ import annotations

from collections.abc import Hashable
from functools import cached_property

import numpy as np

from proxfield.core.common.arrays import Doubles, Pixels
from proxfield.core.filters.plan import MAX_SPAN


class PixelPoints:
    """The pixels of an image: their positions, and their channels if they have any.

    ``shape`` holds the numbers of points and of features.

    Args:
        pixels: Shape of the image without channels.
        scale: What positions are multiplied with.  # (axes,)
        channels: The image with its channels last; copied.  # (*pixels, channels)
        color: What channels are divided by.  # (channels,)
        origin: Where the first pixel lies in a larger image; by default at 0.  # (axes,)
    """

    def __init__(
        self, pixels: tuple[int, ...], scale: Doubles, channels: Pixels | None = None,
        color: Doubles | None = None, origin: tuple[int, ...] | None = None,
    ) -> None:  # fmt: skip
        self.pixels = tuple(int(size) for size in pixels)
        self.scale = np.array(scale, dtype=np.float64)
        self.channels: Pixels | None = None if channels is None else np.array(channels, order="C")
        self.color = None if color is None else np.array(color, dtype=np.float64)
        self.origin = (0,) * len(self.pixels) if origin is None else tuple(origin)
        extra = 0 if self.channels is None else self.channels.shape[-1]
        self.shape = (int(np.prod(self.pixels)), len(self.pixels) + extra)

    @property
    def key(self) -> Hashable:
        """All but the channels' values: the same for images of one size and kind."""
        kind = None if self.channels is None else (self.channels.shape[-1], self.channels.dtype.str)
        color = None if self.color is None else tuple(self.color.tolist())
        return (self.pixels, self.origin, tuple(self.scale.tolist()), color, kind)

    def along(self, axis: int) -> Doubles:
        """The feature that positions along an axis are.  # (pixels[axis],)"""
        first = self.origin[axis]
        return np.asarray(np.arange(first, first + self.pixels[axis]) * self.scale[axis])

    def array(self) -> Doubles:
        """The features.  # (n, d)"""
        k = len(self.pixels)
        out = np.empty((*self.pixels, self.shape[1]))
        for axis in range(k):
            out[..., axis] = self.along(axis).reshape(-1, *[1] * (k - 1 - axis))
        if self.channels is not None and self.color is not None:
            out[..., k:] = self.channels
            out[..., k:] /= self.color
        return out.reshape(self.shape)

    @cached_property
    def bounded(self) -> bool:
        """Whether features are known to be finite and to lie within `MAX_SPAN`."""
        ends: list[float] = [0.0]
        with np.errstate(over="ignore"):
            for first, n, s in zip(self.origin, self.pixels, self.scale, strict=True):
                ends += [float(first * s), float((first + n - 1) * s)]
            if self.channels is not None and self.color is not None and self.channels.size:
                bounds = (0.0, 255.0)  # of 8-bit values without looking
                if self.channels.dtype != np.uint8:
                    bounds = float(self.channels.min()), float(self.channels.max())
                ends += [float(x / c) for c in self.color for x in bounds]
        return bool(np.isfinite(ends).all()) and max(ends) - min(ends) <= MAX_SPAN
