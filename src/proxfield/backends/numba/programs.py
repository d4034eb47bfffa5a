"""The CPU kernel set: a program for binary Ising fields and one for any field."""

from __future__ import annotations

from collections.abc import Hashable
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from proxfield.backends.base import Program, State, softmax
from proxfield.backends.numba import binary, binary_sweep, chains, general, general_sweep
from proxfield.backends.numba.binary import BinaryArrays, BinaryPack
from proxfield.backends.numba.binary_chains import (
    BinaryForests,
    draw_binary,
    pack_binary_forests,
)
from proxfield.backends.numba.cpu import CpuProgram
from proxfield.backends.numba.draws import BLOCK
from proxfield.backends.numba.general import GeneralArrays, GeneralPack
from proxfield.backends.numba.general_chains import (
    GeneralForests,
    draw_general,
    pack_general_forests,
)
from proxfield.backends.numba.general_moves import Energies, energies_of
from proxfield.backends.numba.kinds import Motion
from proxfield.backends.numba.pack import binary_constant, is_binary, pack_binary, pack_general
from proxfield.backends.numba.state import CpuState
from proxfield.backends.numba.terms import BinaryCpuTerm, CpuTerm
from proxfield.backends.reference import TINY
from proxfield.lowering.forests import Graph, graph_of, make_forests
from proxfield.lowering.lowered import Lowered
from proxfield.rules.plan import Chains
from proxfield.terms.base import Floats, Term

COUPLING_SCALE = 2.0**40
"""Vectors to multiply with are scaled by a power of 2, which is exact: beyond ±½ no entropy is
computed, which would take most of the time."""
BinaryState = CpuState[BinaryArrays]
GeneralState = CpuState[GeneralArrays]


def compile_cpu(lowered: Lowered, dtype: str = "float64", threads: int | None = None) -> Program:
    """The fastest CPU program for a field."""
    if lowered.extras:
        from proxfield.backends.numba.dense_program import DenseProgram, is_dense

        if is_dense(lowered):
            return DenseProgram(lowered, dtype, threads)
    return (BinaryProgram if is_binary(lowered) else GeneralProgram)(lowered, dtype, threads)


class BinaryProgram(CpuProgram[BinaryPack, BinaryArrays]):
    """Binary variables and Ising couplings: one number per variable."""

    kernels = binary
    sweeps = binary_sweep
    chains = chains.binary_chains

    def __init__(self, lowered: Lowered, dtype: str, threads: int | None) -> None:
        super().__init__(lowered, dtype, threads)
        self.pack = pack_binary(lowered, self.dtype, rows_only=False)
        self.constant = binary_constant(lowered)
        self.n = self.layout.n_vars
        self.n_blocks = -(-self.n // binary.BLOCK)
        self._coupling: tuple[BinaryPack, BinaryState] | None = None
        edges = 0 if lowered.ising is None else len(lowered.ising.edges)
        self.work = self.n + 2 * edges

    @cached_property
    def sweep_pack(self) -> BinaryPack:  # type: ignore[override]
        """The field with all edges in rows, under the same padding as ``pack``."""
        if len(self.pack.distance) == 0:
            return self.pack
        return pack_binary(self.lowered, self.dtype, rows_only=True)

    def start(self, q: Floats) -> State:
        v = np.zeros((2, self.n + 2 * self.pack.pad), dtype=self.dtype)
        v[:, self._inside] = q[1::2] - 0.5
        a = (np.log(np.maximum(q[::2], TINY)) - np.log(np.maximum(q[1::2], TINY))).astype(
            self.dtype
        )
        spare = [np.zeros(self.n, dtype=self.dtype) for _ in range(5)]
        gone = np.isinf(self.lowered.unary)
        return State(CpuState(BinaryArrays(v, a, *spare), pending=bool((q[gone] > TINY).any())))

    @property
    def _inside(self) -> slice:
        """The buffer without its padding."""
        return slice(self.pack.pad, self.pack.pad + self.n)

    def marginals(self, state: State) -> NDArray[np.float64]:
        s: BinaryState = state.arrays
        out = np.empty((self.n, 2))
        if s.natural:  # v + ½ would round a small probability to 0
            a = s.arrays.a.astype(np.float64)
            e = np.exp(-np.abs(a))
            small = e / (1.0 + e)
            out[:, 1] = np.where(a > 0, small, 1.0 - small)
            out[:, 0] = np.where(a > 0, 1.0 - small, small)
        else:
            out[:, 1] = self._buffer(s)[self._inside].astype(np.float64) + 0.5
            out[:, 0] = 1.0 - out[:, 1]
        if not s.pending:
            out[self.pack.clamped, 1] = self.pack.clamp < 0
            out[self.pack.clamped, 0] = self.pack.clamp > 0
        return out.ravel()

    def _buffer(self, s: BinaryState) -> Floats:
        buffer: Floats = s.arrays.v[s.phase]
        return buffer

    def _natural(self, s: BinaryState) -> Floats:
        return s.arrays.a

    def _entropies(self, s: BinaryState) -> float:
        return float(binary_sweep.entropies(self._buffer(s), self.pack.pad, s.h))

    def _add_extras(self, s: BinaryState) -> float:
        """Binary fields: ``g`` holds the difference between the labels."""
        total, q = 0.0, None
        if self._binary_extras:
            logs = self._logs
            binary.log_first(self.pack, s.arrays, s.phase, s.natural, logs)
            for quick in self._binary_extras:
                total += quick.add_binary_gradient(logs, s.arrays.g)
        for term, own in self._other_extras:
            q = self.marginals(State(s)) if q is None else q
            g = np.zeros(self.layout.size, dtype=self.dtype)
            if own is not None:
                total += own.add_gradient(q.astype(self.dtype, copy=False), g)
            else:
                total += term.evaluate(self.layout, q, g)
            s.arrays.g[:] += g[1::2] - g[::2]
        return total

    @cached_property
    def _binary_extras(self) -> list[BinaryCpuTerm]:
        """Extra terms that need one number of each variable."""
        owned: list[object] = [own for _, own in self.extras]
        return [own for own in owned if isinstance(own, BinaryCpuTerm)]

    @cached_property
    def _other_extras(self) -> list[tuple[Term, CpuTerm | None]]:
        """The others."""
        return [pair for pair in self.extras if not isinstance(pair[1], BinaryCpuTerm)]

    @cached_property
    def _logs(self) -> NDArray[np.float64]:
        """Room for log q_i(0).  # (n,)"""
        return np.empty(self.n)

    def _set(self, s: BinaryState, theta: Floats) -> None:
        s.arrays.a[:] = theta[1::2] - theta[::2]
        q = softmax(self.layout.owner, self.layout.offsets, theta)
        self._buffer(s)[self._inside] = q[1::2] - 0.5

    def _theta(self, s: BinaryState) -> NDArray[np.float64]:
        return np.stack([np.zeros(self.n), s.arrays.a.astype(np.float64)], axis=1).ravel()

    def _flat_gradient(self, s: BinaryState) -> NDArray[np.float64]:
        pairs = self.lowered.unary.reshape(-1, 2)
        mean, half = pairs.mean(axis=1), 0.5 * s.arrays.g.astype(np.float64)
        out = np.stack([mean - half, mean + half], axis=1)
        if self.lowered.forbids:  # the mean of such a variable is infinite for both labels
            out = np.where(np.isinf(pairs).any(axis=1, keepdims=True), pairs, out)
        return out.ravel()

    def couple(self, v: Floats) -> NDArray[np.float64]:
        """W v, without the bias: what curvature needs.  # (n,)"""
        if self._coupling is None:
            pack = self.pack._replace(bias=np.zeros_like(self.pack.bias))
            self._coupling = pack, CpuState(self.start(np.full(2 * self.n, 0.5)).arrays.arrays)
        pack, s = self._coupling
        s.arrays.v[0, self._inside] = COUPLING_SCALE * v
        binary.evaluate(pack, s.arrays, 0)
        return s.arrays.g.astype(np.float64) / COUPLING_SCALE

    def _chain_arrays(self, starts: NDArray[np.float64]) -> tuple[Floats, Floats]:
        v = np.zeros((len(starts), self.n + 2 * self.pack.pad), dtype=self.dtype)
        v[:, self._inside] = starts[:, 1::2] - 0.5
        return v, np.zeros((len(starts), self.n), dtype=self.dtype)

    def _chain_marginals(self, arrays: Floats) -> NDArray[np.float64]:
        one = arrays[:, self._inside].astype(np.float64) + 0.5
        return np.stack([1.0 - one, one], axis=2).reshape(len(arrays), -1)

    def _draw(
        self, chains: Chains, arrays: Floats, forests: BinaryForests | GeneralForests
    ) -> None:
        draw_binary(
            self.sweep_pack, forests, arrays, chains.hot, chains.cold, chains.sweeps, chains.seeds,
            chains.drawn, chains.forests, chains.metropolis,
            np.empty((len(arrays), 4, max(self.n, BLOCK))),
        )  # fmt: skip

    def _in_forests(self) -> NDArray[np.bool_]:
        usable = np.ones(self.n, dtype=bool)
        usable[self.pack.clamped] = False
        return usable

    def _pack_forests(self, count: int, usable: NDArray[np.bool_]) -> BinaryForests:
        pack, none = self.sweep_pack, np.zeros(0, dtype=np.int64)
        graph = Graph(pack.row, pack.column, np.zeros(self.n + 1, dtype=np.int64), none, 0)
        return pack_binary_forests(pack, make_forests(graph, usable, count))

    def _gradient(self, s: BinaryState, parts: NDArray[np.float64]) -> None:
        binary.gradient_parallel(self.pack, s.arrays, s.phase, parts)

    def _fused(self, s: BinaryState, motion: Motion, parts: NDArray[np.float64]) -> None:
        binary.fused_parallel(self.pack, s.arrays, motion, s.phase, parts)


class GeneralProgram(CpuProgram[GeneralPack, GeneralArrays]):
    """Any field."""

    kernels = general
    sweeps = general_sweep
    chains = chains.general_chains

    def __init__(self, lowered: Lowered, dtype: str, threads: int | None) -> None:
        super().__init__(lowered, dtype, threads)
        self.pack, self.constant = pack_general(lowered, self.dtype)
        self.sweep_pack = self.pack
        self.n_blocks = len(self.pack.block) - 1
        ends = len(self.pack.agree_column) + len(self.pack.table_column)
        self.work = (
            self.layout.size
            + ends
            + sum(f.degree * f.tables[0].size * len(f.scopes) for f in lowered.factors)
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

    def marginals(self, state: State) -> NDArray[np.float64]:
        return np.array(self._buffer(state.arrays), dtype=np.float64)

    def _buffer(self, s: GeneralState) -> Floats:
        buffer: Floats = s.arrays.q[s.phase]
        return buffer

    def _natural(self, s: GeneralState) -> Floats:
        return s.arrays.theta

    def _entropies(self, s: GeneralState) -> float:
        return float(general_sweep.entropies(self._buffer(s), self.layout.offsets, s.h))

    def _set(self, s: GeneralState, theta: Floats) -> None:
        s.arrays.theta[:] = theta
        self._buffer(s)[:] = softmax(self.layout.owner, self.layout.offsets, theta)

    def _theta(self, s: GeneralState) -> NDArray[np.float64]:
        return np.array(s.arrays.theta, dtype=np.float64)

    def _flat_gradient(self, s: GeneralState) -> NDArray[np.float64]:
        return np.array(s.arrays.g, dtype=np.float64)

    def _chain_arrays(self, starts: NDArray[np.float64]) -> tuple[Floats, Floats]:
        return starts.astype(self.dtype), np.zeros(starts.shape, dtype=self.dtype)

    def _chain_marginals(self, arrays: Floats) -> NDArray[np.float64]:
        return np.array(arrays, dtype=np.float64)

    @cached_property
    def _graph(self) -> Graph:
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
        draw_general(
            *self._energies, self.pack.hard, forests, arrays, chains.hot, chains.cold,
            chains.sweeps, chains.seeds, chains.drawn, chains.forests, chains.metropolis,
            np.empty((count, n), dtype=np.int32), np.empty((count, size)),
            np.empty((count, 2, max(BLOCK, widest))),
        )  # fmt: skip

    def _in_forests(self) -> NDArray[np.bool_]:
        return np.ones(self.layout.n_vars, dtype=bool)

    def _pack_forests(self, count: int, usable: NDArray[np.bool_]) -> GeneralForests:
        return pack_general_forests(self.pack, make_forests(self._graph, usable, count))

    def _gradient(self, s: GeneralState, parts: NDArray[np.float64]) -> None:
        if len(self.pack.factor_start):
            general.messages_parallel(self.pack, s.arrays, s.phase)
        general.gradient_parallel(self.pack, s.arrays, s.phase, parts)
