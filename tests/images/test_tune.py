"""Settings chosen by measurement: the search, the folds, the store, and "no CRF"."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import proxfield as pf
from proxfield.images import trials, tune
from proxfield.images.metrics import count_regions, mean_iou
from proxfield.images.search import LIMITS, Scored, search
from proxfield.images.settings import DenseSettings
from proxfield.images.trials import NO_CRF, Measure, Trials, TrialTask, key_of, make_case, run_task

SIZE = (14, 18)


def scenes(n: int = 4, noise: float = 1.2, seed: int = 0) -> tuple[Any, Any, Any]:
    """Images in two halves with a border that differs, noisy probabilities, and the truth."""
    rng = np.random.default_rng(seed)
    truth = np.stack([np.arange(SIZE[1]) >= 7 + k % 3 for k in range(n)])
    truth = np.broadcast_to(truth[:, None], (n, *SIZE)).astype(np.uint8)
    image = 60 + 120 * truth[..., None] + rng.normal(0, 5, (n, *SIZE, 3))
    p = np.exp(np.eye(2)[truth] + rng.normal(0, noise, (n, *SIZE, 2)))
    truth = truth.copy()
    truth[:, 0, :4] = 255
    return image.clip(0, 255).astype(np.uint8), p / p.sum(axis=-1, keepdims=True), truth


# ---- the search ----


def bowl(best: dict[str, float]) -> Any:
    """An evaluation with one maximum, at ``best``, that remembers what it was asked."""
    asked: list[DenseSettings] = []

    def evaluate(points: Sequence[DenseSettings]) -> list[Scored]:
        asked.extend(points)
        out = []
        for p in points:
            far = sum(np.log((getattr(p, k) + 1e-3) / (v + 1e-3)) ** 2 for k, v in best.items())
            out.append(Scored(-float(far), replace(p, max_iters=10)))
        return out

    return evaluate, asked


def test_the_search_finds_a_maximum() -> None:
    best = {
        "spatial_sigma": 6.0,
        "spatial_weight": 0.7,
        "bilateral_sigma": 20.0,
        "bilateral_color": 9.0,
        "bilateral_weight": 25.0,
    }
    evaluate, asked = bowl(best)
    found = search(evaluate)
    assert found is not None
    for name, value in best.items():
        # the last factor is √2: at most half of it away
        assert abs(np.log(getattr(found.settings, name) / value)) <= np.log(2) / 4 + 0.01, name
    for point in asked:
        for name, (low, high) in LIMITS.items():
            assert getattr(point, name) == 0 or low <= getattr(point, name) <= high


def test_the_search_can_leave_a_term_out() -> None:
    evaluate, _ = bowl({"spatial_weight": 0.0, "bilateral_weight": 3.0})
    found = search(evaluate)
    assert found is not None
    assert found.settings.spatial_weight == 0
    assert found.settings.bilateral_weight == pytest.approx(3, rel=0.2)


def test_the_search_ends_when_evaluations_do() -> None:
    evaluate, asked = bowl({"bilateral_weight": 30.0})

    def few(points: Sequence[DenseSettings]) -> list[Scored]:
        return evaluate(points[: max(0, 9 - len(asked))])

    found = search(few)
    assert found is not None and len(asked) == 9
    assert search(lambda points: []) is None


def test_settings_of_a_term_without_weight_are_the_same_settings() -> None:
    one, other = DenseSettings(3, 0, 80, 13, 10), DenseSettings(5, 0, 80, 13, 10)
    assert key_of(one) == key_of(other) == key_of(replace(one, max_iters=1))
    here = DenseSettings(3, 1, 80, 13, 10)
    assert key_of(one) != key_of(here) != key_of(DenseSettings(5, 1, 80, 13, 10))
    assert key_of(replace(here, filter="exact")) != key_of(replace(here, filter="lattice"))


# ---- trials ----


@pytest.mark.parametrize("filter", ["exact", "lattice"])
def test_a_trial_is_an_inference(filter: str) -> None:
    images, p, truth = scenes(1)
    points = tuple(DenseSettings(2, w, 20, 9, b, filter=filter) for w, b in ((0.5, 1.5), (0.7, 0)))
    record = run_task(TrialTask(make_case(0, images[0], p[0], truth[0]), points, Measure()))
    known = np.where(truth[0] == 255, -1, truth[0].astype(int))
    bare = count_regions(known, p[0].argmax(axis=-1), 2)
    assert record["counts"][NO_CRF] == {"0": bare.tolist()}
    for point in points:
        crf = pf.DenseCRF(images[0], p[0], preset=point)
        for n in trials.MARKS:
            expected = count_regions(known, crf.infer(max_iters=n).labels, 2)
            assert record["counts"][key_of(point)][str(n)] == expected.tolist(), (point, n)
    assert record["counts"][key_of(points[0])]["10"] != bare.tolist()


def test_what_is_stored_is_not_repeated(tmp_path: Path, monkeypatch: Any) -> None:
    store = tmp_path / "trials.jsonl"
    options: dict[str, Any] = {"folds": 2, "trials": 6, "store": store}
    first = pf.tune(*scenes(), **options)
    lines = store.read_text().splitlines()
    with store.open("a") as stream:
        stream.write('{"measure": "cut o')  # a run that was killed while it wrote

    def refuse(task: TrialTask) -> Any:
        raise AssertionError(f"repeated: {task.points}")

    monkeypatch.setattr(tune, "run_task", refuse)
    second = pf.tune(*scenes(), **options)
    assert second.config == first.config and second.table == first.table
    assert second.held_out == first.held_out
    monkeypatch.undo()
    # half of the file: the rest is made again, and the result is the same
    store.write_text("\n".join(lines[: len(lines) // 2]) + "\n" + lines[-1][:20])
    third = pf.tune(*scenes(), **options)
    assert third.table == first.table
    assert all(json.loads(line) for line in store.read_text().splitlines() if line[-1] == "}")
    # other data and another way to count are other trials
    monkeypatch.setattr(tune, "run_task", refuse)
    with pytest.raises(AssertionError, match="repeated"):
        pf.tune(*scenes(seed=1), **options)
    with pytest.raises(AssertionError, match="repeated"):
        pf.tune(*scenes(), ignore=(255, 1), **options)
    assert pf.tune(*scenes(), metric="accuracy", **options).metric == "accuracy"  # the same counts
    with pytest.raises(AssertionError, match="repeated"):
        pf.tune(*scenes(), metric="boundary-f", **options)
    with pytest.raises(AssertionError, match="repeated"):
        pf.tune(*scenes(), fresh=True, **options)


def test_a_damaged_store_is_refused(tmp_path: Path) -> None:
    store = tmp_path / "trials.jsonl"
    store.write_text('{"x": 1}\n\n')
    with pytest.raises(pf.InputError, match=r"trials.jsonl:1: is no trial"):
        Trials(store, Measure(), False)


# ---- the whole ----


def test_tuned_settings_help_on_held_out_images() -> None:
    told: list[pf.TuneProgress] = []
    images, p, truth = scenes(6)
    found = pf.tune(images, p, truth, folds=3, trials=14, callback=told.append)
    assert found.improved
    assert found.held_out > found.baseline + 0.05
    assert found.best.score >= found.held_out - 0.1
    assert found.images == 6 and len(found.folds) == 3 and len(found.table) <= 14
    assert [f.score for f in found.table] == sorted((f.score for f in found.table), reverse=True)
    assert {key_of(f.settings) for f in found.table} >= {key_of(q) for q in pf.PRESETS.values()}
    # the scores are those of the settings it returns
    known = np.where(truth == 255, -1, truth.astype(int))
    total = np.zeros((3, 2), dtype=int)
    bare = np.zeros((3, 2), dtype=int)
    for k in range(6):
        labels = pf.DenseCRF(images[k], p[k], preset=found.config).infer().labels
        total += count_regions(known[k], labels, 2)
        bare += count_regions(known[k], p[k].argmax(axis=-1), 2)
    assert found.best.score == pytest.approx(mean_iou(total))
    assert found.baseline == pytest.approx(mean_iou(bare))
    # held out: each fold by settings that were chosen without it
    order = np.random.default_rng(0).permutation(6)
    names = [{f"image {i}" for i in part} for part in np.array_split(order, 3)]
    assert [set(fold.images) for fold in found.folds] == names
    pooled = np.zeros((3, 2), dtype=int)
    for fold, part in zip(found.folds, np.array_split(order, 3), strict=True):
        assert fold.chosen is not None
        for k in part:
            labels = pf.DenseCRF(images[k], p[k], preset=fold.chosen.settings).infer().labels
            pooled += count_regions(known[k], labels, 2)
    assert found.held_out == pytest.approx(mean_iou(pooled))
    assert {t.phase for t in told} == {0, 1, 2, 3}
    assert told[-1].best == found.best and told[-1].baseline == found.baseline
    scores = [t.best.score for t in told if t.best is not None]
    assert scores == sorted(scores)


def test_a_fold_is_not_seen_by_the_search_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[set[str]] = []
    whole = tune._Tuning.search

    def spy(self: Any, cases: Sequence[Any], *rest: Any) -> Any:
        searched.append({case.name for case in cases})
        return whole(self, cases, *rest)

    monkeypatch.setattr(tune._Tuning, "search", spy)
    found = pf.tune(*scenes(), folds=4, trials=3)
    everything = {f"image {k}" for k in range(4)}
    assert searched[0] == everything and len(searched) == 5
    for fold, seen in zip(found.folds, searched[1:], strict=True):
        assert seen == everything - set(fold.images) and len(fold.images) == 1


def test_no_crf_where_nothing_helps() -> None:
    """Colors say nothing, and every pixel is right: smoothing can only harm."""
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 2, (4, *SIZE)).astype(np.uint8)
    images = rng.integers(0, 255, (4, *SIZE, 3)).astype(np.uint8)
    p = np.where(np.eye(2)[truth] > 0, 0.51, 0.49)
    found = pf.tune(images, p, truth, folds=2, trials=5)
    assert not found.improved
    assert found.config.spatial_weight == found.config.bilateral_weight == 0
    assert found.baseline == 1.0 and found.held_out == 1.0  # folds choose no CRF too
    assert all(fold.chosen is None for fold in found.folds)
    assert "no CRF" in found.verdict
    text = found.to_toml()
    assert "changes nothing" in text and "bilateral_weight = 0.0" in text
    crf = pf.DenseCRF(images[0], p[0], preset=found.config)
    np.testing.assert_array_equal(crf.infer().labels, truth[0])


def test_the_file_says_where_it_comes_from(tmp_path: Path) -> None:
    found = pf.tune(*scenes(), folds=2, trials=5)
    found.save(tmp_path / "crf.toml")
    text = (tmp_path / "crf.toml").read_text(encoding="utf-8")
    head = [line for line in text.splitlines() if line.startswith("#")]
    assert f"proxfield {pf.__version__}" in head[0]
    assert "4 images" in head[1] and found.digest in head[1]
    assert f"{found.baseline:.4f} without a CRF, {found.held_out:.4f}" in head[2]
    assert "[tuning]" in text and 'metric = "miou"' in text
    assert pf.read_config(tmp_path / "crf.toml") == found.config


def test_several_processes_files_and_metrics(tmp_path: Path) -> None:
    images, p, truth = scenes()
    paths: list[list[Path]] = [[], [], []]
    for k, parts in enumerate(zip(images, p, truth, strict=True)):
        for which, part in zip(paths, parts, strict=True):
            which.append(tmp_path / f"{len(which)}-{id(which)}-{k}.npy")
            np.save(which[-1], part)
    options: dict[str, Any] = {"folds": 2, "trials": 5, "metric": "boundary-f", "tolerance": 1.0}
    here = pf.tune(images, p, truth, **options)
    there = pf.tune(*paths, jobs=2, **options)
    assert there.table == here.table and there.held_out == here.held_out
    assert there.baseline != pf.tune(images, p, truth, folds=2, trials=1).baseline


def test_a_budget_ends_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under a clock that advances by a second whenever it is read."""
    ticks = itertools.count()
    monkeypatch.setattr(tune.time, "perf_counter", lambda: float(next(ticks)))
    found = pf.tune(*scenes(), folds=2, trials=50, budget=20.0)
    assert "budget of 20 s" in found.stopped
    assert 4 <= len(found.table) < 20
    assert found.improved and len(found.folds) == 2
    with pytest.raises(pf.InputError, match="too short to try anything"):
        pf.tune(*scenes(), folds=2, trials=50, budget=0.5)


def test_equal_scores_change_nothing() -> None:
    evaluate, _ = bowl({})
    found = search(evaluate)
    first = replace(next(iter(pf.PRESETS.values())), max_iters=10)  # as evaluate says
    assert found is not None and found.settings == first


def test_colors_of_other_ranges() -> None:
    images, p, truth = scenes(2)
    wide = images.astype(np.int32) * 100
    with pytest.raises(pf.InputError, match="image 0: an image of int32"):
        pf.tune(wide, p, truth, folds=2, trials=2)
    found = pf.tune(wide, p, truth, folds=2, trials=4, color_range=25500.0)
    plain = pf.tune(images, p, truth, folds=2, trials=4)
    assert found.best.score == plain.best.score
    assert found.config.bilateral_color == plain.config.bilateral_color * 100
    assert found.config.color_range is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"metric": "dice"}, "metric='dice', expected one of: miou"),
        ({"folds": 1}, "folds=1, expected 2 or more"),
        ({"trials": 0}, "trials=0"),
        ({"jobs": 0}, "jobs=0"),
        ({"budget": 0}, "budget=0"),
        ({"tolerance": -1}, "tolerance=-1"),
        ({"filters": ("fast",)}, "'fast', expected auto"),
        ({"filters": ()}, "no filters"),
        ({"color_range": 0}, "color_range=0"),
        ({"spatial_sigma": 3}, "unknown option 'spatial_sigma', expected: labels_axis"),
        ({"ignore": 7}, "image 0: pixel .* has the true label 255"),
    ],
)
def test_bad_arguments(options: dict[str, Any], message: str) -> None:
    with pytest.raises(pf.InputError, match=message):
        pf.tune(*scenes(2), **options)


def test_bad_data() -> None:
    images, p, truth = scenes(3)
    with pytest.raises(pf.InputError, match="3 images, 2 probabilities and 3 maps"):
        pf.tune(images, p[:2], truth)
    with pytest.raises(pf.InputError, match="1 images, expected 2 or more"):
        pf.tune(images[:1], p[:1], truth[:1])
    with pytest.raises(pf.InputError, match="image 0: true labels of shape"):
        pf.tune(images, p, truth[:, 1:])
