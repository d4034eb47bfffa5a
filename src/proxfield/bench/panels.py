"""The paper's Figure 3: how F falls in its three experiments, side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from proxfield.bench.charts import Chart, Curves, gap_range, layout, line
from proxfield.bench.inpainting_report import InpaintingResults
from proxfield.bench.people_report import People, energy_range
from proxfield.bench.store import Record
from proxfield.viz.page import legend, paragraphs, plots
from proxfield.viz.style import rule_style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SEGMENTATION = "SEG"
"""The suite that is drawn of the paper's first experiment."""


@dataclass(frozen=True)
class Panel:
    """How F falls in one experiment.

    Attributes:
        title: The experiment.
        axis: Name of the horizontal axis.
        rows: Points of each rule: x, and F above the lowest.
        floor: Least height that is drawn.
        top: Largest height.
    """

    title: str
    axis: str
    rows: dict[str, list[tuple[float, float]]]
    floor: float
    top: float


def make_panels(
    curves: Sequence[Curves], inpainting: InpaintingResults | None, people: People | None
) -> list[Panel]:
    """The panels for which there are results: inpainting, people and segmentation."""
    out = []
    if inpainting is not None and inpainting.curves:
        out.append(_timed("character inpainting", inpainting.curves[0]))
    exact = [t for t in people.tables if t.model == "exact" and t.curves] if people else []
    if exact:
        table = exact[0]
        low, floor, top = energy_range(table)
        rows = {
            rule: [(float(k), float(f) - low) for k, f in enumerate(c.free_energy) if k > 0]
            for rule, c in table.curves.items()
        }
        out.append(Panel("people detection", "gradient passes", _finite(rows, floor), floor, top))
    out += [_timed("segmentation", c) for c in curves if c.suite == SEGMENTATION]
    return out


def _timed(what: str, curves: Curves) -> Panel:
    floor, top = gap_range(curves)
    rows = {
        rule: [
            (max(s, 1e-6), f - curves.lowest)
            for t, s, f in zip(iteration, seconds, fs, strict=True)
            if f is not None and t > 0
        ]
        for rule, (iteration, seconds, fs) in curves.rows.items()
    }
    return Panel(f"{what} ({curves.suite})", "time (s)", _finite(rows, floor), floor, top)


def _finite(
    rows: dict[str, list[tuple[float, float]]], floor: float
) -> dict[str, list[tuple[float, float]]]:
    return {
        rule: [(x, max(gap, floor)) for x, gap in points if math.isfinite(gap)]
        for rule, points in rows.items()
    }


def panels_section(panels: Sequence[Panel], charts: list[Record]) -> str:
    """All panels as charts; these are appended to those of the page."""
    rules = list(dict.fromkeys(rule for panel in panels for rule in panel.rows))
    out = '<section><h2 id="panels">Three experiments side by side</h2>' + paragraphs(
        "The paper’s Figure 3: F above the lowest F that any rule saw, on one field of each "
        "experiment (people: the mean over the frames, against gradient passes)."
    )
    out += legend("panels", rules)
    ids = []
    for k, panel in enumerate(panels):
        charts.append({"id": f"panel-{k}", "group": "panels", **_chart(panel)})
        ids.append((f"panel-{k}", f"F against {panel.axis} for {panel.title}"))
    return out + plots(ids, "One curve per rule.") + "</section>"


def _chart(panel: Panel) -> Chart:
    traces = []
    for place, (rule, points) in enumerate(panel.rows.items()):
        trace = line(rule, place)
        trace["x"], trace["y"] = [x for x, _ in points], [y for _, y in points]
        trace["hovertemplate"] = f"<b>{rule}</b><br>%{{y:.4g}} above<extra></extra>"
        traces.append(trace)
    frame = layout(panel.axis, "F − lowest F seen", title=panel.title)
    frame["yaxis"]["range"] = [math.log10(panel.floor) - 0.15, math.log10(panel.top) + 0.2]
    return {"data": traces, "layout": frame}


def panels_figure(panels: Sequence[Panel]) -> Figure:
    """The same for print."""
    from proxfield.viz.plots import find_figure_class

    figure = find_figure_class()(figsize=(1 + 4.1 * len(panels), 4.2), layout="constrained")
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for place, (rule, points) in enumerate(panel.rows.items()):
            if not points:
                continue
            style = rule_style(rule, place)
            x, y = np.array(points).T
            axes.plot(
                x, y, color=style.color, linestyle=style.line_style, linewidth=0.8 * style.width,
                label=rule,
            )  # fmt: skip
        axes.set(xscale="log", yscale="log", xlabel=panel.axis, title=panel.title)
        axes.set_ylim(panel.floor * 0.8, panel.top * 1.6)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(True, which="major", color="#E6E6E6", linewidth=0.6)
        axes.legend(frameon=False, fontsize=8)
    figure.axes[0].set_ylabel("F − lowest F seen")
    return figure
