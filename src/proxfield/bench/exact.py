"""How far the certified bound is from the exact log Z, where that is known."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from proxfield.bench.runner import Task
from proxfield.bench.store import Record, number_of
from proxfield.bench.suites import Instance
from proxfield.bench.table import is_lowest, lowest
from proxfield.core.solve.rules.base import Rule


@dataclass(frozen=True)
class Gap:
    """One rule on one family.

    Attributes:
        value: Mean of log Z − bound = log Z + F; never below 0 but for rounding.
        error: Mean absolute error of the marginals; None where they aren't known.
        best: Is ``value`` the lowest of its family (and not that of all rules)?
    """

    value: float | None
    error: float | None
    best: bool = False


@dataclass(frozen=True)
class Gaps:
    """All gaps.

    Attributes:
        rules: The rules.
        counts: Number of models of each family.
        cells: By (family, rule).
        log_z: Mean exact log Z of each family.
    """

    rules: tuple[str, ...]
    counts: dict[str, int]
    cells: dict[tuple[str, str], Gap]
    log_z: dict[str, float]


def exact_tasks(instances: Iterable[Instance], rules: Sequence[Rule]) -> list[Task]:
    """One run of each rule on each model."""
    return [Task("exact", instance, rule) for instance in instances for rule in rules]


def make_gaps(records: Iterable[Record | None], rules: Sequence[str]) -> Gaps:
    """Means by family; a rule that misses a model of a family has no mean there."""
    found: dict[tuple[str, str], list[Record]] = defaultdict(list)
    models: dict[str, dict[str, float]] = defaultdict(dict)
    for r in records:
        if r is not None and r["rule"] in rules:
            found[r["suite"], r["rule"]].append(r)
            models[r["suite"]][r["instance"]] = number_of(r, "log_z")
    cells: dict[tuple[str, str], Gap] = {}
    for family, names in models.items():
        row = {rule: _mean(found[family, rule], len(names)) for rule in rules}
        low = lowest([value for value, _ in row.values()])
        tie = all(is_lowest(value, low) for value, _ in row.values()) and len(row) > 1
        for rule, (value, error) in row.items():
            cells[family, rule] = Gap(value, error, is_lowest(value, low) and not tie)
    means = {family: sum(some.values()) / len(some) for family, some in models.items()}
    return Gaps(tuple(rules), {f: len(n) for f, n in models.items()}, cells, means)


def _mean(records: list[Record], wanted: int) -> tuple[float | None, float | None]:
    if len(records) < wanted or not records:
        return None, None
    gaps = [number_of(r, "log_z") + number_of(r, "free_energy") for r in records]
    errors = [float(r["error"]) for r in records if r.get("error") is not None]
    error = sum(errors) / len(errors) if len(errors) == len(records) else None
    return sum(gaps) / len(gaps), error
