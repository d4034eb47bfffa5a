"""``proxfield map``: every option, and what it prints."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import proxfield as pf
from proxfield.io import read_map
from proxfield.testing import enumerate_field

KEYS = {
    *("model", "n_vars", "n_observed", "status", "message", "energy", "feasible", "optimal"),
    *("stable", "iterations", "seconds", "setup_seconds", "load_seconds", "max_iters", "budget"),
    *("seed", "threads", "device", "kernels", "dtype", "version", "labels"),
}


def test_summary_for_people(invoke: Callable[..., Any], models: Path) -> None:
    result = invoke("map", models / "grid.uai", "--max-iters", 2000)
    assert result.exit_code == 0, result.stderr
    rows = dict(line.split("  ", 1) for line in result.stdout.splitlines())
    exact = enumerate_field(pf.read_uai(models / "grid.uai"))
    assert float(rows["energy"]) == pytest.approx(exact.min_energy, rel=1e-8)
    assert rows["status"].strip().startswith("max-iters (raise --max-iters")
    assert 0 < int(rows["sweeps"]) <= 2000


def test_json(invoke: Callable[..., Any], models: Path) -> None:
    args = ("map", models / "grid.uai.xz", "--max-iters", 500, "--seed", 3, "--json")
    result = invoke(*args)
    assert result.exit_code == 0, result.stderr
    data = json.loads(result.stdout)
    assert set(data) == KEYS
    field = pf.read_uai(models / "grid.uai")
    direct = pf.solve_map(field, max_iters=500, seed=3)
    assert data["labels"] == direct.labels.tolist()
    assert data["energy"] == direct.energy == pytest.approx(field.energy(data["labels"]))
    assert data["status"] == "max-iters" and data["seed"] == 3 and data["stable"] is True
    assert data["kernels"] == "cpu" and data["threads"] >= 1


def test_files(invoke: Callable[..., Any], models: Path, tmp_path: Path) -> None:
    args = ("--max-iters", 300, "-o", "best.MAP", "--trace", "trace.csv")
    result = invoke("map", models / "grid.uai", "--evidence", models / "grid.evid", *args)
    assert result.exit_code == 0, result.stderr
    labels = read_map(tmp_path / "best.MAP")
    assert len(labels) == 20
    field = pf.read_uai(models / "grid.uai").condition({0: 1, 7: 0})
    assert labels[0] == 1 and labels[7] == 0
    assert field.energy(labels) == pytest.approx(enumerate_field(field, limit=2**20).min_energy)
    rows = (tmp_path / "trace.csv").read_text().splitlines()
    assert rows[0] == "iteration,seconds,energy"
    assert float(rows[-1].split(",")[2]) == pytest.approx(field.energy(labels))


def test_a_labelling_on_stdout(invoke: Callable[..., Any], models: Path) -> None:
    result = invoke("map", models / "grid.uai", "--max-iters", 300, "-o", "-")
    assert result.exit_code == 0
    assert result.stdout.startswith("MAP\n20 ")
    assert result.stderr.startswith("proxfield: note: max-iters")


def test_forests_are_optimal(invoke: Callable[..., Any], models: Path) -> None:
    data = json.loads(invoke("map", models / "hard.uai", "--json").stdout)
    exact = enumerate_field(pf.read_uai(models / "hard.uai"))
    assert data["status"] == "optimal" and data["optimal"] is True
    assert data["energy"] == pytest.approx(exact.min_energy)


@pytest.mark.parametrize("model", ["impossible.uai", "contradiction.uai"])
def test_no_labelling(invoke: Callable[..., Any], models: Path, tmp_path: Path, model: str) -> None:
    data = json.loads(invoke("map", models / model, "--json").stdout)
    assert data["status"] == "infeasible"
    assert data["energy"] is None and data["feasible"] is False
    for output in ("best.MAP", "-"):
        result = invoke("map", models / model, "-o", output)
        assert result.exit_code == 2
        assert result.stderr.count("\n") == 1 and "no labelling to write" in result.stderr
    assert not (tmp_path / "best.MAP").exists()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--json", "-o", "-"), "both write to stdout"),
        (("-o", "nowhere/best.MAP"), "its folder doesn't exist"),
        (("-o", "same", "--trace", "same"), "name the same file"),
        (("--budget", "-1"), "budget=-1"),
        (("--device", "abacus"), "abacus"),
        (("--tol", "1"), "--tol"),
    ],
)
def test_errors_are_one_line(
    invoke: Callable[..., Any], models: Path, args: tuple[str, ...], message: str
) -> None:
    result = invoke("map", models / "grid.uai", *args)
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1 and message in result.stderr
    assert result.stdout == ""


def test_help(invoke: Callable[..., Any]) -> None:
    text = invoke("map", "--help").stdout
    for word in ("--budget", "--max-iters", "--seed", "--trace", "-o", "--json", "Ctrl-C"):
        assert word in text
    assert "map" in invoke("--help").stdout


def test_ctrl_c_prints_the_best_so_far(
    invoke: Callable[..., Any], models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from proxfield.cli.progress import Display

    def interrupt(self: Display, progress: pf.Progress) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Display, "update", interrupt)
    result = invoke("map", models / "repulsive.uai", "--budget", 20, "--json")
    assert result.exit_code == 130
    data = json.loads(result.stdout)
    assert data["status"] == "interrupted"
    assert np.isfinite(data["energy"])
