"""Folders of files: new ones that appear whole or not at all, and those of a work in progress."""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from proxfield._version import __version__
from proxfield.core.common.logs import log
from proxfield.core.common.records import Record
from proxfield.errors import InputError, reason
from proxfield.io.files import atomic_write, display_name

PARAMETERS = "parameters.json"
FINISHED = "finished.txt"
OWN = {PARAMETERS, FINISHED, "decisions.json"}
"""What another run may just have written, if both begin at the same time."""


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
        raise InputError(f"can't write ({reason(error)})", path=display_name(folder)) from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)


class ProgressFolder:
    """Which parts are finished; survives the end of the process at any moment.

    Parts are finished when a line with their number is there; it is written after what they made. A
    folder of other parameters, or of another version, is emptied first.

    Args:
        path: The folder; made if it isn't there.
        parameters: All that decides on the results, as JSON has it.
        resume: Whether finished parts count; otherwise the folder is emptied.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as place:
        ...     ProgressFolder(Path(place), {"tile": 8}).finish(3)
        ...     ProgressFolder(Path(place), {"tile": 8}).finished
        {3}
    """

    def __init__(self, path: Path, parameters: Record, resume: bool = True) -> None:
        self.path = path
        self.finished: set[int] = set()
        """Numbers of finished parts."""
        text = json.dumps({"proxfield": __version__, **parameters}, indent=1, default=str) + "\n"
        try:
            path.mkdir(exist_ok=True)
            stored = path / PARAMETERS
            there = stored.read_text(encoding="utf-8") if stored.exists() else None
            names = {x.name for x in path.iterdir() if not x.name.startswith(".proxfield-")}
            if there is None and not names <= OWN:
                raise InputError(
                    "holds something else, expected an empty folder for the work in progress",
                    path=display_name(path),
                )
            if there is not None and (there != text or not resume):
                if resume:
                    log.info("%s: made with other parameters, begun anew", display_name(path))
                shutil.rmtree(path)
                path.mkdir()
                there = None
            if there is None:
                atomic_write(stored, text)
            elif (path / FINISHED).exists():
                *lines, cut = (path / FINISHED).read_text(encoding="ascii").split("\n")
                self.finished = {int(line) for line in lines}
                if cut:  # the process was ended while it wrote this line
                    atomic_write(path / FINISHED, "".join(f"{line}\n" for line in lines))
        except OSError as error:
            raise InputError(
                f"can't write there ({reason(error)}), expected a folder for the work in progress",
                path=display_name(path),
            ) from None

    def finish(self, number: int) -> None:
        """Say that a part is finished."""
        with (self.path / FINISHED).open("a", encoding="ascii") as stream:
            stream.write(f"{number}\n")
            stream.flush()
            os.fsync(stream.fileno())
        self.finished.add(number)

    def note(self, name: str, value: Record | None = None) -> Record | None:
        """Keep a decision under a name, or return what was kept; None if nothing was."""
        path = self.path / f"{name}.json"
        if value is not None:
            atomic_write(path, json.dumps(value) + "\n")
        elif path.exists():
            value = json.loads(path.read_text(encoding="utf-8"))
        return value

    def claim(self, name: str) -> bool:
        """Whether this run is the first one to claim a task that only one may do."""
        try:
            (self.path / f"{name}.claim").mkdir()
        except (FileExistsError, FileNotFoundError):  # begun by another run, or done and removed
            return False
        return True

    def remove(self) -> None:
        """All is done: the folder goes."""
        shutil.rmtree(self.path)
