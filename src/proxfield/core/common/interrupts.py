"""Ctrl-C between updates, never inside one; and around code that it must not cut off."""

from __future__ import annotations

import _thread
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def finish_first() -> Iterator[None]:
    """Let the block end before Ctrl-C raises KeyboardInterrupt.

    An update that is cut off in the middle would leave marginals and natural parameters of
    different states. A second Ctrl-C is raised at once. Signals can only be handled in the
    main thread. A handler of the user's own is left alone, unless it has an attribute ``raises``
    that is true: then it is called at the end.
    """
    main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT)
    if not main or not (before is signal.default_int_handler or getattr(before, "raises", False)):
        yield
        return
    asked = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        asked = True
        signal.signal(signal.SIGINT, before)  # the second one is raised

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if asked:
        assert callable(before)
        before(signal.SIGINT, None)  # raises KeyboardInterrupt


RETRY_SECONDS = 0.02
"""Time after which a KeyboardInterrupt that couldn't be raised is tried again."""


@contextmanager
def raised_again() -> Iterator[None]:
    """Raise KeyboardInterrupt again, a little later, where a callback swallows it."""
    before = sys.unraisablehook
    timers: list[threading.Timer] = []

    def retry(args: sys.UnraisableHookArgs) -> None:
        if not issubclass(args.exc_type, KeyboardInterrupt):
            before(args)
            return
        timers.append(threading.Timer(RETRY_SECONDS, _thread.interrupt_main))
        timers[-1].start()

    sys.unraisablehook = retry
    try:
        yield
    finally:
        try:
            for timer in timers:  # none of them fires after the block
                timer.cancel()
                timer.join()
        finally:
            sys.unraisablehook = before


@contextmanager
def deferred(*, block: bool = False) -> Iterator[Callable[[], bool]]:
    """Remember Ctrl-C during the block and handle it at the end, as if it came then.

    Unlike a signal that is ignored, one that is remembered isn't lost. A block that takes long
    asks the function that it gets whether Ctrl-C has come. Nothing is deferred outside of the main
    thread, which is the only one to handle signals, or where Ctrl-C is ignored.

    block: Also block the signal, where the system can do that: threads and processes that are
        started within never receive it, not even before their first instruction.
    """
    before = signal.getsignal(signal.SIGINT)
    main = threading.current_thread() is threading.main_thread()
    if not main or before is None or before is signal.SIG_IGN:
        # if ignored, not blocked either: a signal that is blocked is pending, ignored or not
        yield lambda: False
        return
    block = block and hasattr(signal, "pthread_sigmask")
    seen = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal seen
        seen = True

    def interrupted() -> bool:
        return seen or (block and signal.SIGINT in signal.sigpending())

    # a handler in any case: a thread that existed before may receive the signal
    signal.signal(signal.SIGINT, note)
    try:
        if not block:
            yield interrupted
        else:
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                yield interrupted
            finally:  # a signal that is pending is noted now
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    finally:
        signal.signal(signal.SIGINT, before)
        if seen:
            signal.raise_signal(signal.SIGINT)
