"""MAR, MAP and PR files."""

from __future__ import annotations

import io
import math
import random
import re
from collections.abc import Callable

import numpy as np
import pytest

from proxfield.errors import InputError
from proxfield.io import (
    format_map,
    format_mar,
    format_pr,
    read_evidence,
    read_map,
    read_mar,
    read_pr,
)


def mar(text: str, cards: list[int] | None = None) -> list[list[float]]:
    return [row.tolist() for row in read_mar(io.BytesIO(text.encode()), cards)]


def labels(text: str, cards: list[int] | None = None) -> list[int]:
    return read_map(io.BytesIO(text.encode()), cards).tolist()


def pr(text: str) -> float:
    return read_pr(io.BytesIO(text.encode()))


def test_texts() -> None:
    assert format_mar([np.array([0.25, 0.75]), [1.0]]) == "MAR\n2 2 0.25 0.75 1 1.0\n"
    assert format_mar([]) == "MAR\n0\n"
    assert format_map([0, 2, 1]) == "MAP\n3 0 2 1\n"
    assert format_map([]) == "MAP\n0\n"
    assert format_map(np.zeros(200_000, dtype=np.int8)) == "MAP\n200000" + " 0" * 200_000 + "\n"
    assert format_pr(math.log(100)) == "PR\n2.0\n"
    assert format_pr(-math.inf) == "PR\n-inf\n"


@pytest.mark.parametrize("cards", [[], [1], [2], [3, 1, 2] * 50, [4] * 1000])
def test_mar_round_trip(cards: list[int]) -> None:
    rng = np.random.default_rng(0)
    rows = [rng.dirichlet(np.ones(c)) for c in cards]
    text = format_mar(rows)
    for variant in (text, text.removeprefix("MAR"), text.replace("MAR", "mar\n1")):
        assert mar(variant, cards) == [row.tolist() for row in rows]


@pytest.mark.parametrize("given", [[], [3], [0, 1, 2, 3], [5] * 999])
def test_map_round_trip(given: list[int]) -> None:
    text = format_map(given)
    variants = [text, text.removeprefix("MAP"), text.replace("MAP", "MPE")]
    if given:  # "1 0" alone is one variable with label 0
        variants.append(text.replace("MAP", "MAP\n1"))
    for variant in variants:
        assert labels(variant) == given
    assert read_map(io.BytesIO(text.encode())).dtype == np.int64
    assert labels("1 0") == [0]


@pytest.mark.parametrize("log_z", [0.0, 1.0, -1234.5678, 1e10, -math.inf, math.log(10)])
def test_pr_round_trip(log_z: float) -> None:
    text = format_pr(log_z)
    for variant in (text, text.removeprefix("PR"), text.replace("PR", "PR\n1")):
        assert pr(variant) == pytest.approx(log_z, rel=1e-15)
    assert pr("PR 2") == pytest.approx(math.log(100))
    assert pr("1") == pytest.approx(math.log(10))


@pytest.mark.parametrize(
    ("reader", "text", "line", "words"),
    [
        (mar, "", 1, "MAR file is empty"),
        (mar, "MAR\n", 1, "MAR file is empty"),
        (mar, "PR\n1", 1, "unknown header 'PR', expected MAR"),
        (mar, "MAR\n-1", 2, "number of variables is '-1'"),
        (mar, "MAR\n1e15\n2 .5 .5", 2, "has only 3 numbers left"),
        (mar, "MAR\n2\n2 .5 .5\n2 .5", 4, "has only 1 numbers left"),
        (mar, "MAR\n2\n2 .5 .5\n0 .5", 4, "number of labels is '0'"),
        (mar, "MAR\n2\n2 .5 .5\n1.5 .5", 4, "number of labels is '1.5'"),
        (mar, "MAR\n2\n2 .5 .5\n1 1\n7", 5, "1 more numbers after the last marginal"),
        (mar, "MAR\n2\n2 .5 .5\n1 -1", 4, "probability '-1'"),
        (mar, "MAR\n2\n2 .5 .5\n1 1.5", 4, "probability '1.5'"),
        (mar, "MAR\n2\n2 .5 .5\n1 nan", 4, "probability 'nan'"),
        (mar, "MAR\n1\n2\n2 .5 .5\n3 1 0", 5, "has only 2 numbers left"),
        (mar, "MAR\n2\n2 .5 x", 3, "'x' isn't a number"),
        (labels, " ", 1, "MAP file is empty"),
        (labels, "MAR\n1 0", 1, "unknown header 'MAR', expected MAP or MPE"),
        (labels, "MAP\n3\n0 1", 2, "3 variables are declared, but 2 numbers follow"),
        (labels, "MAP\n2\n0 1 1", 2, "2 variables are declared, but 3 numbers follow"),
        (labels, "MAP\n1\n3\n0 1", 3, "3 variables are declared, but 2 numbers follow"),
        (labels, "MAP\n2\n0\n-1", 4, "a label is '-1'"),
        (labels, "MAP\n2\n0\n.5", 4, "a label is '.5'"),
        (labels, "MAP\n2\n0\ninf", 4, "a label is 'inf'"),
        (pr, "PR", 1, "PR file is empty"),
        (pr, "Z\n1", 1, "unknown header 'Z', expected PR"),
        (pr, "PR\nnan", 2, "log10 Z is 'nan'"),
        (pr, "PR\ninf", 2, "log10 Z is 'inf'"),
        (pr, "PR\n1e999", 2, "log10 Z is '1e999'"),
        (pr, "PR\n2\n3", 3, "1 more numbers after log10 Z"),
        (pr, "PR\n1\n2\n3", 4, "1 more numbers after log10 Z"),
        (pr, "PR\n\x01\x00", 2, "binary data"),
    ],
)
def test_mistakes(reader: Callable[[str], object], text: str, line: int, words: str) -> None:
    with pytest.raises(InputError) as error:
        reader(text)
    message = str(error.value)
    assert message.startswith(f"<file>:{line}: ") and "\n" not in message
    assert words in message and "expected" in message


def test_against_the_model() -> None:
    with pytest.raises(InputError, match="variable 1 has 1 labels, expected 2"):
        mar("MAR 2 2 .5 .5 1 1", [2, 2])
    with pytest.raises(InputError, match="2 marginals, expected 3"):
        mar("MAR 2 2 .5 .5 1 1", [2, 1, 1])
    with pytest.raises(InputError, match=r"a label is '2', expected an integer in 0\.\.1"):
        labels("MAP 2 2 2", [3, 2])
    with pytest.raises(InputError, match="2 labels, expected 3"):
        labels("MAP 2 2 2", [3, 3, 3])


@pytest.mark.parametrize("seed", range(200))
def test_random_words_give_a_result_or_an_input_error(seed: int) -> None:
    rng = random.Random(seed)
    pool = ["0", "1", "2", "3", "0.5", "-1", "1e20", "nan", "-inf", "x", "MAR", "MAP", "PR"]
    pool += ["0", "1", "2"] * 4
    words = [rng.choice(pool) for _ in range(rng.randint(0, 9))]
    data = rng.choice([" ", "\r\n"]).join(words).encode()
    readers: list[Callable[[], object]] = [
        lambda: read_mar(io.BytesIO(data)),
        lambda: read_mar(io.BytesIO(data), [2, 1]),
        lambda: read_map(io.BytesIO(data)),
        lambda: read_map(io.BytesIO(data), [2, 1]),
        lambda: read_pr(io.BytesIO(data)),
        lambda: read_evidence(io.BytesIO(data), [2, 3, 1]),
        lambda: read_evidence(io.BytesIO(data), [2, 3, 1], base=1),
    ]

    def check(reader: Callable[[], object]) -> None:
        try:
            reader()
        except InputError as error:
            assert re.match(r"<file>:\d+: [^\n]*expected[^\n]*$", str(error))

    for reader in readers:
        check(reader)


def test_unusable_results_are_not_formatted() -> None:
    for bad in ([[]], [[[0.5]]], [[math.nan]], [[-0.5, 1.5]], [[math.inf]]):
        with pytest.raises(InputError, match="expected"):
            format_mar(bad)
    for labels_ in ([-1], [0.5], [[1]]):
        with pytest.raises(InputError, match="expected"):
            format_map(labels_)
    for value in (math.nan, math.inf):
        with pytest.raises(InputError, match="expected"):
            format_pr(value)
