"""`auto`, the default: chooses for the user and spends the budget well.

- Where the curvature shows that F is convex, one minimum is all there is: sweep to it.
- Otherwise *cooled chains*: heat-bath sampling from a temperature down to 1, then sweeps into a
  local minimum of F. Sampling crosses the barriers at which deterministic rules stop. Chains
  run on all threads; each starts from the best state so far, reheated to a random degree
  between a nudge and a fresh start, for a random number of sweeps.
- Fields with terms that can only be iterated as a whole: annealing (backtracking where a term has
  no bound on its curvature, or a relative one), ADAM and momentum.

It always ends with sweeps (or the certified rule) to the tolerance, and leaves saddles: where it
says CONVERGED, it is at a local minimum.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from proxfield.common.interrupts import finish_first
from proxfield.common.logs import log
from proxfield.result import Status
from proxfield.rules.anneal import Anneal
from proxfield.rules.backtracking import Backtracking
from proxfield.rules.base import Rule
from proxfield.rules.certified import prefers_search
from proxfield.rules.parallel import Adam, Momentum
from proxfield.rules.plan import Chains, Explored, Plan
from proxfield.rules.polish import better_of, end_at_minimum, polish
from proxfield.rules.portfolio import best_of, large_sweep_seconds, visits
from proxfield.rules.schedules import Sweep
from proxfield.rules.session import Outcome, Problem, Session
from proxfield.terms.base import Doubles

REHEAT_SHARES = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Temperatures to reheat to, as shares of the field's own scale."""
CHAIN_SWEEPS = (10, 30, 100, 300, 1000)
"""Sweeps of a chain; the longer ones only while they leave room for others."""
ROUND_SECONDS = 0.02
GRACE_SECONDS = 0.002
SAMPLING_SHARE = 0.9
"""Share of chains that sample labels; the others cool marginals."""
STALL_SWEEPS = 5000
"""Sweeps without a better F after which a run without limits may end."""
DEFAULT_VISITS = 1e8
"""Entries and edge ends to visit where the user sets no limit."""
POLISH_SWEEPS = 30
"""Maximum number of sweeps that end a chain."""
MIN_EVALUATIONS = 80
"""Evaluations of F that must fit into a budget for exploring to pay (a sweep takes a few)."""
EXPLORE_SWEEPS = 20
"""Sweeps that must fit too, on large fields."""
CHAINS_PER_ROUND = 4
"""Chains of a round where only iterations are limited."""
MIN_SWEEPS = 8
"""With time for fewer sweeps than this, exploring is pointless."""
HARD_SCALE = 10.0
"""Temperature scale where forbidden configurations leave the curvature infinite."""


@dataclass(frozen=True)
class Auto(Rule):
    """Needs no parameter: uses its budget (or max_iters sweeps) and ends at a local minimum."""

    name = "auto"
    summary = "the default: explores within the budget, ends at a local minimum"

    def plan(self, problem: Problem) -> Plan:
        return Sweep().plan(problem)

    def default_iterations(self, problem: Problem) -> int:
        """As many sweeps as take some tenths of a second."""
        return int(np.clip(DEFAULT_VISITS / max(1, visits(problem.lowered)), 200, 20_000))

    def solve(self, session: Session) -> Outcome:
        if not session.sweepable:
            first = Backtracking() if prefers_search(session.problem.lowered) else Anneal()
            members: list[Rule] = [first, Adam(), Momentum()]
            log.debug("auto: variables can't be visited one by one; %s, adam, momentum", first.name)
            return best_of(session, [(rule.name, rule, session.start) for rule in members])
        scale = float(session.problem.curvature.local.max(initial=0.0))  # part of the set-up
        if (
            scale <= 2.0
        ):  # E − H is convex: λ_i bounds |eigenvalues|, and H's curvature is at least 2
            log.debug("auto: F is convex (λ = %.3g); one descent", scale)
            return polish(session, session.start)
        if session.loop.max_iters - session.loop.iterations < 4 * MIN_SWEEPS:
            return polish(session, session.without_symmetry(session.start))
        log.debug("auto: F may have many minima (λ = %.3g); cooled chains", scale)
        return Search(session, scale).run(session.start, np.inf)

    def improve(self, session: Session, outcome: Outcome) -> Outcome:
        loop = session.loop
        loop.keep(outcome.free_energy, outcome.q)
        if loop.max_iters - loop.iterations < 4 * MIN_SWEEPS:
            return end_at_minimum(session, outcome)
        found = Search(session, HARD_SCALE).run(outcome.q, outcome.free_energy)
        return replace(better_of(session, outcome, found), labels=outcome.labels)


@dataclass
class Search:
    """Rounds of chains from the best state so far."""

    session: Session
    scale: float
    best_f: float = np.inf
    best_q: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    pace: dict[int, float] = field(default_factory=dict)
    """Sweeps a second, by the number of threads."""
    chains_made: int = 0
    rounds: int = 0
    improved_at: int = 0

    def run(self, start: NDArray[np.float64], f: float) -> Outcome:
        """Explore until the limits leave just enough to polish."""
        session, loop = self.session, self.session.loop
        self.start, self.best_q, self.best_f = start, start, f
        self.rng = np.random.default_rng(session.problem.seed)
        session.warm_up_chains(start)
        first = session.measure(start)
        loop.tell(start, first)
        if f == np.inf:
            self.best_f = first
            loop.note(0, loop.elapsed, first)
        if loop.budget is not None and not self._time_to_explore():
            return polish(session, session.without_symmetry(start))  # time for a descent alone
        halted: Status | None = None
        try:
            while (chains := self._next()) is not None:
                self._round(chains)
                quiet = loop.iterations - self.improved_at
                if not session.limited and quiet > max(STALL_SWEEPS, 2 * self.improved_at):
                    break
                if loop.report(self.best_f, self.best_q):
                    halted = Status.STOPPED
                    break
        except KeyboardInterrupt:
            halted = Status.INTERRUPTED
        if halted is not None:
            return Outcome(self.best_q, self.best_f, halted)
        loop.member = "polish"
        budget = loop.budget
        if budget is not None:  # a few sweeps to the tolerance are worth a little overtime
            loop.budget = max(1.03 * budget, min(loop.elapsed, budget) + GRACE_SECONDS)
        before = Outcome(self.best_q, self.best_f, Status.MAX_ITERS)
        loop.keep(self.best_f, self.best_q)
        loop.tell(self.best_q, self.best_f)
        outcome = polish(session, self.best_q)
        loop.budget = budget
        return better_of(session, before, outcome)

    # ---- limits ----

    def _time_to_explore(self) -> bool:
        """Whether the budget leaves time for enough sweeps."""
        loop = self.session.loop
        needed = EXPLORE_SWEEPS * large_sweep_seconds(self.session.problem.lowered)
        return loop.seconds_left() >= max(MIN_EVALUATIONS * loop.costs.evaluation, needed)

    def _threads(self) -> int:
        """One thread or all: whichever makes more sweeps a second here and now.

        On a busy machine threads wait for each other; the pace of both is looked at
        again now and then. This decides how fast chains run, not what they find.
        """
        most = self.session.chain_threads
        if most == 1 or self.rounds == 0:
            return 1
        best = max(self.pace, key=lambda k: self.pace[k])
        if self.rounds == 1 or self.rounds % 16 == 0:
            return most if best == 1 else 1
        return best

    def _room(self, threads: int) -> tuple[int, int]:
        """(chains, sweeps of each with polish) that fit into the next round; (0, 0): none.

        Without a budget this depends on the iterations alone, so that a run can be repeated.
        """
        loop = self.session.loop
        left = int(0.9 * loop.max_iters) - loop.iterations
        lanes, count = CHAINS_PER_ROUND, CHAINS_PER_ROUND
        if loop.budget is not None:
            pace = self.pace.get(threads, self.pace[1])
            seconds = 0.97 * (loop.budget - loop.elapsed) - POLISH_SWEEPS / 2 / self.pace[1]
            left = min(left, int(seconds * pace))
            wanted = min(ROUND_SECONDS, loop.budget / 20) * pace
            lanes = threads
            count = lanes * int(np.clip(wanted / (lanes * (40 + POLISH_SWEEPS / 2)), 1, 16))
        count = min(count, left // (MIN_SWEEPS + POLISH_SWEEPS // 2))
        return (count, left // max(lanes, count)) if count > 0 else (0, 0)

    # ---- chains ----

    def _next(self) -> Chains | None:
        """The chains of the next round; None when it is time to stop."""
        if self.rounds == 0:  # a few sweeps to learn the pace: one plain cooling, one drawn
            return self._chains(np.stack([self.start] * 2), self.scale / 2, 6, [False, True], 2)
        count, most = self._room(self._threads())
        if count == 0:
            return None
        if self.rounds == 1:  # plain sweeps, a plain cooling and drawn ones, all from the start
            number = np.arange(min(CHAINS_PER_ROUND, max(2, count)))
            cooling = int(np.clip(0.2 * most, MIN_SWEEPS, CHAIN_SWEEPS[2]))
            sweeps = np.where(number == 0, 0, cooling)
            starts = np.repeat(self.start[None], len(number), axis=0)
            finish = max(1, min(POLISH_SWEEPS, most - cooling))
            return self._chains(starts, self.scale / 3, sweeps, number > 1, finish)
        fitting = [n for n in CHAIN_SWEEPS if n <= max(CHAIN_SWEEPS[0], most / 4)]
        sweeps = np.minimum(self.rng.choice(fitting, size=count), max(1, most - POLISH_SWEEPS // 2))
        hot = self.scale * self.rng.choice(REHEAT_SHARES, size=count)
        drawn = self.rng.random(count) < SAMPLING_SHARE
        starts = np.repeat(self.best_q[None], count, axis=0)
        finish = max(1, min(POLISH_SWEEPS, most - int(sweeps.max())))
        return self._chains(starts, hot, sweeps, drawn, finish)

    def _chains(
        self, starts: NDArray[np.float64], hot: float | Doubles, sweeps: ArrayLike,
        drawn: ArrayLike, finish: int,
    ) -> Chains:  # fmt: skip
        return Chains.make(
            starts,
            hot=np.maximum(1.0, hot),
            sweeps=sweeps,
            seeds=self._seeds(len(starts)),
            drawn=drawn,
            polish=finish,
        )

    def _seeds(self, count: int) -> NDArray[np.uint64]:
        first = self.chains_made + (self.session.problem.seed << 32)
        self.chains_made += count
        return np.array([(first + k) % 2**64 for k in range(count)], dtype=np.uint64)

    def _round(self, chains: Chains) -> None:
        loop, threads = self.session.loop, self._threads()
        begun, base = loop.now(), loop.elapsed
        with finish_first():
            ended = self.session.explore(chains, threads)
            self._take(chains, ended, threads, base, loop.now() - begun)

    def _take(
        self, chains: Chains, ended: Explored, threads: int, base: float, spent: float
    ) -> None:
        """Keep the best end of a round, and what it cost."""
        loop = self.session.loop
        made = int(ended.sweeps.sum())
        self.pace[threads] = 0.5 * (made / spent + self.pace.get(threads, made / spent))
        self.rounds += 1
        winner = int(ended.free_energy.argmin())
        if ended.free_energy[winner] < self.best_f:
            if ended.free_energy[winner] < self.best_f - 1e-6 * (1 + abs(self.best_f)):
                self.improved_at = loop.iterations + made
            self.best_f, self.best_q = float(ended.free_energy[winner]), ended.q[winner]
            kind = "drawn" if chains.drawn[winner] else "cooled"
            loop.member = f"{kind} from T={chains.hot[winner]:.3g}, {chains.sweeps[winner]} sweeps"
        loop.note(made, base + spent, self.best_f)
