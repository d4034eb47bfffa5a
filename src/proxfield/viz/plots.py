"""Pictures of inference. Needs matplotlib: ``pip install "proxfield[plot]"``.

Figures are made without pyplot, so that no window system and no global state are involved.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from proxfield.common.extras import install_hint
from proxfield.errors import InputError, MissingDependencyError, shown
from proxfield.io.files import atomic_write
from proxfield.viz.style import rule_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from proxfield.result import Result, Trace

REMEDY = install_hint("plot")
FORMATS = ("png", "svg", "pdf")
POINTS = 600
"""Points kept of a long trace: more than can be told apart, few enough for small files."""
LINEAR_SHARE = 1e-5
"""Gaps below this share of the largest one are drawn on a linear scale down to 0."""
FIRST_SECONDS = 1e-5
"""Where the axis of seconds begins at the earliest."""


def convergence_figure(results: Mapping[str, Result], title: str | None = None) -> Figure:
    """How F falls, against iterations and against seconds, for one or more results.

    With several results, the height is F minus the lowest F that any of them saw, on a
    logarithmic scale that ends in 0. States with F = +inf aren't drawn.

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
    figure_class = find_figure_class()
    if not results:
        raise InputError("no results to draw, expected at least one")
    lowest = min((_lowest(r.trace) for r in results.values()), default=np.inf)
    figure = figure_class(figsize=(10, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    if title:
        figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold")
    for axes, what in ((left, "iterations"), (right, "seconds")):
        axes.set_xlabel(what)
        axes.set_xscale("log")
        axes.xaxis.set_minor_formatter("")  # on short axes matplotlib's minor labels overlap
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(True, which="major", color="#E6E6E6", linewidth=0.6)
        axes.set_axisbelow(True)
    if not np.isfinite(lowest):
        for axes in (left, right):
            axes.text(0.5, 0.5, "F is +inf throughout", ha="center", transform=axes.transAxes)
        return figure
    ends: list[tuple[str, float, str]] = []
    for k, (name, result) in enumerate(results.items()):
        look = rule_style(name, k)
        style = {"color": look.color, "linestyle": look.line_style}
        iteration, seconds, gap = _curve(result.trace, lowest)
        if len(gap) == 0:
            continue
        for axes, x in ((left, iteration), (right, seconds)):
            axes.plot(x, gap, linewidth=0.8 * look.width, solid_joinstyle="round", **style)
            axes.plot(x[-1:], gap[-1:], "o", markersize=4.5, color=style["color"])
        ends.append((name, float(gap[-1]), look.color))
    left.set_xlim(left=0.9)
    first, last = right.get_xlim()
    right.set_xlim(left=min(first, last / 30))  # at least one labelled tick
    _scale(left, results, lowest)
    left.set_ylabel("F − lowest F seen")
    label_ends(right, ends)
    return figure


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
    buffer = BytesIO()
    figure.savefig(buffer, format=kind, dpi=150)
    atomic_write(path, buffer.getvalue())


def find_figure_class() -> type[Figure]:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingDependencyError(f"pictures need matplotlib: {REMEDY}") from None
    return Figure


def _lowest(trace: Trace) -> float:
    """The lowest F of a trace; +inf if none is finite."""
    f = trace.free_energy
    return float(f[np.isfinite(f)].min(initial=np.inf))


def _curve(
    trace: Trace, lowest: float
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """Iterations, seconds and F − lowest of the states to draw.

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
    iteration = np.maximum(trace.iteration[rows], 1)
    seconds = np.maximum(trace.seconds[rows], FIRST_SECONDS)
    return iteration, seconds, trace.free_energy[rows] - lowest


def _scale(axes: Axes, results: Mapping[str, Result], lowest: float) -> None:
    """A logarithmic axis that ends in 0, fine enough to tell the final values apart."""
    top = max(_curve(r.trace, lowest)[2].max(initial=0.0) for r in results.values())
    if top <= 0:
        return
    # the winner's own wobble near 0 is no reason for more decades
    others = [r.trace for r in results.values() if _lowest(r.trace) > lowest]
    finals = np.array([t.free_energy[-1] - lowest for t in others])
    finals = finals[np.isfinite(finals) & (finals > LINEAR_SHARE * top)]
    finest = float(finals.min()) if len(finals) else LINEAR_SHARE * top
    linear = 10.0 ** np.floor(np.log10(finest))
    axes.set_yscale("symlog", linthresh=linear, linscale=0.8)
    axes.set_ylim(-0.06 * linear, 1.5 * top)


def label_ends(axes: Axes, ends: list[tuple[str, float, str]]) -> None:
    """Names at the right border, level with the ends of their curves, none on top of another."""
    to_share = axes.transData.transform
    share = axes.transAxes.inverted().transform
    low = axes.get_xlim()[0]
    heights = [float(share(to_share((low, gap)))[1]) for _, gap, _ in ends]
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
