"""The normalised operator A of a Gaussian term, on batches; the same as `proxfield.Gaussian`'s."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from proxfield.devices.cuda import torch
from proxfield.filters.bounds import kernel_range
from proxfield.filters.torch.filter import gaussian_filter
from proxfield.filters.torch.plans import PLANS, FilterPlan
from proxfield.terms.gaussian import SMALLEST_MASS

CHANNELS = 64
"""Up to how many channels gradients for features wait for each other: one pass on a GPU."""


class Operator:
    """A = Σ diag(out) K diag(in), without its diagonal if the own message is left out.

    With n_i = Σ_j k_ij: "none" is K; "symmetric" k_ij / √(n_i n_j); "before" and "after" are both
    the symmetric part ½ (k_ij/n_i + k_ij/n_j), the only part that an energy can have.

    Args:
        filter: K as a function.  # (B, n, c) -> (B, n, c)
        features: # (Bf, n, d)
        normalization: One of the four.
        self_message: Keep a_ii.
    """

    def __init__(
        self,
        filter: Callable[[Any], Any],
        features: Any,
        normalization: str,
        self_message: bool,
    ) -> None:
        self.filter = filter
        self.normalization = normalization
        self.self_message = self_message
        self.mass: Any = None  # n_i  # (Bf, n, 1)
        self.root: Any = None  # what both sides are scaled by
        self.half: Any = None  # what one side is scaled by
        own = features.new_ones((*features.shape[:2], 1))
        if normalization != "none":
            self.mass = filter(own) + SMALLEST_MASS
            own = 1 / self.mass
        if normalization == "symmetric":
            self.root = self.mass.rsqrt()
        elif normalization != "none":
            self.half = 0.5 / self.mass
        self.own = own
        """a_ii.  # (Bf, n, 1)"""

    def apply(self, values: Any) -> Any:
        """A @ values, for finite values.  # (B, n, c) -> (B, n, c)"""
        if self.root is not None:
            out = self.root * self.filter(self.root * values)
        elif self.half is not None:
            c = values.shape[-1]
            both = self.filter(torch.cat([values, self.half * values], dim=-1))
            out = self.half * both[..., :c] + both[..., c:]
        else:
            out = self.filter(values)
        return out if self.self_message else out - self.own * values

    def range(self) -> tuple[Any, Any]:
        """Bounds on the eigenvalues of A, by image; see `kernel_range`.  # (Bf,), (Bf,)"""
        zero = self.own.new_zeros(len(self.own))
        sums = mass = None
        if self.half is not None:
            sums = (self.half * self.mass + self.filter(self.half))[..., 0]
            mass = self.mass[..., 0]
        elif self.root is None:
            sums = self.filter(torch.ones_like(self.own))[..., 0]
        own = None if self.self_message else self.own[..., 0]
        low, high = kernel_range(self.normalization, mass, sums, own)
        return zero + low, zero + high


class PlannedOperator(Operator):
    """The operator outside autograd, with its derivative written down.

    Args:
        features: # (Bf, n, d)
        normalization: As for `Operator`.
        self_message: As for `Operator`.
    """

    def __init__(self, features: Any, normalization: str, self_message: bool) -> None:
        self.plan: FilterPlan = PLANS.get(features)
        super().__init__(self.plan.apply, features, normalization, self_message)

    def pull(self, v: Any, b: Any) -> Any:
        """The gradient of Σ_ij a_ij v_i·b_j with respect to the features, masses included.

        Args:
            v: # (B, n, c)
            b: # (B, n, c)
        """
        out = FeatureGradient(self)
        out.add(v, b)
        return out.total()


class FeatureGradient:
    """Sums gradients of Σ_ij a_ij v_i·b_j with respect to the features, over several (v, b).

    Channels of several pairs go through the kernel together, so that its weights are computed
    once for all of them. A scale that depends on the masses n contributes ∂/∂n_i · Σ_j k_ij · 1,
    which is such a sum itself, with the values (∂/∂n, 1): once, at the end.

    Args:
        operator: A.
    """

    def __init__(self, operator: PlannedOperator) -> None:
        self.operator = operator
        self.waiting: list[tuple[Any, Any]] = []
        self.to_features = torch.zeros_like(operator.plan.features)
        self.to_mass = None if operator.mass is None else torch.zeros_like(operator.mass)

    def add(self, v: Any, b: Any) -> None:
        """One more pair.  # (B, n, c), (B, n, c)"""
        self.waiting.append((v, b))
        shared = len(v) // len(self.operator.own)  # images whose values are channels of one
        if len(self.waiting) * shared * v.shape[-1] > CHANNELS - shared * v.shape[-1]:
            self._flush()

    def total(self) -> Any:
        """The sum of all.  # (Bf, n, d)"""
        self._flush()
        operator = self.operator
        if operator.mass is None:  # the diagonal of K is 1, whatever the features
            return self.to_features
        return (
            self.to_features + operator.plan.pull(self.to_mass, torch.ones_like(operator.mass))[0]
        )

    def _flush(self) -> None:
        if not self.waiting:
            return
        operator, plan = self.operator, self.operator.plan
        v, b = (torch.cat(x, dim=-1) for x in zip(*self.waiting, strict=True))
        self.waiting = []
        left, right = v, b
        if operator.root is not None:
            left, right = operator.root * v, operator.root * b
        elif operator.half is not None:
            left = torch.cat([operator.half * v, v], dim=-1)
            right = torch.cat([b, operator.half * b], dim=-1)
        found, totals = plan.pull(left, right)
        self.to_features = self.to_features + found
        if operator.mass is None:
            return
        if operator.root is not None:  # totals are root times ∂/∂root
            to_mass = -0.5 * totals / operator.mass
        else:
            c = v.shape[-1]
            seen = plan.apply(torch.cat([b, v], dim=-1))
            to_half = self._per_points(v * seen[..., :c] + b * seen[..., c:])
            to_mass = -to_half * operator.half / operator.mass
        if not operator.self_message:  # −a_ii v_i·b_i with a_ii = 1/n_i
            to_mass = to_mass + self._per_points(v * b) / operator.mass**2
        self.to_mass = self.to_mass + to_mass

    def _per_points(self, x: Any) -> Any:
        """Sums over channels, and over images that share their points.  # -> (Bf, n, 1)"""
        out = x.sum(-1, keepdim=True)
        return out if len(out) == len(self.operator.own) else out.sum(0, keepdim=True)


def differentiable(features: Any, normalization: str, self_message: bool) -> Operator:
    """The operator in operations that autograd sees through.  # features: (Bf, n, d)"""
    return Operator(
        lambda values: gaussian_filter(features, values), features, normalization, self_message
    )


def eigenvalue_range(features: Any, normalization: str, self_message: bool) -> tuple[Any, Any]:
    """`Operator.range` in operations that autograd sees through.  # (Bf, n, d) -> (Bf,), (Bf,)"""
    if normalization == "symmetric" and self_message:  # nothing of the features in it
        zero = features.new_zeros(len(features))
        return zero, zero + 1
    return differentiable(features, normalization, self_message).range()
