"""Scenes of the original occupancy-map program (``.pom``) and its results (``.dat``).

A line of a ``.pom`` file is a keyword and its values, separated by spaces, tabs or commas; lines
that begin with ``#`` are comments. Rectangles in files include their last column and row; here
they end before it (``right`` and ``bottom`` are exclusive).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from proxfield.core.common.arrays import Doubles, Ints
from proxfield.errors import InputError, shown
from proxfield.io.files import Source, Target, atomic_write, display_name, naming, read_bytes
from proxfield.io.tokens import Tokens

Fits = tuple[str, Callable[[float], bool]] | None
SHARE: Fits = ("a probability", lambda x: 0 <= x <= 1)
SETTINGS: dict[str, tuple[str, Fits]] = {
    "PRIOR": ("prior", ("a probability above 0 and below 1", lambda x: 0 < x < 1)),
    "SIGMA_IMAGE_DENSITY": ("variance", ("a number above 0", lambda x: 0 < x < math.inf)),
    "SMOOTHING_COEFFICIENT": ("smoothing", SHARE),
    "MAX_NB_SOLVER_ITERATIONS": ("max_iters", None),
    "ERROR_MAX": ("tol", ("a number above 0", lambda x: 0 <= x < math.inf)),
    "NB_STABLE_ERROR_FOR_CONVERGENCE": ("n_stable", None),
    "PROBA_IGNORED": ("ignored", SHARE),
}
"""Keywords with one number: the attribute, and what it has to be (None: a whole number)."""
FORMATS = {
    "INPUT_VIEW_FORMAT": "input_format",
    "RESULT_FORMAT": "result_format",
    "RESULT_VIEW_FORMAT": "result_view_format",
    "CONVERGENCE_VIEW_FORMAT": "convergence_view_format",
}
"""Keywords with a pattern for names of files."""
KEYWORDS = ("ROOM", "CAMERA", "RECTANGLE", "PROCESS", *FORMATS, *SETTINGS)
HIDDEN = b"notvisible"
MAX_LOCATIONS = 100_000_000
MAX_FRAMES = 10_000_000
"""Frames of a PROCESS line."""
MAX_WHOLE = 999_999_999_999
"""The largest number that is read; an int64 has room for it."""
MAX_PIXELS = 1_000_000
"""Columns or rows of an image."""
# numbers that can't be in a rectangle, for reading those of many lines at once; short and
# without a sign, which `Tokens` reads fastest
_END = 99_999_999
_NOT_VISIBLE = 88_888_888
_WHOLE = re.compile(r"[+-]?[0-9]{1,12}")


@dataclass(frozen=True, eq=False)
class PomFile:
    """What a ``.pom`` file says."""

    cameras: tuple[int, ...]  # their numbers
    sizes: tuple[tuple[int, int], ...]  # width and height of each camera's images
    boxes: tuple[Ints, ...]  # left, top, right, bottom (both exclusive), 0 if not seen: (n, 4) each
    input_format: str | None = None  # pattern for the masks' names, with ``%c`` and ``%f``
    result_format: str | None = None  # pattern for the names of results, with ``%f``
    result_view_format: str | None = None  # pattern for pictures of results
    convergence_view_format: str | None = None  # pattern for a picture per iteration, with ``%i``
    prior: float = 0.01  # probability that somebody is at a location
    variance: float = 0.01  # SIGMA_IMAGE_DENSITY
    smoothing: float = 0.8  # SMOOTHING_COEFFICIENT: weight of the former q in an update
    max_iters: int = 100
    tol: float = 1e-4  # ERROR_MAX: q has settled when it changes by less
    n_stable: int = 5  # number of such iterations before the program stops
    ignored: float = 1.0  # locations whose probability of absence is greater are ignored
    process: tuple[tuple[int, int], ...] = ()  # first frame and number of frames of each PROCESS
    folder: Path = Path()  # the folder of the file, which names of files are relative to

    @property
    def n_locations(self) -> int:
        """Number of locations."""
        return len(self.boxes[0])

    @property
    def frames(self) -> list[int]:
        """Frames of all PROCESS lines, in their order."""
        return [frame for first, count in self.process for frame in range(first, first + count)]

    def resolve(self, pattern: str) -> str:
        """A pattern of the file as a path from here."""
        return str(self.folder / pattern)


def read_pom(source: Source, *, size: tuple[int, int] | None = None, clip: bool = False) -> PomFile:
    """Read a ``.pom`` file, or WILDTRACK's ``rectangles.pom``.

    Args:
        source: A path, ``"-"`` for standard input, or an open binary file.
        size: Width and height of all images, for a file without ROOM: its cameras and locations
            are then those of its rectangles.
        clip: Cut rectangles at the borders of the image; otherwise one that reaches outside is
            an error.

    Raises:
        InputError: If the file can't be read, with the line of what is wrong.

    Example:
        >>> import io
        >>> pom = read_pom(io.BytesIO(b"ROOM 4 3 1 2\\nRECTANGLE 0 1 0 0 1 2\\n"))
        >>> pom.boxes[0].tolist()
        [[0, 0, 0, 0], [0, 0, 2, 3]]
    """
    data, name = read_bytes(source)
    folder = Path(source).parent if isinstance(source, (str, Path)) and source != "-" else Path()
    with naming(name):
        return _Reader(data, name).read(size, clip, folder)


class _Reader:
    """Keywords first, then all rectangles at once: there may be millions."""

    def __init__(self, data: bytes, name: str) -> None:
        self.name = name
        if b"\0" in data:
            raise InputError("binary data, expected the text of a .pom file")
        self.rectangles: list[bytes] = []
        self.lines: list[int] = []
        self.room: tuple[int, int, int, int] | None = None
        self.cameras: dict[int, tuple[int, int]] = {}
        self.formats: dict[str, str] = {}
        self.settings: dict[str, float | int] = {}
        self.process: list[tuple[int, int]] = []
        text = data.removeprefix(b"\xef\xbb\xbf").replace(b",", b" ")
        for number, line in enumerate(text.splitlines(), 1):
            if (bare := line.lstrip()).startswith(b"RECTANGLE"):
                self.rectangles.append(bare)
                self.lines.append(number)
            elif not line.startswith(b"#") and (words := line.decode("utf-8", "replace").split()):
                with naming(name, number):
                    self._keyword(words)

    def _keyword(self, words: list[str]) -> None:
        key, values = words[0], words[1:]
        if key not in KEYWORDS:
            raise InputError(
                f"unknown keyword {shown(key)}, expected one of: {', '.join(KEYWORDS)}"
            )
        need = {"ROOM": 4, "CAMERA": 3, "PROCESS": 2}.get(key, 1)
        if len(values) != need:
            raise InputError(f"{key} has {len(values)} values, expected {need}")
        if key in FORMATS:
            self.formats[FORMATS[key]] = values[0]
        elif key in SETTINGS:
            attribute, fits = SETTINGS[key]
            if fits is None:
                self.settings[attribute] = self._whole(key, values[0], 1)
                return
            try:
                value = float(values[0])
            except ValueError:
                value = math.nan
            if not fits[1](value):
                raise InputError(f"{key} is {shown(values[0])}, expected {fits[0]}")
            self.settings[attribute] = value
        elif key == "PROCESS":
            first = self._whole(key, values[0], 0)
            count = self._whole(key, values[1], 0, most=MAX_FRAMES)
            self.process.append((first, count))
        elif key == "CAMERA":
            camera, width, height = (
                self._whole(key, v, least) for v, least in zip(values, (0, 1, 1), strict=True)
            )
            if camera in self.cameras:
                raise InputError(f"camera {camera} is given twice")
            self._check_size(width, height)
            self.cameras[camera] = (width, height)
        else:
            if self.room is not None:
                raise InputError("ROOM is given twice")
            width, height = (self._whole(key, v, -1) for v in values[:2])
            if (width, height) != (-1, -1) and min(width, height) < 1:
                raise InputError(
                    f"ROOM of {width}×{height} pixels, expected a size, or -1 -1 and CAMERA lines"
                )
            self._check_size(width, height)
            count, locations = (self._whole(key, v, 1) for v in values[2:])
            if locations * count > MAX_LOCATIONS:
                raise InputError(f"ROOM of {count} cameras and {locations} locations")
            self.room = (width, height, count, locations)

    def _check_size(self, width: int, height: int) -> None:
        if max(width, height) > MAX_PIXELS:
            raise InputError(f"images of {width}×{height} pixels, expected smaller ones")

    def _whole(self, key: str, word: str, least: int, most: int = MAX_WHOLE) -> int:
        value = int(word) if _WHOLE.fullmatch(word) else least - 1
        if not least <= value <= most:
            raise InputError(f"{key} has {shown(word)}, expected a whole number, {least} to {most}")
        return value

    def read(self, size: tuple[int, int] | None, clip: bool, folder: Path) -> PomFile:
        numbers = self._numbers()
        sizes, locations = self._sizes(size, numbers)
        ids = tuple(sizes)
        known = {camera: k for k, camera in enumerate(ids)}
        boxes = np.zeros((len(ids), locations, 4), dtype=np.int64)
        if len(numbers):
            camera, location, rest = numbers[:, 0], numbers[:, 1], numbers[:, 2:]
            order = np.array(sorted(known), dtype=np.int64)
            place = np.minimum(np.searchsorted(order, camera), len(order) - 1)
            self._refuse(order[place] != camera, "unknown camera {0}", numbers)
            self._refuse(
                (location < 0) | (location >= locations),
                f"location {{1}}, expected 0 to {locations - 1}",
                numbers,
            )
            index = np.array([known[c] for c in order])[place]
            limits = np.array([sizes[c] for c in ids])[index]
            hidden = (rest == _NOT_VISIBLE).any(axis=1)
            reversed_ = ~hidden & (rest[:, 2:] < rest[:, :2]).any(axis=1)
            self._refuse(reversed_, "an empty rectangle, {2} {3} {4} {5}", numbers)
            outside = (rest[:, :2] < 0).any(axis=1) | (rest[:, 2:] >= limits).any(axis=1)
            if not clip:
                self._refuse(
                    outside & ~hidden,
                    "the rectangle {2} {3} {4} {5} reaches outside of the image of camera {0}, "
                    "{w}×{h} pixels",
                    numbers,
                    limits,
                )
            low = np.maximum(rest[:, :2], 0)
            high = np.minimum(rest[:, 2:] + 1, limits)
            hidden |= (high <= low).any(axis=1)
            found = np.concatenate([low, high], axis=1)
            found[hidden] = 0
            boxes[index, location] = found
        return PomFile(
            ids,
            tuple(sizes.values()),
            tuple(boxes),
            process=tuple(self.process),
            folder=folder,
            **self.formats,  # type: ignore[arg-type]
            **self.settings,  # type: ignore[arg-type]
        )

    def _refuse(
        self, wrong: np.ndarray, message: str, numbers: Ints, limits: Ints | None = None
    ) -> None:
        """Raise an error for the first rectangle that is wrong."""
        if wrong.any():
            k = int(np.flatnonzero(wrong)[0])
            w, h = (0, 0) if limits is None else limits[k].tolist()
            raise InputError(message.format(*numbers[k].tolist(), w=w, h=h), line=self.lines[k])

    def _sizes(
        self, size: tuple[int, int] | None, numbers: Ints
    ) -> tuple[dict[int, tuple[int, int]], int]:
        """Sizes by camera, and the number of locations."""
        if self.room is None:
            if size is None:
                raise InputError("has no ROOM line, expected one, or the size of the images")
            if not len(numbers):
                raise InputError("has neither ROOM nor RECTANGLE lines")
            ids = sorted(self.cameras) or np.unique(numbers[:, 0]).tolist()
            locations = max(0, int(numbers[:, 1].max())) + 1
            if locations > MAX_LOCATIONS:
                raise InputError(f"location {locations - 1}, expected fewer")
            return {c: self.cameras.get(c, size) for c in ids}, locations
        width, height, count, locations = self.room
        if self.cameras:
            if len(self.cameras) != count:
                raise InputError(
                    f"has {len(self.cameras)} CAMERA lines, expected {count} as ROOM says"
                )
            return self.cameras, locations
        if width < 0:
            raise InputError("ROOM leaves the size to CAMERA lines, but there are none")
        return dict.fromkeys(range(count), (width, height)), locations

    def _numbers(self) -> Ints:
        """Six numbers per RECTANGLE line; _NOT_VISIBLE for the sides of one that isn't visible."""
        if not self.rectangles:
            return np.zeros((0, 6), dtype=np.int64)
        text = (b" %d " % _END).join(self.rectangles) + b" %d" % _END
        text = text.replace(b"RECTANGLE", b"").replace(HIDDEN, 4 * (b" %d" % _NOT_VISIBLE))
        try:
            found = Tokens(text, self.name).numbers
        except InputError:
            found = np.zeros(0)
        if found.size == 7 * len(self.rectangles):
            rows = found.reshape(-1, 7)
            small = (np.abs(rows) <= _END) & (rows == np.rint(rows))  # NaN and 1e300 aren't
            if (rows[:, 6] == _END).all() and small.all():
                return rows[:, :6].astype(np.int64)
        out = []  # line by line, to find what is wrong
        for number, line in zip(self.lines, self.rectangles, strict=True):
            words = line.decode("utf-8", "replace").split()
            if len(words) == 4 and words[3] == "notvisible":
                words = [*words[:3], *[str(_NOT_VISIBLE)] * 4]
            with naming(self.name, number):
                if words[0] != "RECTANGLE":
                    raise InputError(f"unknown keyword {shown(words[0])}")
                if len(words) != 7:
                    raise InputError(
                        f"RECTANGLE has {len(words) - 1} values, expected a camera, a location, "
                        "and notvisible or xmin ymin xmax ymax"
                    )
                out.append([self._whole("RECTANGLE", w, -_END, _END) for w in words[1:]])
        return np.array(out, dtype=np.int64)


def format_pom(pom: PomFile) -> str:
    """The text of a ``.pom`` file."""
    same = len(set(pom.sizes)) == 1 and pom.cameras == tuple(range(len(pom.cameras)))
    width, height = pom.sizes[0] if same else (-1, -1)
    lines = [f"ROOM {width} {height} {len(pom.cameras)} {pom.n_locations}", ""]
    if not same:
        pairs = zip(pom.cameras, pom.sizes, strict=True)
        lines += [*(f"CAMERA {camera} {w} {h}" for camera, (w, h) in pairs), ""]
    for camera, boxes in zip(pom.cameras, pom.boxes, strict=True):
        for k, (left, top, right, bottom) in enumerate(boxes.tolist()):
            seen = right > left and bottom > top
            what = f"{left} {top} {right - 1} {bottom - 1}" if seen else "notvisible"
            lines.append(f"RECTANGLE {camera} {k} {what}")
    lines.append("")
    for key, attribute in FORMATS.items():
        pattern = getattr(pom, attribute)
        if pattern is not None:
            if len(pattern.replace(",", " ").split()) != 1 or not pattern.isprintable():
                raise InputError(
                    f"{key} {shown(pattern)}: a .pom file has no names with spaces or commas"
                )
            lines.append(f"{key} {pattern}")
    lines += [f"{key} {getattr(pom, attribute)!r}" for key, (attribute, _) in SETTINGS.items()]
    lines += [f"PROCESS {first} {count}" for first, count in pom.process]
    return "\n".join(lines) + "\n"


def write_pom(path: Target, pom: PomFile) -> None:
    """Write a ``.pom`` file, which the original program reads too."""
    atomic_write(path, format_pom(pom))


def read_dat(source: Source, n_locations: int | None = None) -> Doubles:
    """Probabilities of presence from a ``.dat`` file: a location and its probability per line.

    Args:
        source: A path, ``"-"`` for standard input, or an open binary file.
        n_locations: How many there must be; by default as many as there are lines.

    Raises:
        InputError: If the file can't be read, with the line of what is wrong.
    """
    data, name = read_bytes(source)
    tokens = Tokens(data, name)
    n = tokens.count // 2 if n_locations is None else n_locations
    if tokens.count != 2 * n:
        raise InputError(
            f"has {tokens.count} numbers, expected a location and a probability for each of "
            f"{n} locations",
            path=name,
        )
    index, q = tokens.numbers[0::2], tokens.numbers[1::2]
    wrong = ~((index >= 0) & (index < n) & (index == np.rint(index)))
    if wrong.any():
        raise tokens.error(f"is no location, expected 0 to {n - 1}", 2 * int(wrong.argmax()))
    bad = ~((q >= 0) & (q <= 1))
    if bad.any():
        raise tokens.error("is no probability, expected 0 to 1", 2 * int(bad.argmax()) + 1)
    place = index.astype(np.int64)
    if len(np.unique(place)) != n:
        twice = int(np.bincount(place).argmax())
        raise InputError(f"location {twice} is given twice", path=name)
    out = np.empty(n)
    out[place] = q
    return out


def write_dat(path: Target, q: ArrayLike) -> None:
    """Write probabilities of presence as the original program does, with nine digits.

    Args:
        path: Where to write.
        q: One probability per location.  # (n,)
    """
    values: Sequence[float] = np.asarray(q, dtype=float).ravel().tolist()
    if not all(0 <= v <= 1 for v in values):
        raise InputError("probabilities outside of 0 to 1", path=display_name(path))
    atomic_write(path, "".join(f"{k} {v:.9g}\n" for k, v in enumerate(values)))
