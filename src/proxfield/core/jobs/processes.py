"""Processes of loky. Neither Ctrl-C nor the end of their parent leaves any behind.

A process that is killed breaks the whole pool: everything that was submitted fails. Those items are
tried again in a fresh pool, and at last one at a time, which shows which of them is the cause.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, TypeVar

from proxfield._version import __version__
from proxfield.core.common.interrupts import deferred
from proxfield.core.common.logs import log
from proxfield.core.jobs.workers import LostWorkerError, Workers, call, import_joblib

T = TypeVar("T")
R = TypeVar("R")

RETRIES = 2
"""How often an item is tried again after its process was killed."""
MAX_GIVEN_UP = 3
"""Items that may kill their processes before the run ends; up to then all others are done."""
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
class _Ticket:
    """An item, and how often its process was killed."""

    item: Any
    losses: int = 0


class Processes(Workers):
    """Processes that stay for several rounds of work.

    Ctrl-C reaches all processes of a terminal. Here it is only remembered and asked for between
    results: raised while processes are being started or ended, it would leave some behind.

    Args:
        jobs: Number of processes.
        threads: Maximum number of threads of each.
        folder: The folder that relative names count from.
    """

    def __init__(self, jobs: int, threads: int, folder: str | None = None) -> None:
        import_joblib()
        self.jobs = jobs
        self._threads = threads
        self._folder = folder
        self._running: dict[Future[Any], _Ticket] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Processes:
        with deferred():
            self._pool = self._new_pool()
            if hasattr(signal, "pthread_sigmask"):
                # started later, the tracker would unblock the signal (Python 3.11)
                from multiprocessing.resource_tracker import ensure_running

                ensure_running()
        self._interrupted = self._stack.enter_context(deferred(block=True))
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

    def run(
        self, function: Callable[[T], R], items: Iterable[T], name: Callable[[T], str] = str
    ) -> Iterator[R]:
        """See `Workers.run`.

        Raises:
            LostWorkerError: If the process of an item was killed `RETRIES` + 1 times; all other
                items are done before, unless there are several like this.
        """
        todo = (_Ticket(item) for item in items)
        again: deque[_Ticket] = deque()
        given_up: list[str] = []
        while not self.interrupted:
            self._fill(function, todo, again)
            if not self._running:
                break
            done, _ = wait(self._running, POLL_SECONDS, FIRST_COMPLETED)
            broken = False
            for future in done:
                if isinstance(future.exception(), BrokenProcessPool):
                    broken = True
                    continue
                del self._running[future]
                yield future.result()
            if broken:
                yield from self._recover(again)
                for ticket in [t for t in again if t.losses > RETRIES]:
                    again.remove(ticket)
                    given_up.append(name(ticket.item))
                if len(given_up) >= MAX_GIVEN_UP:
                    break
        if given_up and not self.interrupted:
            raise LostWorkerError(given_up, RETRIES + 1)

    def _fill(
        self, function: Callable[[Any], Any], todo: Iterator[_Ticket], again: deque[_Ticket]
    ) -> None:
        """Submit what there is room for: lost items first, and at their last try alone."""
        alone = any(t.losses == RETRIES for t in (*again, *self._running.values()))
        room = 1 if alone else 2 * self.jobs
        while len(self._running) < room:
            ticket = again.popleft() if again else next(todo, None)
            if ticket is None:
                return
            try:
                future = self._pool.submit(call, function, ticket.item, self._folder, __version__)
            except BrokenProcessPool:  # while it was idle, or a moment ago
                again.appendleft(ticket)
                if self._running:
                    return
                _shut_down(self._pool, set())
                self._pool = self._new_pool()
                continue
            self._running[future] = ticket

    def _recover(self, again: deque[_Ticket]) -> Iterator[Any]:
        """Start a fresh pool. Yields what was finished; all else is to be done again."""
        wait(self._running)
        _shut_down(self._pool, set(self._running))
        finished = []
        for future, ticket in self._running.items():
            error = future.exception()
            if error is None:
                finished.append(future.result())
            elif isinstance(error, BrokenProcessPool):
                ticket.losses += 1
                again.append(ticket)
            else:
                raise error
        # those that were lost most often come last: by then all others are done with
        ordered = sorted(again, key=lambda ticket: ticket.losses)
        again.clear()
        again.extend(ordered)
        self._running.clear()
        log.warning("a worker process was killed; %d items are tried again", len(again))
        self._pool = self._new_pool()
        yield from finished

    @property
    def interrupted(self) -> bool:
        return self._interrupted()


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
