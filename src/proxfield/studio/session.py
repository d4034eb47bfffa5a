"""One tab's work: inputs, settings and scribbles in; labels, F and mean IoU out. No page here.

A worker computes off the event loop, and only the latest settings to the end.

A change of settings is answered in two stages where the image is large: first on every k-th pixel
along both axes, then on all of them. Filters are kept, so that a new weight, rule or number of
iterations needs none to be built.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from proxfield.core.common.arrays import Pixels
from proxfield.core.solve.history import Progress
from proxfield.core.terms.gaussian import Gaussian
from proxfield.core.terms.unary import Unary
from proxfield.errors import InputError
from proxfield.images.densecrf import DenseCRF
from proxfield.images.inputs import flags_of
from proxfield.images.metrics import UNLABELLED, count_regions, mean_iou, read_truth
from proxfield.images.settings import DEFAULT_PRESET, TERM_SETTINGS, DenseSettings
from proxfield.studio.inputs import Stroke, StudioInputs, draw

MAX_ENTRIES = 2**26
"""Maximum number of pixels times labels."""
IGNORED_TRUTH = (255,)
"""True labels that stand for unknown, as for ``proxfield tune``."""
PREVIEW_SECONDS = 0.2
"""A computation that is expected to take longer is preceded by a preview, which takes less."""
PREVIEW_STEPS = (1, 2, 3, 4, 6, 8)
"""Strides of previews: every k-th pixel along both axes."""
FILTER_SECONDS, UPDATE_SECONDS = 6e-7, 1.2e-8
"""First guesses: of building a filter, per pixel; of an update, per pixel and label."""


@dataclass(frozen=True)
class StudioJob:
    """What to compute: a copy of a session's state, so that the page may change that meanwhile."""

    settings: DenseSettings
    rule: str
    scribbles: NDArray[np.int64] | None = None
    """Labels of known pixels, 255 elsewhere.  # (height, width)"""
    step: int = 1
    """Stride: every k-th pixel along each axis."""


@dataclass(frozen=True)
class StudioOutcome:
    """What a job gives, in so many seconds and iterations."""

    job: StudioJob
    labels: NDArray[np.int64]
    """The most probable labels; ignored pixels have their value.  # (height, width)"""
    free_energy: NDArray[np.float64]
    """F after each update, the start first."""
    iterations: int
    seconds: float
    changed: float
    """Share of the pixels whose label differs from the classifier's."""
    iou: float | None
    """Mean IoU with the truth, if there is one."""


class StudioSession:
    """Inputs, settings and scribbles of one tab.

    Args:
        inputs: An image and what is known about its pixels.
        preset: The name of a preset or settings to begin with.
        rule: The name of a rule.

    Raises:
        InputError: If the inputs don't fit together or the image isn't flat.

    Example:
        >>> from proxfield.studio.inputs import demo_inputs
        >>> session = StudioSession(demo_inputs(), "krahenbuehl")
        >>> outcome = session.compute(session.job(step=4))
        >>> outcome.iou > session.iou
        True
    """

    def __init__(
        self,
        inputs: StudioInputs,
        preset: str | DenseSettings | Mapping[str, object] = DEFAULT_PRESET,
        rule: str = "fixed",
    ) -> None:
        self.inputs = inputs
        self.settings = DenseSettings.of(preset)
        self.rule = rule
        self.strokes: list[Stroke] = []
        self._drawn: tuple[tuple[Stroke, ...], NDArray[np.int64] | None] | None = None
        base = inputs.make_field(spatial_weight=0.0, bilateral_weight=0.0)
        if len(base.pixels) != 2:
            raise InputError(
                f"the studio shows flat images, not {len(base.pixels)} axes; use proxfield refine"
            )
        self.shape: tuple[int, int] = (base.pixels[0], base.pixels[1])
        self.n_labels = base.n_labels
        self.confidence = base.confidence
        """The probability that labels are right, where labels were given; else None."""
        if base.n_vars * self.n_labels > MAX_ENTRIES:
            raise InputError(
                f"{base.n_vars} pixels with {self.n_labels} labels are too many for the studio, "
                f"expected at most {MAX_ENTRIES} in all; use proxfield refine"
            )
        unary = base.terms[0]
        assert isinstance(unary, Unary)
        self.energies = np.asarray(unary.energies, dtype=np.float32).reshape(*self.shape, -1)
        self.labels = self.energies.argmin(axis=-1)
        """The classifier's labels; ignored pixels have their value.  # (height, width)"""
        self.ignored: Pixels = np.zeros(self.shape, dtype=bool)
        """Pixels that are left as they are.  # (height, width)"""
        if base.ignored is not None:
            self.ignored = flags_of(base.ignored[1], base.n_vars).reshape(self.shape)
            self.labels[self.ignored] = base.ignored[0]
        self.truth: NDArray[np.int64] | None = None
        if inputs.truth is not None:
            try:
                truth = read_truth(inputs.truth, self.shape, self.n_labels, IGNORED_TRUTH)
            except InputError as error:
                raise InputError(error.message, path=inputs.truth_name) from None
            truth[self.ignored] = UNLABELLED
            self.truth = truth
        self.scribbles  # noqa: B018 (those of a file are checked here)
        if inputs.scribbles is not None:
            inputs.make_field(scribbles=inputs.scribbles, spatial_weight=0.0, bilateral_weight=0.0)
        self.iou = self._iou(self.labels, 1)
        """Mean IoU of the classifier's labels; None without a truth."""
        self._terms: dict[tuple[int, str], tuple[str, Gaussian]] = {}
        self._build_pace, self._update_pace = FILTER_SECONDS, UPDATE_SECONDS
        self._busy = threading.Lock()

    @cached_property
    def channels(self) -> Pixels:
        """The image with its channels last.  # (height, width, channels)"""
        image = self.inputs.image
        if image.ndim == 2:
            return image[..., None]
        axis = self.inputs.build.get("channel_axis", "auto")
        first = image.shape[:2] != self.shape if axis == "auto" else axis == 0
        return np.moveaxis(image, 0, -1) if first else image

    @property
    def scribbles(self) -> NDArray[np.int64] | None:
        """Labels of known pixels; None if there are none.  # (height, width)"""
        base = self.inputs.scribbles
        if base is not None and base.shape != self.shape:
            raise InputError(
                f"scribbles of shape {base.shape}, expected {self.shape}, as the image"
            )
        strokes = tuple(self.strokes)
        if self._drawn is None or self._drawn[0] != strokes[: len(self._drawn[0])]:
            self._drawn = (), draw((), self.shape, base)
        before, drawn = self._drawn
        if len(strokes) > len(before):  # later strokes cover earlier ones
            self._drawn = strokes, draw(strokes[len(before) :], self.shape, drawn)
        return self._drawn[1]

    def job(self, step: int = 1) -> StudioJob:
        """What to compute for the present state."""
        return StudioJob(self.settings, self.rule, self.scribbles, step)

    # ---- computing ----

    def steps(self, job: StudioJob) -> tuple[int, ...]:
        """The stages of a job: one for all pixels, before it a preview if that takes long."""
        settings = job.settings
        for step in PREVIEW_STEPS:
            pixels = self.labels[::step, ::step].size
            missing = sum(self._kept(settings, step, kind) is None for kind in _used(settings))
            updates = pixels * self.n_labels * max(1, settings.max_iters)
            seconds = missing * pixels * self._build_pace + updates * self._update_pace
            if seconds <= PREVIEW_SECONDS:
                break
        return (1,) if step == 1 else (step, 1)

    def compute(
        self,
        job: StudioJob,
        stop: Callable[[], bool] = lambda: False,
        progress: Callable[[int, float], object] | None = None,
    ) -> StudioOutcome | None:
        """Do a job; it may run in any thread.

        Args:
            job: What to do.
            stop: Asked now and then; True gives the job up.
            progress: Called now and then with the iteration and F.

        Returns:
            The outcome; None if it was given up.
        """

        def look(seen: Progress) -> bool:
            if stop():
                return True
            if progress is not None and np.isfinite(seen.free_energy):
                progress(seen.iteration, seen.free_energy)
            return False

        with self._busy:
            if stop():
                return None
            begun = time.perf_counter()
            energies = _thinned(self.energies, job.step)
            known = None if job.scribbles is None else _thinned(job.scribbles, job.step)
            crf = DenseCRF(
                None, energies=energies, labels_axis=-1, scribbles=known, spatial_weight=0.0
            )
            for kind in _used(job.settings):  # filters that are there already are kept
                crf.add(self._term(job, kind).reweighted(job.settings.weight(kind)))
            built = time.perf_counter()
            result = crf.infer(job.rule, max_iters=job.settings.max_iters, tol=None, callback=look)
            ended = time.perf_counter()
        if stop():
            return None
        work = result.q.size * max(1, result.iterations)
        self._update_pace = _pace(self._update_pace, ended - built, work)
        ignored = self.ignored[:: job.step, :: job.step]
        before = self.labels[:: job.step, :: job.step]
        labels = np.where(ignored, before, np.asarray(result.labels))
        return StudioOutcome(
            job,
            labels,
            result.trace.free_energy,
            result.iterations,
            time.perf_counter() - begun,
            float((labels != before).mean()),
            self._iou(labels, job.step),
        )

    def _term(self, job: StudioJob, kind: str) -> Gaussian:
        """A Gaussian term of weight 1, whose filter serves all weights."""
        kept = self._kept(job.settings, job.step, kind)
        if kept is not None:
            return kept
        if job.step > 1:  # one preview is enough
            self._terms = {k: v for k, v in self._terms.items() if k[0] in (1, job.step)}
        begun = time.perf_counter()
        crf = DenseCRF(
            _thinned(self.channels, job.step) if kind == "bilateral" else None,
            energies=_thinned(self.energies, job.step),
            labels_axis=-1,
            channel_axis=-1,
            spacing=float(job.step),
            preset=job.settings.only(kind),
        )
        term = crf.terms[-1]
        assert isinstance(term, Gaussian)
        term.operator  # noqa: B018 (built here, to be timed)
        self._terms[job.step, kind] = (job.settings.kernel(kind), term)
        self._build_pace = _pace(self._build_pace, time.perf_counter() - begun, crf.n_vars)
        return term

    def _kept(self, settings: DenseSettings, step: int, kind: str) -> Gaussian | None:
        key, term = self._terms.get((step, kind), ("", None))
        return term if key == settings.kernel(kind) else None

    def _iou(self, labels: NDArray[np.int64], step: int) -> float | None:
        if self.truth is None:
            return None
        return mean_iou(count_regions(self.truth[::step, ::step], labels, self.n_labels))


def _thinned(values: Pixels, step: int) -> Pixels:
    return values if step == 1 else np.ascontiguousarray(values[::step, ::step])


def _pace(before: float, seconds: float, work: int) -> float:
    """Expect the next computation to be as fast as the last ones."""
    return 0.5 * before + 0.5 * seconds / max(1, work)


def _used(settings: DenseSettings) -> Sequence[str]:
    return [kind for kind in TERM_SETTINGS if settings.weight(kind) != 0]


def warm_up() -> None:
    """Compile or load what sessions need, on small images."""
    rng = np.random.default_rng(0)
    for n_labels in (2, 3):
        image = rng.integers(0, 255, (64, 64, 3)).astype(np.uint8)
        p = rng.dirichlet(np.ones(n_labels), (64, 64)).astype(np.float32)
        session = StudioSession(StudioInputs(image, p))
        session.strokes.append(Stroke(1, [(0.1, 0.1), (0.2, 0.1)], 1.0))
        session.compute(session.job())


# ---- computations off the event loop ----


class Worker:
    """Runs a session's jobs one after another.

    While settings change, each preview is finished and shown, so that the page follows; a
    computation at full resolution is given up as soon as there are newer settings.

    Args:
        session: The session.
        show: Called with each outcome and the number of its request, in the event loop.
        progress: Called with the iteration and F at full resolution, in the thread that computes.
        fail: Called with an exception, in the event loop.
    """

    def __init__(
        self,
        session: StudioSession,
        show: Callable[[StudioOutcome, int], object],
        progress: Callable[[int, float], object],
        fail: Callable[[Exception], object],
    ) -> None:
        self.session, self.show, self.progress, self.fail = session, show, progress, fail
        self.version = 0
        """Number of the latest request."""
        self.closed = False
        self._task: asyncio.Task[None] | None = None

    @property
    def busy(self) -> bool:
        """Whether something is being computed."""
        return not (self._task is None or self._task.done())

    def request(self) -> None:
        """The session has changed: compute it, soon."""
        self.version += 1
        if not self.busy and not self.closed:
            self._task = asyncio.get_running_loop().create_task(self._work())

    def close(self) -> None:
        """Give up what is running, and start nothing more."""
        self.closed = True

    async def _work(self) -> None:
        done = -1
        while done != self.version and not self.closed:
            done = self.version
            try:
                await self._stages(done)
            except Exception as error:  # the page says so, and the next request is computed
                if not self.closed:
                    self.fail(error)

    async def _stages(self, version: int) -> None:
        job = self.session.job()
        steps = self.session.steps(job)
        for number, step in enumerate(steps):
            last = number == len(steps) - 1
            preview = not last or len(steps) == 1  # short: always finished

            def stale(preview: bool = preview) -> bool:
                return self.closed or (not preview and self.version != version)

            progress, thinned = self.progress if last else None, replace(job, step=step)
            outcome = await asyncio.to_thread(self.session.compute, thinned, stale, progress)
            if outcome is None or self.closed:
                return
            self.show(outcome, version)
            if self.version != version:
                return
