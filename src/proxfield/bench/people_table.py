"""Table 3: F and MODA of each rule on frames with people, after some passes or seconds."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from proxfield.bench.people_work import ROWS
from proxfield.bench.published import PEOPLE, PEOPLE_BUDGETS
from proxfield.bench.store import Record, number_of
from proxfield.bench.table import budget_name, is_lowest, lowest, show, standard_error
from proxfield.core.common.arrays import Doubles

PASSES = (10, 25, 60)
"""Columns of the table."""
Key = tuple[str, str, str]
"""Name of the data, model of the energy, and all of the setting: F and MODA compare within one of
these only."""


@dataclass(frozen=True)
class Cell:
    """One rule after some passes or seconds.

    Attributes:
        free_energy: Mean over the frames; None if a run is missing.
        moda: Of all frames together.
        best: Is F the lowest of its column, to the digits shown?
        best_moda: Is MODA the highest?
        spread: Standard error of mean F over the frames; None with one frame.
    """

    free_energy: float | None
    moda: float | None
    best: bool = False
    best_moda: bool = False
    spread: float | None = None


@dataclass(frozen=True)
class Curve:
    """A rule's way, pass by pass.

    Attributes:
        free_energy: Mean F over the frames after 0, 1, 2, … passes.  # (m,)
        moda: Of all frames together.  # (m,)
        spread: Standard error of mean F over the frames; NaN where there is none.  # (m,)
    """

    free_energy: Doubles
    moda: Doubles
    spread: Doubles | None = None


@dataclass(frozen=True)
class PeopleTable:
    """All rules on the frames of one data set, with one model of the energy.

    Attributes:
        suite: Name of the data.
        model: "exact" or "ratio".
        rules: In the order of the rows.
        columns: Heads of the columns.
        cells: By rule, one per column.
        curves: By rule.
        frames: Number of frames.
        people: Number of people in all frames.
        milliseconds: Median time of a pass, by rule.
        note: What else of the setting tells it from other tables, "radius 2" for example.
    """

    suite: str
    model: str
    rules: tuple[str, ...]
    columns: tuple[str, ...]
    cells: dict[str, tuple[Cell, ...]]
    curves: dict[str, Curve]
    frames: int
    people: int
    milliseconds: dict[str, float]
    note: str = ""

    @property
    def name(self) -> str:
        """The data and the setting, in words."""
        return f"{self.suite}, {self.model} model" + (f", {self.note}" if self.note else "")

    @property
    def size(self) -> str:
        """Frames and people, in words."""
        frames = "1 frame" if self.frames == 1 else f"{self.frames} frames"
        return f"{frames} with {self.people} people"

    def published(self, rule: str) -> tuple[tuple[float, float], ...] | None:
        """F and MODA of the paper at each of its budgets, where it has the rule."""
        return PEOPLE.get(rule) if self.model == "exact" else None


def make_people_tables(
    records: Iterable[Record], passes: Sequence[int] = PASSES, budgets: Sequence[float] = ()
) -> list[PeopleTable]:
    """The tables of what is stored, one for each data set and setting.

    Where a rule ran several times on a frame, the run of the most passes counts; of equal ones the
    last.

    Args:
        records: Results; those of other kinds are ignored.
        passes: Columns, in gradients.
        budgets: Further columns, in seconds.
    """
    groups: dict[Key, list[Record]] = {}
    for r in records:
        if r["kind"] in ("passes", "people"):
            setting = r["setting"]
            key = (str(r["suite"]), str(setting["model"]), json.dumps(setting, sort_keys=True))
            groups.setdefault(key, []).append(r)
    return [
        _table(key, _one_of_each(group), passes, budgets, _difference(key, groups))
        for key, group in groups.items()
    ]


def _one_of_each(records: list[Record]) -> list[Record]:
    """One run of each rule, frame and budget: that of the most passes, the last of equal ones."""
    kept: dict[tuple[object, ...], Record] = {}
    for r in records:
        key = (r["kind"], r["rule"], r["instance"], r["digest"], r["budget"])
        if key not in kept or (r["max_passes"] or 0) >= (kept[key]["max_passes"] or 0):
            kept[key] = r
    return list(kept.values())


def _difference(key: Key, keys: Iterable[Key]) -> str:
    """What tells a setting from others of the same data and model, in words."""
    mine = json.loads(key[2])
    others = [json.loads(k[2]) for k in keys if k[:2] == key[:2]]
    some = [name for name in mine if any(o.get(name) != mine[name] for o in others)]
    return ", ".join(f"{name} {mine[name]}" for name in some)


def _table(
    key: Key, records: list[Record], passes: Sequence[int], budgets: Sequence[float], note: str
) -> PeopleTable:
    frames = {(r["instance"], r["digest"]): int(r["people"]) for r in records}
    order = [name for name, _ in ROWS.get(key[1], ())]
    rules = sorted(
        dict.fromkeys(str(r["rule"]) for r in records),
        key=lambda name: order.index(name) if name in order else len(order),
    )
    cells: dict[str, tuple[Cell, ...]] = {}
    curves: dict[str, Curve] = {}
    milliseconds: dict[str, float] = {}
    for rule in rules:
        mine = [r for r in records if r["rule"] == rule]
        counted = [r for r in mine if r["kind"] == "passes"]
        whole = len({(r["instance"], r["digest"]) for r in counted}) == len(frames)
        if counted and whole:
            curves[rule] = make_curve(counted, max(passes))
            times = [1e3 * r["seconds"] / max(1, r["passes"][-1]) for r in counted]
            milliseconds[rule] = float(np.median(times))
        row = [_counted_cell(curves.get(rule), p) for p in passes]
        row += [_timed_cell([r for r in mine if r["budget"] == b], len(frames)) for b in budgets]
        cells[rule] = tuple(row)
    columns = [f"{p} passes" for p in passes] + [budget_name(b) for b in budgets]
    return PeopleTable(
        key[0], key[1], tuple(rules), tuple(columns), _with_bests(cells), curves, len(frames),
        sum(frames.values()), milliseconds, note,
    )  # fmt: skip


def make_curve(records: Sequence[Record], length: int) -> Curve:
    """F and MODA after 0 to ``length`` passes: of the last state that so many could reach."""
    at = np.arange(length + 1)
    energies, found, wrong = [], [], []
    for r in records:
        k = np.searchsorted(np.asarray(r["passes"]), at, side="right") - 1
        values = np.array([math.inf if f is None else f for f in r["trace_free_energy"]])
        energies.append(values[k])
        found.append(np.asarray(r["matches"])[k])
        wrong.append(np.asarray(r["false_alarms"])[k])
    people = sum(int(r["people"]) for r in records)
    missed = people - np.sum(found, axis=0)
    moda = 1.0 - (missed + np.sum(wrong, axis=0)) / max(1, people)
    columns = np.array(energies).T.tolist()
    spread = np.array([standard_error(c) for c in columns], dtype=np.float64)  # None is NaN
    return Curve(np.mean(energies, axis=0), moda, spread)


def _counted_cell(curve: Curve | None, passes: int) -> Cell:
    if curve is None:
        return Cell(None, None)
    spread = None if curve.spread is None else float(curve.spread[passes])
    if spread is not None and math.isnan(spread):
        spread = None
    return Cell(float(curve.free_energy[passes]), float(curve.moda[passes]), spread=spread)


def _timed_cell(records: Sequence[Record], frames: int) -> Cell:
    if len(records) < frames:
        return Cell(None, None)
    people = sum(int(r["people"]) for r in records)
    wrong = sum(int(r["people"]) - int(r["matches"]) + int(r["false_alarms"]) for r in records)
    energies = [number_of(r, "free_energy") for r in records]
    moda = 1.0 - wrong / max(1, people)
    return Cell(float(np.mean(energies)), moda, spread=standard_error(energies))


def _with_bests(cells: dict[str, tuple[Cell, ...]]) -> dict[str, tuple[Cell, ...]]:
    """The same with the best of each column marked."""
    columns = []
    for column in zip(*cells.values(), strict=True):
        low = lowest([c.free_energy for c in column])
        high = max((c.moda for c in column if c.moda is not None), default=None)
        columns.append(
            [
                replace(
                    c,
                    best=is_lowest(c.free_energy, low),
                    best_moda=_is_highest(c.moda, high),
                )
                for c in column
            ]
        )
    rows = zip(*columns, strict=True) if columns else ()
    return dict(zip(cells, map(tuple, rows), strict=True))


def _is_highest(value: float | None, high: float | None) -> bool:
    return value is not None and high is not None and show_moda(value) == show_moda(high)


def show_moda(value: float | None) -> str:
    """MODA with the digits of the paper's table.

    Example:
        >>> show_moda(0.8222), show_moda(None)
        ('0.822', '–')
    """
    return "–" if value is None else f"{value + 0.0:.3f}"


def people_blocks(table: PeopleTable) -> tuple[str, list[str], list[list[str]]]:
    """For the terminal: a title, a header and rows."""
    title = f"{table.name}: mean F and MODA over {table.size}"
    published = table.model == "exact"
    header = ["rule"]
    for column in table.columns:
        header += [column, "MODA", ""]
    if published:
        for budget in PEOPLE_BUDGETS:
            header += [f"paper {budget_name(budget)}", "MODA"]
    rows = []
    for rule in table.rules:
        row = [rule]
        for cell in table.cells[rule]:
            row += [show(cell.free_energy), show_moda(cell.moda), "*" * cell.best_moda]
        if published:
            theirs = table.published(rule) or ((None, None),) * len(PEOPLE_BUDGETS)
            for f, moda in theirs:
                row += [show(f), show_moda(moda)]
        rows.append(row)
    return title, header, rows


def people_data(table: PeopleTable) -> list[Record]:
    """For ``--json``: one object per rule and column."""
    return [
        {
            "data": table.suite,
            "model": table.model,
            "frames": table.frames,
            "people": table.people,
            "rule": rule,
            "after": column,
            "free_energy": cell.free_energy,
            "moda": cell.moda,
        }
        for rule in table.rules
        for column, cell in zip(table.columns, table.cells[rule], strict=True)
    ]
