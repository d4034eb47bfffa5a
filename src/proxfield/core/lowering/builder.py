"""The builder: how terms pass their energies to lowering, and how these are put together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from proxfield.core.lowering import merging
from proxfield.core.lowering.merging import Scoped, Weighted
from proxfield.core.lowering.reduction import Reduction, Untouched
from proxfield.core.terms.base import Floats, Ints, Term, largest_finite, offers
from proxfield.core.terms.factor import Factor
from proxfield.core.terms.grid import Shift
from proxfield.core.terms.pairwise import Ising, Potts
from proxfield.errors import InputError

if TYPE_CHECKING:
    from proxfield.core.lowering.lowered import Lowered

MAX_ENERGY = 1e300
"""Sum of the sizes of all energies above which a field is refused: sums must not overflow."""


@dataclass
class Builder:
    """The interface through which terms pass their energies, in the user's numbering."""

    reduction: Reduction
    plain: bool = False
    """Keep every table as it was given: no Ising, no Potts."""
    unary_dtype: np.dtype[np.floating] | None = None
    """The type that unary energies must have to be shared; any by default."""
    constant: float = 0.0
    magnitude: float = 0.0
    """A bound on the size of the energy of any possible labelling."""
    shared: Floats | None = None
    """Unary energies of all entries, still in the array that a term holds."""
    pairs: dict[tuple[int, int], list[Scoped]] = field(default_factory=dict)
    larger: dict[tuple[int, ...], list[Scoped]] = field(default_factory=dict)
    potts: list[Weighted] = field(default_factory=list)
    ising: list[Weighted] = field(default_factory=list)
    bands: list[tuple[Shift, Floats]] = field(default_factory=list)
    """Couplings of spins along the offsets of grids.  # (*sizes) each"""
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
        if abs(value) != np.inf:
            self._weigh("constants", abs(value))
        self.constant += value

    def add_unary(self, entries: Ints, energies: Floats) -> None:
        """Energies of single entries of the user's flat layout.  # (m,), (m,)"""
        r = self.reduction
        self._weigh("unary energies", len(energies) * largest_finite(energies))
        if isinstance(r, Untouched):
            np.add.at(self.unary, entries, energies)
            return
        new = r.new_entry[entries]
        stays = new >= 0
        np.add.at(self.unary, new[stays], energies[stays])
        decided = ~stays & r.keep[entries]
        self.constant += float(energies[decided].sum())

    def add_all_unary(self, energies: Floats) -> None:
        """Energies of all entries of the user's flat layout, in order.  # (size,)"""
        alone = self.shared is None and "unary" not in vars(self)
        fits = self.unary_dtype is None or energies.dtype == self.unary_dtype
        if isinstance(self.reduction, Untouched):
            self._weigh("unary energies", len(energies) * largest_finite(energies))
            if alone and fits:
                self.shared = energies
            else:
                self.unary[:] += energies
        else:
            self.add_unary(np.arange(len(energies)), energies)

    def add_tables(self, scopes: Ints, tables: Floats, index: Ints) -> None:
        """Tables over the user's variables.  # (m, k), (T, c_1, …, c_k), (m,)"""
        if len(scopes) == 0:
            return
        r = self.reduction
        self._weigh("energies in tables", len(scopes) * largest_finite(tables))
        if isinstance(r, Untouched):
            self._store(scopes, tables, index)
            return
        whole = r.untouched[scopes].all(axis=1)
        if whole.any():
            self._store(r.new_variable[scopes[whole]], tables, index[whole])
        rest = np.flatnonzero(~whole)
        if len(rest) == 0:
            return
        shape = tables.shape[1:]
        entries = [r.full.entries(scopes[rest, p], c) for p, c in enumerate(shape)]
        masks = np.concatenate([r.keep[at] for at in entries], axis=1)  # (rows, Σ c_p)
        for mask, rows in group_rows(masks):
            rows = rest[rows]
            kept = [np.flatnonzero(part) for part in np.split(mask, np.cumsum(shape)[:-1])]
            used, where = merging.compact_index(index[rows], len(tables))
            some = tables if used is None else tables[used]
            small = some[np.ix_(np.arange(len(some)), *kept)]
            free = [p for p, labels in enumerate(kept) if len(labels) > 1]
            small = small.reshape(len(some), *(len(kept[p]) for p in free))
            self._store(r.new_variable[scopes[rows][:, free]], small, where)

    def add_grid(self, grid: Shift, tables: Floats, index: Ints | None) -> None:
        """Tables between pixels of a grid at an offset.  # (T, k, k), (m,) or None: all the first

        Binary grids of which nothing is taken out become diagonals without a list of edges.
        """
        r = self.reduction
        if self.plain or not isinstance(r, Untouched) or tables.shape[1] != 2:
            which = np.zeros(grid.n_edges, dtype=np.int64) if index is None else index
            self.add_tables(grid.edges(), tables, which)
            return
        self._weigh("energies in tables", grid.n_edges * largest_finite(tables))
        constant, h, k, coupling = spin_parts(tables)

        def per_edge(numbers: Floats) -> Floats:
            out = np.broadcast_to(numbers[:1], grid.n_edges) if index is None else numbers[index]
            return out.reshape(grid.sizes)

        self.constant += float(per_edge(constant).sum())
        start = r.full.start(grid.first)
        unary: NDArray[Any] = grid.over_pixels(self.unary[start : start + 2 * grid.n_pixels])
        for where, numbers in ((grid.here, h), (grid.there, k)):
            if numbers.any():
                each = per_edge(numbers)
                unary[..., 0][where] -= each
                unary[..., 1][where] += each
        self.bands.append((grid, per_edge(coupling)))

    def add_potts(self, edges: Ints, weights: Floats) -> None:
        """Energies w·[x_i ≠ x_j].  # (m, 2), (m,)"""
        self._weigh("Potts weights", len(weights) * largest_finite(weights))
        layout = self.reduction.layout
        (edges, weights), rest = self._whole_edges(edges, weights)
        if layout.common is None:
            binary = (layout.cardinalities[edges] == 2).all(axis=1)
            self.potts.append((edges[~binary], weights[~binary]))
            self._potts_of_spins(edges[binary], weights[binary])
        elif layout.common == 2:
            self._potts_of_spins(edges, weights)
        else:
            self.potts.append((edges, weights))
        self._add_as_tables(Potts.trusted(*rest))

    def _potts_of_spins(self, edges: Ints, weights: Floats) -> None:
        """Potts between binary variables that stay: w·[x ≠ y] = w/2 − w/2·s·t for spins s, t."""
        self.constant += 0.5 * float(weights.sum())
        self.ising.append((edges, -0.5 * weights))

    def add_ising(self, edges: Ints, weights: Floats) -> None:
        """Energies J·s_i·s_j between spins (binary variables).  # (m, 2), (m,)"""
        self._weigh("Ising weights", len(weights) * largest_finite(weights))
        whole, rest = self._whole_edges(edges, weights)
        self.ising.append(whole)
        self._add_as_tables(Ising.trusted(*rest))

    def _whole_edges(self, edges: Ints, weights: Floats) -> tuple[Weighted, Weighted]:
        """Edges between variables that stay as they are, in the new numbering; and all others."""
        r = self.reduction
        if isinstance(r, Untouched) and not self.plain:
            return (edges, weights), (edges[:0], weights[:0])
        whole = r.untouched[edges].all(axis=1) & (not self.plain)
        return (r.new_variable[edges[whole]], weights[whole]), (edges[~whole], weights[~whole])

    def _add_as_tables(self, term: Term) -> None:
        for scopes, tables, _ in term.as_tables(self.reduction.full):
            self.add_tables(scopes, tables, np.arange(len(scopes)))

    def add_terms(self, terms: Iterable[Term]) -> None:
        """Terms in their order; those that can't be lowered as extras."""
        for term in terms:
            if offers(term, "lower"):
                term.lower(self.reduction.full, self)
            else:  # it keeps iterating on its own
                self._weigh(f"energies of {term.name}", term.magnitude(self.reduction.full))
                self.extras.append(term)

    # ---- putting it together ----

    def _weigh(self, what: str, most: float) -> None:
        """Count energies of up to ``most`` in sum, and refuse what sums could not hold."""
        self.magnitude += most
        if not self.magnitude <= MAX_ENERGY:
            total = f"{self.magnitude:.3g}" if np.isfinite(self.magnitude) else "over 1.8e308"
            raise InputError(
                f"with the {what}, energies can add up to {total} in size, expected at most "
                f"{MAX_ENERGY:g} (scale them down; for what is impossible use +inf)"
            )

    def _store(self, scopes: Ints, tables: Floats, index: Ints) -> None:
        """Tables over variables that stay, in the new numbering."""
        k = scopes.shape[1]
        if k == 0:
            self.constant += float(tables[index].sum())
        elif k == 1:
            at = self.reduction.layout.entries(scopes[:, 0], tables.shape[1])
            merging.add_at(self.unary, at.ravel(), tables[index].ravel())
        elif k == 2:
            back = scopes[:, 0] > scopes[:, 1]
            if not back.all():
                some = ~back if back.any() else slice(None)
                self._pool(self.pairs, scopes[some], tables, index[some])
            if back.any():
                flipped = np.swapaxes(tables, 1, 2)
                self._pool(self.pairs, scopes[back][:, ::-1], flipped, index[back])
        else:
            self._pool(self.larger, scopes, tables, index)

    @staticmethod
    def _pool(pool: dict, scopes: Ints, tables: Floats, index: Ints) -> None:  # type: ignore[type-arg]
        used, index = merging.compact_index(index, len(tables))
        tables = np.ascontiguousarray(tables if used is None else tables[used])
        pool.setdefault(tables.shape[1:], []).append((scopes, tables, index))

    def finish(self) -> Lowered:
        """Merge, recognize and store once."""
        from proxfield.core.lowering.lowered import Lowered

        factors: list[Factor] = []
        for items in self.pairs.values():
            scopes, tables, index = merging.merge_scopes(*merging.concatenate(items))
            if not self.plain:
                scopes, tables, index = self._recognize(scopes, tables, index)
            if len(scopes):
                factors.append(Factor.trusted(scopes, *merging.deduplicate(tables, index)))
        for items in self.larger.values():
            scopes, tables, index = merging.merge_scopes(*merging.concatenate(items))
            factors.append(Factor.trusted(scopes, *merging.deduplicate(tables, index)))
        if self.bands:
            self.ising += merging.band_edges(self.bands, self.reduction.layout.n_vars)
        ising = merging.merge_edges(self.ising)
        potts = merging.merge_edges(self.potts)
        return Lowered(
            reduction=self.reduction,
            constant=self.constant,
            unary=self.unary if self.shared is None else self.shared,
            ising=Ising.trusted(*ising) if ising else None,
            potts=Potts.trusted(*potts) if potts else None,
            factors=tuple(factors),
            extras=tuple(self.extras),
            magnitude=self.magnitude,
        )

    def _recognize(self, scopes: Ints, tables: Floats, index: Ints) -> tuple[Ints, Floats, Ints]:
        """Take Ising and Potts energies out of pairwise tables; return what is left."""
        a, b = tables.shape[1:]
        finite = np.asarray(np.isfinite(tables).all(axis=(1, 2)))
        offsets = self.reduction.layout.offsets
        if a == b == 1:  # variables with one label, which stay where nothing is taken out
            self.constant += float(tables[index].sum())
            return scopes[:0], tables, index[:0]
        if (a, b) == (2, 2):
            all_finite = bool(finite.all())
            soft = tables if all_finite else np.where(finite[:, None, None], tables, 0.0)
            constant, h, k, coupling = spin_parts(soft)
            take = None if all_finite else finite[index]
            which, ends = (index, scopes) if take is None else (index[take], scopes[take])
            self.constant += float(constant[which].sum())
            for end, numbers in ((ends[:, 0], h), (ends[:, 1], k)):
                first, each = offsets[end], numbers[which]
                merging.add_at(self.unary, first, -each)
                merging.add_at(self.unary, first + 1, each)
            self.ising.append((ends, coupling[which]))
            if take is None:
                return scopes[:0], tables, index[:0]
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


def spin_parts(tables: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    """Binary tables in spins: constant + h·s + k·t + J·s·t.  # (T, 2, 2) -> (T,) each

    Brackets keep the symmetry of a table exact (h = k = 0), so that a start at a symmetric saddle
    stays there.
    """
    t = 0.25 * tables
    aa, ab, ba, bb = t[:, 0, 0], t[:, 0, 1], t[:, 1, 0], t[:, 1, 1]
    return (
        (aa + bb) + (ab + ba),
        (ba + bb) - (aa + ab),
        (ab + bb) - (aa + ba),
        (aa + bb) - (ab + ba),
    )


def group_rows(masks: NDArray[np.bool_]) -> Iterator[tuple[NDArray[np.bool_], Ints]]:
    """Each row that occurs, in order, with the positions where it does.  # (m, k)"""
    if masks.shape[1] <= 10:  # few kinds can occur: no sorting of many numbers
        code = masks @ (1 << np.arange(masks.shape[1], dtype=np.int64)[::-1])
        found, kind = merging.compact_index(code, 1 << masks.shape[1])
        if found is None:
            found = np.arange(1 << masks.shape[1])
        kinds = (found[:, None] >> np.arange(masks.shape[1])[::-1]) % 2 == 1
        kind = kind.astype(np.uint16)
    elif masks.shape[1] < 63:  # one integer per row sorts many times faster than rows
        keys = np.zeros(len(masks), dtype=np.int64)
        for column in masks.T:
            keys *= 2
            keys += column
        _, first, kind = np.unique(keys, return_index=True, return_inverse=True)
        kinds = masks[first]
    else:
        kinds, kind = np.unique(masks, axis=0, return_inverse=True)
    kind = kind.ravel()
    ends = np.cumsum(np.bincount(kind, minlength=len(kinds)))
    yield from zip(kinds, np.split(np.argsort(kind, kind="stable"), ends[:-1]), strict=True)
