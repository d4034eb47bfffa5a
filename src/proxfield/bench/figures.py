"""The report's pictures as files, drawn by matplotlib."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import numpy as np

from proxfield.bench.charts import Curves, damping_marks, sensitivity_range
from proxfield.bench.inpainting_report import InpaintingResults
from proxfield.bench.panels import make_panels, panels_figure
from proxfield.bench.people_report import People, people_figures
from proxfield.bench.sensitivity import PARAMETER, Sensitivity
from proxfield.bench.table import budget_name
from proxfield.common.extras import install_hint
from proxfield.common.records import Record
from proxfield.errors import InputError, MissingDependencyError
from proxfield.io.files import atomic_write, display_name
from proxfield.viz.style import rule_style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from proxfield.result import Result

FORMATS = ("png", "svg")


def save_figures(
    folder: str,
    curves: Sequence[Curves],
    sensitivity: Sensitivity | None,
    people: People | None = None,
    inpainting: InpaintingResults | None = None,
) -> list[str]:
    """Draw everything into a folder, which is made if need be; returns the files' names.

    Raises:
        InputError: If a file can't be written.
        MissingDependencyError: If matplotlib isn't installed.
    """
    from proxfield.viz import save_figure

    every = [*curves, *(inpainting.curves if inpainting else [])]
    figures = {f"convergence-{c.suite.replace(' ', '-')}": convergence(c) for c in every}
    for suite in sensitivity.suites if sensitivity else ():
        assert sensitivity is not None
        figures[f"sensitivity-{suite}"] = sensitivity_figure(sensitivity, suite)
    if people is not None:
        figures |= people_figures(people)
    panels = make_panels(curves, inpainting, people)
    if len(panels) > 1:
        figures["three-experiments"] = panels_figure(panels)
    target = Path(folder)
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"can't make the folder ({error.strerror or error}), expected a writable place",
            path=display_name(folder),
        ) from None
    names = [f"{name}.{kind}" for name in figures for kind in FORMATS]
    for name in names:
        save_figure(figures[name.rpartition(".")[0]], target / name)
    pictures = [*(people.pictures if people else []), *(inpainting.pictures if inpainting else [])]
    for name, _, png in pictures:
        atomic_write(target / f"{name}.png", png)
        names.append(f"{name}.png")
    return names


def convergence(curves: Curves) -> Figure:
    """How F falls on one instance: the picture that `proxfield compare` draws."""
    from proxfield.result import Trace
    from proxfield.viz import convergence_figure

    results: Record = {}
    for rule, (iteration, seconds, f) in curves.rows.items():
        values = np.array([math.inf if v is None else v for v in f])
        trace = Trace(np.array(iteration), np.array(seconds), values, np.full(len(f), np.nan))
        results[rule] = SimpleNamespace(trace=trace)
    title = f"{curves.suite}: {curves.instance}, {curves.n_vars} variables"
    return convergence_figure(cast("dict[str, Result]", results), title=title)


def sensitivity_figure(figure: Sensitivity, suite: str) -> Figure:
    """F against η at each budget, one panel each."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingDependencyError(f"pictures need matplotlib: {install_hint('bench')}") from None
    budgets = figure.budgets
    drawn = Figure(figsize=(1.2 + 4.4 * len(budgets), 4.2), layout="constrained")
    panels = drawn.subplots(1, len(budgets), sharey=True, squeeze=False)[0]
    low, floor, top = sensitivity_range(figure, suite)
    for axes, budget in zip(panels, budgets, strict=True):
        for place, rule in enumerate(PARAMETER):
            points = [
                p for p in figure.curves.get((suite, rule, budget), []) if math.isfinite(p[1])
            ]
            style = rule_style(rule, place)
            axes.plot(
                [eta for eta, _ in points],
                [max(f - low, floor) for _, f in points],
                color=style.color,
                linestyle=style.line_style,
                marker="oDs"[place % 3],
                markersize=4,
                label=rule,
            )
        for k, (label, d, _) in enumerate(damping_marks(figure, suite)):
            axes.axvline(1 / (1 + d), color="#555555", linewidth=0.9, linestyle=(0, (1, 1.5)))
            axes.text(
                1 / (1 + d),
                0.98 - 0.07 * k,
                f" {label}",
                transform=axes.get_xaxis_transform(),
                fontsize=9,
                va="top",
            )
        axes.set(xscale="log", yscale="log", xlabel="η = 1/(1 + d)", title=budget_name(budget))
        axes.set_ylim(floor * 0.8, top * 1.6)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(True, which="major", color="#E6E6E6", linewidth=0.6)
    panels[0].set_ylabel("mean F − lowest")
    names = panels[0].get_legend_handles_labels()
    drawn.legend(*names, frameon=False, fontsize=9, loc="outside right center")
    drawn.suptitle(f"{suite}: dependence on the damping", x=0.01, ha="left", fontweight="bold")
    return drawn
