"""The command as a process of its own: start-up, pipes, terminals and signals."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import proxfield
from proxfield.generate import grid
from proxfield.io import write_model

POSIX = pytest.mark.skipif(os.name != "posix", reason="needs POSIX pipes and terminals")
HEAVY = ("numba", "llvmlite", "scipy", "numpy", "rich", "matplotlib")


LOADED = """
import sys
from proxfield.cli.main import cli
try:
    cli.main({args!r})
except SystemExit as end:
    assert not end.code
print("LOADED", [m for m in {names!r} if m in sys.modules])
"""


def loaded(environment: dict[str, str], args: list[str], *names: str) -> str:
    """Which of some modules a call loads."""
    code = LOADED.format(args=args, names=names)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True
    )
    return done.stdout.rpartition("LOADED ")[2].strip()


@pytest.mark.parametrize("args", [["--help"], ["--version"], []])
def test_help_loads_nothing_heavy(environment: dict[str, str], args: list[str]) -> None:
    assert loaded(environment, args, *HEAVY) == "[]"


@pytest.mark.parametrize("command", ["solve", "compare", "info", "make", "doctor"])
def test_help_of_subcommands_loads_no_numba(environment: dict[str, str], command: str) -> None:
    assert loaded(environment, [command, "--help"], "numba", "scipy", "rich") == "[]"


def test_solve_in_a_pipe_loads_no_rich(environment: dict[str, str], models: Path) -> None:
    args = ["solve", str(models / "grid.uai")]
    assert loaded(environment, args, "rich", "matplotlib", "numba") == "['numba']"


def test_version_and_help(process: Callable[..., Any]) -> None:
    assert process("--version").stdout == f"proxfield {proxfield.__version__}\n"
    text = process("--help").stdout
    assert all(f"  {name} " in text for name in ("solve", "compare", "info", "make", "doctor"))


def test_characters_that_a_pipe_does_not_have(process: Callable[..., Any]) -> None:
    done = process("bench", "--help", env={"PYTHONIOENCODING": "cp1252"})  # as on Windows
    assert done.returncode == 0, done.stderr
    assert "\\u03b7" in done.stdout  # η


def test_solve_through_a_pipe(process: Callable[..., Any], models: Path) -> None:
    done = process("solve", "-", "--json", input=(models / "grid.uai").read_text())
    assert done.returncode == 0
    assert json.loads(done.stdout)["n_vars"] == 20


def test_bad_input_is_one_line(process: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "bad.uai").write_text("MARKOV\n2\n2\n")
    done = process("solve", "bad.uai", "--task", "MAR", "-o", "out")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("proxfield: error: bad.uai:")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


@POSIX
def test_a_reader_who_leaves_is_no_error(environment: dict[str, str]) -> None:
    command = [sys.executable, "-m", "proxfield", "make", "grid", "--rows", "300", "--cols", "300"]
    child = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    )
    assert child.stdout is not None and child.stderr is not None
    assert child.stdout.read(6) == b"MARKOV"
    child.stdout.close()
    assert child.stderr.read() == b""
    assert child.wait(600) == 141
    child.stderr.close()


@POSIX
def test_bar_on_a_terminal_and_ctrl_c(environment: dict[str, str], tmp_path: Path) -> None:
    import pty

    write_model(grid(60, 60, strength=3.0, sign="repulsive"), tmp_path / "m.uai")
    terminal, end = pty.openpty()
    limits = [
        "--rule",
        "full-parallel",
        "--max-iters",
        "1000000000",
        "--budget",
        "60",
        "--tol",
        "0",
    ]
    child = subprocess.Popen(
        [sys.executable, "-m", "proxfield", "solve", "m.uai", *limits, "--json"],
        stdout=subprocess.PIPE,
        stderr=end,
        cwd=tmp_path,
        env={**environment, "TERM": "xterm", "COLUMNS": "100"},
    )
    os.close(end)
    seen = b""
    deadline = time.monotonic() + 600
    while b"iteration" not in seen and time.monotonic() < deadline:
        seen += os.read(terminal, 4096)
    assert b"full-parallel" in seen
    child.send_signal(signal.SIGINT)
    # the terminal's buffer is finite: keep reading, or the child may wait for us
    with contextlib.suppress(OSError):  # raised when the other end is closed
        while child.poll() is None and time.monotonic() < deadline:
            seen += os.read(terminal, 4096)
    assert child.wait(600) == 130
    assert child.stdout is not None
    data = json.loads(child.stdout.read())
    assert data["status"] == "interrupted"
    assert data["iterations"] > 0
    assert b"Traceback" not in seen
    child.stdout.close()
    os.close(terminal)


def test_compilation_is_announced_once(
    process: Callable[..., Any], models: Path, tmp_path: Path
) -> None:
    fresh = {"PROXFIELD_CACHE_DIR": str(tmp_path / "cache")}
    first = process("solve", models / "grid.uai", "--rule", "sweep", env=fresh)
    assert first.returncode == 0
    about = "compiling kernels for fields of two labels, once, about 10 s (cached afterwards)…\n"
    assert first.stderr == about
    assert process("solve", models / "grid.uai", "--rule", "sweep", env=fresh).stderr == ""


@pytest.mark.parametrize("rule", ["fixed", "sweep"])
def test_a_first_solve_of_a_small_model_compiles_nothing(
    rule: str, process: Callable[..., Any], models: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    env = {"PROXFIELD_CACHE_DIR": str(cache), "PROXFIELD_LAZY": "1"}
    first = process("solve", models / "grid.uai", "--rule", rule, env=env)
    assert (first.returncode, first.stderr) == (0, "")
    assert not list(cache.rglob("*.nbi"))
