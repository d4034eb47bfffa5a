"""The benchmark on semantic segmentation: a rule on a dense CRF for some iterations; tables."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import mean

import numpy as np

from proxfield._version import __version__
from proxfield.bench.runner import Settings, Warm, infer_with, rule_identity
from proxfield.bench.segmentation_scenes import CLASSES, DrawnScene, SceneInstance, make_field
from proxfield.bench.store import number_of
from proxfield.bench.table import ShownValue, Table, counted, make_cells, show, standard_error, star
from proxfield.core.common.records import Record
from proxfield.core.solve.rules.base import Rule
from proxfield.core.solve.rules.registry import make_rule
from proxfield.errors import InputError, shown

PARTS = (
    ShownValue("free_energy", show),
    ShownValue("mean_iou", show, "% IoU"),
    ShownValue("best", star, "", left=True),
)
ROWS: dict[str, Record] = {
    "full-parallel": {},
    "adhoc": {},
    "fixed": {"step": "certified-local"},
    "momentum": {},
    "adam": {},
}
"""The rules of the table, with their parameters: those that update all variables at once. The
certified step is that of each variable, since a presence variable is coupled with every pixel."""
ITERATIONS = (5, 20, 100)
"""Columns of the table."""


@dataclass(frozen=True)
class SegmentationTask:
    """One rule on one scene, for some iterations from the classifier's probabilities.

    Attributes:
        instance: The scene.
        rule: The rule.
        cooccurrence: Whether classes that don't occur together repel each other.
        iterations: How many; the most of them are traced.
        traced: Note F of every state.
    """

    instance: SceneInstance
    rule: Rule
    cooccurrence: bool
    iterations: int
    traced: bool = False
    kind: str = "segmentation"
    budget: float | None = None

    @property
    def cost(self) -> float:
        """Seconds that it takes, roughly."""
        return 0.02 * self.iterations + 0.05

    def identity(self, settings: Settings) -> Record:
        """What tells this task from others in a results file."""
        return {
            "kind": self.kind,
            "suite": self.instance.suite,
            "instance": self.instance.name,
            "digest": f"{self.instance.digest}-{self.instance.seed}",
            "setting": {"cooccurrence": self.cooccurrence, "traced": self.traced},
            "max_passes": self.iterations,
            "version": __version__,
            **rule_identity(self.rule, settings),
        }

    def warm_up(self, model: DrawnScene, settings: Settings, warm: Warm) -> None:
        """One short run of each rule on each kind of field."""
        family = ("segmentation", str(self.cooccurrence), self.rule.name)
        if family not in warm:
            warm.add(family)
            field = make_field(model, self.cooccurrence)
            infer_with(self.rule, field, settings, max_iters=2, init="unary", trace=False)

    def do(self, model: DrawnScene, settings: Settings) -> Record:
        """F, and the pixels by true and guessed class."""
        field = make_field(model, self.cooccurrence)
        result = infer_with(
            self.rule, field, settings, max_iters=self.iterations, init="unary", trace=self.traced
        )
        n, n_labels = model.truth.size, len(CLASSES)
        guess = result.q[: n * n_labels].reshape(n, n_labels).argmax(axis=1)
        confusion = np.bincount(model.truth.ravel() * n_labels + guess, minlength=n_labels**2)
        first = model.log_probabilities.reshape(n, n_labels).argmax(axis=1)
        before = np.bincount(model.truth.ravel() * n_labels + first, minlength=n_labels**2)
        out: Record = {
            "free_energy": result.free_energy,
            "iterations": result.iterations,
            "seconds": round(result.seconds, 6),
            "status": result.status.label,
            "confusion": confusion,
            "classifier": before,
        }
        if self.traced:
            out["trace_free_energy"] = [float(f"{f:.11g}") for f in result.trace.free_energy]
        return out


def segmentation_rules(names: Sequence[str] | None) -> list[Rule]:
    """The rules to run; all of the table by default."""
    for name in names or ():
        if name not in ROWS:
            raise InputError(f"unknown rule {shown(name)}, expected some of: {', '.join(ROWS)}")
    return [make_rule(name, ROWS[name]) for name in names or ROWS]


def segmentation_tasks(
    instances: Sequence[SceneInstance], rules: Sequence[Rule], iterations: Sequence[int]
) -> list[SegmentationTask]:
    """All runs, scene by scene; those with the largest number of iterations are traced."""
    most = max(iterations)
    return [
        SegmentationTask(instance, rule, cooccurrence, count, traced=count == most)
        for instance in instances
        for cooccurrence in (False, True)
        for rule in rules
        for count in iterations
    ]


# ---- tables ----


def make_segmentation_tables(records: Iterable[Record]) -> list[Table]:
    """The tables of what is stored, one for each kind of field; the last of equal runs counts.

    Cells have: "free_energy", a mean over the scenes, with its "standard_error"; "mean_iou" of all
    scenes together, in percent; "converged", on how many the rule did. The curve is "free_energy"
    after 0, 1, 2, … iterations.
    """
    kinds: dict[bool, dict[tuple[str, int], dict[str, Record]]] = {}
    for r in records:
        if r["kind"] == "segmentation":
            runs = kinds.setdefault(bool(r["setting"]["cooccurrence"]), {})
            runs.setdefault((str(r["rule"]), int(r["max_passes"])), {})[str(r["digest"])] = r
    return [_table(kind, runs) for kind, runs in sorted(kinds.items())]


def _table(cooccurrence: bool, runs: dict[tuple[str, int], dict[str, Record]]) -> Table:
    rules = tuple(dict.fromkeys(rule for rule, _ in runs))
    columns = tuple(sorted({count for _, count in runs}))
    scenes = len(set().union(*runs.values()))
    alone = mean_iou([r["classifier"] for r in next(iter(runs.values())).values()])

    def measure(rule: str, column: int) -> Record:
        found = list(runs.get((rule, column), {}).values())
        return {**_measure(found, scenes), "classifier_mean_iou": alone}

    curves = {}
    for rule in rules:
        traced = [r for r in runs.get((rule, columns[-1]), {}).values() if "trace_free_energy" in r]
        if len(traced) == scenes:
            energies = mean_curve([r["trace_free_energy"] for r in traced], columns[-1])
            curves[rule] = {"free_energy": np.array(energies)}
    name = "dense CRF with co-occurrence" if cooccurrence else "dense CRF"
    size = counted(scenes, "scene")
    title = f"{name}: mean F and mean IoU over {size} (classifier alone: {alone:.2f} %)"
    return Table(
        name, f"{title}; lower F is better, * is lowest", name, rules, columns,
        make_cells(rules, columns, measure), PARTS,
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
