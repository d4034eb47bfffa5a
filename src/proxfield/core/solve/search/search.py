"""The search of `auto`: one cooling, then reheats of the best state, judged part by part.

1. A few plain sweeps from the start, and a few random ones that show how fast this field is.
2. One *cooling*: heat-bath sampling from a high temperature to a low one, then sweeps into a
   local minimum of F. On large fields it takes most of the budget, on small ones a tenth.
3. On flat fields, where that gained little, ADAM and momentum compete.
4. *Reheats* of the best state with what is left: warm it up, cool it again, sweep. The end is
   compared with the best state part by part (`search.parts`). How hot, how long and by which moves
   is drawn from what has paid so far (`search.arms`).

Long runs are cut into slices, between which the clock, the callback and Ctrl-C are looked at. Where
only iterations are limited, every decision depends on them alone, and a run can be repeated.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from proxfield.core.common.interrupts import finish_first
from proxfield.core.engines.plan import Chains, Explored
from proxfield.core.lowering.components import Components
from proxfield.core.solve.problem import Outcome
from proxfield.core.solve.rules.parallel import Adam, Momentum
from proxfield.core.solve.rules.polish import better_of, polish
from proxfield.core.solve.rules.portfolio import HALTED
from proxfield.core.solve.search.arms import Arms
from proxfield.core.solve.search.limits import POLISH_SWEEPS, Limits
from proxfield.core.solve.search.parts import Parts
from proxfield.core.solve.session import Session
from proxfield.core.terms.base import Ints
from proxfield.result import Status, one_hot

HOT_SHARE = 0.3
"""Temperature at which the first cooling starts, as a share of the field's own scale."""
COLD_SHARE = 0.01
"""Temperature at which labels stop being sampled, likewise, but at most 1. Colder than F itself
(T = 1), so that a chain ends in the middle of a minimum, from where sweeps descend."""
REHEAT_SHARES = {0.03: 1.0, 0.06: 1.0, 0.12: 2.0, 0.2: 2.0, 0.35: 1.0, 0.7: 0.5}
"""Temperatures to reheat to, likewise, and how often each is drawn at first."""
CHAIN_SWEEPS = {10: 0.5, 30: 1.0, 100: 2.0, 300: 2.0, 1000: 1.0}
"""Sweeps of a reheat, and how often each is drawn at first."""
MOVES = {"sites": 2.0, "forests": 1.0, "cooled": 0.3}
"""How chains move, and how often at first: they sample one label after another, or a whole forest
at a time, or cool marginals without sampling."""
ORIGINS = {"best": 2.0, "start": 1.0, "labels": 0.5}
"""Where chains begin, and how often at first: at the best state, afresh, or (on flat fields) at
the labelling of lowest energy."""
MANY_PARTS = 8.0
"""Parts of a reheat, on average, from which on chains don't begin afresh: each place of such a
field is improved for itself."""
COOLING_SWEEPS = 300
"""Sweeps of the first cooling, if they are between these shares of what is left."""
COOLING_SHARES = (0.1, 0.7)
MIN_COOLING = 5.0
"""Sweeps that must fit for a cooling on all threads; half of them for one at all."""
REHEAT_POLISH = (3, 20)
"""The same at the end of reheats, at least and at most; in between, a twentieth of their sweeps."""
PLAIN_SHARE = 0.1
"""Maximum share of what is left for sweeps from the start (without a budget, twice as much)."""
CHAIN_SECONDS = 0.2
"""Maximum duration of a reheat, which isn't cut into slices."""
FLAT_GAIN = 0.02
"""Maximum fall of F per variable from plain sweeps to the first cooling, on flat fields."""
FLAT_VARIABLES = 1000
"""Variables that such a field has at least; on smaller ones chains find the minimum soon."""
LABELLED_SWEEPS = 100
"""Sweeps of chains from which on the energy of their labelling is looked at there, ..."""
RIVALS = {Adam(): 0.4, Momentum(): 0.15}
"""... rules that compete with chains there, each with its share of what is left, ..."""
RIVAL_ITERATIONS = 800
"""... and iterations that must fit into it."""
STALL_SWEEPS = 5000
"""Sweeps without a better F after which a run without limits may end."""
GRACE_SECONDS = 0.002
"""What the end may take beyond a budget that is used up."""
MIN_SWEEPS = 2.0
"""Sweeps of this duration that must fit into the budget for a search."""
PART_SECONDS, FOREST_SECONDS = 1.5e-8, 1e-7
"""Seconds per visit to prepare comparing part by part, and moves by forests."""


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
    labels: Ints | None = None
    """On flat fields, the labelling of lowest energy so far. On others, the best state, made of
    the best parts of many, is rounded to a better one than any chain ends with."""
    lowest: float = np.inf
    """Its energy."""
    flat: bool = False
    """Whether sampling gained little over plain sweeps: barriers are low."""
    parts: Parts | None = None
    chains_made: int = 0
    improved_at: int = 0

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.session.problem.seed)
        self.limits = Limits(self.session)
        self.hot = max(1.0, HOT_SHARE * self.scale)
        self.cold = min(1.0, COLD_SHARE * self.scale)
        self.temperatures = Arms(REHEAT_SHARES)
        self.lengths = Arms(CHAIN_SWEEPS)
        self.moves = Arms(MOVES)
        self.origins = Arms(ORIGINS)

    def run(self, start: NDArray[np.float64], f: float) -> Outcome:
        """Explore until the limits leave just enough to polish.

        Args:
            start: Marginals.
            f: F of these, if it is to be the best so far; else +inf.
        """
        session, loop = self.session, self.session.loop
        self.best_q, self.best_f = start, f
        session.warm_up_chains(start)
        if session.limits.budget is not None and not session.problem.lowered.hard:
            Components.warm_up()
        first = session.measure(start)
        loop.tell(start, first)
        if f == np.inf:
            self.best_f = first
            loop.note(0, loop.elapsed, first)
        if self.limits.left() < MIN_SWEEPS * self.limits.sweep_seconds():
            return polish(session, session.without_symmetry(start))  # time for a descent alone
        try:
            halted = self._open(start) or self._cool() or self._compete() or self._reheat()
        except KeyboardInterrupt:
            halted = Status.INTERRUPTED
        if halted is not None:
            return Outcome(self.best_q, self.best_f, halted, self.labels)
        return replace(self._end(), labels=self.labels)

    # ---- stages; the first three return why the search has to stop, if it does ----

    def _open(self, start: NDArray[np.float64]) -> Status | None:
        """Sweeps from the start; with a budget, a random one that shows what there is time for."""
        self.state, plain = start[None], 2 * PLAIN_SHARE
        if self.session.limits.budget is not None:
            chains = self._chains(self.state, self.hot, 1, self.hot)
            self.state, plain = self._round(chains, "sites").q, PLAIN_SHARE
        fits = plain * self.limits.left() / self.limits.sweep_seconds()
        self._polish_from(start, int(min(fits, POLISH_SWEEPS)), "sweeps from the start")
        self.plain = self.best_f
        return self._asked()

    def _cool(self) -> Status | None:
        """One cooling, in slices; on several threads, of as many states."""
        self.limits.choose_threads()
        if self.limits.room("sites") < MIN_COOLING:
            self.limits.threads = 1
        if self.limits.room("sites") < MIN_COOLING / 2:  # this is all there is time for
            with self.session.loop.clock():
                self._compare(self.state[0], self.session.evaluate(self.state[0]))
            return None
        if self.limits.lanes() > 1:
            self.state = np.repeat(self.state, self.limits.lanes(), axis=0)
        member = f"cooling from T={self.hot:.3g}"
        begun, left, done = self.limits.spent(), max(1e-9, self.limits.left()), 0.0
        while True:
            fits = max(1.0, left * self.limits.pace("sites") / self.limits.lanes())
            share = float(np.clip(COOLING_SWEEPS / fits, *COOLING_SHARES))
            length = max(1.0, share * fits)
            sweeps = int(max(1.0, min((1.0 - done) * length, self.limits.slice(length))))
            last = done + sweeps / length > 0.99 or self.limits.left() <= 0.0
            after = 1.0 if last else done + sweeps / length
            chains = self._chains(
                self.state, self._temperature(done), sweeps, self._temperature(after),
                polish=self.limits.polish_sweeps() if last else 0,
            )  # fmt: skip
            self.state = self._round(chains, "sites", take=member if last else "").q
            halted = self._asked()
            if last or halted is not None:
                return halted
            done = float(np.clip((self.limits.spent() - begun) / (share * left), done, 0.99))
            if self.limits.waiting():  # threads wait for each other
                self.limits.threads, self.state = 1, self.state[:1]

    def _compete(self) -> Status | None:
        """Rules that move all variables at once, on flat fields: they find their way without the
        noise of sampling. One that wins is followed by the next one.
        """
        session, loop = self.session, self.session.loop
        lowered, n = session.problem.lowered, session.problem.n_vars
        self.flat = self.plain - self.best_f <= FLAT_GAIN * n and n >= FLAT_VARIABLES
        if lowered.hard or not self.flat:
            return None
        for rule, share in RIVALS.items():
            room, seconds = share * self.limits.room("sites"), share * self.limits.left()
            if room < RIVAL_ITERATIONS:
                break
            loop.keep(self.best_f, self.best_q)
            member, loop.member = loop.member, rule.name
            until = None if session.limits.budget is None else loop.elapsed + seconds
            limits = session.limits.until(loop.iterations + int(room), until)
            found = rule.solve(session.within(limits))
            before = self.best_f
            with loop.clock():
                self._compare(found.q, found.free_energy)
                labels = lowered.layout.best_labels(found.q)
                self._keep_labels(labels, session.evaluate(self._one_hot(labels)))
            if found.status in HALTED:
                return found.status
            if not self.best_f < before:
                loop.member = member
                break
            self.improved_at = loop.iterations
        loop.note(0, loop.elapsed, self.best_f)
        return None

    def _reheat(self) -> Status | None:
        """Reheats until nothing is left."""
        session, loop = self.session, self.session.loop
        if not session.problem.lowered.hard and self.limits.pays(PART_SECONDS):
            with loop.clock():
                self.parts = Parts(session.problem.lowered)
        forests = self.limits.pays(FOREST_SECONDS)
        while True:
            self.limits.choose_threads()
            moves = self.moves.draw(self.rng, [k != "forests" or forests for k in MOVES])
            name = self.moves.options[moves]
            room = self.limits.room(name)
            most = max(min(CHAIN_SWEEPS), min(room / 4, self.limits.sweeps_in(CHAIN_SECONDS, name)))
            length = self.lengths.draw(self.rng, [n <= most for n in CHAIN_SWEEPS])
            hot = self.temperatures.draw(self.rng)
            many = self.parts is not None and self.parts.typical > MANY_PARTS
            where = {"best": True, "start": not many, "labels": self.labels is not None}
            origin = self.origins.draw(self.rng, list(where.values()))
            sweeps = self.lengths.options[length]
            last = int(np.clip(sweeps // 20, *REHEAT_POLISH))
            count = self.limits.count(name, sweeps + last)
            if room < sweeps + last or count == 0:
                return None
            begin = self._origin(self.origins.options[origin])
            chains = self._chains(
                np.repeat(begin[None], count, axis=0),
                max(1.0, self.scale) * self.temperatures.options[hot], sweeps,
                self.cold, moves=name, polish=last,
            )  # fmt: skip
            f, begun = self.best_f, self.limits.spent()
            self._round(chains, name, f"{name} from T={chains.hot[0]:.3g}, {sweeps} sweeps")
            gain, cost = f - self.best_f, self.limits.spent() - begun
            self.origins.learn(origin, gain, cost)
            self.moves.learn(moves, gain, cost)
            self.lengths.learn(length, gain, cost)
            self.temperatures.learn(hot, gain, cost)
            quiet = loop.iterations - self.improved_at
            if not session.limited and quiet > max(STALL_SWEEPS, 2 * self.improved_at):
                return None
            halted = self._asked()
            if halted is not None:
                return halted

    def _origin(self, name: str) -> NDArray[np.float64]:
        """Where chains begin."""
        if name == "start":
            return self.session.start
        if name == "labels" and self.labels is not None:
            return self._one_hot(self.labels)
        return self.best_q

    def _end(self) -> Outcome:
        """From the best state to a minimum."""
        session, loop, limits = self.session, self.session.loop, self.session.limits
        if limits.budget is not None:  # a few sweeps to the tolerance are worth a little overtime
            grace = min(loop.elapsed, limits.budget) + GRACE_SECONDS
            limits = replace(limits, budget=max(1.03 * limits.budget, grace))
        session = self.limits.session = session.within(limits)
        self._polish_from(self.best_q, self.limits.last_sweeps(), "polish", limits.tol)
        before = Outcome(self.best_q, self.best_f, Status.MAX_ITERS)
        loop.keep(self.best_f, self.best_q)
        loop.tell(self.best_q, self.best_f)
        loop.member = "polish"
        return better_of(session, before, polish(session, self.best_q))

    def _asked(self) -> Status | None:
        """STOPPED if the callback asks for it."""
        asked = self.session.loop.report(self.best_f, self.best_q)
        return Status.STOPPED if asked else None

    def _temperature(self, done: float) -> float:
        """Of the cooling, after a share of it."""
        return float(self.hot * (self.cold / self.hot) ** done)

    # ---- chains ----

    def _polish_from(
        self, q: NDArray[np.float64], sweeps: int, member: str, tol: float = 1e-3
    ) -> None:
        """Sweeps from some marginals."""
        if sweeps > 0:
            chains = self._chains(q[None], 1.0, 0, 1.0, moves="", polish=sweeps, tol=tol)
            self._round(chains, "", member)

    def _chains(
        self, starts: NDArray[np.float64], hot: float, sweeps: int, cold: float, *,
        moves: str = "sites", polish: int = 0, tol: float = 1e-3,
    ) -> Chains:  # fmt: skip
        first = self.chains_made + (self.session.problem.seed << 32)
        self.chains_made += len(starts)
        drawn = moves in ("sites", "forests")
        return Chains.make(
            starts,
            hot=hot,
            cold=cold if drawn else 1.0,
            sweeps=sweeps,
            seeds=np.array([(first + k) % 2**64 for k in range(len(starts))], dtype=np.uint64),
            drawn=drawn,
            forests=moves == "forests",
            polish=polish,
            tol=tol,
        )

    def _round(self, chains: Chains, moves: str, take: str = "") -> Explored:
        """Run chains, and count what they cost.

        Args:
            chains: The chains.
            moves: How they move.
            take: Keep what is better than the best state, found by this member.
        """
        loop = self.session.loop
        begun, base = loop.now(), loop.elapsed
        with finish_first():
            made = 0
            if self.flat and take and chains.drawn[0] and chains.sweeps[0] >= LABELLED_SWEEPS:
                chains, made = self._labelled(chains)
            ended = self.session.explore(chains, self.limits.threads)
            made += int(ended.sweeps.sum())
            if take:
                self._take(ended, take, made)
            spent = max(loop.now() - begun, 1e-9)
            self.limits.learn(moves, made, spent)
            loop.note(made, base + spent, self.best_f)
        return ended

    def _labelled(self, chains: Chains) -> tuple[Chains, int]:
        """Run chains up to their labellings; returns what is left of them, and sweeps made."""
        found = self.session.explore(replace(chains, polish=0), self.limits.threads)
        best = int(found.free_energy.argmin())
        labels = self.session.problem.lowered.layout.best_labels(found.q[best])
        self._keep_labels(labels, float(found.free_energy[best]))
        rest = Chains.make(found.q, polish=chains.polish, tol=chains.tol)
        return rest, int(found.sweeps.sum())

    def _keep_labels(self, labels: Ints, energy: float) -> None:
        if energy < self.lowest:
            self.labels, self.lowest = labels, energy

    def _one_hot(self, labels: Ints) -> NDArray[np.float64]:
        return np.asarray(one_hot(self.session.problem.lowered.layout.offsets, labels))

    def _take(self, ended: Explored, member: str, made: int) -> None:
        """Keep what is better than the best state: a whole one, or parts of it."""
        before = self.best_f
        for k in np.argsort(ended.free_energy, kind="stable"):
            self._compare(ended.q[k], float(ended.free_energy[k]))
        if self.best_f < before:
            loop = self.session.loop
            loop.member = member
            if self.best_f < before - 1e-6 * (1 + abs(before)):
                self.improved_at = loop.iterations + made

    def _compare(self, q: NDArray[np.float64], f: float) -> None:
        if self.parts is not None:
            merged = self.parts.better_parts(self.best_q, q, self.session.gradient)
            if merged is not None:
                merged_f = self.session.evaluate(merged)
                if merged_f < f:
                    q, f = merged, merged_f
        if f < self.best_f:
            self.best_q, self.best_f = q, f
