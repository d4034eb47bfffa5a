"""Splitting a cell in two, so that its parts differ much."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from proxfield.core.solve.search.alternatives import Alternatives, Decision
from proxfield.core.solve.search.cell_work import TRIAL_SWEEPS, CellWork
from proxfield.core.solve.search.cells import Cell
from proxfield.mixture import Clamp

MAX_TRIALS = 8
"""Maximum number of decisions that are tried to split a cell."""
MAX_UNCERTAIN = 3
"""How many of them are kept for variables of large variance."""
TRIAL_DESCENTS = 3
"""Descents of a trial."""
MAX_CURVATURE = 4.0
"""A variable depends on others as much as it can from this bound on its curvature on."""


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
        self.trial_sweeps, self.trial_seconds = TRIAL_DESCENTS * TRIAL_SWEEPS / 2, 0.0
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
        most = MAX_TRIALS if self.work.sweepable else 1
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
        reserved = min(MAX_UNCERTAIN, len(uncertain), most // 2)
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
            worth = worth * np.minimum(curvature, MAX_CURVATURE)
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
