"""What a rule works with: the problem, the loop, the start, and ways to run plans."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from proxfield.curvature import Curvature
from proxfield.kernels import compile_program
from proxfield.kernels.base import Plan, Program
from proxfield.loop import Loop
from proxfield.lowering import Lowered
from proxfield.result import Status
from proxfield.terms.base import Ints

if TYPE_CHECKING:
    from proxfield.rules import Rule


@dataclass(frozen=True)
class Problem:
    """What a rule may look at when it makes its plan."""

    lowered: Lowered
    curvature: Curvature
    seed: int = 0

    @property
    def n_vars(self) -> int:
        """Variables that are left to infer."""
        return self.lowered.layout.n_vars


@dataclass
class Outcome:
    """Marginals of the lowered field, F, a status, and a feasible labelling if one is known."""

    q: NDArray[np.float64]
    free_energy: float
    status: Status
    labels: Ints | None = None


@dataclass
class Session:
    """One call of `infer`."""

    problem: Problem
    loop: Loop
    start: NDArray[np.float64]  # marginals of the lowered field
    kernels: str = "cpu"
    dtype: str = "float64"
    threads: int | None = None
    keep: str = "last"
    limited: bool = True
    """Did the user limit iterations or seconds?"""

    @cached_property
    def program(self) -> Program:
        """The field, packed for the kernels asked for."""
        return self.compile(self.problem.lowered)

    def compile(self, lowered: Lowered) -> Program:
        """Another lowered field, packed the same way."""
        return compile_program(lowered, self.kernels, self.dtype, self.threads)

    def restarted(self, start: NDArray[np.float64]) -> Session:
        """The same session from another start."""
        other = replace(self, start=start)
        other.__dict__["program"] = self.program
        return other

    def run_plan(self, rule: Rule, plan: Plan, start: NDArray[np.float64]) -> Outcome:
        """Iterate one plan to the loop's limits."""
        program, loop = self.program, self.loop
        state = program.start(start)
        loop.best = None
        look_back = self.keep == "best" or not rule.never_rises
        trace, loop.trace = loop.trace, loop.trace or self.keep == "best"
        status = loop.run(program, plan, state, keep_best=look_back)
        loop.trace = trace
        last = Outcome(program.marginals(state), program.free_energy(state), status)

        def first() -> float:
            return program.free_energy(program.start(start))

        return conclude(loop, rule, last, first, start, self.keep)


def conclude(
    loop: Loop,
    rule: Rule,
    last: Outcome,
    first: Callable[[], float],
    start: NDArray[np.float64],
    keep: str = "last",
) -> Outcome:
    """What to hand back after a plan has run: a state seen before if that is the better one.

    Args:
        loop: The loop it ran in.
        rule: The rule it is of.
        last: The last state, and why it is the last.
        first: Gives F of the start.
        start: Marginals of the start.
        keep: As in `infer`.
    """
    q, f, status = last.q, last.free_energy, last.status
    if status is Status.DIVERGED:
        f, q = loop.best or (first(), start)
    wanted = keep == "best" or status is Status.INTERRUPTED
    if wanted and loop.best is not None and loop.best[0] < f:
        f, q = loop.best
    if status in (Status.MAX_ITERS, Status.BUDGET) and not rule.never_rises:
        status = name_oscillation(loop, status)
    return Outcome(q, f, status)


def name_oscillation(loop: Loop, status: Status) -> Status:
    """Call it oscillating when q repeats itself, or F goes up and down and gets nowhere."""
    trace = loop.make_trace()
    if len(trace) < 3:
        return status
    if loop.period2 < 0.01 * trace.change[-1]:
        return Status.OSCILLATING
    f = trace.free_energy[-100:]
    steps = np.diff(f)
    if len(steps) < 10 or not np.isfinite(steps).all():
        return status
    up, net = float(steps[steps > 0].sum()), float(f[0] - f[-1])
    return Status.OSCILLATING if up > 1e-6 * (1 + abs(f[-1])) and up > max(net, 0.0) else status
