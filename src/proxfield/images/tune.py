"""Settings of a dense CRF chosen on images with known labels, and compared with no CRF at all."""

from __future__ import annotations

import hashlib
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from os import PathLike
from typing import Any

import numpy as np

from proxfield.core.common.records import Record
from proxfield.core.filters import FILTERS
from proxfield.core.jobs.running import Workers, open_workers, slots_of, threads_per_item
from proxfield.errors import InputError, InputWarning, shown
from proxfield.images.inputs import CONFIDENCE, check_confidence, confidence_note
from proxfield.images.metrics import Counts, find_metric
from proxfield.images.search import Fold, Scored, TuneProgress, TuneResult, search
from proxfield.images.settings import DenseSettings
from proxfield.images.trials import (
    MARKS,
    NO_CRF,
    Given,
    LabelledImage,
    Measure,
    Trials,
    TrialTask,
    key_of,
    make_case,
    run_task,
)

TRIALS = 60
FOLDS = 5
TOLERANCE = 2.0
BUILD = ("labels_axis", "channel_axis", "normalize", "clip", "spacing", "confidence")
"""Options of `DenseCRF` that can be given."""


def tune(
    images: Iterable[Given] | None,
    probabilities: Iterable[Given],
    truth: Iterable[Given],
    *,
    metric: str = "miou",
    ignore: int | Sequence[int] = 255,
    tolerance: float = TOLERANCE,
    trials: int = TRIALS,
    folds: int = FOLDS,
    filters: Sequence[str] = ("auto",),
    seed: int = 0,
    jobs: int | None = None,
    threads: int | None = None,
    budget: float | None = None,
    color_range: float | None = None,
    store: str | PathLike[str] | None = None,
    fresh: bool = False,
    callback: Callable[[TuneProgress], object] | None = None,
    **build: Any,
) -> TuneResult:
    """Choose the settings of a dense CRF on images with known labels.

    A coordinate search over both terms' bandwidths and weights and the number of updates (1, 2,
    3, 5 or 10) starts from the best preset. It is repeated without each fold of the images, and
    what it chooses is measured on that fold. If the folds together are no better than the labels
    without a CRF, the result is "no CRF": both weights are 0.

    Args:
        images: Arrays, or names of files.
        probabilities: As many, likewise.
        truth: True labels of each image, likewise (whole numbers).
        metric: "miou" (mean IoU, from one confusion matrix over all images), "accuracy" (of pixels)
            or "boundary-f" (F1 of boundaries, mean over classes).
        ignore: Values in the truth that stand for unlabelled pixels, which don't count.
        tolerance: For "boundary-f": how far boundaries may be apart, in pixels.
        trials: Maximum number of settings per search.
        folds: Number of folds; at most one per image.
        filters: Filters to try: "auto", "lattice", "exact".
        seed: Random seed of the folds.
        jobs: Number of images to process in parallel, in processes of their own (joblib); by
            default 1, or as ``joblib.parallel_config`` says.
        threads: Maximum number of threads per image; by default the jobs share all cores.
        budget: Time budget in seconds: then the best so far counts. Results depend on the
            machine's speed.
        color_range: Full range of the images' values, where they don't tell (65535, say).
        store: A file of JSON lines that keeps every trial, so that a run that was stopped
            continues where it was. It is keyed by settings and by the content of the data.
        fresh: Ignore what ``store`` holds.
        callback: Called after each trial with `TuneProgress`.
        **build: Options of `DenseCRF` about its inputs: ``labels_axis``, ``channel_axis``,
            ``normalize``, ``clip``, ``spacing``, ``confidence``.

    Returns:
        A `TuneResult`.

    Raises:
        InputError: If the inputs don't fit each other, or there are fewer than two images.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> truth = np.zeros((4, 12, 16), dtype=int)
        >>> truth[:, :, 8:] = 1
        >>> noise = rng.normal(0, 1.0, (*truth.shape, 2))
        >>> p = np.exp(np.eye(2)[truth] + noise)
        >>> p /= p.sum(axis=-1, keepdims=True)
        >>> found = tune(200 * truth.astype(np.uint8), p, truth, folds=2, trials=6)
        >>> found.improved and found.held_out > found.baseline
        True
    """
    said = build.get("confidence") is not None
    build["confidence"] = build["confidence"] if said else CONFIDENCE
    find_metric(metric)
    for key in build:
        if key not in BUILD:
            raise InputError(f"unknown option {shown(key)}, expected: {', '.join(BUILD)}")
    check_confidence(build["confidence"])
    if not 0 <= tolerance < 100:
        raise InputError(f"tolerance={shown(tolerance)}, expected 0 to 99 pixels")
    for name in filters:
        if name not in ("auto", *FILTERS):
            raise InputError(f"filters: {shown(name)}, expected auto, {', '.join(FILTERS)}")
    if not filters:
        raise InputError("no filters, expected at least one")
    if color_range is not None and not 0 < color_range < float("inf"):
        raise InputError(f"color_range={shown(color_range)}, expected a number above 0")
    left_out = (ignore,) if isinstance(ignore, int | np.integer) else tuple(ignore)
    ignored = tuple(map(int, left_out))
    measure = Measure(metric, float(tolerance), ignored, color_range, dict(build))
    unaries, maps = list(probabilities), list(truth)
    pictures = [None] * len(unaries) if images is None else list(images)
    if not len(pictures) == len(unaries) == len(maps):
        raise InputError(
            f"{len(pictures)} images, {len(unaries)} probabilities and {len(maps)} maps of true "
            "labels, expected as many of each"
        )
    if len(unaries) < 2:
        raise InputError(
            f"{len(unaries)} images, expected 2 or more: settings are chosen on some and tested on "
            "others"
        )
    cases = [make_case(k, *x) for k, x in enumerate(zip(pictures, unaries, maps, strict=True))]
    counts = [("trials", trials, 1), ("folds", folds, 2)]
    counts += [] if jobs is None else [("jobs", jobs, 1)]
    for name, value, least in counts:
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise InputError(f"{name}={shown(value)}, expected {least} or more")
    if budget is not None and not budget > 0:
        raise InputError(f"budget={shown(budget)}, expected seconds above 0")
    threads = threads_per_item(jobs, threads)
    run = _Tuning(cases, measure, Trials(store, measure, fresh), trials, budget, callback, threads)
    run.phases = min(folds, len(cases))
    with ExitStack() as stack:
        if slots_of(jobs) > 1:
            run.workers = stack.enter_context(open_workers(jobs, threads))
        found = run.choose(tuple(filters), seed, color_range)
    if run.certain or build["confidence"] == 1:  # it is part of what was tuned
        found = replace(found, config=replace(found.config, confidence=build["confidence"]))
    if run.certain and not said:
        of = f" of {len(run.certain)} of {len(cases)} images"
        note = confidence_note("probabilities", CONFIDENCE, of)
        warnings.warn(note, InputWarning, stacklevel=2)
    return found


@dataclass
class _Tuning:
    """One call of `tune`."""

    cases: list[LabelledImage]
    measure: Measure
    trials: Trials
    limit: int
    budget: float | None
    callback: Callable[[TuneProgress], object] | None
    threads: int | None
    phases: int = 0
    workers: Workers | None = None
    phase: int = 0
    best: Scored | None = None
    stopped: str = ""
    start: float = field(default_factory=lambda: time.perf_counter())
    spent: float = 0.0
    """Seconds in trials that were made now, not read from the file."""
    made: int = 0
    """Trials of one image that were made now."""
    certain: set[str] = field(default_factory=set)
    """Images of these trials whose probabilities are labels."""

    def choose(self, filters: tuple[str, ...], seed: int, color_range: float | None) -> TuneResult:
        """Search on all images, then without each fold."""
        self.ensure(self.cases, ())
        table: dict[str, Scored] = {}
        best = self.search(self.cases, filters, table)
        if best is None:
            raise InputError("the time budget was too short to try anything, expected more")
        baseline = self.score(self.cases, NO_CRF, 0)
        order = np.random.default_rng(seed).permutation(len(self.cases))
        parts = [sorted(part.tolist()) for part in np.array_split(order, self.phases)]
        folds, counts = [], []
        for number, part in enumerate(parts, 1):
            self.phase = number
            fold, found = self.cross_validate(set(part), filters)
            folds.append(fold)
            counts.append(found)
        held_out = self.score_of(np.sum(counts, axis=0))
        improved = held_out > baseline and best.score > baseline
        config = best.settings.in_range(color_range)
        if not improved:
            config = replace(config, spatial_weight=0.0, bilateral_weight=0.0)
        digests = "".join(sorted(case.digest for case in self.cases))
        return TuneResult(
            improved,
            config,
            self.measure.metric,
            baseline,
            held_out,
            best,
            tuple(folds),
            tuple(sorted(table.values(), key=lambda f: -f.score)),
            len(self.cases),
            hashlib.blake2b(digests.encode(), digest_size=8).hexdigest(),
            seed,
            time.perf_counter() - self.start,
            self.stopped,
        )

    def cross_validate(self, part: set[int], filters: tuple[str, ...]) -> tuple[Fold, Counts]:
        """Choose without some images; how that does on them, and the counts of it."""
        inside = [case for k, case in enumerate(self.cases) if k in part]
        others = [case for k, case in enumerate(self.cases) if k not in part]
        found = self.search(others, filters, {})
        if found is not None and found.score <= self.score(others, NO_CRF, 0):
            found = None  # without a CRF is better on these
        if found is not None:
            self.ensure(inside, (found.settings,))
            counts = self.trials.total(inside, key_of(found.settings), found.settings.max_iters)
        else:
            counts = self.trials.total(inside, NO_CRF, 0)
        names = tuple(case.name for case in inside)
        baseline = self.score(inside, NO_CRF, 0)
        return Fold(found, self.score_of(counts), baseline, names), counts

    def score_of(self, counts: Counts) -> float:
        """The score that counts make."""
        return find_metric(self.measure.metric).score(counts)

    def score(self, cases: Sequence[LabelledImage], settings: str, updates: int) -> float:
        """The score of settings over some images."""
        return self.score_of(self.trials.total(cases, settings, updates))

    def search(
        self, cases: Sequence[LabelledImage], filters: tuple[str, ...], table: dict[str, Scored]
    ) -> Scored | None:
        """The best settings for some images; the table gets all that were tried."""

        def evaluate(points: Sequence[DenseSettings]) -> list[Scored]:
            room = self.limit - len(table)
            asked: dict[str, DenseSettings] = {}
            for point in points:
                asked.setdefault(key_of(point), point)
            new = [key for key in asked if key not in table][:room]
            if self.budget is not None and time.perf_counter() - self.start > self.budget:
                self.stopped = f"the time budget of {self.budget:g} s was used up"
            if self.stopped:
                new = [k for k in new if not self.trials.missing(cases, [asked[k]])]
            self.ensure(cases, [asked[key] for key in new])
            for key in new:
                # the number of updates that suits best, of equal ones the smallest
                score, updates = max((self.score(cases, key, n), -n) for n in MARKS)
                table[key] = found = Scored(score, replace(asked[key], max_iters=-updates))
                if self.phase == 0 and (self.best is None or found.score > self.best.score):
                    self.best = found
                self.tell(len(table))
            return [table[key] for point in points if (key := key_of(point)) in table]

        return search(evaluate, filters)

    def ensure(self, cases: Sequence[LabelledImage], points: Sequence[DenseSettings]) -> None:
        """Make the trials that are missing; raises the first error of an image."""
        missing = self.trials.missing(cases, points)
        tasks = [TrialTask(case, left, self.measure, self.threads) for case, left in missing]
        begun = time.perf_counter()
        # the first task compiles what is missing: once, not in every process
        alone = (
            len(tasks) if self.workers is None else self.made == 0 and not self.workers.elsewhere
        )
        for task in tasks[:alone]:
            self.take(run_task(task), len(task.points))
        if tasks[alone:] and self.workers is not None:
            sizes = {task.case.digest: len(task.points) for task in tasks}
            for record in self.workers.run(run_task, tasks[alone:], lambda task: task.case.name):
                self.take(record, sizes[record["digest"]])
            if self.workers.interrupted:
                raise KeyboardInterrupt
        self.spent += time.perf_counter() - begun

    def take(self, record: Record, points: int) -> None:
        """Keep what a task returned."""
        if record["certain"]:
            self.certain.add(record["digest"])
        self.trials.add(record)
        self.made += points

    def tell(self, tried: int) -> None:
        """Call the user's callback."""
        if self.callback is None:
            return
        left = None
        if self.made:
            # folds repeat most of what the search on all images did
            rest = (self.limit - tried) * len(self.cases) if self.phase == 0 else 0
            rest += (self.phases - self.phase) * self.limit * len(self.cases) // 3
            left = rest * self.spent / self.made
        self.callback(
            TuneProgress(
                self.phase,
                self.phases,
                tried,
                self.limit,
                self.best,
                self.score(self.cases, NO_CRF, 0),
                time.perf_counter() - self.start,
                left,
            )
        )
