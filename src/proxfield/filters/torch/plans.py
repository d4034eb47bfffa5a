"""Sums over all pairs of fixed points, planned once for as many values as one likes.

A plan belongs to the features of a batch of images. Plans are remembered while their features are
alive, so that all iterations of a forward pass, and the backward pass, share one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from proxfield.devices.cuda import torch, triton

STORED = 1 << 25
"""Weights up to which a plain plan keeps them all (128 MB in float32)."""
CACHE_BYTES = 1 << 30
"""Bytes that remembered plans may hold in all; the oldest go first."""
BLOCK = 1 << 22
"""Weights that are recomputed at a time where they aren't kept."""


class FilterPlan(Protocol):
    """K over fixed points: K v, and the gradient of a sum with K in it."""

    nbytes: int
    features: Any

    def apply(self, values: Any) -> Any:
        """K @ values.  # (B, n, c) -> (B, n, c)"""

    def pull(self, a: Any, b: Any) -> tuple[Any, Any]:
        """The gradient of Σ_ij k_ij a_i·b_j with respect to the features, and a by-product.

        Args:
            a: # (B, n, c)
            b: # (B, n, c)

        Returns:
            The gradient, and a_i·(K b)_i + b_i·(K a)_i, both summed over the images that share
            the points.  # (Bf, n, d), (Bf, n, 1)
        """


def fold(values: Any, images: int) -> Any:
    """Values of all images as channels, where all share the points of one.  # (images, n, ·)"""
    if images == len(values):
        return values
    return values.transpose(0, 1).reshape(1, values.shape[1], -1)


def unfold(folded: Any, images: int) -> Any:
    """The inverse of `fold`, for this many images.  # (images, n, c)"""
    if images == len(folded):
        return folded
    return folded.reshape(folded.shape[1], images, -1).transpose(0, 1)


class PlainPlan:
    """K itself, kept or recomputed some rows at a time: exact, in float32 or float64, anywhere.

    Args:
        features: In units of standard deviations.  # (Bf, n, d)
    """

    def __init__(self, features: Any) -> None:
        # a copy, so that what happens to the tensor doesn't matter; centered for precision
        self.features = features - features.mean(dim=1, keepdim=True)
        self.images, self.n, _ = features.shape
        self.stored: Any = None
        if self.images * self.n**2 <= STORED:
            self.stored = self._weights(slice(0, self.n))
        held = self.features if self.stored is None else self.stored
        self.nbytes = int(held.numel() * held.element_size())

    def _weights(self, rows: slice) -> Any:
        """exp(−½‖f_i − f_j‖²) from differences: norms and products would cancel.  # (Bf, m, n)"""
        gap = torch.cdist(
            self.features[:, rows],
            self.features,
            compute_mode="donot_use_mm_for_euclid_dist",
        )
        return gap.square_().mul_(-0.5).exp_()

    def _rows(self) -> Iterator[tuple[slice, Any]]:
        if self.stored is not None:
            yield slice(0, self.n), self.stored
            return
        some = max(1, BLOCK // max(1, self.images * self.n))
        for first in range(0, self.n, some):
            rows = slice(first, min(self.n, first + some))
            yield rows, self._weights(rows)

    def apply(self, values: Any) -> Any:
        folded = fold(values, self.images)
        if self.stored is not None:  # K is symmetric, and narrow times wide is faster
            return unfold((folded.mT @ self.stored).mT, len(values)).contiguous()
        out = torch.empty_like(folded, memory_format=torch.contiguous_format)
        for rows, k in self._rows():
            out[:, rows] = k @ folded
        return unfold(out, len(values)).contiguous()

    def pull(self, a: Any, b: Any) -> tuple[Any, Any]:
        # −Σ_j w_ij (f_i − f_j) with w_ij = k_ij (a_i·b_j + b_i·a_j)
        left = torch.cat([fold(a, self.images), fold(b, self.images)], dim=-1)
        right = torch.cat([fold(b, self.images), fold(a, self.images)], dim=-1)
        out = torch.empty_like(self.features)
        totals = self.features.new_empty((self.images, self.n, 1))
        for rows, k in self._rows():
            w = (left[:, rows] @ right.transpose(1, 2)).mul_(k)
            totals[:, rows] = w.sum(-1, keepdim=True)
            out[:, rows] = w @ self.features - self.features[:, rows] * totals[:, rows]
        return out, totals


class TritonPlan:
    """One `ExactPlan` for each image: errors of about 1e-4, at the speed of the GPU.

    Args:
        features: On a CUDA device.  # (Bf, n, d)
    """

    def __init__(self, features: Any) -> None:
        from proxfield.filters.triton.exact import ExactPlan

        self.features = features - features.mean(dim=1, keepdim=True)
        self.images = len(features)
        self.plans = [ExactPlan(f) for f in self.features]
        self.nbytes = sum(p.nbytes for p in self.plans)

    def apply(self, values: Any) -> Any:
        folded = fold(values, self.images)
        out = torch.stack([p.apply(v) for p, v in zip(self.plans, folded, strict=True)])
        return unfold(out, len(values)).contiguous()

    def pull(self, a: Any, b: Any) -> tuple[Any, Any]:
        from proxfield.filters.triton.pull import pull

        a, b = fold(a, self.images), fold(b, self.images)
        found = [
            pull(plan, f, x, y)
            for plan, f, x, y in zip(self.plans, self.features, a, b, strict=True)
        ]
        return torch.stack([x for x, _ in found]), torch.stack([y for _, y in found])


def on_triton(features: Any) -> bool:
    """Does the Triton kernel serve these features? Double precision is computed plainly."""
    return triton is not None and features.is_cuda and features.dtype == torch.float32


def make_plan(features: Any) -> FilterPlan:
    """A plan of the kind that suits the features.  # (Bf, n, d)"""
    return TritonPlan(features) if on_triton(features) else PlainPlan(features)


class Remembered:
    """Plans by the features they were made for, as long as those live.

    A plan is used again only if the features hold the same numbers: memory that was written to
    without anyone counting (``.data``, compiled graphs that reuse buffers) can't mislead it.
    """

    def __init__(self) -> None:
        self.entries: list[tuple[Any, Any, FilterPlan]] = []

    def get(self, features: Any) -> FilterPlan:
        """The plan for these features."""
        alive = [e for e in self.entries if not e[0].expired()]
        for k, (_, held, plan) in enumerate(alive):
            if self._same(held, features):
                alive.append(alive.pop(k))  # the latest used last
                self.entries = alive
                return plan
        plan = make_plan(features)
        owner = torch.multiprocessing.reductions.StorageWeakRef(features.untyped_storage())
        alive.append((owner, features.clone(), plan))
        while len(alive) > 1 and sum(p.nbytes for *_, p in alive) > CACHE_BYTES:
            alive.pop(0)
        self.entries = alive
        return plan

    @staticmethod
    def _same(held: Any, features: Any) -> bool:
        alike = (
            held.shape == features.shape
            and held.dtype == features.dtype
            and held.device == features.device
        )
        return alike and bool(torch.equal(held, features))


PLANS = Remembered()


def clear_plans() -> None:
    """Forget all plans and free their memory. (They also go when their features do.)"""
    PLANS.entries = []
