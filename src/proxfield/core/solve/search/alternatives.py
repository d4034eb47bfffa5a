"""Alternatives to parts of a state: what other minima have elsewhere, one place at a time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from proxfield.core.solve.search.cell_work import CellWork
from proxfield.core.solve.search.cells import Cell
from proxfield.core.solve.search.recombination import Evaluation, Patches, Recombination
from proxfield.mixture import Clamp

MAX_REFINEMENTS = 24
"""Maximum number of alternatives that are improved."""
MAX_OVERLAP = 0.5
"""Share of variables that two of these may have in common."""
MAX_COMBINATIONS = 8
"""Maximum number of times in a row that patches are put into a state."""
MAX_COMPARISONS = 4
"""Maximum number of times in a row that a state is compared with the pool."""
MAX_NEW_PATCHES = 128
"""Maximum number of patches that one comparison adds."""
ENTRY_SECONDS = 1e-7
"""Guess of the time that comparing takes, per entry and end of an edge."""
WORTH_SCALE = 10.0
"""A rise of F by this much makes a patch worth a third of what it would be without."""


@dataclass(frozen=True)
class Decision:
    """A way to split a cell.

    Attributes:
        variable: The variable.
        label: The label that one child holds and the other doesn't have.
        other: Marginals to start the other child from, beside the cell's own.  # (size,)
    """

    variable: int
    label: int
    other: NDArray[np.float64] | None = None


@dataclass
class Alternatives:
    """Patches that were found by comparing states.

    Args:
        work: The cells' inference.
        recombination: The field, whose variables can be visited one by one.
    """

    work: CellWork
    recombination: Recombination

    def __post_init__(self) -> None:
        self.patches = Patches.none(self.recombination)
        self.row_size = self.work.layout.size + 2 * len(self.recombination.edges)
        self.compared, self.compare_seconds = 0, 0.0

    def rows_that_fit(self, share: float) -> int:
        """States that there is time to compare with."""
        work = self.work
        if work.limits.budget is None:
            return work.pool.capacity
        each = self.row_size * ENTRY_SECONDS
        if self.compared:
            each = self.compare_seconds / self.compared
        return int(min(work.pool.capacity, max(0.0, work.left(share)[1]) / (2 * each)))

    def compare(self, cell: Cell, share: float) -> None:
        """Improve a state by parts of others in its cell; keep the best of these as patches.

        Args:
            cell: Whose state.
            share: Share of the limits at which to end.
        """
        others = self.work.pool.inside(cell, self.rows_that_fit(share))
        for _ in range(MAX_COMPARISONS if len(others) else 0):
            begun = self.work.loop.now()
            again = self._compare_once(cell, others)
            self.compare_seconds += self.work.loop.now() - begun
            self.compared += len(others)
            if not again or self.rows_that_fit(share) < len(others):
                break

    def _compare_once(self, cell: Cell, others: NDArray[np.float64]) -> bool:
        """Whether comparing with some states improved one."""
        new = self.recombination.differences(cell.q, others)
        found = new.evaluate(cell.q, cell.keep)
        order = np.argsort(-worth_trying(found), kind="stable")[:MAX_NEW_PATCHES]
        self.patches = self.patches.joined(new.select(order[found.allowed[order]]))
        return self.put_in(cell, new, found)

    def combine(self, cell: Cell) -> Evaluation:
        """Improve a state by all patches; what they would do to it now."""
        found = self.patches.evaluate(cell.q, cell.keep)
        for _ in range(MAX_COMBINATIONS):
            if not self.put_in(cell, self.patches, found):
                break
            found = self.patches.evaluate(cell.q, cell.keep)
        return found

    def put_in(self, cell: Cell, patches: Patches, found: Evaluation) -> bool:
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
        around them is improved by parts of the rest, while one variable is held.

        Args:
            cell: Whose state.
            share: Share of the limits at which to end.
        """
        work, layout = self.work, self.work.layout
        with work.loop.clock():
            self.compare(cell, share)
            patches = self.patches
            order = np.argsort(-worth_trying(patches.evaluate(cell.q, cell.keep)), kind="stable")
        done = np.zeros((0, layout.n_vars), dtype=bool)
        for c in order:
            if len(done) == MAX_REFINEMENTS or work.sweeps_left(share) < 1:
                break
            mine = np.zeros(layout.n_vars, dtype=bool)
            mine[patches.members(int(c))] = True
            if ((mine & done).sum(axis=1) > MAX_OVERLAP * (mine | done).sum(axis=1)).any():
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
                    work.pool.add(child.q[None], np.array([child.free_energy]))
        with work.loop.clock():
            self.compare(cell, share)

    def choose(self, cell: Cell, found: Evaluation, most: int) -> list[Decision]:
        """Decisions between a cell's state and that state with a patch, the best first.

        Args:
            cell: The cell.
            found: What all patches would do to its state.
            most: Maximum number of decisions.
        """
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


def worth_trying(found: Evaluation) -> NDArray[np.float64]:
    """Patches that change much and raise F by little are worth most.  # (patches,)"""
    rise = np.clip(found.change, 0.0, None)
    return np.asarray(found.allowed * found.spread * np.exp(-rise / WORTH_SCALE))
