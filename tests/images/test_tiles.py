"""Tiles of an image: the whole image's labels, from any file, into any file, in any order."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import proxfield as pf
from proxfield.core.filters.lattice import LatticeFilter
from proxfield.core.filters.points import PixelPoints
from proxfield.images import tiles
from proxfield.images.tile_work import make_grid
from proxfield.io.windows import NewFile, NpyOutput, open_sliced

pytestmark = pytest.mark.slow

OPTIONS: dict[str, Any] = {"bilateral_sigma": 6.0, "bilateral_color": 20.0, "spatial_sigma": 1.5}


def scene(height: int = 90, width: int = 120, n_labels: int = 3) -> tuple[Any, Any]:
    """An image of three areas, and noisy probabilities of them."""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[:height, :width]
    truth = ((x - 60) ** 2 + (y - 45) ** 2 < 30**2) + (x > 90) * 1
    truth = np.minimum(truth, n_labels - 1)
    colors = np.array([[40, 80, 160], [200, 90, 60], [90, 180, 70]])
    image = colors[truth] + rng.normal(scale=14, size=(height, width, 3))
    p = rng.dirichlet(np.ones(n_labels), size=(height, width)) + 0.4 * np.eye(n_labels)[truth]
    p /= p.sum(axis=-1, keepdims=True)
    return image.clip(0, 255).astype(np.uint8), p.astype(np.float32)


def whole(image: Any, p: Any, **options: Any) -> pf.DenseResult:
    return pf.DenseCRF(image, p, **{**OPTIONS, **options}).infer()


def near_seams(shape: tuple[int, int], tile: int, width: int) -> Any:
    """Pixels at most so far from a seam."""
    near = np.zeros(shape, dtype=bool)
    for at in range(tile, shape[0], tile):
        near[at - width : at + width] = True
    for at in range(tile, shape[1], tile):
        near[:, at - width : at + width] = True
    return near


# ---- the whole image's labels ----


def test_features_of_a_part_are_those_of_the_whole() -> None:
    image, _ = scene(20, 30)
    scale, color = np.array([1 / 3.0, 1 / 7.0]), np.array([5.0, 5.0, 5.0])
    full = PixelPoints((20, 30), scale, image, color).array().reshape(20, 30, 5)
    part = PixelPoints((6, 11), scale, image[7:13, 19:], color, (7, 19)).array()
    assert np.array_equal(part.reshape(6, 11, 5), full[7:13, 19:])


def test_an_origin_changes_the_lattice() -> None:
    image, p = scene()
    at = pf.DenseCRF(image, p, **OPTIONS, origin=(5, 3)).infer().q
    assert not np.array_equal(at, whole(image, p).q)
    with pytest.raises(pf.InputError, match="whole numbers of pixels"):
        pf.DenseCRF(image, p, origin=0.5)
    with pytest.raises(pf.InputError, match="one per axis"):
        pf.DenseCRF(image, p, origin=(1, 2, 3))


def test_tiles_have_the_labels_of_the_whole() -> None:
    image, p = scene(150, 200)
    labels = np.full((150, 200), 99, dtype=np.uint8)
    found = pf.refine_tiles(image, p, labels, tile=64, **OPTIONS)
    assert (found.tiles, found.n_labels, found.halo) == (12, 3, (30, 30))
    expected = whole(image, p).labels
    near = near_seams((150, 200), 64, 16)
    assert (labels == expected)[near].mean() >= 0.999
    assert (labels == expected).mean() >= 0.9995
    assert (p.argmax(axis=-1) != expected).mean() > 0.01


def test_one_tile_is_the_whole_image_bit_by_bit() -> None:
    image, p = scene()
    out = np.zeros_like(p)
    pf.refine_tiles(image, p, out, output="probabilities", **OPTIONS)
    assert np.array_equal(out, whole(image, p).probabilities)


def test_a_halo_around_everything_gives_the_same_bits() -> None:
    image, p = scene()
    out = np.zeros_like(p)
    pf.refine_tiles(image, p, out, output="probabilities", tile=50, halo=200, **OPTIONS)
    assert np.array_equal(out, whole(image, p).probabilities)


@pytest.mark.parametrize("narrow", [False, True])
def test_tiles_choose_the_blurs_of_the_whole(narrow: bool, monkeypatch: Any) -> None:
    monkeypatch.setattr("proxfield.core.filters.geometry.CHEAP_VISITS", 0)
    image, p = scene(150, 200)
    width, color = (6.0, 2.0) if narrow else (20.0, 60.0)
    options = {**OPTIONS, "bilateral_sigma": width, "bilateral_color": color}
    seen: list[list[str]] = []
    infer = pf.DenseCRF.infer

    def noted(crf: pf.DenseCRF, *args: Any, **kwargs: Any) -> Any:
        seen.append([term.filter.kind.name for term in crf.terms[1:]])  # type: ignore[attr-defined]
        return infer(crf, *args, **kwargs)

    monkeypatch.setattr(pf.DenseCRF, "infer", noted)
    whole(image, p, **options)
    pf.refine_tiles(image, p, np.zeros((150, 200), np.uint8), tile=64, **options)
    assert len(seen) == 13
    assert all(names == seen[0] for names in seen)
    assert seen[0][1] == ("star" if narrow else "separable")


def test_the_range_of_colors_is_that_of_the_whole() -> None:
    image, p = scene()
    deep = image.astype(np.uint16)
    deep[0, 0] = 40_000  # one pixel says that these are 16 bits
    out = np.zeros_like(p)
    options = {**OPTIONS, "bilateral_color": None}
    pf.refine_tiles(deep, p, out, output="probabilities", tile=50, halo=200, **options)
    assert np.array_equal(out, whole(deep, p, **options).probabilities)
    far = whole(deep[50:], p[50:], **options, origin=(50, 0)).probabilities
    assert not np.allclose(out[85:], far[35:], atol=1e-3)


# ---- what is given and what is written ----


def test_every_form_of_input() -> None:
    image, p = scene()
    expected = whole(image, p).labels
    forms: list[tuple[Any, Any, dict[str, Any]]] = [
        (np.moveaxis(image, -1, 0), p, {}),
        (image, np.moveaxis(p, -1, 0), {}),
        (image, np.log(p), {"kind": "logits"}),
        (image, p.astype(np.float64), {}),
    ]
    for picture, unary, options in forms:
        out = np.zeros(expected.shape, np.uint8)
        pf.refine_tiles(picture, unary, out, tile=50, halo=200, **options, **OPTIONS)
        assert (out == expected).mean() > 0.9999
    mask = p[..., 1]
    out = np.zeros(mask.shape, np.float32)
    pf.refine_tiles(image, mask, out, output="probabilities", tile=50, halo=200, **OPTIONS)
    assert np.array_equal(out, whole(image, mask).probabilities)


def test_label_maps_keep_ignored_pixels() -> None:
    image, p = scene()
    given = p.argmax(axis=-1)
    given[70:, 100:] = 255
    out = np.zeros(given.shape, np.uint8)
    pf.refine_tiles(image, given, out, kind="labels", n_labels=3, tile=50, halo=200, **OPTIONS)
    crf = pf.DenseCRF.from_labels(image, given, 3, **OPTIONS)
    assert np.array_equal(out, crf.infer().labels)
    assert (out[70:, 100:] == 255).all()


def test_npy_files(tmp_path: Path) -> None:
    image, p = scene()
    np.save(tmp_path / "image.npy", image)
    np.save(tmp_path / "p.npy", np.asfortranarray(p))
    source = open_sliced(tmp_path / "p.npy")
    window = (slice(3, 9), slice(0, 7), slice(0, 3))
    assert np.array_equal(source.read(window), p[window])
    mapped = np.load(tmp_path / "image.npy", mmap_mode="r")
    out = tmp_path / "labels.npy"
    pf.refine_tiles(mapped, tmp_path / "p.npy", out, tile=50, halo=200, **OPTIONS)
    assert np.array_equal(np.load(out), whole(image, p).labels)
    assert np.load(out).dtype == np.uint8
    assert sorted(f.name for f in tmp_path.iterdir()) == ["image.npy", "labels.npy", "p.npy"]


@pytest.mark.parametrize("shape", [(7,), (5, 6), (4, 5, 3), (3, 4, 5, 2)])
def test_windows_of_a_npy_file_are_written_where_they_belong(
    tmp_path: Path, shape: tuple[int, ...]
) -> None:
    rng = np.random.default_rng(0)
    expected = np.zeros(shape, np.float32)
    out = NpyOutput(NewFile(tmp_path / "x.npy", tmp_path, shape, expected.dtype, shape))
    for _ in range(20):
        ends = [np.sort(rng.choice(n + 1, 2, replace=False)) for n in shape]
        window = tuple(slice(int(a), int(b)) for a, b in ends)
        window = tuple(
            slice(0, n) if rng.random() < 0.3 else w for w, n in zip(window, shape, strict=True)
        )
        values = rng.normal(size=expected[window].shape).astype(np.float32)
        expected[window] = values
        out.write(window, np.asfortranarray(values))
    out.finish()
    assert np.array_equal(np.load(tmp_path / "x.npy"), expected)


def test_a_view_of_a_mapped_file_is_read_where_it_lies(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(60.0).reshape(6, 10))
    part = np.load(tmp_path / "x.npy", mmap_mode="r")[2:, 3:]
    assert np.array_equal(open_sliced(part).read((slice(0, 2), slice(1, 3))), part[:2, 1:3])
    whole_rows = np.load(tmp_path / "x.npy", mmap_mode="r")[2:]
    assert np.array_equal(open_sliced(whole_rows).read((slice(0, 2),)), whole_rows[:2])


def test_zarr_in_an_object_store() -> None:
    zarr = pytest.importorskip("zarr", reason="zarr isn't installed")
    pytest.importorskip("fsspec", reason="needs proxfield[cluster]")
    image, p = scene(40, 50)
    array = zarr.open("memory://tiles/image.zarr", mode="w", shape=image.shape, dtype="u1")
    array[:] = image
    found, here = np.zeros((40, 50), np.uint8), np.zeros((40, 50), np.uint8)
    pf.refine_tiles("memory://tiles/image.zarr", p, found, tile=25, **OPTIONS)
    pf.refine_tiles(image, p, here, tile=25, **OPTIONS)
    assert np.array_equal(found, here)
    with pytest.raises(pf.InputError, match="expected a zarr array or a file of this machine"):
        pf.refine_tiles("memory://tiles/image.npy", p, found)
    with pytest.raises(pf.InputError, match="tiles can't be written there"):
        pf.refine_tiles(image, p, "memory://tiles/out.npy")


def test_zarr(tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr", reason="zarr isn't installed")
    image, p = scene()
    for name, values in (("image", image), ("p", p)):
        size = (32, 32, values.shape[-1])
        array = zarr.open(
            str(tmp_path / f"{name}.zarr"), mode="w", shape=values.shape, chunks=size,
            dtype=values.dtype,
        )  # fmt: skip
        array[:] = values
    out = tmp_path / "out.zarr"
    for given in (tmp_path / "image.zarr", zarr.open(str(tmp_path / "image.zarr"), mode="r")):
        pf.refine_tiles(
            given, str(tmp_path / "p.zarr"), out, output="probabilities", tile=50, halo=200,
            **OPTIONS,
        )  # fmt: skip
        assert np.array_equal(zarr.open(str(out), mode="r")[:], whole(image, p).probabilities)
    group = zarr.open_group(str(tmp_path / "both.zarr"), mode="w")
    for name in ("0", "1"):
        group.create_array(name, shape=(4, 6), dtype="u1")
    assert open_sliced(tmp_path / "both.zarr").shape == (4, 6)


@pytest.mark.parametrize("planar", ["contig", "separate"])
@pytest.mark.parametrize("tiled", [False, True])
def test_windows_of_a_tiff(tmp_path: Path, planar: str, tiled: bool) -> None:
    tifffile = pytest.importorskip("tifffile", reason="tifffile isn't installed")
    image, _ = scene(100, 150)
    stored = np.moveaxis(image, -1, 0) if planar == "separate" else image
    options: dict[str, Any] = {"tile": (32, 48)} if tiled else {"rowsperstrip": 7}
    tifffile.imwrite(
        tmp_path / "x.tif", stored, photometric="rgb", planarconfig=planar, compression="zlib",
        **options,
    )  # fmt: skip
    source = tiles.open_sliced(tmp_path / "x.tif")
    assert source.shape == image.shape
    for rows, columns in ((slice(0, 100), slice(0, 150)), (slice(31, 66), slice(47, 149))):
        assert np.array_equal(source.read((rows, columns, slice(0, 3))), image[rows, columns])


def test_alpha_of_a_tiff_is_left_out(tmp_path: Path) -> None:
    tifffile = pytest.importorskip("tifffile", reason="tifffile isn't installed")
    image, _ = scene(40, 50)
    both = np.concatenate([image, np.full((40, 50, 1), 255, np.uint8)], axis=-1)
    tifffile.imwrite(
        tmp_path / "x.tif", both, photometric="rgb", extrasamples=["unassalpha"], tile=(16, 16)
    )
    source = open_sliced(tmp_path / "x.tif")
    assert source.shape == (40, 50, 3)
    assert np.array_equal(source.read((slice(3, 30), slice(9, 50), slice(0, 3))), image[3:30, 9:])


def test_a_pyramid_is_read_in_full_size(tmp_path: Path) -> None:
    tifffile = pytest.importorskip("tifffile", reason="tifffile isn't installed")
    image, _ = scene(128, 160)
    with tifffile.TiffWriter(tmp_path / "slide.tif") as writer:
        writer.write(image, subifds=1, tile=(32, 32), photometric="rgb")
        writer.write(image[::2, ::2], subfiletype=1, tile=(32, 32), photometric="rgb")
    source = open_sliced(tmp_path / "slide.tif")
    assert source.shape == image.shape
    window = (slice(60, 100), slice(10, 90), slice(0, 3))
    assert np.array_equal(source.read(window), image[window])


@pytest.mark.parametrize("first", [False, True])
def test_tiff_of_probabilities(tmp_path: Path, first: bool) -> None:
    tifffile = pytest.importorskip("tifffile", reason="tifffile isn't installed")
    image, p = scene(90, 300)
    given = np.moveaxis(p, -1, 0) if first else p
    out = tmp_path / "out.tif"
    pf.refine_tiles(image, given, out, output="probabilities", tile=150, halo=400, **OPTIONS)
    assert np.array_equal(tifffile.imread(out), whole(image, given).probabilities)
    with tifffile.TiffFile(out) as file:
        assert file.pages[0].is_tiled
    assert [f.name for f in tmp_path.iterdir()] == ["out.tif"]


def test_geotiff_keeps_its_place(tmp_path: Path) -> None:
    rasterio = pytest.importorskip("rasterio", reason="rasterio isn't installed")
    from rasterio.transform import Affine

    from proxfield.io.tiff import read_reference

    image, p = scene()
    place = {"crs": "EPSG:32632", "transform": Affine(2, 0, 500_000, 0, -2, 5_000_000)}
    with rasterio.open(
        tmp_path / "x.tif", "w", driver="GTiff", height=90, width=120, count=3, dtype="uint8",
        **place,
    ) as file:  # fmt: skip
        file.write(np.moveaxis(image, -1, 0))
    source = open_sliced(tmp_path / "x.tif")
    window = (slice(20, 61), slice(5, 77), slice(0, 3))
    assert np.array_equal(source.read(window), image[window])
    out = tmp_path / "out.tif"
    reference = read_reference(tmp_path / "x.tif")
    pf.refine_tiles(source, p, out, tile=50, halo=200, reference=reference, **OPTIONS)
    with rasterio.open(out) as file:
        assert file.transform == place["transform"]
        assert file.crs.to_epsg() == 32632
        assert np.array_equal(file.read(1), whole(image, p).labels)


def test_volumes() -> None:
    rng = np.random.default_rng(1)
    image = rng.integers(0, 255, (12, 20, 25), dtype=np.uint8)
    p = rng.dirichlet(np.ones(2), size=(12, 20, 25)).astype(np.float32)
    out = np.zeros(p.shape, np.float32)
    pf.refine_tiles(image, p, out, output="probabilities", tile=(12, 10, 10), halo=30, **OPTIONS)
    expected = pf.DenseCRF(image, p, batch=False, **OPTIONS).infer().probabilities
    assert np.array_equal(out, expected)


# ---- memory ----


def test_nothing_of_a_tile_stays_in_memory() -> None:
    image, p = scene()
    seen: list[int] = []

    def count(*_: int) -> None:
        seen.append(sum(type(x) is LatticeFilter for x in gc.get_objects()))

    gc.collect()
    count()  # what other tests hold
    pf.refine_tiles(image, p, np.zeros((90, 120), np.uint8), tile=50, callback=count, **OPTIONS)
    assert len(seen) == 8 and max(seen[2:]) <= seen[0]


def test_compact_operators_give_the_same() -> None:
    points = np.random.default_rng(0).normal(size=(300, 3))
    term = pf.Gaussian(points, 2.0, filter="lattice")
    values = np.random.default_rng(1).normal(size=(300, 2))
    sums, seen = term.row_sums.copy(), term.operator.apply(values)
    small = pf.Gaussian(points, 2.0, filter="lattice")
    small.operator.compact()
    assert small.operator.mass is None
    assert np.array_equal(small.row_sums, sums)
    assert np.array_equal(small.operator.apply(values), seen)
    assert small.operator.range() == term.operator.range()


def test_freed_memory_is_returned_where_the_c_library_can(monkeypatch: pytest.MonkeyPatch) -> None:
    from proxfield.core.common import memory

    calls: list[tuple[Any, ...]] = []

    class Library:
        def mallopt(self, *given: int) -> None:
            calls.append(("mallopt", *given))

        def malloc_trim(self, *given: int) -> None:
            calls.append(("malloc_trim", *given))

        gnu_get_libc_version = None

    monkeypatch.setattr(memory.ctypes, "CDLL", lambda name: Library())
    monkeypatch.setattr(sys, "platform", "linux")
    memory._glibc.cache_clear()
    memory.return_freed_arrays()
    memory.return_freed_arrays()
    assert calls == [("mallopt", -3, 2**20), ("malloc_trim", 0), ("malloc_trim", 0)]
    memory._glibc.cache_clear()
    monkeypatch.setattr(sys, "platform", "darwin")
    assert memory._glibc() is None
    memory._glibc.cache_clear()


# ---- jobs, stopping and going on ----


def test_jobs_give_the_same_bits(tmp_path: Path) -> None:
    image, p = scene()
    one, two = (np.zeros(p.shape, np.float32) for _ in range(2))
    options = {"output": "probabilities", "tile": 50, "halo": 10, "threads": 1, **OPTIONS}
    pf.refine_tiles(image, p, one, **options)
    pf.refine_tiles(image, p, two, jobs=2, **options)
    assert np.array_equal(one, two)


def test_a_run_that_was_stopped_goes_on(tmp_path: Path) -> None:
    image, p = scene()
    out = tmp_path / "out.npy"
    options = {"tile": 50, "halo": 10, **OPTIONS}
    seen: list[int] = []

    def stop(done: int, total: int) -> None:
        seen.append(done)
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pf.refine_tiles(image, p, out, callback=stop, **options)
    assert not out.exists()
    finished = tmp_path / "out.npy.tiles" / "finished.txt"
    assert finished.read_text() == "0\n1\n"
    finished.write_text("0\n1\n3")  # ended while it wrote a line
    found = pf.refine_tiles(image, p, out, **options)
    assert (found.tiles, found.done_before) == (6, 2)
    again = np.zeros((90, 120), np.uint8)
    pf.refine_tiles(image, p, again, **options)
    assert np.array_equal(np.load(out), again)
    assert [f.name for f in tmp_path.iterdir()] == ["out.npy"]


@pytest.mark.parametrize("change", ["pixels", "settings", "resume"])
def test_other_arguments_begin_anew(tmp_path: Path, change: str) -> None:
    image, p = scene()
    out = tmp_path / "out.npy"
    options: dict[str, Any] = {"tile": 50, "halo": 10, **OPTIONS}
    pf.refine_tiles(image, p, out, parts=[0, 4], **options)
    assert not out.exists()
    if change == "pixels":
        image[0, 0, 0] ^= 1
    elif change == "settings":
        options["spatial_weight"] = 2.5
    else:
        options["resume"] = False
    found = pf.refine_tiles(image, p, out, parts=[1], **options)
    assert found.done_before == 0
    assert [f.name for f in (tmp_path / "out.npy.tiles").glob("tile-*")] == ["tile-1.npy"]


@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
def test_a_process_that_is_killed_loses_one_tile_at_most(tmp_path: Path) -> None:
    image, p = scene()
    np.save(tmp_path / "image.npy", image)
    np.save(tmp_path / "p.npy", p)
    script = textwrap.dedent("""
        import os, signal, sys
        import proxfield as pf
        folder = sys.argv[1]
        def stop(done, total):
            if done == 3:
                os.kill(os.getpid(), signal.SIGKILL)
        pf.refine_tiles(f"{folder}/image.npy", f"{folder}/p.npy", f"{folder}/out.npy", tile=50,
                        halo=10, bilateral_sigma=6.0, bilateral_color=20.0, spatial_sigma=1.5,
                        callback=stop)
    """)
    ended = subprocess.run([sys.executable, "-c", script, str(tmp_path)], env=os.environ.copy())
    assert ended.returncode == -signal.SIGKILL
    options = {"tile": 50, "halo": 10, **OPTIONS}
    paths = (tmp_path / "image.npy", tmp_path / "p.npy", tmp_path / "out.npy")
    assert pf.refine_tiles(*paths, **options).done_before == 3
    again = np.zeros((90, 120), np.uint8)
    pf.refine_tiles(image, p, again, **options)
    assert np.array_equal(np.load(tmp_path / "out.npy"), again)


# ---- errors ----


def test_errors_name_what_is_wrong(tmp_path: Path) -> None:
    image, p = scene()
    out = np.zeros((90, 120), np.uint8)
    bad = p.copy()
    bad[80, 110] = 3.0
    cases: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
        (r"tile 5 \(pixels 40:90, 90:120\).*pixel \(40, 20\)", (image, bad, out), {"halo": 10}),
        ("expected an array of shape", (image, p, np.zeros((5, 5))), {}),
        ("expected a name ending in .npy, .zarr", (image, p, tmp_path / "x.png"), {}),
        ("folder doesn't exist", (image, p, tmp_path / "no" / "x.npy"), {}),
        ("no such file", (tmp_path / "none.npy", p, out), {}),
        ("don't match", (image, p[:50], out), {}),
        ("halo='wide'", (image, p, out), {"halo": "wide"}),
        ("tile=0, expected 1 or more", (image, p, out), {"tile": 0}),
        ("kind='scores'", (image, p, out), {"kind": "scores"}),
        ("need n_labels", (image, p.argmax(-1), out), {"kind": "labels"}),
        ("cooccurrence doesn't go with tiles", (image, p, out), {"cooccurrence": "x.json"}),
        ("parts hold 9", (image, p, out), {"parts": [9]}),
        ("jobs=0", (image, p, out), {"jobs": 0}),
    ]
    for message, given, options in cases:
        with pytest.raises(pf.InputError, match=message):
            pf.refine_tiles(*given, **{"tile": 50, **OPTIONS, **options})
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    image, p = scene()
    place = tmp_path / "out.npy.tiles"
    place.mkdir()
    (place / "thesis.txt").write_text("mine")
    with pytest.raises(pf.InputError, match="holds something else"):
        pf.refine_tiles(image, p, tmp_path / "out.npy", **OPTIONS)
    assert (place / "thesis.txt").read_text() == "mine"


def test_halo_follows_the_widest_term() -> None:
    assert make_grid((500, 500), 100, "auto", (40.0, 20.0)).halo == (200, 100)
    parts = [make_grid((250, 130), 100, 7, (0.0, 0.0)).part(k) for k in range(6)]
    cover = np.zeros((250, 130), dtype=int)
    for part in parts:
        cover[part.core] += 1
    assert (cover == 1).all()
