"""Progress on stderr: a live bar on a terminal; elsewhere a line now and then for long work."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from proxfield.core.common.records import Record
from proxfield.core.solve.progress import detail, make_bar, share_done

if TYPE_CHECKING:
    from rich.progress import Progress as RichBar
    from rich.progress import TaskID

    from proxfield.core.solve.history import Progress

__all__ = ["Counter", "Display", "make_bar"]

LINE_SECONDS = 10.0
"""Time between two lines of progress where stderr isn't a terminal."""


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
        from proxfield.core.compiled.notice import when_compiling

        def notify(text: str) -> None:
            if not self._announced:
                self._announced = True
                self.note(text)

        with when_compiling(notify):
            yield


class Counter(Display):
    """A bar over all images or frames with the time left; lines where there is no terminal.

    Args:
        total: Number of items.
        what: What they are.
        done: Those that were finished before.

    Example:
        >>> with Counter(2) as counter:
        ...     counter.count()
    """

    def __init__(self, total: int, what: str = "frames", done: int = 0) -> None:
        super().__init__()
        self._total, self._done, self._what, self._name = total, done, what, ""
        self._before = done
        self._start = self._said = time.monotonic()

    def __enter__(self) -> Counter:
        self._bar = make_bar(time_left=True)
        self._start = self._said = time.monotonic()
        if self._bar is not None:
            detail = f"{self._done}/{self._total}"
            self._task = self._bar.add_task(
                "", total=self._total, completed=self._done, detail=detail
            )
        return self

    def working(self, name: str) -> None:
        """What is being done now."""
        self._name = name
        if self._bar is not None:
            self._bar.update(self._task, description=name)

    def update(self, progress: Progress) -> None:
        """A callback for `proxfield.infer`: the share of one item that is done."""
        share = min(1.0, progress.iteration / max(1, progress.max_iters))
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done + share)
        else:
            self._say(f"; {self._name}: iteration {progress.iteration}" if self._name else "")

    def count(self) -> None:
        """One more item is finished."""
        self._done += 1
        if self._bar is not None:
            detail = f"{self._done}/{self._total}"
            self._bar.update(self._task, completed=self._done, detail=detail)
        elif self._done < self._total:  # what is finished is summed up anyway
            self._say()

    def finished(self, record: Record) -> None:
        """One more item is finished, with this record; an error is printed."""
        self.count()
        if record["error"] is not None:
            self.note(f"proxfield: error: {record['error']}")

    def _say(self, detail: str = "") -> None:
        """A line on stderr, if the last one was long ago; logs and pipes aren't flooded."""
        now = time.monotonic()
        if now - self._said < LINE_SECONDS:
            return
        self._said = now
        percent = 100 * self._done // max(1, self._total)
        line = f"proxfield: {self._done} of {self._total} {self._what}, {percent} %{detail}"
        if self._done > self._before:
            each = (now - self._start) / (self._done - self._before)
            left = each * (self._total - self._done)
            line += f", about {human_seconds(left)} left"
        self.note(line)


def human_seconds(seconds: float) -> str:
    """A time for people.

    Example:
        >>> human_seconds(42.3), human_seconds(200), human_seconds(9000)
        ('42 s', '3 min', '2.5 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
