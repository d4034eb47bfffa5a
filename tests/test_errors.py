"""Messages stay on one line of less than 200 characters, whatever they echo."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import proxfield as pf
from proxfield.errors import LONGEST_LINE, InputError, MemoryLimitError, one_line, shown

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
