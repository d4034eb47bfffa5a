"""``proxfield refine`` in tiles: as the user says, by the kind of file, and for lack of memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import proxfield as pf
from proxfield.cli.main import cli

pytestmark = pytest.mark.slow

SETTINGS = ("--bilateral-sigma", "6", "--bilateral-color", "20", "--spatial-sigma", "1.5")
OPTIONS: dict[str, Any] = {"bilateral_sigma": 6.0, "bilateral_color": 20.0, "spatial_sigma": 1.5}


@pytest.fixture
def files(tmp_path: Path) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    truth = np.arange(90)[None, :] * np.ones((60, 1)) > 45
    image = (truth[..., None] * 120 + rng.normal(60, 10, (60, 90, 3))).clip(0, 255).astype(np.uint8)
    p = np.clip(0.25 + 0.4 * truth + rng.normal(0, 0.2, (60, 90)), 0.05, 0.95)
    p = np.stack([1 - p, p], axis=-1).astype(np.float32)
    np.save(tmp_path / "image.npy", image)
    np.save(tmp_path / "p.npy", p)
    return image, p


def refine(*args: object) -> Any:
    return CliRunner().invoke(cli, ["refine", *map(str, args), *SETTINGS])


def test_tiles_as_the_user_says(tmp_path: Path, files: tuple[Any, Any]) -> None:
    expected = pf.DenseCRF(*files, **OPTIONS).infer().labels
    out = tmp_path / "out"
    args = (tmp_path / "image.npy", "--probs", tmp_path / "p.npy", "--tile", 40, "--halo", 90)
    done = refine(*args, "-o", out, "--json")
    assert done.exit_code == 0, done.output
    record = json.loads(done.stdout)["files"][0]
    assert record["tiles"] == 6
    assert record["halo"] == [90, 90]
    from proxfield.io.images import read_labels

    assert np.array_equal(read_labels(out / "image.png")[0], expected)
    assert sorted(f.name for f in out.iterdir()) == ["image.png", "image.png.json"]
    again = refine(*args, "-o", out, "--json")
    assert json.loads(again.stdout)["skipped"] == 1
    other = refine(*args[:3], "--tile", 50, "-o", out, "--json")
    assert json.loads(other.stdout)["refined"] == 1


@pytest.mark.parametrize("form", ["probs", "labels"])
def test_an_image_that_does_not_fit_is_refined_in_tiles(
    tmp_path: Path, files: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    from proxfield.cli import refine_tiles as module
    from proxfield.io.images import read_labels, write_labels

    given: tuple[object, ...] = (tmp_path / "image.npy", "--probs", tmp_path / "p.npy")
    if form == "labels":  # pictures, which are decoded in one piece
        pytest.importorskip("PIL", reason="needs proxfield[images]")
        write_labels(tmp_path / "map.png", files[1].argmax(-1), 2)
        given = (tmp_path / "image.npy", "--labels", tmp_path / "map.png", "--n-labels", 2)
    whole = json.loads(refine(*given, "-o", tmp_path / "whole.png", "--json").stdout)
    assert "tiles" not in whole["files"][0]
    monkeypatch.setattr(module, "TILE", 40)
    monkeypatch.setattr("proxfield.core.common.memory.available_memory", lambda: 200 * 2**20)
    tiled = refine(*given, "-o", tmp_path / "tiled.png", "--json", "--halo", 90)
    assert tiled.exit_code == 0, tiled.output
    assert json.loads(tiled.stdout)["files"][0]["tiles"] == 6
    labels = [read_labels(tmp_path / f"{name}.png")[0] for name in ("whole", "tiled")]
    assert np.array_equal(*labels)
    monkeypatch.setattr("proxfield.core.common.memory.available_memory", lambda: 2**34)
    fits = json.loads(refine(*given, "-o", tmp_path / "fits.png", "--json").stdout)
    assert "tiles" not in fits["files"][0]


def test_what_looks_at_the_whole_image_is_never_tiled(
    tmp_path: Path, files: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxfield.core.common.memory.available_memory", lambda: 200 * 2**20)
    done = refine(
        tmp_path / "image.npy", "--probs", tmp_path / "p.npy", "-o", tmp_path / "out.npy",
        "--overlay", tmp_path / "pictures", "--json",
    )  # fmt: skip
    assert "tiles" not in json.loads(done.stdout)["files"][0]


def test_zarr_and_tiff_in_and_out(tmp_path: Path, files: tuple[Any, Any]) -> None:
    zarr = pytest.importorskip("zarr", reason="zarr isn't installed")
    tifffile = pytest.importorskip("tifffile", reason="tifffile isn't installed")
    image, p = files
    expected = pf.DenseCRF(image, p, **OPTIONS).infer().labels
    tifffile.imwrite(tmp_path / "slide.svs", image, tile=(32, 32), photometric="rgb")
    array = zarr.open(str(tmp_path / "p.zarr"), mode="w", shape=p.shape, dtype="f4")
    array[:] = p
    args = (tmp_path / "slide.svs", "--probs", tmp_path / "p.zarr")
    for name in ("out.tif", "out.zarr"):
        done = refine(*args, "-o", tmp_path / name)
        assert done.exit_code == 0, done.output
    assert np.array_equal(tifffile.imread(tmp_path / "out.tif"), expected)
    assert np.array_equal(zarr.open(str(tmp_path / "out.zarr"), mode="r")[:], expected)


def test_errors(tmp_path: Path, files: tuple[Any, Any]) -> None:
    args = (tmp_path / "image.npy", "--probs", tmp_path / "p.npy", "-o", tmp_path / "out")
    done = refine(*args, "--tile", 40, "--overlay", tmp_path / "pictures")
    assert (done.exit_code, "--overlay doesn't go with tiles" in done.output) == (2, True)
    done = refine(*args, "--halo", 40)
    assert (done.exit_code, "expected --tile too" in done.output) == (2, True)
    np.savez(tmp_path / "p.npz", probabilities=files[1])
    named = (args[0], "--probs", tmp_path / "p.npz", "-o", tmp_path / "out", "--tile", 40)
    done = refine(*named)
    assert done.exit_code == 2
    assert "can't be read in windows" in str(done.output) + str(done.exception)
    bad = files[1].copy()
    bad[3, 4] = 2
    np.save(tmp_path / "p.npy", bad)
    done = refine(*args, "--tile", 40)
    assert done.exit_code == 1
    assert "tile 0" in done.output
    assert "sum to 4" in done.output
