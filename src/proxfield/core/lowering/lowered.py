"""Lowering: the same field in the fewest and fastest terms.

Unaries and parallel edges are merged; binary tables become one coupling per edge and
one bias per variable; tables w·[x ≠ y] (plus a constant) become Potts weights; equal
tables are stored once; whatever is decided (see `Reduction`) is gone. Lowering keeps
the energy of every labelling that can occur.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy as np

from proxfield.core.lowering.builder import Builder
from proxfield.core.lowering.merging import compressed_rows
from proxfield.core.lowering.reduction import Reduction, Untouched
from proxfield.core.lowering.zeros import possible
from proxfield.core.terms.base import Floats, Ints, Layout, Term, offers
from proxfield.core.terms.factor import Factor
from proxfield.core.terms.pairwise import Ising, Potts
from proxfield.core.terms.unary import Unary

if TYPE_CHECKING:
    from proxfield.core.engines.base import Program


MAX_KEPT = 8
"""Maximum number of programs kept per field."""

ProgramKey = tuple[int, str, str, int | None]
"""Thread, kernels, floating-point type and number of threads of a program."""


class ProgramCache:
    """The programs of one lowered field, made once and used again; not copied or pickled with it.

    One inference asks for the same program several times: for the iterations, for the curvature,
    for rounding, for F in float64. A program has scratch arrays of its own, so each thread has its
    own programs. Large programs live only as long as somebody uses them, small ones as long as the
    field.
    """

    def __init__(self) -> None:
        self.used: WeakValueDictionary[ProgramKey, Program] = WeakValueDictionary()
        self.kept: dict[ProgramKey, Program] = {}
        self.lock = Lock()

    def __reduce__(self) -> tuple[type[ProgramCache], tuple[()]]:
        return ProgramCache, ()

    def get(self, key: ProgramKey) -> Program | None:
        """The program, if there is one."""
        with self.lock:
            return self.used.get(key)

    def add(self, key: ProgramKey, program: Program, keep: bool) -> None:
        """Remember a program."""
        with self.lock:
            self.used[key] = program
            if keep:
                while len(self.kept) >= MAX_KEPT:
                    del self.kept[next(iter(self.kept))]
                self.kept[key] = program


@dataclass(frozen=True)
class Lowered:
    """A field ready to iterate on: E = constant + ⟨unary, q⟩ + the terms."""

    reduction: Reduction
    constant: float
    unary: Floats  # (layout.size,)
    ising: Ising | None = None
    potts: Potts | None = None
    factors: tuple[Factor, ...] = ()
    extras: tuple[Term, ...] = ()
    """Terms that can't be lowered: iterated through their own ``add_gradient``."""
    magnitude: float = 0.0
    """A bound on the size of the energy of any possible labelling."""
    differentiable: dict[Hashable, Any] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """What differentiable inference made of it: energies and programs by device, and curvature."""
    programs: ProgramCache = field(
        default_factory=ProgramCache, init=False, repr=False, compare=False
    )

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
        """Whether it is proved that no labelling has positive probability."""
        return self.constant == np.inf or len(self.reduction.empty) > 0

    @cached_property
    def forbids(self) -> bool:
        """Whether labels are impossible by their unary energy."""
        return bool(self.unary.max(initial=0.0) == np.inf)

    @property
    def hard(self) -> bool:
        """Whether configurations (not only labels) are still forbidden."""
        return any(f.hard for f in self.factors)

    def color(self) -> Ints:
        """A greedy coloring: no two variables of one term get the same color.  # (n_vars,)"""
        from proxfield.core.compiled.graphs import greedy_colors  # imports numba

        none = np.zeros((0, 2), dtype=np.int64)
        pairs = np.concatenate([none, *(t.neighbors(self.layout) for t in self.terms)])
        row, column, _ = compressed_rows(self.layout.n_vars, pairs, [])
        colors: Ints = greedy_colors(row, column)
        return colors

    def energy(self, labels: Ints) -> float:
        """Energy of a labelling of the variables that are left."""
        e = self.constant + float(self.unary[self.layout.offsets[:-1] + labels].sum())
        return e + sum(t.labelling_energy(self.layout, labels) for t in self.terms)

    def scaled(self, exponent: int) -> Lowered:
        """All energies times 2**exponent, which is exact; for a field without ``extras``."""

        def times(values: Floats) -> Floats:
            return np.asarray(np.ldexp(values, exponent))

        ising, potts = self.ising, self.potts
        return replace(
            self,
            constant=float(np.ldexp(self.constant, exponent)),
            unary=times(self.unary),
            ising=None if ising is None else Ising(ising.edges, times(ising.weights)),
            potts=None if potts is None else Potts(potts.edges, times(potts.weights)),
            factors=tuple(Factor(f.scopes, times(f.tables), f.index) for f in self.factors),
            magnitude=float(np.ldexp(self.magnitude, exponent)),
        )

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
    Terms of weight 0 are omitted.
    """
    terms = [t for t in terms if not t.omitted]
    extras = [t for t in terms if not offers(t, "lower")]
    hard = any(isinstance(t, Factor) and t.hard for t in terms)
    observed = bool((evidence >= 0).any())
    if extras and not hard and not observed:
        return lower_untouched(layout, terms, plain)
    if not (extras or hard or observed) and stays_whole(layout, terms):
        lowered = lower_untouched(layout, terms, plain, np.dtype(np.float64))
        if not lowered.infeasible:
            return lowered
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


def stays_whole(layout: Layout, terms: list[Term]) -> bool:
    """Whether no variable can be removed, judging by numbers of labels and kinds of terms."""
    few = layout.cardinalities.min(initial=2) if layout.common is None else layout.common
    several = bool(few > 1)
    # what a user's own term takes out isn't known before it is asked
    return several and all(isinstance(t, (Factor, Unary)) or not offers(t, "prune") for t in terms)


def lower_untouched(
    layout: Layout, terms: list[Term], plain: bool, dtype: np.dtype[np.floating] | None = None
) -> Lowered:
    """Lower a field of which nothing is taken out, lean enough for millions of variables.

    Args:
        layout: The variables.
        terms: The terms.
        plain: As in `lower`.
        dtype: The type of the unary energies; by default that of the only unary term.
    """
    builder = Builder(Untouched(layout), plain, unary_dtype=dtype)
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
