"""One inference over several ranks, as rules see it: a `Session` whose decisions all ranks share.

The loop, the rules and their stages are those of one process. What differs is here: the program's
reductions and the clock are collective, plans of the whole field are cut to a rank's variables, and
the callback of each look also asks for Ctrl-C on any rank and writes checkpoints.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from proxfield.core.common.records import Record
from proxfield.core.engines.base import Rows, State
from proxfield.core.engines.plan import Chains, Plan, Update
from proxfield.core.solve.history import Callback, Limits, Progress
from proxfield.core.solve.loop import Loop, Run
from proxfield.core.solve.request import UNLIMITED, Request, observed, starting_point
from proxfield.core.solve.rules.base import Outcome, Problem, Rule
from proxfield.core.solve.rules.portfolio import better_of
from proxfield.core.solve.search.tuned import COLD_SHARE, HOT_SHARE
from proxfield.core.solve.session import FEWEST_PRODUCTS, THOROUGH_FACTOR, Session
from proxfield.core.solve.stationarity import MAX_PRODUCTS, Judgement, Verdict, judge
from proxfield.core.terms.base import Doubles, Floats, Ints
from proxfield.distributed.checkpoint import Checkpoints
from proxfield.distributed.cut import scopes_of
from proxfield.distributed.partition import Partition
from proxfield.distributed.program import LARGE_SIZE, PartProgram
from proxfield.distributed.spectrum import SpreadCurvature, SpreadScaled, nudged_part
from proxfield.errors import UnsupportedError
from proxfield.result import Status, Trace

ROW = ("iteration", "seconds", "free_energy", "change")
"""Columns of a trace, as checkpoints name them."""


@dataclass(frozen=True)
class PartProblem(Problem):
    """What plans are made from: the whole field where it is known, else this rank's part."""

    partition: Partition | None = None
    colors: list[tuple[Ints, Ints]] = field(default_factory=list)
    """`coloring`, once it has been asked for."""

    # not cached_property: before Python 3.12 that locks, and ranks may be threads
    @property
    def coloring(self) -> tuple[Ints, Ints]:
        assert self.partition is not None
        if not self.colors:
            self.colors.append(shared_colors(self.partition))
        return self.colors[0]


@dataclass
class PartSession(Session):
    """One call of `infer` on one rank. What it decides is the same on all."""

    partition: Partition = field(kw_only=True)
    checkpoints: Checkpoints | None = None
    checkpoint_seconds: float = np.inf
    saved: float = 0.0  # seconds at the last checkpoint
    moving: State | None = None  # the state that a checkpoint holds
    resumed: State | None = None  # the checkpoint's state, which moves first

    @property
    def program(self) -> PartProgram:
        assert isinstance(self.made, PartProgram)
        return self.made

    # ---- what is of this rank, or of all ----

    def begin(self, start: NDArray[np.float64]) -> State:
        self.moving, self.resumed = self.resumed or super().begin(start), None
        self.program.shared_f = None
        return self.moving

    def own(self, plan: Plan) -> Plan:
        whole = self.partition.whole
        if not isinstance(plan, Update) or whole is None:
            return plan
        fallback = plan.fallback
        fallback = None if fallback is None else np.ascontiguousarray(fallback[whole.mine])
        return replace(plan, step=np.ascontiguousarray(plan.step[whole.mine]), fallback=fallback)

    def looks_back(self, rule: Rule) -> bool:
        return self.keep == "best"  # a copy of the state may be too much for a rank's memory

    def off_center(self, start: NDArray[np.float64]) -> NDArray[np.float64]:
        return start

    def nudged(self, q: Floats, attempt: int = 0) -> NDArray[np.float64]:
        escapes = int(self.memory.get("escapes", 0))  # a resumed run goes on counting
        self.memory["escapes"] = escapes + 1
        return nudged_part(self.partition, q, self.problem.seed + escapes)

    def judge(self, state: State, thorough: bool) -> Judgement:
        largest = self.partition.transport.maximum(self.partition.lowered.layout.size)
        if largest >= LARGE_SIZE:  # it takes a dozen vectors in float64
            return Judgement(Verdict.UNDECIDED)
        program, cut = self.program, self.partition.cut
        terms = [*program.lowered.terms, *cut.pairs, *cut.larger]
        higher = bool(cut.extras) or any(term.degree != 2 for term in terms)
        if program.transport.maximum(bool(terms or cut.extras)) == 0.0:
            return Judgement(Verdict.MINIMUM)
        space = SpreadScaled(program, state, program.transport.maximum(higher) == 0.0)
        products = int(np.clip(2 * self.loop.iterations, FEWEST_PRODUCTS, MAX_PRODUCTS))
        most = THOROUGH_FACTOR * MAX_PRODUCTS if thorough else products
        return judge(
            program, state, seed=self.problem.seed, max_products=most,
            min_products=FEWEST_PRODUCTS, late=self.late(), space=space,
        )  # fmt: skip

    # ---- what happens at each look ----

    def looked(self, callback: Callback | None) -> Callback:
        """What the loop calls after each reduction: the user's callback, Ctrl-C, checkpoints."""

        def look(progress: Progress) -> bool:
            if self.program.stop_asked:
                raise KeyboardInterrupt
            maximum = self.partition.transport.maximum
            if callback is not None and maximum(bool(callback(progress))) > 0:
                return True
            due = self.loop.elapsed - self.saved >= self.checkpoint_seconds
            if due and self.checkpoints is not None and self.moving is not None:
                self.checkpoints.save(self.moving, self.position())
                self.saved = self.loop.elapsed
            return False

        return look

    # ---- checkpoints ----

    def position(self) -> Record:
        """Where the run stands, but for its state."""
        loop, trace = self.loop, self.loop.make_trace()
        best_f, best = np.inf, np.zeros(0)
        for seen in (loop.best, loop.earlier):
            if seen is not None and seen.free_energy < best_f:
                best_f, best = seen.recover()
        found: Record = {
            "iterations": loop.iterations, "elapsed": loop.elapsed, "memory": self.memory,
            "best_f": best_f, "best": best,
            **{f"trace {name}": np.asarray(getattr(trace, name), dtype=float) for name in ROW},
        }  # fmt: skip
        run = loop.running
        if run is not None:
            found.update(first=run.first, waiting=run.waiting, test_at=run.test_at)
            found["period2"] = run.rows[-1].period2 if run.rows else np.inf
            none = np.zeros(0)
            found["f"] = np.concatenate([none, *(rows.free_energy for rows in run.rows)])
            found["change"] = np.concatenate([none, *(rows.change for rows in run.rows)])
            found["moments"] = np.concatenate([none, *run.moments])
        return found

    def resume(self) -> None:
        """Continue from the last checkpoint, if there is one."""
        assert self.checkpoints is not None
        loop, state = self.loop, self.program.start(self.start)
        found = self.checkpoints.load(state)
        if found is None:
            return
        self.resumed = state
        loop.iterations, loop.elapsed = int(found["iterations"]), float(found["elapsed"])
        self.saved = loop.elapsed
        self.memory.update(found["memory"])
        if len(found["best"]):
            loop.keep(float(found["best_f"]), found["best"])
        count, seconds, f, change = (found[f"trace {name}"] for name in ROW)
        if len(count):
            loop.pieces.append(Trace(count.astype(int), seconds, f, change, [""] * len(count)))
        if "first" in found:
            rows = Rows(found["f"], found["change"], float(found["period2"]))
            run = Run(loop, self.limits)
            run.first, run.waiting = int(found["first"]), int(found["waiting"])
            run.test_at = int(found["test_at"])
            run.rows, run.moments = [rows] if len(rows) else [], [found["moments"]]
            loop.resumed = run


def open_part(part: Partition, request: Request, every: int) -> PartSession:
    """The session of one rank, which reduces after so many updates. Collective."""
    rule, mover = request.rule, request.rule.mover
    extras = part.transport.total(len(part.cut.extras))
    if extras and (mover.visits_variables or rule.explores):
        raise UnsupportedError(
            f"{rule.name} over several ranks needs every term lowered to tables; use anneal"
        )

    def now() -> float:
        """Rank 0's clock."""
        return float(part.transport.broadcast(np.array([request.now()]))[0])

    program = PartProgram(part, request.kernels, request.dtype, request.threads, every)
    problem = PartProblem(
        part.lowered, SpreadCurvature(part.lowered, partition=part), request.seed, partition=part
    )
    if part.whole is not None:
        problem = replace(problem, lowered=part.whole.lowered, curvature=part.whole.curvature)
    most = request.max_iters
    if most is None:
        unlimited = request.budget is not None
        most = UNLIMITED if unlimited else mover.default_iterations(problem)
    limits = Limits(most, request.tolerance, request.budget)
    init, seed, layout = request.init, request.seed, part.lowered.layout
    name = init if isinstance(init, str) else "given"
    if name == "random":  # as on one process, where the field is known
        noise = part.random(lambda generator, size: generator.exponential(size=size), seed)
        start = observed(part.field, layout, layout.normalize(noise))
    elif name == "uniform" and layout.common and (part.field.evidence < 0).all():
        start = np.broadcast_to(1.0 / layout.common, layout.size)
    else:
        start = starting_point(part.field, part.lowered, init, seed)
    session = PartSession(
        problem=problem,
        loop=Loop(limits, None, request.trace, part.lowered.reduction.expand, now),
        limits=limits,
        start=start,
        kernels=request.kernels,
        dtype=request.dtype,
        threads=request.threads,
        keep=request.keep,
        made=program,
        partition=part,
    )
    session.loop.callback = session.looked(request.callback)
    return session


def shared_colors(part: Partition) -> tuple[Ints, Ints]:
    """This rank's variables by color, and where each color of the whole field starts.  Collective.

    Where every rank holds the whole field, the colors are those of one process. Else each rank
    colors its own variables, and ranks take turns for borders: variables of the border that share a
    term with a rank before this one get colors that no other rank uses.
    """
    transport = part.transport
    if part.whole is not None:
        colors = part.whole.lowered.color()
        count = int(colors.max(initial=-1)) + 1
        mine = colors[part.whole.mine]
    else:
        mine = part.lowered.color()
        used = int(transport.maximum(mine.max(initial=-1))) + 1
        cut, late = part.cut, np.zeros(part.lowered.layout.n_vars, dtype=bool)
        width = len(cut.border)
        for term in (*cut.pairs, *cut.larger):
            scopes = scopes_of(term)
            ghosts = np.where(scopes >= width, scopes - width, -1)
            rank = np.where(ghosts >= 0, cut.owners[ghosts], part.size)
            before = rank.min(axis=1) < part.rank
            ends = scopes[before]
            late[cut.border[ends[ends < width]]] = True
        mine = np.where(late, mine + used * part.rank, mine)
        count = used * part.size
    order = np.argsort(mine, kind="stable")
    counts = np.bincount(mine, minlength=count)
    return order, np.concatenate([[0], np.cumsum(counts)])


@contextmanager
def noted_interrupt(asked: threading.Event) -> Iterator[None]:
    """Note Ctrl-C instead of raising it, so that all ranks end together; a second one is raised."""
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return

    def note(*_: object) -> None:
        asked.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


PLAIN_SHARE, SAMPLING = 0.2, 0.6
"""Shares of the updates or of the budget: a descent from the start, and sampling. The rest descends
from the chain's labelling, and the better of the two ends is the result."""
CONVEX = 2.0
"""Largest λ_i up to which F has one minimum, and nothing is sampled."""


def explored(session: PartSession, rule: Rule) -> Outcome:
    """Where a rule that explores ends: the better of two descents of its `mover`. Collective.

    The second one starts from a cooling chain. Each rank samples its own labels, and tells them
    after each sweep: they are drawn one after another, given all others of its own and those that
    the ghosts had before the sweep. At the cut that isn't a heat bath, since both ends of a term
    move at once; but the labelling is only a start for a descent, whose F is that of the whole
    field.
    """
    loop, limits, memory = session.loop, session.limits, session.memory
    program, mover, seed = session.program, rule.mover, session.problem.seed
    mover.prepare(session.problem)
    with loop.clock():
        plan = mover.plan(session.problem)
        local, whole = session.problem.curvature.local, session.partition.whole
        ends = temperatures(program, local if whole is None else local[whole.mine])
    if ends is None:
        return session.settle(mover, plan, session.start)
    if "sampled" in memory:  # a resumed run
        return best_of_two(session, session.settle(mover, plan, session.start))
    first = loop.iterations == 0
    state = session.begin(
        nudged_part(session.partition, session.start, seed) if first else session.start
    )
    if "sweep" not in memory:
        most = max(1, int(PLAIN_SHARE * limits.max_iters))
        budget = None if limits.budget is None else PLAIN_SHARE * limits.budget
        status = session.iterate(plan, state, limits.until(most, budget))
        if status in (Status.INTERRUPTED, Status.STOPPED):
            return session.best_seen(mover, state, status)
        loop.keep(loop.last, np.asarray(program.marginals(state), dtype=np.float64))
        memory["sweep"] = 1
    sweeps = max(1, int(SAMPLING * limits.max_iters))
    f = program.free_energy(state)  # exchanges the ghosts too
    while memory["sweep"] <= sweeps:
        done = (memory["sweep"] - 1) / sweeps
        if limits.budget is not None:
            done = max(done, (loop.elapsed / limits.budget - PLAIN_SHARE) / SAMPLING)
        if done >= 1.0:
            break
        with loop.clock():
            temperature = ends[0] * (ends[1] / ends[0]) ** done
            q = sample(program, state, temperature, [seed, session.partition.rank, memory["sweep"]])
            state = session.begin(q)
            f = program.free_energy(state)
        memory["sweep"] += 1
        loop.note(1, loop.elapsed, f)
        program.stop_asked = program.transport.maximum(program.interrupted.is_set()) > 0
        try:
            halted = Status.STOPPED if loop.report(f, q.copy) else None
        except KeyboardInterrupt:
            halted = Status.INTERRUPTED
        if halted is not None:
            return session.best_seen(mover, state, halted)
    memory["sampled"] = True
    return best_of_two(session, session.settle(mover, plan, program.marginals(state)))


def best_of_two(session: PartSession, after: Outcome) -> Outcome:
    """The end of the second descent, or that of the first if its F is lower."""
    seen = session.loop.earlier
    if seen is None or after.status in (Status.INTERRUPTED, Status.STOPPED):
        return after
    f, q = seen.recover()
    return better_of(session, Outcome(q, f, after.status), after)


def temperatures(program: PartProgram, local: Doubles) -> tuple[float, float] | None:
    """Where to begin and to end, from λ_i of this rank; None where F is convex. Collective."""
    transport = program.transport
    if transport.maximum(float(local.max(initial=0.0))) <= CONVEX:
        return None
    positive = local[local > 0.0]
    mean = transport.total(float(positive.sum())) / transport.total(len(positive))
    return max(1.0, HOT_SHARE * mean), min(1.0, COLD_SHARE * mean)


def sample(program: PartProgram, state: State, temperature: float, seed: list[int]) -> Doubles:
    """Marginals after one sweep of this rank's variables, whose ghosts were exchanged."""
    start = program.program.marginals(state)
    own_seed = int(np.random.SeedSequence(seed).generate_state(1)[0])
    chain = Chains.make(
        start[None], hot=temperature, cold=temperature, sweeps=1, seeds=own_seed, drawn=True,
        polish=0,
    )  # fmt: skip
    return np.asarray(program.program.explore(chain, 1).q[0])
