"""Coordinate search over settings of dense CRFs, one at a time, on a logarithmic scale; results."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from proxfield._version import __version__
from proxfield.core.common.records import Record
from proxfield.images.metrics import find_metric
from proxfield.images.settings import PRESETS, DenseSettings, config_text
from proxfield.io.files import Target, atomic_write

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
    settings: DenseSettings


def moved(settings: DenseSettings, name: str, value: float) -> DenseSettings:
    """The same with another value of one setting, rounded.

    Example:
        >>> moved(PRESETS["krahenbuehl"], "bilateral_sigma", 56.5685).bilateral_sigma
        56.57
    """
    changed: dict[str, float] = {name: float(f"{value:.{DIGITS}g}")}
    return replace(settings, **changed)  # type: ignore[arg-type]


def search(
    evaluate: Callable[[Sequence[DenseSettings]], Sequence[Scored]],
    filters: Sequence[str] = ("auto",),
) -> Scored | None:
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
    best: Scored | None = None

    def better(points: Sequence[DenseSettings]) -> bool:
        """Whether one of some points is better than all before; it is the best then."""
        nonlocal best
        found = evaluate(points)
        top = max(found, key=lambda f: f.score, default=None)  # the first of equal ones
        risen = top is not None and (best is None or top.score > best.score)
        best = top if risen else best
        if len(found) < len(points):
            raise _OutOfTimeError
        return risen

    def along(name: str, factor: float) -> bool:
        """Whether another value of a setting is better."""
        assert best is not None
        here: float = getattr(best.settings, name)
        low, high = LIMITS[name]
        term, what = name.split("_")
        if what != "weight" and best.settings.weight(term) == 0:
            return False
        if here == 0:  # a term that is left out: its own settings mean nothing
            steps = [1.0]
        else:
            steps = [x for x in (here * factor, here / factor) if low <= x <= high]
            if factor == FACTORS[0] and what == "weight":
                steps.append(0.0)
        if not better([moved(best.settings, name, x) for x in steps]):
            return False
        while here != 0:  # on in the direction that improved
            reached: float = getattr(best.settings, name)
            following = reached * (factor if reached > here else 1 / factor)
            if reached == 0 or not low <= following <= high:
                break
            if not better([moved(best.settings, name, following)]):
                break
        return True

    with contextlib.suppress(_OutOfTimeError):
        better([replace(p, filter=filter) for p in PRESETS.values() for filter in filters])
        for factor in FACTORS:
            while sum(along(name, factor) for name in LIMITS):  # a round over all of them
                pass
    return best


class _OutOfTimeError(Exception):
    """Internal: fewer settings were scored than asked for."""


@dataclass(frozen=True)
class TuneProgress:
    """How far `tune` is, for a callback.

    Attributes:
        phase: 0 for the search on all images, k for that without fold k.
        phases: Number of folds.
        tried: Settings that this search has tried.
        trials: Maximum number of settings of a search.
        best: The best on all images so far; None before there is one.
        baseline: The score without a CRF.
        seconds: Since the start.
        seconds_left: At most about so many more, judged by the pace so far; None at first.
    """

    phase: int
    phases: int
    tried: int
    trials: int
    best: Scored | None
    baseline: float
    seconds: float
    seconds_left: float | None


@dataclass(frozen=True)
class Fold:
    """What was chosen without some images, and how it does on them.

    Attributes:
        chosen: The settings; None: no CRF.
        score: On the images of the fold.
        baseline: The same without a CRF.
        images: Names of these images.
    """

    chosen: Scored | None
    score: float
    baseline: float
    images: tuple[str, ...]


@dataclass(frozen=True)
class TuneResult:
    """What `tune` found.

    Attributes:
        improved: Is the CRF better than none on images that the settings weren't chosen on?
        config: The settings, for ``DenseCRF(…, preset=config)``; with both weights 0 if nothing
            improved.
        metric: The name of the metric.
        baseline: The score without a CRF, over all images.
        held_out: The score with settings that were chosen without the images that they are
            measured on, over all images.
        best: The best settings on all images, and their score there.
        folds: The folds of the cross-validation.
        table: All settings that the search on all images tried, best first.
        images: Number of images.
        digest: Digest of the data.
        seed: Random seed of the folds.
        seconds: How long it took.
        stopped: Why the search ended early, or "".
    """

    improved: bool
    config: DenseSettings
    metric: str
    baseline: float
    held_out: float
    best: Scored
    folds: tuple[Fold, ...]
    table: tuple[Scored, ...]
    images: int
    digest: str
    seed: int
    seconds: float
    stopped: str = ""

    @property
    def title(self) -> str:
        """The metric in words."""
        return find_metric(self.metric).title

    @property
    def verdict(self) -> str:
        """The result in one sentence."""
        numbers = (
            f"{self.title} {self.baseline:.4f} without a CRF, {self.held_out:.4f} with one on "
            f"images that its settings weren't chosen on ({len(self.folds)} folds)"
        )
        if self.improved:
            return f"{numbers}, {self.best.score:.4f} with these settings on all images"
        return f"{numbers}: no CRF"

    def to_toml(self) -> str:
        """The settings as a file for ``refine --config``, with a header that says where from."""
        header = [
            f"Settings of a dense CRF, chosen by proxfield tune (proxfield {__version__}, "
            f"numpy {np.__version__})",
            f"on {self.images} images (digest of the data: {self.digest}).",
            f"{self.verdict[0].upper()}{self.verdict[1:]}.",
        ]
        if not self.improved:
            header.append("Both weights are 0: refining with this file changes nothing.")
        about: Record = {
            "improved": self.improved,
            "metric": self.metric,
            "no_crf": round(self.baseline, 6),
            "held_out": round(self.held_out, 6),
            "all_images": round(self.best.score, 6),
            "images": self.images,
            "folds": len(self.folds),
            "seed": self.seed,
            "settings_tried": len(self.table),
            "data_digest": self.digest,
            "version": __version__,
        }
        return config_text(self.config, about, "\n".join(header))

    def save(self, path: Target) -> None:
        """Write `to_toml` to a file."""
        atomic_write(path, self.to_toml())
