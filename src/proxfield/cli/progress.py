"""Progress on stderr: a live bar on a terminal, silence elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from proxfield.inference.loop import Progress

COMPILING = "compiling kernels, once; 15 to 45 s…"


def make_bar(*, time_left: bool = False) -> Any:
    """A started bar on stderr, or None where stderr isn't a terminal."""
    if sys.stderr is None or not sys.stderr.isatty():
        return None
    # rich takes a tenth of a second to import: only where somebody looks
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.progress import Progress as Bar

    bar = Bar(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[detail]}", markup=False),
        TimeElapsedColumn(),
        *([TextColumn("left"), TimeRemainingColumn()] if time_left else []),
        console=Console(stderr=True),
        transient=True,
        speed_estimate_period=120,
    )
    bar.start()
    return bar


class Display:
    """The live line of one command; does nothing when stderr isn't a terminal.

    Example:
        >>> with Display() as display:
        ...     display.phase("reading")
    """

    def __init__(self) -> None:
        self._bar: Any = None
        self._task: Any = None
        self._announced = False

    def __enter__(self) -> Display:
        self._bar = make_bar()
        if self._bar is not None:
            self._task = self._bar.add_task("", total=None, detail="")
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def phase(self, name: str) -> None:
        """What is being done now."""
        if self._bar is not None:
            self._bar.reset(self._task, total=None, description=name, detail="")

    def note(self, text: str) -> None:
        """One line on stderr that stays, terminal or not."""
        if self._bar is not None:
            self._bar.console.print(text, markup=False, highlight=False)
        else:
            click.echo(text, err=True)

    def update(self, progress: Progress) -> None:
        """A callback for `proxfield.infer`: the bar shows whichever limit is nearer."""
        if self._bar is None:
            return
        done = progress.iteration / max(1, progress.max_iters)
        if progress.budget is not None:
            done = max(done, progress.seconds / progress.budget)
        f = progress.free_energy
        detail = f"iteration {progress.iteration}" + ("" if f == float("inf") else f"  F {f:.6g}")
        self._bar.update(self._task, total=1.0, completed=min(1.0, done), detail=detail)

    @contextmanager
    def announcing_compilation(self) -> Iterator[None]:
        """Say so, once in a command, if kernels have to be compiled."""
        from proxfield.compiled.jit import when_compiling

        def notify(*_: object) -> None:
            if not self._announced:
                self._announced = True
                self.note(COMPILING)

        with when_compiling(notify):
            yield
