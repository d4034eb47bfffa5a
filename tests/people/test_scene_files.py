"""Scenes from ``.pom`` files and back."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import numpy as np
import pytest

from proxfield.errors import InputError
from proxfield.io.pom import read_pom, write_pom
from proxfield.people.scene import Scene
from proxfield.people.silhouettes import Boxes, Runs

POM = b"ROOM -1 -1 2 2\nCAMERA 4 6 5\nCAMERA 9 3 3\nRECTANGLE 4 1 0 0 2 4\nPRIOR 0.05\n"


def test_from_pom(tmp_path: Path) -> None:
    (tmp_path / "x.pom").write_bytes(POM)
    scene = Scene.from_pom(tmp_path / "x.pom", positions=[[0, 0], [1, 0]], shape=(1, 2))
    assert (scene.names, scene.prior, scene.shape) == (("4", "9"), 0.05, (1, 2))
    assert [(s.width, s.height) for s in scene.silhouettes] == [(6, 5), (3, 3)]
    assert scene.silhouettes[0].visible.tolist() == [False, True]
    assert Scene.from_pom(read_pom(BytesIO(POM)), prior=0.1).prior == 0.1
    write_pom(tmp_path / "y.pom", scene.to_pom(process=((3, 2),)))
    again = read_pom(tmp_path / "y.pom")
    assert (again.cameras, again.prior, again.frames) == ((4, 9), 0.05, [3, 4])
    assert np.array_equal(again.boxes[0], read_pom(BytesIO(POM)).boxes[0])


def test_faults() -> None:
    with pytest.raises(InputError, match="no location is visible"):
        Scene.from_pom(read_pom(BytesIO(b"ROOM 4 4 1 1\nRECTANGLE 0 0 notvisible\n")))
    with pytest.raises(InputError, match="positions of shape"):
        Scene.from_pom(read_pom(BytesIO(POM)), positions=[[0, 0]])
    with pytest.raises(InputError, match="one prior"):
        Scene((Boxes(2, 2, [[0, 0, 1, 1]]),), prior=np.array([0.1])).to_pom()
    with pytest.raises(InputError, match="rectangles only"):
        Scene((Runs(2, 2, [[0, 0, 1]], [0, 1]),)).to_pom()


def test_names_that_are_no_numbers() -> None:
    scene = Scene((Boxes(2, 2, [[0, 0, 1, 1]]),), names=("left",))
    assert scene.to_pom().cameras == (0,)
