"""New states from parts of known ones (partition crossover).

Two local minima of F usually differ in several separate places. Where the variables at which they
differ fall into connected components of the field's graph, F of "the first, with one component
taken from the second" can be computed for all components at once, and the changes add up:
components that no term connects are independent of each other. Hence the best combination of two
minima, of 2^components possible ones, costs as much as an evaluation of F. A hundred mediocre minima
of a grid contain, in parts, one that no single chain finds.

Components that raise F by little are as useful: they are the alternatives between which a mixture
of modes should choose.
"""

from __future__ import annotations

import string
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from proxfield.lowering.lowered import Lowered
from proxfield.terms.base import Floats, Ints, Layout
from proxfield.terms.factor import Factor
from proxfield.terms.pairwise import Ising, Potts

DIFFERENCE = 0.2
"""Marginals that differ by more than this count as different."""
MIN_GAIN = 1e-6
"""Fall of F below which a component isn't worth taking."""

PairTerm = Ising | Potts


@dataclass(frozen=True)
class Components:
    """Where some states differ from a given one, in connected components.

    Attributes:
        row: The state that each component is of.  # (components,)
        change: How F changes when the component is taken over.  # (components,)
        spread: Sum over its variables of the largest difference of marginals.  # (components,)
        number: Component of each variable in each state, -1: no difference.  # (states, n_vars)
        allowed: Whether it has no weight on impossible labels.  # (components,)
    """

    row: Ints
    change: NDArray[np.float64]
    spread: NDArray[np.float64]
    number: Ints
    allowed: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.row)

    def members(self, which: int) -> NDArray[np.bool_]:
        """The variables of a component.  # (n_vars,)"""
        return np.asarray(self.number[self.row[which]] == which)


@dataclass(frozen=True)
class Recombination:
    """Parts of states of one lowered field, all of whose terms are tables.

    Example:
        >>> import proxfield as pf
        >>> field = pf.Field(6, 2).add(pf.Potts([[0, 1], [2, 3], [4, 5]], 2.0))
        >>> lowered = field.add(pf.Unary([[0, 1]] * 2 + [[1, 0]] * 2 + [[0, 0]] * 2)).lower()
        >>> bad = np.eye(2)[[1, 1, 1, 1, 0, 0]].ravel()
        >>> other = np.eye(2)[[0, 0, 0, 0, 1, 1]].ravel()
        >>> Recombination(lowered).combine(bad, other[None]).reshape(6, 2).argmax(1)
        array([0, 0, 1, 1, 0, 0])
    """

    lowered: Lowered

    @property
    def layout(self) -> Layout:
        """Of the states."""
        return self.lowered.layout

    @cached_property
    def edges(self) -> Ints:
        """Pairs of variables that share a term.  # (m, 2)"""
        known = [term.neighbors(self.layout) for term in self.lowered.terms]
        return np.concatenate([np.zeros((0, 2), dtype=np.int64), *known])

    @cached_property
    def parts(self) -> list[tuple[Factor | PairTerm, Ints]]:
        """Terms and their scopes; what is forbidden has the energy 0, as it has no weight."""
        out: list[tuple[Factor | PairTerm, Ints]] = []
        for term in self.lowered.terms:
            if isinstance(term, Factor):
                finite = np.where(np.isinf(term.tables), 0.0, term.tables)
                out.append((replace_tables(term, finite), term.scopes))
            else:
                assert isinstance(term, (Ising, Potts))
                out.append((term, term.edges))
        return out

    def restricted(self, lowered: Lowered) -> Recombination:
        """The same for a field with other unary energies."""
        other = replace(self, lowered=lowered)
        vars(other).update(edges=self.edges, parts=self.parts)
        return other

    def components(self, q: Floats, others: Floats) -> Components:
        """Where other states differ, and what F would be with parts of them.

        Args:
            q: Marginals of finite F.  # (size,)
            others: Marginals of other states.  # (states, size)
        """
        layout, n = self.layout, self.layout.n_vars
        difference = np.maximum.reduceat(np.abs(others - q), layout.offsets[:-1], axis=1)
        differs = difference > DIFFERENCE
        flat = np.flatnonzero(differs)  # state · n + variable
        place = np.full(differs.size, -1, dtype=np.int64)
        place[flat] = np.arange(len(flat))
        row, e = np.nonzero(differs[:, self.edges[:, 0]] & differs[:, self.edges[:, 1]])
        ends = place[row[:, None] * n + self.edges[e]]
        graph = coo_matrix((np.ones(len(ends), dtype=np.int8), tuple(ends.T)), (len(flat),) * 2)
        count, found = connected_components(graph, directed=False)
        number = np.full(differs.size, -1, dtype=np.int64)
        number[flat] = found
        number = number.reshape(differs.shape)
        owner = np.zeros(count, dtype=np.int64)
        owner[found] = flat // n
        mixed = np.where(differs[:, layout.owner], others, q)
        unary = self.lowered.unary
        gone = np.isinf(unary)
        each = (mixed - q) * np.where(gone, 0.0, unary) + log_weighted(mixed) - log_weighted(q)
        each = np.add.reduceat(each, layout.offsets[:-1], axis=1)
        change = np.bincount(found, each.ravel()[flat], minlength=count)
        for term, scopes in self.parts:
            row, e = np.nonzero(differs[:, scopes].any(axis=-1))
            which = number[row[:, None], scopes[e]].max(axis=1)
            before = scope_energies(term, layout, q[None], np.zeros_like(row), e)
            after = scope_energies(term, layout, mixed, row, e)
            change += np.bincount(which, after - before, minlength=count)
        allowed = np.ones(count, dtype=bool)
        if gone.any():
            lost = np.maximum.reduceat(np.where(gone, mixed, 0.0), layout.offsets[:-1], axis=1)
            allowed[number[(lost > 0) & differs]] = False
        spread = np.bincount(found, difference.ravel()[flat], minlength=count)
        return Components(owner, change, spread, number, allowed)

    def combine(self, q: Floats, others: Floats) -> NDArray[np.float64]:
        """A state with the components of others that lower F, as far as they are independent."""
        return self.take_best(q, others, self.components(q, others))

    def take_best(self, q: Floats, others: Floats, found: Components) -> NDArray[np.float64]:
        """Likewise, of components that are known."""
        out = np.array(q, dtype=np.float64)
        order = np.argsort(found.change, kind="stable")
        taken = np.zeros(self.layout.n_vars, dtype=bool)
        for c in order:
            if found.change[c] > -MIN_GAIN:
                break
            if not found.allowed[c]:
                continue
            mine = found.members(int(c))
            if not (taken & self.reach(mine)).any():
                taken |= mine
                out = np.where(mine[self.layout.owner], others[found.row[c]], out)
        return out

    def reach(self, members: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Some variables and all that share a term with one of them.  # (n_vars,)"""
        out = members.copy()
        for here, there in (self.edges.T, self.edges.T[::-1]):
            out[there[members[here]]] = True
        return out


def replace_tables(term: Factor, tables: Floats) -> Factor:
    """A term with the same scopes and other tables."""
    return Factor.trusted(term.scopes, tables, term.index)


def log_weighted(q: Floats) -> NDArray[np.float64]:
    """q log q, 0 where q = 0."""
    return np.asarray(q * np.log(np.where(q > 0, q, 1.0)))


def scope_energies(
    term: Factor | PairTerm, layout: Layout, q: Floats, rows: Ints, which: Ints
) -> NDArray[np.float64]:
    """Expected energies of scopes under states.

    Args:
        term: Whose scopes.
        layout: The variables.
        q: Marginals of several states.  # (states, size)
        rows: The state of each pair.  # (pairs,)
        which: The scope of each pair.  # (pairs,)
    """
    if isinstance(term, Factor):
        letters = string.ascii_letters[1 : term.degree + 1]
        spec = ",".join(["a" + letters, *("a" + x for x in letters)]) + "->a"
        scopes = term.scopes[which]
        weights = [
            q[rows[:, None], layout.entries(scopes[:, p], term.shape[p])]
            for p in range(term.degree)
        ]
        tables = term.tables[term.index[which]]
        return np.asarray(np.einsum(spec, tables, *weights, optimize=term.degree > 2))
    i, j = (layout.offsets[end] for end in term.edges[which].T)
    if isinstance(term, Ising):
        spins = (q[rows, i + 1] - q[rows, i]) * (q[rows, j + 1] - q[rows, j])
        return np.asarray(term.weights[which] * spins)
    common = layout.cardinalities[term.edges[which]].min(axis=1, initial=2**62)
    agree = np.zeros(len(which))
    for label in range(int(common.max(initial=0)) if len(common) else 0):
        has = np.flatnonzero(common > label)
        agree[has] += q[rows[has], i[has] + label] * q[rows[has], j[has] + label]
    return np.asarray(term.weights[which] * (1.0 - agree))
