"""Remote paths, and parts of a run, on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from jobs_cases import contents, make_images

import proxfield as pf
from proxfield.cli.main import cli
from proxfield.errors import InputError
from proxfield.io.files import atomic_write, read_bytes
from proxfield.io.remote import RemotePath, is_remote, make_path


def refine(*arguments: object) -> Any:
    return CliRunner().invoke(cli, ["refine", *map(str, arguments)])


def test_parts_together_are_the_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_images(tmp_path, 5)
    monkeypatch.chdir(tmp_path)
    assert refine("images", "--probs", "probs", "-o", "whole").exit_code == 0
    for k, expected in ((1, 2), (2, 2), (3, 1)):  # of five images, in three parts
        result = refine("images", "--probs", "probs", "-o", "parts", "--json", "--part", f"{k}/3")
        assert json.loads(result.stdout)["refined"] == expected
    wrong = refine("images", "--probs", "probs", "-o", "parts", "--part", "4/3")
    assert wrong.exit_code == 2 and "expected K/N with K from 1 to N" in wrong.stderr
    assert contents(tmp_path / "parts") == contents(tmp_path / "whole")


def test_without_fsspec_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "fsspec", None)
    result = refine("memory://images", "--probs", "memory://probs", "-o", "out")
    assert result.exit_code != 0
    assert 'remote paths need fsspec: pip install "proxfield[cluster]"' in result.stderr


@pytest.fixture
def memory(tmp_path: Path) -> Any:
    """The images as objects in memory."""
    fsspec = pytest.importorskip("fsspec", reason="needs proxfield[cluster]")
    system = fsspec.filesystem("memory")
    make_images(tmp_path, 3)
    for folder in ("images", "probs"):
        for name, data in contents(tmp_path / folder).items():
            system.pipe_file(f"/{folder}/{name}", data)
    yield system
    for folder in ("images", "probs", "out"):
        if system.exists(f"/{folder}"):
            system.rm(f"/{folder}", recursive=True)


def test_refine_from_and_to_objects(
    memory: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert refine("images", "--probs", "probs", "-o", "here").exit_code == 0
    same = ("memory://images", "--probs", "memory://probs", "-o", "memory://out", "--json")
    result = refine(*same)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["refined"] == 3
    for name, data in contents(tmp_path / "here").items():
        if name.endswith(".png"):
            assert memory.cat_file(f"/out/{name}") == data
    again = json.loads(refine(*same).stdout)
    assert again["skipped"] == 3 and again["refined"] == 0
    changed = json.loads(refine(*same, "--max-iters", 2).stdout)
    assert changed["refined"] == 3


def test_one_file_and_mixed_places(
    memory: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = refine(
        "memory://images/i00.png", "--probs", "probs/i00.npy", "-o", "memory://out/x.png"
    )
    assert result.exit_code == 0, result.output
    assert memory.exists("/out/x.png")


def test_missing_objects_are_named(memory: Any) -> None:
    result = refine("memory://nowhere/a.png", "--probs", "memory://probs", "-o", "memory://out")
    assert result.exit_code != 0 and "memory://nowhere/a.png: no such file" in result.stderr
    with pytest.raises(InputError, match="memory://nowhere: no such file"):
        read_bytes("memory://nowhere")
    with pytest.raises(InputError, match="can't be reached"):
        read_bytes("nonsense://bucket/a.npy")


def test_results_and_fields_go_to_objects_too(memory: Any) -> None:
    field = pf.Field([2]).add(pf.Unary([[0.0, 1.0]]))
    field.save("memory://out/field.npz")
    assert pf.Field.load("memory://out/field.npz") == field
    atomic_write("memory://out/a.txt.gz", "text")
    assert read_bytes("memory://out/a.txt.gz")[0] == b"text"


def test_files_of_other_systems_are_renamed_when_complete(memory: Any, tmp_path: Path) -> None:
    target = f"file://{tmp_path}/a.txt"
    atomic_write(target, "whole")
    assert (tmp_path / "a.txt").read_text() == "whole"
    assert not list(tmp_path.glob(".proxfield-*"))


def test_paths() -> None:
    assert is_remote("s3://b/x") and not is_remote("/a/b") and not is_remote("C:\\a")
    assert isinstance(make_path("a/b"), Path)
    path = make_path("s3://b/folder/")
    assert isinstance(path, RemotePath)
    assert str(path / "a.png") == "s3://b/folder/a.png"
