"""What all kinds of workers have in common: their interface, errors, and the call of an item."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from proxfield._version import __version__
from proxfield.core.common.extras import import_extra
from proxfield.errors import MissingDependencyError, ProxfieldError

T = TypeVar("T")
R = TypeVar("R")

NAMED_ITEMS = 5
"""Maximum number of items that a message names."""


class ClusterError(ProxfieldError):
    """Workers that can't be used: none there, another version, or the connection is lost."""


class LostWorkerError(ProxfieldError):
    """Items whose processes were ended from outside, each time they were tried.

    Args:
        items: Their names.
        tries: How often each was tried.
    """

    def __init__(self, items: Iterable[str] = (), tries: int = 1) -> None:
        self.items = tuple(items)
        self.tries = tries
        super().__init__(self.describe())

    def __reduce__(self) -> Any:
        return type(self), (self.items, self.tries)

    def describe(self) -> str:
        """What happened, with a remedy, in one line."""
        more = len(self.items) - NAMED_ITEMS
        names = ", ".join(self.items[:NAMED_ITEMS]) + (f" and {more} more" if more > 0 else "")
        what = f"{names}: " if names else ""
        times = f", {self.tries} times" if self.tries > 1 else ""
        return f"{what}its process was ended from outside{times}; is memory short? try fewer jobs"


class Workers:
    """What does the work: a context, which may be used for several rounds.

    This class does it in this process, one item after another.

    Attributes:
        jobs: Number of items at a time; 1 if that isn't known.
        elsewhere: Whether workers may be on other machines, with files and caches of their own.
    """

    elsewhere = False
    jobs = 1

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return None

    def run(
        self, function: Callable[[T], R], items: Iterable[T], name: Callable[[T], str] = str
    ) -> Iterator[R]:
        """The results for items, as they come, in any order.

        After Ctrl-C it ends early; leaving the context raises KeyboardInterrupt.

        Args:
            function: What to do with an item; both may travel to other processes.
            items: Taken one by one, a few ahead of the work.
            name: What to call an item in an error.
        """
        for item in items:
            yield function(item)

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C has come."""
        return False


def import_joblib() -> Any:
    """joblib, or how to install it."""
    return import_extra("joblib", "several jobs need joblib", "images")


# ---- in the worker ----


def call(function: Callable[[T], R], item: T, folder: str | None, version: str) -> R:
    """Call a function in a worker, which may have been started elsewhere and by somebody else.

    Args:
        function: What to do.
        item: With what.
        folder: The folder that relative names count from; None: there are none.
        version: Of the library where the item comes from.

    Raises:
        ClusterError: If the worker has another version, or doesn't have the folder.
    """
    if version != __version__:
        raise ClusterError(
            f"a worker on {host()} has proxfield {__version__}, expected {version} as here"
        )
    with _FOLDER.entered(folder):
        return function(item)


def host() -> str:
    """The name of this machine."""
    import platform

    return platform.node() or "another machine"


_elsewhere = threading.local()


@contextmanager
def on_another_machine() -> Iterator[None]:
    """Within the block, this thread works for a process that may be on another machine."""
    before = is_elsewhere()
    _elsewhere.here = True
    try:
        yield
    finally:
        _elsewhere.here = before


def is_elsewhere() -> bool:
    """Whether this thread does an item of a process that may be on another machine.

    Example:
        >>> is_elsewhere()
        False
    """
    return bool(getattr(_elsewhere, "here", False))


def ends_the_run(error: BaseException) -> bool:
    """Whether an error is about workers, so that other items would fail as well.

    Example:
        >>> ends_the_run(ClusterError("no workers")), ends_the_run(ValueError("an item"))
        (True, False)
    """
    if isinstance(error, MissingDependencyError):
        return is_elsewhere()  # of a worker only: here packages are checked before any work
    return isinstance(error, (ClusterError, LostWorkerError))


class _Folder:
    """The working directory, which a process has once: items that need another one wait."""

    def __init__(self) -> None:
        self._users = 0
        self._free = threading.Condition()

    @contextmanager
    def entered(self, folder: str | None) -> Iterator[None]:
        """Stay in a folder, which other threads may share."""
        with self._free:
            if folder is not None and not _is_here(folder):
                self._free.wait_for(lambda: self._users == 0 or _is_here(folder))
                try:
                    os.chdir(folder)
                except OSError:
                    raise ClusterError(
                        f"{folder}: no such folder on {host()}, expected a file system that all "
                        "machines share, or remote paths (s3://…)"
                    ) from None
            self._users += 1
        try:
            yield
        finally:
            with self._free:
                self._users -= 1
                self._free.notify_all()


def _is_here(folder: str) -> bool:
    try:
        return Path.cwd() == Path(folder)
    except OSError:  # the present one was removed
        return False


_FOLDER = _Folder()
