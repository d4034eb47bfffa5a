"""`run_jobs`: which workers do the work, and the work itself."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from proxfield._version import __version__
from proxfield.core.common.logs import log
from proxfield.core.common.memory import available_cores
from proxfield.core.jobs.workers import Workers, call, import_joblib
from proxfield.errors import InputError, shown

T = TypeVar("T")
R = TypeVar("R")

LIST_ITEMS = 64
"""Items per list and worker where a backend can't stream: results come after each list."""

_said: set[str] = set()
"""Backends that can't stream, which has been said of them."""


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
    if jobs is not None and (isinstance(jobs, bool) or not isinstance(jobs, int) or jobs < 1):
        raise InputError(f"jobs={shown(jobs)}, expected a whole number above 0")
    if jobs == 1:
        return Workers()
    folder = str(Path.cwd()) if paths else None
    backend, count = _configured()
    kind = type(backend).__name__
    if kind in ("NoneType", "LokyBackend"):
        jobs = count if jobs is None else jobs
        if jobs == 1:
            return Workers()
        from proxfield.core.jobs.processes import Processes

        return Processes(jobs, threads or share_of(jobs), folder)
    if kind == "SequentialBackend":
        return Workers()
    if kind == "DaskDistributedBackend":
        from proxfield.core.jobs.cluster import PATIENCE_SECONDS, DaskWorkers

        patience = max(PATIENCE_SECONDS, float(backend.wait_for_workers_timeout or 0))
        return DaskWorkers(backend.client, jobs, folder, patience)
    return BackendWorkers(backend, count if jobs is None else jobs, folder)


def slots_of(jobs: int | None = None) -> int:
    """Number of items at a time that `run_jobs` would work on; 1 also means: in this process."""
    if jobs is not None:
        return jobs
    backend, count = _configured()
    if type(backend).__name__ == "SequentialBackend" or _own_processes():
        return count
    return max(2, count)


def share_of(jobs: int) -> int:
    """Threads of each of several jobs that share all cores."""
    return max(1, available_cores() // jobs)


def threads_per_item(jobs: int | None = None) -> int | None:
    """Threads of an item where none are given: a share of the cores, or 1 on other machines.

    None: as many as there are, for items in this process.
    """
    slots = slots_of(jobs)
    if slots == 1:
        return None
    return share_of(slots) if _own_processes() else 1


def _own_processes() -> bool:
    return type(_configured()[0]).__name__ in ("NoneType", "LokyBackend")


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


class BackendWorkers(Workers):
    """Workers of the backend that ``joblib.parallel_config`` names.

    Args:
        backend: The backend.
        jobs: Number of items at a time.
        folder: The folder that relative names count from.
    """

    elsewhere = True

    def __init__(self, backend: Any, jobs: int, folder: str | None) -> None:
        self._joblib = import_joblib()
        self._backend = backend
        self._folder = folder
        self.jobs = jobs

    def run(
        self, function: Callable[[T], R], items: Iterable[T], name: Callable[[T], str] = str
    ) -> Iterator[R]:
        """See `Workers.run`."""
        delayed = self._joblib.delayed(call)
        calls = (delayed(function, item, self._folder, __version__) for item in items)
        if self._streams:
            yield from self._parallel("generator_unordered")(calls)
            return
        kind = type(self._backend).__name__
        if kind not in _said:
            _said.add(kind)
            log.warning("joblib's %s can't stream: results come in lists", kind)
        while some := list(islice(calls, LIST_ITEMS * self.jobs)):
            yield from self._parallel("list")(some)

    @property
    def _streams(self) -> bool:
        return bool(getattr(self._backend, "supports_return_generator", False))

    def _parallel(self, form: str) -> Any:
        return self._joblib.Parallel(n_jobs=self.jobs, return_as=form, batch_size=1)
