"""Cells of a partition of all labellings, a pool of states that were seen, and work on cells."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from proxfield.core.engines.plan import Chains, Explored
from proxfield.core.lowering.reduction import Reduction
from proxfield.core.solve.history import Limits, Progress
from proxfield.core.solve.loop import Loop
from proxfield.core.solve.rules.base import Problem, Rule
from proxfield.core.solve.rules.portfolio import large_sweep_seconds, polish
from proxfield.core.solve.search import tuned
from proxfield.core.solve.session import Session
from proxfield.core.terms.base import Doubles, Floats, Layout
from proxfield.errors import UnsupportedError
from proxfield.mixture import Clamp
from proxfield.result import Status


@dataclass
class Cell:
    """Labellings that agree with some decisions, and mean field among them."""

    keep: NDArray[np.bool_]  # entries that the decisions leave possible
    clamps: tuple[Clamp, ...]  # the decisions, in the lowered field's numbering
    q: Doubles  # marginals without weight on other entries
    free_energy: float
    status: Status  # why they were left as they are
    split: Split | None = None  # the best one, once that is known

    def child(self, layout: Layout, clamp: Clamp, status: Status) -> Cell:
        """The part of the cell where one more decision holds; F isn't known yet."""
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

    def condition(self, layout: Layout, q: Floats) -> Doubles:
        """Marginals given the cell; variables without weight there become uniform."""
        out = np.where(self.keep, q, 0.0)
        dead = layout.sum_by_variable(out) <= 0
        if dead.any():
            out = np.where(dead[layout.owner] & self.keep, 1.0, out)
        return layout.normalize(out)


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
        flip = not clamp.held and int(reduction.full.cardinalities[variable]) == 2
        out.append(Clamp(variable, 1 - label if flip else label, clamp.held or flip))
    return tuple(out)


@dataclass
class Pool:
    """The states of lowest F seen, no two of which have the same most probable labels."""

    layout: Layout
    capacity: int
    states: dict[bytes, tuple[float, Doubles]] = field(default_factory=dict)

    def add(self, q: Floats, f: float) -> None:
        """Keep a state whose F is low enough.  # (size,)"""
        key = self.layout.best_labels(q).tobytes()
        if np.isfinite(f) and (key not in self.states or f < self.states[key][0]):
            self.states[key] = float(f), np.array(q, dtype=np.float64)
            if len(self.states) > 2 * self.capacity:
                self._thin()

    def _thin(self) -> None:
        """Keep half of the capacity by F alone, and half by F among states that differ much."""
        if len(self.states) <= self.capacity:
            return
        ranked = sorted(self.states, key=lambda key: self.states[key][0])
        kept = dict.fromkeys(ranked[: self.capacity // 2])
        apart = max(1, int(tuned.MIN_DISTANCE * self.layout.n_vars))
        labels = np.stack([np.frombuffer(key, dtype=np.int64) for key in ranked])
        near = np.zeros(len(ranked), dtype=bool)
        for k, key in enumerate(ranked):
            if len(kept) == self.capacity:
                break
            if not near[k]:
                kept[key] = None
                near |= (labels != labels[k]).sum(axis=1) < apart
        others = [key for key in ranked if key not in kept]
        kept.update(dict.fromkeys(others[: self.capacity - len(kept)]))
        self.states = {key: self.states[key] for key in ranked if key in kept}

    def inside(self, cell: Cell, most: int) -> Doubles:
        """States with the most probable labels inside a cell, lowest F first.  # (states, size)"""
        self._thin()
        first = self.layout.offsets[:-1]
        bounded = np.unique([clamp.variable for clamp in cell.clamps]).astype(np.int64)
        states = [
            q
            for key, (_, q) in sorted(self.states.items(), key=lambda item: item[1][0])
            if cell.keep[(first + np.frombuffer(key, dtype=np.int64))[bounded]].all()
        ]
        return np.stack(states[:most]) if states[:most] else np.zeros((0, self.layout.size))


class CellWork:
    """Sessions, limits and descents of cells; all share the clock and the iterations of one loop.

    The session is that of the whole field, the rule searches, the pool keeps states.
    """

    def __init__(self, session: Session, rule: Rule, pool: Pool) -> None:
        self.session, self.rule, self.pool = session, rule, pool
        self.loop, self.limits = session.loop, session.limits
        self.lowered, self.sweepable = session.problem.lowered, session.program.sweepable
        self.layout = self.lowered.layout
        self.timed_sweeps, self.timed_seconds = 0, 0.0

    def left(self, share: float) -> tuple[float, float]:
        """(iterations, seconds) until a share of the limits is used up."""
        whole = self.limits
        seconds = np.inf if whole.budget is None else share * whole.budget - self.loop.elapsed
        return share * whole.max_iters - self.loop.iterations, seconds

    def sweeps_left(self, share: float) -> float:
        """Sweeps until a share of the limits is used up."""
        iterations, seconds = self.left(share)
        if self.limits.budget is None:
            return iterations
        return min(iterations, seconds / max(self.sweep_seconds, 1e-9))

    @property
    def sweep_seconds(self) -> float:
        """Duration of a sweep, as measured, or as guessed before one was made."""
        if self.timed_sweeps:
            return self.timed_seconds / self.timed_sweeps
        guess = tuned.EVALUATIONS_PER_SWEEP * self.loop.costs.evaluation
        return large_sweep_seconds(self.lowered) or guess

    def aside(self, iterations: float, seconds: float) -> Loop:
        """A loop for work on one cell, with limits of its own; the trace doesn't show it."""
        loop, whole = self.loop, self.limits
        base, since, callback = loop.iterations, loop.elapsed, loop.callback

        def report(progress: Progress) -> object:
            assert callback is not None
            now, seconds = base + progress.iteration, since + progress.seconds
            shown = replace(progress, iteration=now, seconds=seconds, budget=whole.budget)
            return callback(replace(shown, max_iters=whole.max_iters))

        budget = None if whole.budget is None else max(0.0, seconds)
        limits = Limits(max(0, int(min(iterations, whole.max_iters))), whole.tol, budget)
        shifted = None if callback is None else report
        return Loop(limits, shifted, False, loop.expand, loop.now, costs=loop.costs)

    def session_of(self, cell: Cell, loop: Loop, shift: int = 0, record: bool = True) -> Session:
        """The inference of one cell, in a loop with its limits and trace, by a shifted random seed.

        States in which chains end are recorded in the pool.
        """
        whole, low = self.session, self.lowered
        if not cell.keep.all():  # what lies outside has the energy +inf
            low = replace(low, unary=np.where(cell.keep, low.unary, np.inf))
        # what bounds the curvature of the whole field bounds that of a part
        problem = Problem(low, whole.problem.curvature, whole.problem.seed + shift)
        own = replace(whole, problem=problem, loop=loop, limits=loop.limits, start=cell.q)
        made = whole.program if low is self.lowered else None
        return replace(own, made=made, memory={}, watch=self.pool.add if record else None)

    def explore(self, session: Session, chains: Chains) -> Explored:
        """Run chains, count their sweeps and learn how long one takes."""
        begun = self.loop.now()
        small = self.layout.size < tuned.MAX_ONE_THREAD
        threads = 1 if small else None  # starting others takes longer
        ended = session.explore(chains, threads)
        made = int(ended.sweeps.sum())
        self.loop.iterations += made
        self.timed_sweeps += made
        self.timed_seconds += self.loop.now() - begun
        return ended

    def descend(self, cell: Cell, starts: Doubles) -> tuple[Doubles, float]:
        """Descend inside a cell from some starts without weight outside; the best end and its F.

        F of the end isn't above that of any start.  # (starts, size)
        """
        if self.sweepable:
            fits = int(np.clip(self.sweeps_left(1.0) / len(starts), 0, tuned.TRIAL_SWEEPS))
            chains = Chains.make(starts, polish=fits, tol=tuned.TRIAL_TOL)
            ended = self.explore(self.session_of(cell, self.loop, record=False), chains)
            f = np.where(np.isnan(ended.free_energy), np.inf, ended.free_energy)
            best = int(f.argmin())
            return np.asarray(ended.q[best], dtype=np.float64), float(f[best])
        found: list[tuple[Doubles, float]] = []
        for start in starts:  # single variables can't be visited: some updates of all
            iterations, seconds = self.left(1.0)
            own = self.aside(min(iterations, tuned.TRIAL_SWEEPS), seconds)
            session = self.session_of(cell, own)
            found.append((start, session.measure(start)))
            own.tell(*found[-1])
            try:
                outcome = polish(session, start)
            except UnsupportedError:  # no certified step, because a term has no curvature
                continue
            self.loop.iterations += own.iterations
            found.append((outcome.q, float(outcome.free_energy)))
        return min(found, key=lambda end: end[1])
