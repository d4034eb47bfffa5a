"""Fully connected Gaussian terms: every pair of points, weighted by their similarity."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from proxfield.core.common.arrays import Arrays
from proxfield.core.common.checks import whole_count
from proxfield.core.filters import choose, make_filter
from proxfield.core.filters.geometry import BLURS
from proxfield.core.filters.operator import NORMALIZATIONS as NORMALIZATIONS
from proxfield.core.filters.operator import Operator, product_range
from proxfield.core.filters.plan import HostPlan, Plan, check_features
from proxfield.core.filters.points import PixelPoints
from proxfield.core.terms.base import Floats, Ints, Layout, Tables, Term, as_floats, largest_finite
from proxfield.errors import InputError, shown

CORNER_BYTES = 150
"""Of a lattice while it is built, per corner of a point's simplex (one more than dimensions)."""
VERTEX_BYTES = 170
"""Of a lattice, per vertex: neighbors and values."""
POINT_BYTES = 100
"""Scales, sums and temporary arrays per point."""


class Gaussian(Term):
    """Every pair of variables, weighted by a Gaussian of the distance of their features.

    E(x) = Σ_{i<j} a_ij μ(x_i, x_j), where a is the kernel k_ij = exp(−½‖f_i − f_j‖²) after
    normalization by the total weights n_i = Σ_j k_ij:

    - ``"symmetric"`` (default): k_ij / √(n_i n_j), eigenvalues at most 1;
    - ``"none"``: k_ij;
    - ``"before"`` and ``"after"``: k_ij / n_j and k_ij / n_i are not symmetric, so there is no
      energy with them as its gradient; both stand for their symmetric part, ½ (k/n_i + k/n_j).

    The operator is symmetric with both filters, so F is what the iteration descends on.

    Args:
        features: One row per variable, in units of standard deviations; up to 20 columns. Or
            points that make them when they are first used.  # (n, d)
        weight: Scales the term; with weight 0 inference omits it, and no filter is built.
        compatibility: μ. "potts": μ = [x ≠ y], so that positive weights attract (None is the
            same). A vector: μ = diag(vector), paid where both variables have the label. A matrix:
            μ, symmetrized.  # (labels,) or (labels, labels)
        normalization: One of the four above.
        self_message: Keep the pair (i, i) in the sums of the update, as the published dense
            CRFs and pydensecrf do. By default it is left out: then the energy is that of a
            random field, multilinear, and −F bounds log Z whatever the compatibility. With it,
            −F is a bound only where equal labels are never more expensive than different ones (all
            attractive compatibilities). It matters for points that are similar to few others.
        filter: "exact" (all pairs), "lattice" (permutohedral, for many points) or "auto" (exact
            up to 2000 points).
        first: Number of the first of the n consecutive variables.
        blur: Which of its blurs the lattice uses: "separable", "coarse", "star", or None, by how
            dense the points are.

    Example:
        >>> import proxfield as pf
        >>> field = pf.Field(3, n_labels=2)
        >>> field = field.add(Gaussian([[0.0], [0.0], [9.0]], 2.0, normalization="none"))
        >>> field.energy([0, 1, 1]), field.energy([1, 1, 0]) < 1e-9
        (2.0, True)
    """

    name = "gaussian"
    degree = 2

    def __init__(
        self,
        features: ArrayLike | PixelPoints,
        weight: float = 1.0,
        compatibility: ArrayLike | str | None = "potts",
        *,
        normalization: str = "symmetric",
        self_message: bool = False,
        filter: str = "auto",
        first: int = 0,
        blur: str | None = None,
    ) -> None:
        if normalization not in NORMALIZATIONS:
            raise InputError(
                f"unknown normalization {shown(normalization)}, expected one of: "
                f"{', '.join(NORMALIZATIONS)}"
            )
        choose(filter, 0)
        if blur is not None and blur not in BLURS:
            raise InputError(f"unknown blur {shown(blur)}, expected None, {', '.join(BLURS)}")
        self.blur = blur
        self.points: PixelPoints | None = None
        """What makes the features, if they weren't given as an array."""
        if isinstance(features, PixelPoints) and features.bounded:
            self.points = features
            self.n_points, self.n_features = features.shape
        else:
            given = features.array() if isinstance(features, PixelPoints) else features
            self.features = check_features(given)
            self.n_points, self.n_features = self.features.shape
        """Variables in the block."""
        self.weight = float(as_floats(weight, "the weight of a Gaussian term"))
        self.normalization = normalization
        self.self_message = bool(self_message)
        self.filter_name = filter
        self.first = whole_count(first, "first", 0)
        if isinstance(compatibility, str):
            if compatibility != "potts":
                what = f"compatibility={shown(compatibility)}"
                raise InputError(f"{what}, expected potts, a vector or a matrix")
            compatibility = None
        self.potts = compatibility is None
        self.matrix: NDArray[np.float64] | None = None
        """weight · μ, without the constant of Potts; None for Potts.  # (labels, labels)"""
        if compatibility is not None:
            table = as_floats(compatibility, "compatibilities")
            if table.ndim == 1:
                table = np.diag(table)
            if table.ndim != 2 or table.shape[0] != table.shape[1]:
                raise InputError(
                    "a compatibility is a vector (labels,) or a square matrix (labels, labels), "
                    f"not of shape {table.shape}"
                )
            with np.errstate(over="ignore"):
                self.matrix = self.weight * (0.5 * (table + table.T))
            if not np.isfinite(self.matrix).all():
                raise InputError("the weight times the compatibility is too large for a float64")

    @property
    def features(self) -> Floats | None:
        """As given; None after `build(drop_features=True)`.  # (n, d)"""
        held: dict[str, Floats | None] = vars(self)
        if "_features" not in held and self.points is not None:
            held["_features"] = check_features(self.points.array())
        return held["_features"]

    @features.setter
    def features(self, given: Floats | None) -> None:
        vars(self)["_features"] = given
        self.points = None

    def compatibility(self, n_labels: int) -> NDArray[np.float64]:
        """weight · μ up to what is the same for all labels of a variable.  # (labels, labels)"""
        return -self.weight * np.eye(n_labels) if self.matrix is None else self.matrix

    @property
    def omitted(self) -> bool:
        if type(self).add_gradient is not Gaussian.add_gradient:  # a subclass of another energy
            return False
        return self.weight == 0.0 if self.matrix is None else not self.matrix.any()

    # ---- the operator ----

    @property
    def filter_kind(self) -> str:
        """The name of the filter, "auto" resolved."""
        return choose(self.filter_name, self.n_points)

    @cached_property
    def filter(self) -> Plan:
        """The filter, built when first used."""
        assert self.features is not None
        blur = None if self.blur is None else BLURS[self.blur]
        return make_filter(self.filter_kind, self.features, blur)

    def like(self, points: int) -> Gaussian:
        """The same kind of term over a few random points: for compiling what a large one needs."""
        corners = getattr(self.filter, "row", np.zeros((0, 2))).shape[1]
        kind = np.float64 if self.features is None else self.features.dtype
        features = np.random.default_rng(0).normal(size=(points, corners - 1)).astype(kind)
        out = Gaussian(
            features,
            self.weight,
            normalization=self.normalization,
            self_message=self.self_message,
            filter=self.filter_kind,
        )
        out.potts, out.matrix = self.potts, self.matrix
        if isinstance(self.filter, HostPlan):
            out.filter = self.filter.like(features)
        return out

    def reweighted(self, weight: float) -> Gaussian:
        """The same term with another weight; it shares the filter, which is built if need be."""
        self.operator  # noqa: B018 (built here, so that the copy has it)
        out = copy(self)
        out.weight = float(as_floats(weight, "the weight of a Gaussian term"))
        if self.matrix is not None:
            if self.weight == 0:
                raise InputError("a term of weight 0 doesn't keep its compatibility")
            out.matrix = self.matrix * (out.weight / self.weight)
        return out

    def build(self, *, drop_features: bool = False) -> Gaussian:
        """Build the filter now; returns the term. Dropping the features saves their memory."""
        if self.filter and drop_features and self.filter_kind == "lattice":
            self.features = None
        return self

    @cached_property
    def operator(self) -> Operator:
        """A: the filter, normalized."""
        return Operator(self.filter, self.normalization, self.self_message)

    @property
    def scales(self) -> list[tuple[Floats | None, Floats | None]]:
        """The operator as Σ diag(out) K diag(in): pairs (in, out), None for ones."""
        scale = None if self.operator.scale is None else self.operator.scale[:, 0]
        return [(None, scale), (scale, None)] if self.operator.pair else [(scale, scale)]

    def operate(self, values: Floats) -> Floats:
        """A @ values, with the self-message.  # (n, c) -> (n, c)"""
        out: Floats = self.operator.operate(values)
        return out

    @property
    def own(self) -> NDArray[np.float64]:
        """a_ii: the weight of the self-message.  # (n,)"""
        return np.asarray(self.operator.own[:, 0])

    @property
    def row_sums(self) -> NDArray[np.float64]:
        """Σ_j a_ij over the pairs that count.  # (n,)"""
        return np.asarray(self.operator.row_sums)

    # ---- Term ----

    def validate(self, layout: Layout) -> None:
        last = self.first + self.n_points
        if self.first < 0 or last > layout.n_vars:
            raise InputError(
                f"a Gaussian term over variables {self.first} to {last - 1} needs as many rows of "
                f"features as variables; the field has {layout.n_vars}"
            )
        if self.n_points == 0:
            return
        cards = layout.cardinalities[self.first : last]
        if (cards != cards[0]).any():
            raise InputError("a Gaussian term needs variables with equal numbers of labels")
        if self.matrix is not None and len(self.matrix) != cards[0]:
            raise InputError(
                f"a compatibility for {len(self.matrix)} labels, but the variables have {cards[0]}"
            )

    @property
    def _variables(self) -> slice:
        return slice(self.first, self.first + self.n_points)

    def block(self, layout: Layout, flat: Floats) -> Floats:
        """The term's part of a flat array, a view.  # (n, labels)"""
        start = int(layout.offsets[self.first])
        end = int(layout.offsets[self.first + self.n_points])
        return flat[start:end].reshape(self.n_points, -1)

    def add_gradient(self, layout: Layout, q: Floats, out: Floats) -> None:
        if self.n_points == 0 or self.omitted:
            return
        mine = self.block(layout, q)
        seen = self.operator.apply(mine)
        g = self.block(layout, out)
        if self.matrix is None:
            g += self.weight * (self.row_sums[:, None] - seen)
        else:
            g += seen @ self.matrix.astype(seen.dtype)

    def labelling_energy(self, layout: Layout, labels: Ints) -> float:
        if self.n_points == 0:
            return 0.0
        g, flat = np.zeros(layout.size), np.zeros(layout.size)
        hot = self.block(layout, flat)
        hot[np.arange(self.n_points), labels[self._variables]] = 1.0
        self.add_gradient(layout, flat, g)
        return 0.5 * float((hot * self.block(layout, g)).sum())

    def spectrum(self, layout: Layout) -> tuple[float, float]:
        if self.n_points == 0 or self.omitted:
            return 0.0, 0.0
        table = self.compatibility(int(layout.cardinalities[self.first]))
        low, high = product_range(*self.kernel_range, table)
        return float(low), float(high)

    def coupling_norms(self, layout: Layout, v: Floats) -> Floats:
        # the self-message only makes A larger
        out = np.zeros(layout.n_vars)
        if self.n_points and not self.omitted:
            n_labels = int(layout.cardinalities[self.first])
            center = np.eye(n_labels) - 1.0 / n_labels
            norm = float(np.linalg.norm(center @ self.compatibility(n_labels) @ center, 2))
            mine = np.asarray(v)[self._variables, None]
            out[self._variables] = norm * self.operate(mine)[:, 0]
        return out

    @cached_property
    def kernel_range(self) -> tuple[float, float]:
        """Bounds on the eigenvalues of A, without the self-message if that is left out."""
        low, high = self.operator.range()
        return float(low), float(high)

    def bounds_log_z(self, layout: Layout) -> bool:
        # the self-message adds ½ a_ii (qᵀ μ q − Σ_l μ_ll q_l), which must not be negative
        if not self.self_message or self.n_points == 0:
            return True
        table = self.compatibility(int(layout.cardinalities[self.first]))
        equal = np.diag(table)
        return bool((table >= 0.5 * (equal[:, None] + equal) - 1e-12).all())

    def magnitude(self, layout: Layout) -> float:
        # entries of K are at most about 1; normalized, those of a row sum to 1 on average
        pairs = float(self.n_points) ** (2 if self.normalization == "none" else 1)
        return pairs * (abs(self.weight) if self.matrix is None else largest_finite(self.matrix))

    def curvature(self, layout: Layout) -> Floats:
        out = np.zeros(layout.n_vars)
        out[self._variables] = self.spectrum(layout)[1]
        return out

    def lipschitz(self, layout: Layout) -> float:
        if self.n_points == 0 or self.omitted:
            return 0.0
        n_labels = int(layout.cardinalities[self.first])
        table = self.compatibility(n_labels) + (self.weight if self.matrix is None else 0.0)
        return float(np.abs(np.linalg.eigvalsh(table)).max() * np.abs(self.kernel_range).max())

    @property
    def nbytes(self) -> int:
        if self.points is not None:
            return 8 * self.n_points * self.n_features
        return 0 if self.features is None else self.features.nbytes

    def workspace(self, layout: Layout) -> int:
        if self.filter_kind == "exact":
            return POINT_BYTES * self.n_points
        if self.features is None or "filter" in vars(self):  # built: it is part of the field
            return POINT_BYTES * self.n_points
        # at most 3 (d + 1) vertices per point (its simplex and what filtering adds around it), and
        # about those in the points' bounding box, with a volume of (3/2)^(d/2) / √(d + 1) each
        n, d = self.features.shape
        span = [float(np.ptp(column)) + 5.0 for column in self.features.T if n]
        volume = float(1.5 ** (d / 2)) / float(np.sqrt(d + 1))
        vertices = int(min(3 * (d + 1) * n, 1.2 * float(np.prod(span)) / volume))
        return int(POINT_BYTES * n + CORNER_BYTES * (d + 1) * n + VERTEX_BYTES * vertices)

    def to_arrays(self) -> dict[str, ArrayLike]:
        if self.features is None:
            raise InputError("its features were dropped; build it without drop_features")
        names = ["features", "weight", "normalization", "self_message", "filter_name", "first"]
        names += ["blur", "matrix"]
        parts = {name.removesuffix("_name"): getattr(self, name) for name in names}
        return {name: part for name, part in parts.items() if part is not None}

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> Gaussian:
        parts = dict(arrays)
        matrix = parts.pop("matrix", None)
        features = parts.pop("features")
        out = cls(features, **{name: part.item() for name, part in parts.items()})
        if matrix is not None:
            table = as_floats(matrix, "compatibilities")
            if table.ndim != 2 or not np.array_equal(table, table.T):
                raise InputError(f"a compatibility of shape {table.shape} isn't symmetric")
            out.potts, out.matrix = False, table
        return out

    def as_tables(self, layout: Layout) -> Iterator[Tables]:
        """The term as explicit tables, one per pair: for small fields."""
        a = self.operate(np.eye(self.n_points))
        n_labels = int(layout.cardinalities[self.first]) if self.n_points else 1
        i, j = np.triu_indices(self.n_points, 1)
        table = self.compatibility(n_labels) + (self.weight if self.matrix is None else 0.0)
        if self.self_message:  # what a point pays for the pair with itself
            own = 0.5 * np.diag(a)[:, None] * np.diag(table)
            yield (np.arange(self.n_points) + self.first)[:, None], own, None
        pairs = np.stack([i, j], axis=1) + self.first
        yield pairs.astype(np.int64), a[i, j][:, None, None] * table, None
