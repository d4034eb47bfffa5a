"""The report's part on people: Table 3, how rules get there, and pictures of one frame."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING

import numpy as np

from proxfield.bench.charts import Chart, layout, line
from proxfield.bench.people_table import PeopleTable, show_moda
from proxfield.bench.published import PEOPLE_BUDGETS
from proxfield.bench.store import Record
from proxfield.bench.table import budget_name, show
from proxfield.viz.page import legend, minus, paragraphs, plots, scrolling, swatch
from proxfield.viz.style import rule_style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from proxfield.bench.people_frames import Frame
    from proxfield.bench.people_work import Setting
    from proxfield.bench.runner import Settings

BEST = '<span aria-hidden="true">★ </span><span class="hidden">best: </span>'
FINEST = 1e-5
"""Gaps of F below this share of the largest one aren't told apart."""
PICTURED = ("fixed", 25)
"""The rule whose detections are drawn, and after how many passes."""


@dataclass(frozen=True)
class People:
    """What a report shows of the benchmark on people.

    Attributes:
        tables: One for each data set and model.
        pictures: Of one frame: file name without ending, what it shows, and PNG data.
    """

    tables: list[PeopleTable]
    pictures: list[tuple[str, str, bytes]] = field(default_factory=list)


def people_section(people: People, charts: list[Record]) -> str:
    """Tables, charts and pictures; charts are appended to those of the page."""
    out = '<section><h2 id="people">People in several cameras</h2>' + paragraphs(
        "Masks of the foreground in several cameras, and the question who stands where: one binary "
        "variable per location on the ground, and an energy of high order that repels, since two "
        "people who cover the same pixels explain them no better than one. Rules start from the "
        "prior and are compared by F and by their detections, locations of probability ½ or more "
        "after non-maximum suppression. MODA = 1 − (misses + false alarms)/people: 1 is perfect, "
        "0 is as good as no detections at all.",
        "Budgets are gradients (passes over all cameras and locations). Those that a rule needs to "
        "look at F count, also where a step is taken back. A sweep counts as one pass, although it "
        "takes far longer. F of the two models are F of different energies: compare them within a "
        "table only.",
    )
    for table in people.tables:
        name = table.name
        out += f"<h3>{escape(name)}</h3>" + people_table(table)
        if table.model == "exact":
            out += (
                '<p class="soft">The paper’s frames can’t be had: its numbers, at its own budgets '
                "in seconds, show the order of the rules to expect, not values.</p>"
            )
        if table.curves:
            group = chart_id(table, "group")
            out += legend(group, list(table.curves))
            ids = []
            for what, chart in people_charts(table).items():
                charts.append({"id": chart_id(table, what), "group": group, **chart})
                ids.append((chart_id(table, what), f"{what} against passes on {name}"))
            out += plots(ids, "Left: mean F above the lowest mean F seen. Right: MODA.")
    for _, what, png in people.pictures:
        data = base64.b64encode(png).decode("ascii")
        out += (
            f'<figure><img src="data:image/png;base64,{data}" alt="{escape(what)}" '
            f'style="max-width:100%;height:auto"><figcaption>{escape(what)}</figcaption></figure>'
        )
    return out + "</section>"


def people_table(table: PeopleTable) -> str:
    """F and MODA by rule, ours and the paper's."""
    heads = list(table.columns)
    published = table.model == "exact"
    groups = f'<th scope="colgroup" colspan="{len(heads)}" class="first">here</th>'
    columns = _heads(heads)
    if published:
        groups += f'<th scope="colgroup" colspan="{len(PEOPLE_BUDGETS)}" class="first">paper</th>'
        columns += _heads([budget_name(b) for b in PEOPLE_BUDGETS])
    groups += '<th scope="col" rowspan="2" class="first">ms per pass</th>'
    body = ""
    for place, rule in enumerate(table.rules):
        cells = ""
        for k, cell in enumerate(table.cells[rule]):
            marks = " ".join(["first"] * (k == 0) + ["best"] * cell.best_moda)
            attribute = f' class="{marks}"' if marks else ""
            star = BEST if cell.best_moda else ""
            f = minus(show(cell.free_energy))
            cells += f"<td{attribute}>{star}{minus(show_moda(cell.moda))}<small>{f}</small></td>"
        if published:
            theirs = table.published(rule) or ((None, None),) * len(PEOPLE_BUDGETS)
            for k, (energy, moda) in enumerate(theirs):
                first = ' class="first"' if k == 0 else ""
                cells += f"<td{first}>{show_moda(moda)}<small>{show(energy)}</small></td>"
        time = table.milliseconds.get(rule)
        cells += f'<td class="first">{"–" if time is None else f"{time:.1f}"}</td>'
        paper = rule_style(rule, place).paper_name
        small = f"<small>{escape(paper or 'not in the paper')}</small>"
        body += f'<tr><th scope="row">{swatch(rule, place)}{escape(rule)}{small}</th>{cells}</tr>'
    caption = (
        f"MODA, higher is better, over {table.size}; "
        "underneath, small: mean F. ★ is the best of its column."
    )
    html = (
        f'<table><caption>{caption}</caption><thead><tr><th scope="col" rowspan="2" class="corner">'
        f"rule</th>{groups}</tr><tr>{columns}</tr></thead><tbody>{body}</tbody></table>"
    )
    return scrolling(html, f"MODA and F by rule, {table.name}")


def _heads(names: Sequence[str]) -> str:
    return "".join(
        f'<th scope="col"{" class=first" * (k == 0)}>{escape(name)}</th>'
        for k, name in enumerate(names)
    )


def chart_id(table: PeopleTable, what: str) -> str:
    """An id that a page can hold."""
    suite, note = (
        "".join(c if c.isalnum() else "_" for c in part) for part in (table.suite, table.note)
    )
    return "-".join(["people", suite, table.model, *([note] if note else []), what])


def people_charts(table: PeopleTable) -> dict[str, Chart]:
    """F and MODA against passes."""
    low, floor, top = energy_range(table)
    traces: dict[str, list[Chart]] = {"F": [], "MODA": []}
    for place, (rule, curve) in enumerate(table.curves.items()):
        passes = list(range(1, len(curve.moda)))
        known = [(p, float(curve.free_energy[p])) for p in passes]
        known = [(p, f) for p, f in known if math.isfinite(f)]
        energy, moda = line(rule, place), line(rule, place)
        energy["x"] = [p for p, _ in known]
        energy["y"] = [max(f - low, floor) for _, f in known]
        energy["customdata"] = [[f] for _, f in known]
        energy["hovertemplate"] = (
            f"<b>{rule}</b><br>mean F = %{{customdata[0]:.2f}}<br>%{{x}} passes<extra></extra>"
        )
        moda["x"], moda["y"] = passes, [float(curve.moda[p]) for p in passes]
        moda["hovertemplate"] = (
            f"<b>{rule}</b><br>MODA = %{{y:.3f}}<br>%{{x}} passes<extra></extra>"
        )
        traces["F"].append(energy)
        traces["MODA"].append(moda)
    left, right = layout("gradient passes", "mean F − lowest"), layout("gradient passes", "MODA")
    left["yaxis"]["range"] = [math.log10(floor) - 0.15, math.log10(top) + 0.2]
    # far below 0 a rule is useless all the same
    right["yaxis"] = {"title": {"text": "MODA"}, "range": [-0.05, 1.05], "zeroline": True}
    charts = zip(traces.items(), (left, right), strict=True)
    return {what: {"data": data, "layout": shape} for (what, data), shape in charts}


def energy_range(table: PeopleTable) -> tuple[float, float, float]:
    """The lowest mean F, and the smallest and largest gap to draw."""
    every = np.concatenate([c.free_energy[1:] for c in table.curves.values()])
    every = every[np.isfinite(every)]
    if not every.size:
        return 0.0, 0.1, 1.0
    low = float(every.min())
    top = float(every.max()) - low or 1.0
    ends = [float(c.free_energy[-1]) - low for c in table.curves.values()]
    finest = min((e for e in ends if e > FINEST * top), default=FINEST * top)
    return low, max(finest / 5, FINEST * top), top


def people_figures(people: People) -> dict[str, Figure]:
    """F and MODA against passes for print, by file name."""
    from proxfield.viz.quality import Curve, quality_figure

    out = {}
    for table in people.tables:
        curves = {
            rule: Curve(np.arange(1, len(c.moda)), c.free_energy[1:], c.moda[1:])
            for rule, c in table.curves.items()
        }
        if curves:
            title = f"{table.name}, {table.size}"
            out[chart_id(table, "passes")] = quality_figure(curves, title)
    return out


def draw_frame(frame: Frame, setting: Setting, settings: Settings) -> list[tuple[str, str, bytes]]:
    """The ground from above and the cameras of one frame, with what a rule finds there."""
    from proxfield.bench.people_work import STEP, counted_field, iterate
    from proxfield.io.images import import_pillow, png_bytes
    from proxfield.people.detections import suppress
    from proxfield.rules.registry import make_rule
    from proxfield.viz.sheet import contact_sheet

    name, passes = PICTURED
    rule = make_rule(name, {"step": STEP})
    q = iterate(counted_field(frame, setting), rule, passes, settings).states[-1]
    assert frame.scene.positions is not None
    locations, _, found = suppress(q, frame.scene.positions, setting.radius, pool=0.0)
    sheet = contact_sheet(
        frame.scene, frame.masks(), q, detections=found, locations=locations, truth=frame.truth
    )
    what = (
        f"Frame {frame.number}: masks of all cameras with the rectangles of {len(found)} "
        f"detections, and the ground from above with {len(frame.truth)} people. "
        f"{name}, step {STEP:g}, {passes} passes, {setting.model} model."
    )
    return [("people-frame", what, png_bytes(import_pillow().fromarray(sheet)))]
