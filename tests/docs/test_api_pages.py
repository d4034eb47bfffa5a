"""The reference names every public name, command, environment variable, error and status."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
from pages import ROOT

import proxfield
from proxfield import errors

REFERENCE = ROOT / "docs" / "reference"
API = REFERENCE / "api"
PACKAGES = ("", "core.jobs", "distributed", "io", "learn", "testing", "torch")
"""Packages whose ``__all__`` is public."""
HAVE_NO_ALL = {
    "proxfield.compat": ("install", "uninstall", "installed"),
    "proxfield.core.filters": ("FILTERS", "choose", "make_filter"),
    "proxfield.generate": ("grid", "grid_edges", "rbm", "segmentation"),
}


def documented() -> frozenset[str]:
    """The full names in the lists of the pages (`autosummary`) and what they describe by hand."""
    found = set()
    for page in sorted(API.glob("*.md")):
        module, inside = "proxfield", False
        for line in page.read_text(encoding="utf-8").splitlines():
            directive = re.match(r"\.\. (currentmodule|py:data|autosummary):: ?(.*)", line)
            if directive:
                kind, value = directive.groups()
                inside = kind == "autosummary"
                module = value if kind == "currentmodule" else module
                if kind == "py:data":
                    found.add(value if value.startswith("proxfield.") else f"{module}.{value}")
            elif line[:1].strip():
                inside = False
            elif inside and re.match(r" +[\w.]+$", line):
                found.add(f"{module}.{line.strip()}")
    return frozenset(found)


NAMES = documented()


def resolve(name: str) -> object:
    """The object of a full name; modules are imported, attributes looked up."""
    parts = name.split(".")
    for count in range(len(parts) - 1, 0, -1):
        try:
            found: object = import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for part in parts[count:]:
            found = getattr(found, part)
        return found
    raise AssertionError(name)


def needs_torch(name: str) -> bool:
    return name.startswith("proxfield.torch.")


def is_documented(module: ModuleType, name: str) -> bool:
    """Whether a page lists the name, or the same object by its name in the main package."""
    full = f"{module.__name__}.{name}"
    if full in NAMES or needs_torch(full):
        return full in NAMES
    value = getattr(module, name)
    return any(
        listed in NAMES and getattr(proxfield, listed.rpartition(".")[2], None) is value
        for listed in (f"proxfield.{other}" for other in proxfield.__all__)
    )


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_has_its_place_in_the_reference(package: str) -> None:
    module = import_module(f"proxfield.{package}".rstrip("."))
    missing = [name for name in module.__all__ if not is_documented(module, name)]
    assert not missing, f"add to a page of docs/reference/api: {', '.join(missing)}"


@pytest.mark.parametrize("package", HAVE_NO_ALL)
def test_other_public_functions_have_their_place_too(package: str) -> None:
    module = import_module(package)
    assert all(is_documented(module, name) for name in HAVE_NO_ALL[package])


def test_every_package_with_a_list_of_names_is_looked_at() -> None:
    source = Path(proxfield.__file__).parent
    lists = {
        ".".join(path.parent.relative_to(source).parts)
        for path in [*source.glob("*/__init__.py"), *source.glob("core/*/__init__.py")]
        if re.search(r"^__all__ =", path.read_text(encoding="utf-8"), re.M)
    }
    assert lists | {""} == set(PACKAGES)


@pytest.mark.parametrize("registry", ["RULES", "TERMS"])
def test_every_rule_and_term_is_documented(registry: str) -> None:
    listed = {resolve(name) for name in NAMES if resolvable_class(name)}
    assert set(getattr(proxfield, registry).values()) <= listed


def resolvable_class(name: str) -> bool:
    return not needs_torch(name) and isinstance(resolve(name), type)


def test_the_reference_names_only_what_there_is() -> None:
    for name in NAMES:
        if not needs_torch(name):
            resolve(name)


def test_every_page_is_in_the_index() -> None:
    index = (API / "index.md").read_text(encoding="utf-8")
    pages = {path.stem for path in API.glob("*.md")} - {"index"}
    assert set(re.findall(r"^([a-z-]+)$", index.split("{toctree}")[1], re.M)) == pages


def test_every_environment_variable_is_documented() -> None:
    source = Path(proxfield.__file__).parent
    read = set()
    for path in source.rglob("*.py"):
        read |= set(re.findall(r"\bPROXFIELD_[A-Z_]+", path.read_text(encoding="utf-8")))
    page = (REFERENCE / "environment.md").read_text(encoding="utf-8")
    assert read and read <= set(re.findall(r"\bPROXFIELD_[A-Z_]+", page))


def test_every_exception_is_on_the_page_of_errors() -> None:
    page = (REFERENCE / "errors.md").read_text(encoding="utf-8")
    public = [
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, Exception)
    ]
    assert public and all(re.search(rf"\b{name}`", page) for name in public)
