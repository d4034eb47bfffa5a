"""What a rule makes its plan from, and what it gives back."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cached_property

import numpy as np

from proxfield.core.lowering.lowered import Lowered
from proxfield.core.solve.curvature import Curvature
from proxfield.core.terms.base import Doubles, Ints
from proxfield.result import Status


@dataclass(frozen=True)
class Problem:
    """What a rule may look at when it makes its plan."""

    lowered: Lowered
    curvature: Curvature
    seed: int = 0
    plain_chains: bool = False
    """Whether chains compute the whole gradient for each variable that moves."""

    @property
    def n_vars(self) -> int:
        """Variables that are left to infer."""
        return self.lowered.layout.n_vars

    @cached_property
    def coloring(self) -> tuple[Ints, Ints]:
        """Variables by color, and where each color starts; those of one color share no term."""
        colors = self.lowered.color()
        counts = np.bincount(colors, minlength=1)
        return np.argsort(colors, kind="stable"), np.concatenate([[0], np.cumsum(counts)])


class Verdict(Enum):
    """What the second-order test found."""

    MINIMUM = "no direction of negative curvature"
    SADDLE = "F falls along a direction"
    UNDECIDED = "time or products ran out"


@dataclass(frozen=True)
class Judgement:
    """A verdict and, for a saddle, marginals nearby where F is lower."""

    verdict: Verdict
    lower: Doubles | None = None
    free_energy: float = np.inf


@dataclass
class Outcome:
    """Where a rule ended: marginals of the lowered field, their F, and why it ended.

    Attributes:
        labels: A feasible labelling, if one is known.
        judgement: What the second-order test found at a fixed point.
    """

    q: Doubles
    free_energy: float
    status: Status
    labels: Ints | None = None
    judgement: Judgement | None = None
