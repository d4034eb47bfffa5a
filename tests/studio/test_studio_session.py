"""Sessions: what a tab computes, without a page."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from studio_cases import SHAPE, small_inputs, write_files

import proxfield as pf
from proxfield.errors import InputError
from proxfield.images.metrics import count_regions, mean_iou
from proxfield.studio import session as sessions
from proxfield.studio.inputs import (
    ERASER,
    Stroke,
    StudioInputs,
    as_runs,
    demo_inputs,
    draw,
    read_files,
)
from proxfield.studio.session import StudioOutcome, StudioSession, Worker


def done(session: StudioSession, step: int = 1) -> StudioOutcome:
    outcome = session.compute(session.job(step))
    assert outcome is not None
    return outcome


def test_labels_are_those_of_the_library() -> None:
    inputs = small_inputs()
    session = StudioSession(inputs, "krahenbuehl", "adaptive")
    outcome = done(session)
    crf = pf.DenseCRF(inputs.image, inputs.unary, preset="krahenbuehl")
    result = crf.infer("adaptive", tol=None)
    np.testing.assert_array_equal(outcome.labels, result.labels)
    np.testing.assert_array_equal(outcome.free_energy, result.trace.free_energy)
    assert outcome.iterations == 10
    before = inputs.unary.argmax(axis=-1)
    np.testing.assert_array_equal(session.labels, before)
    assert outcome.changed == (outcome.labels != before).mean() > 0


def test_other_weights_use_the_filters_that_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = small_inputs()
    session = StudioSession(inputs, "deeplab")
    done(session)
    session.settings = replace(
        session.settings, bilateral_weight=1.5, spatial_weight=0.25, max_iters=3
    )
    built: list[str] = []
    make = sessions.StudioSession._term

    def counted(self: StudioSession, job: Any, kind: str) -> Any:
        if self._kept(job.settings, job.step, kind) is None:
            built.append(kind)
        return make(self, job, kind)

    monkeypatch.setattr(sessions.StudioSession, "_term", counted)
    outcome = done(session)
    assert built == []
    crf = pf.DenseCRF(inputs.image, inputs.unary, preset=session.settings)
    np.testing.assert_array_equal(outcome.labels, crf.infer(tol=None).labels)
    session.settings = replace(session.settings, bilateral_color=9.0)
    np.testing.assert_array_equal(
        done(session).labels,
        pf.DenseCRF(inputs.image, inputs.unary, preset=session.settings).infer(tol=None).labels,
    )
    assert built == ["bilateral"]


@pytest.mark.parametrize("name", ["spatial_weight", "bilateral_weight"])
def test_a_weight_of_zero_omits_its_term(name: str) -> None:
    inputs = small_inputs()
    session = StudioSession(inputs)
    session.settings = replace(session.settings, **{name: 0.0})
    crf = pf.DenseCRF(inputs.image, inputs.unary, preset=session.settings)
    np.testing.assert_array_equal(done(session).labels, crf.infer(tol=None).labels)


def test_mean_iou_before_and_after() -> None:
    inputs = small_inputs()
    session = StudioSession(inputs, "krahenbuehl")
    outcome = done(session)
    truth = np.asarray(inputs.truth, dtype=np.int64)
    assert session.iou == mean_iou(count_regions(truth, session.labels, 3))
    assert outcome.iou == mean_iou(count_regions(truth, outcome.labels, 3))
    assert session.iou is not None and outcome.iou > session.iou
    without = StudioSession(replace(inputs, truth=None))
    assert without.iou is None and done(without).iou is None


def test_a_preview_has_fewer_pixels_and_the_same_bandwidths() -> None:
    inputs = small_inputs()
    session = StudioSession(inputs, "krahenbuehl")
    outcome = done(session, step=2)
    small = pf.DenseCRF(
        inputs.image[::2, ::2],
        inputs.unary[::2, ::2],
        preset="krahenbuehl",
        spacing=2.0,
        labels_axis=-1,
        channel_axis=-1,
    )
    np.testing.assert_array_equal(outcome.labels, small.infer(tol=None).labels)


def test_previews_are_for_what_takes_long() -> None:
    session = StudioSession(small_inputs())
    session._build_pace = session._update_pace = 1e-12
    assert session.steps(session.job()) == (1,)
    session._update_pace = 1.0
    assert session.steps(session.job()) == (8, 1)
    session._update_pace = sessions.PREVIEW_SECONDS / (SHAPE[0] * SHAPE[1] * 3 * 5) * 3.5
    assert session.steps(session.job()) == (2, 1)


def test_scribbles_fix_labels() -> None:
    session = StudioSession(small_inputs(), "krahenbuehl")
    free = done(session).labels
    session.strokes.append(Stroke(2, [[0.1, 0.2], [0.2, 0.8]], 2.5))
    fixed = done(session)
    known = session.scribbles
    assert known is not None
    at = known != 255
    assert 100 < at.sum() < 600 and (known[at] == 2).all()
    assert (fixed.labels[at] == 2).all() and (free[at] == 0).all()
    session.strokes.append(Stroke(ERASER, [[0.0, 0.0], [1.0, 1.0], [0.0, 1.0], [0.5, 0.0]], 80))
    assert session.scribbles is None
    np.testing.assert_array_equal(done(session).labels, free)


def test_strokes_are_drawn_one_by_one() -> None:
    base = np.full(SHAPE, 255, dtype=np.uint8)
    base[:3] = 1
    session = StudioSession(replace(small_inputs(), scribbles=base))
    everything = [[0.0, y] for y in (0.0, 0.5, 1.0)]
    strokes = [
        Stroke(2, [[0.1, 0.0], [0.6, 0.4]], 3.0),
        Stroke(0, [[0.6, 0.0], [0.1, 0.4]], 3.0),
        Stroke(ERASER, everything, 100.0),
        Stroke(1, [[0.5, 0.5]], 2.0),
    ]
    for count in (1, 2, 3, 4, 3, 1, 2, 0, 4):  # drawn and taken back
        session.strokes[:] = strokes[:count]
        np.testing.assert_equal(session.scribbles, draw(strokes[:count], SHAPE, base))


def test_strokes_cover_the_line_between_points() -> None:
    drawn = draw([Stroke(1, [[0.25, 0.5], [0.75, 0.5]], 1.0)], (11, 21))
    assert drawn is not None
    ys, xs = np.nonzero(drawn == 1)
    # points at x = 4.75 and 15.25, y = 5
    assert set(ys) == {4, 5, 6} and xs.min() == 4 and xs.max() == 16
    assert (drawn[5, 5:16] == 1).all()
    for wild in ([[float("nan"), 0.5]], [[9.0, -4.0]], [[0.5, 0.5]] * 9000):
        draw([Stroke(0, wild, 1.0)], (5, 5))  # whatever a client sends
    assert as_runs(drawn)[1][0] == 4 * 21 + 5


def test_scribbles_of_a_file_stay_below_strokes() -> None:
    base = np.full(SHAPE, 255, dtype=np.uint8)
    base[:3] = 1
    session = StudioSession(replace(small_inputs(), scribbles=base))
    session.strokes.append(Stroke(2, [[0.5, 0.0]], 1.0))
    drawn = session.scribbles
    assert drawn is not None and drawn[0, 0] == 1 and drawn[0, 40] == 2
    with pytest.raises(InputError, match=r"scribbles of shape \(3, 3\), expected \(60, 80\)"):
        StudioSession(replace(small_inputs(), scribbles=base[:3, :3]))
    base[5, 5] = 9
    with pytest.raises(InputError, match="scribbles hold label 9, expected 0 to 2"):
        StudioSession(replace(small_inputs(), scribbles=base))


def test_a_job_can_be_given_up() -> None:
    session = StudioSession(small_inputs())
    assert session.compute(session.job(), stop=lambda: True) is None
    seen: list[float] = []
    session.settings = replace(session.settings, max_iters=3000)
    asked = iter(range(10**9))
    outcome = session.compute(
        session.job(), stop=lambda: next(asked) > 2, progress=lambda _, f: seen.append(f)
    )
    assert outcome is None and seen and np.isfinite(seen).all()


@pytest.mark.parametrize("kind", ["probs", "logits", "labels"])
def test_inputs_of_files(tmp_path: Path, kind: str) -> None:
    paths = write_files(tmp_path)
    what = {"probs": "probabilities"}.get(kind, kind)
    inputs = read_files(paths["image"], paths[kind], what, truth=paths["truth"])
    session = StudioSession(inputs)
    outcome = done(session)
    assert outcome.labels.shape == SHAPE
    if kind == "labels":
        assert (outcome.labels[:2] == 255).all() and (outcome.labels[2:] < 3).all()
        assert outcome.changed == (outcome.labels != session.labels).mean()
    assert outcome.iou is not None and 0 < outcome.iou <= 1


def test_bad_inputs_are_named() -> None:
    inputs = small_inputs()
    with pytest.raises(InputError, match=r"true labels of shape \(3, 80\)"):
        StudioSession(replace(inputs, truth=np.zeros((3, 80), dtype=int)))
    with pytest.raises(InputError, match="don't match"):
        StudioSession(replace(inputs, unary=inputs.unary[:7], truth=None))
    volume = StudioInputs(np.zeros((4, 5, 6), dtype=np.uint8), np.full((4, 5, 6, 2), 0.5))
    with pytest.raises(InputError, match="flat images, not 3 axes"):
        StudioSession(volume)
    with pytest.raises(InputError, match="unknown setting"):
        StudioSession(inputs, {"sigma": 3})


def test_too_many_entries_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MAX_ENTRIES", 14399)
    with pytest.raises(InputError, match="4800 pixels with 3 labels are too many"):
        StudioSession(small_inputs())


def test_a_single_number_is_refused() -> None:
    with pytest.raises(InputError):
        StudioSession(replace(small_inputs(), unary=np.array(0.5, dtype=np.float32)))


def test_channels_first() -> None:
    inputs = small_inputs()
    first = replace(inputs, image=np.moveaxis(inputs.image, -1, 0))
    np.testing.assert_array_equal(
        done(StudioSession(first)).labels, done(StudioSession(inputs)).labels
    )
    np.testing.assert_array_equal(
        done(StudioSession(first), 2).labels, done(StudioSession(inputs), 2).labels
    )


def test_the_generated_scene_needs_a_crf() -> None:
    session = StudioSession(demo_inputs(), "krahenbuehl")
    outcome = done(session, step=4)
    assert session.iou is not None and outcome.iou is not None
    assert 0.6 < session.iou < 0.9 < outcome.iou < 1


# ---- the worker ----


async def idle(worker: Worker) -> None:
    while worker.busy:
        await asyncio.sleep(0.01)


def run_worker(session: StudioSession, act: Any) -> tuple[list[StudioOutcome], list[Exception]]:
    shown: list[StudioOutcome] = []
    failed: list[Exception] = []

    async def main() -> None:
        worker = Worker(session, lambda o, _: shown.append(o), lambda *_: None, failed.append)
        await act(worker)
        await idle(worker)

    asyncio.run(main())
    return shown, failed


def test_the_latest_settings_win() -> None:
    session = StudioSession(small_inputs())

    async def act(worker: Worker) -> None:
        for weight in (1.0, 2.0, 3.0):
            session.settings = replace(session.settings, bilateral_weight=weight)
            worker.request()

    shown, failed = run_worker(session, act)
    assert not failed
    assert shown[-1].job.step == 1
    assert shown[-1].job.settings.bilateral_weight == 3.0


def test_a_full_computation_is_given_up_for_newer_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session = StudioSession(small_inputs())
    monkeypatch.setattr(StudioSession, "steps", lambda *_: (2, 1))
    asked: list[bool] = []
    compute = StudioSession.compute

    async def act(worker: Worker) -> None:
        def slow(self: StudioSession, job: Any, stop: Any, progress: Any) -> StudioOutcome | None:
            if job.step == 1 and not asked:  # newer settings come while this one runs
                session.settings = replace(session.settings, spatial_weight=7.0)
                worker.version += 1
                asked.append(stop())
                return None
            return compute(self, job, stop, progress)

        monkeypatch.setattr(StudioSession, "compute", slow)
        worker.request()

    shown, failed = run_worker(session, act)
    assert not failed and asked == [True]
    steps = [(o.job.step, o.job.settings.spatial_weight) for o in shown]
    assert steps == [(2, 1.0), (2, 7.0), (1, 7.0)]


def test_progress_is_that_of_all_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    session = StudioSession(small_inputs())
    monkeypatch.setattr(StudioSession, "steps", lambda *_: (2, 1))
    told: list[tuple[int, bool]] = []
    compute = StudioSession.compute

    def noted(self: StudioSession, job: Any, stop: Any, progress: Any) -> StudioOutcome | None:
        told.append((job.step, progress is not None))
        return compute(self, job, stop, progress)

    monkeypatch.setattr(StudioSession, "compute", noted)

    async def act(worker: Worker) -> None:
        worker.request()

    run_worker(session, act)
    assert told == [(2, False), (1, True)]


def test_a_failure_is_reported_and_the_next_request_served() -> None:
    session = StudioSession(small_inputs())

    async def act(worker: Worker) -> None:
        session.rule = "sweep"
        worker.request()
        await idle(worker)
        session.rule = "fixed"
        worker.request()

    shown, failed = run_worker(session, act)
    assert [type(e).__name__ for e in failed] == ["UnsupportedError"]
    assert shown[-1].job.rule == "fixed"


def test_a_closed_worker_shows_nothing_more() -> None:
    session = StudioSession(small_inputs())

    async def act(worker: Worker) -> None:
        worker.request()
        worker.close()

    assert run_worker(session, act) == ([], [])
