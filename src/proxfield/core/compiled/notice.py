"""What happens while numba compiles: a word on stderr, and no garbage collection.

The word is a record of the logger "proxfield.compiling", written once per process when compiling
has taken more than a second. A program that listens to that logger (or to "proxfield", or to all)
gets it there; otherwise it goes to stderr, on a terminal with the seconds counted.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeAlias

from numba.core import event

COMPILE = "numba:compile"
"""The events that are listened to."""
SWITCH = "PROXFIELD_QUIET"
PATIENCE = 1.0
"""Seconds of compiling before anything is said."""
PAUSE = 0.2
"""Seconds between two looks; compiling that rests as long has ended."""

WORK = (
    ("core.engines.numba.chains.draw_binary", "searches in fields of two labels", 4),
    ("core.engines.numba.chains.binary_", "searches in fields of two labels", 4),
    ("core.engines.numba.binary", "fields of two labels", 10),
    ("core.engines.numba.general_chains.", "searches in fields of any labels", 14),
    ("core.engines.numba.chains.", "searches in fields of any labels", 14),
    ("core.engines.numba.general", "fields of any labels", 10),
    ("core.engines.numba.dense", "dense fields", 10),
    ("core.filters.", "dense fields", 10),
)
"""What kernels are for, by how their names begin, and seconds that all of a first call take
(`benchmarks/cold_start.py`, one core of 2024). A package outside the core says it of its kernels in
``COMPILING``."""

Event: TypeAlias = Any
"""A compilation that begins or ends, as numba reports it."""

register: Any = event.register
listening: Any = event.install_listener

log = logging.getLogger("proxfield.compiling")
log.setLevel(logging.INFO)


class Notice(event.Listener):
    """Listens to numba while kernels of this package are compiled."""

    def __init__(self) -> None:
        self.quiet = os.environ.get(SWITCH, "0") not in ("", "0")
        self.said = False
        self.suspended = 0
        self.depth = 0
        self.message = ""  # of the kernel that is being compiled
        self.spent = 0.0  # seconds of compiling before the present one
        self.since = 0.0
        self.watcher: threading.Thread | None = None

    def on_start(self, event: Event) -> None:
        if not _is_ours(event):
            return
        if self.depth == 0:
            self.since = time.monotonic()
            self.message = describe(event)
        self.depth += 1
        if self.said or self.quiet or self.suspended:
            return
        if self.watcher is None or not self.watcher.is_alive():  # or it was lost in a fork
            self.watcher = threading.Thread(target=self.watch, name="proxfield-notice", daemon=True)
            self.watcher.start()

    def on_end(self, event: Event) -> None:
        if not _is_ours(event) or self.depth == 0:
            return
        self.depth -= 1
        if self.depth == 0:
            self.spent += time.monotonic() - self.since

    def seconds(self) -> float:
        """Spent on compiling so far."""
        return self.spent + (time.monotonic() - self.since if self.depth else 0.0)

    def watch(self) -> None:
        """Say it if compiling goes on for long enough, and count the seconds until it ends."""
        while self.seconds() < PATIENCE:
            if not self.depth or self.quiet or self.suspended:
                return
            time.sleep(PAUSE)
        if self.said or self.quiet or self.suspended or not log.isEnabledFor(logging.INFO):
            return
        self.said = True
        if _is_heard():
            log.info(self.message)
            return
        stream, text = sys.stderr, f"proxfield: {self.message}"
        with suppress(AttributeError, OSError, ValueError):  # there is no stderr, or it was closed
            if not stream.isatty():
                print(text, file=stream, flush=True)
                return
            resting, seconds = 0, ""
            while resting < 2:  # one look may fall between two kernels
                print(f"\r{text}{seconds}" if seconds else text, end="", file=stream, flush=True)
                time.sleep(PAUSE)
                resting, seconds = (0 if self.depth else resting + 1), f" {self.seconds():.0f} s"
            print(f"\r{text}{seconds}", file=stream, flush=True)


def _is_ours(event: Event) -> bool:
    function = getattr(event.data.get("dispatcher"), "py_func", None)
    return str(getattr(function, "__module__", "")).startswith("proxfield.")


def describe(event: Event) -> str:
    """What is being compiled and about how long that takes, from an event of numba."""
    function = event.data["dispatcher"].py_func
    name = f"{function.__module__}.{function.__qualname__}".removeprefix("proxfield.")
    if ".numba.loops." in name:  # for both kinds of fields
        kind = "general" if "GeneralPack" in str(event.data["args"]) else "binary"
        name = f"core.engines.numba.{kind}"
    package = sys.modules.get(".".join(function.__module__.split(".")[:2]))
    own = getattr(package, "COMPILING", None)
    for beginning, what, seconds in [("", *own)] if own else WORK:
        if name.startswith(beginning):
            return f"compiling kernels for {what}, once, about {seconds} s (cached afterwards)…"
    return "compiling kernels, once (cached afterwards)…"


def _is_heard() -> bool:
    """Whether some handler will show a record of this logger."""
    logger: logging.Logger | None = log
    while logger is not None:
        shows = [h for h in logger.handlers if not isinstance(h, logging.NullHandler)]
        if any(handler.level <= logging.INFO for handler in shows):
            return True
        logger = logger.parent if logger.propagate else None
    return False


NOTICE = Notice()


class Outermost(event.Listener):
    """Calls functions as compilations begin and end, though not for the helpers of a kernel."""

    def __init__(self, begin: Callable[[Event], object], end: Callable[[], object]) -> None:
        self.begin, self.end, self.depth = begin, end, 0

    def on_start(self, event: Event) -> None:
        self.depth += 1
        if self.depth == 1:
            self.begin(event)

    def on_end(self, event: Event) -> None:
        self.depth = max(self.depth - 1, 0)
        if self.depth == 0:
            self.end()


class Pause(Outermost):
    """Switches Python's garbage collection off while numba compiles, if it was on.

    numba makes millions of objects, all in use until a kernel is done: looking for garbage among
    them is a fourteenth of the time that compiling takes. numba reports compilations under its own
    lock: they are nested, never concurrent.
    """

    def __init__(self) -> None:
        super().__init__(self.pause, self.go_on)
        self.was_on = False

    def pause(self, _: Event) -> None:
        self.was_on = gc.isenabled()
        gc.disable()

    def go_on(self) -> None:
        if self.was_on:
            self.was_on = False
            gc.enable()


PAUSING = Pause()


def listen() -> None:
    """Register with numba; done once, when this package is about to compile."""
    for listener in (NOTICE, PAUSING):
        register(COMPILE, listener)


@contextmanager
def suspended() -> Iterator[None]:
    """Say nothing, because somebody else does."""
    NOTICE.suspended += 1
    try:
        yield
    finally:
        NOTICE.suspended -= 1


def quiet(on: bool = True) -> None:
    """Say nothing on stderr while kernels are compiled; PROXFIELD_QUIET=1 does the same.

    Args:
        on: False: say it again.

    Example:
        >>> import proxfield as pf
        >>> pf.quiet()
        >>> pf.quiet(False)
    """
    NOTICE.quiet = on


@contextmanager
def compiled_kernels() -> Iterator[list[str]]:
    """The names of this package's kernels that are compiled (not loaded) meanwhile."""
    names: list[str] = []

    def note(event: Event) -> None:
        if _is_ours(event):
            function = event.data["dispatcher"].py_func
            names.append(f"{function.__module__}.{function.__qualname__}")

    with listening(COMPILE, Outermost(note, bool)):
        yield names


@contextmanager
def when_compiling(notify: Callable[[str], None]) -> Iterator[None]:
    """Call ``notify`` once, when a kernel is really compiled rather than loaded.

    Args:
        notify: Gets a line that says what is being compiled, and about how long that takes.
    """
    waiting = [notify]

    def tell(event: Event) -> None:
        if waiting:
            waiting.pop()(describe(event))

    with listening(COMPILE, Outermost(tell, bool)), suspended():  # one message is enough
        yield
