"""The one iteration loop: advance by a plan, look at the clock, keep the trace, stop."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from proxfield.curvature import Curvature
from proxfield.errors import InputError
from proxfield.field import Field
from proxfield.kernels import compile_program
from proxfield.kernels.base import Order, Plan, Program, Rows, State
from proxfield.lowering import Lowered
from proxfield.registry import make_rule
from proxfield.result import Result, Status, Trace
from proxfield.rules import Problem, Rule
from proxfield.terms.base import Floats

LOOK_SECONDS = 0.05
"""Aim of a look at the clock, the callback and Ctrl-C."""
FIRST_CHUNK = 4


@dataclass(frozen=True)
class Progress:
    """What a callback sees.

    Attributes:
        iteration: Updates made so far.
        seconds: Seconds so far.
        free_energy: The last F known (of the state before the last update).
        change: The last change of q over the step.
        max_iters: The limit on iterations.
        budget: The limit on seconds, or None.
        marginals: Call it for a copy of the marginals in the user's numbering, flat.
    """

    iteration: int
    seconds: float
    free_energy: float
    change: float
    max_iters: int
    budget: float | None
    marginals: Callable[[], NDArray[np.float64]]


Callback = Callable[[Progress], Any]


@dataclass
class Loop:
    """Limits, clock and trace of one inference; stages of it may share one loop."""

    lowered: Lowered
    max_iters: int
    tol: float
    budget: float | None
    callback: Callback | None
    trace: bool
    rows: list[tuple[int, float, float, Rows]] = field(default_factory=list)
    iterations: int = 0
    elapsed: float = 0.0
    best: tuple[float, NDArray[np.float64]] | None = None

    def run(
        self,
        program: Program,
        plan: Plan,
        state: State,
        *,
        limit: int | None = None,
        visible: bool = True,
        keep_best: bool = False,
    ) -> Status:
        """Iterate until converged or a limit is reached.

        Args:
            program: What to iterate with.
            plan: How the state moves.
            state: Where it is; changed in place.
            limit: Most iterations of this call.
            visible: Is the program's F the user's F? If not, the trace shows +inf.
            keep_best: Remember the best state seen at a look.
        """
        self._warm_up(program, plan, program.marginals(state))
        end = self.max_iters if limit is None else min(self.max_iters, self.iterations + limit)
        chunk, per_iteration = FIRST_CHUNK, 0.0
        start = time.perf_counter()
        base = self.elapsed
        try:
            while self.iterations < end:
                if self.budget is not None:
                    left = self.budget - self.elapsed
                    if left <= 0:
                        return Status.BUDGET
                    if per_iteration > 0:
                        chunk = min(chunk, max(1, int(left / per_iteration)))
                n = min(chunk, end - self.iterations)
                before = program.marginals(state) if keep_best else None
                begun = self.elapsed
                rows = program.advance(state, plan, n, self.tol, self.trace)
                self.elapsed = base + time.perf_counter() - start
                if not visible:
                    rows.free_energy = np.full(len(rows), np.inf)
                self.rows.append((self.iterations, begun, self.elapsed, rows))
                self.iterations += len(rows)
                if before is not None:
                    self._remember(float(rows.free_energy[0]), before)
                stop = self._finished(rows, program, state)
                if stop is not None:
                    return stop
                per_iteration = (self.elapsed - begun) / max(1, len(rows))
                chunk = max(1, min(4 * chunk, int(LOOK_SECONDS / max(per_iteration, 1e-9))))
        except KeyboardInterrupt:
            return Status.INTERRUPTED
        finally:
            self.elapsed = base + time.perf_counter() - start
        return Status.MAX_ITERS

    def _warm_up(self, program: Program, plan: Plan, q: Floats) -> None:
        """Compile (or load) what the plan needs, outside the clock."""
        if isinstance(plan, Order):
            plan = Order(plan.variables, plan.starts)  # don't draw from the generator
        once = 1 if getattr(program, "parallel", False) else 0
        scratch = program.start(q)
        program.advance(scratch, plan, once, 0.0, self.trace)
        program.free_energy(scratch)

    def _remember(self, f: float, q: NDArray[np.float64]) -> None:
        if self.best is None or f < self.best[0]:
            self.best = (f, q)

    def _finished(self, rows: Rows, program: Program, state: State) -> Status | None:
        change = float(rows.change[-1]) if len(rows) else 0.0
        if change <= self.tol:
            return Status.CONVERGED
        if np.isnan(change):
            raise FloatingPointError("the iteration produced NaN; please report this field")
        if self.callback is not None:
            progress = Progress(
                iteration=self.iterations,
                seconds=self.elapsed,
                free_energy=float(rows.free_energy[-1]),
                change=change,
                max_iters=self.max_iters,
                budget=self.budget,
                marginals=lambda: self.lowered.reduction.expand(program.marginals(state)),
            )
            if self.callback(progress):
                return Status.STOPPED
        return None

    def make_trace(self, final: float) -> Trace:
        """Rows of all stages, and the final state's F."""
        if not self.rows:
            return Trace(
                np.zeros(1, dtype=np.int64), np.zeros(1), np.array([final]), np.array([np.nan])
            )
        seconds = [
            np.linspace(begun, ended, len(rows) + 1)[1:] for _, begun, ended, rows in self.rows
        ]
        f = np.concatenate([rows.free_energy for *_, rows in self.rows])
        return Trace(
            iteration=np.arange(len(f) + 1),
            seconds=np.concatenate([[0.0], *seconds]),
            free_energy=np.concatenate([f, [final]]),
            change=np.concatenate([[np.nan], *(rows.change for *_, rows in self.rows)]),
        )


def infer(
    field: Field,
    rule: str | Rule | type[Rule] = "fixed",
    *,
    init: str | Result | Any = "uniform",
    max_iters: int = 1000,
    tol: float = 1e-6,
    budget: float | None = None,
    callback: Callback | None = None,
    seed: int = 0,
    threads: int | None = None,
    kernels: str = "cpu",
    dtype: str = "float64",
    keep: str = "last",
    trace: bool = True,
    **params: Any,
) -> Result:
    """Mean-field inference: marginals, a labelling and a certified bound on log Z.

    Args:
        field: The field.
        rule: A name (see `proxfield.RULES`), a rule's class, or a rule.
        init: "uniform" (over all labels, as in the paper), "possible" (over labels whose
            unary energy is finite), "unary" (softmax of the unary energies), "random"
            (seeded), marginals in any accepted form, or a `Result` to continue from.
        max_iters: Most updates (sweeps, for sweep and colored).
        tol: Stop when the largest change of a marginal, divided by the step, is below it.
        budget: Most seconds of iterating, without loading and compiling.
        callback: Called about 20 times a second with a `Progress`; returning something
            true stops the inference.
        seed: Of everything random.
        threads: Most threads; all cores by default. Small fields use one.
        kernels: "cpu" (numba) or "reference" (numpy).
        dtype: "float64" or "float32" (half the memory, float64 sums).
        keep: "last" returns the last state; "best" the one of lowest F seen at a look, for
            rules that may go up.
        trace: Keep F of every state; False saves some time per iteration.
        **params: Parameters of a rule given by name or class.

    Returns:
        A `Result`. Ctrl-C returns the best so far, with the status INTERRUPTED.

    Example:
        >>> import proxfield as pf
        >>> field = pf.Field(4, labels=2).add(pf.Unary([[0, 1.0]] * 4))
        >>> field = field.add(pf.Potts([[0, 1], [1, 2], [2, 3], [3, 0]], -2.0))
        >>> result = pf.infer(field, "fixed", init="random")
        >>> result.converged, result.map_labels.sum()
        (True, np.int64(2))
    """
    chosen = make_rule(rule, params)
    check_limits(max_iters, tol, budget, threads)
    if keep not in ("last", "best"):
        raise InputError(f"keep={keep!r}, expected last or best")
    if budget is not None and np.isinf(budget):
        budget = None
    lowered = field.lower()
    loop = Loop(lowered, max_iters, tol, budget, callback, trace)
    if lowered.infeasible:
        q = starting_point(field, lowered, "uniform", seed, full=True)
        return _result(field, loop, chosen, q, np.inf, Status.INFEASIBLE)
    q = starting_point(field, lowered, init, seed)
    if lowered.hard:
        from proxfield.hard import solve_hard

        outcome = solve_hard(
            loop, chosen, q, seed=seed, kernels=kernels, dtype=dtype, threads=threads
        )
        full = lowered.reduction.expand(outcome.q)
        return _result(
            field, loop, chosen, full, outcome.free_energy, outcome.status, outcome.labels
        )
    program = compile_program(lowered, kernels, dtype, threads)
    problem = Problem(lowered, Curvature(lowered, field, kernels), seed)
    plan = chosen.plan(problem)
    state = program.start(q)
    look_back = keep == "best" or not chosen.monotone
    status = loop.run(program, plan, state, keep_best=look_back)
    q, f = program.marginals(state), program.free_energy(state)
    final = f
    if (
        loop.best is not None
        and (keep == "best" or status is Status.INTERRUPTED)
        and loop.best[0] < f
    ):
        f, q = loop.best
    if status in (Status.MAX_ITERS, Status.BUDGET) and not chosen.monotone:
        status = name_oscillation(loop, status)
    return _result(field, loop, chosen, lowered.reduction.expand(q), f, status, final=final)


def _result(
    field: Field,
    loop: Loop,
    rule: Rule,
    q: NDArray[np.float64],
    f: float,
    status: Status,
    feasible: Any = None,
    final: float | None = None,
) -> Result:
    return Result(
        field=field,
        q=q,
        free_energy=float(f),
        status=status,
        iterations=loop.iterations,
        seconds=loop.elapsed,
        rule=rule.name,
        params=rule.params,
        trace=loop.make_trace(float(f if final is None else final)),
        feasible=feasible,
    )


def name_oscillation(loop: Loop, status: Status) -> Status:
    """Call it oscillating when q repeats itself, or F goes up and down without getting anywhere."""
    last = loop.rows[-1][-1] if loop.rows else None
    if last is not None and len(last) and last.period2 < 0.01 * last.change[-1]:
        return Status.OSCILLATING
    f = np.concatenate([np.zeros(0), *(rows.free_energy for *_, rows in loop.rows)])[-100:]
    steps = np.diff(f)
    if len(steps) < 10 or not np.isfinite(steps).all():
        return status
    up, net = float(steps[steps > 0].sum()), float(f[0] - f[-1])
    return Status.OSCILLATING if up > 1e-6 * (1 + abs(f[-1])) and up > max(net, 0.0) else status


def check_limits(max_iters: int, tol: float, budget: float | None, threads: int | None) -> None:
    """Raise `InputError` for limits that make no sense."""
    if isinstance(max_iters, bool) or int(max_iters) != max_iters or max_iters < 0:
        raise InputError(f"max_iters={max_iters!r}, expected a whole number, 0 or more")
    if not tol >= 0:
        raise InputError(f"tol={tol!r}, expected 0 or more")
    if budget is not None and not budget > 0:
        raise InputError(f"budget={budget!r}, expected seconds above 0")
    if threads is not None and threads < 1:
        raise InputError(f"threads={threads!r}, expected 1 or more")


def starting_point(
    field: Field, lowered: Lowered, init: Any, seed: int, *, full: bool = False
) -> NDArray[np.float64]:
    """Marginals to start from, over the lowered field (or the whole one).  # (size,)"""
    layout = field.layout if full else lowered.layout
    uniform = 1.0 / layout.cardinalities[layout.owner]
    if isinstance(init, Result):
        if init.field.layout.size != field.layout.size:
            raise InputError(
                f"init has {init.field.layout.size} entries, expected {field.layout.size}"
            )
        return lowered.reduction.restrict(init.q)
    if not isinstance(init, str):
        return lowered.reduction.restrict(field.flatten(init))
    if init == "uniform":
        return uniform
    if init == "possible":
        weight = np.isfinite(lowered.unary).astype(np.float64)
        return np.asarray(weight / layout.sum_by_variable(weight)[layout.owner])
    if init == "unary":
        from proxfield.kernels.base import softmax

        return softmax(layout.owner, layout.offsets, lowered.unary)
    if init == "random":
        noise = np.random.default_rng(seed).exponential(size=layout.size)
        return np.asarray(noise / layout.sum_by_variable(noise)[layout.owner])
    raise InputError(
        f"init={init!r}, expected uniform, possible, unary, random, marginals or a Result"
    )
