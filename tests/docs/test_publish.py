"""The published site: a folder per version, a list of versions, a front page."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from pages import ROOT

SPEC = importlib.util.spec_from_file_location("publish", ROOT / "docs" / "publish.py")
assert SPEC is not None and SPEC.loader is not None
publish = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(publish)

URL = "https://example.org/site"


def build(folder: Path, text: str) -> Path:
    """A site of one page, with what Sphinx leaves beside the pages."""
    (folder / ".doctrees").mkdir(parents=True)
    (folder / "index.html").write_text(text)
    (folder / ".buildinfo").write_text("")
    return folder


@pytest.mark.parametrize(
    ("ref", "folder"),
    [
        ("main", "dev"),
        ("v0.1.0", "0.1"),
        ("v0.10.3", "0.10"),
        ("v1.0.0rc1", "dev"),
        ("7/merge", "dev"),
    ],
)
def test_folders_are_named_by_the_minor_version(ref: str, folder: str) -> None:
    assert publish.version_folder(ref) == folder


def test_versions_are_listed_newest_first_and_the_newest_is_the_front_page(tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    for ref in ("v0.9.0", "main", "v0.10.0", "v0.2.1"):
        publish.publish(build(tmp_path / ref, ref), site, ref, URL)
    entries = json.loads((site / "switcher.json").read_text())
    assert [entry["version"] for entry in entries] == ["dev", "0.10", "0.9", "0.2"]
    assert [entry["version"] for entry in entries if entry.get("preferred")] == ["0.10"]
    assert entries[2]["url"] == f"{URL}/0.9/"
    assert 'url=0.10/"' in (site / "index.html").read_text()


def test_a_newer_patch_replaces_the_pages_of_its_version(tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    old = build(tmp_path / "old", "old")
    (old / "gone.html").touch()
    publish.publish(old, site, "v0.1.0", URL)
    folder = publish.publish(build(tmp_path / "new", "new"), site, "v0.1.1", URL)
    assert folder == site / "0.1"
    assert [path.name for path in folder.iterdir()] == ["index.html"]
    assert (folder / "index.html").read_text() == "new"


def test_without_a_release_the_front_page_is_the_development_version(tmp_path: Path) -> None:
    publish.publish(build(tmp_path / "built", "dev"), tmp_path, "main", URL)
    assert 'url=dev/"' in (tmp_path / "index.html").read_text()
