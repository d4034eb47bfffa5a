"""What is known about pixels: labels that are certain, that may be wrong, or that are left out.

Probabilities that are all 0 or 1, as masks and one-hot maps have them, are labels: taken as
probabilities, each label is certain, and no update can change a pixel. Such a map is therefore
treated as a label map whose labels are right with some probability.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from proxfield.core.common.arrays import Pixels
from proxfield.core.common.checks import is_real
from proxfield.errors import InputError, shown
from proxfield.images.pixels import ROWS, TOLERANCE

IGNORED = 255
"""The value by which label maps usually mark pixels to ignore."""
NO_STROKE = 255
"""The value of scribbles where there is none."""
CONFIDENCE = 0.7
"""The probability that a label is right, where nothing is said."""


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


# ---- labels in place of probabilities ----


NEGLIGIBLE = 1e-5
"""Probabilities up to this count as 0; the default of ``clip``."""
ODDS = -math.log(NEGLIGIBLE)
"""Difference of two logits from which on one of the labels counts as certain."""


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
