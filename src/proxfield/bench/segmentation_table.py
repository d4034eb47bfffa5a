"""F and mean IoU of each rule on dense CRFs of scenes, after some iterations."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import mean

import numpy as np

from proxfield.bench.segmentation_scenes import CLASSES
from proxfield.bench.store import Record, number_of
from proxfield.bench.table import is_lowest, lowest, show, standard_error


@dataclass(frozen=True)
class Cell:
    """One rule after some iterations.

    Attributes:
        free_energy: Mean over the scenes; None if a run is missing.
        spread: Standard error of this mean; None with one scene.
        mean_iou: Of all scenes together, in percent.
        best: Is F the lowest of its column, to the digits shown?
        settled: Scenes on which the rule converged.
    """

    free_energy: float | None
    spread: float | None = None
    mean_iou: float | None = None
    best: bool = False
    settled: int = 0


@dataclass(frozen=True)
class SegmentationTable:
    """All rules on one kind of field.

    Attributes:
        cooccurrence: Whether classes that don't occur together repel each other.
        rules: In the order of the rows.
        iterations: Columns.
        cells: By rule, one per column.
        curves: By rule: mean F over the scenes after 0, 1, 2, … iterations.
        scenes: Number of scenes.
        classifier_iou: Mean IoU of the classifier alone, in percent.
    """

    cooccurrence: bool
    rules: tuple[str, ...]
    iterations: tuple[int, ...]
    cells: dict[str, tuple[Cell, ...]]
    curves: dict[str, list[float]]
    scenes: int
    classifier_iou: float

    @property
    def name(self) -> str:
        """The field, in words."""
        return "dense CRF with co-occurrence" if self.cooccurrence else "dense CRF"

    @property
    def size(self) -> str:
        """Number of scenes, in words."""
        return "1 scene" if self.scenes == 1 else f"{self.scenes} scenes"


@dataclass(frozen=True)
class SegmentationResults:
    """What a report shows of the benchmark on semantic segmentation."""

    tables: list[SegmentationTable] = field(default_factory=list)


def make_segmentation_tables(records: Iterable[Record]) -> list[SegmentationTable]:
    """The tables of what is stored; the last of equal runs counts."""
    kinds: dict[bool, dict[tuple[str, int], dict[str, Record]]] = {}
    for r in records:
        if r["kind"] == "segmentation":
            runs = kinds.setdefault(bool(r["setting"]["cooccurrence"]), {})
            runs.setdefault((str(r["rule"]), int(r["max_passes"])), {})[str(r["digest"])] = r
    return [_table(kind, runs) for kind, runs in sorted(kinds.items())]


def _table(cooccurrence: bool, runs: dict[tuple[str, int], dict[str, Record]]) -> SegmentationTable:
    rules = tuple(dict.fromkeys(rule for rule, _ in runs))
    columns = tuple(sorted({count for _, count in runs}))
    scenes = set().union(*runs.values())
    grid = [
        [_cell(list(runs.get((rule, c), {}).values()), len(scenes)) for rule in rules]
        for c in columns
    ]
    marked = []
    for column in grid:
        low = lowest([c.free_energy for c in column])
        marked.append(
            [Cell(**{**c.__dict__, "best": is_lowest(c.free_energy, low)}) for c in column]
        )
    cells = {rule: tuple(column[k] for column in marked) for k, rule in enumerate(rules)}
    curves = {}
    for rule in rules:
        traced = [r for r in runs.get((rule, columns[-1]), {}).values() if "trace_free_energy" in r]
        if len(traced) == len(scenes):
            curves[rule] = mean_curve([r["trace_free_energy"] for r in traced], columns[-1])
    one = next(iter(runs.values()))
    before = mean_iou([r["classifier"] for r in one.values()])
    return SegmentationTable(cooccurrence, rules, columns, cells, curves, len(scenes), before)


def _cell(runs: Sequence[Record], expected: int) -> Cell:
    if len(runs) < expected:
        return Cell(None)
    energies = [number_of(r, "free_energy") for r in runs]
    settled = sum(r["status"] == "converged" for r in runs)
    iou = mean_iou([r["confusion"] for r in runs])
    return Cell(mean(energies), standard_error(energies), iou, settled=settled)


def mean_iou(confusions: Iterable[Sequence[int]]) -> float:
    """Mean over the classes of intersection over union, in percent.

    Example:
        >>> perfect = np.diag(np.ones(len(CLASSES), dtype=int)).ravel().tolist()
        >>> mean_iou([perfect, perfect])
        100.0
    """
    n = len(CLASSES)
    total = np.sum([np.reshape(c, (n, n)) for c in confusions], axis=0)
    hit = np.diag(total)
    union = total.sum(axis=0) + total.sum(axis=1) - hit
    present = union > 0
    return float(100 * (hit[present] / union[present]).mean())


def mean_curve(traces: Sequence[Sequence[float | None]], length: int) -> list[float]:
    """The mean of traces; one that ended earlier stays at its last value.

    Example:
        >>> mean_curve([[4.0, 2.0], [6.0, 4.0, 2.0]], 2)
        [5.0, 3.0, 2.0]
    """
    rows = [[math.inf if f is None else f for f in trace] for trace in traces]
    return [mean(row[min(k, len(row) - 1)] for row in rows) for k in range(length + 1)]


def segmentation_block(table: SegmentationTable) -> tuple[str, list[str], list[list[str]]]:
    """For the terminal: a title, a header and rows."""
    title = f"{table.name}: mean F and mean IoU over {table.size} "
    title += f"(classifier alone: {table.classifier_iou:.2f} %)"
    header = ["rule"]
    for count in table.iterations:
        header += [f"{count} iterations", "% IoU", ""]
    rows = []
    for rule in table.rules:
        row = [rule]
        for cell in table.cells[rule]:
            iou = "–" if cell.mean_iou is None else f"{cell.mean_iou:.2f}"
            row += [show(cell.free_energy), iou, "*" * cell.best]
        rows.append(row)
    return title, header, rows


def segmentation_data(table: SegmentationTable) -> list[Record]:
    """For ``--json``: one object per rule and number of iterations."""
    return [
        {
            "cooccurrence": table.cooccurrence,
            "scenes": table.scenes,
            "rule": rule,
            "iterations": count,
            "free_energy": cell.free_energy,
            "standard_error": cell.spread,
            "mean_iou": cell.mean_iou,
            "converged": cell.settled,
            "classifier_mean_iou": table.classifier_iou,
        }
        for rule in table.rules
        for count, cell in zip(table.iterations, table.cells[rule], strict=True)
    ]
