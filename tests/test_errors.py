"""Messages stay on one line of less than 200 characters, whatever they echo."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import proxfield as pf
from proxfield.errors import (
    LEAST_HEAD,
    LONGEST_LINE,
    InputError,
    MemoryLimitError,
    _expectation,
    one_line,
    shown,
)

LONG = "x" * 5000
SPACED = "word " * 2000
LINES = "one\ntwo\r\n\tthree" * 300


class Rude:
    """Its repr fails."""

    def __repr__(self) -> str:
        raise RuntimeError("no")


class Wordy:
    """Its repr is long and has many lines."""

    def __repr__(self) -> str:
        return "line\n" * 10_000


HOSTILE: list[Any] = [
    LONG,
    SPACED,
    LINES,
    "'" * 3000,
    list(range(100_000)),
    dict.fromkeys(range(100), LONG),
    np.arange(10_000.0).reshape(100, 100),
    10**3000,
    -1e300,
    Wordy(),
    b"\xff" * 9000,
    (LONG,) * 50,
]


@pytest.mark.parametrize("value", HOSTILE, ids=lambda v: type(v).__name__)
def test_shown_values_are_short(value: Any) -> None:
    text = shown(value)
    assert 0 < len(text) <= 60
    assert "\n" not in text


def test_short_values_are_shown_as_they_are() -> None:
    assert [shown(v) for v in (1, -2.5, "a b", None, [1, 2])] == [
        "1",
        "-2.5",
        "'a b'",
        "None",
        "[1, 2]",
    ]
    assert "Rude" in shown(Rude())


@pytest.mark.parametrize("text", [LONG, SPACED, LINES, "", "a " * 99 + "b" * 9000, "(" * 5000])
@pytest.mark.parametrize("longest", [20, 80, LONGEST_LINE])
def test_one_line_is_one_short_line(text: str, longest: int) -> None:
    line = one_line(text, longest)
    assert len(line) <= longest
    assert "\n" not in line


def test_short_messages_are_not_touched() -> None:
    message = "table has 3 entries, expected 4"
    assert str(InputError(message, path="m.uai", line=7)) == f"m.uai:7: {message}"


def test_the_ends_of_a_message_survive() -> None:
    error = InputError(f"unknown rule {LONG!r}, expected one of: sweep, auto", path="m.uai")
    assert str(error).startswith("m.uai: unknown rule 'xxx")
    assert str(error).endswith("xxx', expected one of: sweep, auto")
    assert len(str(error)) < 200


def test_the_name_of_a_deep_file_survives() -> None:
    message = "a table " + "that has a long story, " * 6
    error = InputError(message, path="/a" * 400 + "/segmentation_of_a_street.uai", line=12)
    assert "/segmentation_of_a_street.uai:12: a table that" in str(error)
    assert len(str(error)) < 200


def test_every_kind_of_error_is_cut() -> None:
    for kind in (InputError, MemoryLimitError, pf.ProxfieldError):
        assert len(str(kind(LONG))) < 200
    assert str(pf.ProxfieldError()) == ""


FIELD = pf.Field(2, n_labels=2)
CALLS: dict[str, Callable[[Any], Any]] = {
    "rule": lambda v: pf.infer(FIELD, v if isinstance(v, str) else repr(v)),
    "seed": lambda v: pf.infer(FIELD, seed=v if not isinstance(v, int) else -v),
    "init": lambda v: pf.infer(FIELD, init=repr(v)),
    "kernels": lambda v: pf.infer(FIELD, kernels=repr(v)),
    "keep": lambda v: pf.infer(FIELD, keep=repr(v)),
    "evidence": lambda v: FIELD.condition({0: v}),
    "parameter": lambda v: pf.infer(FIELD, "adhoc", eta=v),
    "name of a parameter": lambda v: pf.infer(FIELD, "adhoc", **{repr(v): 1}),
    "filter": lambda v: pf.Gaussian([[0.0]], filter=repr(v)),
    "model": lambda v: pf.read_uai(f"/nowhere/{LONG[:200]}/{v!r:.50}".replace("\0", "")),
}


@pytest.mark.parametrize("value", HOSTILE, ids=lambda v: type(v).__name__)
@pytest.mark.parametrize("call", CALLS)
def test_library_errors_are_one_short_line(call: str, value: Any) -> None:
    with pytest.raises(pf.ProxfieldError) as caught:
        CALLS[call](value)
    message = str(caught.value)
    assert 0 < len(message) < 200
    assert "\n" not in message


# ---- what was expected stays whole ----


def test_what_was_expected_is_never_cut() -> None:
    with pytest.raises(InputError) as caught:
        pf.DenseCRF(np.zeros((375, 500, 3)), np.zeros((21, 100, 200, 300, 4)))
    assert "expected (*pixels, labels) or (labels, *pixels), the image's pixels" in str(
        caught.value
    )
    assert "…" not in str(caught.value)


def test_long_values_are_cut_before_an_expectation() -> None:
    expected = "expected " + "a number of some kind, " * 4 + "or none (try --help)"
    message = str(
        InputError(f"value of {SPACED} for {LONG}, {expected}", path="/a" * 90 + "/b.npy")
    )
    assert message.endswith(f", {expected}")
    assert len(message) <= LONGEST_LINE and "…" in message


def raised_texts() -> list[tuple[str, str]]:
    """Where an error is raised, and the part of its message that is the same in all cases."""
    found = []
    for path in sorted(Path(pf.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
                text = "".join(
                    part.value
                    for part in ast.walk(node.exc.args[0])
                    if isinstance(part, ast.Constant) and isinstance(part.value, str)
                )
                found.append((f"{path.name}:{node.lineno}", text))
    return found


def test_every_expectation_fits_beside_what_it_is_about() -> None:
    """Room for a file's name and some values is left in every line."""
    texts = raised_texts()
    assert len(texts) > 500
    long = [
        (where, text)
        for where, text in texts
        if len(text) - _expectation(text) > LONGEST_LINE - LEAST_HEAD or len(text) > 170
    ]
    assert long == []
