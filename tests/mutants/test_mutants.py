"""The list of mutants: every one still fits the sources, and names tests that exist."""

from __future__ import annotations

import re
from importlib import import_module
from importlib.machinery import SourceFileLoader
from pathlib import Path

import pytest
from mutant import Mutant, MutantError
from run import MUTANTS, PACKAGE, ROOT
from worker import put_in


def test_there_are_enough_with_different_names() -> None:
    names = [mutant.name for mutant in MUTANTS]
    assert len(set(names)) == len(names)
    assert sum(not mutant.needs_torch for mutant in MUTANTS) >= 60


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_mutant_fits_the_sources(mutant: Mutant) -> None:
    text = (PACKAGE / mutant.path).read_text(encoding="utf-8")
    changed = mutant.mutate(text)
    assert changed != text
    compile(changed, mutant.path, "exec")
    assert mutant.nodes
    for node in mutant.nodes:
        path, _, name = node.partition("::")
        function = name.partition("[")[0]
        assert re.search(rf"^def {function}\(", (ROOT / path).read_text(encoding="utf-8"), re.M)


@pytest.mark.parametrize("text", ["", "a + b + a + b"])
def test_texts_that_do_not_occur_once_are_refused(text: str) -> None:
    with pytest.raises(MutantError, match=r"flip: x\.py holds"):
        Mutant("flip", "x.py", "a + b", "a - b", "").mutate(text)


def test_a_fault_is_put_in_where_a_module_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SourceFileLoader, "get_code", SourceFileLoader.get_code)  # put back later
    monkeypatch.syspath_prepend(tmp_path)
    faulty, sound = tmp_path / "one_mutant_module.py", tmp_path / "another_mutant_module.py"
    for path in (faulty, sound):
        path.write_text("VALUE = 1")
    put_in(faulty, "VALUE = 2")
    assert import_module(faulty.stem).VALUE == 2
    assert import_module(sound.stem).VALUE == 1
    assert faulty.read_text() == "VALUE = 1"
