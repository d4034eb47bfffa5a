"""How fast rules get to the detections: F and MODA against gradient passes. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from proxfield.errors import InputError
from proxfield.viz.charts import find_figure_class, label_ends
from proxfield.viz.style import rule_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


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
    figure_class = find_figure_class()
    if not curves:
        raise InputError("no curves to draw, expected at least one")
    figure = figure_class(figsize=(10, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    if title:
        figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold")
    for axes in (left, right):
        axes.set_xlabel("gradient passes")
        axes.set_xscale("log")
        axes.xaxis.set_minor_formatter("")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(True, which="major", color="#E6E6E6", linewidth=0.6)
        axes.set_axisbelow(True)
    left.set_ylabel("free energy F")
    right.set_ylabel("MODA")
    ends: list[tuple[str, float, str]] = []
    finite: list[NDArray[np.float64]] = []
    for k, (name, curve) in enumerate(curves.items()):
        look = rule_style(name, k)
        passes = np.maximum(np.asarray(curve.passes, dtype=float), 1)
        shown_at = 0.0
        for axes, values in ((left, curve.free_energy), (right, curve.moda)):
            y = np.asarray(values, dtype=float)
            if y.shape != passes.shape:
                raise InputError(
                    f"{name}: {y.size} values for {passes.size} passes, expected as many"
                )
            keep = np.isfinite(y)
            style = {"color": look.color, "linestyle": look.line_style}
            axes.plot(passes[keep], y[keep], linewidth=0.8 * look.width, **style)
            axes.plot(passes[keep][-1:], y[keep][-1:], "o", markersize=4.5, color=look.color)
            if axes is left:
                finite.append(y[keep])
            elif keep.any():
                shown_at = float(max(0.0, y[keep][-1]))
        ends.append((name, shown_at, look.color))
    right.set_ylim(-0.03, 1.03)  # far below 0 a rule is useless all the same
    _focus(left, finite)
    label_ends(right, ends)
    return figure


def _focus(axes: Axes, values: list[NDArray[np.float64]]) -> None:
    """Limits of F that show the rules that work, whatever the others do."""
    lasts = np.array([y[-1] for y in values if y.size])
    if not lasts.size:
        return
    everything = np.concatenate(values)
    low = float(everything.min())
    usual = float(np.quantile(everything, 0.9)) - low
    top = min(float(everything.max()), low + 1.3 * max(usual, 1e-9))
    axes.set_ylim(low - 0.04 * (top - low), top + 0.02 * (top - low))
