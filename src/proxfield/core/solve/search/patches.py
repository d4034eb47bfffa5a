"""Parts of many states, to be put into a state of the same field.

A hundred mediocre minima of a grid contain, in parts, one that no single chain finds. Patches that
lower F improve a state. Patches that raise it by little are as useful: they are the alternatives
between which a mixture of modes should choose.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from proxfield.core.solve.search import tuned
from proxfield.core.solve.search.parts import Parts
from proxfield.core.terms.base import Floats, Ints, Layout


@dataclass(frozen=True)
class PatchEffects:
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
        parts: The field, all of whose terms are tables.
        start: Where the variables of each patch start.  # (patches + 1,)
        variables: Variables of all patches, in order within each.  # (variables,)
        values: Their marginals, one after another.  # (entries,)

    Example:
        >>> import proxfield as pf
        >>> field = pf.Field(6, 2).add(pf.Potts([[0, 1], [2, 3], [4, 5]], 2.0))
        >>> lowered = field.add(pf.Unary([[0, 1]] * 2 + [[1, 0]] * 2 + [[0, 0]] * 2)).lower()
        >>> bad = np.eye(2)[[1, 1, 1, 1, 0, 0]].ravel()
        >>> other = np.eye(2)[[0, 0, 0, 0, 1, 1]].ravel()
        >>> patches = Patches.between(Parts(lowered), bad, other[None])
        >>> patches.evaluate(bad).change
        array([-2.,  2.,  0.])
        >>> patches.improve(bad).reshape(6, 2).argmax(1)
        array([0, 0, 1, 1, 0, 0])
    """

    parts: Parts
    start: Ints
    variables: Ints
    values: NDArray[np.float64]

    @classmethod
    def none(cls, parts: Parts) -> Patches:
        """No patch."""
        empty = np.zeros(0, dtype=np.int64)
        return cls(parts, np.zeros(1, dtype=np.int64), empty, np.zeros(0))

    @classmethod
    def between(cls, parts: Parts, q: Floats, others: Floats) -> Patches:
        """The parts in which other states differ from one.

        Args:
            parts: The field.
            q: Marginals.  # (size,)
            others: Marginals of other states.  # (states, size)
        """
        layout = parts.layout
        differs = parts.differing(q, others, tuned.PATCH_CHANGE)
        found, count = np.full(differs.shape, -1), 0
        for k, some in enumerate(differs):
            part, more = parts.of(some)
            found[k, some] = count + part[some]
            count += more
        flat = np.flatnonzero(differs)  # state · n_vars + variable
        found = found.ravel()[flat]
        order = np.argsort(found, kind="stable")  # keeps variables in order
        row, variables = np.divmod(flat[order], layout.n_vars)
        start = np.concatenate([[0], np.cumsum(np.bincount(found, minlength=count))])
        entries = flat_entries(layout, variables)
        values = others[np.repeat(row, layout.cardinalities[variables]), entries]
        return cls(parts, start, variables, np.asarray(values, dtype=np.float64))

    def __len__(self) -> int:
        return len(self.start) - 1

    @cached_property
    def owner(self) -> Ints:
        """The patch of each variable.  # (variables,)"""
        return np.repeat(np.arange(len(self)), np.diff(self.start))

    @cached_property
    def width(self) -> Ints:
        """Labels of each variable.  # (variables,)"""
        return self.parts.layout.cardinalities[self.variables]

    @cached_property
    def first(self) -> Ints:
        """Where the marginals of each variable start, and the total.  # (variables + 1,)"""
        return np.concatenate([[0], np.cumsum(self.width)])

    @cached_property
    def entries(self) -> Ints:
        """Where the values belong in a state.  # (entries,)"""
        return flat_entries(self.parts.layout, self.variables)

    @cached_property
    def entry_owner(self) -> Ints:
        """The patch of each value.  # (entries,)"""
        return np.repeat(self.owner, self.width)

    @cached_property
    def touching(self) -> list[tuple[Ints, Ints, Ints, Ints]]:
        """For each term: patches and scopes that touch each other, and where their marginals are.

        The last two are places in a state, and in "a state and the values, joined".
        """
        layout, out, places = self.parts.layout, [], self._places()
        for term in self.parts.scopes:
            e, count = term.around(self.variables)
            patch, members = np.repeat(self.owner, count), term.members[e]
            place = places((patch * layout.n_vars)[:, None] + members)
            # a scope with several variables of a patch counts once, for the first of them
            leader = members[np.arange(len(e)), (place >= 0).argmax(axis=1)]
            once = np.flatnonzero(leader == np.repeat(self.variables, count))
            patch, e, place = patch[once], e[once], place[once]
            here = layout.offsets[members[once]]
            out.append((patch, e, here, np.where(place >= 0, layout.size + place, here)))
        return out

    def _places(self) -> Callable[[Ints], Ints]:
        """A function from patch · n_vars + variable to its first value, -1 if it isn't there."""
        size = len(self) * self.parts.layout.n_vars
        keys = self.owner * self.parts.layout.n_vars + self.variables  # in order
        if size <= tuned.MAX_LOOKUP:
            table = np.full(size, -1, dtype=np.int64)
            table[keys] = self.first[:-1]
            return table.__getitem__

        def search(wanted: Ints) -> Ints:
            at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
            return np.where(keys[at] == wanted, self.first[at], -1)

        return search

    def evaluate(self, q: Floats, keep: NDArray[np.bool_] | None = None) -> PatchEffects:
        """What each patch would do to a state.

        Args:
            q: Marginals of finite F.  # (size,)
            keep: Entries that may have weight, all by default.  # (size,)
        """
        count, old = len(self), q[self.entries]
        if count == 0:
            return PatchEffects(np.zeros(0), np.zeros(0), np.zeros(0, dtype=bool))
        each = (self.values - old) * self.parts.unary[self.entries]
        each += log_weighted(self.values) - log_weighted(old)
        change = np.bincount(self.entry_owner, each, minlength=count).astype(np.float64)
        joined = np.concatenate([q, self.values])
        for term, (patch, e, here, there) in zip(self.parts.scopes, self.touching, strict=True):
            new = term.expected_energies(e, joined, there)
            new -= term.expected_energies(e, q, here)
            change += np.bincount(patch, new, minlength=count)
        moved = np.abs(self.values - old)
        spread = np.bincount(self.entry_owner, moved, minlength=count) / 2
        allowed = np.ones(count, dtype=bool)
        if keep is not None:
            allowed[self.entry_owner[(self.values > 0) & ~keep[self.entries]]] = False
        return PatchEffects(change, spread, allowed)

    def members(self, which: int) -> Ints:
        """The variables of a patch."""
        return self.variables[self.start[which] : self.start[which + 1]]

    def _span(self, which: int) -> slice:
        return slice(*self.first[self.start[which : which + 2]].tolist())

    def put(self, which: int, q: Floats) -> NDArray[np.float64]:
        """A state with one patch in it."""
        out, mine = np.array(q, dtype=np.float64), self._span(which)
        out[self.entries[mine]] = self.values[mine]
        return out

    def improve(self, q: Floats, found: PatchEffects | None = None) -> NDArray[np.float64]:
        """A state with the patches that lower F, as far as they are independent of each other.

        Args:
            q: Marginals of finite F.  # (size,)
            found: What the patches would do, if that is known.
        """
        found = self.evaluate(q) if found is None else found
        out = np.array(q, dtype=np.float64)
        settled = np.zeros(self.parts.layout.n_vars, dtype=bool)  # patched, or beside a patch
        for c in np.argsort(found.change, kind="stable").tolist():
            if found.change[c] > -tuned.MIN_GAIN:
                break
            members = self.members(c)
            if found.allowed[c] and not settled[members].any():
                settled[members] = settled[self.parts.neighbors(members)] = True
                mine = self._span(c)
                out[self.entries[mine]] = self.values[mine]
        return out

    def select(self, which: Ints) -> Patches:
        """Some of the patches, in the given order."""
        variables = [self.members(c) for c in which.tolist()]
        values = [self.values[self._span(c)] for c in which.tolist()]
        start = np.cumsum([0, *map(len, variables)], dtype=np.int64)
        return Patches(
            self.parts,
            start,
            np.concatenate([np.zeros(0, dtype=np.int64), *variables]),
            np.concatenate([np.zeros(0), *values]),
        )

    def joined(self, other: Patches) -> Patches:
        """These patches and others, each once (values are compared to one digit)."""
        both = Patches(
            self.parts,
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


def log_weighted(q: Floats) -> NDArray[np.float64]:
    """q log q, 0 where q = 0."""
    return np.asarray(q * np.log(np.where(q > 0, q, 1.0)))
