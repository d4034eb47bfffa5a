"""The certified updates of a field, compiled once and made one after another, without a solver."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from proxfield.core.engines import compile_program
from proxfield.core.engines.base import State
from proxfield.core.solve.curvature import Curvature
from proxfield.core.solve.loop import make_updates
from proxfield.core.solve.request import starting_point
from proxfield.core.solve.rules.base import Problem
from proxfield.core.solve.rules.registry import make_rule
from proxfield.field import Field


class FieldUpdates:
    """A field, compiled for the CPU, and its certified update (that of the rule "fixed").

    Args:
        field: The field.
        threads: Maximum number of threads.
    """

    def __init__(self, field: Field, threads: int | None) -> None:
        self.field, self.lowered = field, field.lower()
        self.program = compile_program(self.lowered, "cpu", "float32", threads)
        curvature = Curvature(self.lowered, field, "cpu")
        self.plan = make_rule("fixed", {}).plan(Problem(self.lowered, curvature))

    def start(self) -> State:
        """The state in which a label is as probable as its unary energies say."""
        return self.program.start(starting_point(self.field, self.lowered, "unary", 0))

    def make(self, state: State, count: int) -> NDArray[np.float32]:
        """Make some updates of a state; returns its marginals.  # (N · L,)"""
        if count > 0:
            make_updates(self.program, self.plan, state, count)
        return np.asarray(self.program.view(state), dtype=np.float32)
