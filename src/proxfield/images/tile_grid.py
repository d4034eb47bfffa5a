"""How an image is divided into tiles, and what is read around each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from proxfield.errors import InputError, shown
from proxfield.io.windows import Window

HALO_SIGMAS = 5.0
"""Halo for ``halo="auto"``, in standard deviations of the widest term. Labels within 16 pixels of a
seam are then those of the whole image for 99.99 % of the pixels; see benchmarks/tile_seams.py."""


@dataclass(frozen=True)
class ImageTile:
    """One tile of an image.

    Attributes:
        number: Its number, row by row from 0.
        core: Its pixels, of which results are kept.
        around: The pixels that are refined, with the halo.
    """

    number: int
    core: Window
    around: Window

    @property
    def inner(self) -> Window:
        """The core, counted from the first pixel that is refined."""
        pairs = zip(self.core, self.around, strict=True)
        return tuple(slice(c.start - a.start, c.stop - a.start) for c, a in pairs)

    @property
    def origin(self) -> tuple[int, ...]:
        """The first pixel that is refined."""
        return tuple(a.start for a in self.around)

    @property
    def pixels(self) -> tuple[int, ...]:
        """The shape of what is refined."""
        return tuple(a.stop - a.start for a in self.around)

    def __str__(self) -> str:
        area = ", ".join(f"{a.start}:{a.stop}" for a in self.around)
        return f"tile {self.number} (pixels {area})"


@dataclass(frozen=True)
class TileGrid:
    """All tiles of an image.

    Args:
        pixels: Shape of the image without channels.
        tile: Length of a tile along each axis.
        halo: Pixels around it along each axis.

    Example:
        >>> grid = TileGrid((100, 50), (64, 64), (8, 8))
        >>> len(grid), str(grid.part(1))
        (2, 'tile 1 (pixels 56:100, 0:50)')
        >>> grid.part(1).inner
        (slice(8, 44, None), slice(0, 50, None))
    """

    pixels: tuple[int, ...]
    tile: tuple[int, ...]
    halo: tuple[int, ...]

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of tiles along each axis."""
        return tuple(-(-n // t) for n, t in zip(self.pixels, self.tile, strict=True))

    def __len__(self) -> int:
        return math.prod(self.counts)

    def part(self, number: int) -> ImageTile:
        """The tile of a number."""
        core, around = [], []
        place = np.unravel_index(number, self.counts)
        for k, n, t, h in zip(place, self.pixels, self.tile, self.halo, strict=True):
            first, last = int(k) * t, min(n, (int(k) + 1) * t)
            core.append(slice(first, last))
            around.append(slice(max(0, first - h), min(n, last + h)))
        return ImageTile(number, tuple(core), tuple(around))


def make_grid(
    pixels: tuple[int, ...],
    tile: int | Sequence[int],
    halo: int | Sequence[int] | str,
    reach: Sequence[float],
) -> TileGrid:
    """The tiles of an image.

    Args:
        pixels: Shape of the image without channels.
        tile: Length of a tile: one number, or one per axis.
        halo: Likewise, or "auto".
        reach: Largest standard deviation of a term in pixels, along each axis.

    Example:
        >>> make_grid((3000, 2000), 1024, "auto", (40.0, 40.0)).halo
        (200, 200)
    """
    lengths = _whole(tile, len(pixels), "tile", 1)
    if isinstance(halo, str):
        if halo != "auto":
            raise InputError(f"halo={shown(halo)}, expected a number of pixels or 'auto'")
        around = tuple(math.ceil(HALO_SIGMAS * sigma) for sigma in reach)
    else:
        around = _whole(halo, len(pixels), "halo", 0)
    return TileGrid(pixels, lengths, around)


def _whole(given: int | Sequence[int], count: int, name: str, least: int) -> tuple[int, ...]:
    """One whole number for all axes, or one for each, as one for each."""
    values = np.atleast_1d(np.asarray(given))
    if values.dtype.kind not in "iu" or values.ndim != 1 or len(values) not in (1, count):
        raise InputError(f"{name}={shown(given)}, expected a whole number or {count}, one per axis")
    if (values < least).any():
        raise InputError(f"{name}={shown(given)}, expected {least} or more")
    return tuple(int(x) for x in np.broadcast_to(values, (count,)))
