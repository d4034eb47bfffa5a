"""Table 1: the mean F of each rule on each suite at each budget, beside the published one.

Also from the same runs: how often one rule reaches a lower F than another; and how far the
certified bound is from the exact log Z, where that is known. Figure 2: how much the outcome depends
on the damping parameter η = 1/(1 + d).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

from proxfield.bench.published import PUBLISHED
from proxfield.bench.runner import Task, paper_task
from proxfield.bench.store import number_of
from proxfield.bench.suites import FieldInstance
from proxfield.bench.table import (
    BEST,
    ShownValue,
    Table,
    lowest,
    make_cells,
    mark,
    show,
    weighted_mean,
)
from proxfield.core.common.records import Record
from proxfield.core.solve.rules.registry import make_rule
from proxfield.errors import InputError
from proxfield.field import Field

PARAMETER = {"adhoc": "eta", "fixed": "step", "adaptive": "step"}
"""The rules of the figure, and what each calls η."""
ETAS = tuple(round(10 ** (-k / 4), 5) for k in range(12, -1, -1))
OVERRUN_FACTOR = 1.1
"""A run that takes more than this many times its budget is worth mentioning."""
TIE = 0.005
"""Values of F closer than this are the same to the digits shown."""
PARTS = (ShownValue("free_energy", show), BEST, ShownValue("published", show, "published"))
LISTED = ("free_energy", "spread", "best", "published", "iterations", "converged")
Suites = Mapping[str, Sequence[FieldInstance]]
Runs = dict[tuple[str, str, float], dict[str, list[Record]]]
"""Repetitions of timed runs by (suite, rule, budget) and by instance."""


def group_runs(records: Iterable[Record], repeats: int) -> Runs:
    """The timed runs on models where none of the repetitions is missing."""
    runs: Runs = defaultdict(lambda: defaultdict(list))
    for r in records:
        if r["kind"] == "run":
            runs[r["suite"], r["rule"], r["budget"]][r["instance"]].append(r)
    return {
        key: {name: found for name, found in some.items() if len(found) == repeats}
        for key, some in runs.items()
    }


def make_paper_tables(
    runs: Runs, suites: Suites, rules: Sequence[str], budgets: Sequence[float]
) -> list[Table]:
    """A table for each suite of what has been run.

    Its cells have: "free_energy", the mean over the instances by weight of the median over the
    repetitions; "spread", the same means of the lowest and of the highest of them; "published";
    "published_best"; "iterations", a median; "converged", a number of instances.
    """
    tables = []
    for suite, instances in suites.items():
        cells = make_cells(rules, budgets, partial(_cell, runs, suite, instances))
        for column in zip(*cells.values(), strict=True):
            mark(column, "published", "published_best")
        count = sum(i.weight for i in instances)
        size = f"{count} instances"
        size += "" if count == len(instances) else f" ({len(instances)} models)"
        title = f"{suite}: mean F over {size}; lower is better, * is best"
        tables.append(
            Table(
                suite, title, suite, tuple(rules), tuple(budgets), cells, PARTS, LISTED, "budget",
                {"suite": suite, "instances": count}, count, more={"models": len(instances)},
            )
        )  # fmt: skip
    return tables


def _cell(
    runs: Runs, suite: str, instances: Sequence[FieldInstance], rule: str, budget: float
) -> Record:
    """Median over repetitions, mean over instances by weight."""
    found = runs.get((suite, rule, budget), {})
    cell: Record = dict.fromkeys(("free_energy", "spread", "iterations"))
    cell |= {"published": PUBLISHED.get((rule, suite, budget)), "converged": 0}
    if len(found) < len(instances):
        return cell
    each = [found[i.name] for i in instances]
    weights = [i.weight for i in instances]
    energies = [[number_of(r, "free_energy") for r in runs] for runs in each]
    means = [
        weighted_mean([pick(some) for some in energies], weights) for pick in (median, min, max)
    ]
    settled = [sum(r["status"] == "converged" for r in runs) * 2 > len(runs) for runs in each]
    return cell | {
        "free_energy": means[0],
        "spread": means[1:] if len(each[0]) > 1 else None,
        "iterations": median(median(int(r["iterations"]) for r in runs) for runs in each),
        "converged": sum(w * s for w, s in zip(weights, settled, strict=True)),
    }


def bests(table: Table, column: int) -> tuple[float | None, float | None]:
    """The lowest F of a column, ours and the published one."""
    cells = [table.cells[rule][column] for rule in table.rules]
    return lowest([c["free_energy"] for c in cells]), lowest([c["published"] for c in cells])


def overruns(records: Iterable[Record]) -> str | None:
    """A sentence about timed runs that took clearly longer than allowed; None if none did."""
    ratios = [float(r["seconds"]) / r["budget"] for r in records if r["kind"] == "run"]
    late = [r for r in ratios if r > OVERRUN_FACTOR]
    if not late:
        return None
    return (
        f"{len(late)} of {len(ratios)} timed runs took over {OVERRUN_FACTOR:g} times their budget "
        f"(at most {max(late):.2g} times): on a busy machine, or where finding a certified step "
        "takes longer than that"
    )


# ---- which rule beats which ----


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


def make_wins(runs: Runs, suites: Suites, rules: Sequence[str], budget: float) -> Wins:
    """The matrix of what has been run: the median of the repetitions on every model."""
    rows: list[dict[str, float]] = []
    for suite, instances in suites.items():
        for instance in instances:
            found = {r: runs.get((suite, r, budget), {}).get(instance.name) for r in rules}
            row = {
                rule: median(number_of(r, "free_energy") for r in some)
                for rule, some in found.items()
                if some is not None
            }
            rows += [row] if len(row) == len(rules) else []
    return count_wins(tuple(rules), budget, rows)


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


# ---- how tight the bound is ----


@dataclass(frozen=True)
class Gaps:
    """How far the certified bound is from the exact log Z.

    Attributes:
        rules: The rules.
        counts: Number of models of each family.
        cells: By (family, rule): "value", the mean of log Z − bound = log Z + F, never below 0 but
            for rounding; "error", the mean absolute error of the marginals, None where they aren't
            known; "best", whether the value is the lowest of its family (and not that of all).
        log_z: Mean exact log Z of each family.
    """

    rules: tuple[str, ...]
    counts: dict[str, int]
    cells: dict[tuple[str, str], Record]
    log_z: dict[str, float]


def make_gaps(records: Iterable[Record], rules: Sequence[str]) -> Gaps:
    """Means by family; a rule that misses a model of a family has no mean there."""
    found: dict[tuple[str, str], list[Record]] = defaultdict(list)
    models: dict[str, dict[str, float]] = defaultdict(dict)
    for r in records:
        if r["kind"] == "exact":
            found[r["suite"], r["rule"]].append(r)
            models[r["suite"]][r["instance"]] = number_of(r, "log_z")
    cells: dict[tuple[str, str], Record] = {}
    for family, names in models.items():
        row: dict[str, Record] = {}
        for rule in rules:
            runs, row[rule] = found[family, rule], {"value": None, "error": None}
            if runs and len(runs) >= len(names):
                gaps = [number_of(r, "log_z") + number_of(r, "free_energy") for r in runs]
                row[rule]["value"] = sum(gaps) / len(gaps)
                errors = [float(r["error"]) for r in runs if r.get("error") is not None]
                if len(errors) == len(runs):
                    row[rule]["error"] = sum(errors) / len(errors)
        mark(list(row.values()), "value", "best")
        tie = all(cell["best"] for cell in row.values()) and len(row) > 1
        for rule, cell in row.items():
            cells[family, rule] = {**cell, "best": cell["best"] and not tie}
    means = {family: sum(some.values()) / len(some) for family, some in models.items()}
    return Gaps(tuple(rules), {f: len(n) for f, n in models.items()}, cells, means)


# ---- Figure 2 ----


@dataclass(frozen=True)
class Sensitivity:
    """Figure 2.

    Attributes:
        curves: (η, mean F) by suite, rule and budget, η rising.
        lipschitz: Mean of the paper's d = L, by suite.
        certified: Mean of the certified d, by suite.
    """

    curves: dict[tuple[str, str, float], list[tuple[float, float]]]
    lipschitz: dict[str, float]
    certified: dict[str, float]

    def data(self) -> dict[str, object]:
        """For ``--json``: the points of all curves, and the marks."""
        points = [
            {"suite": suite, "rule": rule, "budget": budget, "eta": eta, "free_energy": value}
            for (suite, rule, budget), curve in self.curves.items()
            for eta, value in curve
        ]
        return {"points": points, "lipschitz": self.lipschitz, "certified": self.certified}

    @property
    def suites(self) -> list[str]:
        """The suites, in order."""
        return list(dict.fromkeys(suite for suite, _, _ in self.curves))

    @property
    def budgets(self) -> list[float]:
        """The budgets, in order."""
        return sorted({budget for _, _, budget in self.curves})


def sensitivity_tasks(
    suites: Suites, etas: Sequence[float], budgets: Sequence[float]
) -> list[Task[Field]]:
    """Timed runs over a range of η, and the curvature of each instance."""
    rules = [make_rule(name, {key: eta}) for name, key in PARAMETER.items() for eta in etas]
    tasks = []
    for instances in suites.values():
        for instance in instances:
            tasks.append(paper_task("curvature", instance))
            tasks += [paper_task("run", instance, rule, b, 0) for rule in rules for b in budgets]
    return tasks


def make_sensitivity(records: Iterable[Record]) -> Sensitivity:
    """The figure of some results. A point needs a run on every instance of its suite.

    Raises:
        InputError: If there is no such point.
    """
    records = list(records)
    runs = [r for r in records if r["kind"] == "run" and _eta(r) is not None]
    if runs:  # results of several versions or settings: the latest
        same = ("version", "tol", "threads")
        runs = [r for r in runs if all(r.get(key) == runs[-1].get(key) for key in same)]
    names: dict[str, set[str]] = defaultdict(set)
    points: dict[tuple[str, str, float, float], dict[str, list[Record]]] = defaultdict(dict)
    for r in runs:
        eta = _eta(r)
        assert eta is not None
        names[r["suite"]].add(r["instance"])
        key = (r["suite"], r["rule"], float(r["budget"]), eta)
        points[key].setdefault(r["instance"], []).append(r)
    curves: dict[tuple[str, str, float], list[tuple[float, float]]] = defaultdict(list)
    for (suite, rule, budget, eta), found in sorted(points.items()):
        if set(found) != names[suite]:
            continue
        values = [median(number_of(r, "free_energy") for r in rows) for rows in found.values()]
        weights = [float(rows[0].get("weight", 1)) for rows in found.values()]
        curves[suite, rule, budget].append((eta, weighted_mean(values, weights)))
    if not curves:
        raise InputError("no sensitivity results, expected those of bench sensitivity")
    curvature = [r for r in records if r["kind"] == "curvature"]
    return Sensitivity(
        dict(curves), _mean_of(curvature, "lipschitz"), _mean_of(curvature, "certified")
    )


def _eta(record: Record) -> float | None:
    """The η of a run; None if it belongs to no curve."""
    value = (record.get("params") or {}).get(PARAMETER.get(record.get("rule") or "", ""))
    return float(value) if isinstance(value, (int, float)) else None


def _mean_of(records: Iterable[Record], key: str) -> dict[str, float]:
    """A number's mean by suite, over instances by weight."""
    pairs: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for r in records:
        if r[key] is not None:
            pairs[r["suite"]].append((float(r[key]), float(r.get("weight", 1))))
    return {s: weighted_mean([v for v, _ in p], [w for _, w in p]) for s, p in pairs.items()}
