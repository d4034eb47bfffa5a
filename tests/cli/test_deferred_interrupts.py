"""Ctrl-C that is deferred: never lost, never early, and not passed on to other processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from proxfield.core.common.interrupts import deferred

POSIX = pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals")


@pytest.mark.parametrize("block", [False, pytest.param(True, marks=POSIX)])
def test_it_is_raised_at_the_end(block: bool) -> None:
    steps = []
    with pytest.raises(KeyboardInterrupt), deferred(block=block) as interrupted:
        steps.append(interrupted())
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        steps.append(interrupted())
    assert steps == [False, True]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with deferred(block=block) as interrupted:  # nothing is left of the first one
        assert not interrupted()


def test_it_goes_to_the_handler_that_was_there() -> None:
    seen = []
    before = signal.signal(signal.SIGINT, lambda *_: seen.append(1))
    try:
        with deferred():
            signal.raise_signal(signal.SIGINT)
            assert seen == []
        assert seen == [1]
    finally:
        signal.signal(signal.SIGINT, before)


@POSIX
def test_a_thread_may_receive_it() -> None:
    """Blocked in the main thread only, the signal goes to another one."""
    ready, end = threading.Event(), threading.Event()

    def stand_by() -> None:
        ready.set()
        end.wait()

    thread = threading.Thread(target=stand_by)
    thread.start()
    ready.wait()
    try:
        with pytest.raises(KeyboardInterrupt), deferred(block=True) as interrupted:
            os.kill(os.getpid(), signal.SIGINT)
            deadline = time.monotonic() + 600
            while not interrupted() and time.monotonic() < deadline:
                time.sleep(0.01)
            assert interrupted()
    finally:
        end.set()
        thread.join()


@POSIX
def test_new_processes_do_not_see_it() -> None:
    code = "import os, signal; os.kill(os.getpid(), signal.SIGINT); print('alive')"
    for block in (False, True):
        with deferred(block=block):
            done = subprocess.run(
                [sys.executable, "-c", code], capture_output=True, text=True, check=False
            )
        assert ("alive" in done.stdout) is block


@POSIX
@pytest.mark.parametrize("block", [False, True])
def test_ignored_stays_ignored(block: bool) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with deferred(block=block) as interrupted:
            signal.raise_signal(signal.SIGINT)
            assert not interrupted()
    finally:
        signal.signal(signal.SIGINT, before)
