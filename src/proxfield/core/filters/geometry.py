"""The permutohedral lattice's constants: how features are scaled onto it, and what keys vertices.

Every engine builds the same lattice from these.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MIN_TOUCHED = 2
"""A vertex that no point touches is added if it has this many touched neighbors."""
SAMPLE_STRIDE = 5
"""A blur is chosen by every fifth point."""
MAX_VISITS = 5.5
"""Vertices per point that separable blurs may visit, as estimated from the sample."""
CHEAP_VISITS = 360_000
"""Vertices that they may visit however few points there are."""
COARSE_VISITS = 14.5
"""Vertices per point that coarse blurs may visit, counted as if they were separable."""
COARSE_CHEAP_VISITS = 550_000
"""Vertices that coarse blurs may visit however few points there are."""
COARSE_MAX_VISITS = 1_150_000
"""Maximum number of vertices that they may visit: more don't fit into caches."""


@dataclass(frozen=True)
class Blur:
    """How values are blurred over the vertices of the lattice: B in K = S B Sᵀ.

    Both kinds apply an operator and its transpose, so that B is symmetric and has no negative
    eigenvalue, whichever vertices are missing:

    - separable: B = C Cᵀ, where C blurs along one axis after another. Each vertex keeps
      1 − 2·share along an axis and gets ``share`` of both neighbors. Closest to the Gaussian
      where points are dense: the lattice is fine, and vertices between touched ones are added.
    - coarse: separable with a smaller share over a coarser lattice, which has a third fewer
      vertices.
    - star: B = T M T, where T and M blur along all axes at once. In T a vertex keeps two shares
      and gets one from each of the 2 (d + 1) neighbors. In M it keeps one half, and the neighbors'
      shares are the other half, so M has no negative eigenvalue. The lattice is coarser and three
      passes are enough. Where points are sparse this loses less at missing vertices than blurs
      along paths do.
    """

    name: str
    along: float | None
    """The share along one axis after another; None for stars."""
    fit: float = 1.0
    """Part of the variance that counts: mass is lost at missing vertices, so a kernel that is
    somewhat too wide comes closer."""

    @property
    def bridged(self) -> bool:
        """Whether vertices that no point touches are added between touched ones."""
        return self.along is not None

    def share(self, d: int) -> float:
        """Share that a vertex gives to each neighbor, in each of the two outer blurs."""
        return 1.0 / (2 * d + 4) if self.along is None else self.along

    def middle_share(self, d: int) -> float:
        """Share that a vertex gives to each neighbor in the middle blur; 0 if there is none."""
        return 1.0 / (4 * d + 4) if self.along is None else 0.0

    def variance(self, d: int) -> float:
        """Variance of two points that are splatted, blurred and sliced, in squared spacings.

        Along each axis a blur has the variance 2·share, and splatting and slicing 1/12 each.
        """
        return self.fit * (4 * self.share(d) + 2 * self.middle_share(d) + 1 / 6)


SEPARABLE = Blur("separable", along=0.2)
COARSE = Blur("coarse", along=0.15, fit=0.88)
STAR = Blur("star", along=None)
BLURS = {blur.name: blur for blur in (SEPARABLE, COARSE, STAR)}


def choose_blur(points: int, d: int, touched: int) -> Blur:
    """The blur for points that are dense or sparse among the vertices.

    Separable blurs visit all vertices of a finer lattice once for each axis, there and back:
    where points touch many vertices, that takes much longer than splatting and slicing. How long
    also depends on caches, so few visits are allowed however few points there are, and coarse
    blurs aren't used where there are many.

    touched: Vertices of the coarsest lattice that every `SAMPLE_STRIDE`-th point touches.
    """
    finer = (SEPARABLE.variance(d) / STAR.variance(d)) ** (d / 2)
    visits = 2 * (d + 1) * finer * touched
    if visits <= max(MAX_VISITS * points, CHEAP_VISITS):
        return SEPARABLE
    few = max(COARSE_VISITS * points, COARSE_CHEAP_VISITS)
    return COARSE if visits <= min(few, COARSE_MAX_VISITS) else STAR


def axis_scales(d: int, blur: Blur) -> NDArray[np.float64]:
    """What each feature is multiplied with before it is put onto the lattice.  # (d,)

    The lattice's spacing squared is (d + 1)²; with these the variance of filtering is 1.
    """
    k = np.arange(1, d + 1)
    return np.asarray((d + 1) * np.sqrt(blur.variance(d)) / np.sqrt(k * (k + 1)))


def peak(d: int, blur: Blur) -> float:
    """What makes the kernel's integral that of the Gaussian, (2π)^(d/2), instead of the volume of
    a lattice cell (in units of the features)."""
    return float((2 * np.pi * blur.variance(d)) ** (d / 2) * np.sqrt(d + 1))


def vertex_codes(d: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """What a coordinate counts in a vertex's key, and what a step along each axis adds to it.

    A key is Σ_k coordinate_k · code_k, wrapping around, with codes that are fixed for each number
    of features; the last is 0. A step adds 1 to all coordinates, −(d + 1) to that of its axis.
    # (d + 1,), (d + 1,)
    """
    code = np.append(np.random.default_rng(d).integers(-(2**62), 2**62, d) | 1, 0)
    return code, code.sum() - (d + 1) * code  # wraps around, as keys do
