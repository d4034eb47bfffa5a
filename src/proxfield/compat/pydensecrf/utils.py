"""Unary energies and features, as pydensecrf's utilities make them."""

from __future__ import annotations

import logging
import warnings

import numpy as np
from numpy.typing import ArrayLike, NDArray

log = logging.getLogger("pydensecrf")


def unary_from_labels(
    labels: ArrayLike, n_labels: int, gt_prob: float, zero_unsure: bool = True
) -> NDArray[np.float32]:
    """Energies from a labelling that is right with some probability.

    Args:
        labels: A label for each variable, in any shape. With ``zero_unsure`` 0 means "unknown"
            (all labels alike), and k stands for label k − 1.
        n_labels: Number of labels, "unknown" not counted.
        gt_prob: The probability that a label is right.
        zero_unsure: Is 0 "unknown"?

    Returns:
        Energies for `setUnaryEnergy`.  # (n_labels, N)

    Example:
        >>> unary_from_labels([0, 1, 2], 2, gt_prob=0.7).round(2)
        array([[0.69, 0.36, 1.2 ],
               [0.69, 1.2 , 0.36]], dtype=float32)
    """
    assert 0 < gt_prob < 1, "`gt_prob` must be in (0,1)."
    flat = np.asarray(labels).ravel()
    if (flat != flat.astype(np.int64)).any():
        raise ValueError("labels must be whole numbers")
    shift = 1 if zero_unsure else 0
    which = flat.astype(np.int64) - shift
    if n_labels < 2:
        raise ValueError(f"{n_labels} label(s): there is nothing to infer with less than 2")
    if which.size and not (-shift <= which.min() and which.max() < n_labels):
        raise ValueError(
            f"labels go from {flat.min()} to {flat.max()}, expected 0 to {n_labels - 1 + shift} "
            f"(n_labels={n_labels}, zero_unsure={zero_unsure})"
        )
    known = np.flatnonzero(which >= 0)
    out = np.full((n_labels, len(which)), -np.log((1 - gt_prob) / (n_labels - 1)), np.float32)
    out[which[known], known] = -np.log(gt_prob)
    out[:, which < 0] = np.log(n_labels)
    return out


def unary_from_softmax(
    sm: ArrayLike, scale: float | None = None, clip: float | None = 1e-5
) -> NDArray[np.float32]:
    """Energies from probabilities: −log of them.

    Args:
        sm: Probabilities, labels first.  # (L, ...)
        scale: In (0, 1]: trust them that far, and a uniform distribution for the rest.
        clip: Smallest probability; None: as they are.

    Returns:
        Energies for `setUnaryEnergy`.  # (L, N)

    Example:
        >>> unary_from_softmax([[0.5, 1.0], [0.5, 0.0]]).round(2)
        array([[ 0.69, -0.  ],
               [ 0.69, 11.51]], dtype=float32)
    """
    p = np.asarray(sm)
    n_labels = p.shape[0]
    if scale is not None:
        assert 0 < scale <= 1, "`scale` needs to be in (0,1]"
        p = scale * p + (1 - scale) / n_labels
    if clip is not None:
        p = np.clip(p, clip, 1.0)
    with np.errstate(divide="ignore"):
        energies = -np.log(p)
    return np.reshape(energies, (n_labels, -1)).astype(np.float32)


def compute_unary(labels: ArrayLike, M: int, GT_PROB: float = 0.5) -> NDArray[np.float32]:
    """The old name of `unary_from_labels`."""
    log.warning("pydensecrf.compute_unary is deprecated, use unary_from_labels instead.")
    return unary_from_labels(labels, M, GT_PROB)


def softmax_to_unary(sm: ArrayLike, GT_PROB: float = 1) -> NDArray[np.float32]:
    """The old name of `unary_from_softmax`, without clipping."""
    log.warning("pydensecrf.softmax_to_unary is deprecated, use unary_from_softmax instead.")
    return unary_from_softmax(sm, GT_PROB, clip=None)


def create_pairwise_gaussian(sdims: ArrayLike, shape: ArrayLike) -> NDArray[np.float32]:
    """Features for `addPairwiseEnergy`: positions on a grid of any dimension.

    Args:
        sdims: Standard deviation along each dimension, or one for all.
        shape: Size of the grid, as of a numpy array.

    Returns:
        One row a dimension.  # (dimensions, N)

    Example:
        >>> create_pairwise_gaussian((1, 2), (2, 2))
        array([[0. , 0. , 1. , 1. ],
               [0. , 0.5, 0. , 0.5]], dtype=float32)
    """
    sizes = tuple(int(s) for s in np.ravel(shape))
    spread = _spread(sdims, len(sizes), "sdims", "dimensions")
    grid = np.indices(sizes, dtype=np.float32).reshape(len(sizes), -1)
    return grid / spread[:, None]


def create_pairwise_bilateral(
    sdims: ArrayLike, schan: ArrayLike, img: ArrayLike, chdim: int = -1
) -> NDArray[np.float32]:
    """Features for `addPairwiseEnergy`: positions and values of an image of any dimension.

    Args:
        sdims: Standard deviation along each dimension, or one for all.
        schan: Standard deviation of each channel, or one for all.
        img: The image.
        chdim: Which dimension holds the channels. With -1, the last one if there is one more
            than ``sdims`` has, otherwise none does (a gray image).

    Returns:
        One row a dimension, then one a channel.  # (dimensions + channels, N)

    Example:
        >>> create_pairwise_bilateral((1,), (10,), [30, 40])
        array([[0., 1.],
               [3., 4.]], dtype=float32)
    """
    image = np.asarray(img)
    last = np.ndim(sdims) == 1 and image.ndim == np.size(sdims) + 1
    gray = chdim == -1 and not last
    channels = image[None] if gray else np.moveaxis(image, chdim, 0)
    if np.ndim(schan) == 1 and 0 < np.size(schan) < len(channels):
        missing = len(channels) - np.size(schan)
        warnings.warn(
            f"schan has {np.size(schan)} values for {len(channels)} channels: the others are taken "
            "as they are, as pydensecrf does; give one for each, or a number for all",
            stacklevel=2,
        )
        schan = np.append(schan, np.ones(missing))
    spread = _spread(schan, len(channels), "schan", "channels")
    values = channels.reshape(len(channels), -1).astype(np.float32) / spread[:, None]
    return np.concatenate([create_pairwise_gaussian(sdims, channels.shape[1:]), values])


def _spread(value: ArrayLike, count: int, name: str, what: str) -> NDArray[np.float32]:
    """One standard deviation each, from a number or as many as needed.  # (count,)"""
    given = np.asarray(value, dtype=np.float32)
    if given.ndim == 0:
        given = np.repeat(given, count)
    if given.shape != (count,):
        raise ValueError(f"{name} has {given.size} values, expected one for each of {count} {what}")
    return given


def _create_pairwise_gaussian_2d(sx: float, sy: float, shape: ArrayLike) -> NDArray[np.float32]:
    return create_pairwise_gaussian((sx, sy), shape)


def _create_pairwise_bilateral_2d(
    sx: float, sy: float, sr: float, sg: float, sb: float, img: ArrayLike
) -> NDArray[np.float32]:
    return create_pairwise_bilateral((sx, sy), (sr, sg, sb), img, chdim=2)
