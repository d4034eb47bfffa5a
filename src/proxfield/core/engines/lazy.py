"""The engine "lazy": numpy for small work, compiled kernels from where they pay.

The first call of a compiled kernel takes seconds; a small field converges in milliseconds in plain
numpy. So as long as the kernels for a field aren't compiled yet, it is iterated by the reference,
unless a measured update predicts more than `PATIENCE` seconds of it. When all small fields together
have taken that long, kernels are compiled and the state goes on there: the results are the same to
rounding. Chains are always compiled: they are much work by design.
"""

from __future__ import annotations

import os
import time
import timeit
from collections.abc import Callable, Hashable
from contextlib import nullcontext
from functools import cached_property

import numpy as np

from proxfield.core.common.arrays import Array, Doubles, Floats, Ints
from proxfield.core.compiled.jit import is_ready
from proxfield.core.engines.base import Program, Rows, State
from proxfield.core.engines.numba.cpu import DESCENT as DESCENT
from proxfield.core.engines.numba.cpu import CpuProgram, family, kind_of, note_compiled
from proxfield.core.engines.numba.programs import compile_cpu, sparse_program
from proxfield.core.engines.plan import Chains, Custom, Explored, Order, Plan
from proxfield.core.engines.reference import ReferenceProgram, ReferenceState
from proxfield.core.lowering.lowered import Lowered

SWITCH = "PROXFIELD_LAZY"
"""Environment variable: 0 compiles kernels at once, so that results have the same bits as later."""
MAX_ENTRIES = 8192
"""Labels of all variables up to which a field may count as small."""
PATIENCE = 2.0
"""Seconds of numpy that are spent rather than compile: about a quarter of what that takes."""
USUAL_UPDATES, USUAL_SWEEPS, USUAL_ROUNDS = 500, 50, 5
"""How many updates, sweeps, and rounds of greedy improvement a small field usually takes."""


class Spent:
    """What this process has spent on updates in numpy; shared by all small fields.

    In a ``with`` statement, the time that the block takes is added.
    """

    seconds = 0.0

    def __enter__(self) -> None:
        self.begun = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        Spent.seconds += time.perf_counter() - self.begun


def suits(lowered: Lowered, dtype: str, work: str) -> bool:
    """Whether a field is small, and kernels for a kind of work are still to be compiled.

    Args:
        lowered: The field.
        dtype: Floating-point type.
        work: Name of a rule, or `DESCENT`.
    """
    if lowered.extras or lowered.layout.size > MAX_ENTRIES or lowered.infeasible:
        return False
    if os.environ.get(SWITCH, "1") == "0" or Spent.seconds > PATIENCE:
        return False
    return not is_ready(family(sparse_program(lowered), dtype, work))


def note_rule(program: Program, rule: str) -> None:
    """Remember that a rule's kernels are compiled, if the program ran it there."""
    if isinstance(program, LazyProgram) and program.pays:
        program = program.compiled
    if isinstance(program, CpuProgram):
        note_compiled(program, rule)


def compile_lazy(lowered: Lowered, dtype: str = "float64", threads: int | None = None) -> Program:
    """A program in numpy; the compiled one for fields that numpy doesn't suit."""
    if lowered.extras or lowered.layout.size > MAX_ENTRIES:
        return compile_cpu(lowered, dtype, threads)
    return LazyProgram(lowered, dtype, threads)


def least_seconds(call: Callable[[], object]) -> float:
    """Duration of a call, the least of a few: the others waited for the machine."""
    return min(timeit.repeat(call, number=1, repeat=3))


class LazyProgram(Program):
    """A small field in numpy, until compiling its kernels pays; see the module.

    Which of the two programs a state belongs to shows in its arrays.
    """

    def __init__(self, lowered: Lowered, dtype: str, threads: int | None) -> None:
        self.lowered = lowered
        self.layout = lowered.layout
        self.dtype = np.dtype(dtype)
        self.reference = ReferenceProgram(lowered, dtype)
        self._threads = threads
        self._long = False
        """Whether a plan would take too long in numpy, or its kernels are compiled."""

    @cached_property
    def compiled(self) -> CpuProgram:
        """The field for compiled kernels; making it compiles nothing yet."""
        return compile_cpu(self.lowered, self.dtype.name, self._threads)

    @property
    def threads(self) -> int:  # type: ignore[override]
        """Maximum number of threads; only chains use several."""
        return self.compiled.threads

    @property
    def pays(self) -> bool:
        """Whether to compile from now on."""
        return self._long or Spent.seconds > PATIENCE

    def _of(self, state: State) -> Program:
        """The program that a state belongs to."""
        return self.reference if isinstance(state.arrays, ReferenceState) else self.compiled

    def _seconds(self, gradients: int) -> float:
        """How long so many gradients take in numpy."""
        q = np.repeat(1.0 / self.layout.cardinalities, self.layout.cardinalities)
        return gradients * least_seconds(lambda: self.reference.gradient(q))

    # ---- states ----

    def start(self, q: Floats) -> State:
        return (self.compiled if self.pays else self.reference).start(q)

    def marginals(self, state: State) -> Doubles:
        return self._of(state).marginals(state)

    def marginals_at(self, state: State, entries: Ints) -> Doubles:
        return self._of(state).marginals_at(state, entries)

    def free_energy(self, state: State) -> float:
        with Spent():
            return self._of(state).free_energy(state)

    def residual(self, state: State) -> tuple[float, float]:
        with Spent():
            return self._of(state).residual(state)

    def gradient(self, q: Floats) -> Doubles:
        with Spent():
            return (self.compiled if self.pays else self.reference).gradient(q)

    def couple(self, v: Floats) -> Doubles:
        """W v, as of binary programs; for fields of Ising couplings alone.  # (n,)"""
        ising = self.lowered.ising
        assert ising is not None
        g = np.zeros(self.layout.size)
        ising.add_gradient(self.layout, np.stack([-v, v], axis=1).ravel(), g)
        return np.asarray(g[1::2] - g[::2])

    def set_unary(self, energies: Array, at: Ints | None = None) -> None:
        self.reference.set_unary(energies, at)
        self.lowered = self.reference.lowered
        if "compiled" in vars(self):
            self.compiled.set_unary(energies, at)

    # ---- iterations ----

    def warm_up(self, plan: Plan, state: State, trace: bool) -> None:
        if is_ready(family(type(self.compiled), self.dtype.name, kind_of(plan))):
            self._long = True
        elif isinstance(plan, Order):
            self._long |= self._seconds(self.layout.n_vars * USUAL_SWEEPS) > PATIENCE
        elif isinstance(plan, Custom):  # a function that may count its calls
            self._long |= self._seconds(USUAL_UPDATES) > PATIENCE
        elif not self.pays:
            q, program = self.marginals(state), self.reference
            seconds = least_seconds(lambda: program.advance(program.start(q), plan, 1, 0.0, trace))
            self._long |= USUAL_UPDATES * seconds > PATIENCE
        if self.pays:
            self.compiled.warm_up(plan, self.compiled.start(self.marginals(state)), trace)

    def advance(self, state: State, plan: Plan, n: int, tol: float, trace: bool) -> Rows:
        if isinstance(state.arrays, ReferenceState):
            if not self.pays:  # the time of a `Custom` is the user's function's
                with nullcontext() if isinstance(plan, Custom) else Spent():
                    return self.reference.advance(state, plan, n, tol, trace)
            state.arrays = self.compiled.resumed(state.arrays, plan)
        return self.compiled.advance(state, plan, n, tol, trace)

    def descend(self, labels: Floats, sweeps: int) -> Doubles:
        visits = self.layout.n_vars * min(sweeps, USUAL_ROUNDS)
        if self.pays or self._seconds(visits) > PATIENCE:
            return self.compiled.descend(labels, sweeps)
        with Spent():
            return self.reference.descend(labels, sweeps)

    # ---- chains ----

    def explore(self, chains: Chains, threads: int | None = None) -> Explored:
        return self.compiled.explore(chains, threads)

    def build_for(self, plan: Plan | None) -> None:
        if plan is None or self.pays:
            self.compiled.build_for(plan)

    def kernel_key(self) -> tuple[Hashable, ...]:
        return (type(self), *self.compiled.kernel_key())
