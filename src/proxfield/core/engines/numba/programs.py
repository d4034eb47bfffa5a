"""The programs of the CPU engine by field, and the one for binary Ising fields."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from proxfield.core.common.arrays import Array, Doubles, Floats, Ints
from proxfield.core.engines.base import Program, State, softmax
from proxfield.core.engines.numba import binary, chains, loops
from proxfield.core.engines.numba import pack as packing
from proxfield.core.engines.numba.cpu import CpuProgram, CpuState
from proxfield.core.engines.reference import TINY, ReferenceState
from proxfield.core.lowering.lowered import FieldGraph, Lowered, make_forests


def compile_cpu(lowered: Lowered, dtype: str = "float64", threads: int | None = None) -> CpuProgram:
    """The fastest CPU program for a field."""
    if lowered.extras:
        from proxfield.core.engines.numba.dense_program import DenseProgram, is_dense

        if is_dense(lowered):
            return DenseProgram(lowered, dtype, threads)
    return sparse_program(lowered)(lowered, dtype, threads)


def sparse_program(lowered: Lowered) -> type[CpuProgram]:
    """The class of programs for a field that isn't dense."""
    return BinaryProgram if packing.is_binary(lowered) else CpuProgram


class BinaryProgram(CpuProgram):
    """Binary variables and Ising couplings: one number per variable."""

    marginal_chains = chains.binary_chains
    pack: binary.BinaryPack  # type: ignore[assignment]

    def _build(self) -> None:
        lowered = self.lowered
        self.pack = packing.pack_binary(lowered, self.dtype, rows_only=False)
        self.constant = packing.binary_constant(lowered)
        self.n = self.layout.n_vars
        self.n_blocks = -(-self.n // binary.BLOCK)
        edges = 0 if lowered.ising is None else lowered.ising.n_edges
        self.work = self.n + 2 * edges

    @cached_property
    def sweep_pack(self) -> binary.BinaryPack:  # type: ignore[override]
        """The field with all edges in rows, under the same padding as ``pack``."""
        if len(self.pack.distance) == 0:
            return self.pack
        rows = packing.pack_binary(self.lowered, self.dtype, rows_only=True)
        return rows._replace(bias=self.pack.bias)  # which `set_bias` may have written to

    def start(self, q: Floats) -> State:
        v = np.zeros((2, self.n + 2 * self.pack.pad), dtype=self.dtype)
        inside, a = v[:, self._inside], np.empty(self.n, dtype=self.dtype)
        pending = False
        for i in range(0, self.n, packing.CHUNK):  # no temporary arrays of all variables
            some, here = q[2 * i : 2 * (i + packing.CHUNK)], slice(i, i + packing.CHUNK)
            inside[:, here] = some[1::2] - 0.5
            a[here] = np.log(np.maximum(some[::2], TINY)) - np.log(np.maximum(some[1::2], TINY))
            gone = np.isinf(self.lowered.unary[2 * i : 2 * (i + packing.CHUNK)])
            pending |= bool((some[gone] > TINY).any())
        spare = [np.zeros(self.n, dtype=self.dtype) for _ in range(5)]
        return State(CpuState(binary.BinaryArrays(v, a, *spare), pending=pending))

    @property
    def _inside(self) -> slice:
        """The buffer without its padding."""
        return slice(self.pack.pad, self.pack.pad + self.n)

    def _both(self, s: CpuState, variables: Ints | slice) -> tuple[Doubles, Doubles]:
        """Marginals of the two labels of some variables, impossible labels apart."""
        if s.natural:  # v + ½ would round a small probability to 0
            a = s.arrays.theta[variables].astype(np.float64)
            e = np.exp(-np.abs(a))
            small = e / (1.0 + e)
            return np.where(a > 0, 1.0 - small, small), np.where(a > 0, small, 1.0 - small)
        second = self._buffer(s)[self._inside][variables].astype(np.float64) + 0.5
        return 1.0 - second, second

    def marginals(self, state: State) -> Doubles:
        s: CpuState = state.arrays
        out = np.empty((self.n, 2))
        for i in range(0, self.n, packing.CHUNK):
            here = slice(i, i + packing.CHUNK)
            out[here, 0], out[here, 1] = self._both(s, here)
        if not s.pending:
            out[self.pack.clamped, 1] = self.pack.clamp < 0
            out[self.pack.clamped, 0] = self.pack.clamp > 0
        return out.ravel()

    _located: tuple[Ints, Ints, NDArray[np.bool_], Ints, Doubles] | None = None
    """The last argument of `marginals_at`, variables of these entries, whether each is the second
    label, and which of them are known to be what."""

    def marginals_at(self, state: State, entries: Ints) -> Doubles:
        s: CpuState = state.arrays
        if self._located is None or self._located[0] is not entries:
            variable, second = entries // 2, entries % 2 == 1
            held = np.flatnonzero(np.isin(variable, self.pack.clamped))
            at = np.searchsorted(self.pack.clamped, variable[held])
            value = ((self.pack.clamp[at] < 0) == second[held]).astype(np.float64)
            self._located = entries, variable, second, held, value
        _, variable, second, held, value = self._located
        first, other = self._both(s, variable)
        out = np.where(second, other, first)
        if not s.pending:
            out[held] = value
        return out

    def spins_at(self, state: State, variables: Ints | slice) -> Floats:
        """v = q(1) − ½ of some variables.  # (m,)"""
        s: CpuState = state.arrays
        return np.asarray(s.arrays.q[s.phase][self._inside][variables])

    def set_bias(self, bias: Floats, variables: Ints | slice) -> None:
        """Replace the energies of label 1 less those of label 0, which keep their mean.

        Args:
            bias: The differences.  # (m,)
            variables: Of which variables, with two possible labels each.  # (m,)
        """
        self.version += 1
        self.pack.bias[variables] = bias

    _replaced: tuple[Ints, Ints, Ints, NDArray[np.bool_], float] | None = None
    """What follows from the last ``at`` of `set_unary`: variables, their entries, which of them
    have two possible labels, and what they add to the constant."""

    def set_unary(self, energies: Array, at: Ints | None = None) -> None:
        self.version += 1
        at = np.arange(2 * self.n) if at is None else at
        kept = self._replaced
        if kept is None or kept[0] is not at:
            variable = np.unique(at // 2)
            both = np.stack([2 * variable, 2 * variable + 1], axis=1)
            before = self.lowered.unary[both].astype(np.float64)
            free = np.asarray(np.isfinite(before).all(axis=1))
            kept = at, variable[free], both, free, shared_constant(before, free)
        _, variable, both, free, old = kept
        Program.set_unary(self, energies, at)
        after = self.lowered.unary[both].astype(np.float64)
        new = shared_constant(after, free)
        self.constant += new - old
        self._replaced = at, variable, both, free, new
        self.pack.bias[variable] = after[free, 1] - after[free, 0]

    def _add_extras(self, s: CpuState) -> float:
        """Binary fields: ``g`` holds the difference between the labels."""
        total, q = 0.0, None
        quick = [own for own in self.extras if isinstance(own, packing.BinaryCpuTerm)]
        if quick:  # one number of each variable is enough
            logs = np.empty(self.n)
            binary.log_first(self.pack, s.arrays, s.phase, s.natural, logs)
            for own in quick:
                total += own.add_binary_gradient(logs, s.arrays.g)
        for term in self.extras:
            if isinstance(term, packing.BinaryCpuTerm):
                continue
            q = self.marginals(State(s)) if q is None else q
            g = np.zeros(self.layout.size, dtype=self.dtype)
            total += packing.add_gradients([term], q, g)
            s.arrays.g[:] += g[1::2] - g[::2]
        return total

    def _set(self, s: CpuState, theta: Floats) -> None:
        s.arrays.theta[:] = theta[1::2] - theta[::2]
        q = softmax(self.layout.owner, self.layout.offsets, theta)
        self._buffer(s)[self._inside] = q[1::2] - 0.5

    def _take_moments(self, s: CpuState, before: ReferenceState, centered: bool) -> None:
        theta, u, v = before.theta, before.u, before.v
        known = np.isfinite(theta[1::2]) & np.isfinite(theta[::2])  # the others are clamped
        s.arrays.theta[known] = theta[1::2][known] - theta[::2][known]
        s.arrays.u[:] = u[1::2] if centered else u[1::2] - u[::2]
        s.arrays.v[:] = v[1::2]

    def _theta(self, s: CpuState) -> Doubles:
        return np.stack([np.zeros(self.n), s.arrays.theta.astype(np.float64)], axis=1).ravel()

    def _flat_gradient(self, s: CpuState) -> Doubles:
        pairs = self.lowered.unary.reshape(-1, 2)
        mean, half = pairs.mean(axis=1), 0.5 * s.arrays.g.astype(np.float64)
        out = np.stack([mean - half, mean + half], axis=1)
        if self.lowered.forbids:  # the mean of such a variable is infinite for both labels
            out = np.where(np.isinf(pairs).any(axis=1, keepdims=True), pairs, out)
        return out.ravel()

    def couple(self, v: Floats) -> Doubles:
        """W v, without the bias: what curvature needs.  # (n,)"""
        pack, arrays = self._coupling
        arrays.q[0, self._inside] = v
        loops.evaluate(pack, None, arrays, 0, False)
        return arrays.g.astype(np.float64)

    @cached_property
    def _coupling(self) -> tuple[binary.BinaryPack, binary.BinaryArrays]:
        """The field without the bias, and a state for it."""
        pack = self.pack._replace(bias=np.zeros_like(self.pack.bias))
        return pack, self.start(np.full(2 * self.n, 0.5)).arrays.arrays

    def _chain_arrays(self, starts: Doubles) -> Floats:
        v = np.zeros((len(starts), self.n + 2 * self.pack.pad), dtype=self.dtype)
        v[:, self._inside] = starts[:, 1::2] - 0.5
        return v

    def _chain_marginals(self, arrays: Floats) -> Doubles:
        one = arrays[:, self._inside].astype(np.float64) + 0.5
        return np.stack([1.0 - one, one], axis=2).reshape(len(arrays), -1)

    def _draw(self, schedule: chains.Cooling, arrays: Floats, forests: Any) -> None:
        room = np.empty((len(arrays), 4, max(self.n, chains.BLOCK)))
        chains.draw_binary(self.sweep_pack, forests, arrays, schedule, room)

    def _pack_forests(self, count: int, usable: NDArray[np.bool_]) -> Any:
        pack, none = self.sweep_pack, np.zeros(0, dtype=np.int64)
        graph = FieldGraph(pack.row, pack.column, np.zeros(self.n + 1, dtype=np.int64), none, 0)
        start, node, above, edge, rest = make_forests(graph, usable, count)
        weight = np.zeros(len(node))
        weight[above >= 0] = pack.weight[edge[above >= 0]]
        return chains.BinaryForests(start, node, above, weight, rest)


def shared_constant(pairs: Doubles, free: NDArray[np.bool_]) -> float:
    """What binary variables add to the constant; see `binary_constant`."""
    held = pairs[~free].min(axis=1).sum() if not free.all() else 0.0
    return float(0.5 * pairs[free].sum() + held)
