"""numpy's ``.npy`` and ``.npz`` files, whole or in windows; damage is one line with the name."""

from __future__ import annotations

import math
import os
import zipfile
from functools import partial
from io import BytesIO
from os import SEEK_END, PathLike
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np

from proxfield.core.common.arrays import Array, Dtype, Pixels
from proxfield.errors import InputError
from proxfield.io.files import display_name, naming_damage, replacing
from proxfield.io.windows import FileSliced, NewFile, Output, Window, writing_to

_format: Any = np.lib.format


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
    if data[:6] != _format.MAGIC_PREFIX or _format.read_magic(stream) not in ((1, 0), (2, 0)):
        return None
    read = _format.read_array_header_1_0 if data[6] == 1 else _format.read_array_header_2_0
    shape, by_column, dtype = read(stream)
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
    """The shape of the array in a ``.npy`` file or of the first one in ``.npz``, from its header.

    Raises:
        InputError: If the file is missing, damaged or holds no array.
    """
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


def _read_shape(stream: IO[bytes], size: int) -> tuple[int, ...]:
    """The shape that a header names; ValueError if its numbers don't fit into so many bytes."""
    first = _format.read_magic(stream) == (1, 0)
    read = _format.read_array_header_1_0 if first else _format.read_array_header_2_0
    shape, _, dtype = read(stream)
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


# ---- windows ----


def mapped(array: Pixels, path: Path) -> FileSliced:
    """An array that was mapped from a file, so that each window is mapped anew."""
    if not isinstance(array, np.memmap):  # empty
        raise InputError(
            f"holds an array of shape {array.shape}, expected pixels", path=display_name(path)
        )
    order: Literal["C", "F"] = "C" if array.flags.c_contiguous else "F"
    return FileSliced(path, partial(_map, path, array.dtype, array.offset, array.shape, order))


def _map(
    path: Path, dtype: Dtype, offset: int, shape: tuple[int, ...], order: Literal["C", "F"]
) -> Array:
    return np.memmap(path, dtype, "r", offset, shape, order)


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
