"""Whatever is typed, what comes back is one line of less than 200 characters."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

LONG = "x" * 3000
WORDS = "many words " * 300

ARGUMENTS: dict[str, tuple[str, ...]] = {
    "command": (LONG,),
    "option": ("solve", "{model}", f"--{LONG}"),
    "rule": ("solve", "{model}", "--rule", LONG),
    "words": ("solve", "{model}", "--rule", WORDS),
    "setting": ("solve", "{model}", "--set", LONG),
    "parameter": ("solve", "{model}", "--rule", "adhoc", "--set", f"{LONG}=1"),
    "value": ("solve", "{model}", "--rule", "adhoc", "--set", f"eta={LONG}"),
    "number": ("solve", "{model}", "--budget", LONG),
    "count": ("solve", "{model}", "--threads", "9" * 3000 + "x"),
    "model": ("solve", "folder/" * 100 + "model.uai"),
    "name": ("solve", f"{LONG}.uai"),
    "evidence": ("solve", "{model}", "--evidence", LONG),
    "output": ("solve", "{model}", "--task", "MAR", "-o", f"{LONG}/out"),
    "device": ("solve", "{model}", "--device", LONG),
    "rules": ("compare", "{model}", "--rules", f"sweep,{LONG}"),
    "plot": ("compare", "{model}", "--plot", LONG),
    "made": ("make", LONG),
    "suite": ("bench", "paper", "--suite", LONG),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_errors_are_one_short_line(invoke: Callable[..., Any], models: Path, name: str) -> None:
    args = [arg.format(model=models / "grid.uai") for arg in ARGUMENTS[name]]
    result = invoke(*args)
    assert result.exit_code == 2, result.stderr
    assert result.stderr.startswith("proxfield: error: ")
    assert result.stderr.count("\n") == 1
    assert len(result.stderr) <= 200  # with the newline


def test_hostile_words_in_a_model(invoke: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "m.uai").write_text(f"MARKOV\n1\n{LONG}\n")
    result = invoke("solve", "m.uai")
    assert result.exit_code == 2
    assert result.stderr.startswith("proxfield: error: m.uai:3: ")
    assert len(result.stderr) <= 200


def test_bugs_and_warnings_are_one_short_line(
    invoke: Callable[..., Any], replace_infer: Callable[..., None], models: Path
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn(WORDS, stacklevel=2)
        raise RuntimeError(LONG)

    replace_infer(fail)
    result = invoke("solve", models / "grid.uai")
    assert result.exit_code == 1
    warning, bug = result.stderr.splitlines()
    assert warning.startswith("proxfield: warning: many words") and len(warning) < 200
    assert bug.startswith("proxfield: error: RuntimeError: xxx") and len(bug) < 200
    assert bug.endswith("PROXFIELD_DEBUG=1 and report what it shows")
