"""``make people``: a folder with a simulated scene, complete or not at all."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from proxfield.io.pom import read_pom
from proxfield.people import simulate as writing
from proxfield.people.bodies import Noise
from proxfield.people.cameras import load_cameras
from proxfield.people.detections import Detections
from proxfield.people.scene import Scene
from proxfield.people.simulate import simulate

pillow = pytest.importorskip("PIL.Image")
SMALL = ("--kind", "square", "--people", 5, "--size", 96, 72, "--spacing", 2.0)
SMALL_ARGUMENTS: dict[str, Any] = {"people": 5, "size": (96, 72), "spacing": 2.0}


def test_the_folder_holds_the_simulation(invoke: Callable[..., Any]) -> None:
    result = invoke("make", "people", "out", *SMALL, "--frames", 2, "--seed", 3, "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == {
        "kind": "square",
        "frames": 2,
        "people": 5,
        "cameras": 4,
        "locations": 121,
        "output": "out",
    }
    made = simulate("square", seed=3, **SMALL_ARGUMENTS)
    folder = Path("out")
    truth = np.loadtxt(folder / "truth.csv", delimiter=",", skiprows=1)
    for frame in range(2):
        assert np.allclose(truth[truth[:, 0] == frame, 1:], made.truth(frame), atol=1e-4)
        for k, mask in enumerate(made.masks(frame)):
            assert np.array_equal(pillow.open(folder / f"mask-f{frame}-c{k}.png"), mask)
    pom = read_pom(folder / "scene.pom")
    assert pom.input_format == "mask-f%f-c%c.png" and pom.frames == [0, 1]
    scene = Scene.from_pom(pom)
    for s, t in zip(scene.silhouettes, made.scene.silhouettes, strict=True):
        assert np.array_equal(s.boxes, t.boxes)  # type: ignore[attr-defined]
    again = load_cameras(folder / "calibration.json")
    people = made.truth(0)
    for a, b in zip(again, made.cameras, strict=True):
        assert (a.name, a.width, a.height) == (b.name, b.width, b.height)
        assert np.allclose(a.rectangles(people), b.rectangles(people))
    text = (folder / "README.txt").read_text()
    assert "5 people, 4 cameras, 2 frames" in text and "--seed 3" in text


def test_frames_without_people_are_in_the_truth(invoke: Callable[..., Any]) -> None:
    empty = ("--kind", "square", "--people", 0, "--size", 96, 72, "--spacing", 2.0)
    assert invoke("make", "people", "out", *empty, "--frames", 2).exit_code == 0
    assert Path("out/truth.csv").read_text() == "frame,x,y\n0,,\n1,,\n"
    truth = Detections.load("out/truth.csv")
    assert truth.frames.tolist() == [0, 1] and len(truth) == 0


def test_options_of_the_masks(invoke: Callable[..., Any]) -> None:
    noise = ("--missing", 0, "--speckle", 0, "--blobs", 0, "--soft", 1, "--shape", "superellipse")
    result = invoke("make", "people", "out", *SMALL, "--frames", 1, *noise, "--cameras", 2)
    assert result.exit_code == 0
    made = simulate(
        "square", noise=Noise(0, 0, 0, 1), shape="superellipse", cameras=2, **SMALL_ARGUMENTS
    )
    assert len(list(Path("out").glob("mask-*.png"))) == 2
    for k, mask in enumerate(made.masks(0)):
        assert np.array_equal(pillow.open(f"out/mask-f0-c{k}.png"), mask)


def test_an_empty_folder_is_filled(invoke: Callable[..., Any]) -> None:
    Path("out").mkdir()
    assert invoke("make", "people", "out", *SMALL, "--frames", 1).exit_code == 0
    assert Path("out/truth.csv").exists()


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (("full",), "full: can't write, isn't empty, expected a new or empty folder"),
        (("file",), "file: can't write, is a file"),
        (("no/where",), "the folder it is in doesn't exist"),
        (("out", "--kind", "beach"), "'beach' is not one of"),
        (("out", "--missing", 1.0), "1.0 is not in the range"),
        (("out", "--frames", 0), "0 is not in the range"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(
    invoke: Callable[..., Any], args: tuple[Any, ...], text: str
) -> None:
    Path("full").mkdir()
    Path("full/x").write_text("mine")
    Path("file").write_text("mine")
    result = invoke("make", "people", *args)
    assert result.exit_code == 2
    assert text in result.stderr and len(result.stderr.splitlines()) == 1
    assert sorted(p.name for p in Path().iterdir()) == ["file", "full"]
    assert Path("full/x").read_text() == "mine"


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_nothing_is_left_when_writing_fails(
    invoke: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    calls = []

    def fail(picture: object) -> bytes:
        calls.append(picture)
        if len(calls) > 5:
            raise error
        return b"png"

    monkeypatch.setattr(writing, "png_bytes", fail)
    result = invoke("make", "people", "out", *SMALL, "--frames", 3)
    assert result.exit_code in (2, 130)
    assert len(calls) == 6
    assert list(Path().iterdir()) == []
