"""Which variables and labels are left to infer, and the way back to the user's numbering.

Observed variables and variables with one label are taken out before iterating, and so are,
in fields with forbidden configurations, labels that can't occur.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from proxfield.core.terms.base import Floats, Ints, Layout


@dataclass(frozen=True)
class Reduction:
    """A map from the user's variables and labels to the ones that stay.

    Args:
        full: The user's layout.
        keep: Which entries are possible; every variable needs at least one.  # (full.size,)
        whole: Take nothing out, not even variables with one label.
    """

    full: Layout
    keep: NDArray[np.bool_]
    whole: bool = False

    @cached_property
    def counts(self) -> Ints:
        """Possible labels per variable.  # (full.n_vars,)"""
        if self.full.n_vars == 0:
            return np.zeros(0, dtype=np.int64)
        return np.add.reduceat(self.keep, self.full.offsets[:-1], dtype=np.int64)

    @cached_property
    def empty(self) -> Ints:
        """Variables that have no possible label left."""
        return np.flatnonzero(self.counts == 0)

    @cached_property
    def free(self) -> Ints:
        """Variables that stay: those with two or more possible labels."""
        return np.flatnonzero((self.counts > 1) | self.whole)

    @cached_property
    def layout(self) -> Layout:
        """The layout of what stays."""
        return Layout(self.counts[self.free])

    @cached_property
    def untouched(self) -> NDArray[np.bool_]:
        """Variables that stay with all their labels.  # (full.n_vars,)"""
        stays = (self.counts > 1) | self.whole
        return np.asarray((self.counts == self.full.cardinalities) & stays)

    @cached_property
    def new_variable(self) -> Ints:
        """New number of each variable, -1 if it is gone.  # (full.n_vars,)"""
        out = np.full(self.full.n_vars, -1, dtype=np.int64)
        out[self.free] = np.arange(len(self.free))
        return out

    @cached_property
    def new_entry(self) -> Ints:
        """New flat position of each entry, -1 if it is gone.  # (full.size,)"""
        stays = self.keep & ((self.counts > 1) | self.whole)[self.full.owner]
        out = np.full(self.full.size, -1, dtype=np.int64)
        out[stays] = np.arange(int(stays.sum()))
        return out

    def expand(self, q: Floats) -> NDArray[np.float64]:
        """Marginals of what stays as marginals of everything."""
        out = np.where(self.keep & (self.counts == 1)[self.full.owner], 1.0, 0.0)
        stays = self.new_entry >= 0
        out[stays] = q
        return out

    def restrict(self, q: Floats) -> NDArray[np.float64]:
        """Marginals of everything as marginals of what stays, normalized again."""
        out = np.array(q, dtype=np.float64)[self.new_entry >= 0]
        total = self.layout.sum_by_variable(out)
        dead = total <= 0  # all the weight was on impossible labels: start those uniform
        out = np.where(dead[self.layout.owner], 1.0, out)
        return np.asarray(out / self.layout.sum_by_variable(out)[self.layout.owner])

    def expand_labels(self, labels: Ints) -> Ints:
        """A labelling of what stays as a labelling of everything."""
        if len(self.empty):
            raise ValueError("no labelling: a variable has no possible label")
        first = np.zeros(self.full.n_vars, dtype=np.int64)  # label of the first kept entry
        at = np.flatnonzero(self.keep)
        first[self.full.owner[at[::-1]]] = self.full.label[at[::-1]]
        flat = np.flatnonzero(self.new_entry >= 0)  # new entry -> old entry
        first[self.free] = self.full.label[flat[self.layout.offsets[:-1] + labels]]
        return first


class Untouched(Reduction):
    """Everything stays: the same answers as `Reduction`, without its arrays of all entries."""

    def __init__(self, full: Layout) -> None:
        super().__init__(full, np.broadcast_to(np.True_, full.size), whole=True)

    @property
    def counts(self) -> Ints:
        return self.full.cardinalities

    @property
    def layout(self) -> Layout:
        return self.full

    @cached_property
    def untouched(self) -> NDArray[np.bool_]:
        return np.ones(self.full.n_vars, dtype=bool)

    @cached_property
    def new_variable(self) -> Ints:
        return np.arange(self.full.n_vars)

    @cached_property
    def new_entry(self) -> Ints:
        return np.arange(self.full.size)

    def expand(self, q: Floats) -> NDArray[Any]:
        return q

    def restrict(self, q: Floats) -> NDArray[Any]:
        return self.full.normalize(q)

    def expand_labels(self, labels: Ints) -> Ints:
        return labels
