"""Scenes and results of the original occupancy-map program, and patterns for names of files."""

from __future__ import annotations

import dataclasses
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from proxfield.errors import InputError
from proxfield.io.masks import fields, fill, find_frames
from proxfield.io.pom import (
    PomFile,
    format_pom,
    read_dat,
    read_pom,
    write_dat,
    write_pom,
)

SCENE = b"""\
# two cameras, three locations
ROOM\t8,6 2 3
RECTANGLE 0 0 0 0 3 5
RECTANGLE 0, 1, notvisible
RECTANGLE 1 2 7 5 7 5
INPUT_VIEW_FORMAT masks/f%f-c%c.png
RESULT_FORMAT out/f%f.dat
RESULT_VIEW_FORMAT out/f%f-c%c.png
CONVERGENCE_VIEW_FORMAT out/f%f-c%c-i%i.png
PRIOR 0.02
SIGMA_IMAGE_DENSITY 0.03
SMOOTHING_COEFFICIENT 0.7
MAX_NB_SOLVER_ITERATIONS 50
ERROR_MAX 1e-3
NB_STABLE_ERROR_FOR_CONVERGENCE 4
PROBA_IGNORED 0.99
PROCESS 160 3
"""


def parse_pom(data: bytes, name: str, **options: Any) -> PomFile:
    stream = BytesIO(data)
    stream.name = name  # type: ignore[attr-defined]
    return read_pom(stream, **options)


def test_everything() -> None:
    pom = parse_pom(SCENE, "x.pom")
    assert (pom.cameras, pom.sizes, pom.n_locations) == ((0, 1), ((8, 6), (8, 6)), 3)
    # inclusive in the file, exclusive here
    assert pom.boxes[0].tolist() == [[0, 0, 4, 6], [0, 0, 0, 0], [0, 0, 0, 0]]
    assert pom.boxes[1].tolist() == [[0, 0, 0, 0], [0, 0, 0, 0], [7, 5, 8, 6]]
    assert (pom.prior, pom.variance, pom.smoothing) == (0.02, 0.03, 0.7)
    assert (pom.max_iters, pom.tol, pom.n_stable, pom.ignored) == (50, 1e-3, 4, 0.99)
    assert pom.frames == [160, 161, 162]
    assert pom.input_format == "masks/f%f-c%c.png"
    assert pom.convergence_view_format == "out/f%f-c%c-i%i.png"


def test_defaults_are_those_of_the_program() -> None:
    pom = parse_pom(b"ROOM 8 6 1 1\n", "x.pom")
    assert (pom.prior, pom.variance, pom.smoothing, pom.max_iters) == (0.01, 0.01, 0.8, 100)
    assert (pom.tol, pom.n_stable, pom.ignored, pom.frames) == (1e-4, 5, 1.0, [])


def test_cameras_of_different_sizes() -> None:
    text = b"ROOM -1 -1 2 1\nCAMERA 7 4 3\nCAMERA 2 40 30\nRECTANGLE 2 0 0 0 39 29\n"
    pom = parse_pom(text, "x.pom")
    assert (pom.cameras, pom.sizes) == ((7, 2), ((4, 3), (40, 30)))
    assert pom.boxes[0].tolist() == [[0, 0, 0, 0]]
    assert pom.boxes[1].tolist() == [[0, 0, 40, 30]]


def test_indented_lines_crlf_and_marks() -> None:
    pom = parse_pom(b"\xef\xbb\xbfROOM 4 4 1 2\r\n\r\n  RECTANGLE 0 1 1 1 2 2\r\n#x\r\n", "x")
    assert pom.boxes[0][1].tolist() == [1, 1, 3, 3]


def test_the_last_rectangle_counts() -> None:
    pom = parse_pom(b"ROOM 4 4 1 1\nRECTANGLE 0 0 0 0 1 1\nRECTANGLE 0 0 2 2 3 3\n", "x")
    assert pom.boxes[0].tolist() == [[2, 2, 4, 4]]


def test_rectangles_alone() -> None:
    text = b"RECTANGLE 0 2 -3 -1 5 9\nRECTANGLE 1 0 9 0 12 3\n"
    pom = parse_pom(text, "rectangles.pom", size=(8, 6), clip=True)
    assert (pom.cameras, pom.n_locations, pom.sizes) == ((0, 1), 3, ((8, 6), (8, 6)))
    assert pom.boxes[0][2].tolist() == [0, 0, 6, 6]
    assert not pom.boxes[1].any()  # wholly outside


def test_back_and_forth(tmp_path: Path) -> None:
    for text in (SCENE, b"ROOM -1 -1 2 1\nCAMERA 7 4 3\nCAMERA 2 40 30\nRECTANGLE 2 0 0 0 39 29\n"):
        first = dataclasses.replace(parse_pom(text, "x.pom"), folder=tmp_path)
        write_pom(tmp_path / "y.pom", first)
        second = read_pom(tmp_path / "y.pom")
        for field in dataclasses.fields(PomFile):
            a, b = getattr(first, field.name), getattr(second, field.name)
            assert np.array_equal(a, b) if field.name == "boxes" else a == b, field.name
    assert first.resolve("a/%f.png") == str(tmp_path / "a/%f.png")


def test_names_that_a_file_cannot_hold() -> None:
    pom = dataclasses.replace(parse_pom(SCENE, "x"), input_format="my masks/%f.png")
    with pytest.raises(InputError, match="no names with spaces"):
        format_pom(pom)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("RECTANGLE 0 0 0 0 8 5", "x.pom:4: the rectangle 0 0 8 5 reaches outside .* 8×6 pixels"),
        ("RECTANGLE 0 0 0 0 7 6", "x.pom:4: the rectangle 0 0 7 6 reaches outside"),
        ("RECTANGLE 0 0 -1 0 7 5", "x.pom:4: the rectangle -1 0 7 5 reaches outside"),
        ("RECTANGLE 0 0 3 0 2 5", "x.pom:4: an empty rectangle, 3 0 2 5"),
        ("RECTANGLE 2 0 0 0 1 1", "x.pom:4: unknown camera 2"),
        ("RECTANGLE 0 3 0 0 1 1", "x.pom:4: location 3, expected 0 to 2"),
        ("RECTANGLE 0 0 0 0 1", "x.pom:4: RECTANGLE has 5 values, expected a camera"),
        ("RECTANGLE 0 0 0 0 1 1 1", "x.pom:4: RECTANGLE has 7 values"),
        ("RECTANGLE 0 0 hidden", "x.pom:4: RECTANGLE has 3 values"),
        ("RECTANGLE 0 0 0 0 1.5 1", "x.pom:4: RECTANGLE has '1.5', expected a whole number"),
        ("RECTANGLE 0 0 0 0 1e300 1", "x.pom:4: RECTANGLE has '1e300', expected a whole number"),
        ("RECTANGLE 0 -1e19 0 0 1 1", "x.pom:4: RECTANGLE has '-1e19', expected a whole number"),
        ("RECTANGLE 1e30 0 notvisible", "x.pom:4: RECTANGLE has '1e30', expected a whole number"),
        ("RECTANGLE 0 0 0 0 9999999999999999999 1", "x.pom:4: RECTANGLE has '9999999999999999999'"),
        ("RECTANGLE 0 0 0 0 nan 1", "x.pom:4: RECTANGLE has 'nan', expected a whole number"),
        ("PROCESS 0 999999999999", "x.pom:4: PROCESS has '999999999999', expected .* to 10000000"),
        ("PROCESS 1e300 1", "x.pom:4: PROCESS has '1e300', expected a whole number"),
        ("RECTANGLES 0 0 0 0 1 1", "x.pom:4: unknown keyword 'RECTANGLES'"),
        ("RECTANGEL 0 0 0 0 1 1", "x.pom:4: unknown keyword 'RECTANGEL', expected one of: ROOM"),
        ("ROOM 8 6 2 3", "x.pom:4: ROOM is given twice"),
        ("PRIOR 1", "x.pom:4: PRIOR is '1', expected a probability above 0 and below 1"),
        ("PRIOR 0", "x.pom:4: PRIOR is '0'"),
        ("PRIOR", "x.pom:4: PRIOR has 0 values, expected 1"),
        ("PROBA_IGNORED 1.5", "x.pom:4: PROBA_IGNORED is '1.5'"),
        ("SIGMA_IMAGE_DENSITY nan", "x.pom:4: SIGMA_IMAGE_DENSITY is 'nan'"),
        ("SIGMA_IMAGE_DENSITY 0", "x.pom:4: SIGMA_IMAGE_DENSITY is '0'"),
        ("MAX_NB_SOLVER_ITERATIONS 2.5", "expected a whole number, 1 to 999999999999"),
        ("PROCESS 0 -1", "x.pom:4: PROCESS has '-1'"),
        ("PROCESS 0", "x.pom:4: PROCESS has 1 values, expected 2"),
        ("CAMERA 0 8 6", "has 1 CAMERA lines, expected 2"),
    ],
)
def test_faults_have_a_line(line: str, words: str) -> None:
    text = f"# a comment\nROOM 8 6 2 3\nRECTANGLE 1 0 0 0 1 1\n{line}\nRECTANGLE 0 1 notvisible\n"
    with pytest.raises(InputError, match=words):
        parse_pom(text.encode(), "x.pom")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"ROOM -1 -1 1 1\n", "leaves the size to CAMERA lines"),
        (b"ROOM 0 6 1 1\n", "x.pom:1: ROOM of 0×6 pixels"),
        (b"ROOM 8 6 0 1\n", "x.pom:1: ROOM has '0', expected a whole number, 1 to 999999999999"),
        (b"ROOM 8 6 1 999999999999\n", "999999999999 locations"),
        (b"RECTANGLE 0 0 0 0 1 1\n", "has no ROOM line"),
        (b"", "has no ROOM line"),
        (b"ROOM\0", "binary data"),
    ],
)
def test_faults_of_the_room(text: bytes, words: str) -> None:
    with pytest.raises(InputError, match=words):
        parse_pom(text, "x.pom")


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.pom: no such file"):
        read_pom(tmp_path / "none.pom")


# ---- results ----


def test_results(tmp_path: Path) -> None:
    q = np.array([0.01, 0.123456789, 1.0, 0.0])
    write_dat(tmp_path / "q.dat", q)
    assert (tmp_path / "q.dat").read_text().splitlines()[0] == "0 0.01"
    assert read_dat(tmp_path / "q.dat", 4) == pytest.approx(q, abs=1e-9)
    (tmp_path / "r.dat").write_text("1 0.5\n0 0.25\n")
    assert read_dat(tmp_path / "r.dat").tolist() == [0.25, 0.5]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0 0.5\n1\n", "has 3 numbers"),
        ("0 0.5\n", "has 2 numbers, expected a location and a probability for each of 2"),
        ("0 0.5\n2 0.5\n", "q.dat:2: is no location, expected 0 to 1"),
        ("0 0.5\n1 1.5\n", "q.dat:2: is no probability"),
        ("0 0.5\n1 nan\n", "q.dat:2: is no probability"),
        ("0 0.5\n0 0.5\n", "location 0 is given twice"),
        ("0 0.5\n1 x\n", "q.dat:2: 'x' isn't a number"),
    ],
)
def test_faults_of_results(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "q.dat"
    path.write_text(text)
    with pytest.raises(InputError, match=words):
        read_dat(path, 2)


def test_results_that_are_no_probabilities(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="outside of 0 to 1"):
        write_dat(tmp_path / "q.dat", [0.5, np.nan])
    assert not list(tmp_path.iterdir())


# ---- patterns ----


def test_patterns(tmp_path: Path) -> None:
    assert fill("c%c/f%f", camera="a", frame=3) == "ca/f3"
    with pytest.raises(InputError, match="has a place for the iteration"):
        fill("c%c/f%f-i%i", camera="a", frame=3)
    assert fill("{camera}/{frame:08d}.png", camera=0, frame=15) == "0/00000015.png"
    assert fields("{camera}/%f") == {"camera", "frame"}
    with pytest.raises(InputError, match="has a place for the frame"):
        fill("%f.png", camera=1)


def test_finding_frames(tmp_path: Path) -> None:
    for name in ("c0/f7.png", "c0/f12.png", "c1/f7.png", "c0/f012.jpg", "c0/fx.png", "c0/f05.png"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
    assert find_frames(tmp_path / "c%c/f%f.png", 0) == [7, 12]  # 05 isn't what %f would give
    assert find_frames(tmp_path / "c{camera}/f{frame:02d}.png", 0) == [5, 12]
    assert find_frames(tmp_path / "c%c" / "f%f.png", 2) == []
    (tmp_path / "8").mkdir()
    (tmp_path / "8" / "c0-8.png").touch()
    assert find_frames(tmp_path / "%f" / "c%c-%f.png", 0) == [8]
    with pytest.raises(InputError, match="no place for the frame"):
        find_frames(tmp_path / "c%c.png", 0)
