"""What the studio hands out: crf.toml and Python that makes the same labels."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from studio_cases import write_files

import proxfield as pf
from proxfield.images.inputs import CONFIDENCE
from proxfield.studio.inputs import Stroke, StudioInputs, demo_inputs, read_files
from proxfield.studio.outputs import as_python, as_toml, curve_svg, label_png
from proxfield.studio.session import StudioSession


def executed(code: str) -> np.ndarray:
    space: dict[str, object] = {}
    exec(compile(code, "copied.py", "exec"), space)
    labels = space["labels"]
    assert isinstance(labels, np.ndarray)
    return labels


def same(inputs: StudioInputs, **changes: object) -> str:
    session = StudioSession(inputs, "deeplab", "adaptive")
    session.settings = replace(session.settings, **changes)
    session.strokes.append(Stroke(1, [[0.1, 0.1], [0.3, 0.7]], 3.0))
    session.strokes.append(Stroke(0, [[0.6, 0.4]], 2.0))
    outcome = session.compute(session.job())
    assert outcome is not None
    code = as_python(session, session.job())
    np.testing.assert_array_equal(executed(code), outcome.labels)
    return code


@pytest.mark.parametrize("kind", ["probs", "logits", "labels"])
def test_the_python_makes_the_same_labels(tmp_path: Path, kind: str) -> None:
    paths = write_files(tmp_path)
    what = {"probs": "probabilities"}.get(kind, kind)
    more = {"from_labels": {"confidence": 0.6}} if kind == "labels" else {}
    inputs = read_files(paths["image"], paths[kind], what, build={"channel_axis": -1}, **more)
    code = same(inputs, bilateral_weight=2.5, max_iters=7)
    assert "channel_axis=-1" in code
    assert max(map(len, code.replace(os.fspath(tmp_path), "").splitlines())) <= 100


def test_the_python_of_the_generated_scene() -> None:
    code = same(demo_inputs(), max_iters=2)
    assert "demo_inputs()" in code and "confidence" not in code


@pytest.mark.parametrize("given", [None, 0.6])
def test_hard_probabilities_are_labels(tmp_path: Path, given: float | None) -> None:
    """The page and the code say the confidence; the same without a warning in a thread."""
    paths = write_files(tmp_path)
    hard = np.load(paths["probs"]).argmax(axis=-1)[..., None] == np.arange(3)
    np.save(tmp_path / "hard.npy", hard.astype(np.float32))
    build = {} if given is None else {"confidence": given}
    inputs = read_files(paths["image"], tmp_path / "hard.npy", "probabilities", build=build)
    code = same(inputs)
    expected = CONFIDENCE if given is None else given
    assert StudioSession(inputs).confidence == expected
    assert f"confidence={expected}," in code


def test_names_of_uploads_are_quoted() -> None:
    scene = demo_inputs()
    odd = "a\"b\\n'); import os #.png"
    inputs = StudioInputs(scene.image, scene.unary, image_name=odd, unary_name="p.npy")
    code = as_python(StudioSession(inputs), StudioSession(inputs).job())
    assert f"read_image({odd!r})" in code
    compile(code, "copied.py", "exec")


def test_settings_go_through_a_file(tmp_path: Path) -> None:
    session = StudioSession(demo_inputs(), "wsss", "adam")
    session.settings = replace(session.settings, bilateral_weight=2.25, max_iters=4)
    path = tmp_path / "crf.toml"
    path.write_text(as_toml(session.job()), encoding="utf-8")
    assert "--rule adam" in path.read_text(encoding="utf-8")
    read = pf.read_config(path)
    assert read == session.settings
    again = StudioSession(demo_inputs(), read)
    assert again.settings == session.settings


def test_label_pictures_are_exact() -> None:
    from io import BytesIO

    from PIL import Image

    from proxfield.io.images import label_colors

    labels = np.array([[0, 1, 255], [2, 1, 0]])
    shown = np.array([[True, True, True], [True, False, True]])
    rgba = np.array(Image.open(BytesIO(label_png(labels, 3, shown))).convert("RGBA"))
    assert rgba[..., 3].tolist() == [[255, 255, 0], [255, 0, 255]]
    np.testing.assert_array_equal(rgba[0, 1, :3], label_colors(3)[1])
    many = np.arange(400).reshape(20, 20)
    rgba = np.array(Image.open(BytesIO(label_png(many, 400))).convert("RGBA"))
    np.testing.assert_array_equal(rgba[..., :3], label_colors(400)[many])


def test_the_curve_leaves_out_what_is_not_finite() -> None:
    svg = curve_svg([0, 1, 2], [float("inf"), 5.0, 3.0], 2)
    assert svg.count("<circle") == 2 and "iteration 2: F = 3" in svg and "inf" not in svg
    assert "polyline" not in curve_svg([], [], 1)
    assert curve_svg([0], [2.0], 0).count("<circle") == 1
    flat = re.findall(r'cy="([^"]+)"', curve_svg([0, 1, 2], [1e5, 1e5 + 1e-3, 1e5], 2))
    assert max(map(float, flat)) - min(map(float, flat)) < 2  # rounding isn't drawn large
