"""How good label maps are: counts per class, which add up over images, and scores made of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from proxfield.errors import InputError, shown
from proxfield.images.pixels import place

Counts = NDArray[np.int64]
UNLABELLED = -1


def read_truth(
    truth: ArrayLike, pixels: tuple[int, ...], n_labels: int, ignore: Sequence[int]
) -> NDArray[np.int64]:
    """A map of true labels, checked; `UNLABELLED` where there is none.  # (*pixels)

    Args:
        truth: Labels, whole numbers.  # (*pixels)
        pixels: Shape of the image.
        n_labels: Labels of the probabilities.
        ignore: Values that stand for no label.
    """
    given = np.asarray(truth)
    if given.dtype.kind not in "iub":
        raise InputError(f"true labels must be whole numbers, not {given.dtype}")
    if given.shape != pixels:
        raise InputError(f"true labels of shape {given.shape} for pixels {pixels}, expected equal")
    out = given.astype(np.int64)
    out[np.isin(given, list(ignore))] = UNLABELLED
    bad = ((out < 0) & (out != UNLABELLED)) | (out >= n_labels)
    bad |= (out == UNLABELLED) & ~np.isin(given, list(ignore))  # a −1 that nobody named
    if bad.any():
        at = np.flatnonzero(bad)[0]
        raise InputError(
            f"pixel {place(pixels, at)} has the true label {given.flat[at]}, expected 0 to "
            f"{n_labels - 1}, or one of those to ignore ({', '.join(map(str, ignore))})"
        )
    return out


def count_regions(truth: NDArray[np.int64], labels: NDArray[np.int64], n_labels: int) -> Counts:
    """Pixels of each class: right, true, and found; unlabelled ones left out.  # (3, labels)

    These are the diagonal and the sums of the rows and the columns of a confusion matrix.

    Example:
        >>> count_regions(np.array([0, 1, 1, -1]), np.array([0, 1, 0, 0]), 2).tolist()
        [[1, 1], [1, 2], [2, 1]]
    """
    known = truth != UNLABELLED
    t, g = truth[known], labels[known]
    return np.stack([np.bincount(x, minlength=n_labels) for x in (t[t == g], t, g)])


def mean_iou(counts: Counts) -> float:
    """Intersection over union, the mean over all classes that are true or found anywhere.

    Example:
        >>> mean_iou(np.array([[1, 1, 0], [1, 2, 0], [2, 1, 0]]))
        0.5
    """
    right, true, found = counts
    union = true + found - right
    return float((right[union > 0] / union[union > 0]).mean()) if union.any() else 0.0


def accuracy(counts: Counts) -> float:
    """The share of pixels that have the right label.

    Example:
        >>> round(accuracy(np.array([[1, 1], [1, 2], [2, 1]])), 3)
        0.667
    """
    right, true, _ = counts
    return float(right.sum() / max(1, true.sum()))


def edges(labels: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Pixels next to one with another label; unlabelled pixels count as no neighbors.

    Example:
        >>> edges(np.array([[0, 0, 1, -1, 2]])).astype(int).tolist()
        [[0, 1, 1, 0, 0]]
    """
    out = np.zeros(labels.shape, dtype=bool)
    for axis in range(labels.ndim):
        a = np.moveaxis(labels, axis, 0)
        differ = (a[1:] != a[:-1]) & (a[1:] != UNLABELLED) & (a[:-1] != UNLABELLED)
        view = np.moveaxis(out, axis, 0)
        view[1:] |= differ
        view[:-1] |= differ
    return out


def dilate(mask: NDArray[np.bool_], radius: float) -> NDArray[np.bool_]:
    """Pixels at most ``radius`` from one of the mask.

    Example:
        >>> dilate(np.array([[0, 0, 1, 0, 0]], dtype=bool), 1.5).astype(int).tolist()
        [[0, 1, 1, 1, 0]]
    """
    from scipy.ndimage import binary_dilation

    offsets = np.indices((2 * int(radius) + 1,) * mask.ndim) - int(radius)
    near = (offsets**2).sum(axis=0) <= radius * radius
    return np.asarray(binary_dilation(mask, near))


def count_boundaries(
    truth: NDArray[np.int64], labels: NDArray[np.int64], n_labels: int, tolerance: float
) -> Counts:
    """Boundary pixels of each class: found ones near true ones, found, true near found, true.

    A boundary pixel of a class has that class and a neighbor of another one (`edges`). "Near":
    at most ``tolerance`` pixels from a boundary pixel of the same class.  # (4, labels)
    """
    found = np.where(truth == UNLABELLED, UNLABELLED, labels)
    out = np.zeros((4, n_labels), dtype=np.int64)
    at_truth, at_found = edges(truth), edges(found)
    for c in range(n_labels):
        t, g = at_truth & (truth == c), at_found & (found == c)
        out[1, c], out[3, c] = g.sum(), t.sum()
        if out[1, c] and out[3, c]:
            out[0, c] = (g & dilate(t, tolerance)).sum()
            out[2, c] = (t & dilate(g, tolerance)).sum()
    return out


def boundary_f(counts: Counts) -> float:
    """F1 of the boundaries, the mean over all classes that have one, true or found.

    Example:
        >>> boundary_f(np.array([[2, 0], [4, 0], [3, 0], [3, 0]]))  # precision ½, recall 1
        0.6666666666666666
    """
    near, found, reached, true = counts
    any_at_all = (found > 0) | (true > 0)
    if not any_at_all.any():
        return 1.0
    precision = near / np.maximum(found, 1)
    recall = reached / np.maximum(true, 1)
    total = precision + recall
    f = np.divide(2 * precision * recall, total, out=np.zeros(len(total)), where=total > 0)
    return float(f[any_at_all].mean())


@dataclass(frozen=True)
class Metric:
    """A score of label maps."""

    title: str  # what it is called in reports
    boundaries: bool  # is it made of `count_boundaries`, or of `count_regions`?
    score: Callable[[Counts], float]  # of counts, summed over images; higher is better


METRICS = {
    "miou": Metric("mean IoU", False, mean_iou),
    "accuracy": Metric("pixel accuracy", False, accuracy),
    "boundary-f": Metric("boundary F", True, boundary_f),
}


def find_metric(name: str) -> Metric:
    """A metric by name."""
    if name not in METRICS:
        raise InputError(f"metric={shown(name)}, expected one of: {', '.join(METRICS)}")
    return METRICS[name]


def share_of(some: int, pixels: int) -> str:
    """How many pixels of all these are, for people.

    Example:
        >>> share_of(9223, 187500), share_of(3, 187500), share_of(0, 4)
        ('9,223 of 187,500 pixels (4.9 %)', '3 of 187,500 pixels (0.0016 %)', '0 of 4 pixels (0 %)')
    """
    share = 100 * some / max(1, pixels)
    percent = f"{share:.1f}" if share >= 1 else f"{share:.2g}"
    return f"{some:,} of {pixels:,} pixels ({percent} %)"
