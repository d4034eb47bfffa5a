"""``make demo``: what it installs, and what its example draws and says."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("matplotlib")
Image = pytest.importorskip("PIL.Image")
ROOT = Path(__file__).resolve().parents[2]


def pixels(path: Path) -> np.ndarray:
    with Image.open(path) as picture:
        return np.asarray(picture)


def planned(folder: Path, target: str) -> str:
    """What make would do for a target with this virtual environment."""
    if shutil.which("make") is None:
        pytest.skip("needs make")
    command = ["make", "--dry-run", "--no-print-directory", target, f"VENV={folder}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_make_demo_installs_no_development_tools(tmp_path: Path) -> None:
    plan = planned(tmp_path / "venv", "demo")
    assert '".[plot]"' in plan and ",dev" not in plan
    assert "--quiet" not in plan, "pip says nothing for long"
    assert "examples/demo.py" in plan


def test_make_test_installs_them_after_the_demo(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    for name in ("bin/python", ".installed-demo"):
        (tmp_path / name).touch()
    assert "pip install" not in planned(tmp_path, "demo")
    plan = planned(tmp_path, "test")
    assert '".[plot,dev]"' in plan
    assert "-m venv" not in plan
    assert str(tmp_path / ".installed-demo") in plan  # what the demo needs is there, too


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of pictures, and what was printed."""
    out = tmp_path_factory.mktemp("demo") / "out"
    command = [sys.executable, str(ROOT / "examples/demo.py"), "--output", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", timeout=600)
    assert done.returncode == 0, done.stderr
    return out, done.stdout


def test_the_demo_refines_a_photograph(demo: tuple[Path, str]) -> None:
    out, text = demo
    photo, rough = pixels(out / "photo.png"), pixels(out / "rough.png")
    assert photo.shape == (600, 512, 3) and rough.shape == (600, 512)
    assert set(np.unique(rough)) == {0, 1, 2, 3}
    share = int(text.split(" % of the pixels")[0].split()[-1])
    assert 5 <= share <= 10
    height, width, _ = pixels(out / "demo.png").shape
    assert width > 1000 and height > 400
    assert pixels(out / "convergence.png").shape[1] > 400


def test_the_demo_compares_methods(demo: tuple[Path, str]) -> None:
    lines = [line.split() for line in demo[1].splitlines()]
    assert [words[1] for words in lines if words[:1] == ["*"]] == ["auto"]
    assert ["full-parallel"] in [words[:1] for words in lines]
    assert any("oscillating" in words for words in lines)


def test_what_the_demo_says_to_try_next_works(demo: tuple[Path, str]) -> None:
    after = demo[1].split("Try next")[1].splitlines()[1:]
    commands = [shlex.split(line) for line in after]
    assert len(commands) == 3
    for command in commands:
        assert command[0] == "proxfield"
        done = subprocess.run(
            [sys.executable, "-m", *command], capture_output=True, text=True, encoding="utf-8"
        )
        assert done.returncode == 0, done.stderr
    refined, rough = pixels(demo[0] / "refined.png"), pixels(demo[0] / "rough.png")
    assert 0.05 < np.mean(refined != rough) < 0.1
