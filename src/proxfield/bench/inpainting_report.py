"""The report's part on inpainting: Table 2, and pictures of one character."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from proxfield.bench.curves import Curves
from proxfield.bench.inpainting_models import InpaintingInstance
from proxfield.bench.inpainting_table import InpaintingTable
from proxfield.bench.runner import Settings

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


def draw_characters(
    instances: Sequence[InpaintingInstance], settings: Settings
) -> list[tuple[str, str, bytes]]:
    """The first character of each suite whose truth is known, completed by a rule."""
    import numpy as np

    from proxfield.bench.runner import infer_with
    from proxfield.core.solve.rules.registry import make_rule
    from proxfield.io.images import import_pillow, png_bytes
    from proxfield.viz.sheets import inpainting_sheet

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
