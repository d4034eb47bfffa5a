"""Names of files with a place for the camera, the frame and the iteration.

Two ways to write them: ``%c``, ``%f`` and ``%i`` as in ``.pom`` files, and ``{camera}``,
``{frame}`` and ``{iteration}``, where numbers may have a width, ``{frame:05d}``.
"""

from __future__ import annotations

import re
from pathlib import Path

from proxfield.errors import InputError, shown
from proxfield.io.files import Target, display_name

_PERCENT = {"%c": "camera", "%f": "frame", "%i": "iteration"}
_PLACE = re.compile(r"%[cfi]|\{(camera|frame|iteration)(?::0?([0-9]{1,2})d?)?\}")


def fill(
    pattern: Target,
    *,
    camera: str | int | None = None,
    frame: int | None = None,
    iteration: int | None = None,
) -> str:
    """The name of a file.

    Args:
        pattern: With places for what follows.
        camera: Its name or number.
        frame: Its number.
        iteration: Its number.

    Raises:
        InputError: If the pattern has a place for something that isn't given.

    Example:
        >>> fill("view-f%f-c%c.png", camera=1, frame=170), fill("{camera}/{frame:05d}.png",
        ...     camera="left", frame=7)
        ('view-f170-c1.png', 'left/00007.png')
    """
    values = {"camera": camera, "frame": frame, "iteration": iteration}
    text = str(pattern)

    def put(match: re.Match[str]) -> str:
        key, width = _key(match)
        value = values[key]
        if value is None:
            raise InputError(f"{shown(text)} has a place for the {key}, which has no value here")
        return str(value).zfill(width) if key != "camera" else str(value)

    return _PLACE.sub(put, text)


def fields(pattern: Target) -> set[str]:
    """What a pattern has places for.

    Example:
        >>> sorted(fields("view-f%f-c%c.png"))
        ['camera', 'frame']
    """
    return {_key(match)[0] for match in _PLACE.finditer(str(pattern))}


def find_frames(pattern: Target, camera: str | int) -> list[int]:
    """Frames of a camera for which there are files, in order.

    Args:
        pattern: With a place for the frame, in the file's name or in a folder's.
        camera: Its name or number.

    Raises:
        InputError: If the pattern has no place for the frame, or one for the iteration.
    """
    text = str(pattern)
    if "frame" not in fields(text):
        raise InputError(f"{shown(text)} has no place for the frame, expected %f or {{frame}}")
    return sorted({number for number, _ in _walk(text, camera)})


def _walk(text: str, camera: str | int) -> list[tuple[int, Path]]:
    """Frames and files, found folder by folder."""
    parts = Path(text).parts
    found: list[tuple[int | None, Path]] = [(None, Path(parts[0]))] if _rooted(text) else []
    rest = parts[1:] if found else parts
    found = found or [(None, Path())]
    for part in rest:
        found = [step for frame, folder in found for step in _step(folder, part, camera, frame)]
    return [(frame, path) for frame, path in found if frame is not None and path.is_file()]


def _rooted(text: str) -> bool:
    return bool(Path(text).anchor)


def _step(
    folder: Path, part: str, camera: str | int, frame: int | None
) -> list[tuple[int | None, Path]]:
    """What one part of a pattern stands for in a folder."""
    if frame is not None or "frame" not in fields(part):
        path = folder / fill(part, camera=camera, frame=frame)
        return [(frame, path)] if path.exists() else []
    expression, widths = _expression(part, camera)
    out: list[tuple[int | None, Path]] = []
    try:
        names = [entry.name for entry in (folder or Path()).iterdir()]
    except OSError:
        return []
    for name in names:
        match = expression.fullmatch(name)
        if match is None:
            continue
        numbers = {int(text) for text in match.groups()}
        padded = all(
            text == str(int(text)).zfill(w) for text, w in zip(match.groups(), widths, strict=True)
        )
        if len(numbers) == 1 and padded:
            out.append((numbers.pop(), folder / name))
    return out


def _expression(part: str, camera: str | int) -> tuple[re.Pattern[str], list[int]]:
    """A regular expression for names, with a group for each frame number, and their widths."""
    out, done, widths = "", 0, []
    for match in _PLACE.finditer(part):
        key, width = _key(match)
        out += re.escape(part[done : match.start()])
        done = match.end()
        if key == "frame":
            out += "([0-9]{1,18})"
            widths.append(width)
        else:
            out += re.escape(fill(match[0], camera=camera))
    return re.compile(out + re.escape(part[done:])), widths


def _key(match: re.Match[str]) -> tuple[str, int]:
    """What a place is for, and how many digits its number has at least."""
    return match[1] or _PERCENT[match[0]], int(match[2] or 0)


def missing_file(pattern: Target, camera: str | int, frame: int) -> InputError:
    """The error for a frame that a camera doesn't have."""
    name = display_name(fill(pattern, camera=camera, frame=frame))
    return InputError(f"no such file: frame {frame} of camera {camera} is missing", path=name)
