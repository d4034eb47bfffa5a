"""Work on the cells of a partition within the limits of one inference."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from proxfield.core.engines.plan import Chains, Explored
from proxfield.core.solve.history import Limits, Progress
from proxfield.core.solve.loop import Loop
from proxfield.core.solve.problem import Problem
from proxfield.core.solve.rules.base import Rule
from proxfield.core.solve.rules.polish import polish
from proxfield.core.solve.rules.portfolio import EVALUATIONS_PER_SWEEP, large_sweep_seconds
from proxfield.core.solve.search.cells import Cell, Pool, RecordingSession
from proxfield.core.solve.session import Session
from proxfield.errors import UnsupportedError

TRIAL_SWEEPS = 30
"""Maximum number of sweeps of a descent before the last polish."""
MAX_ONE_THREAD = 1 << 14
"""Entries up to which descents, which are short, run on one thread."""
TRIAL_TOL = 1e-4
"""A descent ends when no marginal changes by more than this."""


@dataclass
class CellWork:
    """Sessions, limits and descents of cells; all share the clock and the iterations of one loop.

    Args:
        session: The inference of the whole field.
        rule: The rule that searches.
        pool: Where states are kept.
    """

    session: Session
    rule: Rule
    pool: Pool

    def __post_init__(self) -> None:
        self.loop = self.session.loop
        self.limits = self.session.limits
        self.lowered = self.session.problem.lowered
        self.layout = self.lowered.layout
        self.sweepable = self.session.sweepable
        self.timed_sweeps, self.timed_seconds = 0, 0.0

    # ---- limits ----

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
        guess = EVALUATIONS_PER_SWEEP * self.loop.costs.evaluation
        return large_sweep_seconds(self.lowered) or guess

    def aside(self, iterations: float, seconds: float) -> Loop:
        """A loop for work on one cell, with limits of its own; the trace doesn't show it."""
        loop, whole = self.loop, self.limits
        base, since, callback = loop.iterations, loop.elapsed, loop.callback

        def report(progress: Progress) -> object:
            assert callback is not None
            return callback(
                replace(
                    progress,
                    iteration=base + progress.iteration,
                    seconds=since + progress.seconds,
                    max_iters=whole.max_iters,
                    budget=whole.budget,
                )
            )

        return Loop(
            Limits(
                max(0, int(min(iterations, whole.max_iters))),
                whole.tol,
                None if whole.budget is None else max(0.0, seconds),
            ),
            None if callback is None else report,
            False,
            loop.expand,
            loop.now,
            costs=loop.costs,
        )

    # ---- sessions ----

    def session_of(self, cell: Cell, loop: Loop, shift: int = 0) -> RecordingSession:
        """The inference of one cell.

        Args:
            cell: The cell.
            loop: Its limits and trace.
            shift: Added to the random seed.
        """
        whole = self.session
        low = cell.restrict(self.lowered)
        return RecordingSession(
            # what bounds the curvature of the whole field bounds that of a part
            problem=Problem(low, whole.problem.curvature, whole.problem.seed + shift),
            loop=loop,
            limits=loop.limits,
            start=cell.q,
            kernels=whole.kernels,
            dtype=whole.dtype,
            threads=whole.threads,
            keep=whole.keep,
            limited=whole.limited,
            made=whole.program if low is self.lowered else None,
            pool=self.pool,
        )

    # ---- descents ----

    def explore(self, session: Session, chains: Chains, *, record: bool = False) -> Explored:
        """Run chains, count their sweeps and learn how long one takes."""
        begun = self.loop.now()
        threads = 1 if self.layout.size < MAX_ONE_THREAD else None  # starting others takes longer
        explore = session.explore if record else partial(Session.explore, session)
        ended = explore(chains, threads)
        made = int(ended.sweeps.sum())
        self.loop.iterations += made
        self.timed_sweeps += made
        self.timed_seconds += self.loop.now() - begun
        return ended

    def descend(self, cell: Cell, starts: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
        """Descend inside a cell from some starts; the best end and its F.

        F of the end isn't above that of any start.

        Args:
            cell: The cell.
            starts: Marginals without weight outside of the cell.  # (starts, size)
        """
        if self.sweepable:
            fits = int(np.clip(self.sweeps_left(1.0) / len(starts), 0, TRIAL_SWEEPS))
            chains = Chains.make(starts, polish=fits, tol=TRIAL_TOL)
            ended = self.explore(self.session_of(cell, self.loop), chains)
            f = np.where(np.isnan(ended.free_energy), np.inf, ended.free_energy)
            best = int(f.argmin())
            return np.asarray(ended.q[best], dtype=np.float64), float(f[best])
        found = [self._descend_together(cell, start) for start in starts]
        return min(found, key=lambda end: end[1])

    def _descend_together(
        self, cell: Cell, start: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], float]:
        """Some updates of all variables, where single ones can't be visited."""
        iterations, seconds = self.left(1.0)
        own = self.aside(min(iterations, TRIAL_SWEEPS), seconds)
        session = self.session_of(cell, own)
        f = session.measure(start)
        own.tell(start, f)
        try:
            outcome = polish(session, start)
        except UnsupportedError:  # no certified step, because a term has no curvature
            return start, f
        self.loop.iterations += own.iterations
        better = outcome.free_energy < f
        return (outcome.q, float(outcome.free_energy)) if better else (start, f)
