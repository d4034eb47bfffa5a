"""A field over several ranks: what one rank owns, and how it is joined to the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from dataclasses import field as field_of
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from proxfield._version import __version__
from proxfield.core.lowering.lowered import Lowered, lower_untouched
from proxfield.core.terms.base import Ints, Layout, Term, as_indices, missing, offers
from proxfield.core.terms.factor import Factor
from proxfield.distributed.cut import Cut, refuse_gaussian
from proxfield.distributed.splitting import split
from proxfield.distributed.transport import Transport, agree, fail_together
from proxfield.errors import InputError, ProxfieldError, UnsupportedError, shown
from proxfield.field import Field

if TYPE_CHECKING:
    from proxfield.core.solve.curvature import Curvature


@dataclass(eq=False)
class Partition:
    """One rank's part of a field. Make it with `from_field`, `from_parts` or `grid_partition`.

    Attributes:
        transport: Connects the ranks.
        field: A field over the variables that this rank owns, for results. It holds no terms
            across the cut.
        lowered: What this rank iterates on: its variables, and terms inside.
        cut: The terms across.
        variables: The whole field's numbers of the variables; None where the rank was built from
            its own data.
    """

    transport: Transport
    field: Field
    lowered: Lowered
    cut: Cut
    variables: Ints | None = None
    whole: Lowered | None = None
    """The lowered whole field, where that was given."""
    curvature_of_whole: Curvature | None = None
    owner: Ints | None = None
    """The rank of each of the user's variables, where the whole field was given."""
    bounds_log_z: bool = True
    """Whether −F is a bound on log Z."""
    sends: dict[int, Ints | slice] = field_of(default_factory=dict)
    """Entries of the border (positions in it) that each neighbor wants."""
    receives: dict[int, slice] = field_of(default_factory=dict)
    """Where each neighbor's marginals are among those of the ghosts."""

    def __post_init__(self) -> None:
        agree(self.transport, __version__, "versions of proxfield")
        self.base = np.array(self.lowered.unary[self.border_entries], dtype=np.float64)
        self.n_vars = int(self.transport.reduce(np.array([float(self.field.n_vars)]))[0])
        """Variables of the whole field."""
        self._join()

    def reset(self) -> None:
        """Take the terms across the cut out of the border's unary energies again."""
        self.lowered.unary[self.border_entries] = self.base

    @property
    def rank(self) -> int:
        """The number of this rank."""
        return self.transport.rank

    @property
    def size(self) -> int:
        """How many ranks share the field."""
        return self.transport.size

    @cached_property
    def border_entries(self) -> Ints:
        """Entries of the border in this rank's flat arrays.  # (cut.width,)"""
        return entries_of(self.lowered.layout, self.cut.border)

    def __repr__(self) -> str:
        ghosts = len(self.cut.owners)
        return (
            f"Partition(rank {self.rank} of {self.size}, {self.field.n_vars} variables, "
            f"{len(self.cut.border)} at the border, {ghosts} ghosts)"
        )

    def _join(self) -> None:
        """Tell each neighbor which of its variables are ghosts here."""
        cut, transport = self.cut, self.transport
        neighbors, first = np.unique(cut.owners, return_index=True)
        ends = np.append(first, len(cut.owners))[1:]
        meets = np.zeros((self.size, self.size))
        meets[self.rank, neighbors] = np.diff(np.append(first, len(cut.owners)))
        meets = transport.reduce(meets.ravel()).reshape(self.size, self.size)
        problem = ""
        if ((meets > 0) != (meets > 0).T).any():
            a, b = np.argwhere((meets > 0) != (meets > 0).T)[0].tolist()
            problem = f"ranks {a} and {b} don't agree that they share a term"
        fail_together(transport, problem)
        wanted = {
            int(r): cut.numbers[a:b].astype(np.float64)
            for r, a, b in zip(neighbors, first, ends, strict=True)
        }
        asked = transport.exchange(wanted, {r: int(meets[r, self.rank]) for r in wanted})
        offsets, start = cut.layout.offsets, len(cut.border)
        order = np.argsort(cut.border)
        ordered = cut.border[order]
        small = Layout(cut.layout.cardinalities[:start])
        for r, numbers in asked.items():
            found = numbers.astype(np.int64)
            at = np.minimum(np.searchsorted(ordered, found), max(0, start - 1))
            if start == 0 or (ordered[at] != found).any():
                problem = f"rank {r} wants variables that share no term with it here"
                continue
            self.sends[r] = consecutive(entries_of(small, order[at]))
        fail_together(transport, problem)
        for r, a, b in zip(neighbors.tolist(), first, ends, strict=True):
            at = offsets[[start + a, start + b]] - self.cut.width
            self.receives[r] = slice(int(at[0]), int(at[1]))
        self.widths = {r: at.stop - at.start for r, at in self.receives.items()}
        every = np.arange(self.cut.width)
        mine = {r: np.array([float(len(every[self.sends[r]]))]) for r in self.receives}
        theirs = transport.exchange(mine, dict.fromkeys(mine, 1))
        for r, width in self.widths.items():
            if int(theirs[r][0]) != width:
                problem = f"numbers of labels differ between ranks {self.rank} and {r}"
        fail_together(transport, problem)

    def ghost_values(self, border: NDArray[np.float64]) -> NDArray[np.float64]:
        """Exchange numbers of the border's entries for those of the ghosts. Collective."""
        found = self.transport.exchange(
            {r: border[at] for r, at in self.sends.items()}, self.widths
        )
        if len(found) == 1:  # all ghosts are one rank's
            return np.asarray(found.popitem()[1], dtype=np.float64)
        out = np.empty(self.cut.layout.size - self.cut.width)
        for r, values in found.items():
            out[self.receives[r]] = values
        return out

    def random(
        self, draw: Callable[[np.random.Generator, int], NDArray[np.float64]], *seed: int
    ) -> NDArray[np.float64]:
        """Random numbers for this rank's entries; those of one process, if it held the field.

        Args:
            draw: Draws so many numbers.
            seed: The seed.
        """
        if self.whole is None or self.owner is None:
            size = self.lowered.layout.size
            return draw(np.random.default_rng([*seed, self.rank]), size)
        layout = self.whole.layout
        own = self.owner[self.whole.reduction.free][layout.owner] == self.rank
        return np.asarray(draw(np.random.default_rng(seed), layout.size)[own])

    # ---- ways to make one ----

    @classmethod
    def from_field(
        cls, transport: Transport, field: Field, owner: ArrayLike | str | None = None
    ) -> Partition:
        """Partition a field that every rank holds as a whole.

        Args:
            transport: Connects the ranks.
            field: The field; the same on every rank.
            owner: The rank of each variable; "metis" for parts with few edges between them (needs
                pymetis); by default consecutive variables, equally many entries on each rank.
                # (n_vars,)

        Example:
            >>> import proxfield as pf
            >>> from proxfield.distributed import Alone
            >>> field = pf.Field(4, 2).add(pf.Potts([[0, 1], [1, 2], [2, 3]], 1.0))
            >>> Partition.from_field(Alone(), field)
            Partition(rank 0 of 1, 4 variables, 0 at the border, 0 ghosts)
        """
        from proxfield.core.solve.curvature import Curvature

        problem = ""
        try:
            refuse_gaussian(field.terms)
            lowered = field.lower()
            if lowered.hard:
                raise forbidden()
            owners = read_owner(field, owner, transport.size)
            part, cut = split(lowered, owners, transport.rank)
        except ProxfieldError as error:
            problem, raised = str(error), error
        if problem:
            if transport.size > 1:
                tell(transport, problem)
            raise raised
        tell(transport, "")
        agree(transport, f"{field.n_vars} variables, {lowered.constant!r}", "fields")
        mine = np.flatnonzero(owners == transport.rank)
        own = Field(field.cardinalities[mine])
        seen = field.evidence[mine]
        if (seen >= 0).any():
            own = own.condition({int(v): int(seen[v]) for v in np.flatnonzero(seen >= 0)})
        return cls(
            transport, own, part, cut, mine, lowered, Curvature(lowered, field), owners,
            all(t.bounds_log_z(field.layout) for t in field.terms),
        )  # fmt: skip

    @classmethod
    def from_parts(
        cls,
        transport: Transport,
        field: Field,
        cut: Field | None = None,
        border: ArrayLike = (),
        ghosts: Mapping[int, ArrayLike] | None = None,
    ) -> Partition:
        """A partition of which each rank knows only its own part.

        Every term across the cut is given to all ranks that own one of its variables.

        Args:
            transport: Connects the ranks.
            field: This rank's variables, and the terms between them. Observed variables stay, with
                impossible other labels.
            cut: The terms across, over the border's variables followed by the ghosts.
            border: This rank's variables in ``cut``.  # (b,)
            ghosts: The other variables of ``cut``: their numbers on the rank that owns them, by
                rank; ranks in ascending order.

        Example:
            >>> import proxfield as pf
            >>> from proxfield.distributed import infer, run_threads
            >>> def work(transport):  # two variables, one on each rank
            ...     other = 1 - transport.rank
            ...     own = pf.Field([2]).add(pf.Unary([[0.0, 1.0 - transport.rank]]))
            ...     cut = pf.Field([2, 2]).add(pf.Potts([[0, 1]], 2.0))
            ...     part = Partition.from_parts(transport, own, cut, [0], {other: [0]})
            ...     return infer(part, "fixed").labels.tolist()
            >>> run_threads(2, work)
            [[0], [0]]
        """
        problem = ""
        try:
            lowered, small = lower_parts(field, cut, border, ghosts or {}, transport)
        except ProxfieldError as error:
            problem, raised = str(error), error
        if problem:
            tell(transport, problem)
            raise raised
        tell(transport, "")
        bound = all(t.bounds_log_z(field.layout) for t in field.terms)
        return cls(transport, field, lowered, small, bounds_log_z=bound)


def tell(transport: Transport, problem: str) -> None:
    """Let other ranks fail too where this one can't be built; its own error is raised later."""
    try:
        fail_together(transport, problem)
    except ProxfieldError:
        if not problem:
            raise


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


def read_owner(field: Field, owner: ArrayLike | str | None, size: int) -> Ints:
    """The rank of each variable, checked."""
    if isinstance(owner, str):
        if owner != "metis":
            raise InputError(f"owner={shown(owner)}, expected ranks, metis or None")
        from proxfield.distributed.metis import metis_owner

        return metis_owner(field, size)
    if owner is None:
        ends = np.cumsum(field.cardinalities)
        total = max(1, int(ends[-1]) if len(ends) else 1)
        return np.asarray((ends - 1) * size // total, dtype=np.int64)
    out = as_indices(owner, "owner", 1)
    if len(out) != field.n_vars:
        raise InputError(f"owner has {len(out)} ranks, expected one for {field.n_vars} variables")
    if len(out) and (out.min() < 0 or out.max() >= size):
        raise InputError(f"owner holds ranks {out.min()} to {out.max()}, expected 0 to {size - 1}")
    return out


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
