"""Run an unchanged script with proxfield in the place of pydensecrf."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from proxfield.compat import install

USAGE = """usage: python -m proxfield.compat SCRIPT [ARGUMENTS ...]
       python -m proxfield.compat -m MODULE [ARGUMENTS ...]

Runs a Python script or module; where it imports pydensecrf, it gets proxfield's version."""


def main(arguments: list[str]) -> int:
    """Run what the arguments name; returns an exit code."""
    if arguments[:1] in (["-h"], ["--help"]):
        print(USAGE)
        return 0
    module = arguments[:1] == ["-m"]
    rest = arguments[1:] if module else arguments
    if not rest or (rest[0].startswith("-") and not module):
        print(USAGE, file=sys.stderr)
        return 2
    if not module and not Path(rest[0]).exists():
        print(f"python -m proxfield.compat: no file {rest[0]}", file=sys.stderr)
        return 2
    install()
    sys.argv = rest
    if module:
        sys.path.insert(0, str(Path.cwd()))
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(rest[0]).resolve().parent)
        runpy.run_path(rest[0], run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
