"""The benchmark on semantic segmentation: seeded scenes, dense CRFs that segment them, and tables.

Three kinds of scenes (sea, meadow, street) share the sky and nothing else, and a classifier takes
boats for cows and water for grass: what may occur together helps to tell them apart.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import partial
from statistics import mean
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from proxfield.bench.runner import Settings, Task, outcome
from proxfield.bench.store import number_of
from proxfield.bench.suites import Instance
from proxfield.bench.table import (
    BEST,
    RuleRuns,
    ShownValue,
    Table,
    counted,
    group_last,
    make_cells,
    show,
    standard_error,
)
from proxfield.core.common.arrays import Doubles, Ints
from proxfield.core.common.records import Record
from proxfield.core.solve.rules.base import Rule
from proxfield.core.solve.rules.registry import make_rule
from proxfield.core.terms.cooccurrence import Cooccurrence
from proxfield.core.terms.gaussian import Gaussian
from proxfield.core.terms.unary import Unary
from proxfield.errors import InputError, shown
from proxfield.field import Field
from proxfield.images.cooccurrence import CooccurrenceStatistics

ROWS: dict[str, Record] = {
    "full-parallel": {},
    "adhoc": {},
    "fixed": {"step": "certified-local"},
    "momentum": {},
    "adam": {},
}
"""The rules of the table, with their parameters: those that update all variables at once. The
certified step is that of each variable, since a presence variable is coupled with every pixel."""
RECIPE = "scenes-1"
"""Changes whenever a change here changes a field, so that old results aren't taken for new."""
CLASSES = ("sky", "water", "grass", "road", "boat", "cow", "car")
COLORS = np.array(
    [[150, 185, 225], [70, 110, 140], [95, 130, 70], [115, 112, 108], [185, 175, 165],
     [120, 85, 65], [150, 60, 60]], dtype=np.float64,
)  # fmt: skip
KINDS = {"sea": (1, 4), "meadow": (2, 5), "street": (3, 6)}
"""Ground and things of each kind of scene, as class numbers."""
SHAPE = (72, 96)
MAPS = 60
"""Label maps in which classes that occur together are counted."""
CONFUSION = 0.9
"""By how much a classifier prefers the true class to those of the same role."""
NOISE = (0.9, 0.8)
"""Spread of its errors: of blocks of 8 × 8 pixels, and of single pixels."""


class DrawnScene(NamedTuple):
    """An image with its true classes, and what a classifier says of it."""

    image: NDArray[np.uint8]  # (h, w, 3)
    truth: Ints  # (h, w)
    log_probabilities: NDArray[np.float64]  # (h, w, L)


def scene_instances(count: int, seed: int = 0) -> list[Instance[DrawnScene]]:
    """As many scenes of different kinds."""
    kinds = list(KINDS)
    seeds = range(seed * 10_000, seed * 10_000 + count)
    return [
        Instance(
            "scenes", f"{kinds[k % len(kinds)]}-{k // len(kinds)}", f"{RECIPE}-{own}",
            partial(make_scene, own),
        )
        for k, own in enumerate(seeds)
    ]  # fmt: skip


def make_labels(seed: int) -> Ints:
    """The labels of a scene: sky, ground below it, and things on the ground.  # (h, w)"""
    rng = np.random.default_rng([2016, seed])
    ground, thing = list(KINDS.values())[seed % len(KINDS)]
    h, w = SHAPE
    y, x = np.mgrid[:h, :w]
    slope = rng.uniform(-0.1, 0.1)
    horizon = h * rng.uniform(0.3, 0.55) + slope * (x - w / 2) + 1.5 * np.sin(x / rng.uniform(5, 9))
    labels = np.where(y < horizon, 0, ground)
    for _ in range(rng.integers(2, 5)):
        cy, cx = h * rng.uniform(0.55, 0.9), w * rng.uniform(0.1, 0.9)
        tall, wide = rng.uniform(4, 8), rng.uniform(7, 13)
        labels[((y - cy) / tall) ** 2 + ((x - cx) / wide) ** 2 < 1] = thing
    return labels.astype(np.int64)


def make_scene(seed: int) -> DrawnScene:
    """A scene of a seed."""
    truth = make_labels(seed)
    rng = np.random.default_rng([2017, seed])
    h, w = SHAPE
    shade = 1 + 0.12 * np.sin(np.arange(w) / 13 + rng.uniform(0, 6))
    image = COLORS[truth] * shade[None, :, None] + rng.normal(scale=7.0, size=(h, w, 3))
    n_labels = len(CLASSES)
    roles = np.array([0, 1, 1, 1, 2, 2, 2])
    same = roles[truth][..., None] == roles
    right = truth[..., None] == np.arange(n_labels)
    logits = 1.2 * same + CONFUSION * right
    blocks = rng.normal(scale=NOISE[0], size=(-(-h // 8), -(-w // 8), n_labels))
    logits = logits + np.kron(blocks, np.ones((8, 8, 1)))[:h, :w]
    logits += rng.normal(scale=NOISE[1], size=logits.shape)
    log_p = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
    return DrawnScene(image.clip(0, 255).astype(np.uint8), truth, log_p)


def counts() -> CooccurrenceStatistics:
    """Classes that occur together in other scenes."""
    return CooccurrenceStatistics.from_label_maps(
        [make_labels(1_000_000 + k) for k in range(MAPS)], len(CLASSES)
    )


def make_field(scene: DrawnScene, cooccurrence: bool) -> Field:
    """The dense CRF of a scene.

    Args:
        scene: The scene.
        cooccurrence: Whether the presence of each class is a variable, and classes that don't
            occur together repel each other.
    """
    h, w, n_labels = scene.log_probabilities.shape
    n = h * w
    place = np.moveaxis(np.mgrid[:h, :w], 0, -1).reshape(n, 2).astype(np.float64)
    color = scene.image.reshape(n, 3).astype(np.float64)
    extra = [2] * n_labels if cooccurrence else []
    field = Field([n_labels] * n + extra)
    field.add(Unary(-scene.log_probabilities.reshape(n, n_labels), np.arange(n)))
    field.add(Gaussian(place / 2.0, 1.5))
    field.add(Gaussian(np.concatenate([place / 20, color / 12], axis=1), 3.0))
    if cooccurrence:
        field.add(Cooccurrence(counts(), pixels=n, always=(), latent="variables"))
    return field


# ---- work ----


def segmentation_rules(names: Sequence[str] | None) -> list[Rule]:
    """The rules to run; all of the table by default."""
    for name in names or ():
        if name not in ROWS:
            raise InputError(f"unknown rule {shown(name)}, expected some of: {', '.join(ROWS)}")
    return [make_rule(name, ROWS[name]) for name in names or ROWS]


def segmentation_tasks(
    instances: Sequence[Instance[DrawnScene]], rules: Sequence[Rule], iterations: Sequence[int]
) -> list[Task[DrawnScene]]:
    """All runs, scene by scene, each for some iterations from the classifier's probabilities.

    Those with the largest number of iterations are traced.
    """
    out = []
    for instance in instances:
        for cooccurrence in (False, True):
            make = partial(make_field, cooccurrence=cooccurrence)
            for rule in rules:
                for count in iterations:
                    setting = {"cooccurrence": cooccurrence, "traced": count == max(iterations)}
                    facts = {"setting": setting, "max_passes": count}
                    cost = 0.02 * count + 0.05
                    out.append(
                        Task(
                            "segmentation", instance, _segment, rule, facts=facts,
                            make_field=make, init="unary", cost=cost,
                        )
                    )  # fmt: skip
    return out


def _segment(task: Task[DrawnScene], model: DrawnScene, settings: Settings) -> Record:
    """F, and the pixels by true and guessed class."""
    traced = task.facts["setting"]["traced"]
    result = task.infer(model, settings, max_iters=task.facts["max_passes"], trace=traced)
    n, n_labels = model.truth.size, len(CLASSES)

    def confusion(scores: NDArray[np.float64]) -> Ints:
        guess = scores.reshape(n, n_labels).argmax(axis=1)
        return np.bincount(model.truth.ravel() * n_labels + guess, minlength=n_labels**2)

    out = {
        **outcome(result),
        "confusion": confusion(result.q[: n * n_labels]),
        "classifier": confusion(model.log_probabilities),
    }
    if traced:
        out["trace_free_energy"] = [float(f"{f:.11g}") for f in result.trace.free_energy]
    return out


# ---- tables ----


def make_segmentation_tables(records: Iterable[Record]) -> list[Table]:
    """The tables of what is stored, one for each kind of field; the last of equal runs counts.

    Cells have: "free_energy", a mean over the scenes, with its "standard_error"; "mean_iou" of all
    scenes together, in percent; "converged", on how many the rule did. The curve is "free_energy"
    after 0, 1, 2, … iterations.
    """
    kinds = group_last(
        records,
        "segmentation",
        lambda r: (bool(r["setting"]["cooccurrence"]), int(r["max_passes"])),
    )
    return [_table(kind, runs) for kind, runs in sorted(kinds.items())]


def _table(cooccurrence: bool, runs: RuleRuns) -> Table:
    scenes, columns = runs.count, runs.columns
    alone = mean_iou([r["classifier"] for r in next(iter(runs.found.values())).values()])

    def measure(rule: str, column: int) -> Record:
        return {**_measure(runs.of(rule, column), scenes), "classifier_mean_iou": alone}

    curves: dict[str, dict[str, Doubles]] = {}
    for rule in runs.rules:
        found = runs.of(rule, columns[-1])
        traces = [r["trace_free_energy"] for r in found if "trace_free_energy" in r]
        if len(traces) == scenes:
            energies = mean_curve(traces, columns[-1])
            curves[rule] = {"free_energy": np.array(energies, dtype=np.float64)}
    name = "dense CRF with co-occurrence" if cooccurrence else "dense CRF"
    size = counted(scenes, "scene")
    title = f"{name}: mean F and mean IoU over {size} (classifier alone: {alone:.2f} %)"
    return Table(
        name, f"{title}; lower F is better, * is lowest", name, runs.rules, columns,
        make_cells(runs.rules, columns, measure),
        (ShownValue("free_energy", show), ShownValue("mean_iou", show, "% IoU"), BEST),
        ("free_energy", "standard_error", "mean_iou", "converged", "classifier_mean_iou"),
        "iterations", {"cooccurrence": cooccurrence, "scenes": scenes}, scenes, size,
        curves=curves, more={"classifier_iou": alone},
    )  # fmt: skip


def _measure(runs: Sequence[Record], expected: int) -> Record:
    if len(runs) < expected:
        missing = dict.fromkeys(("free_energy", "standard_error", "mean_iou"))
        return {**missing, "converged": 0}
    energies = [number_of(r, "free_energy") for r in runs]
    return {
        "free_energy": mean(energies),
        "standard_error": standard_error(energies),
        "mean_iou": mean_iou([r["confusion"] for r in runs]),
        "converged": sum(r["status"] == "converged" for r in runs),
    }


def mean_iou(confusions: Iterable[Sequence[int]]) -> float:
    """Mean over the classes of intersection over union, in percent.

    Example:
        >>> perfect = np.diag(np.ones(len(CLASSES), dtype=int)).ravel().tolist()
        >>> mean_iou([perfect, perfect])
        100.0
    """
    n = len(CLASSES)
    total = np.sum([np.reshape(c, (n, n)) for c in confusions], axis=0)
    hit = np.diag(total)
    union = total.sum(axis=0) + total.sum(axis=1) - hit
    present = union > 0
    return float(100 * (hit[present] / union[present]).mean())


def mean_curve(traces: Sequence[Sequence[float | None]], length: int) -> list[float]:
    """The mean of traces; one that ended earlier stays at its last value.

    Example:
        >>> mean_curve([[4.0, 2.0], [6.0, 4.0, 2.0]], 2)
        [5.0, 3.0, 2.0]
    """
    rows = [[math.inf if f is None else f for f in trace] for trace in traces]
    return [mean(row[min(k, len(row) - 1)] for row in rows) for k in range(length + 1)]
