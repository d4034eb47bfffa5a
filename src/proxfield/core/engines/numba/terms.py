"""Terms with compiled code of their own on the CPU, for those that can't be lowered."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np

from proxfield.core.engines.terms import implementation
from proxfield.core.terms.base import Doubles, Floats, Layout, Term


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


def on_cpu(term: Term, layout: Layout, dtype: np.dtype[np.floating]) -> CpuTerm | None:
    """A term's own CPU implementation; None: the term itself is to be called.

    Args:
        term: The term.
        layout: Layout of the field.
        dtype: Type of marginals and gradients.

    Example:
        >>> import proxfield as pf
        >>> on_cpu(pf.Consistency([0, 0]), Layout(np.array([2, 2])), np.dtype("float64")) is None
        True
    """
    maker = implementation(term, "cpu")
    if maker is None or getattr(maker, "fused", False):  # only a whole dense field runs fused
        return None
    made: CpuTerm = maker(term, layout, dtype.name)
    return made
