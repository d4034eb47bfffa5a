"""Arrays that are written window by window: npy, zarr and tiled TIFF, or what a caller holds.

A file is made under another name, in the folder of the work in progress, and renamed when all of it
is there: nobody ever sees a part of a result.
"""

from __future__ import annotations

import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from proxfield.core.common.arrays import Pixels
from proxfield.errors import InputError
from proxfield.io.files import display_name
from proxfield.io.npy import map_array
from proxfield.io.referenced import GEOTIFF, GeoReference, ending, import_rasterio
from proxfield.io.remote import reason
from proxfield.io.sliced import CACHE_MB, Window, import_tifffile, import_zarr, is_zarr

KINDS = (".npy", ".zarr", *GEOTIFF)
"""Endings of the files that can be written in windows."""
BLOCK = 256
"""Length of a TIFF's tiles."""
LARGE_TIFF = 2**31
"""Bytes above which a TIFF gets offsets of 8 bytes."""


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


class Output(ABC):
    """An array that is written in windows.

    Args:
        shape: Its shape.
        dtype: The type of its numbers.
    """

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.shape, self.dtype = shape, dtype

    @abstractmethod
    def write(self, window: Window, values: Pixels) -> None:
        """Write a window; what is written is in the file when this returns."""

    def finish(self) -> None:
        """All windows are written: give the file its name."""
        return None


def check_output(path: str | PathLike[str], axes: int) -> None:
    """Refuse a name whose kind can't be written in windows, before any work.

    Args:
        path: The name.
        axes: Axes of the image's pixels.
    """
    name = display_name(path)
    if ending(path) not in KINDS:
        raise InputError(
            f"can't be written in windows, expected a name ending in {', '.join(KINDS)}", path=name
        )
    if not Path(path).absolute().parent.is_dir():
        raise InputError(
            "can't write, its folder doesn't exist, expected an existing folder (try mkdir -p)",
            path=name,
        )
    if ending(path) in GEOTIFF and axes != 2:
        raise InputError(f"{axes} axes of pixels don't fit a TIFF, expected .npy", path=name)
    is_folder = Path(path).is_dir()
    if is_folder and not (ending(path) == ".zarr" and is_zarr(path)):
        raise InputError("is a folder, expected the name of a file or a zarr array", path=name)
    if ending(path) == ".zarr":
        import_zarr()


def open_output(
    path: str | PathLike[str],
    folder: Path,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    chunks: tuple[int, ...],
    reference: GeoReference | None = None,
    nodata: int | None = None,
) -> Output:
    """The output of a name; what is in progress in the folder goes on.

    Args:
        path: The name, of one of `KINDS`.
        folder: Where it is made.
        shape: Its shape.
        dtype: The type of its numbers.
        chunks: Shape of a zarr array's chunks.
        reference: The place on Earth that a TIFF is written with.
        nodata: The value of a GeoTIFF's pixels that have none.
    """
    target = Path(path)
    if ending(target) == ".npy":
        return NpyOutput(target, folder, shape, dtype)
    if ending(target) == ".zarr":
        return ZarrOutput(target, folder, shape, dtype, chunks)
    return TiffOutput(target, folder, shape, dtype, reference, nodata)


class NpyOutput(Output):
    """A ``.npy`` file. It isn't mapped: on a full disk that would end the process."""

    def __init__(
        self, target: Path, folder: Path, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> None:
        super().__init__(shape, dtype)
        self.target, self.path = target, folder / "output.npy"
        with writing_to(folder):
            if not self.path.exists():
                aside = folder / "empty.npy"
                mapped = np.lib.format.open_memmap(aside, "w+", dtype, shape)
                del mapped
                aside.replace(self.path)
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


class ZarrOutput(Output):
    """A zarr array, in chunks of the tiles' size."""

    def __init__(
        self,
        target: Path,
        folder: Path,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        chunks: tuple[int, ...],
    ) -> None:
        super().__init__(shape, dtype)
        self.target, self.path = target, folder / "output.zarr"
        zarr = import_zarr()
        if is_zarr(self.path):
            self.array = zarr.open(str(self.path), mode="r+")
            return
        size = tuple(min(c, n) for c, n in zip(chunks, shape, strict=True))
        self.array = zarr.open(str(self.path), mode="w", shape=shape, chunks=size, dtype=dtype)

    def write(self, window: Window, values: Pixels) -> None:
        self.array[window] = values

    def finish(self) -> None:
        if self.target.exists():  # checked to be one of zarr
            shutil.rmtree(self.target)
        self.path.replace(self.target)


class TiffOutput(NpyOutput):
    """A tiled TIFF, made of the ``.npy`` file in the end: tiles of a TIFF come in their order."""

    def __init__(
        self,
        target: Path,
        folder: Path,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        reference: GeoReference | None,
        nodata: int | None,
    ) -> None:
        super().__init__(target, folder, shape, dtype)
        self.reference, self.nodata = reference, nodata
        if reference is None:
            import_tifffile()  # before any work

    def finish(self) -> None:
        made = self.path.with_name("output.tif")
        if self.reference is None:
            self._by_tifffile(made)
        else:
            self._by_rasterio(made, self.reference)
        made.replace(self.target)
        self.path.unlink()

    def _stored(self) -> Any:
        return map_array(self.path)

    def _by_tifffile(self, made: Path) -> None:
        planes = len(self.shape) == 3 and self.shape[0] < self.shape[-1]
        size = int(np.prod(self.shape)) * self.dtype.itemsize
        options: dict[str, Any] = {}
        if len(self.shape) == 3:
            options["planarconfig"] = "separate" if planes else "contig"
        with import_tifffile().TiffWriter(made, bigtiff=size > LARGE_TIFF) as writer:
            writer.write(
                self._blocks(planes),
                shape=self.shape,
                dtype=self.dtype,
                tile=(BLOCK, BLOCK),
                photometric="minisblack",
                compression="zlib",
                metadata=None,
                **options,
            )

    def _blocks(self, planes: bool) -> Iterator[Pixels]:
        """All tiles in the order of the file, full at the borders too."""
        height, width = self.shape[1:] if planes else self.shape[:2]
        rest = () if planes else self.shape[2:]
        for plane in range(self.shape[0] if planes else 1):
            for y in range(0, height, BLOCK):
                stored = self._stored()  # again: what is mapped counts as memory in use
                rows = stored[plane, y : y + BLOCK] if planes else stored[y : y + BLOCK]
                for x in range(0, width, BLOCK):
                    out = np.zeros((BLOCK, BLOCK, *rest), dtype=self.dtype)
                    piece = rows[:, x : x + BLOCK]
                    out[: piece.shape[0], : piece.shape[1]] = piece
                    yield out

    def _by_rasterio(self, made: Path, reference: GeoReference) -> None:
        rasterio = import_rasterio()
        planes = len(self.shape) == 3 and self.shape[0] < self.shape[-1]
        height, width = self.shape[1:] if planes else self.shape[:2]
        count = 1 if len(self.shape) == 2 else self.shape[0 if planes else 2]
        with (
            rasterio.Env(GDAL_CACHEMAX=CACHE_MB),
            rasterio.open(
                made,
                "w",
                driver="GTiff",
                height=height,
                width=width,
                count=count,
                dtype=self.dtype.name,
                nodata=self.nodata,
                tiled=True,
                blockxsize=BLOCK,
                blockysize=BLOCK,
                compress="deflate",
                bigtiff="if_safer",
                **reference.profile,
            ) as file,
        ):
            if reference.colors is not None and self.dtype == np.uint8 and count == 1:
                file.write_colormap(1, reference.colors)
            for y in range(0, height, BLOCK):
                stored = self._stored()
                rows = stored[:, y : y + BLOCK] if planes else stored[y : y + BLOCK]
                rows = rows[..., None] if rows.ndim == 2 else rows
                bands = np.asarray(rows if planes else np.moveaxis(rows, -1, 0))
                file.write(bands, window=((y, y + bands.shape[1]), (0, width)))


class HeldOutput(Output):
    """An array that the caller holds: of numpy, zarr, h5py or another library with slices."""

    def __init__(self, array: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
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
