"""Which filter a Gaussian term uses on a device, and that filter as the host's terms see it."""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from proxfield.core.common.arrays import Floats
from proxfield.core.devices.cuda import need, torch
from proxfield.core.devices.tensors import Tensor, TorchDevice
from proxfield.core.filters import choose
from proxfield.core.filters.geometry import Blur
from proxfield.core.filters.plan import HostPlan
from proxfield.core.filters.torch.plans import TOLERANCE, make_plan
from proxfield.core.filters.triton.segments import has_kernels

MAX_EXACT_SECONDS = 0.25
"""Longest that one application of the exact filter may take for ``filter="auto"`` to choose it."""
PAIRS_PER_SECOND = 3e12
"""That `ExactPlan` computes on an H200 (3.1e12 to 3.2e12 measured on images)."""
BLOCKED_PAIRS_PER_SECOND = 2e10
"""That `PlainPlan` computes there in float64, by counting passes over memory: 10 of 8 bytes."""
MATRIX_POINTS = 2048
"""Points up to which the kernel is held as a matrix of float64: 32 MiB."""
PADDING = 2.0
"""About how many pairs the exact plan computes for each one over the tolerance (1.2 to 2.2 measured
on images)."""
SAMPLE_POINTS = 64
"""Points whose neighbors are counted to estimate how many pairs there are."""


def resolved(device: TorchDevice) -> TorchDevice:
    """A device of torch with its number: "cuda" is the current one."""
    return torch.zeros(0, device=device).device


def estimated_pairs(features: Tensor, tolerance: float) -> float:
    """About how many pairs an `ExactPlan` computes, from the neighbors of a few points."""
    n = len(features)
    some = features[:: -(-n // SAMPLE_POINTS)].to(torch.float32)
    reach = math.sqrt(-2.0 * math.log(tolerance))
    near = (torch.cdist(some, features.to(torch.float32)) <= reach).sum()
    return min(1.0, PADDING * float(near) / (len(some) * n)) * float(n) ** 2


def choose_kind(name: str, features: Tensor, double: bool, tolerance: float = TOLERANCE) -> str:
    """ "exact" or "lattice"; "auto" is exact up to `MAX_EXACT_SECONDS` per application.

    Without a GPU "auto" means what it means on the CPU.
    """
    n = len(features)
    if name != "auto" or not features.is_cuda:
        return choose(name, n)
    rate = BLOCKED_PAIRS_PER_SECOND if double or not has_kernels(features) else PAIRS_PER_SECOND
    if float(n) ** 2 <= MAX_EXACT_SECONDS * rate:  # whatever the points are
        return "exact"
    if rate == BLOCKED_PAIRS_PER_SECOND:
        return "lattice"
    return (
        "exact" if estimated_pairs(features, tolerance) <= MAX_EXACT_SECONDS * rate else "lattice"
    )


class DeviceFilter(HostPlan):
    """A plan as a `Filter`: the host's term and the device's then have the same operator.

    Args:
        features: On the host.  # (n, d)
        kind: "exact", "lattice" or "auto".
        double: Whether to compute in float64.
        device: Where the plan lives.
        tolerance: Tolerance of the exact filter in float32.
        blur: That of the lattice, if it isn't to choose.
    """

    def __init__(
        self, features: Floats, kind: str, double: bool, device: TorchDevice,
        tolerance: float = TOLERANCE, blur: Blur | None = None,
    ) -> None:  # fmt: skip
        need("torch")
        writable = features if features.flags.writeable else features.copy()  # torch insists
        self.features = torch.from_numpy(writable).to(device)
        """On the device, as given.  # (n, d)"""
        self.kind = choose_kind(kind, self.features, double, tolerance)
        self.n = len(features)
        tiled = not double and has_kernels(self.features) and self.n > MATRIX_POINTS
        self.plan = make_plan(
            self.features, self.kind, tiled=tiled, dtype=torch.float64, tolerance=tolerance,
            blur=blur,
        )  # fmt: skip

    @property
    def name(self) -> str:  # type: ignore[override]
        """The kind of filter."""
        return self.kind

    @cached_property
    def device_mass(self) -> Tensor:
        """Total weights, on the device.  # (n, 1)"""
        return self.plan.mass()

    def mass(self) -> Floats:
        return np.array(self.device_mass.cpu().numpy())

    def apply(self, values: Floats) -> Floats:
        given = torch.from_numpy(np.ascontiguousarray(values))
        out = self.plan.apply(given.to(self.features.device))
        return np.array(out.cpu().numpy(), dtype=values.dtype)

    def pull(self, a: Floats, b: Floats) -> tuple[Floats, Floats]:
        place = self.features.device
        given = (torch.from_numpy(np.ascontiguousarray(x)).to(place) for x in (a, b))
        gradient, totals = self.plan.pull(*given)
        return gradient.cpu().numpy(), totals.cpu().numpy()

    def diagonal(self) -> NDArray[np.float64]:
        return self._diagonal

    @cached_property
    def _diagonal(self) -> NDArray[np.float64]:
        return np.asarray(self.plan.diagonal().cpu().numpy(), dtype=np.float64)

    @property
    def nbytes(self) -> int:
        return self.plan.nbytes
