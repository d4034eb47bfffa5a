"""``proxfield refine`` on files of every kind that people have."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import proxfield as pf
from proxfield.cli.running import in_options
from proxfield.io.images import read_labels

SIZE = (20, 30)


def scene(seed: int = 0, size: tuple[int, ...] = SIZE) -> tuple[Any, Any]:
    """An 8-bit RGB image in two halves, and noisy logits of three labels, labels first."""
    rng = np.random.default_rng(seed)
    truth = np.broadcast_to(np.arange(size[-1]) >= size[-1] // 2, size).astype(int)
    image = np.where(truth[..., None], 180, 60) + rng.normal(0, 6, size=(*size, 3))
    logits = 1.2 * np.eye(3)[truth] + rng.normal(0, 0.8, size=(*size, 3))
    return image.clip(0, 255).astype(np.uint8), np.moveaxis(logits, -1, 0).astype(np.float32)


def softmax(logits: Any) -> Any:
    p = np.exp(logits)
    return p / p.sum(axis=0)


@pytest.fixture
def work(invoke: Callable[..., Any]) -> Callable[..., Any]:
    """The command in a folder with ``image.png`` and ``logits.npy``."""
    image, logits = scene()
    Image.fromarray(image).save("image.png")
    np.save("logits.npy", logits)
    return lambda *args, **options: invoke("refine", *args, **options)


def refined(work: Callable[..., Any], *args: Any) -> Any:
    """Call, expect success."""
    result = work(*args)
    assert result.exit_code == 0, result.stderr
    return result


def failed(work: Callable[..., Any], *args: Any) -> str:
    """Call, expect one image to fail, without a result."""
    before = sorted(map(str, Path().rglob("*")))
    result = work(*args)
    assert result.exit_code == 1, result.stderr
    assert sorted(map(str, Path().rglob("*"))) == before
    return str(result.stderr)


# ---- logits, masks, smaller maps, batches of one ----


def test_logits(work: Callable[..., Any]) -> None:
    image, logits = scene()
    np.save("probs.npy", softmax(logits))
    refined(work, "image.png", "--logits", "logits.npy", "-o", "a.png")
    refined(work, "image.png", "--probs", "probs.npy", "-o", "b.png")
    expected = pf.DenseCRF(image, logits=logits).infer().labels
    np.testing.assert_array_equal(read_labels("a.png")[0], expected)
    assert Path("a.png").read_bytes() == Path("b.png").read_bytes()
    np.savez("many.npz", other=np.zeros(3), logits=logits.astype(np.float16))
    refined(work, "image.png", "--logits", "many.npz", "-o", "c.png")
    assert (read_labels("c.png")[0] == expected).mean() > 0.99
    np.save("whole.npy", logits.astype(int))
    assert "expected logits as floats" in failed(
        work, "image.png", "--logits", "whole.npy", "-o", "d.png"
    )
    line = failed(work, "image.png", "--probs", "logits.npy", "-o", "d.png")
    assert "pass --logits instead" in line


def test_a_folder_of_logits(work: Callable[..., Any]) -> None:
    Path("images").mkdir()
    Path("scores").mkdir()
    for seed, name in enumerate("ab"):
        image, logits = scene(seed)
        Image.fromarray(image).save(f"images/{name}.png")
        np.save(f"scores/{name}.npy", logits[None])  # (1, C, H, W), as networks give it
    refined(work, "images", "--logits", "scores", "-o", "out")
    for seed, name in enumerate("ab"):
        image, logits = scene(seed)
        expected = pf.DenseCRF(image, logits=logits).infer().labels
        np.testing.assert_array_equal(read_labels(f"out/{name}.png")[0], expected)


def test_masks(work: Callable[..., Any]) -> None:
    image, logits = scene()
    mask = softmax(logits)[1]
    np.save("mask.npy", mask)
    Image.fromarray((mask * 255).round().astype(np.uint8)).save("mask.png")
    Image.fromarray((mask * 65535).round().astype(np.uint16)).save("deep.png")
    np.save("sigmoid.npy", np.log(mask / (1 - mask))[None, None])
    expected = pf.DenseCRF(image, mask).infer()
    for option, name in (
        ("--probs", "mask.npy"),
        ("--probs", "mask.png"),
        ("--probs", "deep.png"),
        ("--logits", "sigmoid.npy"),
    ):
        args = ("image.png", option, name, "-o", "out.npy", "--output-kind", "probabilities")
        refined(work, *args)
        found = np.load("out.npy").reshape(SIZE)
        np.testing.assert_allclose(found, expected.probabilities, atol=0.03)
    refined(work, "image.png", "--probs", "mask.png", "-o", "labels.png")
    assert set(np.unique(read_labels("labels.png")[0])) == {0, 1}
    Path("folder").mkdir()
    Path("mask.png").rename("folder/image.png")
    refined(work, "image.png", "--probs", "folder", "-o", "out")
    np.save("folder/image.npy", softmax(logits))  # an array comes before a picture
    record = json.loads(
        refined(work, "image.png", "--probs", "folder", "-o", "o2", "--json").stdout
    )
    assert record["files"][0]["n_labels"] == 3


def test_smaller_maps_are_enlarged_and_it_is_said_once(work: Callable[..., Any]) -> None:
    for folder in ("images", "scores"):
        Path(folder).mkdir()
    for name in "ab":
        image, _ = scene(size=(40, 60))
        Image.fromarray(image).save(f"images/{name}.png")
        np.save(f"scores/{name}.npy", scene(size=(10, 15))[1])
    result = refined(work, "images", "--logits", "scores", "-o", "out")
    assert result.stderr.count("\n") == 1
    assert "scores/a.npy: logits are enlarged from (3, 10, 15) to (3, 40, 60)" in result.stderr
    assert "(and 1 more notes like this)" in result.stderr
    assert read_labels("out/b.png")[0].shape == (40, 60)


def test_a_batch_in_a_file(work: Callable[..., Any]) -> None:
    """A file is one image or one volume; what is read as a volume is said."""
    image, logits = scene()
    np.save("images.npy", np.stack([image] * 4))
    np.save("maps.npy", np.stack([logits] * 4))
    assert "don't match" in failed(work, "images.npy", "--logits", "maps.npy", "-o", "x.npy")
    np.save("maps.npy", np.moveaxis(np.stack([logits] * 4), 1, -1))
    args = ("images.npy", "--logits", "maps.npy", "-o", "x.npy", "--labels-axis", "last")
    result = refined(work, *args, "--channel-axis", "last")
    assert "images.npy: read as a volume, (4, 20, 30)" in result.stderr


# ---- label maps ----


def test_255_is_carried_through(work: Callable[..., Any]) -> None:
    _, logits = scene()
    labels = logits.argmax(axis=0).astype(np.uint8)
    labels[3:6, 10:22] = 255
    picture = Image.fromarray(labels)
    picture.putpalette([0, 0, 0, 128, 0, 0, 0, 128, 0] + [0] * 756 + [224, 224, 192])
    picture.save("voc.png")
    result = refined(work, "image.png", "--labels", "voc.png", "-o", "out.png", "--json")
    assert json.loads(result.stdout)["files"][0]["n_labels"] == 3
    found, palette = read_labels("out.png")
    np.testing.assert_array_equal(found == 255, labels == 255)
    assert palette is not None and palette[-3:] == [224, 224, 192]
    other = np.where(labels == 255, 9, labels)
    np.save("nine.npy", other)
    refined(work, "image.png", "--labels", "nine.npy", "-o", "nine.png", "--ignore", 9)
    np.testing.assert_array_equal(read_labels("nine.png")[0], np.where(found == 255, 9, found))
    result = refined(
        work, "image.png", "--labels", "voc.png", "-o", "x.png", "--ignore", "none", "--json"
    )
    assert json.loads(result.stdout)["files"][0]["n_labels"] == 256
    refined(work, "image.png", "--labels", "voc.png", "-o", "y.png", "--unsure", 255)
    assert read_labels("y.png")[0].max() < 3


def test_masks_of_0_and_255_are_no_label_maps(work: Callable[..., Any]) -> None:
    _, logits = scene()
    Image.fromarray(np.where(logits[1] > 0, 255, 0).astype(np.uint8)).save("mask.png")
    line = failed(work, "image.png", "--labels", "mask.png", "-o", "x.png")
    assert "only 0 and 255" in line and "give the file as --probs" in line
    assert "--ignore 255" in line
    refined(work, "image.png", "--probs", "mask.png", "-o", "x.png")
    assert (read_labels("x.png")[0] != (logits[1] > 0)).sum() > 20  # what it recommends works


@pytest.mark.parametrize("form", ["mask.png", "bool.npy", "hot.npy", "hot8.npy"])
@pytest.mark.parametrize("tiled", [False, True])
def test_hard_probabilities_are_labels(work: Callable[..., Any], form: str, tiled: bool) -> None:
    _, logits = scene()
    mask = logits[1] > 0
    hot = np.stack([~mask, mask])
    Image.fromarray((255 * mask).astype(np.uint8)).save("mask.png")
    np.save("bool.npy", mask)
    np.save("hot.npy", hot.astype(np.float16))
    np.save("hot8.npy", hot.astype(np.uint8))
    if tiled and form == "mask.png":
        np.save("mask.npy", (255 * mask).astype(np.uint8))
        form = "mask.npy"
    tile = ("--tile", 16, "--halo", 16) if tiled else ()
    result = refined(work, "image.png", "--probs", form, "-o", "x.npy", *tile)
    lines = result.stderr.splitlines()
    assert [line for line in lines if "right with probability 0.7" in line] == [
        f"proxfield: note: {form}: probabilities are all 0 or 1: taken as labels that are right "
        "with probability 0.7; --confidence sets it (1 takes them as certain)"
    ]
    changed = int((np.load("x.npy") != mask).sum())
    assert changed > 20
    assert f"changed  {changed} of 600 pixels ({changed / 6:.1f} %)\n" in result.stdout
    refined(work, "image.png", "--probs", form, "-o", "y.npy", "--confidence", "0.9999", *tile)
    assert (np.load("y.npy") == mask).all()


def test_label_maps_as_probabilities_are_not_taken_for_background(
    work: Callable[..., Any],
) -> None:
    _, logits = scene()
    labels = logits.argmax(axis=0).astype(np.uint8)
    Image.fromarray((labels > 0).astype(np.uint8)).save("mask.png")
    line = failed(work, "image.png", "--probs", "mask.png", "-o", "x.png")
    assert "mask.png: holds only 0 and 1" in line and "refine --labels" in line
    refined(work, "image.png", "--labels", "mask.png", "-o", "x.png")  # what it recommends
    assert (read_labels("x.png")[0] != (labels > 0)).sum() > 20
    np.save("labels.npy", labels.astype(np.int64))
    assert "refine --labels" in failed(work, "image.png", "--probs", "labels.npy", "-o", "y.png")
    Image.fromarray(labels).save("labels.png")
    result = refined(work, "image.png", "--probs", "labels.png", "-o", "y.png")
    assert "labels.png: foreground has at most probability 0.0078, so there is none" in (
        result.stderr
    )


# ---- scribbles ----


def test_scribbles(work: Callable[..., Any]) -> None:
    image, logits = scene()
    strokes = np.full(SIZE, 255, dtype=np.uint8)
    strokes[10, 3:27] = 2
    Image.fromarray(strokes).save("strokes.png")
    clear = np.stack([np.where(strokes == 255, 0, strokes), 255 * (strokes != 255)], axis=-1)
    Image.fromarray(clear.astype(np.uint8), "LA").save("clear.png")
    np.save("strokes.npy", np.where(strokes == 255, -1, strokes.astype(np.int16)))
    expected = pf.DenseCRF(image, logits=logits, scribbles=strokes).infer().labels
    assert (expected[10, 3:27] == 2).all()
    for name in ("strokes.png", "clear.png", "strokes.npy"):
        args = ("image.png", "--logits", "logits.npy", "--scribbles", name, "-o", "out.png")
        refined(work, *args)
        np.testing.assert_array_equal(read_labels("out.png")[0], expected)
    Image.fromarray(np.stack([strokes] * 3, axis=-1)).save("color.png")
    args = ("image.png", "--logits", "logits.npy", "-o", "x.png", "--scribbles")
    assert "color picture (RGB), expected label numbers" in failed(work, *args, "color.png")
    Image.fromarray(strokes[1:]).save("small.png")
    assert "--scribbles of shape (19, 30)" in failed(work, *args, "small.png").replace(
        ": scribbles of", ": --scribbles of"
    )


def test_a_folder_of_scribbles_for_some_images(work: Callable[..., Any]) -> None:
    for folder in ("images", "scores", "strokes"):
        Path(folder).mkdir()
    for seed, name in enumerate("ab"):
        image, logits = scene(seed)
        Image.fromarray(image).save(f"images/{name}.png")
        np.save(f"scores/{name}.npy", logits)
    strokes = np.full(SIZE, 255, dtype=np.uint8)
    strokes[10, 3:27] = 2
    Image.fromarray(strokes).save("strokes/b.png")
    args = ("images", "--logits", "scores", "-o", "out", "--scribbles", "strokes")
    refined(work, *args)
    assert (read_labels("out/b.png")[0][10, 3:27] == 2).all()
    assert (read_labels("out/a.png")[0][10, 3:27] != 2).any()
    assert json.loads(Path("out/b.png.json").read_text())["scribbles"].endswith("b.png")
    Path("strokes/b.png").rename("strokes/z.png")
    result = work(*args)
    assert result.exit_code == 2 and "no scribbles for 2 of 2 images" in result.stderr


# ---- pictures ----


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation(work: Callable[..., Any], orientation: int) -> None:
    """Stored as a camera held otherwise would store it, each picture comes upright."""
    image, logits = scene()
    stored = {
        1: image,
        2: image[:, ::-1],
        3: image[::-1, ::-1],
        4: image[::-1],
        5: image.transpose(1, 0, 2),
        6: np.rot90(image, 1),
        7: image[::-1, ::-1].transpose(1, 0, 2),
        8: np.rot90(image, -1),
    }[orientation]
    picture = Image.fromarray(np.ascontiguousarray(stored))
    exif = Image.Exif()
    exif[0x0112] = orientation
    picture.save("photo.png", exif=exif)
    result = refined(work, "photo.png", "--logits", "logits.npy", "-o", "out.png")
    assert ("turned upright" in result.stderr) == (orientation != 1)
    expected = pf.DenseCRF(image, logits=logits).infer().labels
    np.testing.assert_array_equal(read_labels("out.png")[0], expected)
    picture.save("photo.jpg", exif=exif, quality=95)
    refined(work, "photo.jpg", "--logits", "logits.npy", "-o", "jpg.png")
    assert (read_labels("jpg.png")[0] == expected).mean() > 0.98


def test_16_bit_pictures(work: Callable[..., Any]) -> None:
    image, _ = scene()
    gray = image[..., 0]
    Image.fromarray(gray).save("gray.png")
    Image.fromarray(gray.astype(np.uint16) * 257).save("deep.png")
    Image.fromarray(gray.astype(np.uint16) * 257).save("deep.tif")
    for name in ("gray.png", "deep.png", "deep.tif"):
        result = refined(work, name, "--logits", "logits.npy", "-o", f"{Path(name).stem}_out.png")
        assert result.stderr == ""
    assert Path("gray_out.png").read_bytes() == Path("deep_out.png").read_bytes()
    Image.fromarray(gray.astype(np.uint16) * 16).save("twelve.png")
    result = refined(work, "twelve.png", "--logits", "logits.npy", "-o", "x.png")
    assert "16-bit, but no value above" in result.stderr and "--bilateral-color" in result.stderr


def test_16_bit_color(work: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    rasterio = pytest.importorskip("rasterio", reason="rasterio isn't installed")
    image, logits = scene()
    image = image.astype(np.uint16) * 257
    shape = {"width": 30, "height": 20, "count": 3, "dtype": "uint16"}
    for driver, name in (("PNG", "deep.png"), ("GTiff", "deep.tif")):
        with pytest.warns(rasterio.errors.NotGeoreferencedWarning):
            target = rasterio.open(name, "w", driver=driver, **shape)
        with target:
            target.write(image.transpose(2, 0, 1))
    color = ("--bilateral-color", 3000)
    expected = pf.DenseCRF(image, logits=logits, bilateral_color=3000).infer().labels
    for name in ("deep.png", "deep.tif"):
        result = refined(work, name, "--logits", "logits.npy", "-o", "out.png", *color)
        assert result.stderr == ""
        np.testing.assert_array_equal(read_labels("out.png")[0], expected)
    monkeypatch.setattr("proxfield.io.images.has_rasterio", lambda: False)
    result = refined(work, "deep.png", "--logits", "logits.npy", "-o", "out.png")
    assert "16-bit color is read as 8-bit" in result.stderr and "proxfield[geo]" in result.stderr


def test_floats_above_1_are_named(work: Callable[..., Any]) -> None:
    image, _ = scene()
    np.save("float.npy", image.astype(np.float32))
    line = failed(work, "float.npy", "--logits", "logits.npy", "-o", "x.png")
    assert "float32 with values from" in line and "pass --bilateral-color" in line
    assert "(5 for colors up to 255)" in line
    args = ("float.npy", "--logits", "logits.npy", "-o", "x.png", "--bilateral-color", 5)
    refined(work, *args)
    refined(work, "image.png", "--logits", "logits.npy", "-o", "y.png")
    assert Path("x.png").read_bytes() == Path("y.png").read_bytes()


# ---- NIfTI ----


def volume(seed: int = 0) -> tuple[Any, Any]:
    """A gray volume of 16 bits with a sign, as scanners give it, and logits, labels last."""
    image, logits = scene(seed, (8, 9, 12))
    return image[..., 0].astype(np.int16) * 10 - 1000, np.moveaxis(logits, 0, -1)


def test_nifti(work: Callable[..., Any]) -> None:
    nib = pytest.importorskip("nibabel", reason="nibabel isn't installed")
    values, logits = volume()
    affine = np.array([[0.5, 0, 0, 9], [0, 0.5, 0, -7], [0, 0, 4.0, 3], [0, 0, 0, 1]])
    scan = nib.Nifti1Image(values, affine)
    scan.header.set_xyzt_units("mm")
    nib.save(scan, "head.nii.gz")
    nib.save(nib.Nifti1Image(logits.astype(np.float32), affine), "scores.nii")
    color = ("--bilateral-color", 120, "--spatial-weight", 0.9, "--bilateral-weight", 0.2)
    result = refined(work, "head.nii.gz", "--logits", "scores.nii", "-o", "out", *color)
    assert result.stderr == ""
    assert sorted(p.name for p in Path("out").iterdir()) == ["head.nii.gz", "head.nii.gz.json"]
    found = nib.load("out/head.nii.gz")
    np.testing.assert_allclose(found.affine, affine)
    assert found.header.get_zooms() == (0.5, 0.5, 4.0) and found.get_data_dtype() == np.uint8
    options: dict[str, Any] = {"logits": logits, "bilateral_color": 120, "batch": False}
    options |= {"spatial_weight": 0.9, "bilateral_weight": 0.2}
    expected = pf.DenseCRF(values, spacing=(0.5, 0.5, 4.0), **options).infer()
    np.testing.assert_array_equal(np.asarray(found.dataobj), expected.labels)
    cubes = pf.DenseCRF(values, **options).infer()
    assert (cubes.labels != expected.labels).any()  # sigmas are in mm
    args = ("head.nii.gz", "--logits", "scores.nii", *color)
    refined(work, *args, "-o", "cubes.nii", "--spacing", 1)
    np.testing.assert_array_equal(np.asarray(nib.load("cubes.nii").dataobj), cubes.labels)
    refined(work, *args, "-o", "soft", "--output-kind", "probabilities")
    soft = nib.load("soft/head.nii.gz")
    np.testing.assert_allclose(np.asarray(soft.dataobj), expected.probabilities, atol=1e-5)
    refined(work, *args, "-o", "plain.npy")
    np.testing.assert_array_equal(np.load("plain.npy"), expected.labels)


def test_nifti_labels_and_units(work: Callable[..., Any]) -> None:
    nib = pytest.importorskip("nibabel", reason="nibabel isn't installed")
    values, logits = volume()
    labels = logits.argmax(axis=-1).astype(np.uint8)
    labels[0] = 255
    scan = nib.Nifti1Image(values, np.diag([0.001, 0.001, 0.002, 1]))
    scan.header.set_xyzt_units("meter")
    nib.save(scan, "head.nii.gz")
    moved = nib.Nifti1Image(labels.astype(np.float32), np.diag([1, 1, 1, 1]))
    nib.save(moved, "labels.nii.gz")
    args = ("head.nii.gz", "--labels", "labels.nii.gz", "--bilateral-color", 120, "-o", "o.nii.gz")
    result = refined(work, *args)
    assert "labels.nii.gz: lies in another place than the image" in result.stderr
    found = np.asarray(nib.load("o.nii.gz").dataobj)
    expected = pf.DenseCRF.from_labels(values, labels, bilateral_color=120, spacing=(1, 1, 2))
    np.testing.assert_array_equal(found, expected.infer().labels)
    assert (found[0] == 255).all()
    assert "--bilateral-color" in failed(work, *args[:3], "-o", "x.nii.gz")
    Path("broken.nii.gz").write_bytes(Path("head.nii.gz").read_bytes()[:200])
    line = failed(work, "broken.nii.gz", *args[1:-1], "x.nii.gz")
    assert "broken.nii.gz" in line and "Traceback" not in line


def test_nifti_without_nibabel(work: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nibabel", None)
    Path("head.nii.gz").write_bytes(b"x")
    result = work("head.nii.gz", "--logits", "logits.npy", "-o", "x.nii.gz")
    assert result.exit_code == 2
    assert 'NIfTI files need nibabel: pip install "proxfield[medical]"' in result.stderr


# ---- GeoTIFF ----


def save_geotiff(name: str, values: Any, **more: Any) -> Any:
    """Write bands with a place on Earth; returns the transformation."""
    rasterio = pytest.importorskip("rasterio", reason="rasterio isn't installed")
    bands = values[None] if values.ndim == 2 else np.moveaxis(values, -1, 0)
    place = rasterio.Affine(10.0, 0.0, 440_720.0, 0.0, -10.0, 3_751_320.0)
    options = {"count": len(bands), "height": bands.shape[1], "width": bands.shape[2]}
    with rasterio.open(
        name, "w", driver="GTiff", dtype=bands.dtype.name, crs="EPSG:32611", transform=place,
        **options, **more,
    ) as target:  # fmt: skip
        target.write(bands)
    return place


def test_geotiff(work: Callable[..., Any]) -> None:
    rasterio = pytest.importorskip("rasterio", reason="rasterio isn't installed")
    image, logits = scene()
    bands = np.concatenate([image, image[..., :2]], axis=-1).astype(np.uint16) * 257
    place = save_geotiff("scene.tif", bands)
    save_geotiff("scores.tif", np.moveaxis(logits, 0, -1))
    result = refined(work, "scene.tif", "--logits", "scores.tif", "-o", "out")
    assert result.stderr == ""
    expected = pf.DenseCRF(bands, logits=logits).infer()
    with rasterio.open("out/scene.tif") as found:
        assert found.crs == "EPSG:32611" and found.transform == place
        assert found.dtypes == ("uint8",) and found.nodata is None
        np.testing.assert_array_equal(found.read(1), expected.labels)
    args = ("scene.tif", "--logits", "scores.tif")
    refined(work, *args, "-o", "soft.tif", "--output-kind", "probabilities")
    with rasterio.open("soft.tif") as found:
        assert found.crs == "EPSG:32611" and found.count == 3
        np.testing.assert_allclose(found.read(), expected.probabilities, atol=1e-5)
    refined(work, *args, "-o", "plain.png")
    np.testing.assert_array_equal(read_labels("plain.png")[0], expected.labels)


def test_geotiff_labels_and_overlay(work: Callable[..., Any]) -> None:
    rasterio = pytest.importorskip("rasterio", reason="rasterio isn't installed")
    image, logits = scene()
    labels = logits.argmax(axis=0).astype(np.uint8)
    labels[:2] = 255
    save_geotiff("scene.tif", image, photometric="RGB")
    save_geotiff("labels.tif", labels)
    args = ("scene.tif", "--labels", "labels.tif", "-o", "out", "--overlay", "seen")
    refined(work, *args)
    with rasterio.open("out/scene.tif") as found:
        assert found.nodata == 255
        expected = pf.DenseCRF.from_labels(image, labels).infer().labels
        np.testing.assert_array_equal(found.read(1), expected)
    assert Path("seen/scene.png").exists()


def test_geotiff_without_rasterio(
    work: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    image, _ = scene()
    save_geotiff("scene.tif", image, photometric="RGB")
    for module in ("refine_images", "refine_files"):
        monkeypatch.setattr(f"proxfield.cli.{module}.has_rasterio", lambda: False)
    result = refined(work, "scene.tif", "--logits", "logits.npy", "-o", "out")
    assert "place on Earth isn't kept" in result.stderr and "proxfield[geo]" in result.stderr
    assert Path("out/scene.png").exists()


# ---- messages ----


def test_messages_speak_of_options(work: Callable[..., Any]) -> None:
    cube = np.random.default_rng(0).integers(0, 255, size=(5, 5, 5), dtype=np.uint8)
    np.save("cube.npy", cube)
    np.save("five.npy", np.random.default_rng(0).normal(size=(5, 5, 5)))
    line = failed(work, "cube.npy", "--logits", "five.npy", "-o", "x.png")
    assert "pass --labels-axis first or last" in line
    args = ("image.png", "--logits", "logits.npy", "-o", "x.png")
    line = failed(work, *args, "--spatial-sigma", "1,2,3")
    assert "--spatial-sigma 1.0,2.0,3.0, expected a number or 2, one per axis" in line
    assert in_options("confidence=2, expected less; unsure= names a value") == (
        "--confidence 2, expected less; --unsure names a value"
    )
    for name in ("spacing", "filter", "the logits of pixel", "labels"):
        assert in_options(f"{name} are wrong") == f"{name} are wrong"


def test_rules_that_cannot_run_are_not_offered(work: Callable[..., Any]) -> None:
    text = refined(work, "--help").stdout
    listed = set(re.findall(r"^  ([a-z-]+)  ", text.split("Rules:")[1], re.MULTILINE))
    assert {"fixed", "adam", "auto"} <= listed
    assert not listed & {"sweep", "colored", "restarts", "original"}
    args = ("image.png", "--logits", "logits.npy", "--max-iters", 2, "-o", "x.png", "--rule")
    for rule in sorted(listed):
        refined(work, *args, rule)
    refined(work, *args, "restarts", "--set", "inner=fixed")


# ---- progress ----


def test_lines_of_progress_without_a_terminal(
    work: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("images").mkdir()
    Path("scores").mkdir()
    for name in "abc":
        Path(f"images/{name}.png").write_bytes(Path("image.png").read_bytes())
        Path(f"scores/{name}.npy").write_bytes(Path("logits.npy").read_bytes())
    args = ("images", "--logits", "scores", "-o", "out", "--force")
    assert refined(work, *args).stderr == ""  # too short to speak of
    monkeypatch.setattr("proxfield.cli.progress.LINE_SECONDS", 0.0)
    lines = refined(work, *args).stderr.splitlines()
    counted = [line for line in lines if "iteration" not in line]
    assert re.fullmatch(r"proxfield: 1 of 3 images, 33 %, about \d+ s left", counted[0])
    assert re.fullmatch(r"proxfield: 2 of 3 images, 66 %, about \d+ s left", counted[1])
    assert len(counted) == 2
    assert any(re.search(r"0 of 3 images, 0 %; a.png: iteration \d+$", line) for line in lines)


# ---- parameters beside results ----


def test_results_carry_their_parameters(work: Callable[..., Any]) -> None:
    args = ("image.png", "--logits", "logits.npy", "-o", "out")
    refined(work, *args, "--spatial-weight", 2, "--bilateral-color", "9,9,8")
    data = json.loads(Path("out/image.png.json").read_text())
    assert data["image"] == "image.png" and data["logits"] == "logits.npy"
    assert data["parameters"]["terms"]["spatial_weight"] == 2.0
    assert data["parameters"]["terms"]["bilateral_color"] == [9.0, 9.0, 8.0]
    assert data["parameters"]["rule"]["name"] == "fixed"
    assert data["parameters"]["max_iters"] == 5
    assert data["result"]["pixels"] == [20, 30] and data["result"]["n_labels"] == 3
    assert data["proxfield"] == pf.__version__


@pytest.mark.parametrize(
    "change",
    [
        ("--spatial-weight", "2"),
        ("--max-iters", "3"),
        ("--rule", "adhoc"),
        ("--set", "step=0.5"),
        ("--filter", "exact"),
        ("--compatibility", "table.npy"),
        ("--init", "uniform"),
    ],
)
def test_other_parameters_redo_results(work: Callable[..., Any], change: tuple[str, str]) -> None:
    np.save("table.npy", np.ones((3, 3)) - np.eye(3) * 0.9)
    args = ("image.png", "--logits", "logits.npy", "-o", "out")
    assert "refined  1 of 1" in refined(work, *args).stdout
    assert "refined  0 of 1" in refined(work, *args).stdout
    assert "refined  0 of 1" in refined(work, *args, "--threads", 1, "--jobs", 2).stdout
    assert "refined  1 of 1" in refined(work, *args, *change).stdout
    assert "refined  0 of 1" in refined(work, *args, *change).stdout
    assert "refined  1 of 1" in refined(work, *args).stdout


def test_other_inputs_and_lost_records_redo_results(work: Callable[..., Any]) -> None:
    weak = ("--spatial-weight", 0.3, "--bilateral-weight", 0.3)
    args = ("image.png", "--logits", "logits.npy", "-o", "out", *weak)
    refined(work, *args)
    before = Path("out/image.png").read_bytes()
    np.save("logits.npy", scene(5)[1])
    later = time.time() + 10
    os.utime("logits.npy", (later, later))
    assert "refined  1 of 1" in refined(work, *args).stdout
    assert Path("out/image.png").read_bytes() != before
    os.utime("logits.npy", (1, 1))
    for content in ("{", "[]", '{"parameters": 3}'):
        Path("out/image.png.json").write_text(content)
        assert "refined  1 of 1" in refined(work, *args).stdout
    Path("out/image.png.json").unlink()
    assert "refined  1 of 1" in refined(work, *args).stdout
    assert "refined  0 of 1" in refined(work, *args).stdout


# ---- orphans ----


@pytest.mark.skipif(not Path("/proc").exists(), reason="looks at processes through /proc")
def test_workers_end_with_their_parent(
    work: Callable[..., Any], environment: dict[str, str]
) -> None:
    """A parent that is killed can't end them, so they do it themselves."""
    refined(work, "image.png", "--logits", "logits.npy", "-o", "x.png")  # compiles
    Path("images").mkdir()
    Path("scores").mkdir()
    for name in "ab":
        Path(f"images/{name}.png").write_bytes(Path("image.png").read_bytes())
        Path(f"scores/{name}.npy").write_bytes(Path("logits.npy").read_bytes())
    child = subprocess.Popen(
        [
            *(sys.executable, "-m", "proxfield", "refine", "images", "--logits", "scores"),
            *("-o", "out", "--jobs", "2", "--max-iters", "100000000", "--tol", "0"),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
        start_new_session=True,
    )

    def workers() -> list[int]:
        return [pid for pid in group(child.pid) if pid != child.pid and is_busy(pid)]

    deadline = time.monotonic() + 600
    try:
        while len(workers()) < 2 and time.monotonic() < deadline:
            time.sleep(0.1)
        assert len(workers()) == 2
        time.sleep(1)
        child.kill()
        child.wait()
        deadline = time.monotonic() + 60
        while group(child.pid) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert group(child.pid) == []
    finally:
        if group(child.pid):
            os.killpg(child.pid, signal.SIGKILL)


def group(leader: int) -> list[int]:
    """Processes of a group that haven't ended."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[2]) == leader and fields[0] != "Z":
                found.append(int(folder.name))
    return found


def is_busy(pid: int) -> bool:
    """Whether a process has computed for a second: a worker, not the tracker of resources."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") > 1.0
