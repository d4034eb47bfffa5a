"""``proxfield studio``: options, refusals, and its end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.request import Request, urlopen

import numpy as np
import pytest
from click.testing import CliRunner
from studio_cases import SHAPE, write_files

from conftest import start
from proxfield.cli.main import cli
from proxfield.studio.server import MAX_TABS


def call(*arguments: object) -> Any:
    return CliRunner().invoke(cli, ["studio", *map(str, arguments)])


def refused(match: str, *arguments: object) -> None:
    """One line on stderr, and exit code 2."""
    result = call(*arguments)
    assert result.exit_code == 2, result.output
    assert match in result.stderr
    assert result.stderr.count("\n") == 1 and result.stdout == ""


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.7", "example.org", "::"])
def test_other_hosts_need_to_be_wanted(host: str) -> None:
    refused(f"--host {host} lets other machines connect, and there is no password", "--host", host)


def test_options_that_contradict(tmp_path: Path) -> None:
    files = write_files(tmp_path)
    refused("expected --probs or --labels or --logits, one of them", files["image"])
    refused("--probs needs an IMAGE", "--probs", files["probs"])
    refused("--truth needs an IMAGE", "--truth", files["truth"])
    refused("--rule sweep doesn't run on dense fields", "--rule", "sweep")
    given = (files["image"], "--probs", files["probs"])
    refused("--unsure goes with --labels only", *given, "--unsure", 3)
    refused("contradict each other", *given, "--preset", "wsss", "--config", "crf.toml")


def test_bad_files_are_named(tmp_path: Path) -> None:
    files = write_files(tmp_path)
    refused("no such file", tmp_path / "no.png", "--probs", files["probs"])
    refused("is a color picture", files["image"], "--labels", files["image"])
    refused("is a directory", files["image"], "--probs", tmp_path)
    given = (files["image"], "--probs", files["probs"])
    refused("true labels of shape", *given, "--truth", _small_map(tmp_path))
    refused("no such file", *given, "--config", tmp_path / "crf.toml")


def _small_map(folder: Path) -> Path:
    from PIL import Image

    path = folder / "small.png"
    Image.new("L", (4, 4)).save(path)
    return path


def test_a_missing_extra_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "nicegui" else find(name)
    )
    refused('the studio needs NiceGUI and Pillow: pip install "proxfield[studio]"')


def test_help_loads_little() -> None:
    code = (
        "import sys\nfrom proxfield.cli.main import cli\n"
        "try:\n    cli.main(['studio', '--help'])\nexcept SystemExit as end:\n"
        "    assert not end.code\n"
        "print('LOADED', [m for m in ('numba', 'torch', 'nicegui', 'fastapi') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("LOADED []\n") and "--allow-remote" in done.stdout


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals")
def test_ctrl_c_ends_it_and_leaves_nothing(tmp_path: Path) -> None:
    pytest.importorskip("nicegui", reason="needs the extra studio")
    files = write_files(tmp_path)
    given = [files["image"], "--labels", files["labels"]]
    running = start([*given, "--host", "127.0.0.1", "--port", 0], tmp_path, files)
    with running.process:
        with urlopen(running.address, timeout=60) as answer:
            assert b"proxfield studio" in answer.read()
        with pytest.raises(OSError, match="403"):
            urlopen(Request(running.address, headers={"Host": "evil.example"}), timeout=60)
        assert [path.name[:17] for path in running.temporary.iterdir()] == ["proxfield-studio-"]
        code, errors = running.stop()
    assert (code, errors) == (0, "proxfield: studio closed\n")
    assert list(running.temporary.iterdir()) == []


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals")
def test_tabs_are_limited_in_number(tmp_path: Path) -> None:
    pytest.importorskip("nicegui", reason="needs the extra studio")
    files = write_files(tmp_path)
    running = start([files["image"], "--labels", files["labels"]], tmp_path, files)
    with running.process:
        for number in range(MAX_TABS + 1):
            with urlopen(running.address, timeout=60) as answer:
                page = answer.read().decode()
            assert (f"{MAX_TABS} tabs of the studio are open" in page) == (number == MAX_TABS)
        assert running.stop()[0] == 0


@pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals")
def test_labels_that_stand_for_no_stroke_cannot_be_drawn(tmp_path: Path) -> None:
    pytest.importorskip("nicegui", reason="needs the extra studio")
    files = write_files(tmp_path)
    probs = tmp_path / "many.npy"
    rng = np.random.default_rng(0)
    np.save(probs, rng.dirichlet(np.ones(300), SHAPE).astype(np.float32))
    running = start([files["image"], "--probs", probs], tmp_path, files)
    with running.process:
        with urlopen(running.address, timeout=60) as answer:
            page = answer.read().decode()
        assert "label 254" in page and "eraser" in page
        assert "label 255" not in page
        assert running.stop()[0] == 0


def test_strokes_are_limited_in_number() -> None:
    pytest.importorskip("nicegui", reason="needs the extra studio")
    from proxfield.studio.page import MAX_STROKES, Page

    said: list[str] = []
    tab = SimpleNamespace(
        brush=1,
        radius=4.0,
        session=SimpleNamespace(strokes=[None] * (MAX_STROKES - 1)),
        notify=said.append,
        _show_strokes=lambda: None,
        _request=lambda: None,
    )
    for _ in range(2):
        Page._stroke(tab, [[0.1, 0.1], [0.2, 0.2]])  # type: ignore[arg-type]
    assert len(tab.session.strokes) == MAX_STROKES
    assert said == [f"{MAX_STROKES} strokes are the most; undo or clear some"]
