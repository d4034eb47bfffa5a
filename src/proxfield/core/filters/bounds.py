"""Bounds on the eigenvalues of Gaussian terms, for numpy arrays and torch tensors alike.

The certified step rests on these; core/engines/certified.py turns them into a damping.
"""

from __future__ import annotations

from proxfield.core.common.arrays import Array, library_of


def kernel_range(
    normalization: str, mass: Array | None, row_sums: Array | None, self_weights: Array | None
) -> tuple[Array, Array]:
    """Bounds on the eigenvalues of the normalized kernel A of a set of points.

    K has no negative eigenvalue; after symmetric normalization none is above 1, else none is
    above the largest row sum (A has no negative entry). The symmetric part of D⁻¹K, with
    ‖K‖ ≤ M and the entries of D between m and M, has none below −(M − m)² / 8m(M + m)
    (Strang 1962, eigenvalues of Jordan products). Without its diagonal, which lies between the
    smallest and the largest a_ii, the eigenvalues of A move down by at least the one and at most
    the other.

    Args:
        normalization: "none", "symmetric", "before" or "after".
        mass: Total weights n_i = Σ_j k_ij; used by "before" and "after" alone.  # (..., n)
        row_sums: Σ_j a_ij with the diagonal; not used by "symmetric".  # (..., n)
        self_weights: a_ii where the diagonal is left out, None where it is kept.  # (..., n)

    Returns:
        The lower and the upper bound, one for each set of points.  # (...), (...)

    Example:
        >>> import numpy as np
        >>> low, high = kernel_range("none", None, np.array([1.5, 1.2]), np.ones(2))
        >>> float(low), float(high)
        (-1.0, 0.5)
    """
    if normalization == "symmetric":
        low, high = 0.0, 1.0
    else:
        xp = library_of(row_sums)
        high = xp.amax(row_sums, -1)
        low = 0.0 * high
        if normalization != "none":
            least, most = xp.amin(mass, -1), xp.amax(mass, -1)
            low = -xp.minimum(high, (most - least) ** 2 / (8 * least * (most + least)))
    if self_weights is None:
        return low, high
    xp = library_of(self_weights)
    return low - xp.amax(self_weights, -1), high - xp.amin(self_weights, -1)


def product_range(low: Array, high: Array, table: Array) -> tuple[Array, Array]:
    """Bounds on the eigenvalues of A ⊗ M on centered blocks, and 0.

    They are products of an eigenvalue of A, between ``low`` and ``high``, and one of the
    compatibility M between centering projections. Blocks are centered since marginals sum to 1.

    Args:
        low: Lower bound on the eigenvalues of A.  # (...)
        high: Upper bound on them.  # (...)
        table: M, weight times compatibility.  # (labels, labels)

    Returns:
        The smallest and the largest product, at most and at least 0.  # (...), (...)

    Example:
        >>> import numpy as np
        >>> low, high = product_range(np.array(0.0), np.array(1.0), np.diag([-2.0, -2.0]))
        >>> round(float(low), 9), round(float(high), 9)
        (-2.0, 0.0)
    """
    xp = library_of(table)
    n_labels = table.shape[-1]
    centering = xp.diag(xp.ones_like(table[0])) - 1.0 / n_labels
    values = xp.linalg.eigvalsh(centering @ table @ centering)
    return products_within(low, high, values[0], values[-1])


def products_within(low: Array, high: Array, least: Array, most: Array) -> tuple[Array, Array]:
    """Bounds on products of a number within one interval and one within another, and 0.

    Example:
        >>> import numpy as np
        >>> low, high = products_within(*map(np.array, (0.0, 1.0, -2.0, 3.0)))
        >>> float(low), float(high)
        (-2.0, 3.0)
    """
    xp = library_of(most)
    ends = xp.stack([k * m for k in (low, high) for m in (least, most)])
    return xp.amin(ends, 0).clip(None, 0.0), xp.amax(ends, 0).clip(0.0)
