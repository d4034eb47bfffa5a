"""What a plan is: out_i = Σ_j k(f_i, f_j) v_j over fixed points, k(f, f') = exp(−½‖f − f'‖²).

And the plans of the host by name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pkgutil import resolve_name
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from proxfield.core.common.arrays import Array, Floats, Pixels
from proxfield.core.filters.geometry import Blur
from proxfield.errors import InputError, UnsupportedError, shown

MAX_DIMENSIONS = 20
"""Maximum number of features per point."""
MAX_SPAN = 1e8
"""Maximum distance of two points, in standard deviations, for the integers of the lattice."""
SMALLEST_MASS = 1e-20
"""Added to a point's total weight before dividing by it."""


class Plan(ABC):
    """A symmetric operator K over fixed points, exact or approximate, on the host or a device.

    K has no negative entry, is symmetric, and has no negative eigenvalue: certified steps rest on
    all three. They hold to the rounding of the arithmetic that a plan uses, which its class states:
    float64 or float32 on the host and for lattices, 1e-4 for the exact filter on a GPU. Arrays are
    numpy's or torch's; plans over several sets of points at once have them as a first axis of all
    shapes.
    """

    name: ClassVar[str]
    """The kind of filter, "exact" or "lattice"."""
    single: bool = False
    """Whether two applications to one channel are faster than one to two."""

    @abstractmethod
    def apply(self, values: Array) -> Array:
        """K @ values, in the values' floating-point type.  # (..., n, c) -> (..., n, c)"""

    def diagonal(self) -> Array:
        """K_ii, the weight of each point's message to itself.  # (..., n)"""
        return self.ones()[..., 0]  # exactly, of a Gaussian

    @abstractmethod
    def ones(self) -> Array:
        """A channel of ones, in the type in which total weights are computed.  # (..., n, 1)"""

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays this plan holds."""
        return held_bytes(tuple(vars(self).values()))

    def pull(self, a: Array, b: Array) -> tuple[Array, Array]:
        """The gradient of Σ_ij k_ij a_i·b_j with respect to the features, and a by-product.

        Returns:
            The gradient Σ_j k_ij (a_i·b_j + b_i·a_j) (f_j − f_i), and a_i·(K b)_i + b_i·(K a)_i;
            summed over values that share the points.  # (..., n, d), (..., n, 1)

        Raises:
            UnsupportedError: If K isn't differentiable in the features.
        """
        raise UnsupportedError(
            f'the "{self.name}" filter has no gradient with respect to features; use "exact"'
        )

    def mass(self) -> Array:
        """Total weights n_i = Σ_j k_ij, a little above 0; a new array.  # (..., n, 1)"""
        return self.apply(self.ones()) + SMALLEST_MASS


def held_bytes(thing: object) -> int:
    """Bytes of an array or a plan, or of all in a list or tuple of them."""
    if isinstance(thing, (list, tuple)):
        return sum(map(held_bytes, thing))
    return int(getattr(thing, "nbytes", 0))


class HostPlan(Plan):
    """A plan over numpy arrays."""

    single = True

    n: int
    """Number of points."""

    def like(self, features: Floats) -> HostPlan:
        """A plan of the same kind over other points."""
        kind: Any = type(self)
        made: HostPlan = kind(features)
        return made

    def ones(self) -> NDArray[np.float64]:
        return np.ones((self.n, 1))


def real_numbers(values: ArrayLike, what: str, shape: str) -> Pixels:
    """Real numbers of any type as an array; the message for others says of which ``shape``."""
    try:
        out = np.asarray(values)
        if out.dtype.kind not in "fiub":
            raise TypeError
    except (TypeError, ValueError):
        raise InputError(f"{what} must be real numbers {shape}") from None
    return out


def check_features(features: ArrayLike) -> Floats:
    """Features as finite float32 or float64 numbers, one row per point.  # (n, d)"""
    given = real_numbers(features, "features", "of shape (points, features)")
    single = given.dtype == np.float32
    out = np.ascontiguousarray(given, dtype=np.float32 if single else np.float64)
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


FILTERS: dict[str, str] = {
    "exact": "proxfield.core.filters.exact:ExactFilter",
    "lattice": "proxfield.core.filters.lattice:LatticeFilter",
}
"""A new filter is one module and one entry here; nothing is imported before it is asked for."""

EXACT_POINTS = 2000
"""Points up to which ``filter="auto"`` computes every pair."""


def choose(name: str, points: int) -> str:
    """ "auto" resolved: every pair for few points, the lattice for many."""
    if name == "auto":
        return "exact" if points <= EXACT_POINTS else "lattice"
    if name not in FILTERS:
        raise InputError(f"unknown filter {shown(name)}, expected auto, {', '.join(FILTERS)}")
    return name


def make_filter(name: str, features: ArrayLike, blur: Blur | None = None) -> HostPlan:
    """A filter by name ("exact" or "lattice"); the lattice's blur, if it isn't to choose."""
    if name not in FILTERS:
        raise InputError(f"unknown filter {shown(name)}, expected {', '.join(FILTERS)}")
    options = {} if blur is None or name != "lattice" else {"blur": blur}
    made: HostPlan = resolve_name(FILTERS[name])(features, **options)
    return made
