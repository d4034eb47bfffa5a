"""The report's part on people: Table 3, how rules get there, and pictures of one frame."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from proxfield.bench.people_table import PeopleTable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from proxfield.bench.people_frames import Frame
    from proxfield.bench.people_work import Setting
    from proxfield.bench.runner import Settings

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


def chart_id(table: PeopleTable, what: str) -> str:
    """An id that a page can hold."""
    suite, note = (
        "".join(c if c.isalnum() else "_" for c in part) for part in (table.suite, table.note)
    )
    return "-".join(["people", suite, table.model, *([note] if note else []), what])


def people_figures(people: People) -> dict[str, Figure]:
    """F and MODA against passes for print, by file name."""
    from proxfield.viz.quality import RuleCurve, quality_figure

    out = {}
    for table in people.tables:
        curves = {
            rule: RuleCurve(np.arange(1, len(c.moda)), c.free_energy[1:], c.moda[1:])
            for rule, c in table.curves.items()
        }
        if curves:
            title = f"{table.name}, {table.size}"
            out[chart_id(table, "passes")] = quality_figure(curves, title)
    return out


def draw_frame(frame: Frame, setting: Setting, settings: Settings) -> list[tuple[str, str, bytes]]:
    """The ground from above and the cameras of one frame, with what a rule finds there."""
    from proxfield.bench.people_work import STEP, counted_field, iterate
    from proxfield.core.solve.rules.registry import make_rule
    from proxfield.io.images import import_pillow, png_bytes
    from proxfield.people.detections import suppress
    from proxfield.viz.sheets import contact_sheet

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
