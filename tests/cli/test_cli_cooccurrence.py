"""``proxfield cooccurrence``: label maps of all kinds in, counts out, one line for each fault."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import proxfield as pf

Image = pytest.importorskip("PIL.Image", reason="PNG label maps need Pillow")

MAPS = [
    np.array([[0, 0, 1], [1, 1, 255]], dtype=np.uint8),
    np.array([[2, 2], [0, 255]], dtype=np.uint8),
    np.array([[0, 1, 2, 2]], dtype=np.uint8),
]
PRESENCE = [3, 2, 2]
PAIRS = [[3, 2, 2], [2, 2, 1], [2, 1, 2]]


def save(path: Path, values: Any, kind: str = "gray") -> Path:
    """A label map as a gray or palette PNG, or as .npy."""
    if kind == "npy":
        np.save(path.with_suffix(".npy"), values)
        return path.with_suffix(".npy")
    picture = Image.fromarray(values)
    if kind == "palette":
        picture = picture.convert("L").copy()
        picture.putpalette(list(np.random.default_rng(0).integers(0, 256, size=768)))
        assert picture.mode == "P"
    picture.save(path)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    out = tmp_path / "maps"
    out.mkdir()
    for k, values in enumerate(MAPS):
        save(out / f"{k}.png", values)
    (out / "readme.txt").write_text("not a label map")
    (out / ".hidden.png").write_text("nor is this")
    return out


@pytest.mark.parametrize("kind", ["gray", "palette", "npy"])
def test_counts(invoke: Callable[..., Any], tmp_path: Path, kind: str) -> None:
    files = [save(tmp_path / f"{k}.png", m, kind) for k, m in enumerate(MAPS)]
    result = invoke("cooccurrence", *files, "-o", "out.json")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.split() == ["images", "3", "labels", "3", "output", "out.json"]
    same = invoke("cooccurrence", *files, "-o", "out.json", "--json")
    assert json.loads(same.stdout) == {
        "images": 3,
        "n_labels": 3,
        "never_present": [],
        "output": "out.json",
    }
    found = pf.CooccurrenceStatistics.load("out.json")
    assert (found.images, found.min_pixels) == (3, 1)
    assert found.presence.tolist() == PRESENCE
    assert found.pairs.tolist() == PAIRS


def test_folders_and_stdout(invoke: Callable[..., Any], folder: Path, tmp_path: Path) -> None:
    one = save(tmp_path / "more.png", MAPS[1])
    result = invoke("cooccurrence", folder, one)
    data = json.loads(result.stdout)
    assert data["n_images"] == 4
    assert data["class_counts"] == [4, 2, 3]


def test_options(invoke: Callable[..., Any], folder: Path) -> None:
    args = ("--n-labels", 5, "--min-pixels", 2, "--ignore", 1, "--ignore", 255)
    result = invoke("cooccurrence", folder, *args, "-o", "out.json.gz")
    assert "never present  1, 3, 4" in result.stdout
    found = pf.CooccurrenceStatistics.load("out.json.gz")
    assert (found.presence.tolist(), found.min_pixels) == ([1, 0, 2, 0, 0], 2)


def test_sixteen_bits_and_one(invoke: Callable[..., Any], tmp_path: Path) -> None:
    wide = save(tmp_path / "wide.png", np.array([[0, 700]], dtype=np.uint16))
    bits = tmp_path / "bits.png"
    Image.fromarray(np.array([[0, 255]], dtype=np.uint8)).convert("1").save(bits)
    counts = json.loads(invoke("cooccurrence", wide, bits).stdout)["class_counts"]
    assert (len(counts), counts[0], counts[1], counts[700]) == (701, 2, 1, 1)


# ---- faults ----


@pytest.fixture
def refuse(invoke: Callable[..., Any]) -> Callable[..., str]:
    """Call, expect exit code 2, one line on stderr and no output, and return the line."""

    def call(*args: Any) -> str:
        Path("out.json").write_text("as it was")
        result = invoke("cooccurrence", *args, "-o", "out.json")
        assert result.exit_code == 2, (result.stdout, result.stderr, result.exception)
        assert result.stdout == ""
        assert result.stderr.startswith("proxfield: error: ")
        assert result.stderr.count("\n") == 1
        assert Path("out.json").read_text() == "as it was"
        return str(result.stderr)

    return call


def whole_png() -> bytes:
    from io import BytesIO

    stream = BytesIO()
    values = np.random.default_rng(0).integers(0, 4, size=(50, 60), dtype=np.uint8)
    Image.fromarray(values).save(stream, "PNG")
    return stream.getvalue()


BROKEN = {
    "without-its-end": (whole_png()[:-200], "damaged or cut short"),
    "without-pixels": (whole_png()[:40], "expected"),  # what Pillow calls it depends on its age
    "without-a-header": (whole_png()[:8], "expected"),
    "empty": (b"", "is empty"),
    "text": (b"hello", "no image"),
    "array-without-a-header": (b"\x93NUMPY\x01\x00", "damaged or cut short"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_files(refuse: Callable[..., str], folder: Path, name: str) -> None:
    content, words = BROKEN[name]
    (folder / "x.png").write_bytes(content)
    line = refuse(folder)
    assert "x.png: " in line and words in line


def test_a_whole_png_is_not_broken(invoke: Callable[..., Any], folder: Path) -> None:
    (folder / "x.png").write_bytes(whole_png())
    assert invoke("cooccurrence", folder).exit_code == 0


def test_cut_or_odd_arrays(refuse: Callable[..., str], tmp_path: Path) -> None:
    path = save(tmp_path / "a.png", np.arange(600), "npy")
    path.write_bytes(path.read_bytes()[:-100])
    assert "a.npy: array file is damaged or cut short" in refuse(path)
    np.save(path, np.zeros((2, 2)))
    assert "a.npy: holds float64" in refuse(path)
    np.save(path, np.array([{}], dtype=object), allow_pickle=True)
    assert "a.npy: array file is damaged" in refuse(path)


def test_color_pictures(refuse: Callable[..., str], folder: Path) -> None:
    save(folder / "x.png", np.zeros((2, 2, 3), dtype=np.uint8))
    assert "x.png: is a color picture (RGB)" in refuse(folder)


def test_labels_out_of_range(refuse: Callable[..., str], folder: Path) -> None:
    line = refuse(folder, "--n-labels", 2)
    assert "1.png: label map 1 holds the label 2, expected 0 to 1 (ignored: 255)" in line


def test_nothing_to_count(refuse: Callable[..., str], folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "empty: the folder holds no .png or .npy file" in refuse(folder, tmp_path / "empty")
    assert "missing.png: no such file" in refuse(tmp_path / "missing.png")
    only = save(tmp_path / "only.png", np.full((2, 2), 255, dtype=np.uint8))
    assert "hold no label" in refuse(only)


def test_bad_options(refuse: Callable[..., str], folder: Path, invoke: Callable[..., Any]) -> None:
    assert "--n-labels" in refuse(folder, "--n-labels", 0)
    assert "--min-pixels" in refuse(folder, "--min-pixels", 0)
    assert "--ignore" in refuse(folder, "--ignore", "void")
    assert "LABELMAP" in invoke("cooccurrence").stderr
    assert invoke("cooccurrence", folder, "-o", "none/out.json").exit_code == 2
    same = invoke("cooccurrence", folder / "0.png", "-o", folder / "0.png")
    assert same.exit_code == 2 and "same file" in same.stderr


def test_png_needs_pillow(
    refuse: Callable[..., str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert "need Pillow: pip install" in refuse(folder)


def test_arrays_do_not_need_pillow(
    invoke: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(tmp_path / "a.png", MAPS[0], "npy")
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert invoke("cooccurrence", path).exit_code == 0


def test_help_is_light(process: Callable[..., Any]) -> None:
    """Neither numpy nor Pillow is loaded to show what the command does."""
    result = process("cooccurrence", "--help", env={"PYTHONPROFILEIMPORTTIME": "1"})
    loaded = {line.split("|")[-1].strip() for line in result.stderr.splitlines()}
    assert result.returncode == 0
    assert "click" in loaded
    assert not loaded & {"numpy", "numba", "PIL"}
