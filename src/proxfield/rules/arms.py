"""Choices that learn what pays: each option's share of the draws follows its gain per cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

import numpy as np

T = TypeVar("T")

MEMORY = 0.97
"""Weight of what was learned before at each new outcome: what pays changes as a search goes on."""
CURIOSITY = 0.25
"""Share of the draws that don't look at what paid."""


class Arms(Generic[T]):
    """Options to draw from, with how much each has gained and cost.

    Args:
        options: What to choose from.
        shares: How often each is drawn as long as nothing is known.

    Example:
        >>> arms = Arms(["short", "long"], [1, 1])
        >>> for _ in range(20):
        ...     arms.learn(0, gain=0.0, cost=1.0)
        ...     arms.learn(1, gain=3.0, cost=1.0)
        >>> arms.shares().round(1).tolist()
        [0.2, 0.8]
    """

    def __init__(self, options: Sequence[T], shares: Sequence[float]) -> None:
        self.options = list(options)
        self.prior = np.array(shares, dtype=np.float64) / np.sum(shares)
        self.gain, self.cost = np.zeros(len(self.options)), np.zeros(len(self.options))
        self.trials = 0

    def shares(self) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """Probability of each option."""
        total = self.gain.sum()
        if not total > 0.0:
            return self.prior
        one = self.cost.sum() / self.trials_kept  # an outcome of average gain, before any
        rate = (self.gain + total / self.trials_kept) / (self.cost + one)
        rate = rate * self.prior
        return np.asarray(CURIOSITY * self.prior + (1.0 - CURIOSITY) * rate / rate.sum())

    @property
    def trials_kept(self) -> float:
        """Outcomes that count, with the weights they have now."""
        return float((1.0 - MEMORY ** max(1, self.trials)) / (1.0 - MEMORY))

    def draw(self, rng: np.random.Generator, allowed: Sequence[bool] | None = None) -> int:
        """The number of an option."""
        p = self.shares()
        if allowed is not None:
            p = np.where(allowed, p, 0.0)
        return int(rng.choice(len(p), p=p / p.sum()))

    def learn(self, option: int, gain: float, cost: float) -> None:
        """An option lowered F by ``gain`` at a cost (in seconds, or sweeps)."""
        self.gain *= MEMORY
        self.cost *= MEMORY
        self.gain[option] += gain
        self.cost[option] += cost
        self.trials += 1
