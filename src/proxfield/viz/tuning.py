"""A report of `proxfield.tune`: the metric over each setting, and all settings that were tried."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from proxfield.errors import InputError
from proxfield.io.files import Target, atomic_write, display_name
from proxfield.viz.charts import draw_grid, figure_bytes, new_figure
from proxfield.viz.page import definitions, paragraphs, scrolling, whole_page
from proxfield.viz.plots import FORMATS, save_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from proxfield.images.search import Scored, TuneResult

PANELS = {
    "spatial_sigma": "σ of the spatial term (pixels)",
    "spatial_weight": "weight of the spatial term",
    "bilateral_sigma": "σ of the bilateral term (pixels)",
    "bilateral_color": "σ of its colors (of 255)",
    "bilateral_weight": "weight of the bilateral term",
    "max_iters": "number of updates",
}
INK, SOFT, MARK = "#0072B2", "#9AA5B1", "#D55E00"
REPORT_FORMATS = ("html", *FORMATS)


def value_of(found: Scored, name: str) -> float:
    """A setting of a trial."""
    return float(getattr(found.settings, name))


def tuning_figure(result: TuneResult) -> Figure:
    """The metric over each setting: one panel per setting, one point per trial.

    Trials that differ from the best in this setting alone are joined by a line. The dashed line is
    the score without a CRF.

    Args:
        result: What `proxfield.tune` returned.

    Returns:
        A figure of six panels, 11 × 6 inches.

    Raises:
        MissingDependencyError: If matplotlib isn't installed.
    """
    figure = new_figure(11, 6)
    panels = figure.subplots(2, 3, sharey=True).ravel()
    best = result.best
    for axes, (name, title) in zip(panels, PANELS.items(), strict=True):
        values = [(value_of(found, name), found.score) for found in result.table]
        others = [other for other in PANELS if other not in (name, "max_iters")]
        alone = sorted(
            (value_of(found, name), found.score)
            for found in result.table
            if all(value_of(found, other) == value_of(best, other) for other in others)
        )
        if any(x > 0 for x, _ in values):
            axes.set_xscale("symlog", linthresh=min(x for x, _ in values if x > 0))
        ticks = sorted({x for x, _ in alone})
        axes.set_xticks(ticks, [f"{x:g}" for x in ticks], fontsize=8)
        axes.minorticks_off()
        axes.axhline(result.baseline, color="#333333", linestyle="--", linewidth=1)
        axes.annotate(
            "no CRF", (1.0, result.baseline), xycoords=("axes fraction", "data"), fontsize=8,
            xytext=(0, 3), textcoords="offset points", ha="right", color="#333333",
        )  # fmt: skip
        axes.plot(*zip(*values, strict=True), "o", color=SOFT, markersize=4, alpha=0.7)
        axes.plot(*zip(*alone, strict=True), "o-", color=INK, markersize=5, linewidth=1.4)
        axes.plot([value_of(best, name)], [best.score], "o", color=MARK, markersize=7)
        draw_grid(axes, "#E6E6E6", "y")
        axes.set_xlabel(title)
    for axes in panels[::3]:
        axes.set_ylabel(result.title)
    scores = [found.score for found in result.table]
    low = min(result.baseline, sorted(scores)[len(scores) // 4])  # the worst don't matter
    high = max(result.baseline, *scores)
    room = 0.08 * max(high - low, 1e-4)
    panels[0].set_ylim(low - room, high + room)
    return figure


def write_report(result: TuneResult, path: Target) -> None:
    """Write a page (.html: figure, settings, folds and table), or the figure (.png, .svg, .pdf).

    Args:
        result: What `proxfield.tune` returned.
        path: Where to write; its ending says what.

    Raises:
        InputError: If the name has another ending or can't be written.
        MissingDependencyError: If matplotlib isn't installed.
    """
    kind = Path(path).suffix.lower().lstrip(".")
    if kind not in REPORT_FORMATS:
        raise InputError(
            f"a report is written as .{', .'.join(REPORT_FORMATS)}", path=display_name(path)
        )
    if kind != "html":
        save_figure(tuning_figure(result), path)
        return
    atomic_write(path, page(result))


def page(result: TuneResult) -> str:
    """The report as one page that loads nothing."""
    svg = figure_bytes(tuning_figure(result), "svg", metadata={"Date": None}).decode()
    _, tag, picture = svg.partition("<svg")
    facts = [(key.replace("_", " "), f"{value}") for key, value in result.config.to_dict().items()]
    about = [
        ("images", f"{result.images} (digest of the data {result.digest})"),
        (f"{result.title} without a CRF", f"{result.baseline:.4f}"),
        (f"{result.title} on held-out images", f"{result.held_out:.4f}"),
        ("settings tried", f"{len(result.table)}"),
        ("seconds", f"{result.seconds:.0f}"),
        ("random seed of the folds", f"{result.seed}"),
    ]
    if result.stopped:
        about.append(("ended early", result.stopped))
    folds = [
        (f"{k} ({len(fold.images)} images)", fold.chosen, (fold.score, fold.baseline))
        for k, fold in enumerate(result.folds, 1)
    ]
    listed = [*((f.score, f) for f in result.table), (result.baseline, None)]
    listed.sort(key=lambda item: -item[0])
    ranked = [(str(k), found, (score,)) for k, (score, found) in enumerate(listed, 1)]
    body = [
        f"<header><h1>A dense CRF, tuned: {escape(result.title)}</h1>",
        paragraphs(f"{result.verdict[0].upper()}{result.verdict[1:]}."),
        "</header><main>",
        "<h2>Settings</h2>",
        definitions(facts),
        "<h2>How they were chosen</h2>",
        definitions(about),
        "<h2>The metric over each setting</h2>",
        f'<figure style="background:#fff">{tag}{picture}</figure>',
        paragraphs(
            "One point per trial, each at its best number of updates. Blue: trials that differ "
            "from the best (orange) in this setting alone. Dashed: no CRF. The worst quarter "
            "of the trials may be below the frame."
        ),
        "<h2>Folds</h2>",
        scrolling(
            _table("fold", ("on the fold", "no CRF"), folds), "Folds of the cross-validation"
        ),
        "<h2>All settings that were tried</h2>",
        scrolling(_table("rank", (result.title,), ranked), "Settings and their scores"),
        "</main>",
    ]
    return whole_page(f"Dense CRF: {result.title}", "\n".join(body))


def _table(
    first: str, last: Sequence[str], rows: Iterable[tuple[str, Scored | None, Sequence[float]]]
) -> str:
    """A table of settings between what names a row and its scores."""
    names = [name.replace("_", " ") for name in PANELS]
    heads = "".join(f"<th>{escape(name)}</th>" for name in (*names, "filter", *last))
    body = ""
    for name, found, scores in rows:
        cells = f'<td colspan="{len(PANELS) + 1}">no CRF</td>'
        if found is not None:
            cells = "".join(f"<td>{value_of(found, name):g}</td>" for name in PANELS)
            cells += f"<td>{escape(found.settings.filter)}</td>"
        cells += "".join(f"<td>{score:.4f}</td>" for score in scores)
        body += f"<tr><th>{name}</th>{cells}</tr>"
    head = f'<thead><tr><th class="corner">{first}</th>{heads}</tr></thead>'
    return f"<table>{head}<tbody>{body}</tbody></table>"
