"""Preparing and checking a release, on copies of the files that name the version."""

from __future__ import annotations

import importlib.util
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CLONE = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(not (CLONE / "scripts").exists(), reason="needs a clone")


@pytest.fixture(scope="module")
def release() -> Any:
    spec = importlib.util.spec_from_file_location("release", CLONE / "scripts" / "release.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def files(release: Any, tmp_path: Path) -> Any:
    """Copies, whose changelog has one more version on top."""
    for name in (*release.LINES, "CHANGELOG.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(CLONE / name, tmp_path / name)
    out = release.Files(tmp_path)
    text = out.read("CHANGELOG.md")
    new = "## 9.8.7 (unreleased)\n\n### Added\n- A thing.\n\n## "
    out.write("CHANGELOG.md", text.replace("## ", new, 1))
    return out


def test_what_is_prepared_passes_the_check(files: Any) -> None:
    for day in ("2031-02-03", "2031-02-04"):  # a day later it may be done again
        files.prepare("9.8.7", day)
        assert files.check("v9.8.7") == "### Added\n- A thing."
        assert files.read("CITATION.cff").count(f"\ndate-released: {day}\n") == 1
        assert files.read("CITATION.cff").count("date-released") == 1
    assert '__version__ = "9.8.7"\n' in files.read("src/proxfield/_version.py")
    assert '  version: "9.8.7"\n' in files.read("recipe/recipe.yaml")


def test_all_files_here_name_one_version(release: Any) -> None:
    files = release.Files(CLONE)
    version = re.search(r'__version__ = "(.*)"', files.read("src/proxfield/_version.py"))[1]
    for name, line in release.LINES.items():
        assert line.replace("VERSION", version) in files.read(name).splitlines(), name
    assert re.search(rf"^## {re.escape(version)} \(", files.read("CHANGELOG.md"), re.MULTILINE)


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("src/proxfield/_version.py", "9.8.7", "9.8.6", r"_version.py: no line"),
        ("CITATION.cff", "version: 9.8.7", "version: 9.8.70", r"CITATION.cff: no line 'version"),
        ("CITATION.cff", "-03", "-04", r"CITATION.cff: no line 'date-released"),
        ("docs/project/citing.md", "{9.8.7}", "{9.8.6}", r"citing.md: no line"),
        ("recipe/recipe.yaml", "9.8.7", "9.8.6", r"recipe.yaml: no line"),
        ("CHANGELOG.md", "2031-02-03", "unreleased", r"9.8.7 has no date but 'unreleased'"),
        ("CHANGELOG.md", "## 9.8.7 ", "## 9.8.8 ", r"no section 9.8.7"),
        ("CHANGELOG.md", "### Added\n- A thing.\n", "", r"section 9.8.7 is empty"),
    ],
)
def test_a_file_that_disagrees_is_named(
    files: Any, name: str, old: str, new: str, message: str
) -> None:
    files.prepare("9.8.7", "2031-02-03")
    assert old in files.read(name)
    files.write(name, files.read(name).replace(old, new, 1))
    with pytest.raises(SystemExit, match=message):
        files.check("v9.8.7")


@pytest.mark.parametrize("tag", ["9.8.7", "v9.8", "v9.8.7-rc1", "main"])
def test_tags_of_another_form(files: Any, tag: str) -> None:
    with pytest.raises(SystemExit, match="expected one like v"):
        files.check(tag)


def test_a_version_without_a_section(files: Any) -> None:
    with pytest.raises(SystemExit, match=r"CHANGELOG.md: 0 lines match"):
        files.prepare("9.9.9", "2031-02-03")
    with pytest.raises(SystemExit, match="is no version"):
        files.prepare("next", "2031-02-03")


def test_the_recipe_needs_what_the_package_needs() -> None:
    yaml = pytest.importorskip("yaml")
    recipe = yaml.safe_load((CLONE / "recipe" / "recipe.yaml").read_text(encoding="utf-8"))
    project = tomllib.loads((CLONE / "pyproject.toml").read_text(encoding="utf-8"))
    needs = {spec.partition(";")[0].replace(" ", "") for spec in project["project"]["dependencies"]}
    given = {spec.replace(" ", "") for spec in recipe["requirements"]["run"]}
    python = project["project"]["requires-python"]
    assert given - needs == {f"python{python}".replace("3.10", "${{python_min}}")}
    assert needs <= given
    host = {spec.replace(" ", "") for spec in recipe["requirements"]["host"]}
    assert set(project["build-system"]["requires"]) <= host
    variants = yaml.safe_load((CLONE / "recipe" / "variants.yaml").read_text(encoding="utf-8"))
    assert variants == {"python_min": ["3.10"]}
