"""Doing the work: tasks, each done once and stored; what is stored isn't done again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from proxfield._version import __version__
from proxfield.bench.store import Store
from proxfield.bench.suites import Instance
from proxfield.core.common.records import Record, plain
from proxfield.core.jobs import run_jobs, slots_of
from proxfield.core.solve import infer as inference
from proxfield.errors import ProxfieldError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from proxfield.bench.progress import Watcher
    from proxfield.core.solve.rules.base import Rule
    from proxfield.field import Field
    from proxfield.result import Result, Trace

UNLIMITED = 10**9
"""Iterations that no budget gets to."""
TRACE_POINTS = 300
"""Points kept of a trace."""
EXACT_ITERS = 1000
PROBE_ITERS = 3
"""Iterations after which it is seen whether a rule evaluates F anyway."""
FAILURES = (ProxfieldError, FloatingPointError, MemoryError)
"""What one rule may fail with on one field; the benchmark goes on."""


@dataclass(frozen=True)
class Settings:
    """What all tasks of a session share."""

    tol: float
    threads: int


ModelT = TypeVar("ModelT")
ReadT = TypeVar("ReadT", covariant=True)
Warm = set[tuple[str, ...]]
"""What has been run once already."""


class Named(Protocol):
    """What work is done on."""

    @property
    def suite(self) -> str:
        """The suite it belongs to."""

    @property
    def name(self) -> str:
        """Its name."""


class Readable(Named, Protocol[ReadT]):
    """The same with what it takes to have it: `Instance`, or a frame of people."""

    @property
    def make(self) -> Callable[[], ReadT]:
        """Reads or makes it."""

    @property
    def reference(self) -> Callable[[], object] | None:
        """Reads the exact answers, where there are any."""


class Work(Protocol):
    """A piece of work, as far as those know it who only hear of it."""

    @property
    def kind(self) -> str:
        """Its kind, a key of `store.NEEDED`."""

    @property
    def instance(self) -> Named:
        """What it is done on."""

    @property
    def rule(self) -> Rule | None:
        """The rule, where one is needed."""

    @property
    def budget(self) -> float | None:
        """Seconds of iterating, where these are limited."""

    @property
    def cost(self) -> float:
        """Seconds that it takes at most, roughly."""

    def identity(self, settings: Settings) -> Record:
        """What tells it from others in a results file."""


class Runnable(Work, Protocol[ModelT]):
    """A piece of work that `run_tasks` can do: a `PaperTask`, or one on people."""

    @property
    def instance(self) -> Readable[ModelT]:
        """What it is done on."""

    def warm_up(self, model: ModelT, settings: Settings, warm: Warm) -> None:
        """A short run, so that nothing is timed for the first time."""

    def do(self, model: ModelT, settings: Settings) -> Record:
        """The work itself: what to store beside the identity."""


def rule_identity(rule: Rule, settings: Settings) -> Record:
    """What tells runs of a rule from those of others in a results file."""
    params = {k: v for k, v in rule.params.items() if not callable(v)}
    return {
        "rule": rule.name,
        "params": plain(params),
        "tol": settings.tol,
        "threads": settings.threads,
    }


@dataclass(frozen=True)
class PaperTask:
    """One piece of work.

    Attributes:
        kind: "run" (timed), "trace" (F of every state), "exact" (gap to the exact log Z) or
            "curvature" (L and the certified damping).
        instance: The model.
        rule: The rule, where one is needed.
        budget: Seconds of iterating.
        repeat: Which repetition of a timed run.
    """

    kind: str
    instance: Instance
    rule: Rule | None = None
    budget: float | None = None
    repeat: int | None = None

    def identity(self, settings: Settings) -> Record:
        """What tells this task from others in a results file."""
        out: Record = {
            "kind": self.kind,
            "suite": self.instance.suite,
            "instance": self.instance.name,
            "digest": self.instance.digest,
            "weight": self.instance.weight,
            "version": __version__,
        }
        if self.rule is not None:
            out |= rule_identity(self.rule, settings)
        if self.budget is not None:
            out["budget"] = self.budget
        if self.repeat is not None:
            out["repeat"] = self.repeat
        return out

    @property
    def cost(self) -> float:
        """Seconds that it takes at most, roughly."""
        return (self.budget or 0.1) + 0.01

    def warm_up(self, field: Field, settings: Settings, warm: Warm) -> None:
        """One short run of each rule on each family."""
        if self.kind != "run" or self.rule is None:
            return
        family = (self.instance.suite, self.rule.name)
        if family not in warm:
            warm.add(family)
            inference.infer(
                field, self.rule, max_iters=3, tol=settings.tol, threads=settings.threads,
                trace=False,
            )  # fmt: skip

    def do(self, field: Field, settings: Settings) -> Record:
        """What there is to store."""
        return WORK[self.kind](self, field, settings)


@dataclass(frozen=True)
class Failure:
    """A task that couldn't be done, and why."""

    task: Work
    why: str


def run_tasks(
    tasks: Sequence[Runnable[ModelT]],
    store: Store,
    settings: Settings,
    watcher: Watcher,
    jobs: int | None = None,
) -> list[Failure]:
    """Run the tasks that aren't stored yet, instance by instance.

    Several jobs disturb each other's timings unless each has cores of its own.

    Args:
        tasks: The tasks; those of one instance should follow each other.
        store: Where results are and go.
        settings: What all tasks share.
        watcher: Is told how it goes.
        jobs: Number of instances at a time; see `proxfield.core.jobs.run_jobs`.

    Returns:
        What couldn't be done: it is in no file, so the next session tries again.

    Raises:
        KeyboardInterrupt: After Ctrl-C; everything finished before is stored.
        InputError: If a model can't be read, before anything is run.
    """
    pending = [t for t in tasks if store.find(t.identity(settings)) is None]
    models = _read_all(pending, watcher)
    watcher.begin(sum(t.cost for t in pending), len(tasks), len(tasks) - len(pending))
    failures: list[Failure] = []
    groups = [list(group) for _, group in groupby(pending, key=lambda t: t.instance)]

    def take(task: Runnable[ModelT], record: Record | None, why: str) -> None:
        if record is None:
            failures.append(Failure(task, why))
        else:
            store.add({**task.identity(settings), **record})
        watcher.done(task)

    if slots_of(jobs) > 1:
        work = partial(_run_group, settings=settings)
        items = enumerate(groups)
        for number, made in run_jobs(work, items, jobs, settings.threads, name=_name_of):
            for task, (record, why) in zip(groups[number], made, strict=True):
                take(task, record, why)
        return failures
    warm: Warm = set()
    for group in groups:
        model = models[group[0].instance]
        for task in group:
            watcher.working(task)
            take(task, *_attempt(task, model, settings, warm))
    return failures


def _attempt(
    task: Runnable[ModelT], model: ModelT, settings: Settings, warm: Warm
) -> tuple[Record | None, str]:
    """What a task gives, or None and why it failed."""
    try:
        task.warm_up(model, settings, warm)
        return task.do(model, settings), ""
    except FAILURES as error:
        return None, str(error) or type(error).__name__


_WARM: Warm = set()
"""What this worker has run once already."""


def _run_group(
    item: tuple[int, Sequence[Runnable[Any]]], settings: Settings
) -> tuple[int, list[tuple[Record | None, str]]]:
    """All tasks of one instance, in a worker."""
    number, group = item
    model = group[0].instance.make()
    made = [_attempt(task, model, settings, _WARM) for task in group]
    return number, [(None if record is None else plain(record), why) for record, why in made]


def _name_of(item: tuple[int, Sequence[Runnable[Any]]]) -> str:
    return item[1][0].instance.name


def _read_all(
    pending: Iterable[Runnable[ModelT]], watcher: Watcher
) -> dict[Readable[ModelT], ModelT]:
    """All models that are needed, so that a bad one shows before a long run."""
    out: dict[Readable[ModelT], ModelT] = {}
    for instance in dict.fromkeys(t.instance for t in pending):
        watcher.reading(instance)
        out[instance] = instance.make()
        if instance.reference is not None:
            instance.reference()
    return out


def infer_with(rule: Rule, field: Field, settings: Settings, **options: Any) -> Result:
    """Run a rule, from uniform marginals by default; Ctrl-C is passed on."""
    result = inference.infer(field, rule, tol=settings.tol, threads=settings.threads, **options)
    if result.status.name == "INTERRUPTED":
        raise KeyboardInterrupt
    return result


def _infer(task: PaperTask, field: Field, settings: Settings, **options: Any) -> Result:
    """Run the task's rule."""
    assert task.rule is not None
    return infer_with(task.rule, field, settings, **options)


def _do_run(task: PaperTask, field: Field, settings: Settings) -> Record:
    """A timed run. The clock is `infer`'s own: F of the end is evaluated after it has stopped."""
    begun = time.perf_counter()
    result = _infer(task, field, settings, budget=task.budget, max_iters=UNLIMITED, trace=False)
    whole = time.perf_counter() - begun
    return {
        "free_energy": result.free_energy,
        "iterations": result.iterations,
        "seconds": round(result.seconds, 6),
        "setup_seconds": round(whole - result.seconds, 6),
        "status": result.status.label,
    }


def _do_trace(task: PaperTask, field: Field, settings: Settings) -> Record:
    """F of every state, in a run of its own because that may cost time."""
    assert task.rule is not None and task.budget is not None
    return traced_run(task.rule, field, settings, task.budget)


def traced_run(rule: Rule, field: Field, settings: Settings, budget: float) -> Record:
    """A run that notes F of its states: what is stored of it.

    Rules that evaluate F anyway run as they do when they are timed. Asked for F of every state,
    they would spend time on states inside their search that no trace shows, and end higher.
    """
    short = infer_with(rule, field, settings, max_iters=PROBE_ITERS, trace=False)
    known = bool(np.isfinite(short.trace.free_energy).all())
    result = infer_with(rule, field, settings, budget=budget, max_iters=UNLIMITED, trace=not known)
    rows = thin_out(result.trace)
    return {
        "n_vars": field.n_vars,
        "status": result.status.label,
        "free_energy": result.free_energy,
        "iterations": result.iterations,
        "seconds": round(result.seconds, 6),
        "iteration": result.trace.iteration[rows],
        "trace_seconds": [float(f"{s:.4g}") for s in result.trace.seconds[rows]],
        "trace_free_energy": [float(f"{f:.11g}") for f in result.trace.free_energy[rows]],
    }


def thin_out(trace: Trace) -> NDArray[np.int64]:
    """Rows to keep: the start, and states spread evenly over a logarithmic axis."""
    if len(trace) <= TRACE_POINTS:
        return np.arange(len(trace))
    at = np.geomspace(1, len(trace) - 1, TRACE_POINTS).round().astype(np.int64)
    return np.unique(np.concatenate([[0], at]))


def _do_exact(task: PaperTask, field: Field, settings: Settings) -> Record:
    """How far the bound is from the exact log Z, and the marginals from the exact ones."""
    assert task.instance.reference is not None
    reference = task.instance.reference()
    result = _infer(task, field, settings, max_iters=EXACT_ITERS, trace=False)
    exact = reference.marginals
    error = None if exact is None or len(exact) != len(result.q) else np.abs(result.q - exact)
    return {
        "free_energy": result.free_energy,
        "log_z": reference.log_z,
        "error": None if error is None else float(error.mean()),
        "status": result.status.label,
    }


def _do_curvature(task: PaperTask, field: Field, settings: Settings) -> Record:
    """The paper's d = L and the certified d."""
    from proxfield.core.engines.plan import damping_for
    from proxfield.core.solve.curvature import Curvature

    curvature = Curvature(field.lower(), field)
    certified = float(damping_for(curvature.largest))
    return {"lipschitz": curvature.lipschitz, "certified": certified}


WORK: dict[str, Callable[[PaperTask, Field, Settings], Record]] = {
    "run": _do_run,
    "trace": _do_trace,
    "exact": _do_exact,
    "curvature": _do_curvature,
}


def threads_of(threads: int | None) -> int:
    """Threads that inference may use, as a number."""
    from proxfield.core.compiled.jit import max_threads

    return max_threads() if threads is None else min(threads, max_threads())
