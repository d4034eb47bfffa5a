"""Sweeps over fields with terms that can't be lowered, but visited one variable at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from proxfield.core.common.arrays import Doubles, Ints
from proxfield.core.engines.numba.general_sweep import gradient_of, widest
from proxfield.core.engines.numba.pack import pack_general
from proxfield.core.engines.numba.terms import CpuTerm
from proxfield.core.lowering.lowered import Lowered
from proxfield.core.terms.base import Visits


class VisitingSweeps:
    """Coordinate descent through each term's `Term.visits`; tables are compiled as ever.

    Args:
        lowered: The field.
        own: The CPU implementation of each term that isn't lowered. One with a method
            ``visits(q)`` is asked instead of the term.
    """

    def __init__(self, lowered: Lowered, own: Sequence[CpuTerm]) -> None:
        self.lowered, self.own = lowered, own
        self.pack, _ = pack_general(replace(lowered, extras=()), np.dtype(np.float64))
        self.scratch = np.empty(self.pack.scratch)
        self.room = np.empty(2 * widest(self.pack))

    def sweep(self, q: Doubles, order: Ints, inverse_temperature: float) -> None:
        """Give one variable after another the marginals that minimize F.  # q: (size,), changed"""
        offsets = self.lowered.layout.offsets
        visits = [self._visits(k, q) for k in range(len(self.own))]
        for i in order.tolist():
            first, end = offsets[i], offsets[i + 1]
            gradient_of(self.pack, q, i, self.room, self.scratch)
            g = self.room[: end - first].copy()
            for term in visits:
                g += term.gradient(i)
            low = g.min()
            if low == np.inf:
                continue
            e = np.exp(inverse_temperature * (low - g))
            q[first:end] = e / e.sum()
            for term in visits:
                term.move(i, q[first:end])

    def _visits(self, k: int, q: Doubles) -> Visits:
        compiled = getattr(self.own[k], "visits", None)
        if compiled is not None:
            found: Visits = compiled(q)
            return found
        return self.lowered.extras[k].visits(self.lowered.layout, q)
