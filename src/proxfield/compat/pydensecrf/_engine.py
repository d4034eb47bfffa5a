"""The iteration of the drop-in replacement, between pydensecrf's names and proxfield's kernels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from proxfield.compat import pydensecrf as settings
from proxfield.core.engines.base import softmax_rows
from proxfield.core.terms.gaussian import Gaussian
from proxfield.core.terms.unary import Unary
from proxfield.field import Field
from proxfield.images.trials import FieldUpdates

FILTER = "lattice"
"""The filter of every pairwise term; the original knows this one only."""
MAX_SERIAL_ENERGIES = 50_000
"""Entries up to which one thread does: waking others costs more than they save."""
TINY = 1e-20
"""What a probability of 0 counts as in a logarithm."""


def threads_to_use() -> int:
    """The setting, or all cores."""
    from proxfield.core.compiled.jit import max_threads

    return settings.THREADS or max_threads()


def by_variable(energies: NDArray[np.float32]) -> tuple[NDArray[np.float32], bool]:
    """A copy of energies, variable by variable instead of label by label; are all finite?

    # (L, N) -> (N, L)
    """
    from proxfield.core.compiled.jit import thread_count, threads_for
    from proxfield.core.engines.numba.dense import transpose

    out = np.empty(energies.shape[::-1], dtype=np.float32)
    with thread_count(threads_to_use()), threads_for(energies.size):
        return out, bool(transpose(energies, out))


def built(term: Gaussian) -> Gaussian:
    """A term with its lattice, and without the features that it was made from."""
    from proxfield.core.compiled.jit import thread_count

    with thread_count(threads_to_use()):
        return term.build(drop_features=True)


def check(energies: NDArray[np.float32]) -> None:
    """Every variable needs a possible label, and energies that are numbers.  # (N, L)"""
    low = energies.min(axis=1, initial=np.inf)
    if not np.isfinite(low).all():
        bad = int(np.flatnonzero(~np.isfinite(low))[0])
        raise ValueError(f"variable {bad} has a unary energy of NaN or -inf, or +inf throughout")


class DenseUpdates:
    """One field, compiled, and its certified update.

    The step is the full one, the original's, wherever that can't oscillate (attractive
    compatibilities); otherwise it is damped as much as the curvature asks for.

    Args:
        energies: Unary energies.  # (N, L)
        pairwise: The other terms.
        finite: Are the energies known to be finite?
    """

    def __init__(
        self, energies: NDArray[np.float32], pairwise: Sequence[Gaussian], finite: bool = False
    ) -> None:
        if not finite:
            check(energies)
        self.rows = energies
        self.pairwise = list(pairwise)
        if not self.pairwise:
            return
        variables, labels = energies.shape
        threads = settings.THREADS or (1 if energies.size <= MAX_SERIAL_ENERGIES else None)
        field = Field(variables, labels, [Unary(self.rows), *self.pairwise])
        self.updates = FieldUpdates(field, threads)

    @property
    def unary_only(self) -> NDArray[np.float32]:
        """Marginals that the unary energies alone give.  # (N · L,)"""
        return softmax_rows(self.rows.reshape(-1), self.rows.shape[1])

    def advance(self, q: NDArray[np.float32], n: int) -> NDArray[np.float32]:
        """Marginals after ``n`` updates, perhaps in the array given.  # (N · L,) -> (N · L,)"""
        if not self.pairwise:
            return self.unary_only
        return self.updates.make(self.updates.program.take(q[None]), n)

    def divergence(self, q: NDArray[np.float32]) -> float:
        """Σ Q log Q + ⟨U, Q⟩ + Σ ⟨Q, μ K Q⟩: see `DenseCRF.klDivergence`.  # (N · L,)"""
        variables, labels = self.rows.shape
        rows = np.asarray(q, dtype=np.float64).reshape(variables, labels)
        positive = rows > 0
        total = float((rows * np.log(np.maximum(rows, TINY))).sum())
        total += float((rows[positive] * self.rows[positive]).sum())
        for term in self.pairwise:
            total += float((rows * (term.operate(rows) @ term.compatibility(labels))).sum())
        return total
