"""What a filter is: out_i = Σ_j k(f_i, f_j) v_j with k(f, f') = exp(−½‖f − f'‖²)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from proxfield.errors import InputError

MAX_DIMENSIONS = 20
"""Most features per point."""
MAX_SPAN = 1e8
"""Most standard deviations between two points that the lattice's integers can number."""


class Filter(ABC):
    """A symmetric operator K over points, exact or approximate.

    ``apply`` multiplies with K and ``diagonal`` gives its diagonal. K has no negative entry,
    is symmetric to rounding (not approximately), and has no negative eigenvalue: certified
    steps rest on all three.
    """

    name: ClassVar[str]
    precision: ClassVar[str] = "float64"
    """Type in which total weights are worth computing."""

    @abstractmethod
    def apply(self, values: NDArray[Any]) -> NDArray[Any]:
        """K @ values, in the values' floating-point type.  # (n, c) -> (n, c)"""

    @abstractmethod
    def diagonal(self) -> NDArray[np.float64]:
        """K_ii, the weight of each point's message to itself.  # (n,)"""

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays this filter holds."""
        return sum(v.nbytes for v in vars(self).values() if isinstance(v, np.ndarray))


def check_features(features: Any) -> NDArray[Any]:
    """Features as finite numbers (float32 as they are, else float64), one row a point.  # (n, d)"""
    try:
        out = np.asarray(features)
        if out.dtype.kind not in "fiub":
            raise TypeError
        single = out.dtype == np.float32
        out = np.ascontiguousarray(out, dtype=np.float32 if single else np.float64)
    except (TypeError, ValueError):
        raise InputError("features must be real numbers of shape (points, features)") from None
    if out.ndim != 2:
        raise InputError(f"features must have shape (points, features), not {out.shape}")
    if not 1 <= out.shape[1] <= MAX_DIMENSIONS:
        raise InputError(
            f"{out.shape[1]} features per point, expected 1 to {MAX_DIMENSIONS}; "
            "features are points × features (transpose what pydensecrf takes)"
        )
    low, high = out.min(initial=0.0), out.max(initial=0.0)
    if not (np.isfinite(low) and np.isfinite(high)):  # min and max pass NaN on
        raise InputError("features hold NaN or infinite values")
    span = float(high) - float(low)  # numpy's would warn where it overflows
    if span > MAX_SPAN:
        raise InputError(
            f"features span {span:.3g} standard deviations, more than {MAX_SPAN:.0g}; "
            "the bandwidth is too small for values of this size"
        )
    return out
