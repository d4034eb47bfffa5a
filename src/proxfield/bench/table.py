"""Tables of the benchmarks: named values of each rule in each column, from records of runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import stdev
from typing import TYPE_CHECKING, Any, TypeVar

from proxfield.core.common.arrays import Doubles
from proxfield.core.common.records import Record

if TYPE_CHECKING:
    from proxfield.bench.charts import Curves

KeyT = TypeVar("KeyT")
MISSING = "–"
Shown = Callable[[float | None], str]
Column = float | str
Block = tuple[str, list[str], list[list[str]], list[int]]
"""A table on stdout: title, header, rows, and which columns are aligned to the left."""


@dataclass(frozen=True)
class ShownValue:
    """One of the values that a cell shows on stdout.

    Attributes:
        name: Of the value.
        show: Writes it.
        head: Above it; None for the head of the column.
        left: Whether it is aligned to the left.
    """

    name: str
    show: Callable[[Any], str]
    head: str | None = None
    left: bool = False


BEST = ShownValue("best", lambda value: "*" * value, "", left=True)
"""The mark of the lowest F of a column."""


@dataclass(frozen=True)
class RuleRuns:
    """Runs of the rules of one table.

    Attributes:
        found: By rule and column, and by what they ran on.
    """

    found: dict[tuple[str, Any], dict[str, Record]] = field(default_factory=dict)

    @property
    def rules(self) -> tuple[str, ...]:
        """The rules, in the order of the records."""
        return tuple(dict.fromkeys(rule for rule, _ in self.found))

    @property
    def columns(self) -> tuple[Any, ...]:
        """The columns, rising."""
        return tuple(sorted({column for _, column in self.found}))

    @property
    def count(self) -> int:
        """On how many models there are runs."""
        return len(set().union(*self.found.values()))

    @property
    def all(self) -> list[Record]:
        """The runs of all cells."""
        return [r for group in self.found.values() for r in group.values()]

    def of(self, rule: str, column: Column) -> list[Record]:
        """The runs of a cell."""
        return list(self.found.get((rule, column), {}).values())


def group_last(
    records: Iterable[Record], kind: str, place: Callable[[Record], tuple[KeyT, Column]]
) -> dict[KeyT, RuleRuns]:
    """The runs of a kind by table; of equal ones, the last counts.

    Args:
        records: Results; those of other kinds are ignored.
        kind: The kind.
        place: The table and the column of a run.
    """
    out: dict[KeyT, RuleRuns] = {}
    for r in records:
        if r["kind"] == kind:
            table, column = place(r)
            cell = out.setdefault(table, RuleRuns()).found.setdefault((str(r["rule"]), column), {})
            cell[str(r["digest"])] = r
    return out


@dataclass(frozen=True)
class Table:
    """All rules on the models of one suite.

    Attributes:
        name: What it is about, in words.
        title: What stdout says above it.
        suite: The suite.
        rules: In the order of the rows.
        columns: Budgets, numbers of iterations or what else the columns are.
        cells: Values by name, one cell per column, by rule. All have "free_energy" (a mean, None if
            a run is missing) and "best" (whether that is the lowest of its column, to the digits
            shown).
        parts: What stdout shows of a cell.
        listed: Values that ``--json`` lists.
        column_key: What ``--json`` calls the columns.
        facts: What ``--json`` says about all cells.
        count: Number of models.
        size: This number, in words.
        papers: What the paper published, by rule: values in the order of its columns.
        paper_columns: Their heads.
        paper_parts: Writes the values of one of its columns.
        curves: By rule: values after 0, 1, 2, … iterations or passes.
        more: What only some tables have.
    """

    name: str
    title: str
    suite: str
    rules: tuple[str, ...]
    columns: tuple[Column, ...]
    cells: dict[str, tuple[Record, ...]]
    parts: tuple[ShownValue, ...]
    listed: tuple[str, ...]
    column_key: str
    facts: Record
    count: int
    size: str = ""
    papers: Mapping[str, tuple[tuple[float, ...], ...]] = field(default_factory=dict)
    paper_columns: tuple[str, ...] = ()
    paper_parts: tuple[tuple[str, Shown], ...] = ()
    curves: dict[str, dict[str, Doubles]] = field(default_factory=dict)
    more: Record = field(default_factory=dict)

    def published(self, rule: str) -> tuple[tuple[float | None, ...], ...]:
        """What the paper published of a rule; None for what it doesn't have."""
        nothing = (None,) * len(self.paper_parts)
        return self.papers.get(rule, (nothing,) * len(self.paper_columns))

    def data(self) -> list[Record]:
        """For ``--json``: one object per rule and column."""
        return [
            {
                **self.facts,
                "rule": rule,
                self.column_key: column,
                **{name: cell[name] for name in self.listed},
            }
            for rule in self.rules
            for column, cell in zip(self.columns, self.cells[rule], strict=True)
        ]

    def block(self) -> Block:
        """For the terminal."""
        header, left = ["rule"], [0]
        for column in self.columns:
            head = f"{column} iterations" if isinstance(column, int) else str(column)
            head = budget_name(column) if isinstance(column, float) else head
            for part in self.parts:
                left += [len(header)] if part.left else []
                header.append(head if part.head is None else part.head)
        for head in self.paper_columns:
            header += [f"paper {head}" if name == "" else name for name, _ in self.paper_parts]
        rows = []
        for rule in self.rules:
            row = [rule]
            for cell in self.cells[rule]:
                row += [part.show(cell[part.name]) for part in self.parts]
            for values in self.published(rule):
                pairs = zip(self.paper_parts, values, strict=True)
                row += [shown(value) for (_, shown), value in pairs]
            rows.append(row)
        return self.title, header, rows, left


@dataclass(frozen=True)
class Experiment:
    """What a report shows of one benchmark.

    Attributes:
        tables: One for each suite and setting.
        curves: How F falls on one model of each suite.
        pictures: File name without ending, what it shows, and PNG data.
    """

    tables: list[Table] = field(default_factory=list)
    curves: list[Curves] = field(default_factory=list)
    pictures: list[tuple[str, str, bytes]] = field(default_factory=list)


def make_cells(
    rules: Iterable[str], columns: Sequence[Column], measure: Callable[[str, Any], Record]
) -> dict[str, tuple[Record, ...]]:
    """The cells of all rules, the lowest F of each column marked as "best".

    Args:
        rules: The rows.
        columns: The columns.
        measure: The values of a rule in a column.
    """
    cells = {rule: tuple(measure(rule, column) for column in columns) for rule in rules}
    for column in zip(*cells.values(), strict=True):
        mark(column, "free_energy", "best")
    return cells


def mark(
    column: Sequence[Record],
    name: str,
    as_what: str,
    shown: Shown | None = None,
    sign: float = 1.0,
) -> None:
    """Say in each cell whether its value is the best of the column; equal digits are a tie.

    Args:
        column: Cells of all rules.
        name: Of the value.
        as_what: Of the answer.
        shown: Writes the value; as `show` by default.
        sign: −1 if higher is better.
    """
    low = lowest([None if c[name] is None else sign * c[name] for c in column])
    low = None if low is None else sign * low
    write = shown or show
    for cell in column:
        cell[as_what] = None not in (low, cell[name]) and write(cell[name]) == write(low)


def counted(count: int, what: str) -> str:
    """A number of things, in words.

    Example:
        >>> counted(1, "field"), counted(2, "field")
        ('1 field', '2 fields')
    """
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


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


def show(value: float | None, digits: int = 2) -> str:
    """A value with the digits of the paper's tables.

    Example:
        >>> show(-18630.0067), show(None), show(float("inf"))
        ('-18630.01', '–', 'inf')
    """
    return MISSING if value is None else f"{value + 0.0:.{digits}f}"


def budget_name(budget: float) -> str:
    """A budget as it heads a column.

    Example:
        >>> budget_name(0.05), budget_name(1.0)
        ('0.05 s', '1 s')
    """
    return f"{budget:g} s"
