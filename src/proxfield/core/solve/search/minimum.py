"""The search of `auto`: one cooling, then reheats of the best state, judged part by part.

1. A few plain sweeps from the start, and a few random ones that show how fast this field is.
2. One *cooling*: heat-bath sampling from a high temperature to a low one, then sweeps into a
   local minimum of F. On large fields it takes most of the budget, on small ones a tenth.
3. On flat fields, where that gained little, ADAM and momentum compete.
4. *Reheats* of the best state with what is left: warm it up, cool it again, sweep. The end is
   compared with the best state part by part (`search.parts`). How hot, how long and by which moves
   is drawn from what has paid so far (`search.chains`).

Long runs are cut into slices, between which the clock, the callback and Ctrl-C are looked at. Where
only iterations are limited, every decision depends on them alone, and a run can be repeated.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from proxfield.core.common.interrupts import finish_first
from proxfield.core.engines.plan import Chains, Explored
from proxfield.core.solve.rules.base import Outcome
from proxfield.core.solve.rules.portfolio import (
    HALTED,
    better_of,
    polish,
)
from proxfield.core.solve.rules.registry import make_rule
from proxfield.core.solve.search import tuned
from proxfield.core.solve.search.chains import Arms, ChainPace, ChainSearch
from proxfield.core.solve.search.parts import Parts
from proxfield.core.solve.session import Session
from proxfield.core.terms.base import Doubles, Ints
from proxfield.result import Status


class MinimumSearch(ChainSearch):
    """Looks for a low minimum of F within the limits of a session.

    The scale says how strongly variables interact, as a temperature.
    """

    def __init__(self, session: Session, scale: float) -> None:
        super().__init__(session)
        self.scale = scale
        self.best_f, self.best_q = np.inf, np.zeros(0)
        self.labels: Ints | None = None
        """On flat fields, the labelling of lowest energy so far. On others, the best state, made of
        the best parts of many, is rounded to a better one than any chain ends with."""
        self.lowest = np.inf
        self.flat = False
        """Whether sampling gained little over plain sweeps: barriers are low."""
        self.parts: Parts | None = None
        self.pace = ChainPace(session)
        self.hot = max(1.0, tuned.HOT_SHARE * scale)
        self.cold = min(1.0, tuned.COLD_SHARE * scale)
        learning = {"memory": tuned.MEMORY, "curiosity": tuned.CURIOSITY}
        self.temperatures = Arms(tuned.REHEAT_SHARES, **learning)
        self.lengths = Arms(tuned.CHAIN_SWEEPS, **learning)
        self.moves = Arms(tuned.MOVES, **learning)
        self.origins = Arms(tuned.ORIGINS, **learning)

    def run(self, start: Doubles, f: float) -> Outcome:
        """Explore from some marginals until the limits leave just enough to polish.

        If F of these is given (not +inf), they are the best so far.
        """
        session, loop = self.session, self.loop
        self.best_q, self.best_f = start, f
        session.program.warm_up_chains(start)
        if session.limits.budget is not None and not self.lowered.hard:
            Parts.warm_up()
        first = session.measure(start)
        loop.tell(start, first)
        if f == np.inf:
            self.best_f = first
            loop.note(0, loop.elapsed, first)
        if self.pace.left() < tuned.ENOUGH_SWEEPS * self.pace.sweep_seconds():
            return polish(session, session.nudged(start))  # time for a descent alone
        try:
            halted = self._open(start) or self._cool() or self._compete() or self._reheat()
        except KeyboardInterrupt:
            halted = Status.INTERRUPTED
        if halted is not None:
            return Outcome(self.best_q, self.best_f, halted, self.labels)
        return replace(self._end(), labels=self.labels)

    # ---- stages; the first three return why the search has to stop, if it does ----

    def _open(self, start: Doubles) -> Status | None:
        """Sweeps from the start; with a budget, a random one that shows what there is time for."""
        self.state, plain = start[None], 2 * tuned.PLAIN_SHARE
        if self.session.limits.budget is not None:
            self.state = self._round("", self.state, self.hot, 1, self.hot).q
            plain = tuned.PLAIN_SHARE
        fits = plain * self.pace.left() / self.pace.sweep_seconds()
        self._polish_from(start, int(min(fits, tuned.POLISH_SWEEPS)), "sweeps from the start")
        self.plain = self.best_f
        return self._asked()

    def _cool(self) -> Status | None:
        """One cooling, in slices; on several threads, of as many states."""
        self.pace.choose_threads()
        if self.pace.room("sites") < tuned.MIN_COOLING:
            self.pace.threads = 1
        if self.pace.room("sites") < tuned.MIN_COOLING / 2:  # this is all there is time for
            with self.loop.clock():
                self._compare(self.state[0], self.session.evaluate(self.state[0]))
            return None
        if self.pace.lanes() > 1:
            self.state = np.repeat(self.state, self.pace.lanes(), axis=0)
        member = f"cooling from T={self.hot:.3g}"
        begun, left, done = self.pace.spent(), max(1e-9, self.pace.left()), 0.0
        while True:
            fits = max(1.0, left * self.pace.pace("sites") / self.pace.lanes())
            share = float(np.clip(tuned.COOLING_SWEEPS / fits, *tuned.COOLING_SHARES))
            length = max(1.0, share * fits)
            sweeps = int(max(1.0, min((1.0 - done) * length, self.pace.slice(length))))
            last = done + sweeps / length > 0.99 or self.pace.left() <= 0.0
            after = 1.0 if last else done + sweeps / length
            room = tuned.END_SHARE * self.pace.left() / self.pace.sweep_seconds()
            hot, cold = (float(self.hot * (self.cold / self.hot) ** part) for part in (done, after))
            polish = int(np.clip(room, 1, tuned.POLISH_SWEEPS)) if last else 0
            name = member if last else ""
            self.state = self._round(name, self.state, hot, sweeps, cold, polish=polish).q
            halted = self._asked()
            if last or halted is not None:
                return halted
            done = float(np.clip((self.pace.spent() - begun) / (share * left), done, 0.99))
            paces, threads = self.pace.paces, self.pace.threads
            if self.pace.lanes() > 1 and paces["sites", threads] < paces["sites", 1]:
                self.pace.threads, self.state = 1, self.state[:1]  # threads wait for each other

    def _compete(self) -> Status | None:
        """Rules that move all variables at once, on flat fields: they find their way without the
        noise of sampling. One that wins is followed by the next one.
        """
        session, loop = self.session, self.loop
        n = self.layout.n_vars
        self.flat = self.plain - self.best_f <= tuned.FLAT_GAIN * n and n >= tuned.FLAT_VARIABLES
        if self.lowered.hard or not self.flat:
            return None
        for name, share in tuned.RIVALS.items():
            room, seconds = share * self.pace.room("sites"), share * self.pace.left()
            if room < tuned.RIVAL_ITERATIONS:
                break
            loop.keep(self.best_f, self.best_q)
            member, loop.member = loop.member, name
            until = None if session.limits.budget is None else loop.elapsed + seconds
            limits = session.limits.until(loop.iterations + int(room), until)
            found = make_rule(name).solve(session.within(limits))
            before = self.best_f
            with loop.clock():
                self._compare(found.q, found.free_energy)
                labels = self.layout.best_labels(found.q)
                self._keep_labels(labels, session.evaluate(self.one_hot(labels)))
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
        loop = self.loop
        if not self.lowered.hard and self.pace.pays(tuned.PART_SECONDS):
            with loop.clock():
                self.parts = Parts(self.lowered)
        forests = self.pace.pays(tuned.FOREST_SECONDS)
        while True:
            self.pace.choose_threads()
            moves = self.moves.draw(self.rng, [k != "forests" or forests for k in tuned.MOVES])
            name = self.moves.options[moves]
            room = self.pace.room(name)
            most = min(room / 4, self.pace.sweeps_in(tuned.CHAIN_SECONDS, name))
            most = max(min(tuned.CHAIN_SWEEPS), most)
            length = self.lengths.draw(self.rng, [n <= most for n in tuned.CHAIN_SWEEPS])
            hot = self.temperatures.draw(self.rng)
            many = self.parts is not None and self.parts.typical > tuned.MANY_PARTS
            where = {"best": True, "start": not many, "labels": self.labels is not None}
            origin = self.origins.draw(self.rng, list(where.values()))
            sweeps = self.lengths.options[length]
            last = int(np.clip(sweeps // 20, *tuned.REHEAT_POLISH))
            count = self.pace.count(name, sweeps + last)
            if room < sweeps + last or count == 0:
                return None
            begins = {"best": self.best_q, "start": self.session.start}
            if self.labels is not None:
                begins["labels"] = self.one_hot(self.labels)
            starts = np.repeat(begins[self.origins.options[origin]][None], count, axis=0)
            heat = max(1.0, self.scale) * self.temperatures.options[hot]
            member = f"{name} from T={heat:.3g}, {sweeps} sweeps"
            f, begun = self.best_f, self.pace.spent()
            self._round(member, starts, heat, sweeps, self.cold, moves=name, polish=last)
            gain, cost = f - self.best_f, self.pace.spent() - begun
            self.origins.learn(origin, gain, cost)
            self.moves.learn(moves, gain, cost)
            self.lengths.learn(length, gain, cost)
            self.temperatures.learn(hot, gain, cost)
            if self.stalled():
                return None
            halted = self._asked()
            if halted is not None:
                return halted

    def _end(self) -> Outcome:
        """From the best state to a minimum."""
        session, loop, limits = self.session, self.loop, self.session.limits
        if limits.budget is not None:  # a few sweeps to the tolerance are worth a little overtime
            grace = min(loop.elapsed, limits.budget) + tuned.GRACE_SECONDS
            limits = replace(limits, budget=max(1.03 * limits.budget, grace))
        session = session.within(limits)
        left = float(session.iterations_left)
        if limits.budget is not None:
            left = min(left, session.seconds_left / self.pace.sweep_seconds() - 1.0)
        sweeps = int(np.clip(left / 2, 0, tuned.END_SWEEPS))
        self._polish_from(self.best_q, sweeps, "polish", limits.tol)
        before = Outcome(self.best_q, self.best_f, Status.MAX_ITERS)
        loop.keep(self.best_f, self.best_q)
        loop.tell(self.best_q, self.best_f)
        loop.member = "polish"
        return better_of(session, before, polish(session, self.best_q))

    def _asked(self) -> Status | None:
        """STOPPED if the callback asks for it."""
        return Status.STOPPED if self.loop.report(self.best_f, self.best_q.copy) else None

    def _polish_from(self, q: Doubles, sweeps: int, member: str, tol: float = 1e-3) -> None:
        """Sweeps from some marginals."""
        if sweeps > 0:
            self._round(member, q[None], 1.0, 0, 1.0, moves="", polish=sweeps, tol=tol)

    def _round(
        self, take: str, starts: Doubles, hot: float, sweeps: int, cold: float, *,
        moves: str = "sites", polish: int = 0, tol: float = 1e-3,
    ) -> Explored:  # fmt: skip
        """Run chains, and count what they cost.

        What is better than the best state is kept if a member is named that it was found by.
        """
        loop, drawn = self.loop, moves in ("sites", "forests")
        chains = Chains.make(
            starts, hot=hot, cold=cold if drawn else 1.0, sweeps=sweeps,
            seeds=self.seeds(len(starts)), drawn=drawn, forests=moves == "forests", polish=polish,
            tol=tol,
        )  # fmt: skip
        begun, base = loop.now(), loop.elapsed
        with finish_first():
            made = 0
            if self.flat and take and drawn and sweeps >= tuned.LABELLED_SWEEPS:
                # the chains up to their labellings, and then the rest of them
                found = self.session.explore(replace(chains, polish=0), self.pace.threads)
                best = int(found.free_energy.argmin())
                labels = self.layout.best_labels(found.q[best])
                self._keep_labels(labels, float(found.free_energy[best]))
                made = int(found.sweeps.sum())
                chains = Chains.make(found.q, polish=chains.polish, tol=chains.tol)
            ended = self.session.explore(chains, self.pace.threads)
            made += int(ended.sweeps.sum())
            before = self.best_f
            for k in np.argsort(ended.free_energy, kind="stable") if take else ():
                self._compare(ended.q[k], float(ended.free_energy[k]))
            if self.best_f < before:
                loop.member = take
            if self.best_f < before - 1e-6 * (1 + abs(before)):
                self.improved_at = loop.iterations + made
            spent = max(loop.now() - begun, 1e-9)
            self.pace.learn(moves, made, spent)
            loop.note(made, base + spent, self.best_f)
        return ended

    def _keep_labels(self, labels: Ints, energy: float) -> None:
        if energy < self.lowest:
            self.labels, self.lowest = labels, energy

    def _compare(self, q: Doubles, f: float) -> None:
        if self.parts is not None:
            gradient = self.session.program.gradient
            merged = self.parts.best_marginals(self.best_q, q, gradient, tuned.PART_CHANGE)
            if merged is not None:
                merged_f = self.session.evaluate(merged)
                if merged_f < f:
                    q, f = merged, merged_f
        if f < self.best_f:
            self.best_q, self.best_f = q, f
