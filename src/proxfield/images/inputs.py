"""From what people have to unary energies: logits, masks, smaller maps, batches of one.

`read_inputs` finds the one way to read an image and the array that goes with it, and returns the
energies with what is needed to give results the form of that array.

Probabilities that are all 0 or 1, as masks and one-hot maps have them, are labels: taken as
probabilities, each label is certain, and no update can change a pixel. Such a map is therefore
treated as a label map whose labels are right with some probability.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING, TypedDict

import numpy as np
from numpy.typing import ArrayLike, NDArray

from proxfield.core.common.arrays import Array, Pixels
from proxfield.core.common.checks import is_real
from proxfield.core.common.logs import log
from proxfield.errors import InputError, shown
from proxfield.images.axes import FLAT, Axes, AxisReader, resize_linear
from proxfield.images.pixels import (
    ROWS,
    TOLERANCE,
    into_energies,
    logits_into_energies,
    mask_rows,
    numbers,
    rows,
)
from proxfield.io.images import pillow_pixels

if TYPE_CHECKING:
    from proxfield.images.settings import DenseSettings


IGNORED = 255
"""The value by which label maps usually mark pixels to ignore."""
NO_STROKE = 255
"""The value of scribbles where there is none."""
CONFIDENCE = 0.7
"""The probability that a label is right, where nothing is said."""
NEGLIGIBLE = 1e-5
"""Probabilities up to this count as 0; the default of ``clip``."""
ODDS = -math.log(NEGLIGIBLE)
"""Difference of two logits from which on one of the labels counts as certain."""


@dataclass(frozen=True)
class DenseInputs:
    """What a dense CRF is made of."""

    table: NDArray[np.float32]  # energies, one row per pixel: (n, labels)
    image: Pixels | None
    axes: Axes
    labels_axis: int | None  # without a first axis that counts images; None: a mask
    shape: tuple[int, ...]  # of all probabilities, at the size of the image
    original: ArrayKind  # the kind of array that results should be
    confidence: float | None = None  # of labels in place of probabilities; None: there were none


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
    reader = AxisReader(picture, values, what, labels_axis, channel_axis)
    first = reader.counts_images(options["batch"], n_axes)
    if first:
        labels_axis = _shifted(labels_axis, values.ndim)
        values = values[0]
        if picture is not None and picture.ndim > FLAT and len(picture) == 1:
            channel_axis = _shifted(channel_axis, picture.ndim)
            picture = picture[0]
    axes = AxisReader(picture, values, what, labels_axis, channel_axis).read()
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
        enlarged = "%s of %s pixels are enlarged to %s, by linear interpolation"
        log.info(enlarged, what, *sizes)
        values = resize_linear(values, pixels, along)
    clip = options["clip"]
    if what != "energies" and not 0 <= clip < 1:
        raise InputError(f"clip={shown(clip)}, expected 0 or more and less than 1")
    if axis is None:
        table = mask_rows(values, pixels, logits=what == "logits")
    else:
        table = rows(values, axis, fresh=what != "energies")
    if what == "logits":
        logits_into_energies(table, pixels, clip)
    elif what == "probabilities":
        into_energies(table, pixels, clip, options["normalize"] and not axes.mask)
    shape = (1,) * first + values.shape
    return DenseInputs(table, picture, axes, axis, shape, original, assumed)


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


def fix_labels(
    table: NDArray[np.float32], scribbles: Array, pixels: tuple[int, ...]
) -> NDArray[np.float32]:
    """Energies with some pixels fixed to a label: all others are impossible there.

    Args:
        table: Energies; not changed.  # (n, labels)
        scribbles: A label per pixel; none where it is `NO_STROKE`, or below 0.  # (*pixels)
        pixels: Shape of the image.
    """
    strokes = numbers(to_host(scribbles), "scribbles")
    if strokes.dtype.kind not in "iub":
        raise InputError(f"scribbles must be whole numbers, not {strokes.dtype}")
    if strokes.shape != pixels:
        raise InputError(f"scribbles of shape {strokes.shape}, expected {pixels}, as the image")
    flat = strokes.ravel().astype(np.int64)
    at = np.flatnonzero((flat != NO_STROKE) & (flat >= 0))
    n_labels = table.shape[1]
    if at.size and int(flat[at].max()) >= n_labels:
        worst = int(flat[at].max())
        raise InputError(
            f"scribbles hold label {worst}, expected 0 to {n_labels - 1}, or {NO_STROKE} for "
            "pixels without a stroke"
        )
    out: NDArray[np.float32] = table.copy()
    out[at] = np.inf
    out[at, flat[at]] = 0
    return out


# ---- arrays of other libraries ----

# None of torch, cupy and xarray is imported here: an array that is given has brought its own.


def is_torch(values: object) -> bool:
    """Whether this is a tensor of PyTorch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(values, torch.Tensor)


def is_xarray(values: object) -> bool:
    """Whether this is an array with named dimensions, as xarray has them."""
    return all(hasattr(values, name) for name in ("dims", "coords", "values"))


def is_on_gpu(values: object) -> bool:
    """Whether this is an array in the memory of a GPU that isn't torch's (cupy's, say)."""
    return hasattr(values, "__cuda_array_interface__") and hasattr(values, "get")


def to_host(values: Array) -> Array:
    """What numpy can read: tensors and arrays on a GPU are copied from it, all else stays.

    Example:
        >>> to_host([[1, 2]])
        [[1, 2]]
    """
    if is_xarray(values):
        return to_host(values.data)
    if is_torch(values):
        values = values.detach()
        if not values.dtype.is_complex and values.dtype.itemsize < 4 and values.is_floating_point():
            values = values.float()  # numpy has no bfloat16
        return values.cpu().numpy()
    return values.get() if is_on_gpu(values) else values


@dataclass(frozen=True)
class ArrayKind:
    """The kind of array that a caller gave; makes the same kind from numpy's."""

    given: Array = None  # None for numpy's, lists and all that has no kind of its own

    @classmethod
    def of(cls, values: Array) -> ArrayKind:
        """The kind of an array."""
        if is_xarray(values):
            inner = cls.of(values.data)
            return cls(_Named(type(values), tuple(values.dims), dict(values.coords), inner))
        if is_torch(values) or is_on_gpu(values):
            return cls(values[:0] if values.ndim else values)  # the numbers can be freed
        return cls()

    def restore(self, values: Pixels, without: int | None = None) -> Array:
        """An array of the original's kind, and where that was (its device, its dimensions).

        Args:
            values: The numbers.
            without: An axis of the original that they lack.
        """
        if self.given is None:
            return values
        if isinstance(self.given, _Named):
            return self.given.restore(values, without)
        if is_torch(self.given):
            torch = sys.modules["torch"]
            return torch.from_numpy(np.ascontiguousarray(values)).to(self.given.device)
        library = sys.modules[type(self.given).__module__.partition(".")[0]]
        return library.asarray(values)


@dataclass(frozen=True)
class _Named:
    """Names and coordinates of an xarray, without its values."""

    kind: Callable[..., Array]
    dims: tuple[Hashable, ...]
    coords: dict[Hashable, Array]
    inner: ArrayKind

    def restore(self, values: Pixels, without: int | None) -> Array:
        axis = None if without is None else without % len(self.dims)
        dims = [name for k, name in enumerate(self.dims) if k != axis]
        if len(dims) != np.ndim(values):
            return self.inner.restore(values)
        sizes = dict(zip(dims, np.shape(values), strict=True))
        kept = {
            name: coord
            for name, coord in self.coords.items()
            if all(sizes.get(d) == n for d, n in zip(coord.dims, coord.shape, strict=True))
        }
        return self.kind(self.inner.restore(values), dims=dims, coords=kept)


def named_axes(image: Array, unary: Array) -> tuple[int | None, int | None] | None:
    """Axes of labels and of channels by the names of dimensions; None where these don't tell.

    The dimensions that an image and its probabilities share are the pixels, in the same order;
    what is left of each is its labels or channels.

    Returns:
        The axis of labels and the axis of channels (None: no such axis).
    """
    if not (is_xarray(image) and is_xarray(unary)):
        return None
    shared = [name for name in unary.dims if name in image.dims]
    if not shared or [name for name in image.dims if name in unary.dims] != shared:
        return None
    labels = [k for k, name in enumerate(unary.dims) if name not in shared]
    channels = [k for k, name in enumerate(image.dims) if name not in shared]
    if len(labels) > 1 or len(channels) > 1:
        return None
    return (labels[0] if labels else None), (channels[0] if channels else None)


# ---- labels, which may be given in place of probabilities ----


def check_confidence(confidence: float, n_labels: int | None = None) -> None:
    """Refuse what is no probability above 0, or no more than that of any other label.

    Args:
        confidence: Probability that a label is right.
        n_labels: Number of labels, if it is known.

    Example:
        >>> check_confidence(0.25, n_labels=4)
        Traceback (most recent call last):
        proxfield.errors.InputError: confidence=0.25, expected above 1/4 (4 labels as probable as \
each other) and at most 1
    """
    if not is_real(confidence) or not 0 < confidence <= 1:
        raise InputError(f"confidence={shown(confidence)}, expected above 0 and at most 1")
    if n_labels is not None and n_labels > 1 and confidence * n_labels <= 1:
        raise InputError(
            f"confidence={shown(confidence)}, expected above 1/{n_labels} ({n_labels} labels as "
            "probable as each other) and at most 1"
        )


def runs_of(flags: NDArray[np.bool_]) -> tuple[int, ...]:
    """Starts and ends of the runs of True, one after another.

    Example:
        >>> runs_of(np.array([True, True, False, True]))
        (0, 2, 3, 4)
    """
    padded = np.concatenate([[False], flags.ravel(), [False]])
    return tuple(np.flatnonzero(padded[1:] != padded[:-1]).tolist())


def flags_of(runs: Sequence[int], size: int) -> NDArray[np.bool_]:
    """The inverse of `runs_of`.  # (size,)"""
    flags = np.zeros(size, dtype=bool)
    for start, end in zip(runs[::2], runs[1::2], strict=True):
        flags[start:end] = True
    return flags


def find_ignored(
    labels: Pixels, ignore: int | str | None, unsure: int | None, n_labels: int | None
) -> int | None:
    """The value of pixels to leave out of consideration; None if there is none.

    Args:
        labels: A label map.
        ignore: A value, None, or "auto"; see `DenseCRF.from_labels`.
        unsure: The value that stands for "not known".
        n_labels: Number of labels, None if it follows from the map.
    """
    if ignore is None or (ignore == "auto" and unsure == IGNORED):
        return None
    if isinstance(ignore, str):
        if ignore != "auto":
            raise InputError(f"ignore={shown(ignore)}, expected a whole number, None or 'auto'")
        top = int(labels.max())
        if top != IGNORED or (n_labels is not None and n_labels > IGNORED):
            return None
        if n_labels is None and not ((labels != IGNORED) & (labels != 0)).any():
            raise InputError(
                "labels hold only 0 and 255, expected 0, 1, …; if 255 is foreground, pass "
                "labels // 255, if it stands for unknown, ignore=255"
            )
        return IGNORED
    if isinstance(ignore, bool) or not isinstance(ignore, int | np.integer):
        raise InputError(f"ignore={shown(ignore)}, expected a whole number, None or 'auto'")
    if ignore == unsure:
        raise InputError(f"ignore={ignore} and unsure={unsure}, expected different values")
    return int(ignore)


def are_labels(
    parts: Iterable[Pixels], axis: int | None, what: str, normalize: bool = False
) -> bool:
    """Whether all pixels are certain, and not all of the same label.

    Args:
        parts: Probabilities or logits, in one or more arrays; none is read after the first pixel
            that isn't certain.
        axis: The axis of labels; None: one number per pixel, of foreground.
        what: "probabilities" or "logits".
        normalize: Probabilities are going to be divided by their sums.

    Example:
        >>> are_labels([np.array([0.0, 1.0, 1.0])], None, "probabilities")
        True
        >>> are_labels([np.array([0.0, 1.0, 0.9])], None, "probabilities")
        False
    """
    first, varied = None, False
    for block in (block for part in parts for block in _blocks(part, axis)):
        sure = _certain(block, axis is None, what, normalize)
        if sure is None:
            return False
        best = sure if axis is None else sure.argmax(axis=-1)
        first = best.flat[0] if first is None else first
        varied = varied or bool((best != first).any())
    return varied


def as_confident(values: Pixels, axis: int | None, what: str, confidence: float) -> Pixels:
    """The same labels with another probability; the other labels share the rest.

    Args:
        values: Probabilities or logits that are labels, see `are_labels`.
        axis: As there.
        what: As there.
        confidence: Probability that a label is right.

    Example:
        >>> as_confident(np.array([0.0, 1.0]), None, "probabilities", 0.75).tolist()
        [0.25, 0.75]
    """
    others = (1.0 - confidence) / (1 if axis is None else values.shape[axis] - 1)
    if axis is None:
        sure = values > (0 if what == "logits" else 0.5)
        if what == "logits":
            confidence, others = (math.log(p / (1 - p)) for p in (confidence, others))
    else:
        sure = values == values.max(axis=axis, keepdims=True)
        if what == "logits":
            confidence, others = math.log(confidence), math.log(others)
    return np.asarray(np.where(sure, np.float32(confidence), np.float32(others)))


def _blocks(values: Pixels, axis: int | None) -> Iterator[Pixels]:
    """Some pixels after others, with their labels last: most maps show at once what they are."""
    moved = values if axis is None else np.moveaxis(values, axis, -1)
    each = math.prod(moved.shape[1:] if axis is None else moved.shape[1:-1])
    step = max(1, ROWS // max(1, each))
    return (moved[start : start + step] for start in range(0, len(moved), step))


def _certain(block: Pixels, mask: bool, what: str, normalize: bool) -> NDArray[np.bool_] | None:
    """Which labels are certain (for a mask: where foreground is); None if a pixel has none."""
    if block.dtype.kind in "bu":
        block = block.astype(np.float32)
    with np.errstate(invalid="ignore"):
        if mask and what == "logits":
            return block > 0 if (np.abs(block) >= ODDS).all() else None
        if mask:
            high = np.abs(block - 1) <= NEGLIGIBLE
            return high if (high | (np.abs(block) <= NEGLIGIBLE)).all() else None
        best = block.max(axis=-1, keepdims=True)
        if what == "logits":
            if not np.isfinite(block).all():
                return None
            above = block > best - ODDS
        else:
            whole = (best > 0) if normalize else np.abs(best - 1) <= TOLERANCE
            if not whole.all() or block.min() < 0:
                return None
            above = block > NEGLIGIBLE * best
        return above if (np.count_nonzero(above, axis=-1) == 1).all() else None
