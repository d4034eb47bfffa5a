"""Arrays that are read and written window by window: files that don't fit in memory.

A `Sliced` knows its shape and its type and reads one window at a time; it keeps nothing open, so
that it can be sent to other processes and its memory doesn't grow with what was read. An `Output`
is written in windows: a file is made under another name, in the folder of the work in progress, and
renamed when all of it is there, so that nobody ever sees a part of a result.

A format is a module with the two functions of `Format`, and one line in `FORMATS`.
"""

from __future__ import annotations

import os
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

import numpy as np

from proxfield.core.common.arrays import Dtype, Pixels
from proxfield.core.common.extras import import_extra
from proxfield.errors import InputError
from proxfield.io.files import display_name, ending
from proxfield.io.remote import AnyPath, RemotePath, is_remote, make_path, reason

if TYPE_CHECKING:
    from proxfield.io.tiff import GeoReference

FORMATS = {".npy": "npy", ".zarr": "zarrs", ".tif": "tiff", ".tiff": "tiff"}
"""The modules of the formats, by the endings of files."""

KINDS = tuple(FORMATS)
"""Endings of the files that can be written in windows."""

Window = tuple[slice, ...]
"""A range along each of the first axes, with numbers from 0."""


class Sliced(ABC):
    """An array that is read in windows.

    Attributes:
        shape: Its shape.
        dtype: The type of its numbers.
        name: What to call it in messages.
    """

    shape: tuple[int, ...]
    dtype: Dtype
    name: str

    @abstractmethod
    def read(self, window: Window) -> Pixels:
        """The numbers in a window along all axes; an array in memory."""

    @abstractmethod
    def identity(self) -> str:
        """What tells it from other arrays, or from what its file held before."""


class Output(ABC):
    """An array that is written in windows.

    Args:
        shape: Its shape.
        dtype: The type of its numbers.
    """

    def __init__(self, shape: tuple[int, ...], dtype: Dtype) -> None:
        self.shape, self.dtype = shape, dtype

    @abstractmethod
    def write(self, window: Window, values: Pixels) -> None:
        """Write a window; what is written is in the file when this returns."""

    def finish(self) -> None:
        """All windows are written: give the file its name."""
        return None


class NewFile(NamedTuple):
    """A file that is to be written in windows."""

    target: Path  # its name
    folder: Path  # where it is made
    shape: tuple[int, ...]
    dtype: Dtype
    chunks: tuple[int, ...]  # of a zarr array
    reference: GeoReference | None = None  # the place on Earth that a TIFF is written with
    nodata: int | None = None  # the value of a GeoTIFF's pixels that have none


class Format(Protocol):
    """What the module of a format offers."""

    def open_file(self, path: AnyPath) -> Sliced:
        """A file of this format that is read in windows."""

    def make_file(self, new: NewFile) -> Output:
        """A file of this format; what is in progress in the folder goes on."""


def _format(ending: str) -> Format:
    return cast(Format, import_module(f"proxfield.io.{FORMATS[ending]}"))


@contextmanager
def writing_to(place: object) -> Iterator[None]:
    """Turn what the system says about a place (a full disk, say) into one line.

    Args:
        place: A file or a folder; anything else is called the output.
    """
    try:
        yield
    except OSError as error:
        name = place if isinstance(place, str | PathLike) else "the output"
        raise InputError(
            f"can't write ({reason(error)}), expected a writable place with enough free space; "
            "the same call then goes on",
            path=display_name(name),
        ) from None


# ---- reading ----


def open_sliced(given: Any, what: str = "the image") -> Sliced:
    """What was given, as an array that is read in windows.

    Args:
        given: The name of a file (``.npy``, ``.zarr``, ``.tif``, ``.svs`` and other tiled TIFF), or
            anything with a shape, a dtype and slices: arrays of numpy, zarr, h5py, dask, …
        what: What it is, for messages.

    Raises:
        InputError: If it can't be read in windows.

    Example:
        >>> open_sliced(np.eye(3)).read((slice(0, 2), slice(1, 3))).tolist()
        [[0.0, 0.0], [1.0, 0.0]]
    """
    if isinstance(given, Sliced):
        return given
    if isinstance(given, str | PathLike):
        return _open_file(make_path(given))
    if isinstance(given, np.memmap) and given.filename is not None and _is_whole(given):
        from proxfield.io.npy import Mapped

        order = "C" if given.flags.c_contiguous else "F"
        return Mapped(Path(given.filename), given.shape, given.dtype, int(given.offset), order)
    if all(hasattr(given, name) for name in ("shape", "dtype", "__getitem__")):
        return Held(given, what)
    return Held(np.asarray(given), what)


def _is_whole(mapped: np.memmap[Any, Any]) -> bool:
    """Whether this is all that was mapped and no view of a part, whose place isn't known."""
    return not isinstance(mapped.base, np.ndarray) and (
        mapped.flags.c_contiguous or mapped.flags.f_contiguous
    )


def _open_file(path: AnyPath) -> Sliced:
    name = display_name(path)
    if is_zarr(path):
        return _format(".zarr").open_file(path)
    if isinstance(path, RemotePath):
        raise InputError(
            "can't be read in windows there, expected a zarr array or a file of this machine",
            path=name,
        )
    if not path.exists():
        raise InputError(
            "no such file, expected an existing file (check the spelling and the folder)", path=name
        )
    if path.is_dir():
        raise InputError("is a folder, expected a file or a zarr array", path=name)
    kind = ".npy" if ending(path) == ".npy" else ".tif" if _is_tiff(path) else None
    if kind is not None:
        return _format(kind).open_file(path)
    raise InputError(
        "can't be read in windows, expected .npy, .zarr or a tiled TIFF (or the array itself)",
        path=name,
    )


def _is_tiff(path: Path) -> bool:
    """Whether a file begins like a TIFF, whatever its name: slides have many."""
    with path.open("rb") as stream:
        return stream.read(4) in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")


def is_zarr(path: str | PathLike[str]) -> bool:
    """Whether a folder holds an array, or a group of arrays, of zarr.

    Example:
        >>> is_zarr(".")
        False
    """
    if is_remote(os.fspath(path)) and ending(path) != ".zarr":
        return False  # without asking for each of many files
    return any((make_path(path) / name).exists() for name in ("zarr.json", ".zarray", ".zgroup"))


def is_windowed(path: str | PathLike[str]) -> bool:
    """Whether a file's name says that it can be read in windows."""
    return (ending(path) in FORMATS and ending(path) != ".zarr") or is_zarr(path)


class Held(Sliced):
    """An array in memory, or an object of another library that reads by itself."""

    def __init__(self, array: Any, what: str) -> None:
        self.array, self.name = array, what
        self.shape = tuple(int(n) for n in array.shape)
        self.dtype = np.dtype(array.dtype)

    def read(self, window: Window) -> Pixels:
        return np.asarray(self.array[window])

    @property
    def in_memory(self) -> bool:
        """Whether all numbers are in memory: sent to other processes, they would all be copied."""
        return isinstance(self.array, np.ndarray)

    def identity(self) -> str:
        if not self.in_memory:
            place = getattr(self.array, "store", None)
            return f"{type(self.array).__name__} {self.shape} {self.dtype} {place}"
        total = 0
        for part in self.array.reshape(len(self.array), -1) if self.array.size else ():
            total = zlib.crc32(np.ascontiguousarray(part).view(np.uint8).data, total)
        return f"array {self.shape} {self.dtype} {total}"


def stamp(path: Path) -> str:
    """A file with its size and the time of its last change."""
    status = path.stat()
    return f"{path.resolve()} {status.st_size} {status.st_mtime_ns}"


def damaged(error: Exception, name: str) -> InputError:
    """The error for a file that a package can't read."""
    why = " ".join(str(error).split()) or type(error).__name__
    return InputError(f"can't be read ({why}), expected a whole file", path=name)


# ---- writing ----


def check_output(path: str | PathLike[str], axes: int) -> None:
    """Refuse a name whose kind can't be written in windows, before any work.

    Args:
        path: The name.
        axes: Axes of the image's pixels.
    """
    name = display_name(path)
    if ending(path) not in FORMATS:
        raise InputError(
            f"can't be written in windows, expected a name ending in {', '.join(FORMATS)}",
            path=name,
        )
    if not Path(path).absolute().parent.is_dir():
        raise InputError(
            "can't write, its folder doesn't exist, expected an existing folder (try mkdir -p)",
            path=name,
        )
    if FORMATS[ending(path)] == "tiff" and axes != 2:
        raise InputError(f"{axes} axes of pixels don't fit a TIFF, expected .npy", path=name)
    is_folder = Path(path).is_dir()
    if is_folder and not (ending(path) == ".zarr" and is_zarr(path)):
        raise InputError("is a folder, expected the name of a file or a zarr array", path=name)
    if ending(path) == ".zarr":
        import_extra("zarr", "zarr arrays need zarr", "tiles")


def open_output(new: NewFile) -> Output:
    """A file that is written in windows; what is in progress in its folder goes on."""
    return _format(ending(new.target)).make_file(new)


class HeldOutput(Output):
    """An array that the caller holds: of numpy, zarr, h5py or another library with slices."""

    def __init__(self, array: Any, shape: tuple[int, ...], dtype: Dtype) -> None:
        super().__init__(shape, dtype)
        there = tuple(getattr(array, "shape", ()))
        if there != shape or not hasattr(array, "__setitem__"):
            raise InputError(f"out of shape {there}, expected an array of shape {shape}")
        own = np.dtype(array.dtype)
        if not np.can_cast(dtype, own, "same_kind"):
            raise InputError(f"out of {own}, expected a type that holds {dtype}")
        self.array = array

    def write(self, window: Window, values: Pixels) -> None:
        self.array[window] = values
        if isinstance(self.array, np.memmap):
            self.array.flush()
