"""Decompressing as a stream: gzip, xz and bzip2, with a limit on what comes out.

A small archive can hold a lot of nothing (a megabyte of xz unpacks to 7 GB of blanks), so
the content comes in pieces, and a limit ends it before memory does.
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable, Iterator

from proxfield.core.common.memory import human_bytes
from proxfield.errors import InputError, reason

CHUNK = 1 << 20
"""Bytes read, and bytes decompressed, at a time."""
MAX_BYTES = 4 << 30
"""Default limit on the content of any file, compressed or not."""
WHOLE = 256 << 20
"""Bytes up to which a file is read in one piece."""
FREE_BYTES = 64 << 20
"""What a compressed file may hold by default, however small it is."""
MAX_RATIO = 250
"""Beyond `FREE_BYTES`, default limit on the content per byte of a compressed file."""
XZ_MEMORY = 256 << 20
"""Memory of the xz decoder: its dictionary is as large as the file says (65 MiB for xz -9)."""

MAGIC = {
    "gzip": (".gz", b"\x1f\x8b"),
    "xz": (".xz", b"\xfd7zXZ\x00"),
    "bzip2": (".bz2", b"BZh"),
}
"""Suffixes and first bytes of the kinds of archives."""
LONGEST_MAGIC = 6

Read = Callable[[int], bytes]
"""Gives up to so many bytes, none at the end."""


def read_chunks(
    read: Read, name: str, max_bytes: int | None = None, *, size: int = 0
) -> Iterator[bytes]:
    """The content in pieces, decompressed if it is an archive (told by its first bytes).

    Args:
        read: Reads the file.
        name: The name of the file for messages.
        max_bytes: Maximum number of bytes of content. By default 4 GiB, and for an archive at
            most 64 MiB or 250 times its own size, whichever is more.
        size: Bytes of the file itself, if known before it is read.

    Raises:
        InputError: If an archive is broken, or there is more content than allowed.
    """
    head = b""
    # a file whole, where its size is known: pieces would have to be joined
    first = max(CHUNK, min(size + 1, WHOLE))
    while len(head) < LONGEST_MAGIC and (more := read(first)):  # a pipe may give a byte at a time
        head += more
    kind = _kind(head, name)
    limit = _Limit(name, max_bytes, size)
    if kind is None:
        while head:
            limit.count(len(head))
            yield head
            head = read(CHUNK)
        return
    try:
        for piece in _decompress(kind, head, read, limit):
            limit.count(len(piece))
            yield piece
    except InputError:
        raise
    except (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError) as error:
        message = f"{kind} archive is corrupt or cut short ({reason(error)}), expected a whole one"
        if isinstance(error, lzma.LZMAError) and "memory usage limit" in str(error).lower():
            message = (
                f"xz archive needs more than {human_bytes(XZ_MEMORY)} to decompress, "
                "expected at most what xz -9 uses"
            )
        raise InputError(message, path=name) from None


class _Limit:
    """Counts bytes of content and says when they are too many."""

    def __init__(self, name: str, max_bytes: int | None, size: int) -> None:
        self.name = name
        self.max_bytes = max_bytes
        self.size = size
        self.packed: int | None = None
        """Bytes of the archive read so far; None for a plain file."""
        self.content = 0

    def count(self, size: int) -> None:
        self.content += size
        limit = MAX_BYTES if self.max_bytes is None else self.max_bytes
        if self.max_bytes is None and self.packed is not None:
            limit = min(limit, max(FREE_BYTES, MAX_RATIO * max(self.packed, self.size)))
        if self.content > limit:
            what = "the file holds" if self.packed is None else "the archive unpacks to"
            raise InputError(
                f"{what} more than {human_bytes(limit)}, expected less "
                "(raise the limit with max_bytes, --max-bytes on the command line)",
                path=self.name,
            )


def _kind(head: bytes, name: str) -> str | None:
    """The kind of archive that begins like this, None if it is none."""
    for kind, (suffix, magic) in MAGIC.items():
        if head.startswith(magic):
            return kind
        # Cut inside the magic bytes: only the suffix still tells that it was an archive.
        if name.lower().endswith(suffix) and magic.startswith(head):
            raise InputError(
                f"{kind} archive is cut short after {len(head)} bytes, expected a whole archive",
                path=name,
            )
    return None


def _decompress(kind: str, data: bytes, read: Read, limit: _Limit) -> Iterator[bytes]:
    """Pieces of the streams of an archive, one stream after the other."""
    magic = MAGIC[kind][1]
    limit.packed = len(data)

    def refill() -> bytes:
        more = read(CHUNK)
        limit.packed = (limit.packed or 0) + len(more)
        return more

    while True:
        decoder: _Gzip | lzma.LZMADecompressor | bz2.BZ2Decompressor
        if kind == "xz":
            decoder = lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=XZ_MEMORY)
        else:
            decoder = _Gzip() if kind == "gzip" else bz2.BZ2Decompressor()
        while not decoder.eof:
            if decoder.needs_input and not data:
                data = refill()
                if not data:
                    raise EOFError("the end of the stream is missing")
            piece = decoder.decompress(data, CHUNK)
            data = b""
            if piece:
                yield piece
        data = decoder.unused_data
        while True:  # streams may be padded with zeros
            data = data.lstrip(b"\0") if kind != "bzip2" else data
            if len(data) >= len(magic):
                break
            more = refill()
            if not more:
                break
            data += more
        if not data.startswith(magic):
            if data and kind == "gzip":
                raise ValueError("something else follows the stream")
            return  # as xz and bzip2 do, ignore what follows


class _Gzip:
    """zlib's decoder of gzip streams with the interface of the two others."""

    def __init__(self) -> None:
        self._decoder = zlib.decompressobj(wbits=31)  # a gzip header and trailer, both checked

    @property
    def eof(self) -> bool:
        return self._decoder.eof

    @property
    def needs_input(self) -> bool:
        return not self._decoder.unconsumed_tail

    @property
    def unused_data(self) -> bytes:
        return self._decoder.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        return self._decoder.decompress(self._decoder.unconsumed_tail + data, max_length)
