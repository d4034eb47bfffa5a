"""Figure 2: how much the outcome depends on the damping parameter η = 1/(1 + d)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from proxfield.bench.runner import PaperTask
from proxfield.bench.store import number_of
from proxfield.bench.suites import Instance
from proxfield.bench.table import weighted_mean
from proxfield.core.common.records import Record
from proxfield.core.solve.rules.registry import make_rule
from proxfield.errors import InputError

PARAMETER = {"adhoc": "eta", "fixed": "step", "adaptive": "step"}
"""The rules of the figure, and what each calls η."""
ETAS = tuple(round(10 ** (-k / 4), 5) for k in range(12, -1, -1))
BUDGETS = (0.05, 0.3)


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
    suites: dict[str, list[Instance]],
    etas: Sequence[float],
    budgets: Sequence[float],
) -> list[PaperTask]:
    """Timed runs over a range of η, and the curvature of each instance."""
    rules = [make_rule(name, {key: eta}) for name, key in PARAMETER.items() for eta in etas]
    tasks = []
    for instances in suites.values():
        for instance in instances:
            tasks.append(PaperTask("curvature", instance))
            tasks += [PaperTask("run", instance, rule, b, 0) for rule in rules for b in budgets]
    return tasks


def make_sensitivity(records: Iterable[Record]) -> Sensitivity:
    """The figure of some results. A point needs a run on every instance of its suite.

    Raises:
        InputError: If there is no such point.
    """
    records = list(records)
    runs = [r for r in records if r["kind"] == "run" and _eta(r) is not None]
    if runs:  # results of several versions or settings: the latest
        last = _session(runs[-1])
        runs = [r for r in runs if _session(r) == last]
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


def _session(record: Record) -> tuple[object, ...]:
    return tuple(record.get(key) for key in ("version", "tol", "threads"))


def _mean_of(records: Iterable[Record], key: str) -> dict[str, float]:
    """A number's mean by suite, over instances by weight."""
    pairs: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for r in records:
        if r[key] is not None:
            pairs[r["suite"]].append((float(r[key]), float(r.get("weight", 1))))
    return {s: weighted_mean([v for v, _ in p], [w for _, w in p]) for s, p in pairs.items()}
