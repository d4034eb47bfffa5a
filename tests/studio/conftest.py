"""A studio in a process of its own, and a browser to look at it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from studio_cases import write_files

FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
)
ADDRESS = re.compile(r"http://127\.0\.0\.1:\d+/")
REQUIRED = "PROXFIELD_TEST_BROWSER"
"""If this is set, tests fail where there is no browser, instead of being skipped."""


@dataclass
class Running:
    """A studio that runs."""

    process: subprocess.Popen[str]
    address: str
    files: dict[str, Path]
    temporary: Path
    errors: list[str] = field(default_factory=list)

    def stop(self) -> tuple[int, str]:
        """Press Ctrl-C; returns the exit code and what was written to stderr."""
        self.process.send_signal(signal.SIGINT)
        code = self.process.wait(timeout=60)
        return code, "".join(self.errors)


def start(arguments: Sequence[object], folder: Path, files: dict[str, Path]) -> Running:
    """Start a studio and wait for its address."""
    temporary = folder / "temporary"
    temporary.mkdir()
    keep = {k: v for k, v in os.environ.items() if k != "PYTEST_CURRENT_TEST"}
    process = subprocess.Popen(
        [sys.executable, "-m", "proxfield", "studio", "--no-browser", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={**keep, "TMPDIR": str(temporary), "PROXFIELD_QUIET": "1"},
    )
    assert process.stdout is not None and process.stderr is not None
    errors: list[str] = []
    source = process.stderr
    threading.Thread(target=lambda: errors.extend(source), daemon=True).start()
    found = ADDRESS.search(process.stdout.readline())
    if found is None:
        process.kill()
        pytest.fail(f"the studio did not start: {''.join(errors)}")
    return Running(process, found[0], files, temporary, errors)


@pytest.fixture(scope="session")
def studio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A studio of a small image; uploads of up to 1 MB."""
    pytest.importorskip("nicegui", reason="needs the extra studio")
    folder = tmp_path_factory.mktemp("studio")
    files = write_files(folder)
    names = ("--names", "sea,<b>sand</b>,grass")
    given = [files["image"], "--probs", files["probs"], "--truth", files["truth"], *names]
    running = start([*given, "--preset", "krahenbuehl", "--max-upload", 1], folder, files)
    with running.process:
        yield running
        running.process.kill()


def find_chromium() -> str | None:
    """The system's Chromium."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((path for name in names if (path := shutil.which(name))), None)


def missing(reason: str) -> Any:
    """Skip, or fail where a browser must be there."""
    if os.environ.get(REQUIRED, "0") not in ("", "0"):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Headless Chromium; while it is there, an event loop runs in this thread."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        missing("needs playwright (pip install playwright)")
    path = find_chromium()
    if path is None:
        missing("needs Chromium on the PATH (apt-get install chromium)")
    with sync_playwright() as driver:
        made = driver.chromium.launch(executable_path=path, args=list(FLAGS))
        yield made
        made.close()
