"""Ctrl-C on the command line: one line on stderr and exit code 130, whatever is going on.

Inside an inference Ctrl-C is a KeyboardInterrupt that ends it with the best result so far. Anywhere
else (imports, compilation, reading and writing) it ends the process; during imports at once,
because modules in C print or swallow an exception that passes through them. No exception passes
through a compiler, where llvmlite would free memory twice. This module imports next to nothing,
because it guards the imports of all others.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing takes some milliseconds to import
    from types import FrameType
    from typing import NoReturn

INTERRUPTED = 130
MESSAGE = "proxfield: interrupted before there was a result"
SHOW_CURSOR = "\x1b[?25h"
"""A progress bar hides the terminal's cursor."""

IMPORTING = "<frozen importlib._bootstrap"
"""How the names of files begin whose frames are on the stack during an import."""

COMPILERS = ("numba", "llvmlite")
"""Packages whose functions an exception must not leave at any point."""
RETRY_SECONDS = 0.02
"""Time after which a KeyboardInterrupt that had to wait is tried again."""

_seen = False
_begun = False


def interrupted() -> bool:
    """Whether this process has received Ctrl-C: any error after it is a consequence of it.

    Who asks handles it: a KeyboardInterrupt that is still to come doesn't come any more.
    """
    if _seen and hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, 0)
    return _seen


def begin_work() -> None:
    """From now on there may be something to keep: Ctrl-C is always a KeyboardInterrupt."""
    global _begun
    _begun = True


def install() -> None:
    """Handle Ctrl-C, also where Python would only print that it ignored an exception."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else somebody wants it so
        signal.signal(signal.SIGINT, _on_interrupt)
    sys.unraisablehook = _on_unraisable


def ignore() -> None:
    """Ignore Ctrl-C from now on: there is nothing left to interrupt."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "SIGALRM"):
        signal.signal(signal.SIGALRM, signal.SIG_IGN)


def finish(code: object) -> None:
    """Get ready for the end of the process; after Ctrl-C, end it with this exit code.

    Python remembers a KeyboardInterrupt that passed through code run from a string (as modules
    that define named tuples do) and would in the end kill itself by a signal, with another code.
    """
    ignore()
    if _seen and isinstance(code, int):
        _flush()
        atexit._run_exitfuncs()
        _flush()
        os._exit(code)


def leave() -> NoReturn:
    """Say so in one line and end the process, without running anything that could fail."""
    ignore()
    try:
        if sys.stderr.isatty():
            sys.stderr.write(SHOW_CURSOR)
        sys.stderr.write(f"{MESSAGE}\n")
    except (OSError, ValueError, AttributeError):
        pass  # nobody reads it
    _flush()
    os._exit(INTERRUPTED)


def _flush() -> None:
    """Flush the standard streams, if they are still open."""
    for stream in (sys.stdout, sys.stderr):
        try:  # noqa: SIM105 (contextlib is one more import)
            stream.flush()
        except (OSError, ValueError, AttributeError):  # noqa: PERF203
            pass


def _on_interrupt(_: int, frame: FrameType | None) -> None:
    global _seen
    again, _seen = _seen, True
    _interrupt(frame, again)


_on_interrupt.raises = True  # type: ignore[attr-defined]  # as finish_first asks


def _interrupt(frame: FrameType | None, again: bool) -> None:
    """Leave, raise KeyboardInterrupt, or wait until the compiler is done.

    Args:
        frame: Where the main thread is.
        again: Ctrl-C was pressed before.
    """
    compiling = False
    while frame is not None:
        if not _begun and frame.f_code.co_filename.startswith(IMPORTING):
            leave()
        compiling |= frame.f_globals.get("__name__", "").partition(".")[0] in COMPILERS
        frame = frame.f_back
    if compiling and (again or not _begun):
        leave()
    if not (compiling and _later()):
        raise KeyboardInterrupt


def _later() -> bool:
    """Try again in a moment; returns False where the system has no timer."""
    if not hasattr(signal, "setitimer"):
        return False
    signal.signal(signal.SIGALRM, _on_alarm)
    signal.setitimer(signal.ITIMER_REAL, RETRY_SECONDS)
    return True


def _on_alarm(_: int, frame: FrameType | None) -> None:
    if signal.getsignal(signal.SIGINT) is _on_interrupt:
        _interrupt(frame, again=False)
    else:  # something else isn't to be cut off
        _later()


def _on_unraisable(args: sys.UnraisableHookArgs) -> None:
    """Callbacks and finalizers can't pass a KeyboardInterrupt on; it counts all the same."""
    if isinstance(args.exc_value, KeyboardInterrupt) or issubclass(
        args.exc_type, KeyboardInterrupt
    ):
        leave()
    sys.__unraisablehook__(args)
