"""Labels that are still possible: forbidden configurations propagated to a fixed point.

A label stays possible only if each table over its variable allows a configuration of
possible labels with it (generalized arc consistency). Once a first pass has looked at all
tables, only tables next to a label that went are looked at again, so that the work is linear in
what changes. Many tables at a time are worked on as arrays; few (a chain of equalities
decides one variable after another) one by one, as Python integers of one bit per entry.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from proxfield.core.lowering.merging import group_positions
from proxfield.core.terms.base import Ints, Layout, Term, offers
from proxfield.core.terms.factor import Factor

FEW_FACTORS = 64
"""Up to this many tables of a round are looked at one by one."""
MAX_BITS = 4096
"""Entries up to which one table is worked on as a Python integer."""


def possible(layout: Layout, terms: Iterable[Term], evidence: Ints) -> NDArray[np.bool_]:
    """Labels that evidence and hard energies leave possible, propagated to a fixed point.

    Args:
        layout: The variables.
        terms: The terms; each that offers ``prune`` takes part.
        evidence: Observed label of each variable, -1 where it is free.  # (n_vars,)

    Returns:
        Which entries are possible; none of a variable if there is no labelling.  # (size,)
    """
    keep = np.ones(layout.size, dtype=bool)
    seen = np.flatnonzero(evidence >= 0)
    if len(seen):
        keep[(evidence >= 0)[layout.owner]] = False
        keep[layout.offsets[seen] + evidence[seen]] = True
    pruning = [t for t in terms if offers(t, "prune")]
    factors = [t for t in pruning if type(t).prune is Factor.prune and isinstance(t, Factor)]
    others = [t for t in pruning if t not in factors]
    factors = [t for t in factors if t.hard]
    while sum(term.prune(layout, keep) for term in others):  # a sum: every term gets its turn
        pass
    if not factors:
        return keep
    propagation = Propagation(layout, factors, keep)
    propagation.run()
    while sum(term.prune(layout, keep) for term in others):
        propagation.run()
    return keep


@dataclass
class Propagation:
    """Tables that forbid configurations, and the labels that they leave possible.

    Args:
        layout: The variables.
        factors: Terms with tables; their scopes are numbered one after the other.
        keep: Possible entries; `run` clears what is not.  # (size,)
    """

    layout: Layout
    factors: list[Factor]
    keep: NDArray[np.bool_]
    _shapes: dict[tuple[int, ...], list[list[int]]] = field(default_factory=dict)
    """For each shape, position and label: the entries of a table with that label, as bits."""
    _allowed: dict[int, dict[int, int]] = field(default_factory=dict)
    """For each term and table looked at: the entries that aren't forbidden, as bits."""

    @cached_property
    def starts(self) -> Ints:
        """Number of the first scope of each term, and of all scopes.  # (terms + 1,)"""
        return np.cumsum([0, *(len(f.scopes) for f in self.factors)])

    @cached_property
    def incidence(self) -> tuple[Ints, Ints]:
        """Where the scopes of each variable start, and their numbers.  # (n_vars + 1,), (slots,)"""
        variables = np.concatenate([f.scopes.ravel() for f in self.factors])
        parts = zip(self.factors, self.starts, strict=False)
        scope = np.concatenate(
            [np.repeat(np.arange(s, s + len(f.scopes)), f.degree) for f, s in parts]
        )
        row, order = group_positions(variables, self.layout.n_vars)
        return row, scope[order]

    def run(self) -> None:
        """Propagate to a fixed point, from any state."""
        parts = [f.unsupported(self.layout, self.keep, None) for f in self.factors]
        changed = np.unique(np.concatenate(parts))
        while len(changed):
            row, scope = self.incidence
            count = row[changed + 1] - row[changed]
            if int(count.sum()) <= FEW_FACTORS:
                changed = self._one_by_one(changed)
            else:
                first = np.cumsum(count) - count
                at = np.arange(int(count.sum())) - np.repeat(first - row[changed], count)
                changed = self._together(np.unique(scope[at]))

    def _together(self, scopes: Ints) -> Ints:
        """Look at some scopes (in order) at once; returns variables that lost labels."""
        cuts = np.searchsorted(scopes, self.starts)
        parts = []
        for f, begin, end, start in zip(self.factors, cuts, cuts[1:], self.starts, strict=False):
            if begin < end:
                rows = scopes[begin:end] - start
                parts.append(f.unsupported(self.layout, self.keep, rows))
        return np.unique(np.concatenate(parts))

    def _one_by_one(self, variables: Ints) -> Ints:
        """Round after round of few scopes; returns what to go on with once they are many."""
        row, scope = (x.data for x in self.incidence)  # entries without numpy's overhead
        starts = self.starts.tolist()
        views = [self._view(term) for term in range(len(self.factors))]
        # variables that lost labels, and the last scope that took one: it
        # needn't look again, since it supports what it left
        changed = dict.fromkeys(variables.tolist(), -1)
        while changed:
            scopes: set[int] = set()
            for v, cause in changed.items():
                scopes.update(g for g in scope[row[v] : row[v + 1]].tolist() if g != cause)
            if len(scopes) > FEW_FACTORS:
                return np.array(sorted(changed), dtype=np.int64)
            changed = {}
            for g in sorted(scopes):
                term = bisect_right(starts, g) - 1
                for v in self._lost(views[term], g - starts[term]):
                    changed[v] = g
        return np.zeros(0, dtype=np.int64)

    def _view(self, term: int) -> _FactorView:
        factor = self.factors[term]
        small = factor.tables[0].size <= MAX_BITS
        return _FactorView(
            factor=factor,
            variables=np.ascontiguousarray(factor.scopes).reshape(-1).data,
            index=factor.index.data,
            entries=self._bits_of(factor.shape) if small else None,
            allowed=self._allowed.setdefault(term, {}),
        )

    def _lost(self, view: _FactorView, at: int) -> list[int]:
        """Clear the labels that one scope doesn't support; returns variables that lost some."""
        if view.entries is None:
            rows = np.array([at])
            return [int(v) for v in view.factor.unsupported(self.layout, self.keep, rows)]
        live = view.allowed_bits(view.index[at])
        keep, offsets = self._keep, self._offsets
        degree = len(view.entries)
        mine = [(v, offsets[v]) for v in view.variables[at * degree : (at + 1) * degree]]
        for (_, offset), bits in zip(mine, view.entries, strict=True):
            possible = 0
            for entry, having in enumerate(bits, offset):
                if keep[entry]:
                    possible |= having
            live &= possible
        lost = []
        for (v, offset), bits in zip(mine, view.entries, strict=True):
            for entry, having in enumerate(bits, offset):
                if keep[entry] and not live & having:
                    keep[entry] = 0
                    if v not in lost:
                        lost.append(v)
        return lost

    @cached_property
    def _keep(self) -> memoryview:
        return self.keep.view(np.uint8).data

    @cached_property
    def _offsets(self) -> memoryview:
        return self.layout.offsets.data

    def _bits_of(self, shape: tuple[int, ...]) -> list[list[int]]:
        if shape not in self._shapes:
            grid = np.indices(shape).reshape(len(shape), -1)
            self._shapes[shape] = [
                [to_bits(grid[p] == label) for label in range(c)] for p, c in enumerate(shape)
            ]
        return self._shapes[shape]


@dataclass
class _FactorView:
    """A term with tables, for looking at single scopes."""

    factor: Factor
    variables: memoryview  # scopes, one after the other
    index: memoryview
    entries: list[list[int]] | None  # entries with a label at a position, None: too many
    allowed: dict[int, int]  # entries of each table that aren't forbidden, once looked at

    def allowed_bits(self, table: int) -> int:
        found = self.allowed.get(table)
        if found is None:
            found = self.allowed[table] = to_bits(np.isfinite(self.factor.tables[table]))
        return found


def to_bits(flags: NDArray[np.bool_]) -> int:
    """Flags as the bits of one integer, the first the lowest.

    Example:
        >>> to_bits(np.array([True, False, True]))
        5
    """
    return int.from_bytes(np.packbits(flags.ravel(), bitorder="little").tobytes(), "little")
