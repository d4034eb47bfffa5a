"""A clock that counts work instead of seconds, so that no test depends on how busy a machine is."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

from proxfield.core.engines.base import Program

WORK: dict[str, Callable[..., int]] = {
    "advance": lambda rows, *args: len(rows),
    "explore": lambda ended, *args: int(ended.sweeps.sum()),
    "descend": lambda labels, program, start, sweeps: sweeps,
}
"""Methods of programs whose work counts; each tells the updates from what it returned and got."""


class CountedClock:
    """Stands in the place of ``time.perf_counter``: moves on with every update and every look.

    Args:
        update: Seconds that an update of all variables takes.
        look: Seconds that a look at the clock takes; never 0, so that waiting ends.

    Example:
        >>> with CountedClock(look=2.0) as clock:
        ...     time.perf_counter(), time.perf_counter(), clock.now
        (2.0, 4.0, 4.0)
    """

    def __init__(self, update: float = 1e-3, look: float = 1e-6) -> None:
        self.update, self.look = update, look
        self.now, self.inside = 0.0, False
        self.patches = ExitStack()

    def read(self) -> float:
        """The time, after a look at it."""
        self.now += self.look
        return self.now

    def __enter__(self) -> CountedClock:
        self.patches.enter_context(patch.object(time, "perf_counter", self.read))
        for kind in subclasses(Program):
            for name in WORK.keys() & vars(kind).keys():
                self.patches.enter_context(patch.object(kind, name, self.counted(kind, name)))
        return self

    def __exit__(self, *_: object) -> None:
        self.patches.close()

    def counted(self, kind: type[Program], name: str) -> Callable[..., Any]:
        """A method that also moves the clock."""
        plain, updates = getattr(kind, name), WORK[name]

        def method(*args: Any) -> Any:
            outermost, self.inside = not self.inside, True  # a method may call itself
            try:
                out = plain(*args)
            finally:
                self.inside = not outermost
            if outermost:
                self.now += self.update * updates(out, *args)
            return out

        return method


def subclasses(kind: type) -> Iterator[type]:
    """All classes that are derived from one."""
    for derived in kind.__subclasses__():
        yield derived
        yield from subclasses(derived)
