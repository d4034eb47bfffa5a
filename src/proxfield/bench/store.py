"""Results as JSON lines: appended as they come, so that a stopped benchmark can go on.

The first line says where the results come from (``"kind": "meta"``); another such line follows
when a later session differs. Every other line is one finished piece of work. Nothing in a file
is ever overwritten: a damaged one is kept aside.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterable, Iterator
from itertools import chain, count
from pathlib import Path
from typing import TextIO

from proxfield.core.common.checks import is_real
from proxfield.core.common.records import Record, plain
from proxfield.errors import InputError, reason
from proxfield.io.files import atomic_write, display_name, read_bytes

FORMAT = "proxfield-bench-1"
IDENTITY = (
    "kind",
    "suite",
    "instance",
    "digest",
    "rule",
    "params",
    "budget",
    "repeat",
    "setting",
    "max_passes",
    "tol",
    "threads",
    "version",
)
"""What two lines must have in common to be the same piece of work."""
NEEDED = {
    "run": ("free_energy", "iterations", "seconds", "status"),
    "trace": ("iteration", "trace_seconds", "trace_free_energy"),
    "exact": ("free_energy", "log_z"),
    "curvature": ("lipschitz", "certified"),
    "passes": ("passes", "trace_free_energy", "matches", "false_alarms", "people"),
    "inpainting": ("free_energy", "iterations", "seconds", "pixels", "correct", "best_known"),
    "people": ("free_energy", "seconds", "matches", "false_alarms", "people"),
    "segmentation": ("free_energy", "iterations", "seconds", "setting", "confusion", "classifier"),
}
"""Kinds of lines, and what each must hold beside its identity."""
PASSING = ("when", "load_average")
"""What may differ between two sessions that are otherwise alike."""


def identity(record: Record) -> str:
    """The part of a record that says what was done, as text."""
    return json.dumps([record.get(key) for key in IDENTITY], sort_keys=True)


def number_of(record: Record, key: str) -> float:
    """A number of a record; null stands for +inf."""
    value = record[key]
    return math.inf if value is None else float(value)


class Store:
    """A results file, open for appending.

    Args:
        path: The file; made if it isn't there.
        meta: Where the results of this session come from.

    Attributes:
        notes: What happened while opening, in lines for the user.

    Raises:
        InputError: If the file can't be read or written, or another benchmark has it open.
    """

    def __init__(self, path: str | os.PathLike[str], meta: Record) -> None:
        self.path = Path(path)
        self.meta: Record = plain({"kind": "meta", "format": FORMAT, **meta})
        self.notes: list[str] = []
        self.metas: list[Record] = []
        self._records: dict[str, Record] = {}
        self._file: TextIO | None = None
        self._open()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; what was added is there."""
        if self._file is not None:
            with contextlib.suppress(OSError):  # every line was flushed already
                self._file.close()
            self._file = None

    def find(self, wanted: Record) -> Record | None:
        """The finished piece of work with this identity, if there is one."""
        return self._records.get(identity(wanted))

    def add(self, record: Record) -> Record:
        """Append one finished piece of work; returns it as it was written."""
        record = plain(record)
        if not self.metas or _lasting(self.metas[-1]) != _lasting(self.meta):
            self._append(self.meta)
            self.metas.append(self.meta)
        self._append(record)
        self._records[identity(record)] = record
        return record

    def _append(self, record: Record) -> None:
        assert self._file is not None, "the store is closed"
        kept = "what was finished before is kept: the same command goes on from there"
        with naming("can't write", f"enough free space; {kept}", self.path):
            self._file.write(json.dumps(record, allow_nan=False) + "\n")
            self._file.flush()

    def _open(self) -> None:
        name = display_name(self.path)
        with naming("can't read", "a results file", self.path):
            exists = self.path.exists()
            if exists and not self.path.is_file():  # a device may never end
                raise InputError("not a regular file, expected a results file", path=name)
            content = self.path.read_bytes() if exists else b""
        good, bad, cut = parse_lines(content)
        self._records = {identity(r): r for r in good if r["kind"] != "meta"}
        if bad:
            self._keep_aside(good, bad)
        self.metas = [r for r in good if r["kind"] == "meta"]
        try:
            with naming("can't write", "a writable file", self.path):
                self._file = self.path.open("a", encoding="utf-8", newline="\n")
                self._lock()
                if not bad and cut is not None:
                    self.notes.append(
                        f"{name}: its last line was cut short; that piece of work is done again"
                    )
                    self._file.truncate(cut)
                elif not bad and content and not content.endswith(b"\n"):
                    self._file.write("\n")
        except InputError:
            self.close()
            raise
        if not self.metas:
            self._append(self.meta)
            self.metas.append(self.meta)
        elif self.metas[-1].get("machine") != self.meta.get("machine"):
            self.notes.append(
                f"{name}: begun on another machine; its results are used, so timings are mixed "
                "(--output NEW starts afresh)"
            )

    def _lock(self) -> None:
        """Two benchmarks must not write to one file (where the system can tell)."""
        try:
            import fcntl
        except ImportError:
            return
        assert self._file is not None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(
                "another benchmark is writing to it, expected a file of its own (--output FILE)",
                path=display_name(self.path),
            ) from None
        except OSError:  # a file system without locks
            pass

    def _keep_aside(self, good: list[Record], bad: int) -> None:
        """Rename a damaged file and write its good lines anew."""
        endings = chain([""], (f".{n}" for n in count(2)))
        asides = (self.path.with_name(f"{self.path.name}.corrupt{end}") for end in endings)
        aside = next(path for path in asides if not path.exists())
        with naming("is damaged and can't be renamed", "a writable folder", self.path):
            self.path.rename(aside)
        if not good or good[0]["kind"] != "meta":
            good.insert(0, self.meta)
        atomic_write(self.path, "".join(json.dumps(r) + "\n" for r in good))
        lines = "line" if bad == 1 else "lines"
        self.notes.append(
            f"{display_name(self.path)}: {bad} damaged {lines}; the file is kept as "
            f"{display_name(aside)}, its {len(self._records)} good results are used"
        )


@contextlib.contextmanager
def naming(what: str, expected: str, path: Path) -> Iterator[None]:
    """Raise `InputError` for whatever goes wrong with the file."""
    try:
        yield
    except InputError:
        raise
    except (OSError, ValueError) as error:
        text = f"{what} ({reason(error)}), expected {expected}"
        raise InputError(text, path=display_name(path)) from None


def parse_lines(content: bytes) -> tuple[list[Record], int, int | None]:
    """Read JSON lines: records, how many lines are damaged, and where an unfinished one begins.

    That is a last line that a crash cut short; it doesn't count as damaged.
    """
    good: list[Record] = []
    bad, cut, at = 0, None, 0
    for line in content.splitlines(keepends=True):
        record = _parse_record(line)
        if record is not None:
            # results without the line that says where they come from are used all the same
            bad += not (good or bad or record["kind"] == "meta")
            good.append(record)
        elif line.strip() and not line.endswith(b"\n") and good:
            cut = at
        elif line.strip():
            bad += 1
        at += len(line)
    return good, bad, cut


def _parse_record(line: bytes) -> Record | None:
    """A line as a record; None if it isn't one."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict):
        return None
    kind = record.get("kind")
    if kind == "meta":
        return record if record.get("format") == FORMAT else None
    if kind not in NEEDED:
        return None
    named = all(isinstance(record.get(key), str) for key in ("suite", "instance", "digest"))
    whole = all(key in record for key in NEEDED[kind])
    numbers = (record.get(key) for key in ("free_energy", "seconds", "iterations"))
    fine = all(x is None or is_real(x) for x in numbers)
    return record if named and whole and fine else None


def _lasting(meta: Record) -> Record:
    return {k: v for k, v in meta.items() if k not in PASSING}


def read_records(path: str | os.PathLike[str]) -> tuple[list[Record], list[Record]]:
    """The meta lines and the good results of a file, which stays as it is.

    Raises:
        InputError: If it can't be read or holds no results.
    """
    content, name = read_bytes(os.fspath(path))
    good, _, _ = parse_lines(content)
    records = {identity(r): r for r in good if r["kind"] != "meta"}
    if not records:
        raise InputError("no results in it, expected a file that bench has written", path=name)
    return [r for r in good if r["kind"] == "meta"], list(records.values())


def merge_metas(*groups: Iterable[Record]) -> list[Record]:
    """Meta lines that differ in more than their date, in order."""
    out: list[Record] = []
    for meta in (m for group in groups for m in group):
        if all(_lasting(meta) != _lasting(other) for other in out):
            out.append(meta)
    return out
