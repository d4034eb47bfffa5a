"""Does a built wheel work in a fresh virtual environment?

    python scripts/check_wheel.py [dist/proxfield-*.whl] [--python PYTHON ...]

For each Python (by default the one that runs this script) the wheel is installed with the extra
``images`` into a new environment with an empty cache of kernels. There the installed command solves
a UAI model, refines a generated picture and reports on its surroundings; what comes out is checked.
Needs nothing but Python; exits with 1 at the first failure.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from fresh import REFINE, SCENE, Fresh

CHECK = """
import numpy as np
from PIL import Image

guess, refined, truth = (np.asarray(Image.open(f"{n}.png")) for n in ("guess", "refined", "truth"))
print((guess != truth).mean(), (refined != truth).mean())
"""
MAX_ERROR = 0.01
"""Largest share of wrong labels in the refined picture; before, it is 0.3."""


def check(condition: bool, what: str) -> None:
    """Stop with one line if something isn't as it should be."""
    if not condition:
        raise SystemExit(f"the wheel doesn't work: {what}")


def check_wheel(wheel: Path, fresh: Fresh) -> None:
    """Install a wheel and use it."""
    version = wheel.name.split("-")[1]
    fresh.make()
    fresh.install("pip install, with images", f"{wheel}[images]")
    fresh.run("pip check", fresh.python, "-m", "pip", "check")
    said = fresh.run("--version", fresh.proxfield, "--version")
    check(version in said, f"proxfield --version says {said.strip()!r}, expected {version}")
    grid = ("make", "grid", "--rows", "20", "--cols", "20", "--strength", "3", "--repulsive")
    fresh.run("make grid", fresh.proxfield, *grid, "-o", "grid.uai")
    solved = json.loads(fresh.run("solve", fresh.proxfield, "solve", "grid.uai", "--json"))
    check(solved["status"] == "converged", f"solve ended with {solved['status']!r}")
    fresh.run("make a picture", fresh.python, "-c", SCENE)
    fresh.run("refine", fresh.proxfield, *REFINE, "-o", "refined.png")
    before, after = map(float, fresh.run("compare", fresh.python, "-c", CHECK).split())
    check(after < MAX_ERROR, f"refine leaves {after:.1%} of the labels wrong, {before:.1%} before")
    doctor = json.loads(fresh.run("doctor", fresh.proxfield, "doctor", "--json"))
    check(doctor["versions"]["proxfield"] == version, f"doctor reports {doctor['versions']}")


def find_wheel() -> Path:
    """The only wheel in dist/."""
    found = sorted((Path(__file__).resolve().parents[1] / "dist").glob("proxfield-*.whl"))
    if len(found) != 1:
        raise SystemExit(f"{len(found)} wheels in dist/: run make package, or name one")
    return found[0]


def main() -> None:
    """Check the wheel with each Python."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wheel", type=Path, nargs="?", help="by default the one in dist/")
    parser.add_argument("--python", action="append", help="may be given several times")
    args = parser.parse_args()
    wheel = args.wheel or find_wheel()
    for python in args.python or [sys.executable]:
        print(f"{wheel.name} with {python}\n| step | wall seconds | CPU seconds |\n|---|---|---|")
        with tempfile.TemporaryDirectory() as folder:
            check_wheel(wheel.resolve(), Fresh(Path(folder), python))
    print("the wheel works")


if __name__ == "__main__":
    main()
