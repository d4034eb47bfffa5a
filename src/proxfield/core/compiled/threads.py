"""Threads of compiled kernels: how many, and who runs which part of a loop.

A kernel is compiled once, for one thread, and releases the global interpreter lock. Threads of
Python call it with parts of its loop. numba's own ``parallel=True`` does the same with threads of
its own, but compiles three times as long, and its threads don't survive a fork.
"""

from __future__ import annotations

import ast
import ctypes
import inspect
import linecache
import os
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import Any

import numba

from proxfield.core.common.memory import available_cores

PARALLEL_WORK = 500_000
"""Entries plus edge ends (or the like) above which work is worth spreading over threads."""

PATIENCE = 2e-4
"""Seconds that a caller waits for other threads, or as long as its own share took, before they may
run anywhere."""
BUSY_SECONDS = 0.1
"""How long they may then."""

Task = tuple[
    Callable[..., Any], tuple[Any, ...], Any, list[BaseException | None], "SimpleQueue[None]"
]
"""What to call with which arguments, the lock that claims it, and where its end is noted."""


# ---- how many ----


_setting = threading.local()
"""The number of ``threads`` of each thread of the program that uses the library, if it is set."""
_threads_lost = False
"""Is this a process forked from one whose threads were started?"""


def max_threads() -> int:
    """Maximum number of threads: NUMBA_NUM_THREADS, by default the number of available cores.

    It is 1 in a process forked from one that has used threads: such processes are workers of a
    pool (those of torch's ``DataLoader``), with as many others beside them.
    """
    if _threads_lost:
        return 1
    config: Any = numba.config
    threads = int(config.NUMBA_NUM_THREADS)
    return threads if "NUMBA_NUM_THREADS" in os.environ else min(threads, available_cores())


def current_threads() -> int:
    """Threads that parallel kernels use now.

    Example:
        >>> with thread_count(1):
        ...     current_threads()
        1
    """
    return min(getattr(_setting, "threads", None) or max_threads(), max_threads())


@contextmanager
def thread_count(threads: int) -> Iterator[None]:
    """Run with this many threads (at least 1, at most `max_threads`), and put the old number back.

    Args:
        threads: Number of threads, the caller's own included.
    """
    before = getattr(_setting, "threads", None)
    _setting.threads = max(1, threads)
    try:
        yield
    finally:
        _setting.threads = before


@contextmanager
def threads_for(work: int) -> Iterator[None]:
    """Run on one thread unless there are ``PARALLEL_WORK`` operations to share."""
    with thread_count(1 if work < PARALLEL_WORK else current_threads()):
        yield


# ---- who runs what ----


class _Workers:
    """Threads that wait for tasks, started when they are first needed.

    Linux may wake a thread on the core of the thread that wakes it, above all on virtual machines
    whose cores share no cache. It then waits until the caller has done its own share, and two
    threads take as long as one. So threads are kept off the caller's core; but where one is late,
    because its own core is busy, it may run anywhere.
    """

    def __init__(self) -> None:
        self.tasks: SimpleQueue[Task] = SimpleQueue()
        self.count = 0
        self.lock = threading.Lock()
        self.ids: list[int] = []
        self.avoided = -1
        """The core that they keep off; -1 for none."""
        self.free_until = 0.0

    def need(self, count: int) -> None:
        """Start threads until there are at least as many."""
        with self.lock:
            while self.count < count:
                name = f"proxfield-{self.count + 1}"
                thread = threading.Thread(target=_work, args=(self.tasks,), name=name, daemon=True)
                thread.start()
                self.count += 1  # after it has started: Ctrl-C in between leaves one too many
                self.ids.append(thread.native_id or 0)
                self.avoided = -1

    def make_way(self, shares: int) -> None:
        """Keep off the caller's core, if there are as many cores as shares."""
        core = -1 if _core is None else _core()
        if core >= 0 and core != self.avoided and time.perf_counter() > self.free_until:
            cores = os.sched_getaffinity(0)
            if shares <= len(cores):
                self._run_on(cores - {core})
                self.avoided = core

    def run_anywhere(self) -> None:
        """On any core that the caller may run on, for a while."""
        if self.avoided >= 0:
            self.avoided, self.free_until = -1, time.perf_counter() + BUSY_SECONDS
            self._run_on(os.sched_getaffinity(0))

    def _run_on(self, cores: set[int]) -> None:
        for thread in self.ids:
            with suppress(OSError):  # cores that were taken away meanwhile: not our choice then
                os.sched_setaffinity(thread, cores)


_pins = hasattr(os, "sched_setaffinity")
_core: Any = getattr(ctypes.CDLL(None), "sched_getcpu", None) if _pins else None
"""Tells the core that a thread runs on; None where that or keeping off it isn't possible."""


def _work(tasks: SimpleQueue[Task]) -> None:
    while True:
        call, args, claim, ended, done = tasks.get()
        if claim.acquire(blocking=False):
            try:
                call(*args)
                failure: BaseException | None = None
            except BaseException as error:  # the thread that waits for it raises it
                failure = error
            args = ()  # arrays that nobody else holds go now, not with the next task
            ended.append(failure)
            failure = None
            done.put(None)
        del call, args, claim, ended, done


_workers = _Workers()


def run_shares(call: Callable[..., Any], args: tuple[Any, ...], shares: int) -> None:
    """Call ``call(*args, share, shares)`` for every share, each on a thread of its own.

    The last share runs in the caller's thread. Ends when all have ended, also where one fails or
    the caller is interrupted: none goes on writing to arrays that somebody else may then use.

    Args:
        call: A compiled function that releases the global interpreter lock.
        args: Its arguments.
        shares: Parts of the work.
    """
    _workers.need(shares - 1)
    _workers.make_way(shares)
    done: SimpleQueue[None] = SimpleQueue()
    ended: list[BaseException | None] = []
    parts = [
        (call, (*args, share, shares), threading.Lock(), ended, done) for share in range(shares - 1)
    ]
    failure: BaseException | None = None
    sent = own = False
    begun = time.perf_counter()
    # Ctrl-C may come between any two steps. Whatever is repeated then does no harm: a part that is
    # sent twice is claimed once, and what has ended is in the list, even if the news of it is lost.
    while True:
        try:
            if not sent:
                for part in parts:
                    _workers.tasks.put(part)
                sent = True
            if not own:
                own = True
                call(*args, shares - 1, shares)
            patience = max(PATIENCE, time.perf_counter() - begun)
            while len(ended) < shares - 1:
                try:
                    done.get(timeout=patience)
                except Empty:  # noqa: PERF203
                    _workers.run_anywhere()
                    done.get()
            break
        except BaseException as error:
            failure = failure or error
    failure = next(filter(None, [failure, *ended]), None)
    if failure is not None:
        raise failure


def _after_fork_in_child() -> None:
    """Threads don't survive a fork."""
    global _threads_lost, _workers
    _threads_lost = _threads_lost or _workers.count > 0
    _workers = _Workers()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


# ---- a loop in shares ----


def source_lines(function: Callable[..., Any]) -> list[str]:
    """The lines of the file that a function is from, as they are now."""
    return linecache.getlines(function.__code__.co_filename, function.__globals__)


def in_shares(function: Callable[..., Any], lines: list[str] | None = None) -> Callable[..., Any]:
    """A function that does one share of another's ``numba.prange`` loop.

    The loop must be the function's last statement, and statements before it may only give names
    to values, because every share repeats them. Two arguments are added: the number of the share
    and the number of shares.

    Args:
        function: A function at the top level of a module.
        lines: `source_lines`, read when the function was defined: the file may be another later.

    Example:
        From ``for c in numba.prange(n): …`` it makes ``for c in range(n * share // shares,
        n * (share + 1) // shares): …``.
    """
    code = function.__code__
    own = inspect.getblock((lines or source_lines(function))[code.co_firstlineno - 1 :])
    tree = ast.parse(textwrap.dedent("".join(own)))
    node = tree.body[0]
    assert isinstance(node, ast.FunctionDef)
    *before, loop = node.body
    if not (isinstance(loop, ast.For) and _is_prange(loop.iter)):
        raise TypeError(f"the last statement of {node.name} must be a loop over numba.prange")
    for statement in before:
        if not _only_names(statement):
            raise TypeError(
                f"{node.name} does more before its loop than give names to values "
                f"({ast.unparse(statement).splitlines()[0]!r}); every thread would repeat that"
            )
    if any(_is_prange(inner) for part in loop.body for inner in ast.walk(part)):
        raise TypeError(f"{node.name} has more than one loop over numba.prange")
    assert isinstance(loop.iter, ast.Call)
    count = ast.Assign([ast.Name("_tasks", ast.Store())], loop.iter.args[0])
    share = "range(_tasks * _share // _shares, _tasks * (_share + 1) // _shares)"
    loop.iter = ast.parse(share, mode="eval").body
    node.body = [*before, count, loop]
    node.decorator_list, node.returns = [], None
    for argument in node.args.args:
        argument.annotation = None
    node.args.args += [ast.arg("_share"), ast.arg("_shares")]
    ast.fix_missing_locations(tree)
    ast.increment_lineno(tree, code.co_firstlineno - 1)
    made: dict[str, Any] = {}
    exec(compile(tree, code.co_filename, "exec"), function.__globals__, made)
    out: Any = made[node.name]
    out.__qualname__, out.__module__ = function.__qualname__, function.__module__
    return out  # type: ignore[no-any-return]


def _is_prange(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) in ("numba.prange", "prange")


def _only_names(statement: ast.stmt) -> bool:
    """Whether it gives names to values, or is a docstring."""
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Constant)
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement]
    names = [name for t in targets for name in (t.elts if isinstance(t, ast.Tuple) else [t])]
    return all(isinstance(name, ast.Name) for name in names)
