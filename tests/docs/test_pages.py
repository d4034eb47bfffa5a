"""The code of README and of every page runs, from top to bottom."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
from pages import NOT_RUN, PAGES, ROOT, blocks, commands, is_executed, run_page

OPTIONAL = ("torch", "pgmpy", "networkx", "skimage", "jax")
INSTALLED = frozenset(name for name in OPTIONAL if importlib.util.find_spec(name))
ELSEWHERE = ("docs/how-to/learning.md",)  # tests/learn/test_learning_page.py checks its figures too


def with_blocks(*, torch: bool) -> list[str]:
    """Pages whose code is run here: those with blocks that need torch, or the others."""
    found = []
    for page in PAGES:
        name = page.relative_to(ROOT).as_posix()
        run = [block for block in blocks(page) if block.reason is None]
        if run and not is_executed(page) and name not in ELSEWHERE:
            found += [name] if torch == any(block.needs == "torch" for block in run) else []
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", with_blocks(torch=False))
def test_the_pages_code_runs(name: str, folder: Path) -> None:
    run_page(ROOT / name, folder, INSTALLED)


@pytest.mark.slow
@pytest.mark.parametrize("name", with_blocks(torch=True))
def test_the_code_of_pages_with_torch_runs(name: str, folder: Path) -> None:
    """Without torch, blocks that need it are left out; `make test-gpu` runs all of them."""
    run_page(ROOT / name, folder, INSTALLED)


def test_notes_about_blocks_are_known_and_stand_before_one() -> None:
    noted = {str(block.page): 0 for page in PAGES for block in blocks(page)}
    for page in PAGES:
        for block in blocks(page):
            noted[str(page)] += block.reason is not None or block.needs is not None
            assert block.needs is None or block.needs in OPTIONAL, f"{page}:{block.line}"
    for page in PAGES:
        said = re.findall(r"<!-- (?:no-run|needs):", page.read_text(encoding="utf-8"))
        assert len(said) == noted.get(str(page), 0), f"{page}: a note without a block behind it"


def test_every_exception_is_used() -> None:
    lines = [
        line
        for page in PAGES
        for block in blocks(page)
        if block.language == "sh" and block.reason is None
        for line in commands(block.code)
    ]
    for pattern in NOT_RUN:
        assert any(re.search(pattern, line) for line in lines), pattern
