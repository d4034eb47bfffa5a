"""Files of learning: arrays in npz form with a JSON header inside; nothing is pickled."""

from __future__ import annotations

import io
import json
import zipfile

import numpy as np

from proxfield._version import __version__
from proxfield.core.common.arrays import Arrays
from proxfield.core.common.memory import check_memory
from proxfield.core.common.records import Record
from proxfield.errors import InputError, shown
from proxfield.io.files import Source, Target, atomic_write, display_name, naming_damage, read_bytes
from proxfield.io.npy import read_member

FORMAT = "proxfield-learn"
VERSION = 1
"""Of the format; a file of another one is refused."""


def write_arrays(path: Target, holds: str, header: Record, arrays: Arrays) -> None:
    """Write arrays and a header to a file, whole or not at all.

    Args:
        path: Where to write; .gz, .xz and .bz2 names are compressed.
        holds: What the file holds: the name of a class, for instance.
        header: What else there is to say: numbers, text, lists and dictionaries of these.
        arrays: Arrays by name.

    Raises:
        InputError: If it can't be written; a file that was there stays as it is.
    """
    about: Record = {"format": FORMAT, "version": VERSION, "holds": holds, "library": __version__}
    for name, array in arrays.items():
        if np.asarray(array).dtype.hasobject:
            raise InputError(f"array {name!r} holds objects, expected numbers or text")
    try:
        text = json.dumps({**about, "arrays": list(arrays), **header}, default=_plain)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"a parameter can't be saved ({error}), expected numbers, text or lists",
            path=display_name(path),
        ) from None
    buffer = io.BytesIO()
    content = {"header": np.frombuffer(text.encode(), np.uint8), **arrays}
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in content.items():
            member = zipfile.ZipInfo(f"{name}.npy")  # of a fixed date: equal files for equal models
            member.compress_type = zipfile.ZIP_DEFLATED
            with archive.open(member, "w", force_zip64=True) as stream:
                np.lib.format.write_array(stream, np.asanyarray(array), allow_pickle=False)
    atomic_write(path, buffer.getvalue())


def read_arrays(
    source: Source, holds: str, *, max_bytes: int | None = None
) -> tuple[Record, Arrays]:
    """Read what `write_arrays` wrote.

    Args:
        source: A path or an open binary file.
        holds: What the file must hold.
        max_bytes: Maximum number of bytes of content, 4 GiB by default.

    Returns:
        The header, and the arrays by name.

    Raises:
        InputError: If the file is damaged, of another version, or holds something else.
    """
    data, path = read_bytes(source, max_bytes)
    if not data.startswith(b"PK"):
        raise InputError("isn't an npz archive, expected a file that save() wrote", path=path)
    try:
        with naming_damage(None), zipfile.ZipFile(io.BytesIO(data)) as archive:
            check_memory(sum(m.file_size for m in archive.infolist()), f"reading {path}")
            header = _read_header(archive, holds)
            names = [str(name) for name in header["arrays"]]
            if {f"{name}.npy" for name in ("header", *names)} != set(archive.namelist()):
                raise InputError("the file is damaged: its arrays aren't those of the header")
            return header, {name: read_member(archive, name) for name in names}
    except InputError as error:
        raise InputError(error.message, path=path) from None


def _read_header(archive: zipfile.ZipFile, holds: str) -> Record:
    if "header.npy" not in archive.namelist():
        raise InputError("has no header, expected a file that save() wrote")
    header = json.loads(read_member(archive, "header").tobytes().decode())
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise InputError("isn't a file of proxfield.learn, expected one that save() wrote")
    if header.get("version") != VERSION:
        raise InputError(
            f"has version {shown(header.get('version'))} of the format, expected {VERSION}"
        )
    if header.get("holds") != holds:
        raise InputError(f"holds {shown(header.get('holds'))}, expected {shown(holds)}")
    return header


def _plain(value: object) -> object:
    """Numpy's numbers and arrays as Python's, for JSON."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is no number, text or list")
