"""The exceptions that proxfield raises on purpose, and its warnings.

Every message is one line: what is wrong, where, and what was expected.
"""

from __future__ import annotations

from reprlib import Repr
from typing import Any


class ProxfieldError(Exception):
    """Base class of every error raised on purpose."""


class InputError(ProxfieldError, ValueError):
    """A file, an array or an argument that can't be used.

    Args:
        message: What is wrong and what was expected.
        path: The file the problem is in, if any.
        line: The 1-based line in that file, if known.

    Example:
        >>> str(InputError("table has 3 entries, expected 4", path="m.uai", line=7))
        'm.uai:7: table has 3 entries, expected 4'
    """

    def __init__(self, message: str, *, path: str | None = None, line: int | None = None) -> None:
        self.message = message
        self.path = path
        self.line = line
        where = "" if path is None else f"{path}: " if line is None else f"{path}:{line}: "
        super().__init__(where + message)


class MemoryLimitError(ProxfieldError, MemoryError):
    """A field that would not fit in memory, found out before allocating."""


class UnsupportedError(ProxfieldError, TypeError):
    """A rule or a tool needs something that a term or a field doesn't offer."""


class MissingDependencyError(ProxfieldError, ImportError):
    """An optional package is needed; the message says how to install it."""


class GradientWarning(RuntimeWarning):
    """A gradient was not computed in the way that was asked for; the message says how it was."""


_REPR = Repr()
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = 40


def shown(value: Any) -> str:
    """A value for a message: its repr, cut where it is long.

    Example:
        >>> shown("x" * 1000)
        "'xxxxxxxxxxxxxxxxx...xxxxxxxxxxxxxxxxxx'"
    """
    return " ".join(_REPR.repr(value).split())
