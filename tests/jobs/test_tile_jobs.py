"""Tiles of an image as jobs: the same bytes everywhere, parts, killed workers, full disks."""

from __future__ import annotations

import json
import os
import pickle
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
from click.testing import CliRunner
from jobs_cases import children_of, contents, hide_package, make_scene, show_package

import proxfield as pf
from proxfield.cli.main import cli
from proxfield.core.jobs.running import ClusterError
from proxfield.images.tile_work import make_grid, make_tile
from proxfield.images.tiles import refine_tile
from proxfield.io.windows import NpyOutput, open_sliced

pytestmark = pytest.mark.slow

posix = pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
SIZE = (60, 80)
TILES: dict[str, Any] = {"tile": 20, "halo": 12, "threads": 1, "output": "probabilities"}


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    image, p = make_scene(SIZE)
    np.save(tmp_path / "image.npy", image)
    np.save(tmp_path / "p.npy", p)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refine(*arguments: object) -> Any:
    given = ("image.npy", "--probs", "p.npy", "--tile", 20, "--halo", 12, "--threads", 1, "--json")
    return CliRunner().invoke(cli, ["refine", *map(str, given), *map(str, arguments)])


def tiles(out: Any, **options: Any) -> pf.images.tiles.TilesResult:
    return pf.refine_tiles("image.npy", "p.npy", out, **{**TILES, **options})


# ---- the same bytes ----


def test_the_same_bytes_everywhere(files: Path, cluster: Any) -> None:
    ways: dict[str, tuple[object, ...]] = {
        "serial": (),
        "loky": ("--jobs", 2),
        "dask": ("--cluster", cluster.scheduler.address),
    }
    for name, options in ways.items():
        done = refine("-o", name, "--output-kind", "probabilities", *options)
        assert done.exit_code == 0, done.output
        assert json.loads(done.stdout)["files"][0]["tiles"] == 12
    for k in (2, 3, 1):
        done = refine("-o", "parts", "--output-kind", "probabilities", "--part", f"{k}/3")
        assert done.exit_code == 0, done.output
    serial = contents(files / "serial")
    assert sorted(serial) == ["image.npy", "image.npy.json"]
    for name in ("loky", "dask", "parts"):
        assert contents(files / name)["image.npy"] == serial["image.npy"]


@posix
@pytest.mark.skipif(sys.platform != "linux", reason="needs ps of Linux")
def test_tiles_of_a_killed_process_are_done_again(files: Path) -> None:
    done: list[int] = []

    def kill(finished: int, _: int) -> None:
        done.append(finished)
        if finished == 3:
            os.kill(min(children_of(os.getpid(), "popen_loky")), signal.SIGKILL)

    tiles("one.npy")
    found = tiles("two.npy", jobs=2, callback=kill)
    assert (done, found.complete) == (list(range(13)), True)
    assert Path("two.npy").read_bytes() == Path("one.npy").read_bytes()
    assert not Path("two.npy.tiles").exists()


@posix
def test_tiles_of_a_killed_dask_worker_are_done_again(files: Path, cluster: Any) -> None:
    pids = list(cluster.run(os.getpid).values())
    done: list[int] = []

    def kill(finished: int, _: int) -> None:
        done.append(finished)
        if finished == 3:
            os.kill(pids[0], signal.SIGKILL)

    tiles("one.npy")
    with joblib.parallel_config("dask", client=cluster):
        tiles("two.npy", callback=kill)
    assert done == list(range(13))
    assert Path("two.npy").read_bytes() == Path("one.npy").read_bytes()


def test_items_are_small(files: Path) -> None:
    work = make_tile(
        *map(open_sliced, ("image.npy", "p.npy")), "probabilities", "labels", "float32", {}, {}
    )
    grid = make_grid(work.axes.pixels, 20, 12, work.reach)
    assert len(pickle.dumps((partial(refine_tile, work, files), grid.part(3)))) < 10_000


# ---- parts ----


def test_parts_leave_tiles_to_others(files: Path) -> None:
    first = refine("-o", "out.npy", "--part", "1/2")
    record = json.loads(first.stdout)
    assert (record["refined"], record["partial"], record["failed"]) == (0, 1, 0)
    assert record["files"][0]["tiles_left"] == 6
    assert not Path("out.npy").exists()
    second = json.loads(refine("-o", "out.npy", "--part", "2/2").stdout)
    assert (second["refined"], second["partial"]) == (1, 0)
    assert not Path("out.npy.tiles").exists()
    again = json.loads(refine("-o", "out.npy", "--part", "1/2").stdout)
    assert again["skipped"] == 1  # a task that is queued again begins nothing anew
    whole = np.zeros(SIZE, np.uint8)
    tiles(whole, output="labels")
    assert np.array_equal(np.load("out.npy"), whole)


def test_a_run_without_parts_finishes_what_parts_have_left(files: Path) -> None:
    tiles("out.npy", parts="2/3")
    Path("out.npy.tiles/writing.claim").mkdir()  # of a run that was killed while it wrote
    last = [tiles("out.npy", parts=f"{k}/3") for k in (1, 3)][-1]
    assert (last.left, last.complete, Path("out.npy").exists()) == (0, False, False)
    found = tiles("out.npy")
    assert (found.done_before, found.complete, found.statuses) == (12, True, {})
    whole = np.zeros((*SIZE, 3), np.float32)
    tiles(whole)
    assert np.array_equal(np.load("out.npy"), whole)


def test_wrong_parts(files: Path) -> None:
    with pytest.raises(pf.InputError, match="expected K/N"):
        tiles("out.npy", parts="4/3")


# ---- faults ----


@pytest.mark.skipif(sys.platform != "linux", reason="needs a limit on the size of files")
@pytest.mark.parametrize("where", ["tile", "output"])
def test_a_full_disk_is_named_and_the_run_goes_on_later(
    files: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import resource

    usual = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(finished: int = 2, _: int = 0) -> None:
        if finished == 2:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, usual[1]))

    if where == "output":  # the first tile is stored, then there is no room
        write = NpyOutput.write
        monkeypatch.setattr(NpyOutput, "write", lambda *given: (fill(), write(*given)))
    try:
        with pytest.raises(pf.InputError, match=r"can't write \(.*\), expected a writable place"):
            tiles("out.npy", callback=fill if where == "tile" else None)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)
    monkeypatch.undo()
    os.chdir(files)
    assert not Path("out.npy").exists()
    stored = [path.name for path in Path("out.npy.tiles").glob("tile-*")]
    assert stored == ([] if where == "tile" else ["tile-0.npy"])
    found = tiles("out.npy")
    assert found.done_before == (2 if where == "tile" else 1)
    whole = np.zeros((*SIZE, 3), np.float32)
    tiles(whole)
    assert np.array_equal(np.load("out.npy"), whole)


def test_a_worker_without_the_extra(files: Path, cluster: Any) -> None:
    zarr = pytest.importorskip("zarr", reason="zarr isn't installed")
    image, _ = make_scene(SIZE)
    array = zarr.open("image.zarr", mode="w", shape=image.shape, dtype="u1")
    array[:] = image

    cluster.run(hide_package, "zarr")
    try:
        with (
            joblib.parallel_config("dask", client=cluster),
            pytest.raises(
                ClusterError, match=r"lacks a package .*proxfield\[tiles\].* every worker"
            ),
        ):
            pf.refine_tiles("image.zarr", "p.npy", "out.npy", **TILES)
        done = CliRunner().invoke(cli, [
            "refine", "image.zarr", "--probs", "p.npy", "-o", "out.npy", "--tile", "20",
            "--cluster", cluster.scheduler.address,
        ])  # fmt: skip
        assert done.exit_code == 1
        assert "lacks a package" in done.stderr and "run the same again" in done.stderr
    finally:
        cluster.run(show_package, "zarr")
    assert not Path("out.npy").exists()


def test_a_folder_that_workers_do_not_share(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from proxfield.images import tiles as module

    monkeypatch.setattr(module, "store_array", lambda path, values: None)  # as if elsewhere
    with pytest.raises(pf.InputError, match="expected a folder that all workers share"):
        tiles("out.npy")
