"""Maps that are smaller than their image, brought to its size by linear interpolation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from proxfield.core.common.arrays import Pixels


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
    out = values if values.dtype.kind == "f" and values.dtype.itemsize >= 4 else None
    out = values.astype(np.float32) if out is None else out
    for size, axis in zip(sizes, axes, strict=True):
        left, share = _neighbors(out.shape[axis], size)
        right = np.minimum(left + 1, out.shape[axis] - 1)
        shape = [1] * out.ndim
        shape[axis] = size
        weight = share.astype(out.dtype).reshape(shape)
        out = np.take(out, left, axis) * (1 - weight) + np.take(out, right, axis) * weight
    return out


def _neighbors(old: int, new: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """For each new pixel the old one to its left, and the share of the one to its right."""
    at = np.clip((np.arange(new) + 0.5) * (old / new) - 0.5, 0, old - 1)
    left = np.floor(at).astype(np.int64)
    return left, at - left


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
