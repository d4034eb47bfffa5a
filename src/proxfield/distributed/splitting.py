"""A rank's part of a field and its cut: split from the whole, or lowered from its own parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from dataclasses import field as field_of

import numpy as np
from numpy.typing import ArrayLike, NDArray

from proxfield.core.lowering.lowered import Lowered, lower_untouched
from proxfield.core.lowering.reduction import Reduction, Untouched
from proxfield.core.terms.base import Ints, Layout, Term, as_indices, missing, offers
from proxfield.core.terms.consistency import Consistency
from proxfield.core.terms.factor import Factor
from proxfield.core.terms.pairwise import Ising, Potts
from proxfield.distributed.cut import Cut, Embedded, entries_of, forbidden, refuse_gaussian
from proxfield.distributed.transport import Transport
from proxfield.errors import InputError
from proxfield.field import Field


@dataclass
class CutTerms:
    """Terms of a rank in the whole field's numbering: inside it, and across its border."""

    inside: list[Term] = field_of(default_factory=list)
    across: list[Term] = field_of(default_factory=list)
    touched: list[Ints] = field_of(default_factory=list)
    """Variables of the terms across."""


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
    mine = np.flatnonzero(own)
    found = CutTerms()
    for term in (lowered.ising, lowered.potts, *lowered.factors):
        if term is not None:
            divide(term, own, found)
    extras = CutTerms()
    for extra in lowered.extras:
        part_extra(extra, layout, own, extras)
    touched = np.concatenate([np.zeros(0, dtype=np.int64), *found.touched, *extras.touched])
    touched = np.unique(touched)
    border, ghosts = touched[own[touched]], touched[~own[touched]]
    ghosts = ghosts[np.argsort(owner[ghosts], kind="stable")]
    position = positions(owner)

    local = np.full(layout.n_vars, -1, dtype=np.int64)
    local[mine] = np.arange(len(mine))
    entries = own[layout.owner] if layout.n_vars else np.zeros(0, dtype=bool)
    inside = [taken(t, number=local) for t in found.inside]
    part = Lowered(
        reduction=part_of_reduction(reduction, user_owner == rank),
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
    across = [taken(t, number=small) for t in found.across]
    cut = Cut(
        layout=Layout(layout.cardinalities[both]),
        border=local[border],
        pairs=tuple(t for t in across if t.degree == 2),
        larger=tuple(t for t in across if isinstance(t, Factor) and t.degree > 2),
        extras=tuple(
            (Embedded(t, layout, both), bool(owner[t.scope(layout)].min() == rank))
            for t in extras.across
        ),
        owners=owner[ghosts],
        numbers=position[ghosts],
    )
    return part, cut


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


def part_of_reduction(reduction: Reduction, mine: NDArray[np.bool_]) -> Reduction:
    """The same reduction of some of the user's variables."""
    full = Layout(reduction.full.cardinalities[mine])
    if isinstance(reduction, Untouched):
        return Untouched(full)
    return Reduction(full, reduction.keep[mine[reduction.full.owner]], reduction.whole)


def divide(term: Ising | Potts | Factor, own: NDArray[np.bool_], found: CutTerms) -> None:
    """Edges or tables inside a rank, and those across its border."""
    scopes = term.scopes if isinstance(term, Factor) else term.edges
    count, width = own[scopes].sum(axis=1), scopes.shape[1]
    across = (count > 0) & (count < width)
    for rows, into in ((count == width, found.inside), (across, found.across)):
        if rows.any():
            into.append(taken(term, rows))
    found.touched.append(scopes[across].ravel())


def taken(
    term: Term, rows: NDArray[np.bool_] | slice = slice(None), number: Ints | None = None
) -> Term:
    """Some rows of a lowered term, with other numbers of its variables."""
    assert isinstance(term, (Ising, Potts, Factor))
    scopes = (term.scopes if isinstance(term, Factor) else term.edges)[rows]
    scopes = scopes if number is None else number[scopes]
    if isinstance(term, Factor):
        return Factor.trusted(scopes, term.tables, term.index[rows])
    return type(term).trusted(scopes, term.weights[rows])


def part_extra(term: Term, layout: Layout, own: NDArray[np.bool_], found: CutTerms) -> None:
    """Terms that aren't lowered: segments one by one, others as a whole.

    Those inside the rank are computed with the cut too, so that its program runs fused kernels.
    """
    parts = [term]
    if type(term) is Consistency:
        parts = [p for p in split_segments(term, own) if len(p.members)]
    for part in parts:
        scope = part.scope(layout)
        if own[scope].any():
            found.across.append(part)
            found.touched.append(scope)


def split_segments(term: Consistency, own: NDArray[np.bool_]) -> list[Consistency]:
    """Segments inside a rank as one term, and each one across its border as another."""
    if len(term.members) == 0:
        return []
    count = np.add.reduceat(own[term.members].astype(np.int64), term.starts[:-1])
    inside = np.flatnonzero(count == term.sizes)
    across = np.flatnonzero((count > 0) & (count < term.sizes))
    out = []
    for which in (inside, *across[:, None]):
        rows = [np.arange(term.starts[c], term.starts[c + 1]) for c in which.tolist()]
        part = object.__new__(Consistency)
        for key, value in {
            "members": term.members[np.concatenate([np.zeros(0, dtype=np.int64), *rows])],
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
    owners = np.concatenate(
        [
            np.zeros(0, dtype=np.int64),
            *(np.full(len(o), r) for r, o in zip(ranks, outer, strict=True)),
        ]
    )
    found = Cut(
        layout=small.layout,
        border=inner,
        pairs=tuple(across(t, len(inner)) for t in low.terms if t.degree == 2),
        larger=tuple(t for t in low.terms if isinstance(t, Factor) and t.degree > 2),
        owners=owners.astype(np.int64),
        numbers=np.concatenate([np.zeros(0, dtype=np.int64), *outer]),
    )
    unary = np.array(lowered.unary, dtype=np.float64)
    add_evidence(field, unary)
    at = entries_of(field.layout, inner)
    unary[at] += low.unary[: found.width]
    found = replace(found, constant=cut_constant(small, low, found))
    return replace(lowered, unary=unary), found


def across(term: Term, width: int) -> Term:
    """A pairwise term, checked to have one end at the border."""
    edges = (
        term.scopes
        if isinstance(term, Factor)
        else term.neighbors(Layout(np.zeros(0, dtype=np.int64)))
    )
    if len(edges) and ((edges < width).sum(axis=1) != 1).any():
        raise InputError("an edge of the cut joins two ghosts, or two variables of this rank")
    return term


def add_evidence(field: Field, unary: NDArray[np.float64]) -> None:
    """Make the other labels of observed variables impossible."""
    for v in np.flatnonzero(field.evidence >= 0).tolist():
        start = field.layout.start(v)
        kept = unary[start + field.evidence[v]]
        unary[start : start + int(field.cardinalities[v])] = np.inf
        unary[start + field.evidence[v]] = kept


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
