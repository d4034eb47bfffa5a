"""Workers of a Dask cluster, which may be on other machines.

Everything travels as bytes that were made here, so that a worker which lacks a package says so in
words. Dask itself tries items again whose worker was killed, up to a limit
(``distributed.scheduler.allowed-failures``, 3). It counts all items that were on that worker, so
those over the limit are tried once more, one at a time, after all others; what is lost even then is
named in an error.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from proxfield._version import __version__
from proxfield.core.common.extras import import_extra
from proxfield.core.common.interrupts import deferred
from proxfield.core.common.logs import log
from proxfield.core.jobs.workers import (
    ClusterError,
    LostWorkerError,
    Workers,
    call,
    host,
    import_joblib,
    on_another_machine,
)
from proxfield.errors import MissingDependencyError

T = TypeVar("T")
R = TypeVar("R")

MOST_LOSSES = 10
"""How often an item is done again because its result was lost with a worker."""
POLL_SECONDS = 0.1
"""How often to ask for Ctrl-C while workers work."""
WATCH_SECONDS = 2.0
"""How often to ask how many workers there are."""
PATIENCE_SECONDS = 60.0
"""How long a cluster may be without workers."""
CONNECT_SECONDS = 10
"""How long a scheduler may take to answer."""
SMALL_ITEM = 10_000
"""Bytes above which items are better passed as names of files."""


def import_distributed() -> Any:
    """The package distributed, or how to install it."""
    return import_extra("distributed", "a cluster needs dask and distributed", "cluster")


@contextmanager
def connected(address: str | None) -> Iterator[None]:
    """Use the Dask cluster at an address for all jobs within the block; None: no cluster.

    Args:
        address: Of the scheduler, ``tcp://host:8786``.

    Raises:
        ClusterError: If there is no scheduler.
        MissingDependencyError: If Dask isn't installed.
    """
    if address is None:
        yield
        return
    joblib, distributed = import_joblib(), import_distributed()
    try:
        client = distributed.Client(address, timeout=CONNECT_SECONDS, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        reason = " ".join(str(error).split())
        raise ClusterError(
            f"{address}: no Dask scheduler answers ({reason}), expected tcp://host:8786"
        ) from None
    try:
        with joblib.parallel_config(backend="dask", client=client):
            yield
    finally:
        client.close(timeout=CONNECT_SECONDS)


class DaskWorkers(Workers):
    """The workers of a Dask cluster.

    Args:
        client: The connection, of class ``distributed.Client``.
        jobs: Maximum number of items at a time; None: as many as the cluster has threads.
        folder: The folder that relative names count from.
        patience: How long the cluster may be without workers, in seconds.
    """

    elsewhere = True

    def __init__(
        self,
        client: Any,
        jobs: int | None = None,
        folder: str | None = None,
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        self._client = client
        self._limit = jobs
        self._folder = folder
        self._patience = patience
        self._slots = 0
        self._seen = -float("inf")
        self._running: dict[str, tuple[Any, Any, int]] = {}
        self._done: SimpleQueue[str] = SimpleQueue()
        self._stack = ExitStack()
        self._large = False

    def __enter__(self) -> DaskWorkers:
        self._interrupted = self._stack.enter_context(deferred())
        self._alive = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            left = [future for future, *_ in self._running.values()]
            if left and self._client.status == "running":
                self._client.cancel(left, force=True)
            self._running.clear()
        finally:
            self._stack.close()  # here Ctrl-C is raised, if it came

    @property
    def jobs(self) -> int:  # type: ignore[override]
        """Number of items at a time, as far as workers are known now."""
        self._count_slots()
        return max(1, self._slots if self._limit is None else min(self._limit, self._slots))

    @property
    def interrupted(self) -> bool:
        return self._interrupted()

    def run(
        self, function: Callable[[T], R], items: Iterable[T], name: Callable[[T], str] = str
    ) -> Iterator[R]:
        """See `Workers.run`.

        Raises:
            LostWorkerError: If items killed their workers; all other items are done before.
            ClusterError: If there are no workers, or they can't do this.
        """
        todo = iter(items)
        what = _dumps(function)
        again: list[Any] = []
        lost: list[str] = []
        more, alone = True, False
        while not self.interrupted:
            if not (more or self._running or alone):
                alone = True
                todo, again, more = iter(again), [], True
            room = 1 if alone else 2 * self.jobs if self._limit is None else self.jobs
            while more and len(self._running) < room:
                try:
                    item = next(todo)
                except StopIteration:
                    more = False
                    break
                self._submit(what, item)
            if not self._running:
                if alone:
                    break
                continue
            future, item, losses = self._next_done()
            if future is None:
                continue
            if self._result_is_lost(future, losses):
                self._submit(what, item, losses + 1)
                continue
            if self._was_lost(future):
                if alone:
                    lost.append(name(item))
                else:
                    again.append(item)
                continue
            good, value = future.result(timeout=self._patience)
            future.release()
            if not good:
                raise value
            yield value
        if lost and not self.interrupted:
            raise LostWorkerError(lost, self._allowed_failures() + 1)

    def _next_done(self) -> tuple[Any, Any, int]:
        """A future that is done, its item and how often its result was lost; None if none is."""
        try:
            key = self._done.get(timeout=POLL_SECONDS)
        except Empty:
            self._check_alive()
            return None, None, 0
        self._alive = time.monotonic()
        return self._running.pop(key, (None, None, 0))

    def _submit(self, what: bytes, item: object, losses: int = 0) -> None:
        data = _dumps(item)
        if len(data) > SMALL_ITEM and not self._large:
            self._large = True
            log.info("items of %d bytes go to the cluster; names of files are faster", len(data))
        future = self._client.submit(
            on_worker, what, data, self._folder, __version__, pure=False, retries=0
        )
        self._running[future.key] = future, item, losses
        future.add_done_callback(lambda done: self._done.put(done.key))

    def _result_is_lost(self, future: Any, losses: int) -> bool:
        """Whether a worker was ended after it had done an item, before the result was sent."""
        lost = future.status == "lost" and self._client.status == "running"
        if not lost or losses >= MOST_LOSSES:
            return False
        self._client.cancel([future], force=True)
        return True

    def _was_lost(self, future: Any) -> bool:
        """Whether an item killed its workers; raises what concerns the cluster as a whole."""
        if future.status == "finished":
            return False
        if future.status != "error":
            raise ClusterError(
                f"the connection to the cluster was lost (a task is {future.status}); start the "
                "same again to go on"
            )
        error = future.exception(timeout=self._patience)
        if type(error).__name__ == "KilledWorker":
            return True
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        cause = error.__cause__
        if cause is not None:
            reason = " ".join(f"{type(cause).__name__}: {cause}".split())
        raise ClusterError(
            f"a worker can't run this ({reason}), expected proxfield {__version__} and its extras "
            "on every worker"
        ) from None

    def _allowed_failures(self) -> int:
        from dask import config

        return int(config.get("distributed.scheduler.allowed-failures", 3))

    def _count_slots(self) -> None:
        """Ask how many threads all workers have, now and then: workers come and go."""
        now = time.monotonic()
        if now - self._seen < WATCH_SECONDS or self._client.status != "running":
            return
        self._slots = sum(self._client.nthreads().values())
        self._seen = now
        if self._slots:
            self._alive = now

    def _check_alive(self) -> None:
        """Raise an error where waiting is of no use."""
        if self._client.status in ("closed", "closing"):
            raise ClusterError(
                "the connection to the cluster was lost; start the same again to go on"
            )
        self._count_slots()
        if time.monotonic() - self._alive > self._patience:
            what = "has had no workers" if self._client.status == "running" else "hasn't answered"
            raise ClusterError(
                f"the cluster {what} for {self._patience:g} s, expected some (dask worker ADDRESS)"
            )


# ---- in the worker ----


def on_worker(what: bytes, data: bytes, folder: str | None, version: str) -> tuple[bool, Any]:
    """Do one item: whether that went well, and the result or the exception."""
    try:
        try:
            function, item = _function(what), pickle.loads(data)
        except (ImportError, AttributeError) as error:
            raise ClusterError(
                f"a worker on {host()} can't load the work ({error}), expected proxfield "
                f"{version} and its extras there"
            ) from None
        with on_another_machine():
            return True, call(function, item, folder, version)
    except MissingDependencyError as error:
        return False, ClusterError(
            f"a worker on {host()} lacks a package ({error}), expected the same extras as here on "
            "every worker"
        )
    except Exception as error:
        return False, _portable(error)


@lru_cache(maxsize=4)
def _function(what: bytes) -> Any:
    """A function, unpacked once: what it keeps between items stays."""
    return pickle.loads(what)


def _portable(error: Exception) -> Exception:
    """An exception that can be pickled."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return ClusterError(f"{type(error).__name__}: {error}")
    return error


def _dumps(value: object) -> bytes:
    """Bytes of functions and items, those of notebooks and scripts included."""
    import cloudpickle

    data: bytes = cloudpickle.dumps(value)
    return data
