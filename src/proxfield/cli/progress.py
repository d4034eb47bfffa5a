"""Progress on stderr: a live bar on a terminal, silence elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from proxfield.common.logs import COMPILING
from proxfield.inference.progress import detail, make_bar, share_done

if TYPE_CHECKING:
    from rich.progress import Progress as RichBar
    from rich.progress import TaskID

    from proxfield.inference.history import Progress

__all__ = ["COMPILING", "Counter", "Display", "make_bar"]


class Display:
    """The live line of one command; does nothing when stderr isn't a terminal.

    Example:
        >>> with Display() as display:
        ...     display.phase("reading")
    """

    def __init__(self) -> None:
        self._bar: RichBar | None = None
        self._task: TaskID
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
        done = share_done(progress)
        self._bar.update(self._task, total=1.0, completed=done, detail=detail(progress))

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


class Counter(Display):
    """A bar over all images or frames with the time left, on a terminal only.

    Example:
        >>> with Counter(2) as counter:
        ...     counter.count()
    """

    def __init__(self, total: int) -> None:
        super().__init__()
        self._total, self._done = total, 0

    def __enter__(self) -> Counter:
        self._bar = make_bar(time_left=True)
        if self._bar is not None:
            self._task = self._bar.add_task("", total=self._total, detail=f"0/{self._total}")
        return self

    def working(self, name: str) -> None:
        """What is being done now."""
        if self._bar is not None:
            self._bar.update(self._task, description=name)

    def update(self, progress: Progress) -> None:
        """A callback for `proxfield.infer`: the share of one item that is done."""
        share = min(1.0, progress.iteration / max(1, progress.max_iters))
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done + share)

    def count(self) -> None:
        """One more item is finished."""
        self._done += 1
        if self._bar is not None:
            detail = f"{self._done}/{self._total}"
            self._bar.update(self._task, completed=self._done, detail=detail)
