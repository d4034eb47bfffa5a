"""``proxfield studio``: options, refusals, and its end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from click.testing import CliRunner
from studio_cases import write_files

from conftest import start
from proxfield.cli.main import cli


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
    refused("--confidence goes with --labels only", *given, "--confidence", 0.5)
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
