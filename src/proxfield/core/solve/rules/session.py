"""What a rule is given and what it gives back.

A rule makes its plan from a `Problem`. One that runs others, or several stages, works with a
`Session`, which drives the plans, and with the session's `Loop`, which holds limits, clock and
trace. Both are protocols: rules know neither programs nor kernels. `core.solve.session` and
`core.solve.loop` implement them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from proxfield.core.engines.plan import Chains, Explored, Plan
from proxfield.core.lowering.lowered import Lowered
from proxfield.core.terms.base import Floats, Ints
from proxfield.result import Status

if TYPE_CHECKING:
    from proxfield.core.solve.refinement import Refinement
    from proxfield.core.solve.rules.base import Rule


class Curvature(Protocol):
    """Bounds on the curvature of the energy, and the steps that they certify."""

    @property
    def local(self) -> NDArray[np.float64]:
        """λ_i, a bound per variable.  # (n_vars,)"""

    @property
    def largest(self) -> float:
        """λ: the largest eigenvalue of P H P, at least 0."""

    @property
    def smallest(self) -> float:
        """μ: minus the smallest eigenvalue of P H P, at least 0."""

    @property
    def seconds(self) -> float:
        """Maximum seconds to spend on an eigenvalue."""

    def damping(self, scale: float = 1.0) -> NDArray[np.float64]:
        """The smallest certified damping of the energy times ``scale``.  # () or (n_vars,)"""

    def prepare(self) -> None:
        """Do the part that counts as building the field, so that the rest can be timed."""

    def refinement(self) -> Refinement | None:
        """The search for a larger certified step than that from λ_i, while iterations go on."""

    def steps(self, step: float | str) -> NDArray[np.float64]:
        """A rule's ``step`` as one number per variable.  # (n_vars,)"""


@dataclass(frozen=True)
class Problem:
    """What a rule may look at when it makes its plan."""

    lowered: Lowered
    curvature: Curvature
    seed: int = 0
    plain_chains: bool = False
    """Whether chains compute the whole gradient for each variable that moves."""

    @property
    def n_vars(self) -> int:
        """Variables that are left to infer."""
        return self.lowered.layout.n_vars

    @cached_property
    def coloring(self) -> tuple[Ints, Ints]:
        """Variables by color, and where each color starts; those of one color share no term."""
        colors = self.lowered.color()
        counts = np.bincount(colors, minlength=1)
        return np.argsort(colors, kind="stable"), np.concatenate([[0], np.cumsum(counts)])


class Verdict(Enum):
    """What the second-order test found."""

    MINIMUM = "no direction of negative curvature"
    SADDLE = "F falls along a direction"
    UNDECIDED = "time or products ran out"


@dataclass(frozen=True)
class Judgement:
    """A verdict and, for a saddle, a point nearby where F is lower.

    Attributes:
        verdict: What was found.
        lower: Marginals of lower F.  # (layout.size,)
        free_energy: F there.
    """

    verdict: Verdict
    lower: NDArray[np.float64] | None = None
    free_energy: float = np.inf


@dataclass
class Outcome:
    """Where a rule ended.

    Attributes:
        q: Marginals of the lowered field.
        free_energy: F.
        status: Why it ended.
        labels: A feasible labelling, if one is known.
        judgement: What the second-order test found at a fixed point.
    """

    q: NDArray[np.float64]
    free_energy: float
    status: Status
    labels: Ints | None = None
    judgement: Judgement | None = None


class Costs(Protocol):
    """Durations in seconds, measured as an inference goes on."""

    evaluation: float
    """One evaluation of F."""


class Loop(Protocol):
    """Limits, clock and trace of one inference. Rules may lower the limits for a while."""

    max_iters: int
    budget: float | None
    iterations: int
    elapsed: float
    tol: float
    member: str
    """Which member of a portfolio is running ("" outside of one)."""
    last: float
    """F of the state in which the last run ended."""

    @property
    def now(self) -> Callable[[], float]:
        """The clock, in seconds."""

    @property
    def costs(self) -> Costs:
        """What the parts of an inference take."""

    @property
    def spent(self) -> Status | None:
        """The limit that has been reached, if one has."""

    def seconds_left(self) -> float:
        """What is left of the budget; infinite without one."""

    def clock(self) -> AbstractContextManager[None]:
        """Count what is done inside as seconds of inference."""

    def tell(self, q: Floats, f: float) -> None:
        """Keep F of some marginals, for a run that starts from them."""

    def known_at(self, q: Floats) -> float | None:
        """F of these marginals, if it was told."""

    def begin_stage(self) -> None:
        """Forget the best state of the last plan, but for Ctrl-C and ``keep="best"``."""

    def keep(self, f: float, q: NDArray[np.float64]) -> None:
        """Keep a state of an earlier stage if it is the best of these."""

    def replace_best(self, f: float, q: NDArray[np.float64]) -> None:
        """Keep this state, and forget the best one of the present plan."""

    def note(self, iterations: int, seconds: float, free_energy: float) -> None:
        """One row for many iterations made elsewhere (in chains): the best F after them."""

    def report(
        self, free_energy: float, q: NDArray[np.float64], seconds: float | None = None
    ) -> bool:
        """Tell the callback about progress made elsewhere; True if it asks to stop."""


class Stage(Protocol):
    """A state that one plan after another moves."""

    def run(
        self,
        plan: Plan,
        *,
        limit: int | None = None,
        until: float | None = None,
        tol: float | None = None,
        keep_best: bool = False,
        first: float | None = None,
    ) -> Status:
        """Iterate until converged or a limit is reached.

        Args:
            plan: How the state moves.
            limit: Maximum number of iterations of this call.
            until: Seconds (of the whole inference) at which this call ends.
            tol: Instead of the loop's own; a negative one never stops.
            keep_best: Remember the state of lowest F.
            first: F of the state, where it is known.
        """

    @property
    def memory(self) -> dict[str, Any]:
        """What a `Custom` plan keeps from one update to the next."""

    def marginals(self) -> NDArray[np.float64]:
        """A copy of the state's marginals.  # (layout.size,)"""

    def conclude(self, rule: Rule, status: Status) -> Outcome:
        """The outcome of a stage that ended so: the best state seen."""


class Session(Protocol):
    """One inference, as a rule sees it: a field ready to iterate, a start and a loop."""

    @property
    def problem(self) -> Problem:
        """What plans are made from."""

    @property
    def loop(self) -> Loop:
        """Limits, clock and trace."""

    @property
    def start(self) -> NDArray[np.float64]:
        """Marginals of the lowered field to start from.  # (layout.size,)"""

    @property
    def keep(self) -> str:
        """Which state to return, "last" or "best"."""

    @property
    def limited(self) -> bool:
        """Whether the user limited iterations or seconds."""

    @property
    def limit(self) -> Status:
        """The status of an end that isn't known to be a minimum: more of this would help."""

    @property
    def sweepable(self) -> bool:
        """Whether single variables can be visited."""

    @property
    def parallel(self) -> bool:
        """Whether one iteration spreads over threads."""

    @property
    def chain_threads(self) -> int:
        """Maximum number of threads that chains run on."""

    def restarted(self, start: NDArray[np.float64]) -> Session:
        """The same session from another start."""

    def run_plan(
        self, rule: Rule, plan: Plan, start: NDArray[np.float64], *, thorough: bool = False
    ) -> Outcome:
        """Iterate one plan to the loop's limits; a fixed point is tested for being a saddle."""

    def settle(self, rule: Rule, plan: Plan, start: NDArray[np.float64]) -> Outcome:
        """Iterate to a local minimum: like `run_plan`, but a saddle is left."""

    def begin(self) -> Stage:
        """A stage at the session's start."""

    def measure(self, q: NDArray[np.float64]) -> float:
        """F of some marginals, timed, outside the clock."""

    def evaluate(self, q: Floats) -> float:
        """F of some marginals."""

    def gradient(self, q: Floats) -> NDArray[np.float64]:
        """dE/dq.  # (layout.size,)"""

    def slack(self, f: float) -> float:
        """How much F may rise by rounding alone."""

    def step_off(self, outcome: Outcome) -> Outcome:
        """If an outcome at a limit stands on a saddle, the point of lower F beside it."""

    def off_center(self, start: NDArray[np.float64]) -> NDArray[np.float64]:
        """A start off the center, if the budget is too short to find out that it is a saddle."""

    def without_symmetry(self, q: Floats) -> NDArray[np.float64]:
        """Marginals shifted by a little seeded noise, off the saddles that symmetries make."""

    def warm_up_chains(self, start: NDArray[np.float64]) -> None:
        """Run once what `explore` needs, before the clock starts."""

    def explore(self, chains: Chains, threads: int | None = None) -> Explored:
        """Run independent cooling chains, each polished into a local minimum of F."""
