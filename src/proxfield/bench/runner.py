"""Doing the work: tasks, each done once and stored; what is stored isn't done again."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, Generic

import numpy as np

from proxfield._version import __version__
from proxfield.bench.store import Store
from proxfield.bench.suites import Instance, ModelT
from proxfield.core.common.records import Record, plain
from proxfield.core.jobs.running import run_jobs, slots_of
from proxfield.core.solve import infer as inference
from proxfield.core.solve.progress import make_bar
from proxfield.errors import ProxfieldError

if TYPE_CHECKING:
    from proxfield.core.solve.rules.base import Rule
    from proxfield.field import Field
    from proxfield.result import Result

UNLIMITED = 10**9
"""Iterations that no budget gets to."""
TRACE_POINTS = 300
"""Points kept of a trace."""
EXACT_ITERS = 1000
UNTIMED = ("exact", "passes")
"""Kinds of work whose time doesn't matter."""
PROBE_ITERS = 3
"""Iterations of a first run: kernels get compiled, and it is seen whether a rule evaluates F."""
FAILURES = (ProxfieldError, FloatingPointError, MemoryError)
"""What one rule may fail with on one field; the benchmark goes on."""
Made = tuple[Record | None, str]
"""What a task gives, or None and why it failed."""


@dataclass(frozen=True)
class Settings:
    """What all tasks of a session share."""

    tol: float
    threads: int


@dataclass(frozen=True)
class Task(Generic[ModelT]):
    """One piece of work.

    Attributes:
        kind: A key of `store.NEEDED`.
        instance: What it is done on.
        work: Does it: what to store beside the identity.
        rule: The rule, where one is needed.
        budget: Seconds of iterating, where these are limited.
        facts: What else tells it from others in a results file.
        make_field: Makes the field of a model; by default that is one.
        init: Start of the inference, as in `infer`.
        cost: Seconds that it takes at most, roughly; the budget by default.
    """

    kind: str
    instance: Instance[ModelT]
    work: Callable[[Task[ModelT], ModelT, Settings], Record]
    rule: Rule | None = None
    budget: float | None = None
    facts: Record = field(default_factory=dict)
    make_field: Callable[[ModelT], Field] | None = None
    init: str = "uniform"
    cost: float | None = None

    def identity(self, settings: Settings) -> Record:
        """What tells this task from others in a results file."""
        out: Record = {
            "kind": self.kind,
            "suite": self.instance.suite,
            "instance": self.instance.name,
            "digest": self.instance.digest,
            "version": __version__,
            **self.facts,
        }
        if self.rule is not None:
            params = {k: v for k, v in self.rule.params.items() if not callable(v)}
            out |= {"rule": self.rule.name, "params": plain(params)}
            out |= {"tol": settings.tol, "threads": settings.threads}
        return out if self.budget is None else {**out, "budget": self.budget}

    @property
    def seconds(self) -> float:
        """Seconds that it takes at most, roughly."""
        return (self.budget or 0.1) + 0.01 if self.cost is None else self.cost

    def field_of(self, model: ModelT) -> Field:
        """The field of a model."""
        made: Any = model if self.make_field is None else self.make_field(model)
        return made  # type: ignore[no-any-return]

    def infer(self, model: ModelT, settings: Settings, **options: Any) -> Result:
        """Run the rule; Ctrl-C is passed on."""
        assert self.rule is not None
        limits: Record = {"init": self.init, "tol": settings.tol, "threads": settings.threads}
        result = inference.infer(self.field_of(model), self.rule, **limits, **options)
        if result.status.name == "INTERRUPTED":
            raise KeyboardInterrupt
        return result

    def warm_up(self, model: ModelT, settings: Settings, warm: set[str]) -> None:
        """One short run of each rule on each suite, so that nothing is timed for the first time."""
        if self.rule is None or self.kind in UNTIMED:
            return
        family = json.dumps([self.instance.suite, self.rule.name, self.facts.get("setting")])
        if family not in warm:
            warm.add(family)
            self.infer(model, settings, max_iters=PROBE_ITERS, trace=False)


Failure = tuple[Task[Any], str]
"""A task that couldn't be done, and why."""


class TaskBar:
    """A bar on stderr with the time left; silent when stderr isn't a terminal."""

    def __enter__(self) -> TaskBar:
        self._bar = make_bar(time_left=True)
        if self._bar is not None:
            self._task = self._bar.add_task("reading models", total=None, detail="")
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def begin(self, cost: float, tasks: int, stored: int) -> None:
        """Work begins: its cost in seconds, the tasks in all and those stored before."""
        self._done, self._tasks = stored, tasks
        if self._bar is not None:
            self._bar.reset(self._task, total=cost, detail=f"{stored}/{tasks}")

    def working(self, what: str) -> None:
        """Some work begins."""
        if self._bar is not None:
            self._bar.update(self._task, description=what)

    def done(self, cost: float) -> None:
        """A task of so many seconds is done."""
        self._done += 1
        if self._bar is not None:
            self._bar.update(self._task, advance=cost, detail=f"{self._done}/{self._tasks}")


def run_tasks(
    tasks: Sequence[Task[ModelT]], store: Store, settings: Settings, bar: TaskBar, jobs: int | None
) -> list[Failure]:
    """Run the tasks that aren't stored yet, instance by instance.

    Several jobs disturb each other's timings unless each has cores of its own.

    Args:
        tasks: The tasks; those of one instance should follow each other.
        store: Where results are and go.
        settings: What all tasks share.
        bar: Is told how it goes.
        jobs: Number of instances at a time; see `proxfield.core.jobs.run_jobs`.

    Returns:
        What couldn't be done: it is in no file, so the next session tries again.

    Raises:
        KeyboardInterrupt: After Ctrl-C; everything finished before is stored.
        InputError: If a model can't be read, before anything is run.
    """
    pending = [t for t in tasks if store.find(t.identity(settings)) is None]
    models = {}
    for instance in dict.fromkeys(t.instance for t in pending):  # a bad one shows before a long run
        bar.working(f"reading {instance.suite}/{instance.name}")
        models[instance] = instance.make()
        if instance.reference is not None:
            instance.reference()
    bar.begin(sum(t.seconds for t in pending), len(tasks), len(tasks) - len(pending))
    failures: list[Failure] = []
    groups = [list(group) for _, group in groupby(pending, key=lambda t: t.instance)]

    def take(task: Task[ModelT], made: Made) -> None:
        record, why = made
        if record is None:
            failures.append((task, why))
        else:
            store.add({**task.identity(settings), **record})
        bar.done(task.seconds)

    if slots_of(jobs) > 1:
        work = partial(_run_group, settings=settings)
        items = enumerate(groups)
        for number, made in run_jobs(work, items, jobs, settings.threads, name=_name_of):
            for task, one in zip(groups[number], made, strict=True):
                take(task, one)
        return failures
    warm: set[str] = set()
    for group in groups:
        for task in group:
            rule = "" if task.rule is None else f" {task.rule.name}"
            budget = "" if task.budget is None else f" {task.budget:g} s"
            bar.working(f"{task.instance.suite}/{task.instance.name}{rule}{budget}")
            take(task, _attempt(task, models[task.instance], settings, warm))
    return failures


def _attempt(task: Task[ModelT], model: ModelT, settings: Settings, warm: set[str]) -> Made:
    try:
        task.warm_up(model, settings, warm)
        return task.work(task, model, settings), ""
    except FAILURES as error:
        return None, str(error) or type(error).__name__


_WARM: set[str] = set()
"""What this worker has run once already."""
Group = tuple[int, Sequence[Task[Any]]]
"""The tasks of one instance, with a number."""


def _run_group(item: Group, settings: Settings) -> tuple[int, list[Made]]:
    """All tasks of one instance, in a worker."""
    number, group = item
    model = group[0].instance.make()
    made = [_attempt(task, model, settings, _WARM) for task in group]
    return number, [(None if record is None else plain(record), why) for record, why in made]


def _name_of(item: Group) -> str:
    return item[1][0].instance.name


# ---- work on fields ----


def outcome(result: Result) -> Record:
    """What is stored of every run."""
    return {
        "free_energy": result.free_energy,
        "iterations": result.iterations,
        "seconds": round(result.seconds, 6),
        "status": result.status.label,
    }


def timed_run(task: Task[ModelT], model: ModelT, settings: Settings) -> Result:
    """A run for the task's seconds. Its clock doesn't count F of the end."""
    return task.infer(model, settings, budget=task.budget, max_iters=UNLIMITED, trace=False)


def traced_run(task: Task[ModelT], model: ModelT, settings: Settings) -> Record:
    """F of every state, in a run of its own because that may cost time: what is stored of it.

    Rules that evaluate F anyway run as they do when they are timed. Asked for F of every state,
    they would spend time on states inside their search that no trace shows, and end higher.
    """
    short = task.infer(model, settings, max_iters=PROBE_ITERS, trace=False)
    known = bool(np.isfinite(short.trace.free_energy).all())
    result = task.infer(model, settings, budget=task.budget, max_iters=UNLIMITED, trace=not known)
    trace = result.trace
    rows = np.arange(len(trace))
    if len(trace) > TRACE_POINTS:  # the start, and states spread evenly over a logarithmic axis
        at = np.geomspace(1, len(trace) - 1, TRACE_POINTS).round().astype(np.int64)
        rows = np.unique(np.concatenate([[0], at]))
    return {
        "n_vars": task.field_of(model).n_vars,
        **outcome(result),
        "iteration": trace.iteration[rows],
        "trace_seconds": [float(f"{s:.4g}") for s in trace.seconds[rows]],
        "trace_free_energy": [float(f"{f:.11g}") for f in trace.free_energy[rows]],
    }


def paper_task(
    kind: str,
    instance: Instance[Field],
    rule: Rule | None = None,
    budget: float | None = None,
    repeat: int | None = None,
) -> Task[Field]:
    """A task on a field.

    Args:
        kind: "run" (timed), "trace" (F of every state), "exact" (gap to the exact log Z) or
            "curvature" (L and the certified damping).
        instance: The model.
        rule: The rule, where one is needed.
        budget: Seconds of iterating.
        repeat: Which repetition of a timed run.
    """
    facts: Record = {"weight": instance.weight} | ({} if repeat is None else {"repeat": repeat})
    return Task(kind, instance, WORK[kind], rule, budget, facts)


def _run(task: Task[Field], field: Field, settings: Settings) -> Record:
    begun = time.perf_counter()
    result = timed_run(task, field, settings)
    whole = time.perf_counter() - begun
    return {**outcome(result), "setup_seconds": round(whole - result.seconds, 6)}


def _exact(task: Task[Field], field: Field, settings: Settings) -> Record:
    """How far the bound is from the exact log Z, and the marginals from the exact ones."""
    assert task.instance.reference is not None
    reference = task.instance.reference()
    result = task.infer(field, settings, max_iters=EXACT_ITERS, trace=False)
    exact = reference.marginals
    error = None if exact is None or len(exact) != len(result.q) else np.abs(result.q - exact)
    return {
        "free_energy": result.free_energy,
        "log_z": reference.log_z,
        "error": None if error is None else float(error.mean()),
        "status": result.status.label,
    }


def _curvature(task: Task[Field], field: Field, settings: Settings) -> Record:
    """The paper's d = L and the certified d."""
    from proxfield.core.engines.plan import damping_for
    from proxfield.core.solve.curvature import Curvature

    curvature = Curvature(field.lower(), field)
    certified = float(damping_for(curvature.largest))
    return {"lipschitz": curvature.lipschitz, "certified": certified}


WORK: dict[str, Callable[[Task[Field], Field, Settings], Record]] = {
    "run": _run,
    "trace": traced_run,
    "exact": _exact,
    "curvature": _curvature,
}


def threads_of(threads: int | None) -> int:
    """Threads that inference may use, as a number."""
    from proxfield.core.compiled.jit import max_threads

    return max_threads() if threads is None else min(threads, max_threads())
