"""A better certified step, looked for while iterations go on with the first one.

The bounds λ_i of single variables certify a step at once. H never exceeds diag(λ_i), mostly by
far: ρ, the largest eigenvalue of diag(λ_i)^-½ P H P diag(λ_i)^-½, is at most 1, and ρ λ_i certify
larger steps. ρ is found by the Lanczos method, a few products after every few iterations. How
many of both depends on the field alone: seconds don't show in a run that ends before its budget.
Runs without a budget look for λ first, as updates count there and not seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from proxfield.core.engines.plan import damping_for
from proxfield.core.lowering.lowered import Lowered
from proxfield.core.solve.lanczos import Lanczos
from proxfield.core.solve.pace import Clock

PRODUCTS = 5
"""Products between two runs of iterations."""
CALL_WORK = 1 << 17
VECTOR_WORK = 32
"""What a product takes beside its arithmetic, and per entry of the vectors: in entries and edge
ends of an iteration."""
ITERATION_SHARE = 4
"""Time for iterations, in times of the search: it gets about a fifth, as λ does of a budget."""
TOLERANCE = 0.01
MARGIN = 0.02
"""Relative residual at which ρ is found, and the share by which it is then enlarged: few products
count for more here than the last percent of a step."""
MIN_GAIN = 1.1
"""Factor by which steps have to grow on average; where they can't, the search ends early."""


@dataclass
class StepRefinement:
    """The search for ρ, and the step that it certifies.

    Args:
        lanczos: Finds ρ.
        scaled: λ_i of the terms whose H it multiplies with.  # (n_vars,)
        others: λ_i of all other terms.  # (n_vars,)
        every: Iterations between two pieces of work.
        seconds: Maximum seconds to spend.
        now: The clock.
        ended: Whether there is nothing more to find.
        step: The step of each variable, once it is found.  # (n_vars,)
    """

    lanczos: Lanczos
    scaled: NDArray[np.float64]
    others: NDArray[np.float64]
    every: int
    seconds: float
    now: Clock
    ended: bool = False
    step: NDArray[np.float64] | None = None
    spent: float = field(default=0.0, init=False)

    def advance(self, late: Callable[[], bool]) -> None:
        """Do a piece of the work; ``late`` tells whether the time of the whole run is over."""
        begun = self.now()
        self.lanczos.advance(PRODUCTS, late)
        self.spent += self.now() - begun
        if late() or self.spent > self.seconds:
            self.ended = True
        elif self.lanczos.converged:
            self.ended = True
            found = self._steps((1.0 + MARGIN) * self.lanczos.value)
            if found.mean() > self._steps(1.0).mean():
                self.step = found
        elif self.lanczos.exhausted or self._cannot_gain():
            self.ended = True

    def _cannot_gain(self) -> bool:
        """Whether ρ is known to be too large: what Lanczos has so far is below it."""
        most = self._steps(self.lanczos.value).mean()
        return bool(most < MIN_GAIN * self._steps(1.0).mean())

    def _steps(self, ratio: float) -> NDArray[np.float64]:
        """What the bounds certify if ρ is this.  # (n_vars,)"""
        bound = min(1.0, max(0.0, ratio)) * self.scaled + self.others
        return 1.0 / (1.0 + damping_for(bound))


def iterations_between(lowered: Lowered) -> int:
    """Iterations between two pieces, by the work of both: the same on every machine."""
    work = lowered.layout.size + sum(
        2 * len(t.edges) for t in (lowered.ising, lowered.potts) if t is not None
    )
    work += sum(f.degree * len(f.scopes) * f.tables[0].size for f in lowered.factors)
    vectors = VECTOR_WORK * lowered.layout.n_vars
    pieces = ITERATION_SHARE * PRODUCTS
    return int(np.ceil(pieces * (1.0 + (CALL_WORK + vectors) / max(1, work))))
