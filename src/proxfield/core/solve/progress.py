"""A live bar of an inference: on a terminal (stderr) or in a notebook, silence elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.progress import Progress as RichBar

    from proxfield.core.solve.history import Callback, Progress

Show = Callable[[float | None, str], None]
"""Shows a share of 1 (None: not known), and how far something is, in words."""


def make_bar(*, time_left: bool = False) -> RichBar | None:
    """A started bar of rich on stderr, or None where stderr isn't a terminal."""
    if sys.stderr is None or not sys.stderr.isatty():
        return None
    # rich takes a tenth of a second to import: only where somebody looks
    from rich import progress
    from rich.console import Console

    bar = progress.Progress(
        progress.SpinnerColumn(),
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(bar_width=24),
        progress.TextColumn("{task.fields[detail]}", markup=False),
        progress.TimeElapsedColumn(),
        *([progress.TextColumn("left"), progress.TimeRemainingColumn()] if time_left else []),
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
    """How far an inference is, in words."""
    f = progress.free_energy
    return f"iteration {progress.iteration}" + ("" if f == float("inf") else f"  F {f:.6g}")


def html_bar(done: float | None, name: str, detail: str) -> str:
    """A bar for the output of a notebook's cell, without widgets."""
    value = "" if done is None else f' value="{done:.4f}"'
    return f"{escape(name)} <progress max='1'{value}></progress> {escape(detail)}"


def notebook_display() -> Callable[..., Any] | None:
    """IPython's ``display`` if this is a notebook's kernel, else None; imports nothing anew."""
    if "IPython" not in sys.modules:
        return None
    from IPython import get_ipython

    kinds = type(get_ipython()).__mro__
    if not any(kind.__name__ == "ZMQInteractiveShell" for kind in kinds):  # a terminal's, or none
        return None
    from IPython.display import display

    found: Callable[..., Any] = display
    return found


@contextmanager
def shown(name: str) -> Iterator[Show | None]:
    """A bar in a notebook or on a terminal, while the block runs; None elsewhere."""
    display = notebook_display()
    if display is not None:
        empty = {"text/html": "", "text/plain": ""}
        handle = display(empty, raw=True, display_id=True)
        try:
            yield lambda done, detail: handle.update(
                {**empty, "text/html": html_bar(done, name, detail)}, raw=True
            )
        finally:
            handle.update(empty, raw=True)
        return
    bar = make_bar()
    if bar is None:
        yield None
        return
    task = bar.add_task(name, total=None, detail="")
    try:
        yield lambda done, detail: bar.update(
            task, total=None if done is None else 1.0, completed=done, detail=detail
        )
    finally:
        bar.stop()


@contextmanager
def watching(wanted: bool, name: str, callback: Callback | None) -> Iterator[Callback | None]:
    """A callback that shows a bar, if one is wanted, and then calls the user's.

    Where there is no bar, it is the user's own.
    """
    with shown(name) if wanted else nullcontext() as show:
        if show is None:
            yield callback
            return
        from proxfield.core.compiled.notice import when_compiling

        def told(progress: Progress) -> object:
            show(share_done(progress), detail(progress))
            return None if callback is None else callback(progress)

        show(None, "")
        with when_compiling(lambda text: show(None, text)):
            yield told
