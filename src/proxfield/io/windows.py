"""Arrays in files: window by window, where they don't fit in memory, and numpy's whole ones.

A `Sliced` knows its shape and its type and reads one window at a time; it keeps nothing open, so
that it can be sent to other processes and its memory doesn't grow with what was read. An `Output`
is written in windows: a file is made under another name, in the folder of the work in progress, and
renamed when all of it is there, so that nobody ever sees a part of a result.
"""

from __future__ import annotations

import math
import os
import shutil
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from io import BytesIO
from os import SEEK_END, PathLike
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from proxfield.core.common.arrays import Array, Dtype, Pixels
from proxfield.core.common.extras import import_extra, is_installed
from proxfield.core.common.records import Record
from proxfield.errors import InputError, reason
from proxfield.io.files import (
    NO_FOLDER,
    Target,
    display_name,
    ending,
    naming,
    naming_damage,
    no_such_file,
    replacing,
)
from proxfield.io.remote import AnyPath, RemotePath, is_remote, make_path

if TYPE_CHECKING:
    from proxfield.io.tiff import GeoReference

_format: Any = np.lib.format
KINDS = (".npy", ".zarr", ".tif", ".tiff")
"""Endings of the files that can be written in windows."""

import_zarr = partial(import_extra, "zarr", "zarr arrays need zarr", "tiles")
"""The package zarr, or how to install it."""
Window = tuple[slice, ...]
"""A range along each of the first axes, with numbers from 0."""


class Sliced(ABC):
    """An array that is read in windows."""

    shape: tuple[int, ...]
    dtype: Dtype
    name: str  # in messages

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
        return mapped(given, Path(given.filename))
    if all(hasattr(given, name) for name in ("shape", "dtype", "__getitem__")):
        return Held(given, what)
    return Held(np.asarray(given), what)


def _open_file(path: AnyPath) -> Sliced:
    from proxfield.io import tiff

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
        return mapped(map_array(path), path)
    with path.open("rb") as stream:  # slides have many endings
        if stream.read(4) in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"):
            # by rasterio if it has a place, otherwise by tifffile
            placed = tiff.is_geotiff(path) or not is_installed("tifffile")
            return (tiff.Raster if tiff.has_rasterio() and placed else tiff.Tiff)(path)
    raise InputError(
        "can't be read in windows, expected .npy, .zarr or a tiled TIFF (or the array itself)"
    )


def mapped(array: Pixels, path: Path) -> FileSliced:
    """An array that was mapped from a file, so that each window is mapped anew."""
    if not isinstance(array, np.memmap):  # empty
        raise InputError(
            f"holds an array of shape {array.shape}, expected pixels", path=display_name(path)
        )
    order: Literal["C", "F"] = "C" if array.flags.c_contiguous else "F"
    place = (array.dtype, "r", array.offset, array.shape, order)
    return FileSliced(path, partial(np.memmap, path, *place))


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

    def identity(self) -> str:
        if not isinstance(self.array, np.ndarray):
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


class ZarrOutput(HeldOutput):
    """A zarr array, in chunks of the tiles' size."""

    def __init__(self, new: NewFile) -> None:
        self.target, self.path = new.target, new.folder / "output.zarr"
        options: Record = {"mode": "r+"}
        if not is_zarr(self.path):
            size = tuple(min(c, n) for c, n in zip(new.chunks, new.shape, strict=True))
            options = {"mode": "w", "shape": new.shape, "chunks": size, "dtype": new.dtype}
        super().__init__(import_zarr().open(str(self.path), **options), new.shape, new.dtype)

    def finish(self) -> None:
        if self.target.exists():  # checked to be one of zarr
            shutil.rmtree(self.target)
        self.path.replace(self.target)


class NpyOutput(Output):
    """A ``.npy`` file. It isn't mapped: on a full disk that would end the process."""

    def __init__(self, new: NewFile) -> None:
        super().__init__(new.shape, new.dtype)
        self.target, self.path = new.target, new.folder / "output.npy"
        with writing_to(new.folder):
            if not self.path.exists():
                with replacing(self.path) as aside:
                    np.lib.format.open_memmap(aside, "w+", new.dtype, new.shape)
        self.offset = int(map_array(self.path).offset)

    def write(self, window: Window, values: Pixels) -> None:
        values = np.ascontiguousarray(values, dtype=self.dtype)
        whole = len(self.shape) - 1  # axes from here on are contiguous in the file
        while whole > 0 and values.shape[whole] == self.shape[whole]:
            whole -= 1
        steps = [int(np.prod(self.shape[k + 1 :])) for k in range(len(self.shape))]
        start = [w.start * step for w, step in zip(window, steps, strict=True)]
        runs = values.reshape(*values.shape[:whole], -1)
        with self.path.open("r+b") as stream:
            for place in np.ndindex(*values.shape[:whole]):
                at = sum(start) + sum(k * steps[axis] for axis, k in enumerate(place))
                stream.seek(self.offset + at * self.dtype.itemsize)
                stream.write(runs[place].data)
            stream.flush()
            os.fsync(stream.fileno())

    def finish(self) -> None:
        self.path.replace(self.target)


# ---- arrays of numpy, whole ----


def load_array(data: bytes, name: str, keys: tuple[str, ...]) -> Pixels:
    """The array of a ``.npy`` file, or one of a ``.npz`` file: the first that a key names, if any.

    Args:
        data: The content of the file.
        name: Its name in messages.
        keys: Names of arrays in the order of preference; without any of these, the first counts.

    Raises:
        InputError: If the file is damaged or holds no array.
    """
    with naming_damage(name):
        plain = view_array(data)
        stored = np.load(BytesIO(data), allow_pickle=False) if plain is None else plain
        if isinstance(stored, np.ndarray):
            return stored
        with stored:
            names = list(stored.files)
            if names:
                value = stored[next((k for k in keys if k in names), names[0])]
                if isinstance(value, np.ndarray):
                    return value
    raise InputError("holds no array, expected .npz with at least one", path=name)


def view_array(data: bytes) -> Pixels | None:
    """The array of a plain ``.npy`` file without copying it; None for any other file.

    Other threads can work meanwhile, as they can't while numpy copies from a stream.
    """
    stream = BytesIO(data)
    if data[:6] != _format.MAGIC_PREFIX or data[6:8] not in (b"\1\0", b"\2\0"):
        return None
    shape, by_column, dtype = _read_header(stream)
    start = stream.tell()
    if dtype.hasobject or len(data) - start != math.prod(shape) * dtype.itemsize:
        return None  # np.load says what is wrong
    values: Pixels = np.empty(0, dtype)
    if len(data) > start:
        values = np.frombuffer(data, dtype=dtype, offset=start)
    return np.reshape(values, shape, order="F" if by_column else "C")


def map_array(path: str | PathLike[str]) -> Array:
    """The array of a ``.npy`` file, mapped for reading: a `numpy.memmap` unless it is empty.

    Raises:
        InputError: If the file is missing, damaged or shorter than its header says.
    """
    name = display_name(path)
    with naming_damage(name):
        with Path(path).open("rb") as stream:
            begin = stream.read(len(_format.MAGIC_PREFIX))
        if begin != _format.MAGIC_PREFIX:
            raise InputError("isn't a .npy file, expected one that numpy.save wrote", path=name)
        return np.load(path, mmap_mode="r", allow_pickle=False)


def store_array(path: Path, values: Pixels) -> None:
    """Write a ``.npy`` file that appears when all of it is there."""
    values = np.ascontiguousarray(values)
    with replacing(path) as aside, aside.open("wb") as stream:  # np.save doesn't say why it can't
        _format.write_array_header_1_0(stream, _format.header_data_from_array_1_0(values))
        stream.write(values.data)


def read_member(archive: zipfile.ZipFile, name: str) -> Pixels:
    """The array of a name in an ``.npz`` archive, compared with its checksum.

    Raises:
        InputError: If it is missing or damaged; the caller adds the file's name.
    """
    with naming_damage(None), archive.open(f"{name}.npy") as member:
        array = _format.read_array(member, allow_pickle=False)
        if member.read(1):  # the checksum is compared at the end
            raise ValueError("more than one array")
        return np.asarray(array)


def stored_shape(path: str | PathLike[str]) -> tuple[int, ...]:
    """The shape of the array in ``.npy`` or of the first one in ``.npz``, from its header."""
    name = display_name(path)
    with naming_damage(name), Path(path).open("rb") as stream:
        if stream.read(2) == b"PK":
            with zipfile.ZipFile(stream) as archive:
                for member in archive.infolist()[:1]:
                    with archive.open(member) as first:
                        return _read_shape(first, member.file_size)
                raise InputError("holds no array, expected .npz with at least one", path=name)
        size = stream.seek(0, SEEK_END)
        stream.seek(0)
        return _read_shape(stream, size)


def _read_header(stream: IO[bytes]) -> Any:
    """Shape, whether columns come first, and dtype."""
    first = _format.read_magic(stream) == (1, 0)
    return (_format.read_array_header_1_0 if first else _format.read_array_header_2_0)(stream)


def _read_shape(stream: IO[bytes], size: int) -> tuple[int, ...]:
    """The shape that a header names; ValueError if its numbers don't fit into so many bytes."""
    shape, _, dtype = _read_header(stream)
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize > size:
        raise ValueError(f"an array of {dtype} of shape {shape} in {size} bytes")
    return tuple(shape)


def compact(values: Pixels, top: int | None = None) -> Pixels:
    """Labels in the smallest type of whole numbers that holds them; floats stay what they are.

    Args:
        values: Labels or probabilities.
        top: The largest label that the type has to hold; by default the largest there is.
    """
    if values.dtype.kind == "f":
        return values
    most = int(values.max(initial=0)) if top is None else top
    return values.astype(np.uint8 if most < 256 else np.uint16 if most < 65536 else np.int64)
