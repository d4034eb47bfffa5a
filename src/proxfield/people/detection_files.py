"""Detections and truth in files: CSV, JSON, and the annotations of WILDTRACK."""

from __future__ import annotations

import csv
import io
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from proxfield.core.common.arrays import Doubles
from proxfield.core.common.checks import is_exact, is_real, is_whole
from proxfield.core.common.records import Record
from proxfield.errors import InputError, shown
from proxfield.io.files import (
    Source,
    Target,
    atomic_write,
    decode_text,
    display_name,
    parse_json,
    read_bytes,
)
from proxfield.people.detections import Detections

COLUMNS = ("frame", "x", "y", "score", "location")
WILDTRACK_COLUMNS, WILDTRACK_ROWS = 480, 1440
"""The grid of WILDTRACK's positions, x first."""
WILDTRACK_ORIGIN = (-3.0, -9.0)
WILDTRACK_SPACING = 0.025
MAX_DIGITS = 15
"""Of the frame number in a file's name."""


def read_detections(source: Source) -> Detections:
    """Read detections or truth.

    Args:
        source: A ``.csv`` or ``.json`` file, a single file of WILDTRACK's annotations, or the
            folder of all: one frame per file, numbered by its name. The content decides.

    Raises:
        InputError: If nothing of the kind can be read, with the line where there is one.
    """
    if isinstance(source, (str, os.PathLike)) and source != "-" and Path(source).is_dir():
        return read_wildtrack(source)
    data, name = read_bytes(source)
    text = decode_text(data, name, "CSV or JSON")
    if not text.lstrip().startswith(("{", "[")):
        return parse_csv(text, name)
    content = parse_json(text, name)
    if isinstance(content, list):
        return _annotations(content, _frame_of(name), name)
    return _from_json(content, name)


def write_detections(path: Target, detections: Detections) -> None:
    """Write a ``.csv`` or ``.json`` file (``.gz`` and others are compressed).

    Raises:
        InputError: If the name has another ending or the file can't be written.
    """
    endings = [s.lower() for s in Path(path).suffixes]
    if ".csv" in endings:
        atomic_write(path, format_csv(detections))
    elif ".json" in endings:
        atomic_write(path, format_json(detections))
    else:
        raise InputError("expected a name ending in .csv or .json", path=display_name(path))


# ---- CSV ----


def format_csv(detections: Detections) -> str:
    """One line per detection; a frame in which nobody is has a line without coordinates.

    Example:
        >>> print(format_csv(Detections([1], [0.5], [2.0], frames=[0, 1])), end="")
        frame,x,y,score,location
        0,,,,
        1,0.5,2,1,
    """
    d = detections
    rows = [(int(f), "", "", "", "") for f in np.setdiff1d(d.frames, d.frame)]
    for k in range(len(d)):
        place = "" if d.location[k] < 0 else str(int(d.location[k]))
        numbers = (_shorten(d.x[k]), _shorten(d.y[k]), _shorten(d.score[k]))
        rows.append((int(d.frame[k]), *numbers, place))
    rows.sort(key=lambda row: row[0])
    return "".join(",".join(map(str, row)) + "\n" for row in (COLUMNS, *rows))


def _shorten(value: float) -> str:
    """A number with nine digits; nothing for NaN."""
    return "" if np.isnan(value) else f"{value:.9g}"


def parse_csv(text: str, name: str) -> Detections:
    """The text of a CSV file, with a line of names or in the order frame, x, y, score, location."""
    first = next((line for line in text.splitlines() if line.strip()), "")
    if not first:
        raise InputError("the file is empty, expected columns frame, x, y", path=name)
    if "," in first or ";" in first:
        reader = csv.reader(io.StringIO(text), delimiter="," if "," in first else ";")
    else:  # columns of numbers
        reader = csv.reader(("\t".join(s.split()) for s in text.splitlines()), delimiter="\t")
    columns: dict[str, int] | None = None
    out: list[tuple[float, ...]] = []
    frames: set[int] = set()
    try:
        for row in reader:
            cells = [cell.strip() for cell in row]
            if not any(cells) or cells[0].startswith("#"):
                continue
            line = reader.line_num
            if columns is None:
                columns = _columns(cells, name, line)
                if not _is_number(cells[columns["frame"]]):
                    continue
            values = {
                key: _cell(cells, at, key, name, line)
                for key, at in columns.items()
                if at < len(cells)
            }
            number = values.get("frame", np.nan)
            if not is_whole(number):
                raise InputError(
                    f"has no frame, expected {', '.join(columns)}", path=name, line=line
                )
            frames.add(int(number))
            x, y = values.get("x", np.nan), values.get("y", np.nan)
            score, place = values.get("score", np.nan), values.get("location", np.nan)
            if np.isnan(x) != np.isnan(y):
                raise InputError("has only one coordinate, expected x and y", path=name, line=line)
            if np.isnan(x) and np.isnan(place):
                continue  # a frame in which nobody is
            where = -1 if np.isnan(place) else place
            out.append((number, x, y, 1.0 if np.isnan(score) else score, where))
    except csv.Error as error:
        raise InputError(f"isn't CSV ({error})", path=name, line=reader.line_num) from None
    table = np.array(out, dtype=float).reshape(-1, 5)
    return _checked(table, sorted(frames), name)


def _columns(cells: list[str], name: str, line: int) -> dict[str, int]:
    """Where each column is, by the names in the first line or by position."""
    if _is_number(cells[0]):
        if len(cells) < 3:
            raise InputError(
                f"has {len(cells)} columns, expected frame, x, y", path=name, line=line
            )
        return {key: k for k, key in enumerate(COLUMNS) if k < len(cells)}
    known = {cell.lower(): k for k, cell in enumerate(cells)}
    columns = {key: known[key] for key in COLUMNS if key in known}
    if "frame" not in columns or not ({"x", "y"} <= set(columns) or "location" in columns):
        raise InputError(
            f"has columns {shown(', '.join(cells))}, expected frame, x, y, and score or location "
            "if wanted",
            path=name,
            line=line,
        )
    return columns


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _cell(cells: list[str], at: int, key: str, name: str, line: int) -> float:
    text = cells[at]
    if not text:
        return np.nan
    if not _is_number(text) or not np.isfinite(float(text)):
        raise InputError(f"{key} is {shown(text)}, expected a number", path=name, line=line)
    value = float(text)
    if key in ("frame", "location") and not is_exact(value):
        most = "" if not is_whole(value) else " up to 2^53"
        raise InputError(
            f"{key} is {shown(text)}, expected a whole number{most}", path=name, line=line
        )
    return value


def _checked(table: Doubles, frames: list[int], name: str) -> Detections:
    """Detections from rows of numbers; errors name the file."""
    try:
        frame, x, y, score, location = table.T
        return Detections(frame, x, y, score, location, frames)
    except InputError as error:
        raise InputError(error.message, path=name) from None


# ---- JSON ----


def format_json(detections: Detections) -> str:
    """One object: ``frames``, and ``detections`` with frame, x, y, score and location each."""
    d = detections
    items = []
    for k in range(len(d)):
        item: Record = {"frame": int(d.frame[k])}
        if not np.isnan(d.x[k]):
            item |= {"x": float(d.x[k]), "y": float(d.y[k])}
        item["score"] = float(d.score[k])
        if d.location[k] >= 0:
            item["location"] = int(d.location[k])
        items.append(item)
    lines = ",\n".join("  " + json.dumps(item) for item in items)
    head = f'{{"frames": {json.dumps(d.frames.tolist())},\n "detections": ['
    return head + (f"\n{lines}\n" if items else "") + "]}\n"


def _from_json(content: object, name: str) -> Detections:
    items = content.get("detections") if isinstance(content, dict) else None
    if not isinstance(content, dict) or not isinstance(items, list):
        raise InputError('expected an object with a list "detections"', path=name)
    rows = []
    for k, item in enumerate(items):
        if not isinstance(item, dict):
            raise InputError(f"detection {k} isn't an object", path=name)
        defaults = {"x": np.nan, "y": np.nan, "score": 1.0, "location": -1}
        row: list[Any] = [item.get(key, defaults.get(key)) for key in COLUMNS]
        for key, value in zip(COLUMNS, row, strict=True):
            whole = key in ("frame", "location")
            if not (is_exact(value) if whole else is_real(value)):
                expected = "a whole number up to 2^53" if whole else "a number"
                raise InputError(
                    f"detection {k}: {key} is {shown(value)}, expected {expected}", path=name
                )
        rows.append(tuple(float(value) for value in row))
    given = content.get("frames")
    frames = sorted({int(row[0]) for row in rows})
    if given is not None:
        if not isinstance(given, list):
            raise InputError('"frames" must be a list of whole numbers', path=name)
        for number in given:
            if not is_exact(number):
                raise InputError(
                    f'"frames" holds {shown(number)}, expected whole numbers up to 2^53', path=name
                )
        frames = [int(f) for f in given]
    return _checked(np.array(rows, dtype=float).reshape(-1, 5), frames, name)


# ---- WILDTRACK ----


def wildtrack_positions(ids: object) -> Doubles:
    """Where WILDTRACK's positions are, in meters.

    Args:
        ids: Numbers of positions.  # (n,)

    Example:
        >>> wildtrack_positions([0, 1, 480]).round(3).tolist()
        [[-3.0, -9.0], [-2.975, -9.0], [-3.0, -8.975]]
    """
    row, column = np.divmod(np.asarray(ids, dtype=np.int64), WILDTRACK_COLUMNS)
    x = WILDTRACK_ORIGIN[0] + WILDTRACK_SPACING * column
    y = WILDTRACK_ORIGIN[1] + WILDTRACK_SPACING * row
    return np.stack([x, y], axis=-1)


def read_wildtrack(folder: Target) -> Detections:
    """The annotations of WILDTRACK: a JSON file per frame, numbered by its name.

    Raises:
        InputError: If the folder has no such file, or one of them isn't what it should be.
    """
    where = Path(folder)
    files = sorted(p for p in where.glob("*.json") if not p.name.startswith("."))
    if not files:
        raise InputError(
            "the folder holds no .json file, expected one per frame", path=display_name(folder)
        )
    parts = []
    for file in files:
        data, name = read_bytes(file)
        content = parse_json(data.decode("utf-8", "replace"), name)
        parts.append(_annotations(content, _frame_of(name), name))
    return Detections.join(parts)


def _frame_of(name: str) -> int:
    stem = Path(name).name.split(".")[0]
    if not (stem.isascii() and stem.isdigit()):
        raise InputError("its name is no frame number, expected 00000005.json, say", path=name)
    if len(stem.lstrip("0")) > MAX_DIGITS:
        raise InputError(
            f"its name has more than {MAX_DIGITS} digits, expected a frame number", path=name
        )
    return int(stem)


def _annotations(content: object, frame: int, name: str) -> Detections:
    if not isinstance(content, list):
        raise InputError("expected a list of people with positionID", path=name)
    ids: list[Any] = [
        item.get("positionID") if isinstance(item, dict) else None for item in content
    ]
    last = WILDTRACK_COLUMNS * WILDTRACK_ROWS - 1
    for k, value in enumerate(ids):
        if not is_whole(value) or not 0 <= value <= last:
            raise InputError(
                f"person {k} has positionID {shown(value)}, expected 0 to {last}", path=name
            )
    xy = wildtrack_positions(ids).reshape(-1, 2)
    return Detections(np.full(len(ids), frame), xy[:, 0], xy[:, 1], None, ids, [frame])
