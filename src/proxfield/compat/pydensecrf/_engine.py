"""How the stand-in iterates: one small place between pydensecrf's names and proxfield's kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from proxfield.compat import pydensecrf as settings

if TYPE_CHECKING:
    from proxfield.terms import Gaussian

FILTER = "lattice"
"""The filter of every pairwise term; the original knows this one only."""
KERNELS = "cpu"
SMALL = 50_000
"""Entries up to which one thread does: waking others costs more than they save."""
TINY = 1e-20
"""What a probability of 0 counts as in a logarithm."""


def softmax(energies: NDArray[np.float32]) -> NDArray[np.float32]:
    """exp(−energies), normalised for each variable, variable by variable.  # (L, N) -> (N · L,)"""
    low = energies.min(axis=0)
    if not np.isfinite(low).all():
        bad = int(np.flatnonzero(~np.isfinite(low))[0])
        raise ValueError(f"variable {bad} has a unary energy of NaN or -inf, or +inf throughout")
    q = low - energies  # labels first: numpy is fast where the long axis is the last
    np.exp(q, out=q)
    q /= q.sum(axis=0)
    return np.ascontiguousarray(q.T).ravel()


class Engine:
    """One field, compiled, and its certified update.

    The step is the full one, the original's, wherever that can't oscillate (attractive
    compatibilities); otherwise it is damped as much as the curvature asks for.

    Args:
        energies: Unary energies.  # (L, N)
        pairwise: The other terms.
    """

    def __init__(self, energies: NDArray[np.float32], pairwise: Sequence[Gaussian]) -> None:
        self.energies = energies
        self.pairwise = list(pairwise)
        self.unary_only = softmax(energies)
        """Marginals that the unary energies alone give.  # (N · L,)"""
        if not self.pairwise:
            return
        from proxfield.curvature import Curvature
        from proxfield.field import Field
        from proxfield.kernels import compile_program
        from proxfield.registry import make_rule
        from proxfield.session import Problem
        from proxfield.terms import Unary

        labels, variables = energies.shape
        field = Field(variables, labels, [Unary(energies.T), *self.pairwise])
        lowered = field.lower()
        threads = settings.THREADS or (1 if energies.size <= SMALL else None)
        self.program = compile_program(lowered, KERNELS, "float32", threads)
        problem = Problem(lowered, Curvature(lowered, field, KERNELS))
        self.plan = make_rule("fixed", {}).plan(problem)

    def advance(self, q: NDArray[np.float32], n: int) -> NDArray[np.float32]:
        """Marginals after ``n`` updates.  # (N · L,) -> (N · L,)"""
        if not self.pairwise:
            return np.array(self.unary_only)
        state = self.program.start(q)
        self.program.advance(state, self.plan, n, -1.0, False)
        return np.asarray(self.program.marginals(state), dtype=np.float32)

    def divergence(self, q: NDArray[np.float32]) -> float:
        """Σ Q log Q + ⟨U, Q⟩ + Σ ⟨Q, μ K Q⟩: see `DenseCRF.klDivergence`.  # (N · L,)"""
        labels, variables = self.energies.shape
        rows = np.asarray(q, dtype=np.float64).reshape(variables, labels)
        positive = rows > 0
        total = float((rows * np.log(np.maximum(rows, TINY))).sum())
        total += float((rows[positive] * self.energies.T[positive]).sum())
        for term in self.pairwise:
            total += float((rows * (term.operate(rows) @ term.compatibility(labels))).sum())
        return total
