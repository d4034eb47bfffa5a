"""The report's part on inpainting: Table 2, and pictures of one character."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

from proxfield.bench.charts import Curves
from proxfield.bench.inpainting_models import GIVEN, InpaintingInstance
from proxfield.bench.inpainting_table import InpaintingTable, show_percent
from proxfield.bench.published import INPAINTING_BUDGETS
from proxfield.bench.report_tables import BEST
from proxfield.bench.runner import Settings
from proxfield.bench.table import budget_name, show
from proxfield.viz.page import minus, paragraphs, scrolling, swatch
from proxfield.viz.style import rule_style

PICTURED = "adam"
"""The rule whose labels are drawn."""


@dataclass(frozen=True)
class InpaintingResults:
    """What a report shows of the benchmark on inpainting.

    Attributes:
        tables: One for each suite.
        curves: How F falls on one field of each suite.
        pictures: Of one field: file name without ending, what it shows, and PNG data.
    """

    tables: list[InpaintingTable]
    curves: list[Curves] = field(default_factory=list)
    pictures: list[tuple[str, str, bytes]] = field(default_factory=list)


def inpainting_section(results: InpaintingResults) -> str:
    """Tables and pictures; the curves are among those of the other models."""
    out = '<section><h2 id="inpainting">Characters completed</h2>' + paragraphs(
        "Pictures of characters with a hole in the middle, and the question which pixels of the "
        "hole are ink. A decision tree field chooses the energies of pixels, and of pairs of "
        "pixels at 32 offsets, by trees that look at what is visible around them. Rules are "
        "compared by F and by the share of hidden pixels that are right.",
        "The same trees get two sets of energies. Learnt by maximum likelihood (persistent "
        "chains), F is rugged: rules end in different minima, as in the paper. But the labelling "
        "of lowest energy then lies far below the true one, so a lower F isn’t a better picture. "
        "Learnt through the marginals that mean field computes, F has practically one minimum, all "
        "rules agree, and more pixels are right: what is learnt matters more than the rule.",
    )
    for table in results.tables:
        out += f"<h3>{escape(table.name.capitalize())}</h3>" + inpainting_table(table)
        if table.suite == GIVEN:
            text = "E* is the lowest known energy of a labelling. F can be below it: the entropy "
            text += "of the marginals counts too. The paper’s numbers are means over 100 models."
        else:
            text = "The paper’s fields can’t be had: its numbers show the order of the rules to "
            text += "expect, not values."
        out += f'<p class="soft">{text}</p>'
    for _, what, png in results.pictures:
        data = base64.b64encode(png).decode("ascii")
        out += (
            f'<figure><img src="data:image/png;base64,{data}" alt="{escape(what)}" '
            f'style="max-width:100%;height:auto"><figcaption>{escape(what)}</figcaption></figure>'
        )
    return out + "</section>"


def inpainting_table(table: InpaintingTable) -> str:
    """F and accuracy by rule, ours and the paper's."""
    accuracy = table.has_accuracy
    here, there = len(table.budgets), len(INPAINTING_BUDGETS)
    groups = f'<th scope="colgroup" colspan="{here}" class="first">here</th>'
    groups += f'<th scope="colgroup" colspan="{there}" class="first">paper</th>'
    columns = _heads(table.budgets) + _heads(INPAINTING_BUDGETS)
    body = ""
    for place, rule in enumerate(table.rules):
        cells = ""
        for k, cell in enumerate(table.cells[rule]):
            marks = " ".join(["first"] * (k == 0) + ["best"] * cell.best)
            attribute = f' class="{marks}"' if marks else ""
            star = BEST if cell.best else ""
            below = f"<small>{show_percent(cell.accuracy)} %</small>" if accuracy else ""
            cells += f"<td{attribute}>{star}{minus(show(cell.free_energy))}{below}</td>"
        for k, (f, percent) in enumerate(table.published(rule) or ((None, None),) * there):
            first = ' class="first"' if k == 0 else ""
            below = "" if percent is None else f"<small>{show_percent(percent)} %</small>"
            cells += f"<td{first}>{minus(show(f))}{below}</td>"
        paper = rule_style(rule, place).paper_name
        small = f"<small>{escape(paper or 'not in the paper')}</small>"
        body += f'<tr><th scope="row">{swatch(rule, place)}{escape(rule)}{small}</th>{cells}</tr>'
    quantity = table.quantity[:1].upper() + table.quantity[1:]  # "mean F" keeps its F
    caption = f"{escape(quantity)} over {table.size}, lower is better"
    caption += "; underneath, small: hidden pixels that are right" * accuracy
    html = (
        f"<table><caption>{caption}. ★ is the lowest F of its column.</caption><thead><tr>"
        f'<th scope="col" rowspan="2" class="corner">rule</th>{groups}</tr><tr>{columns}</tr>'
        f"</thead><tbody>{body}</tbody></table>"
    )
    return scrolling(html, f"F and accuracy by rule, {table.name}")


def _heads(budgets: Sequence[float]) -> str:
    return "".join(
        f'<th scope="col"{" class=first" * (k == 0)}>{budget_name(b)}</th>'
        for k, b in enumerate(budgets)
    )


def draw_characters(
    instances: Sequence[InpaintingInstance], settings: Settings
) -> list[tuple[str, str, bytes]]:
    """The first character of each suite whose truth is known, completed by a rule."""
    import numpy as np

    from proxfield.bench.runner import infer_with
    from proxfield.io.images import import_pillow, png_bytes
    from proxfield.rules.registry import make_rule
    from proxfield.viz.inpainting import inpainting_sheet

    out = []
    for suite in dict.fromkeys(i.suite for i in instances):
        instance = next(i for i in instances if i.suite == suite)
        model = instance.make()
        if model.truth is None or model.labels is None:
            continue
        result = infer_with(make_rule(PICTURED), model.field, settings, max_iters=1000, trace=False)
        mask = np.zeros(model.labels.size, dtype=bool)
        mask[model.hidden] = True
        q = result.q.reshape(*model.labels.shape, -1)
        sheet = inpainting_sheet(model.labels, mask.reshape(model.labels.shape), q, truth=True)
        what = f"{instance.name}, trained by {suite}: before, after, uncertainty, truth and errors"
        what += f" ({PICTURED}, at most 1000 iterations)."
        png = png_bytes(import_pillow().fromarray(sheet))
        out.append((f"inpainting-{suite}", what, png))
    return out
