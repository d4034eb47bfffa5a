"""One rank's program: its own kernels, with ghosts exchanged before each update.

F and changes are those of the whole field, the same bits on every rank: ranks decide by them, and
all decide alike. Programs take marginals of ghosts in float64. Binary programs of the CPU take one
number per variable, v = q(1) − ½, as their kernels keep it: an Ising coupling J across the cut adds
4 J v of the ghost to the bias of a variable of the border.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_matrix

from proxfield.core.common.arrays import Array
from proxfield.core.engines import compile_program
from proxfield.core.engines.base import Program, Rows, State, Tangent, host_tangent, slack
from proxfield.core.engines.plan import Chains, Explored, Order, Plan, Update
from proxfield.core.engines.reference import searched
from proxfield.core.terms.base import Floats, Ints
from proxfield.core.terms.pairwise import Ising
from proxfield.distributed.cut import consecutive
from proxfield.distributed.partition import Partition, Routes
from proxfield.errors import UnsupportedError

if TYPE_CHECKING:
    from proxfield.core.engines.numba.programs import BinaryProgram

LARGE_SIZE = 1 << 24
"""Entries of a rank from which on temporary arrays of all of them are avoided."""
CHUNK = 1 << 20
"""Entries worked on at a time."""
MAX_SIDES = 4
"""Ghosts per variable of the border up to which these are multiplied one after another: a few calls
of numpy take less than one of scipy, whose code the kernels have driven out of the caches."""


class Exchange:
    """The exchange of marginals, for any program.

    Args:
        partition: The part.
        program: Its program.
    """

    def __init__(self, partition: Partition, program: Program) -> None:
        self.partition, self.program = partition, program
        self.routes, self.border = partition.routes, partition.border_entries

    def own(self, state: State) -> Array:
        """What this rank's border sends of a state."""
        return self.program.marginals_at(state, self.border)

    def own_of(self, q: NDArray[np.float64]) -> NDArray[np.float64]:
        """What this rank's border sends of marginals."""
        return q[self.border]

    def take(self, own: Array, ghosts: Array) -> float:
        """Put the terms across into the program; returns what makes its F a part of the whole F."""
        g, correction = self.partition.cut.gradient(own, ghosts)
        if len(g):
            self.program.set_unary(self.partition.base + g, self.border)
        return correction


class SpinExchange(Exchange):
    """The exchange of one number per variable, for binary programs of the CPU."""

    def __init__(self, partition: Partition, program: BinaryProgram) -> None:
        cut = partition.cut
        self.binary, self.constant = program, cut.constant
        self.variables = consecutive(cut.border)
        width = len(cut.border)
        ends, weights = [np.zeros((0, 2), dtype=np.int64)], [np.zeros(0)]
        for term in cut.pairs:
            assert isinstance(term, Ising)
            ends.append(np.sort(term.edges, axis=1))  # the ghosts come after the border
            weights.append(np.asarray(4.0 * term.weights, dtype=np.float64))
        edges = np.concatenate(ends)
        n_ghosts = cut.layout.n_vars - width
        self.multiply = product_of(
            edges[:, 0], edges[:, 1] - width, np.concatenate(weights), (width, n_ghosts)
        )
        routes, entries = partition.routes, np.arange(cut.width)
        self.routes = Routes(
            partition.transport,
            n_ghosts,
            {r: consecutive(entries[to][::2] // 2) for r, to in routes.sends.items()},
            {r: slice(at.start // 2, at.stop // 2) for r, at in routes.receives.items()},
        )
        known = np.isin(cut.border, program.pack.clamped)
        self.known: Ints = np.flatnonzero(known)
        self.moving: Ints | slice = np.flatnonzero(~known) if known.any() else slice(None)
        self.targets = consecutive(cut.border[self.moving])
        self.base = program.pack.bias[self.targets].astype(np.float64)

    def own(self, state: State) -> Floats:
        return self.binary.spins_at(state, self.variables)

    def own_of(self, q: NDArray[np.float64]) -> NDArray[np.float64]:
        return q[1::2][self.variables] - 0.5

    def take(self, own: Floats, ghosts: Floats) -> float:
        if len(own) == 0:
            return self.constant
        g = self.multiply(ghosts)
        self.binary.set_bias(self.base + g[self.moving], self.targets)
        energy = float(np.dot(own, g))
        counted = energy
        if len(self.known):  # the bias of a variable that is known isn't counted
            counted -= float(np.dot(own[self.known], g[self.known]))
        return self.constant + 0.5 * energy - counted


def product_of(
    row: Ints, column: Ints, weight: NDArray[np.float64], shape: tuple[int, int]
) -> Callable[[Floats], NDArray[np.float64]]:
    """Multiplies a sparse matrix with vectors.

    Example:
        >>> rows, columns = np.array([0, 0, 1]), np.array([0, 1, 1])
        >>> product_of(rows, columns, np.array([1.0, 2.0, 3.0]), (2, 2))(np.ones(2))
        array([3., 3.])
    """
    matrix = coo_matrix((weight, (row, column)), shape=shape).tocsr()
    matrix.sort_indices()
    counts = np.diff(matrix.indptr)
    sides = int(counts.max(initial=0))
    if not 0 < sides <= MAX_SIDES:
        return lambda v: np.asarray(matrix @ v)
    parts = []
    for k in range(sides):
        at = np.minimum(matrix.indptr[:-1] + k, max(0, len(matrix.data) - 1))
        parts.append((np.where(k < counts, matrix.data[at], 0.0), consecutive(matrix.indices[at])))

    def multiply(v: Floats) -> NDArray[np.float64]:
        out: NDArray[np.float64] = parts[0][0] * v[parts[0][1]]
        for values, columns in parts[1:]:
            out += values * v[columns]
        return out

    return multiply


@dataclass
class Seconds:
    """Where the time of a rank went."""

    exchange: float = 0.0  # waiting for neighbors' marginals, and sending
    cut: float = 0.0  # terms across the cut, and replacing unary energies
    kernel: float = 0.0  # the rank's own updates
    reduce: float = 0.0  # sums and maxima over all ranks


class PartProgram(Program):
    """Advances one rank's part of a field. Every method is collective.

    Args:
        partition: The part.
        kernels: As for `compile_program`.
        dtype: "float64" or "float32".
        threads: Maximum number of threads.
        every: Updates between two reductions.
    """

    def __init__(
        self, partition: Partition, kernels: str, dtype: str, threads: int | None, every: int = 1
    ) -> None:
        self.partition, self.transport = partition, partition.transport
        partition.reset()
        self.program: Program = compile_program(partition.lowered, kernels, dtype, threads)
        self.program.owns_unary = True  # the partition's own array, which `reset` puts back
        self.lowered, self.dtype = partition.lowered, self.program.dtype
        self.looks_every = every
        self.interrupted = threading.Event()
        """Set by Ctrl-C on this rank."""
        self.stop_asked = False
        """Whether it was set on any rank, at the last reduction."""
        # the exchange in the smallest form that all ranks can do
        cut = partition.cut
        able = not (cut.larger or cut.extras) and all(isinstance(t, Ising) for t in cut.pairs)
        able = able and hasattr(self.program, "spins_at")
        kind = Exchange if self.transport.maximum(not able) else SpinExchange
        self.border = kind(partition, cast("BinaryProgram", self.program))
        self.seconds, self.cpu_seconds = Seconds(), Seconds()
        self.shared_f: tuple[State, float] | None = None
        """A state whose F is known, which rules that look at F leave behind."""

    def _timed(self, name: str, since: tuple[float, float]) -> tuple[float, float]:
        now = time.perf_counter(), time.thread_time()
        for into, new, old in zip((self.seconds, self.cpu_seconds), now, since, strict=True):
            setattr(into, name, getattr(into, name) + new - old)
        return now

    def start(self, q: Floats) -> State:
        """A state at this rank's marginals."""
        return self.program.start(q)

    @property
    def slow(self) -> bool:
        return False  # looks come after a fixed number of updates, which all ranks know

    def copy(self, state: State) -> State:
        return self.program.copy(state)

    def warm_up(self, plan: Plan, state: State, trace: bool) -> None:
        if self.lowered.layout.size >= LARGE_SIZE:  # it takes a second state
            return
        if isinstance(plan, Update) and plan.watches:
            plan = replace(plan, adaptive=False, fallback=None, search=None)
        self.program.warm_up(plan, state, True)

    def descend(self, labels: Floats, sweeps: int) -> NDArray[np.float64]:
        raise UnsupportedError("labellings of a field over several ranks can't be improved")

    def explore(self, chains: Chains, threads: int | None = None) -> Explored:
        """Chains of this rank's variables, the ghosts as they were exchanged last."""
        return self.program.explore(chains, threads)

    def marginals(self, state: State) -> NDArray[np.float64]:
        """This rank's marginals; of a large part in float32, in that type."""
        program, size = self.program, self.partition.lowered.layout.size
        if self.dtype == np.float64 or size < LARGE_SIZE:
            return program.marginals(state)
        vars(program).pop("kept_motion", None)
        out = np.empty(size, dtype=np.float32)
        for i in range(0, size, CHUNK):
            entries = np.arange(i, min(size, i + CHUNK))
            out[i : i + CHUNK] = program.marginals_at(state, entries)
        return out  # type: ignore[return-value]

    def exchange(self, state: State) -> float:
        """Take the neighbors' marginals into the unary energies.

        Returns:
            What makes F of this rank's program its part of the whole F.
        """
        since = time.perf_counter(), time.thread_time()
        return self._meet(self.border.own(state), since)

    def _meet(self, own: Floats, since: tuple[float, float]) -> float:
        """Exchange what the border sends for that of the ghosts, and take it in."""
        ghosts = self.border.routes.ghosts(own)
        since = self._timed("exchange", since)
        correction = self.border.take(own, ghosts)
        self._timed("cut", since)
        return correction

    def _reduce(self, values: Floats, how: str) -> NDArray[np.float64]:
        since = time.perf_counter(), time.thread_time()
        found = self.transport.reduce(values, how)
        self._timed("reduce", since)
        return found

    def free_energy(self, state: State) -> float:
        """F of the whole field."""
        correction = self.exchange(state)
        since = time.perf_counter(), time.thread_time()
        own = self.program.free_energy(state)
        self._timed("kernel", since)
        return float(self._reduce(np.array([own + correction]), "sum")[0])

    def gradient(self, q: Floats) -> NDArray[np.float64]:
        """dE/dq of this rank's variables.  # (layout.size,)"""
        double = np.asarray(q, dtype=np.float64)
        since = time.perf_counter(), time.thread_time()
        self._meet(self.border.own_of(double), since)
        return self.program.gradient(double)

    def tangent(self, state: State) -> Tangent:
        """The state as the second-order test uses it."""
        return host_tangent(self.lowered.layout, self.program.marginals(state), self.gradient)

    def residual(self, state: State) -> tuple[float, float]:
        """max |softmax(−g(q)) − q| of the whole field, and what rounding may cause of it."""
        self.exchange(state)
        found = np.array(self.program.residual(state))
        lost = np.isnan(found)
        found = self._reduce(np.where(lost, np.inf, found), "max")
        return float(found[0]), float(found[1])

    def advance(self, state: State, plan: Plan, n: int, tol: float, trace: bool) -> Rows:
        """So many updates; ``tol`` is looked at after all of them, when changes are known."""
        f, change = np.full(n, np.nan), np.full(n, np.nan)
        twice = np.inf
        for k in range(n):
            if isinstance(plan, Update) and plan.watches:
                f[k], change[k], twice = self._watched(state, plan)
            elif isinstance(plan, Order):
                f[k], change[k] = self._sweep(state, plan)
            else:
                correction = self.exchange(state)
                since = time.perf_counter(), time.thread_time()
                rows = self.program.advance(state, plan, 1, -1.0, True)
                self._timed("kernel", since)
                f[k], change[k] = rows.free_energy[0] + correction, rows.change[0]
                twice = rows.period2
        if isinstance(plan, Update) and plan.watches:  # F is of the whole field already
            f = f / self.transport.size
        lost = np.isnan(change)
        ends = np.where(lost, np.inf, change)
        reduced = self._reduce(
            np.append(ends, [min(twice, 1e300), float(self.interrupted.is_set())]), "max"
        )
        change = np.where(np.isinf(reduced[:n]), np.nan, reduced[:n])
        f = self._reduce(f, "sum")
        self.stop_asked = bool(reduced[n + 1])
        return Rows(f if trace else np.full(n, np.nan), change, float(reduced[n]))

    def _sweep(self, state: State, plan: Order) -> tuple[float, float]:
        """Color by color, with an exchange before each; every rank knows the colors of all."""
        if plan.starts is None or plan.shuffle is not None:
            raise UnsupportedError("over several ranks, variables move by color or all at once")
        before, change, colors = 0.0, 0.0, len(plan.starts) - 1
        for color in range(max(1, colors)):  # without variables there is F all the same
            correction = self.exchange(state)
            ends = plan.starts[color : color + 2].tolist() if colors else (0, 0)
            some = plan.variables[ends[0] : ends[1]]
            if color == 0:
                before = self.program.free_energy(state) + correction
            if len(some):
                part = replace(plan, variables=some, starts=np.array([0, len(some)]))
                rows = self.program.advance(state, part, 1, -1.0, True)
                change = max(change, float(rows.change[0]))
        return before, change

    # ---- rules that look at F ----

    def _watched(self, state: State, plan: Update) -> tuple[float, float, float]:
        """One update that is made again if F of the whole field rises; returns that F before."""
        if self.shared_f is not None and self.shared_f[0] is state:
            f = self.shared_f[1]
        else:
            f = self.free_energy(state)
        kept = self.program.copy(state)
        found = [np.nan, np.inf]

        def moved(step: NDArray[np.float64]) -> float:
            """F after an update with these steps."""
            state.arrays = self.program.copy(kept).arrays
            self.exchange(state)
            bare = replace(plan, adaptive=False, fallback=None, search=None, step=step)
            rows = self.program.advance(state, bare, 1, -1.0, True)
            found[:] = [float(rows.change[0]), rows.period2]
            return self.free_energy(state)

        if plan.search is not None:
            last = np.nan

            def tried(size: float) -> float:
                nonlocal last
                last = moved(np.full(len(plan.step), size))
                return last

            size = state.memory.get("size")
            _, state.memory["size"] = searched(plan.search, size, f, tried, self.dtype)
            new = last
        else:
            layout, step = self.partition.lowered.layout, plan.step
            if layout.n_vars:  # less damping where marginals are close to 0 or 1
                q = self.program.marginals(kept)
                spread = np.maximum.reduceat(4 * q * (1 - q), layout.offsets[:-1])
                step = np.asarray(1 / (1 + (1 / step - 1) * spread))
            new = moved(step)
            if new > f + slack(f, self.dtype):
                new = moved(plan.step if plan.fallback is None else plan.fallback)
        self.shared_f = state, new
        return f, found[0], found[1]
