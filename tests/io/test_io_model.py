"""Parsing model files: what is accepted, and one message for each kind of mistake."""

from __future__ import annotations

import lzma
import random
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxfield.core.terms.base import Ints
from proxfield.errors import InputError
from proxfield.io import read_bytes, read_evidence, read_mar, read_pr
from proxfield.io import tokens as tokens_module
from proxfield.io.tokens import Tokens
from proxfield.io.uai import UaiModel, parse_model
from standins import DATA, EXACT, write_exact

GOOD = """MARKOV
3
2 3 1
4
2 0 1
1 2
0
2 1 0
6
1 2 3
4 5 6.5
1 0.5
1 7
6 .1 2. 3e0 +4 5E-1 0
"""


def arrays(model: UaiModel) -> list[list[float]]:
    names = ("cardinalities", "scope_ptr", "scope_vars", "table_ptr", "values")
    return [getattr(model, name).tolist() for name in names]


def check(model: UaiModel) -> None:
    assert model.kind == "MARKOV"
    assert arrays(model) == [
        [2, 3, 1],
        [0, 2, 3, 3, 5],
        [0, 1, 2, 1, 0],
        [0, 6, 7, 8, 14],
        [1, 2, 3, 4, 5, 6.5, 0.5, 7, 0.1, 2, 3, 4, 0.5, 0],
    ]
    for name in ("cardinalities", "scope_ptr", "scope_vars", "table_ptr"):
        assert getattr(model, name).dtype == np.int64


def test_good_file() -> None:
    check(parse_model(GOOD.encode()))
    assert parse_model(GOOD.encode()).num_factors == 4


@pytest.mark.parametrize("space", [" ", "\t", "\r\n", "\r", "\v", "\f", " \n \n"])
def test_any_whitespace_will_do(space: str) -> None:
    words = GOOD.split()
    check(parse_model(space.join(words).encode()))
    check(parse_model((space + space.join(words) + space).encode()))


def test_header_variants() -> None:
    check(parse_model(GOOD.replace("MARKOV", "markov").encode()))
    check(parse_model(b"\xef\xbb\xbf" + GOOD.encode()))
    assert parse_model(GOOD.replace("MARKOV", "Bayes").encode()).kind == "BAYES"


def test_no_variables() -> None:
    assert arrays(parse_model(b"MARKOV 0 0")) == [[], [0], [], [0], []]
    assert arrays(parse_model(b"MARKOV\n0\n\n2\n0\n0\n1 2\n1 3\n")) == [
        [], [0, 0, 0], [], [0, 1, 2], [2, 3],
    ]  # fmt: skip


def test_minus_zero_and_tiny_entries_become_zero() -> None:
    values = parse_model(b"MARKOV 1 3 1 1 0 3 -0 -0.0 1e-999").values
    assert values.tolist() == [0, 0, 0] and not np.signbit(values).any()


LONG = "MARKOV\n40\n" + "2 " * 40 + "\n1\n40 " + " ".join(map(str, range(40)))
SIX = "MARKOV\n6\n2 2 2 2 2 2\n2\n"
# (what, text, line, words of the message)
BAD = [
    ("empty", "", 1, "empty, expected MARKOV or BAYES"),
    ("blank", " \n \n", 1, "empty"),
    ("header", "\nLIMID\n0 0", 2, "unknown header 'LIMID', expected MARKOV or BAYES"),
    ("xml", "<?xml version='1.0'?>", 1, "unknown header '<?xml', expected MARKOV or BAYES"),
    ("no header", "3\n2 2 2", 1, "unknown header '3'"),
    ("only header", "MARKOV\n", 1, "ends before the number of variables"),
    ("NUL", "MARKOV\n1\n\x00", 3, "binary data (byte 0x00), expected plain ASCII"),
    ("n = -1", "MARKOV\n-1\n", 2, "number of variables is '-1', expected an integer >= 0"),
    ("n = 1.5", "MARKOV\n1.5\n2 1", 2, "number of variables is '1.5'"),
    ("n = nan", "MARKOV\nnan\n2 1", 2, "number of variables is 'nan'"),
    ("n = 1e15", "MARKOV\n1000000000000000\n2 2\n", 2, "has only 2 numbers left"),
    ("n = 1e300", "MARKOV\n1e300\n2 2\n", 2, "1e300 variables are declared"),
    ("no factors", "MARKOV\n2\n2 2\n", 3, "ends before the number of factors"),
    ("card 0", "MARKOV\n2\n2\n0\n0", 4, "a cardinality is '0', expected an integer in 1.."),
    ("card -2", "MARKOV\n2\n2 -2\n0", 3, "a cardinality is '-2'"),
    ("card 2.5", "MARKOV\n2\n2 2.5\n0", 3, "a cardinality is '2.5'"),
    ("card 1e12", "MARKOV\n1\n1e12\n0", 3, "a cardinality is '1e12'"),
    ("m = -1", "MARKOV\n1\n2\n-1\n", 4, "number of factors is '-1'"),
    ("m = 1e15", "MARKOV\n1\n2\n1000000000000000\n1 0", 4, "has only 2 numbers left"),
    ("arity -1", "MARKOV\n1\n2\n1\n-1 0\n2 1 1", 5, "size of a scope is '-1'"),
    ("arity > n", "MARKOV\n1\n2\n1\n2 0 0\n4 1 1 1 1", 5, "size of a scope is '2', expected"),
    ("arity 1.5", "MARKOV\n2\n2 2\n1\n1.5 0\n2 1 1", 5, "size of a scope is '1.5'"),
    ("variable 3", GOOD.replace("1 2\n0", "1 3\n0"), 6, "a variable in a scope is '3', expected"),
    ("variable -1", GOOD.replace("2 0 1", "2 0 -1"), 5, "a variable in a scope is '-1'"),
    ("variable 0.5", GOOD.replace("2 0 1", "2 .5 1"), 5, "a variable in a scope is '.5'"),
    ("twice", GOOD.replace("2 1 0", "2 1 1"), 8, "variable 1 occurs twice"),
    ("size", GOOD.replace("1 0.5\n", "2 0.5 1\n"), 12, "factor 1 declares 2 entries"),
    ("first size", GOOD.replace("\n6\n", "\n5\n"), 9, "expected 6 entries, the product"),
    ("size 0.5", GOOD.replace("\n6\n", "\n0.5\n"), 9, "table size of factor 0 is '0.5'"),
    ("size -6", GOOD.replace("\n6\n", "\n-6\n"), 9, "table size of factor 0 is '-6'"),
    ("size inf", GOOD.replace("\n6\n", "\ninf\n"), 9, "table size of factor 0 is 'inf'"),
    ("size 1e12", GOOD.replace("6 .1", "1000000000000 .1"), 14, "declares 1000000000000 entries"),
    ("2^40", LONG + "\n1099511627776\n1 2", 6, "has only 2 numbers left"),
    ("2^40 as 8", LONG + "\n8\n1 2 3 4 5 6 7 8", 6, "expected 1099511627776 entries"),
    ("missing entry", GOOD.replace(" 5E-1 0", " 5E-1"), 14, "has only 5 numbers left"),
    ("missing table", GOOD[: GOOD.index("6 .1")], 13, "ends before the table of factor 3"),
    ("missing scope", SIX + "6 0 1 2 3 4 5", 5, "ends before the size of a scope"),
    ("scope past end", SIX + "2 0 1\n6 0 1 2", 6, "has only 3 numbers left"),
    ("trailing", GOOD + "\n7 8", 16, "2 more numbers after the last table"),
    ("trailing word", GOOD + "\nend", 16, "'end' isn't a number"),
    ("negative", GOOD.replace("4 5 6.5", "4 5 -6.5"), 11, "table entry '-6.5', expected a finite"),
    ("nan", GOOD.replace("4 5 6.5", "4 nan 6.5"), 11, "table entry 'nan'"),
    ("inf", GOOD.replace("4 5 6.5", "4 5 inf"), 11, "table entry 'inf'"),
    ("-inf", GOOD.replace("4 5 6.5", "4 5 -Infinity"), 11, "table entry '-Infinity'"),
    ("nan(1)", GOOD.replace("4 5 6.5", "4 5 nan(1)"), 11, "'nan(1)'"),
    ("1e999", GOOD.replace("4 5 6.5", "4 5 1e999"), 11, "table entry '1e999'"),
]
NOT_NUMBERS = [
    "x", "1-2", "1.2.3", "1,5", "0x10", "1e", "e5", "--1", "+", "-", ".", "1_000", "1d5", "5%",
    "1+", "infin", "#", ".e1", "1e+", "1.5.", "..5", "1e5.5", "12345678901234567890x",
]  # fmt: skip
BAD += [
    (word, GOOD.replace("4 5 6.5", f"4 5 {word}"), 11, f"{word!r} isn't a number")
    for word in NOT_NUMBERS
]


@pytest.mark.parametrize(("text", "line", "words"), [b[1:] for b in BAD], ids=[b[0] for b in BAD])
@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
def test_mistakes(text: str, line: int, words: str, ending: str) -> None:
    with pytest.raises(InputError) as error:
        parse_model(text.replace("\n", ending).encode(), "m.uai")
    message = str(error.value)
    assert "\n" not in message
    assert message.startswith(f"m.uai:{line}: ")
    assert words in message
    assert "expected" in message


def test_undecodable_bytes() -> None:
    with pytest.raises(InputError, match=r"m:2: binary data \(byte 0xe9\)"):
        parse_model(b"MARKOV\n\xe9", "m")


def test_product_with_thousands_of_digits() -> None:
    n = 20000
    scope = " ".join(map(str, range(n)))
    text = f"MARKOV {n} {'2 ' * n} 1 {n} {scope} 8 1 1 1 1 1 1 1 1"
    with pytest.raises(InputError, match=r"expected about 10\^6020 entries"):
        parse_model(text.encode())


def test_long_tokens_are_cut_in_messages() -> None:
    with pytest.raises(InputError) as error:
        parse_model(b"MARKOV 1 " + b"z" * 100_000)
    assert len(str(error.value)) < 200


def test_error_beyond_the_first_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    m = 5000
    lines = ["MARKOV", "1", "2", str(m), *["1 0"] * m, *["2 0.25 1e-3"] * m]
    lines[4 + m + 4000] = "2 0.25 oops"
    for chunk in (1 << 10, 1 << 19):
        monkeypatch.setattr(tokens_module, "_CHUNK", chunk)
        with pytest.raises(InputError, match=f":{4 + m + 4001}: 'oops' isn't a number"):
            parse_model("\n".join(lines).encode())


def words_of(rng: random.Random) -> str:
    digits = "".join(rng.choice("0123456789") for _ in range(rng.randint(1, 18)))
    style = rng.randrange(8)
    if style == 0:
        return str(rng.randrange(3))
    if style == 1:
        return digits
    if style == 2:
        at = rng.randint(0, len(digits))
        return digits[:at] + "." + digits[at:]
    if style == 3:
        return repr(rng.random())
    if style == 4:
        return f"{rng.random():.6f}"
    if style == 5:
        return f"{rng.lognormvariate(0, 50):g}"
    if style == 6:
        return rng.choice("+-") + digits
    return f"{digits}e{rng.randint(-330, 280)}"


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("chunk", [7, 300, 1 << 19])
def test_numbers_are_rounded_like_float(
    seed: int, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens_module, "_CHUNK", chunk)
    rng = random.Random(seed)
    words = [words_of(rng) for _ in range(3000)]
    # Sorted by length, chunks of short words take the fast path and those of long ones don't.
    for order in (words, sorted(words, key=len)):
        found = Tokens(" ".join(order).encode(), "x").numbers
        expected = np.array([float(w) for w in order])
        assert np.array_equal(found, expected)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text("0123456789.eE+-naif_x", min_size=1, max_size=12), max_size=8))
def test_same_numbers_as_float_or_an_error(words: list[str]) -> None:
    number = r"[+-]?((\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|inf|nan)"
    legal = [bool(re.fullmatch(number, w, re.IGNORECASE)) for w in words]
    data = "\n".join(words).encode()
    if all(legal):
        expected = np.array([float(w) for w in words])
        assert np.array_equal(Tokens(data, "x").numbers, expected, equal_nan=True)
    else:
        with pytest.raises(InputError, match=f"^x:{legal.index(False) + 1}: ") as error:
            Tokens(data, "x")
        assert "isn't a number" in str(error.value)


@pytest.mark.parametrize("seed", range(6))
def test_scopes_of_all_run_lengths(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = 7
    cards = rng.integers(1, 4, n)
    scopes: list[list[int]] = []
    while len(scopes) < 4000:  # runs of equal arity, from very short to very long
        arity = int(rng.integers(0, 4))
        run = range(int(rng.choice([1, 2, 30, 700])))
        scopes += [rng.choice(n, arity, replace=False).tolist() for _ in run]
    tables = [rng.integers(0, 9, int(np.prod(cards[s]))).tolist() for s in scopes]
    rows = [[len(s), *s] for s in scopes] + [[len(t), *t] for t in tables]
    text = f"MARKOV {n} {' '.join(map(str, cards))} {len(scopes)}\n"
    text += "\n".join(" ".join(map(str, row)) for row in rows)
    model = parse_model(text.encode())
    assert np.diff(model.scope_ptr).tolist() == [len(s) for s in scopes]
    assert model.scope_vars.tolist() == [v for s in scopes for v in s]
    assert np.diff(model.table_ptr).tolist() == [len(t) for t in tables]
    assert model.values.tolist() == [v for t in tables for v in t]


def small_file(rng: random.Random) -> list[str]:
    n = rng.randint(0, 4)
    cards = [rng.randint(1, 3) for _ in range(n)]
    scopes = [rng.sample(range(n), rng.randint(0, min(n, 3))) for _ in range(rng.randint(0, 5))]
    out = ["MARKOV", str(n), *map(str, cards), str(len(scopes))]
    for scope in scopes:
        out += [str(len(scope)), *map(str, scope)]
    for scope in scopes:
        size = int(np.prod([cards[v] for v in scope]))
        out += [str(size), *(words_of(rng).lstrip("-") for _ in range(size))]
    return out


STRANGE = [
    "nan", "-1", "0", "1", "2", "1e400", "-0", "inf", "99999999999999999999", "1e15", "0.5", "x",
    "MARKOV", "9007199254740993", "1e308", "-inf", "\x00", "\x1c", "é", "1 2", "0\r\n",
]  # fmt: skip


@pytest.mark.parametrize("seed", range(400))
def test_mutated_files_give_a_model_or_an_input_error(seed: int) -> None:
    rng = random.Random(seed)
    words = small_file(rng)
    assert parse_model(" ".join(words).encode()).values.min(initial=0) >= 0
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(words))
        action = rng.randrange(4)
        if action == 0 and len(words) > 1:
            del words[at]
        elif action == 1:
            words.insert(at, rng.choice(words))
        elif action == 2:
            words[at] = rng.choice(STRANGE)
        else:
            other = rng.randrange(len(words))
            words[at], words[other] = words[other], words[at]
    data = bytearray(rng.choice([" ", "\n", "\r\n"]).join(words).encode())
    if data and rng.random() < 0.3:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    if rng.random() < 0.3:
        del data[rng.randint(0, len(data)) :]
    try:
        model = parse_model(bytes(data), "m")
    except InputError as error:
        assert re.match(r"m:\d+: [^\n]*expected[^\n]*$", str(error))
    else:
        sizes = [
            int(np.prod(model.cardinalities[model.scope_vars[a:b]]))
            for a, b in zip(model.scope_ptr[:-1], model.scope_ptr[1:], strict=True)
        ]
        assert np.diff(model.table_ptr).tolist() == sizes
        assert model.values.size == sum(sizes)
        assert np.isfinite(model.values).all() and (model.values >= 0).all()


def test_generated_files(tmp_path: Path) -> None:
    for name in EXACT:
        path = write_exact(name, tmp_path)
        (tmp_path / f"{name}_packed.uai.xz").write_bytes(lzma.compress(path.read_bytes()))
    assert read_all(tmp_path) == {"model": 2 * len(EXACT), "evid": 6, "MAR": 6, "PR": 6}


@pytest.mark.skipif(
    not (DATA / "uai").is_dir(),
    reason=f"no published files at {DATA / 'uai'} (set PROXFIELD_DATA to the folder above uai)",
)
def test_published_files() -> None:
    folder = DATA / "uai"
    assert read_all(folder)["model"] > 0
    sizes: dict[str, Ints] = {}
    for path in sorted(folder.rglob("evidence/*.evid")):
        stem = re.sub(r"_\d+_\d+\.uai\.evid$", "", path.name)
        if stem not in sizes:
            model = parse_model(*read_bytes(path.parents[1] / f"{stem}.uai.xz"))
            sizes[stem] = model.cardinalities
        count = int(read_bytes(path)[0].split()[1])
        assert len(read_evidence(path, sizes[stem])) == count


def read_all(folder: Path) -> Counter[str]:
    """Read every model of a folder, and what is beside it; returns how many files of each kind."""
    models = sorted(folder.rglob("*.uai")) + sorted(folder.rglob("*.uai.xz"))
    seen = Counter(model=len(models))
    for path in models:
        data, name = read_bytes(path)
        model = parse_model(data, name)
        assert model.num_factors > 0
        # The tables end the file, so its last words are the last entries.
        size = int(np.diff(model.table_ptr)[-1])
        words = data.rsplit(maxsplit=size)[-size:]
        assert model.values[-size:].tolist() == [float(w) for w in words]
        evidence = path.with_name(path.name + ".evid")
        if evidence.exists():
            seen["evid"] += 1
            read_evidence(evidence, model.cardinalities)
        marginals = path.with_name(path.name + ".MAR")
        if marginals.exists():
            seen["MAR"] += 1
            for row in read_mar(marginals, model.cardinalities):
                assert abs(row.sum() - 1) < 1e-4
        partition = path.with_name(path.name + ".PR")
        if partition.exists():
            seen["PR"] += 1
            ten = float(partition.read_text().split()[-1])
            assert read_pr(partition) == pytest.approx(ten * np.log(10))
    return seen
