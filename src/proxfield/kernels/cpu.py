"""The CPU kernel set: packs a field for numba and drives the compiled loops.

A small field runs many iterations inside one compiled call. A large one spreads blocks
of variables over threads, one call an iteration. Sums are taken per block and then in
block order, so the same input gives the same bits.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from proxfield.kernels import binary, general
from proxfield.kernels.base import Custom, Order, Plan, Program, Rows, State, Update, softmax
from proxfield.kernels.binary import BinaryArrays, Motion
from proxfield.kernels.general import GeneralArrays
from proxfield.kernels.jit import max_threads, thread_count
from proxfield.kernels.pack import binary_constant, is_binary, pack_binary, pack_general
from proxfield.kernels.reference import TINY, slack
from proxfield.lowering import Lowered
from proxfield.terms.base import Floats, Ints, missing, offers

PARALLEL_WORK = 150_000
"""Entries plus edge ends above which an iteration is worth spreading over threads."""


def compile_cpu(lowered: Lowered, dtype: str = "float64", threads: int | None = None) -> Program:
    """The fastest CPU program for a field."""
    return (BinaryProgram if is_binary(lowered) else GeneralProgram)(lowered, dtype, threads)


@dataclass
class CpuState:
    """Arrays in the kernels' layout, the buffer in use, and what is known about it."""

    arrays: Any
    phase: int = 0
    entropy: float | None = None
    f_last: float = np.inf
    h: NDArray[np.float64] | None = None  # entropy of each variable, for sweeps
    pending: bool = False  # do impossible labels still have weight (so that F is +inf)?


class CpuProgram(Program):
    """What the two CPU programs share: the three ways to advance."""

    kernels: Any  # the module: `binary` or `general`
    pack: Any
    sweep_pack: Any
    constant: float
    n_blocks: int
    work: int

    def __init__(self, lowered: Lowered, dtype: str, threads: int | None) -> None:
        self.lowered = lowered
        self.layout = lowered.layout
        self.dtype = np.dtype(dtype)
        self.threads = max_threads() if threads is None else max(1, min(threads, max_threads()))

    @property
    def parallel(self) -> bool:
        """Is the field large enough for threads?"""
        return self.threads > 1 and self.work >= PARALLEL_WORK

    # ---- the layout-dependent parts ----

    @abstractmethod
    def _buffer(self, s: CpuState) -> Any:
        """The marginals in use, in the kernels' own layout."""

    @abstractmethod
    def _natural(self, s: CpuState) -> Any:
        """The natural parameters, in the kernels' own layout."""

    @abstractmethod
    def _entropies(self, s: CpuState) -> float:
        """Fill ``s.h``; return the sum."""

    @abstractmethod
    def _set(self, s: CpuState, theta: Floats) -> None:
        """Take natural parameters in the flat layout."""

    @abstractmethod
    def _theta(self, s: CpuState) -> NDArray[np.float64]:
        """Natural parameters in the flat layout."""

    # ---- Program ----

    def _evaluate(self, s: CpuState) -> float:
        """F of the buffer in use; its gradient is left in ``g``."""
        energy, entropy = self.kernels.evaluate(self.pack, s.arrays, s.phase)
        s.entropy = entropy
        if s.pending:
            return np.inf
        return float(self.constant + energy + self._add_extras(s) - entropy)

    def _add_extras(self, s: CpuState) -> float:
        """Add the gradient of terms without a kernel to ``g``; return their energy."""
        if not self.lowered.extras:
            return 0.0
        q = self.marginals(State(s))
        total = 0.0
        for term in self.lowered.extras:
            g = np.zeros(self.layout.size)
            term.add_gradient(self.layout, q, g)
            s.arrays.g[:] += g.astype(self.dtype)
            if term.degree is None:
                total += term.energy(self.layout, q)
            else:
                total += float(np.sum(np.where(q > 0, q * g, 0.0))) / term.degree
        return total

    def free_energy(self, state: State) -> float:
        return self._evaluate(state.arrays)

    def advance(self, state: State, plan: Plan, n: int, tol: float, trace: bool) -> Rows:
        s: CpuState = state.arrays
        if s.pending and n > 1:  # the first update clears impossible labels; F exists from then on
            first = self.advance(state, plan, 1, tol, trace)
            rest = self.advance(state, plan, n - 1, tol, trace)
            both = ((first.free_energy, rest.free_energy), (first.change, rest.change))
            return Rows(*(np.concatenate(pair) for pair in both), period2=rest.period2)
        with thread_count(self.threads):
            if isinstance(plan, Update):
                s.h = None
                rows = self._advance_update(s, plan, n, tol, trace or plan.adaptive)
            else:
                s.f_last = np.inf
                if isinstance(plan, Order):
                    rows = self._advance_order(s, plan, n, tol)
                else:
                    s.h = None
                    rows = self._advance_custom(state, plan, n, tol)
        if s.pending and n > 0:
            rows.free_energy[:] = np.inf
            s.pending = False
            s.entropy, s.f_last = None, np.inf
        return rows

    def _motion(self, plan: Update, trace: bool, f: float) -> Motion:
        step = plan.step.astype(self.dtype)
        return Motion(
            kind=int(plan.kind),
            step=step,
            inverse=(1.0 / plan.step).astype(self.dtype),
            fallback=step if plan.fallback is None else plan.fallback.astype(self.dtype),
            gamma1=plan.gamma1,
            gamma2=plan.gamma2,
            epsilon=plan.epsilon,
            adaptive=plan.adaptive,
            beta=plan.inverse_temperature,
            trace=trace,
            slack=slack(f, self.dtype),
        )

    def _advance_update(self, s: CpuState, plan: Update, n: int, tol: float, trace: bool) -> Rows:
        if s.entropy is None:
            s.f_last = np.inf
            f = self._evaluate(s)
        else:
            f = s.f_last if np.isfinite(s.f_last) else 1.0
        motion = self._motion(plan, trace, f)
        energies, changes = np.full(n, np.nan), np.full(n, np.nan)
        done = 0
        if not (self.parallel or self.lowered.extras):
            done, s.phase, entropy, twice, s.f_last = self.kernels.run(
                self.pack, s.arrays, motion, n, tol, s.phase, s.entropy, self.constant,
                energies, changes, s.f_last,
            )  # fmt: skip
        else:
            parts = np.zeros((self.n_blocks, 4))
            entropy, twice = s.entropy or 0.0, np.inf
            for done in range(1, n + 1):
                step = self._parallel_step if not self.lowered.extras else self._extra_step
                f, entropy, change, twice = step(s, motion, entropy, parts, changes, done)
                energies[done - 1], changes[done - 1], s.f_last = f, change, f
                s.phase = 1 - s.phase
                if change <= tol:
                    break
        s.entropy = entropy if trace else None
        return Rows(energies[:done] if trace else np.full(done, np.nan), changes[:done], twice)

    def _totals(self, parts: NDArray[np.float64]) -> tuple[float, float, float, float]:
        if len(parts) == 0:
            return 0.0, 0.0, 0.0, 0.0
        return (
            float(parts[:, 0].sum()), float(parts[:, 1].sum()),
            float(parts[:, 2].max()), float(parts[:, 3].max()),
        )  # fmt: skip

    def _parallel_step(
        self, s: CpuState, motion: Motion, entropy: float, parts: NDArray[np.float64],
        changes: NDArray[np.float64], done: int,
    ) -> tuple[float, float, float, float]:  # fmt: skip
        """One iteration over threads: (F before it, entropy after it, change, difference)."""
        k, st, old, new = self.kernels, s.arrays, s.phase, 1 - s.phase
        if not motion.adaptive:
            self._fused(s, motion, parts)
            energy, h, change, twice = self._totals(parts)
            return self.constant + energy - entropy, h, change, twice
        self._gradient(s, parts)
        f = self.constant + self._totals(parts)[0] - entropy
        if f > s.f_last + motion.slack:
            k.update_parallel(self.pack, st, motion, new, old, True, parts)
            _, entropy, change, _ = self._totals(parts)
            if done > 1:
                changes[done - 2] = change
            self._gradient(s, parts)
            f = self.constant + self._totals(parts)[0] - entropy
        k.update_parallel(self.pack, st, motion, old, new, False, parts)
        _, h, change, twice = self._totals(parts)
        return f, h, change, twice

    def _fused(self, s: CpuState, motion: Motion, parts: NDArray[np.float64]) -> None:
        """Gradient and update of one parallel iteration."""
        self._gradient(s, parts)
        self.kernels.update_parallel(self.pack, s.arrays, motion, s.phase, 1 - s.phase, False, parts)

    @abstractmethod
    def _gradient(self, s: CpuState, parts: NDArray[np.float64]) -> None:
        """The gradient of the buffer in use, over threads."""

    def _extra_step(
        self, s: CpuState, motion: Motion, entropy: float, parts: NDArray[np.float64],
        changes: NDArray[np.float64], done: int,
    ) -> tuple[float, float, float, float]:  # fmt: skip
        """One iteration of a field with terms that have no kernel."""
        st, old, new = s.arrays, s.phase, 1 - s.phase
        f = self._evaluate(s)
        if motion.adaptive and f > s.f_last + motion.slack:
            _, change, _ = general.update_only(self.pack, st, motion, new, old, True)
            if done > 1:
                changes[done - 2] = change
            f = self._evaluate(s)
        h, change, twice = general.update_only(self.pack, st, motion, old, new, False)
        return f, float(h), float(change), float(twice)

    def _advance_order(self, s: CpuState, plan: Order, n: int, tol: float) -> Rows:
        self._need_neighbours()
        f = self._evaluate(s)
        if s.h is None:
            s.h = np.zeros(self.layout.n_vars)
        self._entropies(s)
        energies, changes = np.full(n, np.nan), np.full(n, np.nan)
        done = 0
        if plan.starts is not None and self.parallel:
            for done in range(1, n + 1):
                energies[done - 1] = f
                delta, changes[done - 1] = self._color_sweep(s, plan)
                f += delta
                if changes[done - 1] <= tol:
                    break
        else:
            order = plan.variables[None]
            if plan.shuffle is not None and n > 0:
                order = np.stack([plan.shuffle.permutation(plan.variables) for _ in range(n)])
            done, f = self.kernels.sweep(
                self.sweep_pack, self._buffer(s), self._natural(s), s.h, order, n, tol, False,
                f, energies, changes,
            )  # fmt: skip
        s.entropy = float(s.h.sum())
        return Rows(energies[:done], changes[:done])

    def _color_sweep(self, s: CpuState, plan: Order) -> tuple[float, float]:
        assert plan.starts is not None
        delta, change = 0.0, 0.0
        for a, b in zip(plan.starts[:-1], plan.starts[1:], strict=True):
            parts = np.zeros((-(-int(b - a) // 1024), 2))
            self.kernels.color_parallel(
                self.sweep_pack, self._buffer(s), self._natural(s), s.h, plan.variables[a:b], parts
            )
            delta += float(parts[:, 0].sum())
            change = max(change, float(parts[:, 1].max(initial=0.0)))
        return delta, change

    def _need_neighbours(self) -> None:
        for term in self.lowered.extras:
            if not offers(term, "neighbours"):
                raise missing(term, "neighbours", "sweep, colored and rounding")
        if self.lowered.extras:
            raise TypeError("sweep, colored and rounding need every term lowered to tables")

    def _advance_custom(self, state: State, plan: Custom, n: int, tol: float) -> Rows:
        s: CpuState = state.arrays
        energies, changes, period2 = [], [], np.inf
        earlier = None
        for _ in range(n):
            energies.append(self._evaluate(s))
            q = self.marginals(state)
            theta = plan.function(self._theta(s), q, self._flat_gradient(s), state.memory)
            self._set(s, theta)
            new = self.marginals(state)
            changes.append(float(np.abs(new - q).max(initial=0.0)) / plan.step)
            period2 = np.inf if earlier is None else float(np.abs(new - earlier).max(initial=0.0))
            earlier = q
            if changes[-1] <= tol:
                break
        s.entropy = None
        return Rows(np.array(energies), np.array(changes), period2)

    @abstractmethod
    def _flat_gradient(self, s: CpuState) -> NDArray[np.float64]:
        """``g`` in the flat layout."""

    def gradient(self, q: Floats) -> NDArray[np.float64]:
        state = self.start(q)
        self._evaluate(state.arrays)
        return self._flat_gradient(state.arrays)

    def descend(self, labels: Floats, sweeps: int) -> NDArray[np.float64]:
        self._need_neighbours()
        state = self.start(labels)
        s: CpuState = state.arrays
        s.h = np.zeros(self.layout.n_vars)
        order = np.arange(self.layout.n_vars)[None]
        rows = np.zeros(sweeps)
        self.kernels.sweep(
            self.sweep_pack, self._buffer(s), self._natural(s), s.h, order, sweeps, 0.0, True,
            0.0, rows, rows.copy(),
        )  # fmt: skip
        return self.marginals(state)


class BinaryProgram(CpuProgram):
    """Binary variables and Ising couplings: one number per variable."""

    kernels = binary

    def __init__(self, lowered: Lowered, dtype: str, threads: int | None) -> None:
        super().__init__(lowered, dtype, threads)
        self.pack = pack_binary(lowered, self.dtype, rows_only=False)
        self.constant = binary_constant(lowered)
        self.n = self.layout.n_vars
        self.n_blocks = -(-self.n // binary.BLOCK)
        edges = 0 if lowered.ising is None else len(lowered.ising.edges)
        self.work = self.n + 2 * edges

    @cached_property
    def sweep_pack(self) -> Any:  # type: ignore[override]
        """The field with all edges in rows, under the same padding as ``pack``."""
        if len(self.pack.distance) == 0:
            return self.pack
        return pack_binary(self.lowered, self.dtype, rows_only=True)

    def start(self, q: Floats) -> State:
        m = np.full((2, self.n + 2 * self.pack.pad), 0.5, dtype=self.dtype)
        inside = m[:, self.pack.pad : self.pack.pad + self.n]
        inside[:] = q[1::2]
        a = (np.log(np.maximum(q[::2], TINY)) - np.log(np.maximum(q[1::2], TINY))).astype(self.dtype)
        spare = [np.zeros(self.n, dtype=self.dtype) for _ in range(5)]
        gone = np.isinf(self.lowered.unary)
        return State(CpuState(BinaryArrays(m, a, *spare), pending=bool((q[gone] > TINY).any())))

    def marginals(self, state: State) -> NDArray[np.float64]:
        s: CpuState = state.arrays
        m = self._buffer(s)[self.pack.pad : self.pack.pad + self.n].astype(np.float64)
        if not s.pending:
            m[self.pack.clamped] = self.pack.clamp < 0
        return np.stack([1.0 - m, m], axis=1).ravel()

    def _buffer(self, s: CpuState) -> Any:
        return s.arrays.m[s.phase]

    def _natural(self, s: CpuState) -> Any:
        return s.arrays.a

    def _entropies(self, s: CpuState) -> float:
        return float(binary.entropies(self._buffer(s), self.pack.pad, s.h))

    def _set(self, s: CpuState, theta: Floats) -> None:
        s.arrays.a[:] = theta[1::2] - theta[::2]
        q = softmax(self.layout.owner, self.layout.offsets, theta)
        self._buffer(s)[self.pack.pad : self.pack.pad + self.n] = q[1::2]

    def _theta(self, s: CpuState) -> NDArray[np.float64]:
        return np.stack([np.zeros(self.n), s.arrays.a.astype(np.float64)], axis=1).ravel()

    def _flat_gradient(self, s: CpuState) -> NDArray[np.float64]:
        pairs = self.lowered.unary.reshape(-1, 2)
        mean, half = pairs.mean(axis=1), 0.5 * s.arrays.g.astype(np.float64)
        return np.stack([mean - half, mean + half], axis=1).ravel()

    def _gradient(self, s: CpuState, parts: NDArray[np.float64]) -> None:
        binary.gradient_parallel(self.pack, s.arrays, s.phase, parts)

    def _fused(self, s: CpuState, motion: Motion, parts: NDArray[np.float64]) -> None:
        binary.fused_parallel(self.pack, s.arrays, motion, s.phase, parts)


class GeneralProgram(CpuProgram):
    """Any field."""

    kernels = general

    def __init__(self, lowered: Lowered, dtype: str, threads: int | None) -> None:
        super().__init__(lowered, dtype, threads)
        self.pack, self.constant = pack_general(lowered, self.dtype)
        self.sweep_pack = self.pack
        self.n_blocks = len(self.pack.block) - 1
        ends = len(self.pack.agree_column) + len(self.pack.table_column)
        self.work = self.layout.size + ends + sum(f.degree * f.tables[0].size * len(f.scopes) for f in lowered.factors)

    def start(self, q: Floats) -> State:
        size = self.layout.size
        both = np.stack([q, q]).astype(self.dtype)
        theta = (-np.log(np.maximum(q, TINY))).astype(self.dtype)
        g, u, v, theta_before, g_before = (np.zeros(size, dtype=self.dtype) for _ in range(5))
        message = np.zeros(int(self.pack.slot_message[-1]), dtype=self.dtype)
        arrays = GeneralArrays(both, theta, g, u, v, message, theta_before, g_before)
        return State(CpuState(arrays))

    def marginals(self, state: State) -> NDArray[np.float64]:
        return self._buffer(state.arrays).astype(np.float64)

    def _buffer(self, s: CpuState) -> Any:
        return s.arrays.q[s.phase]

    def _natural(self, s: CpuState) -> Any:
        return s.arrays.theta

    def _entropies(self, s: CpuState) -> float:
        return float(general.entropies(self._buffer(s), self.layout.offsets, s.h))

    def _set(self, s: CpuState, theta: Floats) -> None:
        s.arrays.theta[:] = theta
        self._buffer(s)[:] = softmax(self.layout.owner, self.layout.offsets, theta)

    def _theta(self, s: CpuState) -> NDArray[np.float64]:
        return s.arrays.theta.astype(np.float64)

    def _flat_gradient(self, s: CpuState) -> NDArray[np.float64]:
        return s.arrays.g.astype(np.float64)

    def _gradient(self, s: CpuState, parts: NDArray[np.float64]) -> None:
        if len(self.pack.factor_start):
            general.messages_parallel(self.pack, s.arrays, s.phase)
        general.gradient_parallel(self.pack, s.arrays, s.phase, parts)
