"""Which variables and labels are left to infer, and the way back to the user's numbering.

Observed variables and variables with one label are taken out before iterating, and so are,
in fields with forbidden configurations, labels that can't occur.

A label stays possible only if each table over its variable allows a configuration of
possible labels with it (generalized arc consistency). Once a first pass has looked at all
tables, only tables next to a label that went are looked at again, so that the work is linear in
what changes. Many tables at a time are worked on as arrays; few (a chain of equalities
decides one variable after another) one by one, as Python integers of one bit per entry.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from proxfield.core.lowering.merging import group_positions
from proxfield.core.terms.base import Floats, Ints, Layout, Term, offers
from proxfield.core.terms.factor import Factor

FEW_FACTORS = 64
"""Up to this many tables of a round are looked at one by one."""
MAX_BITS = 4096
"""Entries up to which one table is worked on as a Python integer."""


@dataclass(frozen=True)
class Reduction:
    """A map from the user's variables and labels to the ones that stay."""

    full: Layout  # the user's
    keep: NDArray[np.bool_]  # which entries are possible, one of each variable or more  # (size,)
    whole: bool = False  # take nothing out, not even variables with one label

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

    def expand(self, q: Floats) -> NDArray[Any]:
        return q

    def restrict(self, q: Floats) -> NDArray[Any]:
        return self.full.normalize(q)

    def expand_labels(self, labels: Ints) -> Ints:
        return labels


# ---- labels that are still possible ----


def possible(layout: Layout, terms: Iterable[Term], evidence: Ints) -> NDArray[np.bool_]:
    """Labels that evidence and hard energies leave possible, propagated to a fixed point.

    Each term that offers ``prune`` takes part. Where there is no labelling, some variable has no
    possible label.  # (size,)
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

    Scopes are numbered one after the other; `run` clears in ``keep`` what isn't possible.
    """

    layout: Layout
    factors: list[Factor]
    keep: NDArray[np.bool_]

    def __post_init__(self) -> None:
        self.starts = np.cumsum([0, *(len(f.scopes) for f in self.factors)])
        """Number of the first scope of each term, and of all scopes.  # (terms + 1,)"""
        self._views = [_FactorView(factor) for factor in self.factors]
        self._keep = self.keep.view(np.uint8).data

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
                scopes = np.unique(scope[at])  # looked at all at once
                cuts = np.searchsorted(scopes, self.starts)
                spans = zip(self.factors, cuts, cuts[1:], self.starts, strict=False)
                parts = [
                    f.unsupported(self.layout, self.keep, scopes[begin:end] - start)
                    for f, begin, end, start in spans
                    if begin < end
                ]
                changed = np.unique(np.concatenate(parts))

    def _one_by_one(self, variables: Ints) -> Ints:
        """Round after round of few scopes; returns what to go on with once they are many."""
        row, scope = (x.data for x in self.incidence)  # entries without numpy's overhead
        starts = self.starts.tolist()
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
                for v in self._lost(self._views[term], g - starts[term]):
                    changed[v] = g
        return np.zeros(0, dtype=np.int64)

    def _lost(self, view: _FactorView, at: int) -> list[int]:
        """Clear the labels that one scope doesn't support; returns variables that lost some."""
        if view.entries is None:
            rows = np.array([at])
            return [int(v) for v in view.factor.unsupported(self.layout, self.keep, rows)]
        live, keep, offsets = view.allowed(view.index[at]), self._keep, self.layout.offsets.data
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


class _FactorView:
    """A term with tables, for looking at single scopes; entries of tables are bits."""

    def __init__(self, factor: Factor) -> None:
        self.factor = factor
        self.variables = np.ascontiguousarray(factor.scopes).reshape(-1).data
        self.index = factor.index.data
        self.entries = label_bits(factor.shape) if factor.tables[0].size <= MAX_BITS else None
        """The entries with each label at each position; None if there are too many."""
        self.allowed = cache(lambda table: to_bits(np.isfinite(factor.tables[table])))
        """The entries of a table that aren't forbidden."""


@lru_cache(maxsize=64)
def label_bits(shape: tuple[int, ...]) -> list[list[int]]:
    """For each position and label: the entries of a table with that label, as bits."""
    grid = np.indices(shape).reshape(len(shape), -1)
    return [[to_bits(grid[p] == label) for label in range(c)] for p, c in enumerate(shape)]


def to_bits(flags: NDArray[np.bool_]) -> int:
    """Flags as the bits of one integer, the first the lowest."""
    return int.from_bytes(np.packbits(flags.ravel(), bitorder="little").tobytes(), "little")
