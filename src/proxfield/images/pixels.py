"""Images as points: probabilities as energies, pixels as features."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from proxfield.core.common.arrays import Pixels
from proxfield.core.filters.gaussian import gaussian_filter
from proxfield.core.filters.plan import MAX_DIMENSIONS
from proxfield.errors import InputError, shown

TOLERANCE = 1e-3
"""How far the probabilities of a pixel may be from summing to 1."""
ROUGH = 1e-4
"""More than what sums of probabilities, up to 2 in all, are off in float32."""
ROWS = 4096
"""Pixels that are looked at together: what they hold stays in the cache."""
COLOR_SIGMA = 13.0
"""Published standard deviation of colors, of 255 levels."""
BLOCK_ROWS = 65_536
"""Pixels whose exponentials are kept at a time."""


def numbers(values: ArrayLike, what: str) -> Pixels:
    """An array of real numbers that isn't empty."""
    try:
        out = np.asarray(values)
    except (TypeError, ValueError):
        raise InputError(f"{what} must be numbers in one rectangular array") from None
    if out.dtype.kind not in "biuf":
        raise InputError(f"{what} must be real numbers, not {out.dtype}")
    check_size(out.shape, what)
    return out


def check_size(shape: tuple[int, ...], what: str) -> None:
    """Refuse arrays that hold nothing."""
    if 0 in shape or not shape:
        raise InputError(f"{what} of shape {shape}, expected at least one pixel")


def place(shape: tuple[int, ...], flat: int | np.integer) -> tuple[int, ...]:
    """A pixel's indices from its number."""
    return tuple(int(i) for i in np.unravel_index(int(flat), shape))


def each(values: ArrayLike, count: int, what: str, of: str) -> NDArray[np.float64]:
    """One number for all, or one for each, as one for each.  # (count,)"""
    try:
        out = np.asarray(values, dtype=np.float64)
        if out.ndim > 1 or (out.ndim == 1 and len(out) != count):
            raise ValueError
    except (TypeError, ValueError):
        raise InputError(
            f"{what}={shown(values)}, expected a number or {count}, one per {of}"
        ) from None
    if not np.isfinite(out).all():
        raise InputError(f"{what}={shown(values)}, expected finite numbers")
    return np.broadcast_to(out, (count,))


def widths(values: ArrayLike, count: int, what: str, of: str) -> NDArray[np.float64]:
    """Like `each`, for lengths: all above 0.  # (count,)"""
    out = each(values, count, what, of)
    if (out <= 0).any():
        raise InputError(f"{what}={shown(values)}, expected numbers above 0")
    return out


def first_pixel(origin: ArrayLike, count: int) -> tuple[int, ...]:
    """Where an image begins in a larger one, along each axis."""
    out = each(origin, count, "origin", "axis")
    if (out != np.rint(out)).any():
        raise InputError(f"origin={shown(origin)}, expected whole numbers of pixels")
    return tuple(int(x) for x in out)


def rows(values: Pixels, axis: int, *, fresh: bool = False) -> NDArray[np.float32]:
    """Maps with one row per pixel; a copy if needed or requested.  # (n, labels)"""
    moved = np.moveaxis(values, axis, -1)
    with np.errstate(over="ignore"):  # what is too large becomes infinite, and is found later
        if fresh:
            out = np.array(moved, dtype=np.float32, order="C")
        else:
            out = np.ascontiguousarray(moved, dtype=np.float32)
    return out.reshape(-1, moved.shape[-1])


def into_energies(
    p: NDArray[np.float32], pixels: tuple[int, ...], clip: float, normalize: bool
) -> None:
    """Check probabilities and turn them into energies −log p, in place.

    Args:
        p: One row per pixel; a new array.  # (n, labels)
        pixels: Shape of the image, for messages.
        clip: The least probability.
        normalize: Divide by the sums.
    """
    low, high = p.min(), p.max()  # both pass NaN on
    if not (np.isfinite(low) and np.isfinite(high)) or low < 0:
        at = int(np.flatnonzero(~(np.isfinite(p) & (p >= 0)).all(axis=1))[0])
        bad = p[at][~(np.isfinite(p[at]) & (p[at] >= 0))][0]
        raise InputError(
            f"probabilities of pixel {place(pixels, at)} hold {bad}, expected 0 to 1; "
            "if these are scores of a network, pass logits= instead"
        )
    if normalize:
        sums = p.sum(axis=1, dtype=np.float64)
        if not sums.all():
            at = int(np.flatnonzero(sums == 0)[0])
            raise InputError(
                f"probabilities of pixel {place(pixels, at)} are all 0, expected one above 0"
            )
        p /= sums[:, None]
    elif (
        _off_one(p) > TOLERANCE - ROUGH
        and (np.abs((sums := p.sum(axis=1, dtype=np.float64)) - 1) > TOLERANCE).any()
    ):
        at = int((np.abs(sums - 1) > TOLERANCE).argmax())
        raise InputError(
            f"probabilities of pixel {place(pixels, at)} sum to {sums[at]:.6g}, expected 1 "
            "(normalize=True divides by the sum)"
        )
    with np.errstate(divide="ignore"):
        for first in range(0, len(p), ROWS):
            some = p[first : first + ROWS]
            np.maximum(some, np.float32(clip), out=some)
            np.log(some, out=some)
            np.negative(some, out=some)


def _off_one(p: NDArray[np.float32]) -> float:
    """How far the sums of rows are from 1 at most, to `ROUGH`.

    By a product in float32: many times faster than sums along the short axis.
    """
    ones = np.ones(p.shape[1], dtype=np.float32)
    worst = 0.0
    for first in range(0, len(p), ROWS):
        sums = p[first : first + ROWS] @ ones
        worst = max(worst, float(sums.max()) - 1, 1 - float(sums.min()))
    return worst


def logits_into_energies(table: NDArray[np.float32], pixels: tuple[int, ...], clip: float) -> None:
    """Turn logits into energies −log softmax, in place; as `into_energies` of their softmax.

    Args:
        table: One row per pixel; a new array.  # (n, labels)
        pixels: Shape of the image, for messages.
        clip: The least probability.
    """
    if not (np.isfinite(table.min()) and np.isfinite(table.max())):
        at = int(np.flatnonzero(~np.isfinite(table).all(axis=1))[0])
        bad = table[at][~np.isfinite(table[at])][0]
        raise InputError(f"logits of pixel {place(pixels, at)} hold {bad}, expected finite numbers")
    highest = np.inf if clip == 0 else -np.log(clip)
    for start in range(0, len(table), BLOCK_ROWS):
        block = table[start : start + BLOCK_ROWS]
        block -= block.max(axis=1, keepdims=True)
        total = np.log(np.exp(block).sum(axis=1, keepdims=True))
        np.subtract(total, block, out=block)
        np.minimum(block, np.float32(highest), out=block)


def mask_rows(
    values: Pixels, pixels: tuple[int, ...], *, logits: bool = False
) -> NDArray[np.float32]:
    """Probabilities (or logits) of foreground, as those of background and foreground.  # (n, 2)

    Args:
        values: One number per pixel.
        pixels: Shape of the image.
        logits: The numbers are logits: foreground has the probability 1 / (1 + exp(−x)).
    """
    flat = values.reshape(-1)
    out = np.empty((flat.size, 2), dtype=np.float32)
    out[:, 1] = flat
    if logits:
        out[:, 0] = 0
        return out
    foreground = out[:, 1]
    bad = ~((foreground >= 0) & (foreground <= 1))
    if bad.any():
        at, top = int(bad.argmax()), foreground.max()
        remedy = "if these are scores of a network, pass logits="
        if top in (255, 65535) and ((foreground == 0) | (foreground == top)).all():
            remedy = f"pass mask / {top:g}"
        elif foreground.min() >= 0 and (foreground == np.rint(foreground)).all():
            remedy = "a map of labels goes to DenseCRF.from_labels(image, labels)"
        raise InputError(
            f"the mask holds {foreground[at]:g} at pixel {place(pixels, at)}, expected "
            f"probabilities of foreground, 0 to 1; {remedy}"
        )
    np.subtract(1, foreground, out=out[:, 0])
    return out


def channels_last(image: Pixels, axis: int | None) -> Pixels:
    """The image with its channels last, checked to be finite.  # (*pixels, channels)"""
    out = image[..., None] if axis is None else np.moveaxis(image, axis, -1)
    pixels = out.shape[:-1]
    if image.dtype.kind == "f" and not (np.isfinite(image.min()) and np.isfinite(image.max())):
        at = place(pixels, np.flatnonzero(~np.isfinite(out).all(axis=-1))[0])
        raise InputError(f"the image holds NaN or infinite values, at pixel {at} for one")
    total = len(pixels) + out.shape[-1]
    if total > MAX_DIMENSIONS:
        raise InputError(
            f"{out.shape[-1]} channels and {len(pixels)} axes make {total} features, "
            f"expected at most {MAX_DIMENSIONS}; choose or combine channels"
        )
    return out


def color_range(image: Pixels) -> float | None:
    """The full range of an image's values by their type; None where that doesn't tell.

    255 for 8 bits, 65535 for 16, 1 for bool and for floats within 0 and 1. Whole numbers of any
    type that lie within 0 and 255 count as 8 bits; floats above 1 are never guessed at.

    Example:
        >>> color_range(np.zeros((2, 2), dtype=np.uint8)), color_range(np.full((2, 2), 0.5))
        (255.0, 1.0)
    """
    if image.dtype == np.uint8:
        return 255.0
    low, high = image.min(), image.max()
    if image.dtype.kind in "fb":
        return 1.0 if low >= 0 and high <= 1 else None
    if low >= 0 and high <= 255:
        return 255.0
    return 65535.0 if image.dtype == np.uint16 else None


def color_bandwidth(
    image: Pixels, sigma: ArrayLike, of: float | None = 255.0
) -> NDArray[np.float64]:
    """A standard deviation of colors in an image's own units.

    Args:
        image: The image.
        sigma: The standard deviation: one number, or one per channel.
        of: The full range of values that it refers to; None: the image's own units.

    Example:
        >>> float(color_bandwidth(np.full((2, 2), 0.5), 51.0))
        0.2
    """
    given = np.asarray(sigma, dtype=np.float64)
    if of is None:
        return given
    full = color_range(image)
    if full is not None:
        return given * (full / of)
    low, high = image.min(), image.max()
    hint = ""
    if image.dtype.kind == "f" and given.ndim == 0:
        hint = f" ({float(given):g} for colors up to {of:g})"
    raise InputError(
        f"an image of {image.dtype} with values from {low:g} to {high:g} doesn't say how wide "
        f"colors are; pass bilateral_color, a standard deviation in these units{hint}"
    )


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
