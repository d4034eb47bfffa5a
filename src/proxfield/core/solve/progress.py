"""A live bar of an inference: on a terminal (stderr) or in a notebook, silence elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from proxfield.core.solve.history import Callback, Progress

if TYPE_CHECKING:
    from rich.progress import Progress as RichBar


class ProgressBar(Protocol):
    """What shows progress."""

    def update(self, done: float | None, label: str, detail: str) -> None:
        """Show a share of 1 (None: not known), what is being done, and how far it is."""

    def stop(self) -> None:
        """Remove the bar."""


def make_bar(*, time_left: bool = False) -> RichBar | None:
    """A started bar of rich on stderr, or None where stderr isn't a terminal."""
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
    from rich.progress import Progress as RichProgress

    bar = RichProgress(
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


def share_done(progress: Progress) -> float:
    """How far an inference is, by whichever limit is nearer, from 0 to 1."""
    done = progress.iteration / max(1, progress.max_iters)
    if progress.budget is not None:
        done = max(done, progress.seconds / progress.budget)
    return min(1.0, done)


def detail(progress: Progress) -> str:
    """How far an inference is, in words.

    Example:
        >>> from proxfield.core.solve.history import Progress
        >>> detail(Progress(30, 0.1, -12.3456789, 1e-3, 100, None, list))
        'iteration 30  F -12.3457'
    """
    f = progress.free_energy
    return f"iteration {progress.iteration}" + ("" if f == float("inf") else f"  F {f:.6g}")


class TerminalBar:
    """A bar of rich."""

    def __init__(self, bar: RichBar) -> None:
        self._bar = bar
        self._task = bar.add_task("", total=None, detail="")

    def update(self, done: float | None, label: str, detail: str) -> None:
        total = None if done is None else 1.0
        self._bar.update(self._task, total=total, completed=done, description=label, detail=detail)

    def stop(self) -> None:
        self._bar.stop()


class NotebookHandle(Protocol):
    """What IPython's ``display`` returns: output that can be replaced."""

    def update(self, shown: object) -> None:
        """Replace it."""


class NotebookBar:
    """A bar in the output of a notebook's cell: HTML, without widgets.

    Args:
        display: IPython's ``display``.
    """

    def __init__(self, display: Callable[..., NotebookHandle]) -> None:
        self._handle = display(_Html(""), display_id=True)

    def update(self, done: float | None, label: str, detail: str) -> None:
        value = "" if done is None else f' value="{done:.4f}"'
        text = f"{escape(label)} <progress max='1'{value}></progress> {escape(detail)}"
        self._handle.update(_Html(text))

    def stop(self) -> None:
        self._handle.update(_Html(""))


class _Html:
    """Text that a notebook shows as it is."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return ""

    def _repr_html_(self) -> str:
        return self.text


def notebook_display() -> Callable[..., NotebookHandle] | None:
    """IPython's ``display`` if this is a notebook's kernel, else None; imports nothing anew."""
    if "IPython" not in sys.modules:
        return None
    from IPython import get_ipython

    kinds = type(get_ipython()).__mro__
    if not any(kind.__name__ == "ZMQInteractiveShell" for kind in kinds):  # a terminal's, or none
        return None
    from IPython.display import display

    shown: Callable[..., NotebookHandle] = display
    return shown


def open_bar() -> ProgressBar | None:
    """A bar in a notebook or on a terminal; None elsewhere."""
    display = notebook_display()
    if display is not None:
        return NotebookBar(display)
    bar = make_bar()
    return None if bar is None else TerminalBar(bar)


@contextmanager
def watching(wanted: bool, name: str, callback: Callback | None) -> Iterator[Callback | None]:
    """A callback that shows a bar and then calls the user's; the user's own without a bar.

    Args:
        wanted: Was a bar asked for?
        name: What is being done, beside the bar.
        callback: The user's, if any.
    """
    bar = open_bar() if wanted else None
    if bar is None:
        yield callback
        return
    from proxfield.core.compiled.notice import when_compiling

    def show(progress: Progress) -> object:
        bar.update(share_done(progress), name, detail(progress))
        return None if callback is None else callback(progress)

    try:
        bar.update(None, name, "")
        with when_compiling(lambda text: bar.update(None, name, text)):
            yield show
    finally:
        bar.stop()
