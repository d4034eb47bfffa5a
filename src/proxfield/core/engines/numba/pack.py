"""Lowered fields as the flat arrays that compiled kernels read, and terms that aren't lowered."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Protocol, runtime_checkable

import numpy as np

from proxfield.core.common.arrays import Doubles, Floats, Ints
from proxfield.core.engines.numba.binary import CLAMP, BinaryPack
from proxfield.core.engines.numba.general import GeneralPack, gradient_of
from proxfield.core.engines.terms import implementation
from proxfield.core.lowering.lowered import Lowered
from proxfield.core.lowering.merging import compressed_rows, group_positions
from proxfield.core.terms.base import Layout, Term, Visits
from proxfield.core.terms.pairwise import BandedIsing

MAX_DIAGONALS = 64
"""Distinct distances up to which a field is packed as diagonals."""
MIN_FILL = 0.2
"""Diagonals pay while at least this share of their entries holds a coupling."""
BLOCK_ENTRIES = 2048
"""Entries of a block of variables in the general kernels."""
CHUNK = 1 << 18
"""Edges or variables packed at a time where whole temporary arrays would cost memory."""


def is_binary(lowered: Lowered) -> bool:
    """Whether the field can run on the compact binary kernels."""
    plain = not (lowered.potts or lowered.factors)
    return plain and (lowered.layout.n_vars == 0 or lowered.layout.common == 2)


def grid_distances(edges: Ints, n: int) -> Ints:
    """The distances j − i of edges if they are so few that diagonals pay, else none.  # (k,)"""
    seen = np.zeros(n, dtype=bool)
    for start in range(0, len(edges), CHUNK):
        some = edges[start : start + CHUNK]
        distance = some[:, 1] - some[:, 0]  # positive: lowering sorts the ends
        new = distance[~seen[distance]]
        if len(new):
            seen[new] = True
            if np.count_nonzero(seen) > MAX_DIAGONALS:
                return np.zeros(0, dtype=np.int64)
    found = np.flatnonzero(seen)
    return found if len(edges) >= MIN_FILL * n * len(found) else found[:0]


def pack_binary(lowered: Lowered, dtype: np.dtype[np.floating], *, rows_only: bool) -> BinaryPack:
    """Pack a binary field; ``rows_only`` keeps all edges in rows, as sweeps need them.

    Both forms of one field have the same padding, so they can share a state.
    """
    n = lowered.layout.n_vars
    unary = lowered.unary.reshape(n, 2)
    ising, edges = lowered.ising, np.zeros((0, 2), dtype=np.int64)
    weights: Floats = np.zeros(0)
    bands = ising if isinstance(ising, BandedIsing) else None
    if ising is not None and (bands is None or rows_only):
        edges, weights = ising.edges, ising.weights
    distance = grid_distances(edges, n) if bands is None else bands.distances
    pad = int(distance.max(initial=0))
    distance = distance[:0] if rows_only else distance
    if bands is not None and not rows_only:  # packed already
        diagonal = bands.padded.astype(dtype, copy=False)
    else:
        diagonal = np.zeros((len(distance), n + 2 * pad), dtype=dtype)
    if len(distance):
        number = np.zeros(n, dtype=np.int64)  # of the diagonal at each distance
        number[distance] = np.arange(len(distance))
        for start in range(0, len(edges), CHUNK):
            i, j = edges[start : start + CHUNK].T
            diagonal[number[j - i], pad + i] = 4.0 * weights[start : start + CHUNK]
        edges, weights = edges[:0], weights[:0]
    row, column, (weight,) = compressed_rows(n, edges, [np.tile((4.0 * weights).astype(dtype), 2)])
    bias = np.zeros(n, dtype=dtype)
    clamped: list[Ints] = [np.zeros(0, dtype=np.int64)]
    for start in range(0, n, CHUNK):
        some = unary[start : start + CHUNK]
        if np.isinf(some.max()):
            free = np.asarray(np.isfinite(some).all(axis=1))
            clamped.append(start + np.flatnonzero(~free))
            some = np.where(free[:, None], some, 0.0)
        bias[start : start + CHUNK] = some[:, 1] - some[:, 0]
    held = np.concatenate(clamped)
    clamp = np.where(np.isinf(unary[held, 1]), CLAMP, -CLAMP).astype(dtype)
    return BinaryPack(bias, distance, diagonal, pad, row, column, weight, held, clamp)


def binary_constant(lowered: Lowered) -> float:
    """The energy at uniform marginals, which the compact form leaves out.

    A variable with an impossible label counts with the energy of the other one.
    """
    unary = lowered.unary.reshape(-1, 2)
    if not lowered.forbids:
        return lowered.constant + float(0.5 * unary.sum(dtype=np.float64))
    free = np.isfinite(unary).all(axis=1)
    return lowered.constant + float(0.5 * unary[free].sum() + unary[~free].min(axis=1).sum())


def pack_general(lowered: Lowered, dtype: np.dtype[np.floating]) -> tuple[GeneralPack, float]:
    """Pack any field; also returns the constant that goes with it."""
    layout = lowered.layout
    n, offset = layout.n_vars, layout.offsets
    constant = lowered.constant
    ends: list[Ints] = []
    agree: list[Floats] = []
    if lowered.potts is not None:  # w·[x ≠ y] = w − w·[x = y]
        constant += float(lowered.potts.weights.sum())
        ends.append(lowered.potts.edges)
        agree.append(-lowered.potts.weights)
    if lowered.ising is not None:  # J·s·t = 2J·[s = t] − J
        constant -= float(lowered.ising.weights.sum())
        ends.append(lowered.ising.edges)
        agree.append(2.0 * lowered.ising.weights)
    none, no_pairs = np.zeros(0, dtype=np.int64), np.zeros((0, 2), dtype=np.int64)
    w = np.concatenate([np.zeros(0), *agree]).astype(dtype)
    agree_row, agree_column, (agree_weight,) = compressed_rows(
        n, np.concatenate([no_pairs, *ends]), [np.tile(w, 2)]
    )
    pairs = [f for f in lowered.factors if f.degree == 2]
    larger = [f for f in lowered.factors if f.degree > 2]
    tables: list[Floats] = []
    used = 0
    starts: list[Ints] = []
    for factor in (*pairs, *larger):
        starts.append(used + factor.index * int(np.prod(factor.shape)))
        tables.append(factor.tables.ravel())
        used += factor.tables.size
    start = np.concatenate([none, *starts[: len(pairs)]])
    scopes = np.concatenate([no_pairs, *(f.scopes for f in pairs)])
    table_row, table_column, (table_start,) = compressed_rows(
        n, scopes, [np.concatenate([start, -1 - start])]
    )
    arity = np.concatenate(
        [np.zeros(0, dtype=np.int64), *(np.full(len(f.scopes), f.degree) for f in larger)]
    )
    slots = np.concatenate([none, *(f.scopes.ravel() for f in larger)])
    lengths = layout.cardinalities[slots] if len(slots) else slots
    slot_row, by_variable = group_positions(slots, n)
    flat = tables[0] if len(tables) == 1 else np.concatenate([np.zeros(0), *tables], dtype=dtype)
    bounds = np.searchsorted(offset, np.arange(0, layout.size, BLOCK_ENTRIES))
    return (
        GeneralPack(
            offset=offset,
            unary=lowered.unary.astype(dtype, copy=False),
            block=np.unique(np.concatenate([bounds, [n]])).astype(np.int64),
            agree_row=agree_row,
            agree_column=agree_column,
            agree_weight=agree_weight,
            table_row=table_row,
            table_column=table_column,
            table_start=table_start,
            table=flat.astype(dtype, copy=False),
            factor_slot=np.concatenate([[0], np.cumsum(arity)]).astype(np.int64),
            slot_variable=slots,
            slot_message=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
            factor_start=np.concatenate([none, *starts[len(pairs) :]]),
            slot_row=slot_row,
            slot_list=by_variable.astype(np.int64),
            slot_factor=np.repeat(np.arange(len(arity)), arity),
            scratch=max([1, *(int(np.prod(f.shape)) // min(f.shape) for f in larger)]),
            widest=int(layout.cardinalities.max(initial=1)),
            hard=lowered.hard,
        ),
        constant,
    )


# ---- terms with compiled code of their own, for those that can't be lowered ----


class CpuTerm(Protocol):
    """A term on the CPU, made from (term, layout, dtype); dtype is "float32" or "float64"."""

    def add_gradient(self, q: Floats, out: Floats) -> float:
        """Add dE/dq at ``q`` to ``out``.

        Args:
            q: Marginals, in the program's type.  # (size,)
            out: Changed in place, of the same type.  # (size,)

        Returns:
            The term's energy.
        """


@runtime_checkable
class BinaryCpuTerm(Protocol):
    """A term over binary variables alone, which needs one number of each."""

    def add_binary_gradient(self, log_first: Doubles, out: Floats) -> float:
        """Add dE/dq_i(1) − dE/dq_i(0) to ``out``.

        Args:
            log_first: log q_i(0) of each variable, at least log 1e-30.  # (n_vars,)
            out: Changed in place, in the program's type.  # (n_vars,)

        Returns:
            The term's energy.
        """


class Plain:
    """A term without an implementation of its own, computed by its own methods in numpy."""

    def __init__(self, term: Term, layout: Layout) -> None:
        self.term, self.layout = term, layout

    def add_gradient(self, q: Floats, out: Floats) -> float:
        return self.term.evaluate(self.layout, q, out)


def add_gradients(terms: Iterable[CpuTerm], q: Doubles, out: Floats) -> float:
    """Add the gradients of several terms to ``out``; return their energy."""
    total = 0.0
    for term in terms:
        exact = isinstance(term, Plain)  # numpy computes in float64, whatever the program's type
        total += term.add_gradient(q if exact else q.astype(out.dtype, copy=False), out)
    return total


def on_cpu(term: Term, layout: Layout, dtype: np.dtype[np.floating]) -> CpuTerm:
    """A term's own CPU implementation; `Plain` if it has none.

    Args:
        term: The term.
        layout: Layout of the field.
        dtype: Type of marginals and gradients.

    Example:
        >>> import proxfield as pf
        >>> made = on_cpu(pf.Consistency([0, 0]), Layout(np.array([2, 2])), np.dtype("float64"))
        >>> type(made).__name__
        'Plain'
    """
    maker = implementation(term, "cpu")
    if maker is None or getattr(maker, "fused", False):  # only a whole dense field runs fused
        return Plain(term, layout)
    made: CpuTerm = maker(term, layout, dtype.name)
    return made


class VisitingSweeps:
    """Coordinate descent through each term's `Term.visits`; tables are compiled as ever.

    Args:
        lowered: The field.
        own: The CPU implementation of each term that isn't lowered. One with a method
            ``visits(q)`` is asked instead of the term.
    """

    def __init__(self, lowered: Lowered, own: Sequence[CpuTerm]) -> None:
        self.lowered, self.own = lowered, own
        self.pack, _ = pack_general(replace(lowered, extras=()), np.dtype(np.float64))
        self.scratch = np.empty(self.pack.scratch)
        self.room = np.empty(2 * self.pack.widest)

    def sweep(self, q: Doubles, order: Ints, inverse_temperature: float) -> None:
        """Give one variable after another the marginals that minimize F.  # q: (size,), changed"""
        layout, visits = self.lowered.layout, []
        for term, own in zip(self.lowered.extras, self.own, strict=True):
            compiled = getattr(own, "visits", None)
            found: Visits = term.visits(layout, q) if compiled is None else compiled(q)
            visits.append(found)
        for i in order.tolist():
            first, end = layout.offsets[i], layout.offsets[i + 1]
            gradient_of(self.pack, q, i, self.room, self.scratch)
            g = self.room[: end - first].copy()
            for visit in visits:
                g += visit.gradient(i)
            low = g.min()
            if low == np.inf:
                continue
            e = np.exp(inverse_temperature * (low - g))
            q[first:end] = e / e.sum()
            for visit in visits:
                visit.move(i, q[first:end])
