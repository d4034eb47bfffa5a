"""Two states combined part by part (partition crossover).

The variables in which two states differ form connected components of the field's graph, the
*parts*: no term holds variables of two of them. Changing one state to the other in a part changes
E, and F, by an amount that doesn't depend on other parts, so each can be taken or left for itself.
The best of all 2^parts combinations costs about as much as an evaluation of F. In a large sparse
field a search improves many places at once.

There are three ways to compute the changes. For two labellings (`Parts.best_labels`), tables are
read at the labels: fast where few variables differ, and parts of equal energy are recognized. For
two states of marginals (`Parts.best_marginals`), compiled kernels give the gradient, which costs
little where many differ. For parts of many states, which overlap, each is evaluated by its own
terms (`search.patches`).
"""

from __future__ import annotations

import string
from collections.abc import Callable
from functools import cached_property
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from proxfield.core.lowering.lowered import Lowered
from proxfield.core.lowering.merging import compressed_rows, group_positions
from proxfield.core.terms.base import Doubles, Floats, Ints, Layout
from proxfield.core.terms.factor import Factor
from proxfield.core.terms.pairwise import Ising, Potts

V = TypeVar("V", bound=np.generic)
Gradient = Callable[[Floats], Doubles]


class Parts:
    """Which variables of a field interact, and how states of it are combined.

    Args:
        lowered: The field; its terms all know the neighbors of a variable.

    Attributes:
        row: Starts of each variable's neighbors.  # (n_vars + 1,)
        column: Neighbors.
        typical: How many parts the marginals compared of late had.
    """

    def __init__(self, lowered: Lowered) -> None:
        self.lowered, self.layout = lowered, lowered.layout
        none = np.zeros((0, 2), dtype=np.int64)
        pairs = np.concatenate([none, *(t.neighbors(self.layout) for t in lowered.terms)])
        # starts of each variable's neighbors, and these
        self.row, self.column, _ = compressed_rows(self.layout.n_vars, pairs, [])
        self.typical = 0.0  # how many parts the marginals compared of late had
        self._waiting = np.empty(self.layout.n_vars, dtype=np.int32)

    def of(self, chosen: NDArray[np.bool_]) -> tuple[NDArray[np.int32], int]:
        """The part of each chosen variable (−1: it isn't), and how many there are."""
        from proxfield.core.compiled.graphs import label_components

        part = np.empty(len(chosen), dtype=np.int32)
        count = label_components(self.row, self.column, chosen, part, self._waiting)
        return part, int(count)

    @staticmethod
    def warm_up() -> None:
        """Compile or load what `of` needs."""
        from proxfield.core.compiled.graphs import label_components

        label_components.warm_up()
        row, column = np.zeros(2, dtype=np.int64), np.zeros(0, dtype=np.int32)
        one = np.zeros(1, dtype=np.int32)
        label_components(row, column, np.ones(1, dtype=bool), one, one.copy())

    def differing(self, q: Floats, others: Floats, threshold: float) -> NDArray[np.bool_]:
        """Variables whose marginals differ by more.  # (size,), (..., size) -> (..., n_vars)"""
        layout = self.layout
        if layout.common == 2:  # both labels' marginals differ alike
            return np.asarray(np.abs(others[..., ::2] - q[::2]) > threshold)
        apart = np.abs(others - q) > threshold
        if layout.common is not None:
            rows = apart.reshape(*apart.shape[:-1], -1, layout.common)
            return np.asarray(rows.any(axis=-1))
        return np.logical_or.reduceat(apart, layout.offsets[:-1], axis=-1)

    def neighbors(self, variables: Ints) -> NDArray[np.int32]:
        """The neighbors of some variables, one variable's after another's."""
        return rows_of(self.row, self.column, variables)[0]

    @cached_property
    def unary(self) -> Doubles:
        """Unary energies, finite too.  # (size,)"""
        return np.where(np.isinf(self.lowered.unary), 0.0, self.lowered.unary)

    @cached_property
    def scopes(self) -> list[Scopes]:
        """The scopes of each term; their tables are finite: what is forbidden has the energy 0."""
        weighted = [t for t in (self.lowered.ising, self.lowered.potts) if t is not None]
        found = [Scopes(t, t.edges, self.layout) for t in weighted]
        for factor in self.lowered.factors:
            if factor.hard:
                tables = np.where(np.isinf(factor.tables), 0.0, factor.tables)
                factor = Factor.trusted(factor.scopes, tables, factor.index)
            found.append(Scopes(factor, factor.scopes, self.layout))
        return found

    def best_labels(self, x: Ints, y: Ints, difference: float | None = None) -> tuple[Ints, float]:
        """A labelling with the parts of another that don't raise its energy, and the change.

        Where nothing is forbidden. ``difference`` is E(y) − E(x), if it is known: that saves time
        where there is one part.
        """
        differs = x != y
        if not differs.any():
            return x, 0.0
        part, count = self.of(differs)
        if count == 1 and difference is not None:
            return (y, difference) if difference <= 0.0 else (x, 0.0)
        at = np.flatnonzero(differs)
        here = self.layout.offsets[at]
        moved = self.lowered.unary[here + y[at]] - self.lowered.unary[here + x[at]]
        change: Doubles = np.bincount(part[at], moved, minlength=count).astype(float)
        for term in self.scopes:
            touched = np.zeros(len(term.members), dtype=bool)
            touched[term.around(at)[0]] = True
            some = np.flatnonzero(touched)
            members = term.members[some].T
            moved = term.energies(some, y[members]) - term.energies(some, x[members])
            change += np.bincount(part[members].max(axis=0), moved, minlength=count)
        taken = np.append(change <= 0.0, False)  # the last one is for variables in no part
        return np.where(taken[part], y, x), float(change[change <= 0.0].sum())

    @cached_property
    def quadrature(self) -> tuple[Doubles, Doubles]:
        """Points between 0 and 1 and their weights: exact for the energy's gradient."""
        degree = max([2, *(int(t.degree or 2) for t in self.lowered.terms)])
        points, weights = np.polynomial.legendre.leggauss((degree + 1) // 2)
        return 0.5 * (1.0 + points), 0.5 * weights

    def best_marginals(
        self, before: Doubles, after: Doubles, gradient: Gradient, threshold: float
    ) -> Doubles | None:
        """``before`` with those parts of ``after`` that lower F, given the gradient of E.

        Marginals that differ by more than the threshold belong to a part. None if there are no such
        parts, or a single one: then ``after`` says it all.
        """
        part, count = self.of(self.differing(before, after, threshold))
        self.typical += 0.1 * (count - self.typical)
        if count < 2:
            return None
        taken = self.free_energy_changes(before, after, part, count, gradient) < 0.0
        return self.merged(before, after, part, taken) if taken.any() else None

    def merged(
        self, before: Doubles, after: Doubles,
        part: NDArray[np.int32], taken: NDArray[np.bool_],
    ) -> Doubles:  # fmt: skip
        """``before`` with the parts of ``after`` that are taken."""
        chosen = np.append(taken, False)[part]  # −1: in no part
        return np.where(self._entries(chosen), after, before)

    def free_energy_changes(
        self, before: Doubles, after: Doubles,
        part: NDArray[np.int32], count: int, gradient: Gradient,
    ) -> Doubles:  # fmt: skip
        """F(before with one part of after) − F(before), of each part.  # (count,)

        The change of the energy is the integral of its gradient along the way, which a few points
        give exactly: the energy is a polynomial.
        """
        from scipy.special import xlogy  # here, because help texts shall come without a wait

        owner = self._entries(part)
        at = np.flatnonzero(owner >= 0)
        old, new = before[at], after[at]
        moved, slope = new - old, np.zeros(len(at))
        for point, weight in zip(*self.quadrature, strict=True):
            q = before.copy()
            q[at] += point * moved
            slope += weight * gradient(q)[at]
        change = np.zeros(len(at))  # where nothing moved; a label may be impossible
        np.multiply(moved, slope, out=change, where=moved != 0.0)
        change += xlogy(new, new) - xlogy(old, old)
        return np.bincount(owner[at], weights=change, minlength=count).astype(np.float64)

    def _entries(self, values: NDArray[V]) -> NDArray[V]:
        """Values of variables for each of their entries.  # (n_vars,) -> (layout.size,)"""
        common = self.layout.common
        return values[self.layout.owner] if common is None else values.repeat(common)


class Scopes:
    """A term's scopes (members), and those that each variable is in.  # (m, k)"""

    def __init__(self, term: Ising | Potts | Factor, members: Ints, layout: Layout) -> None:
        self.term, self.members, self.layout = term, members, layout
        self.row, position = group_positions(members.ravel(), layout.n_vars)
        self.number = position // max(1, members.shape[1])

    def around(self, variables: Ints) -> tuple[Ints, Ints]:
        """The scopes of each variable, one after another, and how many each is in."""
        return rows_of(self.row, self.number, variables)

    def energies(self, some: Ints, labels: Ints) -> Doubles:
        """The energies of some scopes, given their variables' labels.  # (s,), (k, s) -> (s,)"""
        term = self.term
        if isinstance(term, Factor):
            at = (term.index[some], *labels)
            return np.asarray(term.tables[at])
        unequal = labels[0] != labels[1]
        if isinstance(term, Potts):
            return np.asarray(term.weights[some] * unequal)
        return np.asarray(term.weights[some] * (1.0 - 2.0 * unequal))

    def expected_energies(self, some: Ints, values: Floats, base: Ints) -> Doubles:
        """The expected energies of some scopes.

        ``base`` says where in the flat values the marginals of each variable of each scope
        start.  # (s,), (values,), (s, k) -> (s,)
        """
        term = self.term
        if isinstance(term, Factor):
            letters = string.ascii_letters[1 : term.degree + 1]
            spec = ",".join(["a" + letters, *("a" + x for x in letters)]) + "->a"
            weights = [values[base[:, p, None] + np.arange(c)] for p, c in enumerate(term.shape)]
            tables = term.tables[term.index[some]]
            return np.asarray(np.einsum(spec, tables, *weights, optimize=term.degree > 2))
        i, j = base.T
        if isinstance(term, Ising):
            spins = (values[i + 1] - values[i]) * (values[j + 1] - values[j])
            return np.asarray(term.weights[some] * spins)
        common = self.layout.cardinalities[term.edges[some]].min(axis=1, initial=2**62)
        agree = np.zeros(len(some))
        for label in range(int(common.max(initial=0)) if len(common) else 0):
            has = np.flatnonzero(common > label)
            agree[has] += values[i[has] + label] * values[j[has] + label]
        return np.asarray(term.weights[some] * (1.0 - agree))


def rows_of(row: Ints, values: NDArray[V], some: Ints) -> tuple[NDArray[V], Ints]:
    """The values of some rows, one after another, and how many each row has.

    ``row`` says where each starts, and the total.
    """
    first = row[some]
    count = row[some + 1] - first
    skipped = np.cumsum(count) - count
    return values[np.repeat(first - skipped, count) + np.arange(int(count.sum()))], count
