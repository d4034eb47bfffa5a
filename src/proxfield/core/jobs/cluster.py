"""Workers of a Dask cluster, which may be on other machines.

Everything travels as bytes that were made here, so that a worker which lacks a package says so in
words. Dask itself tries items again whose worker was killed, up to a limit
(``distributed.scheduler.allowed-failures``, 3). It counts all items that were on that worker, so
those over the limit are tried once more, one at a time, and named in an error if lost even then.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from queue import Empty, SimpleQueue
from typing import Any

from proxfield._version import __version__
from proxfield.core.common.extras import import_extra
from proxfield.core.common.interrupts import deferred
from proxfield.core.common.logs import log
from proxfield.core.jobs.processes import POLL_SECONDS, Ticket, WorkerPool
from proxfield.core.jobs.running import ClusterError, call, host, import_joblib
from proxfield.errors import MissingDependencyError

MOST_LOSSES = 10
"""How often an item is done again because its result was lost with a worker."""
WATCH_SECONDS = 2.0
"""How often to ask how many workers there are."""
PATIENCE_SECONDS = 60.0
"""How long a cluster may be without workers."""
CONNECT_SECONDS = 10
"""How long a scheduler may take to answer."""
SMALL_ITEM = 10_000
"""Bytes above which items are better passed as names of files."""


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
    joblib = import_joblib()
    distributed = import_extra("distributed", "a cluster needs dask and distributed", "cluster")
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


class DaskWorkers(WorkerPool):
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
        super().__init__(folder)
        self._client = client
        self._limit = jobs
        self._patience = patience
        self._slots = 0
        self._seen = -float("inf")
        self._done: SimpleQueue[str] = SimpleQueue()
        self._large = False

    def __enter__(self) -> DaskWorkers:
        self.interrupts = self._stack.enter_context(deferred())
        self._alive = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            if self._running and self._client.status == "running":
                left = [ticket.future for ticket in self._running.values()]
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
    def room(self) -> int:
        """Number of items that may be at work or wait for it."""
        return 2 * self.jobs if self._limit is None else self.jobs

    @property
    def tries(self) -> int:
        """How often an item was tried that is given up."""
        from dask import config

        return int(config.get("distributed.scheduler.allowed-failures", 3)) + 1

    def pack(self, function: Callable[..., object]) -> bytes:
        """Bytes of a function, one of a notebook or a script included."""
        return _dumps(function)

    def submit(self, work: object, ticket: Ticket) -> bool:
        data = _dumps(ticket.item)
        if len(data) > SMALL_ITEM and not self._large:
            self._large = True
            log.info("items of %d bytes go to the cluster; names of files are faster", len(data))
        future = self._client.submit(
            on_worker, work, data, self._folder, __version__, pure=False, retries=0
        )
        ticket.future = future
        self._running[future.key] = ticket
        future.add_done_callback(lambda done: self._done.put(done.key))
        return True

    def finished(self) -> Iterator[Any]:
        try:
            ticket = self._running.pop(self._done.get(timeout=POLL_SECONDS), None)
        except Empty:
            self._check_alive()
            return
        self._alive = time.monotonic()
        if ticket is None:  # of a round that was given up
            return
        future = ticket.future
        if self._result_is_lost(ticket):
            ticket.losses += 1
            self._client.cancel([future], force=True)
            self._again.append(ticket)
        elif self._was_killed(future):
            ticket.kills += 1
            self._again.append(ticket)
        else:
            good, value = future.result(timeout=self._patience)
            future.release()
            if not good:
                raise value
            yield value

    def _result_is_lost(self, ticket: Ticket) -> bool:
        """Whether a worker was ended after it had done an item, before the result was sent."""
        lost = ticket.future.status == "lost" and self._client.status == "running"
        return lost and ticket.losses < MOST_LOSSES

    def _was_killed(self, future: Any) -> bool:
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
        cause = error if error.__cause__ is None else error.__cause__
        reason = " ".join(f"{type(cause).__name__}: {cause}".split())
        raise ClusterError(
            f"a worker can't run this ({reason}), expected proxfield {__version__} and its extras "
            "on every worker"
        ) from None

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


def on_worker(what: bytes, data: bytes, folder: str | None, version: str) -> tuple[bool, object]:
    """Do one item: whether that went well, and the result or the exception."""
    try:
        try:
            function, item = _function(what), pickle.loads(data)
        except (ImportError, AttributeError) as error:
            raise ClusterError(
                f"a worker on {host()} can't load the work ({error}), expected proxfield "
                f"{version} and its extras there"
            ) from None
        return True, call(function, item, folder, version, elsewhere=True)
    except MissingDependencyError as error:
        return False, ClusterError(
            f"a worker on {host()} lacks a package ({error}), expected the same extras as here on "
            "every worker"
        )
    except Exception as error:
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            return False, ClusterError(f"{type(error).__name__}: {error}")
        return False, error


@lru_cache(maxsize=4)
def _function(what: bytes) -> Callable[[object], object]:
    """A function, unpacked once: what it keeps between items stays."""
    found: Callable[[object], object] = pickle.loads(what)
    return found


def _dumps(value: object) -> bytes:
    """Bytes of functions and items, those of notebooks and scripts included."""
    import cloudpickle

    data: bytes = cloudpickle.dumps(value)
    return data
