"""Workers in other processes, to which items are handed one by one; here processes of loky.

A process of loky that is killed breaks the whole pool: everything that was submitted fails. Those
items are tried again in a fresh pool, and at last one at a time.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeVar

from proxfield._version import __version__
from proxfield.core.common.interrupts import deferred
from proxfield.core.common.logs import log
from proxfield.core.jobs.running import LostWorkerError, Workers, call, import_joblib

T = TypeVar("T")
R = TypeVar("R")

POLL_SECONDS = 0.1
"""How often to ask for Ctrl-C while other processes work."""
HANDOVER_SECONDS = 5.0
"""Maximum time to wait until work that was submitted is taken over."""
WATCH_SECONDS = 1.0
"""How often a worker looks whether the process that started it is still there."""
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMBA_NUM_THREADS",
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
    def interrupted(self) -> bool:
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
        """See `Workers.run`."""
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

    def pack(self, function: Callable[..., object]) -> object:
        """A function as `submit` takes it."""
        return function

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
        self.jobs = jobs
        self._threads = threads

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
    """Leave Ctrl-C to the process that started this one, and end with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if os.name == "posix":  # elsewhere the number of a parent that has ended doesn't change
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    """End this process once its parent is gone, even if that was killed and could say nothing."""
    while os.getppid() == parent:
        time.sleep(WATCH_SECONDS)
    os._exit(1)  # at once: nobody is left to take a result
