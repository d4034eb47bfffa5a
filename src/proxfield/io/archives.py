"""Decompressing as a stream: gzip, xz and bzip2, with a limit on what comes out.

A small archive can hold a lot of nothing (a megabyte of xz unpacks to 7 GB of blanks), so
the content comes in pieces, and a limit ends it before memory does.
"""

from __future__ import annotations

import bz2
import zlib
from collections.abc import Callable, Iterator
from itertools import chain
from lzma import FORMAT_XZ, LZMADecompressor, LZMAError
from typing import Any

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

KINDS: dict[str, tuple[str, bytes, Callable[[], Any]]] = {
    "gzip": (".gz", b"\x1f\x8b", lambda: zlib.decompressobj(wbits=31)),  # checks the checksum
    "xz": (".xz", b"\xfd7zXZ\x00", lambda: LZMADecompressor(FORMAT_XZ, memlimit=XZ_MEMORY)),
    "bzip2": (".bz2", b"BZh", bz2.BZ2Decompressor),
}
"""Suffixes, first bytes and decoders of the kinds of archives."""
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
        max_bytes: Maximum number of bytes of content, as for `proxfield.io.read_bytes`.
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
    packed, content = len(head), 0

    def following() -> bytes:
        nonlocal packed
        more = read(CHUNK)
        packed += len(more)
        return more

    pieces = chain([head] if head else [], iter(following, b""))
    try:
        for piece in _decompressed(kind, pieces) if kind else pieces:
            content += len(piece)
            limit = MAX_BYTES if max_bytes is None else max_bytes
            if max_bytes is None and kind:
                limit = min(limit, max(FREE_BYTES, MAX_RATIO * max(packed, size)))
            if content > limit:
                what = "the archive unpacks to" if kind else "the file holds"
                raise InputError(
                    f"{what} more than {human_bytes(limit)}, expected less "
                    "(raise the limit with max_bytes, --max-bytes on the command line)",
                    path=name,
                )
            yield piece
    except InputError:
        raise
    except (OSError, EOFError, ValueError, zlib.error, LZMAError) as error:
        if kind is None:
            raise
        message = f"{kind} archive is corrupt or cut short ({reason(error)}), expected a whole one"
        if isinstance(error, LZMAError) and "memory usage limit" in str(error).lower():
            message = (
                f"xz archive needs more than {human_bytes(XZ_MEMORY)} to decompress, "
                "expected at most what xz -9 uses"
            )
        raise InputError(message, path=name) from None


def _kind(head: bytes, name: str) -> str | None:
    """The kind of archive that begins like this, None if it is none."""
    for kind, (suffix, magic, _) in KINDS.items():
        if head.startswith(magic):
            return kind
        # Cut inside the magic bytes: only the suffix still tells that it was an archive.
        if name.lower().endswith(suffix) and magic.startswith(head):
            raise InputError(
                f"{kind} archive is cut short after {len(head)} bytes, expected a whole archive",
                path=name,
            )
    return None


def _decompressed(kind: str, packed: Iterator[bytes]) -> Iterator[bytes]:
    """Pieces of the streams of an archive, one stream after the other."""
    _, magic, new_decoder = KINDS[kind]
    data = next(packed)
    while data.startswith(magic):
        decoder = new_decoder()
        while True:
            if piece := decoder.decompress(data, CHUNK):
                yield piece
            if decoder.eof:
                break
            # zlib hands back what it had no room for, the others keep it
            data = getattr(decoder, "unconsumed_tail", b"")
            if not data and getattr(decoder, "needs_input", True):
                data = next(packed, b"")
                if not data:
                    raise EOFError("the end of the stream is missing")
        data = decoder.unused_data
        while True:  # streams may be padded with zeros
            data = data.lstrip(b"\0") if kind != "bzip2" else data
            if len(data) >= len(magic) or not (more := next(packed, b"")):
                break
            data += more
    if data and kind == "gzip":
        raise ValueError("something else follows the stream")
    # as xz and bzip2 do, ignore what follows
