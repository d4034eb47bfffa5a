"""Probabilities that are labels: 0 and 1 alone, as masks and one-hot maps have them.

Taken as probabilities, each label is certain, and no update can change a pixel. Such a map is
therefore treated as a label map whose labels are right with some probability.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from proxfield.core.common.arrays import Pixels
from proxfield.images.pixels import ROWS, TOLERANCE

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
