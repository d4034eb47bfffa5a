"""Work of the benchmark on semantic segmentation: a rule on a dense CRF, for some iterations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from proxfield._version import __version__
from proxfield.bench.runner import Settings, Warm, infer_with, rule_identity
from proxfield.bench.segmentation_scenes import CLASSES, Scene, SceneInstance, make_field
from proxfield.bench.store import Record
from proxfield.core.solve.rules.base import Rule
from proxfield.core.solve.rules.registry import make_rule
from proxfield.errors import InputError, shown

ROWS: dict[str, dict[str, Any]] = {
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

    def warm_up(self, model: Scene, settings: Settings, warm: Warm) -> None:
        """One short run of each rule on each kind of field."""
        family = ("segmentation", str(self.cooccurrence), self.rule.name)
        if family not in warm:
            warm.add(family)
            field = make_field(model, self.cooccurrence)
            infer_with(self.rule, field, settings, max_iters=2, init="unary", trace=False)

    def do(self, model: Scene, settings: Settings) -> Record:
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
