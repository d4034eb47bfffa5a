"""The exceptions that proxfield raises on purpose, and its warnings.

Every message is one line of less than 200 characters: what is wrong, where, and what was expected.
Longer ones are cut in what they echo, not in what was expected.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from reprlib import Repr
from types import MappingProxyType

LONGEST_LINE = 199
"""Maximum number of characters of a message."""
LONGEST_VALUE = 60
"""Maximum number of characters of a value that a message echoes."""
LONGEST_WORD = 40
"""Characters to which long words (file names, say) and quoted texts are cut first."""
LEAST_HEAD = 60
"""Characters of what is wrong that stay, however long what was expected is."""
ELLIPSIS = "…"

_short = Repr()
_short.maxstring = _short.maxother = _short.maxlong = LONGEST_VALUE
_short.maxlist = _short.maxtuple = _short.maxset = _short.maxdict = _short.maxarray = 6
_PIECES = re.compile(r"'[^']*'|\"[^\"]*\"|\[[^\]]*\]|\([^)]*\)|\{[^}]*\}|[^\s,;]+")
"""What can be cut in the middle: quoted text, brackets, words."""
_EXPECTED = re.compile(r"(?:[,;]| \(| but)? ?\bexpected ")


def shown(value: object) -> str:
    """A value as messages echo it: its repr on one line, cut if it is long.

    Example:
        >>> shown("x" * 1000)
        "'xxxxxxxxxxxxxxxxxxxxxxxxxxx...xxxxxxxxxxxxxxxxxxxxxxxxxxxx'"
        >>> shown(list(range(1000)))
        '[0, 1, 2, 3, 4, 5, ...]'
    """
    text = _short.repr(value)  # also of objects whose own repr fails
    return cut_middle(" ".join(text.split()), LONGEST_VALUE)


def cut_middle(text: str, longest: int, *, head_share: float = 0.5) -> str:
    """Text without its middle, if it is longer than that.

    Args:
        text: The text.
        longest: Maximum number of characters that are left.
        head_share: Share of them that stay at the beginning.
    """
    if len(text) <= longest:
        return text
    room = max(0, longest - len(ELLIPSIS))
    head = int(head_share * room)
    return text[:head] + ELLIPSIS + text[len(text) - (room - head) :]


def one_line(text: str, longest: int = LONGEST_LINE) -> str:
    """A message on one line of limited length.

    What was expected, and the remedy, stay whole: only what comes before them is cut, unless they
    alone don't fit.

    Example:
        >>> one_line("unknown rule '" + "x" * 500 + "', expected one of: sweep, auto", 86)
        "unknown rule 'xxxxxxxxxxxxxxxxxxxx…xxxxxxxxxxxxxxxxxxxx', expected one of: sweep, auto"
    """
    line = " ".join(text.split())
    if len(line) <= longest:
        return line
    at = _expectation(line)
    least = min(LEAST_HEAD, longest // 3)
    head = _shorten(line[:at], max(least, longest - (len(line) - at)))
    return head + _shorten(line[at:], longest - len(head))


def _expectation(line: str) -> int:
    """Where a message begins to say what was expected, or a remedy; its length if it doesn't."""
    found = _EXPECTED.search(line)
    at = line.rfind("; ") if found is None else found.start()
    return len(line) if at < 0 else at


def _shorten(line: str, longest: int) -> str:
    """A line without the middle of its longest pieces, and if need be without its own middle."""
    for least in (LONGEST_WORD, LONGEST_WORD // 2):
        while len(line) > longest:
            piece = max(_PIECES.finditer(line), key=lambda m: m.end() - m.start(), default=None)
            if piece is None or piece.end() - piece.start() <= least:
                break
            start, end = piece.span()
            spare = max(least, (end - start) - (len(line) - longest))
            share = 0.2 if "/" in piece[0] else 0.5  # of a path, the end is the file's name
            line = line[:start] + cut_middle(piece[0], spare, head_share=share) + line[end:]
    return cut_middle(line, longest)


def reason(error: BaseException) -> str:
    """The cause of an error on one line: what the system says, its own text, or its class."""
    text = getattr(error, "strerror", None) or str(error)
    return " ".join(str(text).split()) or type(error).__name__


class ProxfieldError(Exception):
    """Base class of every error raised on purpose.

    Args:
        message: What is wrong; cut to one line of limited length.
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(one_line(message))


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


class InputTypeError(InputError, TypeError):
    """An argument of the wrong type, or one that a function doesn't have."""


class MemoryLimitError(ProxfieldError, MemoryError):
    """A field that would not fit in memory; raised before allocating."""


class UnsupportedError(ProxfieldError, TypeError):
    """A rule or a tool needs something that a term or a field doesn't offer."""


class MissingDependencyError(ProxfieldError, ImportError):
    """An optional package is needed; the message says how to install it."""


class DistributedError(ProxfieldError, RuntimeError):
    """Processes that share a field can't go on: one was lost, is late, or disagrees."""


class GradientWarning(RuntimeWarning):
    """A gradient was not computed in the requested way; the message says how it was."""


class InputWarning(UserWarning):
    """An input that can be used but is likely not what was meant; the message says what to do."""


def refuse_keywords(
    function: str, given: Mapping[str, object], renamed: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Raise `InputTypeError` for keywords that a function doesn't have.

    Args:
        function: Its name.
        given: The keywords that are left over.
        renamed: Present names of arguments by their former names.

    Example:
        >>> refuse_keywords("Field", {"labels": 2}, {"labels": "n_labels"})
        Traceback (most recent call last):
        proxfield.errors.InputTypeError: Field has no argument 'labels'; it is called n_labels
    """
    for name in given:
        hint = f"; it is called {renamed[name]}" if name in renamed else ""
        raise InputTypeError(f"{function} has no argument {shown(name)}{hint}")
