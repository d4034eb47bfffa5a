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
from typing import Any

import numpy as np
from numpy.typing import NDArray

from proxfield.core.engines.base import Rows, State
from proxfield.core.engines.plan import Plan, Update
from proxfield.core.solve.history import Callback, Limits, Progress
from proxfield.core.solve.loop import Loop, Run
from proxfield.core.solve.request import UNLIMITED, Request, observed, starting_point
from proxfield.core.solve.rules.base import Problem, Rule
from proxfield.core.solve.session import FEWEST_PRODUCTS, THOROUGH_FACTOR, Session
from proxfield.core.solve.stationarity import MAX_PRODUCTS, Judgement, Verdict
from proxfield.core.terms.base import Floats, Ints
from proxfield.core.terms.factor import Factor
from proxfield.distributed.checkpoint import Checkpoints
from proxfield.distributed.curvature import curvature_of
from proxfield.distributed.partition import Partition
from proxfield.distributed.program import LARGE_SIZE, PartProgram
from proxfield.distributed.stationarity import judge_spread, nudged_part
from proxfield.errors import UnsupportedError
from proxfield.result import Trace

ROW = ("iteration", "seconds", "free_energy", "change")
"""Columns of a trace, as checkpoints name them."""


@dataclass(frozen=True)
class PartProblem(Problem):
    """What plans are made from: the whole field where it is known, else this rank's part."""

    partition: Partition | None = None
    colors: list[tuple[Ints, Ints]] = field(default_factory=list)
    """`coloring`, once it has been asked for."""

    @classmethod
    def of(cls, part: Partition, seed: int) -> PartProblem:
        """The problem of a partition."""
        if part.curvature_of_whole is not None and part.whole is not None:
            return cls(part.whole, part.curvature_of_whole, seed, partition=part)
        return cls(part.lowered, curvature_of(part, "cpu"), seed, partition=part)

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
    saved: float = 0.0
    """Seconds at the last checkpoint."""
    moving: State | None = None
    """The state that a checkpoint holds."""
    resumed: State | None = None
    """The checkpoint's state, which moves first."""

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
        part = self.partition
        if not isinstance(plan, Update) or part.whole is None or part.owner is None:
            return plan
        mine = self._mine
        fallback = None if plan.fallback is None else np.ascontiguousarray(plan.fallback[mine])
        return replace(plan, step=np.ascontiguousarray(plan.step[mine]), fallback=fallback)

    @property
    def _mine(self) -> NDArray[np.bool_]:
        """Which variables of the whole field are this rank's."""
        part = self.partition
        assert part.whole is not None and part.owner is not None
        return np.asarray(part.owner[part.whole.reduction.free] == part.rank)

    @property
    def own_bounds(self) -> NDArray[np.float64]:
        """λ_i of this rank's variables.  # (n_vars,)"""
        local = self.problem.curvature.local
        whole = self.partition.whole is not None and self.partition.owner is not None
        return np.asarray(local[self._mine]) if whole else local

    def looks_back(self, rule: Rule) -> bool:
        return self.keep == "best"  # a copy of the state may be too much for a rank's memory

    def off_center(self, start: NDArray[np.float64]) -> NDArray[np.float64]:
        return start

    def nudged(self, q: Floats, attempt: int = 0) -> NDArray[np.float64]:
        escapes = int(self.memory.get("escapes", 0))  # a resumed run goes on counting
        self.memory["escapes"] = escapes + 1
        return nudged_part(self.partition, q, self.problem.seed + escapes)

    def judge(self, state: State, thorough: bool) -> Judgement:
        largest = self.program.maximum(float(self.partition.lowered.layout.size))
        if largest >= LARGE_SIZE:  # it takes a dozen vectors in float64
            return Judgement(Verdict.UNDECIDED)
        products = int(np.clip(2 * self.loop.iterations, FEWEST_PRODUCTS, MAX_PRODUCTS))
        most = THOROUGH_FACTOR * MAX_PRODUCTS if thorough else products
        deadline, now = self.deadline(), self.loop.now

        def late() -> bool:
            return self.limits.budget is not None and now() > deadline

        return judge_spread(self.program, state, self.problem.seed, most, late)

    # ---- what happens at each look ----

    def looked(self, callback: Callback | None) -> Callback:
        """What the loop calls after each reduction: the user's callback, Ctrl-C, checkpoints."""

        def look(progress: Progress) -> bool:
            if self.program.stop_asked:
                raise KeyboardInterrupt
            if callback is not None:
                answer = float(bool(callback(progress)))
                if self.program.maximum(answer) > 0:
                    return True
            due = self.loop.elapsed - self.saved >= self.checkpoint_seconds
            if due and self.checkpoints is not None and self.moving is not None:
                self.checkpoints.save(self.moving, self.position())
                self.saved = self.loop.elapsed
            return False

        return look

    # ---- checkpoints ----

    def position(self) -> dict[str, Any]:
        """Where the run stands, but for its state."""
        loop = self.loop
        pieces = loop.pieces
        best_f, best = np.inf, np.zeros(0)
        for seen in (loop.best, loop.earlier):
            if seen is not None and seen.free_energy < best_f:
                best_f, best = seen.recover()
        found: dict[str, Any] = {
            "iterations": loop.iterations,
            "elapsed": loop.elapsed,
            "memory": self.memory,
            "best_f": best_f,
            "best": best,
        }
        for name in ROW:
            parts = [np.asarray(getattr(piece, name), dtype=np.float64) for piece in pieces]
            found[f"trace {name}"] = np.concatenate([np.zeros(0), *parts])
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
        columns = [found[f"trace {name}"] for name in ROW]
        if len(columns[0]):
            count = columns[0].astype(np.int64)
            _, seconds, f, change = columns
            loop.pieces.append(Trace(count, seconds, f, change, [""] * len(count)))
        if "first" in found:
            rows = Rows(found["f"], found["change"], float(found["period2"]))
            run = Run(loop, self.limits)
            run.first, run.waiting = int(found["first"]), int(found["waiting"])
            run.test_at = int(found["test_at"])
            run.rows, run.moments = [rows] if len(rows) else [], [found["moments"]]
            loop.resumed = run


def open_part(part: Partition, request: Request, every: int) -> PartSession:
    """The session of one rank. Collective.

    Args:
        part: The rank's part.
        request: What was asked for.
        every: Updates between two reductions.
    """
    rule, mover = request.rule, request.rule.mover
    extras = part.transport.reduce(np.array([float(len(part.cut.extras))]))[0]
    if extras and (mover.visits_variables or rule.explores):
        raise UnsupportedError(
            f"{rule.name} over several ranks needs every term lowered to tables; use anneal"
        )

    def now() -> float:
        """Rank 0's clock."""
        return float(part.transport.broadcast(np.array([request.now()]))[0])

    program = PartProgram(part, request.kernels, request.dtype, request.threads, every)
    problem = PartProblem.of(part, request.seed)
    most = request.max_iters
    if most is None:
        unlimited = request.budget is not None
        most = UNLIMITED if unlimited else mover.default_iterations(problem)
    limits = Limits(most, request.tolerance, request.budget)
    expand = part.lowered.reduction.expand
    session = PartSession(
        problem=problem,
        loop=Loop(limits, None, request.trace, expand, now),
        limits=limits,
        start=start_of(part, request),
        kernels=request.kernels,
        dtype=request.dtype,
        threads=request.threads,
        keep=request.keep,
        made=program,
        partition=part,
    )
    session.loop.callback = session.looked(request.callback)
    return session


def start_of(part: Partition, request: Request) -> NDArray[np.float64]:
    """A rank's marginals to start from."""
    init, seed, layout = request.init, request.seed, part.lowered.layout
    if isinstance(init, str) and init == "random":  # as on one process, where the field is known
        noise = part.random(lambda generator, size: generator.exponential(size=size), seed)
        return observed(part.field, layout, layout.normalize(noise))
    uniform = isinstance(init, str) and init == "uniform"
    if uniform and layout.common and (part.field.evidence < 0).all():
        return np.broadcast_to(1.0 / layout.common, layout.size)
    return starting_point(part.field, part.lowered, init, seed)


def shared_colors(part: Partition) -> tuple[Ints, Ints]:
    """This rank's variables by color, and where each color of the whole field starts.  Collective.

    Where every rank holds the whole field, the colors are those of one process. Else each rank
    colors its own variables, and ranks take turns for borders: variables of the border that share a
    term with a rank before this one get colors that no other rank uses.
    """
    transport = part.transport
    if part.whole is not None and part.owner is not None:
        colors = part.whole.color()
        count = int(colors.max(initial=-1)) + 1
        mine = colors[part.owner[part.whole.reduction.free] == part.rank]
    else:
        mine = part.lowered.color()
        used = int(transport.reduce(np.array([float(mine.max(initial=-1))]), "max")[0]) + 1
        cut, late = part.cut, np.zeros(part.lowered.layout.n_vars, dtype=bool)
        width = len(cut.border)
        for term in (*cut.pairs, *cut.larger):
            scopes = term.scopes if isinstance(term, Factor) else term.neighbors(cut.layout)
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
