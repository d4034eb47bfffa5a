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


def group_positions(
    values: Ints | NDArray[np.int32], count: int
) -> tuple[Ints, Ints | NDArray[np.int32]]:
    """Positions of each value from 0 to ``count`` − 1: a stable argsort in linear time.

    Returns:
        Where the positions of each number start (count + 1,), and all positions (m,).
    """
    from scipy.sparse import csr_matrix

    m = len(values)
    if m == 0:
        return np.zeros(count + 1, dtype=np.int64), np.zeros(0, dtype=np.int64)
    # one entry per row in the column of its value; by columns, rows come in their order
    flags = np.ones(m, dtype=np.int8)
    by_row = csr_matrix((flags, values, np.arange(m + 1)), shape=(m, count))
    by_value = by_row.tocsc()
    return by_value.indptr.astype(np.int64), by_value.indices
