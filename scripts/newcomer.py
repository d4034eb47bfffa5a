"""How long does it take from ``git clone`` to the first refined photograph?

Does what a newcomer does, in an empty folder and with empty caches: clone, virtual environment,
``pip install ".[images]"``, ``proxfield refine``. Needs nothing but Python and git.

    python scripts/newcomer.py [--python PYTHON] [--photo FILE] [--json FILE]

Each step is printed with its wall and its CPU time. CPU time depends less on what else the machine
does, and not on the network. Without ``--photo`` the image is generated: 500×375 pixels, textured.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from pathlib import Path

from fresh import REFINE, SCENE, Fresh

CLONE = Path(__file__).resolve().parents[1]
BESIDES = ("make the inputs", "proxfield refine, again")
"""Steps that don't count."""


def measure(fresh: Fresh, photo: Path | None) -> None:
    """All steps."""
    clone = fresh.folder / "proxfield"
    fresh.env["PIP_CACHE_DIR"] = str(fresh.folder / "pip")
    fresh.run("git clone", "git", "clone", "--quiet", CLONE.as_uri(), clone)
    fresh.make()
    fresh.install('pip install ".[images]"', f"{clone}[images]")
    fresh.run("make the inputs", fresh.python, "-c", SCENE, *([photo] if photo else []))
    fresh.run("proxfield refine", fresh.proxfield, *REFINE, "-o", "refined.png")
    fresh.run("proxfield refine, again", fresh.proxfield, *REFINE, "-o", "again.png")


def main() -> None:
    """Measure, print a table, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", default=sys.executable, help="makes the virtual environment")
    parser.add_argument("--photo", type=Path, help="an image of your own")
    parser.add_argument("--json", type=Path, help="write the figures here")
    args = parser.parse_args()
    print("| step | wall seconds | CPU seconds |\n|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        fresh = Fresh(Path(folder), args.python)
        measure(fresh, args.photo and args.photo.resolve())
        version = fresh.run("python --version", fresh.python, "--version").split()[1]
    counted = [row for name, row in fresh.seconds.items() if name not in BESIDES]
    wall, cpu = (sum(row[what] for row in counted) for what in ("wall", "cpu"))
    print(f"| **to the first refined photograph** | {wall:.1f} | {cpu:.1f} |")
    if args.json:
        load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
        about = {"system": platform.platform(), "cores": os.cpu_count(), "load": load}
        out = {**about, "python": version, "steps": fresh.seconds, "wall": wall, "cpu": cpu}
        args.json.write_text(json.dumps(out, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
