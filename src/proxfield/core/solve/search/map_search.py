"""The labelling of lowest energy: cooled chains that end at temperature 0, combined part by part.

One cooling from a random labelling, then rounds: the best labelling so far is heated to some
temperature and cooled again, and every part of the result that lowers the energy is taken
(`lowering.crossing`). On sparse fields a round changes the labelling in many places that don't
interact, so each is accepted or rejected by itself. How hot a round starts follows from what
temperatures have gained. Where nothing has been gained for a while, rounds get longer, in turns
with searches from other starts, whose results are combined with the best labelling too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from proxfield.core.common.interrupts import finish_first
from proxfield.core.engines.plan import Chains, Plan
from proxfield.core.lowering.crossing import Crossing
from proxfield.core.lowering.interactions import interaction_scale, unary_scale
from proxfield.core.lowering.lowered import Lowered
from proxfield.core.solve.problem import Outcome, Problem
from proxfield.core.solve.rules.base import Rule
from proxfield.core.solve.rules.portfolio import visits
from proxfield.core.solve.rules.schedules import Sweep
from proxfield.core.solve.session import Session
from proxfield.core.terms.base import Ints
from proxfield.result import Status, one_hot

FIRST_HEAT = 1.2
"""Temperature of the first cooling, in units of `interaction_scale`."""
REHEATS = (0.2, 0.3, 0.45, 0.65, 1.0, 1.5)
"""Temperatures that rounds start at, likewise."""
COLD = 0.15
"""Temperature at which coolings end, likewise."""
ZERO = 1e-12
"""Temperature of the last sweeps of a round, likewise: each variable takes its cheapest label."""
ZERO_SWEEPS = 3
"""Sweeps at that temperature."""
FIRST_SWEEPS = (10, 300)
"""Least sweeps of the first cooling; sweeps that may take half of the limits."""
FIRST_LIMITS = (0.4, 1000), (0.9, 15_000)
"""Share of the limits for the first cooling, and most sweeps: usually, and on fields where chains
don't move by forests and unary energies, which are apart by less than the unit of temperatures,
don't guide them. There, rounds change few places at a time, and one long cooling finds more."""
ROUND_SWEEPS = 100
"""Sweeps of a round, at first."""
LONGEST_SHARE = 0.2
"""Share of what is left of the limits for one round."""
QUIET_ROUNDS = 10
"""Chains without a gain after which rounds get twice as long, or a search from another start
ends."""
EXPLORED_SHARE = 0.2
"""Share of chains whose temperature is drawn at random, whatever temperatures have gained."""
SHARPNESS = 4.0
"""Power of its gain per sweep that decides how often a temperature is taken otherwise."""
MEMORY = 0.9
"""Weight of what temperatures gained up to the round before."""
ANEW_SWEEPS = 3000
"""Sweeps of short coolings of random labellings before each search from another start."""
RELABELLED_SWEEPS = 100
"""Sweeps after each round from labellings in which a region has another label, where there are
more than two."""
RELABELLED_HEATS = 3
"""How many of `REHEATS` these start at."""
SLICE_WORK = 5e6
"""Work between two looks at the clock, the callback and Ctrl-C: entries and, with the weight
`FLIP_SHARE`, edge ends."""
FLIP_SHARE = 0.05
"""Share of edge ends that a sweep reads: those of variables that change."""
FOREST_DEGREE = 5.0
"""Neighbors per variable up to which chains move by forests: these hold most variables."""
CHAINS_PER_ROUND = 4
"""Chains of a round where only iterations are limited."""
STALL_SWEEPS = 5000
"""Sweeps without a gain after which a search without limits may end."""
DEFAULT_VISITS = 2e8
"""Entries and edge ends to visit where the user sets no limit."""
PLAIN_VISITS, PLAIN_CALL = 1e9, 15_000
"""The same where chains compute whole gradients, and visits that take as long as calling one, for
each label."""
REPORT_SECONDS = 0.05
"""Time between two calls of the callback."""
OPENING_SWEEPS = 10
"""Sweeps that must fit into a budget for a cooling to pay."""
SWEEP_EVALUATIONS = 3
"""Evaluations of F that take as long as a sweep, before one has been timed."""


@dataclass(frozen=True)
class MapSearch(Rule):
    """A labelling of low energy; not among the rules by name, since its result is no minimum of F.

    Its outcome holds one-hot marginals, whose F is the energy of the labelling.
    """

    name = "map"
    summary = "a labelling of low energy, by cooled chains combined part by part"

    def plan(self, problem: Problem) -> Plan:
        return Sweep().plan(problem)

    def prepare(self, problem: Problem) -> None:
        """Nothing: no step is needed."""

    def default_iterations(self, problem: Problem) -> int:
        """As many sweeps as take a second or two on a large field; of plain chains, perhaps none.

        These compute a gradient for each variable that moves, and one per label for the tables of
        a forest.
        """
        layout, each = problem.lowered.layout, visits(problem.lowered)
        if problem.plain_chains and not problem.lowered.extras:
            call = PLAIN_CALL * int(layout.cardinalities.max(initial=1))
            sweep = (layout.n_vars + layout.size) * (each + call)
            return int(min(PLAIN_VISITS / max(1, sweep), 50_000))
        return int(np.clip(DEFAULT_VISITS / max(1, each), 200, 50_000))

    def solve(self, session: Session) -> Outcome:
        return Search(session).run()


class Search:
    """One search, in a session whose field forbids no configuration.

    Args:
        session: The session; its start is a labelling to improve (one-hot), or marginals.
        judged: The field whose energy decides which labelling is kept, where the session's is one
            with penalties in the place of forbidden configurations.
        scale: The unit of temperatures; by default `interaction_scale`.
    """

    def __init__(self, session: Session, judged: Lowered | None = None, scale: float = 0.0) -> None:
        self.session, self.loop = session, session.loop
        self.lowered = session.problem.lowered
        self.judged = self.lowered if judged is None else judged
        self.layout = self.lowered.layout
        self.rng = np.random.default_rng(session.problem.seed)
        self.hottest = FIRST_HEAT * (interaction_scale(self.lowered) or 1.0)
        self.scale = scale or self.hottest / FIRST_HEAT
        self.crossing = Crossing(self.lowered)
        ends = len(self.crossing.components.column)
        self.work = max(1.0, self.layout.size + FLIP_SHARE * ends)
        """Work of a sweep."""
        self.forests = ends <= FOREST_DEGREE * self.layout.n_vars
        self.glassy = not self.forests and unary_scale(self.lowered) < self.scale
        self.several_labels = bool(self.layout.cardinalities.max(initial=2) > 2)
        cards = self.layout.cardinalities
        self.uniform = np.repeat(1.0 / cards, cards)
        self.chains_made = 0
        self.gained, self.spent = np.zeros(len(REHEATS)), np.zeros(len(REHEATS))
        given = session.start.max(initial=0.0) == 1.0  # a labelling, not marginals
        self.best: Ints = self.layout.best_labels(session.start if given else -self.lowered.unary)
        """The labelling that rounds start from."""
        self.energy = np.inf
        self.kept: Ints = self.best
        """The labelling of lowest energy by the judge; the same unless that is another field."""
        self.kept_energy = np.inf
        self.improved_at = 0
        self.mark, self.reported, self.pace = 0.0, -np.inf, 0.0
        self.noted = (self.loop.iterations, self.loop.elapsed)
        self.double = session.slack(0.0) < 1e-9
        """Whether chains tell their energies in float64."""
        self.stopped: Status | None = None

    # ---- limits ----

    def left(self) -> float:
        """Sweeps that the limits leave."""
        session = self.session
        left = float(session.iterations_left)
        if session.limits.budget is not None and self.pace > 0:
            left = min(left, self.pace * session.seconds_left)
        return left

    def tick(self) -> None:
        """Count the time since the last call as seconds of inference."""
        now = self.loop.now()
        self.loop.elapsed += now - self.mark
        self.mark = now

    def look(self) -> bool:
        """Call the callback now and then; is it time to stop?"""
        loop = self.loop
        if self.stopped is None and self.mark - self.reported > REPORT_SECONDS:
            if loop.report(self.kept_energy, self.hot_labels(self.kept)):
                self.stopped = Status.STOPPED
            self.reported = self.mark = loop.now()  # the callback's time doesn't count
        return self.stopped is not None

    def hot_labels(self, labels: Ints) -> NDArray[np.float64]:
        """A labelling as marginals."""
        return one_hot(self.layout.offsets, labels).astype(np.float64, copy=False)

    # ---- chains ----

    def cool(
        self, starts: NDArray[np.float64], hot: NDArray[np.float64], cold: float, sweeps: int
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Cool chains, a slice at a time, until the limits end; returns labellings and energies."""
        per = max(1, int(SLICE_WORK / (self.work * len(starts))))
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

    def seeds(self, count: int) -> NDArray[np.uint64]:
        """Random seeds of the next chains."""
        first = self.chains_made + (self.session.problem.seed << 32)
        self.chains_made += count
        return np.array([(first + k) % 2**64 for k in range(count)], dtype=np.uint64)

    def take(self, q: NDArray[np.float64], energy: float) -> float:
        """Combine the best labelling with what a chain ended with; returns the gain."""
        labels = self.layout.best_labels(q)
        if not np.isfinite(self.energy):  # the start has an impossible label
            self.best, self.energy = labels, self.lowered.energy(labels)
            self.judge()
            return 0.0
        difference = energy - self.energy if self.double else None
        self.best, change = self.crossing.improved(self.best, labels, difference)
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

    def choose(self, count: int) -> Ints:
        """Which of `REHEATS` chains start at: in proportion to what each has gained per sweep."""
        mean = self.gained.sum() / max(1.0, self.spent.sum())
        value = (self.gained + mean * ROUND_SWEEPS) / (self.spent + ROUND_SWEEPS)
        p = np.full(len(REHEATS), 1.0 / len(REHEATS))
        if mean > 0:
            value = (value / value.max()) ** SHARPNESS
            p = EXPLORED_SHARE * p + (1.0 - EXPLORED_SHARE) * value / value.sum()
        return self.rng.choice(len(REHEATS), size=count, p=p)

    # ---- the search ----

    def run(self) -> Outcome:
        """Search until a limit, the callback or Ctrl-C ends it."""
        session = self.session
        try:
            session.warm_up_chains(session.start)
            session.measure(session.start)  # times an evaluation
            self.crossing.components.of(self.best < 0)  # compiles
            self.energy = self.lowered.energy(self.best)
            self.judge()
            self.mark = self.loop.now()
            status = self._search()
        except KeyboardInterrupt:
            status = Status.INTERRUPTED
        return Outcome(self.hot_labels(self.kept), self.kept_energy, status, self.kept)

    def _search(self) -> Status:
        session, loop = self.session, self.loop
        self.note()
        sweep = SWEEP_EVALUATIONS * loop.costs.evaluation
        if session.limits.budget is not None and OPENING_SWEEPS * sweep > session.seconds_left:
            return Status.BUDGET
        self._open()
        length, begun = ROUND_SWEEPS, loop.iterations
        while self._turn(length):
            still = loop.iterations - self.improved_at
            if not session.limited and still > max(STALL_SWEEPS, 2 * self.improved_at):
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
        while quiet < QUIET_ROUNDS:
            if self.session.spent is not None or self.look():
                return False
            count, sweeps = self._room(length)
            if count < 1:
                return False
            gain = self._round(count, sweeps)
            if self.several_labels:
                gain += self._relabel(min(RELABELLED_SWEEPS, self.left() / 8))
            quiet = 0 if gain > 1e-9 * (1 + abs(self.energy)) else quiet + count
        return True

    def _relabel(self, most: float) -> float:
        """Give regions of one label another one and cool from a low temperature; returns the gain.

        A region is connected, or half of the time all that has the label. Where neighbors like to
        be equal, single variables can't leave a region, and heating melts all others too.
        """
        sweeps = int(OPENING_SWEEPS * 10 ** (self.rng.integers(3) / 2))
        count = int(most // sweeps)
        if count < 1:
            return 0.0
        cards, gains, starts = self.layout.cardinalities, 0.0, []
        with finish_first():
            for i in self.rng.integers(self.layout.n_vars, size=count):
                old, new = self.best[i], self.rng.integers(cards[i] - 1)
                new += new >= old
                region = (self.best == old) & (cards > new)
                if self.rng.random() < 0.5:
                    component, _ = self.crossing.components.of(region)
                    region &= component == component[i]
                starts.append(self.hot_labels(np.where(region, new, self.best)))
            hot = self.scale * self.rng.choice(REHEATS[:RELABELLED_HEATS], size=count)
            ends = self._cooled(np.stack(starts), hot, sweeps)
            for q, energy in zip(*ends, strict=True):
                gains += self.take(q, energy)
            self.note()
        return gains

    def _cool_anew(self) -> bool:
        """Short coolings of random labellings; False where a limit came first."""
        begun = self.loop.iterations
        while self.loop.iterations - begun < ANEW_SWEEPS:
            count, sweeps = self._room(FIRST_SWEEPS[1])
            if count < 1 or self.session.spent is not None or self.look():
                return False
            with finish_first():
                starts = np.repeat(self.uniform[None], count, axis=0)
                for q, energy in zip(*self._cooled(starts, self.hottest, sweeps), strict=True):
                    self.take(q, energy)
                self.note()
        return True

    def _room(self, length: int) -> tuple[int, int]:
        """(chains, sweeps of each) for coolings of some length, or as many as fit; (0, 0): none."""
        left = self.left()
        several = CHAINS_PER_ROUND
        if self.session.limits.budget is not None:
            several = self.session.chain_threads
        count = int(min(several, left // (OPENING_SWEEPS + ZERO_SWEEPS)))
        if count < 1:
            return 0, 0
        return count, int(np.clip(LONGEST_SHARE * left / count, OPENING_SWEEPS, length))

    def _try_anew(self) -> bool:
        """A search of its own from another start, combined with the best labelling at its end."""
        best, energy = self.best, self.energy
        count, sweeps = self._room(FIRST_SWEEPS[1])
        if count < 1:
            return False
        with finish_first():
            q, energies = self._cooled(self.uniform[None], self.hottest, sweeps)
            self.best, self.energy = self.layout.best_labels(q[0]), float(energies[0])
            self.note()
        going = self._turn(ROUND_SWEEPS)
        with finish_first():
            if self.energy > energy:
                best, self.best, energy, self.energy = self.best, best, self.energy, energy
            self.best, change = self.crossing.improved(self.best, best)
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
        (least, usual), start = FIRST_SWEEPS, self.session.start
        share, most = FIRST_LIMITS[self.glassy]
        for trial in (True, False):
            if self.session.spent is None and not self.look():
                left = 0.0 if trial else self.left()
                wanted = max(share * left, min(usual, 0.5 * left))
                room = self.session.iterations_left - ZERO_SWEEPS
                sweeps = int(min(np.clip(wanted, least, most), room))
                if sweeps < 1:
                    break
                with finish_first():
                    q, energy = self._cooled(start[None], self.hottest, sweeps)
                    self.take(q[0], energy[0])
                    self.note()

    def _cooled(
        self, starts: NDArray[np.float64], hot: float | NDArray[np.float64], sweeps: int
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Chains cooled to `COLD` and then to 0; returns their labellings and energies."""
        hot = np.broadcast_to(hot, len(starts))
        q, _ = self.cool(starts, hot, self.scale * COLD, sweeps)
        zero = np.full(len(starts), self.scale * ZERO)
        return self.cool(q, zero, self.scale * ZERO, ZERO_SWEEPS)

    def _round(self, count: int, sweeps: int) -> float:
        """Heat the best labelling and cool it again, in several chains; returns the gain."""
        gains = 0.0
        with finish_first():
            which = self.choose(count)
            starts = np.repeat(self.hot_labels(self.best)[None], count, axis=0)
            ends = self._cooled(starts, self.scale * np.take(REHEATS, which), sweeps)
            self.gained *= MEMORY
            self.spent *= MEMORY
            for k, q, energy in zip(which, *ends, strict=True):
                gain = self.take(q, energy)
                self.gained[k] += gain
                self.spent[k] += sweeps
                gains += gain
            self.note()
        return gains
