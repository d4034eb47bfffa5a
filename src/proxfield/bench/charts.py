"""How F falls, as charts: what the report shows, and the pictures for print beside it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from proxfield.bench.paper import PARAMETER, Sensitivity
from proxfield.bench.people import chart_id
from proxfield.bench.store import naming, number_of
from proxfield.bench.table import Experiment, Table, budget_name
from proxfield.core.common.records import Record
from proxfield.io.files import atomic_write
from proxfield.result import Trace
from proxfield.viz.charts import Chart, Line, chart_figure
from proxfield.viz.plots import RuleCurve, convergence_charts, quality_figure, show_energy

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from proxfield.bench.report import ReportData

Rows = tuple[list[int], list[float], list[float | None]]
Timed = tuple[float, float, float, float]
"""Budget in seconds; median, lowest and highest F of the repetitions."""
Points = Sequence[tuple[float, float]]
"""Positions and values of a curve."""
TIMED = ("run", "inpainting")
"""Kinds of results that are timed."""
PASSES = "gradient passes"
SEGMENTATION = "SEG"
"""The suite that is drawn of the paper's first experiment."""
FORMATS = ("png", "svg")


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


def gap_chart(
    x_label: str, points: Mapping[str, Points], lowest: float, title: str | None
) -> Chart:
    """A chart of mean F above the lowest one.

    Args:
        x_label: Name of the horizontal axis.
        points: Position and value by method; values that aren't finite are left out.
        lowest: The lowest value, drawn at the height 0.
        title: A title.
    """
    lines = []
    for name, some in points.items():
        finite = np.array([(x, f) for x, f in some if math.isfinite(f)]).reshape(-1, 2)
        x, f = finite[:, 0], finite[:, 1]
        lines.append(Line(name, x, f - lowest, (f, x)))
    bottom = f"lowest mean F: {show_energy(lowest)}"
    return Chart(x_label, "mean F − lowest", tuple(lines), ("mean F", x_label), title, bottom)


def lowest_of(points: Iterable[Points]) -> float:
    """The lowest finite value of several curves; 0 if there is none."""
    return min((f for some in points for _, f in some if math.isfinite(f)), default=0.0)


def sensitivity_charts(figure: Sensitivity, suite: str) -> list[Chart]:
    """F against η, a chart for each budget."""
    low = lowest_of(points for (s, *_), points in figure.curves.items() if s == suite)
    out = []
    for budget in figure.budgets:
        points = {rule: figure.curves.get((suite, rule, budget), []) for rule in PARAMETER}
        title = f"{budget_name(budget)} budget"
        chart = gap_chart("η = 1/(1 + d)", points, low, title)
        marked = (("d = L", figure.lipschitz), ("certified d", figure.certified))
        marks = tuple((label, 1 / (1 + by[suite])) for label, by in marked if suite in by)
        lines = tuple(replace(line, dots=True) for line in chart.lines)
        out.append(replace(chart, lines=lines, marks=marks))
    return out


def energy_chart(table: Table, x_label: str, title: str | None) -> Chart:
    """Mean F over the models against passes or iterations."""
    points = {
        rule: [(float(k), float(f)) for k, f in enumerate(c["free_energy"]) if k > 0]
        for rule, c in table.curves.items()
    }
    return gap_chart(x_label, points, lowest_of(points.values()), title)


def people_charts(table: Table) -> list[Chart]:
    """F and MODA against passes."""
    energy = energy_chart(table, PASSES, None)
    lines = []
    for rule, curve in table.curves.items():
        moda = curve["moda"][1:]
        passes = np.arange(1, len(moda) + 1, dtype=float)
        lines.append(Line(rule, passes, moda, (moda, passes)))
    # far below 0 a rule is useless all the same
    return [energy, Chart(PASSES, "MODA", tuple(lines), ("MODA", PASSES), limits=(-0.05, 1.05))]


def segmentation_charts(results: Experiment | None) -> list[Chart]:
    """Mean F over the images against iterations, a chart for each field."""
    tables = results.tables if results else ()
    return [energy_chart(table, "iterations", table.name) for table in tables]


def experiment_charts(data: ReportData) -> list[Chart]:
    """The paper's Figure 3: how F falls in each experiment, if several have results."""
    out = [
        replace(first.charts()[1], title=f"character inpainting ({first.suite})")
        for first in (data.inpainting.curves[:1] if data.inpainting else ())
    ]
    tables = data.people.tables if data.people else []
    exact = [t for t in tables if t.facts["model"] == "exact" and t.curves]
    out += [energy_chart(table, PASSES, "people detection") for table in exact[:1]]
    out += [
        replace(c.charts()[1], title=f"segmentation ({c.suite})")
        for c in data.curves
        if c.suite == SEGMENTATION
    ]
    scenes = segmentation_charts(data.segmentation)[:1]
    out += [replace(chart, title="semantic segmentation") for chart in scenes]
    return out if len(out) > 1 else []


# ---- pictures ----


def save_figures(folder: str, data: ReportData) -> list[str]:
    """Draw everything into a folder, which is made if need be; returns the files' names.

    Raises:
        InputError: If a file can't be written.
        MissingDependencyError: If matplotlib isn't installed.
    """
    from proxfield.viz import save_figure

    target = Path(folder)
    curves = [*data.curves, *(data.inpainting.curves if data.inpainting else [])]
    figures = {f"convergence-{c.suite.replace(' ', '-')}": convergence(c) for c in curves}
    if data.sensitivity is not None:
        for suite in data.sensitivity.suites:
            some = sensitivity_charts(data.sensitivity, suite)
            title = f"{suite}: dependence on the damping"
            figures[f"sensitivity-{suite}"] = chart_figure(some, title, (4.9, 4.2), names="legend")
    for table in data.people.tables if data.people else ():
        curves_of = {
            rule: RuleCurve(np.arange(1, len(c["moda"])), c["free_energy"][1:], c["moda"][1:])
            for rule, c in table.curves.items()
        }
        if curves_of:
            figure = quality_figure(curves_of, f"{table.name}, {table.size}")
            figures[chart_id(table, "passes")] = figure
    scenes = segmentation_charts(data.segmentation)
    panels = experiment_charts(data)
    for name, wide, some in (("segmentation", 4.9, scenes), ("experiments", 4.4, panels)):
        if some:
            figures[name] = chart_figure(some, None, (wide, 4.2), share=False, names="legend")
    with naming("can't make the folder", "a writable place", target):
        target.mkdir(parents=True, exist_ok=True)
    names = [f"{name}.{kind}" for name in figures for kind in FORMATS]
    for name in names:
        save_figure(figures[name.rpartition(".")[0]], target / name)
    for part in (data.people, data.inpainting):
        for name, _, png in part.pictures if part else ():
            atomic_write(target / f"{name}.png", png)
            names.append(f"{name}.png")
    return names


def convergence(curves: Curves) -> Figure:
    """How F falls on one instance: the picture that `proxfield compare` draws."""
    title = f"{curves.suite}: {curves.instance}, {curves.n_vars} variables"
    return chart_figure(curves.charts(), title)
