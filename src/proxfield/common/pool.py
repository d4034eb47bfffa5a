"""Work in several processes. Neither Ctrl-C nor the end of their parent leaves any behind."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from proxfield.common.interrupts import deferred
from proxfield.common.records import Record
from proxfield.errors import MissingDependencyError

T = TypeVar("T")

REMEDY = 'pip install "proxfield[images]"'

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


class LostWorkerError(Exception):
    """A process that was at work was ended from outside."""


class Processes:
    """Processes that stay for several rounds of work; a context.

    Ctrl-C reaches all processes of a terminal. Here it is only remembered and asked for between
    results: raised while processes are being started or ended, it would leave some behind.

    Args:
        jobs: Number of processes.
        threads: Maximum number of threads of each.
    """

    def __init__(self, jobs: int, threads: int) -> None:
        import_joblib()
        self.jobs = jobs
        self._threads = threads
        self._running: set[Future[Record]] = set()
        self._stack = ExitStack()

    def __enter__(self) -> Processes:
        from joblib.externals.loky import ProcessPoolExecutor

        env = {name: str(self._threads) for name in THREAD_VARIABLES}
        with deferred():
            self._pool = ProcessPoolExecutor(
                self.jobs, initializer=_begin_worker, initargs=(os.getpid(),), env=env
            )
            if hasattr(signal, "pthread_sigmask"):
                # started later, the tracker would unblock the signal (Python 3.11)
                from multiprocessing.resource_tracker import ensure_running

                ensure_running()
        self._interrupted = self._stack.enter_context(deferred(block=True))
        return self

    def __exit__(self, *_: object) -> None:
        try:
            _shut_down(self._pool, self._running)
        finally:
            self._stack.close()  # here Ctrl-C is raised, if it came

    def run(self, function: Callable[[T], Record], items: Iterable[T]) -> Iterator[Record]:
        """The records that a function makes of items, as they come.

        After Ctrl-C it ends early; leaving the context raises KeyboardInterrupt.

        Args:
            function: What to do with an item; both travel to other processes.
            items: Taken one by one, a few ahead of the work.
        """
        from joblib.externals.loky.process_executor import TerminatedWorkerError

        todo = iter(items)
        here = Path.cwd()
        try:
            while not self.interrupted:
                for item in islice(todo, 2 * self.jobs - len(self._running)):
                    self._running.add(self._pool.submit(_in_worker, function, item, here))
                if not self._running:
                    break
                done, self._running = wait(self._running, POLL_SECONDS, FIRST_COMPLETED)
                for future in done:
                    yield future.result()
        except TerminatedWorkerError:
            raise LostWorkerError from None

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C has come."""
        return self._interrupted()


def run_in_processes(
    function: Callable[[T], Record], items: Iterable[T], jobs: int, threads: int
) -> Iterator[Record]:
    """The records that a function makes of items, in processes of their own, as they come.

    Args:
        function: What to do with an item; both travel to other processes.
        items: Taken one by one, a few ahead of the work.
        jobs: Number of processes.
        threads: Maximum number of threads of each.
    """
    with Processes(jobs, threads) as processes:
        yield from processes.run(function, items)


def _shut_down(pool: Any, running: set[Future[Record]]) -> None:
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


def _in_worker(function: Callable[[T], Record], item: T, folder: Path) -> Record:
    """Call the function in a process of its own, which may have been started elsewhere."""
    os.chdir(folder)
    return function(item)


def import_joblib() -> ModuleType:
    """joblib, or how to install it."""
    try:
        import joblib
    except ImportError:
        raise MissingDependencyError(f"several jobs need joblib: {REMEDY}") from None
    found: ModuleType = joblib
    return found
