"""Coordinate search over settings of dense CRFs, one setting at a time, on a logarithmic scale."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from proxfield.images.settings import PRESETS, Settings

LIMITS: dict[str, tuple[float, float]] = {
    "bilateral_weight": (0.1, 100.0),
    "bilateral_color": (2.0, 100.0),
    "bilateral_sigma": (2.0, 500.0),
    "spatial_weight": (0.1, 100.0),
    "spatial_sigma": (0.5, 30.0),
}
"""Settings in the order in which they are changed, and the range of each."""
FACTORS = (2.0, 2.0**0.5)
"""What a setting is multiplied or divided by: first large steps, then small ones."""
DIGITS = 4
"""Significant digits of a setting."""


@dataclass(frozen=True)
class Scored:
    """Settings with their score, and with the number of updates (``max_iters``) that suits best."""

    score: float
    settings: Settings


Evaluate = Callable[[Sequence[Settings]], Sequence[Scored]]
"""Scores settings; may return fewer than it was given where time has run out."""


def starting_points(filters: Sequence[str]) -> list[Settings]:
    """The presets, with each filter."""
    return [replace(preset, filter=filter) for preset in PRESETS.values() for filter in filters]


def moved(settings: Settings, name: str, value: float) -> Settings:
    """The same with another value of one setting, rounded.

    Example:
        >>> moved(PRESETS["krahenbuehl"], "bilateral_sigma", 56.5685).bilateral_sigma
        56.57
    """
    changed: dict[str, float] = {name: float(f"{value:.{DIGITS}g}")}
    return replace(settings, **changed)  # type: ignore[arg-type]


def search(evaluate: Evaluate, filters: Sequence[str] = ("auto",)) -> Scored | None:
    """The best settings that a coordinate search finds, from the best preset.

    Each setting in turn is multiplied and divided by a factor, and moved on in a direction that
    improves the score; when a round over all settings improves nothing, the factor becomes
    smaller. Weights may become 0, which omits a term.

    Args:
        evaluate: Scores points; when it returns fewer than asked for, the search ends.
        filters: Filters to try.

    Returns:
        The best, or None if nothing could be evaluated.
    """
    starts = starting_points(filters)
    found = evaluate(starts)
    if not found:
        return None
    best = max(found, key=lambda f: f.score)
    if len(found) < len(starts):
        return best
    for round_of, factor in enumerate(FACTORS):
        improved = True
        while improved:
            improved = False
            for name, limits in LIMITS.items():
                better, complete = _along(evaluate, best, name, limits, factor, round_of == 0)
                improved |= better.score > best.score
                best = better
                if not complete:
                    return best
    return best


def _along(
    evaluate: Evaluate,
    best: Scored,
    name: str,
    limits: tuple[float, float],
    factor: float,
    zero: bool,
) -> tuple[Scored, bool]:
    """The best along one setting, and whether all that was asked for was evaluated."""
    here: float = getattr(best.settings, name)
    low, high = limits
    if here == 0:  # a term that is left out: its own settings mean nothing
        steps = [1.0]
    else:
        steps = [x for x in (here * factor, here / factor) if low <= x <= high]
        if zero and name.endswith("_weight"):
            steps.append(0.0)
    term = name.split("_")[0]
    if not name.endswith("_weight") and best.settings.weight(term) == 0:
        return best, True
    points = [moved(best.settings, name, x) for x in steps]
    found = evaluate(points)
    top = max((best, *found), key=lambda f: f.score)  # the first of equal ones
    if len(found) < len(points) or top is best:
        return top, len(found) == len(points)
    while True:  # on in the direction that improved
        reached: float = getattr(top.settings, name)
        if here == 0 or reached == 0:
            return top, True
        following = reached * (factor if reached > here else 1 / factor)
        if not low <= following <= high:
            return top, True
        further = evaluate([moved(top.settings, name, following)])
        if not further:
            return top, False
        if further[0].score <= top.score:
            return top, True
        top = further[0]
