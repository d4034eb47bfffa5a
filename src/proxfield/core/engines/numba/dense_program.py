"""The CPU program for dense fields: pixels filtered with lattices, and a few other variables.

The first n variables (the pixels) have equal numbers of labels and one or more `Gaussian` terms
over the lattice; their gradient is never stored. Other terms are iterated through their own
``add_gradient``; variables after the pixels move by the general kernels.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from proxfield.core.common.arrays import Array, Floats, Ints
from proxfield.core.compiled.jit import thread_count
from proxfield.core.compiled.simd import padded
from proxfield.core.engines.base import Program, Rows, State
from proxfield.core.engines.numba import dense, dense_views
from proxfield.core.engines.numba.cpu import CpuProgram, CpuState, Known, totals
from proxfield.core.engines.numba.dense import Damping, DenseArrays, DensePack, How, Own
from proxfield.core.engines.numba.general import GeneralArrays, GeneralPack
from proxfield.core.engines.numba.kinds import Motion
from proxfield.core.engines.numba.pack import Plain, on_cpu, pack_general
from proxfield.core.engines.plan import Plan, Update
from proxfield.core.engines.reference import TINY
from proxfield.core.engines.terms import implementation
from proxfield.core.filters.numba import lattice
from proxfield.core.lowering.lowered import Lowered
from proxfield.core.lowering.reduction import Untouched
from proxfield.core.terms.base import Layout, Term
from proxfield.core.terms.gaussian import Gaussian

PARALLEL_ENTRIES = 50_000
"""Entries below which one thread is as fast, and much faster where cores are busy."""
WARM_UP_POINTS = 64
"""Points of the small field on which kernels are compiled."""
MAX_CYCLE_BUFFER = 2**27
"""Bytes of marginals up to which a second buffer is kept to look for cycles of two."""


def is_dense(lowered: Lowered) -> bool:
    """Whether the first variables, alike, are pixels filtered with lattices, without tables."""
    if lowered.ising or lowered.potts or lowered.factors:
        return False
    return len({t.n_points for t in lowered.extras if on_lattice(t)}) == 1


def on_lattice(term: Term) -> TypeGuard[Gaussian]:
    """Whether this is a term that the dense kernels filter with a lattice."""
    return implementation(term, "cpu") is dense_views.Views


class DenseProgram(CpuProgram):
    """See the module."""

    sums_in_double = True

    def _build(self) -> None:
        lowered = self.lowered
        if lowered.layout.size < PARALLEL_ENTRIES:
            self.threads = 1
        self.terms = [t for t in lowered.extras if on_lattice(t)]
        others = [t for t in lowered.extras if not on_lattice(t)]
        self.others = [(t, on_cpu(t, self.layout, self.dtype)) for t in others]
        self.n = self.terms[0].n_points
        self.labels = int(self.layout.cardinalities[0])
        self.end = self.n * self.labels
        """Entries of the pixels; those of other variables follow."""
        self.tail = self.layout.n_vars - self.n
        self.work = 2**62  # always worth threads
        with thread_count(self.threads):
            self.views = dense_views.Views(self.terms, self.labels, self.dtype, self.threads)
        self.n_blocks = len(self.views.chunks.run) - 1
        taken = [t for t in self.terms if not t.self_message]
        tables = [t.compatibility(self.labels) for t in taken]
        self.dense_pack = DensePack(
            labels=self.labels,
            width=padded(self.labels),
            corners=np.array([v.filter.row.shape[1] for v in self.views]),
            unary=lowered.unary.astype(self.dtype, copy=False),
        )
        self.own: Own | None = None
        if taken:
            self.own = Own(
                weight=np.stack([t.own for t in taken]).astype(self.dtype),
                table=np.stack(tables).astype(self.dtype),
                diagonal=all(bool((t == np.diag(np.diag(t))).all()) for t in tables),
            )
        if self.tail:
            self.tail_pack = self._general_pack(self.n)
        potts = all(v.table.shape == (1, 1) for v in self.views)
        self._paired = potts and self.labels == 2 and not lowered.forbids  # one number per pixel
        self._warm: set[tuple[Hashable, ...]] = set()  # plans like these have run
        self._shown: CpuState | None = None  # whose marginals the rows show
        self._blurred = False  # or are they as splatted?

    @cached_property
    def pack(self) -> GeneralPack:  # type: ignore[override]
        """For the adaptive rule, whose updates are the general kernels'."""
        return self._general_pack(0)

    def _general_pack(self, first: int) -> GeneralPack:
        """Just enough for the general update kernels: where the variables from ``first`` on are."""
        offset = self.layout.offsets[first:]
        count = len(offset) - 1
        block = np.unique(np.append(np.arange(0, count, 1024), count)).astype(np.int64)
        nothing = Lowered(Untouched(Layout(np.zeros(0, dtype=np.int64))), 0.0, np.zeros(0))
        pack, _ = pack_general(nothing, self.dtype)
        return pack._replace(offset=offset, block=block)

    @cached_property
    def constant(self) -> float:  # type: ignore[override]
        """Energy whatever the marginals: Potts pays w for all pairs, less for those that agree."""
        with thread_count(self.threads):
            pairs = sum(0.5 * t.weight * float(t.row_sums.sum()) for t in self.terms if t.potts)
        return float(self.lowered.constant + pairs)

    # ---- the state ----

    def start(self, q: Floats) -> State:
        return self.take(np.array(q, dtype=self.dtype)[None])

    def take(self, q: Floats) -> State:
        arrays = GeneralArrays(q, *[np.zeros(0, dtype=self.dtype)] * 7)
        forbids = self.lowered.forbids
        pending = forbids and bool((q[0][np.isinf(self.lowered.unary)] > TINY).any())
        return State(CpuState(arrays, pending=pending))

    def _need(self, s: CpuState, *names: str) -> None:
        """Make room for arrays that a rule uses."""
        size = self.layout.size
        for name in names:
            if len(getattr(s.arrays, name)) == size:
                continue
            fresh = np.zeros(size, dtype=self.dtype)
            if name == "theta":
                np.log(np.maximum(self._buffer(s), TINY), out=fresh)
                np.negative(fresh, out=fresh)
            s.arrays = s.arrays._replace(**{name: fresh})

    @staticmethod
    def _two_buffers(s: CpuState) -> None:
        if len(s.arrays.q) == 1:
            s.arrays = s.arrays._replace(q=np.concatenate([s.arrays.q, s.arrays.q]))

    def _buffer(self, s: CpuState) -> Floats:
        return np.asarray(s.arrays.q[min(s.phase, len(s.arrays.q) - 1)])

    def marginals(self, state: State) -> NDArray[Any]:  # of the program's type
        return np.array(self._buffer(state.arrays))

    def view(self, state: State) -> Floats:
        return self._buffer(state.arrays)

    def _set(self, s: CpuState, theta: Floats) -> None:
        self._need(s, "theta")
        super()._set(s, theta)
        self._shown = None

    def _theta(self, s: CpuState) -> NDArray[np.float64]:
        self._need(s, "theta")
        return super()._theta(s)

    # ---- seeing ----

    def _show(self, s: CpuState) -> None:
        """Bring the rows to where they show the state's marginals, blurred."""
        if self._shown is not s:
            q = self._buffer(s)
            for view in self.views:
                if len(view.rows) < view.filter.n_rows:
                    shape = (view.filter.n_rows, view.rows.shape[1])
                    view.rows = np.empty(shape, dtype=self.dtype)
            none = np.zeros(0, dtype=self.dtype)
            self._run(DenseArrays(q, q, none, none, none, none), None, How(given=True), none)
            self._shown, self._blurred = s, False
        if not self._blurred:
            self.views.blur()
            self._blurred = True

    def _others(self, s: CpuState, trace: bool) -> tuple[Floats, float]:
        """Gradient of terms without a lattice (empty if there are none), and their energy."""
        if not self.others:
            return np.zeros(0, dtype=self.dtype), 0.0
        q = self._buffer(s)
        shift = np.zeros(self.layout.size, dtype=self.dtype)
        total, before = 0.0, 0.0
        for term, own in self.others:
            if not isinstance(own, Plain):
                total += own.add_gradient(q, shift)
                before = dense.dot(q, shift) if trace else 0.0
                continue
            term.add_gradient(self.layout, q, shift)
            if not trace:
                continue
            if term.degree is None:
                total += term.energy(self.layout, q)
            after = dense.dot(q, shift)
            total += 0.0 if term.degree is None else (after - before) / term.degree
            before = after
        return shift, total

    def _tail_energy(self, q: Floats) -> float:
        p, u = q[self.end :].astype(np.float64), self.dense_pack.unary[self.end :]
        return float((p[p > 0] * u[p > 0]).sum())

    def _evaluate(self, s: CpuState, entropy: float | None = None, gradient: bool = True) -> float:
        if gradient:
            self._need(s, "g")
        q = self._buffer(s)
        none = np.zeros(0, dtype=self.dtype)
        g = s.arrays.g if gradient else none
        with thread_count(self.threads):
            self._show(s)
            arrays = DenseArrays(q, q, none, none, none, none)
            parts = self._run(arrays, None, How(trace=True, look=True), g)
            shift, other = self._others(s, True)
        if gradient:
            g[self.end :] = self.dense_pack.unary[self.end :]
            if len(shift):
                g += shift
            block = g[: self.end].reshape(self.n, self.labels)
            for term in self.terms:
                if term.potts:
                    block += (term.weight * term.row_sums)[:, None].astype(self.dtype)
        p = q[self.end :].astype(np.float64)
        s.known.entropy = float(parts[:, 1].sum() - (p[p > 0] * np.log(p[p > 0])).sum())
        if s.pending:
            return np.inf
        energy = float(parts[:, 0].sum()) + self._tail_energy(q) + other
        return float(self.constant + energy - s.known.entropy)

    def free_energy(self, state: State) -> float:
        s = self._present(state)
        if s.known.f is None:
            s.known.f = self._evaluate(s, gradient=False)
        return s.known.f

    def set_unary(self, energies: Array, at: Ints | None = None) -> None:
        self.version += 1
        Program.set_unary(self, energies, at)
        unary = self.lowered.unary.astype(self.dtype, copy=False)
        self.dense_pack = self.dense_pack._replace(unary=unary)

    # ---- moving ----

    def advance(self, state: State, plan: Plan, n: int, tol: float, trace: bool) -> Rows:
        rows = super().advance(state, plan, n, tol, trace)
        if not isinstance(plan, Update):
            self._shown = None
        return rows

    def _advance_update(self, s: CpuState, plan: Update, n: int, tol: float, trace: bool) -> Rows:
        if plan.watches:
            self._need(s, "theta", "g", "theta_before", "g_before")
            self._two_buffers(s)
            return super()._advance_update(s, plan, n, tol, trace)
        entropy = s.forget().entropy
        full = plan.full
        # averages of marginals leave the natural parameters behind
        leaves = plan.kind.averages_marginals and not plan.kind.moments
        keeps = self.tail > 0 or not (full or leaves)
        if keeps or (len(s.arrays.theta) and not leaves):
            self._need(s, "theta")
        elif leaves:
            s.arrays = s.arrays._replace(theta=np.zeros(0, dtype=self.dtype))
        self._need(s, *plan.kind.moment_names)
        if trace and s.arrays.q.nbytes <= MAX_CYCLE_BUFFER:
            self._two_buffers(s)
        if trace and entropy is None:
            self._evaluate(s, gradient=False)
            entropy = s.known.entropy
        own = self.own is not None
        blind = full and tol < 0 and not (trace or own or self.tail or len(s.arrays.theta))
        quiet = full and not (trace or own or self.tail or self.others or len(s.arrays.theta))
        if quiet and self._paired and plan.inverse_temperature == 1.0:
            return self._pair_steps(s, n, tol)
        motion = self._motion(plan, trace)
        energies, changes = np.full(n, np.nan), np.full(n, np.nan)
        before, twice, done = entropy or 0.0, np.inf, 0
        for k in range(n):
            f, h, changes[k], twice = self._step(s, motion, blind, blind and k < n - 1)
            energies[k] = self.constant + f - before if trace else np.nan
            before, done = h, k + 1
            if not changes[k] > tol:
                break
        s.known = Known(before if trace else None)
        return Rows(energies[:done], changes[:done], twice)

    def _step(
        self, s: CpuState, motion: Motion, blind: bool, passing: bool
    ) -> tuple[float, float, float, float]:
        """One iteration: energy before, entropy after, change, difference from two before.

        blind: nobody asks for the change; passing: nor for the marginals, only for their splat.
        """
        self._show(s)
        shift, energy = self._others(s, motion.trace)
        old = self._buffer(s)
        two = len(s.arrays.q) > 1
        new = s.arrays.q[1 - s.phase] if two else old
        a = s.arrays
        if motion.trace:
            energy += self._tail_energy(old)
        plain = not motion.mean and motion.flat == motion.beta == 1.0 and len(a.theta) == 0
        how = How(motion.trace, motion.mean, motion.flat, False, blind, passing)
        arrays = DenseArrays(old, new, a.theta, a.u, a.v, shift)
        parts = self._run(arrays, None if plain else motion, how, shift[:0])
        self._blurred = False
        e, h, change, twice = totals(parts)
        if self.tail:
            moved = self._move_tail(s, motion, shift, old, new)
            h, change, twice = h + moved[0], max(change, moved[1]), max(twice, moved[2])
        if two:
            s.phase = 1 - s.phase
        return e + energy, h, change, twice if two else np.inf

    def _run(
        self, arrays: DenseArrays, motion: Motion | None, how: How, gradient: Floats
    ) -> NDArray[np.float64]:
        """`dense.advance` on rows that are blurred; returns its parts."""
        parts = np.zeros((self.n_blocks, 4))
        step = arrays.shift[:0] if motion is None else motion.step
        damping = None
        if motion is not None and len(arrays.theta) > 0 and not (motion.moments or motion.mean):
            damping, motion = Damping(step, motion.beta), None
        dense.advance(
            self.dense_pack, arrays, self.views.chunks, self.views.lattices(), self.own, damping,
            motion, how, gradient, step, parts,
        )  # fmt: skip
        return parts

    def _pair_steps(self, s: CpuState, n: int, tol: float) -> Rows:
        """Full steps of a field with two labels; the rows of `_show` are left behind."""
        q, changes, done = self._buffer(s), np.full(n, np.nan), 0
        rows = [np.empty(v.filter.n_rows, dtype=self.dtype) for v in self.views]
        up = np.empty(self.n, dtype=self.dtype)
        dense_views.spins(q, up)
        for view, target in zip(self.views, rows, strict=True):
            lattice.splat_one(view.filter.points, up * view.factor_in, target)
        del up
        fresh = [np.empty_like(r) for r in rows]
        spare = [np.empty((2, v.filter.n_vertices + 1), dtype=self.dtype) for v in self.views]
        if self.views.few and self.views.separable:  # which are blurred dense_views.together
            shape = len(self.views.separable), 2, self.views.most
            spare.append(np.empty(shape, dtype=self.dtype))
        parts = np.zeros(self.n_blocks)
        for done in range(1, n + 1):
            self.views.blur_one(rows, spare)
            dense_views.advance_pair(
                self.dense_pack.unary, q, self.views.chunks, self.views.lattices(rows),
                dense_views.together(fresh), tol < 0, tol < 0 and done < n, parts,
            )  # fmt: skip
            rows, fresh = fresh, rows
            changes[done - 1] = parts.max()  # NaN stays NaN
            if not changes[done - 1] > tol:
                break
        self._shown = None
        return Rows(np.full(done, np.nan), changes[:done])

    def _move_tail(
        self, s: CpuState, motion: Motion, shift: Floats, old: Floats, new: Floats
    ) -> tuple[float, float, float]:
        """Move the variables after the pixels; ``shift`` holds their gradient but for the unary."""
        g = shift if len(shift) else np.zeros(self.layout.size, dtype=self.dtype)
        g[self.end :] += self.dense_pack.unary[self.end :]
        arrays = s.arrays._replace(q=np.stack([old, new]) if old is new else s.arrays.q, g=g)
        own = motion._replace(
            step=motion.step[self.n :],
            inverse=motion.inverse[self.n :],
            fallback=motion.fallback[self.n :],
        )
        there = CpuState(arrays, phase=s.phase if len(s.arrays.q) > 1 else 0)
        moved = self._moved(self.tail_pack, there, own, False, one_by_one=True)
        if old is new:
            old[self.end :] = arrays.q[1, self.end :]
        return moved

    def _move(self, s: CpuState, motion: Motion, redo: bool) -> tuple[float, float, float]:
        """For the adaptive rule: update from the gradient in ``g`` into the other buffer."""
        self._shown = None
        return self._moved(self.pack, s, motion, redo, one_by_one=False)

    @property
    def parallel(self) -> bool:
        return True

    def warm_up(self, plan: Plan, state: State, trace: bool) -> None:
        """Compile on a field of a few points: types are all that counts, and images are large."""
        if not isinstance(plan, Update) or self.n <= WARM_UP_POINTS:
            super().warm_up(plan, state, trace)
            return
        key = (plan.kind, plan.watches, trace, bool((plan.step == 1.0).all()))
        if key in self._warm:
            return
        self._warm.add(key)
        few = Layout(np.full(WARM_UP_POINTS, self.labels))
        terms = tuple(term.like(WARM_UP_POINTS) for term in self.terms)
        unary = np.zeros(few.size, dtype=self.lowered.unary.dtype)
        small = DenseProgram(Lowered(Untouched(few), 0.0, unary, extras=terms), str(self.dtype), 1)
        small.views.blur_by(self.views.apart, self.views.few)  # the kernels that this one will call
        fallback = None if plan.fallback is None else plan.fallback[:WARM_UP_POINTS]
        start = small.start(np.full(few.size, 1 / self.labels))
        small.advance(
            start, replace(plan, step=plan.step[:WARM_UP_POINTS], fallback=fallback), 1, 0.0, trace
        )
        small.free_energy(start)
