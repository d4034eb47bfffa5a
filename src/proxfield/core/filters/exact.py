"""The exact filter: every pair of points, in blocks. The oracle, and right for small fields."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from proxfield.core.common.arrays import Floats
from proxfield.core.filters.plan import HostPlan, check_features


class ExactFilter(HostPlan):
    """K itself, without approximation: n² weights for each application.

    Args:
        features: One row per point, in units of standard deviations.  # (n, d)

    Example:
        >>> ExactFilter([[0.0], [1.0]]).apply(np.array([[1.0], [0.0]])).round(3)
        array([[1.   ],
               [0.607]])
    """

    name = "exact"

    def __init__(self, features: ArrayLike) -> None:
        self.features = check_features(features)
        self.n = len(self.features)

    def apply(self, values: Floats) -> Floats:
        from proxfield.core.compiled.jit import threads_for
        from proxfield.core.filters.numba.exact import exact_filter

        out = np.empty(values.shape, dtype=values.dtype)
        with threads_for(len(values) * values.size):
            exact_filter(self.features, np.ascontiguousarray(values), out)
        return out

    def pull(self, a: Floats, b: Floats) -> tuple[Floats, Floats]:
        # K of the values and of the values times each feature, all at once
        f = self.features.astype(np.float64)
        f -= f.mean(axis=0)  # differences are left as they are, rounding is less
        mine, others = np.concatenate([a, b], axis=1), np.concatenate([b, a], axis=1)
        moments = np.concatenate([np.ones((self.n, 1)), f], axis=1)  # (n, 1 + d)
        seen = self.apply((moments[:, :, None] * others[:, None]).reshape(self.n, -1))
        sums = (mine[:, None] * seen.reshape(self.n, moments.shape[1], -1)).sum(axis=2)
        return sums[:, 1:] - f * sums[:, :1], sums[:, :1]

    def matrix(self) -> NDArray[np.float64]:
        """K as a dense array, in plain numpy.  # (n, n)"""
        f = self.features.astype(np.float64)
        square = np.zeros((len(f), len(f)))
        for column in f.T:  # differences, not norms and products: those cancel
            square += (column[:, None] - column[None, :]) ** 2
        return np.exp(-0.5 * square)

    def diagonal(self) -> NDArray[np.float64]:
        return np.ones(len(self.features))
