"""The command: tables, resuming, bad input."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import proxfield as pf
from proxfield.bench.table import lowest, mark, show
from proxfield.errors import UnsupportedError

RULES = ("sweep", "fixed", "momentum")
QUICK = ("--budgets", "0.01,0.02", "--rules", ",".join(RULES), "--threads", "1")
SRC = Path(__file__).parents[2] / "src"
RUNS = 6 * 3 * 2
"""Models × rules × budgets of a quick run on the tiny data."""


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_table_has_the_weighted_means(
    invoke: Callable[..., Any], data: Path, tmp_path: Path
) -> None:
    out = invoke("bench", "paper", "--data", data, *QUICK)
    assert out.exit_code == 0, out.stderr
    blocks = out.stdout.split("\n\n")
    assert [b.split(":")[0] for b in blocks] == ["DBN", "GRID", "SEG"]
    assert "4 instances (2 models)" in blocks[0] and "3 instances;" in blocks[1]
    # converged runs end at the same F whatever the budget
    a, b = (pf.read_uai(data / "DBN" / name) for name in ("net_a.uai.xz", "net_b.uai"))
    want = [(3 * pf.infer(a, r).free_energy + pf.infer(b, r).free_energy) / 4 for r in RULES]
    found = re.findall(r"^(\S+) +(-?[\d.]+) +(\*?)", blocks[0].split("\n", 2)[2], re.MULTILINE)
    assert [name for name, *_ in found] == list(RULES)
    np.testing.assert_allclose([float(f) for _, f, _ in found], want, atol=0.006)
    starred = {name for name, _, star in found if star}
    assert starred == {r for r, f in zip(RULES, want, strict=True) if show(f) == show(min(want))}
    meta, *rest = lines(tmp_path / "bench-paper.jsonl")
    assert meta["kind"] == "meta" and meta["data"] == str(data)
    assert {"numpy", "numba", "python", "proxfield"} <= set(meta["versions"])
    assert len(rest) == RUNS
    assert {"free_energy", "iterations", "seconds", "status"} <= set(rest[0])


def test_json_has_what_the_table_shows(invoke: Callable[..., Any], data: Path) -> None:
    text = invoke("bench", "paper", "--data", data, "--suite", "GRID", *QUICK).stdout
    out = invoke("bench", "paper", "--data", data, "--suite", "GRID", *QUICK, "--json")
    found = json.loads(out.stdout)
    assert found["output"] == "bench-paper.jsonl" and found["failures"] == []
    assert len(found["cells"]) == 2 * len(RULES)
    for cell in found["cells"]:
        assert cell["suite"] == "GRID" and cell["instances"] == 3
        assert f" {show(cell['free_energy'])}" in text


def test_jobs_give_the_same(invoke: Callable[..., Any], data: Path) -> None:
    # a budget that no machine needs: the rule stops before, where it has converged
    limits = ("--budgets", "60", "--rules", "fixed", "--threads", "1")
    same = ("bench", "paper", "--data", data, "--suite", "GRID", *limits, "--json")
    one, two = (
        json.loads(invoke(*same, "-o", f"{jobs}.jsonl", "--jobs", jobs).stdout) for jobs in (1, 2)
    )
    assert two["failures"] == [] and len(one["cells"]) == len(two["cells"]) > 0
    for a, b in zip(one["cells"], two["cells"], strict=True):
        assert (a["rule"], b["instances"]) == (b["rule"], 3)
        assert a["free_energy"] == b["free_energy"]


def test_published_values_stand_beside_ours(invoke: Callable[..., Any], data: Path) -> None:
    out = invoke(
        "bench", "paper", "--data", data, "--suite", "seg", "--budgets", "0.05", "--rules", "adam"
    )
    assert out.exit_code == 0
    assert out.stdout.splitlines()[-1].split()[-1] == "72.37"
    assert "not the paper's own instances" in out.stderr


def test_ties_are_ties_to_the_digits_shown() -> None:
    assert lowest([None, float("inf"), 2.0, 1.0]) == 1.0
    cells: list[dict[str, Any]] = [{"f": f} for f in (1.0004, 1.0, 1.01, None)]
    mark(cells, "f", "best")
    assert [cell["best"] for cell in cells] == [True, True, False, False]
    assert lowest([None]) is None


def test_a_finished_benchmark_runs_nothing_again(
    invoke: Callable[..., Any], data: Path, counter: Any
) -> None:
    first = invoke("bench", "paper", "--data", data, *QUICK)
    assert counter.timed == RUNS
    second = invoke("bench", "paper", "--data", data, *QUICK)
    assert counter.timed == RUNS
    assert first.stdout == second.stdout
    invoke("bench", "paper", "--data", data, *QUICK, "--repeats", "2")
    assert counter.timed == 2 * RUNS
    invoke("bench", "paper", "--data", data, *QUICK, "--tol", "1e-3")
    assert counter.timed == 3 * RUNS


def test_ctrl_c_keeps_what_is_finished(
    invoke: Callable[..., Any], data: Path, counter: Any, tmp_path: Path
) -> None:
    counter.fail_at = 8
    out = invoke("bench", "paper", "--data", data, *QUICK)
    assert out.exit_code == 130 and out.stdout == ""
    assert f"interrupted: 7 of {RUNS} runs are kept in bench-paper.jsonl" in out.stderr
    assert len(lines(tmp_path / "bench-paper.jsonl")) == 1 + 7
    out = invoke("bench", "paper", "--data", data, *QUICK)
    assert out.exit_code == 0 and counter.timed == 8 + RUNS - 7


def test_an_interrupted_inference_is_not_a_result(
    invoke: Callable[..., Any], data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = pf.infer

    def stopped(*args: Any, **options: Any) -> Any:
        result = real(*args, **options)
        result.status = pf.Status.INTERRUPTED
        return result

    monkeypatch.setattr("proxfield.core.solve.infer.infer", stopped)
    assert invoke("bench", "paper", "--data", data, *QUICK).exit_code == 130
    assert len(lines(tmp_path / "bench-paper.jsonl")) == 1


def test_a_rule_that_fails_leaves_a_gap_and_the_rest_goes_on(
    invoke: Callable[..., Any], data: Path, counter: Any
) -> None:
    counter.fail_at, counter.error = 3, UnsupportedError("this field lacks something")
    out = invoke("bench", "paper", "--data", data, *QUICK)
    assert out.exit_code == 0
    assert "note: fixed on DBN: this field lacks something (1 run)" in out.stderr
    row = next(r for r in out.stdout.splitlines() if r.startswith("fixed"))
    assert row.split()[1] == "–"


def test_repeats_count_by_their_median(
    invoke: Callable[..., Any], data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, values = pf.infer, iter([5.0, 1.0, 3.0])

    def scripted(*args: Any, **options: Any) -> Any:
        result = real(*args, **options)
        if options.get("budget"):
            result.free_energy = next(values)
        return result

    monkeypatch.setattr("proxfield.core.solve.infer.infer", scripted)
    options = ("--suite", "SEG", "--budgets", "0.01", "--rules", "fixed", "--repeats", "3")
    out = invoke("bench", "paper", "--data", data, *options)
    assert out.stdout.splitlines()[-1].split()[:2] == ["fixed", "3.00"]


def test_overrunning_a_budget_is_mentioned(
    invoke: Callable[..., Any], data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = pf.infer

    def slow(field: Any, rule: Any, **options: Any) -> Any:
        result = real(field, rule, **options)
        result.seconds = 0.03 if options.get("budget") == 0.01 and rule.name == "fixed" else 0.001
        return result

    monkeypatch.setattr("proxfield.core.solve.infer.infer", slow)
    out = invoke("bench", "paper", "--data", data, "--suite", "GRID", *QUICK)
    assert "3 of 18 timed runs took over 1.1 times their budget (at most 3 times)" in out.stderr


def test_timed_runs_are_warm_and_untraced(
    invoke: Callable[..., Any], data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, seen = pf.infer, []

    def watched(field: Any, rule: Any, **options: Any) -> Any:
        seen.append((field.n_vars, rule.name, options.get("budget"), options["trace"]))
        return real(field, rule, **options)

    monkeypatch.setattr("proxfield.core.solve.infer.infer", watched)
    invoke("bench", "paper", "--data", data, "--suite", "GRID", *QUICK)
    warm = [k for k, (_, _, budget, _) in enumerate(seen) if budget is None]
    assert len(warm) == len(RULES)
    assert all(seen[k + 1][1] == seen[k][1] for k in warm)  # just before the rule's first run
    assert not any(trace for *_, trace in seen)


def test_a_corrupt_results_file_does_not_stop_the_run(
    invoke: Callable[..., Any], data: Path, counter: Any, tmp_path: Path
) -> None:
    invoke("bench", "paper", "--data", data, *QUICK)
    path = tmp_path / "bench-paper.jsonl"
    good = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*good[:5], "rubbish\n", *good[6:]]))
    out = invoke("bench", "paper", "--data", data, *QUICK)
    assert out.exit_code == 0 and counter.timed == RUNS + 1
    assert "1 damaged line; the file is kept as bench-paper.jsonl.corrupt" in out.stderr
    assert "rubbish" in (tmp_path / "bench-paper.jsonl.corrupt").read_text()


def test_sensitivity(invoke: Callable[..., Any], data: Path, counter: Any, tmp_path: Path) -> None:
    options = ("--data", data, "--suite", "GRID", "--budgets", "0.01", "--etas", "0.1,1")
    out = invoke("bench", "sensitivity", *options)
    assert out.exit_code == 0, out.stderr
    assert counter.timed == 3 * 3 * 2
    title, header, *rows = out.stdout.splitlines()
    assert header.split()[:3] == ["eta", "adhoc", "0.01"]
    models = sorted((data / "GRID").iterdir())
    d = [pf.Curvature(f.lower(), f) for f in map(pf.read_uai, models)]
    assert f"mean L = {np.mean([c.lipschitz for c in d]):.3g}" in title
    want = np.mean([pf.infer(pf.read_uai(m), "fixed", step=0.1).free_energy for m in models])
    assert rows[0].split()[0] == "0.1" and float(rows[0].split()[2]) == pytest.approx(
        want, abs=0.01
    )
    again = invoke("bench", "sensitivity", *options)
    assert again.stdout == out.stdout and counter.timed == 3 * 3 * 2
    found = json.loads(invoke("bench", "sensitivity", *options, "--json").stdout)
    assert found["lipschitz"]["GRID"] == pytest.approx(np.mean([c.lipschitz for c in d]))
    [point] = [p for p in found["points"] if p["rule"] == "fixed" and p["eta"] == 0.1]
    assert point["free_energy"] == pytest.approx(want, abs=0.01) and point["budget"] == 0.01


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--suite", "DBN,XYZ"], "unknown suite 'XYZ', expected some of: DBN, GRID, SEG"),
        (["--suite", ","], "--suite is empty"),
        (["--rules", "fixed,nonsense"], "unknown rule 'nonsense'"),
        (["--budgets", "0.1,fast"], "--budgets: 'fast', expected numbers above 0"),
        (["--budgets", "0"], "--budgets: '0', expected numbers above 0"),
        (["--budgets", "-1"], "--budgets: '-1'"),
        (["--budgets", "inf"], "--budgets: 'inf'"),
        (["--budgets", "nan"], "--budgets: 'nan'"),
        (["--tol", "-1"], "tol"),
        (["--repeats", "0"], "--repeats"),
        (["--data", "nowhere"], "nowhere: no such folder"),
        (["--data", "empty"], "empty: no models, expected DBN/*.uai"),
        (["--data", "file.txt"], "file.txt: not a folder"),
        (["--data", "broken"], "broken/SEG/bad.uai"),
        (["-o", "no/such/folder.jsonl"], "its folder doesn't exist"),
        (["--output", "empty"], "is a directory"),
        (["--json", "r.jsonl"], "--json takes no file name, it prints the summary; -o r.jsonl"),
        (["--report", "no/such/r.html"], "--report: can't write, its folder doesn't exist"),
        (["--report", "bench-paper.jsonl"], "name the same file"),
        (["--exact", "empty"], "empty: no models with exact answers"),
        (["--sensitivity", "file.txt"], "file.txt: no results in it"),
    ],
)
def test_bad_input_is_one_line(
    invoke: Callable[..., Any], tmp_path: Path, counter: Any, args: list[str], message: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file.txt").write_text("text\n")
    (tmp_path / "broken" / "SEG").mkdir(parents=True)
    (tmp_path / "broken" / "SEG" / "bad.uai").write_text("MARKOV\n1\n2\n1\n1 0\n3 1 2 3\n")
    before = sorted(p.name for p in tmp_path.iterdir())
    out = invoke("bench", "paper", *args)
    assert out.exit_code == 2 and out.stdout == "" and counter.timed == 0
    assert message in out.stderr and len(out.stderr.strip().splitlines()) == 1, out.stderr
    after = {p.name for p in tmp_path.iterdir()} - {"bench-paper.jsonl"}
    assert sorted(after) == before


@pytest.mark.parametrize("etas", ["2", "0", "x"])
def test_bad_etas(invoke: Callable[..., Any], etas: str) -> None:
    out = invoke("bench", "sensitivity", "--etas", etas)
    assert out.exit_code == 2
    assert f"--etas: '{etas}', expected numbers above 0 and at most 1" in out.stderr


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_may_not_be_read(invoke: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "shut").mkdir(mode=0)
    out = invoke("bench", "paper", "--data", "shut")
    assert out.exit_code == 2 and "shut: can't read (Permission denied)" in out.stderr


@pytest.mark.parametrize("args", [["bench", "--help"], ["bench", "paper", "--help"]])
def test_help_loads_no_numba(args: list[str]) -> None:
    code = (
        "import sys\nfrom proxfield.cli.main import cli\n"
        f"try: cli.main({args!r})\nexcept SystemExit: pass\n"
        "print('LOADED', [m for m in ('numba', 'plotly', 'matplotlib') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(SRC), "PYTHONIOENCODING": "utf-8"},
    )
    assert done.stdout.rpartition("LOADED ")[2].strip() == "[]"
