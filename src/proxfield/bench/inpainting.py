"""The benchmark on inpainting: a rule on a field for some seconds, Table 2, and pictures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from proxfield._version import __version__
from proxfield.bench.inpainting_models import GIVEN, Inpainting, InpaintingInstance
from proxfield.bench.published import INPAINTING, INPAINTING_BEST_KNOWN, INPAINTING_BUDGETS
from proxfield.bench.runner import (
    UNLIMITED,
    Settings,
    Warm,
    infer_with,
    rule_identity,
    traced_run,
)
from proxfield.bench.store import number_of
from proxfield.bench.table import (
    ShownValue,
    Table,
    budget_name,
    counted,
    make_cells,
    show,
    standard_error,
    star,
)
from proxfield.core.common.records import Record
from proxfield.core.solve.rules.base import Rule
from proxfield.core.solve.rules.registry import make_rule
from proxfield.io.images import import_pillow, png_bytes
from proxfield.result import Result
from proxfield.viz.sheets import inpainting_sheet

PICTURED = "adam"
"""The rule whose labels are drawn."""


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


# ---- Table 2 ----


def show_percent(value: float | None) -> str:
    """An accuracy with the digits of the paper's table.

    Example:
        >>> show_percent(67.123), show_percent(None)
        ('67.12', '–')
    """
    return show(value)


def make_inpainting_tables(records: Iterable[Record]) -> list[Table]:
    """The tables of what is stored, one for each suite; the last of equal runs counts.

    Cells have: "free_energy", the mean F, above the best-known energy in a table of `GIVEN` models
    where that is known, with its "standard_error" over the fields; "accuracy", the correct pixels
    in the hole in percent, and "log_truth", the mean log q of the true labels there, both None
    without the truth; "iterations", a mean.
    """
    suites: dict[str, dict[tuple[str, float], dict[str, Record]]] = {}
    for r in records:
        if r["kind"] == "inpainting":
            runs = suites.setdefault(str(r["suite"]), {})
            runs.setdefault((str(r["rule"]), float(r["budget"])), {})[str(r["digest"])] = r
    return [_table(suite, runs) for suite, runs in suites.items()]


def _table(suite: str, runs: dict[tuple[str, float], dict[str, Record]]) -> Table:
    rules = tuple(dict.fromkeys(rule for rule, _ in runs))
    budgets = tuple(sorted({budget for _, budget in runs}))
    count = len(set().union(*runs.values()))
    given = suite == GIVEN
    some = [r for group in runs.values() for r in group.values()]
    above = given and all(r.get("best_known") is not None for r in some)

    def measure(rule: str, budget: float) -> Record:
        found = list(runs.get((rule, budget), {}).values())
        return {"above_best_known": above, **_measure(found, count, above)}

    cells = make_cells(rules, budgets, measure)
    accuracy = any(c["accuracy"] is not None for row in cells.values() for c in row)
    name = suite if given else f"trained by {suite}"
    quantity = "mean F − E*" if above else "mean F"
    size = counted(count, "field")
    title = f"{name}: {quantity}{' and accuracy in the hole' * accuracy} over {size}"
    parts = (ShownValue("free_energy", show), ShownValue("best", star, "", left=True))
    percent = (ShownValue("accuracy", show_percent, "%"),) if accuracy else ()
    lower = INPAINTING_BEST_KNOWN if above else 0.0
    return Table(
        name, f"{title}; lower F is better, * is lowest", suite, rules, budgets, cells,
        (parts[0], *percent, parts[1]),
        ("above_best_known", "free_energy", "accuracy", "log_truth", "iterations"), "budget",
        {"suite": suite, "models": count}, count, size,
        {
            rule: tuple((f - lower, share) for f, share in theirs)
            for rule, theirs in INPAINTING.items()
        },
        tuple(map(budget_name, INPAINTING_BUDGETS)), (("", show), ("%", show_percent)),
        more={"quantity": quantity, "has_accuracy": accuracy},
    )  # fmt: skip


def _measure(runs: Sequence[Record], expected: int, above: bool) -> Record:
    names = ("free_energy", "standard_error", "accuracy", "log_truth")
    cell: Record = {**dict.fromkeys(names), "iterations": 0.0}
    if len(runs) < expected:
        return cell
    each = [number_of(r, "free_energy") - (r["best_known"] if above else 0.0) for r in runs]
    cell["free_energy"], cell["standard_error"] = sum(each) / len(runs), standard_error(each)
    cell["iterations"] = sum(r["iterations"] for r in runs) / len(runs)
    if all(r["correct"] is not None for r in runs):
        pixels = sum(r["pixels"] for r in runs)
        cell["accuracy"] = 100.0 * sum(r["correct"] for r in runs) / pixels
        cell["log_truth"] = sum(r["log_truth"] for r in runs) / pixels
    return cell


# ---- pictures ----


def draw_characters(
    instances: Sequence[InpaintingInstance], settings: Settings
) -> list[tuple[str, str, bytes]]:
    """The first character of each suite whose truth is known, completed by a rule."""
    out = []
    for suite in dict.fromkeys(i.suite for i in instances):
        instance = next(i for i in instances if i.suite == suite)
        model = instance.make()
        if model.truth is None or model.labels is None:
            continue
        result = infer_with(make_rule(PICTURED), model.field, settings, max_iters=1000, trace=False)
        mask = np.zeros(model.labels.size, dtype=bool)
        mask[model.hidden] = True
        q = result.q.reshape(*model.labels.shape, -1)
        sheet = inpainting_sheet(model.labels, mask.reshape(model.labels.shape), q, truth=True)
        what = f"{instance.name}, trained by {suite}: before, after, uncertainty, truth and errors"
        what += f" ({PICTURED}, at most 1000 iterations)."
        png = png_bytes(import_pillow().fromarray(sheet))
        out.append((f"inpainting-{suite}", what, png))
    return out
