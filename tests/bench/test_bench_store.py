"""Results files: what is stored is found again, and nothing is lost."""

from __future__ import annotations

import errno
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from proxfield.bench.store import Store, read_records
from proxfield.errors import InputError

META = {"command": "proxfield bench paper", "machine": {"cores": 2}, "when": "today"}


def record(instance: str = "a", **changes: Any) -> dict[str, Any]:
    return {
        "kind": "run",
        "suite": "GRID",
        "instance": instance,
        "digest": "x",
        "rule": "fixed",
        "params": {"step": "certified"},
        "budget": 0.05,
        "repeat": 0,
        "tol": 1e-6,
        "threads": 1,
        "version": "1",
        "free_energy": -1.5,
        "iterations": 3,
        "seconds": 0.01,
        "status": "converged",
        **changes,
    }


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with three results."""
    out = tmp_path / "results.jsonl"
    with Store(out, META) as store:
        for name in "abc":
            store.add(record(name))
    return out


def reopen(path: Path, **meta: Any) -> Store:
    store = Store(path, {**META, **meta})
    store.close()
    return store


def test_the_first_line_says_where_results_come_from(path: Path) -> None:
    first, *rest = [json.loads(line) for line in path.read_text().splitlines()]
    assert first["kind"] == "meta" and first["command"] == META["command"]
    assert [r["instance"] for r in rest] == ["a", "b", "c"]


@pytest.mark.parametrize(
    "change",
    [
        {"instance": "z"},
        {"digest": "y"},
        {"rule": "adam"},
        {"params": {"step": 0.5}},
        {"budget": 0.3},
        {"repeat": 1},
        {"tol": 1e-3},
        {"threads": 2},
        {"version": "2"},
    ],
)
def test_only_the_same_work_is_found_again(path: Path, change: dict[str, Any]) -> None:
    store = reopen(path)
    assert store.find(record()) is not None
    assert store.find(record(**change)) is None
    assert store.notes == []


def test_infinity_is_null_in_the_file(path: Path) -> None:
    with Store(path, META) as store:
        store.add(record("d", free_energy=float("inf")))
    assert json.loads(path.read_text().splitlines()[-1])["free_energy"] is None


@pytest.mark.parametrize("keep", [1, 40, -1, -2])
def test_a_last_line_cut_short_is_done_again(path: Path, keep: int) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]) + lines[-1][:keep])
    store = Store(path, META)
    if keep == -1:  # only the end of the line is missing
        assert store.notes == [] and store.find(record("c")) is not None
    else:
        assert "cut short" in store.notes[0] and store.find(record("c")) is None
    store.add(record("d"))
    store.close()
    assert all(json.loads(line) for line in path.read_text().splitlines())
    assert reopen(path).find(record("d")) is not None
    assert not path.with_name("results.jsonl.corrupt").exists()


@pytest.mark.parametrize(
    "damage",
    [b"\x00\x00garbage\n", b'{"kind": "run"}\n', b"[1, 2]\n", b'{"kind": "other"}\n', b'{"kin\n'],
)
def test_a_damaged_file_is_kept_aside_and_its_good_lines_are_used(
    path: Path, damage: bytes
) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    broken = b"".join([*lines[:2], damage, *lines[2:]])
    path.write_bytes(broken)
    store = reopen(path)
    aside = path.with_name("results.jsonl.corrupt")
    assert aside.read_bytes() == broken
    assert all(store.find(record(name)) for name in "abc")
    (note,) = store.notes
    assert "1 damaged line;" in note and str(aside) in note and "3 good results" in note
    assert reopen(path).notes == []


def test_what_was_kept_aside_before_stays(path: Path) -> None:
    aside = path.with_name("results.jsonl.corrupt")
    aside.write_text("older")
    path.write_text("not JSON\n")
    reopen(path)
    assert aside.read_text() == "older"
    assert path.with_name("results.jsonl.corrupt.2").read_text() == "not JSON\n"


def test_results_without_their_first_line_are_used_all_the_same(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[1:]))
    store = reopen(path)
    assert all(store.find(record(name)) for name in "abc") and len(store.notes) == 1
    assert json.loads(path.read_text().splitlines()[0])["kind"] == "meta"


def test_another_machine_is_mentioned_and_noted_down(path: Path) -> None:
    with Store(path, {**META, "machine": {"cores": 64}}) as store:
        assert "another machine" in store.notes[0]
        store.add(record("d"))
    kinds = [json.loads(line)["kind"] for line in path.read_text().splitlines()]
    assert kinds == ["meta", "run", "run", "run", "meta", "run"]


def test_another_day_alone_is_no_news(path: Path) -> None:
    with Store(path, {**META, "when": "tomorrow"}) as store:
        store.add(record("d"))
    assert path.read_text().count('"meta"') == 1


@pytest.mark.skipif(sys.platform == "win32", reason="needs file locks of POSIX")
def test_two_benchmarks_can_not_share_a_file(path: Path) -> None:
    with Store(path, META), pytest.raises(InputError, match="another benchmark is writing"):
        Store(path, META)


def test_a_folder_is_no_results_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a regular file"):
        Store(tmp_path, META)


class FullDisk(io.StringIO):
    """A file on a disk that has filled up."""

    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_while_adding(path: Path) -> None:
    store = Store(path, META)
    store.close()
    store._file = FullDisk()
    with pytest.raises(InputError, match=r"can't write \(No space left.*goes on from there"):
        store.add(record("d"))
    assert len(read_records(path)[1]) == 3


def test_reading_only_leaves_the_file_alone(path: Path, tmp_path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"garbage\n")
    before = path.read_bytes()
    metas, records = read_records(path)
    assert len(metas) == 1 and len(records) == 3 and path.read_bytes() == before
    (tmp_path / "empty").write_text("nothing\n")
    with pytest.raises(InputError, match="no results in it"):
        read_records(tmp_path / "empty")
