"""Runs tests in forked processes, so that what tests import from elsewhere is imported once.

Reads one line of JSON after another (see `Task`). Answers with pytest's exit code, or with −1 if
the tests took too long. Nothing of proxfield is imported before the fork, and a fault is put in
where a module is imported: no file changes.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from contextlib import suppress
from importlib import import_module
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Any, TypedDict

IMPORTED = ("numpy", "scipy.sparse.linalg", "numba", "pytest", "torch")
"""What tests import, where it is installed."""
POLL_SECONDS = 0.02


class Task(TypedDict):
    """Some tests to run.

    Attributes:
        output: File to write to.
        arguments: Arguments of pytest.
        seconds: Time limit.
        cache: Folder for compiled kernels.
        path: File that holds a fault, or "".
        source: Its content.
    """

    output: str
    arguments: list[str]
    seconds: float
    cache: str
    path: str
    source: str


def put_in(path: Path, source: str) -> Any:
    """From now on, import this instead of the content of a file; returns what was before."""
    before = SourceFileLoader.get_code

    def get_code(self: SourceFileLoader, fullname: str) -> CodeType | None:
        if Path(self.path) == path:
            return compile(source, self.path, "exec", dont_inherit=True)
        return before(self, fullname)

    SourceFileLoader.get_code = get_code  # type: ignore[method-assign]
    return before


def run_tests(task: Task) -> int:
    """pytest's exit code; what it writes goes to a file."""
    file = os.open(task["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(file, stream)
    os.environ["PROXFIELD_CACHE_DIR"] = task["cache"]
    if task["path"]:
        put_in(Path(task["path"]), task["source"])
    import pytest

    return int(pytest.main(task["arguments"]))


def run_forked(task: Task) -> int:
    """The same in a process of its own, with a time limit."""
    child = os.fork()
    if child == 0:
        code = 3  # pytest's "internal error"
        try:
            code = run_tests(task)
        except BaseException:  # nothing may get out of the fork
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    end = time.monotonic() + task["seconds"]
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(POLL_SECONDS)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return -1


def main() -> None:
    """Answer every line of standard input."""
    for name in IMPORTED:
        with suppress(ImportError):
            import_module(name)
    for line in sys.stdin:
        print(run_forked(json.loads(line)), flush=True)


if __name__ == "__main__":
    main()
