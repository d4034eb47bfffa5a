"""Work of the benchmark on inpainting: a rule on a field, for some seconds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from proxfield._version import __version__
from proxfield.bench.inpainting_models import Inpainting, InpaintingInstance
from proxfield.bench.runner import (
    UNLIMITED,
    Settings,
    Warm,
    infer_with,
    rule_identity,
    traced_run,
)
from proxfield.bench.store import Record
from proxfield.core.solve.rules.base import Rule
from proxfield.result import Result


@dataclass(frozen=True)
class InpaintingTask:
    """One rule on one field.

    Attributes:
        instance: The field.
        rule: The rule.
        budget: Seconds of iterating.
        traced: Note F of every state, in a run of its own.
    """

    instance: InpaintingInstance
    rule: Rule
    budget: float
    traced: bool = False

    @property
    def kind(self) -> str:
        """Timed, or traced."""
        return "trace" if self.traced else "inpainting"

    @property
    def cost(self) -> float:
        """Seconds that it takes at most, roughly."""
        return self.budget + 0.01

    def identity(self, settings: Settings) -> Record:
        """What tells this task from others in a results file."""
        return {
            "kind": self.kind,
            "suite": self.instance.suite,
            "instance": self.instance.name,
            "digest": self.instance.digest,
            "budget": self.budget,
            "version": __version__,
            **rule_identity(self.rule, settings),
        }

    def warm_up(self, model: Inpainting, settings: Settings, warm: Warm) -> None:
        """One short run of each rule on each suite."""
        family = (self.instance.suite, self.rule.name)
        if family not in warm:
            warm.add(family)
            infer_with(self.rule, model.field, settings, max_iters=3, trace=False)

    def do(self, model: Inpainting, settings: Settings) -> Record:
        """F, and how many pixels of the hole are right."""
        if self.traced:
            return traced_run(self.rule, model.field, settings, self.budget)
        result = infer_with(
            self.rule, model.field, settings, budget=self.budget, max_iters=UNLIMITED, trace=False
        )
        return {
            "free_energy": result.free_energy,
            "iterations": result.iterations,
            "seconds": round(result.seconds, 6),
            "status": result.status.label,
            "pixels": len(model.hidden),
            "correct": count_correct(model, result),
            "log_truth": log_truth(model, result),
            "best_known": model.best_known,
        }


def count_correct(model: Inpainting, result: Result) -> int | None:
    """Pixels of the hole whose most probable label is the true one; None without the truth."""
    if model.truth is None:
        return None
    return int((np.asarray(result.marginals)[model.hidden].argmax(axis=1) == model.truth).sum())


def log_truth(model: Inpainting, result: Result) -> float | None:
    """Σ log q of the true labels in the hole; None without the truth."""
    if model.truth is None:
        return None
    q = np.asarray(result.marginals)[model.hidden, model.truth]
    return float(np.log(np.maximum(q, 1e-12)).sum())


def inpainting_tasks(
    instances: list[InpaintingInstance], rules: list[Rule], budgets: list[float]
) -> list[InpaintingTask]:
    """All runs, field by field; the first field of each suite also has traces."""
    firsts = {i.suite: i for i in reversed(instances)}
    tasks = []
    for instance in instances:
        for rule in rules:
            tasks += [InpaintingTask(instance, rule, budget) for budget in budgets]
            if firsts[instance.suite] is instance:
                tasks.append(InpaintingTask(instance, rule, max(budgets), traced=True))
    return tasks
