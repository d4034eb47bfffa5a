"""``proxfield refine``: one image, folders, reruns, broken files, several jobs."""

from __future__ import annotations

import json
import os
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
from proxfield.images.cooccurrence import CooccurrenceStatistics
from proxfield.io.images import label_colors, read_image, read_labels, read_probabilities

NAMES = ("a", "b", "c")
SIZE = (20, 30)


def scene(seed: int) -> tuple[Any, Any]:
    """An 8-bit RGB image in two halves, and noisy probabilities of three labels."""
    rng = np.random.default_rng(seed)
    truth = np.broadcast_to(np.arange(SIZE[1]) >= SIZE[1] // 2, SIZE).astype(int)
    image = np.where(truth[..., None], 180, 60) + rng.normal(0, 6, size=(*SIZE, 3))
    p = np.exp(1.2 * np.eye(3)[truth] + rng.normal(0, 0.8, size=(*SIZE, 3)))
    return image.clip(0, 255).astype(np.uint8), p / p.sum(axis=-1, keepdims=True)


@pytest.fixture
def work(invoke: Callable[..., Any]) -> Callable[..., Any]:
    """The command in a folder with images, probabilities, and label maps with a palette."""
    for folder in ("images", "probs", "maps"):
        Path(folder).mkdir()
    for seed, name in enumerate(NAMES):
        image, p = scene(seed)
        Image.fromarray(image).save(f"images/{name}.png")
        np.save(f"probs/{name}.npy", p.astype(np.float32))
        labels = Image.fromarray(p.argmax(axis=-1).astype(np.uint8))
        labels.putpalette([0, 0, 0, 250, 0, 0, 0, 250, 0])
        labels.save(f"maps/{name}.png")
    return lambda *args, **options: invoke("refine", *args, **options)


@pytest.fixture
def refuse(work: Callable[..., Any]) -> Callable[..., str]:
    """Call, expect a refusal in one line that writes nothing, and return the line."""

    def call(*args: Any) -> str:
        before = sorted(map(str, Path().rglob("*")))
        result = work(*args)
        assert result.exit_code == 2, (result.stdout, result.stderr, result.exception)
        assert result.stdout == ""
        assert result.stderr.startswith("proxfield: error: ")
        assert result.stderr.count("\n") == 1
        assert sorted(map(str, Path().rglob("*"))) == before
        return str(result.stderr)

    return call


FOLDERS = ("images", "--probs", "probs", "-o", "out")


def test_how_many_pixels_changed(work: Callable[..., Any]) -> None:
    """Of all images, in the report, in JSON, and beside each result."""
    result = work(*FOLDERS)
    counts = {}
    for name in NAMES:
        before = np.load(f"probs/{name}.npy").argmax(axis=-1)
        counts[name] = int((read_labels(f"out/{name}.png")[0] != before).sum())
        stored = json.loads(Path(f"out/{name}.png.json").read_text(encoding="utf-8"))
        assert stored["result"]["changed"] == counts[name]
    total, pixels = sum(counts.values()), len(NAMES) * before.size
    share = f"{total} of {pixels:,} pixels ({100 * total / pixels:.1f} %)\n"
    assert f"changed  {share}" in result.stdout
    assert "--preset" not in result.stdout  # enough have changed
    stored = json.loads(work(*FOLDERS, "--force", "--json").stdout)
    assert (stored["changed"], stored["pixels"]) == (total, pixels)
    assert [record["changed"] for record in stored["files"]] == list(counts.values())
    assert "changed" not in work(*FOLDERS).stdout  # nothing was refined


def test_where_hardly_any_changed_presets_and_tune_are_named(work: Callable[..., Any]) -> None:
    result = work(*FOLDERS, "--spatial-weight", 0, "--bilateral-weight", 1e-9)
    assert (
        "changed  0 of 1,800 pixels (0 %); for more, try another --preset, or proxfield tune"
        in (result.stdout)
    )
    labels = work("images/a.png", "--labels", "maps/a.png", "--confidence", 0.99, "-o", "a.png")
    words = "(0 %); for more, try another --preset, a lower --confidence, or proxfield tune"
    assert f"changed  0 of 600 pixels {words}" in labels.stdout
    assert labels.stderr == ""  # no warning beside it


def test_no_hint_where_there_is_one_label_only(work: Callable[..., Any]) -> None:
    shape = read_labels("maps/a.png")[0].shape
    np.save("one.npy", np.zeros(shape, dtype=np.uint8))
    result = work("images/a.png", "--labels", "one.npy", "--n-labels", 3, "-o", "a.png")
    assert "changed  0 of 600 pixels (0 %)\n" in result.stdout


def test_the_confidence_of_a_configuration_is_used(work: Callable[..., Any]) -> None:
    Path("crf.toml").write_text("confidence = 0.9\n", encoding="utf-8")
    labels = read_labels("maps/a.png")[0]
    np.save("hard.npy", np.eye(3, dtype=np.float32)[labels])
    more = ("-o", "a.png", "--config", "crf.toml", "--json")
    for given in (("--probs", "hard.npy"), ("--labels", "maps/a.png")):
        found = json.loads(work("images/a.png", *given, *more).stdout)
        assert found["files"][0]["confidence"] == 0.9
        own = json.loads(work("images/a.png", *given, *more, "--confidence", 0.6).stdout)
        assert own["files"][0]["confidence"] == 0.6


def test_results_are_pictures_with_colors(work: Callable[..., Any]) -> None:
    work(*FOLDERS)
    with Image.open("out/a.png") as picture:
        assert picture.mode == "P"
        assert (np.array(picture) == read_labels("out/a.png")[0]).all()
        assert picture.convert("RGB").getpixel((0, 0)) == tuple(
            label_colors(3)[np.array(picture)[0, 0]].tolist()
        )


def files(folder: str = "out") -> list[str]:
    """Results, without the JSON files beside them."""
    return sorted(p.name for p in Path(folder).iterdir() if p.suffix != ".json")


# ---- what it writes ----


def test_one_image(work: Callable[..., Any]) -> None:
    result = work("images/a.png", "--probs", "probs/a.npy", "-o", "a.png")
    assert result.exit_code == 0, result.stderr
    assert "refined  1 of 1 images" in result.stdout
    assert result.stderr == ""
    image, p = scene(0)
    expected = pf.DenseCRF(image, p.astype(np.float32)).infer()
    labels, _ = read_labels("a.png")
    np.testing.assert_array_equal(labels, expected.labels)
    assert (p.argmax(axis=-1) != labels).mean() > 0.1


def test_compatibilities(work: Callable[..., Any], refuse: Callable[..., str]) -> None:
    table = np.array([[0.0, 2.0, 1.0], [2.0, 0.0, 0.5], [1.0, 0.5, 0.3]])
    np.save("table.npy", table)
    image, p = scene(0)
    for given, expected in (("potts", "potts"), ("table.npy", table)):
        args = ("images/a.png", "--probs", "probs/a.npy", "--compatibility", given, "--force")
        assert work(*args, "-o", "a.npz", "--output-kind", "probabilities").exit_code == 0
        there = pf.DenseCRF(image, p.astype(np.float32), compatibility=expected).infer()
        found = read_probabilities("a.npz")  # stored as float32
        np.testing.assert_allclose(found, there.probabilities, rtol=1e-6)
    Path("a.npz").unlink()
    assert "expected .npy or .npz with a vector" in refuse(
        *args[:-2], "images/a.png", "-o", "b.png"
    )


def test_options_reach_the_field(work: Callable[..., Any]) -> None:
    terms = ("--spatial-sigma", "2,3", "--spatial-weight", "0.5", "--bilateral-sigma", 40)
    more = ("--bilateral-color", "20,20,25", "--bilateral-weight", "0.8", "--spacing", "1,2")
    run = ("--rule", "adhoc", "--set", "eta=0.3", "--init", "uniform", "--max-iters", 3)
    kind = ("--output-kind", "probabilities", "--filter", "exact")
    args = ("images/a.png", "--probs", "probs/a.npy", "-o", "a.npy", *terms, *more, *run, *kind)
    result = work(*args)
    assert result.exit_code == 0, result.stderr
    image, p = scene(0)
    expected = pf.DenseCRF(
        image,
        p.astype(np.float32),
        spatial_sigma=(2, 3),
        spatial_weight=0.5,
        bilateral_sigma=40,
        bilateral_color=(20, 20, 25),
        bilateral_weight=0.8,
        spacing=(1, 2),
    ).infer("adhoc", eta=0.3, init="uniform", max_iters=3)
    found = read_probabilities("a.npy")
    np.testing.assert_allclose(found, expected.probabilities, atol=1e-6)
    plain = pf.DenseCRF(image, p).infer()
    assert np.abs(found - plain.probabilities).max() > 0.1


def test_a_folder(work: Callable[..., Any]) -> None:
    result = work(*FOLDERS, "--overlay", "seen", "--names", "left,right", "--json")
    assert result.exit_code == 0, result.stderr
    assert files() == ["a.png", "b.png", "c.png"] == files("seen")
    data = json.loads(result.stdout)
    assert (data["images"], data["refined"], data["skipped"], data["failed"]) == (3, 3, 0, 0)
    assert data["files"][1]["output"] == str(Path("out/b.png"))
    assert data["files"][1]["pixels"] == [20, 30]
    for seed, name in enumerate(NAMES):
        expected = pf.DenseCRF(*scene(seed)).infer()
        np.testing.assert_array_equal(read_labels(f"out/{name}.png")[0], expected.labels)
    assert read_image("seen/a.png").shape[0] > 20  # with a legend


def test_several_files_and_a_new_folder(work: Callable[..., Any]) -> None:
    result = work("images/a.png", "images/c.png", "--probs", "probs", "-o", "new/deep")
    assert result.exit_code == 0
    assert files("new/deep") == ["a.png", "c.png"]
    result = work("images/b.png", "--probs", "probs/b.npy", "-o", "new/deep")
    assert files("new/deep") == ["a.png", "b.png", "c.png"]


def test_probabilities(work: Callable[..., Any]) -> None:
    result = work(*FOLDERS, "--output-kind", "probabilities", "--float16")
    assert result.exit_code == 0
    assert files() == ["a.npz", "b.npz", "c.npz"]
    with np.load("out/a.npz") as stored:
        assert stored["probabilities"].dtype == np.float16
        expected = pf.DenseCRF(*scene(0)).infer().probabilities
        np.testing.assert_allclose(stored["probabilities"], expected, atol=1e-3)


def test_label_maps(work: Callable[..., Any]) -> None:
    args = ("images", "--labels", "maps", "--confidence", 0.6, "--n-labels", 4, "-o", "out")
    result = work(*args, "--json")
    assert result.exit_code == 0, result.stderr
    labels, palette = read_labels("out/a.png")
    assert palette is not None and palette[:9] == [0, 0, 0, 250, 0, 0, 0, 250, 0]
    image, p = scene(0)
    expected = pf.DenseCRF.from_labels(image, p.argmax(axis=-1), 4, confidence=0.6).infer()
    np.testing.assert_array_equal(labels, expected.labels)
    assert json.loads(result.stdout)["files"][0]["n_labels"] == 4
    unsure = work("images/a.png", "--labels", "maps/a.png", "--unsure", 1, "-o", "u.png")
    assert unsure.exit_code == 0
    assert (read_labels("u.png")[0] != labels).any()


def test_volumes_and_other_layouts(work: Callable[..., Any]) -> None:
    image, p = scene(0)
    Path("v").mkdir()
    Path("vp").mkdir()
    np.save("v/a.npy", np.stack([image[:8]] * 3))
    np.save("vp/a.npy", np.stack([p[:8]] * 3).transpose(3, 0, 1, 2))
    result = work("v", "--probs", "vp", "-o", "out", "--spacing", "3,1,1", "--json")
    assert result.exit_code == 0, result.stderr
    assert files() == ["a.npy"]
    assert np.load("out/a.npy").shape == (3, 8, 30)
    again = work("v", "--probs", "vp", "-o", "out", "--spacing", "3,1,1", "--json")
    assert json.loads(again.stdout)["skipped"] == 1
    seen = work("v", "--probs", "vp", "-o", "out2", "--overlay", "seen")
    assert seen.exit_code == 1
    assert "an overlay needs a flat image" in seen.stderr
    np.save("planes.npy", image.transpose(2, 0, 1))
    args = ("planes.npy", "--probs", "probs/a.npy", "-o", "p.png", "--overlay", "q.png")
    axes = ("--channel-axis", "first", "--labels-axis", "last")
    assert work(*args, *axes).exit_code == 0
    np.testing.assert_array_equal(read_labels("p.png")[0], pf.DenseCRF(image, p).infer().labels)


def test_cooccurrence(work: Callable[..., Any], refuse: Callable[..., str]) -> None:
    seen = CooccurrenceStatistics(9, [9, 5, 4], [[9, 5, 4], [5, 5, 0], [4, 0, 4]])
    seen.save("seen.json")
    args = ("images/a.png", "--probs", "probs/a.npy", "-o", "a.npy", "--output-kind")
    result = work(*args, "probabilities", "--cooccurrence", "seen.json")
    assert result.exit_code == 0, result.stderr
    expected = pf.DenseCRF(*scene(0), cooccurrence=seen).infer().probabilities
    np.testing.assert_allclose(read_probabilities("a.npy"), expected, atol=1e-4)
    assert "none.json" in refuse(*FOLDERS, "--cooccurrence", "none.json")


def test_alpha_is_noted(work: Callable[..., Any]) -> None:
    for name in NAMES[:2]:
        Image.open(f"images/{name}.png").convert("RGBA").save(f"images/{name}.png")
    result = work(*FOLDERS)
    assert result.exit_code == 0
    assert "a.png: its alpha channel is dropped (and 1 more" in result.stderr
    assert result.stderr.count("\n") == 1


# ---- reruns, broken files ----


def test_what_is_finished_is_skipped(work: Callable[..., Any]) -> None:
    assert work(*FOLDERS).exit_code == 0
    Path("out/b.png").unlink()
    times = {name: Path(f"out/{name}.png").stat().st_mtime_ns for name in "ac"}
    result = work(*FOLDERS)
    assert result.exit_code == 0
    assert "refined  1 of 3 images" in result.stdout
    assert "skipped  2, done before (--force redoes them)" in result.stdout
    assert files() == ["a.png", "b.png", "c.png"]
    assert {name: Path(f"out/{name}.png").stat().st_mtime_ns for name in "ac"} == times
    assert "refined  0 of 3 images" in work(*FOLDERS).stdout
    assert "refined  3 of 3 images" in work(*FOLDERS, "--overlay", "seen").stdout  # not all there
    assert "refined  3 of 3 images" in work(*FOLDERS, "--force").stdout
    one = ("images/a.png", "--probs", "probs/a.npy", "-o", "out/a.png")
    assert "refined  1 of 1 images" in work(*one).stdout  # a file that was named


def break_files() -> None:
    """Three of five images are broken in different ways."""
    data = Path("images/a.png").read_bytes()
    Path("images/a.png").write_bytes(data[: len(data) // 2])
    np.save("probs/b.npy", np.load("probs/b.npy")[:-1])
    for name in "de":
        Path(f"images/{name}.png").write_bytes(Path("images/c.png").read_bytes())
        np.save(f"probs/{name}.npy", np.load("probs/c.npy"))
    bad = np.load("probs/d.npy")
    bad[4, 5] *= 3
    np.save("probs/d.npy", bad)


@pytest.mark.parametrize("jobs", [1, 2])
def test_broken_images_are_passed_over(work: Callable[..., Any], jobs: int) -> None:
    break_files()
    result = work(*FOLDERS, "--jobs", jobs, "--json")
    assert result.exit_code == 1
    assert files() == ["c.png", "e.png"]
    *each, last = result.stderr.splitlines()
    each.sort()
    assert len(each) == 3
    assert each[0].startswith("proxfield: error: images/a.png: image is damaged or cut short")
    assert "images/b.png: the image of shape (20, 30, 3)" in each[1] and "(19, 30, 3)" in each[1]
    assert "expected 1 (--normalize divides by the sum)" in each[2]
    assert "images/d.png: probabilities of pixel (4, 5) sum to 3" in each[2]
    assert last.startswith("proxfield: error: 3 of 5 images failed: ")
    assert all(f"images/{name}.png" in last for name in "abd")
    data = json.loads(result.stdout)
    assert (data["refined"], data["failed"], data["skipped"]) == (2, 3, 0)
    again = work(*FOLDERS, "--jobs", jobs)  # broken ones are tried again, others skipped
    assert again.exit_code == 1
    assert "skipped  2" in again.stdout and "failed   3" in again.stdout


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_damaged_array_header_is_passed_over(work: Callable[..., Any], jobs: int) -> None:
    """numpy raises `tokenize.TokenError` where a bracket is missing, also when sizes are asked."""
    whole = Path("probs/b.npy").read_bytes()
    Path("probs/b.npy").write_bytes(whole.replace(b", 3), }", b", 3,  }"))
    result = work(*FOLDERS, "--jobs", jobs)
    assert result.exit_code == 1
    assert files() == ["a.png", "c.png"]
    each, last = result.stderr.splitlines()
    assert each.startswith("proxfield: error: probs/b.npy: array file is damaged or cut short (EOF")
    assert last.startswith("proxfield: error: 1 of 3 images failed: images/b.png")


def test_a_single_broken_image(work: Callable[..., Any]) -> None:
    Path("images/a.png").write_text("no image")
    result = work("images/a.png", "--probs", "probs/a.npy", "-o", "x.png")
    assert result.exit_code == 1
    assert "images/a.png: is no image that Pillow knows" in result.stderr
    assert not Path("x.png").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda p: np.full_like(p, np.nan), "hold nan"),
        (lambda p: p[:0], "at least one pixel"),
        (lambda p: p[..., 0], "don't match"),
        (lambda p: (p * 9).astype(int), "expected probabilities as floats"),
    ],
)
def test_bad_probabilities(
    work: Callable[..., Any], change: Callable[[Any], Any], words: str
) -> None:
    np.save("probs/a.npy", change(np.load("probs/a.npy")))
    args = ("images/a.png", "--probs", "probs/a.npy", "-o", "x.png", "--labels-axis", "last")
    result = work(*args)
    assert result.exit_code == 1
    assert words in result.stderr
    assert not Path("x.png").exists()


def test_labels_out_of_range(work: Callable[..., Any]) -> None:
    result = work("images", "--labels", "maps", "--n-labels", 2, "-o", "out")
    assert result.exit_code == 1
    assert "has label 2, expected 0 to 1" in result.stderr
    assert files() == []


def test_normalize(work: Callable[..., Any]) -> None:
    np.save("probs/a.npy", 5 * np.load("probs/a.npy"))
    args = ("images/a.png", "--probs", "probs/a.npy", "-o", "x.png", "--labels-axis", "last")
    assert "normalize" in work(*args).stderr
    assert work(*args, "--normalize").exit_code == 0


def test_a_full_disk_fails_images_and_leaves_nothing(
    work: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("proxfield.io.files.os.fsync", full)
    result = work(*FOLDERS, "--overlay", "seen")
    assert result.exit_code == 1
    assert result.stderr.count("No space left") == 3
    assert files() == files("seen") == []


def test_lack_of_memory_fails_one_image(
    work: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from proxfield.images.densecrf import infer

    errors = [pf.MemoryLimitError("needs 9 GiB"), MemoryError(), OSError(5, "Input/output error")]

    def fail(*args: Any, **options: Any) -> Any:
        if errors:
            raise errors.pop(0)
        return infer(*args, **options)

    monkeypatch.setattr("proxfield.images.densecrf.infer", fail)
    result = work(*FOLDERS)
    assert result.exit_code == 1
    first, second, third, _ = result.stderr.splitlines()
    assert first == "proxfield: error: images/a.png: needs 9 GiB"
    assert second.startswith("proxfield: error: images/b.png: out of memory")
    assert third == "proxfield: error: images/c.png: Input/output error"


def test_bugs_fail_one_image(work: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    from proxfield.images.densecrf import infer

    calls = []

    def sometimes(*args: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise ZeroDivisionError("not\nforeseen")
        return infer(*args, **options)

    monkeypatch.delenv("PROXFIELD_DEBUG", raising=False)
    monkeypatch.setattr("proxfield.images.densecrf.infer", sometimes)
    result = work(*FOLDERS)
    assert result.exit_code == 1
    assert "b.png: ZeroDivisionError: not foreseen; this is a bug" in result.stderr
    assert files() == ["a.png", "c.png"]


def test_ctrl_c_keeps_what_is_finished(
    work: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from proxfield.images.densecrf import infer
    from proxfield.result import Status

    calls = []

    def stopped(*args: Any, **options: Any) -> Any:
        calls.append(1)
        result = infer(*args, **options)
        if len(calls) == 2:
            result.status = Status.INTERRUPTED
        return result

    monkeypatch.setattr("proxfield.images.densecrf.infer", stopped)
    result = work(*FOLDERS)
    assert result.exit_code == 130
    assert files() == ["a.png"]
    assert "interrupted; 2 images are left, run the same again to go on" in result.stderr


def test_ctrl_c_before_the_first_image(
    work: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As soon as there is a folder for results, it says what is left."""

    def interrupt(*_: Any) -> None:
        assert Path("out").exists()
        raise KeyboardInterrupt

    monkeypatch.setattr("proxfield.cli.refine.affordable_jobs", interrupt)
    result = work(*FOLDERS)
    assert result.exit_code == 130
    assert result.stderr.startswith("proxfield: interrupted; 3 images are left")


@pytest.mark.parametrize("where", ["images.densecrf.infer", "cli.refine.affordable_jobs"])
def test_an_error_that_comes_of_ctrl_c(
    where: str, work: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library may turn KeyboardInterrupt into an error of its own."""
    from proxfield.cli import signals

    def fail(*_: Any, **__: Any) -> None:
        monkeypatch.setattr(signals, "_seen", True)
        raise SystemError("returned a result with an exception set")

    monkeypatch.setattr(f"proxfield.{where}", fail)
    result = work(*FOLDERS)
    assert result.exit_code == 130
    assert result.stderr == (
        "proxfield: interrupted; 3 images are left, run the same again to go on\n"
    )


def test_ctrl_c_that_a_finalizer_swallows(
    work: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is raised again, and the line says what is left."""

    class Swallowing:
        def __del__(self) -> None:
            raise KeyboardInterrupt

    def infer(*_: Any, **__: Any) -> None:
        Swallowing()
        for _ in range(500):
            time.sleep(0.01)

    monkeypatch.setattr("proxfield.images.densecrf.infer", infer)
    hook = sys.unraisablehook
    result = work(*FOLDERS)
    assert result.exit_code == 130
    assert "interrupted; 3 images are left" in result.stderr
    assert sys.unraisablehook is hook


# ---- jobs ----


def test_jobs_give_the_same(work: Callable[..., Any]) -> None:
    kind = ("--output-kind", "probabilities")
    assert work(*FOLDERS, *kind).exit_code == 0
    result = work(*FOLDERS[:-1], "two", *kind, "--jobs", 2, "--threads", 1, "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["jobs"] == 2
    for name in NAMES:
        one, two = (read_probabilities(f"{x}/{name}.npz") for x in ("out", "two"))
        np.testing.assert_allclose(one, two, atol=1e-6)


def test_jobs_are_limited_by_memory(
    work: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxfield.core.common.memory.available_memory", lambda: 500 * 2**20)
    result = work(*FOLDERS, "--jobs", 3, "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["jobs"] == 1
    assert "1 instead of 3 jobs: an image takes about" in result.stderr
    assert "500.0 MiB are available" in result.stderr


def test_a_job_that_is_ended_from_outside(
    work: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from concurrent.futures import Future

    from joblib.externals.loky import ProcessPoolExecutor
    from joblib.externals.loky.process_executor import TerminatedWorkerError

    def submit(_: Any, call: Any, function: Any, pair: Any, *rest: Any) -> Future[Any]:
        future: Future[Any] = Future()
        if pair.image.name == "c.png":
            future.set_exception(TerminatedWorkerError("x"))
        else:
            future.set_result(call(function, pair, *rest))
        return future

    monkeypatch.setattr(ProcessPoolExecutor, "submit", submit)
    result = work(*FOLDERS, "--jobs", 2)  # the first image is refined here
    assert result.exit_code == 1
    assert "c.png: its process was ended from outside, 3 times" in result.stderr
    assert "1 images are left" in result.stderr
    assert "refined  2 of 3 images" in result.stdout


def test_memory_is_estimated_from_headers(work: Callable[..., Any]) -> None:
    from proxfield.cli.refine_files import Pair, bytes_needed, stored_shape

    np.savez_compressed("p.npz", probabilities=np.zeros((21, 200, 300), dtype=np.float16))
    Path("broken.npy").write_text("broken")
    assert stored_shape(Path("p.npz")) == (21, 200, 300)
    assert stored_shape(Path("probs/a.npy")) == (20, 30, 3)
    assert stored_shape(Path("maps/a.png")) == (20, 30)

    def needed(path: str, n_labels: int | None = None) -> int:
        return bytes_needed(Pair(Path("images/a.png"), Path(path), ()), n_labels)

    base = needed("broken.npy")
    assert base > 100 * 2**20
    assert needed("p.npz") - base > 4 * 21 * 200 * 300
    assert needed("maps/a.png", 100) > needed("maps/a.png", 2) > base


@pytest.mark.parametrize(("package", "jobs"), [("joblib", 2), ("PIL", 1)])
def test_packages_are_named_if_they_are_missing(
    refuse: Callable[..., str], monkeypatch: pytest.MonkeyPatch, package: str, jobs: int
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    assert 'pip install "proxfield[images]"' in refuse(*FOLDERS, "--jobs", jobs)


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals")
@pytest.mark.parametrize(("jobs", "wait"), [(1, 1.5), (2, 0.3), (2, 2.5)])
def test_ctrl_c_in_a_process(
    work: Callable[..., Any], environment: dict[str, str], jobs: int, wait: float
) -> None:
    """It ends soon, says what is left, and leaves no half-written file and no process."""
    limits = ("--max-iters", "1000000", "--tol", "0", "--jobs", str(jobs))
    # compiled before, because llvmlite may swallow a signal while it compiles
    assert work("images/a.png", "--probs", "probs/a.npy", "-o", "a.png").exit_code == 0
    Path("images/c.png").unlink()  # with as many images as jobs, all are refined elsewhere
    child = subprocess.Popen(
        [sys.executable, "-m", "proxfield", "refine", *FOLDERS, *limits],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        env=environment,
        start_new_session=True,
    )
    deadline = time.monotonic() + 600
    while not Path("out").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(wait)
    os.killpg(child.pid, signal.SIGINT)
    try:
        out, err = child.communicate(timeout=600)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        raise
    assert child.returncode == 130, (out, err)
    assert "interrupted; 2 images are left" in err
    assert "Traceback" not in err
    assert files() == []
    with pytest.raises(ProcessLookupError):
        while time.monotonic() < deadline:  # all of its group are gone, soon
            os.killpg(child.pid, 0)
            time.sleep(0.05)


STARTING = """
import os, signal, time
from importlib import import_module
module = import_module("joblib.externals.loky.backend.fork_exec")
start = module.fork_exec
def interrupted(*args, **options):
    {before}
    process = start(*args, **options)
    {after}
    return process
module.fork_exec = interrupted
from proxfield.__main__ import main
if __name__ == "__main__":
    main()
"""
"""Ctrl-C for all processes, at the moment at which a process is started."""


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals")
@pytest.mark.parametrize("when", ["before", "after"])
def test_ctrl_c_while_processes_start(
    when: str, work: Callable[..., Any], environment: dict[str, str]
) -> None:
    """It is neither lost nor seen by the new process."""
    lines = {"before": "pass", "after": "pass"} | {when: "os.killpg(0, signal.SIGINT)"}
    if when == "after":  # long enough for Python to start, too short for its imports
        lines["after"] = "time.sleep(0.1); " + lines["after"]
    Path("start.py").write_text(STARTING.format(**lines), encoding="utf-8")
    limits = ("--max-iters", "1000000", "--tol", "0", "--jobs", "3")
    child = subprocess.Popen(
        [sys.executable, "start.py", "refine", *FOLDERS, *limits],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        env=environment,
        start_new_session=True,
    )
    try:
        _, err = child.communicate(timeout=600)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        raise
    assert child.returncode == 130
    assert err == "proxfield: interrupted; 3 images are left, run the same again to go on\n"
    assert files() == []


# ---- usage ----


def test_missing_partners(refuse: Callable[..., str]) -> None:
    Path("probs/b.npy").unlink()
    line = refuse(*FOLDERS)
    assert "probs: --probs: no probabilities for 1 of 3 images: b.png; expected b.npy" in line
    Path("probs/b.npz").write_bytes(b"")
    Path("probs/a.npz").write_bytes(b"")
    assert "a.npy, a.npz all go with a.png" in refuse(*FOLDERS)
    Path("maps/c.png").unlink()
    line = refuse("images", "--labels", "maps", "-o", "out")
    assert "no labels for 1 of 3 images: c.png" in line


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((), "IMAGE"),
        (("images",), "--output"),
        (("images", "-o", "out"), "expected --probs or --labels or --logits"),
        ((*FOLDERS, "--labels", "maps"), "--probs or --labels or --logits, one of them"),
        ((*FOLDERS, "--logits", "probs"), "--probs or --labels or --logits, one of them"),
        ((*FOLDERS, "--ignore", 7), "--ignore goes with --labels only"),
        (
            ("images", "--labels", "maps", "-o", "out", "--ignore", "x"),
            "a label (255, say) or none",
        ),
        (("images", "--logits", "probs", "-o", "out", "--normalize"), "goes with --probs only"),
        ((*FOLDERS, "--rule", "sweep"), "--rule sweep doesn't run on dense fields, expected one"),
        ((*FOLDERS, "--rule", "restarts"), "--rule restarts doesn't run on dense fields"),
        ((*FOLDERS, "--scribbles", "none.png"), "none.png for 3 images, expected a folder"),
        (("none.png", "--probs", "probs", "-o", "out"), "none.png: no such file"),
        (("images/a.png", "--probs", "none.npy", "-o", "out"), "none.npy: --probs: no such file"),
        (("images", "--probs", "probs/a.npy", "-o", "out"), "for 3 images, expected a folder"),
        (("images", "--probs", "probs", "-o", "out.png"), "for 3 images is no folder"),
        (("images/a.png", "--probs", "probs/a.npy", "-o", "x.jpg"), "ending in .png, .npy, .npz"),
        (("images/a.png", "--probs", "probs/a.npy", "-o", "no/x.png"), "folder doesn't exist"),
        (("images", "--probs", "probs", "-o", "images"), "would overwrite the input images"),
        (("images", "--probs", "probs", "-o", "probs"), "would overwrite the input probs"),
        ((*FOLDERS, "--overlay", "out"), "would overwrite that of images"),
        (("images", "images/a.png", *FOLDERS[1:]), "would overwrite that of images"),
        (("probs", "--probs", "probs", "-o", "out", "--output-kind", "x"), "--output-kind"),
        (("out", *FOLDERS[1:]), "out: no such file"),
        ((*FOLDERS, "--n-labels", 3), "--n-labels goes with --labels only"),
        ((*FOLDERS, "--unsure", 3), "--unsure goes with --labels only"),
        (("images", "--labels", "maps", "-o", "out", "--normalize"), "goes with --probs only"),
        (("images", "--labels", "maps", "-o", "out", "--confidence", 0), "--confidence"),
        ((*FOLDERS, "--spatial-sigma", 0), "--spatial-sigma"),
        ((*FOLDERS, "--bilateral-color", "1,x"), "expected a number above 0, or several"),
        ((*FOLDERS, "--spatial-weight", "nan"), "--spatial-weight nan"),
        ((*FOLDERS, "--rule", "nonsense"), "unknown rule 'nonsense'"),
        ((*FOLDERS, "--set", "gamma=1"), "fixed has no parameter 'gamma'"),
        ((*FOLDERS, "--tol", -1), "--tol -1"),
        ((*FOLDERS, "--budget", 0), "--budget 0"),
        ((*FOLDERS, "--jobs", 0), "--jobs"),
        ((*FOLDERS, "--threads", 0), "--threads"),
        ((*FOLDERS, "--max-iters", -1), "--max-iters"),
        ((*FOLDERS, "--init", "middle"), "--init"),
        ((*FOLDERS, "--channel-axis", "2"), "--channel-axis"),
    ],
)
def test_bad_calls(refuse: Callable[..., str], args: tuple[Any, ...], words: str) -> None:
    assert words in refuse(*args)


def test_places_that_cannot_be_written(refuse: Callable[..., str]) -> None:
    Path("file").write_text("")
    assert "file: -o: can't write there, a file is in the way" in refuse(*FOLDERS[:-1], "file")
    assert "file/deep: -o: can't write there" in refuse(*FOLDERS[:-1], "file/deep")
    assert "--overlay: can't write there" in refuse(*FOLDERS[:-1], "probs/..", "--overlay", "file")
    Path("empty").mkdir()
    assert "empty: holds no images" in refuse("empty", *FOLDERS[1:])
    Path("locked").mkdir(mode=0o500)
    if not os.access("locked", os.W_OK):  # the superuser may write anywhere
        assert "permission denied" in refuse(*FOLDERS[:-1], "locked")


def test_a_folder_in_the_way_of_one_result(work: Callable[..., Any]) -> None:
    Path("out/b.png").mkdir(parents=True)
    result = work(*FOLDERS, "--force")
    assert result.exit_code == 1
    assert "out/b.png: can't write, is a directory" in result.stderr
    assert files() == ["a.png", "b.png", "c.png"]


def test_help_loads_nothing_heavy(environment: dict[str, str]) -> None:
    heavy = ("numba", "scipy", "rich", "PIL", "joblib")
    code = (
        "import sys\nfrom proxfield.cli.main import cli\n"
        "try:\n    cli.main(['refine', '--help'])\nexcept SystemExit as end:\n"
        f"    assert not end.code\nprint('LOADED', [m for m in {heavy!r} if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True
    )
    assert done.stdout.endswith("LOADED []\n")
    assert "--bilateral-color" in done.stdout


def test_a_presets_own_number_of_updates_is_no_failure(work: Callable[..., Any]) -> None:
    args = ("images/a.png", "--probs", "probs/a.npy", "-o", "out.png", "--tol", 0)
    args = (*args, "--preset", "krahenbuehl")
    result = work(*args)
    assert "status   10 updates, as the preset asks\n" in result.stdout
    (record,) = json.loads(work(*args, "--json").stdout)["files"]
    assert record["status"] == "max-iters" and record["iterations"] == 10
    assert record["message"] == "10 updates, as the preset asks"
    assert "raise --max-iters or --tol" in work(*args, "--max-iters", 3).stdout


def test_statuses_of_several_images_are_told_if_they_agree(work: Callable[..., Any]) -> None:
    args = ("images", "--probs", "probs", "-o", "out")
    assert work(*args, "--force").stdout.count("status ") == 1
    assert "status " not in work(*args).stdout  # all done before
