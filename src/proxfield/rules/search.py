"""The search of `auto`: one cooling, then reheats of the best state, judged part by part.

1. A few plain sweeps from the start, and a few random ones that show how fast this field is.
2. One *cooling*: heat-bath sampling from a high temperature to a low one, then sweeps into a
   local minimum of F. It is as long as the budget allows, up to a length beyond which reheats pay
   more; on large fields it takes most of the budget.
3. *Reheats* of the best state with what is left: warm it up, cool it again, sweep. The end is
   compared with the best state part by part (`rules.parts`). How hot, how long, how far to cool
   and by which moves is drawn from what has paid so far (`rules.arms`).

Long runs are cut into slices, between which the clock, the callback and Ctrl-C are looked at. Where
only iterations are limited, every decision depends on them alone, and a run can be repeated.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from proxfield.common.interrupts import finish_first
from proxfield.result import Status
from proxfield.rules.arms import Arms
from proxfield.rules.parts import Parts
from proxfield.rules.plan import Chains, Explored
from proxfield.rules.polish import better_of, polish
from proxfield.rules.portfolio import EVALUATIONS_PER_SWEEP, large_sweep_seconds, visits
from proxfield.rules.session import Outcome, Session

HOT_SHARE = 0.3
"""Temperature at which the first cooling starts, as a share of the field's own scale."""
COLD_SHARE = 0.01
"""Temperature at which chains end, likewise, but at most 1: colder than F itself, so that they end
in the middle of a minimum."""
REHEAT_SHARES = {0.03: 1.0, 0.06: 1.0, 0.12: 2.0, 0.2: 2.0, 0.35: 1.0, 0.7: 0.5}
"""Temperatures to reheat to, likewise, and how often each is tried at first."""
CHAIN_SWEEPS = {10: 0.5, 30: 1.0, 100: 2.0, 300: 2.0, 1000: 1.0}
"""Sweeps of a reheat, and how often each is tried at first."""
MOVES = {"sites": 2.0, "forests": 1.0, "cooled": 0.3}
"""How chains move: label by label, by whole forests, or marginals without sampling."""
COOLING_SWEEPS = 300
"""Sweeps of the first cooling, if they are within these shares of what is left."""
COOLING_SHARES = (0.1, 0.7)
POLISH_SWEEPS = 30
"""Maximum number of sweeps that end the first cooling, and sweeps from the start."""
END_SWEEPS = 200
"""The same at the very end, before the convergence is tested."""
REHEAT_POLISH = (3, 20)
"""The same for reheats: at least and at most; a twentieth of the chain's sweeps in between."""
SLICE_SECONDS = 0.05
"""Aim of a slice of the cooling, which has four slices or more ..."""
MIN_SLICE = 40
"""... of so many sweeps at least."""
SLICE_VISITS = 5e6
"""Entries and edge ends that a slice visits where only iterations are limited."""
CHAIN_SECONDS = 0.2
"""Maximum time of a reheat, which isn't cut into slices."""
ROUND_SECONDS, ROUND_SHARE = 0.02, 0.02
"""Several short reheats are made in one call: so many seconds of them, or a share of the budget."""
CHAINS_PER_ROUND = 4
"""Chains of a round where only iterations are limited."""
PACE_SWEEPS = 16
"""Random sweeps that show the pace."""
STALL_SWEEPS = 5000
"""Sweeps without a better F after which a run without limits may end."""
GRACE_SECONDS = 0.002
PART_SECONDS = 2e-7
"""What preparing to compare part by part takes, by entries and edge ends; above a twentieth of the
time left, states are compared as a whole."""


@dataclass
class Search:
    """Looks for a low minimum of F within the limits of a session.

    Args:
        session: The inference.
        scale: How strongly variables interact, as a temperature.
    """

    session: Session
    scale: float
    best_f: float = np.inf
    best_q: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    pace: dict[tuple[str, int], float] = field(default_factory=dict)
    """Sweeps a second, by moves and number of threads."""
    chains_made: int = 0
    rounds: int = 0
    improved_at: int = 0
    parts: Parts | None = None

    def run(self, start: NDArray[np.float64], f: float) -> Outcome:
        """Explore until the limits leave just enough to polish.

        Args:
            start: Marginals.
            f: F of these, if it is to be the best so far.
        """
        session, loop = self.session, self.session.loop
        self.start, self.best_q, self.best_f = start, start, f
        self.rng = np.random.default_rng(session.problem.seed)
        self.temperatures = Arms(list(REHEAT_SHARES), list(REHEAT_SHARES.values()))
        self.lengths = Arms(list(CHAIN_SWEEPS), list(CHAIN_SWEEPS.values()))
        self.moves = Arms(list(MOVES), list(MOVES.values()))
        session.warm_up_chains(start)
        first = session.measure(start)
        loop.tell(start, first)
        if f == np.inf:
            self.best_f = first
            loop.note(0, loop.elapsed, first)
        halted: Status | None = None
        try:
            for stage in (self._open, self._cool, self._reheat):
                halted = stage()
                if halted is not None:
                    break
        except KeyboardInterrupt:
            halted = Status.INTERRUPTED
        if halted is not None:
            return Outcome(self.best_q, self.best_f, halted)
        return self._end()

    def _end(self) -> Outcome:
        """From the best state to a minimum."""
        session, loop = self.session, self.session.loop
        loop.member = "polish"
        budget = loop.budget
        if budget is not None:  # a few sweeps to the tolerance are worth a little overtime
            loop.budget = max(1.03 * budget, min(loop.elapsed, budget) + GRACE_SECONDS)
        before = Outcome(self.best_q, self.best_f, Status.MAX_ITERS)
        loop.keep(self.best_f, self.best_q)
        self._round(
            self._chains(self.best_q[None], 1.0, 0, 1.0, polish=self._last_sweeps(), tol=loop.tol),
            take="polish",
        )
        loop.tell(self.best_q, self.best_f)
        outcome = polish(session, self.best_q)
        loop.budget = budget
        return better_of(session, before, outcome)

    def _last_sweeps(self) -> int:
        loop = self.session.loop
        left = loop.max_iters - loop.iterations
        if loop.budget is not None:
            left = min(left, int((loop.budget - loop.elapsed) / self._sweep_seconds()))
        return int(np.clip(left // 2, 0, END_SWEEPS))

    # ---- stages; each returns why the search has to stop, if it does ----

    def _open(self) -> Status | None:
        """Sweeps from the start; then random ones, from which the cooling goes on."""
        sweep = self._sweep_seconds()
        most = self._left() / sweep
        plain = int(min(POLISH_SWEEPS, 0.1 * most))
        self.state = self.start[None]
        if plain > 0:
            self._take(self._round(self._chains(self.start[None], 1.0, 0, 1.0, polish=plain)))
        chains = self._chains(
            np.repeat(self.start[None], self._lanes(), axis=0), self.hot,
            int(np.clip(0.02 * most, 1, PACE_SWEEPS)), self.hot, drawn=True, polish=0,
        )  # fmt: skip
        self.state = self._round(chains, "sites").q
        return self._asked()

    def _cool(self) -> Status | None:
        """One cooling on every thread, in slices."""
        share = float(np.clip(COOLING_SWEEPS / max(1.0, self._room("sites")), *COOLING_SHARES))
        begun, whole, done = self._spent(), share * self._left(), 0.0
        while True:
            length = max(1.0, whole * self._pace("sites") / self._lanes())  # in sweeps
            sweeps = int(max(1.0, min((1.0 - done) * length, self._slice(length))))
            after = done + sweeps / length
            last = after > 0.99
            after = 1.0 if last else after
            chains = self._chains(
                self.state, self._temperature(done), sweeps, self._temperature(after),
                drawn=True, polish=POLISH_SWEEPS if last else 0,
            )  # fmt: skip
            self.state = self._round(chains, "sites", take="cooling" if last else "").q
            halted = self._asked()
            if last or halted is not None:
                return halted
            done = float(np.clip((self._spent() - begun) / whole, done, 0.99))

    def _slice(self, length: float) -> float:
        """Sweeps until the next look at the clock, of a cooling of so many."""
        if self.session.loop.budget is None:
            return max(1.0, SLICE_VISITS / visits(self.session.problem.lowered))
        return max(MIN_SLICE, min(length / 4, SLICE_SECONDS * self._pace("sites") / self._lanes()))

    def _temperature(self, done: float) -> float:
        """Of the cooling, after a share of it."""
        return float(self.hot * (self.cold / self.hot) ** done)

    def _reheat(self) -> Status | None:
        """Reheats until nothing is left."""
        session, loop = self.session, self.session.loop
        lowered = session.problem.lowered
        if not lowered.hard and PART_SECONDS * visits(lowered) < 0.05 * loop.seconds_left():
            with loop.clock():
                self.parts = Parts(lowered)
        while True:
            moves = self.moves.draw(self.rng, [k != "forests" or self._forests() for k in MOVES])
            name = self.moves.options[moves]
            room = self._room(name)
            fits = [n <= max(10.0, room / 4) for n in self.lengths.options]
            length = self.lengths.draw(self.rng, fits)
            hot = self.temperatures.draw(self.rng)
            sweeps = self.lengths.options[length]
            polish_ = int(np.clip(sweeps // 20, *REHEAT_POLISH))
            count = self._count(name, sweeps + polish_)
            if room < sweeps + polish_ or count == 0:
                return None
            drawn = name != "cooled"
            chains = self._chains(
                np.repeat(self.best_q[None], count, axis=0),
                self.scale * self.temperatures.options[hot], sweeps,
                self.cold if drawn else 1.0, drawn=drawn, forests=name == "forests",
                polish=polish_,
            )  # fmt: skip
            before, begun = self.best_f, self._spent()
            label = f"{name} from T={chains.hot[0]:.3g}, {sweeps} sweeps"
            ended = self._round(chains, name, take=label)
            gain, cost = before - self.best_f, self._spent() - begun
            for arms, option in (
                (self.moves, moves), (self.lengths, length), (self.temperatures, hot),
            ):  # fmt: skip
                arms.learn(option, gain, cost)
            del ended
            quiet = loop.iterations - self.improved_at
            if not session.limited and quiet > max(STALL_SWEEPS, 2 * self.improved_at):
                return None
            halted = self._asked()
            if halted is not None:
                return halted

    def _asked(self) -> Status | None:
        asked = self.session.loop.report(self.best_f, self.best_q)
        return Status.STOPPED if asked else None

    # ---- limits ----

    @property
    def hot(self) -> float:
        return max(1.0, HOT_SHARE * self.scale)

    @property
    def cold(self) -> float:
        return min(1.0, COLD_SHARE * self.scale)

    def _spent(self) -> float:
        """Seconds or, without a budget, sweeps so far."""
        loop = self.session.loop
        return float(loop.iterations) if loop.budget is None else loop.elapsed

    def _left(self) -> float:
        """The same until it is time to polish."""
        loop = self.session.loop
        sweeps = int(0.9 * loop.max_iters) - loop.iterations
        if loop.budget is None:
            return float(sweeps)
        seconds = 0.97 * (loop.budget - loop.elapsed) - POLISH_SWEEPS / 2 * self._sweep_seconds()
        return seconds

    def _sweep_seconds(self) -> float:
        """Duration of a sweep that polishes (1 without a budget)."""
        loop = self.session.loop
        if loop.budget is None:
            return 1.0
        known = self.pace.get(("", 1))
        if known is not None:
            return 1.0 / known
        guess = EVALUATIONS_PER_SWEEP * loop.costs.evaluation
        return max(guess, large_sweep_seconds(self.session.problem.lowered), 1e-9)

    def _pace(self, moves: str) -> float:
        """Sweeps a second (1 without a budget)."""
        if self.session.loop.budget is None:
            return 1.0
        threads = self._threads()
        known = [self.pace.get(k) for k in ((moves, threads), (moves, 1), ("sites", 1))]
        return next(p for p in known if p is not None)

    def _room(self, moves: str) -> float:
        """Sweeps of each of the next chains that fit into what is left."""
        return self._left() * self._pace(moves) / self._lanes()

    def _lanes(self) -> int:
        """Chains that run at the same time."""
        return 1 if self.session.loop.budget is None else self._threads()

    def _count(self, moves: str, sweeps: int) -> int:
        """Chains of a round, each of so many sweeps."""
        loop = self.session.loop
        if loop.budget is None:
            return int(min(CHAINS_PER_ROUND, self._left() // sweeps))
        wanted = min(ROUND_SECONDS, ROUND_SHARE * loop.budget, self._left()) * self._pace(moves)
        lanes = self._lanes()
        return lanes * int(np.clip(wanted / (lanes * sweeps), 1, 16))

    def _forests(self) -> bool:
        return True

    def _threads(self) -> int:
        """One thread or all: whichever makes more sweeps a second here and now.

        On a busy machine threads wait for each other; the pace of both is looked at
        again now and then. This decides how fast chains run, not what they find.
        """
        most = self.session.chain_threads
        if most == 1 or self.rounds == 0:
            return 1
        best = max((1, most), key=lambda k: self.pace.get(("sites", k), 0.0))
        if self.rounds == 1 or self.rounds % 16 == 0:
            return most if best == 1 else 1
        return best

    # ---- chains ----

    def _chains(
        self, starts: NDArray[np.float64], hot: float, sweeps: int, cold: float, *,
        drawn: bool = False, forests: bool = False, polish: int = 0, tol: float = 1e-3,
    ) -> Chains:  # fmt: skip
        first = self.chains_made + (self.session.problem.seed << 32)
        self.chains_made += len(starts)
        seeds = np.array([(first + k) % 2**64 for k in range(len(starts))], dtype=np.uint64)
        return Chains.make(
            starts, hot=hot, cold=cold, sweeps=sweeps, seeds=seeds, drawn=drawn, forests=forests,
            polish=polish, tol=tol,
        )  # fmt: skip

    def _round(self, chains: Chains, moves: str = "", take: str = "") -> Explored:
        """Run chains, and count what they cost; with ``take``, keep what is better."""
        loop, threads = self.session.loop, self._threads()
        begun, base = loop.now(), loop.elapsed
        with finish_first():
            ended = self.session.explore(chains, threads)
            if take:
                self._take(ended, take)
            spent, made = max(loop.now() - begun, 1e-9), int(ended.sweeps.sum())
            pace, key = made / spent, (moves, threads)
            if made:
                self.pace[key] = 0.5 * (pace + self.pace.get(key, pace))
            self.rounds += 1
            loop.note(made, base + spent, self.best_f)
        return ended

    def _take(self, ended: Explored, member: str = "") -> None:
        """Keep what is better than the best state: a whole one, or parts of it."""
        before = self.best_f
        for k in np.argsort(ended.free_energy, kind="stable"):
            self._compare(ended.q[k], float(ended.free_energy[k]))
        if self.best_f < before:
            loop = self.session.loop
            loop.member = member
            if self.best_f < before - 1e-6 * (1 + abs(before)):
                self.improved_at = loop.iterations

    def _compare(self, q: NDArray[np.float64], f: float) -> None:
        if self.parts is not None:
            count, label = self.parts.different(self.best_q, q)
            if count > 1:
                gains = self.parts.gains(self.best_q, q, label, count, self.session.gradient)
                taken = gains < 0.0
                if taken.any() and not (taken.all() and f < self.best_f):
                    merged = self.parts.merged(self.best_q, q, label, taken)
                    merged_f = self.session.evaluate(merged)
                    if merged_f < f:
                        q, f = merged, merged_f
        if f < self.best_f:
            self.best_q, self.best_f = q, f
