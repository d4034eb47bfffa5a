"""``proxfield bench peers`` as a user calls it."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from proxfield.bench.peers import registry
from proxfield.bench.peers.base import Peer
from proxfield.cli.main import cli


def call(*args: str) -> Result:
    return CliRunner().invoke(cli, ["bench", "peers", *args])


def test_quick_run_writes_everything(tmp_path: Path, exact: Path) -> None:
    outputs = {"-o": "peers.json", "--csv": "peers.csv", "--report": "peers.html"}
    where = [text for option, name in outputs.items() for text in (option, str(tmp_path / name))]
    done = call(
        "--quick", "--peers", "exact,proxfield fixed", "--tasks", "inference", "--data", str(exact),
        *where,
    )  # fmt: skip
    assert done.exit_code == 0, done.stderr
    assert "Mean absolute error of marginals" in done.stdout
    data = json.loads((tmp_path / "peers.json").read_text(encoding="utf-8"))
    runs = [r for r in data["runs"] if r["suite"] == "Coins"]
    assert [r["peer"] for r in runs] == ["proxfield fixed", "exact elimination"]
    assert all(r["mean_error"] < 1e-6 and abs(r["log_z_gap"]) < 1e-4 for r in runs)
    by_peer = {
        p["name"]: [r for r in data["runs"] if r["peer"] == p["name"]] for p in data["peers"]
    }
    assert all(abs(r["log_z_gap"]) < 1e-8 for r in by_peer["exact elimination"][:-1])
    assert all(r["valid_bound"] for r in by_peer["proxfield fixed"])
    rows = list(csv.DictReader((tmp_path / "peers.csv").read_text(encoding="utf-8").splitlines()))
    assert len(rows) == len(data["runs"])
    page = (tmp_path / "peers.html").read_text(encoding="utf-8")
    assert "<h2>Mean absolute error of marginals</h2>" in page and "Coins (1)" in page


def test_missing_tools_are_named_and_the_rest_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Peer, "version", lambda self: None if self.package else "1.0")
    done = call("--quick", "--peers", "exact,pygms lbp", "--tasks", "map,inference", "--json")
    assert done.exit_code == 0, done.stderr
    assert 'not installed: pyGMs LBP (pip install "proxfield[peers]")' in done.stderr
    data = json.loads(done.stdout)
    assert [p["name"] for p in data["missing"]] == ["pyGMs LBP"]
    assert {r["peer"] for r in data["runs"]} == {"exact elimination"}
    assert all(r["optimal"] and r["proved"] for r in data["runs"] if r["task"] == "map")


def test_scenes_are_read(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    folder.mkdir()
    rng = np.random.default_rng(0)
    image = rng.integers(0, 256, (12, 10, 3), dtype=np.uint8)
    truth = np.zeros((12, 10), dtype=np.uint8)
    np.savez(folder / "a.npz", image=image, probabilities=np.full((12, 10, 2), 0.5), truth=truth)
    report = tmp_path / "peers.md"
    done = call(
        "--quick", "--tasks", "dense", "--peers", "proxfield", "--scenes", str(folder),
        "--report", str(report),
    )  # fmt: skip
    assert done.exit_code == 0, done.stderr
    assert "| set, 120 pixels (1) | proxfield DenseCRF |" in report.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--tasks", "dance"], "--tasks 'dance', expected some of: inference, map, dense"),
        (["--peers", "nobody"], "unknown peer 'nobody', expected some of: proxfield, exact"),
        (["--report", "peers.txt"], "expected a name ending in .html or .md"),
        (["--data", "nowhere"], "no such folder"),
        (["--scenes", "nowhere"], "no such folder"),
        (["-o", "a.json", "--csv", "a.json"], "name the same file"),
        (["--budget", "0"], "0"),
    ],
)
def test_bad_input_is_one_line(args: list[str], words: str) -> None:
    done = call("--quick", *args)
    assert done.exit_code == 2
    assert words in done.stderr and "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"image": np.zeros((2, 2, 3), np.uint8)}, "expected image, probabilities and truth"),
        (
            {
                "image": np.zeros((2, 2)),
                "probabilities": np.ones((2, 2, 2)),
                "truth": np.ones((2, 2)),
            },
            "expected 8-bit colors",
        ),
        (
            {
                "image": np.zeros((2, 2, 3), np.uint8),
                "probabilities": np.ones((3, 2, 2)),
                "truth": np.ones((2, 2)),
            },
            "expected the same height and width",
        ),
    ],
)
def test_bad_scenes_are_one_line(tmp_path: Path, arrays: dict[str, object], words: str) -> None:
    np.savez(tmp_path / "a.npz", **arrays)  # type: ignore[arg-type]
    done = call("--quick", "--tasks", "dense", "--scenes", str(tmp_path))
    assert done.exit_code == 2 and words in done.stderr, done.stderr


def test_names_are_unique() -> None:
    names = [peer.name for peer in registry.PEERS]
    assert len(set(names)) == len(names)
