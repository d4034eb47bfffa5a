"""Telling the user how a long benchmark goes: a bar on a terminal, silence elsewhere."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress as RichBar
    from rich.progress import TaskID

    from proxfield.bench.runner import Named, Work


class Watcher:
    """Is told what the runner does; does nothing with it. `TaskBar` shows it."""

    def __enter__(self) -> Watcher:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def reading(self, instance: Named) -> None:
        """A model is about to be read."""

    def begin(self, cost: float, tasks: int, stored: int) -> None:
        """Work begins: its cost in seconds, the tasks in all and those stored before."""

    def working(self, task: Work) -> None:
        """A task begins."""

    def done(self, task: Work) -> None:
        """A task is done."""


class TaskBar(Watcher):
    """A bar on stderr with the time left; silent when stderr isn't a terminal."""

    def __init__(self) -> None:
        self._bar: RichBar | None = None
        self._task: TaskID

    def __enter__(self) -> TaskBar:
        if sys.stderr is not None and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import (
                BarColumn,
                Progress,
                SpinnerColumn,
                TextColumn,
                TimeElapsedColumn,
                TimeRemainingColumn,
            )

            self._bar = Progress(
                SpinnerColumn(),
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=24),
                TextColumn("{task.fields[count]}", markup=False),
                TimeElapsedColumn(),
                TextColumn("left"),
                # the work of a suite differs from that of the next: look back far
                TimeRemainingColumn(),
                console=Console(stderr=True),
                transient=True,
                speed_estimate_period=120,
            )
            self._bar.start()
            self._task = self._bar.add_task("reading models", total=None, count="")
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def reading(self, instance: Named) -> None:
        if self._bar is not None:
            self._bar.update(self._task, description=f"reading {instance.suite}/{instance.name}")

    def begin(self, cost: float, tasks: int, stored: int) -> None:
        self._count, self._tasks = stored, tasks
        if self._bar is not None:
            self._bar.reset(self._task, total=cost, count=f"{stored}/{tasks}")

    def working(self, task: Work) -> None:
        if self._bar is not None:
            rule = "" if task.rule is None else f" {task.rule.name}"
            budget = "" if task.budget is None else f" {task.budget:g} s"
            what = f"{task.instance.suite}/{task.instance.name}{rule}{budget}"
            self._bar.update(self._task, description=what)

    def done(self, task: Work) -> None:
        self._count += 1
        if self._bar is not None:
            self._bar.update(self._task, advance=task.cost, count=f"{self._count}/{self._tasks}")
