"""Text in files: numbers, read without the blanks that nobody needs but with lines, and JSON."""

from __future__ import annotations

import io
import json
import re
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from proxfield.errors import InputError
from proxfield.io.files import Source, open_source

SPACES = b" \t\n\r\v\f"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
"""What some Windows editors put in front."""
BLANK_RATIO = 4
"""A piece with less than one solid byte in so many is mostly blank."""
_RUN = re.compile(rb"[ \t\n\r\v\f]{16,}")


@dataclass(frozen=True, eq=False)
class Text:
    """A text in which long runs of blanks may have been shortened.

    Args:
        data: The text.
        offsets: Where lines are missing: after a run of blanks that was shortened.
        lines: How many, at each of these.
    """

    data: bytes
    offsets: array[int] = field(default_factory=lambda: array("q"))
    lines: array[int] = field(default_factory=lambda: array("q"))

    def line(self, offset: int) -> int:
        """The line of the file that the byte at this offset is in, counted from 1."""
        missing = sum(self.lines[: bisect_right(self.offsets, offset)])
        return 1 + count_lines(self.data[:offset]) + missing


def count_lines(text: bytes) -> int:
    r"""Number of line ends; \r\n, \n and a lone \r each are one."""
    return text.count(b"\n") + text.count(b"\r") - text.count(b"\r\n")


def squeeze(chunks: Iterable[bytes]) -> Text:
    """Join pieces of text; where they are mostly blank, each run of blanks becomes one.

    Binary data ends the text: nobody can use what follows.

    Example:
        >>> text = squeeze([b"PR" + 100 * b" \\n", b"1"])
        >>> text.data, text.line(4)
        (b'PR \\n1', 101)
    """
    out = io.BytesIO()
    offsets, lines = array("q"), array("q")
    held = b""  # a \r at the end of a piece: the next may begin with its \n
    first = True
    for piece in _then_empty(chunks):
        piece, last = held + piece, not piece
        if first:
            piece, first = piece.removeprefix(BYTE_ORDER_MARK), False
        held = b""
        if piece.endswith(b"\r") and not last:
            piece, held = piece[:-1], b"\r"
        solid = len(piece.translate(None, SPACES))
        if BLANK_RATIO * solid >= len(piece):
            out.write(piece)
        else:
            done = 0
            for begin, end in _long_runs(piece, solid):
                ends = count_lines(piece[begin:end])
                out.write(piece[done:begin])
                out.write(b" \n" if ends else b" ")  # a blank first: \r and \n would be one end
                done = end
                if ends > 1:
                    offsets.append(out.tell())
                    lines.append(ends - 1)
            out.write(piece[done:])
        if not piece.isascii() or b"\0" in piece:
            break
    return Text(out.getvalue(), offsets, lines)


def _long_runs(piece: bytes, solid: int) -> Iterator[tuple[int, int]]:
    """Where long runs of blanks begin and end; a regular expression would be slow on only one."""
    if solid == 0:
        return iter([(0, len(piece))])
    return (run.span() for run in _RUN.finditer(piece))


def _then_empty(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The pieces that hold something, and an empty one at the end."""
    yield from filter(None, chunks)
    yield b""


def read_text(source: Source, max_bytes: int | None = None) -> tuple[Text, str]:
    """Read a text file, plain or compressed; runs of blanks take no memory.

    Args:
        source: A path, ``"-"`` for standard input, or an open binary file.
        max_bytes: Maximum number of bytes of content, as for `proxfield.io.read_bytes`.

    Returns:
        The text and the name to print in messages.

    Raises:
        InputError: If the file can't be read, is a broken archive, or is larger than allowed.
    """
    chunks, name = open_source(source, max_bytes)
    try:
        return squeeze(chunks), name
    except MemoryError:
        raise InputError("doesn't fit in memory, expected a smaller file", path=name) from None


def decode_text(data: bytes, name: str, expected: str) -> str:
    """The text of a file in UTF-8, with or without a byte order mark.

    Raises:
        InputError: If it is something else; says what was expected.
    """
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"isn't text, expected {expected}", path=name) from None


def parse_json(text: str, name: str) -> object:
    """The content of a JSON file.

    Raises:
        InputError: If it isn't JSON, with the line.
    """
    try:
        content: object = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"isn't JSON ({error.msg})", path=name, line=error.lineno) from None
    except (RecursionError, ValueError) as error:
        reason = type(error).__name__
        raise InputError(f"isn't JSON that can be read ({reason})", path=name) from None
    return content
