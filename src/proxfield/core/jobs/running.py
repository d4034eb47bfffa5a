"""Many items, one function: in this process, in others, or on a cluster.

`run_jobs` is the one place for this. It respects ``joblib.parallel_config``; without that, several
jobs are processes of loky.
"""

from __future__ import annotations

import os
import platform
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from proxfield._version import __version__
from proxfield.core.common.extras import import_extra
from proxfield.core.common.logs import log
from proxfield.core.common.memory import available_cores
from proxfield.errors import InputError, MissingDependencyError, ProxfieldError, shown

T = TypeVar("T")
R = TypeVar("R")

LIST_ITEMS = 64
"""Items per list and worker where a backend can't stream: results come after each list."""
NAMED_ITEMS = 5
"""Maximum number of items that a message names."""

_said: set[str] = set()
"""Backends that can't stream, which has been said of them."""
_elsewhere: ContextVar[bool] = ContextVar("elsewhere", default=False)
"""Whether this thread does an item of a process that may be on another machine."""


class ClusterError(ProxfieldError):
    """Workers that can't be used: none there, another version, or the connection is lost."""


class LostWorkerError(ProxfieldError):
    """Items whose processes were ended from outside, each time they were tried.

    Args:
        items: Their names.
        tries: How often each was tried.
    """

    def __init__(self, items: Iterable[str] = (), tries: int = 1) -> None:
        self.items, self.tries = tuple(items), tries
        more = len(self.items) - NAMED_ITEMS
        names = ", ".join(self.items[:NAMED_ITEMS]) + (f" and {more} more" if more > 0 else "")
        what = f"{names}: " if names else ""
        times = f", {tries} times" if tries > 1 else ""
        super().__init__(
            f"{what}its process was ended from outside{times}; is memory short? try fewer jobs"
        )

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return type(self), (self.items, self.tries)


def ends_the_run(error: BaseException) -> bool:
    """Whether an error is about workers, so that other items would fail as well.

    Example:
        >>> ends_the_run(ClusterError("no workers")), ends_the_run(ValueError("an item"))
        (True, False)
    """
    if isinstance(error, MissingDependencyError):
        return _elsewhere.get()  # of a worker only: here packages are checked before any work
    return isinstance(error, (ClusterError, LostWorkerError))


def import_joblib() -> Any:
    """joblib, or how to install it."""
    return import_extra("joblib", "several jobs need joblib", "images")


def run_jobs(
    function: Callable[[T], R],
    items: Iterable[T],
    jobs: int | None = None,
    threads: int | None = None,
    *,
    name: Callable[[T], str] = str,
    paths: bool = True,
) -> Iterator[R]:
    """The results of a function for items, as they come, in any order.

    Under ``joblib.parallel_config`` the work is done by the backend named there; otherwise in
    this process, or with ``jobs`` above 1 in processes of loky. Items whose process is killed are
    done again; each result comes exactly once. After Ctrl-C it raises KeyboardInterrupt once
    nothing is left running.

    Args:
        function: What to do with an item. It and the items travel to other processes, so it is a
            function of a module, or a ``functools.partial`` of one.
        items: Best small: names of files rather than arrays. Taken one by one, a few ahead of
            the work.
        jobs: Number of items at a time; by default what ``joblib.parallel_config`` says, else 1.
            An explicit 1 means: in this process, whatever is configured.
        threads: Maximum number of threads of each process of loky; by default they share all
            cores.
        name: What to call an item in an error.
        paths: Whether the function uses relative paths: workers then change to the current
            folder, which they must have.

    Returns:
        An iterator over results, which should be small too.

    Raises:
        LostWorkerError: If an item's process is killed again and again; names the item. All
            other items are done first.
        ClusterError: If the cluster can't be used.

    Example:
        >>> sorted(run_jobs(abs, [-3, 2, -1]))
        [1, 2, 3]
    """
    with open_workers(jobs, threads, paths=paths) as workers:
        yield from workers.run(function, items, name)


def open_workers(
    jobs: int | None = None, threads: int | None = None, *, paths: bool = True
) -> Workers:
    """Workers that stay for several rounds; see `run_jobs` for the arguments."""
    jobs = check_jobs(jobs)
    if jobs == 1:
        return Workers()
    backend, count = _configured()
    kind = type(backend).__name__
    own = kind in OWN_PROCESSES
    if kind == "SequentialBackend" or (own and jobs is None and count == 1):
        return Workers()
    folder = str(Path.cwd()) if paths else None
    if kind == "DaskDistributedBackend":
        from proxfield.core.jobs.processes import PATIENCE_SECONDS, DaskWorkers

        patience = max(PATIENCE_SECONDS, float(backend.wait_for_workers_timeout or 0))
        return DaskWorkers(backend.client, jobs, folder, patience)
    jobs = count if jobs is None else jobs
    if own:
        from proxfield.core.jobs.processes import Processes

        return Processes(jobs, threads or share_of(jobs), folder)
    return BackendWorkers(backend, jobs, folder)


OWN_PROCESSES = ("NoneType", "LokyBackend")
"""Classes of the configured backend where several jobs are processes of loky."""


def check_jobs(jobs: int | None) -> int | None:
    """A number of jobs, or None; `InputError` for anything else."""
    if jobs is None:
        return None
    if isinstance(jobs, bool) or not isinstance(jobs, int | np.integer) or jobs < 1:
        raise InputError(f"jobs={shown(jobs)}, expected a whole number above 0")
    return int(jobs)


def slots_of(jobs: int | None = None) -> int:
    """Number of items at a time that `run_jobs` would work on; 1 also means: in this process."""
    if jobs is not None:
        return jobs
    backend, count = _configured()
    here = type(backend).__name__ in (*OWN_PROCESSES, "SequentialBackend")
    return count if here else max(2, count)


def share_of(jobs: int) -> int:
    """Threads of each of several jobs that share all cores."""
    return max(1, available_cores() // jobs)


def threads_per_item(jobs: int | None = None, threads: int | None = None) -> int | None:
    """Threads of an item: as given, else a share of the cores, or 1 on other machines.

    None: as many as there are, for items in this process.
    """
    if threads is not None:
        return int(threads)
    slots = slots_of(jobs)
    if slots == 1:
        return None
    return share_of(slots) if type(_configured()[0]).__name__ in OWN_PROCESSES else 1


def _configured() -> tuple[Any, int]:
    """The backend that ``joblib.parallel_config`` sets (None: none is), and its number of jobs."""
    if "joblib" not in sys.modules:  # then nobody can have configured it
        return None, 1
    import joblib

    backend, jobs = joblib.parallel.get_active_backend()
    if type(backend).__name__ == "DaskDistributedBackend":
        return backend, 1  # workers come and go
    jobs = getattr(backend, "default_n_jobs", 1) if jobs is None else jobs
    return backend, max(1, int(joblib.effective_n_jobs(jobs)))


@dataclass(frozen=True)
class Part:
    """Part ``number`` of ``count``, counted from 1; parts are disjoint and cover everything.

    Example:
        >>> Part.parse("2/3").of("abcdefg")
        ['b', 'e']
    """

    number: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Part:
        """Read ``K/N``.

        Raises:
            InputError: If it is something else, or K isn't within 1 to N.
        """
        number, _, count = text.partition("/")
        if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
            raise InputError(f"{shown(text)}, expected K/N with K from 1 to N, as in 3/8")
        return cls(int(number), int(count))

    def of(self, items: Sequence[T]) -> list[T]:
        """Every N-th item: neighbors, which often take as long as each other, are spread."""
        return list(items[self.number - 1 :: self.count])


class Workers:
    """What does the work: a context, which may be used for several rounds.

    This class does it in this process, one item after another.

    Attributes:
        jobs: Number of items at a time; 1 if that isn't known.
        elsewhere: Whether workers may be on other machines, with files and caches of their own.
        interrupted: Whether Ctrl-C has come.
    """

    elsewhere = interrupted = False
    jobs = 1

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
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

        Raises:
            LostWorkerError: If items killed their workers whenever they were tried.
            ClusterError: If there are no workers, or they can't do this.
        """
        for item in items:
            yield function(item)


class BackendWorkers(Workers):
    """Workers of the backend that ``joblib.parallel_config`` names.

    Args:
        backend: The backend.
        jobs: Number of items at a time.
        folder: The folder that relative names count from.
    """

    elsewhere = True

    def __init__(self, backend: Any, jobs: int, folder: str | None) -> None:
        self.jobs, self._backend, self._folder = jobs, backend, folder

    def run(
        self, function: Callable[[T], R], items: Iterable[T], name: Callable[[T], str] = str
    ) -> Iterator[R]:
        joblib = import_joblib()
        calls = (joblib.delayed(call)(function, item, self._folder, __version__) for item in items)
        options = {"n_jobs": self.jobs, "batch_size": 1}
        if getattr(self._backend, "supports_return_generator", False):
            yield from joblib.Parallel(return_as="generator_unordered", **options)(calls)
            return
        kind = type(self._backend).__name__
        if kind not in _said:
            _said.add(kind)
            log.warning("joblib's %s can't stream: results come in lists", kind)
        while some := list(islice(calls, LIST_ITEMS * self.jobs)):
            yield from joblib.Parallel(return_as="list", **options)(some)


def call(
    function: Callable[[T], R], item: T, folder: str | None, version: str, elsewhere: bool = False
) -> R:
    """Call a function in a worker, which may have been started elsewhere and by somebody else.

    Args:
        function: What to do.
        item: With what.
        folder: The folder that relative names count from; None: there are none.
        version: Of the library where the item comes from.
        elsewhere: Whether that may be another machine.

    Raises:
        ClusterError: If the worker has another version, or doesn't have the folder.
    """
    if version != __version__:
        raise ClusterError(
            f"a worker on {host()} has proxfield {__version__}, expected {version} as here"
        )
    token = _elsewhere.set(elsewhere)
    try:
        with _entered(folder):
            return function(item)
    finally:
        _elsewhere.reset(token)


def host() -> str:
    """The name of this machine."""
    return platform.node() or "another machine"


_inside: list[object] = []
"""Items that need the working directory, which a process has once, as it is."""
_free = threading.Condition()


@contextmanager
def _entered(folder: str | None) -> Iterator[None]:
    """Stay in a folder, which other threads may share; who needs another one waits."""

    def is_here() -> bool:
        try:
            return folder is None or Path.cwd() == Path(folder)
        except OSError:  # the present one was removed
            return False

    with _free:
        _free.wait_for(lambda: not _inside or is_here())
        try:
            if folder is not None and not is_here():
                os.chdir(folder)
        except OSError:
            raise ClusterError(
                f"{folder}: no such folder on {host()}, expected a file system that all "
                "machines share, or remote paths (s3://…)"
            ) from None
        _inside.append(folder)
    try:
        yield
    finally:
        with _free:
            _inside.pop()
            _free.notify_all()
