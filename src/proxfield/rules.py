"""The paper's parallel methods, on one page. A new rule is one class and one line in `registry`.

A rule is a small set of parameters and a `plan`: how the state moves. All parallel
rules move θ towards the target θ* = g(q), the energies that the neighbours give; they
differ in the damping d (the step is 1 / (1 + d)), in what is averaged over time, and in
the space in which one averages.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np

from proxfield.checks import is_real, is_whole
from proxfield.errors import InputError, shown
from proxfield.kernels.base import Custom, Kind, Plan, Update, UpdateFunction
from proxfield.session import Outcome, Problem, Session

STEPS = ("certified", "certified-local", "lipschitz")


@dataclass(frozen=True)
class Rule(ABC):
    """Base class: parameters are dataclass fields, checked in ``check``."""

    name: ClassVar[str]
    summary: ClassVar[str]
    monotone: ClassVar[bool] = False
    """Is F certain never to rise (with the default parameters)?"""

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:  # noqa: B027 (a hook; many rules need none)
        """Raise `InputError` for parameters that make no sense."""

    @abstractmethod
    def plan(self, problem: Problem) -> Plan:
        """How the state moves."""

    def prepare(self, problem: Problem) -> None:
        """Do what `plan` needs and what belongs to building the field, so that it can be timed."""
        step = getattr(self, "step", "certified")
        if step == "certified-local":
            _ = problem.curvature.local
        elif isinstance(step, str):
            problem.curvature.prepare()

    def default_iterations(self, problem: Problem) -> int:
        """Most iterations where the user limits neither these nor the seconds."""
        return 1000

    def solve(self, session: Session) -> Outcome:
        """Infer. Most rules iterate their plan; rules that run others override this."""
        self.prepare(session.problem)
        with session.loop.clock():  # finding a certified step is part of the work
            plan = self.plan(session.problem)
        return session.run_plan(self, plan, session.start)

    def improve(self, session: Session, outcome: Outcome) -> Outcome:
        """Look further from a feasible point of a field with forbidden configurations."""
        return outcome

    @property
    def never_rises(self) -> bool:
        """Is F certain never to rise with these parameters?"""
        return self.monotone

    @property
    def params(self) -> dict[str, Any]:
        """The parameters, by name."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def _number(self, key: str, low: float, high: float, *, closed: bool = True) -> None:
        value = getattr(self, key)
        good = is_real(value) and low < value and (value <= high if closed else value < high)
        if not good:
            kind = "at most" if closed else "below"
            raise InputError(
                f"{self.name}: {key}={shown(value)}, expected above {low:g} and {kind} {high:g}"
            )
        object.__setattr__(self, key, float(value))

    def _count(self, key: str) -> None:
        value = getattr(self, key)
        if not is_whole(value) or value < 1:
            raise InputError(f"{self.name}: {key}={shown(value)}, expected a whole number above 0")
        object.__setattr__(self, key, int(value))

    def _word(self, key: str, *words: str) -> None:
        value = getattr(self, key)
        if not isinstance(value, str) or value not in words:
            raise InputError(f"{self.name}: {key}={shown(value)}, expected {' or '.join(words)}")

    def _nonnegative_below_one(self, key: str) -> None:
        value = getattr(self, key)
        if not is_real(value) or not 0 <= value < 1:
            raise InputError(f"{self.name}: {key}={shown(value)}, expected 0 or more and below 1")
        object.__setattr__(self, key, float(value))

    def _step(self, key: str = "step") -> None:
        value = getattr(self, key)
        if isinstance(value, str):
            if value not in STEPS:
                raise InputError(
                    f"{self.name}: {key}={shown(value)}, expected a number or one of: "
                    f"{', '.join(STEPS)}"
                )
        else:
            self._number(key, 0.0, 2.0)


@dataclass(frozen=True)
class FullParallel(Rule):
    """d = 0 for all variables at once. Right for attractive fields, oscillates on others."""

    name = "full-parallel"
    summary = "all variables at once, undamped; fast where it converges, may oscillate"

    def prepare(self, problem: Problem) -> None:
        pass

    def plan(self, problem: Problem) -> Plan:
        return Update(Kind.PROXIMAL, np.ones(problem.n_vars))


@dataclass(frozen=True)
class AdHoc(Rule):
    """q ← (1 − η) q + η q*: damping in mean parameters, without a guarantee.

    Args:
        eta: The weight of the new marginals, in (0, 1].
    """

    name = "adhoc"
    summary = "the usual damping of marginals; no guarantee"
    eta: float = 0.5

    def check(self) -> None:
        self._number("eta", 0.0, 1.0)

    def prepare(self, problem: Problem) -> None:
        pass

    def plan(self, problem: Problem) -> Plan:
        return Update(Kind.MEAN, np.full(problem.n_vars, self.eta))


@dataclass(frozen=True)
class Fixed(Rule):
    """θ ← θ − step·(θ − θ*) with a constant step: F never rises when the step is certified.

    Args:
        step: A number in (0, 2], "certified" (from λ), "certified-local" (per variable,
            from λ_i) or "lipschitz" (the paper's d = L).
    """

    name = "fixed"
    summary = "constant damping, certified: F falls at every step on any field"
    monotone = True
    step: float | str = "certified"

    def check(self) -> None:
        self._step()

    @property
    def never_rises(self) -> bool:
        return isinstance(self.step, str)

    def plan(self, problem: Problem) -> Plan:
        return Update(Kind.PROXIMAL, problem.curvature.steps(self.step))


@dataclass(frozen=True)
class Adaptive(Rule):
    """Damping d_i = d · max_l 4 q_l (1 − q_l): variables near a corner move faster.

    For two labels the factor is the paper's 4·q_0·q_1. In general 2·q_l·(1 − q_l) bounds the
    largest eigenvalue of the covariance of q_i, whose inverse is the curvature of the
    proximal term. A step that raises F after all is redone with the certified step.

    Args:
        step: The step 1 / (1 + d) at full uncertainty; as in `Fixed`.
    """

    name = "adaptive"
    summary = "like fixed, but certain variables are damped less; F never rises"
    monotone = True
    step: float | str = "certified"

    def check(self) -> None:
        self._step()

    def plan(self, problem: Problem) -> Plan:
        step = problem.curvature.steps(self.step)
        safe = (
            step if str(self.step).startswith("certified") else problem.curvature.steps("certified")
        )
        return Update(Kind.PROXIMAL, step, adaptive=True, fallback=safe)


@dataclass(frozen=True)
class Momentum(Rule):
    """u ← γ u + (1 − γ)(θ − θ*);  θ ← θ − step·u.

    Args:
        gamma: Decay of the average, in [0, 1).
        step: Step along the average.
        variant: "default" reproduces the published numbers; "printed" averages ∇E itself, as
            the paper's equation reads.
    """

    name = "momentum"
    summary = "averaged steps that overshoot: often finds better minima on hard fields"
    gamma: float = 0.95
    step: float | str = 1.0
    variant: str = "default"

    def check(self) -> None:
        self._nonnegative_below_one("gamma")
        self._step()
        self._word("variant", "default", "printed")

    def plan(self, problem: Problem) -> Plan:
        kind = Kind.MOMENTUM if self.variant == "default" else Kind.MOMENTUM_PRINTED
        return Update(kind, problem.curvature.steps(self.step), gamma1=self.gamma)


@dataclass(frozen=True)
class Adam(Rule):
    """First and second moments of the centred θ − θ*, without bias correction.

    Args:
        gamma1: Decay of the first moment; 0.9, or 0.99 for the printed variant.
        gamma2: Decay of the second moment.
        step: Step size.
        epsilon: Added to the root of the second moment.
        variant: "default" reproduces the published numbers; "printed" averages ∇E itself and
            swaps the weights of the second moment, as the paper's equations read.
    """

    name = "adam"
    summary = "moments scale each label's step: a quick, good minimum on easy fields"
    gamma1: float | None = None
    gamma2: float = 0.999
    step: float | str = 1.0
    epsilon: float = 1e-8
    variant: str = "default"

    def check(self) -> None:
        self._word("variant", "default", "printed")
        if self.gamma1 is None:
            object.__setattr__(self, "gamma1", 0.9 if self.variant == "default" else 0.99)
        self._nonnegative_below_one("gamma1")
        self._nonnegative_below_one("gamma2")
        self._step()
        self._number("epsilon", 0.0, np.inf, closed=False)

    def plan(self, problem: Problem) -> Plan:
        assert self.gamma1 is not None
        return Update(
            Kind.ADAM if self.variant == "default" else Kind.ADAM_PRINTED,
            problem.curvature.steps(self.step),
            gamma1=self.gamma1,
            gamma2=self.gamma2,
            epsilon=self.epsilon,
        )


@dataclass(frozen=True)
class CustomRule(Rule):
    """A rule written as a Python function; see CONTRIBUTING for how to make it a named one.

    Args:
        function: ``function(theta, q, gradient, memory) -> new theta`` over flat arrays;
            ``memory`` is a dictionary that lasts from one iteration to the next.
        step: Divides the change of q before it is compared with ``tol``.

    Example:
        >>> import proxfield as pf
        >>> half = CustomRule(lambda theta, q, g, memory: theta - 0.5 * (theta - g))
        >>> pf.infer(pf.Field(2, 2).add(pf.Potts([[0, 1]], -1.0)), half).status.name
        'CONVERGED'
    """

    name = "custom"
    summary = "a Python function of your own"
    function: UpdateFunction | None = None
    step: float = 1.0

    def check(self) -> None:
        if not callable(self.function):
            raise InputError("custom: function must be callable")
        self._number("step", 0.0, np.inf, closed=False)

    def plan(self, problem: Problem) -> Plan:
        assert self.function is not None
        return Custom(self.function, self.step)
