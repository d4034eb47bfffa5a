"""The CPU engine: a program for binary Ising fields and one for any field."""

from __future__ import annotations

from collections.abc import Hashable
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from proxfield.core.common.arrays import Doubles, Floats, Ints
from proxfield.core.engines.base import Program, State, softmax
from proxfield.core.engines.numba import binary, binary_sweep, chains, general, general_sweep
from proxfield.core.engines.numba.binary import BinaryArrays, BinaryPack
from proxfield.core.engines.numba.binary_chains import (
    BinaryForests,
    draw_binary,
    pack_binary_forests,
)
from proxfield.core.engines.numba.cpu import CpuProgram
from proxfield.core.engines.numba.draws import BLOCK, Schedule
from proxfield.core.engines.numba.general import GeneralArrays, GeneralPack
from proxfield.core.engines.numba.general_chains import (
    ChainRoom,
    GeneralForests,
    draw_general,
    pack_general_forests,
)
from proxfield.core.engines.numba.general_moves import Energies, energies_of
from proxfield.core.engines.numba.kinds import Motion
from proxfield.core.engines.numba.pack import (
    CHUNK,
    binary_constant,
    is_binary,
    pack_binary,
    pack_general,
)
from proxfield.core.engines.numba.state import CpuState
from proxfield.core.engines.numba.terms import BinaryCpuTerm, CpuTerm, add_gradients
from proxfield.core.engines.plan import Chains
from proxfield.core.engines.reference import TINY
from proxfield.core.lowering.forests import FieldGraph, graph_of, make_forests
from proxfield.core.lowering.lowered import Lowered

COUPLING_SCALE = 2.0**40
"""Vectors to multiply with are scaled by a power of 2, which is exact: beyond ±½ no entropy is
computed, which would take most of the time."""
BinaryState = CpuState[BinaryArrays]
GeneralState = CpuState[GeneralArrays]


def compile_cpu(lowered: Lowered, dtype: str = "float64", threads: int | None = None) -> Program:
    """The fastest CPU program for a field."""
    if lowered.extras:
        from proxfield.core.engines.numba.dense_program import DenseProgram, is_dense

        if is_dense(lowered):
            return DenseProgram(lowered, dtype, threads)
    return sparse_program(lowered)(lowered, dtype, threads)


def sparse_program(lowered: Lowered) -> type[BinaryProgram] | type[GeneralProgram]:
    """The class of programs for a field that isn't dense."""
    return BinaryProgram if is_binary(lowered) else GeneralProgram


class BinaryProgram(CpuProgram[BinaryPack, BinaryArrays]):
    """Binary variables and Ising couplings: one number per variable."""

    kernels = binary
    sweeps = binary_sweep
    chains = chains.binary_chains

    def _build(self) -> None:
        lowered = self.lowered
        self.pack = pack_binary(lowered, self.dtype, rows_only=False)
        self.constant = binary_constant(lowered)
        self.n = self.layout.n_vars
        self.n_blocks = -(-self.n // binary.BLOCK)
        self._coupling: tuple[BinaryPack, BinaryState] | None = None
        edges = 0 if lowered.ising is None else lowered.ising.n_edges
        self.work = self.n + 2 * edges

    @cached_property
    def sweep_pack(self) -> BinaryPack:  # type: ignore[override]
        """The field with all edges in rows, under the same padding as ``pack``."""
        if len(self.pack.distance) == 0:
            return self.pack
        rows = pack_binary(self.lowered, self.dtype, rows_only=True)
        return rows._replace(bias=self.pack.bias)  # which `set_bias` may have written to

    def start(self, q: Floats) -> State:
        v = np.zeros((2, self.n + 2 * self.pack.pad), dtype=self.dtype)
        inside, a = v[:, self._inside], np.empty(self.n, dtype=self.dtype)
        pending = False
        for i in range(0, self.n, CHUNK):  # no temporary arrays of all variables
            some, here = q[2 * i : 2 * (i + CHUNK)], slice(i, i + CHUNK)
            inside[:, here] = some[1::2] - 0.5
            a[here] = np.log(np.maximum(some[::2], TINY)) - np.log(np.maximum(some[1::2], TINY))
            gone = np.isinf(self.lowered.unary[2 * i : 2 * (i + CHUNK)])
            pending |= bool((some[gone] > TINY).any())
        spare = [np.zeros(self.n, dtype=self.dtype) for _ in range(5)]
        return State(CpuState(BinaryArrays(v, a, *spare), pending=pending))

    @property
    def _inside(self) -> slice:
        """The buffer without its padding."""
        return slice(self.pack.pad, self.pack.pad + self.n)

    def marginals(self, state: State) -> Doubles:
        s: BinaryState = state.arrays
        out = np.empty((self.n, 2))
        for i in range(0, self.n, CHUNK):
            here = slice(i, i + CHUNK)
            if s.natural:  # v + ½ would round a small probability to 0
                a = s.arrays.a[here].astype(np.float64)
                e = np.exp(-np.abs(a))
                small = e / (1.0 + e)
                out[here, 1] = np.where(a > 0, small, 1.0 - small)
                out[here, 0] = np.where(a > 0, 1.0 - small, small)
            else:
                out[here, 1] = self._buffer(s)[self._inside][here].astype(np.float64) + 0.5
                out[here, 0] = 1.0 - out[here, 1]
        if not s.pending:
            out[self.pack.clamped, 1] = self.pack.clamp < 0
            out[self.pack.clamped, 0] = self.pack.clamp > 0
        return out.ravel()

    def marginals_at(self, state: State, entries: Ints) -> Doubles:
        s: BinaryState = state.arrays
        variable, second, held, value = self._entries(entries)
        if s.natural:  # as in `marginals`: the smaller of the two first
            a = s.arrays.a[variable].astype(np.float64)
            e = np.exp(-np.abs(a))
            small = e / (1.0 + e)
            out = np.where((a > 0) == second, small, 1.0 - small)
        else:
            one = s.arrays.v[s.phase][self.pack.pad + variable].astype(np.float64) + 0.5
            out = np.where(second, one, 1.0 - one)
        if not s.pending and len(held):
            out[held] = value
        return out

    def spins_at(self, state: State, variables: Ints | slice) -> Floats:
        """v = q(1) − ½ of some variables.  # (m,)"""
        s: BinaryState = state.arrays
        found: Floats = s.arrays.v[s.phase][self._inside][variables]
        return found

    def set_bias(self, bias: Floats, variables: Ints | slice) -> None:
        """Replace the energies of label 1 less those of label 0, which keep their mean.

        Args:
            bias: The differences.  # (m,)
            variables: Of which variables, with two possible labels each.  # (m,)
        """
        self.version += 1
        self.pack.bias[variables] = bias

    _located: tuple[Ints, tuple[Ints, NDArray[np.bool_], Ints, Doubles]] | None = None
    """What follows from the last argument of `marginals_at`."""

    def _entries(self, entries: Ints) -> tuple[Ints, NDArray[np.bool_], Ints, Doubles]:
        """Variables of some entries, whether each is the second label, and which are known."""
        kept = self._located
        if kept is None or kept[0] is not entries:
            variable, second = entries // 2, entries % 2 == 1
            where = np.searchsorted(self.pack.clamped, variable)
            where = np.minimum(where, max(0, len(self.pack.clamped) - 1))
            held = np.zeros(0, dtype=np.int64)
            if len(self.pack.clamped):
                held = np.flatnonzero(self.pack.clamped[where] == variable)
            value = ((self.pack.clamp[where[held]] < 0) == second[held]).astype(np.float64)
            kept = self._located = entries, (variable, second, held, value)
        return kept[1]

    _replaced: tuple[Ints, Ints, Ints, NDArray[np.bool_] | slice, float] | None = None
    """What follows from the last ``at`` of `set_unary`: variables, their entries, which of them
    have two possible labels, and what they add to the constant."""

    def _pack_unary(self, energies: Floats, at: Ints | None) -> None:
        if at is None:
            at = np.arange(2 * self.n)
        kept = self._replaced
        if kept is None or kept[0] is not at:
            variable = np.unique(at // 2)
            both = np.stack([2 * variable, 2 * variable + 1], axis=1)
            before = self.lowered.unary[both].astype(np.float64)
            free = np.asarray(np.isfinite(before).all(axis=1))
            which: NDArray[np.bool_] | slice = slice(None) if free.all() else free
            kept = at, variable[which], both, which, shared_constant(before, free)
        _, variable, both, some, old = kept
        self._write_unary(energies, at)
        after = self.lowered.unary[both].astype(np.float64)
        if isinstance(some, slice):
            new, pairs = 0.5 * float(after.sum()), after
        else:
            new, pairs = shared_constant(after, some), after[some]
        self.constant += new - old
        self._replaced = at, variable, both, some, new
        bias = pairs[:, 1] - pairs[:, 0]
        self.pack.bias[variable] = bias

    def _buffer(self, s: BinaryState) -> Floats:
        buffer: Floats = s.arrays.v[s.phase]
        return buffer

    def _natural(self, s: BinaryState) -> Floats:
        return s.arrays.a

    def _entropies(self, s: BinaryState, out: Doubles) -> float:
        return float(binary_sweep.entropies(self._buffer(s), self.pack.pad, out))

    def _add_extras(self, s: BinaryState) -> float:
        """Binary fields: ``g`` holds the difference between the labels."""
        total, q = 0.0, None
        if self._binary_extras:
            logs = self._logs
            binary.log_first(self.pack, s.arrays, s.phase, s.natural, logs)
            for quick in self._binary_extras:
                total += quick.add_binary_gradient(logs, s.arrays.g)
        for term in self._other_extras:
            q = self.marginals(State(s)) if q is None else q
            g = np.zeros(self.layout.size, dtype=self.dtype)
            total += add_gradients([term], q, g)
            s.arrays.g[:] += g[1::2] - g[::2]
        return total

    @cached_property
    def _binary_extras(self) -> list[BinaryCpuTerm]:
        """Extra terms that need one number of each variable."""
        extras: list[object] = [*self.extras]
        return [own for own in extras if isinstance(own, BinaryCpuTerm)]

    @cached_property
    def _other_extras(self) -> list[CpuTerm]:
        """Extra terms that need the marginals."""
        return [own for own in self.extras if not isinstance(own, BinaryCpuTerm)]

    @cached_property
    def _logs(self) -> Doubles:
        """ChainRoom for log q_i(0).  # (n,)"""
        return np.empty(self.n)

    def _set(self, s: BinaryState, theta: Floats) -> None:
        s.arrays.a[:] = theta[1::2] - theta[::2]
        q = softmax(self.layout.owner, self.layout.offsets, theta)
        self._buffer(s)[self._inside] = q[1::2] - 0.5

    def _take_moments(
        self, s: BinaryState, theta: Floats, u: Floats, v: Floats, centered: bool
    ) -> None:
        known = np.isfinite(theta[1::2]) & np.isfinite(theta[::2])  # the others are clamped
        s.arrays.a[known] = theta[1::2][known] - theta[::2][known]
        s.arrays.first[:] = u[1::2] if centered else u[1::2] - u[::2]
        s.arrays.second[:] = v[1::2]

    def _theta(self, s: BinaryState) -> Doubles:
        return np.stack([np.zeros(self.n), s.arrays.a.astype(np.float64)], axis=1).ravel()

    def _flat_gradient(self, s: BinaryState) -> Doubles:
        pairs = self.lowered.unary.reshape(-1, 2)
        mean, half = pairs.mean(axis=1), 0.5 * s.arrays.g.astype(np.float64)
        out = np.stack([mean - half, mean + half], axis=1)
        if self.lowered.forbids:  # the mean of such a variable is infinite for both labels
            out = np.where(np.isinf(pairs).any(axis=1, keepdims=True), pairs, out)
        return out.ravel()

    def couple(self, v: Floats) -> Doubles:
        """W v, without the bias: what curvature needs.  # (n,)"""
        if self._coupling is None:
            pack = self.pack._replace(bias=np.zeros_like(self.pack.bias))
            self._coupling = pack, CpuState(self.start(np.full(2 * self.n, 0.5)).arrays.arrays)
        pack, s = self._coupling
        s.arrays.v[0, self._inside] = COUPLING_SCALE * v
        binary.evaluate(pack, s.arrays, 0)
        return s.arrays.g.astype(np.float64) / COUPLING_SCALE

    def _chain_arrays(self, starts: Doubles) -> tuple[Floats, Floats]:
        v = np.zeros((len(starts), self.n + 2 * self.pack.pad), dtype=self.dtype)
        v[:, self._inside] = starts[:, 1::2] - 0.5
        return v, np.zeros((len(starts), self.n), dtype=self.dtype)

    def _chain_marginals(self, arrays: Floats) -> Doubles:
        one = arrays[:, self._inside].astype(np.float64) + 0.5
        return np.stack([1.0 - one, one], axis=2).reshape(len(arrays), -1)

    def _draw(
        self, chains: Chains, arrays: Floats, forests: BinaryForests | GeneralForests
    ) -> None:
        draw_binary(
            self.sweep_pack, forests, arrays, schedule_of(chains),
            np.empty((len(arrays), 4, max(self.n, BLOCK))),
        )  # fmt: skip

    def _in_forests(self) -> NDArray[np.bool_]:
        usable = np.ones(self.n, dtype=bool)
        usable[self.pack.clamped] = False
        return usable

    def _pack_forests(self, count: int, usable: NDArray[np.bool_]) -> BinaryForests:
        pack, none = self.sweep_pack, np.zeros(0, dtype=np.int64)
        graph = FieldGraph(pack.row, pack.column, np.zeros(self.n + 1, dtype=np.int64), none, 0)
        return pack_binary_forests(pack, make_forests(graph, usable, count))

    def _gradient(self, s: BinaryState, parts: Doubles) -> None:
        binary.gradient_parallel(self.pack, s.arrays, s.phase, parts)

    def _fused(self, s: BinaryState, motion: Motion, parts: Doubles) -> None:
        binary.fused_parallel(self.pack, s.arrays, motion, s.phase, parts)


def schedule_of(chains: Chains) -> Schedule:
    """The part of some chains that kernels read."""
    return Schedule(
        chains.hot, chains.cold, chains.sweeps, chains.seeds, chains.drawn, chains.forests,
        chains.metropolis,
    )  # fmt: skip


def shared_constant(pairs: Doubles, free: NDArray[np.bool_]) -> float:
    """What binary variables add to the constant; see `binary_constant`."""
    held = pairs[~free].min(axis=1).sum() if not free.all() else 0.0
    return float(0.5 * pairs[free].sum() + held)


class GeneralProgram(CpuProgram[GeneralPack, GeneralArrays]):
    """Any field."""

    kernels = general
    sweeps = general_sweep
    chains = chains.general_chains

    def _build(self) -> None:
        self.pack, self.constant = pack_general(self.lowered, self.dtype)
        self.sweep_pack = self.pack
        self._own_unary: Floats = np.zeros(0, dtype=self.dtype)
        self.n_blocks = len(self.pack.block) - 1
        ends = len(self.pack.agree_column) + len(self.pack.table_column)
        self.work = (
            self.layout.size
            + ends
            + sum(f.degree * f.tables[0].size * len(f.scopes) for f in self.lowered.factors)
        )

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

    def _pack_unary(self, energies: Floats, at: Ints | None) -> None:
        self._write_unary(energies, at)
        if self.pack.unary is not self._own_unary:  # it may be the array of the field
            self._own_unary = self.lowered.unary.astype(self.dtype)
            self.pack = self.sweep_pack = self.pack._replace(unary=self._own_unary)
        self._own_unary[slice(None) if at is None else at] = energies
        vars(self).pop("_energies", None)

    def _buffer(self, s: GeneralState) -> Floats:
        buffer: Floats = s.arrays.q[s.phase]
        return buffer

    def _natural(self, s: GeneralState) -> Floats:
        return s.arrays.theta

    def _entropies(self, s: GeneralState, out: Doubles) -> float:
        return float(general_sweep.entropies(self._buffer(s), self.layout.offsets, out))

    def _set(self, s: GeneralState, theta: Floats) -> None:
        s.arrays.theta[:] = theta
        self._buffer(s)[:] = softmax(self.layout.owner, self.layout.offsets, theta)

    def _take_moments(
        self, s: GeneralState, theta: Floats, u: Floats, v: Floats, centered: bool
    ) -> None:
        s.arrays.theta[:], s.arrays.u[:], s.arrays.v[:] = theta, u, v

    def _theta(self, s: GeneralState) -> Doubles:
        return np.array(s.arrays.theta, dtype=np.float64)

    def _flat_gradient(self, s: GeneralState) -> Doubles:
        return np.array(s.arrays.g, dtype=np.float64)

    def _chain_arrays(self, starts: Doubles) -> tuple[Floats, Floats]:
        return starts.astype(self.dtype), np.zeros(starts.shape, dtype=self.dtype)

    def _chain_marginals(self, arrays: Floats) -> Doubles:
        return np.array(arrays, dtype=np.float64)

    @cached_property
    def _graph(self) -> FieldGraph:
        """Who interacts with whom."""
        return graph_of(self.lowered)

    @cached_property
    def _energies(self) -> Energies:
        """The field as drawn chains read it."""
        return energies_of(self.pack)

    def kernel_key(self) -> tuple[Hashable, ...]:
        """Drawn chains are compiled for the kinds of terms that there are."""
        pack = self.pack
        kinds = pack.agree_column, pack.table_column, pack.factor_start
        return (*super().kernel_key(), *(len(kind) > 0 for kind in kinds))

    def _draw(
        self, chains: Chains, arrays: Floats, forests: BinaryForests | GeneralForests
    ) -> None:
        count, n, size = len(arrays), self.layout.n_vars, self.layout.size
        widest = int(self.layout.cardinalities.max(initial=1))
        room = ChainRoom(
            labels=np.empty((count, n), dtype=np.int32),
            energies=np.empty((count, size)),
            numbers=np.empty((count, 2, max(BLOCK, widest))),
        )
        draw_general(*self._energies, self.pack.hard, forests, arrays, schedule_of(chains), room)

    def _in_forests(self) -> NDArray[np.bool_]:
        return np.ones(self.layout.n_vars, dtype=bool)

    def _pack_forests(self, count: int, usable: NDArray[np.bool_]) -> GeneralForests:
        return pack_general_forests(self.pack, make_forests(self._graph, usable, count))

    def _gradient(self, s: GeneralState, parts: Doubles) -> None:
        if len(self.pack.factor_start):
            general.messages_parallel(self.pack, s.arrays, s.phase)
        general.gradient_parallel(self.pack, s.arrays, s.phase, parts)
