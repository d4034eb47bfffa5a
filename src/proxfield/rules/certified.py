"""The certified step: the largest 1 / (1 + d) that is known never to raise F.

λ is the largest signed eigenvalue of P H P, where H is the Hessian of the expected energy and P
centers each variable's block; λ_i is its bound for one variable. A proximal step with damping
d ≥ max(0, λ/4 − ½) lowers F.
"""

from __future__ import annotations

from typing import overload

import numpy as np
from numpy.typing import NDArray

from proxfield.common.arrays import Array, Floats


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
