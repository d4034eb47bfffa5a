"""The best of two states, part by part.

Two states differ in some variables. Those that interact, directly or through others of them, form
a part. Parts don't interact, so that F(after) − F(before) is a sum over them, and each can be
taken or left for itself: variables of different components of the graph are never in one part, and
in a large sparse field a search improves many places at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from proxfield.core.lowering.components import Components
from proxfield.core.lowering.lowered import Lowered
from proxfield.core.terms.base import Floats

DIFFERENT = 0.1
"""Marginals that differ by more are of different states; smaller differences are left to sweeps."""

V = TypeVar("V", bound=np.generic)
Gradient = Callable[[Floats], NDArray[np.float64]]


class Parts:
    """Which variables of a field interact.

    Args:
        lowered: The field; all its terms have tables.

    Attributes:
        typical: How many parts the states compared of late had.
    """

    def __init__(self, lowered: Lowered) -> None:
        self.layout = lowered.layout
        self.components = Components(lowered)
        degree = max([2, *(int(t.degree or 2) for t in lowered.terms)])
        points, weights = np.polynomial.legendre.leggauss((degree + 1) // 2)
        self.points, self.weights = 0.5 * (1.0 + points), 0.5 * weights
        self.typical = 0.0

    def better_parts(
        self, before: NDArray[np.float64], after: NDArray[np.float64], gradient: Gradient
    ) -> NDArray[np.float64] | None:
        """``before`` with those parts of ``after`` that lower F.

        Args:
            before: Marginals.
            after: Other ones.
            gradient: Gives dE/dq.

        Returns:
            None if there are no such parts, or a single one: then ``after`` says it all.
        """
        label, count = self.different(before, after)
        self.typical += 0.1 * (count - self.typical)
        if count < 2:
            return None
        taken = self.gains(before, after, label, count, gradient) < 0.0
        return self.merged(before, after, label, taken) if taken.any() else None

    def different(
        self, before: NDArray[np.float64], after: NDArray[np.float64]
    ) -> tuple[NDArray[np.int32], int]:
        """The part of each variable (−1: in none), and how many there are.  # (n_vars,)"""
        layout = self.layout
        if layout.common == 2:  # the two differ alike
            return self.components.of(np.abs(after[::2] - before[::2]) > DIFFERENT)
        apart = np.abs(after - before) > DIFFERENT
        if layout.common is not None:
            return self.components.of(np.any(apart.reshape(-1, layout.common), axis=1))
        return self.components.of(np.logical_or.reduceat(apart, layout.offsets[:-1]))

    def gains(
        self, before: NDArray[np.float64], after: NDArray[np.float64],
        label: NDArray[np.int32], count: int, gradient: Gradient,
    ) -> NDArray[np.float64]:  # fmt: skip
        """F(before with one part of after) − F(before), of each part.  # (count,)

        The change of the energy is the integral of its gradient along the way, which a few points
        give exactly: the energy is a polynomial.
        """
        from scipy.special import xlogy  # here, because help texts shall come without a wait

        part = self._entries(label)
        at = np.flatnonzero(part >= 0)
        old, new = before[at], after[at]
        moved, slope = new - old, np.zeros(len(at))
        for point, weight in zip(self.points, self.weights, strict=True):
            q = before.copy()
            q[at] += point * moved
            slope += weight * gradient(q)[at]
        change = np.zeros(len(at))  # where nothing moved; a label may be impossible
        np.multiply(moved, slope, out=change, where=moved != 0.0)
        change += xlogy(new, new) - xlogy(old, old)
        return np.bincount(part[at], weights=change, minlength=count).astype(np.float64)

    def merged(
        self, before: NDArray[np.float64], after: NDArray[np.float64],
        label: NDArray[np.int32], taken: NDArray[np.bool_],
    ) -> NDArray[np.float64]:  # fmt: skip
        """``before`` with the parts of ``after`` that are taken."""
        chosen = np.append(taken, False)[label]  # −1: in no part
        return np.where(self._entries(chosen), after, before)

    def _entries(self, values: NDArray[V]) -> NDArray[V]:
        """Values of variables for each of their entries.  # (n_vars,) -> (layout.size,)"""
        common = self.layout.common
        return values[self.layout.owner] if common is None else values.repeat(common)
