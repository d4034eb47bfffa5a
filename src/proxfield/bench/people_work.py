"""Work of the benchmark on people: a rule on a frame, for so many gradients or seconds."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from proxfield._version import __version__
from proxfield.bench.people_frames import Frame, FrameInstance
from proxfield.bench.runner import UNLIMITED, Settings, Warm, infer_with
from proxfield.core.common.arrays import Doubles
from proxfield.core.common.records import Record, plain
from proxfield.core.engines.plan import Update
from proxfield.core.engines.terms import register
from proxfield.core.solve.request import Request
from proxfield.core.solve.rules.base import Rule
from proxfield.core.solve.rules.registry import make_rule
from proxfield.core.terms.base import Floats, Layout, Visits
from proxfield.errors import InputError, shown
from proxfield.field import Field
from proxfield.people.detections import suppress
from proxfield.people.evaluation import match
from proxfield.people.occupancy import ExactOccupancy, Occupancy, RatioOccupancy

if TYPE_CHECKING:
    from proxfield.people.numba.occupancy import OccupancyOnCpu

START = "unary"
"""All rules start from the prior."""
STEP = 0.2
"""Of fixed."""
ROWS: dict[str, tuple[tuple[str, Record], ...]] = {
    "exact": (
        ("sweep", {}),
        ("full-parallel", {}),
        ("adhoc", {}),
        ("fixed", {"step": STEP}),
        ("adaptive", {}),
        ("momentum", {}),
        ("adam", {}),
        ("backtracking", {}),
    ),
    "ratio": (
        ("original", {}),
        ("full-parallel", {}),
        ("fixed", {"step": STEP}),
        ("backtracking", {}),
    ),
}
"""Rules and their parameters, by the model of the energy."""
MODELS: dict[str, Record] = {
    "exact": {"prior": 5e-5, "strength": 8.0},
    "ratio": {"prior": 5e-5, "variance": 0.003},
}
"""Parameters of each model beside the defaults of `Occupancy`, the same for all rules."""


@dataclass(frozen=True)
class Setting:
    """What rules are compared on.

    Args:
        model: "exact" or "ratio"; their F don't compare.
        radius: Minimum distance of two detections, and maximum distance of a match, in meters.
    """

    model: str
    radius: float = 1.0

    def record(self) -> Record:
        """As it is stored."""
        return {"model": self.model, "radius": self.radius, **MODELS[self.model]}


@dataclass(frozen=True)
class PeopleTask:
    """One rule on one frame.

    Attributes:
        instance: The frame.
        setting: What it is compared on.
        rule: The rule.
        max_passes: Maximum number of gradients; or
        budget: seconds of iterating.
    """

    instance: FrameInstance
    setting: Setting
    rule: Rule
    max_passes: int | None = None
    budget: float | None = None

    @property
    def kind(self) -> str:
        """Counted in passes, or timed."""
        return "passes" if self.budget is None else "people"

    @property
    def cost(self) -> float:
        """Seconds that it takes at most, roughly."""
        return self.budget or 0.05 * (self.max_passes or 0)

    def identity(self, settings: Settings) -> Record:
        """What tells this task from others in a results file."""
        return {
            "kind": self.kind,
            "suite": self.instance.suite,
            "instance": self.instance.name,
            "digest": self.instance.digest,
            "setting": self.setting.record(),
            "rule": self.rule.name,
            "params": plain(self.rule.params),
            "max_passes": self.max_passes,
            "budget": self.budget,
            "tol": settings.tol,
            "threads": settings.threads,
            "version": __version__,
        }

    def warm_up(self, frame: Frame, settings: Settings, warm: Warm) -> None:
        """One iteration of each rule on each model before the first that is timed."""
        family = (self.setting.model, self.rule.name)
        if self.budget is not None and family not in warm:
            warm.add(family)
            infer_with(
                self.rule, counted_field(frame, self.setting), settings, init=START, max_iters=1,
                trace=False,
            )  # fmt: skip

    def do(self, frame: Frame, settings: Settings) -> Record:
        """F, and how many detections are people, at the end or after every pass."""
        return self._timed(frame, settings) if self.budget else self._counted(frame, settings)

    def _timed(self, frame: Frame, settings: Settings) -> Record:
        result = infer_with(
            self.rule, counted_field(frame, self.setting), settings, init=START,
            budget=self.budget, max_iters=UNLIMITED, trace=False,
        )  # fmt: skip
        matches, false_alarms = score(frame, result.q[1::2], self.setting.radius)
        return {
            "free_energy": result.free_energy,
            "iterations": result.iterations,
            "seconds": round(result.seconds, 6),
            "status": result.status.label,
            "people": len(frame.truth),
            "matches": matches,
            "false_alarms": false_alarms,
        }

    def _counted(self, frame: Frame, settings: Settings) -> Record:
        assert self.max_passes is not None
        way = iterate(counted_field(frame, self.setting), self.rule, self.max_passes, settings)
        scores = [score(frame, q, self.setting.radius) for q in way.states]
        return {
            "seconds": round(way.seconds, 6),
            "iterations": len(way.passes) - 1,
            "people": len(frame.truth),
            "passes": way.passes,
            "trace_free_energy": [float(f"{f:.10g}") for f in way.free_energy],
            "matches": [m for m, _ in scores],
            "false_alarms": [f for _, f in scores],
        }


def people_rules(chosen: list[str] | None = None) -> dict[str, list[Rule]]:
    """The rules of each table.

    Args:
        chosen: Names of those wanted; all by default.

    Raises:
        InputError: If one isn't in any table.
    """
    known = dict.fromkeys(name for rows in ROWS.values() for name, _ in rows)
    for name in chosen or ():
        if name not in known:
            raise InputError(f"unknown rule {shown(name)}, expected some of: {', '.join(known)}")
    return {
        model: [
            make_rule(name, params) for name, params in rows if chosen is None or name in chosen
        ]
        for model, rows in ROWS.items()
    }


# ---- counting ----


class CountedExact(ExactOccupancy):
    """A copy of a term that counts how often it is evaluated, in ``passes``."""

    def __init__(self, term: Occupancy) -> None:
        self.__dict__.update(term.__dict__)
        self.passes = 0


class CountedRatio(RatioOccupancy):
    """The same for the other model."""

    def __init__(self, term: Occupancy) -> None:
        self.__dict__.update(term.__dict__)
        self.passes = 0


class CountedOnCpu:
    """Counts evaluations, and leaves them to the term's own kernels."""

    def __init__(self, term: CountedExact | CountedRatio, layout: Layout, dtype: str) -> None:
        from proxfield.people.numba.occupancy import OccupancyOnCpu

        self.term = term
        self.kernels: OccupancyOnCpu = OccupancyOnCpu(term, layout, dtype)

    def visits(self, q: Floats) -> Visits:
        """As `OccupancyOnCpu`; a sweep is counted by its plan, so that visits are not."""
        return self.kernels.visits(q)

    def add_gradient(self, q: Floats, out: Floats) -> float:
        """As `OccupancyOnCpu`."""
        self.term.passes += 1
        return self.kernels.add_gradient(q, out)

    def add_binary_gradient(self, log_empty: Doubles, out: Floats) -> float:
        """As `OccupancyOnCpu`."""
        self.term.passes += 1
        return self.kernels.add_binary_gradient(log_empty, out)


for _term in (CountedExact, CountedRatio):
    register(_term, "cpu", CountedOnCpu)


@lru_cache(maxsize=1)
def counted_field(frame: Frame, setting: Setting) -> Field:
    """The field of a frame, with a term that counts; the last one is kept for the next rule."""
    plain_field = frame.scene.field(frame.masks(), model=setting.model, **MODELS[setting.model])
    prior, term = plain_field.terms
    assert isinstance(term, Occupancy)
    counted = CountedExact(term) if setting.model == "exact" else CountedRatio(term)
    return Field(frame.scene.n_locations, 2, [prior, counted])


@dataclass(frozen=True)
class Way:
    """The states that a rule went through.

    Attributes:
        passes: Gradients it took to get to each.
        free_energy: F of each.
        states: Probability of each location.  # (n,) each
        seconds: Of all updates.
    """

    passes: list[int]
    free_energy: list[float]
    states: list[Doubles]
    seconds: float


def iterate(field: Field, rule: Rule, max_passes: int, settings: Settings) -> Way:
    """All states that a rule reaches with so many gradients, from the prior.

    Every evaluation of the term counts: also that of the start and of steps that are taken back,
    where a rule looks at F. A sweep counts as one, and so does an update of ``original``.

    Args:
        field: From `counted_field`.
        rule: One that follows a single plan.
        max_passes: Maximum number of gradients.
        settings: Tolerance and threads.
    """
    term = next(t for t in field.terms if isinstance(t, (CountedExact, CountedRatio)))
    request = Request(
        rule, init=START, max_iters=max_passes, tol=settings.tol, threads=settings.threads
    )
    session = request.open(field)
    rule.prepare(session.problem)
    plan, program = rule.plan(session.problem), session.program
    state = program.start(session.start)
    passes, energies, states = [0], list[float](), [session.start[1::2]]
    seconds = 0.0
    while passes[-1] < max_passes:
        before, begun = term.passes, time.perf_counter()
        rows = program.advance(state, plan, 1, -1.0, True)
        seconds += time.perf_counter() - begun
        spent = term.passes - before if isinstance(plan, Update) else 1
        energies.append(float(rows.free_energy[-1]))  # of the state before
        change = float(rows.change[-1])
        if np.isnan(change) or passes[-1] + spent > max_passes:
            break
        passes.append(passes[-1] + spent)
        states.append(program.marginals(state)[1::2])
        if change <= settings.tol:
            break
    if len(energies) < len(states):
        energies.append(program.free_energy(state))
    return Way(passes, energies, states, seconds)


def score(frame: Frame, q: Doubles, radius: float) -> tuple[int, int]:
    """People who were found, and detections that are nobody."""
    assert frame.scene.positions is not None
    _, _, found = suppress(np.clip(q, 0.0, 1.0), frame.scene.positions, radius, pool=0.0)
    matches = len(match(found, frame.truth, radius))
    return matches, len(found) - matches
