"""`infer` over several ranks: every rank runs this, and all take the same decisions."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from proxfield.backends.base import Rows, State
from proxfield.common.checks import is_real, is_whole
from proxfield.distributed.checkpoint import Checkpoints
from proxfield.distributed.coloring import shared_colors
from proxfield.distributed.curvature import curvature_of
from proxfield.distributed.part_result import PartResult
from proxfield.distributed.partition import Partition
from proxfield.distributed.program import LARGE_SIZE, PartProgram
from proxfield.distributed.transport import agree
from proxfield.errors import InputError, InputTypeError, UnsupportedError, shown
from proxfield.inference.history import Callback, History, Progress
from proxfield.inference.request import Request
from proxfield.inference.session import name_oscillation
from proxfield.inference.starts import Start, observed, starting_point
from proxfield.result import Status
from proxfield.rules.base import Rule
from proxfield.rules.plan import Order, Plan, Update
from proxfield.rules.session import Problem

RULES = ("fixed", "adaptive", "full-parallel", "adhoc", "momentum", "adam", "backtracking")
"""Rules that move all variables at once; `colored` moves them by color."""


def infer(
    partition: Partition,
    rule: str | Rule | type[Rule] = "fixed",
    *,
    init: Start = "uniform",
    max_iters: int | None = None,
    tol: float = 1e-6,
    budget: float | None = None,
    callback: Callback | None = None,
    seed: int = 0,
    threads: int | None = None,
    device: str = "cpu",
    kernels: str | None = None,
    dtype: str | None = None,
    keep: str = "last",
    trace: bool = True,
    reduce_every: int = 10,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_seconds: float = 600.0,
    **params: Any,
) -> PartResult:
    """Mean-field inference on a field over several ranks. Collective: every rank calls it.

    Args:
        partition: This rank's part.
        rule: A rule that moves all variables at once, or "colored".
        init: As in `proxfield.infer`; marginals are those of this rank's variables.
        max_iters: Maximum number of updates.
        tol: As in `proxfield.infer`.
        budget: Time budget in seconds; rank 0's clock decides.
        callback: Called on each rank after a reduction; returning something true on any of them
            stops the inference on all.
        seed: Random seed.
        threads: Maximum number of threads of each rank.
        device: As in `proxfield.infer`; with several GPUs, each rank's own.
        kernels: As in `proxfield.infer`.
        dtype: As in `proxfield.infer`.
        keep: "last" or "best".
        trace: Keep F of every state.
        reduce_every: Updates between reductions of F and of changes: the run may end that many
            updates later than a run on one process. With ``keep="best"``, 1.
        checkpoint: A folder for checkpoints. A run that finds one of its own there continues it.
        checkpoint_seconds: Seconds between checkpoints.
        **params: Parameters of the rule.

    Returns:
        A `PartResult`. Ctrl-C on any rank ends the run on all, with the status INTERRUPTED.
    """
    if not isinstance(partition, Partition):
        raise InputTypeError(f"infer takes a Partition, not {type(partition).__name__}")
    if not is_whole(reduce_every) or reduce_every < 1:
        raise InputError(f"reduce_every={shown(reduce_every)}, expected a whole number above 0")
    if not is_real(checkpoint_seconds) or not checkpoint_seconds >= 0:
        raise InputError(f"checkpoint_seconds={shown(checkpoint_seconds)}, expected 0 or more")
    request = Request.make(
        rule, params, device, init=init, max_iters=max_iters, tol=tol, budget=budget,
        callback=callback, seed=seed, threads=threads, kernels=kernels, dtype=dtype, keep=keep,
        trace=trace,
    )  # fmt: skip
    name = request.rule.name
    if name not in (*RULES, "colored", "custom"):
        raise UnsupportedError(
            f"rule {name!r} isn't available over several ranks, expected one of: "
            f"{', '.join((*RULES, 'colored', 'custom'))}"
        )
    start = init if isinstance(init, str) else "given"
    asked = [
        name, sorted((k, repr(v)) for k, v in request.rule.params.items() if not callable(v)),
        start, request.max_iters, request.tol, request.budget, request.seed, request.dtype, keep,
        int(reduce_every), checkpoint is None, callback is None, checkpoint_seconds,
    ]  # fmt: skip
    agree(partition.transport, f"{name} {digest(asked)}", "arguments of infer")
    partition.reset()
    run = Inference(partition, request, 1 if keep == "best" else int(reduce_every))
    if checkpoint is not None:
        key = [name, asked[1], start, request.seed, request.dtype, request.kernels, keep]
        own = hashlib.sha256(np.ascontiguousarray(partition.lowered.unary).data).hexdigest()[:16]
        key_text = digest([*key, partition.field.n_vars, own])
        run.checkpoints = Checkpoints(Path(checkpoint), partition.transport, key_text)
        run.checkpoint_seconds = float(checkpoint_seconds)
    return run.solve()


def digest(values: object) -> str:
    """A short name for values."""
    return hashlib.sha256(json.dumps(values, default=repr).encode()).hexdigest()[:16]


@dataclass
class Inference:
    """One call of `infer` on one rank."""

    partition: Partition
    request: Request
    every: int
    checkpoints: Checkpoints | None = None
    checkpoint_seconds: float = np.inf
    iterations: int = 0
    elapsed: float = 0.0
    waiting: int = 0
    """Updates to wait since the last test for a fixed point failed."""
    test_at: int = 0
    """The update from which on it may be tested again."""
    best_f: float = np.inf
    best_q: NDArray[np.float64] | None = None
    rows: list[Rows] = field(default_factory=list)
    moments: list[NDArray[np.float64]] = field(default_factory=list)

    def now(self) -> float:
        """Rank 0's clock."""
        return float(self.partition.transport.broadcast(np.array([self.request.now()]))[0])

    def solve(self) -> PartResult:
        """Iterate to the limits."""
        part, request = self.partition, self.request
        begun = self.now()
        if part.lowered.infeasible or np.isinf(
            part.transport.reduce(np.array([min(part.lowered.constant, 1e300)]), "max")[0]
        ):
            return self._infeasible()
        program = PartProgram(part, request.kernels, request.dtype, request.threads)
        plan, colors, limit = self._plan()
        q = self._start()
        state = program.start(q)
        if self.checkpoints is not None:
            self._resume(state)
        if part.lowered.layout.size < LARGE_SIZE:  # it takes a second state
            program.program.warm_up(warm_plan(plan), state, True)
        self.clock_begun = self.now() - self.elapsed
        self.saved = self.elapsed
        setup = self.clock_begun + self.elapsed - begun
        with noted_interrupt() as interrupted:
            status = self._iterate(program, plan, colors, state, limit, interrupted)
        last = program.free_energy(state) if status is not Status.DIVERGED else np.nan
        if status is Status.DIVERGED:
            state = program.start(self._start())
            last = program.free_energy(state)
        return self._finish(program, state, status, last, setup)

    def _plan(self) -> tuple[Plan, int, int]:
        """The plan of this rank's variables, the number of colors, and the limit on updates."""
        part, request = self.partition, self.request
        rule = request.rule
        if rule.name == "colored":
            if part.cut.extras or part.transport.reduce(np.array([len(part.cut.extras)]))[0]:
                raise UnsupportedError("colored needs every term lowered to tables")
            order, starts = shared_colors(part)
            plan: Plan = Order(order, starts)
            limit, colors = 1000, len(starts) - 1
        elif part.curvature_of_whole is not None and part.whole is not None:
            problem = Problem(part.whole, part.curvature_of_whole, request.seed)
            plan = restricted(rule.plan(problem), part)
            limit, colors = rule.default_iterations(problem), 0
        else:
            curvature = curvature_of(part, "cpu")
            problem = Problem(part.lowered, curvature, request.seed)
            plan = rule.plan(problem)
            limit, colors = rule.default_iterations(problem), 0
        if request.max_iters is not None:
            return plan, colors, request.max_iters
        return plan, colors, 2**62 if request.budget is not None else limit

    def _start(self) -> NDArray[np.float64]:
        """This rank's marginals to start from."""
        part, init, seed = self.partition, self.request.init, self.request.seed
        layout = part.lowered.layout
        if init == "random" and part.whole is not None and part.owner is not None:
            whole = part.whole  # the same start as on one process
            noise = np.random.default_rng(seed).exponential(size=whole.layout.size)
            owner = part.owner[whole.reduction.free]
            own = owner[whole.layout.owner] == part.rank
            return observed(part.field, layout, layout.normalize(noise[own]))
        if init == "random":
            noise = np.random.default_rng([seed, part.rank]).exponential(size=layout.size)
            return observed(part.field, layout, layout.normalize(noise))
        if init == "uniform" and part.lowered.layout.common and (part.field.evidence < 0).all():
            common = part.lowered.layout.common
            return np.broadcast_to(1.0 / common, part.lowered.layout.size)
        return starting_point(part.field, part.lowered, init, seed)

    def _iterate(
        self, program: PartProgram, plan: Plan, colors: int, state: State, limit: int,
        interrupted: threading.Event,
    ) -> Status:  # fmt: skip
        """Update until a limit or a fixed point is reached."""
        request = self.request
        per_update = 0.0
        while True:
            if self.iterations >= limit:
                return Status.MAX_ITERS
            n = min(self.every, limit - self.iterations)
            if self.iterations < self.test_at:
                n = min(n, self.test_at - self.iterations)
            if request.budget is not None:
                left = request.budget - self.elapsed
                if left <= per_update:
                    return Status.BUDGET
                n = 1 if per_update == 0.0 else max(1, min(n, int(left / per_update)))
            kept = program.program.marginals(state) if request.keep == "best" else None
            rows, stop = program.advance(state, plan, n, colors, interrupted.is_set())
            before, self.elapsed = self.elapsed, self.now() - self.clock_begun
            per_update = max(0.5 * per_update, (self.elapsed - before) / n)
            self._take(rows, before, kept)
            change = float(rows.change[-1])
            if np.isnan(change):
                return Status.DIVERGED
            if change <= request.tol and self.iterations >= min(self.test_at, limit):
                residual, rounding = program.residual(state)
                if residual <= request.tol + rounding:
                    return Status.CONVERGED
                self.waiting = max(1, 2 * self.waiting)
                self.test_at = self.iterations + self.waiting
            if stop:
                return Status.INTERRUPTED
            if request.callback is not None and self._asked_to_stop(program, state, rows, limit):
                return Status.STOPPED
            self._checkpoint(state)

    def _take(self, rows: Rows, before: float, kept: NDArray[np.float64] | None) -> None:
        n = len(rows)
        self.rows.append(rows)
        self.moments.append(np.linspace(before, self.elapsed, n + 1)[1:])
        self.iterations += n
        if kept is not None and rows.free_energy[0] < self.best_f:
            self.best_f, self.best_q = float(rows.free_energy[0]), kept

    def _asked_to_stop(self, program: PartProgram, state: State, rows: Rows, limit: int) -> bool:
        callback = self.request.callback
        assert callback is not None
        reduction = self.partition.lowered.reduction
        answer = callback(
            Progress(
                iteration=self.iterations,
                seconds=self.elapsed,
                free_energy=float(rows.free_energy[-1]),
                change=float(rows.change[-1]),
                max_iters=limit,
                budget=self.request.budget,
                marginals=lambda: reduction.expand(program.program.marginals(state)),
            )
        )
        return bool(self.partition.transport.reduce(np.array([float(bool(answer))]), "max")[0])

    # ---- checkpoints ----

    def _checkpoint(self, state: State) -> None:
        if self.checkpoints is None or self.elapsed - self.saved < self.checkpoint_seconds:
            return
        f, change, seconds, twice = self._trace()
        best = np.zeros(0) if self.best_q is None else self.best_q
        self.checkpoints.save(
            state,
            {
                "iterations": self.iterations,
                "elapsed": self.elapsed,
                "waiting": self.waiting,
                "test_at": self.test_at,
                "best_f": self.best_f,
                "period2": twice,
                "best": best,
                "free_energy": f,
                "change": change,
                "seconds": seconds,
            },
        )
        self.saved = self.elapsed

    def _resume(self, state: State) -> None:
        assert self.checkpoints is not None
        found = self.checkpoints.load(state)
        if found is None:
            return
        self.iterations, self.elapsed = int(found["iterations"]), float(found["elapsed"])
        self.waiting, self.test_at = int(found["waiting"]), int(found["test_at"])
        self.best_f = float(found["best_f"])
        self.best_q = found["best"] if len(found["best"]) else None
        self.rows = [Rows(found["free_energy"], found["change"], float(found["period2"]))]
        self.moments = [found["seconds"]]

    def _trace(
        self,
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64], float]:
        none = np.zeros(0)
        return (
            np.concatenate([none, *(r.free_energy for r in self.rows)]),
            np.concatenate([none, *(r.change for r in self.rows)]),
            np.concatenate([none, *self.moments]),
            self.rows[-1].period2 if self.rows else np.inf,
        )

    # ---- the end ----

    def _finish(
        self, program: PartProgram, state: State, status: Status, last: float, setup: float
    ) -> PartResult:
        part, request = self.partition, self.request
        history = History(2**62, request.tol, request.budget, trace=request.trace)
        history.iterations = self.iterations
        f, change, seconds, history.period2 = self._trace()
        if not request.trace:
            f = np.full(len(f), np.nan)
        history.append(0, [seconds], [Rows(f, change)], last, True)
        if status in (Status.MAX_ITERS, Status.BUDGET) and not request.rule.never_rises:
            status = name_oscillation(history, status)
        q = program.marginals(state)
        if self.best_q is not None and self.best_f < last:
            q, last = self.best_q, self.best_f
            status = Status.OVERSHOT if status is Status.CONVERGED else status
        return PartResult(
            field=part.field,
            q=part.lowered.reduction.expand(q),
            free_energy=last,
            status=status,
            iterations=history.iterations,
            seconds=self.elapsed,
            rule=request.rule.name,
            params=request.rule.params,
            trace=history.make_trace(),
            setup_seconds=setup,
            kernels=request.kernels,
            partition=part,
            wall_seconds=program.seconds,
            cpu_seconds=program.cpu_seconds,
            bytes_sent=part.transport.bytes_sent,
        )

    def _infeasible(self) -> PartResult:
        part, request = self.partition, self.request
        layout = part.field.layout
        return PartResult(
            field=part.field,
            q=np.repeat(1.0 / layout.cardinalities, layout.cardinalities),
            free_energy=np.inf,
            status=Status.INFEASIBLE,
            iterations=0,
            seconds=0.0,
            rule=request.rule.name,
            params=request.rule.params,
            trace=History(0).make_trace(),
            kernels=request.kernels,
            partition=part,
        )


def restricted(plan: Plan, part: Partition) -> Plan:
    """A plan of the whole field, for one rank's variables."""
    if not isinstance(plan, Update):
        return plan
    assert part.whole is not None and part.owner is not None
    own = part.owner[part.whole.reduction.free] == part.rank
    fallback = None if plan.fallback is None else np.ascontiguousarray(plan.fallback[own])
    return replace(plan, step=np.ascontiguousarray(plan.step[own]), fallback=fallback)


def warm_plan(plan: Plan) -> Plan:
    """The plan that the rank's own program will execute."""
    if isinstance(plan, Update) and plan.watches:
        return replace(plan, adaptive=False, fallback=None, search=None)
    return plan


@contextmanager
def noted_interrupt() -> Iterator[threading.Event]:
    """Note Ctrl-C instead of raising it, so that all ranks end together; a second one is raised."""
    asked = threading.Event()
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield asked
        return

    def note(*_: object) -> None:
        asked.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    signal.signal(signal.SIGINT, note)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
