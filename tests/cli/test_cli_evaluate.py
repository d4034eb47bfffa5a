"""``proxfield evaluate``: tables and JSON, one line for each fault, nothing half-written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

TRUTH = "frame,x,y\n0,0,0\n0,1,0\n1,0,0\n2,,\n"
FOUND = "frame,x,y,score\n0,0.1,0,0.9\n0,3,0,0.6\n2,0,0,0.8\n"


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    (tmp_path / "truth.csv").write_text(TRUTH)
    (tmp_path / "found.csv").write_text(FOUND)
    return tmp_path / "found.csv", tmp_path / "truth.csv"


def test_summary(invoke: Callable[..., Any], files: tuple[Path, Path]) -> None:
    result = invoke("evaluate", *files)
    assert (result.exit_code, result.stderr) == (0, "")
    lines = dict(line.rsplit("  ", 1) for line in result.stdout.splitlines())
    found = {key.strip(): value for key, value in lines.items()}
    assert found == {
        "MODA": "-0.3333",
        "MODP": "0.8",
        "precision": "0.3333",
        "recall": "0.3333",
        "people": "3",
        "matches": "1",
        "misses": "2",
        "false alarms": "2",
        "frames": "3",
        "radius": "0.5 m",
    }


def test_json_and_options(invoke: Callable[..., Any], files: tuple[Path, Path]) -> None:
    args = ("--json", "--per-frame", "--radius", 2.5, "--min-score", 0.7, "--frames", "0:1")
    result = invoke("evaluate", *files, *args, "-o", "frames.csv")
    data = json.loads(result.stdout)
    assert (data["matches"], data["false_alarms"], data["frames"]) == (1, 0, 2)
    assert [row["misses"] for row in data["per_frame"]] == [1, 1]
    assert Path("frames.csv").read_text().splitlines()[1] == "0,2,1,1,0,0.5,0.96"


def test_region(invoke: Callable[..., Any], files: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "roi.txt").write_text("-1,-1\n0.5,-1\n0.5,1\n-1,1\n")
    for roi in ("-1,-1 0.5,-1 0.5,1 -1,1", tmp_path / "roi.txt"):
        data = json.loads(invoke("evaluate", *files, "--json", "--roi", roi).stdout)
        assert (data["people"], data["matches"], data["false_alarms"]) == (2, 1, 1)


def test_per_frame_table(invoke: Callable[..., Any], files: tuple[Path, Path]) -> None:
    lines = invoke("evaluate", *files, "--per-frame").stdout.splitlines()
    assert lines[0].split() == [
        "frame",
        "people",
        "matches",
        "misses",
        "false",
        "alarms",
        "moda",
        "modp",
    ]
    assert lines[3].split() == ["2", "0", "0", "0", "1", "-", "-"]


def test_one_frame(invoke: Callable[..., Any], files: tuple[Path, Path]) -> None:
    some = invoke("evaluate", *files, "--json", "--frames", "0")
    assert json.loads(some.stdout)["frames"] == 1


def test_frames_that_the_truth_lacks(invoke: Callable[..., Any], files: tuple[Path, Path]) -> None:
    files[0].write_text(FOUND + "9,0,0,1\n")
    result = invoke("evaluate", *files, "--json")
    assert json.loads(result.stdout)["false_alarms"] == 2
    assert result.stderr.startswith("proxfield: note: 1 frames of DETECTIONS aren't in TRUTH")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("none.csv", "truth.csv"), "none.csv: no such file"),
        (("found.csv", "empty"), "empty: the folder holds no .json file"),
        (("bad.csv", "truth.csv"), "bad.csv:2: x is 'here', expected a number"),
        (("found.csv", "truth.csv", "--radius", "0"), "--radius 0, expected"),
        (("found.csv", "truth.csv", "--radius", "nan"), "--radius nan, expected"),
        (
            ("found.csv", "truth.csv", "--roi", "0,0 1,1"),
            "--roi: region '0,0 1,1', expected corners",
        ),
        (("found.csv", "truth.csv", "--roi", "no.txt"), "--roi: no.txt: no such file"),
        (
            ("found.csv", "truth.csv", "--frames", "5:1"),
            "--frames '5:1', expected FRAME, FIRST:LAST",
        ),
        (("found.csv", "truth.csv", "--frames", "7:9"), "TRUTH has none of these"),
        (("later.csv", "truth.csv"), "no frame in common"),
        (("-", "-"), "can't both come from standard input"),
        (("found.csv", "truth.csv", "-o", "truth.csv"), "name the same file"),
        (("found.csv", "truth.csv", "-o", "none/x.csv"), "its folder doesn't exist"),
        (("found.csv",), "TRUTH"),
    ],
)
def test_faults(
    invoke: Callable[..., Any],
    files: tuple[Path, Path],
    tmp_path: Path,
    args: tuple[str, ...],
    words: str,
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad.csv").write_text("frame,x,y\n0,here,1\n")
    (tmp_path / "later.csv").write_text("frame,x,y\n8,0,1\n")
    (tmp_path / "out.csv").write_text("as it was")
    extra = () if "-o" in args else ("-o", "out.csv")
    result = invoke("evaluate", *args, *extra)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("proxfield: error: ") and result.stderr.count("\n") == 1
    assert words in result.stderr
    assert (tmp_path / "out.csv").read_text() == "as it was"
    assert (tmp_path / "truth.csv").read_text() == TRUTH


def test_help_is_light(process: Callable[..., Any]) -> None:
    result = process("evaluate", "--help", env={"PYTHONPROFILEIMPORTTIME": "1"})
    loaded = {line.split("|")[-1].strip() for line in result.stderr.splitlines()}
    assert result.returncode == 0
    assert not loaded & {"numpy", "numba", "scipy"}
