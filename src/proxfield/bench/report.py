"""The report: one HTML file that explains itself and loads nothing.

Templates (``templates/``) hold all text and markup; this module gathers what they show. Charts are
drawn as SVG when the report is written, so that they need neither a network nor a script.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from proxfield.bench.charts import (
    Curves,
    experiment_charts,
    people_charts,
    segmentation_charts,
    sensitivity_charts,
)
from proxfield.bench.inpainting import GIVEN
from proxfield.bench.paper import PARAMETER, Gaps, Sensitivity, Wins, bests
from proxfield.bench.people import chart_id, show_moda
from proxfield.bench.published import ABOUT, FULL_NAMES
from proxfield.bench.segmentation import CLASSES
from proxfield.bench.table import Experiment, Table, budget_name, counted, show
from proxfield.core.common.extras import import_extra, install_hint
from proxfield.core.common.records import Record
from proxfield.core.solve.rules.registry import RULES
from proxfield.io.files import atomic_write
from proxfield.viz.charts import Chart, rule_style
from proxfield.viz.page import dark_colors, page_chart, page_style
from proxfield.viz.plots import show_energy

if TYPE_CHECKING:
    from jinja2 import Environment

TITLE = "Mean-field inference at a time budget"
HEADINGS = {
    "what": "What is measured",
    "table": "F when the time is up",
    "wins": "Which rule beats which",
    "convergence": "How F falls",
    "sensitivity": "How much the damping matters",
    "exact": "How tight the bound is",
    "inpainting": "Characters completed",
    "people": "People in several cameras",
    "segmentation": "Scenes segmented",
    "panels": "The experiments side by side",
    "rules": "The rules",
    "rerun": "Run it again",
}
"""Sections by their id, in order."""


@dataclass
class ReportData:
    """What a report shows; what is missing is left out."""

    metas: list[Record]
    """Where the results come from."""
    command: str
    tol: float
    repeats: int = 1
    table: list[Table] = field(default_factory=list)
    """Table 1, a part for each suite; the other tables are experiments."""
    wins: Wins | None = None
    papers_own: dict[str, bool] = field(default_factory=dict)
    """Which suites are the paper's very instances."""
    curves: list[Curves] = field(default_factory=list)
    """How F falls on one instance of each suite."""
    sensitivity: Sensitivity | None = None
    gaps: Gaps | None = None
    inpainting: Experiment | None = None
    people: Experiment | None = None
    segmentation: Experiment | None = None
    figures: tuple[str, list[str]] | None = None
    """The folder and the names of the pictures saved beside the report."""
    failures: list[str] = field(default_factory=list)
    overruns: str | None = None
    """A sentence about runs that took too long, if any did."""


def write_report(path: str, data: ReportData) -> None:
    """Write the report; a failure leaves no partial file.

    Raises:
        InputError: If it can't be written.
        MissingDependencyError: If jinja2 or matplotlib isn't installed.
    """
    atomic_write(path, make_report(data))


def find_environment() -> Environment:
    """jinja2 with the report's templates; everything is escaped that isn't markup already.

    Raises:
        MissingDependencyError: If jinja2 or matplotlib isn't installed.
    """
    jinja2, _ = (
        import_extra(name, f"the report needs {name}", "bench") for name in ("jinja2", "matplotlib")
    )
    env: Environment = jinja2.Environment(
        loader=jinja2.PackageLoader("proxfield.bench"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters |= {
        "budget": budget_name,
        "energy": lambda value: show(value).replace("-", "−"),
        "percent": show,
        "moda": lambda value: show_moda(value).replace("-", "−"),
        "range": _range,
    }
    env.globals |= {"look": rule_style, "size": _size}
    return env


class Charts:
    """The charts of a page, as they are drawn one after another.

    Attributes:
        data: What the page's script needs.
    """

    def __init__(self) -> None:
        self.data: list[Record] = []

    def draw(self, name: str, group: str, chart: Chart, label: str) -> Record:
        """One chart for a template; curves of one group are shown and hidden together."""
        from markupsafe import Markup

        name = "".join(c if c.isalnum() or c in "-_" else "_" for c in name)
        svg, points = page_chart(name, chart)
        self.data.append({**points, "group": group})
        return {"id": name, "label": label, "svg": Markup(svg)}  # of matplotlib, which escapes


def make_report(data: ReportData) -> str:
    """The report as HTML."""
    from markupsafe import Markup

    env = find_environment()
    charts = Charts()
    people, inpainting, segmentation = data.people, data.inpainting, data.segmentation
    curves = [*data.curves, *(inpainting.curves if inpainting else [])]
    commands = [str(meta["command"]) for meta in data.metas if "command" in meta]
    context: Record = {
        "title": TITLE,
        "about": _about(data),
        "style": Markup(page_style()),  # our own file
        "dark": dark_colors(),
        "tol": data.tol,
        "repeats": data.repeats,
        "full_names": FULL_NAMES,
        "abouts": ABOUT,
        # of the paper's first experiment
        "suites": [x.suite for x in data.table or data.curves]
        or (data.sensitivity.suites if data.sensitivity else []),
        "tables": data.table,
        "wins": data.wins if data.wins is not None and data.wins.models else None,
        "gaps": data.gaps if data.gaps is not None and data.gaps.cells else None,
        "overruns": data.overruns,
        "failures": data.failures,
        "figures": data.figures,
        **_table_parts(data),
        "convergence": [_convergence(c, charts) for c in curves],
        "convergence_rules": list(dict.fromkeys(rule for c in curves for rule in c.rows)),
        "sensitivity": _sensitivity(data.sensitivity, charts) if data.sensitivity else [],
        "sensitivity_rules": list(PARAMETER),
        "inpainting": inpainting,
        "given": GIVEN,
        "inpainting_pictures": _encoded(inpainting),
        "people": [_people(table, charts) for table in (people.tables if people else ())],
        "people_pictures": _encoded(people),
        **_segmentation(segmentation, charts),
        **_panels(data, charts),
        "rules": _rules(data),
        "install": install_hint("bench"),
        "commands": list(dict.fromkeys([*commands, data.command])),
        "origins": [_origin(meta, data.tol) for meta in data.metas],
    }
    present = {**context, "what": True, "rerun": True, "exact": context["gaps"]}
    present["table"] = data.table
    context["contents"] = [(name, text) for name, text in HEADINGS.items() if present.get(name)]
    context["charts"] = charts.data
    return env.get_template("report.html.j2").render(context)


def _about(data: ReportData) -> str:
    latest = data.metas[-1] if data.metas else {}
    versions, machine = latest.get("versions", {}), latest.get("machine", {})
    parts = (
        f"proxfield {versions.get('proxfield', '?')}",
        machine.get("processor"),
        latest.get("when"),
    )
    return ", ".join(str(x) for x in parts if x)


def _table_parts(data: ReportData) -> Record:
    """What is said about Table 1."""
    own = data.papers_own
    foreign = [table.suite for table in data.table if not own.get(table.suite)]
    headlines, differences = [], []
    for table in data.table:
        last = table.columns.index(max(table.columns))
        pairs = [bests(table, k) for k in range(len(table.columns))]
        if not own.get(table.suite):
            pairs = [(ours, None) for ours, _ in pairs]
        differences += [_difference(*pair, "–") for pair in pairs]
        best = [r for r in table.rules if table.cells[r][last]["best"]]
        ours, theirs = pairs[last]
        if best and ours is not None:
            headlines.append(
                {"suite": table.suite, "rules": best, "budget": table.columns[last], "ours": ours,
                 "theirs": theirs, "difference": _difference(ours, theirs, "")}
            )  # fmt: skip
    return {
        "headlines": headlines,
        "foreign": joined(foreign),
        "differences": differences if len(foreign) < len(data.table) else [],
    }


def _difference(ours: float | None, theirs: float | None, unknown: str) -> str:
    if ours is None or theirs is None:
        return unknown
    return f"{ours - theirs:+.2f}".replace("-", "−")


def joined(names: Sequence[str]) -> str:
    """Names in a sentence.

    Example:
        >>> joined(["a", "b", "c"]), joined([])
        ('a, b and c', '')
    """
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _size(table: Table) -> str:
    text, models = counted(table.count, "instance"), table.more["models"]
    return text if table.count == models else f"{text}, {models} models"


def _range(cell: Record) -> str:
    """The spread over repetitions, relative to the value in the table."""
    value, (low, high) = cell["free_energy"], cell["spread"]
    below, above = value - low, high - value
    return "± 0" if show(below) == show(above) == show(0.0) else f"−{below:.2f} +{above:.2f}"


def _convergence(c: Curves, charts: Charts) -> Record:
    iterations, seconds = c.charts()
    drawn = [
        charts.draw(
            f"convergence-{c.suite}-{axis}", "convergence", chart,
            f"F against {axis} on {c.instance}, one curve per rule",
        )
        for chart, axis in ((seconds, "seconds"), (iterations, "iterations"))
    ]  # fmt: skip
    lowest = show_energy(c.lowest)
    return {"suite": c.suite, "instance": c.instance, "n_vars": c.n_vars, "charts": drawn,
            "lowest": lowest}  # fmt: skip


def _sensitivity(figure: Sensitivity, charts: Charts) -> list[Record]:
    out = []
    for suite in figure.suites:
        some = zip(sensitivity_charts(figure, suite), figure.budgets, strict=True)
        drawn = [
            charts.draw(
                f"sensitivity-{suite}-{budget:g}".replace(".", "_"), "sensitivity", chart,
                f"F against the damping on {suite} at {budget_name(budget)}",
            )
            for chart, budget in some
        ]  # fmt: skip
        marks = [
            f"{label} = {by[suite]:.3g}"
            for label, by in (("L", figure.lipschitz), ("certified d", figure.certified))
            if suite in by
        ]
        caption = f"Mean {' and mean '.join(marks)}." if marks else ""
        out.append({"suite": suite, "charts": drawn, "caption": caption})
    return out


def _people(table: Table, charts: Charts) -> Record:
    group = chart_id(table, "group")
    drawn = [
        charts.draw(chart_id(table, what), group, chart, f"{what} against passes on {table.name}")
        for chart, what in zip(people_charts(table), ("F", "MODA"), strict=True)
        if table.curves
    ]
    return {"table": table, "group": group, "charts": drawn}


def _segmentation(results: Experiment | None, charts: Charts) -> Record:
    tables = results.tables if results else []
    drawn = [
        charts.draw(
            f"segmentation-{k}", "segmentation", chart, f"F against iterations, {chart.title}"
        )
        for k, chart in enumerate(segmentation_charts(results))
    ]
    return {
        "segmentation": tables,
        "segmentation_plots": drawn,
        "segmentation_rules": list(dict.fromkeys(rule for t in tables for rule in t.curves)),
        "classes_of_scenes": len(CLASSES),
    }


def _panels(data: ReportData, charts: Charts) -> Record:
    some = experiment_charts(data)
    drawn = [
        charts.draw(f"panel-{k}", "panels", chart, f"F against {chart.x_label} for {chart.title}")
        for k, chart in enumerate(some)
    ]
    rules = list(dict.fromkeys(line.name for chart in some for line in chart.lines))
    return {"panels": drawn, "panel_rules": rules}


def _encoded(part: Experiment | None) -> list[tuple[str, str, str]]:
    """The pictures of an experiment, as a page holds them."""
    pictures = part.pictures if part else []
    return [(name, what, base64.b64encode(png).decode("ascii")) for name, what, png in pictures]


def _rules(data: ReportData) -> list[tuple[str, str]]:
    """What the rules do, in a line each."""
    names = [r for table in data.table[:1] for r in table.rules]
    names = names or [r for c in data.curves for r in c.rows]
    for part in (data.people, data.inpainting, data.segmentation):
        names += [rule for table in (part.tables if part else ()) for rule in table.rules]
    names = list(dict.fromkeys(names)) or list(PARAMETER)
    return [(name, str(RULES[name].summary)) for name in names if name in RULES]


def _origin(meta: Record, tol: float) -> list[tuple[str, str]]:
    """How and on what a session ran."""
    machine, versions = meta.get("machine") or {}, meta.get("versions") or {}
    memory = machine.get("memory_gib")
    pairs = [
        ("date", meta.get("when")),
        ("processor", f"{machine.get('processor')}, {machine.get('cores')} cores"),
        ("threads used", meta.get("threads")),
        ("memory", None if memory is None else f"{memory} GiB"),
        ("system", machine.get("system")),
        ("versions", ", ".join(f"{k} {v}" for k, v in versions.items())),
        ("data", meta.get("data")),
        ("load at the start", meta.get("load_average")),
        ("tolerance", f"{tol:g}"),
    ]
    return [(what, str(value)) for what, value in pairs if value is not None]
