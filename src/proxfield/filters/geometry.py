"""The permutohedral lattice's constants: how features are scaled onto it, and what keys vertices.

Every backend builds the same lattice from these.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

NEIGHBOR_SHARE = 0.2
"""Share that a vertex gives to each neighbor along an axis, in each of the two blurs."""
MIN_TOUCHED = 2
"""A vertex that no point touches is added if it has this many touched neighbors."""


def axis_scales(d: int, side: float = NEIGHBOR_SHARE) -> NDArray[np.float64]:
    """What each feature is multiplied with before it is put onto the lattice.  # (d,)

    In units of the lattice's spacing squared, (d + 1)², a blur along all axes has the variance
    2·side, splatting and slicing 1/12 each; together they make up the Gaussian's, 1.
    """
    k = np.arange(1, d + 1)
    return np.asarray((d + 1) * np.sqrt(4 * side + 1 / 6) / np.sqrt(k * (k + 1)))


def peak(d: int, side: float = NEIGHBOR_SHARE) -> float:
    """What makes the kernel's integral that of the Gaussian, (2π)^(d/2), instead of the volume of
    a lattice cell (in units of the features)."""
    return float((2 * np.pi * (4 * side + 1 / 6)) ** (d / 2) * np.sqrt(d + 1))


def vertex_codes(d: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The hash codes of the lattice's vertices, fixed for each number of features.

    A vertex is known by one 64-bit key: Σ_k coordinate_k · code_k, wrapping around. It is linear,
    so a step along an axis adds a constant.

    Args:
        d: Number of features.

    Returns:
        What a coordinate counts in a key (the last nothing), and what a step along each axis
        adds: all coordinates + 1, that of the axis − (d + 1) more.  # (d + 1,), (d + 1,)

    Example:
        >>> code, stride = vertex_codes(2)
        >>> bool(stride.sum() == 0), int(code[-1])
        (True, 0)
    """
    code = np.append(np.random.default_rng(d).integers(-(2**62), 2**62, d) | 1, 0)
    return code, code.sum() - (d + 1) * code  # wraps around, as keys do
