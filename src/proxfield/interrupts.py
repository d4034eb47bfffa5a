"""Ctrl-C between updates, never inside one."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def finish_first() -> Iterator[None]:
    """Let the block end before Ctrl-C raises KeyboardInterrupt.

    An update that is cut off in the middle would leave marginals and natural parameters of
    different states. A second Ctrl-C is raised at once. Signals can only be handled in the
    main thread, and a handler of the user's own is left alone.

    Example:
        >>> with finish_first():
        ...     both = [1, 2]
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    asked = False

    def note(number: int, frame: Any) -> None:
        nonlocal asked
        asked = True
        signal.signal(signal.SIGINT, signal.default_int_handler)  # the second one is raised

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if asked:
        raise KeyboardInterrupt
