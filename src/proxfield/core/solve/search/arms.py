"""Choices that learn what pays: each option's share of the draws follows its gain per cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Generic, TypeVar

import numpy as np

from proxfield.core.terms.base import Doubles

T = TypeVar("T")

MEMORY = 0.97
"""Weight of what was learned before at each new outcome: what pays changes as a search goes on."""
CURIOSITY = 0.25
"""Share of the draws that don't look at what paid."""


class Arms(Generic[T]):
    """Options to draw from, with what each has gained and cost.

    Args:
        options: The options, and how often each is drawn as long as nothing is known.

    Example:
        >>> arms = Arms({"short": 1.0, "long": 1.0})
        >>> for _ in range(100):
        ...     arms.learn(0, gain=0.0, cost=1.0)
        ...     arms.learn(1, gain=3.0, cost=1.0)
        >>> arms.shares().round(1).tolist()
        [0.1, 0.9]
    """

    def __init__(self, options: Mapping[T, float]) -> None:
        self.options = list(options)
        self.first = np.array(list(options.values())) / sum(options.values())
        self.gain, self.cost = np.zeros(len(self.options)), np.zeros(len(self.options))
        self.outcomes = 0.0

    def shares(self) -> Doubles:
        """The probability of each option.  # (options,)"""
        if not self.gain.sum() > 0.0:
            return self.first
        # every option also counts as one outcome of average gain and cost
        gain, cost = (x + x.sum() / self.outcomes for x in (self.gain, self.cost))
        rate = self.first * gain / cost
        return np.asarray(CURIOSITY * self.first + (1.0 - CURIOSITY) * rate / rate.sum())

    def draw(self, rng: np.random.Generator, allowed: Sequence[bool] | None = None) -> int:
        """The number of an option, one of those allowed."""
        p = self.shares() if allowed is None else np.where(allowed, self.shares(), 0.0)
        return int(rng.choice(len(p), p=p / p.sum()))

    def learn(self, option: int, gain: float, cost: float) -> None:
        """An option lowered F by ``gain``, at a cost in any unit."""
        for kept in (self.gain, self.cost):
            kept *= MEMORY
        self.gain[option] += gain
        self.cost[option] += cost
        self.outcomes = MEMORY * self.outcomes + 1.0
