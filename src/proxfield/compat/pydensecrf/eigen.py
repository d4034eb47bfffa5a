"""Matrices and vectors of float32 that share their memory with numpy.

The original's are bare buffers. These are numpy arrays, since that is the one way to have a
two-dimensional buffer in every Python version, so ``.shape``, ``len``, indexing and arithmetic
work too. What is computed from them is a plain array; only the object itself has the type.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from proxfield.core.common.arrays import Pixels


class _Buffer(np.ndarray[Any, np.dtype[np.float32]]):
    """Memory with the look of an array, whose results are plain arrays."""

    def plain(self) -> NDArray[np.float32]:
        """The same memory as a plain array."""
        return np.ndarray.view(self, np.ndarray)

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("_") or name == "plain":
            return super().__getattribute__(name)
        return getattr(np.ndarray.view(self, np.ndarray), name)

    def __getitem__(self, key: Any) -> Any:
        return self.plain()[key]

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        out = kwargs.get("out")
        if out is not None:
            kwargs["out"] = tuple(_plain(a) for a in out)
        result = getattr(ufunc, method)(*map(_plain, inputs), **kwargs)
        return out[0] if out is not None and len(out) == 1 else result


class MatrixXf(_Buffer):
    """A float32 matrix, column-major: ``np.asarray(matrix)`` is a live, writable view.

    Args:
        rows: Number of rows.
        cols: Number of columns.

    Example:
        >>> Q = matrixXf(np.array([[0.2, 0.9], [0.8, 0.1]], dtype=np.float32))
        >>> np.argmax(Q, axis=0)
        array([1, 0])
        >>> np.asarray(Q)[0, 0] = 1.0
        >>> float(np.array(Q)[0, 0]), memoryview(Q).format, memoryview(Q).strides
        (1.0, 'f', (4, 8))
    """

    def __new__(cls, rows: int = 0, cols: int = 0) -> MatrixXf:
        return np.ndarray.view(np.zeros((cols, rows), dtype=np.float32).T, cls)


class VectorXf(_Buffer):
    """A float32 vector: ``np.asarray(vector)`` is a live, writable view.

    Args:
        size: Number of entries.
    """

    def __new__(cls, size: int = 0) -> VectorXf:
        return np.zeros(size, dtype=np.float32).view(cls)


def matrixXf(arr: ArrayLike) -> MatrixXf:
    """A copy of a two-dimensional float32 array."""
    return np.array(_checked(arr, 2), order="F").view(MatrixXf)


def vectorXf(arr: ArrayLike) -> VectorXf:
    """A copy of a one-dimensional float32 array."""
    return np.array(_checked(arr, 1)).view(VectorXf)


def as_matrix(flat: NDArray[np.float32], labels: int) -> MatrixXf:
    """Entries variable by variable as a matrix, one column a variable; shares the memory."""
    return np.ndarray.view(flat.reshape(-1, labels).T, MatrixXf)


def _checked(arr: Any, ndim: int) -> NDArray[np.float32]:
    if arr is None:
        raise TypeError("Argument 'arr' must not be None")
    if not isinstance(arr, np.ndarray):
        try:
            arr = memoryview(arr)
        except TypeError:
            raise TypeError(f"a float32 array is needed, not {type(arr).__name__}") from None
    out = np.asarray(arr)
    if out.ndim != ndim:
        raise ValueError(f"Buffer has wrong number of dimensions (expected {ndim}, got {out.ndim})")
    check_float32(out)
    return out


def check_float32(array: Pixels) -> None:
    """Raise ValueError unless an array is of float32."""
    if array.dtype != np.float32:
        raise ValueError(
            f"Buffer dtype mismatch, expected 'float' but got {array.dtype.name!r}: "
            "convert with .astype(np.float32)"
        )


def _plain(value: Any) -> Any:
    """A plain array for one of ours."""
    return value.plain() if isinstance(value, _Buffer) else value
