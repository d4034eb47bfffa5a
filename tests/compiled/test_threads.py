"""Loops in shares: what is divided, how often it is called, and what happens when one fails."""

from __future__ import annotations

import contextlib
import inspect
import os
import subprocess
import sys
import threading
import time
from importlib import import_module
from pathlib import Path

import numba
import numpy as np
import pytest

import proxfield
from proxfield.core.compiled import jit, threads


@jit.parallel_kernel
def double(x: np.ndarray, out: np.ndarray) -> None:
    """Twice as much."""
    n = len(x)
    for i in numba.prange(n):
        out[i] += 2 * x[i]


@pytest.mark.parametrize("count", [1, 2, 3, 7])
@pytest.mark.parametrize("n", [0, 1, 2, 5, 100])
def test_every_task_is_done_once(n: int, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "max_threads", lambda: 8)
    x, out = np.arange(float(n)), np.zeros(n)
    with threads.thread_count(count):
        double(x, out)
    assert out.tolist() == (2 * x).tolist()


def test_a_kernel_is_compiled_once_for_any_number_of_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(threads, "max_threads", lambda: 8)
    x = np.arange(5.0)
    for count in (1, 2, 5):
        with threads.thread_count(count):
            double(x, np.zeros(5))
    assert len(double.signatures) == 1  # numba's own attributes are there
    assert double.__name__ == "double" and double.__doc__ == "Twice as much."
    assert "parallel" not in double.targetoptions


def test_containers_limit_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numba.config, "NUMBA_NUM_THREADS", 8)
    monkeypatch.setattr(threads, "available_cores", lambda: 3)
    monkeypatch.delenv("NUMBA_NUM_THREADS", raising=False)
    assert threads.max_threads() == 3
    monkeypatch.setenv("NUMBA_NUM_THREADS", "8")  # what the user says goes
    assert threads.max_threads() == 8


def test_shares_run_on_threads_of_their_own() -> None:
    met = threading.Barrier(3, timeout=60)  # all three have to be there at the same time

    def share(number: int, shares: int) -> None:
        met.wait()

    threads.run_shares(share, (), 3)


def test_a_failure_is_raised_after_all_have_ended() -> None:
    ended = []

    def share(number: int, shares: int) -> None:
        if number == 0:
            raise MemoryError("no room")
        time.sleep(0.05)
        ended.append(number)

    with pytest.raises(MemoryError, match="no room"):
        threads.run_shares(share, (), 3)
    assert sorted(ended) == [1, 2]
    threads.run_shares(lambda *_: None, (), 3)  # the threads are still there


def test_an_interrupt_waits_for_the_others() -> None:
    ended = []

    def share(number: int, shares: int) -> None:
        if number == shares - 1:  # the caller's own
            raise KeyboardInterrupt
        time.sleep(0.05)
        ended.append(number)

    with pytest.raises(KeyboardInterrupt):
        threads.run_shares(share, (), 2)
    assert ended == [0]


def test_thread_count_is_put_back_and_belongs_to_its_thread() -> None:
    before = threads.current_threads()
    with pytest.raises(RuntimeError, match="inside"), threads.thread_count(1):
        assert threads.current_threads() == 1
        seen: list[int] = []
        other = threading.Thread(target=lambda: seen.append(threads.current_threads()))
        other.start()
        other.join()
        assert seen == [before]
        raise RuntimeError("inside")
    assert threads.current_threads() == before
    with threads.thread_count(10**6):
        assert threads.current_threads() == threads.max_threads()
    with threads.thread_count(0):
        assert threads.current_threads() == 1


def two_loops(x: np.ndarray) -> None:
    for i in numba.prange(len(x)):
        for j in numba.prange(i):
            x[j] = 1


def result(x: np.ndarray) -> int:
    for i in numba.prange(len(x)):
        x[i] = 1
    return 1


def writes_first(x: np.ndarray) -> None:
    x[0] = 1
    for i in numba.prange(len(x)):
        x[i] += 1


def counts_first(x: np.ndarray) -> None:
    n = len(x)
    n += 1
    for i in numba.prange(n):
        x[i] += 1


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (two_loops, "more than one loop"),
        (result, "last statement of result must be a loop"),
        (writes_first, r"more before its loop .*'x\[0\] = 1'"),
        (counts_first, "more before its loop"),
    ],
)
def test_loops_that_cannot_be_shared_are_refused(function: object, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        threads.in_shares(function)  # type: ignore[arg-type]


def test_all_kernels_of_the_package_can_be_shared() -> None:
    count = 0
    package = Path(proxfield.__file__).parent
    for path, text in jit.kernel_sources(package).items():
        if b"@parallel_kernel" not in text:
            continue
        name = ".".join(path.relative_to(package.parent).with_suffix("").parts)
        module = import_module(name)
        for value in vars(module).values():
            if isinstance(value, jit.ParallelKernel) and value.__module__ == name:
                names = list(inspect.signature(threads.in_shares(value._function)).parameters)
                assert names[-2:] == ["_share", "_shares"]
                count += 1
    assert count > 20, proxfield.__file__


def usable_cores() -> int:
    """Cores that threads can be kept on; 1 where the system doesn't let us choose."""
    if not hasattr(os, "sched_setaffinity"):
        return 1
    found: list[bool] = []

    def probe() -> None:
        with contextlib.suppress(OSError):
            one = {min(os.sched_getaffinity(0))}
            os.sched_setaffinity(0, one)
            found.append(os.sched_getaffinity(0) == one)

    thread = threading.Thread(target=probe)
    thread.start()
    thread.join()
    return len(os.sched_getaffinity(0)) if found == [True] else 1


CORES = usable_cores()


@pytest.mark.skipif(CORES < 2, reason="needs two cores, and Linux")
def test_threads_keep_off_the_core_of_the_caller_unless_they_are_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    where: list[set[int]] = []

    def share(number: int, shares: int, late: float) -> None:
        if number == 0:
            where.append(os.sched_getaffinity(0))
            time.sleep(late)

    def run(late: float) -> None:
        threads.run_shares(lambda number, shares: share(number, shares, late), (), 2)

    every = os.sched_getaffinity(0)
    monkeypatch.setattr(threads, "_workers", threads._Workers())
    monkeypatch.setattr(threads, "PATIENCE", 60.0)  # nobody is late, however busy the machine is
    run(0.0)
    assert where[0] < every and len(where[0]) == len(every) - 1
    monkeypatch.setattr(threads, "PATIENCE", 1e-4)
    monkeypatch.setattr(threads, "BUSY_SECONDS", 3600.0)
    run(0.1)
    assert threads._workers.avoided == -1
    assert os.sched_getaffinity(threads._workers.ids[0]) == every
    run(0.0)  # still free
    assert where[-1] == every
    assert os.sched_getaffinity(0) == every  # the caller's own is as it was


@pytest.mark.skipif(CORES < 2, reason="needs two cores, and Linux")
def test_more_threads_than_cores_run_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_workers", threads._Workers())
    threads.run_shares(lambda *_: None, (), CORES + 1)
    for thread in threads._workers.ids:
        assert os.sched_getaffinity(thread) == os.sched_getaffinity(0)


INTERRUPTED = """
import _thread, random, threading, time
from proxfield.core.compiled.threads import run_shares

rng, round_begins = random.Random(0), threading.Semaphore(0)

def interrupt():  # once in every round
    while True:
        round_begins.acquire()
        time.sleep(rng.random() * 2e-4)
        _thread.interrupt_main()

def work(ran, share, shares):
    ran.append(share)

seen = whole = 0
threading.Thread(target=interrupt, daemon=True).start()
end = time.monotonic() + 4
while time.monotonic() < end:
    ran = []
    try:
        round_begins.release()
        while True:  # until the interrupt comes
            ran = []
            run_shares(work, (ran,), 3)
            assert sorted(ran) == [0, 1, 2], ran
            whole += 1
    except KeyboardInterrupt:
        seen += 1
        assert len(ran) == len(set(ran)), ran
print(seen > 50, whole > 50, seen, whole)
"""


@pytest.mark.slow
def test_ctrl_c_at_any_time_leaves_nobody_waiting() -> None:
    """No news of an end is lost, and no share runs twice, wherever an interrupt comes."""
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=120
    )
    assert "True True" in done.stdout, done.stdout + done.stderr[-2000:]
