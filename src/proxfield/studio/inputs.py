"""What the studio works on: an image, what is known about its pixels, and where that came from."""

from __future__ import annotations

from dataclasses import dataclass, field

from proxfield.core.common.arrays import Pixels
from proxfield.core.common.records import Record
from proxfield.errors import InputError
from proxfield.images.densecrf import DenseCRF
from proxfield.images.known import CONFIDENCE

READERS = {
    "probabilities": "read_probabilities",
    "logits": "read_logits",
    "labels": "read_labels",
}
"""Functions of `proxfield.io.images` by what they read."""


@dataclass(frozen=True)
class Inputs:
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


def demo_inputs(seed: int = 0) -> Inputs:
    """The generated scene."""
    from proxfield.studio.scene import NAMES, demo_scene

    scene = demo_scene(seed)
    return Inputs(scene.image, scene.probabilities, truth=scene.truth, names=NAMES)


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
) -> Inputs:
    """Inputs from files.

    Args:
        image: A picture or an array: a path, or an open binary file.
        unary: Probabilities, logits or labels; likewise.
        what: Which of these.
        truth: True labels; likewise.
        scribbles: Labels of known pixels; likewise.
        names: Names of the labels.
        build: As for `Inputs`.
        from_labels: As for `Inputs`.
        titles: What to call the image, the unary and the truth; by default their paths.

    Raises:
        InputError: If a file can't be read; the message names it.
    """
    from proxfield.io import images

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
    return Inputs(
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
