"""New folders of files that appear whole or not at all."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from proxfield.errors import InputError
from proxfield.io.files import display_name


def check_folder(folder: str | os.PathLike[str]) -> Path:
    """The folder to write, if it can be made or is empty.

    Raises:
        InputError: If there is something in it, or it can't be made.
    """
    path, name = Path(folder), display_name(folder)
    parent = Path(os.path.realpath(path)).parent
    if path.exists() and not path.is_dir():
        raise InputError("can't write, is a file, expected a new folder", path=name)
    if path.is_dir() and any(path.iterdir()):
        raise InputError("can't write, isn't empty, expected a new or empty folder", path=name)
    if not parent.is_dir():
        raise InputError("can't write, the folder it is in doesn't exist (try mkdir -p)", path=name)
    if not os.access(parent, os.W_OK | os.X_OK):
        raise InputError("can't write, permission denied", path=name)
    return path


@contextmanager
def new_folder(folder: str | os.PathLike[str]) -> Iterator[Path]:
    """A folder to write into, which gets its name when all is written.

    Args:
        folder: Its name; it mustn't exist, or must be empty.

    Yields:
        A temporary folder beside it.

    Raises:
        InputError: If it can't be written; then nothing is left of it.
    """
    path = check_folder(folder)
    aside = Path(os.path.realpath(path)).parent / f".proxfield-{secrets.token_hex(8)}.tmp"
    try:
        aside.mkdir()
        yield aside
        if path.is_dir():
            path.rmdir()
        aside.rename(path)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise InputError(f"can't write ({reason})", path=display_name(folder)) from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)
