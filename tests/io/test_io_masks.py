"""Masks from pictures and boxes: values, resolutions, one line for each fault."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from proxfield.errors import InputError
from proxfield.io.boxes import BoxMasks
from proxfield.io.masks import MaskFiles, as_mask, fill_boxes, read_mask, resize

Image = pytest.importorskip("PIL.Image", reason="PNG masks need Pillow")


def save(path: Path, values: Any) -> Path:
    path.parent.mkdir(exist_ok=True, parents=True)
    Image.fromarray(np.asarray(values, dtype=np.uint8)).save(path)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two cameras of different sizes, frames 7 and 8."""
    rng = np.random.default_rng(0)
    for frame in (7, 8):
        save(tmp_path / f"f{frame}-c0.png", 255 * rng.integers(0, 2, size=(4, 6)))
        save(tmp_path / f"f{frame}-c1.png", rng.integers(0, 256, size=(8, 4, 3)))
    return tmp_path


SIZES = ((6, 4), (4, 8))


@pytest.mark.parametrize("pattern", ["f%f-c%c.png", "f{frame}-c{camera}.png"])
def test_pictures(folder: Path, pattern: str) -> None:
    source = MaskFiles(str(folder / pattern), ("0", "1"), SIZES)
    assert source.frames() == [7, 8]
    gray, color = source.read(8)
    assert gray is not None and color is not None
    assert np.array_equal(gray, np.array(Image.open(folder / "f8-c0.png")) / 255)
    assert color == pytest.approx(np.array(Image.open(folder / "f8-c1.png")).mean(axis=2) / 255)


def test_scaled(folder: Path) -> None:
    source = MaskFiles(str(folder / "f%f-c%c.png"), ("0", "1"), SIZES, scale=0.5)
    gray, color = source.read(7)
    full = np.array(Image.open(folder / "f7-c0.png")) / 255
    assert gray is not None and color is not None
    assert gray == pytest.approx(full.reshape(2, 2, 3, 2).mean(axis=(1, 3)))
    assert color.shape == (4, 2)
    save(folder / "f7-c0.png", np.full((2, 3), 51))  # scaled already
    again = source.read(7)[0]
    assert again is not None and again == pytest.approx(np.full((2, 3), 0.2))


def test_arrays(tmp_path: Path) -> None:
    np.save(tmp_path / "m.npy", np.array([[True, False]]))
    assert read_mask(tmp_path / "m.npy").tolist() == [[1.0, 0.0]]
    np.save(tmp_path / "m.npy", np.array([[1, 0]]))
    assert read_mask(tmp_path / "m.npy").tolist() == [[1.0, 0.0]]
    np.save(tmp_path / "m.npy", np.array([[0.25, 2.0]]))
    with pytest.raises(InputError, match=r"m\.npy: has values outside of 0 to 1"):
        read_mask(tmp_path / "m.npy")
    assert as_mask(np.array([[65535, 0]], dtype=np.uint16)).tolist() == [[1.0, 0.0]]
    with pytest.raises(InputError, match="expected a mask"):
        as_mask(np.zeros((2, 2, 7)))
    with pytest.raises(InputError, match="outside of 0 to 1"):
        as_mask(np.full((2, 2), np.nan))


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 3)])
def test_masks_of_0_and_1_are_refused(dtype: Any, shape: tuple[int, ...], tmp_path: Path) -> None:
    pixels = np.zeros(shape, dtype=dtype)
    assert not as_mask(pixels).any()  # nobody is there: fine
    pixels[0, 0] = 1
    with pytest.raises(InputError, match=r"has no value above 1, expected 255 .* multiply"):
        as_mask(pixels)
    assert as_mask(2 * pixels).max() > 0  # soft
    Image.fromarray(np.array([[True, False]])).save(tmp_path / "bits.png")
    assert read_mask(tmp_path / "bits.png").tolist() == [[1.0, 0.0]]


def test_resize_is_an_average_over_areas() -> None:
    rng = np.random.default_rng(1)
    for (h, w), (rows, columns) in [((7, 9), (3, 4)), ((4, 6), (2, 3)), ((3, 5), (6, 7))]:
        mask = rng.random((h, w))
        fine = np.repeat(np.repeat(mask, rows, axis=0), columns, axis=1)  # every edge is on a pixel
        expected = fine.reshape(rows, h, columns, w).mean(axis=(1, 3))
        assert resize(mask, columns, rows) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda f: (f / "f8-c1.png").unlink(), "frame 8 of camera 1 is missing"),
        (lambda f: save(f / "f8-c1.png", np.zeros((4, 6))), "f8-c1.png: the mask has 6×4 pixels"),
        (
            lambda f: (f / "f8-c1.png").write_bytes((f / "f8-c1.png").read_bytes()[:-30]),
            "f8-c1.png: image is damaged or cut short",
        ),
        (lambda f: (f / "f8-c1.png").write_text("hello"), "f8-c1.png: is no image"),
    ],
)
def test_faults(folder: Path, spoil: Callable[[Path], object], words: str) -> None:
    spoil(folder)
    source = MaskFiles(str(folder / "f%f-c%c.png"), ("0", "1"), SIZES)
    assert source.read(7)
    with pytest.raises(InputError, match=words) as error:
        source.read(8)
    assert "\n" not in str(error.value)


def test_faults_of_the_pattern(folder: Path) -> None:
    def make(name: str, cameras: tuple[str, ...] = ("0", "1"), **options: Any) -> MaskFiles:
        return MaskFiles(str(folder / name), cameras, **options)

    with pytest.raises(
        InputError, match=r"camera 2 has no masks, expected files like .*f0-c2\.png"
    ):
        make("f%f-c%c.png", ("0", "2"))
    with pytest.raises(InputError, match="expected a place for the frame"):
        make("c%c.png")
    with pytest.raises(InputError, match="expected a place for the camera"):
        make("f%f-c0.png")
    assert make("f%f-c0.png", ("0",)).frames() == [7, 8]
    with pytest.raises(InputError, match="scale=0,"):
        make("f%f-c%c.png", scale=0)
    with pytest.raises(InputError, match="1 sizes for 2 cameras"):
        make("f%f-c%c.png", sizes=((6, 4),))
    with pytest.raises(InputError, match="missing='no'"):
        make("f%f-c%c.png", missing="no")


def test_missing_cameras_may_be_skipped(folder: Path) -> None:
    (folder / "f8-c1.png").unlink()
    source = MaskFiles(str(folder / "f%f-c%c.png"), ("0", "1"), missing="skip")
    first, second = source.read(8)
    assert first is not None and second is None
    with pytest.raises(InputError, match="frame 9 has no masks in any camera"):
        source.read(9)


# ---- boxes ----


def test_filled_boxes() -> None:
    boxes = np.array([[1.0, 1.0, 3.0, 2.0], [-5.0, 2.0, 1.0, 9.0], [8.0, 0.0, 9.0, 1.0]])
    mask = fill_boxes(boxes, np.array([0.5, 1.0, 1.0]), (4, 3))
    assert mask.tolist() == [[0, 0, 0, 0], [0, 0.5, 0.5, 0], [1, 0, 0, 0]]
    half = fill_boxes(np.array([[0.0, 0.0, 2.0, 1.0]]), np.array([1.0]), (4, 2), 0.5)
    assert half.tolist() == [[0.5, 0.0]]
    both = fill_boxes(np.array([[0.0, 0, 1, 1], [0.0, 0, 1, 1]]), np.array([0.25, 0.5]), (1, 1))
    assert both.tolist() == [[0.5]]


CSV = "camera,frame,left,top,right,bottom,score\na,3,0,0,2,1,0.9\na,3,2,0,3,1,0.2\nb,4,0,0,1,1,\n"
SIZE = ((4, 2), (4, 2))


def test_boxes_from_csv_and_json(tmp_path: Path) -> None:
    (tmp_path / "b.csv").write_text(CSV)
    rows = [line.split(",") for line in CSV.splitlines()[1:]]
    names = ("camera", "frame", "left", "top", "right", "bottom", "score")
    objects = [
        {k: v if k == "camera" else float(v) for k, v in zip(names, row, strict=True) if v}
        for row in rows
    ]
    (tmp_path / "b.json").write_text(json.dumps(objects))
    for name in ("b.csv", "b.json"):
        source = BoxMasks(str(tmp_path / name), ("a", "b"), SIZE)
        assert source.frames() == [3, 4]
        a, b = source.read(3)
        assert a is not None and a.tolist() == [[1, 1, 0, 0], [0, 0, 0, 0]]  # 0.2 is too little
        assert b is not None and not b.any()  # a frame without boxes: nobody
        assert source.boxes("b", 4)[1].tolist() == [1.0]
        soft = BoxMasks(str(tmp_path / name), ("a",), SIZE[:1], min_score=0.1, soft=True)
        first = soft.read(3)[0]
        assert first is not None and first[0].tolist() == [0.9, 0.9, 0.2, 0]


def test_frames_of_a_list_that_nobody_is_in(tmp_path: Path) -> None:
    (tmp_path / "b.csv").write_text(CSV.replace("b,4", "b,6"))
    (tmp_path / "b-a.csv").write_text(CSV.rsplit("b,", 1)[0])
    (tmp_path / "b-b.csv").write_text(CSV.split("\n")[0] + "\nb,6,0,0,1,1,\n")
    for name in ("b.csv", "b-%c.csv"):
        source = BoxMasks(str(tmp_path / name), ("a", "b"), SIZE)
        assert source.frames() == [3, 4, 5, 6]
        for mask in source.read(5):
            assert mask is not None and mask.shape == (2, 4) and not mask.any()
        with pytest.raises(InputError, match="frame 7 of camera a is missing"):
            source.read(7)
    (tmp_path / "b.csv").write_text(CSV.replace("b,4", "b,1600000000000"))
    with pytest.raises(InputError, match="frames are numbered one by one"):
        BoxMasks(str(tmp_path / "b.csv"), ("a", "b"), SIZE)


def test_one_file_per_camera(tmp_path: Path) -> None:
    for camera, frames in (("a", [3, 4]), ("b", [3])):
        content = {
            "idxs": frames,
            "bboxes": [[[0, 0, 2, 1]], []][: len(frames)],
            "scores": [[0.8], []][: len(frames)],
        }
        (tmp_path / f"{camera}.json").write_text(json.dumps(content))
    source = BoxMasks(str(tmp_path / "%c.json"), ("a", "b"), SIZE)
    a, b = source.read(3)
    assert a is not None and b is not None and np.array_equal(a, b) and a.sum() == 2
    with pytest.raises(InputError, match="frame 4 of camera b is missing"):
        source.read(4)
    source = BoxMasks(str(tmp_path / "%c.json"), ("a", "b"), SIZE, missing="skip")
    a, b = source.read(4)
    assert a is not None and not a.any() and b is None
    with pytest.raises(InputError, match="frame 9 has no boxes in any camera"):
        source.read(9)
    with pytest.raises(InputError, match="missing='no'"):
        BoxMasks(str(tmp_path / "%c.json"), ("a", "b"), SIZE, missing="no")
    with pytest.raises(InputError, match="one file for each"):
        BoxMasks(str(tmp_path / "a.json"), ("a", "b"), SIZE)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("frame,left\n", "b.csv:1: has columns 'frame, left', expected camera, frame"),
        (CSV.replace("2,1,0.9", "2,x,0.9"), "b.csv:2: has something that isn't a number"),
        (CSV.replace("a,3,0,0,2,1", "a,3,0,0,-2,1"), "b.csv:2: the box ends before it begins"),
        (CSV.replace("a,3,0,0", "a,3.5,0,0"), "b.csv:2: the box has frame 3.5"),
        (CSV.replace("0,0,2,1,0.9", "0,0,inf,1,0.9"), "b.csv:2: the box isn't made of numbers"),
        (CSV.replace("b,4", "a,4"), "camera b has no boxes, expected one of: a"),
        (CSV.splitlines()[0] + "\n", "has no boxes"),
        ("{}", "expected a list of boxes"),
        ("[3]", "box 0 isn't an object"),
        ('[{"frame": 3}]', "box 0 has no camera"),
        ('[{"frame": 3, "camera": "a", "left": 1}]', "box 0 isn't made of numbers"),
        ("[\n{", "b.csv:2: isn't JSON"),
        ('{"bboxes": [[]], "idxs": [1, 2]}', "one file for each"),
    ],
)
def test_faults_of_boxes(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "b.csv").write_text(text)
    with pytest.raises(InputError, match=words) as error:
        BoxMasks(str(tmp_path / "b.csv"), ("a", "b"), SIZE)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"bboxes": [[]], "idxs": [1, 2]}, "lists of the same length"),
        ({"bboxes": [[[0, 0, 1, 1]]], "scores": [[]]}, "another number of scores"),
        ({"bboxes": [[[0, 0, 1]]]}, "a box of frame 0 isn't made of numbers"),
        ({"bboxes": [[5]]}, "a box of frame 0 isn't made of numbers"),
        ({"bboxes": [[]], "idxs": ["x"]}, "frame 'x', expected a whole number"),
        ({"bboxes": 3}, "lists of the same length"),
        ({"bboxes": [3]}, "frame 0 has no list of boxes"),
    ],
)
def test_faults_of_lists_of_frames(tmp_path: Path, content: Any, words: str) -> None:
    (tmp_path / "a.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match=words):
        BoxMasks(str(tmp_path / "%c.json"), ("a",), SIZE[:1])
