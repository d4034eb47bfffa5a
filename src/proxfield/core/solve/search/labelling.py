"""The labelling of lowest energy: cooled chains that end at temperature 0, combined part by part.

One cooling from a random labelling, then rounds: the best labelling so far is heated to some
temperature and cooled again, and every part of the result that lowers the energy is taken
(`search.parts`). On sparse fields a round changes the labelling in many places that don't
interact, so each is accepted or rejected by itself. How hot a round starts follows from what
temperatures have gained. Where nothing has been gained for a while, rounds get longer, in turns
with searches from other starts, whose results are combined with the best labelling too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from proxfield.core.common.interrupts import finish_first
from proxfield.core.engines.plan import Chains, Plan
from proxfield.core.lowering.lowered import Lowered, interaction_scale, unary_scale
from proxfield.core.solve.rules.base import Outcome, Problem, Rule
from proxfield.core.solve.rules.portfolio import visits
from proxfield.core.solve.rules.schedules import Sweep
from proxfield.core.solve.search import tuned
from proxfield.core.solve.search.chains import Arms, ChainSearch
from proxfield.core.solve.search.parts import Parts
from proxfield.core.solve.session import Session
from proxfield.core.terms.base import Doubles, Ints
from proxfield.result import Status


@dataclass(frozen=True)
class MapSearch(Rule):
    """A labelling of low energy; not among the rules by name, since its result is no minimum of F.

    Its outcome holds one-hot marginals, whose F is the energy of the labelling.
    """

    name = "map"
    step: ClassVar[None] = None
    summary = "a labelling of low energy, by cooled chains combined part by part"

    def plan(self, problem: Problem) -> Plan:
        return Sweep().plan(problem)

    def default_iterations(self, problem: Problem) -> int:
        """As many sweeps as take a second or two on a large field; of plain chains, perhaps none.

        These compute a gradient for each variable that moves, and one per label for the tables of
        a forest.
        """
        layout, each = problem.lowered.layout, visits(problem.lowered)
        if problem.plain_chains and not problem.lowered.extras:
            call = tuned.PLAIN_CALL * int(layout.cardinalities.max(initial=1))
            sweep = (layout.n_vars + layout.size) * (each + call)
            return int(min(tuned.PLAIN_VISITS / max(1, sweep), 50_000))
        return int(np.clip(tuned.MAP_VISITS / max(1, each), 200, 50_000))

    def solve(self, session: Session) -> Outcome:
        return LabellingSearch(session).run()


class LabellingSearch(ChainSearch):
    """Looks for a labelling of low energy, in a session whose field forbids no configuration.

    The session's start is a labelling to improve (one-hot), or marginals. Where it is of a field
    with penalties in the place of forbidden configurations, ``judged`` is the one whose energy
    decides which labelling is kept. Temperatures are in units of ``scale``, by default
    `interaction_scale`.
    """

    def __init__(self, session: Session, judged: Lowered | None = None, scale: float = 0.0) -> None:
        super().__init__(session)
        self.judged = self.lowered if judged is None else judged
        self.hottest = tuned.FIRST_HEAT * (interaction_scale(self.lowered) or 1.0)
        self.scale = scale or self.hottest / tuned.FIRST_HEAT
        self.parts = Parts(self.lowered)
        ends = len(self.parts.column)
        self.work = max(1.0, self.layout.size + tuned.FLIP_SHARE * ends)  # of a sweep
        self.forests = ends <= tuned.FOREST_DEGREE * self.layout.n_vars
        cards = self.layout.cardinalities
        self.uniform = np.repeat(1.0 / cards, cards)
        self.temperatures = Arms(
            dict.fromkeys(tuned.REHEATS, 1.0), memory=tuned.MAP_MEMORY,
            curiosity=tuned.MAP_CURIOSITY, sharpness=tuned.SHARPNESS, prior=tuned.ROUND_SWEEPS,
        )  # fmt: skip
        given = session.start.max(initial=0.0) == 1.0  # a labelling, not marginals
        self.best: Ints = self.layout.best_labels(session.start if given else -self.lowered.unary)
        """The labelling that rounds start from."""
        self.kept: Ints = self.best
        """The labelling of lowest energy by the judge; the same unless that is another field."""
        self.energy = self.kept_energy = np.inf
        self.mark, self.reported, self.pace = 0.0, -np.inf, 0.0
        self.noted = (self.loop.iterations, self.loop.elapsed)
        self.stopped: Status | None = None

    def left(self) -> float:
        """Sweeps that the limits leave."""
        session = self.session
        timed = session.limits.budget is not None and self.pace > 0
        fits = self.pace * session.seconds_left if timed else np.inf
        return min(float(session.iterations_left), fits)

    def tick(self) -> None:
        """Count the time since the last call as seconds of inference."""
        now = self.loop.now()
        self.loop.elapsed += now - self.mark
        self.mark = now

    def look(self) -> bool:
        """Call the callback now and then; is it time to stop?"""
        loop = self.loop
        if self.stopped is None and self.mark - self.reported > tuned.REPORT_SECONDS:
            if loop.report(self.kept_energy, lambda: self.one_hot(self.kept)):
                self.stopped = Status.STOPPED
            self.reported = self.mark = loop.now()  # the callback's time doesn't count
        return self.stopped is not None

    def cool(
        self, starts: Doubles, hot: Doubles, cold: float, sweeps: int
    ) -> tuple[Doubles, Doubles]:
        """Cool chains, a slice at a time, until the limits end; returns labellings and energies."""
        per = max(1, int(tuned.SLICE_VISITS / (self.work * len(starts))))
        q, energies, done = starts, np.full(len(starts), np.inf), 0
        while done < sweeps:
            count = min(per, sweeps - done)
            share = np.array([done, done + count - 1]) / max(1, sweeps - 1)
            first, last = (hot * (cold / hot) ** s for s in share)
            chains = Chains.make(
                q, hot=first if count > 1 else last, cold=last, sweeps=count,
                seeds=self.seeds(len(starts)), drawn=True, forests=self.forests, polish=0,
                metropolis=True,
            )  # fmt: skip
            ended = self.session.explore(chains)
            q, energies = ended.q, ended.free_energy
            self.loop.iterations += count * len(starts)
            done += count
            self.tick()
            if done < sweeps and (self.session.spent is not None or self.look()):
                break
        return q, energies

    def take(self, q: Doubles, energy: float) -> float:
        """Combine the best labelling with what a chain ended with; returns the gain."""
        labels = self.layout.best_labels(q)
        if not np.isfinite(self.energy):  # the start has an impossible label
            self.best, self.energy = labels, self.lowered.energy(labels)
            self.judge()
            return 0.0
        double = self.session.slack(0.0) < 1e-9  # chains tell their energies in float64
        difference = energy - self.energy if double else None
        self.best, change = self.parts.best_labels(self.best, labels, difference)
        self.energy += change
        if change < 0:
            self.judge()
        return -change

    def judge(self) -> None:
        """Keep the best labelling if its energy is the lowest."""
        energy = self.energy
        if self.judged is not self.lowered:
            energy = self.judged.energy(self.best)
        if energy < self.kept_energy:
            if not energy > self.kept_energy - 1e-9 * (1 + abs(energy)):
                self.improved_at = self.loop.iterations
            self.kept, self.kept_energy = self.best, energy

    def run(self) -> Outcome:
        """Search until a limit, the callback or Ctrl-C ends it."""
        session = self.session
        try:
            session.program.warm_up_chains(session.start)
            session.measure(session.start)  # times an evaluation
            self.parts.of(self.best < 0)  # compiles
            _ = self.parts.scopes  # part of the set-up
            self.energy = self.lowered.energy(self.best)
            self.judge()
            self.mark = self.loop.now()
            self.note()
            status = self._search()
        except KeyboardInterrupt:
            status = Status.INTERRUPTED
        return Outcome(self.one_hot(self.kept), self.kept_energy, status, self.kept)

    def _search(self) -> Status:
        session, loop = self.session, self.loop
        sweep = tuned.MAP_SWEEP_EVALUATIONS * loop.costs.evaluation
        if tuned.OPENING_SWEEPS * sweep > session.seconds_left:
            return Status.BUDGET
        self._open()
        length, begun = tuned.ROUND_SWEEPS, loop.iterations
        while self._turn(length):
            if self.stalled():
                return Status.SETTLED
            length *= 2
            spent, begun = loop.iterations - begun, loop.iterations
            while loop.iterations - begun < spent and self._cool_anew() and self._try_anew():
                pass
            begun = loop.iterations
        return self.stopped or session.spent or session.limit

    def _turn(self, length: int) -> bool:
        """Rounds until several in a row gain nothing; False where a limit came first."""
        quiet = 0
        while quiet < tuned.QUIET_ROUNDS:
            if self.session.spent is not None or self.look():
                return False
            count, sweeps = self._room(length)
            if count < 1:
                return False
            # heat the best labelling and cool it again, in several chains
            shares = self.temperatures.shares()
            which = self.rng.choice(len(shares), size=count, p=shares)
            starts = np.repeat(self.one_hot(self.best)[None], count, axis=0)
            gains = self._cool_from(starts, self.scale * np.take(tuned.REHEATS, which), sweeps)
            self.temperatures.learn(which, gains, sweeps)
            gain = sum(gains)
            if self.layout.cardinalities.max(initial=2) > 2:
                gain += self._relabel(min(tuned.RELABELLED_SWEEPS, self.left() / 8))
            quiet = 0 if gain > 1e-9 * (1 + abs(self.energy)) else quiet + count
        return True

    def _relabel(self, most: float) -> float:
        """Give regions of one label another one and cool from a low temperature; returns the gain.

        A region is connected, or half of the time all that has the label. Where neighbors like to
        be equal, single variables can't leave a region, and heating melts all others too.
        """
        sweeps = int(tuned.OPENING_SWEEPS * 10 ** (self.rng.integers(3) / 2))
        count = int(most // sweeps)
        if count < 1:
            return 0.0
        cards, starts = self.layout.cardinalities, []
        for i in self.rng.integers(self.layout.n_vars, size=count):
            old, new = self.best[i], self.rng.integers(cards[i] - 1)
            new += new >= old
            region = (self.best == old) & (cards > new)
            if self.rng.random() < 0.5:
                component, _ = self.parts.of(region)
                region &= component == component[i]
            starts.append(self.one_hot(np.where(region, new, self.best)))
        hot = self.scale * self.rng.choice(tuned.REHEATS[: tuned.RELABELLED_HEATS], size=count)
        return sum(self._cool_from(np.stack(starts), hot, sweeps))

    def _cool_anew(self) -> bool:
        """Short coolings of random labellings; False where a limit came first."""
        begun = self.loop.iterations
        while self.loop.iterations - begun < tuned.ANEW_SWEEPS:
            count, sweeps = self._room(tuned.FIRST_SWEEPS[1])
            if count < 1 or self.session.spent is not None or self.look():
                return False
            self._cool_from(np.repeat(self.uniform[None], count, axis=0), self.hottest, sweeps)
        return True

    def _room(self, length: int) -> tuple[int, int]:
        """(chains, sweeps of each) for coolings of some length, or as many as fit; (0, 0): none."""
        left = self.left()
        timed = self.session.limits.budget is not None
        several = self.session.program.threads if timed else tuned.CHAINS_PER_ROUND
        count = int(min(several, left // (tuned.OPENING_SWEEPS + tuned.ZERO_SWEEPS)))
        if count < 1:
            return 0, 0
        return count, int(np.clip(tuned.LONGEST_SHARE * left / count, tuned.OPENING_SWEEPS, length))

    def _try_anew(self) -> bool:
        """A search of its own from another start, combined with the best labelling at its end."""
        best, energy = self.best, self.energy
        count, sweeps = self._room(tuned.FIRST_SWEEPS[1])
        if count < 1:
            return False
        with finish_first():
            q, energies = self._cooled(self.uniform[None], self.hottest, sweeps)
            self.best, self.energy = self.layout.best_labels(q[0]), float(energies[0])
            self.note()
        going = self._turn(tuned.ROUND_SWEEPS)
        with finish_first():
            if self.energy > energy:
                best, self.best, energy, self.energy = self.best, best, self.energy, energy
            self.best, change = self.parts.best_labels(self.best, best)
            self.energy += change
            self.judge()
            self.note()
        return going

    def note(self) -> None:
        """A row of the trace; also the pace since the last one."""
        loop = self.loop
        self.tick()
        sweeps, seconds = loop.iterations - self.noted[0], loop.elapsed - self.noted[1]
        if sweeps > 0:
            now = sweeps / max(1e-9, seconds)
            self.pace = 0.5 * (self.pace + now) if self.pace else now
        self.noted = loop.iterations, loop.elapsed
        loop.note(0, loop.elapsed, self.kept_energy)

    def _open(self) -> None:
        """A first cooling from the start, after a few sweeps from which the pace is known."""
        (least, usual), start = tuned.FIRST_SWEEPS, self.session.start
        glassy = not self.forests and unary_scale(self.lowered) < self.scale
        share, most = tuned.FIRST_LIMITS[glassy]
        for trial in (True, False):
            if self.session.spent is None and not self.look():
                left = 0.0 if trial else self.left()
                wanted = max(share * left, min(usual, 0.5 * left))
                room = self.session.iterations_left - tuned.ZERO_SWEEPS
                sweeps = int(min(np.clip(wanted, least, most), room))
                if sweeps < 1:
                    break
                self._cool_from(start[None], self.hottest, sweeps)

    def _cooled(
        self, starts: Doubles, hot: float | Doubles, sweeps: int
    ) -> tuple[Doubles, Doubles]:
        """Chains cooled to `tuned.COLD` and then to 0; returns their labellings and energies."""
        hot = np.broadcast_to(hot, len(starts))
        q, _ = self.cool(starts, hot, self.scale * tuned.COLD, sweeps)
        zero = np.full(len(starts), self.scale * tuned.ZERO)
        return self.cool(q, zero, self.scale * tuned.ZERO, tuned.ZERO_SWEEPS)

    def _cool_from(self, starts: Doubles, hot: float | Doubles, sweeps: int) -> list[float]:
        """Cool chains and take what they end with; returns the gains."""
        with finish_first():
            ends = self._cooled(starts, hot, sweeps)
            gains = [self.take(q, energy) for q, energy in zip(*ends, strict=True)]
            self.note()
        return gains
