"""A field over several ranks: what one rank owns, and how it is joined to the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from dataclasses import field as field_of
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from proxfield._version import __version__
from proxfield.core.lowering.lowered import Lowered
from proxfield.core.lowering.merging import compressed_rows
from proxfield.core.solve.curvature import Curvature
from proxfield.core.terms.base import Floats, Ints, Layout, as_indices, offers
from proxfield.distributed.cut import (
    Cut,
    consecutive,
    entries_of,
    forbidden,
    lower_parts,
    refuse_gaussian,
    split,
)
from proxfield.distributed.transport import Transport, agree, fail_together, together
from proxfield.errors import InputError, MissingDependencyError, shown
from proxfield.field import Field


@dataclass
class Routes:
    """Where what ranks exchange belongs: numbers of the border, and of the ghosts.

    Args:
        transport: Connects the ranks.
        n_ghosts: Numbers of all ghosts.
        sends: Numbers of the border (positions in it) that each neighbor wants.
        receives: Where each neighbor's are among those of the ghosts.
    """

    transport: Transport
    n_ghosts: int
    sends: dict[int, Ints | slice] = field_of(default_factory=dict)
    receives: dict[int, slice] = field_of(default_factory=dict)

    def ghosts(self, own: Floats) -> Floats:
        """Exchange numbers of the border for those of the ghosts. Collective."""
        found = self.transport.exchange(
            {r: own[at] for r, at in self.sends.items()},
            {r: at.stop - at.start for r, at in self.receives.items()},
        )
        if len(found) == 1:  # all ghosts are one rank's
            return found.popitem()[1]
        out = np.empty(self.n_ghosts, dtype=own.dtype)
        for r, values in found.items():
            out[self.receives[r]] = values
        return out


@dataclass(frozen=True, eq=False)
class Whole:
    """The whole field, and which of its variables are this rank's.

    Attributes:
        lowered: The lowered field.
        curvature: Its curvature.
        given: Which of the user's variables are this rank's.  # (full.n_vars,)
    """

    lowered: Lowered
    curvature: Curvature
    given: NDArray[np.bool_]

    @cached_property
    def mine(self) -> NDArray[np.bool_]:
        """Which variables of the lowered field are this rank's."""
        return np.asarray(self.given[self.lowered.reduction.free])


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
    whole: Whole | None = None
    """The whole field, where every rank holds it."""
    bounds_log_z: bool = True
    """Whether −F is a bound on log Z."""

    def __post_init__(self) -> None:
        agree(self.transport, __version__, "versions of proxfield")
        self.base = np.array(self.lowered.unary[self.border_entries], dtype=np.float64)
        self.n_vars = int(self.transport.total(self.field.n_vars))
        """Variables of the whole field."""
        self.routes = Routes(self.transport, self.cut.layout.size - self.cut.width)
        """Of marginals, entry by entry."""
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
            self.routes.sends[r] = consecutive(entries_of(small, order[at]))
        fail_together(transport, problem)
        for r, a, b in zip(neighbors.tolist(), first, ends, strict=True):
            at = offsets[[start + a, start + b]] - self.cut.width
            self.routes.receives[r] = slice(int(at[0]), int(at[1]))
        every = np.arange(self.cut.width)
        mine = {r: np.array([float(len(every[at]))]) for r, at in self.routes.sends.items()}
        theirs = transport.exchange(mine, dict.fromkeys(mine, 1))
        for r, there in self.routes.receives.items():
            if int(theirs[r][0]) != there.stop - there.start:
                problem = f"numbers of labels differ between ranks {self.rank} and {r}"
        fail_together(transport, problem)

    def random(
        self, draw: Callable[[np.random.Generator, int], NDArray[np.float64]], *seed: int
    ) -> NDArray[np.float64]:
        """Random numbers for this rank's entries; those of one process, if it held the field.

        Args:
            draw: Draws so many numbers.
            seed: The seed.
        """
        if self.whole is None:
            size = self.lowered.layout.size
            return draw(np.random.default_rng([*seed, self.rank]), size)
        layout = self.whole.lowered.layout
        own = self.whole.mine[layout.owner]
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
        with together(transport):
            refuse_gaussian(field.terms)
            lowered = field.lower()
            if lowered.hard:
                raise forbidden()
            owners = read_owner(field, owner, transport.size)
            part, cut = split(lowered, owners, transport.rank)
        agree(transport, f"{field.n_vars} variables, {lowered.constant!r}", "fields")
        mine = np.flatnonzero(owners == transport.rank)
        own = Field(field.cardinalities[mine])
        seen = field.evidence[mine]
        if (seen >= 0).any():
            own = own.condition({int(v): int(seen[v]) for v in np.flatnonzero(seen >= 0)})
        whole = Whole(lowered, Curvature(lowered, field), owners == transport.rank)
        bound = all(t.bounds_log_z(field.layout) for t in field.terms)
        return cls(transport, own, part, cut, mine, whole, bound)

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
        with together(transport):
            lowered, small = lower_parts(field, cut, border, ghosts or {}, transport)
        bound = all(t.bounds_log_z(field.layout) for t in field.terms)
        return cls(transport, field, lowered, small, bounds_log_z=bound)


def read_owner(field: Field, owner: ArrayLike | str | None, size: int) -> Ints:
    """The rank of each variable, checked."""
    if isinstance(owner, str):
        if owner != "metis":
            raise InputError(f"owner={shown(owner)}, expected ranks, metis or None")
        # so that few edges of the graph of the terms join two ranks
        layout = field.layout
        pairs = [t.neighbors(layout) for t in field.terms if offers(t, "neighbors")]
        edges = np.concatenate([np.zeros((0, 2), dtype=np.int64), *pairs])
        try:
            import pymetis
        except ImportError:
            raise MissingDependencyError(
                "owner='metis' needs pymetis: pip install pymetis"
            ) from None
        if size == 1 or layout.n_vars == 0:
            return np.zeros(layout.n_vars, dtype=np.int64)
        row, column, _ = compressed_rows(
            layout.n_vars, np.unique(np.sort(edges, axis=1), axis=0), []
        )
        graph = {"xadj": row.tolist(), "adjncy": column.tolist()}
        if hasattr(pymetis, "CSRAdjacency"):  # since 2025
            graph = {"adjacency": pymetis.CSRAdjacency(*graph.values())}
        _, parts = pymetis.part_graph(size, vweights=layout.cardinalities.tolist(), **graph)
        return np.asarray(parts, dtype=np.int64)
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
