"""What a search by chains has time for: in seconds or, without a budget, in sweeps."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from proxfield.core.solve.rules.portfolio import large_sweep_seconds, visits
from proxfield.core.solve.session import Session

POLISH_SWEEPS = 30
"""Maximum number of sweeps from the start, and at the end of the cooling."""
END_SWEEPS = 200
"""The same from the best state of all, before its convergence is tested."""
END_SHARE = 0.2
"""Maximum share of the budget that is kept for the end."""
SLICE_SECONDS = 0.05
"""Aim of a slice of the cooling, which has four slices or more ..."""
MIN_SLICE = 40
"""... of so many sweeps at least, except on large fields."""
SLICE_VISITS = 5e6
"""Entries and edge ends that a slice visits where only iterations are limited."""
ROUND_SECONDS, ROUND_SHARE = 0.02, 0.02
"""Short reheats are made several in a round: so many seconds, or this share of the budget."""
CHAINS_PER_ROUND = 4
"""Chains of a round where only iterations are limited."""
SWEEP_EVALUATIONS = 12.0
"""Duration of a sweep in evaluations of F, before one has been timed; on large binary fields, where
these run on all threads, by the entries and edge ends that it visits."""
PREPARING_SHARE = 0.05
"""Share of what is left that preparing something may take; otherwise there is none of it."""


@dataclass
class Limits:
    """The limits of a session, and how fast chains have been.

    Args:
        session: The inference.

    Attributes:
        threads: Threads that the next chains run on.
        paces: Sweeps a second, by moves ("": without sampling) and number of threads.
        work: Sweeps and seconds that this was learned from; earlier ones count less.
        rounds: How often chains have run.
        visits: Entries and edge ends that a sweep visits.
    """

    session: Session
    threads: int = 1
    paces: dict[tuple[str, int], float] = field(default_factory=dict)
    work: dict[tuple[str, int], tuple[float, float]] = field(default_factory=dict)
    rounds: int = 0

    def __post_init__(self) -> None:
        self.visits = visits(self.session.problem.lowered)

    def learn(self, moves: str, sweeps: int, seconds: float) -> None:
        """So many sweeps of chains took so long."""
        known = self.work.get((moves, self.threads), (0.0, 0.0))
        known = 0.5 * known[0] + sweeps, 0.5 * known[1] + seconds
        self.work[moves, self.threads] = known
        self.paces[moves, self.threads] = max(1.0, known[0]) / known[1]
        self.rounds += 1

    def waiting(self) -> bool:
        """Whether several threads make fewer sweeps a second than one."""
        return self.lanes() > 1 and self.paces["sites", self.threads] < self.paces["sites", 1]

    def spent(self) -> float:
        """What has been used up."""
        loop = self.session.loop
        return float(loop.iterations) if self.session.limits.budget is None else loop.elapsed

    def left(self) -> float:
        """What is left for exploring."""
        loop, limits = self.session.loop, self.session.limits
        sweeps = 0.9 * limits.max_iters - loop.iterations
        if limits.budget is None:
            return sweeps
        kept = min(POLISH_SWEEPS / 2 * self.sweep_seconds(), END_SHARE * limits.budget)
        seconds = 0.97 * (limits.budget - loop.elapsed) - kept
        return min(seconds, sweeps * self.sweep_seconds())

    def last_sweeps(self) -> int:
        """Sweeps that may follow in half of what is left of the limits themselves."""
        left = float(self.session.iterations_left)
        if self.session.limits.budget is not None:
            left = min(left, self.session.seconds_left / self.sweep_seconds() - 1.0)
        return int(np.clip(left / 2, 0, END_SWEEPS))

    def polish_sweeps(self) -> int:
        """Sweeps that end the cooling."""
        return int(np.clip(END_SHARE * self.left() / self.sweep_seconds(), 1, POLISH_SWEEPS))

    def sweep_seconds(self) -> float:
        """Duration of a sweep without sampling: measured, or guessed (1 without a budget)."""
        if self.session.limits.budget is None:
            return 1.0
        for moves in ("", "sites"):
            if (moves, 1) in self.paces:
                return 1.0 / self.paces[moves, 1]
        lowered = self.session.problem.lowered
        large = large_sweep_seconds(lowered)
        if large > 0.0 and lowered.potts is None and not lowered.factors:
            return large
        return max(large, SWEEP_EVALUATIONS * self.session.loop.costs.evaluation, 1e-9)

    def pace(self, moves: str) -> float:
        """Sweeps a second that all threads make (1 without a budget)."""
        if self.session.limits.budget is None:
            return 1.0
        for key in ((moves, self.threads), (moves, 1), ("sites", self.threads)):
            if key in self.paces:
                return self.paces[key]
        return self.paces["sites", 1]

    def room(self, moves: str) -> float:
        """Sweeps of each of the next chains that fit into what is left."""
        return self.left() * self.pace(moves) / self.lanes()

    def lanes(self) -> int:
        """Chains that run at the same time."""
        return 1 if self.session.limits.budget is None else self.threads

    def slice(self, length: float) -> float:
        """Sweeps until the next look at the clock, of a cooling of so many."""
        if self.session.limits.budget is None:
            return max(1.0, SLICE_VISITS / self.visits)
        aim = self.sweeps_in(max(SLICE_SECONDS, 8 * self.sweep_seconds()), "sites")
        return max(min(MIN_SLICE, aim), min(length / 4, aim))

    def sweeps_in(self, seconds: float, moves: str) -> float:
        """Sweeps of a chain in so many seconds (without a budget: any number)."""
        if self.session.limits.budget is None:
            return np.inf
        return seconds * self.pace(moves) / self.lanes()

    def count(self, moves: str, sweeps: int) -> int:
        """Chains of a round, each of so many sweeps."""
        budget = self.session.limits.budget
        if budget is None:
            return int(min(CHAINS_PER_ROUND, self.left() // sweeps))
        seconds = min(ROUND_SECONDS, ROUND_SHARE * budget, self.left())
        return self.threads * int(np.clip(self.sweeps_in(seconds, moves) / sweeps, 1, 16))

    def pays(self, seconds: float) -> bool:
        """Whether there is time for something that takes so many seconds per visit."""
        left = self.session.seconds_left
        return seconds * self.visits < PREPARING_SHARE * left

    def choose_threads(self) -> None:
        """One thread or all: whichever makes more sweeps a second here and now.

        On a busy machine threads wait for each other; the pace of both is looked at
        again now and then. This decides how fast chains run, not what they find.
        """
        most = self.session.chain_threads
        paces = [self.paces.get(("sites", k), np.inf) for k in (1, most)]
        best = 1 if paces[0] > paces[1] else most
        other = most if best == 1 else 1
        self.threads = other if self.rounds % 16 == 15 else best
