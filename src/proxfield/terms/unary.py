"""Energies of single variables, and constants."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from proxfield.errors import InputError
from proxfield.terms.base import (
    Floats,
    Ints,
    Layout,
    Tables,
    Term,
    as_floats,
    as_indices,
    check_scopes,
    expectation,
)

if TYPE_CHECKING:
    from proxfield.lowering.builder import Builder


@dataclass(frozen=True, eq=False)
class Constant(Term):
    """An energy that every labelling pays (a factor over no variable).

    Args:
        value: The energy; +inf makes every labelling impossible.
    """

    name = "constant"
    value: float

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "value", float(as_floats(self.value, "a constant", allow_inf=True))
        )

    def validate(self, layout: Layout) -> None:
        pass

    def labelling_energy(self, layout: Layout, labels: Ints) -> float:
        return self.value

    def energy(self, layout: Layout, q: Floats) -> float:
        return self.value

    def add_gradient(self, layout: Layout, q: Floats, out: Floats) -> None:
        pass

    def curvature(self, layout: Layout) -> Floats:
        return np.zeros(layout.n_vars)

    def lipschitz(self, layout: Layout) -> float:
        return 0.0

    def neighbours(self, layout: Layout) -> Ints:
        return np.zeros((0, 2), dtype=np.int64)

    def lower(self, layout: Layout, builder: Builder) -> None:
        builder.add_constant(self.value)

    def as_tables(self, layout: Layout) -> Iterator[Tables]:
        yield np.zeros((1, 0), dtype=np.int64), np.array([self.value]), None


@dataclass(frozen=True, eq=False)
class Unary(Term):
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
        table = as_floats(energies, "unary energies", allow_inf=True, share_single=True)
        if table.ndim != 2:
            raise InputError(
                f"unary energies must have shape (variables, labels), not {table.shape}"
            )
        which = None if variables is None else as_indices(variables, "variables", 1)
        object.__setattr__(self, "energies", table)
        object.__setattr__(self, "given", which)
        if which is not None and len(which) != len(table):
            raise InputError(f"{len(table)} rows of energies for {len(which)} variables")

    @property
    def variables(self) -> Ints:
        """The variable of each row.  # (m,)"""
        return np.arange(len(self.energies)) if self.given is None else self.given

    def validate(self, layout: Layout) -> None:
        if self._covers(layout) and layout.common == self.energies.shape[1]:
            return
        check_scopes(layout, self.variables[:, None], "unary row")
        want = layout.cardinalities[self.variables]
        wrong = np.flatnonzero(want != self.energies.shape[1])
        if len(wrong):
            v = int(self.variables[wrong[0]])
            raise InputError(
                f"variable {v} has {int(want[wrong[0]])} labels, "
                f"but its unary row has {self.energies.shape[1]}"
            )

    def _covers(self, layout: Layout) -> bool:
        """Is there one row for each of the first variables, in order, up to the last?"""
        if len(self.energies) != layout.n_vars:
            return False
        return self.given is None or bool((self.given == np.arange(layout.n_vars)).all())

    def labelling_energy(self, layout: Layout, labels: Ints) -> float:
        return float(self.energies[np.arange(len(self.variables)), labels[self.variables]].sum())

    def add_gradient(self, layout: Layout, q: Floats, out: Floats) -> None:
        np.add.at(out, layout.entries(self.variables, self.energies.shape[1]), self.energies)

    def energy(self, layout: Layout, q: Floats) -> float:
        at = layout.entries(self.variables, self.energies.shape[1])
        return expectation(q[at], self.energies)

    def curvature(self, layout: Layout) -> Floats:
        return np.zeros(layout.n_vars)

    def lipschitz(self, layout: Layout) -> float:
        return 0.0

    def neighbours(self, layout: Layout) -> Ints:
        return np.zeros((0, 2), dtype=np.int64)

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
