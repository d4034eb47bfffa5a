"""Driving the compiled loops: what the CPU programs for binary and for any fields share.

A small field runs many iterations inside one compiled call. A large one spreads blocks
of variables over threads, one call an iteration. Sums are taken per block and then in
block order, so the same input gives the same bits.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from functools import cached_property
from types import ModuleType
from typing import Generic

import numpy as np
from numpy.typing import NDArray

from proxfield.core.common.arrays import Array, Doubles, Floats, Ints
from proxfield.core.compiled.graphs import induced_forest
from proxfield.core.compiled.jit import (
    PARALLEL_WORK,
    ParallelKernel,
    max_threads,
    thread_count,
)
from proxfield.core.engines.base import Program, Rows, State, residual_of, rounding_of, slack
from proxfield.core.engines.numba.binary_chains import BinaryForests
from proxfield.core.engines.numba.families import DESCENT, kind_of, note_compiled
from proxfield.core.engines.numba.general_chains import GeneralForests
from proxfield.core.engines.numba.kinds import Motion
from proxfield.core.engines.numba.pack import CHUNK
from proxfield.core.engines.numba.state import ArraysT, CpuState, Known, PackT
from proxfield.core.engines.numba.terms import CpuTerm, add_gradients, on_cpu
from proxfield.core.engines.numba.visits import VisitingSweeps
from proxfield.core.engines.plan import (
    SMALLEST_STEP,
    Chains,
    Custom,
    Explored,
    Order,
    Plan,
    Search,
    Update,
)
from proxfield.core.engines.reference import ReferenceState
from proxfield.core.lowering.forests import FORESTS
from proxfield.core.lowering.lowered import Lowered


class CpuProgram(Program, Generic[PackT, ArraysT]):
    """What the two CPU programs share: the three ways to advance."""

    kernels: ModuleType
    """`binary` or `general`, whose functions have the same names and arguments."""
    sweeps: ModuleType
    """`binary_sweep` or `general_sweep`."""
    chains: ParallelKernel
    """For chains of marginals, and polishing."""
    pack: PackT
    sweep_pack: PackT
    constant: float
    n_blocks: int
    work: int
    cuts_sweeps = True
    version: int = 0
    """How often unary energies were replaced."""

    def __init__(self, lowered: Lowered, dtype: str, threads: int | None) -> None:
        self.lowered = lowered
        self.layout = lowered.layout
        self.dtype = np.dtype(dtype)
        self.threads = max_threads() if threads is None else max(1, min(threads, max_threads()))
        self._build()

    @abstractmethod
    def _build(self) -> None:
        """Pack the field: sets the attributes above."""

    @cached_property
    def extras(self) -> list[CpuTerm]:
        """Terms that can't be lowered."""
        return [on_cpu(t, self.layout, self.dtype) for t in self.lowered.extras]

    @property
    def parallel(self) -> bool:
        """Whether the field is large enough for several threads."""
        return self.threads > 1 and self.work >= PARALLEL_WORK

    # ---- the layout-dependent parts ----

    def build_for(self, plan: Plan | None) -> None:
        if self.sweepable and (plan is None or isinstance(plan, Order)):
            _ = self.sweep_pack

    @abstractmethod
    def _buffer(self, s: CpuState[ArraysT]) -> Floats:
        """The marginals in use, in the kernels' own layout."""

    @abstractmethod
    def _natural(self, s: CpuState[ArraysT]) -> Floats:
        """The natural parameters, in the kernels' own layout."""

    @abstractmethod
    def _entropies(self, s: CpuState[ArraysT], out: Doubles) -> float:
        """Entropy of each variable into ``out``; returns the sum."""

    def _entropy(self, s: CpuState[ArraysT]) -> float:
        """H of the buffer in use, without the energy."""
        if self.parallel and not self.lowered.extras:
            parts = np.zeros((self.n_blocks, 4))
            self.kernels.entropy_parallel(self.pack, s.arrays, s.phase, parts)
            return float(parts[:, 1].sum())
        return self._entropies(s, np.zeros(self.layout.n_vars))

    @abstractmethod
    def _set(self, s: CpuState[ArraysT], theta: Floats) -> None:
        """Take natural parameters in the flat layout."""

    @abstractmethod
    def _theta(self, s: CpuState[ArraysT]) -> Doubles:
        """Natural parameters in the flat layout."""

    @abstractmethod
    def _take_moments(
        self, s: CpuState[ArraysT], theta: Floats, u: Floats, v: Floats, centered: bool
    ) -> None:
        """Take natural parameters and moments in the flat layout; marginals stay as they are."""

    def resumed(self, before: ReferenceState, plan: Plan) -> CpuState[ArraysT]:
        """The state of a run in numpy, to go on with a plan from there."""
        s: CpuState[ArraysT] = self.start(before.q).arrays
        centered = isinstance(plan, Update) and plan.kind.centered
        self._take_moments(s, before.theta, before.u, before.v, centered)
        s.size = before.size
        return s

    # ---- Program ----

    def warm_up(self, plan: Plan, state: State, trace: bool) -> None:
        super().warm_up(plan, state, trace)
        note_compiled(self, kind_of(plan))

    def _evaluate(self, s: CpuState[ArraysT]) -> float:
        """F of the buffer in use; its gradient is left in ``g``."""
        if self.parallel and not self.lowered.extras:
            parts = np.zeros((self.n_blocks, 4))
            with thread_count(self.threads):
                self._gradient(s, parts)
                self.kernels.entropy_parallel(self.pack, s.arrays, s.phase, parts)
            energy, entropy = float(parts[:, 0].sum()), float(parts[:, 1].sum())
        else:
            energy, entropy = self.kernels.evaluate(self.pack, s.arrays, s.phase)
        s.known.entropy = entropy
        extra = self._add_extras(s)  # their gradient counts whether or not F is finite
        if s.pending:
            return np.inf
        return float(self.constant + energy + extra - entropy)

    def _evaluate_with(self, s: CpuState[ArraysT], entropy: float) -> float:
        """`_evaluate` for fields with extra terms, where the entropy is known."""
        energy = self.kernels.energy_only(self.pack, s.arrays, s.phase)
        extra = self._add_extras(s)
        return np.inf if s.pending else float(self.constant + energy + extra - entropy)

    def _add_extras(self, s: CpuState[ArraysT]) -> float:
        """Add the gradient of terms without a kernel to ``g``; return their energy."""
        if not self.lowered.extras:
            return 0.0
        return add_gradients(self.extras, self.marginals(State(s)), s.arrays.g)

    def set_unary(self, energies: Array, at: Ints | None = None) -> None:
        self.version += 1
        self._pack_unary(energies, at)

    @abstractmethod
    def _pack_unary(self, energies: Floats, at: Ints | None) -> None:
        """Replace unary energies in the packs, and the constant."""

    def _present(self, state: State) -> CpuState[ArraysT]:
        """The state's arrays, without numbers that belong to other unary energies."""
        s: CpuState[ArraysT] = state.arrays
        s.see_unary(self.version)
        return s

    def free_energy(self, state: State) -> float:
        s = self._present(state)
        if s.known.f is not None:  # a rule that looks at F has just evaluated it
            return s.known.f
        with thread_count(self.threads):
            return self._evaluate(s)

    def advance(self, state: State, plan: Plan, n: int, tol: float, trace: bool) -> Rows:
        s = self._present(state)
        if s.pending and n > 1:  # the first update clears impossible labels; F exists from then on
            first = self.advance(state, plan, 1, tol, trace)
            rest = self.advance(state, plan, n - 1, tol, trace)
            return Rows(
                np.concatenate([first.free_energy, rest.free_energy]),
                np.concatenate([first.change, rest.change]),
                rest.period2,
            )
        with thread_count(self.threads):
            if isinstance(plan, Update):
                s.natural = not plan.kind.averages_marginals and n > 0
                rows = self._advance_update(s, plan, n, tol, trace or plan.watches)
            else:
                s.natural = n > 0
                if isinstance(plan, Order):
                    rows = self._advance_order(s, plan, n, tol)
                else:
                    rows = self._advance_custom(state, plan, n, tol)
        if s.pending and n > 0:
            rows.free_energy[:] = np.inf
            s.pending = False
            s.known = Known()
        return rows

    kept_motion: tuple[Update, bool, Motion] | None = None
    """The last plan's numbers: a program may be asked for one update after another."""

    def _motion(self, plan: Update, trace: bool) -> Motion:
        kept = self.kept_motion
        if kept is None or kept[0] is not plan or kept[1] != trace:
            kept = self.kept_motion = plan, trace, self._make_motion(plan, trace)
        return kept[2]

    def _make_motion(self, plan: Update, trace: bool) -> Motion:
        step = plan.step.astype(self.dtype)
        equal = len(step) > 0 and bool((plan.step == plan.step[0]).all())
        whole = equal and plan.step[0] == 1.0  # then its inverse is the same array
        return Motion(
            kind=int(plan.kind),
            moments=plan.kind.moments,
            mean=plan.kind.averages_marginals,
            centered=plan.kind.centered,
            step=step,
            inverse=step if whole else inverse_of(plan.step, self.dtype),
            fallback=step if plan.fallback is None else plan.fallback.astype(self.dtype),
            flat=float(plan.step[0]) if equal else 0.0,
            gamma1=plan.gamma1,
            gamma2=plan.gamma2,
            epsilon=plan.epsilon,
            adaptive=plan.adaptive,
            beta=plan.inverse_temperature,
            trace=trace,
            slack=slack(0.0, self.dtype),
        )

    def _advance_update(
        self, s: CpuState[ArraysT], plan: Update, n: int, tol: float, trace: bool
    ) -> Rows:
        before = s.forget()
        entropy, f = before.entropy, before.f if before.gradient else None
        if plan.watches and (f is None or entropy is None):
            f, entropy = self._evaluate(s), s.known.entropy
        elif entropy is None:
            entropy = self._entropy(s)
        assert entropy is not None
        motion = self._motion(plan, trace)
        energies, changes = np.full(n, np.nan), np.full(n, np.nan)
        if not (self.parallel or self.lowered.extras or plan.search is not None):
            done, s.phase, entropy, twice, f = self.kernels.run(
                self.pack, s.arrays, motion, n, tol, s.phase, entropy, self.constant,
                energies, changes, 0.0 if f is None else f,
            )  # fmt: skip
        elif plan.watches:
            assert f is not None
            done, entropy, twice, f = self._watched_steps(
                s, motion, plan.search, tol, f, entropy, energies, changes
            )
        else:
            done, entropy, twice = self._plain_steps(s, motion, tol, entropy, energies, changes)
        watched = plan.watches
        s.known = Known(entropy if trace else None, f if watched else None, gradient=watched)
        return Rows(energies[:done] if trace else np.full(done, np.nan), changes[:done], twice)

    def _plain_steps(
        self, s: CpuState[ArraysT], motion: Motion, tol: float, entropy: float,
        energies: Doubles, changes: Doubles,
    ) -> tuple[int, float, float]:  # fmt: skip
        """One call an iteration: returns (iterations done, entropy, difference from two before)."""
        parts = np.zeros((self.n_blocks, 4))
        twice = np.inf
        for k in range(len(changes)):
            if self.lowered.extras:
                energies[k] = self._evaluate_with(s, entropy)
                entropy, changes[k], twice = self._move(s, motion, False, parts)
            else:
                self._fused(s, motion, parts)
                energy, h, changes[k], twice = self._totals(parts)
                energies[k] = self.constant + energy - entropy
                entropy = h
            s.phase = 1 - s.phase
            if not changes[k] > tol:
                return k + 1, entropy, twice
        return len(changes), entropy, twice

    def _watched_steps(
        self, s: CpuState[ArraysT], motion: Motion, search: Search | None, tol: float, f: float,
        entropy: float, energies: Doubles, changes: Doubles,
    ) -> tuple[int, float, float, float]:  # fmt: skip
        """One update at a time, made again from where it began if F rose: with a smaller step
        (each trial costs a gradient), or with the certified one. Also returns F."""
        parts = np.zeros((self.n_blocks, 4))
        twice = np.inf
        for k in range(len(changes)):
            energies[k] = f
            bound = f + motion.slack * (1.0 + abs(f))
            for trial, redo, last in self._trials(s, motion, search):
                entropy, changes[k], twice = self._move(s, trial, redo, parts)
                s.phase = 1 - s.phase
                new = self._look(s, entropy, parts)
                risen = new > bound if search is None else not new <= bound  # NaN: a smaller step
                if last or not risen:
                    break
                s.phase = 1 - s.phase
            f = new
            if not changes[k] > tol:
                return k + 1, entropy, twice, f
        return len(changes), entropy, twice, f

    def _trials(
        self, s: CpuState[ArraysT], motion: Motion, search: Search | None
    ) -> Iterator[tuple[Motion, bool, bool]]:
        """Ways to make an update, one after another: with which numbers, whether with the
        certified step, and whether this is the last way. Where it goes on, F has risen."""
        if search is None:
            yield motion, False, False
            yield motion, True, True
            return
        theta, g = self._natural(s).copy(), s.arrays.g.copy()
        size = search.first if s.size is None else s.size
        while True:
            s.size = min(search.largest, size * search.growth)  # of the next update
            step = np.full_like(motion.step, size)
            inverse = np.full_like(motion.step, 1.0 / size)
            yield (
                motion._replace(step=step, inverse=inverse, flat=size),
                False,
                size <= SMALLEST_STEP,
            )
            self._natural(s)[:], s.arrays.g[:] = theta, g
            size *= search.shrinkage

    def _totals(self, parts: Doubles) -> tuple[float, float, float, float]:
        if len(parts) == 0:
            return 0.0, 0.0, 0.0, 0.0
        h = float(parts[:, 1].sum())
        change = float(parts[:, 2].max())
        return (
            float(parts[:, 0].sum()),
            h,
            np.nan if np.isnan(h) else change,
            float(parts[:, 3].max()),
        )

    def _move(
        self, s: CpuState[ArraysT], motion: Motion, redo: bool, parts: Doubles
    ) -> tuple[float, float, float]:
        """Update from ``g`` into the other buffer: (entropy, change, difference)."""
        old, new = s.phase, 1 - s.phase
        if self.lowered.extras:
            h, change, twice = self.kernels.update_only(self.pack, s.arrays, motion, old, new, redo)
            return float(h), np.nan if np.isnan(h) else float(change), float(twice)
        self.kernels.update_parallel(self.pack, s.arrays, motion, old, new, redo, parts)
        return self._totals(parts)[1:]

    def _look(self, s: CpuState[ArraysT], entropy: float, parts: Doubles) -> float:
        """F of the buffer in use, whose entropy is known; its gradient is left in ``g``."""
        if self.lowered.extras:
            return self._evaluate_with(s, entropy)
        self._gradient(s, parts)
        return self.constant + self._totals(parts)[0] - entropy

    def _fused(self, s: CpuState[ArraysT], motion: Motion, parts: Doubles) -> None:
        """Gradient and update of one parallel iteration."""
        self._gradient(s, parts)
        old, new = s.phase, 1 - s.phase
        self.kernels.update_parallel(self.pack, s.arrays, motion, old, new, False, parts)

    @abstractmethod
    def _gradient(self, s: CpuState[ArraysT], parts: Doubles) -> None:
        """The gradient of the buffer in use, over threads."""

    def _advance_order(self, s: CpuState[ArraysT], plan: Order, n: int, tol: float) -> Rows:
        self.need_visits(plan)
        if self.lowered.extras:
            return self._advance_by_visits(s, plan, n, tol)
        before = s.forget()
        f, h = before.carried, before.entropies
        if f is None or h is None:  # else carried on: chunks must not show in the bits
            f, h = self._evaluate(s), np.zeros(self.layout.n_vars)
            self._entropies(s, h)
        energies, changes = np.full(n, np.nan), np.full(n, np.nan)
        done = 0
        if plan.starts is not None and self.parallel:
            for done in range(1, n + 1):
                energies[done - 1] = f
                delta, changes[done - 1] = self._color_sweep(s, h, plan)
                f += delta
                if changes[done - 1] <= tol:
                    break
        else:
            order = plan.variables[None]
            if plan.shuffle is not None and n > 0:
                order = np.stack([plan.shuffle.permutation(plan.variables) for _ in range(n)])
            done, f = self.sweeps.sweep(
                self.sweep_pack, self._buffer(s), self._natural(s), h, order, tol,
                plan.inverse_temperature, False, f, energies, changes,
            )  # fmt: skip
        s.known = Known(float(h.sum()), entropies=h, carried=float(f))
        return Rows(energies[:done], changes[:done])

    def _advance_by_visits(self, s: CpuState[ArraysT], plan: Order, n: int, tol: float) -> Rows:
        """Sweeps where terms aren't lowered: one Python call per variable and term."""
        energies, changes = np.full(n, np.nan), np.full(n, np.nan)
        for k in range(n):
            energies[k] = self._evaluate(s)
            q = self.marginals(State(s))
            old = q.copy()
            order = plan.variables
            if plan.shuffle is not None:
                order = plan.shuffle.permutation(order)
            self.visiting.sweep(q, order, plan.inverse_temperature)
            with np.errstate(divide="ignore"):
                self._set(s, -np.log(q))
            changes[k] = float(np.abs(q - old).max(initial=0.0))
            if not changes[k] > tol:
                break
        s.forget()
        return Rows(energies[: k + 1], changes[: k + 1]) if n else Rows(energies, changes)

    @cached_property
    def visiting(self) -> VisitingSweeps:
        """Sweeps of a field with terms that aren't lowered."""
        return VisitingSweeps(self.lowered, self.extras)

    def _color_sweep(self, s: CpuState[ArraysT], h: Doubles, plan: Order) -> tuple[float, float]:
        assert plan.starts is not None
        delta, change = 0.0, 0.0
        for a, b in zip(plan.starts[:-1], plan.starts[1:], strict=True):
            parts = np.zeros((-(-int(b - a) // self.sweeps.GROUP), 2))
            self.sweeps.color_parallel(
                self.sweep_pack, self._buffer(s), self._natural(s), h, plan.variables[a:b],
                plan.inverse_temperature, parts,
            )  # fmt: skip
            delta += float(parts[:, 0].sum())
            change = max(change, float(parts[:, 1].max(initial=0.0)))
        return delta, change

    def _advance_custom(self, state: State, plan: Custom, n: int, tol: float) -> Rows:
        s: CpuState[ArraysT] = state.arrays
        s.forget()
        energies, changes, period2 = [], [], np.inf
        for _ in range(n):
            energies.append(self._evaluate(s))
            q = self.marginals(state)
            theta = plan.function(self._theta(s), q, self._flat_gradient(s), state.memory)
            self._set(s, theta)
            new = self.marginals(state)
            moved = float(np.abs(new - q).max(initial=0.0)) / plan.step
            changes.append(moved if np.isfinite(new).all() else np.nan)
            earlier, state.earlier = state.earlier, q
            back = np.inf if earlier is None else float(np.abs(new - earlier).max(initial=0.0))
            period2 = back / plan.step
            if not changes[-1] > tol:
                break
        s.forget()
        return Rows(np.array(energies), np.array(changes), period2)

    @abstractmethod
    def _flat_gradient(self, s: CpuState[ArraysT]) -> Doubles:
        """``g`` in the flat layout."""

    def gradient(self, q: Floats) -> Doubles:
        state = self.start(q)
        self._evaluate(state.arrays)
        return self._flat_gradient(state.arrays)

    def residual(self, state: State) -> tuple[float, float]:
        s: CpuState[ArraysT] = state.arrays
        with thread_count(self.threads):
            self._evaluate(s)
        q, g, unary = self.marginals(state), self._flat_gradient(s), self.lowered.unary
        return residual_of(self.layout, q, g, unary), rounding_of(q, g, unary, self.dtype)

    def explore(self, chains: Chains, threads: int | None = None) -> Explored:
        self.need_sweeps()
        count = len(chains.hot)
        arrays, natural = self._chain_arrays(chains.starts)
        f, polished = np.zeros(count), np.zeros(count, dtype=np.int64)
        with thread_count(threads or self.threads):
            if chains.drawn.any():
                several = bool((chains.drawn & chains.forests).any())
                self._draw(chains, arrays, self._forests if several else self._no_forests)
            cooled = np.where(chains.drawn, 0, chains.sweeps)
            self.chains(
                self.sweep_pack, arrays, natural, chains.hot, chains.cold, cooled, chains.polish,
                chains.tol, f, polished,
            )  # fmt: skip
        return Explored(self._chain_marginals(arrays), self.constant + f, chains.sweeps + polished)

    @cached_property
    def _forests(self) -> BinaryForests | GeneralForests:
        """Forests for chains that move by them, made when they are first needed."""
        return self._pack_forests(FORESTS, self._in_forests())

    @cached_property
    def _no_forests(self) -> BinaryForests | GeneralForests:
        """No forests, for chains that move by none."""
        return self._pack_forests(0, np.zeros(self.layout.n_vars, dtype=bool))

    def warm_up_forests(self) -> None:
        induced_forest.warm_up()
        self._pack_forests(1, np.zeros(self.layout.n_vars, dtype=bool))

    @abstractmethod
    def _draw(
        self, chains: Chains, arrays: Floats, forests: BinaryForests | GeneralForests
    ) -> None:
        """Run the chains that sample labellings, which replace their starts in ``arrays``."""

    @abstractmethod
    def _in_forests(self) -> NDArray[np.bool_]:
        """Which variables may be in a forest."""

    @abstractmethod
    def _pack_forests(
        self, count: int, usable: NDArray[np.bool_]
    ) -> BinaryForests | GeneralForests:
        """So many induced forests of the field."""

    @abstractmethod
    def _chain_arrays(self, starts: Doubles) -> tuple[Floats, Floats]:
        """Marginals and room for natural parameters of many chains, in the kernels' layout."""

    @abstractmethod
    def _chain_marginals(self, arrays: Floats) -> Doubles:
        """Marginals of chains in the flat layout.  # (chains, size)"""

    def descend(self, labels: Floats, sweeps: int) -> Doubles:
        self.need_sweeps()
        state = self.start(labels)
        s: CpuState[ArraysT] = state.arrays
        h = np.zeros(self.layout.n_vars)
        order = np.arange(self.layout.n_vars)[None]
        rows = np.zeros(sweeps)
        self.sweeps.sweep(
            self.sweep_pack, self._buffer(s), self._natural(s), h, order, 0.0, 1.0,
            True, 0.0, rows, rows.copy(),
        )  # fmt: skip
        note_compiled(self, DESCENT)
        return self.marginals(state)


def inverse_of(step: Doubles, dtype: np.dtype[np.floating]) -> Floats:
    """1 / step in a type, without a temporary array of all variables."""
    out = np.empty(len(step), dtype=dtype)
    for i in range(0, len(step), CHUNK):
        out[i : i + CHUNK] = 1.0 / step[i : i + CHUNK]
    return out
