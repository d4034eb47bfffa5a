"""Pictures of inference: how F falls, and how fast rules get to detections. Needs matplotlib.

Figures are made without pyplot, so that no window system and no global state are involved.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from proxfield.errors import InputError, shown
from proxfield.io.files import atomic_write
from proxfield.viz.charts import (
    Chart,
    Line,
    Spread,
    chart_figure,
    draw_grid,
    figure_bytes,
    find_figure_class,
    label_ends,
    line_look,
    new_figure,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from proxfield.result import Result, Trace

FORMATS = ("png", "svg", "pdf")
POINTS = 600
"""Points kept of a long trace: more than can be told apart, few enough for small files."""
FIRST_SECONDS = 1e-5
"""Where the axis of seconds begins at the earliest."""
DPI = 150


def convergence_figure(results: Mapping[str, Result], title: str | None = None) -> Figure:
    """How F falls, against iterations and against seconds, for one or more results.

    The height is F minus the lowest F that any of the results saw, on a logarithmic scale that
    ends in 0; the picture says what that lowest F is. States with F = +inf aren't drawn.

    Args:
        results: Results by the name to show.
        title: A title.

    Returns:
        A figure of two panels, 10 × 4.2 inches.

    Raises:
        MissingDependencyError: If matplotlib isn't installed.

    Example:
        >>> import proxfield as pf
        >>> from proxfield.generate import grid
        >>> field = grid(10, 10, sign="repulsive")
        >>> results = {name: pf.infer(field, name) for name in ("fixed", "adam")}
        >>> len(convergence_figure(results, title="a small grid").axes)
        2
    """
    find_figure_class()
    if not results:
        raise InputError("no results to draw, expected at least one")
    traces = {name: result.trace for name, result in results.items()}
    charts = convergence_charts(traces)
    figure = chart_figure(charts, title)
    left, right = figure.axes
    if not any(len(line.x) for line in charts[0].lines):
        for axes in (left, right):
            axes.text(0.5, 0.5, "F is +inf throughout", ha="center", transform=axes.transAxes)
        return figure
    left.set_xlim(left=0.9)
    first, last = right.get_xlim()
    right.set_xlim(left=min(first, last / 30))  # at least one labelled tick
    return figure


def convergence_charts(
    traces: Mapping[str, Trace],
    timed: Mapping[str, list[tuple[float, float, float, float]]] | None = None,
) -> list[Chart]:
    """F against iterations and against seconds.

    Args:
        traces: Traces by the name to show.
        timed: By name: seconds, F, and the lowest and highest F of repeated runs that weren't
            traced. They are drawn beside the curve against seconds.
    """
    timed = timed or {}
    lows = [f[np.isfinite(f)].min(initial=np.inf) for f in (t.free_energy for t in traces.values())]
    lows += [low for runs in timed.values() for *_, low, _ in runs]
    lowest = float(min(lows, default=np.inf))
    bottom = f"lowest F seen: {show_energy(lowest)}" if np.isfinite(lowest) else None
    lines: dict[str, list[Line]] = {"iterations": [], "seconds": []}
    for name, trace in traces.items():
        rows = _rows(trace)
        f = trace.free_energy[rows]
        iteration = np.maximum(trace.iteration[rows], 1).astype(np.float64)
        seconds = np.maximum(trace.seconds[rows], FIRST_SECONDS)
        values = (f, iteration, seconds)
        bars = tuple(
            Spread(at, middle - lowest, low - lowest, high - lowest)
            for at, middle, low, high in timed.get(name, [])
        )
        lines["iterations"].append(Line(name, iteration, f - lowest, values))
        lines["seconds"].append(Line(name, seconds, f - lowest, values, bars))
    fields = ("F", "iteration", "seconds")
    return [
        Chart(what, "F − lowest F seen", tuple(some), fields, bottom=bottom)
        for what, some in lines.items()
    ]


def show_energy(value: float) -> str:
    """An energy for a reader, with a proper minus sign.

    Example:
        >>> show_energy(-12.345), show_energy(1e300)
        ('−12.35', '1e+300')
    """
    text = f"{value:.2f}" if abs(value) < 1e12 else f"{value:.6g}"
    return text.replace("-", "−")


def save_figure(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Save as .png, .svg or .pdf, as the name says; never leaves a partial file.

    Args:
        figure: A figure.
        path: Where to write.

    Raises:
        InputError: If the name has another ending or can't be written.
    """
    kind = Path(path).suffix.lower().lstrip(".")
    if kind not in FORMATS:
        raise InputError(
            f"picture {shown(str(path))}, expected a name ending in .png, .svg or .pdf"
        )
    atomic_write(path, figure_bytes(figure, kind, dpi=DPI))


def _rows(trace: Trace) -> NDArray[np.int64]:
    """The states to draw.

    The start is left out, because 0 has no place on a logarithmic axis; a result without
    any iteration is drawn at 1.
    """
    keep = np.isfinite(trace.free_energy)
    if len(trace) > 1:
        keep[0] = False
    rows = np.flatnonzero(keep)
    if len(rows) > POINTS:  # spread evenly over a logarithmic axis, both ends included
        at = np.geomspace(1, len(rows), POINTS).round().astype(np.int64) - 1
        rows = rows[np.unique(at)]
    return rows


# ---- detections ----


@dataclass(frozen=True)
class RuleCurve:
    """How a rule got on.

    Args:
        passes: Number of gradients so far.  # (m,)
        free_energy: F after as many.  # (m,)
        moda: MODA after as many; NaN where it wasn't measured.  # (m,)
    """

    passes: ArrayLike
    free_energy: ArrayLike
    moda: ArrayLike


def quality_figure(curves: Mapping[str, RuleCurve], title: str | None = None) -> Figure:
    """F and MODA against gradient passes, for each rule.

    Args:
        curves: By the rule's name.
        title: A title.

    Returns:
        A figure of two panels, 10 × 4.2 inches.

    Raises:
        MissingDependencyError: If matplotlib isn't installed.

    Example:
        >>> curves = {"fixed": RuleCurve([1, 10], [9.0, 2.0], [0.0, 0.8])}
        >>> [axes.get_ylabel() for axes in quality_figure(curves).axes]
        ['free energy F', 'MODA']
    """
    figure = new_figure(10, 4.2, title)
    if not curves:
        raise InputError("no curves to draw, expected at least one")
    left, right = figure.subplots(1, 2)
    for axes in (left, right):
        axes.set_xlabel("gradient passes")
        axes.set_xscale("log")
        axes.xaxis.set_minor_formatter("")
        axes.xaxis.set_major_formatter("{x:g}")
        draw_grid(axes, "#E6E6E6")
    left.set_ylabel("free energy F")
    right.set_ylabel("MODA")
    ends: list[tuple[str, float, str]] = []
    finite: list[NDArray[np.float64]] = []
    for k, (name, curve) in enumerate(curves.items()):
        look = line_look(name, k)
        passes = np.maximum(np.asarray(curve.passes, dtype=float), 1)
        shown_at = 0.0
        for axes, values in ((left, curve.free_energy), (right, curve.moda)):
            y = np.asarray(values, dtype=float)
            if y.shape != passes.shape:
                raise InputError(
                    f"{name}: {y.size} values for {passes.size} passes, expected as many"
                )
            keep = np.isfinite(y)
            axes.plot(passes[keep], y[keep], **look)
            axes.plot(passes[keep][-1:], y[keep][-1:], "o", markersize=4.5, color=look["color"])
            if axes is left:
                finite.append(y[keep])
            elif keep.any():
                shown_at = float(max(0.0, y[keep][-1]))
        ends.append((name, shown_at, look["color"]))
    right.set_ylim(-0.03, 1.03)  # far below 0 a rule is useless all the same
    everything = np.concatenate(finite)
    if everything.size:  # limits of F that show the rules that work, whatever the others do
        low = float(everything.min())
        usual = float(np.quantile(everything, 0.9)) - low
        top = min(float(everything.max()), low + 1.3 * max(usual, 1e-9))
        left.set_ylim(low - 0.04 * (top - low), top + 0.02 * (top - low))
    label_ends(right, ends)
    return figure
