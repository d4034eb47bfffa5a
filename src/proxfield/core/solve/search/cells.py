"""Cells of a partition of all labellings, made by clamping, and a pool of states that were seen."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from proxfield.core.engines.plan import Chains, Explored
from proxfield.core.lowering.lowered import Lowered
from proxfield.core.lowering.reduction import Reduction
from proxfield.core.solve.session import Session
from proxfield.core.terms.base import Floats, Layout
from proxfield.mixture import Clamp
from proxfield.result import Status

MAX_STATES = 128
"""Maximum number of states in a pool."""
MIN_DISTANCE = 0.05
"""Share of the variables in which states of the more diverse half differ."""
MAX_ENTRIES = 1 << 19
"""Maximum number of entries and ends of edges of all states of a pool."""


@dataclass
class Cell:
    """Labellings that agree with some decisions, and mean field among them.

    Attributes:
        keep: The entries that the decisions leave possible.  # (size,)
        clamps: The decisions, in the lowered field's numbering.
        q: Marginals without weight on other entries.  # (size,)
        free_energy: F of these.
        status: Why they were left as they are.
    """

    keep: NDArray[np.bool_]
    clamps: tuple[Clamp, ...]
    q: NDArray[np.float64]
    free_energy: float
    status: Status

    def child(self, layout: Layout, clamp: Clamp, status: Status) -> Cell:
        """The part of the cell where one more decision holds; F isn't known yet.

        Args:
            layout: The variables.
            clamp: The decision.
            status: That of marginals which haven't converged.
        """
        start, end = layout.offsets[clamp.variable : clamp.variable + 2]
        keep = self.keep.copy()
        if clamp.held:
            keep[start:end] = False
        keep[start + clamp.label] = clamp.held
        return Cell(keep, (*self.clamps, clamp), self.q, np.inf, status)

    def leaves_open(self, layout: Layout, variable: int) -> bool:
        """Whether a variable may have several labels."""
        start, end = layout.offsets[variable : variable + 2]
        return bool(self.keep[start:end].sum() > 1)

    def restrict(self, lowered: Lowered) -> Lowered:
        """The field of this cell: what lies outside has the energy +inf."""
        if self.keep.all():
            return lowered
        return replace(lowered, unary=np.where(self.keep, lowered.unary, np.inf))

    def condition(self, layout: Layout, q: Floats) -> NDArray[np.float64]:
        """Marginals given the cell; variables without weight there become uniform."""
        out = np.where(self.keep, q, 0.0)
        dead = layout.sum_by_variable(out) <= 0
        if dead.any():
            out = np.where(dead[layout.owner] & self.keep, 1.0, out)
        return layout.normalize(out)


def user_clamps(reduction: Reduction, clamps: Iterable[Clamp]) -> tuple[Clamp, ...]:
    """Decisions in the user's numbering, without those that a later one implies."""
    clamps = tuple(clamps)
    settled = {clamp.variable for clamp in clamps if clamp.held}
    kept = [c for c in clamps if c.held or c.variable not in settled]
    entries = np.flatnonzero(reduction.new_entry >= 0) if kept else np.zeros(0, dtype=np.int64)
    out = []
    for clamp in kept:
        entry = entries[reduction.layout.offsets[clamp.variable] + clamp.label]
        variable, label = int(reduction.full.owner[entry]), int(reduction.full.label[entry])
        binary = reduction.full.cardinalities[variable] == 2
        if binary and not clamp.held:
            out.append(Clamp(variable, 1 - label, True))
        else:
            out.append(Clamp(variable, label, clamp.held))
    return tuple(out)


@dataclass
class Pool:
    """The states of lowest F seen, no two of which have the same most probable labels.

    Args:
        layout: Of the states.
        capacity: Maximum number of states.
    """

    layout: Layout
    capacity: int
    states: dict[bytes, tuple[float, NDArray[np.float64]]] = field(default_factory=dict)

    @classmethod
    def for_field(cls, lowered: Lowered, ends: int) -> Pool:
        """A pool that fits the size of a field.

        Args:
            lowered: The field.
            ends: Number of ends of its edges.
        """
        fitting = MAX_ENTRIES // max(1, lowered.layout.size + ends)
        return cls(lowered.layout, int(np.clip(fitting, 4, MAX_STATES)))

    def add(self, q: Floats, free_energies: Floats) -> None:
        """Keep states whose F is low enough.  # (states, size), (states,)"""
        for row, f in zip(q, free_energies, strict=True):
            if not np.isfinite(f):
                continue
            key = self.layout.best_labels(row).tobytes()
            known = self.states.get(key)
            if known is not None and known[0] <= f:
                continue
            self.states[key] = float(f), np.array(row, dtype=np.float64)
            if len(self.states) > 2 * self.capacity:
                self._thin()

    def _thin(self) -> None:
        """Keep half of the capacity by F alone, and half by F among states that differ much."""
        if len(self.states) <= self.capacity:
            return
        ranked = sorted(self.states, key=lambda key: self.states[key][0])
        kept = dict.fromkeys(ranked[: self.capacity // 2])
        apart = max(1, int(MIN_DISTANCE * self.layout.n_vars))
        labels = np.stack([np.frombuffer(key, dtype=np.int64) for key in ranked])
        near = np.zeros(len(ranked), dtype=bool)
        for k, key in enumerate(ranked):
            if len(kept) == self.capacity:
                break
            if not near[k]:
                kept[key] = None
                near |= (labels != labels[k]).sum(axis=1) < apart
        for key in ranked:
            if len(kept) == self.capacity:
                break
            kept[key] = None
        self.states = {key: self.states[key] for key in ranked if key in kept}

    def inside(self, cell: Cell, most: int) -> NDArray[np.float64]:
        """States with the most probable labels inside a cell, lowest F first.  # (states, size)

        Args:
            cell: The cell.
            most: Maximum number of states.
        """
        self._thin()
        first = self.layout.offsets[:-1]
        bounded = np.unique([clamp.variable for clamp in cell.clamps]).astype(np.int64)
        states = [
            q
            for key, (_, q) in sorted(self.states.items(), key=lambda item: item[1][0])
            if cell.keep[(first + np.frombuffer(key, dtype=np.int64))[bounded]].all()
        ]
        return np.stack(states[:most]) if states[:most] else np.zeros((0, self.layout.size))


@dataclass
class RecordingSession(Session):
    """A session that keeps where chains ended."""

    pool: Pool | None = None

    def explore(self, chains: Chains, threads: int | None = None) -> Explored:
        ended = super().explore(chains, threads)
        if self.pool is not None:
            self.pool.add(ended.q, ended.free_energy)
        return ended
