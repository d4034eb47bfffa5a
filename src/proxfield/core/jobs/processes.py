"""Workers in other processes, to which items are handed one by one: of loky, or a Dask cluster.

A process of loky that is killed breaks the whole pool: everything that was submitted fails. Those
items are tried again in a fresh pool, and at last one at a time.

To a cluster, perhaps on other machines, everything travels as bytes that were made here, so that a
worker which lacks a package says so in words. Dask itself tries items again whose worker was
killed, up to a limit (``distributed.scheduler.allowed-failures``, 3). It counts all items that were
on that worker, so those over the limit are tried once more, one at a time, and named in an error if
lost even then.
"""

from __future__ import annotations

import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from proxfield._version import __version__
from proxfield.core.common.extras import import_extra
from proxfield.core.common.interrupts import deferred
from proxfield.core.common.logs import log
from proxfield.core.jobs.running import (
    ClusterError,
    LostWorkerError,
    Workers,
    call,
    host,
    import_joblib,
)
from proxfield.errors import MissingDependencyError

T = TypeVar("T")
R = TypeVar("R")

POLL_SECONDS = 0.1
"""How often to ask for Ctrl-C while other processes work."""
MOST_LOSSES = 10
"""How often an item is done again because its result was lost with a worker."""
COUNT_SECONDS = 2.0
"""How often to ask how many workers there are."""
PATIENCE_SECONDS = 60.0
"""How long a cluster may be without workers."""
CONNECT_SECONDS = 10
"""How long a scheduler may take to answer."""
SMALL_ITEM = 10_000
"""Bytes above which items are better passed as names of files."""
HANDOVER_SECONDS = 5.0
"""Maximum time to wait until work that was submitted is taken over."""
WATCH_SECONDS = 1.0
"""How often a worker looks whether the process that started it is still there."""
THREAD_VARIABLES = (
    *(f"{library}_NUM_THREADS" for library in ("OMP", "OPENBLAS", "MKL", "BLIS", "NUMBA")),
    "VECLIB_MAXIMUM_THREADS",
)
"""Environment variables that limit the threads of libraries in a process."""


@dataclass(eq=False)
class Ticket:
    """An item, how often its worker was killed, and how often its result was lost on the way."""

    item: Any
    kills: int = 0
    losses: int = 0
    future: Any = None


class WorkerPool(Workers):
    """Workers that take items one by one, and whose items are tried again if one is killed.

    Items are alone at their last try, which shows which of them is the cause. Ctrl-C is only
    remembered, and asked for between results.
    """

    retries = 1
    """How often an item is tried again after its worker was killed."""
    max_given_up = float("inf")
    """Items that may kill their workers before the run ends; up to then all others are done."""
    interrupts: Callable[[], bool]
    """Whether Ctrl-C has come, while it is deferred."""

    def __init__(self, folder: str | None) -> None:
        self._folder = folder
        self._running: dict[Any, Ticket] = {}
        self._again: list[Ticket] = []
        self._stack = ExitStack()

    @property
    def interrupted(self) -> bool:  # type: ignore[override]
        return self.interrupts()

    @property
    def tries(self) -> int:
        """How often an item was tried that is given up."""
        return self.retries + 1

    @property
    def room(self) -> int:
        """Number of items that may be at work or wait for it."""
        return 2 * self.jobs

    def run(
        self, function: Callable[[T], R], items: Iterable[T], name: Callable[[T], str] = str
    ) -> Iterator[R]:
        todo, work = map(Ticket, items), self.pack(function)
        given_up: list[str] = []
        self._again = []
        while not self.interrupted and len(given_up) < self.max_given_up:
            waiting = chain(self._again, self._running.values())
            room = 1 if any(t.kills == self.retries for t in waiting) else self.room
            del waiting  # it would keep items that are done
            while len(self._running) < room:
                ticket = self._again.pop(0) if self._again else next(todo, None)
                if ticket is None:
                    break
                if not self.submit(work, ticket):
                    self._again.insert(0, ticket)
                    break
            if not self._running:
                break
            yield from self.finished()
            for ticket in [t for t in self._again if t.kills > self.retries]:
                self._again.remove(ticket)
                given_up.append(name(ticket.item))
        if given_up and not self.interrupted:
            raise LostWorkerError(given_up, self.tries)

    def pack(self, value: object) -> Any:
        """A function or an item as it travels."""
        return value

    def submit(self, work: object, ticket: Ticket) -> bool:
        """Hand an item over; False if that can't be done before `finished` was asked."""
        raise NotImplementedError

    def finished(self) -> Iterator[Any]:
        """Wait a little for results; what is to be done again is in ``_again``."""
        raise NotImplementedError


class Processes(WorkerPool):
    """Processes of loky; neither Ctrl-C nor the end of their parent leaves any behind.

    Ctrl-C reaches all processes of a terminal. Raised while processes are being started or ended,
    it would leave some behind.

    Args:
        jobs: Number of processes.
        threads: Maximum number of threads of each.
        folder: The folder that relative names count from.
    """

    retries = 2
    max_given_up = 3

    def __init__(self, jobs: int, threads: int, folder: str | None = None) -> None:
        super().__init__(folder)
        import_joblib()
        self.jobs, self._threads = jobs, threads

    def __enter__(self) -> Processes:
        with deferred():
            self._pool = self._new_pool()
            if hasattr(signal, "pthread_sigmask"):
                # started later, the tracker would unblock the signal (Python 3.11)
                from multiprocessing.resource_tracker import ensure_running

                ensure_running()
        self.interrupts = self._stack.enter_context(deferred(block=True))
        return self

    def _new_pool(self) -> Any:
        from joblib.externals.loky import ProcessPoolExecutor

        env = {name: str(self._threads) for name in THREAD_VARIABLES}
        return ProcessPoolExecutor(
            self.jobs, initializer=_begin_worker, initargs=(os.getpid(),), env=env
        )

    def __exit__(self, *_: object) -> None:
        try:
            _shut_down(self._pool, set(self._running))
        finally:
            self._stack.close()  # here Ctrl-C is raised, if it came

    def submit(self, work: object, ticket: Ticket) -> bool:
        try:
            future = self._pool.submit(call, work, ticket.item, self._folder, __version__)
        except BrokenProcessPool:  # while it was idle, or a moment ago
            if self._running:
                return False
            _shut_down(self._pool, set())
            self._pool = self._new_pool()
            return self.submit(work, ticket)
        self._running[future] = ticket
        return True

    def finished(self) -> Iterator[Any]:
        done, _ = wait(self._running, POLL_SECONDS, FIRST_COMPLETED)
        broken = any(isinstance(future.exception(), BrokenProcessPool) for future in done)
        if broken:
            done, _ = wait(self._running)
            _shut_down(self._pool, done)
            self._pool = self._new_pool()
        for future in done:
            ticket = self._running.pop(future)
            if not isinstance(future.exception(), BrokenProcessPool):
                yield future.result()
                continue
            ticket.kills += 1
            self._again.append(ticket)
        if broken:
            # those that were lost most often come last: by then all others are done with
            self._again.sort(key=lambda ticket: ticket.kills)
            log.warning("a worker process was killed; %d items are tried again", len(self._again))


def _shut_down(pool: Any, running: set[Future[Any]]) -> None:
    """End the processes, by force if they are at work."""
    deadline = time.monotonic() + HANDOVER_SECONDS
    while any(not (x.running() or x.done()) for x in running) and time.monotonic() < deadline:
        # loky's thread fails, with a traceback, on work that it hasn't taken over at the end
        time.sleep(0.01)
    pool.shutdown(wait=True, kill_workers=bool(running))


def _begin_worker(parent: int) -> None:
    """Leave Ctrl-C to the process that started this one, and end with it, even if it is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(WATCH_SECONDS)
        os._exit(1)  # at once: nobody is left to take a result

    if os.name == "posix":  # elsewhere the number of a parent that has ended doesn't change
        threading.Thread(target=watch, daemon=True).start()


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
        self._client, self._limit, self._patience = client, jobs, patience
        self._slots, self._seen, self._large = 0, -float("inf"), False
        self._done: SimpleQueue[str] = SimpleQueue()

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
        return 2 * self.jobs if self._limit is None else self.jobs

    @property
    def tries(self) -> int:
        from dask import config

        return int(config.get("distributed.scheduler.allowed-failures", 3)) + 1

    def pack(self, value: object) -> Any:
        import cloudpickle  # functions of notebooks and scripts included

        return cloudpickle.dumps(value)

    def submit(self, work: object, ticket: Ticket) -> bool:
        data = self.pack(ticket.item)
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
        if now - self._seen < COUNT_SECONDS or self._client.status != "running":
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
