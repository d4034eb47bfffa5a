"""Work in several processes. Neither Ctrl-C nor the end of their parent leaves any behind."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from proxfield.common.interrupts import deferred
from proxfield.common.records import Record
from proxfield.errors import MissingDependencyError

REMEDY = 'pip install "proxfield[images]"'
T = TypeVar("T")

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


def run_in_processes(
    function: Callable[[T], Record], items: Iterable[T], jobs: int, threads: int
) -> Iterator[Record]:
    """The records that a function makes of items, in processes of their own, as they come.

    Ctrl-C reaches all processes of a terminal. Here it is only remembered and asked for between
    results: raised while processes are being started or ended, it would leave some behind.

    Args:
        function: What to do with an item; both travel to other processes.
        items: Taken one by one, a few ahead of the work.
        jobs: Number of processes.
        threads: Maximum number of threads of each.
    """
    import_joblib()
    from joblib.externals.loky import ProcessPoolExecutor
    from joblib.externals.loky.process_executor import TerminatedWorkerError

    env = {name: str(threads) for name in THREAD_VARIABLES}
    todo = iter(items)
    here = Path.cwd()
    running: set[Future[Record]] = set()
    with deferred():
        pool = ProcessPoolExecutor(
            jobs, initializer=_begin_worker, initargs=(os.getpid(),), env=env
        )
        if hasattr(signal, "pthread_sigmask"):
            # started later, the tracker would unblock the signal (Python 3.11)
            from multiprocessing.resource_tracker import ensure_running

            ensure_running()
    with deferred(block=True) as interrupted:
        try:
            while not interrupted():
                for item in islice(todo, 2 * jobs - len(running)):
                    running.add(pool.submit(_in_worker, function, item, here))
                if not running:
                    break
                done, running = wait(running, POLL_SECONDS, FIRST_COMPLETED)
                for future in done:
                    yield future.result()
        except TerminatedWorkerError:
            raise LostWorkerError from None
        finally:
            _shut_down(pool, running)


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
