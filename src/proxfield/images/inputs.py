"""From what people have to unary energies: logits, masks, smaller maps, batches of one.

`read_inputs` finds the one way to read an image and the array that goes with it, and returns the
energies with what is needed to give results the form of that array.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import TYPE_CHECKING, TypedDict

import numpy as np
from numpy.typing import ArrayLike, NDArray

from proxfield.core.common.arrays import Array, Pixels
from proxfield.core.common.logs import log
from proxfield.core.filters.plan import MAX_DIMENSIONS
from proxfield.errors import InputError, shown
from proxfield.images.arrays import ArrayKind, named_axes, to_host
from proxfield.images.known import CONFIDENCE, are_labels, as_confident, check_confidence
from proxfield.images.pixels import (
    Axes,
    axis_candidates,
    find_axes,
    into_energies,
    is_reduced,
    logits_into_energies,
    mask_rows,
    numbers,
    possible_axes,
    readings,
    reduced_axes,
    resize_linear,
    rows,
    sums_to_one,
)
from proxfield.io.images import pillow_pixels

if TYPE_CHECKING:
    from proxfield.images.settings import DenseSettings

FLAT = 2
"""Axes of a flat image."""


@dataclass(frozen=True)
class Form:
    """The form of the array that a caller gave, for results in the same form.

    Attributes:
        pixels: Shape of a label map.
        labels_axis: The axis of labels, without a first axis that counts images; None: a mask,
            probabilities of foreground.
        shape: Shape of all probabilities, at the size of the image.
    """

    pixels: tuple[int, ...]
    labels_axis: int | None
    shape: tuple[int, ...]


@dataclass(frozen=True)
class DenseInputs:
    """What a dense CRF is made of.

    Attributes:
        table: Energies, one row per pixel.  # (n, labels)
        image: The image; None without.
        axes: Where pixels and channels are in it.
        form: That of the results.
        original: The kind of array that results should be.
        confidence: The probability of labels that were given in place of probabilities; None if
            these were probabilities indeed.
    """

    table: NDArray[np.float32]
    image: Pixels | None
    axes: Axes
    form: Form
    original: ArrayKind
    confidence: float | None = None


class Reading(TypedDict, total=False):
    """How the arrays of a dense CRF are read; see `DenseCRF`."""

    labels_axis: int | str | None
    channel_axis: int | str | None
    batch: bool | None
    spacing: float | Sequence[float]
    origin: int | Sequence[int]
    clip: float
    normalize: bool


READING: Reading = {
    "labels_axis": "auto",
    "channel_axis": "auto",
    "batch": None,
    "spacing": 1.0,
    "origin": 0,
    "clip": 1e-5,
    "normalize": False,
}
"""Where nothing is said."""


def read_inputs(
    image: Array,
    given: dict[str, ArrayLike | None],
    options: Reading,
    settings: DenseSettings,
) -> DenseInputs:
    """Energies from probabilities, logits or energies, in any form that people have them in.

    Args:
        image: The image, or None.
        given: Probabilities, logits and energies by name; one of them isn't None.
        options: How to read them; all of `READING`.
        settings: What has one number per axis of pixels tells how many axes there are; and the
            probability of labels that are given in place of probabilities.
    """
    labels_axis, channel_axis = options["labels_axis"], options["channel_axis"]
    confidence = CONFIDENCE if settings.confidence is None else settings.confidence
    per_axis = (options["spacing"], settings.spatial_sigma, settings.bilateral_sigma)
    there = [(name, value) for name, value in given.items() if value is not None]
    if len(there) != 1:
        *names, last = given
        raise InputError(f"a dense CRF needs {', '.join(names)} or {last}, one of them")
    what, unary = there[0]
    picture = None if image is None else _host_numbers(image, "the image")
    values = _host_numbers(unary, what)
    original = ArrayKind.of(unary)
    named = named_axes(image, unary)
    if named is not None:
        labels_axis = named[0] if labels_axis == "auto" else labels_axis
        channel_axis = named[1] if channel_axis == "auto" else channel_axis
    lengths = [np.size(option) for option in per_axis if np.ndim(option) == 1]
    n_axes = lengths[0] if lengths else None
    first = _first_axis(picture, values, what, labels_axis, options["batch"], n_axes)
    if first:
        labels_axis = _shifted(labels_axis, values.ndim)
        values = values[0]
        if picture is not None and picture.ndim > FLAT and len(picture) == 1:
            channel_axis = _shifted(channel_axis, picture.ndim)
            picture = picture[0]
    axes = _read(picture, values, what, labels_axis, channel_axis)
    axis, pixels = None if axes.mask else axes.labels, axes.pixels
    assumed = None
    if (
        what != "energies"
        and confidence < 1
        and are_labels([values], axis, what, options["normalize"])
    ):
        check_confidence(confidence, 2 if axis is None else values.shape[axis])
        values, assumed = as_confident(values, axis, what, confidence), confidence
    if axes.reduced:
        along = [k for k in range(values.ndim) if k != axes.labels]
        sizes = ("×".join(map(str, n)) for n in ([values.shape[k] for k in along], pixels))
        form = "%s of %s pixels are enlarged to %s, by linear interpolation"
        log.info(form, what, *sizes)
        values = resize_linear(values, pixels, along)
    if axis is None:
        table = mask_rows(values, pixels, logits=what == "logits")
    else:
        table = rows(values, axis, fresh=what != "energies")
    if what == "logits":
        logits_into_energies(table, pixels, options["clip"])
    elif what == "probabilities":
        into_energies(table, pixels, options["clip"], options["normalize"] and not axes.mask)
    form = Form(pixels, axis, (1,) * first + values.shape)
    return DenseInputs(table, picture, axes, form, original, assumed)


def confidence_note(what: str, confidence: float, of: str = "") -> str:
    """What to say about probabilities that are labels.

    Args:
        what: "probabilities" or "logits".
        confidence: The probability that is assumed.
        of: Of which images.

    Example:
        >>> confidence_note("probabilities", 0.7, " of 2 images")[:60]
        'probabilities of 2 images are all 0 or 1: taken as labels th'
    """
    certain = "are all 0 or 1" if what == "probabilities" else "leave no label in doubt"
    return (
        f"{what}{of} {certain}: taken as labels that are right with probability {confidence:g}; "
        "confidence= sets it (1 takes them as certain)"
    )


def _host_numbers(given: Array, what: str) -> Pixels:
    """Numbers in host memory; says how to read a file whose name was given in their place."""
    if isinstance(given, str | PathLike):
        readers = {"the image": "image", "probabilities": "probabilities", "logits": "logits"}
        verb = "is" if what == "the image" else "are"
        reader = f"; read it with proxfield.io.images.read_{readers.get(what)}(…)"
        hint = reader if what in readers else ""
        raise InputError(f"{what} {verb} {shown(str(given))}, a file name, expected an array{hint}")
    if what == "the image" and type(given).__module__.startswith("PIL."):
        return numbers(pillow_pixels(given, what, None), what)
    return numbers(to_host(given), what)


def _shifted(axis: int | str | None, ndim: int) -> int | str | None:
    """An axis after the first one is gone."""
    if axis is None or isinstance(axis, str | bool) or axis < 0:
        return axis
    return axis - 1 if 0 < axis < ndim else axis


# ---- batches ----


def _first_axis(
    image: Pixels | None,
    values: Pixels,
    what: str,
    labels_axis: int | str | None,
    batch: bool | None,
    n_axes: int | None,
) -> bool:
    """Whether the first axis counts images, and there is one; several are refused."""
    if batch not in (None, True, False):
        raise InputError(f"batch={shown(batch)}, expected True, False or None")
    if batch is False or (n_axes is not None and n_axes > FLAT and batch is None):
        return False
    count = len(values)
    if batch is None:
        if values.ndim != FLAT + 2 or not _reads_as_batch(image, values, what, labels_axis):
            return False
        if count > 1:
            raise InputError(
                f"{what} of shape {values.shape} may be a batch of {count} images or a volume; "
                "refine_batch(…) refines a batch, batch=False reads a volume"
            )
        return True
    if count > 1:
        raise InputError(f"a DenseCRF holds one image, not a batch of {count}; use refine_batch(…)")
    return True


def _reads_as_batch(
    image: Pixels | None, values: Pixels, what: str, labels_axis: int | str | None
) -> bool:
    """Whether four axes can be those of flat images, with labels in the second or the last."""
    count = len(values)
    if labels_axis == "auto":
        candidates = [1, 3]
    elif labels_axis is None:
        return False
    else:
        candidates = [a for a in axis_candidates(labels_axis, 4, "labels_axis") if a in (1, 3)]
    right = [a for a in candidates if what == "probabilities" and sums_to_one(values, a)]
    if what == "probabilities" and labels_axis == "auto" and sums_to_one(values, 0) and not right:
        return False  # labels first: a volume
    for a in right or candidates:
        pixels = tuple(n for k, n in enumerate(values.shape) if k not in (0, a))
        if image is None:
            return True
        shapes = {(count, *pixels), *([pixels] if count == 1 else [])}
        channels = [k for k in range(image.ndim) if image.shape[k] <= MAX_DIMENSIONS - FLAT]
        rests = {image.shape, *(image.shape[:c] + image.shape[c + 1 :] for c in channels)}
        if shapes & rests:
            return True
        if count == 1 and any(is_reduced(pixels, rest[-FLAT:]) for rest in rests):
            return True
    return False


# ---- one image ----


def _read(
    image: Pixels | None,
    values: Pixels,
    what: str,
    labels_axis: int | str | None,
    channel_axis: int | str | None,
) -> Axes:
    """The way to read them; labels in full size come first, then masks, then smaller maps."""
    given = (values.shape, [None], channel_axis)
    if labels_axis is None:
        if what == "energies":
            raise InputError("labels_axis=None, expected an axis: energies are those of all labels")
        masks = readings(image, *given)
        masks += [] if image is None else readings(image, *given, reduced=True)
        if len(masks) != 1:
            of = "" if image is None else f" for an image of shape {image.shape}"
            raise InputError(
                f"{what} of shape {values.shape}{of}, expected a mask with one number per pixel"
            )
        return masks[0]
    many = values.ndim > 1
    ways = possible_axes(image, values, what, labels_axis, channel_axis) if many else []
    single = [w for w in ways if w.labels is not None and values.shape[w.labels] == 1]
    if single and what != "energies" and not (what == "probabilities" and (values == 1).all()):
        return replace(single[0], mask=True)
    auto = labels_axis == "auto" and what != "energies" and image is not None
    if auto and (what == "probabilities" or not ways):
        masks = readings(image, *given)
        # sums take a while: only where it may be a mask
        if (
            len(masks) == 1
            and (not ways or float(values.max()) <= 1)
            and not (what == "probabilities" and any(sums_to_one(values, a) for a in (0, -1)))
        ):
            return masks[0]
    if not ways and image is not None:
        small = reduced_axes(image, values, what, labels_axis, channel_axis) if many else []
        if not small and auto:
            small = readings(image, *given, reduced=True)
        if len(small) == 1:
            return small[0]
        if small:
            raise InputError(
                f"{what} of shape {values.shape} can be enlarged to the image of shape "
                f"{image.shape} in more than one way; pass labels_axis=0 or -1, or channel_axis"
            )
    return find_axes(image, values, what, labels_axis, channel_axis)


# ---- results ----


def as_given(maps: Pixels, form: Form) -> Pixels:
    """Marginals of all pixels in the form that the caller's array had.

    Args:
        maps: Labels last.  # (*pixels, labels)
        form: The form.
    """
    if form.labels_axis is None:
        return maps[..., 1].reshape(form.shape)
    return np.moveaxis(maps, -1, form.labels_axis).reshape(form.shape)


def as_rows(values: Pixels, form: Form) -> NDArray[np.float32]:
    """The inverse of `as_given`: one row per pixel.  # (n, labels)"""
    if form.labels_axis is None:
        return mask_rows(values, form.pixels)
    lead = len(form.shape) - len(form.pixels) - 1
    return rows(values.reshape(form.shape[lead:]), form.labels_axis)
