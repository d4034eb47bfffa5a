"""A tiny data folder, and the command called in this process."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from clock import CountedClock
from proxfield.cli.main import cli
from proxfield.core.solve.infer import infer
from proxfield.generate import grid, rbm, segmentation
from proxfield.io import write_model

RULES = ("sweep", "fixed", "momentum")
QUICK = ("--budgets", "0.01,0.02", "--rules", ",".join(RULES), "--threads", "1")


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two networks that stand for four instances, three grids (two of one size), one picture."""
    folder = tmp_path_factory.mktemp("data")
    for suite in ("DBN", "GRID", "SEG"):
        (folder / suite).mkdir()
    write_model(rbm(8, 3, seed=1), folder / "DBN" / "net_a.uai.xz")
    write_model(rbm(6, 4, seed=2), folder / "DBN" / "net_b.uai")
    (folder / "DBN" / "multiplicity.csv").write_text(
        "model,instances\nnet_a.uai.xz,3\nnet_b.uai,1\n"
    )
    for strength in (2, 10):
        write_model(grid(4, 4, strength=strength), folder / "GRID" / f"grid.f{strength}.uai.gz")
    write_model(grid(5, 5, strength=5, sign="repulsive"), folder / "GRID" / "grid.f5.uai")
    write_model(segmentation(12, seed=3), folder / "SEG" / "picture.uai")
    return folder


@pytest.fixture(scope="session")
def exact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose log Z and marginals are known: two independent coins."""
    folder = tmp_path_factory.mktemp("exact") / "Coins"
    folder.mkdir()
    (folder / "coins.uai").write_text("MARKOV\n2\n2 2\n2\n1 0\n1 1\n2 1 3\n2 5 5\n")
    (folder / "coins.uai.PR").write_text("PR\n1.602059991327962\n")  # log10 40
    (folder / "coins.uai.MAR").write_text("MAR\n2 2 0.25 0.75 2 0.5 0.5\n")
    return folder.parent


@dataclass
class Outcome:
    """What a call came to."""

    exit_code: int
    stdout: str
    stderr: str


def call_command(*args: Any) -> Outcome:
    """Call the command in this process; how busy the machine is stays out of it.

    Budgets are kept by counting: 0.01 s are 1000 updates.
    """
    try:
        runner = CliRunner(mix_stderr=False)  # click before 8.2
    except TypeError:
        runner = CliRunner()
    with CountedClock(update=1e-5):
        result = runner.invoke(cli, [str(a) for a in args])
    rest = [line for line in result.stderr.splitlines() if "keep this machine busy" not in line]
    return Outcome(result.exit_code, result.stdout, "\n".join(rest))


@pytest.fixture
def invoke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Outcome]:
    """Call the command in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return call_command


@pytest.fixture(scope="session")
def whole_report(
    data: Path, exact: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Outcome, Path]:
    """A report with everything in it, ``r.html``: what the command said, and the folder."""
    folder = tmp_path_factory.mktemp("report")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        etas = ("--budgets", "0.01", "--etas", "0.1,0.5,1", "--threads", "1")
        first = call_command("bench", "sensitivity", "--data", data, *etas)
        assert first.exit_code == 0, first.stderr
        extras = ("--exact", exact, "--sensitivity", "bench-sensitivity.jsonl")
        report = ("--report", "r.html", *extras)
        out = call_command("bench", "paper", "--data", data, *QUICK, *report)
        assert out.exit_code == 0, out.stderr
    return out, folder


class Counter:
    """Counts inferences; raises what it is told to at the call it is told."""

    def __init__(self) -> None:
        self.timed = 0
        self.fail_at: int | None = None
        self.error: BaseException = KeyboardInterrupt()

    def __call__(self, *args: Any, **options: Any) -> Any:
        if options.get("budget") is not None:
            self.timed += 1
            if self.timed == self.fail_at:
                raise self.error
        return infer(*args, **options)


@pytest.fixture
def counter(monkeypatch: pytest.MonkeyPatch) -> Counter:
    """Stands in the place of `proxfield.infer`."""
    out = Counter()
    monkeypatch.setattr(
        "proxfield.core.solve.infer.infer", functools.wraps(infer)(lambda *a, **k: out(*a, **k))
    )
    return out
