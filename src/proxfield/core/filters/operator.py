"""The normalized operator A of a Gaussian term, and bounds on its eigenvalues for certified steps.

For numpy arrays and torch tensors alike, also under autograd.
"""

from __future__ import annotations

import copy

from proxfield.core.common.arrays import Array, cast, library_of, rsqrt
from proxfield.core.filters.plan import Plan

NORMALIZATIONS = ("none", "before", "after", "symmetric")


class Operator:
    """A: the kernel K after normalization, without its diagonal if the self-message is left out.

    With n_i = Σ_j k_ij, "none" is K and "symmetric" is k_ij / √(n_i n_j). "before" and "after" are
    not symmetric, so no energy has them as its gradient: both stand for their symmetric part,
    ½ (k_ij/n_i + k_ij/n_j).

    Args:
        plan: K over the points; any object with the methods of a `Plan` will do.
        normalization: One of `NORMALIZATIONS`.
        self_message: Keep a_ii.
        mass: n_i where they are known already.  # (..., n, 1)
    """

    def __init__(
        self, plan: Plan, normalization: str, self_message: bool, mass: Array | None = None
    ) -> None:
        self.plan = plan
        self.normalization = normalization
        self.self_message = self_message
        self.pair = normalization in ("before", "after")
        """Whether A is the sum of two products: scaled after K, and before it."""
        self.mass: Array | None = None
        """n_i; None without normalization.  # (..., n, 1)"""
        self.scale: Array | None = None
        """What one side of each product is scaled by (both for "symmetric").  # (..., n, 1)"""
        if normalization != "none":
            self.mass = plan.mass() if mass is None else mass
            self.scale = 0.5 / self.mass if self.pair else rsqrt(self.mass)
        self._own: Array | None = None
        self._row_sums: Array | None = None

    @property
    def own(self) -> Array:
        """a_ii, whether it is kept or not.  # (..., n, 1)"""
        if self._own is None:
            own = self.plan.diagonal()[..., None]
            if self.scale is not None:
                scaled = own * self.scale
                own = scaled + scaled if self.pair else scaled * self.scale
            self._own = own
        return self._own

    @property
    def row_sums(self) -> Array:
        """Σ_j a_ij over the pairs that count.  # (..., n)"""
        if self._row_sums is None:
            self._row_sums = self.apply(self.plan.ones())[..., 0]
        return self._row_sums

    def compact(self) -> None:
        """Compute what iterations ask for; forget what only derivatives and bounds need."""
        self.row_sums  # noqa: B018 (now, while iterations don't hold memory yet)
        if self.normalization == "symmetric":
            self.mass = None

    def spread(self, values: Array) -> Array:
        """What K is applied to: values, scaled, or both side by side.  # (..., n, c or 2c)"""
        if self.scale is None:
            return values
        scaled = values * cast(self.scale, values)
        if not self.pair:
            return scaled
        return library_of(values).concatenate([values, scaled], -1)

    def gather(self, seen: Array) -> Array:
        """A @ values with the diagonal, from K @ `spread`.  # (..., n, c or 2c) -> (..., n, c)"""
        if self.scale is None:
            return seen
        scale = cast(self.scale, seen)
        if not self.pair:
            return seen * scale
        half = seen.shape[-1] // 2
        return seen[..., :half] * scale + seen[..., half:]

    def operate(self, values: Array) -> Array:
        """A @ values, with the diagonal whether it is kept or not.  # (..., n, c)"""
        if self.pair and self.plan.single and values.shape[-1] == 1:
            scale = cast(self.scale, values)
            return self.plan.apply(values) * scale + self.plan.apply(values * scale)
        return self.gather(cast(self.plan.apply(self.spread(values)), values))

    def apply(self, values: Array) -> Array:
        """A @ values, for finite values.  # (..., n, c)"""
        out = self.operate(values)
        return out if self.self_message else out - cast(self.own, values) * values

    def range(self) -> tuple[Array, Array]:
        """Bounds on the eigenvalues of A, for each set of points; see `kernel_range`."""
        own = None if self.self_message else self.own[..., 0]
        sums = mass = None
        if self.normalization != "symmetric":
            sums = self.row_sums if own is None else self.row_sums + own
            mass = None if self.mass is None else self.mass[..., 0]
        low, high = kernel_range(self.normalization, mass, sums, own)
        zero = 0.0 * self.plan.ones().sum((-2, -1))
        return low + zero, high + zero

    def in_type_of(self, values: Array) -> Operator:
        """This operator with its scales in the type of ``values``, converted once."""
        out = copy.copy(self)
        out.scale = None if self.scale is None else cast(self.scale, values)
        out._own = None if self.self_message else cast(self.own, values)
        return out


def kernel_range(
    normalization: str, mass: Array | None, row_sums: Array | None, self_weights: Array | None
) -> tuple[Array, Array]:
    """Bounds on the eigenvalues of the normalized kernel A, for each set of points.

    K has no negative eigenvalue; after symmetric normalization none is above 1, else none is
    above the largest row sum (A has no negative entry). The symmetric part of D⁻¹K, with
    ‖K‖ ≤ M and the entries of D between m and M, has none below −(M − m)² / 8m(M + m)
    (Strang 1962, eigenvalues of Jordan products). Without its diagonal, which lies between the
    smallest and the largest a_ii, the eigenvalues of A move down by at least the one and at most
    the other.

    Args:
        normalization: One of `NORMALIZATIONS`.
        mass: Total weights n_i; used by "before" and "after" alone.  # (..., n)
        row_sums: Σ_j a_ij with the diagonal; not used by "symmetric".  # (..., n)
        self_weights: a_ii where the diagonal is left out, None where it is kept.  # (..., n)
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
    """The smallest and the largest eigenvalue of A ⊗ M on centered blocks, at most and at least 0.

    They are products of an eigenvalue of A, between ``low`` and ``high``, and one of the
    compatibility M (``table``) between centering projections, as marginals sum to 1.
    """
    xp = library_of(table)
    n_labels = table.shape[-1]
    centering = xp.diag(xp.ones_like(table[0])) - 1.0 / n_labels
    values = xp.linalg.eigvalsh(centering @ table @ centering)
    return products_within(low, high, values[0], values[-1])


def products_within(low: Array, high: Array, least: Array, most: Array) -> tuple[Array, Array]:
    """Bounds on products of a number within one interval and one within another, and 0."""
    xp = library_of(most)
    ends = xp.stack([k * m for k in (low, high) for m in (least, most)])
    return xp.amin(ends, 0).clip(None, 0.0), xp.amax(ends, 0).clip(0.0)
