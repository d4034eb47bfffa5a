"""Detections and truth in files: CSV, JSON, and the annotations of WILDTRACK."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from proxfield.core.common.checks import is_exact, is_real, is_whole
from proxfield.core.common.records import Record
from proxfield.errors import InputError, shown
from proxfield.io.files import (
    Source,
    Target,
    atomic_write,
    decode_text,
    display_name,
    naming,
    parse_json,
    read_bytes,
)
from proxfield.people.detections import Detections

COLUMNS = ("frame", "x", "y", "score", "location")
WHOLE = ("frame", "location")
"""Columns of whole numbers."""
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
    with naming(name):
        text = decode_text(data, name, "CSV or JSON")
        if not text.lstrip().startswith(("{", "[")):
            return _parse_csv(text)
        content = parse_json(text, name)
        return _annotations(content, name) if isinstance(content, list) else _from_json(content)


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
        numbers = (d.x[k], d.y[k], d.score[k])
        x, y, score = ("" if np.isnan(v) else f"{v:.9g}" for v in numbers)
        rows.append((int(d.frame[k]), x, y, score, place))
    rows.sort(key=lambda row: row[0])
    return "".join(",".join(map(str, row)) + "\n" for row in (COLUMNS, *rows))


def _parse_csv(text: str) -> Detections:
    """The text of a CSV file, with a line of names or in the order frame, x, y, score, location."""
    first = next((line for line in text.splitlines() if line.strip()), "")
    if not first:
        raise InputError("the file is empty, expected columns frame, x, y")
    delimiter = next((mark for mark in ",;" if mark in first), "\t")
    lines = text.splitlines()
    reader = csv.reader(
        lines if delimiter != "\t" else ("\t".join(s.split()) for s in lines), delimiter=delimiter
    )
    columns: dict[str, int] | None = None
    out: list[tuple[float, ...]] = []
    frames: set[int] = set()
    try:
        for row in reader:
            cells = [cell.strip() for cell in row]
            if not any(cells) or cells[0].startswith("#"):
                continue
            if columns is None:
                columns = _columns(cells)
                if not _is_number(cells[columns["frame"]]):
                    continue
            found = {k: _cell(cells[at], k) for k, at in columns.items() if at < len(cells)}
            number, x, y, score, place = (found.get(key, np.nan) for key in COLUMNS)
            if not is_whole(number):
                raise InputError(f"has no frame, expected {', '.join(columns)}")
            frames.add(int(number))
            if np.isnan(x) != np.isnan(y):
                raise InputError("has only one coordinate, expected x and y")
            if np.isnan(x) and np.isnan(place):
                continue  # a frame in which nobody is
            where = -1 if np.isnan(place) else place
            out.append((number, x, y, 1.0 if np.isnan(score) else score, where))
    except (csv.Error, InputError) as error:
        what = error.message if isinstance(error, InputError) else f"isn't CSV ({error})"
        raise InputError(what, line=reader.line_num) from None
    return _from_rows(out, sorted(frames))


def _columns(cells: list[str]) -> dict[str, int]:
    """Where each column is, by the names in the first line or by position."""
    if _is_number(cells[0]):
        if len(cells) < 3:
            raise InputError(f"has {len(cells)} columns, expected frame, x, y")
        return {key: k for k, key in enumerate(COLUMNS) if k < len(cells)}
    known = {cell.lower(): k for k, cell in enumerate(cells)}
    columns = {key: known[key] for key in COLUMNS if key in known}
    if "frame" not in columns or not ({"x", "y"} <= set(columns) or "location" in columns):
        raise InputError(
            f"has columns {shown(', '.join(cells))}, expected frame, x, y, and score or location "
            "if wanted"
        )
    return columns


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _cell(text: str, key: str) -> float:
    if not text:
        return np.nan
    value = float(text) if _is_number(text) else np.nan
    if not np.isfinite(value):
        raise InputError(f"{key} is {shown(text)}, expected a number")
    if key in WHOLE and not is_exact(value):
        most = "" if not is_whole(value) else " up to 2^53"
        raise InputError(f"{key} is {shown(text)}, expected a whole number{most}")
    return value


def _from_rows(rows: list[tuple[float, ...]], frames: list[int]) -> Detections:
    frame, x, y, score, location = np.array(rows, dtype=float).reshape(-1, 5).T
    return Detections(frame, x, y, score, location, frames)


def format_json(detections: Detections) -> str:
    """One line per detection; what isn't known is left out."""
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


def _from_json(content: object) -> Detections:
    items = content.get("detections") if isinstance(content, dict) else None
    if not isinstance(content, dict) or not isinstance(items, list):
        raise InputError('expected an object with a list "detections"')
    rows = []
    for k, item in enumerate(items):
        if not isinstance(item, dict):
            raise InputError(f"detection {k} isn't an object")
        row: Record = {"frame": None, "x": np.nan, "y": np.nan, "score": 1.0, "location": -1}
        row |= {key: item[key] for key in COLUMNS if key in item}
        for key, value in row.items():
            if not (is_exact if key in WHOLE else is_real)(value):
                expected = "a whole number up to 2^53" if key in WHOLE else "a number"
                raise InputError(f"detection {k}: {key} is {shown(value)}, expected {expected}")
        rows.append(tuple(map(float, row.values())))
    frames = content.get("frames")
    if frames is None:
        frames = sorted({int(row[0]) for row in rows})
    elif not isinstance(frames, list):
        raise InputError('"frames" must be a list of whole numbers')
    for number in frames:
        if not is_exact(number):
            raise InputError(f'"frames" holds {shown(number)}, expected whole numbers up to 2^53')
    return _from_rows(rows, [int(f) for f in frames])


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
        with naming(name):
            content = parse_json(data.decode("utf-8", "replace"), name)
            parts.append(_annotations(content, name))
    return Detections.join(parts)


def _annotations(content: object, name: str) -> Detections:
    """One frame, numbered by the file's name."""
    stem = Path(name).name.split(".")[0]
    if not (stem.isascii() and stem.isdigit()):
        raise InputError("its name is no frame number, expected 00000005.json, say")
    if len(stem.lstrip("0")) > MAX_DIGITS:
        raise InputError(f"its name has more than {MAX_DIGITS} digits, expected a frame number")
    if not isinstance(content, list):
        raise InputError("expected a list of people with positionID")
    ids: list[Any] = [
        item.get("positionID") if isinstance(item, dict) else None for item in content
    ]
    last = WILDTRACK_COLUMNS * WILDTRACK_ROWS - 1
    for k, value in enumerate(ids):
        if not is_whole(value) or not 0 <= value <= last:
            raise InputError(f"person {k} has positionID {shown(value)}, expected 0 to {last}")
    row, column = np.divmod(np.asarray(ids, dtype=np.int64), WILDTRACK_COLUMNS)
    x = WILDTRACK_ORIGIN[0] + WILDTRACK_SPACING * column
    y = WILDTRACK_ORIGIN[1] + WILDTRACK_SPACING * row
    return Detections(np.full(len(ids), int(stem)), x, y, None, ids, [int(stem)])
