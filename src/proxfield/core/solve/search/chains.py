"""What searches by chains share: random seeds, choices that learn, and what there is time for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from proxfield.core.solve.rules.portfolio import large_sweep_seconds, visits
from proxfield.core.solve.search import tuned
from proxfield.core.solve.session import Session
from proxfield.core.terms.base import Doubles, Ints
from proxfield.result import one_hot

T = TypeVar("T")


class ChainSearch:
    """A search for a state at which an objective is low, by chains that are heated and cooled.

    `MinimumSearch` minimizes F, `LabellingSearch` the energy.
    """

    def __init__(self, session: Session) -> None:
        self.session, self.loop = session, session.loop
        self.lowered = session.problem.lowered
        self.layout = self.lowered.layout
        self.rng = np.random.default_rng(session.problem.seed)
        self.chains_made = 0
        self.improved_at = 0
        """Iterations that were made when the best state was found."""

    def seeds(self, count: int) -> NDArray[np.uint64]:
        """Random seeds of the next chains."""
        first = self.chains_made + (self.session.problem.seed << 32)
        self.chains_made += count
        return np.array([(first + k) % 2**64 for k in range(count)], dtype=np.uint64)

    def one_hot(self, labels: Ints) -> Doubles:
        """A labelling as marginals."""
        return one_hot(self.layout.offsets, labels)

    def stalled(self) -> bool:
        """Whether a search without limits has come to rest."""
        quiet = self.loop.iterations - self.improved_at
        return not self.session.limited and quiet > max(tuned.STALL_SWEEPS, 2 * self.improved_at)


class Arms(Generic[T]):
    """Options to draw from, with what each has gained and cost (a bandit).

    Every option also counts as one outcome of average gain per cost, so that none is given up
    after a single failure.

    Args:
        options: The options, and how often each is drawn as long as nothing is known.
        memory: Weight of what was learned before when more is learned: what pays changes as a
            search goes on.
        curiosity: Share of the draws that don't look at what paid.
        sharpness: Power of gain per cost that the other draws are in proportion to.
        prior: Cost of the average outcome that is added; by default the average cost.
    """

    def __init__(
        self, options: Mapping[T, float], *, memory: float, curiosity: float,
        sharpness: float = 1.0, prior: float | None = None,
    ) -> None:  # fmt: skip
        self.options = list(options)
        self.first = np.array(list(options.values())) / sum(options.values())
        self.memory, self.curiosity = memory, curiosity
        self.sharpness, self.prior = sharpness, prior
        self.gain, self.cost = np.zeros(len(self.options)), np.zeros(len(self.options))
        self.outcomes = 0.0

    def shares(self) -> Doubles:
        """The probability of each option.  # (options,)"""
        gain, cost = self.gain.sum(), self.cost.sum()
        if not gain > 0.0:
            return self.first
        prior = cost / self.outcomes if self.prior is None else self.prior
        rate = (self.gain + prior * gain / cost) / (self.cost + prior)
        rate = self.first * (rate / rate.max()) ** self.sharpness
        return np.asarray(self.curiosity * self.first + (1.0 - self.curiosity) * rate / rate.sum())

    def draw(self, rng: np.random.Generator, allowed: Sequence[bool] | None = None) -> int:
        """The number of an option, one of those allowed."""
        p = self.shares() if allowed is None else np.where(allowed, self.shares(), 0.0)
        return int(rng.choice(len(p), p=p / p.sum()))

    def learn(self, option: int | Ints, gain: ArrayLike, cost: ArrayLike) -> None:
        """An option, or several, lowered the objective by ``gain``, at a cost in any unit."""
        self.gain *= self.memory
        self.cost *= self.memory
        np.add.at(self.gain, option, gain)
        np.add.at(self.cost, option, cost)
        self.outcomes = self.memory * self.outcomes + np.size(option)


class ChainPace:
    """How fast chains have been, and what there is time for: seconds or, without a budget, sweeps.

    Attributes:
        threads: Threads that the next chains run on.
        paces: Sweeps a second, by moves ("": without sampling) and number of threads.
        work: Sweeps and seconds that this was learned from; earlier ones count less.
        rounds: How often chains have run.
        visits: Entries and edge ends that a sweep visits.
    """

    def __init__(self, session: Session) -> None:
        self.session, self.loop = session, session.loop
        self.budget = session.limits.budget
        self.threads, self.rounds = 1, 0
        self.paces: dict[tuple[str, int], float] = {}
        self.work: dict[tuple[str, int], tuple[float, float]] = {}
        self.visits = visits(session.problem.lowered)

    def learn(self, moves: str, sweeps: int, seconds: float) -> None:
        """So many sweeps of chains took so long."""
        before = self.work.get((moves, self.threads), (0.0, 0.0))  # earlier work counts less
        known = 0.5 * before[0] + sweeps, 0.5 * before[1] + seconds
        self.work[moves, self.threads] = known
        self.paces[moves, self.threads] = max(1.0, known[0]) / known[1]
        self.rounds += 1

    def spent(self) -> float:
        """What has been used up."""
        return float(self.loop.iterations) if self.budget is None else self.loop.elapsed

    def left(self) -> float:
        """What is left for exploring."""
        sweeps = 0.9 * self.session.limits.max_iters - self.loop.iterations
        if self.budget is None:
            return sweeps
        kept = min(tuned.POLISH_SWEEPS / 2 * self.sweep_seconds(), tuned.END_SHARE * self.budget)
        seconds = 0.97 * (self.budget - self.loop.elapsed) - kept
        return min(seconds, sweeps * self.sweep_seconds())

    def sweep_seconds(self) -> float:
        """Duration of a sweep without sampling: measured, or guessed (1 without a budget)."""
        if self.budget is None:
            return 1.0
        for moves in ("", "sites"):
            if (moves, 1) in self.paces:
                return 1.0 / self.paces[moves, 1]
        lowered = self.session.problem.lowered
        large = large_sweep_seconds(lowered)
        if large > 0.0 and lowered.potts is None and not lowered.factors:
            return large
        return max(large, tuned.SWEEP_EVALUATIONS * self.loop.costs.evaluation, 1e-9)

    def pace(self, moves: str) -> float:
        """Sweeps a second that all threads make (1 without a budget)."""
        if self.budget is None:
            return 1.0
        keys = [(moves, self.threads), (moves, 1), ("sites", self.threads), ("sites", 1)]
        return next(self.paces[key] for key in keys if key in self.paces)

    def room(self, moves: str) -> float:
        """Sweeps of each of the next chains that fit into what is left."""
        return self.left() * self.pace(moves) / self.lanes()

    def lanes(self) -> int:
        """Chains that run at the same time."""
        return 1 if self.budget is None else self.threads

    def slice(self, length: float) -> float:
        """Sweeps until the next look at the clock, of a cooling of so many."""
        if self.budget is None:
            return max(1.0, tuned.SLICE_VISITS / self.visits)
        aim = self.sweeps_in(max(tuned.SLICE_SECONDS, 8 * self.sweep_seconds()), "sites")
        return max(min(tuned.MIN_SLICE, aim), min(length / 4, aim))

    def sweeps_in(self, seconds: float, moves: str) -> float:
        """Sweeps of a chain in so many seconds (without a budget: any number)."""
        if self.budget is None:
            return np.inf
        return seconds * self.pace(moves) / self.lanes()

    def count(self, moves: str, sweeps: int) -> int:
        """Chains of a round, each of so many sweeps."""
        if self.budget is None:
            return int(min(tuned.CHAINS_PER_ROUND, self.left() // sweeps))
        seconds = min(tuned.ROUND_SECONDS, tuned.ROUND_SHARE * self.budget, self.left())
        return self.threads * int(np.clip(self.sweeps_in(seconds, moves) / sweeps, 1, 16))

    def pays(self, seconds: float) -> bool:
        """Whether there is time for something that takes so many seconds per visit."""
        return seconds * self.visits < tuned.PREPARING_SHARE * self.session.seconds_left

    def choose_threads(self) -> None:
        """One thread or all: whichever makes more sweeps a second here and now.

        On a busy machine threads wait for each other; the pace of both is looked at
        again now and then. This decides how fast chains run, not what they find.
        """
        most = self.session.program.threads
        paces = [self.paces.get(("sites", k), np.inf) for k in (1, most)]
        one = (paces[0] > paces[1]) != (self.rounds % 16 == 15)
        self.threads = 1 if one else most
