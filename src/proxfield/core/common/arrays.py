"""Names for the types of arrays, and formulas written once for numpy arrays and torch tensors."""

from __future__ import annotations

from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]
"""Numbers in float32 or float64."""
Doubles = NDArray[np.float64]
Ints = NDArray[np.int64]
Pixels = NDArray[Any]
"""Images and maps, whose numbers may have any type."""
Dtype: TypeAlias = np.dtype[Any]
"""The type of the numbers of some array."""
Arrays = dict[str, NDArray[Any]]
"""Arrays of any types by name: what is stored in a file."""
Array: TypeAlias = Any
"""An array of numpy or a tensor of torch, which is optional: to the type checker anything."""


def library_of(array: Array | float) -> ModuleType:
    """The library an array belongs to: numpy, or torch for its tensors.

    torch is imported only where it made the array, so it is loaded already.

    Example:
        >>> library_of(np.zeros(3)).__name__
        'numpy'
    """
    if isinstance(array, (np.ndarray, np.generic, float, int)):
        return np
    import torch  # type: ignore[import-not-found,unused-ignore]

    return torch  # type: ignore[no-any-return,unused-ignore]


def cast(array: Array, like: Array) -> Array:
    """An array in the floating-point type of another of its library; itself where it has that."""
    if array.dtype == like.dtype:
        return array
    return array.astype(like.dtype) if isinstance(array, np.ndarray) else array.to(like.dtype)


def rsqrt(array: Array) -> Array:
    """1 / √x, entry by entry."""
    return 1.0 / np.sqrt(array) if isinstance(array, np.ndarray) else array.rsqrt()
