"""The paper's parallel methods, on one page. A new rule is one class and one line in `registry`.

A rule is a small set of parameters and a `plan`: how the state moves. All parallel
rules move θ towards the target θ* = g(q), the energies that the neighbors give; they
differ in the damping d (the step is 1 / (1 + d)), in what is averaged over time, and in
the space in which one averages.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from proxfield.core.engines.plan import (
    Custom,
    Kind,
    Plan,
    Update,
    UpdateFunction,
)
from proxfield.core.solve.rules.base import Problem, Rule
from proxfield.errors import InputError


@dataclass(frozen=True)
class FullParallel(Rule):
    """d = 0 for all variables at once. Right for attractive fields, oscillates on others."""

    name = "full-parallel"
    step: ClassVar[None] = None
    summary = "all variables at once, undamped; fast where it converges, may oscillate"

    def plan(self, problem: Problem) -> Plan:
        return Update(Kind.PROXIMAL, np.ones(problem.n_vars))


@dataclass(frozen=True)
class AdHoc(Rule):
    """q ← (1 − η) q + η q*: damping in mean parameters, without a guarantee.

    Args:
        eta: The weight of the new marginals, in (0, 1].
    """

    name = "adhoc"
    step: ClassVar[None] = None
    summary = "the usual damping of marginals; no guarantee"
    eta: float = 0.5

    def check(self) -> None:
        self._number("eta", 0.0, 1.0)

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
    summary = "constant damping, certified: F never rises on any field"
    monotone = True
    step: float | str = "certified"

    def check(self) -> None:
        self._step()

    @property
    def never_rises(self) -> bool:
        return isinstance(self.step, str)

    def plan(self, problem: Problem) -> Update:
        return Update(Kind.PROXIMAL, problem.curvature.steps(self.step))

    def opening(self, problem: Problem) -> Plan:
        """The plan with the step that λ_i certify, which costs nothing, without waiting for λ.

        A larger step is looked for as the iterations go on.
        """
        refinement = problem.curvature.refinement() if self.step == "certified" else None
        if refinement is None:
            return self.plan(problem)
        first = replace(self, step="certified-local").plan(problem)
        return replace(first, refinement=refinement)


@dataclass(frozen=True)
class Adaptive(Fixed):
    """Damping d_i = d · max_l 4 q_l (1 − q_l): variables near a corner move faster.

    For two labels the factor is the paper's 4·q_0·q_1. In general 2·q_l·(1 − q_l) bounds the
    largest eigenvalue of the covariance of q_i, whose inverse is the curvature of the
    proximal term. A step that raises F after all is redone with the certified step.

    Args:
        step: The step 1 / (1 + d) at full uncertainty; as in `Fixed`.
    """

    name = "adaptive"
    summary = "like fixed, with less damping where marginals are close to 0 or 1; F never rises"
    never_rises = True

    def plan(self, problem: Problem) -> Update:
        step = problem.curvature.steps(self.step)
        certified = str(self.step).startswith("certified")
        safe = step if certified else problem.curvature.steps("certified")
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
    summary = "averaged steps that overshoot; often finds better minima on hard fields"
    overshoots = True
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
    """First and second moments of the centered θ − θ*, without bias correction.

    Args:
        gamma1: Decay of the first moment; 0.9, or 0.99 for the printed variant.
        gamma2: Decay of the second moment.
        step: Step size.
        epsilon: Added to the root of the second moment.
        variant: "default" reproduces the published numbers; "printed" averages ∇E itself and
            swaps the weights of the second moment, as the paper's equations read.
    """

    name = "adam"
    summary = "steps scaled by second moments; quickly finds a good minimum on easy fields"
    overshoots = True
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
        kind = Kind.ADAM if self.variant == "default" else Kind.ADAM_PRINTED
        step, decays = problem.curvature.steps(self.step), (self.gamma1, self.gamma2)
        return Update(kind, step, *decays, epsilon=self.epsilon)


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
    summary = "a user-defined Python function"
    function: UpdateFunction | None = None
    step: float = 1.0

    def check(self) -> None:
        if not callable(self.function):
            raise InputError("custom: function must be callable")
        self._number("step", 0.0, np.inf, closed=False)

    def plan(self, problem: Problem) -> Plan:
        assert self.function is not None
        return Custom(self.function, self.step)
