"""Energies of single variables, and constants."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from proxfield.core.common.arrays import Arrays, Floats, Ints
from proxfield.core.terms import base
from proxfield.core.terms.base import Layout, Tables, Term
from proxfield.errors import InputError, shown

if TYPE_CHECKING:
    from typing_extensions import Self

    from proxfield.core.lowering.builder import Builder

SUM_TOLERANCE = 1e-3
"""How far the sum of probabilities may be from 1: float16 rounds them."""


class Linear(Term):
    """A term whose energy is linear in q: no variable sees another."""

    def curvature(self, layout: Layout) -> Floats:
        return np.zeros(layout.n_vars)

    def lipschitz(self, layout: Layout) -> float:
        return 0.0

    def neighbors(self, layout: Layout) -> Ints:
        return np.zeros((0, 2), dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Constant(Linear):
    """An energy that every labelling pays (a factor over no variable).

    Args:
        value: The energy; +inf makes every labelling impossible.
    """

    name = "constant"
    value: float

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "value", float(base.as_floats(self.value, "a constant", allow_inf=True))
        )

    def validate(self, layout: Layout) -> None:
        pass

    def labelling_energy(self, layout: Layout, labels: Ints) -> float:
        return self.value

    def energy(self, layout: Layout, q: Floats) -> float:
        return self.value

    def add_gradient(self, layout: Layout, q: Floats, out: Floats) -> None:
        pass

    def lower(self, layout: Layout, builder: Builder) -> None:
        builder.add_constant(self.value)

    def as_tables(self, layout: Layout) -> Iterator[Tables]:
        yield np.zeros((1, 0), dtype=np.int64), np.array([self.value]), None


@dataclass(frozen=True, eq=False)
class Unary(Linear):
    """One energy per variable and label.

    Args:
        energies: Energies of some variables, all with the same number of labels. A float32
            array is kept as it is, not copied.  # (m, c)
        variables: Which variables; all of them, in order, by default. One that is
            named twice gets the sum.  # (m,)

    Example:
        >>> import proxfield as pf
        >>> field = pf.Field([2, 2]).add(Unary([[0.0, 1.0], [2.0, 0.0]]))
        >>> field.energy([1, 1])
        1.0
    """

    name = "unary"
    degree = 1
    energies: Floats
    given: Ints | None

    def __init__(self, energies: ArrayLike, variables: ArrayLike | None = None) -> None:
        table = base.as_floats(energies, "unary energies", allow_inf=True, share_single=True)
        if table.ndim != 2:
            raise InputError(
                f"unary energies must have shape (variables, labels), not {table.shape}"
            )
        which = None if variables is None else base.as_indices(variables, "variables", 1)
        self._hold(table, which)
        if which is not None and len(which) != len(table):
            raise InputError(f"{len(table)} rows of energies for {len(which)} variables")

    @property
    def variables(self) -> Ints:
        """The variable of each row.  # (m,)"""
        return np.arange(len(self.energies)) if self.given is None else self.given

    def validate(self, layout: Layout) -> None:
        if self.given is None and len(self.energies) != layout.n_vars:
            raise InputError(
                f"{len(self.energies)} rows of unary energies for {layout.n_vars} variables, "
                "expected one per variable; variables= says which ones rows are for"
            )
        if self._covers(layout) and layout.common == self.energies.shape[1]:
            return
        base.check_scopes(layout, self.variables[:, None], "unary row")
        want = layout.cardinalities[self.variables]
        wrong = np.flatnonzero(want != self.energies.shape[1])
        if len(wrong):
            v = int(self.variables[wrong[0]])
            raise InputError(
                f"{layout.show(v)} has {int(want[wrong[0]])} labels, "
                f"but its unary row has {self.energies.shape[1]}"
            )

    def _covers(self, layout: Layout) -> bool:
        """Whether there is one row for each of the first variables, in order."""
        if len(self.energies) != layout.n_vars:
            return False
        return self.given is None or bool((self.given == np.arange(layout.n_vars)).all())

    def labelling_energy(self, layout: Layout, labels: Ints) -> float:
        return float(self.energies[np.arange(len(self.variables)), labels[self.variables]].sum())

    def add_gradient(self, layout: Layout, q: Floats, out: Floats) -> None:
        np.add.at(out, layout.entries(self.variables, self.energies.shape[1]), self.energies)

    def energy(self, layout: Layout, q: Floats) -> float:
        at = layout.entries(self.variables, self.energies.shape[1])
        return base.expectation(q[at], self.energies)

    def lower(self, layout: Layout, builder: Builder) -> None:
        if self._covers(layout):
            builder.add_all_unary(self.energies.reshape(-1))
            return
        at = layout.entries(self.variables, self.energies.shape[1])
        builder.add_unary(at.ravel(), self.energies.ravel())

    def prune(self, layout: Layout, keep: NDArray[np.bool_]) -> bool:
        at = layout.entries(self.variables, self.energies.shape[1])[np.isinf(self.energies)]
        changed = bool(keep[at].any())
        keep[at] = False
        return changed

    def as_tables(self, layout: Layout) -> Iterator[Tables]:
        yield self.variables[:, None], self.energies, None

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> Self:
        return cls(arrays["energies"], arrays.get("given"))

    @classmethod
    def from_probabilities(
        cls,
        probabilities: ArrayLike,
        variables: ArrayLike | None = None,
        *,
        clip: float = 0.0,
        normalize: bool = False,
    ) -> Self:
        """Energies −log p from the probability of each label.

        Args:
            probabilities: One row per variable that sums to 1; 0 makes a label impossible.
                float32 stays float32.  # (m, c)
            variables: As for `Unary`.
            clip: Probabilities below it count as this much; above 0, no label is ruled out.
            normalize: Divide each row by its sum instead of refusing it.

        Example:
            >>> Unary.from_probabilities([[0.5, 0.5], [1.0, 0.0]]).energies.round(3)
            array([[0.693, 0.693],
                   [0.   ,   inf]])
        """
        p = _rows(probabilities, "probabilities")
        if not 0 <= clip < 1:
            raise InputError(f"clip={shown(clip)}, expected 0 or more and less than 1")
        bad = ~(np.isfinite(p) & (p >= 0)).all(axis=1)
        if bad.any():
            row = int(bad.argmax())
            raise InputError(
                f"probabilities in row {row} hold {shown(p[row].tolist())}, expected 0 to 1 "
                "(from_logits takes scores)"
            )
        sums = p.sum(axis=1, dtype=np.float64)
        wrong = sums == 0 if normalize else np.abs(sums - 1) > SUM_TOLERANCE
        if wrong.any():
            row = int(wrong.argmax())
            remedy = "one above 0" if normalize else "1 (normalize=True divides by the sum)"
            raise InputError(
                f"probabilities in row {row} sum to {sums[row]:.6g}, expected {remedy}"
            )
        if normalize:
            p = p / sums[:, None].astype(p.dtype)
        with np.errstate(divide="ignore"):
            return cls(-np.log(np.maximum(p, p.dtype.type(clip))) + 0.0, variables)  # −0 becomes 0

    @classmethod
    def from_logits(cls, logits: ArrayLike, variables: ArrayLike | None = None) -> Self:
        """Energies −log softmax(logits), from the scores of a classifier.

        Args:
            logits: One row per variable; −inf makes a label impossible. float32 stays float32.
                # (m, c)
            variables: As for `Unary`.

        Example:
            >>> Unary.from_logits([[3.0, 3.0]]).energies.round(3)
            array([[0.693, 0.693]])
        """
        scores = _rows(logits, "logits")
        top = scores.max(axis=1, keepdims=True, initial=-np.inf)
        if not np.isfinite(top).all():  # NaN, +inf, or −inf throughout
            row = int((~np.isfinite(top[:, 0])).argmax())
            raise InputError(
                f"logits in row {row} hold {shown(scores[row].tolist())}, expected finite numbers "
                "or -inf, at least one of them finite"
            )
        below = scores - top
        return cls(np.log(np.exp(below).sum(axis=1, keepdims=True)) - below, variables)


def _rows(values: ArrayLike, what: str) -> Floats:
    """Numbers with one row per variable, float32 or float64.  # (m, c)"""
    try:
        given = np.asarray(values)
        out = given if given.dtype == np.float32 else given.astype(np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{what} must be numbers in one rectangular array") from None
    if out.ndim != 2 or out.shape[1] == 0:
        raise InputError(f"{what} must have shape (variables, labels), not {out.shape}")
    return out
