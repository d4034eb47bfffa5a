"""Let a field's Gaussian terms filter on a device."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from proxfield.core.filters.geometry import BLURS
from proxfield.core.filters.plan import Plan
from proxfield.core.filters.torch.plans import TOLERANCE
from proxfield.core.filters.triton.plans import DeviceFilter, resolved
from proxfield.core.terms.gaussian import Gaussian

if TYPE_CHECKING:
    from proxfield.core.devices.tensors import TorchDevice
    from proxfield.core.lowering.lowered import Lowered
    from proxfield.core.terms.base import Term


def with_filter(term: Gaussian, made: Plan) -> Gaussian:
    """The same term with another filter; total weights and bounds on eigenvalues follow it."""
    out = copy.copy(term)
    for name in ("operator", "kernel_range"):
        vars(out).pop(name, None)
    out.filter_name = made.name
    vars(out)["filter"] = made
    return out


def attach(
    lowered: Lowered, dtype: str, device: TorchDevice, tolerance: float = TOLERANCE
) -> Lowered:
    """A lowered field whose Gaussian terms filter on a device.

    λ, total weights and energies are then those of the operator that the device iterates with,
    whichever filter it chose, and nothing is computed for all pairs on the host. Terms on the
    device share the filter, in both types. The terms that were given stay as they are; those
    that already filter there are kept.

    Args:
        lowered: The field.
        dtype: "float32" or "float64".
        device: A device of torch.
        tolerance: Tolerance of the exact filter in float32.
    """
    if not lowered.extras:
        return lowered
    double = np.dtype(dtype) == np.float64
    place = resolved(device)

    def moved(term: Term) -> Term:
        if not isinstance(term, Gaussian) or term.features is None or term.n_points == 0:
            return term
        held = vars(term).get("filter")
        if isinstance(held, DeviceFilter) and held.features.device == place:
            return term
        blur = None if term.blur is None else BLURS[term.blur]
        made = DeviceFilter(term.features, term.filter_name, double, device, tolerance, blur)
        return with_filter(term, made)

    return replace(lowered, extras=tuple(moved(term) for term in lowered.extras))
