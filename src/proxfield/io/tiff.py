"""TIFF in whole and in windows, with its place on Earth where it has one (GeoTIFF).

rasterio (the extra ``geo``) and tifffile (``tiles``) are imported only where such a file is read.
"""

from __future__ import annotations

import struct
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeAlias

import numpy as np

from proxfield.core.common.arrays import Array, Dtype, Pixels
from proxfield.core.common.extras import import_extra, install_hint, is_installed
from proxfield.core.common.records import Record
from proxfield.errors import InputError, reason
from proxfield.io.files import (
    Target,
    atomic_write,
    display_name,
    ending,
    naming_damage,
    read_bytes,
)
from proxfield.io.remote import make_path
from proxfield.io.windows import FileSliced, NewFile, NpyOutput, Window, compact, map_array

Opened: TypeAlias = Any
"""An open file of rasterio, a page of tifffile, or the header that nibabel read."""
GEOTIFF = (".tif", ".tiff")
GEO_REMEDY = install_hint("geo")
GEO_TAGS = {33550, 33922, 34264, 34735}
"""Tags of a TIFF that place it: pixel scale, tie points, transformation, keys."""
BITS_TAG = 258
SAMPLES_TAG = 277
CACHE_MB = 64
"""What GDAL may keep of a file's blocks; by default it is 5 % of the memory."""
ALPHA_SAMPLES = (2, 4)
"""Numbers of samples of which the last one may be alpha."""
BLOCK = 256
"""Length of the tiles of a TIFF that is written."""
LARGE_TIFF = 2**31
"""Bytes above which a TIFF gets offsets of 8 bytes."""
import_rasterio = partial(import_extra, "rasterio", "GeoTIFF needs rasterio", "geo")
"""The package rasterio, or how to install it."""
import_tifffile = partial(import_extra, "tifffile", "windows of a TIFF need tifffile", "tiles")
"""The package tifffile, or how to install it."""


has_rasterio = partial(is_installed, "rasterio")
"""Whether rasterio is installed."""


# ---- GeoTIFF ----


@dataclass(frozen=True)
class GeoReference:
    """The position of a picture on Earth."""

    profile: Record  # coordinate system, transformation and control points as of rasterio
    colors: dict[int, tuple[int, ...]] | None = None  # of a label map

    def same_place(self, other: object) -> bool:
        """Whether another file lies in the same place."""
        if not isinstance(other, GeoReference):
            return False
        one, two = (r.profile.get("transform") for r in (self, other))
        return one is None or two is None or bool(np.allclose(one, two))

    def write(self, path: Target, values: Pixels, ignored: int | None = None) -> None:
        """Write labels, or probabilities with labels last, as GeoTIFF."""
        stored = compact(values)
        if stored.dtype == np.int64:
            raise InputError("labels above 65535 don't fit a GeoTIFF", path=display_name(path))
        bands = stored[None] if stored.ndim == 2 else np.moveaxis(stored, -1, 0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with import_rasterio().MemoryFile() as memory:
                with memory.open(**self.options(bands.shape, bands.dtype, ignored)) as file:
                    file.write(bands)
                    self.color(file)
                content = bytes(memory.getbuffer())
        atomic_write(path, content)

    def options(self, shape: tuple[int, ...], dtype: Dtype, ignored: int | None) -> Record:
        """What rasterio has to know to write bands of a shape and a type."""
        return {
            **{"driver": "GTiff", "dtype": dtype.name, "nodata": ignored, "compress": "deflate"},
            **dict(zip(("count", "height", "width"), shape, strict=True)),
            **self.profile,
        }

    def color(self, file: Opened) -> None:
        """Give a file of rasterio the colors of a label map, if it is one."""
        if self.colors is not None and file.dtypes == ("uint8",):
            file.write_colormap(1, self.colors)


class PlacedImage(NamedTuple):
    """An image and what its file says about places."""

    values: Pixels  # channels last
    reference: NiftiReference | GeoReference  # what results are written with
    spacing: tuple[float, ...] | None = None  # of voxels along each axis in mm, if it says that


@contextmanager
def _raster(path: Target, data: bytes | None = None) -> Iterator[Opened]:
    """An open GeoTIFF of rasterio, in a file or, with its content, in memory."""
    rasterio = import_rasterio()
    with ExitStack() as stack:
        stack.enter_context(naming_damage(display_name(path), "image"))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")  # pictures without a place are read too
        stack.enter_context(rasterio.Env(GDAL_CACHEMAX=CACHE_MB))
        if data is None:
            yield stack.enter_context(rasterio.open(path))
        else:
            yield stack.enter_context(stack.enter_context(rasterio.MemoryFile(data)).open())


def _bands(source: Opened) -> list[int]:
    """The numbers of an open file's bands, without alpha."""
    alpha = [i.name == "alpha" for i in source.colorinterp]
    return [k + 1 for k, a in enumerate(alpha) if not a or all(alpha)]


def _last(bands: Pixels) -> Pixels:
    """Bands as channels: the last axis, or none for one of them."""
    return np.asarray(bands[0] if len(bands) == 1 else np.moveaxis(bands, 0, -1))


def read_geotiff(path: Target, notes: list[str] | None = None) -> PlacedImage:
    """A picture of any number of bands and bits, and its place on Earth.

    Raises:
        InputError: If the file can't be read.
    """
    data, name = read_bytes(path)
    with _raster(path, data) as source:
        kept = _bands(source)
        if notes is not None and len(kept) < source.count:
            notes.append(f"{name}: its alpha channel is dropped")
        return PlacedImage(_last(source.read(kept)), _reference(source))


def read_reference(path: Target) -> GeoReference:
    """The place of a GeoTIFF on Earth, without its pixels.

    Raises:
        InputError: If the file can't be read.
    """
    with _raster(path) as source:
        return _reference(source)


def _reference(source: Opened) -> GeoReference:
    """What an open GeoTIFF says about its place."""
    profile: Record = {"crs": source.crs, "transform": source.transform}
    points, system = source.gcps
    if points:
        profile = {"gcps": points, "crs": system}
    palette = "palette" in [interpretation.name for interpretation in source.colorinterp]
    return GeoReference(profile, source.colormap(1) if palette else None)


class Raster(FileSliced):
    """A GeoTIFF, read in windows by rasterio; an alpha channel is left out."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        with _raster(path) as source:
            self.bands = _bands(source)
            self.dtype = np.dtype(source.dtypes[0])
            size = source.height, source.width
        self.shape = size if len(self.bands) == 1 else (*size, len(self.bands))

    def read(self, window: Window) -> Pixels:
        rows, columns = window[0], window[1]
        area = ((rows.start, rows.stop), (columns.start, columns.stop))
        with _raster(self.path) as source:
            found = _last(source.read(self.bands, window=area))
        return found if len(window) < 3 else found[:, :, window[2]]


# ---- TIFF without packages ----


def is_geotiff(path: Target) -> bool:
    """Whether a file is a TIFF that says where it is; needs no package."""
    return ending(path) in GEOTIFF and bool(GEO_TAGS & tiff_tags(path).keys())


def has_deep_color(data: bytes) -> bool:
    """Whether these are the bytes of a PNG or TIFF of more than 8 bits and several channels."""
    if data.startswith(b"\x89PNG") and len(data) > 25:
        return data[24] == 16 and data[25] in (2, 6)

    tags = _read_tags(BytesIO(data))
    bits, samples = (tags.get(tag) or (1,) for tag in (BITS_TAG, SAMPLES_TAG))
    return bits[0] > 8 and samples[0] > 1


def tiff_tags(path: Target) -> dict[int, tuple[int, ...]]:
    """The tags of the first page of a TIFF, with the values of whole numbers; else nothing."""
    try:
        with make_path(path).open("rb") as stream:
            return _read_tags(stream)
    except OSError:
        return {}


def _read_tags(stream: BinaryIO) -> dict[int, tuple[int, ...]]:
    """Classic TIFF has offsets of 4 bytes, BigTIFF of 8."""
    start = stream.read(16)
    order = {b"II": "<", b"MM": ">"}.get(start[:2])
    if order is None or len(start) < 16:
        return {}
    big = struct.unpack(f"{order}H", start[2:4])[0] == 43
    found: dict[int, tuple[int, ...]] = {}
    try:
        form, count, width = ("Q", "Q", 8) if big else ("I", "H", 4)
        row = struct.Struct(f"{order}HH{form}{width}s")
        (at,) = struct.unpack_from(f"{order}{form}", start, 8 if big else 4)
        stream.seek(at)
        (entries,) = struct.unpack(f"{order}{count}", stream.read(struct.calcsize(count)))
        table = stream.read(row.size * min(entries, 4096))
        whole = table[: len(table) // row.size * row.size]
        for tag, form_code, number, place in row.iter_unpack(whole):
            found[tag] = ()
            if form_code == 3 and tag in (BITS_TAG, SAMPLES_TAG):  # short
                if 2 * number > len(place):
                    stream.seek(struct.unpack(f"{order}{form}", place)[0])
                    place = stream.read(2)
                found[tag] = struct.unpack(f"{order}H", place[:2])
    except (struct.error, OSError, OverflowError):
        return found
    return found


# ---- TIFF in windows ----


class Tiff(FileSliced):
    """The first image of a tiled (or striped) TIFF in full size: pyramids of slides, too.

    Only the tiles that a window touches are decoded. Compression other than Deflate needs
    imagecodecs, which tifffile names. An alpha channel is left out.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        with self._page() as page:
            self.dtype = np.dtype(page.dtype)
            height, width, samples = page.imagelength, page.imagewidth, page.samplesperpixel
            alpha = [int(x) for x in page.extrasamples]
        dropped = samples in ALPHA_SAMPLES and len(alpha) == 1 and alpha[0] in (1, 2)
        self.samples = samples - dropped
        self.shape = (height, width) if self.samples == 1 else (height, width, self.samples)

    @contextmanager
    def _page(self) -> Iterator[Opened]:
        """The image in full size, while its file is open."""
        tifffile = import_tifffile()
        with naming_damage(self.name, "image"), tifffile.TiffFile(self.path) as file:
            pages = file.series[0].levels[0].pages
            if len(pages) != 1:
                raise InputError(f"has {len(pages)} pages, expected one image", path=self.name)
            page = pages[0].aspage()
            if page.imagedepth != 1 or page.dtype is None:
                raise InputError("is no flat image of plain numbers", path=self.name)
            yield page

    def read(self, window: Window) -> Pixels:
        rows, columns = window[0], window[1]
        size = (rows.stop - rows.start, columns.stop - columns.start, self.samples)
        out = np.zeros(size, dtype=self.dtype)
        with self._page() as page:
            for plane, y, x, part in _segments(page, rows, columns):
                gray = part.shape[-1] == 1
                if gray and plane >= self.samples:  # alpha, in a plane of its own
                    continue
                y, x = y - rows.start, x - columns.start
                here = out[max(0, y) : max(0, y + len(part)), max(0, x) : max(0, x + part.shape[1])]
                piece = part[max(0, -y) :, max(0, -x) :][: len(here), : here.shape[1]]
                if gray:
                    here[..., plane] = piece[..., 0]
                else:
                    here[:] = piece[..., : self.samples]
        if self.samples == 1:
            return out[..., 0]
        return out if len(window) < 3 else out[:, :, window[2]]


def _segments(page: Opened, rows: slice, columns: slice) -> Iterator[tuple[int, int, int, Pixels]]:
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


class TiffOutput(NpyOutput):
    """A tiled TIFF, made of the ``.npy`` file in the end: tiles of a TIFF come in their order."""

    def __init__(self, new: NewFile) -> None:
        super().__init__(new)
        self.reference: GeoReference | None = new.reference
        self.nodata = new.nodata
        self.planes = len(self.shape) == 3 and self.shape[0] < self.shape[-1]
        """Whether channels are the first axis."""
        if self.reference is None:
            import_tifffile()  # before any work

    def finish(self) -> None:
        made = self.path.with_name("output.tif")
        if self.reference is None:
            options: Record = {}
            if len(self.shape) == 3:
                options["planarconfig"] = "separate" if self.planes else "contig"
            size = int(np.prod(self.shape)) * self.dtype.itemsize
            with import_tifffile().TiffWriter(made, bigtiff=size > LARGE_TIFF) as writer:
                writer.write(
                    self._blocks(),
                    shape=self.shape,
                    dtype=self.dtype,
                    tile=(BLOCK, BLOCK),
                    photometric="minisblack",
                    compression="zlib",
                    metadata=None,
                    **options,
                )
        else:
            rasterio = import_rasterio()
            shape = (1, *self.shape) if len(self.shape) == 2 else self.shape
            shape = shape if self.planes or len(self.shape) == 2 else (shape[2], *shape[:2])
            tiles = {"tiled": True, "blockxsize": BLOCK, "blockysize": BLOCK, "bigtiff": "if_safer"}
            options = self.reference.options(shape, self.dtype, self.nodata)
            with (
                rasterio.Env(GDAL_CACHEMAX=CACHE_MB),
                rasterio.open(made, "w", **tiles, **options) as file,
            ):
                self.reference.color(file)
                for k, strip in enumerate(self._strips()):
                    rows = strip[..., None] if strip.ndim == 2 else strip
                    bands = np.asarray(rows if self.planes else np.moveaxis(rows, -1, 0))
                    area = ((k * BLOCK, k * BLOCK + bands.shape[1]), (0, shape[2]))
                    file.write(bands, window=area)
        made.replace(self.target)
        self.path.unlink()

    def _strips(self) -> Iterator[Pixels]:
        """Rows of blocks, with channels where they are stored."""
        for y in range(0, self.shape[1 if self.planes else 0], BLOCK):
            stored = map_array(self.path)  # again: what is mapped counts as memory in use
            yield stored[:, y : y + BLOCK] if self.planes else stored[y : y + BLOCK]

    def _blocks(self) -> Iterator[Pixels]:
        """All tiles in the order of the file, full at the borders too."""
        for plane in range(self.shape[0]) if self.planes else [None]:
            for strip in self._strips():
                rows = strip if plane is None else strip[plane]
                for x in range(0, rows.shape[1], BLOCK):
                    piece = rows[:, x : x + BLOCK]
                    out = np.zeros((BLOCK, BLOCK, *rows.shape[2:]), dtype=self.dtype)
                    out[: piece.shape[0], : piece.shape[1]] = piece
                    yield out


# ---- NIfTI ----

import_nibabel = partial(import_extra, "nibabel", "NIfTI files need nibabel", "medical")
"""The package nibabel, or how to install it."""
NIFTI = (".nii", ".nii.gz")
MILLIMETERS = {"meter": 1000.0, "mm": 1.0, "micron": 0.001}
"""Units of a NIfTI header; one that isn't known counts as mm."""


@dataclass(frozen=True)
class NiftiReference:
    """The position of a volume in the body, as its header has it."""

    affine: Array  # from voxels to mm: (4, 4)
    header: Opened

    def same_place(self, other: object) -> bool:
        """Whether another file lies in the same place."""
        return isinstance(other, NiftiReference) and np.allclose(
            self.affine, other.affine, atol=1e-3
        )

    def write(self, path: Target, values: Pixels, ignored: int | None = None) -> None:
        """Write labels, or probabilities with labels last, as ``.nii`` or ``.nii.gz``."""
        nibabel = import_nibabel()
        stored = compact(values)
        header = self.header.copy()
        header.set_data_dtype(stored.dtype)
        header.set_slope_inter(1, 0)
        volume = nibabel.Nifti1Image(stored, self.affine, header)
        atomic_write(path, volume.to_bytes())


def read_nifti(path: Target) -> PlacedImage:
    """A volume, its place, and the size of a voxel along each axis in mm.

    Raises:
        InputError: If the file can't be read or is no NIfTI volume.
    """
    nibabel = import_nibabel()
    data, name = read_bytes(path)  # decompressed
    try:
        volume = nibabel.Nifti1Image.from_bytes(data)
        values = np.asanyarray(volume.dataobj)
        spatial = volume.header.get_xyzt_units()[0]
        zooms = tuple(float(z) for z in volume.header.get_zooms()[:3])
    except MemoryError:
        what = "volume doesn't fit in memory, expected a smaller one"
        raise InputError(what, path=name) from None
    except Exception as error:  # of a dozen kinds, for a damaged file
        what = f"is no whole NIfTI volume ({reason(error)}), expected .nii or .nii.gz"
        raise InputError(what, path=name) from None
    while values.ndim > 3 and (values.shape[-1] == 1 or values.shape[3] == 1):
        values = values[..., 0] if values.shape[-1] == 1 else values[:, :, :, 0]
    if values.dtype.kind not in "biuf":
        raise InputError(f"holds {values.dtype}, expected real numbers", path=name)
    spacing = tuple(z * MILLIMETERS.get(spatial, 1.0) for z in zooms)
    if not all(0 < z < float("inf") for z in spacing):
        what = f"its header has the spacing {spacing}, expected numbers above 0"
        raise InputError(what, path=name)
    return PlacedImage(values, NiftiReference(volume.affine, volume.header), spacing)
