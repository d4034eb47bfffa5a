"""How often one rule reaches a lower F than another, instance by instance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from proxfield.bench.runner import Settings, Task
from proxfield.bench.store import Store, number_of
from proxfield.bench.suites import Instance
from proxfield.core.solve.rules.base import Rule

TIE = 0.005
"""Values of F closer than this are the same to the digits shown."""


@dataclass(frozen=True)
class Wins:
    """A matrix of rules against rules.

    Attributes:
        rules: Rows and columns.
        budget: Seconds that each rule had.
        models: Number of models, of all suites together.
        lower: (row, column): models on which the row's F is lower.
        ties: (row, column): models on which both are the same to the digits shown.
    """

    rules: tuple[str, ...]
    budget: float
    models: int
    lower: dict[tuple[str, str], int]
    ties: dict[tuple[str, str], int]


def make_wins(
    suites: Mapping[str, Sequence[Instance]],
    rules: Sequence[Rule],
    budget: float,
    repeats: int,
    store: Store,
    settings: Settings,
) -> Wins:
    """The matrix of what is stored: the median of the repetitions on every model."""
    names = tuple(rule.name for rule in rules)
    rows: list[dict[str, float]] = []
    for instance in (i for instances in suites.values() for i in instances):
        row = {}
        for rule in rules:
            tasks = [Task("run", instance, rule, budget, k) for k in range(repeats)]
            runs = [r for t in tasks if (r := store.find(t.identity(settings))) is not None]
            if len(runs) == repeats:
                row[rule.name] = median(number_of(r, "free_energy") for r in runs)
        if len(row) == len(rules):
            rows.append(row)
    return count_wins(names, budget, rows)


def count_wins(rules: tuple[str, ...], budget: float, rows: Sequence[Mapping[str, float]]) -> Wins:
    """The matrix of F by rule on each model.

    Example:
        >>> wins = count_wins(("a", "b"), 1.0, [{"a": 1.0, "b": 2.0}, {"a": 3.0, "b": 3.0}])
        >>> wins.lower["a", "b"], wins.lower["b", "a"], wins.ties["a", "b"]
        (1, 0, 1)
    """
    lower = {(a, b): 0 for a in rules for b in rules}
    ties = dict(lower)
    for row in rows:
        for a, b in lower:
            same = row[a] == row[b] or abs(row[a] - row[b]) < TIE  # both may be +inf
            ties[a, b] += same
            lower[a, b] += not same and row[a] < row[b]
    return Wins(rules, budget, len(rows), lower, ties)
