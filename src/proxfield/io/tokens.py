"""Text files of numbers: fast scanning, with the line of whatever is wrong.

``np.fromstring`` costs about 90 ns for each number, however short: 20 MB/s is out of
reach for files full of one-digit integers. Short plain numbers are therefore
converted column by column with numpy; everything else is left to ``np.fromstring``.
"""

from __future__ import annotations

import io
import itertools
import re
import warnings
from array import array
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from proxfield.core.common.arrays import Doubles, Ints
from proxfield.errors import InputError
from proxfield.io.files import Source, open_source

_SPACES = b" \t\n\r\v\f"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"  # what some Windows editors put in front
_LONG_BLANK = 16  # pieces of blanks that are longer are left out
_SPACE = re.compile(rb"[ \t\n\r\v\f]")
_WORD = re.compile(rb"[^ \t\n\r\v\f]+")
_NUMBER = re.compile(
    rb"[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|inf|infinity|nan)", re.IGNORECASE
)
_BINARY = re.compile(rb"[\x00\x80-\xff]")
# Byte classes: 0 whitespace, 1 digit, 2 decimal point, 3 anything else.
_CLASS = bytes(
    0 if byte in _SPACES else 1 if byte in b"0123456789" else 2 if byte == ord(".") else 3
    for byte in range(256)
)
_CHUNK = 1 << 19  # small enough for the working arrays to stay in cache
# 15 digits fit exactly in a double and so do powers of ten up to 10^22, so mantissa / 10^f
# is rounded once, i.e. correctly.
_EXACT_DIGITS = 15
_LONG_TOKEN = 10.0  # mean length above which np.fromstring is the faster way


@dataclass(frozen=True, eq=False)
class Text:
    """A text in which long pieces of blanks may have been left out."""

    data: bytes
    offsets: array[int]  # where lines are missing
    lines: array[int]  # how many, at each of these

    def line(self, offset: int) -> int:
        """The line of the file that the byte at this offset is in, counted from 1."""
        missing = sum(self.lines[: bisect_right(self.offsets, offset)])
        return 1 + _count_lines(self.data[:offset]) + missing


def _count_lines(text: bytes) -> int:
    r"""Number of line ends; \r\n, \n and a lone \r each are one."""
    return text.count(b"\n") + text.count(b"\r") - text.count(b"\r\n")


def squeeze(chunks: Iterable[bytes]) -> Text:
    """Join pieces of text, with one blank for each piece that holds nothing else.

    Binary data ends the text: nobody can use what follows.

    Example:
        >>> text = squeeze([b"PR", 100 * b" \\n", b"1"])
        >>> text.data, text.line(4)
        (b'PR 1', 101)
    """
    out = io.BytesIO()
    offsets, lines = array("q"), array("q")
    last = b""  # a line end may be split between two pieces
    for k, piece in enumerate(chunks):
        piece = piece if k else piece.removeprefix(_BYTE_ORDER_MARK)
        if len(piece) > _LONG_BLANK and piece.isspace():
            end = b"\r" if piece.endswith(b"\r") else b""
            missing = _count_lines(last + piece) - _count_lines(last + end)
            piece = b" " + end
            if missing:
                offsets.append(out.tell() + 1)
                lines.append(missing)
        out.write(piece)
        last = piece[-1:] or last
        if not piece.isascii() or b"\0" in piece:
            break
    return Text(out.getvalue(), offsets, lines)


def read_text(source: Source, max_bytes: int | None = None) -> tuple[Text, str]:
    """Read a text file, plain or compressed; long runs of blanks take no memory.

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


class _BadTokenError(Exception):
    """Internal: the token of this number, its argument, in a chunk isn't a number."""


def _library(text: bytes, count: int) -> Doubles:
    """Convert with numpy's own reader, which must find exactly ``count`` numbers."""
    try:
        with warnings.catch_warnings():
            # Older versions of numpy only warn about something that isn't a number.
            # The count alone wouldn't tell: numpy 1.24 makes [-1.0] of " x".
            warnings.simplefilter("error")
            found = np.fromstring(text, dtype=np.float64, sep=" ")
        if found.size == count:
            return found
    except (DeprecationWarning, ValueError):
        pass
    for index, word in enumerate(text.split()):
        if not _NUMBER.fullmatch(word):
            raise _BadTokenError(index)
    # Every word is a plain number after all (a future numpy may be stricter than float).
    return np.array([float(word) for word in text.split()], dtype=np.float64)


def _edges(classes: npt.NDArray[np.uint8]) -> tuple[Ints, Ints]:
    """Start and end offsets of the tokens of a text that has whitespace at both ends."""
    inside = classes.astype(bool)
    edges = np.flatnonzero(inside[1:] != inside[:-1]) + 1
    return edges[0::2], edges[1::2]


def _columns(digits: npt.NDArray[np.uint8], starts: Ints, length: int, point: int) -> Doubles:
    """Values of plain numbers which all have this length and the point in this place."""
    mantissa = np.zeros(starts.size, dtype=np.int64)
    for column in range(length):
        if column != point:
            mantissa *= 10
            mantissa += digits[column:].take(starts)
    decimals = length - 1 - point if point < length else 0
    return mantissa / 10.0**decimals if decimals else mantissa.astype(np.float64)


def _convert(text: bytes) -> Doubles:
    """Convert one chunk; ``text`` begins and ends with whitespace."""
    classes = np.frombuffer(text.translate(_CLASS), dtype=np.uint8)
    starts, ends = _edges(classes)
    lengths = ends - starts
    count = starts.size
    if count == 0:
        return np.empty(0)
    if lengths.sum() > _LONG_TOKEN * count:
        return _library(text, count)
    # Where the point stands in each token; "length" means that there's none.
    point = lengths.copy()
    hard = lengths > _EXACT_DIGITS
    special = np.flatnonzero(classes > 1)
    if special.size:
        owner = np.searchsorted(starts, special, side="right") - 1
        is_point = classes[special] == 2
        hard[owner[~is_point]] = True
        hard[owner[1:][owner[1:] == owner[:-1]]] = True  # more than one special character
        point[owner] = special - starts[owner]
        hard |= (lengths == 1) & (point == 0)  # a lone point
        if 4 * np.count_nonzero(hard) > count:
            return _library(text, count)
    digits = np.frombuffer(text, dtype=np.uint8) - np.uint8(48)
    key = (lengths * 16 + point).astype(np.uint16)  # both are at most 15 unless hard
    key[hard] = 0
    sizes = np.bincount(key)
    groups = np.flatnonzero(sizes)
    if groups.size == 1 and groups[0]:
        return _columns(digits, starts, *divmod(int(groups[0]), 16))
    values = np.empty(count)
    order = np.argsort(key, kind="stable")  # a radix sort for 16-bit keys
    stop = 0
    for group in groups.tolist():
        begin, stop = stop, stop + int(sizes[group])
        rows = order[begin:stop]
        if group:
            values[rows] = _columns(digits, starts[rows], *divmod(group, 16))
            continue
        spans = zip(starts[rows].tolist(), ends[rows].tolist(), strict=True)
        try:
            values[rows] = _library(b" ".join([text[a:b] for a, b in spans]), rows.size)
        except _BadTokenError as bad:
            raise _BadTokenError(int(rows[bad.args[0]])) from None
    return values


def _chunks(data: bytes, begin: int) -> list[tuple[int, int]]:
    """Cut the text in pieces which don't split a token."""
    cuts = [begin]
    while cuts[-1] < len(data):
        space = _SPACE.search(data, min(cuts[-1] + _CHUNK, len(data)))
        cuts.append(space.start() if space else len(data))
    return list(itertools.pairwise(cuts))


class Tokens:
    """The numbers of a text file, after an optional leading word.

    ``numbers[k]`` is the k-th number; ``error(message, k)`` makes the error that
    names its line.

    Args:
        data: The content of the file, whole or from `read_text`.
        name: The name of the file for messages.
        headers: Upper-case words which may open the file.
        required: Whether one of these words must open the file.

    Raises:
        InputError: If the file isn't text or holds something that isn't a number.

    Example:
        >>> tokens = Tokens(b"PR\\n-1.5", "x.PR", headers=("PR",))
        >>> tokens.header, tokens.numbers.tolist()
        ('PR', [-1.5])
    """

    def __init__(
        self,
        data: bytes | Text,
        name: str,
        *,
        headers: tuple[str, ...] = (),
        required: bool = False,
    ) -> None:
        text = data if isinstance(data, Text) else squeeze([data])
        self._text = text
        self._data = text.data
        self.name = name
        self.header = ""
        self._begin = 0
        if b"\0" in self._data or not self._data.isascii():
            offset = next(match.start() for match in _BINARY.finditer(self._data))
            byte = self._data[offset]
            raise self._at(f"binary data (byte 0x{byte:02x}), expected plain ASCII text", offset)
        first = _WORD.search(self._data)
        if first:
            word = first.group().decode("ascii")
            if word.upper() in headers:
                self.header = word.upper()
                self._begin = first.end()
            elif required or (headers and not _NUMBER.fullmatch(first.group())):
                raise self._at(
                    f"unknown header {_show(word)}, expected {' or '.join(headers)}", first.start()
                )
        elif required:
            raise InputError(
                f"the file is empty, expected {' or '.join(headers)}", path=name, line=1
            )
        self.numbers = self._scan()
        self.count = int(self.numbers.size)

    def _scan(self) -> Doubles:
        # Pages of np.empty that are never written cost nothing, so the upper bound is safe.
        numbers = np.empty((len(self._data) - self._begin + 1) // 2)
        filled = 0
        for begin, end in _chunks(self._data, self._begin):
            try:
                found = _convert(b" %b " % self._data[begin:end])
            except _BadTokenError as bad:
                place = filled + bad.args[0]
                what = f"{_show(self.word(place))} isn't a number, expected a number"
                raise self.error(what, place) from None
            numbers[filled : filled + found.size] = found
            filled += found.size
        return numbers[:filled]

    def _span(self, index: int) -> tuple[int, int]:
        """Offsets of a token; of the last one (or the end of the header) if there are too few."""
        last = (self._begin, self._begin)
        for begin, end in _chunks(self._data, self._begin):
            text = b" %b " % self._data[begin:end]
            starts, ends = _edges(np.frombuffer(text.translate(_CLASS), dtype=np.uint8))
            if index < starts.size:
                return begin - 1 + int(starts[index]), begin - 1 + int(ends[index])
            index -= starts.size
            if starts.size:
                last = begin - 1 + int(starts[-1]), begin - 1 + int(ends[-1])
        return last

    def word(self, index: int) -> str:
        """The k-th number as it's written in the file."""
        begin, end = self._span(index)
        return self._data[begin:end].decode("ascii")

    def _at(self, message: str, offset: int) -> InputError:
        return InputError(message, path=self.name, line=self._text.line(offset))

    def error(self, message: str, index: int) -> InputError:
        """The error to raise about the k-th number (past the end: about the last one)."""
        return self._at(message, self._span(index)[0])

    def integer(self, index: int, what: str, low: int, high: int | None = None) -> int:
        """Read one integer, which must lie in a range.

        Args:
            index: Which number of the file.
            what: What the number means, for messages.
            low: The least legal value.
            high: The largest legal value, if there's one.

        Returns:
            The integer.

        Example:
            >>> Tokens(b"3 4", "x").integer(1, "the number of labels", 1)
            4
        """
        expected = f"an integer >= {low}" if high is None else f"an integer in {low}..{high}"
        if index >= self.count:
            raise self.error(f"the file ends before {what}, expected {expected}", index)
        value = float(self.numbers[index])
        if not (value >= low and value.is_integer() and (high is None or value <= high)):
            raise self.error(f"{what} is {_show(self.word(index))}, expected {expected}", index)
        return int(value)

    def check_integers(
        self, part: Doubles, places: Ints, what: str, low: int, high: int | Ints
    ) -> None:
        """Refuse the first of some numbers that isn't an integer in ``low..high``."""
        good = (part >= low) & (part <= high) & (part == np.floor(part))
        if not good.all():
            bad = int(np.argmin(good))
            top = high if isinstance(high, int) else int(high[bad])
            self.integer(int(places[bad]), what, low, top)

    def records(self, index: int, count: int, what: str, low: int, high: int) -> tuple[Ints, int]:
        """Find the heads of ``count`` records, each a length followed by as many numbers.

        Head i + 1 stands right after the numbers of record i, so a run of equal
        lengths is a run of equally spaced equal numbers, and can be checked at once.

        Args:
            index: Where the first record begins.
            count: How many records there are.
            what: What the length of a record means, for messages.
            low: The least legal length.
            high: The largest legal length.

        Returns:
            The places of the heads, and the place after the last record.

        Example:
            >>> Tokens(b"2 7 8 1 9", "x").records(0, 2, "the size", 0, 9)
            (array([0, 3]), 5)
        """
        heads = np.empty(count, dtype=np.int64)
        done, window = 0, 16
        while done < count:
            length = self.integer(index, what, low, high)
            step = length + 1
            span = self.numbers[index : index + step * min(window, count - done) : step]
            same = span == length
            run = int(same.size if same.all() else np.argmin(same))
            heads[done : done + run] = np.arange(index, index + step * run, step)
            done, index = done + run, index + step * run
            if run == window:
                window = min(window * 4, 1 << 20)
            elif window > 16:
                window //= 2
            else:  # short runs: a plain loop is faster than numpy calls
                done, index = self._walk(index, done, heads, low, high)
        if index > self.count:
            head = int(heads[-1])
            raise self.error(
                f"{what} is {int(self.numbers[head])}, but the file has only "
                f"{self.count - head - 1} numbers left, expected a longer file",
                head,
            )
        return heads, index

    def _walk(self, index: int, done: int, heads: Ints, low: int, high: int) -> tuple[int, int]:
        """Find heads one by one within a block of the file."""
        block = self.numbers[index : index + (1 << 16)].tolist()
        places: list[int] = []
        at, room, size = 0, heads.size - done, len(block)
        while at < size and len(places) < room:
            length = block[at]
            if not (low <= length <= high and length.is_integer()):
                break  # the caller reads this one again and says what's wrong
            places.append(index + at)
            at += int(length) + 1
        heads[done : done + len(places)] = places
        return done + len(places), index + at


def _show(word: str) -> str:
    """A token as quoted in messages: printable, and cut if it's long."""
    return repr(word if len(word) <= 40 else word[:37] + "...")
