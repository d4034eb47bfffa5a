"""Losses of marginals: what `method="marginals"` minimizes.

A loss is a mean over variables or classes, so that its size doesn't depend on the number of
variables. Labels of -1 are unknown and count for nothing. To add one: a function of the same
arguments, and a line in `LOSSES`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from proxfield.core.common.arrays import Doubles, Ints
from proxfield.errors import InputError, shown

FLOOR = 1e-290
"""Smallest probability whose logarithm is taken."""


@dataclass(frozen=True, eq=False)
class Targets:
    """True labels of variables, and weights of classes.

    Args:
        labels: One per variable, -1 where unknown.  # (n,)
        offsets: First entry of each variable in flat arrays.  # (n + 1,)
        weights: One per class.  # (classes,)
    """

    labels: Ints
    offsets: Ints
    weights: Doubles

    @property
    def known(self) -> Ints:
        """Variables whose label is known."""
        return np.flatnonzero(self.labels >= 0)


Loss = Callable[[Doubles, Targets], tuple[float, Doubles]]


def log_loss(q: Doubles, targets: Targets) -> tuple[float, Doubles]:
    """The mean of −log q_i(y_i), weighted by class.

    Args:
        q: Flat marginals.  # (size,)
        targets: What they should be.

    Returns:
        The loss, and its gradient in q.  # (size,)

    Example:
        >>> targets = Targets(np.array([1]), np.array([0, 2]), np.ones(2))
        >>> loss, gradient = log_loss(np.array([0.5, 0.5]), targets)
        >>> round(loss, 3), gradient
        (0.693, array([ 0., -2.]))
    """
    known = targets.known
    y = targets.labels[known]
    at, weight = targets.offsets[known] + y, targets.weights[y]
    total = weight.sum()
    p = np.maximum(q[at], FLOOR)
    out = np.zeros_like(q)
    out[at] = -weight / (total * p)
    return float(-(weight * np.log(p)).sum() / total), out


def overlap_loss(
    q: Doubles, targets: Targets, factor: float, joint: float
) -> tuple[float, Doubles]:
    """1 − ``factor`` Σ q·y / Σ (q + y − ``joint`` q·y), averaged over classes that occur.

    Sums are over all variables of all instances; results as for `log_loss`.
    """
    owner = np.repeat(np.arange(len(targets.labels)), np.diff(targets.offsets))
    at = np.flatnonzero(targets.labels[owner] >= 0)
    label = at - targets.offsets[owner[at]]
    truth = np.asarray(targets.labels[owner[at]] == label, dtype=np.float64)
    n = len(targets.weights)
    inside, occurs = np.bincount(label, q[at] * truth, n), np.bincount(label, truth, n)
    union = np.bincount(label, q[at], n) + occurs - joint * inside
    weight = np.where(occurs > 0, targets.weights, 0.0)
    weight /= weight.sum()
    safe = np.where(union > 0, union, 1.0)
    loss = 1.0 - float((weight * factor * inside / safe).sum())
    slope = factor * truth / safe[label]
    slope -= (factor * inside / safe**2)[label] * (1.0 - joint * truth)
    out = np.zeros_like(q)
    out[at] = -weight[label] * slope
    return loss, out


def dice_loss(q: Doubles, targets: Targets) -> tuple[float, Doubles]:
    """1 − the soft Dice coefficient 2 Σ q·y / (Σ q + Σ y), averaged over classes that occur."""
    return overlap_loss(q, targets, 2.0, 0.0)


def iou_loss(q: Doubles, targets: Targets) -> tuple[float, Doubles]:
    """1 − the soft intersection over union Σ q·y / Σ (q + y − q·y), averaged like `dice_loss`."""
    return overlap_loss(q, targets, 1.0, 1.0)


LOSSES: dict[str, Loss] = {"log": log_loss, "dice": dice_loss, "iou": iou_loss}
"""Losses by name."""


def find_loss(loss: str | Loss) -> Loss:
    """A loss by name, or the function itself."""
    if callable(loss):
        return loss
    if loss not in LOSSES:
        raise InputError(f"loss={shown(loss)}, expected one of: {', '.join(LOSSES)}")
    return LOSSES[loss]


def class_weights(weights: ArrayLike | str | None, labels: Ints, n_classes: int) -> Doubles:
    """Weights of classes: 1 each (None), "balanced" (inverse frequencies), or those given."""
    if weights is None:
        return np.ones(n_classes)
    if isinstance(weights, str):
        if weights != "balanced":
            raise InputError(f"class_weight={shown(weights)}, expected 'balanced' or numbers")
        known = labels[labels >= 0]
        counts = np.bincount(known, minlength=n_classes)
        return np.asarray(len(known) / (np.count_nonzero(counts) * np.maximum(counts, 1)))
    try:
        out = np.asarray(weights, dtype=np.float64)
    except (TypeError, ValueError):
        out = np.zeros(0)
    if out.shape != (n_classes,) or not np.isfinite(out).all() or (out < 0).any() or not out.any():
        raise InputError(
            f"class_weight={shown(weights)}, expected {n_classes} numbers, 0 or more and not all 0"
        )
    if not out[labels[labels >= 0]].any():
        raise InputError(f"class_weight={shown(weights)} is 0 for all labels that occur")
    return out
