"""Arrays that are read window by window, from files that don't fit in memory.

A `Sliced` knows its shape and its type and reads one window at a time; it keeps nothing open, so
that it can be sent to other processes and its memory doesn't grow with what was read.
"""

from __future__ import annotations

import os
import zlib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from proxfield.core.common.arrays import Pixels
from proxfield.core.common.extras import install_hint
from proxfield.errors import InputError, MissingDependencyError
from proxfield.io.files import display_name
from proxfield.io.npy import map_array, naming_damage
from proxfield.io.referenced import GEOTIFF, ending, has_rasterio, import_rasterio, is_geotiff
from proxfield.io.remote import AnyPath, RemotePath, is_remote, make_path

REMEDY = install_hint("tiles")
CACHE_MB = 64
"""What GDAL may keep of a file's blocks; by default it is 5 % of the memory."""
ALPHA_SAMPLES = (2, 4)
"""Numbers of samples of which the last one may be alpha."""

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
    dtype: np.dtype[Any]
    name: str

    @abstractmethod
    def read(self, window: Window) -> Pixels:
        """The numbers in a window along all axes; an array in memory."""

    @abstractmethod
    def identity(self) -> str:
        """What tells it from other arrays, or from what its file held before."""


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
        return Zarr(path)
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
    if ending(path) == ".npy":
        return _open_npy(path)
    if _is_tiff(path):
        if has_rasterio() and (is_geotiff(path) or not has_tifffile()):
            return Raster(path)
        return Tiff(path)
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
    return ending(path) in (".npy", *GEOTIFF) or is_zarr(path)


def import_zarr() -> Any:
    """The package zarr, or how to install it."""
    try:
        import zarr
    except ImportError:
        raise MissingDependencyError(f"zarr arrays need zarr: {REMEDY}") from None
    return zarr


def import_tifffile() -> Any:
    """The package tifffile, or how to install it."""
    try:
        import tifffile
    except ImportError:
        raise MissingDependencyError(f"windows of a TIFF need tifffile: {REMEDY}") from None
    return tifffile


def has_tifffile() -> bool:
    """Whether tifffile is installed."""
    from importlib.util import find_spec

    return find_spec("tifffile") is not None


def _stamp(path: Path) -> str:
    """A file with its size and the time of its last change."""
    status = path.stat()
    return f"{path.resolve()} {status.st_size} {status.st_mtime_ns}"


def _damaged(error: Exception, name: str) -> InputError:
    reason = " ".join(str(error).split()) or type(error).__name__
    return InputError(f"can't be read ({reason}), expected a whole file", path=name)


# ---- arrays ----


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


@dataclass(frozen=True, eq=False)
class Mapped(Sliced):
    """An array in a file, mapped for each window anew: what was read doesn't stay in memory."""

    path: Path
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    offset: int = 0
    order: str = "C"

    @property
    def name(self) -> str:  # type: ignore[override]
        """The file's."""
        return display_name(self.path)

    def read(self, window: Window) -> Pixels:
        order: Any = self.order
        with naming_damage(self.name):
            there: Any = np.memmap(self.path, self.dtype, "r", self.offset, self.shape, order)
            return np.array(there[window])

    def identity(self) -> str:
        return _stamp(self.path)


def _open_npy(path: Path) -> Mapped:
    name = display_name(path)
    there = map_array(path)
    if not isinstance(there, np.memmap):  # empty
        raise InputError(f"holds an array of shape {there.shape}, expected pixels", path=name)
    order = "C" if there.flags.c_contiguous else "F"
    return Mapped(path, there.shape, there.dtype, int(there.offset), order)


@dataclass(frozen=True, eq=False)
class Zarr(Sliced):
    """A zarr array in a folder; of a group, its only array or the one called 0 (full size)."""

    path: AnyPath

    @cached_property
    def _found(self) -> tuple[tuple[int, ...], np.dtype[Any]]:
        array = self._open()
        return tuple(int(n) for n in array.shape), np.dtype(array.dtype)

    def _open(self) -> Any:
        zarr = import_zarr()
        try:
            there = zarr.open(str(self.path), mode="r")
        except Exception as error:  # of many kinds, and other ones in each version
            raise _damaged(error, self.name) from None
        if hasattr(there, "shape"):
            return there
        inside = sorted(there.array_keys())
        if "0" in inside or len(inside) == 1:
            return there["0" if "0" in inside else inside[0]]
        raise InputError(
            f"is a group of {len(inside)} zarr arrays, expected the path of one of them "
            f"({', '.join(inside[:5])})",
            path=self.name,
        )

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        """The array's."""
        return self._found[0]

    @property
    def dtype(self) -> np.dtype[Any]:  # type: ignore[override]
        """The array's."""
        return self._found[1]

    @property
    def name(self) -> str:  # type: ignore[override]
        """The folder's."""
        return display_name(self.path)

    def read(self, window: Window) -> Pixels:
        return np.asarray(self._open()[window])

    def identity(self) -> str:
        place = self.path if isinstance(self.path, RemotePath) else self.path.resolve()
        return f"{place} {self.shape} {self.dtype}"


# ---- TIFF ----


class Tiff(Sliced):
    """The first image of a tiled (or striped) TIFF in full size: pyramids of slides, too.

    Only the tiles that a window touches are decoded. Compression other than Deflate needs
    imagecodecs, which tifffile names. An alpha channel is left out.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.name = path, display_name(path)
        tifffile = import_tifffile()
        try:
            with tifffile.TiffFile(path) as file:
                page = self._page(file)
                self.dtype = np.dtype(page.dtype)
                height, width, samples = page.imagelength, page.imagewidth, page.samplesperpixel
                alpha = [int(x) for x in page.extrasamples]
        except tifffile.TiffFileError as error:
            raise _damaged(error, self.name) from None
        dropped = samples in ALPHA_SAMPLES and len(alpha) == 1 and alpha[0] in (1, 2)
        self.samples = samples - dropped
        self.shape = (height, width) if self.samples == 1 else (height, width, self.samples)

    def _page(self, file: Any) -> Any:
        pages = file.series[0].levels[0].pages
        if len(pages) != 1:
            raise InputError(f"has {len(pages)} pages, expected one image", path=self.name)
        page = pages[0].aspage()
        if page.imagedepth != 1 or page.dtype is None:
            raise InputError("is no flat image of plain numbers", path=self.name)
        return page

    def read(self, window: Window) -> Pixels:
        rows, columns = window[0], window[1]
        size = (rows.stop - rows.start, columns.stop - columns.start, self.samples)
        out = np.zeros(size, dtype=self.dtype)
        tifffile = import_tifffile()
        try:
            with tifffile.TiffFile(self.path) as file:
                page = self._page(file)
                for plane, y, x, part in _segments(page, rows, columns):
                    _paste(out, part, plane, y - rows.start, x - columns.start)
        except (tifffile.TiffFileError, ValueError, OSError) as error:
            raise _damaged(error, self.name) from None
        if self.samples == 1:
            return out[..., 0]
        return out if len(window) < 3 else out[:, :, window[2]]

    def identity(self) -> str:
        return _stamp(self.path)


def _segments(page: Any, rows: slice, columns: slice) -> Any:
    """The decoded tiles or strips of a page that a window touches, with plane and place."""
    if page.is_tiled:
        length, width = page.tilelength, page.tilewidth
    else:
        length, width = min(page.rowsperstrip, page.imagelength), page.imagewidth
    down, across = -(-page.imagelength // length), -(-page.imagewidth // width)
    planes = len(page.dataoffsets) // (down * across)
    for plane in range(planes):
        for i in range(rows.start // length, -(-rows.stop // length)):
            for j in range(columns.start // width, -(-columns.stop // width)):
                number = (plane * down + i) * across + j
                count = page.databytecounts[number]
                if count == 0:  # never written
                    continue
                page.parent.filehandle.seek(page.dataoffsets[number])
                data = page.parent.filehandle.read(count)
                part, place, shape = page.decode(data, number, jpegtables=page.jpegtables)
                if part is not None:
                    yield plane, place[2], place[3], part.reshape(shape)[0]


def _paste(out: Pixels, part: Pixels, plane: int, y: int, x: int) -> None:
    """Put a decoded segment where it belongs, as far as it lies within the window."""
    if part.shape[-1] == 1 and plane >= out.shape[-1]:  # alpha, in a plane of its own
        return
    top, left = max(0, y), max(0, x)
    bottom = min(out.shape[0], y + part.shape[0])
    right = min(out.shape[1], x + part.shape[1])
    if bottom <= top or right <= left:
        return
    piece = part[top - y : bottom - y, left - x : right - x]
    if part.shape[-1] == 1:
        out[top:bottom, left:right, plane] = piece[..., 0]
    else:
        out[top:bottom, left:right] = piece[..., : out.shape[-1]]


class Raster(Sliced):
    """A GeoTIFF, read in windows by rasterio; an alpha channel is left out."""

    def __init__(self, path: Path) -> None:
        self.path, self.name = path, display_name(path)
        with self._open() as source:
            alpha = [i.name == "alpha" for i in source.colorinterp]
            keep = [k + 1 for k, a in enumerate(alpha) if not a or all(alpha)]
            self.bands = keep
            self.dtype = np.dtype(source.dtypes[0])
            height, width = source.height, source.width
        self.shape = (height, width) if len(keep) == 1 else (height, width, len(keep))

    def _open(self) -> Any:
        import warnings

        rasterio = import_rasterio()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # pictures without a place are read too
                return rasterio.open(self.path)
        except rasterio.errors.RasterioError as error:
            raise _damaged(error, self.name) from None

    def read(self, window: Window) -> Pixels:
        rasterio = import_rasterio()
        rows, columns = window[0], window[1]
        area = ((rows.start, rows.stop), (columns.start, columns.stop))
        try:
            with rasterio.Env(GDAL_CACHEMAX=CACHE_MB), self._open() as source:
                found = source.read(self.bands, window=area)
        except rasterio.errors.RasterioError as error:
            raise _damaged(error, self.name) from None
        if len(self.bands) == 1:
            return np.asarray(found[0])
        bands = np.moveaxis(np.asarray(found), 0, -1)
        return bands if len(window) < 3 else bands[:, :, window[2]]

    def identity(self) -> str:
        return _stamp(self.path)
