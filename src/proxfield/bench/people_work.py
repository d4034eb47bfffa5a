"""The benchmark on people: frames, and a rule on one of them for so many gradients or seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from proxfield.bench.runner import Settings, Task, outcome, timed_run
from proxfield.bench.suites import Instance
from proxfield.core.common.arrays import Doubles
from proxfield.core.common.records import Record
from proxfield.core.engines.plan import Update
from proxfield.core.engines.terms import register
from proxfield.core.solve.request import Request
from proxfield.core.solve.rules.base import Rule
from proxfield.core.solve.rules.registry import make_rule
from proxfield.core.terms.base import Layout
from proxfield.errors import InputError, shown
from proxfield.field import Field
from proxfield.io.files import display_name, read_bytes
from proxfield.io.masks import MaskFiles
from proxfield.io.pom import read_pom
from proxfield.people.detect import Masks
from proxfield.people.detections import Detections, suppress
from proxfield.people.evaluation import match
from proxfield.people.numba.occupancy import OccupancyOnCpu
from proxfield.people.occupancy import ExactOccupancy, Occupancy, RatioOccupancy
from proxfield.people.scene import Scene, fingerprint, scene_fingerprint
from proxfield.people.simulate import simulate

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
PITCH = "pitch"
"""The suite of simulated frames."""
SPACING = 0.35
"""Distance of neighboring locations of the pitch, in meters."""
STRIDE = 50
"""Simulated frames are that far apart, 2 seconds: those in between hardly differ."""


@dataclass(frozen=True)
class Setting:
    """What rules are compared on.

    Args:
        model: "exact" or "ratio"; their F don't compare.
        radius: Minimum distance of two detections, and maximum distance of a match, in meters.
    """

    model: str
    radius: float = 1.0


# ---- frames ----


@dataclass(frozen=True, eq=False)
class Frame:
    """One frame of a scene."""

    scene: Scene
    number: int
    masks: Callable[[], Masks]
    """Makes or reads the masks of all cameras."""
    truth: Doubles
    """Where people are, in meters.  # (k, 2)"""


def simulated_frames(
    seeds: Sequence[int],
    frames: int,
    *,
    size: tuple[int, int] | None = None,
    spacing: float | None = None,
) -> list[Instance[Frame]]:
    """Frames of the simulated pitch.

    Args:
        seeds: Of each simulation.
        frames: Number of frames of each.
        size: As in `simulate`.
        spacing: Distance of neighboring locations in meters; `SPACING` by default.
    """
    out = []
    for seed in seeds:
        made = simulate(PITCH, size=size, spacing=spacing or SPACING, seed=seed)
        known = fingerprint([scene_fingerprint(made.scene), made.scene.prior])
        for number in range(0, STRIDE * frames, STRIDE):
            frame = Frame(made.scene, number, partial(made.masks, number), made.truth(number))
            out.append(_instance(PITCH, f"seed {seed}, frame {number}", frame, known))
    return out


def load_frames(folders: Sequence[str]) -> list[Instance[Frame]]:
    """Frames of folders as ``proxfield make people`` writes them; all masks are read once.

    Raises:
        InputError: If a file is missing or damaged, there are no frames in one, or two folders
            have the same name.
    """
    names = [Path(folder).resolve().name for folder in folders]
    if len(set(names)) < len(names):
        raise InputError("--data: two folders have the same name, expected different ones")
    out = []
    for path, suite in zip(map(Path, folders), names, strict=True):
        pom = read_pom(path / "scene.pom")
        ground = _read_locations(path / "locations.csv", pom.n_locations)
        scene = Scene.from_pom(pom, positions=ground)
        if pom.input_format is None:
            what = "no INPUT_VIEW_FORMAT, expected the names of the masks"
            raise InputError(what, path=display_name(path / "scene.pom"))
        files = MaskFiles(pom.resolve(pom.input_format), scene.names, pom.sizes)
        truth = Detections.load(path / "truth.csv")
        if not truth.frames.size:
            raise InputError("has no frames", path=display_name(path / "truth.csv"))
        known = fingerprint([scene_fingerprint(scene), scene.prior])
        for n in truth.frames.tolist():
            frame = Frame(scene, n, partial(files.read, n), truth.at(n))
            out.append(_instance(suite, f"frame {n}", frame, known))
    return out


def _instance(suite: str, name: str, frame: Frame, known: str) -> Instance[Frame]:
    masks = [np.zeros(0) if mask is None else mask for mask in frame.masks()]
    digest = fingerprint([known, *masks, frame.truth])[:16]
    return Instance(suite, name, digest, lambda: frame)


def _read_locations(path: Path, count: int) -> Doubles:
    """Positions of the locations, which a .pom file doesn't have.  # (n, 2)"""
    content, name = read_bytes(path)
    lines = content.decode("utf-8", "replace").split()
    if not lines or lines[0] != "x,y":
        raise InputError("expected the header x,y", path=name, line=1)
    words = [line.split(",") for line in lines[1:]]
    odd = next((k for k, row in enumerate(words) if len(row) != 2), None)
    if odd is not None:
        raise InputError(f"{lines[odd + 1]!r}, expected x and y", path=name, line=odd + 2)
    try:
        out = np.array(words, dtype=np.float64).reshape(-1, 2)
    except ValueError as error:
        raise InputError(f"{error}, expected x and y in meters", path=name) from None
    if len(out) != count:
        raise InputError(f"{len(out)} locations, expected {count} as scene.pom has", path=name)
    return out


# ---- work ----


def people_task(
    instance: Instance[Frame],
    setting: Setting,
    rule: Rule,
    max_passes: int | None = None,
    budget: float | None = None,
) -> Task[Frame]:
    """One rule on one frame.

    Args:
        instance: The frame.
        setting: What it is compared on.
        rule: The rule.
        max_passes: Maximum number of gradients; or
        budget: seconds of iterating.
    """
    kind, work, cost = "people", _timed, budget
    if budget is None:
        kind, work, cost = "passes", _counted, 0.05 * (max_passes or 0)
    stored = {**asdict(setting), **MODELS[setting.model]}
    facts = {"setting": stored, "max_passes": max_passes, "budget": budget}
    make = partial(counted_field, setting=setting)
    return Task(kind, instance, work, rule, budget, facts, make_field=make, init=START, cost=cost)


def _timed(task: Task[Frame], frame: Frame, settings: Settings) -> Record:
    """F, and how many detections are people, at the end."""
    result = timed_run(task, frame, settings)
    matches, false_alarms = score(frame, result.q[1::2], task.facts["setting"]["radius"])
    found = {"people": len(frame.truth), "matches": matches, "false_alarms": false_alarms}
    return outcome(result) | found


def _counted(task: Task[Frame], frame: Frame, settings: Settings) -> Record:
    """F, and how many detections are people, after every pass."""
    assert task.rule is not None
    way = iterate(task.field_of(frame), task.rule, task.facts["max_passes"], settings)
    scores = [score(frame, q, task.facts["setting"]["radius"]) for q in way.states]
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


class Counted:
    """A copy of a term that counts how often it is evaluated, in ``passes``."""

    def __init__(self, term: Occupancy) -> None:
        self.__dict__.update(term.__dict__)
        self.passes = 0


class CountedExact(Counted, ExactOccupancy):
    """`Counted` with ``model="exact"``."""


class CountedRatio(Counted, RatioOccupancy):
    """`Counted` with ``model="ratio"``."""


class CountedOnCpu(OccupancyOnCpu):
    """The term's own kernels; a sweep is counted by its plan, so that visits are not."""

    def __init__(self, term: CountedExact | CountedRatio, layout: Layout, dtype: str) -> None:
        super().__init__(term, layout, dtype)
        self.counted = term

    def _evaluate(self, logs: Doubles) -> float:
        self.counted.passes += 1
        return super()._evaluate(logs)


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


class Way(NamedTuple):
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
    term = next(t for t in field.terms if isinstance(t, Counted))
    limits: Record = {"tol": settings.tol, "threads": settings.threads}
    session = Request(rule, init=START, max_iters=max_passes, **limits).open(field)
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
