"""Which filter a Gaussian term uses on a device, and that filter as the host's terms see it."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from proxfield.devices.cuda import need, torch
from proxfield.filters import choose
from proxfield.filters.plan import Filter
from proxfield.filters.triton.exact import ExactPlan, reference_filter
from proxfield.filters.triton.lattice import LatticePlan
from proxfield.filters.triton.segments import has_kernels
from proxfield.terms.gaussian import SMALLEST_MASS, Gaussian

if TYPE_CHECKING:
    from proxfield.lowering.lowered import Lowered

TOLERANCE = 1e-6
"""Pairs with a smaller weight may be left out by the exact filter in float32."""
SECONDS = 0.25
"""Longest that one application of the exact filter may take for ``filter="auto"`` to choose it."""
PAIRS_A_SECOND = 3e12
"""That `ExactPlan` computes on an H200 (3.1e12 to 3.2e12 measured on images)."""
BLOCKED_PAIRS_A_SECOND = 2e10
"""That `BlockedPlan` computes there, by counting passes over memory: 10 of 8 bytes a pair."""
MATRIX_POINTS = 2048
"""Points up to which the kernel is held as a matrix of float64: 32 MiB."""
PADDING = 2.0
"""About how many pairs the exact plan computes for each one over the tolerance (1.2 to 2.2 measured
on images)."""
SAMPLE = 64
"""Points whose neighbors are counted to estimate how many pairs there are."""


def resolved(device: Any) -> Any:
    """A device of torch with its number: "cuda" is the current one."""
    return torch.zeros(0, device=device).device


class MatrixPlan:
    """K itself in float64, for few points: exact, and one product of matrices an application.

    Args:
        features: A tensor, in units of standard deviations.  # (n, d)
    """

    name = "exact"

    def __init__(self, features: Any) -> None:
        self.n = len(features)
        eye = torch.eye(self.n, dtype=torch.float64, device=features.device)
        self.matrix = reference_filter(features, eye)  # (n, n)

    def apply(self, values: Any) -> Any:
        """K @ values, summed in float64.  # (n, c) -> (n, c)"""
        return (self.matrix @ values.to(torch.float64)).to(values.dtype)


class BlockedPlan:
    """The exact filter in float64 by plain torch operations, some rows at a time: on any device.

    Args:
        features: A tensor, in units of standard deviations.  # (n, d)
    """

    name = "exact"

    def __init__(self, features: Any) -> None:
        self.n = len(features)
        self.features = features.to(torch.float64)
        self.block = max(1, (1 << 25) // max(1, self.n))

    def apply(self, values: Any) -> Any:
        """K @ values, weights and sums in float64.  # (n, c) -> (n, c)"""
        return reference_filter(self.features, values, block=self.block).to(values.dtype)


def estimated_pairs(features: Any, tolerance: float) -> float:
    """About how many pairs an `ExactPlan` computes, from the neighbors of a few points."""
    n = len(features)
    some = features[:: -(-n // SAMPLE)].to(torch.float32)
    reach = math.sqrt(-2.0 * math.log(tolerance))
    near = (torch.cdist(some, features.to(torch.float32)) <= reach).sum()
    return min(1.0, PADDING * float(near) / (len(some) * n)) * float(n) ** 2


def choose_kind(name: str, features: Any, double: bool, tolerance: float = TOLERANCE) -> str:
    """ "exact" or "lattice": for "auto" exact where an application takes less than `SECONDS`.

    Without a GPU "auto" means what it means on the CPU.

    Args:
        name: "exact", "lattice" or "auto".
        features: On the device.  # (n, d)
        double: In float64?
        tolerance: Of the exact filter in float32.
    """
    n = len(features)
    if name != "auto" or not features.is_cuda:
        return choose(name, n)
    rate = BLOCKED_PAIRS_A_SECOND if double or not has_kernels(features) else PAIRS_A_SECOND
    if float(n) ** 2 <= SECONDS * rate:  # whatever the points are
        return "exact"
    if rate == BLOCKED_PAIRS_A_SECOND:
        return "lattice"
    return "exact" if estimated_pairs(features, tolerance) <= SECONDS * rate else "lattice"


def make_plan(kind: str, features: Any, double: bool, tolerance: float = TOLERANCE) -> Any:
    """A plan: something with ``apply`` over these points.

    Args:
        kind: "exact" or "lattice".
        features: On the device.  # (n, d)
        double: Are float64 results wanted?
        tolerance: Of the exact filter in float32.
    """
    if kind == "lattice":
        return LatticePlan(features)
    if len(features) <= MATRIX_POINTS:
        return MatrixPlan(features)
    if double or not has_kernels(features):
        return BlockedPlan(features)
    return ExactPlan(features, tolerance)


class DeviceFilter(Filter):
    """A plan as a `Filter`: the host's term and the device's then have the same operator.

    Args:
        features: On the host.  # (n, d)
        kind: "exact", "lattice" or "auto".
        double: In float64?
        device: Where the plan lives.
        tolerance: Of the exact filter in float32.
    """

    def __init__(
        self, features: Any, kind: str, double: bool, device: Any, tolerance: float = TOLERANCE
    ) -> None:
        need("torch")
        self.host = features
        self.double = double
        self.tolerance = tolerance
        writable = features if features.flags.writeable else features.copy()  # torch insists
        self.features = torch.from_numpy(writable).to(device)
        """On the device, as given.  # (n, d)"""
        self.kind = choose_kind(kind, self.features, double, tolerance)
        self.plan = make_plan(self.kind, self.features, double, tolerance)
        self._mass: Any = None
        self._diagonal: NDArray[np.float64] | None = None

    @property
    def name(self) -> str:  # type: ignore[override]
        """The kind of filter."""
        return self.kind

    @property
    def precision(self) -> str:  # type: ignore[override]
        """Type of what the plan returns."""
        return "float32" if isinstance(self.plan, ExactPlan) else "float64"

    @property
    def mass(self) -> Any:
        """n_i = Σ_j k_ij, on the device.  # (n,) float64"""
        if self._mass is None:
            kind = getattr(torch, self.precision)
            ones = torch.ones((len(self.features), 1), dtype=kind, device=self.features.device)
            self._mass = self.plan.apply(ones)[:, 0].to(torch.float64) + SMALLEST_MASS
        return self._mass

    def apply(self, values: NDArray[Any]) -> NDArray[Any]:
        if values.shape[1] == 1 and (values == 1).all():
            out = self.mass[:, None]  # asked for more than once
        else:
            given = torch.from_numpy(np.ascontiguousarray(values))
            out = self.plan.apply(given.to(self.features.device))
        return np.array(out.cpu().numpy(), dtype=values.dtype)  # a copy: callers change it

    def diagonal(self) -> NDArray[np.float64]:
        if self._diagonal is None:
            self._diagonal = np.ones(len(self.host))
            if self.kind == "lattice":
                from proxfield.filters.lattice import LatticeFilter

                self._diagonal = LatticeFilter(self.host).diagonal()
        return self._diagonal

    @property
    def nbytes(self) -> int:
        return int(getattr(self.plan, "nbytes", 0))


def with_filter(term: Gaussian, made: Filter) -> Gaussian:
    """The same term with another filter; total weights and bounds on eigenvalues follow it."""
    out = copy.copy(term)
    for name in ("scales", "own", "row_sums", "kernel_range"):
        vars(out).pop(name, None)
    out.filter_name = made.name
    vars(out)["filter"] = made
    return out


def attach(lowered: Lowered, dtype: Any, device: Any, tolerance: float = TOLERANCE) -> Lowered:
    """A lowered field whose Gaussian terms filter on a device.

    λ, total weights and energies are then those of the operator that the device iterates with,
    whichever filter it chose, and nothing is computed for all pairs on the host. Terms on the
    device share the filter, in both types. The terms that were given stay as they are; those
    that already filter there are kept.

    Args:
        lowered: The field.
        dtype: "float32" or "float64".
        device: A device of torch.
        tolerance: Of the exact filter in float32.
    """
    if not lowered.extras:
        return lowered
    double = np.dtype(dtype) == np.float64
    place = resolved(device)

    def moved(term: Any) -> Any:
        if not isinstance(term, Gaussian) or term.features is None or term.n_points == 0:
            return term
        held = vars(term).get("filter")
        if isinstance(held, DeviceFilter) and held.features.device == place:
            return term
        made = DeviceFilter(term.features, term.filter_name, double, device, tolerance)
        return with_filter(term, made)

    return replace(lowered, extras=tuple(moved(term) for term in lowered.extras))
