"""A plugin for pytest: a clock on which everything takes longer, with pauses, as on a busy machine.

    PYTHONPATH=tests python -m pytest -p slow_clock tests/inference

A test that fails with it, or with ``SLOW_CLOCK=0.02``, depends on how fast the machine is.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable

FACTOR = float(os.environ.get("SLOW_CLOCK", "20"))
"""How many seconds go by in a second."""
PAUSE_SHARE, PAUSE_SECONDS = 0.05, 0.5
"""Share of the looks at the clock that come after a pause, and the longest pause."""


class SlowClock:
    """Stands in the place of ``time.perf_counter``.

    Example:
        >>> clock = SlowClock(10.0, now=iter([1.0, 1.5]).__next__)
        >>> clock() >= 5.0
        True
    """

    def __init__(self, factor: float, now: Callable[[], float] = time.perf_counter) -> None:
        self.factor, self.now = factor, now
        self.begun, self.paused = now(), 0.0
        self.random = random.Random(0)

    def __call__(self) -> float:
        if self.random.random() < PAUSE_SHARE:
            self.paused += PAUSE_SECONDS * self.random.random()
        return self.factor * (self.now() - self.begun) + self.paused


def pytest_configure() -> None:
    """Replace the clock; tests with a `CountedClock` of their own replace it again."""
    time.perf_counter = SlowClock(FACTOR)
