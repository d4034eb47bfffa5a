"""NIfTI and GeoTIFF: what is read, what is written, what is refused."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from proxfield.errors import InputError
from proxfield.io.files import ending, stem
from proxfield.io.images import read_image
from proxfield.io.tiff import has_deep_color, is_geotiff, read_geotiff, read_nifti, tiff_tags

RNG = np.random.default_rng(0)


def error(call: Any, *args: Any) -> str:
    with pytest.raises(InputError) as caught:
        call(*args)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_names() -> None:
    assert (ending("a/b.Nii.GZ"), stem("a/b.Nii.GZ")) == (".nii.gz", "b")
    assert (ending("a/b.c.tif"), stem("a/b.c.tif")) == (".tif", "b.c")


# ---- TIFF without packages ----


def tiff(order: str, big: bool, tags: list[tuple[int, int, int, bytes]]) -> bytes:
    """A TIFF of one directory without pixels."""
    head = b"II" if order == "<" else b"MM"
    if big:
        data = head + struct.pack(f"{order}HHHQQ", 43, 8, 0, 16, len(tags))
        return data + b"".join(
            struct.pack(f"{order}HHQ", tag, kind, count) + value.ljust(8, b"\0")
            for tag, kind, count, value in tags
        )
    data = head + struct.pack(f"{order}HIH", 42, 8, len(tags))
    return data + b"".join(
        struct.pack(f"{order}HHI", tag, kind, count) + value.ljust(4, b"\0")
        for tag, kind, count, value in tags
    )


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("big", [False, True])
def test_tags(tmp_path: Path, order: str, big: bool) -> None:
    tags = [
        (258, 3, 1, struct.pack(f"{order}H", 16)),
        (277, 3, 1, struct.pack(f"{order}H", 4)),
        (33550, 12, 3, b""),
    ]
    data = tiff(order, big, tags)
    (tmp_path / "x.tif").write_bytes(data)
    assert tiff_tags(tmp_path / "x.tif") == {258: (16,), 277: (4,), 33550: ()}
    assert is_geotiff(tmp_path / "x.tif") and has_deep_color(data)
    (tmp_path / "x.png").write_bytes(data)
    assert not is_geotiff(tmp_path / "x.png")
    plain = tiff(order, big, tags[:1])
    (tmp_path / "y.tif").write_bytes(plain)
    assert not is_geotiff(tmp_path / "y.tif") and not has_deep_color(plain)
    for end in range(len(data)):  # cut anywhere, nothing fails
        (tmp_path / "x.tif").write_bytes(data[:end])
        is_geotiff(tmp_path / "x.tif")
        has_deep_color(data[:end])
    assert not is_geotiff(tmp_path / "none.tif")


# ---- NIfTI ----


def test_nifti_of_several_channels_and_scaled(tmp_path: Path) -> None:
    nib = pytest.importorskip("nibabel", reason="nibabel isn't installed")
    values = RNG.normal(size=(4, 5, 6, 1, 2)).astype(np.float32)
    nib.save(nib.Nifti1Image(values, np.diag([2, 3, 4, 1])), tmp_path / "x.nii")
    placed = read_nifti(tmp_path / "x.nii")
    np.testing.assert_array_equal(placed.values, values[:, :, :, 0])
    assert placed.spacing == (2.0, 3.0, 4.0)
    scan = nib.Nifti1Image(np.arange(8, dtype=np.int16).reshape(2, 2, 2), np.eye(4))
    scan.header.set_slope_inter(2, 100)
    scan.header.set_xyzt_units("micron")
    nib.save(scan, tmp_path / "s.nii.gz")
    scaled = read_nifti(tmp_path / "s.nii.gz")
    assert scaled.spacing == (0.001, 0.001, 0.001)
    labels = np.arange(8).reshape(2, 2, 2) * 1000
    scaled.reference.write(tmp_path / "out.nii.gz", labels)
    again = nib.load(tmp_path / "out.nii.gz")
    assert again.get_data_dtype() == np.uint16
    np.testing.assert_array_equal(np.asarray(again.dataobj), labels)


def test_damaged_nifti(tmp_path: Path) -> None:
    nib = pytest.importorskip("nibabel", reason="nibabel isn't installed")
    nib.save(nib.Nifti1Image(np.zeros((3, 3, 3), np.uint8), np.eye(4)), tmp_path / "x.nii")
    data = (tmp_path / "x.nii").read_bytes()
    for end in (0, 100, 340, 360):
        (tmp_path / "cut.nii").write_bytes(data[:end])
        assert "expected .nii or .nii.gz" in error(read_nifti, tmp_path / "cut.nii")
    assert "no such file" in error(read_nifti, tmp_path / "none.nii")


# ---- GeoTIFF ----


def test_geotiff_with_alpha_palette_and_points(tmp_path: Path) -> None:
    rasterio = pytest.importorskip("rasterio", reason="rasterio isn't installed")
    place = rasterio.Affine(10.0, 0.0, 100.0, 0.0, -10.0, 200.0)
    shape: dict[str, Any] = {"driver": "GTiff", "width": 6, "height": 5, "crs": "EPSG:32611"}
    bands = RNG.integers(0, 255, size=(4, 5, 6)).astype(np.uint8)
    with rasterio.open(
        tmp_path / "a.tif", "w", count=4, dtype="uint8", transform=place, photometric="RGB",
        alpha="YES", **shape,
    ) as target:  # fmt: skip
        target.write(bands)
    notes: list[str] = []
    placed = read_geotiff(tmp_path / "a.tif", notes)
    np.testing.assert_array_equal(placed.values, bands[:3].transpose(1, 2, 0))
    assert "alpha channel is dropped" in notes[0]
    colors = {0: (0, 0, 0, 255), 1: (250, 0, 0, 255)}
    labels = (bands[0] > 100).astype(np.uint8)
    with rasterio.open(
        tmp_path / "p.tif", "w", count=1, dtype="uint8", transform=place, **shape
    ) as target:
        target.write(labels, 1)
        target.write_colormap(1, colors)
    painted = read_geotiff(tmp_path / "p.tif")
    np.testing.assert_array_equal(painted.values, labels)
    painted.reference.write(tmp_path / "q.tif", labels.astype(int), 255)
    with rasterio.open(tmp_path / "q.tif") as again:
        assert again.colormap(1)[1] == colors[1] and again.nodata == 255
        assert again.transform == place and again.crs == "EPSG:32611"
    assert painted.reference.same_place(placed.reference)
    assert "don't fit a GeoTIFF" in error(
        painted.reference.write, tmp_path / "z.tif", np.array([[70_000]])
    )
    points = [rasterio.control.GroundControlPoint(r, c, c * 10.0, r * 10.0) for r, c in
              ((0, 0), (0, 6), (5, 0))]  # fmt: skip
    with rasterio.open(
        tmp_path / "g.tif", "w", count=1, dtype="uint8", gcps=points, **shape
    ) as target:
        target.write(labels, 1)
    held = read_geotiff(tmp_path / "g.tif")
    held.reference.write(tmp_path / "h.tif", labels)
    with rasterio.open(tmp_path / "h.tif") as again:
        found, system = again.gcps
        assert [(p.row, p.col, p.x) for p in found] == [(p.row, p.col, p.x) for p in points]
        assert system == "EPSG:32611"


def test_damaged_geotiff(tmp_path: Path) -> None:
    pytest.importorskip("rasterio", reason="rasterio isn't installed")
    (tmp_path / "x.tif").write_bytes(b"II*\0 nothing")
    assert "damaged or cut short" in error(read_geotiff, tmp_path / "x.tif")


def test_orientation_in_damaged_metadata(tmp_path: Path) -> None:
    """Pictures whose metadata can't be read are read as they are stored."""
    from PIL import Image

    pixels = RNG.integers(0, 255, size=(5, 6, 3)).astype(np.uint8)
    Image.fromarray(pixels).save(tmp_path / "x.png", exif=b"Exif\0\0II*\0\xff\xff\xff\xff")
    np.testing.assert_array_equal(read_image(tmp_path / "x.png"), pixels)
