"""Code blocks of README and the documentation's pages, and how they are run."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>[\w{}-]*)[^\n]*\n(?P<code>.*?)^(?P=indent)```", re.M | re.S
)
NOTE = re.compile(r"<!-- (?P<kind>no-run|needs): (?P<text>[^\n]+?) -->\s*\Z")

NOT_RUN = {
    r"^pip install": "what it installs is here already",
    r"^make ": "a target of the Makefile, which CI runs or which takes long",
    r"--device cuda": "needs a GPU",
    r"^proxfield bench": "takes minutes; tests/bench runs small ones",
    r"^proxfield make characters": "draws hundreds of pictures; tests/cli makes a few",
    r"^proxfield (fit|inpaint) data/": "training takes half a minute; tests/cli runs a small one",
    r"^apt install": "fonts of the system",
    r"^proxfield tune photos/": "tens of seconds; tests/cli runs a smaller one, a tutorial another",
    r"^proxfield solve grid.uai --budget 5": "takes five seconds; tests/cli runs a shorter one",
}
"""Commands inside blocks that are not run, and why."""


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, code, place, and what the page says about running it.

    Attributes:
        reason: Why it is not run, or None.
        needs: A module that it needs, or None.
    """

    page: Path
    line: int
    language: str
    code: str
    reason: str | None
    needs: str | None


def blocks(page: Path) -> Iterator[Block]:
    """Blocks of Python and of shell commands, in order."""
    text = page.read_text(encoding="utf-8")
    for match in FENCE.finditer(text):
        language = match["language"]
        if language not in ("python", "sh"):
            continue
        note = NOTE.search(text[: match.start()])
        kind, said = (note["kind"], note["text"]) if note else ("", "")
        width = len(match["indent"])
        yield Block(
            page=page,
            line=text.count("\n", 0, match.start()) + 2,
            language=language,
            code="".join(line[width:] for line in match["code"].splitlines(keepends=True)),
            reason=said if kind == "no-run" else None,
            needs=said if kind == "needs" else None,
        )


def is_executed(page: Path) -> bool:
    """Whether building the site runs the page."""
    return "file_format: mystnb" in page.read_text(encoding="utf-8")[:400]


def commands(code: str) -> list[str]:
    """Commands of a block, without comments; lines that end in a backslash are joined."""
    joined = code.replace("\\\n", " ")
    lines = [re.sub(r"(^|\s)# .*$|^#.*$", "", line).strip() for line in joined.splitlines()]
    return [line for line in lines if line]


def reason_not_to_run(command: str) -> str | None:
    """Why a command inside a block is not run, or None."""
    return next((why for pattern, why in NOT_RUN.items() if re.search(pattern, command)), None)


def run_command(command: str, folder: Path) -> None:
    """Run a line of a shell; `proxfield` itself in this process, since starting takes long."""
    if command.startswith("proxfield ") and not re.search(r"[|<>$;&]", command):
        from click.testing import CliRunner

        from proxfield.cli.main import cli

        result = CliRunner().invoke(cli, shlex.split(command)[1:])
        assert result.exit_code == 0, f"{command}\n{result.output}"
        return
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stderr}"


def run_page(page: Path, folder: Path, installed: frozenset[str]) -> int:
    """Run a page's blocks from top to bottom in one namespace; returns how many were run.

    Blocks that need a module which isn't in `installed` are left out. Where torch is installed,
    so are shell commands that don't need it: the suite without torch runs them.
    """
    scope: dict[str, Any] = {"__name__": "page"}
    count = 0
    for block in blocks(page):
        if block.reason is not None or (block.needs and block.needs not in installed):
            continue
        if block.language == "sh":
            if "torch" in installed and block.needs != "torch":
                continue
            for command in commands(block.code):
                if reason_not_to_run(command) is None:
                    run_command(command, folder)
                    count += 1
        else:
            # the page's own line numbers in tracebacks
            source = "\n" * (block.line - 1) + block.code
            exec(compile(source, str(block.page), "exec"), scope)
            count += 1
    return count
