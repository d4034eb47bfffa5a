"""What the studio works on: an image, what is known about its pixels, and strokes of a brush.

Files from the browser are checked before they are decoded, and kept nowhere else. A client's file
name is text for messages and for code; it is never part of a path here.
"""

from __future__ import annotations

import secrets
import warnings
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

from proxfield.core.common.arrays import Pixels
from proxfield.core.common.records import Record
from proxfield.errors import InputError
from proxfield.images.densecrf import DenseCRF
from proxfield.images.inputs import CONFIDENCE, NO_STROKE, runs_of
from proxfield.io import images
from proxfield.io.files import display_name, naming_damage

READERS = {
    "probabilities": "read_probabilities",
    "logits": "read_logits",
    "labels": "read_labels",
}
"""Functions of `proxfield.io.images` by what they read."""
FORMATS = ("PNG", "JPEG", "TIFF", "BMP", "WEBP")
"""Formats of pictures; Pillow knows others, whose readers start programs."""
MAX_PIXELS = 2**24
"""Maximum number of pixels of a picture."""
EXPANSION = 8
"""An archive may hold so many times the bytes of the largest upload."""
LONGEST_NAME = 80


@dataclass(frozen=True)
class StudioInputs:
    """An image with what a classifier says about it.

    Attributes:
        image: The pixels.  # (height, width), (height, width, channels) or channels first
        unary: Probabilities, logits or a label map.
        what: Which of these: "probabilities", "logits" or "labels".
        build: Options of `DenseCRF` about the arrays: labels_axis, channel_axis, normalize,
            confidence.
        from_labels: Options of `DenseCRF.from_labels`, for label maps.
        truth: True labels, if they are known; 255 where they aren't.  # (height, width)
        scribbles: Labels of pixels that are known from the start; 255 elsewhere.
        names: Names of the labels, as many as are known.
        image_name: The image's file, for messages and for the code; None: the generated scene.
        unary_name: The file of probabilities, logits or labels.
    """

    image: Pixels
    unary: Pixels
    what: str = "probabilities"
    build: Record = field(default_factory=dict)
    from_labels: Record = field(default_factory=dict)
    truth: Pixels | None = None
    scribbles: Pixels | None = None
    names: tuple[str, ...] = ()
    image_name: str | None = None
    unary_name: str = ""
    truth_name: str | None = None

    @property
    def options(self) -> Record:
        """Keyword arguments of `DenseCRF`, or of `from_labels`, beside the arrays."""
        batch = None if self.unary.shape[:1] == (1,) else False  # a file is one image
        more = self.from_labels if self.what == "labels" else {}
        return {**more, **self.build, "batch": batch}

    def make_field(self, **options: object) -> DenseCRF:
        """The dense CRF of these inputs, with more options of `DenseCRF`."""
        given: Record = {**self.options, **options}
        if self.what == "labels":
            return DenseCRF.from_labels(self.image, self.unary, **given)
        given[self.what] = self.unary
        given["confidence"] = given.get("confidence") or CONFIDENCE  # said in the page, not warned
        return DenseCRF(self.image, **given)


def read_files(
    image: object,
    unary: object,
    what: str,
    *,
    truth: object = None,
    scribbles: object = None,
    names: tuple[str, ...] = (),
    build: Record | None = None,
    from_labels: Record | None = None,
    titles: Mapping[str, str] | None = None,
) -> StudioInputs:
    """Inputs from files.

    Args:
        image: A picture or an array.
        unary: Probabilities, logits or labels.
        what: Which of these.
        truth: True labels.
        scribbles: Labels of known pixels.
        names: Names of the labels.
        build: As for `StudioInputs`.
        from_labels: As for `StudioInputs`.
        titles: What to call the files, by the names of these arguments; by default their paths.

    Raises:
        InputError: If a file can't be read; the message names it.
    """
    given = {"image": image, "unary": unary, "truth": truth, "scribbles": scribbles}
    called = {name: str(path) for name, path in given.items() if path is not None}
    called |= titles or {}
    found: Record = {}
    for name, title in called.items():
        reader = {"image": "read_image", "unary": READERS[what]}.get(name, "read_labels")
        try:
            read = getattr(images, reader)(given[name])
        except InputError as error:
            raise InputError(error.message, path=title) from None
        found[name] = read[0] if reader == "read_labels" else read
        if name == "image" and read.ndim not in (2, 3):
            raise InputError(
                f"has {read.ndim} axes, expected a flat image, gray or with channels", path=title
            )
    found |= {f"{name}_name": called.get(name) for name in ("image", "unary", "truth")}
    found |= {"build": build or {}, "from_labels": from_labels or {}, "names": names}
    return StudioInputs(what=what, **found)


# ---- files of the browser ----


class Upload(NamedTuple):
    """One file from the browser.

    Attributes:
        name: What the client calls it.
        data: Its bytes.
    """

    name: str
    data: bytes

    @property
    def title(self) -> str:
        """The name for messages: the last part of a path, on one line, of limited length.

        Example:
            >>> Upload("../../etc/pass\\nwd.png", b"").title
            'pass\\\\nwd.png'
        """
        last = self.name.replace("\\", "/").rsplit("/", 1)[-1]
        return display_name(last)[-LONGEST_NAME:] or "upload"


def check_upload(upload: Upload, max_bytes: int) -> None:
    """Refuse a file that is too large, also once it is decoded, or that is of no known kind.

    Args:
        upload: The file.
        max_bytes: Maximum size of an upload.

    Raises:
        InputError: If it is refused.
    """
    data, name = upload.data, upload.title
    fault = partial(InputError, path=name)
    if len(data) > max_bytes:
        raise fault(f"has {len(data)} bytes, expected at most {max_bytes} (--max-upload)")
    if images.is_array(data):
        if data.startswith(b"PK"):  # an .npz file may hold more than it seems to
            with naming_damage(name), zipfile.ZipFile(BytesIO(data)) as archive:
                total = sum(entry.file_size for entry in archive.infolist())
            if total > (most := EXPANSION * max_bytes):
                raise fault(f"holds {total} bytes when decompressed, expected at most {most}")
        return
    pillow = images.import_pillow()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", pillow.DecompressionBombWarning)
        try:
            with pillow.open(BytesIO(data), formats=FORMATS) as picture:
                width, height = picture.size
                pages = getattr(picture, "n_frames", 1) if picture.format == "TIFF" else 1
        except (pillow.DecompressionBombError, pillow.DecompressionBombWarning):
            raise fault(f"has too many pixels, expected at most {MAX_PIXELS}") from None
        except (OSError, ValueError, SyntaxError, EOFError, KeyError, TypeError):
            what = "is no image that the studio reads" if data else "is empty"
            raise fault(f"{what}, expected PNG, JPEG, TIFF, .npy or .npz") from None
    if pages > 1:
        raise fault(f"has {pages} pages, expected a flat image")
    if width * height > MAX_PIXELS:
        raise fault(f"has {width * height} pixels, expected at most {MAX_PIXELS}")


def read_uploads(
    files: Mapping[str, Upload], what: str, folder: Path, max_bytes: int
) -> StudioInputs:
    """Inputs from files of the browser.

    Args:
        files: By name: image, unary (probabilities, logits or labels), and truth if it is known.
        what: What the unary is.
        folder: Where files may be written while they are read.
        max_bytes: Maximum size of an upload.
    """
    for upload in files.values():
        check_upload(upload, max_bytes)
    paths = {name: folder / secrets.token_hex(16) for name in files}
    titles = {name: upload.title for name, upload in files.items()}
    try:
        for name, path in paths.items():
            path.write_bytes(files[name].data)
        return read_files(
            paths["image"], paths["unary"], what, truth=paths.get("truth"), titles=titles
        )
    finally:
        for path in paths.values():
            path.unlink(missing_ok=True)


# ---- the generated scene ----

NAMES = ("sky", "mountain", "field", "house", "tree")
"""What the labels stand for."""
SHAPE = (375, 500)
COLORS = ((160, 185, 205), (135, 130, 140), (125, 145, 85), (170, 120, 100), (78, 108, 66))
"""Mean color of each label."""


def demo_inputs(seed: int = 0) -> StudioInputs:
    """A landscape of five labels, and a classifier's probabilities, coarse and partly wrong.

    Args:
        seed: Random seed of the texture and of the classifier's mistakes.

    Example:
        >>> scene = demo_inputs()
        >>> scene.image.shape, scene.unary.shape, int(scene.truth.max())
        ((375, 500, 3), (375, 500, 5), 4)
    """
    rng = np.random.default_rng(seed)
    height, width = SHAPE
    y, x = np.mgrid[:height, :width]
    truth = np.zeros(SHAPE, dtype=np.uint8)
    ridge = 150 - 55 * np.sin(x / 70.0) - 22 * np.sin(x / 23.0 + 1) + 0.05 * x
    truth[y > ridge] = 1
    truth[y > 225 + 14 * np.sin(x / 95.0 + 2)] = 2
    body = (np.abs(x - 335) < 62) & (y > 190) & (y < 290)
    roof = (y <= 190) & (y > 130) & (np.abs(x - 335) < (y - 130) * 1.35)
    chimney = (np.abs(x - 372) < 8) & (y > 120) & (y < 180)
    truth[body | roof | chimney] = 3
    for left, top, size in ((105, 215, 46), (165, 245, 34), (450, 240, 38)):
        crown = (x - left) ** 2 + (1.25 * (y - top)) ** 2 < size**2
        trunk = (np.abs(x - left) < 5) & (y > top) & (y < top + 1.6 * size)
        truth[crown | trunk] = 4
    image = np.array(COLORS, dtype=np.float64)[truth]
    image += 28 * (0.5 - y / height)[..., None] + 14 * (x / width - 0.5)[..., None]
    texture = gaussian_filter(rng.normal(size=SHAPE), 2.5)
    strength = np.array([5.0, 13.0, 12.0, 9.0, 16.0])[truth]
    image += (strength * texture / texture.std())[..., None]
    image += rng.normal(scale=8.0, size=image.shape)
    pixels = np.asarray(image.round().clip(0, 255), dtype=np.uint8)
    return StudioInputs(pixels, _classify(truth, rng), truth=truth, names=NAMES)


def _classify(truth: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.float32]:
    """Scores that are blurred like a network's small maps, with patches of doubt."""
    n_labels = len(NAMES)
    scores = np.empty((*SHAPE, n_labels))
    for label in range(n_labels):
        coarse = gaussian_filter((truth == label).astype(np.float64), 7.0)
        patches = gaussian_filter(rng.normal(size=SHAPE), 14.0)
        speckle = gaussian_filter(rng.normal(size=SHAPE), 1.2)
        scores[..., label] = 4.5 * coarse
        scores[..., label] += 1.3 * patches / patches.std() + 0.6 * speckle / speckle.std()
    scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.asarray(scores / scores.sum(axis=-1, keepdims=True), dtype=np.float32)


# ---- scribbles: strokes of a brush that fix the labels of pixels ----


Points = Sequence[Sequence[float]]
ERASER = -1
"""The label of strokes that take others away."""
MAX_POINTS = 5000
"""Points of a stroke; a browser sends a few hundred."""


@dataclass(frozen=True)
class Stroke:
    """One stroke.

    Attributes:
        label: The label that its pixels get, or `ERASER`.
        points: x and y as shares of the width and the height.  # (n, 2)
        radius: Of the brush, in pixels.
    """

    label: int
    points: Points
    radius: float


def draw(
    strokes: Sequence[Stroke], shape: tuple[int, int], base: Pixels | None = None
) -> NDArray[np.int64] | None:
    """A map of labels, `NO_STROKE` where there is none; None if nothing is drawn.

    Args:
        strokes: In the order in which they were drawn: later ones cover earlier ones.
        shape: Height and width.
        base: Labels that were known before.

    Example:
        >>> print(draw([Stroke(1, [(0.1, 0.5), (0.9, 0.5)], 0.5)], (3, 5)))
        [[255 255 255 255 255]
         [  1   1   1   1   1]
         [255 255 255 255 255]]
    """
    out = np.full(shape, NO_STROKE, dtype=np.int64)
    if base is not None:
        out[:] = base
        out[out < 0] = NO_STROKE
    for stroke in strokes:
        _cover(out, stroke)
    return out if (out != NO_STROKE).any() else None


def _cover(out: NDArray[np.int64], stroke: Stroke) -> None:
    """Label pixels within the radius of the line through the points, and those of the points."""
    height, width = out.shape
    label = NO_STROKE if stroke.label == ERASER else stroke.label
    points = np.asarray(stroke.points[:MAX_POINTS], dtype=np.float64).reshape(-1, 2)
    points = points[np.isfinite(points).all(axis=1)]
    points = np.clip(points, 0.0, 1.0) * (width, height) - 0.5
    if len(points) == 1:
        points = np.repeat(points, 2, axis=0)
    for start, end in pairwise(points):
        low = np.maximum(np.floor(np.minimum(start, end) - stroke.radius), 0).astype(int)
        high = np.ceil(np.maximum(start, end) + stroke.radius).astype(int)
        high = np.minimum(high, (width - 1, height - 1))
        y, x = np.mgrid[low[1] : high[1] + 1, low[0] : high[0] + 1]
        line = end - start
        length = float(line @ line)
        along = ((x - start[0]) * line[0] + (y - start[1]) * line[1]) / length if length else 0.0
        t = np.clip(along, 0.0, 1.0)
        apart = (x - start[0] - t * line[0]) ** 2 + (y - start[1] - t * line[1]) ** 2
        near = apart <= stroke.radius**2
        for point in (start, end):  # a thin brush may pass between the centers of pixels
            near |= (x == round(point[0])) & (y == round(point[1]))
        out[y[near], x[near]] = label


def as_runs(scribbles: NDArray[np.int64]) -> dict[int, tuple[int, ...]]:
    """Each label's pixels as starts and ends of runs in the flattened map; for code.

    Example:
        >>> as_runs(np.array([[255, 2, 2], [255, 255, 0]]))
        {0: (5, 6), 2: (1, 3)}
    """
    labels = np.unique(scribbles[scribbles != NO_STROKE]).tolist()
    return {label: runs_of(scribbles == label) for label in labels}
