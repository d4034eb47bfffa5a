"""The report's interactive charts, as plain data for plotly.js.

Each trace carries its rule's two colors in ``meta``; the page picks one by the reader's
light or dark setting.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from proxfield.bench.sensitivity import PARAMETER, Sensitivity
from proxfield.bench.store import Record
from proxfield.bench.table import budget_name
from proxfield.viz.style import rule_style

Chart = dict[str, Any]

LINEAR_SHARE = 1e-5
"""Gaps below this share of the largest one aren't told apart."""


@dataclass(frozen=True)
class Curves:
    """How F falls on one instance.

    Attributes:
        suite: The suite.
        instance: Its name.
        n_vars: Variables.
        rows: Iterations, seconds and F by rule; the start included, F = +inf as None.
    """

    suite: str
    instance: str
    n_vars: int
    rows: dict[str, tuple[list[int], list[float], list[float | None]]]

    @property
    def lowest(self) -> float:
        """The lowest F that any rule saw."""
        return min(
            (f for *_, fs in self.rows.values() for f in fs if f is not None), default=math.inf
        )


def make_curves(records: Sequence[Record]) -> Curves | None:
    """The curves of one instance from its trace records; None if there is nothing to draw."""
    rows = {
        str(r["rule"]): (r["iteration"], r["trace_seconds"], r["trace_free_energy"])
        for r in records
    }
    if not rows:
        return None
    first = records[0]
    curves = Curves(first["suite"], first["instance"], int(first.get("n_vars", 0)), rows)
    return curves if math.isfinite(curves.lowest) else None


def convergence_charts(curves: Curves) -> list[tuple[str, Chart]]:
    """F against time and against iterations: an id and a chart each."""
    low = curves.lowest
    floor, top = gap_range(curves)
    titles = {"seconds": "time (s)", "iterations": "iterations"}
    out = []
    for what, title in titles.items():
        traces = []
        for place, (rule, (iteration, seconds, f)) in enumerate(curves.rows.items()):
            keep = [k for k, v in enumerate(f) if v is not None and iteration[k] > 0]
            x = [max(seconds[k], 1e-6) if what == "seconds" else iteration[k] for k in keep]
            values = [v for k in keep if (v := f[k]) is not None]
            trace = line(rule, place)
            trace["x"] = x
            trace["y"] = [max(v - low, floor) for v in values]
            trace["customdata"] = [
                [v, iteration[k], seconds[k]] for k, v in zip(keep, values, strict=True)
            ]
            trace["hovertemplate"] = (
                f"<b>{rule}</b><br>F = %{{customdata[0]:.4f}}<br>iteration %{{customdata[1]:,}}, "
                "%{customdata[2]:.3g} s<extra></extra>"
            )
            traces.append(trace)
        frame = layout(title, "F − lowest F seen")
        frame["yaxis"]["range"] = [math.log10(floor) - 0.15, math.log10(top) + 0.2]
        name = f"convergence-{curves.suite.replace(' ', '-')}-{what}"
        out.append((name, {"data": traces, "layout": frame}))
    return out


def gap_range(curves: Curves) -> tuple[float, float]:
    """The lowest and highest gap to draw, fine enough to tell the final values apart."""
    low = curves.lowest
    every = [
        f - low
        for iteration, _, fs in curves.rows.values()
        for t, f in zip(iteration, fs, strict=True)
        if f is not None and t > 0
    ]
    top = max(every, default=0.0)
    if top <= 0:
        return 0.1, 1.0
    ends = [fs[-1] - low for *_, fs in curves.rows.values() if fs and fs[-1] is not None]
    finest = min((e for e in ends if e > LINEAR_SHARE * top), default=LINEAR_SHARE * top)
    return max(finest / 5, LINEAR_SHARE * top), top


def sensitivity_charts(figure: Sensitivity, suite: str) -> list[tuple[str, Chart]]:
    """F against η at each budget: an id and a chart each."""
    low, floor, top = sensitivity_range(figure, suite)
    out = []
    for budget in figure.budgets:
        traces = []
        for place, rule in enumerate(PARAMETER):
            points = figure.curves.get((suite, rule, budget), [])
            points = [(eta, f) for eta, f in points if math.isfinite(f)]
            trace = line(rule, place)
            trace["mode"] = "lines+markers"
            trace["marker"] = {"size": 6, "symbol": ("circle", "diamond", "square")[place % 3]}
            trace["x"] = [eta for eta, _ in points]
            trace["y"] = [max(f - low, floor) for _, f in points]
            trace["customdata"] = [[f, 1 / eta - 1] for eta, f in points]
            trace["hovertemplate"] = (
                f"<b>{rule}</b><br>η = %{{x:.3g}} (d = %{{customdata[1]:.3g}})<br>"
                "mean F = %{customdata[0]:.2f}<extra></extra>"
            )
            traces.append(trace)
        frame = layout("η = 1/(1 + d)", "mean F − lowest", title=f"{budget_name(budget)} budget")
        frame["yaxis"]["range"] = [math.log10(floor) - 0.15, math.log10(top) + 0.2]
        frame["shapes"], frame["annotations"] = [], []
        for label, d, level in damping_marks(figure, suite):
            x = math.log10(1 / (1 + d))
            frame["shapes"].append(
                {
                    "type": "line",
                    "x0": 1 / (1 + d),
                    "x1": 1 / (1 + d),
                    "y0": 0,
                    "y1": 1,
                    "yref": "paper",
                    "line": {"width": 1, "dash": "dot"},
                }
            )
            frame["annotations"].append(
                {
                    "x": x,
                    "y": level,
                    "yref": "paper",
                    "text": label,
                    "showarrow": False,
                    "xanchor": "left" if x < -1.5 else "right",
                    "xshift": 4 if x < -1.5 else -4,
                }
            )
        out.append(
            (
                f"sensitivity-{suite}-{budget:g}".replace(".", "_"),
                {"data": traces, "layout": frame},
            )
        )
    return out


def sensitivity_range(figure: Sensitivity, suite: str) -> tuple[float, float, float]:
    """The lowest F of a suite, and the smallest and largest gap to draw."""
    every = [f for (s, *_), points in figure.curves.items() if s == suite for _, f in points]
    every = [f for f in every if math.isfinite(f)]
    low = min(every, default=0.0)
    top = max((f - low for f in every), default=0.0) or 1.0
    finest = min((f - low for f in every if f - low > 1e-4 * top), default=top)
    return low, finest / 2, top


def damping_marks(figure: Sensitivity, suite: str) -> list[tuple[str, float, float]]:
    """Label, d and height of the vertical lines."""
    marks = (("d = L", figure.lipschitz, 0.97), ("certified d", figure.certified, 0.89))
    return [(label, by[suite], level) for label, by, level in marks if suite in by]


def line(rule: str, place: int) -> Chart:
    """A rule's curve, without its points."""
    style = rule_style(rule, place)
    return {
        "type": "scatter",
        "mode": "lines",
        "name": rule,
        "line": {"width": style.width, "dash": style.dash, "color": style.color},
        "meta": {"rule": rule, "light": style.color, "dark": style.dark},
        "showlegend": False,
    }


def layout(x: str, y: str, title: str | None = None) -> Chart:
    """A chart with two logarithmic axes.

    Args:
        x: Name of the horizontal axis.
        y: Name of the vertical one.
        title: Above the chart.
    """
    axis = {"type": "log", "exponentformat": "power", "dtick": 1, "zeroline": False}
    out: Chart = {
        "height": 360,
        "margin": {"l": 62, "r": 12, "t": 34 if title else 12, "b": 48},
        "hovermode": "closest",
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "xaxis": {**axis, "title": {"text": x}},
        "yaxis": {**axis, "title": {"text": y}},
    }
    if title:
        out["title"] = {"text": title, "x": 0.5, "y": 0.97, "font": {"size": 14}}
    return out
