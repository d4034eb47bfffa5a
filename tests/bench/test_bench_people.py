"""``bench people``: counted passes, the table, resuming, folders, the report, bad input."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import proxfield as pf
from proxfield.bench import people_work
from proxfield.bench.people import chart_id, make_curve, make_people_tables
from proxfield.bench.people_work import (
    Setting,
    counted_field,
    iterate,
    people_rules,
    simulated_frames,
)
from proxfield.bench.runner import Settings
from proxfield.core.solve.rules.registry import make_rule

TINY = ("--size", "96", "54", "--spacing", "4", "--seeds", "0", "--threads", "1")
RULES = ("--rules", "full-parallel,fixed,backtracking", "--passes", "2,6")
RUNS = 2 * 2 * 3
"""Frames × models × rules."""
SETTINGS = Settings(1e-6, 1)


@pytest.fixture(scope="module")
def frame() -> people_work.Frame:
    return simulated_frames([0], 1, size=(96, 54), spacing=1.5)[0].make()


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def plain_field(frame: people_work.Frame, model: str) -> pf.Field:
    return frame.scene.field(frame.masks(), model=model, **people_work.MODELS[model])


@pytest.mark.parametrize("model", ["exact", "ratio"])
@pytest.mark.parametrize("name", ["fixed", "momentum"])
def test_a_state_after_some_passes_is_that_of_as_many_iterations(
    frame: people_work.Frame, model: str, name: str
) -> None:
    rule = make_rule(name, {"step": 0.2})
    way = iterate(counted_field(frame, Setting(model)), rule, 7, SETTINGS)
    assert way.passes == list(range(8)) and len(way.free_energy) == 8
    for k in (1, 4, 7):
        result = pf.infer(plain_field(frame, model), rule, init="unary", max_iters=k, tol=0)
        np.testing.assert_array_equal(way.states[k], result.q[1::2])
        assert way.free_energy[k] == pytest.approx(result.free_energy, rel=1e-12)


@pytest.mark.parametrize("model", ["exact", "ratio"])
def test_steps_that_are_taken_back_count(
    frame: people_work.Frame, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from proxfield.people.numba.occupancy import OccupancyOnCpu

    seen = []
    real = OccupancyOnCpu.add_binary_gradient
    monkeypatch.setattr(
        OccupancyOnCpu, "add_binary_gradient", lambda *a: (seen.append(1), real(*a))[1]
    )
    rule = make_rule("backtracking", {"first": 1.0, "largest": 1.0, "growth": 3.0})  # too bold
    field = counted_field(frame, Setting(model))
    way = iterate(field, rule, 30, SETTINGS)
    steps = np.diff(way.passes)
    assert steps[0] >= 2  # F of the start, and one step at least
    assert (steps >= 1).all() and steps[1:].max() > 1
    assert way.passes[-1] <= 30 and (np.diff(way.free_energy) <= 1e-9).all()
    # what was left is one look at F of the last state, or a step that had no room any more
    assert way.passes[-1] <= len(seen)
    result = pf.infer(plain_field(frame, model), rule, init="unary", max_iters=len(steps), tol=0)
    np.testing.assert_array_equal(way.states[-1], result.q[1::2])


def test_a_sweep_is_one_pass(frame: people_work.Frame) -> None:
    way = iterate(counted_field(frame, Setting("exact")), make_rule("sweep"), 3, SETTINGS)
    assert way.passes[:3] == [0, 1, 2] and (np.diff(way.free_energy) <= 1e-9).all()


def test_sweeps_use_the_compiled_visits_of_the_product(frame: people_work.Frame) -> None:
    from proxfield.people.numba.occupancy import BoxVisits

    field = counted_field(frame, Setting("exact"))
    own = people_work.CountedOnCpu(field.terms[1], field.layout, "float64")  # type: ignore[arg-type]
    q = np.tile([0.75, 0.25], frame.scene.n_locations)
    assert isinstance(own.visits(q), BoxVisits)


def test_every_rule_of_the_table_runs(frame: people_work.Frame) -> None:
    rules = people_rules()
    assert {"sweep", "full-parallel", "adhoc", "fixed", "adaptive", "momentum", "adam"} < {
        r.name for r in rules["exact"]
    }
    assert "original" in {r.name for r in rules["ratio"]}
    for model, some in rules.items():
        starts = set()
        for rule in some:
            way = iterate(counted_field(frame, Setting(model)), rule, 4, SETTINGS)
            starts.add(round(way.free_energy[0], 6))
            assert np.allclose(way.states[0], people_work.MODELS[model]["prior"])
        assert len(starts) == 1


def test_a_curve_holds_the_last_state_that_was_reached() -> None:
    records = [
        {"passes": [0, 2, 3], "trace_free_energy": [9.0, 5.0, 4.0], "people": 4,
         "matches": [0, 2, 4], "false_alarms": [0, 1, 0]},
        {"passes": [0, 1], "trace_free_energy": [7.0, 3.0], "people": 4,
         "matches": [0, 3], "false_alarms": [2, 0]},
    ]  # fmt: skip
    curve = make_curve(records, 4)
    np.testing.assert_allclose(curve["free_energy"], [8.0, 6.0, 4.0, 3.5, 3.5])
    # 8 people: misses and false alarms of both frames together
    np.testing.assert_allclose(curve["moda"], [1 - 10 / 8, 1 - 5 / 8, 1 - 4 / 8, 1 - 1 / 8, 7 / 8])


def test_runs_of_other_settings_are_told_apart() -> None:
    def record(energy: float, most: int, radius: float = 1.0, **more: Any) -> dict[str, Any]:
        return {
            "kind": "passes", "suite": "pitch", "instance": "frame 0", "digest": "d",
            "setting": {"model": "exact", "radius": radius, "prior": 5e-5}, "rule": "fixed",
            "max_passes": most, "budget": None, "people": 2, "seconds": 1.0, "passes": [0, most],
            "trace_free_energy": [9.0, energy], "matches": [0, 1], "false_alarms": [0, 0], **more,
        }  # fmt: skip

    # a run of more passes and one of fewer, before or after it, aren't averaged
    for runs in ([record(4.0, 5), record(2.0, 6)], [record(2.0, 6), record(4.0, 5)]):
        [table] = make_people_tables(runs, [6])
        assert table.cells["fixed"][0]["free_energy"] == 2.0
        assert (table.count, table.facts["people"], table.more["note"]) == (1, 2, "")
    [table] = make_people_tables([record(2.0, 6), record(3.0, 6, version="later")], [6])
    assert table.cells["fixed"][0]["free_energy"] == 3.0
    near, far = make_people_tables([record(2.0, 6), record(2.0, 6, 4.0, matches=[0, 2])], [6])
    assert (near.cells["fixed"][0]["moda"], far.cells["fixed"][0]["moda"]) == (0.5, 1.0)
    assert (near.name, far.name) == (
        "pitch, exact model, radius 1.0",
        "pitch, exact model, radius 4.0",
    )
    assert chart_id(near, "F") != chart_id(far, "F")
    timed = {"kind": "people", "max_passes": None, "budget": 0.5, "matches": 1, "false_alarms": 0}
    runs = [record(0.0, 1, free_energy=f) for f in (8.0, 7.0)]
    [table] = make_people_tables([{**r, **timed} for r in runs], (), [0.5])
    assert table.cells["fixed"][0]["free_energy"] == 7.0


def test_the_table_and_resuming(
    invoke: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    args = ("bench", "people", *TINY, *RULES, "--frames", "2")
    whole = invoke(*args, "-o", "whole.jsonl")
    assert whole.exit_code == 0, whole.stderr
    first, second = whole.stdout.split("\n\n")
    assert first.startswith("pitch, exact model: mean F and MODA over 2 frames with 54 people")
    assert "paper 0.5 s" in first and "1783.63  0.626" in first
    assert second.startswith("pitch, ratio model") and "paper" not in second
    records = lines(tmp_path / "whole.jsonl")[1:]
    assert len(records) == RUNS
    real, calls = people_work.iterate, []

    def stopped(*given: Any) -> Any:
        calls.append(1)
        if len(calls) == 6:
            raise KeyboardInterrupt
        return real(*given)

    monkeypatch.setattr(people_work, "iterate", stopped)
    out = invoke(*args, "-o", "parts.jsonl")
    assert out.exit_code == 130 and out.stdout == ""
    assert f"interrupted: 5 of {RUNS} runs are kept in parts.jsonl" in out.stderr
    out = invoke(*args, "-o", "parts.jsonl")
    assert out.exit_code == 0 and len(calls) == 6 + RUNS - 5
    assert out.stdout == invoke(*args, "-o", "whole.jsonl").stdout
    assert len(calls) == 6 + RUNS - 5  # all of it was there
    found = json.loads(invoke(*args, "-o", "parts.jsonl", "--json").stdout)
    tables = make_people_tables(lines(tmp_path / "parts.jsonl"), [2, 6])
    [cell] = [
        c for c in found["cells"]
        if (c["model"], c["rule"], c["after"]) == ("exact", "fixed", "6 passes")
    ]  # fmt: skip
    assert cell["free_energy"] == tables[0].cells["fixed"][1]["free_energy"]
    want = np.mean(
        [
            pf.infer(
                plain_field(f.make(), "exact"), "fixed", step=0.2, init="unary", max_iters=6
            ).free_energy
            for f in simulated_frames([0], 2, size=(96, 54), spacing=4.0)
        ]
    )
    assert cell["free_energy"] == pytest.approx(want, abs=1e-4)


def test_a_timed_run_has_what_the_table_needs() -> None:
    """Outside of the command, whose clock counts work in these tests."""
    [instance] = simulated_frames([0], 1, size=(96, 54), spacing=4.0)
    task = people_work.people_task(instance, Setting("exact"), make_rule("fixed"), budget=0.01)
    record = {**task.identity(SETTINGS), **task.work(task, instance.make(), SETTINGS)}
    [table] = make_people_tables([record], (), [0.01])
    assert table.columns == ("0.01 s",) and table.facts["people"] == 27
    assert table.cells["fixed"][0]["free_energy"] == record["free_energy"]


def test_a_folder_gives_what_its_simulation_gives(
    invoke: Callable[..., Any], tmp_path: Path
) -> None:
    made = ("make", "people", "one", "--frames", "1", "--size", "96", "54", "--spacing", "4")
    assert invoke(*made).exit_code == 0
    (tmp_path / "more").mkdir()
    assert invoke(*made[:2], "more/two", *made[3:], "--seed", "1").exit_code == 0
    near = (*RULES, "--radius", "4")  # as far apart as locations are, so that some are found
    from_folder = invoke("bench", "people", "--data", "one", "--data", "more/two", *near)
    assert from_folder.exit_code == 0, from_folder.stderr
    blocks = from_folder.stdout.split("\n\n")
    assert [b.split(",")[0] for b in blocks] == ["one", "one", "two", "two"]
    records = lines(tmp_path / "bench-people.jsonl")[1:]
    assert any(max(r["matches"]) > 0 for r in records)
    simulated = invoke("bench", "people", *TINY, *near, "--frames", "1", "-o", "s.jsonl")
    assert blocks[0].splitlines()[1:] == simulated.stdout.split("\n\n")[0].splitlines()[1:]


def test_the_report(invoke: Callable[..., Any], data: Path, tmp_path: Path) -> None:
    args = ("bench", "people", *TINY, *RULES, "--frames", "1", "--report", "p.html")
    out = invoke(*args)
    assert out.exit_code == 0, out.stderr
    page = (tmp_path / "p.html").read_text()
    for text in ("People in several cameras", "pitch, exact model", "data:image/png;base64,"):
        assert text in page
    charts = json.loads(page.split('id="charts">')[1].split("</script>")[0])
    assert [c["id"] for c in charts] == [
        f"people-pitch-{model}-{what}" for model in ("exact", "ratio") for what in ("F", "MODA")
    ]
    names = [c["name"] for c in charts[0]["curves"]]
    assert names == ["full-parallel", "fixed", "backtracking"]
    assert len(charts[1]["curves"][0]["y"]) == 6  # a MODA for every pass
    assert (tmp_path / "p-figures" / "people-frame.png").read_bytes()[:4] == b"\x89PNG"
    quick = ("--budgets", "0.01", "--rules", "fixed", "--threads", "1", "--suite", "GRID")
    paper = ("bench", "paper", "--data", data, *quick, "--report", "r.html")
    out = invoke(*paper, "--people", "bench-people.jsonl")
    assert out.exit_code == 0, out.stderr
    assert "pitch, ratio model" in (tmp_path / "r.html").read_text()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--rules", "fixed,auto"], "unknown rule 'auto', expected some of: sweep"),
        (["--passes", "10,x"], "--passes: 'x', expected whole numbers, 1 or more"),
        (["--passes", "0"], "--passes: '0', expected whole numbers, 1 or more"),
        (["--seeds", "-1"], "--seeds: '-1', expected whole numbers, 0 or more"),
        (["--budgets", "0"], "--budgets: '0', expected numbers above 0"),
        (["--data", "nowhere"], "nowhere/scene.pom"),
        (["--data", "bare"], "bare/locations.csv"),
        (["--data", "few"], "few/locations.csv: 1 locations, expected 2 as scene.pom has"),
        (["--data", "none"], "none/truth.csv: has no frames"),
        (["--data", "bare", "--data", "sub/bare"], "two folders have the same name"),
        (["-o", "no/such.jsonl"], "its folder doesn't exist"),
    ],
)
def test_bad_input_is_one_line(
    invoke: Callable[..., Any], tmp_path: Path, args: list[str], message: str
) -> None:
    pom = "ROOM 8 6 1 2\nRECTANGLE 0 0 0 0 3 3\nRECTANGLE 0 1 4 0 7 3\n"
    for name in ("bare", "few", "none", "sub/bare"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "scene.pom").write_text(pom)
    (tmp_path / "few" / "locations.csv").write_text("x,y\n1,2\n")
    none = tmp_path / "none"
    (none / "scene.pom").write_text(pom + "INPUT_VIEW_FORMAT f%f-c%c.npy\n")
    (none / "locations.csv").write_text("x,y\n1,2\n3,4\n")
    np.save(none / "f0-c0.npy", np.zeros((6, 8)))
    (none / "truth.csv").write_text("frame,x,y\n")
    out = invoke("bench", "people", *args)
    assert out.exit_code == 2 and out.stdout == ""
    assert message in out.stderr and len(out.stderr.strip().splitlines()) == 1, out.stderr
    assert not (tmp_path / "bench-people.jsonl").exists()
