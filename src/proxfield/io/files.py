"""Reading whole files, plain or compressed, and replacing files without partial results.

A small archive can hold a lot of nothing (a megabyte of xz unpacks to 7 GB of blanks), so
the content comes in pieces, and a limit ends it before memory does.
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import json
import lzma
import os
import re
import secrets
import stat
import sys
import zlib
from collections.abc import Callable, Iterator
from errno import EINVAL
from functools import partial
from itertools import chain
from lzma import FORMAT_XZ, LZMADecompressor, LZMAError
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

from proxfield.core.common.memory import human_bytes
from proxfield.errors import InputError, ProxfieldError, reason
from proxfield.io.remote import RemotePath, is_remote, make_path

# "-" (a plain str) stands for standard input or output.
Source: TypeAlias = "str | os.PathLike[str] | BinaryIO"
Target: TypeAlias = "str | os.PathLike[str]"

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
NO_FOLDER = "its folder doesn't exist, expected an existing folder (try mkdir -p)"

_FD_PATH = re.compile(r"/(?:dev|proc/self)/fd/([0-9]{1,9})|/dev/std(out|err)")
_UNWRITABLE = {
    FileNotFoundError: ", " + NO_FOLDER,
    IsADirectoryError: ", is a directory, expected a file name",
    PermissionError: ", permission denied, expected a writable file and folder",
}


def display_name(path: object) -> str:
    """Name of a file as printed in messages: always a single printable line.

    Control characters and undecodable bytes are escaped, so that a strange file
    name can't break a one-line message.

    Args:
        path: A path or any object with a useful ``str``.

    Returns:
        The name, escaped where needed.

    Example:
        >>> display_name("a\\nb.uai")
        'a\\\\nb.uai'
    """
    text = os.fsdecode(path) if isinstance(path, bytes | os.PathLike) else str(path)
    if text.isprintable():
        return text
    return text.encode("unicode_escape", "backslashreplace").decode("ascii")


def ending(path: Target) -> str:
    """The suffix of a file, in lower case; two suffixes for ``.nii.gz``.

    Example:
        >>> ending("a/Head.NII.gz"), ending("x.tar.gz"), ending("x.png")
        ('.nii.gz', '.gz', '.png')
    """
    name = Path(path).name.lower()
    return ".nii.gz" if name.endswith(".nii.gz") else Path(name).suffix


def stem(path: Target) -> str:
    """The name of a file without its `ending`.

    Example:
        >>> stem("a/Head.nii.gz"), stem("x.png")
        ('Head', 'x')
    """
    name = Path(path).name
    return name[: len(name) - len(ending(path))]


@contextlib.contextmanager
def naming(path: Target, line: int | None = None) -> Iterator[None]:
    """Add the name of a file, and the line, to an `InputError` that names none.

    Example:
        >>> with naming("x.npy"):
        ...     raise InputError("holds no array")
        Traceback (most recent call last):
        proxfield.errors.InputError: x.npy: holds no array
    """
    try:
        yield
    except InputError as error:
        if error.path is not None:
            raise
        where = error.line or line
        raise InputError(error.message, path=display_name(path), line=where) from None


@contextlib.contextmanager
def naming_damage(
    name: str | None, what: str = "array file", *passed: type[Exception]
) -> Iterator[None]:
    """Raise `InputError` for whatever goes wrong while a library reads a file.

    For a damaged file, numpy, zipfile, zlib, Pillow and others raise a dozen kinds of errors,
    `tokenize.TokenError` (numpy's header is a Python literal) and MemoryError among them.

    Args:
        name: The file's name in messages; None if the caller adds it.
        what: What kind of file it is, for messages.
        *passed: Errors that the caller handles.

    Example:
        >>> with naming_damage("x.npy"):
        ...     raise EOFError("No data left in file")
        Traceback (most recent call last):
        proxfield.errors.InputError: x.npy: array file is damaged or cut short (No data left in \
file), expected a whole file
    """
    passed = (ProxfieldError, *passed)
    try:
        yield
    except passed:
        raise
    except FileNotFoundError:
        raise InputError("no such file, expected an existing file", path=name) from None
    except MemoryError:
        raise InputError(
            f"{what} doesn't fit in memory, expected a smaller one (or a whole file, if its size "
            "is wrong)",
            path=name,
        ) from None
    except Exception as error:
        # EINVAL: a damaged file names places outside of itself
        if isinstance(error, OSError) and error.errno not in (None, EINVAL):
            raise InputError(
                f"can't read ({reason(error)}), expected a readable file", path=name
            ) from None
        said = error.args[0] if error.args and isinstance(error.args[0], str) else str(error)
        why = display_name(" ".join(said.split())) or type(error).__name__
        raise InputError(
            f"{what} is damaged or cut short ({why}), expected a whole file", path=name
        ) from None


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


def _reader(stream: object, name: str) -> Read:
    """How to read from an open file; text streams are refused unless they wrap bytes."""
    stream = getattr(stream, "buffer", stream)
    read = getattr(stream, "read", None)
    if read is None:
        raise InputError(
            f"can't read from {type(stream).__name__}, expected a path, '-' or a binary file"
        )

    def some(size: int) -> bytes:
        try:
            content = read(size)
        except (OSError, ValueError) as error:
            raise InputError(
                f"can't read ({reason(error)}), expected an open, readable binary file", path=name
            ) from None
        if isinstance(content, str):
            content = content.encode("utf-8", "surrogateescape")
        if not isinstance(content, bytes | bytearray | memoryview):
            raise InputError(
                f"read() gave {type(content).__name__}, expected bytes "
                "(open the file in mode 'rb')",
                path=name,
            )
        return bytes(content)

    return some


def no_such_file(name: str) -> InputError:
    """The error for a file that isn't there."""
    return InputError(
        "no such file, expected an existing file (check the spelling and the folder)", path=name
    )


def _open(path: str | os.PathLike[str], name: str) -> BinaryIO:
    """Open a file for reading, or say why it can't be."""
    try:
        return make_path(path).open("rb")
    except FileNotFoundError:
        raise no_such_file(name) from None
    except InputError:
        raise
    except (OSError, ValueError) as error:
        message = f"can't read ({reason(error)}), expected a readable file"
        if isinstance(error, PermissionError):
            message = "permission denied, expected a readable file (try chmod +r)"
        # Windows says PermissionError when a directory is opened
        if isinstance(error, IsADirectoryError | PermissionError) and Path(path).is_dir():
            message = "is a directory, expected a file inside it"
        raise InputError(message, path=name) from None


def open_source(source: Source, max_bytes: int | None = None) -> tuple[Iterator[bytes], str]:
    """The content of a file in pieces, decompressed, and its name for messages.

    Args:
        source: A path, ``"-"`` for standard input, or an open binary file.
        max_bytes: Maximum number of bytes of content; see `archives.read_chunks`.

    Raises:
        InputError: If the file is missing, unreadable or a directory; while iterating, if it is
            a broken archive or too large.
    """
    if max_bytes is not None and (isinstance(max_bytes, bool) or max_bytes < 0):
        raise InputError(f"max_bytes={max_bytes!r}, expected a number of bytes, 0 or more")
    if isinstance(source, str) and source == "-":
        if sys.stdin is None:
            raise InputError("standard input is closed, expected a file name or piped data")
        name = "<stdin>"
        return read_chunks(_reader(sys.stdin, name), name, max_bytes), name
    if not isinstance(source, str | os.PathLike):
        given = getattr(source, "name", None)
        name = display_name(given) if isinstance(given, str | os.PathLike) else "<file>"
        return read_chunks(_reader(source, name), name, max_bytes), name
    name = display_name(source)
    stream = _open(source, name)
    remote = is_remote(os.fspath(source))

    def chunks() -> Iterator[bytes]:
        with stream:
            size = stream.seek(0, 2) if remote else os.fstat(stream.fileno()).st_size
            if remote:
                stream.seek(0)
            yield from read_chunks(_reader(stream, name), name, max_bytes, size=size)

    return chunks(), name


def read_bytes(source: Source, max_bytes: int | None = None) -> tuple[bytes, str]:
    """Read a whole file and decompress it if it's a gzip, xz or bzip2 archive.

    Archives are recognized by their first bytes, so a wrong or missing suffix
    does no harm.

    Args:
        source: A path, ``"-"`` for standard input, or an open binary file.
        max_bytes: Maximum number of bytes of content. By default 4 GiB, and for an archive at
            most 64 MiB or 250 times its own size, whichever is more.

    Returns:
        The content and the name to print in messages.

    Raises:
        InputError: If the file is missing, unreadable, a directory, a broken archive, or larger
            than allowed.

    Example:
        >>> import io
        >>> read_bytes(io.BytesIO(b"0"))
        (b'0', '<file>')
    """
    chunks, name = open_source(source, max_bytes)
    try:
        return b"".join(chunks), name
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
        why = type(error).__name__
        raise InputError(f"isn't JSON that can be read ({why})", path=name) from None
    return content


def _compress(data: bytes, name: str) -> bytes:
    """Compress as the suffix asks; the same data always give the same bytes."""
    gz = partial(gzip.compress, compresslevel=6, mtime=0)
    kinds: dict[str, Callable[[bytes], bytes]]
    kinds = {".gz": gz, ".xz": lzma.compress, ".bz2": bz2.compress}
    return kinds.get(Path(name).suffix.lower(), bytes)(data)


def _write_all(fd: int, data: bytes) -> None:
    """Write everything to a descriptor and close it, whatever happens."""
    with os.fdopen(fd, "wb") as stream:
        stream.write(data)
        stream.flush()
        if stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            os.fsync(stream.fileno())


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A new name beside a path; what is written there gets that path when the block ends."""
    aside = path.parent / f".proxfield-{secrets.token_hex(8)}.tmp"
    try:
        yield aside
        aside.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            aside.unlink()
        raise


def _replace(path: str, data: bytes) -> None:
    """Write aside in the folder of the (resolved) path, then rename over it."""
    # A symbolic link stays a link: the file it points to is replaced.
    real = Path(os.path.realpath(path))
    old_mode: int | None = None
    with contextlib.suppress(FileNotFoundError):
        status = real.stat()
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError
        if not stat.S_ISREG(status.st_mode):
            _write_all(os.open(real, os.O_WRONLY | getattr(os, "O_BINARY", 0)), data)
            return
        if not os.access(real, os.W_OK):
            raise PermissionError
        old_mode = stat.S_IMODE(status.st_mode)
    # Mode 0666 less the umask, as open() would give; mkstemp's 0600 would shut others out.
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    with replacing(real) as aside:
        _write_all(os.open(aside, flags, 0o666), data)
        if old_mode is not None:
            aside.chmod(old_mode)


def atomic_write(path: Target, data: bytes | str) -> None:
    """Write a file so that readers see either the old or the whole new content.

    The data go to a temporary file in the same folder, which then takes the name
    of the target. ``.gz``, ``.xz`` and ``.bz2`` names are compressed. Devices,
    pipes, ``/dev/stdout`` and ``"-"`` (standard output) are written directly.

    Args:
        path: Where to write.
        data: Bytes, or text to be encoded in UTF-8.

    Raises:
        InputError: If the target can't be written; no partial file is left.

    Example:
        >>> atomic_write("-", "PR\\n-1.5\\n")
        PR
        -1.5
    """
    raw = data.encode("utf-8") if isinstance(data, str) else bytes(data)
    to_stdout = isinstance(path, str) and path == "-"
    text = os.fsdecode(path)
    name = "<stdout>" if to_stdout else display_name(text)
    # Opening /dev/stdout again would truncate a redirected file, and replacing it would remove the
    # device link itself: both are avoided by writing to the descriptor.
    inherited = _FD_PATH.fullmatch(text)
    try:
        if to_stdout and hasattr(sys.stdout, "buffer"):
            sys.stdout.flush()
            sys.stdout.buffer.write(raw)
            sys.stdout.buffer.flush()
        elif to_stdout:  # a text-only replacement of standard output
            sys.stdout.write(raw.decode("utf-8"))
        elif inherited is not None:
            for stream in (sys.stdout, sys.stderr):
                if stream is not None:
                    stream.flush()
            number = inherited[1] or (1 if inherited[2] == "out" else 2)
            _write_all(os.dup(int(number)), raw)
        elif is_remote(text):
            RemotePath(text).write_whole(_compress(raw, text))
        else:
            _replace(text, _compress(raw, text))
    except InputError:
        raise
    except (OSError, ValueError, AttributeError) as error:
        message = next((text for kind, text in _UNWRITABLE.items() if isinstance(error, kind)), "")
        message = message or f" ({reason(error)}), expected a writable place with enough free space"
        raise InputError(f"can't write{message}", path=name) from None
