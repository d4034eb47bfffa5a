"""Images that say where they are: NIfTI volumes (nibabel) and GeoTIFF (rasterio).

A `Reference` holds what a file says about places; results are written with the one of their image.
Both packages are optional and imported only where such a file is read.
"""

from __future__ import annotations

import struct
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from proxfield.core.common.arrays import Pixels
from proxfield.core.common.extras import install_hint
from proxfield.errors import InputError, MissingDependencyError
from proxfield.io.files import Target, atomic_write, display_name, read_bytes
from proxfield.io.remote import make_path

NIFTI = (".nii", ".nii.gz")
GEOTIFF = (".tif", ".tiff")
MEDICAL_REMEDY = install_hint("medical")
GEO_REMEDY = install_hint("geo")
MILLIMETERS = {"meter": 1000.0, "mm": 1.0, "micron": 0.001}
"""Units of a NIfTI header; one that isn't known counts as mm."""
GEO_TAGS = {33550, 33922, 34264, 34735}
"""Tags of a TIFF that place it: pixel scale, tie points, transformation, keys."""
BITS_TAG = 258
SAMPLES_TAG = 277


def ending(path: Target) -> str:
    """The suffix of a file, in lower case; two suffixes for ``.nii.gz``.

    Example:
        >>> ending("a/Head.NII.gz"), ending("x.tar.gz"), ending("x.png")
        ('.nii.gz', '.gz', '.png')
    """
    name = Path(path).name.lower()
    return ".nii.gz" if name.endswith(".nii.gz") else Path(name).suffix


def stem(path: Target) -> str:
    """The name of a file without its `ending`.

    Example:
        >>> stem("a/Head.nii.gz"), stem("x.png")
        ('Head', 'x')
    """
    name = Path(path).name
    return name[: len(name) - len(ending(path))]


@dataclass(frozen=True)
class Placed:
    """An image and what its file says about places.

    Attributes:
        values: The pixels, channels last.
        reference: What results are written with.
        spacing: Size of a voxel along each axis in mm; None where sigmas are in pixels.
    """

    values: Pixels
    reference: NiftiReference | GeoReference
    spacing: tuple[float, ...] | None = None


# ---- NIfTI ----


def import_nibabel() -> Any:
    """The package nibabel, or how to install it."""
    try:
        import nibabel
    except ImportError:
        raise MissingDependencyError(f"NIfTI files need nibabel: {MEDICAL_REMEDY}") from None
    return nibabel


@dataclass(frozen=True)
class NiftiReference:
    """The position of a volume in the body, as its header has it.

    Attributes:
        affine: From voxels to mm.  # (4, 4)
        header: The header of the image.
    """

    affine: Any
    header: Any

    def same_place(self, other: object) -> bool:
        """Whether another file lies in the same place."""
        return isinstance(other, NiftiReference) and np.allclose(
            self.affine, other.affine, atol=1e-3
        )

    def write(self, path: Target, values: Pixels, ignored: int | None = None) -> None:
        """Write labels, or probabilities with labels last, as ``.nii`` or ``.nii.gz``."""
        nibabel = import_nibabel()
        stored = values if values.dtype.kind == "f" else _compact(values)
        header = self.header.copy()
        header.set_data_dtype(stored.dtype)
        header.set_slope_inter(1, 0)
        volume = nibabel.Nifti1Image(stored, self.affine, header)
        atomic_write(path, volume.to_bytes())


def read_nifti(path: Target) -> Placed:
    """A volume, its spacing in mm and its place.

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
        raise InputError(
            "volume doesn't fit in memory, expected a smaller one", path=name
        ) from None
    except Exception as error:  # of a dozen kinds, for a damaged file
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(
            f"is no whole NIfTI volume ({reason}), expected .nii or .nii.gz", path=name
        ) from None
    while values.ndim > 3 and (values.shape[-1] == 1 or values.shape[3] == 1):
        values = values[..., 0] if values.shape[-1] == 1 else values[:, :, :, 0]
    if values.dtype.kind not in "biuf":
        raise InputError(f"holds {values.dtype}, expected real numbers", path=name)
    spacing = tuple(z * MILLIMETERS.get(spatial, 1.0) for z in zooms)
    if not all(0 < z < float("inf") for z in spacing):
        raise InputError(
            f"its header has the spacing {spacing}, expected numbers above 0", path=name
        )
    return Placed(values, NiftiReference(volume.affine, volume.header), spacing)


# ---- GeoTIFF ----


def import_rasterio() -> Any:
    """The package rasterio, or how to install it."""
    try:
        import rasterio
    except ImportError:
        raise MissingDependencyError(f"GeoTIFF needs rasterio: {GEO_REMEDY}") from None
    return rasterio


def has_rasterio() -> bool:
    """Whether rasterio is installed."""
    from importlib.util import find_spec

    return find_spec("rasterio") is not None


@dataclass(frozen=True)
class GeoReference:
    """The position of a picture on Earth.

    Attributes:
        profile: Coordinate system, transformation and control points, as rasterio takes them.
        colors: The colors of a label map; None without.
    """

    profile: dict[str, Any]
    colors: dict[int, Any] | None = None

    def same_place(self, other: object) -> bool:
        """Whether another file lies in the same place."""
        if not isinstance(other, GeoReference):
            return False
        one, two = (r.profile.get("transform") for r in (self, other))
        return one is None or two is None or bool(np.allclose(one, two))

    def write(self, path: Target, values: Pixels, ignored: int | None = None) -> None:
        """Write labels, or probabilities with labels last, as GeoTIFF."""
        rasterio = import_rasterio()
        stored = values if values.dtype.kind == "f" else _compact(values)
        if stored.dtype == np.int64:
            raise InputError("labels above 65535 don't fit a GeoTIFF", path=display_name(path))
        bands = stored[None] if stored.ndim == 2 else np.moveaxis(stored, -1, 0)
        shape = {"count": len(bands), "height": bands.shape[1], "width": bands.shape[2]}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with rasterio.MemoryFile() as memory:
                with memory.open(
                    driver="GTiff",
                    dtype=bands.dtype.name,
                    compress="deflate",
                    nodata=ignored,
                    **shape,
                    **self.profile,
                ) as target:
                    target.write(bands)
                    if self.colors is not None and bands.dtype == np.uint8 and len(bands) == 1:
                        target.write_colormap(1, self.colors)
                content = bytes(memory.getbuffer())
        atomic_write(path, content)


def read_geotiff(path: Target, notes: list[str] | None = None) -> Placed:
    """A picture of any number of bands and bits, and its place on Earth.

    Raises:
        InputError: If the file can't be read.
    """
    rasterio = import_rasterio()
    data, name = read_bytes(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pictures without a place are read too
        try:
            with rasterio.MemoryFile(data) as memory, memory.open() as source:
                bands = source.read()
                alpha = [i.name == "alpha" for i in source.colorinterp]
                reference = _reference(source)
        except rasterio.errors.RasterioError as error:
            reason = " ".join(str(error).split())
            raise InputError(
                f"image is damaged or cut short ({reason}), expected a whole file", path=name
            ) from None
    if any(alpha) and not all(alpha):
        bands = bands[[not a for a in alpha]]
        if notes is not None:
            notes.append(f"{name}: its alpha channel is dropped")
    values = bands[0] if len(bands) == 1 else np.moveaxis(bands, 0, -1)
    return Placed(values, reference)


def read_reference(path: Target) -> GeoReference:
    """The place of a GeoTIFF on Earth, without its pixels.

    Raises:
        InputError: If the file can't be read.
    """
    rasterio = import_rasterio()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with rasterio.open(path) as source:
                return _reference(source)
        except rasterio.errors.RasterioError as error:
            reason = " ".join(str(error).split())
            raise InputError(
                f"image is damaged or cut short ({reason}), expected a whole file",
                path=display_name(path),
            ) from None


def _reference(source: Any) -> GeoReference:
    """What an open GeoTIFF says about its place."""
    profile: dict[str, Any] = {"crs": source.crs, "transform": source.transform}
    points, system = source.gcps
    if points:
        profile = {"gcps": points, "crs": system}
    colors = source.colormap(1) if "palette" in _interpretations(source) else None
    return GeoReference(profile, colors)


def _interpretations(source: Any) -> list[str]:
    return [interpretation.name for interpretation in source.colorinterp]


def is_geotiff(path: Target) -> bool:
    """Whether a file is a TIFF that says where it is; needs no package."""
    return ending(path) in GEOTIFF and bool(GEO_TAGS & tiff_tags(path).keys())


def has_deep_color(data: bytes) -> bool:
    """Whether these are the bytes of a PNG or TIFF of more than 8 bits and several channels."""
    if data.startswith(b"\x89PNG") and len(data) > 25:
        return data[24] == 16 and data[25] in (2, 6)
    from io import BytesIO

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
        form, count, entry = ("Q", "Q", 20) if big else ("I", "H", 12)
        (at,) = struct.unpack_from(f"{order}{form}", start, 8 if big else 4)
        stream.seek(at)
        (entries,) = struct.unpack(f"{order}{count}", stream.read(struct.calcsize(count)))
        table = stream.read(entry * min(entries, 4096))
        for k in range(len(table) // entry):
            tag, form_code, number = struct.unpack_from(f"{order}HH{form}", table, k * entry)
            found[tag] = ()
            if form_code == 3 and tag in (BITS_TAG, SAMPLES_TAG):  # short
                field = k * entry + (12 if big else 8)
                place = table[field : field + (8 if big else 4)]
                if 2 * number > len(place):
                    stream.seek(struct.unpack(f"{order}{form}", place)[0])
                    place = stream.read(2)
                found[tag] = struct.unpack(f"{order}H", place[:2])
    except (struct.error, OSError, OverflowError):
        return found
    return found


def _compact(labels: Pixels) -> Pixels:
    """Labels in the smallest type of whole numbers."""
    top = int(labels.max(initial=0))
    kind = np.uint8 if top < 256 else np.uint16 if top < 65536 else np.int64
    return labels.astype(kind)
