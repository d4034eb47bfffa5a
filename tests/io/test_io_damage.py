"""Saved files that are damaged, cut short, or made to do harm."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_io_store import FIELDS, assert_same_result, everything, saved

import proxfield as pf
from helpers import repulsive_grid

Edit = Callable[[dict[str, Any], dict[str, np.ndarray]], None]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "saved.npz"


def one_line(error: pytest.ExceptionInfo[BaseException]) -> None:
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 200


def test_cut_files_are_refused(path: Path) -> None:
    everything().save(path)
    data = path.read_bytes()
    for size in [*range(0, len(data), 37), len(data) - 1]:
        path.write_bytes(data[:size])
        with pytest.raises(pf.InputError) as caught:
            pf.Result.load(path)
        assert str(path.name) in str(caught.value)
        one_line(caught)


def test_flipped_bits_are_found_or_do_no_harm() -> None:
    """Every byte that matters is under a checksum; dates and the like aren't."""
    result = everything()
    data = saved(result).getvalue()
    refused = 0
    places = [*range(0, len(data), 7), *range(len(data) - 1600, len(data))]  # and the directory
    for place in places:
        broken = bytearray(data)
        broken[place] ^= 1 << (place % 8)
        try:
            again = pf.Result.load(io.BytesIO(bytes(broken)))
        except pf.InputError as error:
            refused += 1
            assert "\n" not in str(error)
        except pf.MemoryLimitError:
            refused += 1
        else:
            assert_same_result(result, again)
    assert refused > 0.4 * len(places)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "isn't a file that Field.save wrote, expected an npz archive"),
        (b"MARKOV\n1\n2\n", "isn't a file that Field.save wrote, expected an npz archive"),
        (b"PK\x03\x04 and so on", "damaged or cut short"),
    ],
)
def test_other_files_are_refused(path: Path, content: bytes, message: str) -> None:
    path.write_bytes(content)
    with pytest.raises(pf.InputError, match=message) as caught:
        pf.Field.load(path)
    one_line(caught)
    with pytest.raises(pf.InputError, match="no such file"):
        pf.Field.load(path.with_name("nothing.npz"))


def edited(data: bytes, edit: Edit, *, listed: bool = True) -> io.BytesIO:
    """A saved file with another header or other arrays, which the header lists or doesn't."""
    with np.load(io.BytesIO(data)) as archive:
        arrays = {name: archive[name] for name in archive.files}
    header = json.loads(arrays.pop("header").tobytes())
    edit(header, arrays)
    if listed:
        header["arrays"] = list(arrays)
    text = json.dumps(header).encode()
    out = io.BytesIO()
    np.savez(out, header=np.frombuffer(text, np.uint8), **arrays)
    return io.BytesIO(out.getvalue())


def put(name: str, value: Any) -> Edit:
    return lambda header, arrays: arrays.update({name: np.array(value)})


def say(*keys: Any, value: Any) -> Edit:
    def edit(header: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        at: Any = header
        for key in keys[:-1]:
            at = at[key]
        at[keys[-1]] = value

    return edit


def lose(name: str) -> Edit:
    return lambda header, arrays: arrays.pop(name)  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (
            say("version", value=3),
            "version 3 of the format, expected at most 2; read it with a new",
        ),
        (say("version", value="x"), "version 'x' of the format"),
        (say("format", value="other"), "isn't a file that Result.save wrote"),
        (say("holds", value="Popen"), "it holds a 'Popen', which isn't known here"),
        (say("field", "class", value="Result"), "it holds a Result, expected a Field"),
        (say("field", "n_vars", value=4), "3 names for 4 variables"),
        (say("field", "n_vars", value=-1), "n_vars=-1, expected a whole number, 0 or more"),
        (say("field", "n_labels", value=3), "label_names, but variable 0 has 3 labels"),
        (say("field", "names", value=["a", "a", "b"]), "names hold 'a' twice"),
        (say("field", "terms", 0, "kind", value="os.system"), "kind 'os.system' isn't known"),
        (say("field", "terms", 1, "arrays", value=["edges"]), "damaged or cut short"),
        (say("field", "terms", value=7), "damaged or cut short"),
        (say("result", "status", value="FINE"), "damaged or cut short"),
        (say("result", "params", value=3), "damaged or cut short"),
        (put("term/1/edges", [[0, 9], [1, 2]]), "edge 0 names variable 9"),
        (put("term/1/edges", [[0, -1], [1, 2]]), "edge 0 names variable -1"),
        (put("term/1/edges", [[0.5, 1], [1, 2]]), "edges must be integers"),
        (put("term/1/weights", [1.0]), "2 edges but weights of shape"),
        (put("term/0/given", [3]), "names variable 3"),
        (put("term/2/index", [5]), "table index out of range"),
        (put("term/2/tables", np.full((1, 2, 2, 2), np.nan)), "hold NaN"),
        (put("evidence/labels", [2]), "has label 2, expected 0 to 1"),
        (put("evidence/variables", [3]), "there is no variable 3"),
        (put("q", [1.0]), r"marginals of shape \(1,\), expected \(6,\)"),
        (put("q", [np.nan] * 6), "marginals hold NaN"),
        (put("trace/change", [1.0]), "columns of the trace differ in length"),
        (put("feasible", [[0.5]]), "feasible labelling must"),
        (lose("q"), "damaged or cut short"),
        (lose("term/2/tables"), "damaged or cut short"),
    ],
)
def test_hostile_files_are_refused(edit: Edit, message: str) -> None:
    with pytest.raises(pf.InputError, match=message) as caught:
        pf.Result.load(edited(saved(everything()).getvalue(), edit))
    one_line(caught)
    unchanged = edited(saved(everything()).getvalue(), lambda header, arrays: None)
    pf.Result.load(unchanged)


@pytest.mark.parametrize(
    ("name", "edit", "message"),
    [
        ("consistency", put("term/0/starts", [0, 2, 4]), "don't divide their members"),
        ("consistency", put("term/0/starts", [0, 5, 5]), "don't divide their members"),
        ("consistency", put("term/0/starts", []), "don't divide their members"),
        ("consistency", put("term/0/members", [3, 3, 1, 3, 4]), "names a variable twice"),
        ("consistency", put("term/0/members", [3, 0, 1, 3, 5]), "holds variable 5"),
        ("consistency", put("term/0/weights", [[-1.0], [1.0]]), "must be 0 or more"),
        ("consistency", put("term/0/weights", [[1.0]]), "2 segments but weights of shape"),
        ("cooccurrence", put("term/0/classes", [1, 3]), "expected 0 to 2"),
        ("cooccurrence", put("term/0/classes", [2, 1]), "expected 0 to 2"),
        ("cooccurrence", put("term/0/weights", [[1.0]]), "expected one per pair"),
        ("cooccurrence", put("term/0/pixels", 9), "but there are 3"),
        ("cooccurrence", put("term/0/pixels", -1), "pixels=-1, expected"),
        ("cooccurrence", put("term/0/kappa", -1.0), "kappa="),
        ("cooccurrence-variables", put("term/0/presence", 1), "class presences"),
        ("gaussian-matrix", put("term/0/matrix", np.ones((2, 3))), "isn't symmetric"),
        ("gaussian-matrix", put("term/0/matrix", np.ones((3, 3))), "compatibility for 3 labels"),
        ("gaussian", put("term/0/normalization", "odd"), "unknown normalization 'odd'"),
        ("gaussian", put("term/0/features", [[np.nan]] * 4), "features hold NaN"),
    ],
)
def test_hostile_terms_are_refused(name: str, edit: Edit, message: str) -> None:
    with pytest.raises(pf.InputError, match=message) as caught:
        pf.Field.load(edited(saved(FIELDS[name]()).getvalue(), edit))
    one_line(caught)


@pytest.mark.parametrize("edit", [lose("evidence/labels"), put("more", 1)])
def test_arrays_must_be_those_of_the_header(edit: Edit) -> None:
    data = edited(saved(everything()).getvalue(), edit, listed=False)
    with pytest.raises(pf.InputError, match="aren't those that the header lists"):
        pf.Result.load(data)


def test_nothing_is_unpickled() -> None:
    def edit(header: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        arrays["q"] = np.array([print, None])

    with pytest.raises(pf.InputError, match="damaged or cut short"):
        pf.Result.load(edited(saved(everything()).getvalue(), edit))


def test_archives_larger_than_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    data = saved(repulsive_grid())
    monkeypatch.setattr("proxfield.core.common.memory.available_memory", lambda: 1000)
    with pytest.raises(pf.MemoryLimitError, match="reading <file>"):
        pf.Field.load(data)
