"""Arrays that are read and written window by window: files that don't fit in memory.

A `Sliced` knows its shape and its type and reads one window at a time; it keeps nothing open, so
that it can be sent to other processes and its memory doesn't grow with what was read. An `Output`
is written in windows: a file is made under another name, in the folder of the work in progress, and
renamed when all of it is there, so that nobody ever sees a part of a result.
"""

from __future__ import annotations

import os
import shutil
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from proxfield.core.common.arrays import Array, Dtype, Pixels
from proxfield.core.common.extras import import_extra
from proxfield.errors import InputError, reason
from proxfield.io.files import (
    NO_FOLDER,
    Target,
    display_name,
    ending,
    naming,
    naming_damage,
    no_such_file,
)
from proxfield.io.remote import AnyPath, RemotePath, is_remote, make_path

if TYPE_CHECKING:
    from proxfield.io.tiff import GeoReference

KINDS = (".npy", ".zarr", ".tif", ".tiff")
"""Endings of the files that can be written in windows."""

import_zarr = partial(import_extra, "zarr", "zarr arrays need zarr", "tiles")
"""The package zarr, or how to install it."""
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


class FileSliced(Sliced):
    """An array in a file, or a folder of zarr.

    Args:
        path: The place.
        opened: Opens it for each window anew: what was read doesn't stay in memory. A reader of
            a class of its own does without.
    """

    def __init__(self, path: AnyPath, opened: Callable[[], Array] | None = None) -> None:
        self.path, self.name, self._opened = path, display_name(path), opened
        if opened is not None:
            array = opened()
            self.shape, self.dtype = tuple(int(n) for n in array.shape), np.dtype(array.dtype)

    def read(self, window: Window) -> Pixels:
        assert self._opened is not None
        with naming_damage(self.name):
            part = self._opened()[window]
            return np.array(part) if isinstance(part, np.memmap) else np.asarray(part)

    def identity(self) -> str:
        if isinstance(self.path, RemotePath) or self.path.is_dir():
            place = self.path if isinstance(self.path, RemotePath) else self.path.resolve()
            return f"{place} {self.shape} {self.dtype}"
        status = self.path.stat()
        return f"{self.path.resolve()} {status.st_size} {status.st_mtime_ns}"


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


def open_sliced(given: Array, what: str = "the image") -> Sliced:
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
        with naming(given):
            return _open_file(make_path(given))
    if (
        isinstance(given, np.memmap)
        and given.filename is not None
        and not isinstance(given.base, np.ndarray)  # a view of a part: its place isn't known
        and (given.flags.c_contiguous or given.flags.f_contiguous)
    ):
        from proxfield.io.npy import mapped

        return mapped(given, Path(given.filename))
    if all(hasattr(given, name) for name in ("shape", "dtype", "__getitem__")):
        return Held(given, what)
    return Held(np.asarray(given), what)


def _open_file(path: AnyPath) -> Sliced:
    from proxfield.io import npy, tiff

    if is_zarr(path):
        return FileSliced(path, partial(_open_zarr, path))
    if isinstance(path, RemotePath):
        raise InputError(
            "can't be read in windows there, expected a zarr array or a file of this machine"
        )
    if not path.exists():
        raise no_such_file(display_name(path))
    if path.is_dir():
        raise InputError("is a folder, expected a file or a zarr array")
    if ending(path) == ".npy":
        return npy.mapped(npy.map_array(path), path)
    with path.open("rb") as stream:  # slides have many endings
        if stream.read(4) in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"):
            return tiff.open_tiff(path)
    raise InputError(
        "can't be read in windows, expected .npy, .zarr or a tiled TIFF (or the array itself)"
    )


def is_zarr(path: Target) -> bool:
    """Whether a folder holds an array, or a group of arrays, of zarr.

    Example:
        >>> is_zarr(".")
        False
    """
    if is_remote(os.fspath(path)) and ending(path) != ".zarr":
        return False  # without asking for each of many files
    return any((make_path(path) / name).exists() for name in ("zarr.json", ".zarray", ".zgroup"))


def is_windowed(path: Target) -> bool:
    """Whether a file's name says that it can be read in windows."""
    return (ending(path) in KINDS and ending(path) != ".zarr") or is_zarr(path)


class Held(Sliced):
    """An array in memory, or an object of another library that reads by itself."""

    def __init__(self, array: Array, what: str) -> None:
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


def _open_zarr(path: AnyPath) -> Array:
    """A zarr array in a folder; of a group, its only array or the one called 0 (full size)."""
    with naming_damage(display_name(path), "zarr array"):
        there = import_zarr().open(str(path), mode="r")
    if hasattr(there, "shape"):
        return there
    inside = sorted(there.array_keys())
    if "0" in inside or len(inside) == 1:
        return there["0" if "0" in inside else inside[0]]
    raise InputError(
        f"is a group of {len(inside)} zarr arrays, expected the path of one of them "
        f"({', '.join(inside[:5])})"
    )


# ---- writing ----


def check_output(path: Target, axes: int) -> None:
    """Refuse a name whose kind can't be written in windows, before any work.

    Args:
        path: The name.
        axes: Axes of the image's pixels.
    """
    with naming(path):
        if ending(path) not in KINDS:
            raise InputError(
                f"can't be written in windows, expected a name ending in {', '.join(KINDS)}"
            )
        if not Path(path).absolute().parent.is_dir():
            raise InputError(f"can't write, {NO_FOLDER}")
        if ending(path) in (".tif", ".tiff") and axes != 2:
            raise InputError(f"{axes} axes of pixels don't fit a TIFF, expected .npy")
        if Path(path).is_dir() and not (ending(path) == ".zarr" and is_zarr(path)):
            raise InputError("is a folder, expected the name of a file or a zarr array")
    if ending(path) == ".zarr":
        import_zarr()


def open_output(new: NewFile) -> Output:
    """A file that is written in windows; what is in progress in its folder goes on."""
    from proxfield.io.npy import NpyOutput
    from proxfield.io.tiff import TiffOutput

    if ending(new.target) == ".zarr":
        return ZarrOutput(new)
    return NpyOutput(new) if ending(new.target) == ".npy" else TiffOutput(new)


class ZarrOutput(Output):
    """A zarr array, in chunks of the tiles' size."""

    def __init__(self, new: NewFile) -> None:
        super().__init__(new.shape, new.dtype)
        self.target, self.path = new.target, new.folder / "output.zarr"
        if is_zarr(self.path):
            self.array = import_zarr().open(str(self.path), mode="r+")
            return
        size = tuple(min(c, n) for c, n in zip(new.chunks, new.shape, strict=True))
        self.array = import_zarr().open(
            str(self.path), mode="w", shape=new.shape, chunks=size, dtype=new.dtype
        )

    def write(self, window: Window, values: Pixels) -> None:
        self.array[window] = values

    def finish(self) -> None:
        if self.target.exists():  # checked to be one of zarr
            shutil.rmtree(self.target)
        self.path.replace(self.target)


class HeldOutput(Output):
    """An array that the caller holds: of numpy, zarr, h5py or another library with slices."""

    def __init__(self, array: Array, shape: tuple[int, ...], dtype: Dtype) -> None:
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
