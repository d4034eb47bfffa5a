"""The benchmark on inpainting: a rule on a field for some seconds, Table 2, and pictures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter

import numpy as np

from proxfield.bench.inpainting_models import GIVEN, Inpainting
from proxfield.bench.published import INPAINTING, INPAINTING_BEST_KNOWN, INPAINTING_BUDGETS
from proxfield.bench.runner import Settings, Task, outcome, timed_run, traced_run
from proxfield.bench.store import number_of
from proxfield.bench.suites import Instance
from proxfield.bench.table import (
    BEST,
    Runs,
    ShownValue,
    Table,
    budget_name,
    counted,
    group_last,
    make_cells,
    show,
    standard_error,
)
from proxfield.core.common.records import Record
from proxfield.core.solve.rules.base import Rule
from proxfield.core.solve.rules.registry import make_rule
from proxfield.io.images import import_pillow, png_bytes
from proxfield.result import Result
from proxfield.viz.sheets import inpainting_sheet

PICTURED = "adam"
"""The rule whose labels are drawn."""


def inpainting_tasks(
    instances: list[Instance[Inpainting]], rules: list[Rule], budgets: list[float]
) -> list[Task[Inpainting]]:
    """All runs, field by field; the first field of each suite also has traces."""
    firsts = {i.suite: i for i in reversed(instances)}
    tasks = []
    for instance in instances:
        for rule in rules:
            tasks += [inpainting_task("inpainting", instance, rule, b) for b in budgets]
            if firsts[instance.suite] is instance:
                tasks.append(inpainting_task("trace", instance, rule, max(budgets)))
    return tasks


def inpainting_task(
    kind: str, instance: Instance[Inpainting], rule: Rule, budget: float
) -> Task[Inpainting]:
    """A rule on a field, timed ("inpainting") or traced ("trace")."""
    work = _complete if kind == "inpainting" else traced_run
    return Task(kind, instance, work, rule, budget, make_field=attrgetter("field"))


def _complete(task: Task[Inpainting], model: Inpainting, settings: Settings) -> Record:
    """F, and how many pixels of the hole are right."""
    result = timed_run(task, model, settings)
    return {
        **outcome(result),
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


# ---- Table 2 ----


def make_inpainting_tables(records: Iterable[Record]) -> list[Table]:
    """The tables of what is stored, one for each suite; the last of equal runs counts.

    Cells have: "free_energy", the mean F, above the best-known energy in a table of `GIVEN` models
    where that is known, with its "standard_error" over the fields; "accuracy", the correct pixels
    in the hole in percent, and "log_truth", the mean log q of the true labels there, both None
    without the truth; "iterations", a mean.
    """
    suites = group_last(records, "inpainting", lambda r: (str(r["suite"]), float(r["budget"])))
    return [_table(suite, runs) for suite, runs in suites.items()]


def _table(suite: str, runs: Runs) -> Table:
    given = suite == GIVEN
    above = given and all(r.get("best_known") is not None for r in runs.all)

    def measure(rule: str, budget: float) -> Record:
        found = runs.of(rule, budget)
        return {"above_best_known": above, **_measure(found, runs.count, above)}

    cells = make_cells(runs.rules, runs.columns, measure)
    accuracy = any(c["accuracy"] is not None for row in cells.values() for c in row)
    name = suite if given else f"trained by {suite}"
    quantity = "mean F − E*" if above else "mean F"
    size = counted(runs.count, "field")
    title = f"{name}: {quantity}{' and accuracy in the hole' * accuracy} over {size}"
    percent = (ShownValue("accuracy", show, "%"),) if accuracy else ()
    lower = INPAINTING_BEST_KNOWN if above else 0.0
    return Table(
        name, f"{title}; lower F is better, * is lowest", suite, runs.rules, runs.columns, cells,
        (ShownValue("free_energy", show), *percent, BEST),
        ("above_best_known", "free_energy", "accuracy", "log_truth", "iterations"), "budget",
        {"suite": suite, "models": runs.count}, runs.count, size,
        {
            rule: tuple((f - lower, share) for f, share in theirs)
            for rule, theirs in INPAINTING.items()
        },
        tuple(map(budget_name, INPAINTING_BUDGETS)), (("", show), ("%", show)),
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
    instances: Sequence[Instance[Inpainting]], settings: Settings
) -> list[tuple[str, str, bytes]]:
    """The first character of each suite whose truth is known, completed by a rule."""
    out = []
    for suite in dict.fromkeys(i.suite for i in instances):
        instance = next(i for i in instances if i.suite == suite)
        model = instance.make()
        if model.truth is None or model.labels is None:
            continue
        task = inpainting_task("inpainting", instance, make_rule(PICTURED), 0.0)
        result = task.infer(model, settings, max_iters=1000, trace=False)
        mask = np.zeros(model.labels.size, dtype=bool)
        mask[model.hidden] = True
        q = result.q.reshape(*model.labels.shape, -1)
        sheet = inpainting_sheet(model.labels, mask.reshape(model.labels.shape), q, truth=True)
        what = f"{instance.name}, trained by {suite}: before, after, uncertainty, truth and errors"
        what += f" ({PICTURED}, at most 1000 iterations)."
        png = png_bytes(import_pillow().fromarray(sheet))
        out.append((f"inpainting-{suite}", what, png))
    return out
