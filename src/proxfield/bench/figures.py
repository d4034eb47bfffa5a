"""The report's charts as pictures for print."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from proxfield.bench.charts import experiment_charts, segmentation_charts, sensitivity_charts
from proxfield.bench.curves import Curves
from proxfield.bench.people import people_figures
from proxfield.errors import InputError
from proxfield.io.files import atomic_write, display_name
from proxfield.viz.charts import Chart, chart_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from proxfield.bench.report import ReportData

FORMATS = ("png", "svg")


def save_figures(folder: str, data: ReportData) -> list[str]:
    """Draw everything into a folder, which is made if need be; returns the files' names.

    Raises:
        InputError: If a file can't be written.
        MissingDependencyError: If matplotlib isn't installed.
    """
    from proxfield.viz import save_figure

    figures = make_figures(data)
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
    people, inpainting = data.people, data.inpainting
    pictures = [*(people.pictures if people else []), *(inpainting.pictures if inpainting else [])]
    for name, _, png in pictures:
        atomic_write(target / f"{name}.png", png)
        names.append(f"{name}.png")
    return names


def make_figures(data: ReportData) -> dict[str, Figure]:
    """All pictures, by name."""
    curves = [*data.curves, *(data.inpainting.curves if data.inpainting else [])]
    out = {f"convergence-{c.suite.replace(' ', '-')}": convergence(c) for c in curves}
    if data.sensitivity is not None:
        for suite in data.sensitivity.suites:
            title = f"{suite}: dependence on the damping"
            some = sensitivity_charts(data.sensitivity, suite)
            out[f"sensitivity-{suite}"] = chart_figure(some, title, (4.9, 4.2), names="legend")
    if data.people is not None:
        out |= people_figures(data.people.tables)
    if data.segmentation is not None and data.segmentation.tables:
        some = segmentation_charts(data.segmentation)
        out["segmentation"] = chart_figure(some, None, (4.9, 4.2), share=False, names="legend")
    panels = experiment_charts(data.curves, data.inpainting, data.people, data.segmentation)
    if len(panels) > 1:
        out["experiments"] = experiments(panels)
    return out


def convergence(curves: Curves) -> Figure:
    """How F falls on one instance: the picture that `proxfield compare` draws."""
    title = f"{curves.suite}: {curves.instance}, {curves.n_vars} variables"
    return chart_figure(curves.charts(), title)


def experiments(panels: Sequence[Chart]) -> Figure:
    """How F falls in each experiment."""
    return chart_figure(panels, None, (4.4, 4.2), share=False, names="legend")
