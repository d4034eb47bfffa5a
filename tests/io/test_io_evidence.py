"""Evidence files."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest

from proxfield.errors import InputError
from proxfield.io import parse_evidence, read_evidence, write_evidence

CARDS = np.array([2, 3, 2, 4])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        (" \r\n\n", {}),
        ("0", {}),
        ("0\n", {}),
        ("1 0", {}),
        ("1\n0\n", {}),
        ("1 3 2", {3: 2}),
        ("1 1 3 2", {3: 2}),
        ("2 3 2 0 1", {3: 2, 0: 1}),
        ("1\n2 3 2\n0 1", {3: 2, 0: 1}),
        ("2 1 0 1 0", {1: 0}),
        ("3 0 1 1 2 0 1", {0: 1, 1: 2}),
    ],
)
def test_formats(text: str, expected: dict[int, int]) -> None:
    found = parse_evidence(text.encode(), "e", CARDS)
    assert found == expected
    assert all(type(v) is int and type(x) is int for v, x in found.items())


def test_counting_from_one() -> None:
    assert parse_evidence(b"2 1 1 4 3", "e", CARDS, base=1) == {0: 1, 3: 3}
    with pytest.raises(InputError, match=r"\(counted from 1\) is '0', expected an integer in 1..4"):
        parse_evidence(b"1 0 1", "e", CARDS, base=1)
    with pytest.raises(InputError, match="label of variable 2 is '3'"):
        parse_evidence(b"1 2 3", "e", CARDS, base=1)
    with pytest.raises(InputError, match="expected 0 or 1"):
        parse_evidence(b"0", "e", CARDS, base=2)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("\n-1", 2, "number of observations is '-1'"),
        ("1.5 0 0", 1, "number of observations is '1.5'"),
        ("nan", 1, "number of observations is 'nan'"),
        ("2\n0 1", 1, "2 observations are declared, but 2 numbers follow, expected 4"),
        ("1e300 0 1", 1, "2 numbers follow"),
        ("1\n2\n0 1", 2, "2 observations are declared, but 2 numbers follow, expected 4"),
        ("1\n-2\n0 1", 2, "number of observations is '-2'"),
        ("0 1", 1, "0 observations are declared, but 1 numbers follow"),
        ("1", 1, "0 numbers follow"),
        ("2\n1 0 1\n1 0 1", 1, "has 2 samples of evidence, expected only one"),
        ("3\n1 0 1\n0\n1 0 1", 1, "has 3 samples of evidence"),
        ("1\n4 0", 2, "an observed variable is '4', expected an integer in 0..3"),
        ("1\n-1 0", 2, "an observed variable is '-1'"),
        ("1\n0.5 0", 2, "an observed variable is '0.5'"),
        ("2\n0 1\n1 3", 3, "label of variable 1 is '3', expected an integer in 0..2"),
        ("2\n0 1\n1 -1", 3, "label of variable 1 is '-1'"),
        ("2\n0 1\n1 nan", 3, "label of variable 1 is 'nan'"),
        ("2\n0 1\n0\n0", 3, "label 1 and again with label 0"),
        ("1\n0 x", 2, "'x' isn't a number"),
        ("1\n0 \x00", 2, "binary data"),
    ],
)
def test_mistakes(text: str, line: int, words: str) -> None:
    with pytest.raises(InputError) as error:
        parse_evidence(text.encode(), "e.evid", CARDS)
    message = str(error.value)
    assert message.startswith(f"e.evid:{line}: ") and "\n" not in message
    assert words in message and "expected" in message


def test_model_without_variables() -> None:
    assert parse_evidence(b"0", "e", []) == {}
    with pytest.raises(InputError, match="the model has none"):
        parse_evidence(b"1 0 0", "e", [])


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_round_trip(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"e.evid{suffix}"
    for evidence in ({}, {3: 2, 0: 1}, {np.int64(1): np.int32(2)}):
        write_evidence(evidence, path)
        assert read_evidence(path, CARDS) == evidence
    write_evidence(np.array([-1, 2, -1, 0]), path)
    assert read_evidence(path, CARDS) == {1: 2, 3: 0}
    assert read_evidence(io.BytesIO(b"1 1 2"), CARDS) == {1: 2}


def test_text_is_sorted(tmp_path: Path) -> None:
    write_evidence({3: 2, 0: 1}, tmp_path / "e")
    assert (tmp_path / "e").read_text() == "2 0 1 3 2\n"


@pytest.mark.parametrize("evidence", [{-1: 0}, {0: -1}, {0: 0.5}, [0.5], [[0]]])
def test_unusable_evidence_is_not_written(tmp_path: Path, evidence: object) -> None:
    with pytest.raises(InputError, match="expected"):
        write_evidence(evidence, tmp_path / "e")  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())
