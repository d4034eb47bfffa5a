"""What a rule is: a small set of parameters and a `plan`, which says how the state moves.

It makes the plan from a `Problem`, and gives back an `Outcome`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from proxfield.core.common.checks import is_real, is_whole
from proxfield.core.engines.plan import Plan
from proxfield.core.lowering.lowered import Lowered
from proxfield.core.terms.base import Doubles, Ints
from proxfield.errors import InputError, shown
from proxfield.result import Status

if TYPE_CHECKING:
    from proxfield.core.solve.curvature import Curvature
    from proxfield.core.solve.session import Session
    from proxfield.core.solve.stationarity import Judgement

STEPS = ("certified", "certified-local", "certified-relative", "lipschitz")


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


@dataclass
class Outcome:
    """Where a rule ended: marginals of the lowered field, their F, and why it ended."""

    q: Doubles
    free_energy: float
    status: Status
    labels: Ints | None = None
    """A feasible labelling, if one is known."""
    judgement: Judgement | None = None
    """What the second-order test found at a fixed point."""


@dataclass(frozen=True)
class Rule(ABC):
    """Base class: parameters are dataclass fields, checked in ``check``."""

    name: ClassVar[str]
    summary: ClassVar[str]
    monotone: ClassVar[bool] = False
    """Whether it is proved that F never rises (with the default parameters)."""
    overshoots: ClassVar[bool] = False
    """Whether it averages steps over time, so that q swings on the way to a fixed point, too: what
    looks like an oscillation is none."""
    special: ClassVar[bool] = False
    """Whether it is for one kind of term, and refuses other fields."""
    explores: ClassVar[bool] = False
    """Whether it looks for low minima by chains; then it can look for several modes, too."""
    visits_variables: ClassVar[bool] = False
    """Whether it updates single variables or colors, which terms over all pairs don't allow."""

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:  # noqa: B027 (a hook; many rules need none)
        """Raise `InputError` for parameters that make no sense."""

    @abstractmethod
    def plan(self, problem: Problem) -> Plan:
        """How the state moves."""

    def opening(self, problem: Problem) -> Plan:
        """The plan to begin with, where a better one may be found while iterations go on."""
        return self.plan(problem)

    def prepare(self, problem: Problem) -> None:
        """Do the part of `plan` that counts as building the field, and isn't timed."""
        step = getattr(self, "step", "certified")  # None says that it looks at no curvature
        if step == "certified-local":
            _ = problem.curvature.local
        elif isinstance(step, str):
            problem.curvature.prepare()

    def default_iterations(self, problem: Problem) -> int:
        """Maximum number of iterations where the user limits neither these nor the seconds."""
        return 1000

    def solve(self, session: Session) -> Outcome:
        """Infer. Most rules iterate their plan; rules that run others override this."""
        self.prepare(session.problem)
        with session.loop.clock():  # finding a certified step is part of the work
            plan = self.opening(session.problem)
        return session.run_plan(self, plan, session.start)

    def improve(self, session: Session, outcome: Outcome) -> Outcome:
        """Look further from a feasible point of a field with forbidden configurations."""
        return outcome

    @property
    def mover(self) -> Rule:
        """The rule that moves the state of a field over several processes: itself, or its inner."""
        return self

    @property
    def needs_whole_field(self) -> str:
        """Why it needs all variables in one process, and what to use instead; "" if it doesn't."""
        if type(self).solve is Rule.solve:
            return ""
        return "it runs others on the whole field: use auto or anneal"

    @property
    def never_rises(self) -> bool:
        """Whether it is proved that F never rises with these parameters."""
        return self.monotone

    @property
    def may_oscillate(self) -> bool:
        """Whether q that alternates between two states will do so forever."""
        return not (self.never_rises or self.overshoots)

    @property
    def suits_dense_fields(self) -> bool:
        """Whether it runs on fields whose terms couple every pair of variables."""
        return not (self.special or self.visits_variables)

    @property
    def params(self) -> dict[str, Any]:
        """The parameters, by name."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def _need(self, key: str, valid: bool, expected: str) -> None:
        if not valid:
            raise InputError(f"{self.name}: {key}={shown(getattr(self, key))}, expected {expected}")

    def _number(self, key: str, low: float, high: float, *, closed: bool = True) -> None:
        x, kind = getattr(self, key), "at most" if closed else "below"
        valid = is_real(x) and low < x and (x <= high if closed else x < high)
        self._need(key, valid, f"above {low:g} and {kind} {high:g}")
        object.__setattr__(self, key, float(x))

    def _count(self, key: str) -> None:
        x = getattr(self, key)
        self._need(key, is_whole(x) and x >= 1, "a whole number above 0")
        object.__setattr__(self, key, int(x))

    def _word(self, key: str, *words: str) -> None:
        x = getattr(self, key)
        self._need(key, isinstance(x, str) and x in words, " or ".join(words))

    def _nonnegative_below_one(self, key: str) -> None:
        x = getattr(self, key)
        self._need(key, is_real(x) and 0 <= x < 1, "0 or more and below 1")
        object.__setattr__(self, key, float(x))

    def _step(self, key: str = "step") -> None:
        x = getattr(self, key)
        if isinstance(x, str):
            self._need(key, x in STEPS, f"a number or one of: {', '.join(STEPS)}")
        else:
            self._number(key, 0.0, 2.0)
