"""What the wheel and the source archive hold, and what the package index will show."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_string
from importlib.util import find_spec
from pathlib import Path

import pytest

CLONE = Path(__file__).parents[2]
LINK = re.compile(r"\]\((?P<target>[^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
DATA = {"py.typed", ".html", ".css", ".js", ".svg", ".json", ".toml", ".j2"}
"""Names and endings of what a package may hold beside modules."""

pytestmark = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("hatchling", "hatch_fancy_pypi_readme"))
    or not (CLONE / "pyproject.toml").exists(),
    reason="needs a clone, hatchling and hatch-fancy-pypi-readme",
)


def build(target: str, folder: Path) -> Path:
    """Build with what is installed, without fetching anything."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)],
        cwd=CLONE,
        check=True,
        capture_output=True,
    )
    (out,) = folder.iterdir()
    return out


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Paths in the source archive, below its only folder."""
    with tarfile.open(build("sdist", tmp_path_factory.mktemp("sdist"))) as archive:
        return {name.partition("/")[2] for name in archive.getnames()}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Files of the wheel."""
    with zipfile.ZipFile(build("wheel", tmp_path_factory.mktemp("wheel"))) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def targets(text: str) -> list[str]:
    """What a page links to, pictures included; not what looks like a link in code."""
    return [match["target"] for match in LINK.finditer(FENCE.sub("", text))]


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_the_source_archive_holds_what_pages_link_to(page: str, sdist: set[str]) -> None:
    found = targets((CLONE / page).read_text(encoding="utf-8"))
    local = {target.partition("#")[0] for target in found if not re.match(r"[a-z]+:|#", target)}
    missing = {path for path in local if path not in sdist and f"{path.rstrip('/')}/" not in sdist}
    assert not missing
    assert page != "README.md" or len(local) > 10  # the pattern still finds links


def test_the_source_archive_can_be_tested_and_built(sdist: set[str]) -> None:
    for path in ("pyproject.toml", "Makefile", "tests/conftest.py", "constraints/oldest.txt"):
        assert path in sdist
    assert not [path for path in sdist if re.search(r"__pycache__|_build/|\.venv|/out/", path)]


def test_the_wheel_holds_the_package_and_nothing_else(wheel: dict[str, bytes]) -> None:
    package = CLONE / "src"
    files = {p.relative_to(package).as_posix() for p in package.rglob("*.py")}
    held = {name for name in wheel if ".dist-info/" not in name}
    assert files <= held
    others = {name for name in held - files if Path(name).name not in DATA}
    assert not {name for name in others if Path(name).suffix not in DATA}
    assert all(name.startswith("proxfield/") for name in held)
    assert "proxfield/py.typed" in held


def test_the_page_on_the_package_index_has_no_relative_links(wheel: dict[str, bytes]) -> None:
    (metadata,) = (data for name, data in wheel.items() if name.endswith(".dist-info/METADATA"))
    message = message_from_string(metadata.decode())
    found = targets(str(message.get_payload()))
    assert message["Description-Content-Type"] == "text/markdown"
    assert len(found) > 10
    assert not [target for target in found if not target.startswith(("https://", "#"))]
    version = message["Version"]
    assert f"https://github.com/proxfield/proxfield/blob/v{version}/CONTRIBUTING.md" in found
