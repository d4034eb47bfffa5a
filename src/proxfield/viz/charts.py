"""Line charts of methods: one description that is drawn for print and for pages.

A `Chart` holds what is drawn; `draw` puts it on matplotlib's axes, `chart_figure` makes a picture
of several. Heights are drawn as they are: an axis of gaps ends in 0, where the lowest curve lies.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from proxfield.core.common.extras import import_extra
from proxfield.viz.style import GRID, INK, SOFT, rule_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LINEAR_SHARE = 1e-5
"""Gaps below this share of the largest one are drawn on a linear scale down to 0."""
Values = NDArray[np.float64]


@dataclass(frozen=True)
class Spread:
    """A value with its spread over repetitions, beside a curve."""

    x: float
    y: float
    low: float
    high: float


@dataclass(frozen=True)
class Line:
    """The curve of one method.

    Attributes:
        name: The method.
        x: Horizontal positions.  # (m,)
        y: Heights.  # (m,)
        values: What a reader is told at each point, in the order of `Chart.fields`.  # (k, m)
        bars: Values with their spread.
        dots: Whether each point is marked.
    """

    name: str
    x: Values
    y: Values
    values: tuple[Values, ...] = ()
    bars: tuple[Spread, ...] = ()
    dots: bool = False


@dataclass(frozen=True)
class Chart:
    """A chart.

    Attributes:
        x_label: Name of the horizontal axis, which is logarithmic.
        y_label: Name of the vertical axis.
        lines: The curves.
        fields: Names of the values that a reader is told of at each point.
        title: A title.
        bottom: What the height 0 is, in words; None on an axis that isn't one of gaps.
        limits: The vertical limits of a linear axis; None for an axis of gaps.
        marks: Label and position of vertical lines.
    """

    x_label: str
    y_label: str
    lines: tuple[Line, ...]
    fields: tuple[str, ...] = ()
    title: str | None = None
    bottom: str | None = None
    limits: tuple[float, float] | None = None
    marks: tuple[tuple[str, float], ...] = ()


def find_figure_class() -> type[Figure]:
    """matplotlib's figure.

    Raises:
        MissingDependencyError: If matplotlib isn't installed.
    """
    found: type[Figure] = import_extra(
        "matplotlib.figure", "pictures need matplotlib", "plot"
    ).Figure
    return found


def chart_figure(
    charts: Sequence[Chart],
    title: str | None = None,
    size: tuple[float, float] = (5.0, 4.2),
    share: bool = True,
    names: str = "ends",
) -> Figure:
    """Charts side by side.

    Args:
        charts: The charts.
        title: Above all of them.
        size: Width and height of each, in inches.
        share: Whether they share the vertical axis.
        names: Where methods are named: at the "ends" of the last chart's curves, or in a
            "legend" to the right.

    Raises:
        MissingDependencyError: If matplotlib isn't installed.
    """
    width, height = size
    figure = find_figure_class()(figsize=(width * len(charts), height), layout="constrained")
    panels = figure.subplots(1, len(charts), sharey=share, squeeze=False)[0]
    if title:
        figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold")
    for k, (axes, chart) in enumerate(zip(panels, charts, strict=True)):
        # what is the same for all is said once
        draw(axes, replace(chart, y_label="", bottom=None) if share and k else chart)
    if names == "ends":
        if share:
            for axes in panels:
                set_height(axes, charts)
        label_ends(
            panels[-1],
            [
                (line.name, float(line.y[-1]), rule_style(line.name, place).color)
                for place, line in enumerate(charts[-1].lines)
                if len(line.y)
            ],
        )
    else:
        seen = {line.name: k for chart in charts for k, line in enumerate(chart.lines)}
        handles = [_sample(name, place) for name, place in seen.items()]
        figure.legend(
            handles=handles, frameon=False, fontsize=9, loc="outside right center", handlelength=3
        )
    return figure


def draw(axes: Axes, chart: Chart) -> None:
    """Put a chart on axes; each artist of the k-th curve has the gid ``curve-k``."""
    axes.set(xlabel=chart.x_label, ylabel=chart.y_label)
    if chart.title:
        axes.set_title(chart.title, fontsize=10, loc="left")
    if any(len(line.x) and line.x.max() > 0 for line in chart.lines):
        axes.set_xscale("log")
    axes.xaxis.set_minor_formatter("")  # on short axes matplotlib's minor labels overlap
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(True, which="major", color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    for place, line in enumerate(chart.lines):
        _draw_line(axes, line, place)
    for k, (label, x) in enumerate(chart.marks):
        axes.axvline(x, color=SOFT, linewidth=0.9, linestyle=(0, (1, 1.5)))
        share = axes.transAxes.inverted().transform(axes.transData.transform((x, 1.0)))[0]
        side = "right" if share > 0.7 else "left"
        axes.text(
            x, 0.98 - 0.07 * k, f" {label} ", transform=axes.get_xaxis_transform(), fontsize=9,
            va="top", ha=side, color=INK,
        )  # fmt: skip
    if chart.bottom is not None:
        axes.axhline(0.0, color=SOFT, linewidth=0.9, zorder=1.5)
        axes.set_title(f"0 = {chart.bottom}", fontsize=8.5, color=SOFT, loc="right")
    set_height(axes, [chart])


def _draw_line(axes: Axes, line: Line, place: int) -> None:
    look = rule_style(line.name, place)
    color = look.color
    gid = f"curve-{place}"
    if len(line.x):
        (drawn,) = axes.plot(
            line.x, line.y, color=color, linestyle=look.line_style, linewidth=0.8 * look.width,
            solid_joinstyle="round", marker="oDs"[place % 3] if line.dots else None, markersize=4,
            label=line.name,
        )  # fmt: skip
        drawn.set_gid(gid)
        (last,) = axes.plot(line.x[-1:], line.y[-1:], "o", markersize=4.5, color=color)
        last.set_gid(gid)
    for bar in line.bars:
        around = [[max(0.0, bar.y - bar.low)], [max(0.0, bar.high - bar.y)]]
        parts = axes.errorbar(
            [bar.x], [bar.y], yerr=around, fmt="D", markersize=4, color=color, capsize=3,
            elinewidth=1.2, markerfacecolor="none",
        )  # fmt: skip
        for part in parts.get_children():
            part.set_gid(gid)


def set_height(axes: Axes, charts: Iterable[Chart]) -> None:
    """The vertical axis: the limits that charts give, or one of gaps that ends in 0."""
    charts = list(charts)
    limits = next((chart.limits for chart in charts if chart.limits), None)
    if limits is not None:
        axes.set_ylim(*limits)
        return
    found = gap_scale(charts)
    if found is not None:
        linear, top = found
        axes.set_yscale("symlog", linthresh=linear, linscale=0.8)
        axes.set_yticks([0.0, *decades(linear, top)])  # others may fall between 0 and the first
        axes.set_ylim(-0.06 * linear, 1.5 * top)


def decades(first: float, top: float) -> list[float]:
    """At most eight powers of ten from the first one up to the top.

    Example:
        >>> decades(0.1, 20.0)
        [0.1, 1.0, 10.0]
    """
    count = int(np.floor(np.log10(1.5 * top) - np.log10(first) + 1e-9)) + 1
    every = -(-count // 8)
    return [float(f"{first * 10.0**k:.0e}") for k in range(0, count, every)]


def gap_scale(charts: Iterable[Chart]) -> tuple[float, float] | None:
    """Below which height an axis of gaps is linear, and the largest height.

    It is fine enough to tell the last values of different methods apart; None if all heights are 0.
    """
    lines = [line for chart in charts for line in chart.lines if len(line.y)]
    bars = [bar for line in lines for bar in line.bars]
    every = [*(float(line.y.max()) for line in lines), *(bar.high for bar in bars)]
    top = max(every, default=0.0)
    if not np.isfinite(top) or top <= 0:
        return None
    # the winner's own wobble near 0 is no reason for more decades
    others = [line for line in lines if float(line.y.min()) > 0 and not line.dots]
    lasts = [float(line.y[-1]) for line in others]
    lasts += [float(y) for line in lines if line.dots for y in line.y]  # each is a result
    finals = [f for f in lasts if LINEAR_SHARE * top < f < np.inf]
    finest = min(finals) if finals else LINEAR_SHARE * top
    return float(10.0 ** np.floor(np.log10(finest))), top


def _sample(name: str, place: int) -> Any:
    """A line in a method's look, for a legend."""
    from matplotlib.lines import Line2D

    look = rule_style(name, place)
    style: Any = look.line_style
    width = 0.8 * look.width
    return Line2D([], [], color=look.color, linestyle=style, linewidth=width, label=name)


def label_ends(axes: Axes, ends: list[tuple[str, float, str]]) -> None:
    """Names at the right border, level with the ends of their curves, none on top of another.

    Args:
        axes: The axes, with their final limits.
        ends: Name, height and color of each curve's end.
    """
    to_share = axes.transData.transform
    share = axes.transAxes.inverted().transform
    low = axes.get_xlim()[0]
    heights = [float(share(to_share((low, end)))[1]) for _, end, _ in ends]
    for (name, _, color), at, height in zip(ends, _spread(heights, 0.062), heights, strict=True):
        axes.annotate(
            name,
            xy=(1.005, height),
            xytext=(1.05, at),
            xycoords="axes fraction",
            textcoords="axes fraction",
            color=color,
            fontsize=10,
            va="center",
            arrowprops={
                "arrowstyle": "-",
                "color": color,
                "linewidth": 0.7,
                "shrinkA": 1,
                "shrinkB": 0,
                "relpos": (0, 0.5),
            },
        )


def _spread(heights: list[float], gap: float) -> list[float]:
    """Move heights apart until neighbors are ``gap`` apart, keeping their order.

    Example:
        >>> [round(h, 3) for h in _spread([0.5, 0.5, 0.9], 0.1)]
        [0.45, 0.55, 0.9]
    """
    order = sorted(range(len(heights)), key=lambda i: heights[i])
    groups: list[tuple[list[int], float]] = []  # members, middle
    for i in order:
        groups.append(([i], heights[i]))
        while len(groups) > 1:
            (below, low), (above, high) = groups[-2], groups[-1]
            if high - low >= gap * (len(below) + len(above)) / 2:
                break
            members = below + above
            middle = (low * len(below) + high * len(above)) / len(members)
            middle = max(middle, gap * (len(members) - 1) / 2)  # not below the axis
            groups[-2:] = [(members, middle)]
    out = [0.0] * len(heights)
    for members, middle in groups:
        for place, i in enumerate(members):
            out[i] = middle + gap * (place - (len(members) - 1) / 2)
    return out
