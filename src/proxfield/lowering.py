"""Lowering: the same field in the fewest and fastest terms.

Unaries and parallel edges are merged; binary tables become one coupling per edge and
one bias per variable; tables w·[x ≠ y] (plus a constant) become Potts weights; equal
tables are stored once; whatever is decided (see `Reduction`) is gone. Lowering keeps
the energy of every labelling that can occur.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from proxfield.reduction import Reduction, Untouched, possible
from proxfield.terms.base import Floats, Ints, Layout, Term, offers
from proxfield.terms.factor import Factor
from proxfield.terms.pairwise import Ising, Potts

DEDUPLICATE_LIMIT = 50_000_000
"""Table entries above which equal tables aren't searched for (sorting would dominate)."""


@dataclass(frozen=True)
class Lowered:
    """A field ready to iterate on: E = constant + ⟨unary, q⟩ + the terms."""

    reduction: Reduction
    constant: float
    unary: NDArray[Any]  # (layout.size,)
    ising: Ising | None = None
    potts: Potts | None = None
    factors: tuple[Factor, ...] = ()
    extras: tuple[Term, ...] = ()
    """Terms that can't be lowered: iterated through their own ``add_gradient``."""

    @property
    def layout(self) -> Layout:
        """The layout of the variables that are left."""
        return self.reduction.layout

    @property
    def terms(self) -> Iterator[Term]:
        """Every term above degree one."""
        yield from (t for t in (self.ising, self.potts) if t is not None)
        yield from self.factors
        yield from self.extras

    @property
    def infeasible(self) -> bool:
        """Is it proved that no labelling has positive probability?"""
        return self.constant == np.inf or len(self.reduction.empty) > 0

    @cached_property
    def forbids(self) -> bool:
        """Are labels impossible by their unary energy?"""
        return bool(self.unary.max(initial=0.0) == np.inf)

    @property
    def hard(self) -> bool:
        """Are configurations (not only labels) still forbidden?"""
        return any(f.hard for f in self.factors)

    def energy(self, labels: Ints) -> float:
        """Energy of a labelling of the variables that are left."""
        e = self.constant + float(self.unary[self.layout.offsets[:-1] + labels].sum())
        return e + sum(t.labelling_energy(self.layout, labels) for t in self.terms)

    def soften(self, penalty: float) -> Lowered:
        """Forbidden configurations made to cost ``penalty`` above their table's worst."""
        whole = Reduction(self.layout, np.ones(self.layout.size, dtype=bool))
        builder = Builder(whole)
        builder.add_constant(self.constant)
        builder.add_unary(np.arange(self.layout.size), self.unary)
        for term in self.terms:
            if isinstance(term, Factor) and term.hard:
                axes = tuple(range(1, term.tables.ndim))
                finite = np.where(np.isinf(term.tables), -np.inf, term.tables)
                worst = finite.max(axis=axes, keepdims=True)
                worst = np.where(np.isinf(worst), 0.0, worst)
                tables = np.where(np.isinf(term.tables), worst + penalty, term.tables)
                builder.add_tables(term.scopes, tables, term.index)
            elif offers(term, "lower"):
                term.lower(self.layout, builder)
            else:
                builder.add_extra(term)
        return replace(builder.finish(), reduction=self.reduction)


def lower(layout: Layout, terms: list[Term], evidence: Ints, *, plain: bool = False) -> Lowered:
    """Lower a field's terms, taking out what evidence and impossible labels decide.

    With ``plain`` pairwise tables stay as they were given, for looking at the raw Hessian.

    Labels that only a unary energy of +inf forbids stay: the kernels clear them at the
    first update, and a uniform start is uniform over all labels, as in the paper. Where
    tables forbid configurations, impossible labels are taken out everywhere, because that
    often makes the tables finite. A term that can't be lowered needs its variables as they
    are: then nothing is taken out, and what is impossible gets the energy +inf instead.
    """
    extras = [t for t in terms if not offers(t, "lower")]
    hard = any(isinstance(t, Factor) and t.hard for t in terms)
    if extras and not hard and not (evidence >= 0).any():
        return lower_untouched(layout, terms, plain)
    keep = possible(layout, terms, evidence)
    reduction = Reduction(layout, keep)
    if len(reduction.empty):  # no labelling at all: nothing to iterate on
        return Lowered(reduction, np.inf, np.zeros(reduction.layout.size))
    if extras:
        reduction = Reduction(layout, np.ones(layout.size, dtype=bool), whole=True)
    elif not any(isinstance(t, Factor) and t.degree > 1 and t.hard for t in terms):
        reduction = Reduction(layout, possible(layout, [], evidence))
    builder = Builder(reduction, plain)
    for term in terms:
        if offers(term, "lower"):
            term.lower(layout, builder)
        else:
            builder.add_extra(term)
    if extras and not keep.all():
        gone = np.flatnonzero(~keep & (reduction.new_entry >= 0))
        builder.add_unary(gone, np.full(len(gone), np.inf))
    return builder.finish()


def lower_untouched(layout: Layout, terms: list[Term], plain: bool) -> Lowered:
    """Lower a field of which nothing is taken out, lean enough for millions of pixels."""
    builder = Builder(Untouched(layout), plain)
    for term in terms:
        if offers(term, "lower"):
            term.lower(layout, builder)
        else:
            builder.add_extra(term)
    lowered = builder.finish()
    if lowered.forbids:
        best = np.minimum.reduceat(lowered.unary, layout.offsets[:-1])
        if (best == np.inf).any():
            return replace(lowered, constant=np.inf)
    return lowered


@dataclass
class Builder:
    """The words in which a term says its energy; everything in the user's numbering."""

    reduction: Reduction
    plain: bool = False
    """Keep every table as it was given: no Ising, no Potts."""
    constant: float = 0.0
    shared: NDArray[Any] | None = None
    """Unary energies of all entries, still in the array that a term holds."""
    pairs: dict[tuple[int, int], list[tuple[Ints, Floats, Ints]]] = field(default_factory=dict)
    larger: dict[tuple[int, ...], list[tuple[Ints, Floats, Ints]]] = field(default_factory=dict)
    potts: list[tuple[Ints, Floats]] = field(default_factory=list)
    ising: list[tuple[Ints, Floats]] = field(default_factory=list)
    extras: list[Term] = field(default_factory=list)

    @cached_property
    def unary(self) -> NDArray[np.float64]:
        """Unary energies of what stays; made when something is to be added up.  # (size,)"""
        out = np.zeros(self.reduction.layout.size)
        if self.shared is not None:
            out += self.shared
            self.shared = None
        return out

    # ---- what terms call ----

    def add_constant(self, value: float) -> None:
        """An energy that every labelling pays."""
        self.constant += value

    def add_unary(self, entries: Ints, energies: Floats) -> None:
        """Energies of single entries of the user's flat layout.  # (m,), (m,)"""
        r = self.reduction
        new = r.new_entry[entries]
        stays = new >= 0
        np.add.at(self.unary, new[stays], energies[stays])
        decided = ~stays & r.keep[entries]
        self.constant += float(energies[decided].sum())

    def add_all_unary(self, energies: Floats) -> None:
        """Energies of all entries of the user's flat layout, in order.  # (size,)"""
        alone = self.shared is None and "unary" not in vars(self)
        if alone and isinstance(self.reduction, Untouched):
            self.shared = energies
        else:
            self.add_unary(np.arange(len(energies)), energies)

    def add_tables(self, scopes: Ints, tables: Floats, index: Ints) -> None:
        """Tables over the user's variables.  # (m, k), (T, c_1, …, c_k), (m,)"""
        if len(scopes) == 0:
            return
        r = self.reduction
        whole = r.untouched[scopes].all(axis=1)
        if whole.any():
            self._store(r.new_variable[scopes[whole]], tables, index[whole])
        rest = np.flatnonzero(~whole)
        if len(rest) == 0:
            return
        shape = tables.shape[1:]
        entries = [r.full.entries(scopes[rest, p], c) for p, c in enumerate(shape)]
        masks = np.concatenate([r.keep[at] for at in entries], axis=1)  # (rows, Σ c_p)
        kinds, kind = np.unique(masks, axis=0, return_inverse=True)
        for g, mask in enumerate(kinds):
            rows = rest[kind.ravel() == g]
            kept = [np.flatnonzero(part) for part in np.split(mask, np.cumsum(shape)[:-1])]
            used, where = np.unique(index[rows], return_inverse=True)
            small = tables[np.ix_(used, *kept)]
            free = [p for p, labels in enumerate(kept) if len(labels) > 1]
            small = small.reshape(len(used), *(len(kept[p]) for p in free))
            self._store(r.new_variable[scopes[rows][:, free]], small, where.ravel())

    def add_potts(self, edges: Ints, weights: Floats) -> None:
        """Energies w·[x_i ≠ x_j].  # (m, 2), (m,)"""
        r = self.reduction
        whole = r.untouched[edges].all(axis=1) & (not self.plain)
        binary = whole & (r.full.cardinalities[edges] == 2).all(axis=1)
        many = whole & ~binary
        if many.any():
            self.potts.append((r.new_variable[edges[many]], weights[many]))
        if binary.any():  # w·[x ≠ y] = w/2 − w/2·s·t for spins s, t
            self.constant += 0.5 * float(weights[binary].sum())
            self.ising.append((r.new_variable[edges[binary]], -0.5 * weights[binary]))
        if not whole.all():
            for scopes, tables, _ in Potts(edges[~whole], weights[~whole]).as_tables(r.full):
                self.add_tables(scopes, tables, np.arange(len(scopes)))

    def add_ising(self, edges: Ints, weights: Floats) -> None:
        """Energies J·s_i·s_j between spins (binary variables).  # (m, 2), (m,)"""
        r = self.reduction
        whole = r.untouched[edges].all(axis=1) & (not self.plain)
        self.ising.append((r.new_variable[edges[whole]], weights[whole]))
        if not whole.all():
            for scopes, tables, _ in Ising(edges[~whole], weights[~whole]).as_tables(r.full):
                self.add_tables(scopes, tables, np.arange(len(scopes)))

    def add_extra(self, term: Term) -> None:
        """A term that keeps iterating on its own."""
        self.extras.append(term)

    # ---- putting it together ----

    def _store(self, scopes: Ints, tables: Floats, index: Ints) -> None:
        """Tables over variables that stay, in the new numbering."""
        k = scopes.shape[1]
        if k == 0:
            self.constant += float(tables[index].sum())
        elif k == 1:
            at = self.reduction.layout.entries(scopes[:, 0], tables.shape[1])
            np.add.at(self.unary, at, tables[index])
        elif k == 2:
            back = scopes[:, 0] > scopes[:, 1]
            if not back.all():
                self._pool(self.pairs, scopes[~back], tables, index[~back])
            if back.any():
                flipped = np.swapaxes(tables, 1, 2)
                self._pool(self.pairs, scopes[back][:, ::-1], flipped, index[back])
        else:
            self._pool(self.larger, scopes, tables, index)

    @staticmethod
    def _pool(pool: dict, scopes: Ints, tables: Floats, index: Ints) -> None:  # type: ignore[type-arg]
        used, where = np.unique(index, return_inverse=True)
        item = (scopes, np.ascontiguousarray(tables[used]), where.ravel())
        pool.setdefault(tables.shape[1:], []).append(item)

    def finish(self) -> Lowered:
        """Merge, recognise and store once."""
        factors: list[Factor] = []
        for items in self.pairs.values():
            scopes, tables, index = merge_scopes(*concatenate(items))
            if not self.plain:
                scopes, tables, index = self._recognise(scopes, tables, index)
            if len(scopes):
                factors.append(Factor(scopes, *deduplicate(tables, index)))
        for items in self.larger.values():
            scopes, tables, index = merge_scopes(*concatenate(items))
            factors.append(Factor(scopes, *deduplicate(tables, index)))
        ising = merge_edges(self.ising)
        potts = merge_edges(self.potts)
        return Lowered(
            reduction=self.reduction,
            constant=self.constant,
            unary=self.unary if self.shared is None else self.shared,
            ising=Ising(*ising) if ising else None,
            potts=Potts(*potts) if potts else None,
            factors=tuple(factors),
            extras=tuple(self.extras),
        )

    def _recognise(self, scopes: Ints, tables: Floats, index: Ints) -> tuple[Ints, Floats, Ints]:
        """Take Ising and Potts energies out of pairwise tables; return what is left."""
        a, b = tables.shape[1:]
        finite = np.asarray(np.isfinite(tables).all(axis=(1, 2)))
        offsets = self.reduction.layout.offsets
        if (a, b) == (2, 2):
            take = finite[index]
            t = 0.25 * tables[index[take]]
            aa, ab, ba, bb = t[:, 0, 0], t[:, 0, 1], t[:, 1, 0], t[:, 1, 1]
            ends = scopes[take]
            # in spins: constant + h·s + k·t + J·s·t. Brackets keep the symmetry of a table
            # exact (h = k = 0), so that a start at a symmetric saddle stays there.
            self.constant += float(((aa + bb) + (ab + ba)).sum())
            for end, h in (
                (ends[:, 0], (ba + bb) - (aa + ab)),
                (ends[:, 1], (ab + bb) - (aa + ba)),
            ):
                np.add.at(self.unary, offsets[end], -h)
                np.add.at(self.unary, offsets[end] + 1, h)
            self.ising.append((ends, (aa + bb) - (ab + ba)))
        elif a == b:
            same = np.eye(a, dtype=bool)
            on, off = tables[:, 0, 0], tables[:, 0, 1]
            with np.errstate(invalid="ignore"):
                like = np.where(same, on[:, None, None], off[:, None, None]) == tables
            take = (finite & like.all(axis=(1, 2)))[index]
            which = index[take]
            self.constant += float(on[which].sum())
            self.potts.append((scopes[take], off[which] - on[which]))
        else:
            return scopes, tables, index
        return scopes[~take], tables, index[~take]


def concatenate(items: list[tuple[Ints, Floats, Ints]]) -> tuple[Ints, Floats, Ints]:
    """Several (scopes, tables, index) of one shape as one."""
    shift = np.cumsum([0, *(len(t) for _, t, _ in items)])
    return (
        np.concatenate([s for s, _, _ in items]),
        np.concatenate([t for _, t, _ in items]),
        np.concatenate([i + d for (_, _, i), d in zip(items, shift, strict=False)]),
    )


def merge_scopes(scopes: Ints, tables: Floats, index: Ints) -> tuple[Ints, Floats, Ints]:
    """Add up the tables of scopes that occur more than once."""
    n, k = int(scopes.max(initial=0)) + 1, scopes.shape[1]
    if n**k < 2**62:  # one integer per scope sorts many times faster than rows
        keys = np.ravel_multi_index(tuple(scopes.T), (n,) * k)
        _, first, where, count = np.unique(
            keys, return_index=True, return_inverse=True, return_counts=True
        )
    else:
        _, first, where, count = np.unique(
            scopes, axis=0, return_index=True, return_inverse=True, return_counts=True
        )
    unique, where = scopes[first], where.ravel()
    if len(unique) == len(scopes):
        return scopes, tables, index
    many = count[where] > 1
    number = np.cumsum(count > 1) - 1  # position of each repeated scope among the sums
    sums = np.zeros((int((count > 1).sum()), *tables.shape[1:]))
    np.add.at(sums, number[where[many]], tables[index[many]])
    return (
        np.concatenate([scopes[~many], unique[count > 1]]),
        np.concatenate([tables, sums]),
        np.concatenate([index[~many], len(tables) + np.arange(len(sums))]),
    )


def merge_edges(items: list[tuple[Ints, Floats]]) -> tuple[Ints, Floats] | None:
    """Add up the weights of parallel edges; edges that cancel are dropped."""
    if not items:
        return None
    edges = np.sort(np.concatenate([e for e, _ in items]), axis=1)
    weights = np.concatenate([w for _, w in items])
    if len(edges) == 0:
        return None
    n = int(edges.max()) + 1
    keys, where = np.unique(edges[:, 0] * n + edges[:, 1], return_inverse=True)
    total = np.bincount(where.ravel(), weights=weights, minlength=len(keys))
    keys, total = keys[total != 0], total[total != 0]
    return (np.stack([keys // n, keys % n], axis=1), total) if len(keys) else None


def deduplicate(tables: Floats, index: Ints) -> tuple[Floats, Ints]:
    """Drop unused tables and store equal ones once."""
    used, index = np.unique(index, return_inverse=True)
    tables, index = tables[used], index.ravel()
    if tables.size > DEDUPLICATE_LIMIT or len(tables) < 2:
        return tables, index
    flat = np.ascontiguousarray(tables.reshape(len(tables), -1) + 0.0)  # +0.0 turns −0 into 0
    rows = flat.view(np.dtype((np.void, flat.dtype.itemsize * flat.shape[1]))).ravel()
    _, first, where = np.unique(rows, return_index=True, return_inverse=True)
    return tables[first], where.ravel()[index]
