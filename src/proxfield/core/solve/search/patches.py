"""Parts of many states, to be put into a state of the same field.

A hundred mediocre minima of a grid contain, in parts, one that no single chain finds. Patches that
lower F improve a state. Patches that raise it by little are as useful: they are the alternatives
between which a mixture of modes should choose. A decision tells an alternative from the state.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from proxfield.core.solve.search import tuned
from proxfield.core.solve.search.cells import Cell, CellWork
from proxfield.core.solve.search.parts import Parts, rows_of
from proxfield.core.terms.base import Doubles, Floats, Ints, Layout
from proxfield.mixture import Clamp


@dataclass(frozen=True)
class PatchEffects:
    """What each patch would do to a state."""

    change: Doubles  # of F
    spread: Doubles  # sum of the differences of marginals, in total variation
    allowed: NDArray[np.bool_]  # whether it has no weight on entries that mustn't have any


@dataclass(frozen=True)
class Patches:
    """Marginals of sets of variables, to be put into states of a field of tables."""

    parts: Parts
    start: Ints  # where the variables of each patch start, and the total
    variables: Ints  # of all patches, in order within each
    values: Doubles  # their marginals, one after another

    @classmethod
    def between(cls, parts: Parts, q: Floats, others: Floats) -> Patches:
        """The parts in which other states differ from one.  # (size,), (states, size)"""
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
        layout, out = self.parts.layout, []
        keys = self.owner * layout.n_vars + self.variables  # patch · n_vars + variable, in order
        table = None
        if len(self) * layout.n_vars <= tuned.MAX_LOOKUP:
            table = np.full(len(self) * layout.n_vars, -1, dtype=np.int64)
            table[keys] = self.first[:-1]
        for term in self.parts.scopes:
            e, count = term.around(self.variables)
            patch, members = np.repeat(self.owner, count), term.members[e]
            wanted = (patch * layout.n_vars)[:, None] + members
            if table is None:
                at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
                place = np.where(keys[at] == wanted, self.first[at], -1)
            else:
                place = table[wanted]
            # a scope with several variables of a patch counts once, for the first of them
            leader = members[np.arange(len(e)), (place >= 0).argmax(axis=1)]
            once = np.flatnonzero(leader == np.repeat(self.variables, count))
            patch, e, place = patch[once], e[once], place[once]
            here = layout.offsets[members[once]]
            out.append((patch, e, here, np.where(place >= 0, layout.size + place, here)))
        return out

    def evaluate(self, q: Floats, keep: NDArray[np.bool_] | None = None) -> PatchEffects:
        """What each patch would do to a state of finite F; ``keep`` says what may have weight."""
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

    def put(self, which: int, q: Floats) -> Doubles:
        """A state with one patch in it."""
        out, mine = np.array(q, dtype=np.float64), self._span(which)
        out[self.entries[mine]] = self.values[mine]
        return out

    def improve(self, q: Floats, found: PatchEffects) -> Doubles:
        """A state with the patches that lower F, as far as they are independent of each other.

        ``found`` is what they would do to it, if that is known.
        """
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
        variables, count = rows_of(self.start, self.variables, which)
        values, _ = rows_of(self.first[self.start], self.values, which)
        start = np.cumsum([0, *count], dtype=np.int64)
        return Patches(self.parts, start, variables, values)

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
    return rows_of(layout.offsets, np.arange(layout.size), variables)[0]


def log_weighted(q: Floats) -> Doubles:
    """q log q, 0 where q = 0."""
    return np.asarray(q * np.log(np.where(q > 0, q, 1.0)))


@dataclass(frozen=True)
class Decision:
    """A way to split a cell: one child holds a label of a variable, the other doesn't have it."""

    variable: int
    label: int
    other: Doubles | None = None  # to start the other child from, beside the cell's own


class Alternatives:
    """Patches that were found by comparing states of a field whose variables can be visited."""

    def __init__(self, work: CellWork, parts: Parts) -> None:
        self.work, self.parts = work, parts
        none = np.zeros(0, dtype=np.int64)
        self.patches = Patches(parts, np.zeros(1, dtype=np.int64), none, np.zeros(0))
        self.row_size = work.layout.size + len(parts.column)
        self.compared, self.compare_seconds = 0, 0.0

    def rows_that_fit(self, share: float) -> int:
        """States that there is time to compare with, up to a share of the limits."""
        capacity, (_, left) = self.work.pool.capacity, self.work.left(share)
        guess = self.row_size * tuned.ENTRY_SECONDS
        each = self.compare_seconds / self.compared if self.compared else guess
        return capacity if left == np.inf else int(min(capacity, max(0.0, left) / (2 * each)))

    def compare(self, cell: Cell, share: float) -> None:
        """Improve a state by parts of others in its cell; keep the best of these as patches.

        It ends at a share of the limits.
        """
        others = self.work.pool.inside(cell, self.rows_that_fit(share))
        for _ in range(tuned.MAX_COMPARISONS if len(others) else 0):
            begun = self.work.loop.now()
            new = Patches.between(self.parts, cell.q, others)
            found = new.evaluate(cell.q, cell.keep)
            order = np.argsort(-worth_trying(found), kind="stable")[: tuned.MAX_NEW_PATCHES]
            self.patches = self.patches.joined(new.select(order[found.allowed[order]]))
            improved = self.put_in(cell, new, found)
            self.compare_seconds += self.work.loop.now() - begun
            self.compared += len(others)
            if not improved or self.rows_that_fit(share) < len(others):
                break

    def combine(self, cell: Cell) -> PatchEffects:
        """Improve a state by all patches; what they would do to it now."""
        found = self.patches.evaluate(cell.q, cell.keep)
        for _ in range(tuned.MAX_COMBINATIONS):
            if not self.put_in(cell, self.patches, found):
                break
            found = self.patches.evaluate(cell.q, cell.keep)
        return found

    def put_in(self, cell: Cell, patches: Patches, found: PatchEffects) -> bool:
        """Put patches into a cell's state if that lowers F; whether it did."""
        start = patches.improve(cell.q, found)
        if np.array_equal(start, cell.q):
            return False
        q, f = self.work.descend(cell, start[None])
        if not f < cell.free_energy - self.work.session.slack(f):
            return False
        cell.q, cell.free_energy, cell.status = q, f, self.work.session.limit
        return True

    def refine(self, cell: Cell, share: float) -> None:
        """Improve alternatives to large parts of a state, each in a cell where it must stay.

        Parts of other states are seldom the best alternative themselves: what a chain left in and
        around them is improved by parts of the rest, while one variable is held. It ends at a share
        of the limits.
        """
        work, layout = self.work, self.work.layout
        with work.loop.clock():
            self.compare(cell, share)
            patches = self.patches
            order = np.argsort(-worth_trying(patches.evaluate(cell.q, cell.keep)), kind="stable")
        done = np.zeros((0, layout.n_vars), dtype=bool)
        for c in order:
            if len(done) == tuned.MAX_REFINEMENTS or work.sweeps_left(share) < 1:
                break
            mine = np.zeros(layout.n_vars, dtype=bool)
            mine[patches.members(int(c))] = True
            if ((mine & done).sum(axis=1) > tuned.MAX_OVERLAP * (mine | done).sum(axis=1)).any():
                continue
            done = np.concatenate([done, mine[None]])
            with work.loop.clock():
                decision = self.decision(cell, patches, int(c))
                if not cell.leaves_open(layout, decision.variable):
                    continue
                clamp = Clamp(decision.variable, decision.label, False)
                child = cell.child(layout, clamp, work.session.limit)
                assert decision.other is not None
                start = child.condition(layout, decision.other)
                child.q, child.free_energy = work.descend(child, start[None])
                if np.isfinite(child.free_energy):
                    self.compare(child, share)
                    work.pool.add(child.q, child.free_energy)
        with work.loop.clock():
            self.compare(cell, share)

    def choose(self, cell: Cell, found: PatchEffects, most: int) -> list[Decision]:
        """Decisions between a cell's state and that state with a patch, the best first."""
        layout = self.work.layout
        odds = np.exp(-np.clip(found.change, 0.0, 50.0))
        worth = np.where(found.allowed, odds / (1 + odds) ** 2 * found.spread, 0.0)
        out: dict[int, Decision] = {}
        for c in np.argsort(-worth, kind="stable")[: 4 * most]:
            if len(out) == most or worth[c] <= 0:
                break
            decision = self.decision(cell, self.patches, int(c))
            if cell.leaves_open(layout, decision.variable):
                out.setdefault(decision.variable, decision)
        return list(out.values())

    def decision(self, cell: Cell, patches: Patches, which: int) -> Decision:
        """The variable that tells a cell's state best from that state with a patch."""
        layout, variables = self.work.layout, patches.members(which)
        other = patches.put(which, cell.q)
        label = layout.best_labels(cell.q)[variables]
        at = layout.offsets[variables] + label
        best = int(np.minimum(cell.q[at], 1.0 - other[at]).argmax())
        return Decision(int(variables[best]), int(label[best]), other)


def worth_trying(found: PatchEffects) -> Doubles:
    """Patches that change much and raise F by little are worth most.  # (patches,)"""
    rise = np.clip(found.change, 0.0, None)
    return np.asarray(found.allowed * found.spread * np.exp(-rise / tuned.WORTH_SCALE))
