"""How F falls on one instance: the traced runs, and the timed ones beside them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from proxfield.bench.store import number_of
from proxfield.core.common.records import Record
from proxfield.result import Trace
from proxfield.viz.charts import Chart
from proxfield.viz.plots import convergence_charts

Rows = tuple[list[int], list[float], list[float | None]]
Timed = tuple[float, float, float, float]
"""Budget in seconds; median, lowest and highest F of the repetitions."""
TIMED = ("run", "inpainting")
"""Kinds of results that are timed."""


@dataclass(frozen=True)
class Curves:
    """How F falls on one instance.

    Attributes:
        suite: The suite.
        instance: Its name.
        n_vars: Variables.
        rows: Iterations, seconds and F by rule; the start included, F = +inf as None.
        timed: By rule, what the timed runs on this instance came to.
    """

    suite: str
    instance: str
    n_vars: int
    rows: dict[str, Rows]
    timed: dict[str, list[Timed]] = field(default_factory=dict)

    @property
    def lowest(self) -> float:
        """The lowest F that any run saw."""
        traced = [f for *_, fs in self.rows.values() for f in fs if f is not None]
        timed = [low for runs in self.timed.values() for _, _, low, _ in runs]
        return min([*traced, *timed], default=math.inf)

    def charts(self) -> list[Chart]:
        """F against iterations and against seconds."""
        traces = {}
        for rule, (iteration, seconds, fs) in self.rows.items():
            f = np.array([math.inf if v is None else v for v in fs])
            unknown = np.full(len(f), np.nan)
            traces[rule] = Trace(np.array(iteration), np.array(seconds), f, unknown)
        return convergence_charts(traces, self.timed)


def make_curves(records: Sequence[Record], runs: Iterable[Record] = ()) -> Curves | None:
    """The curves of one instance; None if there is nothing to draw.

    Args:
        records: Its traced runs.
        runs: Timed runs; those on other instances are ignored.
    """
    rows: dict[str, Rows] = {
        str(r["rule"]): (r["iteration"], r["trace_seconds"], r["trace_free_energy"])
        for r in records
    }
    if not rows:
        return None
    first = records[0]
    which = (first["suite"], first["instance"], first["digest"])
    found: dict[tuple[str, float], list[float]] = defaultdict(list)
    for r in runs:
        same = (r["suite"], r["instance"], r["digest"]) == which
        if same and r["kind"] in TIMED and r["rule"] in rows:
            found[str(r["rule"]), float(r["budget"])].append(number_of(r, "free_energy"))
    timed: dict[str, list[Timed]] = defaultdict(list)
    for (rule, budget), values in sorted(found.items()):
        if all(map(math.isfinite, values)):
            timed[rule].append((budget, median(values), min(values), max(values)))
    n_vars = int(first.get("n_vars", 0))
    curves = Curves(first["suite"], first["instance"], n_vars, rows, dict(timed))
    return curves if math.isfinite(curves.lowest) else None
