"""Calibrations in files: JSON of two kinds, WILDTRACK's XML, and what contradicts itself."""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from proxfield.errors import InputError, UnsupportedError
from proxfield.people.cameras import load_cameras, save_cameras

K = [[800.0, 0.0, 320.0], [0.0, 810.0, 240.0], [0.0, 0.0, 1.0]]
# looks along y from (1, -6, 2): its x is the world's x, its y points down
R = [[1.0, 0.0, 0.0], [0.0, 0.0, -1.0], [0.0, 1.0, 0.0]]
T = (-np.array(R) @ [1.0, -6.0, 2.0]).tolist()


def camera(**changes: Any) -> dict[str, Any]:
    return {"K": copy.deepcopy(K), "R": copy.deepcopy(R), "t": list(T), **changes}


@pytest.fixture
def save(tmp_path: Path) -> Callable[[object], Path]:
    def write(content: object) -> Path:
        (tmp_path / "c.json").write_text(json.dumps(content))
        return tmp_path / "c.json"

    return write


def test_plain_json(save: Callable[[object], Path]) -> None:
    path = save(
        {"b": camera(dist=[0, 0, 0, 0, 0]), "a": camera(dist=[0.1, 0, 0, 0], size=[640, 480])}
    )
    b, a = load_cameras(path, size=(640, 480))
    assert (a.name, b.name, a.width, a.height) == ("a", "b", 640, 480)
    assert a.center == pytest.approx([1, -6, 2])
    assert b.distortion is None and a.distortion is not None and a.distortion[0] == 0.1
    assert load_cameras(path, names=["a"])[0].name == "a"
    assert [c.name for c in load_cameras(path, size=(640, 480), names=["a", "a"])] == ["a", "a"]
    assert load_cameras(path, size=(640, 480))[0].width == 640


def test_units(save: Callable[[object], Path]) -> None:
    far = {"a": camera(size=[640, 480], t=[1000 * v for v in T])}
    with pytest.raises(
        InputError, match="is 6403 m away from the origin, probably these are cm or mm"
    ):
        load_cameras(save(far))
    assert load_cameras(save(far), unit="mm")[0].center == pytest.approx([1, -6, 2])
    near = {"a": camera(size=[640, 480], t=[100 * v for v in T])}
    with pytest.raises(InputError, match="640 m away from the origin, probably these are cm"):
        load_cameras(save(near))
    own = {"unit": "cm", "cameras": near}
    assert load_cameras(save(own))[0].center == pytest.approx([1, -6, 2])
    assert load_cameras(save(near), unit="m")[0].center == pytest.approx([100, -600, 200])


def test_back_and_forth(save: Callable[[object], Path], tmp_path: Path) -> None:
    first = load_cameras(
        save({"a": camera(dist=[0.1, 0, 0, 0], size=[640, 480]), "b": camera(size=[640, 480])})
    )
    save_cameras(tmp_path / "d.json", first)
    second = load_cameras(tmp_path / "d.json")
    for one, two in zip(first, second, strict=True):
        assert (one.name, one.width, one.height) == (two.name, two.width, two.height)
        for key in ("matrix", "rotation", "translation", "distortion"):
            assert np.array_equal(getattr(one, key), getattr(two, key))
    assert json.loads((tmp_path / "d.json").read_text())["unit"] == "m"
    with pytest.raises(InputError, match="two cameras are called 'a'"):
        save_cameras(tmp_path / "e.json", [first[0], first[0]])
    assert not (tmp_path / "e.json").exists()


def test_cameras(save: Callable[[object], Path], tmp_path: Path) -> None:
    path = save({"a": camera()})
    with pytest.raises(InputError, match=r"c\.json: camera a: .* doesn't say the size"):
        load_cameras(path)
    (one,) = load_cameras(path, size=(640, 480))
    # 6 m away at its own height and 1 m to its left: 800/6 pixels left of the center
    assert one.project([[0.0, 0.0, 2.0]])[0][0] == pytest.approx([320 - 800 / 6, 240])
    save_cameras(tmp_path / "d.json", [one])
    (two,) = load_cameras(tmp_path / "d.json")
    assert (two.name, two.width, two.height) == ("a", 640, 480)
    assert np.array_equal(one.translation, two.translation)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"a": camera(R=[[2, 0, 0], [0, 0, -1], [0, 1, 0]])}, "camera a: R isn't a rotation: R Rᵀ"),
        ({"a": camera(R=[[-1, 0, 0], [0, 0, -1], [0, 1, 0]])}, "a reflection"),
        ({"a": camera(R=[[1, 0, 0], [0, 1, 0]])}, "camera a: R isn't what .* expected 9 numbers"),
        ({"a": camera(t=[0, "x", 0])}, "camera a: t isn't what it should be, expected 3 numbers"),
        ({"a": camera(K=[[0, 0, 1], [0, 1, 1], [0, 0, 1]])}, "K isn't a camera matrix"),
        ({"a": camera(K=[[8, 0, 1], [0, 8, 1], [0, 0, 2]])}, "K isn't a camera matrix"),
        ({"a": camera(size=[100, 480])}, r"principal point \(320, 240\) doesn't suit .* 100×480"),
        ({"a": camera(size=[320, 240])}, "is for images of 320×240 pixels, not 640×480"),
        ({"a": camera(size=[640])}, "expected two numbers"),
        ({"a": camera(size=[640, 0])}, "images of 640×0 pixels"),
        ({"a": camera(t=[0, -2, 6])}, "camera a: is 2.00 m below the ground"),
        ({"a": camera(dist=[0.1, 0.2])}, "2 distortion coefficients"),
        ({"a": {"K": K, "R": R}}, "camera a has no t, expected K, R and t"),
        ({"a": 3}, "camera a: expected an object"),
        ({"unit": "inch", "cameras": {"a": camera()}}, "unit 'inch', expected one of: m, cm, mm"),
        ({"cameras": {}}, "has no cameras"),
        ([], "expected an object"),
    ],
)
def test_contradictions(save: Callable[[object], Path], content: Any, words: str) -> None:
    size = (640, 480) if "not 640×480" in words else None
    with pytest.raises(InputError, match=words) as error:
        load_cameras(save(content), size=size)
    assert "c.json" in str(error.value) and "\n" not in str(error.value)


def test_other_faults(save: Callable[[object], Path], tmp_path: Path) -> None:
    path = save({"a": camera()})
    with pytest.raises(InputError, match="has no camera 'b', expected one of: a"):
        load_cameras(path, names=["a", "b"])
    with pytest.raises(InputError, match="unit='inch'"):
        load_cameras(path, unit="inch")
    path.write_text('{"a":\n')
    with pytest.raises(InputError, match=r"c\.json:2: isn't JSON"):
        load_cameras(path)
    with pytest.raises(InputError, match="no such file"):
        load_cameras(tmp_path / "none.json")


# ---- XML ----

INTRINSIC = """<?xml version="1.0"?>
<opencv_storage>
<camera_matrix type_id="opencv-matrix"><rows>3</rows><cols>3</cols><dt>d</dt>
  <data>800. 0. 960. 0. 810. 540. 0. 0. 1.</data></camera_matrix>
<distortion_coefficients type_id="opencv-matrix"><rows>5</rows><cols>1</cols><dt>d</dt>
  <data>
    0 0
    0 0 0</data></distortion_coefficients>
</opencv_storage>
"""


def extrinsic() -> str:
    turn = Rotation.from_matrix(R).as_rotvec()
    numbers = [" ".join(repr(float(v)) for v in vector) for vector in (turn, 100 * np.array(T))]
    return (
        '<?xml version="1.0"?>\n<opencv_storage>\n  <rvec>\n {}\n </rvec>\n'
        "  <tvec>\n {}\n </tvec>\n</opencv_storage>\n"
    ).format(*numbers)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    out = tmp_path / "calibrations"
    for sub, text in (("intrinsic_zero/intr", INTRINSIC), ("extrinsic/extr", extrinsic())):
        for name in ("left", "Right"):
            path = out / f"{sub}_{name}.xml"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    return out


def test_wildtrack(folder: Path) -> None:
    for where in (folder, folder.parent):
        right, left = load_cameras(where)
        assert (right.name, left.name, left.width, left.height) == ("Right", "left", 1920, 1080)
        assert left.center == pytest.approx([1, -6, 2])  # centimeters in the file
        assert left.rotation == pytest.approx(np.array(R), abs=1e-12)
        assert left.distortion is None
        assert left.matrix[0].tolist() == [800.0, 0.0, 960.0]


def test_side_by_side(folder: Path, tmp_path: Path) -> None:
    flat = tmp_path / "flat"
    flat.mkdir()
    size = "<image_width>1920</image_width><image_height>1080</image_height></opencv_storage>"
    (flat / "intr_a.xml").write_text(INTRINSIC.replace("</opencv_storage>", size))
    (flat / "extr_a.xml").write_text(extrinsic())
    (one,) = load_cameras(flat)
    assert (one.name, one.width, one.height) == ("a", 1920, 1080)


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("extrinsic/extr_left.xml", None, "camera left has no extrinsic calibration"),
        ("intrinsic_zero/intr_left.xml", None, "camera left has no intrinsic calibration"),
        ("extrinsic/extr_left.xml", "<a><rvec>1 2</rvec></a>", "extr_left.xml: rvec has 2 numbers"),
        ("extrinsic/extr_left.xml", "<a><rvec>1 2 3</rvec></a>", "extr_left.xml: has no <tvec>"),
        ("extrinsic/extr_left.xml", "<a><rvec>1 2 x</rvec></a>", "<rvec> has something that isn't"),
        ("extrinsic/extr_left.xml", "<a>\n<rvec>", "extr_left.xml:2: isn't XML"),
        ("extrinsic/extr_left.xml", "", "extr_left.xml:1: isn't XML"),
        ("intrinsic_zero/intr_left.xml", "<a><camera_matrix>1</camera_matrix></a>", "1 numbers"),
        (
            "extrinsic/extr_left.xml",
            '<!DOCTYPE a [<!ENTITY b "1 2 3">]><a><rvec>&b;</rvec></a>',
            "has a document type or entities",
        ),
        (
            "extrinsic/extr_left.xml",
            f'<!DOCTYPE a SYSTEM "x.dtd">{extrinsic()[22:]}',
            "has a document type or entities",
        ),
    ],
)
def test_faults_of_xml(folder: Path, file: str, text: str | None, words: str) -> None:
    if text is None:
        (folder / file).unlink()
    else:
        (folder / file).write_text(text)
    with pytest.raises(InputError, match=words) as error:
        load_cameras(folder)
    assert "\n" not in str(error.value)


def test_a_folder_of_something_else(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"holds no extr_NAME\.xml"):
        load_cameras(tmp_path)


def test_lens_distortion(save: Callable[[object], Path]) -> None:
    pytest.importorskip("cv2", reason="lens distortion needs OpenCV")
    lens = [-0.2, 0.1, 0.001, 0.002, 0.05]
    (one,) = load_cameras(save({"a": camera(dist=lens)}), size=(640, 480))
    found, _ = one.project([[0.0, 0.0, 1.0], [1.0, 0.0, 2.0], [0.0, -8.0, 1.0]])
    # Brown's model at the first point, which is at (-1, 1)/6 before the lens
    x, y = -1 / 6, 1 / 6
    square = x * x + y * y
    k1, k2, p1, p2, k3 = lens
    radial = 1 + k1 * square + k2 * square**2 + k3 * square**3
    x, y = (
        x * radial + 2 * p1 * x * y + p2 * (square + 2 * x * x),
        y * radial + p1 * (square + 2 * y * y) + 2 * p2 * x * y,
    )
    assert found[0] == pytest.approx([320 + 800 * x, 240 + 810 * y])
    assert found[1] == pytest.approx([320, 240])
    assert np.isnan(found[2]).all()  # behind the camera


def test_lens_distortion_needs_opencv(
    save: Callable[[object], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cv2", None)
    (one,) = load_cameras(save({"a": camera(dist=[0.1, 0, 0, 0])}), size=(640, 480))
    with pytest.raises(UnsupportedError, match=r'pip install "proxfield\[video\]"'):
        one.project([[0.0, 0.0, 1.0]])
