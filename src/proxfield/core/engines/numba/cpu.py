"""The program of the CPU engine for any field, which drives the compiled loops.

A small field runs many iterations inside one compiled call. A large one spreads blocks
of variables over threads, one call an iteration. Sums are taken per block and then in
block order, so the same input gives the same bits.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from proxfield.core.common.arrays import Array, Doubles, Floats, Ints
from proxfield.core.compiled import jit
from proxfield.core.compiled.graphs import induced_forest
from proxfield.core.engines import base
from proxfield.core.engines import plan as plans
from proxfield.core.engines.base import Program, Rows, State
from proxfield.core.engines.numba import chains, general_chains, loops
from proxfield.core.engines.numba import pack as packing
from proxfield.core.engines.numba.binary import BinaryPack
from proxfield.core.engines.numba.chains import BLOCK, Cooling
from proxfield.core.engines.numba.general import GeneralArrays, GeneralPack
from proxfield.core.engines.numba.kinds import Motion
from proxfield.core.engines.reference import TINY, ReferenceState, usable_in_forests
from proxfield.core.lowering.lowered import FORESTS, FieldGraph, Lowered, graph_of, make_forests

DESCENT = "descend"
"""A kind of work: `Program.descend`."""


def kind_of(plan: plans.Plan) -> str:
    """A kind of work by its plan: those of a kind share kernels.

    Example:
        >>> kind_of(plans.Order(np.arange(3)))
        'Order'
    """
    if isinstance(plan, plans.Update) and plan.search is not None:
        return "Search"
    if isinstance(plan, plans.Order) and plan.starts is not None:
        return "Colors"
    return type(plan).__name__


def family(program: type[Program], dtype: str, work: str) -> str:
    """A name for the kernels with which a class of programs does a kind of work."""
    return f"{program.__name__}-{dtype}-{work}"


def note_compiled(program: Program, work: str) -> None:
    """Remember that a program's kernels for a kind of work are compiled, if its field is small."""
    if not (program.parallel or program.lowered.extras):
        jit.note_ready(family(type(program), program.dtype.name, work))


@dataclass
class Known:
    """Numbers that belong to the present marginals of a state; see `CpuState.forget`."""

    entropy: float | None = None
    f: float | None = None  # F
    gradient: bool = False  # does ``g`` hold the gradient that belongs to F?
    entropies: Doubles | None = None  # of each variable, for sweeps
    carried: float | None = None  # F as sweeps have carried it on, with the entropies


@dataclass
class CpuState:
    """Arrays in the kernels' layout, the buffer in use, and what is known about it.

    An update first takes what was known by `forget`, and in the end says what is known then.
    What depends on unary energies is forgotten when those change (`version`).
    """

    arrays: Any  # `GeneralArrays` or `BinaryArrays`
    phase: int = 0
    known: Known = field(default_factory=Known)
    natural: bool = False  # do the natural parameters say all about the marginals?
    size: float | None = None  # the next step of a `Search`
    version: int = 0  # of the unary energies that F belongs to
    pending: bool = False  # do impossible labels still have weight (so that F is +inf)?

    def forget(self) -> Known:
        """What was known about the marginals, which are about to move."""
        known, self.known = self.known, Known()
        return known


class CpuProgram(Program):
    """Any field."""

    marginal_chains: jit.ParallelKernel = chains.general_chains
    """Cools marginals, and polishes."""
    constant: float
    n_blocks: int
    work: int
    """Entries and ends of edges: what one iteration reads."""
    cuts_sweeps = True
    version: int = 0
    """How often unary energies were replaced."""

    def __init__(self, lowered: Lowered, dtype: str, threads: int | None) -> None:
        self.lowered = lowered
        self.layout = lowered.layout
        self.dtype = np.dtype(dtype)
        self.threads = (
            jit.max_threads() if threads is None else max(1, min(threads, jit.max_threads()))
        )
        self._build()

    def _build(self) -> None:
        """Pack the field."""
        self.pack, self.constant = packing.pack_general(self.lowered, self.dtype)
        self.sweep_pack = self.pack
        self._own_unary: Floats = np.zeros(0, dtype=self.dtype)
        self.n_blocks = len(self.pack.block) - 1
        ends = len(self.pack.agree_column) + len(self.pack.table_column)
        tables = sum(f.degree * f.tables[0].size * len(f.scopes) for f in self.lowered.factors)
        self.work = self.layout.size + ends + tables

    def _fields(
        self, pack: BinaryPack | GeneralPack
    ) -> tuple[BinaryPack | None, GeneralPack | None]:
        """A pack as the first two arguments of `loops`."""
        return (pack, None) if isinstance(pack, BinaryPack) else (None, pack)

    @cached_property
    def extras(self) -> list[packing.CpuTerm]:
        """Terms that can't be lowered."""
        return [packing.on_cpu(t, self.layout, self.dtype) for t in self.lowered.extras]

    @property
    def parallel(self) -> bool:
        """Whether the field is large enough for several threads."""
        return self.threads > 1 and self.work >= jit.PARALLEL_WORK

    # ---- states ----

    def start(self, q: Floats) -> State:
        size = self.layout.size
        both = np.stack([q, q]).astype(self.dtype)
        theta = (-np.log(np.maximum(q, TINY))).astype(self.dtype)
        g, u, v, theta_before, g_before = (np.zeros(size, dtype=self.dtype) for _ in range(5))
        message = np.zeros(int(self.pack.slot_message[-1]), dtype=self.dtype)
        arrays = GeneralArrays(both, theta, g, u, v, message, theta_before, g_before)
        gone = np.isinf(self.lowered.unary)
        return State(CpuState(arrays, pending=bool((q[gone] > TINY).any())))

    def marginals(self, state: State) -> Doubles:
        return np.array(self._buffer(state.arrays), dtype=np.float64)

    def marginals_at(self, state: State, entries: Ints) -> Doubles:
        return self._buffer(state.arrays)[entries].astype(np.float64)

    def _buffer(self, s: CpuState) -> Floats:
        """The marginals in use, in the kernels' own layout."""
        return np.asarray(s.arrays.q[s.phase])

    def _set(self, s: CpuState, theta: Floats) -> None:
        """Take natural parameters in the flat layout."""
        s.arrays.theta[:] = theta
        self._buffer(s)[:] = base.softmax(self.layout.owner, self.layout.offsets, theta)

    def _theta(self, s: CpuState) -> Doubles:
        """Natural parameters in the flat layout."""
        return np.array(s.arrays.theta, dtype=np.float64)

    def _flat_gradient(self, s: CpuState) -> Doubles:
        """``g`` in the flat layout."""
        return np.array(s.arrays.g, dtype=np.float64)

    def _take_moments(self, s: CpuState, before: ReferenceState, centered: bool) -> None:
        """Take natural parameters and moments in the flat layout; marginals stay as they are."""
        s.arrays.theta[:], s.arrays.u[:], s.arrays.v[:] = before.theta, before.u, before.v

    def resumed(self, before: ReferenceState, plan: plans.Plan) -> CpuState:
        """The state of a run in numpy, to go on with a plan from there."""
        s: CpuState = self.start(before.q).arrays
        self._take_moments(s, before, isinstance(plan, plans.Update) and plan.kind.centered)
        s.size = before.size
        return s

    def set_unary(self, energies: Array, at: Ints | None = None) -> None:
        self.version += 1
        Program.set_unary(self, energies, at)
        if self.pack.unary is not self._own_unary:  # it may be the array of the field
            self._own_unary = self.lowered.unary.astype(self.dtype)
            self.pack = self.sweep_pack = self.pack._replace(unary=self._own_unary)
        self._own_unary[slice(None) if at is None else at] = energies

    def _present(self, state: State) -> CpuState:
        """The state's arrays, without numbers that belong to other unary energies."""
        s: CpuState = state.arrays
        if s.version != self.version:
            s.version, s.known = self.version, Known(entropy=s.known.entropy)
        return s

    # ---- energies ----

    def _evaluate(self, s: CpuState, entropy: float | None = None) -> float:
        """F of the buffer in use, whose entropy may be known; its gradient is left in ``g``."""
        fields = self._fields(self.pack)
        if not self.lowered.extras and (self.parallel or entropy is not None):
            parts = np.zeros((self.n_blocks, 4))
            with jit.thread_count(self.threads):
                self._send(s)
                loops.see_parallel(*fields, s.arrays, s.phase, parts)
                if entropy is None:
                    loops.entropy_parallel(*fields, s.arrays, s.phase, parts)
            energy, found = float(parts[:, 0].sum()), float(parts[:, 1].sum())
        else:
            energy, found = loops.evaluate(*fields, s.arrays, s.phase, entropy is None)
        if entropy is None:
            entropy = s.known.entropy = found
        extra = self._add_extras(s)  # their gradient counts whether or not F is finite
        return np.inf if s.pending else float(self.constant + energy + extra - entropy)

    def _send(self, s: CpuState) -> None:
        """Messages of tables over three or more variables, over threads."""
        if isinstance(self.pack, GeneralPack) and len(self.pack.factor_start):
            loops.send_parallel(self.pack, s.arrays, s.phase)

    def _add_extras(self, s: CpuState) -> float:
        """Add the gradient of terms without a kernel to ``g``; return their energy."""
        if not self.lowered.extras:
            return 0.0
        return packing.add_gradients(self.extras, self.marginals(State(s)), s.arrays.g)

    def free_energy(self, state: State) -> float:
        s = self._present(state)
        if s.known.f is not None:  # a rule that looks at F has just evaluated it
            return s.known.f
        with jit.thread_count(self.threads):
            return self._evaluate(s)

    def gradient(self, q: Floats) -> Doubles:
        state = self.start(q)
        self._evaluate(state.arrays)
        return self._flat_gradient(state.arrays)

    def residual(self, state: State) -> tuple[float, float]:
        s: CpuState = state.arrays
        with jit.thread_count(self.threads):
            self._evaluate(s)
        q, g, unary = self.marginals(state), self._flat_gradient(s), self.lowered.unary
        return base.residual_of(self.layout, q, g, unary), base.rounding_of(q, g, unary, self.dtype)

    # ---- updates ----

    def build_for(self, plan: plans.Plan | None) -> None:
        if self.sweepable and (plan is None or isinstance(plan, plans.Order)):
            _ = self.sweep_pack

    def warm_up(self, plan: plans.Plan, state: State, trace: bool) -> None:
        super().warm_up(plan, state, trace)
        note_compiled(self, kind_of(plan))

    def kernel_key(self) -> tuple[Hashable, ...]:
        """See `Program`; drawn chains are compiled for the kinds of terms that there are."""
        if isinstance(self.pack, BinaryPack):
            return super().kernel_key()
        kinds = self.pack.agree_column, self.pack.table_column, self.pack.factor_start
        return (*super().kernel_key(), *(len(kind) > 0 for kind in kinds))

    def advance(self, state: State, plan: plans.Plan, n: int, tol: float, trace: bool) -> Rows:
        s = self._present(state)
        if isinstance(plan, plans.Order):
            self.need_visits(plan)
        if s.pending and n > 1:  # the first update clears impossible labels; F exists from then on
            return Rows.joined([self.advance(state, plan, k, tol, trace) for k in (1, n - 1)])
        averages = isinstance(plan, plans.Update) and plan.kind.averages_marginals
        s.natural = n > 0 and not averages
        with jit.thread_count(self.threads):
            if isinstance(plan, plans.Update):
                rows = self._advance_update(s, plan, n, tol, trace or plan.watches)
            elif isinstance(plan, plans.Order) and not self.lowered.extras:
                rows = self._advance_order(s, plan, n, tol)
            else:
                rows = self._advance_in_python(state, plan, n, tol)
        if s.pending and n > 0:
            rows.free_energy[:] = np.inf
            s.pending = False
            s.known = Known()
        return rows

    kept_motion: tuple[plans.Update, bool, Motion] | None = None
    """The last plan's numbers: a program may be asked for one update after another."""

    def _motion(self, plan: plans.Update, trace: bool) -> Motion:
        kept = self.kept_motion
        if kept is None or kept[0] is not plan or kept[1] != trace:
            kept = self.kept_motion = plan, trace, motion_of(plan, trace, self.dtype)
        return kept[2]

    def _advance_update(
        self, s: CpuState, plan: plans.Update, n: int, tol: float, trace: bool
    ) -> Rows:
        before = s.forget()
        entropy, f = before.entropy, before.f if before.gradient else None
        if plan.watches and (f is None or entropy is None):
            f, entropy = self._evaluate(s), s.known.entropy
        elif entropy is None and self.parallel and not self.lowered.extras:
            parts = np.zeros((self.n_blocks, 4))
            loops.entropy_parallel(*self._fields(self.pack), s.arrays, s.phase, parts)
            entropy = float(parts[:, 1].sum())
        elif entropy is None:
            h = np.zeros(self.layout.n_vars)
            entropy = float(loops.entropies(*self._fields(self.pack), s.arrays, s.phase, h))
        assert entropy is not None
        motion = self._motion(plan, trace)
        energies, changes = np.full(n, np.nan), np.full(n, np.nan)
        if not (self.parallel or self.lowered.extras or plan.search is not None):
            done, s.phase, entropy, twice, f = loops.run(
                *self._fields(self.pack), s.arrays, motion, tol, s.phase, entropy, self.constant,
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
        self, s: CpuState, motion: Motion, tol: float, entropy: float, energies: Doubles,
        changes: Doubles,
    ) -> tuple[int, float, float]:  # fmt: skip
        """One call an iteration: returns (iterations done, entropy, difference from two before)."""
        parts = np.zeros((self.n_blocks, 4))
        twice = np.inf
        for k in range(len(changes)):
            if self.lowered.extras:
                energies[k] = self._evaluate(s, entropy)
                entropy, changes[k], twice = self._move(s, motion, False)
            else:
                self._send(s)
                loops.step_parallel(*self._fields(self.pack), s.arrays, motion, s.phase, parts)
                energy, h, changes[k], twice = totals(parts)
                energies[k] = self.constant + energy - entropy
                entropy = h
            s.phase = 1 - s.phase
            if not changes[k] > tol:
                return k + 1, entropy, twice
        return len(changes), entropy, twice

    def _watched_steps(
        self, s: CpuState, motion: Motion, search: plans.Search | None, tol: float, f: float,
        entropy: float, energies: Doubles, changes: Doubles,
    ) -> tuple[int, float, float, float]:  # fmt: skip
        """One update at a time, made again from where it began if F rose: with a smaller step
        (each trial costs a gradient), or with the certified one. Also returns F."""
        twice = np.inf
        for k in range(len(changes)):
            energies[k] = f
            bound = f + motion.slack * (1.0 + abs(f))
            for trial, redo, last in self._trials(s, motion, search):
                entropy, changes[k], twice = self._move(s, trial, redo)
                s.phase = 1 - s.phase
                new = self._evaluate(s, entropy)
                risen = new > bound if search is None else not new <= bound  # NaN: a smaller step
                if last or not risen:
                    break
                s.phase = 1 - s.phase
            f = new
            if not changes[k] > tol:
                return k + 1, entropy, twice, f
        return len(changes), entropy, twice, f

    def _trials(
        self, s: CpuState, motion: Motion, search: plans.Search | None
    ) -> Iterator[tuple[Motion, bool, bool]]:
        """Ways to make an update, one after another: with which numbers, whether with the
        certified step, and whether this is the last way. Where it goes on, F has risen."""
        if search is None:
            yield motion, False, False
            yield motion, True, True
            return
        theta, g = s.arrays.theta.copy(), s.arrays.g.copy()
        size = search.first if s.size is None else s.size
        while True:
            s.size = min(search.largest, size * search.growth)  # of the next update
            step = np.full_like(motion.step, size)
            inverse = np.full_like(motion.step, 1.0 / size)
            trial = motion._replace(step=step, inverse=inverse, flat=size)
            yield trial, False, size <= plans.SMALLEST_STEP
            s.arrays.theta[:], s.arrays.g[:] = theta, g
            size *= search.shrinkage

    def _move(self, s: CpuState, motion: Motion, redo: bool) -> tuple[float, float, float]:
        """Update from ``g`` into the other buffer: (entropy, change, difference)."""
        return self._moved(self.pack, s, motion, redo, one_by_one=bool(self.lowered.extras))

    def _moved(
        self, pack: BinaryPack | GeneralPack, s: CpuState, motion: Motion, redo: bool, *,
        one_by_one: bool,
    ) -> tuple[float, float, float]:  # fmt: skip
        """`_move` of the variables in a pack; entropies are added up one by one, or in pairs."""
        blocks = self.n_blocks if isinstance(pack, BinaryPack) else len(pack.block) - 1
        parts = np.zeros((blocks, 4))
        with jit.thread_count(self.threads if self.parallel or not one_by_one else 1):
            loops.move_parallel(*self._fields(pack), s.arrays, motion, s.phase, redo, parts)
        return totals(parts, one_by_one)[1:]

    def _advance_order(self, s: CpuState, plan: plans.Order, n: int, tol: float) -> Rows:
        before = s.forget()
        f, h = before.carried, before.entropies
        if f is None or h is None:  # else carried on: chunks must not show in the bits
            f, h = self._evaluate(s), np.zeros(self.layout.n_vars)
            loops.entropies(*self._fields(self.pack), s.arrays, s.phase, h)
        energies, changes = np.full(n, np.nan), np.full(n, np.nan)
        done = 0
        if plan.starts is not None and self.parallel:
            for done in range(1, n + 1):
                energies[done - 1] = f
                delta, changes[done - 1] = 0.0, 0.0
                for a, b in pairwise(plan.starts):
                    parts = np.zeros((-(-int(b - a) // loops.GROUP), 2))
                    loops.sweep_color(
                        *self._fields(self.sweep_pack), self._buffer(s), s.arrays.theta, h,
                        plan.variables[a:b], plan.inverse_temperature, parts,
                    )  # fmt: skip
                    delta += float(parts[:, 0].sum())
                    changes[done - 1] = max(changes[done - 1], parts[:, 1].max(initial=0.0))
                f += delta
                if changes[done - 1] <= tol:
                    break
        else:
            order = plan.variables[None]
            if plan.shuffle is not None and n > 0:
                order = np.stack([plan.drawn() for _ in range(n)])
            done, f = loops.sweep(
                *self._fields(self.sweep_pack), self._buffer(s), s.arrays.theta, h, order, tol,
                plan.inverse_temperature, f, energies, changes,
            )  # fmt: skip
        s.known = Known(float(h.sum()), entropies=h, carried=float(f))
        return Rows(energies[:done], changes[:done])

    @cached_property
    def visiting(self) -> packing.VisitingSweeps:
        """Sweeps of a field with terms that aren't lowered."""
        return packing.VisitingSweeps(self.lowered, self.extras)

    def _advance_in_python(
        self, state: State, plan: plans.Order | plans.Custom, n: int, tol: float
    ) -> Rows:
        """Iterations by a user's function, or sweeps where terms aren't lowered: one Python call
        per variable and term."""
        s: CpuState = state.arrays
        s.forget()
        energies, changes, period2 = [], [], np.inf
        for _ in range(n):
            energies.append(self._evaluate(s))
            q = self.marginals(state)
            if isinstance(plan, plans.Custom):
                theta = plan.function(self._theta(s), q, self._flat_gradient(s), state.memory)
                self._set(s, theta)
                new = self.marginals(state)
                earlier, state.earlier = state.earlier, q
                back = np.inf if earlier is None else np.abs(new - earlier).max(initial=0.0)
                period2 = float(back) / plan.step
            else:
                new = q.copy()
                self.visiting.sweep(new, plan.drawn(), plan.inverse_temperature)
                with np.errstate(divide="ignore"):
                    self._set(s, -np.log(new))
            moved = float(np.abs(new - q).max(initial=0.0)) / getattr(plan, "step", 1.0)
            changes.append(moved if np.isfinite(new).all() else np.nan)
            if not changes[-1] > tol:
                break
        s.forget()
        return Rows(np.array(energies), np.array(changes), period2)

    def descend(self, labels: Floats, sweeps: int) -> Doubles:
        self.need_sweeps()
        state = self.start(labels)
        s: CpuState = state.arrays
        order = np.arange(self.layout.n_vars)[None]
        loops.sweep(
            *self._fields(self.sweep_pack), self._buffer(s), s.arrays.theta,
            np.zeros(self.layout.n_vars), order, 0.0, np.inf, 0.0, np.zeros(sweeps),
            np.zeros(sweeps),
        )  # fmt: skip
        note_compiled(self, DESCENT)
        return self.marginals(state)

    # ---- chains ----

    def explore(self, chains: plans.Chains, threads: int | None = None) -> plans.Explored:
        self.need_sweeps()
        count = len(chains.hot)
        arrays = self._chain_arrays(chains.starts)
        natural = np.zeros(chains.starts.shape, dtype=self.dtype)
        f, polished = np.zeros(count), np.zeros(count, dtype=np.int64)
        with jit.thread_count(threads or self.threads):
            if chains.drawn.any():
                several = bool((chains.drawn & chains.forests).any())
                forests = self._forests if several else self._no_forests
                self._draw(Cooling.of(chains), arrays, forests)
            cooled = np.where(chains.drawn, 0, chains.sweeps)
            self.marginal_chains(
                self.sweep_pack, arrays, natural, chains.hot, chains.cold, cooled, chains.polish,
                chains.tol, f, polished,
            )  # fmt: skip
        return plans.Explored(
            self._chain_marginals(arrays), self.constant + f, chains.sweeps + polished
        )

    def _chain_arrays(self, starts: Doubles) -> Floats:
        """Marginals of many chains, in the kernels' layout."""
        return starts.astype(self.dtype)

    def _chain_marginals(self, arrays: Floats) -> Doubles:
        """Marginals of chains in the flat layout.  # (chains, size)"""
        return np.array(arrays, dtype=np.float64)

    def _draw(self, schedule: Cooling, arrays: Floats, forests: Any) -> None:
        """Run the chains that sample labellings, which replace their starts in ``arrays``."""
        count, n, size = len(arrays), self.layout.n_vars, self.layout.size
        numbers = np.empty((count, 2, max(BLOCK, self.pack.widest)))
        room = np.empty((count, n), dtype=np.int32), np.empty((count, size)), numbers
        field, hard = general_chains.energies_of(self.pack), self.pack.hard
        general_chains.draw_general(*field, hard, forests, arrays, schedule, room)

    @cached_property
    def _forests(self) -> Any:
        """Forests for chains that move by them, made when they are first needed."""
        return self._pack_forests(FORESTS, usable_in_forests(self.lowered))

    @cached_property
    def _no_forests(self) -> Any:
        """No forests, for chains that move by none."""
        return self._pack_forests(0, np.zeros(self.layout.n_vars, dtype=bool))

    def warm_up_forests(self) -> None:
        induced_forest.warm_up()
        self._pack_forests(1, np.zeros(self.layout.n_vars, dtype=bool))

    def _pack_forests(self, count: int, usable: NDArray[np.bool_]) -> Any:
        """A number of induced forests of the field."""
        return general_chains.pack_general_forests(
            self.pack, make_forests(self._graph, usable, count)
        )

    @cached_property
    def _graph(self) -> FieldGraph:
        """Variables that interact."""
        return graph_of(self.lowered)


def totals(parts: Doubles, one_by_one: bool = False) -> tuple[float, float, float, float]:
    """Energy, entropy, change and difference from two before of all blocks, from those of each.

    Args:
        parts: Of each block.  # (n_blocks, 4)
        one_by_one: Whether entropies are added up in order, or in pairs.
    """
    if len(parts) == 0:
        return 0.0, 0.0, 0.0, 0.0
    h = float(sum(parts[:, 1].tolist()) if one_by_one else parts[:, 1].sum())
    change = np.nan if np.isnan(h) else float(parts[:, 2].max())
    return float(parts[:, 0].sum()), h, change, float(parts[:, 3].max())


def motion_of(plan: plans.Update, trace: bool, dtype: np.dtype[np.floating]) -> Motion:
    """An update as the kernels read it."""
    step = plan.step.astype(dtype)
    equal = len(step) > 0 and bool((plan.step == plan.step[0]).all())
    inverse = step  # 1 / step
    if not equal or plan.step[0] != 1.0:
        inverse = np.empty(len(step), dtype=dtype)
        for i in range(0, len(step), packing.CHUNK):  # no temporary array of all variables
            inverse[i : i + packing.CHUNK] = 1.0 / plan.step[i : i + packing.CHUNK]
    return Motion(
        kind=int(plan.kind),
        moments=plan.kind.moments,
        mean=plan.kind.averages_marginals,
        centered=plan.kind.centered,
        step=step,
        inverse=inverse,
        fallback=step if plan.fallback is None else plan.fallback.astype(dtype),
        flat=float(plan.step[0]) if equal else 0.0,
        gamma1=plan.gamma1,
        gamma2=plan.gamma2,
        epsilon=plan.epsilon,
        adaptive=plan.adaptive,
        beta=plan.inverse_temperature,
        trace=trace,
        slack=base.slack(0.0, dtype),
    )
