"""Segments whose variables want to agree: the Pⁿ Potts model of superpixels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from proxfield.core.common.arrays import Arrays, Floats, Ints
from proxfield.core.terms.base import Layout, Tables, Term, as_floats, as_indices, largest_finite
from proxfield.core.terms.factor import Factor
from proxfield.errors import InputError

if TYPE_CHECKING:
    from typing_extensions import Self

    from proxfield.core.lowering.builder import Builder

CHUNK = 1 << 18
"""Entries worked on at a time: several arrays of them stay in the cache."""
LOG_TINY = -745.0
"""Products below e^-745 are 0 in floating point; exp takes long to find that out."""
LARGEST_TABLE = 1 << 22
"""Maximum number of entries of one explicit table."""


@dataclass(frozen=True, eq=False)
class Consistency(Term):
    """Each segment pays unless all its variables agree: E(x) = Σ_c γ_c [not all x_i, i ∈ c, agree].

    With a weight per label, agreeing on label l saves w_cl: E(x) = Σ_c (max_l w_cl − Σ_l w_cl
    Π_{i∈c} [x_i = l]). Under q the brackets become q_il: multilinear of degree ``|c|``.

    Curvature: with P_ij = Π_{k∈c, k≠i,j} q_kl, the Hessian of a segment joins equal labels only,
    H_(il)(jl) = −w_cl P_ij. Each entry is affine in every q_k, and the largest eigenvalue is a
    convex function of a matrix, so it is largest where every variable is at a corner: at a
    labelling. If z members of the segment lack label l there, then −P is the negative of: a
    complete graph (z = 0: largest eigenvalue 1), a star around the member that lacks it (z = 1:
    √(n − 1), with n = ``|c|``), one edge (z = 2: 1), or nothing. For n ≥ 4 no variable is part of
    two labels with z ≤ 2, so that centering takes the factor 1 − 1/L, the eigenvalue of P e_l e_lᵀ
    P.
    Hence λ_i = Σ_{c∋i} w_c √(n_c − 1) (1 − 1/L), without the last factor for n ≤ 3, and
    w_c = max_l w_cl. The bound is attained (for n ≥ 4), next to labellings in which one
    variable stands against all others. In the same way the smallest eigenvalue is at least
    −w_c (n_c − 1)(1 − 1/L), that of the complete graph.

    Args:
        segments: The segment of each variable, −1 for none.  # (n_vars,)
            Or a list of arrays of variables, one per segment; these may overlap.
        weights: What it costs not to agree, 0 or more: one number, one per segment, or one per
            segment and label (then: what agreeing on that label saves).  # (S,) or (S, L)
        tables: Say the energy in tables of ``L^|c|`` entries. Rules that visit single variables
            then work (sweep, colored, the search of auto): for segments of a few variables.

    Example:
        >>> import proxfield as pf
        >>> field = pf.Field(5, n_labels=2, terms=[Consistency([0, 0, 0, 1, 1], [2.0, 3.0])])
        >>> field.energy([0, 0, 0, 1, 1]), field.energy([0, 1, 0, 1, 0])
        (0.0, 5.0)
    """

    name = "consistency"
    members: Ints
    """Variables, segment by segment.  # (M,)"""
    starts: Ints
    """Where each segment begins in ``members``, and M at the end.  # (S + 1,)"""
    weights: Floats
    """w_cl; one column stands for all labels.  # (S, L) or (S, 1)"""

    def __new__(cls, *_: object, tables: bool = False, **__: object) -> Consistency:
        # what a term offers is a matter of its class
        return object.__new__(TabledConsistency if tables and cls is Consistency else cls)

    def __init__(
        self,
        segments: ArrayLike | Sequence[ArrayLike],
        weights: ArrayLike = 1.0,
        *,
        tables: bool = False,
    ) -> None:
        if isinstance(segments, (list, tuple)) and any(np.ndim(s) > 0 for s in segments):
            rows = [as_indices(s, f"segment {k}", 1) for k, s in enumerate(segments)]
            for k, row in enumerate(rows):
                if len(np.unique(row)) < len(row):
                    raise InputError(f"segment {k} names a variable twice: {row.tolist()[:20]}")
            members = np.concatenate([np.zeros(0, dtype=np.int64), *rows])
            sizes = np.array([len(row) for row in rows], dtype=np.int64)
        else:
            given: Any = segments
            number = as_indices(given, "segments", 1)
            if (number < -1).any():
                raise InputError(f"segments hold {int(number.min())}, expected -1 (none) or more")
            members = np.argsort(number, kind="stable")
            members = members[np.searchsorted(number[members], 0) :]
            sizes = np.bincount(number[members])
        count = len(sizes)
        w = _read_weights(weights)
        if w.ndim > 2 or (w.ndim > 0 and len(w) != count) or (w.ndim == 2 and w.shape[1] == 0):
            raise InputError(f"{count} segments but weights of shape {w.shape}")
        w = np.repeat(w, count) if w.ndim == 0 else w
        w = w[:, None] if w.ndim == 1 else w
        some = sizes > 0  # an array of segments may skip numbers
        self._hold(members, np.concatenate([[0], np.cumsum(sizes[some])]), w[some])

    def validate(self, layout: Layout) -> None:
        if len(self.members) == 0:
            return
        low, high = int(self.members.min()), int(self.members.max())
        if low < 0 or high >= layout.n_vars:
            v = low if low < 0 else high
            raise InputError(f"a segment holds variable {v}, expected 0 to {layout.n_vars - 1}")
        cards = layout.cardinalities[self.members]
        n_labels = self._n_labels(layout)
        wrong = np.flatnonzero(cards != n_labels)
        if len(wrong):
            v, c = int(self.members[wrong[0]]), int(cards[wrong[0]])
            where = layout.show(v)
            raise InputError(f"{where} has {c} labels, but others in segments have {n_labels}")
        if self.weights.shape[1] not in (1, n_labels):
            raise InputError(
                f"weights for {self.weights.shape[1]} labels, but variables have {n_labels}"
            )

    # ---- segments ----

    def _n_labels(self, layout: Layout) -> int:
        """L, the number of labels of the variables in segments."""
        return int(layout.cardinalities[self.members[0]]) if len(self.members) else 1

    @property
    def sizes(self) -> Ints:
        """Variables per segment.  # (S,)"""
        return np.diff(self.starts)

    @cached_property
    def overlapping(self) -> bool:
        """Whether a variable is in more than one segment."""
        return len(np.unique(self.members)) < len(self.members)

    def _chunks(self, n_labels: int) -> Iterator[tuple[slice, slice, Ints, Ints]]:
        """Some segments at a time: (segments, members, starts, segment of each member)."""
        limit = max(1, CHUNK // n_labels)
        a, count = 0, len(self.starts) - 1
        while a < count:
            b = int(np.searchsorted(self.starts, self.starts[a] + limit, side="right")) - 1
            b = max(a + 1, b)
            starts = self.starts[a:b] - self.starts[a]
            at = slice(int(self.starts[a]), int(self.starts[b]))
            owner = np.repeat(np.arange(b - a), np.diff(self.starts[a : b + 1]))
            yield slice(a, b), at, starts, owner
            a = b

    # ---- Term ----

    def scope(self, layout: Layout) -> Ints:
        return np.unique(self.members)

    @property
    def omitted(self) -> bool:
        return type(self).add_gradient is Consistency.add_gradient and not self.weights.any()

    def labelling_energy(self, layout: Layout, labels: Ints) -> float:
        if len(self.members) == 0:
            return 0.0
        x = labels[self.members]
        low = np.minimum.reduceat(x, self.starts[:-1])
        high = np.maximum.reduceat(x, self.starts[:-1])
        saved = np.broadcast_to(self.weights, (len(low), self._n_labels(layout)))
        agreed = np.where(low == high, saved[np.arange(len(low)), low], 0.0)
        return float((self.weights.max(axis=1) - agreed).sum())

    def energy(self, layout: Layout, q: Floats) -> float:
        n_labels = self._n_labels(layout)
        total = 0.0
        for some, at, starts, _ in self._chunks(n_labels):
            rows = _rows(layout, q, self.members[at], n_labels)
            agree = np.multiply.reduceat(rows, starts, axis=0)  # what underflows is 0 to rounding
            w = self.weights[some]
            total += float(w.max(axis=1).sum() - (w * agree).sum())
        return total

    def add_gradient(self, layout: Layout, q: Floats, out: Floats) -> None:
        """−w_cl Π_{j∈c, j≠i} q_jl, in logarithms; with zeros among the q_jl, counted apart."""
        n_labels = self._n_labels(layout)
        for some, at, starts, owner in self._chunks(n_labels):
            logs = _rows(layout, q, self.members[at], n_labels)
            zero = logs <= 0
            some_zero = bool(zero.any())
            if some_zero:
                logs[zero] = 1.0
            np.log(logs, out=logs)
            others = np.add.reduceat(logs, starts, axis=0)[owner]
            others -= logs
            alive = others > LOG_TINY
            if some_zero:
                alive &= np.add.reduceat(zero.astype(np.int64), starts, axis=0)[owner] <= zero
            product = np.zeros_like(others)
            np.exp(others, out=product, where=alive)
            product *= -self.weights[some][owner]
            added = product.astype(out.dtype, copy=False)
            if self.overlapping or layout.common is None:
                np.add.at(out, layout.entries(self.members[at], n_labels), added)
            else:
                out.reshape(-1, n_labels)[self.members[at]] += added

    def _by_variable(self, layout: Layout, per_segment: Floats) -> NDArray[np.float64]:
        """Sum over the segments that each variable is in.  # (S,) -> (n_vars,)"""
        spread = np.repeat(per_segment, self.sizes)
        total = np.bincount(self.members, weights=spread, minlength=layout.n_vars)
        return total.astype(np.float64)  # without members it would be whole numbers

    def _centering(self, layout: Layout) -> NDArray[np.float64]:
        """1 − 1/L, or 1 for segments of up to three variables.  # (S,)"""
        return np.where(self.sizes > 3, 1.0 - 1.0 / self._n_labels(layout), 1.0)

    def magnitude(self, layout: Layout) -> float:
        return len(self.weights) * largest_finite(self.weights)

    def curvature(self, layout: Layout) -> Floats:
        top = self.weights.max(axis=1, initial=0.0) * self._centering(layout)
        return self._by_variable(layout, top * np.sqrt(self.sizes - 1))

    def lipschitz(self, layout: Layout) -> float:
        top = self.weights.max(axis=1, initial=0.0)
        return float(self._by_variable(layout, top * (self.sizes - 1)).max(initial=0.0))

    def spectrum(self, layout: Layout) -> tuple[float, float]:
        top = self.weights.max(axis=1, initial=0.0) * self._centering(layout)
        down = self._by_variable(layout, top * (self.sizes - 1))
        return -float(down.max(initial=0.0)), float(self.curvature(layout).max(initial=0.0))

    def workspace(self, layout: Layout) -> int:
        return 8 * self.nbytes

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> Self:
        members = as_indices(arrays["members"], "members", 1)
        starts = as_indices(arrays["starts"], "starts", 1)
        sizes = np.diff(starts)
        ends = starts[[0, -1]].tolist() if len(starts) else []
        if ends != [0, len(members)] or (sizes < 1).any():
            raise InputError("starts of segments don't divide their members")
        owner = np.repeat(np.arange(len(sizes)), sizes)
        if len(np.unique(np.stack([owner, members]), axis=1).T) < len(members):
            raise InputError("a segment names a variable twice")
        weights = _read_weights(arrays["weights"])
        if weights.ndim != 2 or weights.shape[1] == 0 or len(weights) != len(sizes):
            raise InputError(f"{len(sizes)} segments but weights of shape {weights.shape}")
        return cls.trusted(members, starts, weights)

    def as_tables(self, layout: Layout) -> Iterator[Tables]:
        n_labels = self._n_labels(layout)
        for n in np.unique(self.sizes).tolist():
            if n_labels**n > LARGEST_TABLE:
                raise InputError(
                    f"a segment of {n} variables with {n_labels} labels is too large for a table"
                )
            which = np.flatnonzero(self.sizes == n)
            scopes = self.members[self.starts[which][:, None] + np.arange(n)]
            kinds, index = np.unique(self.weights[which], axis=0, return_inverse=True)
            tables = np.repeat(kinds.max(axis=1), n_labels**n).reshape(-1, *(n_labels,) * n)
            agree: tuple[Any, ...] = (slice(None), *[np.arange(n_labels)] * n)
            tables[agree] -= kinds
            yield scopes, tables, index.ravel()


class TabledConsistency(Consistency):
    """`Consistency` with ``tables=True``, lowered to tables over whole segments."""

    def lower(self, layout: Layout, builder: Builder) -> None:
        for scopes, tables, index in self.as_tables(layout):
            assert index is not None
            builder.add_tables(scopes, tables, index)

    def workspace(self, layout: Layout) -> int:
        total = 8 * self.nbytes
        for scopes, tables, index in self.as_tables(layout):
            assert index is not None
            total += tables.nbytes + Factor.trusted(scopes, tables, index).workspace(layout)
        return total

    def neighbors(self, layout: Layout) -> Ints:
        pairs = [np.zeros((0, 2), dtype=np.int64)]
        for a, b in zip(self.starts[:-1], self.starts[1:], strict=True):
            i, j = np.triu_indices(b - a, 1)
            pairs.append(self.members[a + np.stack([i, j], axis=1)])
        return np.concatenate(pairs)


def _rows(layout: Layout, q: Floats, variables: Ints, n_labels: int) -> NDArray[np.float64]:
    """Marginals of some variables, a copy.  # (m, labels)"""
    if layout.common is None:
        return q[layout.entries(variables, n_labels)].astype(np.float64, copy=False)
    rows = q.reshape(-1, n_labels)[variables]  # several times faster than entry by entry
    return rows.astype(np.float64, copy=False)


def _read_weights(weights: ArrayLike) -> Floats:
    out = as_floats(weights, "consistency weights")
    if (out < 0).any():
        raise InputError("consistency weights must be 0 or more (this term attracts)")
    return out
