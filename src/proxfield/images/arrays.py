"""Arrays of other libraries: torch, cupy and xarray in, and results of the same kind out.

None of these packages is imported here: an array that is given has brought its own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable
from dataclasses import dataclass

import numpy as np

from proxfield.core.common.arrays import Array, Pixels


def is_torch(values: object) -> bool:
    """Whether this is a tensor of PyTorch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(values, torch.Tensor)


def is_xarray(values: object) -> bool:
    """Whether this is an array with named dimensions, as xarray has them."""
    return all(hasattr(values, name) for name in ("dims", "coords", "values"))


def is_on_gpu(values: object) -> bool:
    """Whether this is an array in the memory of a GPU that isn't torch's (cupy's, say)."""
    return hasattr(values, "__cuda_array_interface__") and hasattr(values, "get")


def to_host(values: Array) -> Array:
    """What numpy can read: tensors and arrays on a GPU are copied from it, all else stays.

    Example:
        >>> to_host([[1, 2]])
        [[1, 2]]
    """
    if is_xarray(values):
        return to_host(values.data)
    if is_torch(values):
        values = values.detach()
        if not values.dtype.is_complex and values.dtype.itemsize < 4 and values.is_floating_point():
            values = values.float()  # numpy has no bfloat16
        return values.cpu().numpy()
    return values.get() if is_on_gpu(values) else values


@dataclass(frozen=True)
class ArrayKind:
    """The kind of array that a caller gave; makes the same kind from numpy's.

    Attributes:
        given: The array; None for numpy's, lists and all that has no kind of its own.
    """

    given: Array = None

    @classmethod
    def of(cls, values: Array) -> ArrayKind:
        """The kind of an array."""
        if is_xarray(values):
            inner = cls.of(values.data)
            return cls(_Named(type(values), tuple(values.dims), dict(values.coords), inner))
        if is_torch(values) or is_on_gpu(values):
            return cls(values[:0] if values.ndim else values)  # the numbers can be freed
        return cls()

    def restore(self, values: Pixels, without: int | None = None) -> Array:
        """An array of the original's kind, and where that was (its device, its dimensions).

        Args:
            values: The numbers.
            without: An axis of the original that they lack.
        """
        if self.given is None:
            return values
        if isinstance(self.given, _Named):
            return self.given.restore(values, without)
        if is_torch(self.given):
            torch = sys.modules["torch"]
            return torch.from_numpy(np.ascontiguousarray(values)).to(self.given.device)
        library = sys.modules[type(self.given).__module__.partition(".")[0]]
        return library.asarray(values)


@dataclass(frozen=True)
class _Named:
    """Names and coordinates of an xarray, without its values."""

    kind: Callable[..., Array]
    dims: tuple[Hashable, ...]
    coords: dict[Hashable, Array]
    inner: ArrayKind

    def restore(self, values: Pixels, without: int | None) -> Array:
        axis = None if without is None else without % len(self.dims)
        dims = [name for k, name in enumerate(self.dims) if k != axis]
        if len(dims) != np.ndim(values):
            return self.inner.restore(values)
        sizes = dict(zip(dims, np.shape(values), strict=True))
        kept = {
            name: coord
            for name, coord in self.coords.items()
            if all(sizes.get(d) == n for d, n in zip(coord.dims, coord.shape, strict=True))
        }
        return self.kind(self.inner.restore(values), dims=dims, coords=kept)


def named_axes(image: Array, unary: Array) -> tuple[int | None, int | None] | None:
    """Axes of labels and of channels by the names of dimensions; None where these don't tell.

    The dimensions that an image and its probabilities share are the pixels, in the same order;
    what is left of each is its labels or channels.

    Returns:
        The axis of labels and the axis of channels (None: no such axis).
    """
    if not (is_xarray(image) and is_xarray(unary)):
        return None
    shared = [name for name in unary.dims if name in image.dims]
    if not shared or [name for name in image.dims if name in unary.dims] != shared:
        return None
    labels = [k for k, name in enumerate(unary.dims) if name not in shared]
    channels = [k for k, name in enumerate(image.dims) if name not in shared]
    if len(labels) > 1 or len(channels) > 1:
        return None
    return (labels[0] if labels else None), (channels[0] if channels else None)
