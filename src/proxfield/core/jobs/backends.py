"""Workers of joblib's other backends: threads, multiprocessing, Ray, Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, TypeVar

from proxfield._version import __version__
from proxfield.core.common.logs import log
from proxfield.core.jobs.workers import Workers, call, import_joblib

T = TypeVar("T")
R = TypeVar("R")

LIST_ITEMS = 64
"""Items per list and worker where a backend can't stream: results come after each list."""

_said: set[str] = set()


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
