"""Pages, docstrings and messages name ways to install that work."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from proxfield.core.common.extras import install_hint

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CLONE = Path(__file__).parents[2]
HINT = re.compile(r"pip install (?P<what>[\"']?[\w.]*\[[\w, ]+\][\"']?)")
"""An installation with extras, of proxfield or of a clone."""

pytestmark = pytest.mark.skipif(not (CLONE / "docs").exists(), reason="needs a clone")


def texts() -> dict[str, str]:
    """Pages and modules by their names."""
    found = [*CLONE.glob("*.md"), *(CLONE / "docs").rglob("*.md"), *(CLONE / "src").rglob("*.py")]
    found += [*(CLONE / "examples").glob("*.py"), *(CLONE / "benchmarks").glob("*.py")]
    return {
        path.relative_to(CLONE).as_posix(): path.read_text(encoding="utf-8")
        for path in found
        if "_build" not in path.parts
    }


def extras() -> set[str]:
    project = tomllib.loads((CLONE / "pyproject.toml").read_text(encoding="utf-8"))
    return set(project["project"]["optional-dependencies"])


def test_hints_have_one_form_and_name_extras_that_exist() -> None:
    hints = [
        (name, match["what"]) for name, text in texts().items() for match in HINT.finditer(text)
    ]
    assert len(hints) > 15  # the pattern still finds them
    known = extras()
    for name, what in hints:
        asked = what.partition("[")[2].partition("]")[0].split(",")
        assert set(asked) <= known, (name, what)
        forms = (install_hint(*asked).removeprefix("pip install "), f'".[{",".join(asked)}]"')
        assert what in forms, (name, what)


def test_one_page_says_where_the_package_comes_from() -> None:
    """README's section Install, which the site includes; figures name the command that was run."""
    said = re.compile(r"pip install (-e |--editable )?\"?\.(\[|\"|\s)|from a clone", re.IGNORECASE)
    elsewhere = {"CONTRIBUTING.md", "docs/benchmarks/measurements.md"}
    saying = {name for name, text in texts().items() if said.search(text)}
    assert {name for name in saying - elsewhere if name.endswith(".md")} == {"README.md"}


def test_modules_leave_the_wording_to_one_place() -> None:
    """Docstrings may show a command; messages are made by `install_hint`."""
    said = re.compile(r"[\"'][^\"'\n]*pip install \\?[\"']?proxfield\[")
    allowed = {"src/proxfield/core/common/extras.py"}
    for name, text in texts().items():
        if name.startswith("src/") and name not in allowed:
            code = re.sub(r'""".*?"""', "", text, flags=re.DOTALL)
            assert not said.search(code), name


def test_nothing_is_installed_from_an_index_that_has_no_proxfield() -> None:
    """``pip install proxfield`` fails, or finds somebody else's package, until it is published."""
    plain = re.compile(r"pip install \"?proxfield\"?(?![\[=\w-])")
    for name, text in texts().items():
        assert not plain.search(text), name


def test_readme_lists_every_extra_for_users() -> None:
    readme = (CLONE / "README.md").read_text(encoding="utf-8")
    table = readme.partition("| extra | adds |")[2].partition("\n\n")[0]
    assert extras() - set(re.findall(r"`(\w+)`", table)) <= {"dev", "docs", "peers"}
