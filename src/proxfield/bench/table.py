"""Table 1: the mean F of each rule on each suite at each budget, beside the published one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median, stdev

from proxfield.bench.published import published
from proxfield.bench.runner import Settings, Task
from proxfield.bench.store import Record, Store, number_of
from proxfield.bench.suites import Instance
from proxfield.core.solve.rules.base import Rule

OVERRUN_FACTOR = 1.1
"""A run that takes more than this many times its budget is worth mentioning."""


@dataclass(frozen=True)
class Cell:
    """One rule on one suite at one budget.

    Attributes:
        value: Mean F over the instances; None if a run is missing.
        spread: Means over the instances of the lowest and of the highest F of the repetitions;
            None with a single repetition.
        published: The paper's, where it has one.
        best: Is ``value`` the lowest of its column, to the digits shown?
        published_best: Is ``published`` the lowest of its column?
        iterations: Median over the instances.
        settled: Instances (by weight) that converged within the budget.
        seconds: Longest run.
    """

    value: float | None
    published: float | None
    best: bool = False
    published_best: bool = False
    iterations: float | None = None
    settled: int = 0
    seconds: float = 0.0
    spread: tuple[float, float] | None = None


@dataclass(frozen=True)
class Table:
    """All cells, by (rule, suite, budget).

    Attributes:
        counts: Instances of each suite, by weight.
        models: Models of each suite.
    """

    rules: tuple[str, ...]
    suites: tuple[str, ...]
    budgets: tuple[float, ...]
    cells: dict[tuple[str, str, float], Cell]
    counts: dict[str, int]
    models: dict[str, int]


def paper_tasks(
    suites: dict[str, list[Instance]], rules: Sequence[Rule], budgets: Sequence[float], repeats: int
) -> list[Task]:
    """The timed runs of Table 1, instance by instance."""
    return [
        Task("run", instance, rule, budget, repeat)
        for instances in suites.values()
        for instance in instances
        for rule in rules
        for budget in budgets
        for repeat in range(repeats)
    ]


def make_table(
    suites: dict[str, list[Instance]],
    rules: Sequence[Rule],
    budgets: Sequence[float],
    repeats: int,
    store: Store,
    settings: Settings,
) -> Table:
    """The table of what is stored."""
    cells: dict[tuple[str, str, float], Cell] = {}
    for suite, instances in suites.items():
        for budget in budgets:
            column = {
                rule.name: _cell(instances, rule, suite, budget, repeats, store, settings)
                for rule in rules
            }
            ours = lowest([c.value for c in column.values()])
            theirs = lowest([c.published for c in column.values()])
            for name, c in column.items():
                cells[name, suite, budget] = Cell(
                    **{
                        **c.__dict__,
                        "best": is_lowest(c.value, ours),
                        "published_best": is_lowest(c.published, theirs),
                    }
                )
    return Table(
        tuple(r.name for r in rules),
        tuple(suites),
        tuple(budgets),
        cells,
        {suite: sum(i.weight for i in instances) for suite, instances in suites.items()},
        {suite: len(instances) for suite, instances in suites.items()},
    )


def _cell(
    instances: Sequence[Instance],
    rule: Rule,
    suite: str,
    budget: float,
    repeats: int,
    store: Store,
    settings: Settings,
) -> Cell:
    """Median over repetitions, mean over instances by weight."""
    theirs = published(rule.name, suite, budget)
    values, weights, iterations = [], [], []
    each: list[list[float]] = []  # by instance, F of every repetition
    settled, seconds = 0, 0.0
    for instance in instances:
        tasks = [Task("run", instance, rule, budget, k) for k in range(repeats)]
        found = [store.find(t.identity(settings)) for t in tasks]
        runs = [r for r in found if r is not None]
        if len(runs) < repeats:
            return Cell(None, theirs)
        each.append([number_of(r, "free_energy") for r in runs])
        values.append(median(each[-1]))
        weights.append(instance.weight)
        iterations.append(median(int(r["iterations"]) for r in runs))
        settled += instance.weight * (sum(_converged(r) for r in runs) * 2 > len(runs))
        seconds = max(seconds, *(float(r["seconds"]) for r in runs))
    ends = [weighted_mean([pick(some) for some in each], weights) for pick in (min, max)]
    return Cell(
        weighted_mean(values, weights),
        theirs,
        iterations=median(iterations),
        settled=settled,
        seconds=seconds,
        spread=(ends[0], ends[1]) if repeats > 1 else None,
    )


def _converged(record: Record) -> bool:
    return bool(record["status"] == "converged")


def overruns(tasks: Sequence[Task], store: Store, settings: Settings) -> str | None:
    """A sentence about timed runs that took clearly longer than allowed; None if none did."""
    ratios = []
    for task in tasks:
        record = store.find(task.identity(settings))
        if record is not None and task.kind == "run" and task.budget is not None:
            ratios.append(float(record["seconds"]) / task.budget)
    late = [r for r in ratios if r > OVERRUN_FACTOR]
    if not late:
        return None
    return (
        f"{len(late)} of {len(ratios)} timed runs took over {OVERRUN_FACTOR:g} times their budget "
        f"(at most {max(late):.2g} times): on a busy machine, or where finding a certified step "
        "takes longer than that"
    )


def weighted_mean(values: Sequence[float], weights: Sequence[float]) -> float:
    """The mean by weight.

    Example:
        >>> weighted_mean([1.0, 4.0], [2, 1])
        2.0
    """
    total = sum(v * w for v, w in zip(values, weights, strict=True))
    return total / sum(weights)


def standard_error(values: Sequence[float]) -> float | None:
    """The standard error of a mean; None of fewer than two values or of values that aren't finite.

    Example:
        >>> standard_error([1.0, 3.0]), standard_error([1.0])
        (1.0, None)
    """
    if len(values) < 2 or not all(map(math.isfinite, values)):
        return None
    return stdev(values) / math.sqrt(len(values))


def lowest(values: Sequence[float | None]) -> float | None:
    """The lowest finite value, None if there is none."""
    return min((v for v in values if v is not None and math.isfinite(v)), default=None)


def bests(table: Table, suite: str, budget: float) -> tuple[float | None, float | None]:
    """The lowest F of a column, ours and the published one."""
    column = [table.cells[rule, suite, budget] for rule in table.rules]
    return lowest([c.value for c in column]), lowest([c.published for c in column])


def is_lowest(value: float | None, low: float | None) -> bool:
    """Whether a value is shown as the lowest one; equal digits are a tie."""
    return value is not None and low is not None and show(value) == show(low)


def show(value: float | None) -> str:
    """A value with the digits of the paper's table.

    Example:
        >>> show(-18630.0067), show(None), show(float("inf"))
        ('-18630.01', '–', 'inf')
    """
    return "–" if value is None else f"{value + 0.0:.2f}"


def budget_name(budget: float) -> str:
    """A budget as it heads a column.

    Example:
        >>> budget_name(0.05), budget_name(1.0)
        ('0.05 s', '1 s')
    """
    return f"{budget:g} s"


def table_data(table: Table) -> list[dict[str, object]]:
    """For ``--json``: one object per suite, rule and budget."""
    return [
        {
            "suite": suite,
            "instances": table.counts[suite],
            "rule": rule,
            "budget": budget,
            "free_energy": cell.value,
            "spread": None if cell.spread is None else list(cell.spread),
            "best": cell.best,
            "published": cell.published,
            "iterations": cell.iterations,
            "converged": cell.settled,
        }
        for (rule, suite, budget), cell in table.cells.items()
    ]


def text_blocks(table: Table) -> list[tuple[str, list[str], list[list[str]]]]:
    """For the terminal: a title, a header and rows for each suite; a star marks the lowest F."""
    blocks = []
    for suite in table.suites:
        count, models = table.counts[suite], table.models[suite]
        of = f"{count} instances" if count == models else f"{count} instances ({models} models)"
        header = ["rule"]
        for budget in table.budgets:
            header += [budget_name(budget), "", "published"]
        rows = []
        for rule in table.rules:
            row = [rule]
            for budget in table.budgets:
                cell = table.cells[rule, suite, budget]
                row += [show(cell.value), "*" if cell.best else "", show(cell.published)]
            rows.append(row)
        blocks.append((f"{suite}: mean F over {of}", header, rows))
    return blocks
