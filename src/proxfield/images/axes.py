"""Which axis is which: ways to read an image and the array of what is known about its pixels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from proxfield.core.common.arrays import Pixels
from proxfield.core.filters.plan import MAX_DIMENSIONS
from proxfield.errors import InputError, shown
from proxfield.images.pixels import TOLERANCE

FLAT = 2
"""Axes of a flat image."""


@dataclass(frozen=True)
class Axes:
    """One way to read an image and the array of what is known about its pixels."""

    pixels: tuple[int, ...]  # shape of the image without channels
    labels: int | None  # the axis, 0 or more, if there is one
    channels: int | None  # the axis, if there is one
    mask: bool = False  # the numbers are those of foreground alone
    reduced: bool = False  # they are fewer than the pixels


@dataclass(frozen=True)
class AxisReader:
    """Finds the way to read an image and the array of what is known about its pixels."""

    image: Pixels | None
    values: Pixels  # probabilities, logits or energies
    what: str  # which of them
    labels_axis: int | str | None = "auto"  # None: no such axis; "auto": the first or the last
    channel_axis: int | str | None = "auto"  # "auto": the first, the last or none

    def read(self) -> Axes:
        """The way to read them; labels in full size come first, then masks, then smaller maps."""
        image, values, what = self.image, self.values, self.what
        if self.labels_axis is None:
            if what == "energies":
                raise InputError(
                    "labels_axis=None, expected an axis: energies are those of all labels"
                )
            masks = [*self.masks(), *self.masks(reduced=True)]
            return masks[0] if len(masks) == 1 else self.refuse_mask()
        many = values.ndim > 1
        ways = self.ways() if many else []
        single = [w for w in ways if w.labels is not None and values.shape[w.labels] == 1]
        if single and what != "energies" and not (what == "probabilities" and (values == 1).all()):
            return replace(single[0], mask=True)
        auto = self.labels_axis == "auto" and what != "energies" and image is not None
        if auto and (what == "probabilities" or not ways):
            masks = self.masks()
            # sums take a while: only where it may be a mask
            if (
                len(masks) == 1
                and (not ways or float(values.max()) <= 1)
                and not (what == "probabilities" and any(sums_to_one(values, a) for a in (0, -1)))
            ):
                return masks[0]
        if not ways and image is not None:
            small = self.ways(reduced=True) if many else []
            if not small and auto:
                small = self.masks(reduced=True)
            if len(small) == 1:
                a = small[0].labels
                mask = a is None or (values.shape[a] == 1 and what != "energies")
                return replace(small[0], mask=mask)
            if small:
                raise InputError(
                    f"{what} of shape {values.shape} can be enlarged to the image of shape "
                    f"{image.shape} in more than one way; pass labels_axis=0 or -1, or channel_axis"
                )
        return self.only_way()

    def only_way(self) -> Axes:
        """The one way with an axis of labels, at the size of the image."""
        ways = self.ways()
        if len(ways) == 1:
            return ways[0]
        shapes = f"{self.what} of shape {self.values.shape}"
        if self.image is not None:
            shapes = f"the image of shape {self.image.shape} and {shapes}"
        if ways:
            option = "labels_axis" if len({w.labels for w in ways}) > 1 else "channel_axis"
            raise InputError(f"{shapes} can be read in more than one way; pass {option}=0 or -1")
        raise InputError(
            f"{shapes} don't match; expected (*pixels, labels) or (labels, *pixels), the image's "
            f"pixels, and at most {MAX_DIMENSIONS} axes and channels"
        )

    def refuse_mask(self) -> Axes:
        """Say that there should be one number per pixel."""
        of = "" if self.image is None else f" for an image of shape {self.image.shape}"
        raise InputError(
            f"{self.what} of shape {self.values.shape}{of}, expected a mask with one number per "
            "pixel"
        )

    def ways(self, *, reduced: bool = False) -> list[Axes]:
        """All ways with an axis of labels, at the size of the image or smaller."""
        values, what = self.values, self.what
        if values.ndim < 2:
            raise InputError(
                f"{what} of shape {values.shape}, expected an axis of labels beside the pixels"
            )
        found = self._with(axis_candidates(self.labels_axis, values.ndim, "labels_axis"), reduced)
        if what == "probabilities" and len({way.labels for way in found}) > 1:
            # shapes leave it open: probabilities sum to 1 along one axis only
            right = [way for way in found if sums_to_one(values, way.labels or 0)]
            found = right or found
        if reduced and len(found) > 1:  # the same factor along all axes, exactly
            spread = []
            for way in found:
                sizes = zip(way.pixels, _without(values.shape, way.labels), strict=True)
                factors = [full / part for full, part in sizes]
                spread.append(round(max(factors) / min(factors), 9))
            found = [way for way, s in zip(found, spread, strict=True) if s == min(spread)]
        return found

    def masks(self, *, reduced: bool = False) -> list[Axes]:
        """All ways with one number per pixel, of foreground."""
        return self._with([None], reduced)

    def _with(self, labels: Iterable[int | None], reduced: bool) -> list[Axes]:
        """All ways with one of these axes of labels; None: without one."""
        image, channel_axis = self.image, self.channel_axis
        found: list[Axes] = []
        for a in labels:
            own = _without(self.values.shape, a)
            channels: Iterable[int | None] = (None,)
            if image is not None and not (
                channel_axis is None or (channel_axis == "auto" and image.ndim <= len(own))
            ):
                channels = (
                    c
                    for c in axis_candidates(channel_axis, image.ndim, "channel_axis")
                    # more channels than a filter takes can only be pixels
                    if image.shape[c] <= MAX_DIMENSIONS - len(own) or channel_axis != "auto"
                )
            for c in channels:
                pixels = own if image is None else _without(image.shape, c)
                if is_reduced(own, pixels) if reduced else own == pixels:
                    found.append(Axes(pixels, a, c, mask=a is None, reduced=reduced))
        return found

    def counts_images(self, batch: bool | None, n_axes: int | None) -> bool:
        """Whether the first axis counts images, and there is one; several are refused.

        Args:
            batch: As for `DenseCRF`.
            n_axes: Number of axes of pixels, if something tells it.
        """
        if batch not in (None, True, False):
            raise InputError(f"batch={shown(batch)}, expected True, False or None")
        if batch is False or (n_axes is not None and n_axes > FLAT and batch is None):
            return False
        count = len(self.values)
        if batch is None:
            if self.values.ndim != FLAT + 2 or not self._may_be_batch():
                return False
            if count > 1:
                raise InputError(
                    f"{self.what} of shape {self.values.shape} may be a batch of {count} images or "
                    "a volume; refine_batch(…) refines a batch, batch=False reads a volume"
                )
        elif count > 1:
            raise InputError(
                f"a DenseCRF holds one image, not a batch of {count}; use refine_batch(…)"
            )
        return True

    def _may_be_batch(self) -> bool:
        """Whether four axes can be those of flat images, with labels in the second or the last."""
        image, values = self.image, self.values
        if self.labels_axis is None:
            return False
        candidates = [1, 3]
        if self.labels_axis != "auto":
            asked = axis_candidates(self.labels_axis, 4, "labels_axis")
            candidates = [a for a in asked if a in (1, 3)]
        if self.what == "probabilities":
            right = [a for a in candidates if sums_to_one(values, a)]
            if self.labels_axis == "auto" and not right and sums_to_one(values, 0):
                return False  # labels first: a volume
            candidates = right or candidates
        for a in candidates:
            pixels = tuple(n for k, n in enumerate(values.shape) if k not in (0, a))
            if image is None:
                return True
            one = len(values) == 1
            shapes = {(len(values), *pixels), *([pixels] if one else [])}
            channels = [k for k in range(image.ndim) if image.shape[k] <= MAX_DIMENSIONS - FLAT]
            rests = {image.shape, *(_without(image.shape, c) for c in channels)}
            if shapes & rests or (one and any(is_reduced(pixels, r[-FLAT:]) for r in rests)):
                return True
        return False


def _without(shape: tuple[int, ...], axis: int | None) -> tuple[int, ...]:
    return shape if axis is None else shape[:axis] + shape[axis + 1 :]


def axis_candidates(axis: int | str | None, ndim: int, option: str) -> list[int]:
    """The axes that an option stands for."""
    if axis == "auto":
        return sorted({0, ndim - 1})
    if isinstance(axis, bool) or not isinstance(axis, int | np.integer):
        raise InputError(f"{option}={shown(axis)}, expected an axis (0 or -1) or 'auto'")
    if not -ndim <= axis < ndim:
        raise InputError(f"{option}={axis} for an array with {ndim} axes")
    return [int(axis) % ndim]


def sums_to_one(values: Pixels, axis: int) -> bool:
    """Whether all sums along an axis are 1, as those of probabilities are."""
    with np.errstate(over="ignore", invalid="ignore"):
        sums = values.sum(axis=axis, dtype=np.float64)
        return bool((np.abs(sums - 1) <= TOLERANCE).all())


def is_reduced(small: Sequence[int], full: Sequence[int]) -> bool:
    """Whether sizes are smaller along every axis, by the same factor up to one pixel.

    Example:
        >>> is_reduced((47, 63), (375, 500)), is_reduced((47, 47), (375, 500))
        (True, False)
    """
    if len(small) != len(full) or not all(0 < s < f for s, f in zip(small, full, strict=True)):
        return False
    lowest = max((s - 1) / f for s, f in zip(small, full, strict=True))
    return lowest <= min((s + 1) / f for s, f in zip(small, full, strict=True))


def resize_linear(values: Pixels, sizes: Sequence[int], axes: Sequence[int]) -> Pixels:
    """Linear interpolation along some axes (bilinear for two), between the centers of pixels.

    Pixel k of n covers the interval from k/n to (k + 1)/n of an axis; beyond the outermost centers
    the values are constant. This is what torch calls ``align_corners=False``.

    Args:
        values: Real numbers.
        sizes: The new size of each of these axes.
        axes: Which axes.

    Returns:
        A new array, float32 or float64.

    Example:
        >>> resize_linear(np.array([0.0, 1.0]), [4], [0]).tolist()
        [0.0, 0.25, 0.75, 1.0]
    """
    out = values
    if values.dtype.kind != "f" or values.dtype.itemsize < 4:
        out = values.astype(np.float32)
    for new, axis in zip(sizes, axes, strict=True):
        old = out.shape[axis]
        at = np.clip((np.arange(new) + 0.5) * (old / new) - 0.5, 0, old - 1)
        left = np.floor(at).astype(np.int64)
        shape = [1] * out.ndim
        shape[axis] = new
        weight = (at - left).astype(out.dtype).reshape(shape)
        right = np.minimum(left + 1, old - 1)
        out = np.take(out, left, axis) * (1 - weight) + np.take(out, right, axis) * weight
    return out
