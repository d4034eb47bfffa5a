"""How long does it take from ``git clone`` to the first refined photograph?

Does what a newcomer does, in an empty folder and with empty caches: clone, virtual environment,
``pip install ".[images]"``, ``proxfield refine``. Needs nothing but Python and git.

    python benchmarks/newcomer.py [--python PYTHON] [--photo FILE] [--json FILE]

Each step is printed with its wall time and its CPU time (user and system time of all processes it
started). CPU time depends less on what else the machine does, and not on the network.
Without ``--photo`` the image is generated, 500×375 pixels with texture; the labels to refine are
noisy in either case (three pixels in ten are wrong).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

CLONE = Path(__file__).resolve().parents[1]
INPUTS = """
import sys
import numpy as np
from PIL import Image

rng = np.random.default_rng(0)
if len(sys.argv) > 1:
    image = Image.open(sys.argv[1]).convert("RGB")
    pixels = np.asarray(image)
    truth = (pixels.mean(axis=-1) > pixels.mean()).astype(np.uint8)
else:
    y, x = np.mgrid[:375, :500]
    truth = ((x - 250) ** 2 + (y - 190) ** 2 < 130**2).astype(np.uint8)
    colors = np.array([[70, 120, 180], [210, 90, 50]])[truth]
    pixels = (colors + rng.normal(scale=12, size=(375, 500, 3))).clip(0, 255).astype(np.uint8)
    image = Image.fromarray(pixels)
image.save("photo.png")
Image.fromarray(np.where(rng.random(truth.shape) < 0.3, 1 - truth, truth)).save("guess.png")
"""


def run(*command: str | Path, cwd: Path, env: dict[str, str]) -> dict[str, float]:
    """Run one step to its end; returns its wall and CPU seconds."""
    before, begun = os.times(), time.perf_counter()
    subprocess.run([str(part) for part in command], cwd=cwd, env=env, check=True)
    after = os.times()
    cpu = (
        after.children_user + after.children_system - before.children_user - before.children_system
    )
    return {"wall": time.perf_counter() - begun, "cpu": cpu}


def measure(folder: Path, python: str, photo: Path | None) -> dict[str, dict[str, float]]:
    """All steps, in an empty folder."""
    hidden = ("VIRTUAL_ENV", "PYTHONPATH", "XDG_CACHE_HOME", "PROXFIELD_CACHE_DIR")
    env = {name: value for name, value in os.environ.items() if name not in hidden}
    env |= {"PIP_CACHE_DIR": str(folder / "pip"), "PROXFIELD_CACHE_DIR": str(folder / "kernels")}
    clone, bin = folder / "proxfield", folder / "venv" / ("Scripts" if os.name == "nt" else "bin")
    refine = (bin / "proxfield", "refine", "photo.png", "--labels", "guess.png")
    steps: dict[str, tuple[str | Path, ...]] = {
        "git clone": ("git", "clone", "--quiet", f"file://{CLONE}", clone),
        "python -m venv": (python, "-m", "venv", folder / "venv"),
        'pip install ".[images]"': (
            *(bin / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
            f"{clone}[images]",
        ),
        "make the inputs": (bin / "python", "-c", INPUTS, *([photo] if photo else [])),
        "proxfield refine, the first": (*refine, "-o", "refined.png"),
        "proxfield refine, again": (*refine, "-o", "again.png"),
    }
    found = {}
    for name, command in steps.items():
        found[name] = row = run(*command, cwd=folder, env=env)
        print(f"| {name} | {row['wall']:.1f} | {row['cpu']:.1f} |", flush=True)
    return found


def total(steps: dict[str, dict[str, float]], what: str) -> float:
    """Seconds to the first refined photograph: without the last step and the inputs."""
    return sum(
        row[what]
        for name, row in steps.items()
        if name not in ("make the inputs", "proxfield refine, again")
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", default=sys.executable, help="makes the virtual environment")
    parser.add_argument("--photo", type=Path, help="an image of your own")
    parser.add_argument("--json", type=Path, help="write the figures here")
    args = parser.parse_args()
    print("| step | wall seconds | CPU seconds |\n|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        steps = measure(Path(folder), args.python, args.photo and args.photo.resolve())
    about: dict[str, Any] = {
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "python": args.python,
    }
    out = {**about, "steps": steps, "wall": total(steps, "wall"), "cpu": total(steps, "cpu")}
    print(f"| **to the first refined photograph** | {out['wall']:.1f} | {out['cpu']:.1f} |")
    if args.json:
        args.json.write_text(json.dumps(out, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
