"""Names for families of kernels: which of them are compiled is remembered by these."""

from __future__ import annotations

from proxfield.core.compiled.jit import note_ready
from proxfield.core.engines.base import Program
from proxfield.core.engines.plan import Order, Plan, Update

DESCENT = "descend"
"""A kind of work: `Program.descend`."""


def kind_of(plan: Plan) -> str:
    """A kind of work by its plan: those of a kind share kernels.

    Example:
        >>> import numpy as np
        >>> kind_of(Order(np.arange(3)))
        'Order'
    """
    if isinstance(plan, Update) and plan.search is not None:
        return "Search"
    if isinstance(plan, Order) and plan.starts is not None:
        return "Colors"
    return type(plan).__name__


def family(program: type[Program], dtype: str, work: str) -> str:
    """A name for the kernels with which a class of programs does a kind of work."""
    return f"{program.__name__}-{dtype}-{work}"


def note_compiled(program: Program, work: str) -> None:
    """Remember that a program's kernels for a kind of work are compiled, if its field is small."""
    if not (program.parallel or program.lowered.extras):
        note_ready(family(type(program), program.dtype.name, work))
