"""Lowering: the same field in the fewest and fastest terms.

Unaries and parallel edges are merged; binary tables become one coupling per edge and
one bias per variable; tables w·[x ≠ y] (plus a constant) become Potts weights; equal
tables are stored once; whatever is decided (see `Reduction`) is gone. Lowering keeps
the energy of every labelling that can occur.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from proxfield.core.lowering.builder import Builder
from proxfield.core.lowering.merging import compressed_rows, group_positions
from proxfield.core.lowering.reduction import Reduction, Untouched, possible
from proxfield.core.terms.base import Floats, Ints, Layout, Term, offers
from proxfield.core.terms.factor import Factor
from proxfield.core.terms.grid import GridPairwise
from proxfield.core.terms.pairwise import Ising, Potts
from proxfield.core.terms.unary import Constant, Unary

if TYPE_CHECKING:
    from proxfield.core.engines.base import Program


MAX_EXPONENT = 400
"""Of 2, of the largest interaction: beyond, all are scaled before squares are taken."""
SMALLEST = 1 << 18
"""Bytes that even the smallest field takes."""
MAX_KEPT = 8
"""Maximum number of programs kept per field."""


class ProgramCache:
    """The programs of one lowered field, made once and used again; not copied or pickled with it.

    One inference asks for the same program several times: for the iterations, for the curvature,
    for rounding, for F in float64. A program has scratch arrays of its own, so each thread has its
    own programs. Large programs live only as long as somebody uses them, small ones as long as the
    field.
    """

    def __init__(self) -> None:
        self.used: WeakValueDictionary[Hashable, Program] = WeakValueDictionary()
        self.kept: dict[Hashable, Program] = {}
        self.lock = Lock()

    def __reduce__(self) -> tuple[type[ProgramCache], tuple[()]]:
        return ProgramCache, ()

    def add(self, key: Hashable, program: Program, keep: bool) -> None:
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

    def __str__(self) -> str:
        if self.infeasible:
            return "nothing: no labelling is possible"
        edges = [t for t in (self.ising, self.potts) if t is not None]
        parts = [f"{self.layout.n_vars} variables"]
        parts += [f"{len(t.edges)} {t.name} edges" for t in edges]
        parts += [f"{len(t.scopes)} tables of {t.degree} variables" for t in self.factors]
        parts += [f"{t.name} as it is" for t in self.extras]
        return ", ".join(parts)

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

        colors: Ints = greedy_colors(*self.neighbor_rows())
        return colors

    def neighbor_rows(self) -> tuple[Ints, NDArray[np.int32]]:
        """Who shares a term with whom, in compressed rows.  # (n + 1,), (ends,)"""
        none = np.zeros((0, 2), dtype=np.int64)
        pairs = np.concatenate([none, *(t.neighbors(self.layout) for t in self.terms)])
        row, column, _ = compressed_rows(self.layout.n_vars, pairs, [])
        return row, column

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
            else:
                builder.add_terms([term])
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
    if not hard and not (evidence >= 0).any():
        if extras:
            return lower_untouched(layout, terms, plain)
        few = layout.cardinalities.min(initial=2) if layout.common is None else layout.common
        # what a user's own term takes out isn't known before it is asked
        tame = all(isinstance(t, (Factor, Unary)) or not offers(t, "prune") for t in terms)
        if few > 1 and tame:
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
    builder.add_terms(terms)
    if extras and not keep.all():
        gone = np.flatnonzero(~keep & (reduction.new_entry >= 0))
        builder.add_unary(gone, np.full(len(gone), np.inf))
    return builder.finish()


def lower_untouched(
    layout: Layout, terms: list[Term], plain: bool, dtype: np.dtype[np.floating] | None = None
) -> Lowered:
    """Lower a field of which nothing is taken out, lean enough for millions of variables.

    dtype: The type of the unary energies; by default that of the only unary term.
    """
    builder = Builder(Untouched(layout), plain, unary_dtype=dtype)
    builder.add_terms(terms)
    lowered = builder.finish()
    if lowered.forbids:
        best = np.minimum.reduceat(lowered.unary, layout.offsets[:-1])
        if (best == np.inf).any():
            return replace(lowered, constant=np.inf)
    return lowered


# ---- how strongly variables interact ----


def interaction_scale(lowered: Lowered) -> float:
    """A typical critical temperature: the root of the summed squares of a variable's interactions.

    It is averaged over the variables that interact. The size of an interaction is the root mean
    square of its table without the mean of each row and column; that of J·s·t is |J|. Where nothing
    interacts, it is 0.
    """
    weighted = [t.weights for t in (lowered.ising, lowered.potts) if t is not None]
    weighted += [np.where(np.isfinite(f.tables), f.tables, 0.0) for f in lowered.factors]
    largest = max((float(np.abs(a).max(initial=0.0)) for a in weighted), default=0.0)
    exponent = int(np.frexp(largest)[1])
    if abs(exponent) > MAX_EXPONENT:  # squares would overflow, or vanish
        return float(np.ldexp(interaction_scale(lowered.scaled(-exponent)), exponent))
    n, layout = lowered.layout.n_vars, lowered.layout
    total = np.zeros(n)
    squares: list[tuple[Ints, Floats]] = []
    if lowered.ising is not None:
        squares.append((lowered.ising.edges, lowered.ising.weights**2))
    if lowered.potts is not None:
        c = layout.cardinalities[lowered.potts.edges].max(axis=1)
        squares.append((lowered.potts.edges, lowered.potts.weights**2 * (c - 1) / c**2))
    for factor in lowered.factors:
        tables, axes = factor.tables, range(1, factor.tables.ndim)
        rest = tables - tables.mean(axis=tuple(axes), keepdims=True)
        effects = [rest.mean(axis=tuple(a for a in axes if a != b), keepdims=True) for b in axes]
        square = ((rest - sum(effects)) ** 2).mean(axis=tuple(axes))
        squares.append((factor.scopes, square[factor.index]))
    for scopes, square in squares:
        for column in scopes.T:
            total += np.bincount(column, square, minlength=n)
    strength = np.sqrt(total)
    return float(strength[strength > 0].mean()) if strength.any() else 0.0


def unary_scale(lowered: Lowered) -> float:
    """How far apart the unary energies of a variable are, averaged over variables."""
    layout, unary = lowered.layout, lowered.unary
    if layout.n_vars == 0:
        return 0.0
    start, possible = layout.offsets[:-1], np.isfinite(unary)
    high = np.maximum.reduceat(np.where(possible, unary, -np.inf), start)
    low = np.minimum.reduceat(np.where(possible, unary, np.inf), start)
    return float((high - low).mean())


# ---- how many bytes inference takes beside the field, from above ----


def needed_memory(layout: Layout, terms: Sequence[Term], evidence: Ints, chains: int) -> int:
    """Bytes below which inference is refused before it begins.

    The upper bound for fields of tables. Dense fields have many entries, and most of what the
    bound counts (float64, the second-order test) a few iterations on an image never take, so that
    they are refused only if even the least doesn't fit.
    """
    present = [t for t in terms if not t.omitted]
    if all(offers(t, "lower") for t in present):
        return estimate_memory(layout, terms, evidence, chains)
    return SMALLEST + 16 * layout.size + sum(t.workspace(layout) for t in present)


def estimate_memory(layout: Layout, terms: Sequence[Term], evidence: Ints, chains: int) -> int:
    """An upper bound on the bytes that inference takes in addition to the field; see `Field`."""
    terms = [t for t in terms if not t.omitted]
    spins = layout.common == 2 and all(
        isinstance(t, (Constant, Unary, Ising, Potts, GridPairwise))
        or (isinstance(t, Factor) and t.degree <= 2 and not t.hard)
        for t in terms
    )
    hard = any(isinstance(t, Factor) and t.hard for t in terms)
    extras = not all(offers(t, "lower") for t in terms)
    # a state and its copy while kernels warm up, marginals, and the gradients that terms add
    per_entry = (90 if spins else 200) + (50 if extras else 0)
    search = 0 if extras else 40 * chains  # start, marginals, natural parameters and result of each
    if any(t.degree == 2 and not offers(t, "spectrum") for t in terms):  # 25 vectors of Lanczos
        search = max(search, 100 if spins else 200)  # where spins stand for two entries, half
    per_entry += max(search, 200)  # or vectors of the test that tells minima from saddles
    if hard or bool((evidence >= 0).any()):
        per_entry += 60  # numbers old and new, where variables or labels are taken out
    return SMALLEST + per_entry * layout.size + sum(t.workspace(layout) for t in terms)


# ---- induced forests, for moves that sample many variables at once ----

FORESTS = 8
"""Forests of a field, used in turn."""


class FieldGraph(NamedTuple):
    """Who interacts with whom."""

    row: Ints  # starts of each variable's neighbors by pairwise energies  # (n + 1,)
    column: NDArray[np.int32]  # each neighbor once
    member_row: Ints  # starts of each variable's factors over three or more variables  # (n + 1,)
    member: Ints
    n_factors: int


class Forests(NamedTuple):
    """Forests one after another."""

    start: Ints  # first entry of each  # (forests + 1,)
    node: NDArray[np.int32]  # variables, children before their parents
    above: NDArray[np.int32]  # the parent; −1 at roots
    edge: Ints  # position of the parent in ``FieldGraph.column``
    rest: NDArray[np.int32]  # usable variables that are in no forest


def graph_of(lowered: Lowered) -> FieldGraph:
    """The graph of a field whose terms are all lowered to tables."""
    n = lowered.layout.n_vars
    pairs = [t.edges for t in (lowered.ising, lowered.potts) if t is not None]
    pairs += [f.scopes for f in lowered.factors if f.degree == 2]
    if len(pairs) > 1:  # two kinds of energies may have an edge in common
        both = np.sort(np.concatenate(pairs), axis=1)
        key = np.unique(both[:, 0] * n + both[:, 1])
        pairs = [np.stack([key // n, key % n], axis=1)]
    row, column, _ = compressed_rows(n, np.concatenate([np.zeros((0, 2), np.int64), *pairs]), [])
    larger = [f.scopes for f in lowered.factors if f.degree > 2]
    arity = np.concatenate([np.zeros(0, np.int64), *(np.full(len(s), s.shape[1]) for s in larger)])
    slots = np.concatenate([np.zeros(0, np.int64), *(s.ravel() for s in larger)])
    member_row, order = group_positions(slots, n)
    member = np.repeat(np.arange(len(arity)), arity)[order]
    return FieldGraph(row, column, member_row, member.astype(np.int64), len(arity))


def make_forests(
    graph: FieldGraph, usable: NDArray[np.bool_], count: int = FORESTS, seed: int = 0
) -> Forests:
    """Induced forests; a variable that one doesn't hold comes first in the next.

    Conditioned on everything else, the variables of a forest form trees: they can be sampled
    exactly, all at once. On sparse graphs every usable variable is in some forest; those of a
    dense graph (whose forests are small) that are in none are in ``rest``.
    """
    from proxfield.core.compiled.graphs import induced_forest

    n = len(usable)
    covered = np.where(usable, 0, 2).astype(np.int8)
    taken = np.zeros(graph.n_factors, dtype=np.int8)
    room = np.empty((3, n), dtype=np.int64)
    arrays = tuple(np.empty(n, dtype=kind) for kind in (np.int32, np.int32, np.int64))
    parts = [tuple(array[:0].copy() for array in arrays)]
    for k in range(count):
        number = np.uint64(seed * count + k)
        kept = induced_forest(*graph[:4], taken, covered, number, room, *arrays)
        parts.append(tuple(array[:kept].copy() for array in arrays))
    start = np.cumsum([len(node) for node, _, _ in parts])
    node, above, edge = (np.concatenate(some) for some in zip(*parts, strict=True))
    return Forests(start, node, above, edge, np.flatnonzero(covered == 0).astype(np.int32))
