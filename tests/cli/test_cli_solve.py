"""``proxfield solve``: every option, and what it prints."""

from __future__ import annotations

import csv
import inspect
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import proxfield as pf
from proxfield.cli import running
from proxfield.cli.commands.fields import solve as solve_command
from proxfield.io import read_map, read_mar, read_pr

KEYS = {
    "model",
    "n_vars",
    "rule",
    "params",
    "status",
    "iterations",
    "seconds",
    "setup_seconds",
    "free_energy",
    "log_z_bound",
    "map_energy",
    "message",
    "version",
    "seed",
    "threads",
    "load_seconds",
}


def refuse_constant(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


def strict_json(text: str) -> dict[str, Any]:
    assert text.count("\n") == 1 and text.endswith("\n")
    value = json.loads(text, parse_constant=refuse_constant)
    assert isinstance(value, dict)
    return value


@pytest.fixture
def solve_json(invoke: Callable[..., Any]) -> Callable[..., dict[str, Any]]:
    def call(*args: Any, **extra: Any) -> dict[str, Any]:
        result = invoke("solve", *args, "--json", **extra)
        assert result.exit_code == 0, result.stderr
        return strict_json(result.stdout)

    return call


def test_summary_for_people(invoke: Callable[..., Any], models: Path) -> None:
    result = invoke("solve", models / "grid.uai")
    assert result.exit_code == 0
    direct = pf.infer(pf.read_uai(models / "grid.uai"))
    rows = dict(line.split("  ", 1) for line in result.stdout.splitlines())
    rows = {key: value.strip() for key, value in rows.items()}
    assert rows["status"] == "converged"
    assert float(rows["free energy F"]) == pytest.approx(direct.free_energy, rel=1e-6)
    assert float(rows["log Z, at least"]) == pytest.approx(direct.log_z_bound, rel=1e-6)
    assert float(rows["MAP energy"]) == pytest.approx(direct.map_energy, rel=1e-6)
    assert int(rows["iterations"]) == direct.iterations


def test_modes(
    invoke: Callable[..., Any], solve_json: Callable[..., Any], models: Path, tmp_path: Path
) -> None:
    path = models / "grid.uai"
    direct = pf.infer(pf.read_uai(path), modes=3, max_iters=800)
    found = solve_json(path, "--modes", 3, "--max-iters", 800)
    assert found["modes"] == [mode.summary() for mode in direct.modes]
    assert len(found["modes"]) == 3
    assert found["free_energy"] == direct.free_energy
    summary = invoke("solve", path, "--modes", 3, "--max-iters", 800).stdout
    for k, mode in enumerate(direct.modes, 1):
        line = next(row for row in summary.splitlines() if row.startswith(f"mode {k}"))
        assert line.endswith(mode.cell) and f"weight {mode.weight:.3g}" in line
    target = tmp_path / "out.MAR"
    args = ("--modes", 3, "--max-iters", 800, "--task", "MAR", "-o", target)
    assert invoke("solve", path, *args).exit_code == 0
    np.testing.assert_allclose(np.concatenate(read_mar(target)), direct.q, atol=1e-12)
    assert "modes" not in solve_json(path, "--max-iters", 50)


def test_many_modes_are_cut_in_the_summary(invoke: Callable[..., Any], models: Path) -> None:
    out = invoke("solve", models / "grid.uai", "--modes", 12, "--max-iters", 4000).stdout
    assert "mode 8 " in out and "mode 9 " not in out
    assert "more modes (--json has all)" in out


def test_modes_need_auto(invoke: Callable[..., Any], models: Path) -> None:
    result = invoke("solve", models / "grid.uai", "--modes", 2, "--rule", "fixed")
    assert result.exit_code != 0 and result.stdout == ""
    assert result.stderr.strip().endswith("modes=2 needs the rule auto, not fixed")
    assert invoke("solve", models / "grid.uai", "--modes", 0).exit_code == 2


def test_summary_names_the_remedy(invoke: Callable[..., Any], models: Path) -> None:
    result = invoke("solve", models / "grid.uai", "--max-iters", 2)
    assert result.exit_code == 0
    assert "max-iters (raise --max-iters" in result.stdout


def test_json_has_the_promised_keys(solve_json: Callable[..., Any], models: Path) -> None:
    data = solve_json(models / "grid.uai")
    assert set(data) >= KEYS
    direct = pf.infer(pf.read_uai(models / "grid.uai"))
    assert data["free_energy"] == direct.free_energy == -data["log_z_bound"]
    assert data["map_energy"] == direct.map_energy
    assert data["model"] == str(models / "grid.uai")
    assert data["n_vars"] == 20
    assert data["rule"] == inspect.signature(pf.infer).parameters["rule"].default
    assert data["status"] == "converged"
    assert data["version"] == pf.__version__
    assert data["kernels"] == "cpu" and data["threads"] >= 1


def test_defaults_are_those_of_infer() -> None:
    parameters = inspect.signature(pf.infer).parameters
    assert parameters["max_iters"].default is None
    tol = next(p for p in solve_command.params if p.name == "tol")
    assert parameters["tol"].default == tol.default
    assert parameters["rule"].default == running.default_rule()
    for name, default in (("dtype", None), ("kernels", None), ("device", "cpu"), ("keep", "last")):
        assert parameters[name].default == default
    assert parameters["init"].default == "uniform"


@pytest.mark.parametrize("rule", [name for name, rule in pf.RULES.items() if not rule.special])
def test_every_rule_runs(solve_json: Callable[..., Any], models: Path, rule: str) -> None:
    data = solve_json(models / "grid.uai", "--rule", rule, "--max-iters", 50)
    assert data["rule"] == rule
    assert (
        data["free_energy"]
        == pf.infer(pf.read_uai(models / "grid.uai"), rule, max_iters=50).free_energy
    )


def test_set_reads_numbers_and_words(solve_json: Callable[..., Any], models: Path) -> None:
    args = (
        "--rule",
        "momentum",
        "--set",
        "gamma=0.5",
        "--set",
        "variant=printed",
        "--set",
        "step=1",
    )
    params = solve_json(models / "grid.uai", *args)["params"]
    assert params == {"gamma": 0.5, "variant": "printed", "step": 1}
    args = ("--rule", "fixed", "--set", "step=0.25")
    assert solve_json(models / "grid.uai", *args)["params"] == {"step": 0.25}


@pytest.mark.parametrize(
    ("args", "key", "value"),
    [
        (("--init", "possible"), "init", "possible"),
        (("--init", "unary"), "init", "unary"),
        (("--init", "random"), "init", "random"),
        (("--max-iters", "7", "--tol", "0"), "iterations", 7),
        (("--max-iters", "0"), "iterations", 0),
        (("--tol", "10", "--rule", "fixed"), "iterations", 1),
        (("--budget", "30", "--max-iters", "50"), "budget", 30.0),
        (("--budget", "inf"), "budget", None),
        (("--seed", "5"), "seed", 5),
        (("--threads", "1"), "threads", 1),
        (("--dtype", "float32"), "dtype", "float32"),
        (("--kernels", "reference", "--max-iters", "50"), "kernels", "reference"),
        (("--keep", "best", "--rule", "momentum"), "keep", "best"),
    ],
)
def test_options_reach_the_engine(
    solve_json: Callable[..., Any], models: Path, args: tuple[str, ...], key: str, value: Any
) -> None:
    assert solve_json(models / "grid.uai", *args)[key] == value


def test_seed_matters_and_repeats(solve_json: Callable[..., Any], models: Path) -> None:
    def free_energy(seed: int) -> float:
        args = ("--init", "random", "--seed", seed, "--max-iters", 1)
        value = solve_json(models / "repulsive.uai", *args)["free_energy"]
        assert isinstance(value, float)
        return value

    assert free_energy(1) == free_energy(1) != free_energy(2)


def test_budget_ends_a_run(solve_json: Callable[..., Any], models: Path) -> None:
    args = ("--tol", 0, "--max-iters", 10**9, "--budget", 0.1, "--rule", "full-parallel")
    data = solve_json(models / "repulsive.uai", *args)
    assert data["status"] in ("budget", "oscillating")


def test_evidence_counted_from_0_and_1(solve_json: Callable[..., Any], models: Path) -> None:
    plain = solve_json(models / "grid.uai")
    zero = solve_json(models / "grid.uai", "--evidence", models / "grid.evid")
    one = solve_json(models / "grid.uai", "--evidence", models / "grid1.evid", "--evidence-base", 1)
    assert zero["n_observed"] == 2
    assert zero["free_energy"] == one["free_energy"] > plain["free_energy"]


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".bz2"])
def test_compressed_models(solve_json: Callable[..., Any], models: Path, suffix: str) -> None:
    plain, packed = solve_json(models / "grid.uai"), solve_json(models / f"grid.uai{suffix}")
    assert packed["free_energy"] == plain["free_energy"]


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_model_from_stdin(solve_json: Callable[..., Any], models: Path, suffix: str) -> None:
    data = solve_json("-", input=(models / f"grid.uai{suffix}").read_bytes())
    assert data["model"] == "<stdin>"
    assert data["free_energy"] == solve_json(models / "grid.uai")["free_energy"]


def test_trace_has_the_start_in_row_0(invoke: Callable[..., Any], models: Path) -> None:
    result = invoke("solve", models / "grid.uai", "--rule", "fixed", "--trace", "t.csv", "--json")
    data = json.loads(result.stdout)
    with Path("t.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["iteration", "seconds", "free_energy", "change"]
    assert [int(r["iteration"]) for r in rows] == list(range(data["iterations"] + 1))
    assert float(rows[0]["seconds"]) == 0.0
    assert math.isnan(float(rows[0]["change"]))
    field = pf.read_uai(models / "grid.uai")
    assert float(rows[0]["free_energy"]) == pytest.approx(field.free_energy(np.full((20, 2), 0.5)))
    assert float(rows[-1]["free_energy"]) == data["free_energy"]


def check_task(task: str, path: Path, model: Path) -> None:
    direct = pf.infer(pf.read_uai(model))
    if task == "MAR":
        assert np.array_equal(np.array(read_mar(path)), direct.marginals)
    elif task == "MAP":
        assert np.array_equal(read_map(path), direct.map_labels)
    else:
        assert read_pr(path) == pytest.approx(direct.log_z_bound, rel=1e-14)


@pytest.mark.parametrize("task", ["MAR", "MAP", "PR"])
def test_tasks_to_stdout(invoke: Callable[..., Any], models: Path, task: str) -> None:
    result = invoke("solve", models / "grid.uai", "--task", task)
    assert result.exit_code == 0
    assert result.stderr == ""
    Path("out").write_text(result.stdout)
    check_task(task, Path("out"), models / "grid.uai")


@pytest.mark.parametrize("task", ["MAR", "map", "PR"])
def test_tasks_to_a_file_beside_json(invoke: Callable[..., Any], models: Path, task: str) -> None:
    result = invoke("solve", models / "grid.uai", "--task", task, "-o", "out.xz", "--json")
    assert strict_json(result.stdout)["status"] == "converged"
    check_task(task.upper(), Path("out.xz"), models / "grid.uai")


def test_a_task_to_a_file_prints_nothing(invoke: Callable[..., Any], models: Path) -> None:
    result = invoke("solve", models / "grid.uai", "--task", "PR", "-o", "out")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "")
    short = invoke("solve", models / "grid.uai", "--task", "PR", "-o", "out", "--max-iters", 1)
    assert short.stdout == ""
    assert short.stderr.startswith("proxfield: note: max-iters (")


def test_strict_exits_with_3(invoke: Callable[..., Any], models: Path) -> None:
    args = ("solve", models / "grid.uai", "--strict", "--json")
    assert invoke(*args).exit_code == 0
    unfinished = invoke(*args, "--max-iters", 1)
    assert unfinished.exit_code == 3
    assert strict_json(unfinished.stdout)["status"] == "max-iters"


def test_hard_models(solve_json: Callable[..., Any], models: Path) -> None:
    data = solve_json(models / "hard.uai")
    assert data["status"] == "converged"
    assert data["log_z_bound"] <= math.log(1 * 1 + 1 * 2 + 2 * 3)


@pytest.mark.parametrize(
    ("name", "status"), [("impossible", "infeasible"), ("contradiction", "infeasible")]
)
def test_impossible_models(
    invoke: Callable[..., Any], solve_json: Callable[..., Any], models: Path, name: str, status: str
) -> None:
    data = solve_json(models / f"{name}.uai")
    assert data["status"] == status
    assert data["free_energy"] is data["log_z_bound"] is data["map_energy"] is None
    assert invoke("solve", models / f"{name}.uai", "--task", "PR").stdout == "PR\n-inf\n"
    assert invoke("solve", models / f"{name}.uai", "--strict").exit_code == 3
    assert "inf" in invoke("solve", models / f"{name}.uai").stdout


def test_ctrl_c_keeps_the_best_so_far(
    invoke: Callable[..., Any], models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(self: Any, progress: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("proxfield.cli.progress.Display.update", interrupt)
    result = invoke("solve", models / "repulsive.uai", "--tol", 0, "--json", "--trace", "t.csv")
    assert result.exit_code == 130
    data = strict_json(result.stdout)
    assert data["status"] == "interrupted"
    assert math.isfinite(data["free_energy"])
    assert Path("t.csv").exists()


def test_ctrl_c_before_a_result(
    invoke: Callable[..., Any], models: Path, replace_infer: Callable[..., None]
) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    replace_infer(interrupt)
    result = invoke("solve", models / "grid.uai")
    assert result.exit_code == 130
    assert result.stdout == ""
    assert result.stderr == "proxfield: interrupted before there was a result\n"


def test_help_lists_all_rules(invoke: Callable[..., Any]) -> None:
    for command in ("solve", "compare"):
        text = invoke(command, "--help").stdout
        assert all(f"  {rule} " in text for rule in pf.RULES)
        assert "null" in text  # where --json explains itself
