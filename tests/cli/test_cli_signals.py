"""Ctrl-C at any moment: one line on stderr and exit code 130, or the result so far."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from proxfield.cli.signals import MESSAGE
from proxfield.generate import grid
from proxfield.io import write_model

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals")

ENTRY = {
    "module": ["-m", "proxfield"],
    "script": ["-c", "import sys\nfrom proxfield.__main__ import main\nsys.exit(main())"],
}


@pytest.fixture
def environment(environment: dict[str, str]) -> dict[str, str]:
    """Without coverage, which swallows Ctrl-C while it starts."""
    return {k: v for k, v in environment.items() if not k.startswith("COV")}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A field that takes long."""
    path = tmp_path_factory.mktemp("models") / "grid.uai"
    write_model(grid(60, 60, strength=3.0, sign="repulsive"), path)
    return path


def interrupt(
    entry: str, model: Path, delay: float, environment: dict[str, str], **env: str
) -> tuple[int, str, str]:
    """Start the command and press Ctrl-C after some seconds."""
    child = subprocess.Popen(
        [sys.executable, *ENTRY[entry], "solve", str(model), "--budget", "60", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**environment, **env},
    )
    try:
        time.sleep(delay)
        child.send_signal(signal.SIGINT)
        stdout, stderr = child.communicate(timeout=600)
    finally:
        child.kill()  # if it hangs, it must not disturb other tests
    return child.returncode, stdout, stderr


def check(code: int, stdout: str, stderr: str) -> None:
    """One line and 130, or a result that says it is interrupted."""
    lines = [line for line in stderr.splitlines() if "compiling kernels" not in line]
    begun = stdout or lines == [MESSAGE] or re.search(r'__main__\.py", line \d+, in main\n', stderr)
    if not begun and code in (-signal.SIGINT, 1):
        return  # Python was still starting, or importing the package: nothing is guarded yet
    assert code == 130, (code, stdout, stderr)
    assert "Traceback" not in stderr and "Exception ignored" not in stderr, stderr
    if stdout:
        assert json.loads(stdout)["status"] == "interrupted"
        assert lines == []
    else:
        assert lines == [MESSAGE], stderr


@pytest.mark.slow
@pytest.mark.parametrize("entry", ENTRY)
@pytest.mark.parametrize("delay", [0.0, 0.03, 0.06, 0.1, 0.15, 0.2, 0.3, 0.5, 0.8, 1.2, 2.0])
def test_ctrl_c_at_any_time(
    entry: str, delay: float, model: Path, environment: dict[str, str]
) -> None:
    check(*interrupt(entry, model, delay, environment))


@pytest.mark.slow
@pytest.mark.parametrize("delay", [1.0, 1.7, 2.4, 3.3])
def test_ctrl_c_while_compiling(
    delay: float, model: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    check(*interrupt("module", model, delay, environment, PROXFIELD_CACHE_DIR=str(tmp_path)))


# ---- at chosen moments ----

AT_IMPORT = """
import os, signal, sys

class Press:
    "Press Ctrl-C when a module is imported."
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Press())
sys.argv = ["proxfield", "solve", {model!r}, "--budget", "60", "--json"]
from proxfield.__main__ import main
main()
"""
MODULES = ("proxfield.cli.main", "click", "proxfield.cli.solve", "numpy", "numba", "llvmlite")


def run(code: str, environment: dict[str, str]) -> Any:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=600
    )


@pytest.mark.parametrize("name", MODULES)
def test_ctrl_c_while_a_module_is_imported(
    name: str, model: Path, environment: dict[str, str]
) -> None:
    done = run(AT_IMPORT.format(name=name, model=str(model)), environment)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", f"{MESSAGE}\n")


HIDDEN = """
import os, signal, sys
from proxfield.cli import main as cli_main
from proxfield.__main__ import main

{how}
sys.argv = ["proxfield", "info", {model!r}]
main()
"""
HOW = {
    "a finalizer": """
class Thing:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(1000):
            pass

def press(*_): Thing()
cli_main.LazyGroup.get_command = press
""",
    "a library that turns it into an error": """
def press(*_):
    try:
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(1000):
            pass
    except BaseException:
        raise RuntimeError("something else")
cli_main.LazyGroup.get_command = press
""",
    "the reading of arguments": """
def press(*_, **__):
    os.kill(os.getpid(), signal.SIGINT)
    for _ in range(1000):
        pass
cli_main.LazyGroup.parse_args = press
""",
}


@pytest.mark.parametrize("how", HOW)
def test_ctrl_c_inside(how: str, model: Path, environment: dict[str, str]) -> None:
    done = run(HIDDEN.format(how=HOW[how], model=str(model)), environment)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", f"{MESSAGE}\n")


SWALLOWED = """
import functools, os, signal, sys
from proxfield.__main__ import main
from proxfield.core.solve import infer as module

infer = module.infer
@functools.wraps(infer)
def press(*args, **options):
    "As a library does that catches everything."
    try:
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(1000):
            pass
    except BaseException:
        return infer(*args, **options)
module.infer = press
sys.argv = ["proxfield", "solve", {model!r}, "--budget", "60", "--json"]
main()
"""


def test_ctrl_c_that_a_library_swallows(model: Path, environment: dict[str, str]) -> None:
    """The inference ends at its next look, with what it has."""
    done = run(SWALLOWED.format(model=str(model)), environment)
    assert done.returncode == 130, done.stderr
    assert json.loads(done.stdout)["status"] == "interrupted"


def test_ctrl_c_at_the_end_is_ignored(model: Path, environment: dict[str, str]) -> None:
    """The result is out; Python is cleaning up."""
    code = (
        "import atexit, os, signal, sys\n"
        "atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))\n"
        "from proxfield.__main__ import main\n"
        "sys.argv = ['proxfield', '--version']\n"
        "main()\n"
    )
    done = run(code, environment)
    assert done.returncode == 0
    assert done.stdout.startswith("proxfield ") and done.stderr == ""


def test_a_process_that_ignores_ctrl_c_goes_on_ignoring_it(environment: dict[str, str]) -> None:
    """As under nohup or in the background of a shell."""
    code = (
        "import os, signal, sys\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "from proxfield.cli import signals\n"
        "signals.install()\n"
        "os.kill(os.getpid(), signal.SIGINT)\n"
        "print(signals.interrupted())\n"
    )
    done = run(code, environment)
    assert (done.returncode, done.stdout, done.stderr) == (0, "False\n", "")


def test_starting_up_imports_little(environment: dict[str, str]) -> None:
    """Before Ctrl-C is handled, as little as possible may be imported."""
    code = (
        "import sys\nbefore = set(sys.modules)\nimport proxfield.__main__, proxfield.cli.signals\n"
        "new = sorted(set(sys.modules) - before)\nimport json\nprint(json.dumps(new))\n"
    )
    done = run(code, environment)
    assert done.returncode == 0, done.stderr
    heavy = {"click", "contextlib", "dataclasses", "inspect", "numpy", "re", "typing", "warnings"}
    assert heavy & set(json.loads(done.stdout)) == set()


IN_AN_IMPORT = """
import os, signal, sys

class Swallow:
    "A module that is being imported meets Ctrl-C and prints it, as modules in C do."
    def find_spec(self, name, path=None, target=None):
        if name == "numpy":
            try:
                os.kill(os.getpid(), signal.SIGINT)
            except KeyboardInterrupt as error:
                print("swallowed", repr(error), file=sys.stderr)

sys.meta_path.insert(0, Swallow())
sys.argv = ["proxfield", "solve", {model!r}, "--budget", "60", "--json"]
from proxfield.__main__ import main
main()
"""


def test_ctrl_c_does_not_pass_through_imports(model: Path, environment: dict[str, str]) -> None:
    done = run(IN_AN_IMPORT.format(model=str(model)), environment)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", f"{MESSAGE}\n")


# ---- where no exception may pass ----

COMPILER = """
import os, signal, sys, time
from proxfield.cli import signals
from proxfield.core.common.interrupts import finish_first

def press():
    os.kill(os.getpid(), signal.SIGINT)

scope = {{"__name__": "llvmlite.binding.ffi", "press": press}}
exec('''
def free(times):
    done = 0
    for _ in range(times):
        press()
    for _ in range(1000):
        done += 1
    return done
''', scope)
free = scope["free"]
signals.install()
signals.begin_work()
try:
    {body}
    time.sleep(60)
except KeyboardInterrupt:
    print("KeyboardInterrupt", signals.interrupted())
"""
BODIES = {
    "waits": ("print(free(1))", "1000\nKeyboardInterrupt True\n"),
    "waits for what must not be cut off": (
        "with finish_first(): print(free(1)); time.sleep(0.1); print('whole')",
        "1000\nwhole\nKeyboardInterrupt True\n",
    ),
    "is handled by who asks": (
        "free(1); print(signals.interrupted()); time.sleep(0.2); print('after'); press()",
        "True\nafter\nKeyboardInterrupt True\n",
    ),
    "lets an update end": (
        "with finish_first(): press(); time.sleep(0.1); print('whole')",
        "whole\nKeyboardInterrupt True\n",
    ),
}


@pytest.mark.parametrize("body", BODIES)
def test_ctrl_c_in_a_compiler(body: str, environment: dict[str, str]) -> None:
    code, expected = BODIES[body]
    done = run(COMPILER.format(body=code), environment)
    assert (done.returncode, done.stdout, done.stderr) == (0, expected, "")


def test_a_second_ctrl_c_in_a_compiler_ends_the_process(environment: dict[str, str]) -> None:
    done = run(COMPILER.format(body="print(free(2))"), environment)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", f"{MESSAGE}\n")
