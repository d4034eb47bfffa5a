"""Table 2: F and accuracy of each rule on fields that inpaint characters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from proxfield.bench.inpainting_models import GIVEN
from proxfield.bench.published import INPAINTING, INPAINTING_BEST_KNOWN, INPAINTING_BUDGETS
from proxfield.bench.store import Record, number_of
from proxfield.bench.table import budget_name, is_lowest, lowest, show, standard_error


@dataclass(frozen=True)
class Cell:
    """One rule at one budget.

    Attributes:
        free_energy: Mean F; above the best-known energy in a table of `GIVEN` models, where that
            is known. None if a run is missing.
        accuracy: Correct pixels in the hole, in percent; None without the truth.
        log_truth: Mean log q of the true labels in the hole; None without the truth.
        best: Is F the lowest of its column, to the digits shown?
        iterations: Mean number of iterations.
        spread: Standard error of mean F over the fields; None with one field.
    """

    free_energy: float | None
    accuracy: float | None = None
    log_truth: float | None = None
    best: bool = False
    iterations: float = 0.0
    spread: float | None = None


@dataclass(frozen=True)
class InpaintingTable:
    """All rules on the fields of one suite.

    Attributes:
        suite: How the model was trained, or `GIVEN`.
        rules: In the order of the rows.
        budgets: Columns, in seconds.
        cells: By rule, one per column.
        models: Number of fields.
        above_best: Whether F is shown above the best-known energy.
    """

    suite: str
    rules: tuple[str, ...]
    budgets: tuple[float, ...]
    cells: dict[str, tuple[Cell, ...]]
    models: int
    above_best: bool

    @property
    def name(self) -> str:
        """What the table is about."""
        return self.suite if self.suite == GIVEN else f"trained by {self.suite}"

    @property
    def quantity(self) -> str:
        """What its numbers are."""
        return "mean F − E*" if self.above_best else "mean F"

    @property
    def size(self) -> str:
        """Number of fields, in words."""
        return "1 field" if self.models == 1 else f"{self.models} fields"

    @property
    def has_accuracy(self) -> bool:
        """Whether the truth is known."""
        return any(c.accuracy is not None for cells in self.cells.values() for c in cells)

    def published(self, rule: str) -> tuple[tuple[float, float], ...] | None:
        """F (above the best-known energy, if ours is) and accuracy of the paper."""
        theirs = INPAINTING.get(rule)
        if theirs is None or not self.above_best:
            return theirs
        return tuple((f - INPAINTING_BEST_KNOWN, accuracy) for f, accuracy in theirs)


def make_inpainting_tables(records: Iterable[Record]) -> list[InpaintingTable]:
    """The tables of what is stored, one for each suite; the last of equal runs counts."""
    suites: dict[str, dict[tuple[str, float], dict[str, Record]]] = {}
    for r in records:
        if r["kind"] == "inpainting":
            runs = suites.setdefault(str(r["suite"]), {})
            runs.setdefault((str(r["rule"]), float(r["budget"])), {})[str(r["digest"])] = r
    return [_table(suite, runs) for suite, runs in suites.items()]


def _table(suite: str, runs: dict[tuple[str, float], dict[str, Record]]) -> InpaintingTable:
    rules = tuple(dict.fromkeys(rule for rule, _ in runs))
    budgets = tuple(sorted({budget for _, budget in runs}))
    every = set().union(*runs.values())
    some = [r for group in runs.values() for r in group.values()]
    above = suite == GIVEN and all(r.get("best_known") is not None for r in some)
    columns = []
    for budget in budgets:
        column = [_cell(list(runs.get((r, budget), {}).values()), len(every), above) for r in rules]
        low = lowest([c.free_energy for c in column])
        columns.append(
            [Cell(**{**c.__dict__, "best": is_lowest(c.free_energy, low)}) for c in column]
        )
    cells = {rule: tuple(column[k] for column in columns) for k, rule in enumerate(rules)}
    return InpaintingTable(suite, rules, budgets, cells, len(every), above)


def _cell(runs: Sequence[Record], expected: int, above: bool) -> Cell:
    if len(runs) < expected:
        return Cell(None)
    n = len(runs)
    each = [number_of(r, "free_energy") - (r["best_known"] if above else 0.0) for r in runs]
    f, spread = sum(each) / n, standard_error(each)
    iterations = sum(r["iterations"] for r in runs) / n
    pixels = sum(r["pixels"] for r in runs)
    if any(r["correct"] is None for r in runs):
        return Cell(f, iterations=iterations, spread=spread)
    accuracy = 100.0 * sum(r["correct"] for r in runs) / pixels
    log_truth = sum(r["log_truth"] for r in runs) / pixels
    return Cell(f, accuracy, log_truth, False, iterations, spread)


def show_percent(value: float | None) -> str:
    """An accuracy with the digits of the paper's table.

    Example:
        >>> show_percent(67.123), show_percent(None)
        ('67.12', '–')
    """
    return "–" if value is None else f"{value:.2f}"


def inpainting_block(table: InpaintingTable) -> tuple[str, list[str], list[list[str]]]:
    """For the terminal: a title, a header and rows."""
    accuracy = table.has_accuracy
    title = f"{table.name}: {table.quantity}{' and accuracy in the hole' * accuracy} "
    title += f"over {table.size}"
    header = ["rule"]
    for budget in table.budgets:
        header += [budget_name(budget), *(["%"] * accuracy), ""]
    theirs = [budget_name(b) for b in INPAINTING_BUDGETS]
    for head in theirs:
        header += [f"paper {head}", "%"]
    rows = []
    for rule in table.rules:
        row = [rule]
        for cell in table.cells[rule]:
            row += [show(cell.free_energy), *([show_percent(cell.accuracy)] * accuracy)]
            row += ["*" * cell.best]
        for f, percent in table.published(rule) or ((None, None),) * len(theirs):
            row += [show(f), show_percent(percent)]
        rows.append(row)
    return title, header, rows


def inpainting_data(table: InpaintingTable) -> list[Record]:
    """For ``--json``: one object per rule and budget."""
    return [
        {
            "suite": table.suite,
            "models": table.models,
            "rule": rule,
            "budget": budget,
            "above_best_known": table.above_best,
            "free_energy": cell.free_energy,
            "accuracy": cell.accuracy,
            "log_truth": cell.log_truth,
            "iterations": cell.iterations,
        }
        for rule in table.rules
        for budget, cell in zip(table.budgets, table.cells[rule], strict=True)
    ]
