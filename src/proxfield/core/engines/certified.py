"""The certified step: the largest 1 / (1 + d) that is known never to raise F.

λ is the largest signed eigenvalue of P H P, where H is the Hessian of the expected energy and P
centers each variable's block; λ_i is its bound for one variable. A proximal step with damping
d ≥ max(0, λ/4 − ½) lowers F.

Where the curvature is bounded relative to that of the entropy, ΔᵀHΔ ≤ Σ_i L_i Σ_l Δ_il²/q_il, the
energy of a term stays below its linear approximation plus Σ_i L_i KL(q⁺_i‖q_i). With
F(q⁺) ≤ F(q) + Σ_i [(L_i − d_i) KL(q⁺_i‖q_i) − (1 + d_i) KL(q_i‖q⁺_i)] + ½ λ‖Δ‖², where λ is
the curvature of all other terms, and both KLs at least ‖Δ_i‖², a step lowers F if d_i ≥ L_i and
(d_i − L_i) + (1 + d_i) ≥ λ/2.
"""

from __future__ import annotations

from typing import overload

import numpy as np
from numpy.typing import NDArray

from proxfield.core.common.arrays import Array, Floats
from proxfield.core.lowering.lowered import Lowered
from proxfield.core.terms.base import offers


@overload
def damping_for(curvature: Floats | float) -> NDArray[np.float64]: ...
@overload
def damping_for(curvature: Array) -> Array: ...
def damping_for(curvature: Array) -> Array:
    """The certified damping d = max(0, λ/4 − ½), entry by entry.

    Args:
        curvature: λ: a number, a numpy array or a torch tensor (whose gradient is kept).

    Returns:
        d: float64 for numbers and numpy arrays, a tensor of the same type for tensors.

    Example:
        >>> float(damping_for(6.0))
        1.0
    """
    if isinstance(curvature, (float, int, np.ndarray, np.generic)):
        curvature = np.asarray(curvature, dtype=np.float64)
    return (curvature / 4 - 0.5).clip(0.0)


def certifiable(lowered: Lowered) -> bool:
    """Whether every term bounds its curvature, so that there is a certified step."""
    return all(offers(t, "curvature") or offers(t, "relative_curvature") for t in lowered.terms)


def prefers_search(lowered: Lowered) -> bool:
    """Whether a step found by looking at F is better than a certified one, or all there is.

    Relative bounds hold for states that don't occur: they are cautious.
    """
    relative = any(offers(t, "relative_curvature") for t in lowered.terms)
    return relative or not certifiable(lowered)


def relative_damping(relative: Floats, others: float) -> NDArray[np.float64]:
    """The certified damping where some terms bound their curvature relative to the entropy's.

    Args:
        relative: L_i of those terms.  # (n_vars,)
        others: λ of all others.

    Example:
        >>> relative_damping(np.array([0.0, 2.0, 20.0]), 6.0).tolist()
        [1.0, 2.0, 20.0]
    """
    bound = np.asarray(relative, dtype=np.float64)
    return np.maximum(bound, others / 4 - 0.5 + bound / 2)
