"""The normalized operator A of a Gaussian term over batches, with gradients for the features."""

from __future__ import annotations

from typing import Any

from proxfield.core.devices.cuda import torch
from proxfield.core.devices.tensors import Tensor
from proxfield.core.filters.operator import Operator as Operator
from proxfield.core.filters.plan import SMALLEST_MASS, Plan
from proxfield.core.filters.torch.filter import DIAGONAL, FILTER
from proxfield.core.filters.torch.ops import exporting_onnx, refuse_onnx
from proxfield.core.filters.torch.plans import PLANS

CHANNELS = 64
"""Up to how many channels gradients for features wait for each other: one pass on a GPU."""


class PlannedOperator(Operator):
    """The operator outside autograd, with its derivative written down.  # features: (Bf, n, d)"""

    plan: Plan

    def __init__(
        self, features: Tensor, normalization: str, self_message: bool, filter: str = "exact"
    ) -> None:
        self.shape = features.shape
        super().__init__(PLANS.get(features, filter), normalization, self_message)


class FeatureGradient:
    """Sums gradients of Σ_ij a_ij v_i·b_j with respect to the features, over several (v, b).

    Channels of several pairs go through the kernel together, so that its weights are computed
    once for all of them. A scale that depends on the masses n contributes ∂/∂n_i · Σ_j k_ij · 1,
    which is such a sum itself, with the values (∂/∂n, 1): once, at the end.
    """

    def __init__(self, operator: PlannedOperator) -> None:
        self.operator = operator
        self.waiting: list[tuple[Tensor, Tensor]] = []
        self.to_features = operator.plan.ones().new_zeros(operator.shape)
        self.to_mass = None if operator.mass is None else torch.zeros_like(operator.mass)

    def add(self, v: Tensor, b: Tensor) -> None:
        """One more pair.  # (B, n, c), (B, n, c)"""
        self.waiting.append((v, b))
        shared = len(v) // self.operator.shape[0]  # images whose values are channels of one
        many = len(self.waiting) * shared * v.shape[-1] > CHANNELS - shared * v.shape[-1]
        if many or self.operator.plan.name != "exact":  # no weights that could be shared
            self._flush()

    def total(self) -> Tensor:
        """The sum of all.  # (Bf, n, d)"""
        self._flush()
        operator = self.operator
        if operator.mass is None:  # a Gaussian's diagonal is 1, whatever the features
            return self.to_features
        return (
            self.to_features + operator.plan.pull(self.to_mass, torch.ones_like(operator.mass))[0]
        )

    def _flush(self) -> None:
        if not self.waiting:
            return
        operator, plan = self.operator, self.operator.plan
        v, b = self.waiting[0]
        if len(self.waiting) > 1:
            v, b = (torch.cat(x, dim=-1) for x in zip(*self.waiting, strict=True))
        self.waiting = []
        left, right = v, b
        if operator.pair:
            left = torch.cat([operator.scale * v, v], dim=-1)
            right = torch.cat([b, operator.scale * b], dim=-1)
        elif operator.scale is not None:
            left, right = operator.scale * v, operator.scale * b
        found, totals = plan.pull(left, right)
        self.to_features = self.to_features + found
        if operator.mass is None:
            return
        if not operator.pair:  # totals are scale times ∂/∂scale
            to_mass = -0.5 * totals / operator.mass
        else:
            c = v.shape[-1]
            seen = plan.apply(torch.cat([b, v], dim=-1))
            to_scale = self._per_points(v * seen[..., :c] + b * seen[..., c:])
            to_mass = -to_scale * operator.scale / operator.mass
        if not operator.self_message:  # −a_ii v_i·b_i with a_ii = k_ii/n_i
            own = plan.diagonal()[..., None]
            to_mass = to_mass + own * self._per_points(v * b) / operator.mass**2
        self.to_mass = self.to_mass + to_mass

    def _per_points(self, x: Tensor) -> Tensor:
        """Sums over channels, and over images that share their points.  # -> (Bf, n, 1)"""
        out = x.sum(-1, keepdim=True)
        return out if len(out) == self.operator.shape[0] else out.sum(0, keepdim=True)


class RecordedPlan:
    """K in operations that autograd records; no `Plan` by class, which compilers can't follow."""

    single = False

    def __init__(self, features: Tensor, filter: str = "exact") -> None:
        self.features, self.filter = features, filter

    def apply(self, values: Tensor) -> Tensor:
        """K @ values.  # (B, n, c)"""
        return FILTER(self.features, values, self.filter)

    def ones(self) -> Tensor:
        """# (Bf, n, 1)"""
        return self.features.new_ones((*self.features.shape[:2], 1))

    def diagonal(self) -> Tensor:
        """# (Bf, n)"""
        if self.filter == "exact":
            return self.ones()[..., 0]
        return DIAGONAL(self.features, self.filter)

    def mass(self) -> Tensor:
        """# (Bf, n, 1)"""
        return self.apply(self.ones()) + SMALLEST_MASS


class MatrixPlan(RecordedPlan):
    """K as one matrix in torch's own operations, for graphs that can't hold others."""

    def __init__(self, features: Tensor, filter: str = "exact") -> None:
        if filter == "lattice":
            refuse_onnx('ONNX has no lattice; use filter="exact", for small images')
        super().__init__(features, "exact")
        distances = [
            (x[:, :, None] - x[:, None, :]).square() for x in features.unbind(-1)
        ]  # (Bf, n, n) each
        self.matrix = torch.exp(-0.5 * torch.stack(distances).sum(0))

    def apply(self, values: Tensor) -> Tensor:
        return self.matrix @ values


def differentiable(
    features: Tensor, normalization: str, self_message: bool, filter: str = "exact"
) -> Operator:
    """The operator in operations that autograd records.  # features: (Bf, n, d)"""
    kind: Any = MatrixPlan if exporting_onnx() else RecordedPlan
    return Operator(kind(features, filter), normalization, self_message)


def eigenvalue_range(
    features: Tensor, normalization: str, self_message: bool, filter: str = "exact"
) -> tuple[Tensor, Tensor]:
    """`Operator.range` in differentiable operations.  # (Bf, n, d) -> (Bf,), (Bf,)"""
    if normalization == "symmetric" and self_message:  # nothing of the features in it
        zero = features.new_zeros(features.shape[0])
        return zero, zero + 1
    return differentiable(features, normalization, self_message, filter).range()
