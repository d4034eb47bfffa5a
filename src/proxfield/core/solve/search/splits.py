"""Splitting a cell in two, so that its parts differ much: decisions, and trials of them.

Alternatives to parts of a cell's state are what other states have there, one place at a time. A
decision tells an alternative from the state, or is about a variable of large variance.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from proxfield.core.solve.search import tuned
from proxfield.core.solve.search.cells import Cell, CellWork
from proxfield.core.solve.search.parts import Parts
from proxfield.core.solve.search.patches import PatchEffects, Patches
from proxfield.mixture import Clamp


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
        parts: The field, whose variables can be visited one by one.
    """

    work: CellWork
    parts: Parts

    def __post_init__(self) -> None:
        self.patches = Patches.none(self.parts)
        self.row_size = self.work.layout.size + len(self.parts.column)
        self.compared, self.compare_seconds = 0, 0.0

    def rows_that_fit(self, share: float) -> int:
        """States that there is time to compare with."""
        work = self.work
        if work.limits.budget is None:
            return work.pool.capacity
        each = self.row_size * tuned.ENTRY_SECONDS
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
        for _ in range(tuned.MAX_COMPARISONS if len(others) else 0):
            begun = self.work.loop.now()
            again = self._compare_once(cell, others)
            self.compare_seconds += self.work.loop.now() - begun
            self.compared += len(others)
            if not again or self.rows_that_fit(share) < len(others):
                break

    def _compare_once(self, cell: Cell, others: NDArray[np.float64]) -> bool:
        """Whether comparing with some states improved one."""
        new = Patches.between(self.parts, cell.q, others)
        found = new.evaluate(cell.q, cell.keep)
        order = np.argsort(-worth_trying(found), kind="stable")[: tuned.MAX_NEW_PATCHES]
        self.patches = self.patches.joined(new.select(order[found.allowed[order]]))
        return self.put_in(cell, new, found)

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
                    work.pool.add(child.q[None], np.array([child.free_energy]))
        with work.loop.clock():
            self.compare(cell, share)

    def choose(self, cell: Cell, found: PatchEffects, most: int) -> list[Decision]:
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


def worth_trying(found: PatchEffects) -> NDArray[np.float64]:
    """Patches that change much and raise F by little are worth most.  # (patches,)"""
    rise = np.clip(found.change, 0.0, None)
    return np.asarray(found.allowed * found.spread * np.exp(-rise / tuned.WORTH_SCALE))


@dataclass(frozen=True)
class Split:
    """A decision that was tried.

    Attributes:
        children: The two cells.
        score: Share of the parent's exp(−F) that separates: difference of the children's marginals
            times the product of their weights, times the factor that exp(−F) has gained.
    """

    children: tuple[Cell, Cell]
    score: float


@dataclass
class Splitter:
    """Tries decisions on cells, as many as there is time for.

    Args:
        work: The cells' inference.
        alternatives: Patches to decide about, if there are any.
    """

    work: CellWork
    alternatives: Alternatives | None

    def __post_init__(self) -> None:
        self.trial_sweeps, self.trial_seconds = tuned.TRIAL_DESCENTS * tuned.TRIAL_SWEEPS / 2, 0.0
        self.trials_made = 0

    def best_split(self, cell: Cell, to_come: int, share: float) -> Split:
        """The best of the decisions that there is time to try.

        Args:
            cell: The cell.
            to_come: How many cells are still to be split, this one included.
            share: Share of the limits at which to end.
        """
        best = Split((cell, cell), 0.0)
        most = self.trials_wanted(to_come, share)
        for decision in self.decisions(cell, most):
            begun, before = self.work.loop.now(), self.work.loop.iterations
            split = self.try_split(cell, decision)
            self.learn(self.work.loop.iterations - before, self.work.loop.now() - begun)
            best = split if split.score > best.score else best
        return best

    def trials_wanted(self, to_come: int, share: float) -> int:
        """How many decisions to try, so that all splits fit into the limits."""
        iterations, seconds = self.work.left(share)
        fits = iterations / max(1.0, self.trial_sweeps)
        if self.trial_seconds > 0:
            fits = min(fits, seconds / self.trial_seconds)
        else:
            fits = min(fits, self.work.sweeps_left(share) / self.trial_sweeps)
        most = tuned.MAX_TRIALS if self.work.sweepable else 1
        return int(np.clip(fits / to_come, 1 if fits >= 1 else 0, most))

    def learn(self, sweeps: int, seconds: float) -> None:
        """What a trial took."""
        share = 1.0 if self.trials_made == 0 else 0.3
        self.trials_made += 1
        self.trial_sweeps += share * (sweeps - self.trial_sweeps)
        self.trial_seconds += share * (seconds - self.trial_seconds)

    def decisions(self, cell: Cell, most: int) -> list[Decision]:
        """What to try: decisions between alternatives, and about uncertain variables."""
        uncertain = self.uncertain(cell, most)
        if self.alternatives is None or most == 0:
            return uncertain
        found = self.alternatives.combine(cell)
        reserved = min(tuned.MAX_UNCERTAIN, len(uncertain), most // 2)
        firm = self.alternatives.choose(cell, found, most - reserved)
        known = {decision.variable for decision in firm}
        return [*firm, *(d for d in uncertain if d.variable not in known)][:most]

    def uncertain(self, cell: Cell, most: int) -> list[Decision]:
        """Decisions about variables of large variance that depend much on others."""
        layout = self.work.layout
        labels = layout.best_labels(cell.q)
        p = cell.q[layout.offsets[:-1] + labels]
        worth = p * (1.0 - p)
        if self.work.sweepable:
            curvature = self.work.session.problem.curvature.local
            worth = worth * np.minimum(curvature, tuned.MAX_CURVATURE)
        worth = np.where(layout.sum_by_variable(cell.keep) > 1, worth, -1.0)
        order = np.argsort(-worth, kind="stable")[:most]
        return [Decision(int(v), int(labels[v])) for v in order if worth[v] > 0]

    def try_split(self, cell: Cell, decision: Decision) -> Split:
        """Split a cell, descend in both children, and see how much they differ.

        Both start from the parent's marginals q given the decision, of probability p and 1 − p
        under q. F(q) = p F_a + (1 − p) F_b + p log p + (1 − p) log(1 − p) at these starts, which is
        never below −log(exp(−F_a) + exp(−F_b)): a split can't make the bound worse.
        """
        layout, limit = self.work.layout, self.work.session.limit
        held, other = (
            cell.child(layout, Clamp(decision.variable, decision.label, side), limit)
            for side in (True, False)
        )
        for child in (held, other):
            starts = [child.condition(layout, cell.q)]
            if decision.other is not None and child is other:
                starts.append(child.condition(layout, decision.other))
            child.q, child.free_energy = self.work.descend(child, np.stack(starts))
        low = min(held.free_energy, other.free_energy)
        if not np.isfinite(low):
            return Split((held, other), 0.0)
        a, b = (np.exp(low - child.free_energy) for child in (held, other))
        spread = np.abs(held.q - other.q).sum() / 2
        gained = np.exp(min(cell.free_energy - low, 700.0)) * (a + b)
        return Split((held, other), float(gained * a * b / (a + b) ** 2 * spread))
