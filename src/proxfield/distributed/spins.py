"""The exchange of binary fields: one number per variable, v = q(1) − ½, as their kernels keep it.

An Ising coupling J across the cut adds 4 J v of the ghost to the bias of a variable of the border.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from proxfield.core.engines.base import Program, State
from proxfield.core.terms.base import Floats, Ints
from proxfield.core.terms.pairwise import Ising
from proxfield.distributed.partition import Partition, consecutive

MAX_SIDES = 4
"""Ghosts per variable of the border up to which these are multiplied one after another: a few calls
of numpy take less than one of scipy, whose code the kernels have driven out of the caches."""

if TYPE_CHECKING:
    from proxfield.core.engines.numba.programs import BinaryProgram


def spins_of(partition: Partition, program: Program) -> SpinCut | None:
    """The exchange in this form, if all ranks can do it. Collective."""
    cut = partition.cut
    able = not (cut.larger or cut.extras) and all(isinstance(t, Ising) for t in cut.pairs)
    binary = None
    if able and type(program).__module__.startswith("proxfield.core.engines.numba"):
        from proxfield.core.engines.numba.programs import BinaryProgram

        binary = program if isinstance(program, BinaryProgram) else None
    refused = partition.transport.reduce(np.array([float(binary is None)]), "max")[0]
    return None if refused or binary is None else SpinCut(partition, binary)


class SpinCut:
    """The terms across the cut of one rank, for binary programs of the CPU.

    Args:
        partition: The part.
        program: Its program.
    """

    def __init__(self, partition: Partition, program: BinaryProgram) -> None:
        cut = partition.cut
        self.program, self.transport, self.constant = program, partition.transport, cut.constant
        self.variables = consecutive(cut.border)
        width = len(cut.border)
        ends, weights = [np.zeros((0, 2), dtype=np.int64)], [np.zeros(0)]
        for term in cut.pairs:
            assert isinstance(term, Ising)
            ends.append(np.sort(term.edges, axis=1))  # the ghosts come after the border
            weights.append(np.asarray(4.0 * term.weights, dtype=np.float64))
        edges = np.concatenate(ends)
        self.n_ghosts = cut.layout.n_vars - width
        self.multiply = product_of(
            edges[:, 0], edges[:, 1] - width, np.concatenate(weights), (width, self.n_ghosts)
        )
        entries = np.arange(cut.width)
        self.sends = {r: consecutive(entries[to][::2] // 2) for r, to in partition.sends.items()}
        self.receives = {
            r: slice(there.start // 2, there.stop // 2) for r, there in partition.receives.items()
        }
        self.widths = {r: there.stop - there.start for r, there in self.receives.items()}
        known = np.isin(cut.border, program.pack.clamped)
        self.known: Ints = np.flatnonzero(known)
        self.moving: Ints | slice = np.flatnonzero(~known) if known.any() else slice(None)
        self.targets = consecutive(cut.border[self.moving])
        self.base = program.pack.bias[self.targets].astype(np.float64)

    def own(self, state: State) -> Floats:
        """v of the border."""
        return self.program.spins_at(state, self.variables)

    def own_of(self, q: NDArray[np.float64]) -> NDArray[np.float64]:
        """The same of marginals."""
        return q[1::2][self.variables] - 0.5

    def ghosts(self, own: Floats) -> Floats:
        """Exchange v of the border for those of the ghosts. Collective."""
        found = self.transport.exchange({r: own[to] for r, to in self.sends.items()}, self.widths)
        if len(found) == 1:
            return found.popitem()[1]
        out = np.empty(self.n_ghosts, dtype=own.dtype)
        for r, values in found.items():
            out[self.receives[r]] = values
        return out

    def take(self, own: Floats, ghosts: Floats) -> float:
        """Put the terms across into the program; returns what makes its F a part of the whole F."""
        if len(own) == 0:
            return self.constant
        g = self.multiply(ghosts)
        self.program.set_bias(self.base + g[self.moving], self.targets)
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
    from scipy.sparse import coo_matrix

    matrix: Any = coo_matrix((weight, (row, column)), shape=shape).tocsr()
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
