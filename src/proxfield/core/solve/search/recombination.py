"""New states from parts of known ones (partition crossover).

Two local minima of F usually differ in several separate places. Where the variables at which they
differ fall into connected components of the field's graph, F of "the first, with one component
taken from the second" can be computed for all components at once, and the changes add up:
components that no term connects are independent of each other. Hence the best combination of two
minima, of 2^components possible ones, costs as much as an evaluation of F. A hundred mediocre
minima of a grid contain, in parts, one that no single chain finds.

Components that raise F by little are as useful: they are the alternatives between which a mixture
of modes should choose.
"""

from __future__ import annotations

import string
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from proxfield.core.lowering.components import Components
from proxfield.core.lowering.lowered import Lowered
from proxfield.core.terms.base import Floats, Ints, Layout
from proxfield.core.terms.factor import Factor
from proxfield.core.terms.pairwise import Ising, Potts

DIFFERENCE = 0.2
"""Marginals that differ by more than this count as different."""
MAX_LOOKUP = 1 << 22
"""Patches times variables up to which there is a table of both."""
MIN_GAIN = 1e-6
"""Fall of F below which a component isn't worth taking."""

PairTerm = Ising | Potts


@dataclass(frozen=True)
class Recombination:
    """Parts of states of one lowered field, all of whose terms are tables.

    Example:
        >>> import proxfield as pf
        >>> field = pf.Field(6, 2).add(pf.Potts([[0, 1], [2, 3], [4, 5]], 2.0))
        >>> lowered = field.add(pf.Unary([[0, 1]] * 2 + [[1, 0]] * 2 + [[0, 0]] * 2)).lower()
        >>> bad = np.eye(2)[[1, 1, 1, 1, 0, 0]].ravel()
        >>> other = np.eye(2)[[0, 0, 0, 0, 1, 1]].ravel()
        >>> patches = Recombination(lowered).differences(bad, other[None])
        >>> patches.evaluate(bad).change
        array([-2.,  2.,  0.])
        >>> patches.improve(bad).reshape(6, 2).argmax(1)
        array([0, 0, 1, 1, 0, 0])
    """

    lowered: Lowered

    @property
    def layout(self) -> Layout:
        """Of the states."""
        return self.lowered.layout

    @cached_property
    def edges(self) -> Ints:
        """Pairs of variables that share a term.  # (m, 2)"""
        known = [term.neighbors(self.layout) for term in self.lowered.terms]
        return np.concatenate([np.zeros((0, 2), dtype=np.int64), *known])

    @cached_property
    def components(self) -> Components:
        """Finds connected sets of variables."""
        return Components(self.lowered)

    @cached_property
    def parts(self) -> list[tuple[Factor | PairTerm, Ints]]:
        """Terms and their scopes; what is forbidden has the energy 0, as it has no weight."""
        out: list[tuple[Factor | PairTerm, Ints]] = []
        for term in self.lowered.terms:
            if isinstance(term, Factor):
                finite = np.where(np.isinf(term.tables), 0.0, term.tables)
                out.append((replace_tables(term, finite), term.scopes))
            else:
                assert isinstance(term, (Ising, Potts))
                out.append((term, term.edges))
        return out

    @cached_property
    def unary(self) -> NDArray[np.float64]:
        """Unary energies, likewise.  # (size,)"""
        return np.where(np.isinf(self.lowered.unary), 0.0, self.lowered.unary)

    @cached_property
    def incidence(self) -> list[tuple[Ints, Ints]]:
        """For each term where the scopes of each variable start, and their numbers."""
        out = []
        for _, scopes in self.parts:
            order = np.argsort(scopes.ravel(), kind="stable")
            count = np.bincount(scopes.ravel(), minlength=self.layout.n_vars)
            out.append((np.concatenate([[0], np.cumsum(count)]), order // scopes.shape[1]))
        return out

    def differences(self, q: Floats, others: Floats) -> Patches:
        """Where other states differ, in connected components.

        Args:
            q: Marginals.  # (size,)
            others: Marginals of other states.  # (states, size)
        """
        layout, n = self.layout, self.layout.n_vars
        if layout.common == 2:
            differs = np.abs(others[:, ::2] - q[::2]) > DIFFERENCE
        else:
            apart = np.maximum.reduceat(np.abs(others - q), layout.offsets[:-1], axis=1)
            differs = apart > DIFFERENCE
        found, count = np.full(differs.shape, -1), 0
        for k, some in enumerate(differs):
            component, more = self.components.of(some)
            found[k, some] = count + component[some]
            count += more
        flat = np.flatnonzero(differs)  # state · n + variable
        found = found.ravel()[flat]
        order = np.argsort(found, kind="stable")  # keeps variables in order
        row, variables = np.divmod(flat[order], n)
        start = np.concatenate([[0], np.cumsum(np.bincount(found, minlength=count))])
        entries = flat_entries(layout, variables)
        values = others[np.repeat(row, layout.cardinalities[variables]), entries]
        return Patches(self, start, variables, np.asarray(values, dtype=np.float64))

    def reach(self, members: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Some variables and all that share a term with one of them.  # (n_vars,)"""
        out: NDArray[np.bool_] = members.copy()
        for here, there in (self.edges.T, self.edges.T[::-1]):
            out[there[members[here]]] = True
        return out


@dataclass(frozen=True)
class Evaluation:
    """What patches would do to a state.

    Attributes:
        change: How F would change.  # (patches,)
        spread: Sum of the differences of marginals, in total variation.  # (patches,)
        allowed: Whether they have no weight on entries that mustn't have any.  # (patches,)
    """

    change: NDArray[np.float64]
    spread: NDArray[np.float64]
    allowed: NDArray[np.bool_]


@dataclass(frozen=True)
class Patches:
    """Marginals of sets of variables, to be put into states of a field.

    Attributes:
        recombination: The field.
        start: Where the variables of each patch start.  # (patches + 1,)
        variables: Variables of all patches, in order within each.  # (variables,)
        values: Their marginals, one after another.  # (entries,)
    """

    recombination: Recombination
    start: Ints
    variables: Ints
    values: NDArray[np.float64]

    @classmethod
    def none(cls, recombination: Recombination) -> Patches:
        """No patch."""
        empty = np.zeros(0, dtype=np.int64)
        return cls(recombination, np.zeros(1, dtype=np.int64), empty, np.zeros(0))

    def __len__(self) -> int:
        return len(self.start) - 1

    @cached_property
    def owner(self) -> Ints:
        """The patch of each variable.  # (variables,)"""
        return np.repeat(np.arange(len(self)), np.diff(self.start))

    @cached_property
    def width(self) -> Ints:
        """Labels of each variable.  # (variables,)"""
        return self.recombination.layout.cardinalities[self.variables]

    @cached_property
    def first(self) -> Ints:
        """Where the marginals of each variable start, and the total.  # (variables + 1,)"""
        return np.concatenate([[0], np.cumsum(self.width)])

    @cached_property
    def entries(self) -> Ints:
        """Where the values belong in a state.  # (entries,)"""
        return flat_entries(self.recombination.layout, self.variables)

    @cached_property
    def entry_owner(self) -> Ints:
        """The patch of each value.  # (entries,)"""
        return np.repeat(self.owner, self.width)

    @cached_property
    def touching(self) -> list[tuple[Ints, Ints, Ints, Ints]]:
        """For each term: patches and scopes that touch each other, and where their marginals are.

        The last two are places in a state, and in "a state and the values, joined".
        """
        layout, variables = self.recombination.layout, self.variables
        n, out = layout.n_vars, []
        places = self._places()
        for (_, scope), (row, number) in zip(
            self.recombination.parts, self.recombination.incidence, strict=True
        ):
            count = row[variables + 1] - row[variables]
            shift = np.repeat(np.cumsum(count) - count - row[variables], count)
            e = number[np.arange(len(shift)) - shift]
            patch = np.repeat(self.owner, count)
            place = places((patch * n)[:, None] + scope[e])
            # a scope with several variables of a patch counts once, for the first of them
            leader = scope[e, (place >= 0).argmax(axis=1)]
            once = np.flatnonzero(leader == np.repeat(variables, count))
            patch, e, place = patch[once], e[once], place[once]
            here = layout.offsets[scope[e]]
            out.append((patch, e, here, np.where(place >= 0, layout.size + place, here)))
        return out

    def _places(self) -> Callable[[Ints], Ints]:
        """A function from patch · n_vars + variable to its first value, -1 if it isn't there."""
        size = len(self) * self.recombination.layout.n_vars
        keys = self.owner * self.recombination.layout.n_vars + self.variables  # in order
        if size <= MAX_LOOKUP:
            table = np.full(size, -1, dtype=np.int64)
            table[keys] = self.first[:-1]
            return table.__getitem__

        def search(wanted: Ints) -> Ints:
            at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
            return np.where(keys[at] == wanted, self.first[at], -1)

        return search

    def evaluate(self, q: Floats, keep: NDArray[np.bool_] | None = None) -> Evaluation:
        """What each patch would do to a state.

        Args:
            q: Marginals of finite F.  # (size,)
            keep: Entries that may have weight, all by default.  # (size,)
        """
        field, count, old = self.recombination, len(self), q[self.entries]
        if count == 0:
            return Evaluation(np.zeros(0), np.zeros(0), np.zeros(0, dtype=bool))
        each = (self.values - old) * field.unary[self.entries]
        each += log_weighted(self.values) - log_weighted(old)
        change = np.bincount(self.entry_owner, each, minlength=count).astype(np.float64)
        joined = np.concatenate([q, self.values])
        for (term, _), (patch, e, here, there) in zip(field.parts, self.touching, strict=True):
            new = scope_energies(term, field.layout, joined, there, e)
            new -= scope_energies(term, field.layout, q, here, e)
            change += np.bincount(patch, new, minlength=count)
        moved = np.abs(self.values - old)
        spread = np.bincount(self.entry_owner, moved, minlength=count) / 2
        allowed = np.ones(count, dtype=bool)
        if keep is not None:
            allowed[self.entry_owner[(self.values > 0) & ~keep[self.entries]]] = False
        return Evaluation(change, spread, allowed)

    def put(self, which: int, q: Floats) -> NDArray[np.float64]:
        """A state with one patch in it."""
        out = np.array(q, dtype=np.float64)
        mine = self._span(which)
        out[self.entries[mine]] = self.values[mine]
        return out

    def members(self, which: int) -> Ints:
        """The variables of a patch."""
        return self.variables[self.start[which] : self.start[which + 1]]

    def _span(self, which: int) -> slice:
        return slice(*self.first[self.start[which : which + 2]].tolist())

    def improve(self, q: Floats, found: Evaluation | None = None) -> NDArray[np.float64]:
        """A state with the patches that lower F, as far as they are independent of each other.

        Args:
            q: Marginals of finite F.  # (size,)
            found: What the patches would do, if that is known.
        """
        found = self.evaluate(q) if found is None else found
        out = np.array(q, dtype=np.float64)
        taken = np.zeros(self.recombination.layout.n_vars, dtype=bool)
        for c in np.argsort(found.change, kind="stable"):
            if found.change[c] > -MIN_GAIN:
                break
            mine = np.zeros_like(taken)
            mine[self.members(int(c))] = True
            if found.allowed[c] and not (taken & self.recombination.reach(mine)).any():
                taken |= mine
                out = self.put(int(c), out)
        return out

    def select(self, which: Ints) -> Patches:
        """Some of the patches, in the given order."""
        parts = [self.members(int(c)) for c in which]
        values = [self.values[self._span(int(c))] for c in which]
        start = np.concatenate([[0], np.cumsum([len(part) for part in parts])]).astype(np.int64)
        return Patches(
            self.recombination,
            start,
            np.concatenate([np.zeros(0, dtype=np.int64), *parts]),
            np.concatenate([np.zeros(0), *values]),
        )

    def joined(self, other: Patches) -> Patches:
        """These patches and others, each once (values are compared to one digit)."""
        both = Patches(
            self.recombination,
            np.concatenate([self.start, self.start[-1] + other.start[1:]]),
            np.concatenate([self.variables, other.variables]),
            np.concatenate([self.values, other.values]),
        )
        rounded = np.round(10 * both.values).astype(np.int8)
        seen: dict[bytes, int] = {}
        for c in range(len(both)):
            key = both.members(c).tobytes() + rounded[both._span(c)].tobytes()
            seen.setdefault(key, c)
        return both if len(seen) == len(both) else both.select(np.array([*seen.values()]))


def flat_entries(layout: Layout, variables: Ints) -> Ints:
    """Entries of some variables, one after another."""
    width = layout.cardinalities[variables]
    begin = np.cumsum(width) - width
    shift = np.repeat(layout.offsets[variables] - begin, width)
    return np.asarray(np.arange(len(shift)) + shift)


def replace_tables(term: Factor, tables: Floats) -> Factor:
    """A term with the same scopes and other tables."""
    return Factor.trusted(term.scopes, tables, term.index)


def log_weighted(q: Floats) -> NDArray[np.float64]:
    """q log q, 0 where q = 0."""
    return np.asarray(q * np.log(np.where(q > 0, q, 1.0)))


def scope_energies(
    term: Factor | PairTerm, layout: Layout, values: Floats, base: Ints, which: Ints
) -> NDArray[np.float64]:
    """Expected energies of scopes.

    Args:
        term: Whose scopes.
        layout: The variables.
        values: Marginals, flat.
        base: Where those of each variable of each scope start.  # (pairs, variables per scope)
        which: The scopes.  # (pairs,)
    """
    if isinstance(term, Factor):
        letters = string.ascii_letters[1 : term.degree + 1]
        spec = ",".join(["a" + letters, *("a" + x for x in letters)]) + "->a"
        weights = [values[base[:, p, None] + np.arange(c)] for p, c in enumerate(term.shape)]
        tables = term.tables[term.index[which]]
        return np.asarray(np.einsum(spec, tables, *weights, optimize=term.degree > 2))
    i, j = base.T
    if isinstance(term, Ising):
        spins = (values[i + 1] - values[i]) * (values[j + 1] - values[j])
        return np.asarray(term.weights[which] * spins)
    common = layout.cardinalities[term.edges[which]].min(axis=1, initial=2**62)
    agree = np.zeros(len(which))
    for label in range(int(common.max(initial=0)) if len(common) else 0):
        has = np.flatnonzero(common > label)
        agree[has] += values[i[has] + label] * values[j[has] + label]
    return np.asarray(term.weights[which] * (1.0 - agree))
