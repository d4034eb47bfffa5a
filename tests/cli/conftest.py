"""Models on disk and two ways to call the command: in this process, and in one of its own."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from proxfield.cli.main import cli
from proxfield.core.solve.infer import infer
from proxfield.generate import grid
from proxfield.io import write_model

SRC = Path(__file__).parents[2] / "src"


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small grid, plain and compressed, evidence for it, and hard models."""
    folder = tmp_path_factory.mktemp("models")
    for suffix in ("", ".gz", ".xz", ".bz2"):
        write_model(grid(4, 5, strength=2.0, seed=3), folder / f"grid.uai{suffix}")
    write_model(grid(6, 6, strength=3.0, sign="repulsive"), folder / "repulsive.uai")
    (folder / "grid.evid").write_text("2 0 1 7 0\n")
    (folder / "grid1.evid").write_text("2 1 1 8 0\n")  # the same, variables counted from 1
    (folder / "hard.uai").write_text("MARKOV\n3\n2 2 2\n2\n2 0 1\n2 1 2\n4 1 0 0 2\n4 1 2 3 0\n")
    (folder / "impossible.uai").write_text("MARKOV\n1\n2\n2\n1 0\n1 0\n2 1 0\n2 0 1\n")
    contradiction = "MARKOV\n2\n2 2\n2\n2 0 1\n2 0 1\n4 1 0 0 1\n4 0 1 1 0\n"
    (folder / "contradiction.uai").write_text(contradiction)
    (folder / "triple.uai").write_text("MARKOV\n3\n2 2 3\n1\n3 0 1 2\n12" + " 1 2" * 6 + "\n")
    return folder


@dataclass
class Outcome:
    """What a call came to."""

    exit_code: int
    stdout: str
    stderr: str
    exception: BaseException | None


@pytest.fixture
def invoke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Outcome]:
    """Call the command in this process, in an empty folder.

    Whether kernels are compiled depends on what ran before, so that notice is dropped, and so are
    the lines of progress that a command prints where it takes long.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("proxfield.cli.progress.LINE_SECONDS", float("inf"))
    try:
        runner = CliRunner(mix_stderr=False)  # click before 8.2
    except TypeError:
        runner = CliRunner()

    def call(*args: Any, **options: Any) -> Outcome:
        result = runner.invoke(cli, [str(a) for a in args], **options)
        stderr = re.sub("compiling kernels.*…\n", "", result.stderr, count=1)
        return Outcome(result.exit_code, result.stdout, stderr, result.exception)

    return call


@pytest.fixture
def replace_infer(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[..., Any]], None]:
    """Put something else in the place of `proxfield.infer`; its signature stays."""

    def replace(function: Callable[..., Any]) -> None:
        monkeypatch.setattr("proxfield.core.solve.infer.infer", functools.wraps(infer)(function))

    return replace


@pytest.fixture
def environment() -> dict[str, str]:
    """The environment for a process of its own, without Python's own switches."""
    # unbuffered, for one, Python doesn't notice a pipe that breaks in the middle of a write
    plain = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    return {**plain, "PYTHONPATH": str(SRC), "PYTHONIOENCODING": "utf-8"}


@pytest.fixture
def process(tmp_path: Path, environment: dict[str, str]) -> Callable[..., Any]:
    """Call the command in a process of its own, in an empty folder."""

    def call(*args: Any, env: dict[str, str] | None = None, **options: Any) -> Any:
        return subprocess.run(
            [sys.executable, "-m", "proxfield", *map(str, args)],
            capture_output=True,
            text=True,
            encoding="utf-8",
            cwd=tmp_path,
            env={**environment, **(env or {})},
            timeout=600,
            check=False,
            **options,
        )

    return call
