"""Table 3: F and MODA of each rule on frames with people; how rules get there, and pictures."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from proxfield.bench.people_work import ROWS, STEP, Frame, Setting, counted_field, iterate
from proxfield.bench.published import PEOPLE, PEOPLE_BUDGETS
from proxfield.bench.runner import Settings
from proxfield.bench.table import (
    BEST,
    ShownValue,
    Table,
    budget_name,
    counted,
    make_cells,
    mark,
    show,
    standard_error,
)
from proxfield.core.common.arrays import Doubles
from proxfield.core.common.records import Record
from proxfield.core.solve.rules.registry import make_rule
from proxfield.io.images import import_pillow, png_bytes
from proxfield.people.detections import suppress
from proxfield.viz.sheets import contact_sheet

PASSES = (10, 25, 60)
"""Columns of the table."""
PICTURED = ("fixed", 25)
"""The rule whose detections are drawn, and after how many passes."""
Key = tuple[str, str, str]
"""Name of the data, model of the energy, and all of the setting: F and MODA compare within one of
these only."""


show_moda = partial(show, digits=3)
"""Writes MODA with the digits of the paper's table."""
PARTS = (
    ShownValue("free_energy", show),
    ShownValue("moda", show_moda, "MODA"),
    replace(BEST, name="best_moda"),
)


def make_people_tables(
    records: Iterable[Record], passes: Sequence[int] = PASSES, budgets: Sequence[float] = ()
) -> list[Table]:
    """The tables of what is stored, one for each data set and setting.

    Where a rule ran several times on a frame, the run of the most passes counts; of equal ones the
    last. Cells have: "free_energy", a mean over the frames, with its "standard_error"; "moda" of
    all frames together; "best_moda", whether that is the highest of its column. The curves are
    "free_energy" and "moda" after 0, 1, 2, … passes.

    Args:
        records: Results; those of other kinds are ignored.
        passes: Columns, in gradients.
        budgets: Further columns, in seconds.
    """
    groups: dict[Key, dict[tuple[object, ...], Record]] = {}
    for r in records:
        if r["kind"] in ("passes", "people"):
            setting = r["setting"]
            key = (str(r["suite"]), str(setting["model"]), json.dumps(setting, sort_keys=True))
            kept = groups.setdefault(key, {})
            one = (r["kind"], r["rule"], r["instance"], r["digest"], r["budget"])
            if one not in kept or (r["max_passes"] or 0) >= (kept[one]["max_passes"] or 0):
                kept[one] = r
    return [
        _table(key, list(kept.values()), passes, budgets, _difference(key, groups))
        for key, kept in groups.items()
    ]


def _difference(key: Key, keys: Iterable[Key]) -> str:
    """What tells a setting from others of the same data and model, in words."""
    mine = json.loads(key[2])
    others = [json.loads(k[2]) for k in keys if k[:2] == key[:2]]
    some = [name for name in mine if any(o.get(name) != mine[name] for o in others)]
    return ", ".join(f"{name} {mine[name]}" for name in some)


def _table(
    key: Key, records: list[Record], passes: Sequence[int], budgets: Sequence[float], note: str
) -> Table:
    suite, model, _ = key
    frames = {(r["instance"], r["digest"]): int(r["people"]) for r in records}
    order = [name for name, _ in ROWS.get(model, ())]
    rules = sorted(
        dict.fromkeys(str(r["rule"]) for r in records),
        key=lambda name: order.index(name) if name in order else len(order),
    )
    curves: dict[str, dict[str, Doubles]] = {}
    milliseconds: dict[str, float] = {}
    for rule in rules:
        counted_runs = [r for r in records if r["rule"] == rule and r["kind"] == "passes"]
        whole = len({(r["instance"], r["digest"]) for r in counted_runs}) == len(frames)
        if counted_runs and whole:
            curves[rule] = make_curve(counted_runs, max(passes))
            times = [1e3 * r["seconds"] / max(1, r["passes"][-1]) for r in counted_runs]
            milliseconds[rule] = float(np.median(times))
    at: dict[str, int | float] = {f"{p} passes": p for p in passes}
    at |= {budget_name(b): b for b in budgets}

    def measure(rule: str, column: str) -> Record:
        end = at[column]
        curve = curves.get(rule, {})
        if isinstance(end, float):  # a curve of one state
            runs = [r for r in records if r["rule"] == rule and r["budget"] == end]
            ends = [
                {**r, "passes": [0], "trace_free_energy": [r["free_energy"]],
                 "matches": [r["matches"]], "false_alarms": [r["false_alarms"]]}
                for r in runs
            ]  # fmt: skip
            curve, end = (make_curve(ends, 0) if len(runs) == len(frames) else {}), 0
        values: Record = {k: float(v[end]) for k, v in curve.items()}
        values = values or dict.fromkeys(("free_energy", "moda", "standard_error"))
        return {k: None if v is None or math.isnan(v) else v for k, v in values.items()}

    cells = make_cells(rules, list(at), measure)
    for column in zip(*cells.values(), strict=True):
        mark(column, "moda", "best_moda", show_moda, sign=-1.0)
    count, people = len(frames), sum(frames.values())
    name = f"{suite}, {model} model" + (f", {note}" if note else "")
    size = f"{counted(count, 'frame')} with {people} people"
    exact = model == "exact"
    return Table(
        name, f"{name}: mean F and MODA over {size}; * is the best MODA", suite, tuple(rules),
        tuple(at), cells, PARTS, ("free_energy", "moda"), "after",
        {"data": suite, "model": model, "frames": count, "people": people}, count, size,
        PEOPLE if exact else {},
        tuple(map(budget_name, PEOPLE_BUDGETS)) if exact else (),
        (("", show), ("MODA", show_moda)), curves, {"milliseconds": milliseconds, "note": note},
    )  # fmt: skip


def make_curve(records: Sequence[Record], length: int) -> dict[str, Doubles]:
    """F and MODA after 0 to ``length`` passes: of the last state that so many could reach.

    Returns:
        "free_energy", a mean over the frames, its "standard_error" (NaN where there is none), and
        "moda" of all frames together.  # (length + 1,) each
    """
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
    columns = np.array(energies).T.tolist()
    return {
        "free_energy": np.mean(energies, axis=0),
        "moda": 1.0 - (missed + np.sum(wrong, axis=0)) / max(1, people),
        "standard_error": np.array([standard_error(c) for c in columns], dtype=np.float64),
    }


# ---- pictures ----


def chart_id(table: Table, what: str) -> str:
    """An id that a page can hold."""
    suite, note = (
        "".join(c if c.isalnum() else "_" for c in part)
        for part in (table.suite, table.more["note"])
    )
    return "-".join(["people", suite, table.facts["model"], *([note] if note else []), what])


def draw_frame(frame: Frame, setting: Setting, settings: Settings) -> list[tuple[str, str, bytes]]:
    """The ground from above and the cameras of one frame, with what a rule finds there."""
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
