"""Boxes that a detector found in each camera and frame, and masks of them."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from proxfield.core.common.arrays import Doubles
from proxfield.core.common.checks import is_exact, is_real
from proxfield.core.common.records import Record
from proxfield.errors import InputError, shown
from proxfield.io.files import Target, decode_text, naming, parse_json, read_bytes
from proxfield.io.masks import Size, check_source, fields, fill, fill_boxes

COLUMNS = ("camera", "frame", "left", "top", "right", "bottom")
MIN_SCORE = 0.5
MOST_FRAMES = 1_000_000
"""Between the first and the last of a list; more are times, or a slip."""

Found = dict[int, list[tuple[float, ...]]]
"""Left, top, right, bottom and score of each box, by frame."""


@dataclass(frozen=True)
class BoxMasks:
    """Masks from boxes: filled rectangles.

    Args:
        path: A ``.csv`` or ``.json`` file of all cameras, or a pattern with ``%c`` or
            ``{camera}`` for one file per camera; see `read_boxes`.
        cameras: Names of the cameras, as in the file.
        sizes: Width and height of each camera's images.
        scale: Resolution of the masks relative to the images.
        min_score: Boxes of a lower score are dropped.
        soft: Fill boxes with their scores instead of 1.
        missing: What to do about a frame that a camera's file doesn't list although it lists
            frames without boxes: "error", or "skip", which leaves its mask out.
    """

    path: str
    cameras: tuple[str, ...]
    sizes: tuple[Size, ...]
    scale: float = 1.0
    min_score: float = MIN_SCORE
    soft: bool = False
    missing: str = "error"
    _found: dict[str, Found] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_source(self.scale, self.sizes, self.cameras, self.missing)
        self._found.update(read_boxes(self.path, self.cameras))

    def frames(self) -> list[int]:
        """Frames that any camera has, in order; all from first to last of lists of boxes."""
        return sorted({frame for found in self._found.values() for frame in found})

    def boxes(self, camera: str, frame: int) -> tuple[Doubles, Doubles]:
        """Boxes of a camera in a frame, and their scores.  # (n, 4), (n,)"""
        rows = np.array(self._found[camera].get(frame, []), dtype=float).reshape(-1, 5)
        rows = rows[rows[:, 4] >= self.min_score]
        return rows[:, :4], rows[:, 4]

    def read(self, frame: int) -> list[Doubles | None]:
        """The masks of a frame, one per camera.

        Raises:
            InputError: If a camera doesn't have the frame, or none of them where that is skipped.
        """
        out: list[Doubles | None] = []
        for camera, size in zip(self.cameras, self.sizes, strict=True):
            if frame not in self._found[camera]:
                if self.missing == "skip":
                    out.append(None)
                    continue
                raise InputError(f"frame {frame} of camera {camera} is missing", path=self.path)
            boxes, scores = self.boxes(camera, frame)
            values = np.clip(scores, 0, 1) if self.soft else np.ones(len(scores))
            out.append(fill_boxes(boxes, values, size, self.scale))
        if all(mask is None for mask in out):
            raise InputError(f"frame {frame} has no boxes in any camera", path=self.path)
        return out


def read_boxes(path: Target, cameras: tuple[str, ...]) -> dict[str, Found]:
    """Boxes of several cameras.

    Three forms: CSV with columns camera, frame, left, top, right, bottom and, if wanted, score; a
    JSON list of objects with these names; and, for one file per camera, a JSON object with
    ``idxs`` (frames), ``bboxes`` (of each frame) and ``scores``. The first two don't list frames
    without boxes: all frames from the first to the last are there.

    Args:
        path: The file, or a pattern with ``%c`` or ``{camera}``.
        cameras: Names of the cameras.

    Raises:
        InputError: If a file can't be read, or a camera has no boxes.
    """
    asked: list[tuple[str, str | None]]
    if "camera" in fields(path):
        asked = [(fill(path, camera=c), c) for c in cameras]
    else:
        asked = [(str(path), cameras[0] if len(cameras) == 1 else None)]
    parts = []
    for name, one in asked:
        with naming(name):
            parts.append(_read_file(name, one))
    found = {camera: frames for part, _ in parts for camera, frames in part.items()}
    for camera in cameras:
        if camera not in found:
            raise InputError(
                f"camera {camera} has no boxes, expected one of: {', '.join(found)}", path=str(path)
            )
    # a frame without boxes isn't in a list of boxes: there a camera has seen nobody
    known: Iterable[int] = {frame for frames in found.values() for frame in frames}
    if not any(complete for _, complete in parts):  # nor is one where no camera has seen anybody
        first, last = min(known), max(known)
        if last - first >= MOST_FRAMES:
            raise InputError(
                f"has frames {first} to {last}, expected at most {MOST_FRAMES} from the first to "
                "the last: frames are numbered one by one",
                path=str(path),
            )
        known = range(first, last + 1)
    for part, complete in parts:
        for frames in part.values():
            for frame in () if complete else known:
                frames.setdefault(frame, [])
    return {camera: found[camera] for camera in cameras}


def _read_file(path: str, camera: str | None) -> tuple[dict[str, Found], bool]:
    """Boxes by camera and frame, and whether frames without boxes are listed too."""
    data, name = read_bytes(path)
    text = decode_text(data, name, "CSV or JSON")
    if not text.lstrip().startswith(("{", "[")):
        return _from_csv(text, camera), False
    content = parse_json(text, name)
    if isinstance(content, dict) and "bboxes" in content:
        if camera is None:
            raise InputError(
                "has the boxes of one camera, expected one file for each: %c in the name"
            )
        return {camera: _from_frames(content)}, True
    if not isinstance(content, list):
        raise InputError('expected a list of boxes, or an object with "bboxes"')
    out: dict[str, Found] = {}
    for k, item in enumerate(content):
        if not isinstance(item, dict):
            raise InputError(f"box {k} isn't an object")
        who = item.get("camera", camera)
        if who is None:
            raise InputError(f"box {k} has no camera")
        row = [item.get(key) for key in (*COLUMNS[2:], "score")]
        _add(out.setdefault(str(who), {}), item.get("frame"), row, f"box {k}", None)
    return out, False


def _from_csv(text: str, camera: str | None) -> dict[str, Found]:
    reader = csv.DictReader(io.StringIO(text))
    names = [n.strip().lower() for n in reader.fieldnames or []]
    need = COLUMNS if camera is None else COLUMNS[1:]
    if not set(need) <= set(names):
        raise InputError(
            f"has columns {shown(', '.join(names))}, expected {', '.join(need)}", line=1
        )
    reader.fieldnames = names
    out: dict[str, Found] = {}
    for item in reader:
        line = reader.line_num
        try:
            row = [float(item[key]) for key in COLUMNS[2:]]
            score = (item.get("score") or "").strip()
            row.append(float(score) if score else 1.0)
            frame = float(item["frame"])
            who = (item.get("camera") or camera or "").strip()
        except (TypeError, ValueError):
            raise InputError("has something that isn't a number", line=line) from None
        _add(out.setdefault(who, {}), frame, row, "the box", line)
    if not out:
        raise InputError("has no boxes")
    return out


def _from_frames(content: Record) -> Found:
    boxes, frames, scores = content["bboxes"], content.get("idxs"), content.get("scores")
    if frames is None and isinstance(boxes, list):
        frames = list(range(len(boxes)))
    lists = [frames, boxes] if scores is None else [frames, boxes, scores]
    if not all(isinstance(v, list) and len(v) == len(boxes) for v in lists):
        raise InputError("idxs, bboxes and scores must be lists of the same length")
    out: Found = {}
    for k, (frame, some) in enumerate(zip(frames or [], boxes, strict=True)):
        if not isinstance(some, list):
            raise InputError(f"frame {shown(frame)} has no list of boxes")
        rates = [None] * len(some) if scores is None else scores[k]
        if not isinstance(rates, list) or len(rates) != len(some):
            raise InputError(f"frame {shown(frame)} has another number of scores")
        if not is_exact(frame):
            raise InputError(f"frame {shown(frame)}, expected a whole number up to 2^53")
        out.setdefault(int(frame), [])
        for box, score in zip(some, rates, strict=True):
            row = [*box, score] if isinstance(box, list) else [box]
            _add(out, frame, row, f"a box of frame {frame}", None)
    return out


def _add(out: Found, frame: object, row: Sequence[object], what: str, line: int | None) -> None:
    """Keep a box, or say what is wrong with it."""
    wrong = ""
    if len(row) == 5 and row[4] is None:
        row = [*row[:4], 1.0]
    numbers = [float(v) for v in row if is_real(v)]  # type: ignore[arg-type]
    if not is_exact(frame):
        wrong = f"has frame {shown(frame)}, expected a whole number up to 2^53"
    elif len(row) != 5 or len(numbers) != 5 or not np.isfinite(numbers).all():
        wrong = "isn't made of numbers, expected left, top, right, bottom"
    elif numbers[2] < numbers[0] or numbers[3] < numbers[1]:
        wrong = f"ends before it begins: {shown(row[:4])}"
    if wrong:
        raise InputError(f"{what} {wrong}", line=line)
    out.setdefault(int(frame), []).append(tuple(numbers))  # type: ignore[call-overload]
