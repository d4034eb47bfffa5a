"""What the studio works on: an image, what is known about its pixels, and where that came from."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from proxfield.core.common.arrays import Pixels
from proxfield.core.common.records import Record
from proxfield.errors import InputError
from proxfield.images.densecrf import DenseCRF
from proxfield.images.known import CONFIDENCE
from proxfield.io import images

READERS = {
    "probabilities": "read_probabilities",
    "logits": "read_logits",
    "labels": "read_labels",
}
"""Functions of `proxfield.io.images` by what they read."""


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
    titles: tuple[str, str, str | None] | None = None,
) -> StudioInputs:
    """Inputs from files.

    Args:
        image: A picture or an array: a path, or an open binary file.
        unary: Probabilities, logits or labels; likewise.
        what: Which of these.
        truth: True labels; likewise.
        scribbles: Labels of known pixels; likewise.
        names: Names of the labels.
        build: As for `StudioInputs`.
        from_labels: As for `StudioInputs`.
        titles: What to call the image, the unary and the truth; by default their paths.

    Raises:
        InputError: If a file can't be read; the message names it.
    """
    if titles is None:
        titles = (str(image), str(unary), None if truth is None else str(truth))

    def read(source: object, reader: str, title: str | None) -> Pixels:
        try:
            found = getattr(images, reader)(source)
        except InputError as error:
            raise InputError(error.message, path=title) from None
        return found[0] if reader == "read_labels" else found  # type: ignore[no-any-return]

    picture = read(image, "read_image", titles[0])
    if picture.ndim not in (2, 3):
        raise InputError(
            f"has {picture.ndim} axes, expected a flat image, gray or with channels",
            path=titles[0],
        )
    return StudioInputs(
        picture,
        read(unary, READERS[what], titles[1]),
        what,
        build or {},
        from_labels or {},
        None if truth is None else read(truth, "read_labels", titles[2]),
        None if scribbles is None else read(scribbles, "read_labels", str(scribbles)),
        names,
        *titles,
    )


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
    truth = _draw_truth()
    return StudioInputs(_paint(truth, rng), _classify(truth, rng), truth=truth, names=NAMES)


def _draw_truth() -> NDArray[np.uint8]:
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
    return truth


def _paint(truth: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.uint8]:
    from scipy.ndimage import gaussian_filter

    height, width = SHAPE
    y, x = np.mgrid[:height, :width]
    image = np.array(COLORS, dtype=np.float64)[truth]
    image += 28 * (0.5 - y / height)[..., None] + 14 * (x / width - 0.5)[..., None]
    texture = gaussian_filter(rng.normal(size=SHAPE), 2.5)
    strength = np.array([5.0, 13.0, 12.0, 9.0, 16.0])[truth]
    image += (strength * texture / texture.std())[..., None]
    image += rng.normal(scale=8.0, size=image.shape)
    return np.asarray(image.round().clip(0, 255), dtype=np.uint8)


def _classify(truth: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.float32]:
    """Scores that are blurred like a network's small maps, with patches of doubt."""
    from scipy.ndimage import gaussian_filter

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
