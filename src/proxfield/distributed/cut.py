"""The terms across a cut: a small field over the border of a rank and its ghosts.

Ghosts are variables of other ranks that share a term with this one's; border are the variables of
this rank that share one with them. The gradient of these terms at the border enters the rank's own
program through its unary energies, so that kernels run as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import coo_matrix, csr_matrix

from proxfield.core.lowering.lowered import Lowered, lower_untouched
from proxfield.core.lowering.reduction import Reduction, Untouched
from proxfield.core.terms.base import (
    Doubles,
    Ints,
    Layout,
    Term,
    as_indices,
    expectation,
    missing,
    offers,
)
from proxfield.core.terms.consistency import Consistency
from proxfield.core.terms.factor import Factor
from proxfield.core.terms.gaussian import Gaussian
from proxfield.core.terms.pairwise import Ising, Potts
from proxfield.distributed.transport import Transport
from proxfield.errors import InputError, UnsupportedError
from proxfield.field import Field


@dataclass(frozen=True, eq=False)
class Cut:
    """Terms across the cut of one rank."""

    layout: Layout  # the border's variables, then the ghosts
    border: Ints  # numbers of the rank's own lowered variables  # (b,)
    owners: Ints  # the rank of each ghost, ascending  # (layout.n_vars - b,)
    numbers: Ints  # of each ghost among its rank's lowered variables  # (layout.n_vars - b,)
    pairs: tuple[Term, ...] = ()  # Ising, Potts and tables of a variable of the border and a ghost
    larger: tuple[Factor, ...] = ()  # multilinear terms of more variables
    extras: tuple[tuple[Term, Layout, Ints, bool], ...] = ()
    """Terms that give their own energy, on arrays of the whole field: its layout, its entries of
    this one, and whether this rank counts the energy."""
    constant: float = 0.0  # this rank's part of constants that belong to these terms

    @cached_property
    def width(self) -> int:
        """Entries of the border."""
        return int(self.layout.offsets[len(self.border)])

    @cached_property
    def matrix(self) -> csr_matrix:
        """From marginals of ghosts to the pairs' gradient at the border."""
        rows, columns, values = [], [], []
        for term in self.pairs:
            for edges, own, index in term.as_tables(self.layout):
                tables, back = own if index is None else own[index], edges[:, 0] >= len(self.border)
                for flip in (False, True):
                    ends, some = edges[back == flip], tables[back == flip]
                    if flip:
                        ends, some = ends[:, ::-1], np.swapaxes(some, 1, 2)
                    here = self.layout.entries(ends[:, 0], some.shape[1])
                    there = self.layout.entries(ends[:, 1], some.shape[2]) - self.width
                    shape = some.shape
                    rows.append(np.broadcast_to(here[:, :, None], shape).ravel())
                    columns.append(np.broadcast_to(there[:, None, :], shape).ravel())
                    values.append(some.ravel())
        none = np.zeros(0, dtype=np.int64)
        at = np.concatenate([none, *rows]), np.concatenate([none, *columns])
        shape = self.width, self.layout.size - self.width
        return coo_matrix((np.concatenate([np.zeros(0), *values]), at), shape=shape).tocsr()

    def gradient(self, border: Doubles, ghosts: Doubles) -> tuple[NDArray[np.float64], float]:
        """The gradient at the border, and what makes F of a rank its part of the whole F.

        A program whose unary energies hold the gradient g counts ⟨q, g⟩ for the cut. A term of k
        variables is counted once by each of them, so that 1/k of it is each variable's part.

        Args:
            border: Marginals of the border.
            ghosts: Marginals of the ghosts.
        """
        g = np.asarray(self.matrix @ ghosts)
        correction = self.constant - 0.5 * float(border @ g)
        if self.larger or self.extras:
            q = np.concatenate([border, ghosts])
            for factor in self.larger:
                out = np.zeros(self.layout.size)
                factor.add_gradient(self.layout, q, out)
                own = out[: self.width]
                correction -= (1.0 - 1.0 / factor.degree) * float(border @ own)
                g += own
            for term, whole, entries, counted in self.extras:
                full = np.repeat(1.0 / whole.cardinalities, whole.cardinalities)
                full[entries] = q  # marginals of other variables don't count
                out = np.zeros(whole.size)
                energy = term.evaluate(whole, full, out)
                own = out[entries[: self.width]]
                correction += energy * counted - expectation(border, own)
                g += own
        return g, correction

    def local_curvature(self) -> NDArray[np.float64]:
        """λ_i that these terms add to each variable of the border.  # (b,)"""
        total = np.zeros(self.layout.n_vars)
        for term in (*self.pairs, *self.larger):
            total += term.curvature(self.layout)
        for term, *_ in self.extras:
            raise missing(term, "curvature", "a certified step")
        return total[: len(self.border)]


def refuse_gaussian(terms: list[Term]) -> None:
    """Raise `UnsupportedError` for terms that couple every pair of variables."""
    if any(isinstance(t, Gaussian) and not t.omitted for t in terms):
        raise UnsupportedError(
            "a Gaussian term couples every pair of variables, so that each rank would need all "
            "marginals of all others; refine large images by tiles instead"
        )


def forbidden() -> UnsupportedError:
    """The error for tables with +inf."""
    return UnsupportedError(
        "forbidden configurations aren't supported over several ranks; forbid single labels by "
        "unary energies, or use a large finite energy"
    )


def entries_of(layout: Layout, variables: Ints) -> Ints:
    """Entries of some variables, in their order."""
    counts = layout.cardinalities[variables]
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    common = layout.common  # without the offsets of all variables, where that is possible
    starts = layout.offsets[variables] if common is None else variables * common
    return np.repeat(starts - (ends - counts), counts) + np.arange(total)


def consecutive(entries: Ints) -> Ints | slice:
    """Entries as a slice, if they follow one another.

    Example:
        >>> consecutive(np.array([3, 4, 5])), consecutive(np.array([3, 5]))
        (slice(3, 6, None), array([3, 5]))
    """
    if len(entries) and (np.diff(entries) == 1).all():
        return slice(int(entries[0]), int(entries[-1]) + 1)
    return entries


# ---- a rank's part and its cut, split from the whole field ----


def split(lowered: Lowered, user_owner: Ints, rank: int) -> tuple[Lowered, Cut]:
    """What a rank owns, and its cut.

    Args:
        lowered: The whole field.
        user_owner: The rank of each of the user's variables.  # (full.n_vars,)
        rank: The rank.
    """
    reduction, layout = lowered.reduction, lowered.layout
    whole = isinstance(reduction, Untouched)
    owner = user_owner if whole else user_owner[reduction.free]
    own = owner == rank
    within: list[Term] = []
    over: list[Term] = []
    scopes_over: list[Ints] = [np.zeros(0, dtype=np.int64)]
    for term in (lowered.ising, lowered.potts, *lowered.factors):
        if term is None:
            continue
        scopes = scopes_of(term)
        count, width = own[scopes].sum(axis=1), scopes.shape[1]
        halved = (count > 0) & (count < width)
        for rows, into in ((count == width, within), (halved, over)):
            if rows.any():
                into.append(taken(term, rows))
        scopes_over.append(scopes[halved].ravel())
    extras: list[Term] = []
    for extra in lowered.extras:
        # those inside the rank are computed with the cut too, so that its program runs fused
        # kernels; segments are taken one by one, other terms as a whole
        several = split_segments(extra, own) if type(extra) is Consistency else [extra]
        for part in several:
            if own[part.scope(layout)].any():
                extras.append(part)
                scopes_over.append(part.scope(layout))
    touched = np.unique(np.concatenate(scopes_over))
    border, ghosts = touched[own[touched]], touched[~own[touched]]
    ghosts = ghosts[np.argsort(owner[ghosts], kind="stable")]
    position = positions(owner)

    local = np.where(own, position, -1)
    entries = own[layout.owner] if layout.n_vars else np.zeros(0, dtype=bool)
    inside = [taken(t, number=local) for t in within]
    given = user_owner == rank
    full = Layout(reduction.full.cardinalities[given])
    rest: Reduction = Untouched(full)
    if not whole:  # the same reduction of this rank's variables
        rest = Reduction(full, reduction.keep[given[reduction.full.owner]], reduction.whole)
    own_part = Lowered(
        reduction=rest,
        constant=lowered.constant if rank == 0 else 0.0,
        unary=np.array(lowered.unary[entries]),
        ising=next((t for t in inside if isinstance(t, Ising)), None),
        potts=next((t for t in inside if isinstance(t, Potts)), None),
        factors=tuple(t for t in inside if isinstance(t, Factor)),
        magnitude=lowered.magnitude,
    )
    both = np.concatenate([border, ghosts])
    small = np.full(layout.n_vars, -1, dtype=np.int64)
    small[both] = np.arange(len(both))
    joined = [taken(t, number=small) for t in over]
    places = entries_of(layout, both)
    cut = Cut(
        layout=Layout(layout.cardinalities[both]),
        border=local[border],
        pairs=tuple(t for t in joined if t.degree == 2),
        larger=tuple(t for t in joined if isinstance(t, Factor) and t.degree > 2),
        extras=tuple(
            (t, layout, places, bool(owner[t.scope(layout)].min() == rank)) for t in extras
        ),
        owners=owner[ghosts],
        numbers=position[ghosts],
    )
    return own_part, cut


def positions(owner: Ints) -> Ints:
    """The number of each variable among those of its rank.

    Example:
        >>> positions(np.array([0, 1, 0, 1])).tolist()
        [0, 0, 1, 1]
    """
    order = np.argsort(owner, kind="stable")
    counts = np.bincount(owner, minlength=1)
    out = np.empty(len(owner), dtype=np.int64)
    out[order] = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
    return out


def scopes_of(term: Term) -> Ints:
    """The variables of each edge or table of a lowered term.  # (m, k)"""
    assert isinstance(term, (Ising, Potts, Factor))
    return term.scopes if isinstance(term, Factor) else term.edges


def taken(
    term: Term, rows: NDArray[np.bool_] | slice = slice(None), number: Ints | None = None
) -> Term:
    """Some rows of a lowered term, with other numbers of its variables."""
    scopes = scopes_of(term)[rows] if number is None else number[scopes_of(term)[rows]]
    if isinstance(term, Factor):
        return Factor.trusted(scopes, term.tables, term.index[rows])
    assert isinstance(term, (Ising, Potts))
    return type(term).trusted(scopes, term.weights[rows])


def split_segments(term: Consistency, own: NDArray[np.bool_]) -> list[Consistency]:
    """Segments inside a rank as one term, and each one across its border as another."""
    if len(term.members) == 0:
        return []
    count = np.add.reduceat(own[term.members].astype(np.int64), term.starts[:-1])
    inside = np.flatnonzero(count == term.sizes)
    across = np.flatnonzero((count > 0) & (count < term.sizes))
    out = []
    for which in (inside, *across[:, None]):
        if len(which) == 0:
            continue
        rows = [np.arange(term.starts[c], term.starts[c + 1]) for c in which.tolist()]
        part = object.__new__(Consistency)
        for key, value in {
            "members": term.members[np.concatenate(rows)],
            "starts": np.concatenate([[0], np.cumsum(term.sizes[which])]),
            "weights": term.weights[which],
        }.items():
            object.__setattr__(part, key, value)
        out.append(part)
    return out


# ---- parts that each rank makes itself ----


def lower_parts(
    field: Field, cut: Field | None, border: ArrayLike, ghosts: Mapping[int, ArrayLike],
    transport: Transport,
) -> tuple[Lowered, Cut]:  # fmt: skip
    """Lower a rank's own field and its cut, of which nothing is taken out."""
    inner = as_indices(border, "border", 1)
    ranks = list(ghosts)
    outer = [as_indices(ghosts[r], f"ghosts of rank {r}", 1) for r in ranks]
    if ranks != sorted(ranks) or any(not 0 <= r < transport.size for r in ranks):
        raise InputError(f"ghosts of ranks {ranks}, expected ascending ranks of other processes")
    if transport.rank in ranks:
        raise InputError(f"ghosts of rank {transport.rank}, which is this one")
    if len(inner) and (inner.min() < 0 or inner.max() >= field.n_vars):
        raise InputError(f"border names a variable outside of 0 to {field.n_vars - 1}")
    if len(np.unique(inner)) != len(inner):
        raise InputError("border names a variable twice")
    small = Field([], terms=()) if cut is None else cut
    count = len(inner) + sum(map(len, outer))
    if small.n_vars != count:
        raise InputError(f"the cut has {small.n_vars} variables, expected {count}: border, ghosts")
    if (small.cardinalities[: len(inner)] != field.cardinalities[inner]).any():
        raise InputError("variables of the border have other numbers of labels in the cut")
    terms = [t for t in (*field.terms, *small.terms) if not t.omitted]
    refuse_gaussian(terms)
    for term in terms:
        if not offers(term, "lower"):
            raise missing(term, "lower", "a partition built from parts; use Partition.from_field")
    if any(isinstance(t, Factor) and t.degree > 1 and t.hard for t in terms):
        raise forbidden()
    for term in small.terms:
        if term.degree is None or term.degree < 2:
            raise InputError(f"{term.name} terms belong in a rank's own field, not in the cut")
    lowered = lower_untouched(
        field.layout, [t for t in field.terms if not t.omitted], False, np.dtype(np.float64)
    )
    low = lower_untouched(small.layout, [t for t in small.terms if not t.omitted], False)
    pairs = tuple(t for t in low.terms if t.degree == 2)
    for edges in map(scopes_of, pairs):
        if len(edges) and ((edges < len(inner)).sum(axis=1) != 1).any():
            raise InputError("an edge of the cut joins two ghosts, or two variables of this rank")
    owners = np.repeat(np.array(ranks, dtype=np.int64), [len(o) for o in outer])
    found = Cut(
        layout=small.layout,
        border=inner,
        pairs=pairs,
        larger=tuple(t for t in low.terms if isinstance(t, Factor) and t.degree > 2),
        owners=owners,
        numbers=np.concatenate([np.zeros(0, dtype=np.int64), *outer]),
    )
    unary = np.array(lowered.unary, dtype=np.float64)
    for v in np.flatnonzero(field.evidence >= 0).tolist():  # other labels are impossible
        start = field.layout.start(v)
        kept = unary[start + field.evidence[v]]
        unary[start : start + int(field.cardinalities[v])] = np.inf
        unary[start + field.evidence[v]] = kept
    at = entries_of(field.layout, inner)
    unary[at] += low.unary[: found.width]
    found = replace(found, constant=cut_constant(small, low, found))
    return replace(lowered, unary=unary), found


def cut_constant(cut: Field, lowered: Lowered, found: Cut) -> float:
    """This rank's part of the constants that lowering takes out of the terms across.

    Both forms give each variable of a term the same share of its energy, so that their difference
    at any marginals, added up over all ranks, is the constant.
    """
    layout = cut.layout
    q = np.repeat(1.0 / layout.cardinalities, layout.cardinalities)
    width, share = found.width, 0.0
    for term in cut.terms:
        if not term.omitted:
            g = np.zeros(layout.size)
            term.add_gradient(layout, q, g)
            assert term.degree is not None
            share += float(q[:width] @ g[:width]) / term.degree
    g, correction = found.gradient(q[:width], q[width:])
    lowest = float(q[:width] @ g) + correction  # what a program and the correction count
    return share - lowest - float(q[:width] @ lowered.unary[:width])
