"""A lowered field split by the rank that owns each variable."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from proxfield.core.lowering.lowered import Lowered
from proxfield.core.lowering.reduction import Reduction, Untouched
from proxfield.core.terms.base import Ints, Layout, Term
from proxfield.core.terms.consistency import Consistency
from proxfield.core.terms.cooccurrence import Cooccurrence, LatentCooccurrence
from proxfield.core.terms.factor import Factor
from proxfield.core.terms.occupancy import Occupancy
from proxfield.core.terms.pairwise import Ising, Potts
from proxfield.distributed.cut import Cut, Embedded


@dataclass
class CutTerms:
    """Terms of a rank in the whole field's numbering: inside it, and across its border."""

    inside: list[Term] = field(default_factory=list)
    across: list[Term] = field(default_factory=list)
    touched: list[Ints] = field(default_factory=list)
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
    for term in (lowered.ising, lowered.potts):
        if term is not None:
            part_edges(term, own, found)
    for factor in lowered.factors:
        part_factor(factor, own, found)
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
    inside = [renumbered(t, local) for t in found.inside]
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
    across = [renumbered(t, small) for t in found.across]
    cut = Cut(
        layout=Layout(layout.cardinalities[both]),
        border=local[border],
        pairs=tuple(t for t in across if t.degree == 2),
        larger=tuple(t for t in across if isinstance(t, Factor) and t.degree > 2),
        extras=tuple(
            (Embedded(t, layout, both), bool(owner[scope_of(t, layout)].min() == rank))
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


def part_edges(term: Ising | Potts, own: NDArray[np.bool_], found: CutTerms) -> None:
    """Edges inside a rank, and those with one end in it."""
    ends = own[term.edges]
    count = ends.sum(axis=1)
    for rows, into in ((count == 2, found.inside), (count == 1, found.across)):
        if rows.any():
            into.append(type(term).trusted(term.edges[rows], term.weights[rows]))
    found.touched.append(term.edges[count == 1].ravel())


def part_factor(term: Factor, own: NDArray[np.bool_], found: CutTerms) -> None:
    """The same for tables."""
    count = own[term.scopes].sum(axis=1)
    across = (count > 0) & (count < term.degree)
    for rows, into in ((count == term.degree, found.inside), (across, found.across)):
        if rows.any():
            into.append(Factor.trusted(term.scopes[rows], term.tables, term.index[rows]))
    found.touched.append(term.scopes[across].ravel())


def part_extra(term: Term, layout: Layout, own: NDArray[np.bool_], found: CutTerms) -> None:
    """Terms that aren't lowered: segments one by one, others as a whole.

    Those inside the rank are computed with the cut too, so that its program runs fused kernels.
    """
    parts = [term]
    if type(term) is Consistency:
        parts = [p for p in split_segments(term, own) if len(p.members)]
    for part in parts:
        scope = scope_of(part, layout)
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
    return [some_segments(term, which) for which in (inside, *across[:, None])]


def some_segments(term: Consistency, which: Ints) -> Consistency:
    """The same term with some of its segments."""
    sizes = term.sizes[which]
    rows = [np.arange(term.starts[c], term.starts[c + 1]) for c in which.tolist()]
    members = term.members[np.concatenate([np.zeros(0, dtype=np.int64), *rows])]
    starts = np.concatenate([[0], np.cumsum(sizes)])
    arrays = {"members": members, "starts": starts, "weights": term.weights[which]}
    out = object.__new__(Consistency)
    for key, value in arrays.items():
        object.__setattr__(out, key, value)
    return out


def scope_of(term: Term, layout: Layout) -> Ints:
    """The variables of a term that isn't lowered; all of the field's where it isn't known."""
    if isinstance(term, Consistency):
        return np.unique(term.members)
    if isinstance(term, Cooccurrence):
        pixels = np.arange(term.first, term.first + term.pixels)
        if not isinstance(term, LatentCooccurrence):
            return pixels
        return np.unique(np.append(pixels, term.presence + np.arange(len(term.classes))))
    if isinstance(term, Occupancy):
        return np.arange(term.first, term.first + term.n_locations)
    return np.arange(layout.n_vars)


def renumbered(term: Term, number: Ints) -> Term:
    """A lowered term with other numbers of its variables."""
    if isinstance(term, (Ising, Potts)):
        return type(term).trusted(number[term.edges], term.weights)
    assert isinstance(term, Factor)
    return Factor.trusted(number[term.scopes], term.tables, term.index)
