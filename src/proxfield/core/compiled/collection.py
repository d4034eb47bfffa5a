"""Garbage collection pauses while kernels are compiled.

numba makes millions of objects, all in use until a kernel is done. Looking for garbage among them
again and again is a fourteenth of the time that compiling takes.
"""

from __future__ import annotations

import gc
from typing import Any

from numba.core import event


class Pause(event.Listener):
    """Switches Python's garbage collection off while numba compiles, if it was on.

    numba reports compilations under its own lock: they are nested, never concurrent.
    """

    def __init__(self) -> None:
        self.depth = 0
        self.was_on = False

    def on_start(self, event: Any) -> None:
        if self.depth == 0:
            self.was_on = gc.isenabled()
            gc.disable()
        self.depth += 1

    def on_end(self, event: Any) -> None:
        self.depth = max(self.depth - 1, 0)
        if self.depth == 0 and self.was_on:
            self.was_on = False
            gc.enable()


PAUSE = Pause()


def listen() -> None:
    """Register with numba; done once, when this package is about to compile."""
    register: Any = event.register
    register("numba:compile", PAUSE)
