"""Terms with compiled code of their own on the CPU, for those that can't be lowered."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Protocol, runtime_checkable

import numpy as np

from proxfield.core.common.arrays import Doubles, Floats, Ints
from proxfield.core.engines.numba.general import gradient_of
from proxfield.core.engines.numba.pack import pack_general
from proxfield.core.engines.terms import implementation
from proxfield.core.lowering.lowered import Lowered
from proxfield.core.terms.base import Layout, Term, Visits


class CpuTerm(Protocol):
    """A term on the CPU, made from (term, layout, dtype); dtype is "float32" or "float64"."""

    def add_gradient(self, q: Floats, out: Floats) -> float:
        """Add dE/dq at ``q`` to ``out``.

        Args:
            q: Marginals, in the program's type.  # (size,)
            out: Changed in place, of the same type.  # (size,)

        Returns:
            The term's energy.
        """


@runtime_checkable
class BinaryCpuTerm(Protocol):
    """A term over binary variables alone, which needs one number of each."""

    def add_binary_gradient(self, log_first: Doubles, out: Floats) -> float:
        """Add dE/dq_i(1) − dE/dq_i(0) to ``out``.

        Args:
            log_first: log q_i(0) of each variable, at least log 1e-30.  # (n_vars,)
            out: Changed in place, in the program's type.  # (n_vars,)

        Returns:
            The term's energy.
        """


class Plain:
    """A term without an implementation of its own, computed by its own methods in numpy."""

    def __init__(self, term: Term, layout: Layout) -> None:
        self.term, self.layout = term, layout

    def add_gradient(self, q: Floats, out: Floats) -> float:
        return self.term.evaluate(self.layout, q, out)


def add_gradients(terms: Iterable[CpuTerm], q: Doubles, out: Floats) -> float:
    """Add the gradients of several terms to ``out``; return their energy."""
    total = 0.0
    for term in terms:
        exact = isinstance(term, Plain)  # numpy computes in float64, whatever the program's type
        total += term.add_gradient(q if exact else q.astype(out.dtype, copy=False), out)
    return total


def on_cpu(term: Term, layout: Layout, dtype: np.dtype[np.floating]) -> CpuTerm:
    """A term's own CPU implementation; `Plain` if it has none.

    Args:
        term: The term.
        layout: Layout of the field.
        dtype: Type of marginals and gradients.

    Example:
        >>> import proxfield as pf
        >>> made = on_cpu(pf.Consistency([0, 0]), Layout(np.array([2, 2])), np.dtype("float64"))
        >>> type(made).__name__
        'Plain'
    """
    maker = implementation(term, "cpu")
    if maker is None or getattr(maker, "fused", False):  # only a whole dense field runs fused
        return Plain(term, layout)
    made: CpuTerm = maker(term, layout, dtype.name)
    return made


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
        self.room = np.empty(2 * self.pack.widest)

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
