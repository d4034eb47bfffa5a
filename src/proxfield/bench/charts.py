"""The charts of the benchmarks: what the report and the pictures beside it show."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from proxfield.bench.curves import Curves
from proxfield.bench.sensitivity import PARAMETER, Sensitivity
from proxfield.bench.table import Experiment, Table, budget_name
from proxfield.viz.charts import Chart, Line
from proxfield.viz.plots import show_energy

PASSES = "gradient passes"
SEGMENTATION = "SEG"
"""The suite that is drawn of the paper's first experiment."""


def gap_chart(
    x_label: str,
    what: str,
    points: Mapping[str, Sequence[tuple[float, float]]],
    lowest: float,
    title: str | None = None,
) -> Chart:
    """A chart of heights above the lowest one.

    Args:
        x_label: Name of the horizontal axis.
        what: The quantity, "mean F" for example.
        points: Position and value by method; values that aren't finite are left out.
        lowest: The lowest value, drawn at the height 0.
        title: A title.
    """
    lines = []
    for name, some in points.items():
        finite = np.array([(x, f) for x, f in some if math.isfinite(f)]).reshape(-1, 2)
        x, f = finite[:, 0], finite[:, 1]
        lines.append(Line(name, x, f - lowest, (f, x)))
    bottom = f"lowest {what}: {show_energy(lowest)}"
    fields = (what, x_label)
    return Chart(x_label, f"{what} − lowest", tuple(lines), fields, title, bottom)


def lowest_of(points: Iterable[Sequence[tuple[float, float]]]) -> float:
    """The lowest finite value of several curves; 0 if there is none."""
    return min((f for some in points for _, f in some if math.isfinite(f)), default=0.0)


def sensitivity_charts(figure: Sensitivity, suite: str) -> list[Chart]:
    """F against η, a chart for each budget."""
    low = lowest_of(points for (s, *_), points in figure.curves.items() if s == suite)
    out = []
    for budget in figure.budgets:
        points = {rule: figure.curves.get((suite, rule, budget), []) for rule in PARAMETER}
        chart = gap_chart(
            "η = 1/(1 + d)", "mean F", points, low, title=f"{budget_name(budget)} budget"
        )
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
    return gap_chart(x_label, "mean F", points, lowest_of(points.values()), title)


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


def segmentation_charts(results: Experiment) -> list[Chart]:
    """Mean F over the images against iterations, a chart for each field."""
    return [energy_chart(table, "iterations", table.name) for table in results.tables]


def experiment_charts(
    curves: Sequence[Curves],
    inpainting: Experiment | None,
    people: Experiment | None,
    segmentation: Experiment | None,
) -> list[Chart]:
    """The paper's Figure 3: how F falls in each experiment for which there are results."""
    out = []
    if inpainting is not None and inpainting.curves:
        first = inpainting.curves[0]
        chart = first.charts()[1]
        out.append(replace(chart, title=f"character inpainting ({first.suite})"))
    tables = people.tables if people else []
    exact = [t for t in tables if t.facts["model"] == "exact" and t.curves]
    if exact:
        out.append(energy_chart(exact[0], PASSES, "people detection"))
    out += [
        replace(c.charts()[1], title=f"segmentation ({c.suite})")
        for c in curves
        if c.suite == SEGMENTATION
    ]
    if segmentation is not None and segmentation.tables:
        out.append(replace(segmentation_charts(segmentation)[0], title="semantic segmentation"))
    return out
