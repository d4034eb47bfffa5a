"""Line charts of methods: one description that is drawn for print and for pages.

Each rule looks alike in every picture: colors differ in lightness as well as in hue, dashes set the
baselines apart, and each color has a lighter twin for dark backgrounds. A `Chart` holds what is
drawn; `draw` puts it on matplotlib's axes, `chart_figure` makes a picture of several. Heights are
drawn as they are: an axis of gaps ends in 0, where the lowest curve lies.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from proxfield.core.common.extras import import_extra
from proxfield.core.common.records import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, SOFT, GRID = "#1B1F24", "#59636E", "#D9DEE4"
"""Text, notes and grid lines of pictures and pages on a light background."""


@dataclass(frozen=True)
class RuleStyle:
    """The look of one rule.

    Attributes:
        color: On a light background.
        dark: On a dark background.
        dash: "solid", "dash", "dot" or "dashdot"; see `line_style`.
        width: Width of the line, in points.
        paper_name: What the paper calls the rule, if it has it.
    """

    color: str
    dark: str
    dash: str = "solid"
    width: float = 1.8
    paper_name: str | None = None

    @property
    def line_style(self) -> tuple[int, tuple[float, ...]] | str:
        """The dash in matplotlib's words."""
        patterns = {"dash": (4, 1.5), "dot": (1, 1.2), "dashdot": (5, 1.5, 1, 1.5)}
        return "-" if self.dash == "solid" else (0, patterns[self.dash])


# Okabe and Ito's colors where they are dark enough for lines on white.
RULE_STYLES: dict[str, RuleStyle] = {
    "sweep": RuleStyle("#6E6E6E", "#B4B4B4", "dash", paper_name="SWEEP"),
    "colored": RuleStyle("#6E6E6E", "#B4B4B4", "dashdot"),
    "full-parallel": RuleStyle("#D55E00", "#FF9248", "dot", paper_name="FULL-PARALLEL"),
    "adhoc": RuleStyle("#C08400", "#F2BE3E", "dash", paper_name="ADHOC"),
    "fixed": RuleStyle("#0072B2", "#5AB4F0", paper_name="OURS-FIXED"),
    "adaptive": RuleStyle("#009E73", "#3FD6A8", paper_name="OURS-ADAPTIVE"),
    "momentum": RuleStyle("#B8438C", "#F29BCB", paper_name="OURS-MOMENTUM"),
    "adam": RuleStyle("#8B5E3C", "#D6A67F", paper_name="OURS-ADAM"),
    "backtracking": RuleStyle("#2F6F3E", "#84D696"),
    "original": RuleStyle("#A6322C", "#FF8E86", "dashdot"),
    "anneal": RuleStyle("#5B4BB5", "#B0A3FF"),
    "restarts": RuleStyle("#3A9BD0", "#8FD3FF", "dashdot"),
    "portfolio": RuleStyle("#6B7A00", "#CBDD4A", "dashdot"),
    "auto": RuleStyle("#111111", "#FFFFFF", width=2.8),
}
_SPARE = (
    ("#A6322C", "#FF8E86"),
    ("#2F6F3E", "#84D696"),
    ("#3B4FA0", "#A3B4FF"),
    ("#7A3B7A", "#E0A0E0"),
)


def rule_style(name: str, place: int = 0) -> RuleStyle:
    """The style of a rule; rules without one get spare colors by their position.

    Args:
        name: The rule's name.
        place: Its place among the curves of a picture.

    Example:
        >>> rule_style("fixed").color, rule_style("mine", 1).dark
        ('#0072B2', '#84D696')
    """
    if name in RULE_STYLES:
        return RULE_STYLES[name]
    color, dark = _SPARE[place % len(_SPARE)]
    return RuleStyle(color, dark, ("solid", "dash", "dot")[place // len(_SPARE) % 3])


def line_look(name: str, place: int) -> Record:
    """Color, dash and width of a rule's line, as arguments of matplotlib."""
    look = rule_style(name, place)
    return {"color": look.color, "linestyle": look.line_style, "linewidth": 0.8 * look.width}


def every_style() -> list[RuleStyle]:
    """The styles of all rules, and those for rules without one."""
    return [*RULE_STYLES.values(), *(RuleStyle(color, dark) for color, dark in _SPARE)]


# ---- charts ----

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
    """The curve of one method: positions and heights, and maybe marks at each point."""

    name: str
    x: Values
    y: Values
    values: tuple[Values, ...] = ()
    """What a reader is told at each point, in the order of `Chart.fields`.  # (k, m)"""
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
    module = import_extra("matplotlib.figure", "pictures need matplotlib", "plot")
    found: type[Figure] = module.Figure
    return found


def new_figure(width: float, height: float, title: str | None = None) -> Figure:
    """An empty figure, in inches; a title stands above all of its panels.

    Raises:
        MissingDependencyError: If matplotlib isn't installed.
    """
    figure = find_figure_class()(figsize=(width, height), layout="constrained")
    if title:
        figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold")
    return figure


def figure_bytes(figure: Figure, kind: str, **options: Any) -> bytes:
    """A figure as a file: "png", "svg" or "pdf", with options of matplotlib's ``savefig``."""
    buffer = BytesIO()
    figure.savefig(buffer, format=kind, **options)
    return buffer.getvalue()


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
    figure = new_figure(size[0] * len(charts), size[1], title)
    panels = figure.subplots(1, len(charts), sharey=share, squeeze=False)[0]
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
        from matplotlib.lines import Line2D

        seen = {line.name: k for chart in charts for k, line in enumerate(chart.lines)}
        handles = [Line2D([], [], label=name, **line_look(name, k)) for name, k in seen.items()]
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
    draw_grid(axes)
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


def draw_grid(axes: Axes, color: str = GRID, axis: Literal["both", "y"] = "both") -> None:
    """Grid lines behind what is drawn, and no border above and on the right."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(True, which="major", axis=axis, color=color, linewidth=0.6)
    axes.set_axisbelow(True)


def _draw_line(axes: Axes, line: Line, place: int) -> None:
    look, gid = line_look(line.name, place), f"curve-{place}"
    color = look["color"]
    if len(line.x):
        (drawn,) = axes.plot(
            line.x, line.y, **look, solid_joinstyle="round", label=line.name,
            marker="oDs"[place % 3] if line.dots else None, markersize=4,
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
    lines = [line for chart in charts for line in chart.lines if len(line.y)]
    bars = [bar for line in lines for bar in line.bars]
    every = [*(float(line.y.max()) for line in lines), *(bar.high for bar in bars)]
    top = max(every, default=0.0)
    if not np.isfinite(top) or top <= 0:
        return
    # linear below a height that tells the last values of different methods apart; the winner's
    # own wobble near 0 is no reason for more decades
    others = [line for line in lines if float(line.y.min()) > 0 and not line.dots]
    lasts = [float(line.y[-1]) for line in others]
    lasts += [float(y) for line in lines if line.dots for y in line.y]  # each is a result
    finals = [f for f in lasts if LINEAR_SHARE * top < f < np.inf]
    linear = float(10.0 ** np.floor(np.log10(min(finals, default=LINEAR_SHARE * top))))
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
        arrow: Record = {"arrowstyle": "-", "color": color, "linewidth": 0.7}
        axes.annotate(
            name, xy=(1.005, height), xytext=(1.05, at), xycoords="axes fraction",
            textcoords="axes fraction", color=color, fontsize=10, va="center",
            arrowprops={**arrow, "shrinkA": 1, "shrinkB": 0, "relpos": (0, 0.5)},
        )  # fmt: skip


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
