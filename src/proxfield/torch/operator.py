"""The normalised operator A of a Gaussian term, on batches; the same as `proxfield.Gaussian`'s."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from proxfield.gpu.backend import torch
from proxfield.terms.gaussian import SMALLEST_MASS
from proxfield.torch.filter import gaussian_filter
from proxfield.torch.plans import PLANS, FilterPlan


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
        """Bounds on the eigenvalues of A, by image; see `proxfield.Gaussian.kernel_range`."""
        zero = self.own.new_zeros(len(self.own))
        if self.root is not None:
            low, high = zero, zero + 1
        else:
            ones = torch.ones_like(self.own)
            if self.half is None:
                high = self.filter(ones).amax(dim=(1, 2))
                low = zero
            else:
                high = (self.half * self.mass + self.filter(self.half)).amax(dim=(1, 2))
                least, most = self.mass.amin(dim=(1, 2)), self.mass.amax(dim=(1, 2))
                low = -torch.minimum(high, (most - least) ** 2 / (8 * least * (most + least)))
        if self.self_message:
            return low, high
        return low - self.own.amax(dim=(1, 2)), high - self.own.amin(dim=(1, 2))


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

        A scale s that depends on the masses n contributes ∂/∂s · ds/dn · Σ_j k_ij · 1: one more
        pair of channels, (∂/∂n, 1), in the same sum over pairs.

        Args:
            v: # (B, n, c)
            b: # (B, n, c)
        """
        if self.mass is None:  # the diagonal of K is 1, whatever the features
            return self.plan.pull(v, b)
        c = v.shape[-1]
        if self.root is not None:
            left, right = self.root * v, self.root * b
            seen = self.plan.apply(torch.cat([right, left], dim=-1))
            to_root = (v * seen[..., :c] + b * seen[..., c:]).sum(-1, keepdim=True)
            to_mass = -0.5 * to_root * self.root / self.mass
        else:
            seen = self.plan.apply(torch.cat([b, v], dim=-1))
            to_half = (v * seen[..., :c] + b * seen[..., c:]).sum(-1, keepdim=True)
            to_mass = -to_half * self.half / self.mass
            left, right = torch.cat([self.half * v, v], -1), torch.cat([b, self.half * b], -1)
        if not self.self_message:  # −a_ii v_i·b_i with a_ii = 1/n_i
            to_mass = to_mass + (v * b).sum(-1, keepdim=True) / self.mass**2
        left = torch.cat([left, to_mass], dim=-1)
        right = torch.cat([right, torch.ones_like(to_mass)], dim=-1)
        return self.plan.pull(left, right)


def differentiable(features: Any, normalization: str, self_message: bool) -> Operator:
    """The operator in operations that autograd sees through.  # features: (Bf, n, d)"""
    return Operator(
        lambda values: gaussian_filter(features, values), features, normalization, self_message
    )
