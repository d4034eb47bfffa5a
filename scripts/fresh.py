"""Fresh virtual environments and timed commands for the other scripts; needs only Python."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

SCENE = """
import sys
import numpy as np
from PIL import Image

rng = np.random.default_rng(0)
if len(sys.argv) > 1:
    pixels = np.asarray(Image.open(sys.argv[1]).convert("RGB"))
    truth = (pixels.mean(axis=-1) > pixels.mean()).astype(np.uint8)
else:
    y, x = np.mgrid[:375, :500]
    truth = ((x - 250) ** 2 + (y - 190) ** 2 < 130**2).astype(np.uint8)  # a disc
    colors = np.array([[70, 120, 180], [210, 90, 50]])[truth]
    pixels = (colors + rng.normal(scale=12, size=(375, 500, 3))).clip(0, 255).astype(np.uint8)
Image.fromarray(pixels).save("photo.png")
Image.fromarray(truth).save("truth.png")
Image.fromarray(np.where(rng.random(truth.shape) < 0.3, 1 - truth, truth)).save("guess.png")
"""
"""Writes photo.png, truth.png and guess.png (three labels in ten are wrong); takes a photograph."""
REFINE = ("refine", "photo.png", "--labels", "guess.png", "--preset", "krahenbuehl")


class Fresh:
    """An empty folder with a virtual environment to be made in it, and caches of its own.

    Args:
        folder: An empty folder.
        python: The Python that makes the environment.
    """

    def __init__(self, folder: Path, python: str) -> None:
        self.folder, self.base = folder, python
        windows = os.name == "nt"
        self.bin = folder / "venv" / ("Scripts" if windows else "bin")
        self.python = self.bin / ("python.exe" if windows else "python")
        self.proxfield = self.bin / ("proxfield.exe" if windows else "proxfield")
        hidden = ("VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME")
        self.env = {name: value for name, value in os.environ.items() if name not in hidden}
        self.env["PROXFIELD_CACHE_DIR"] = str(folder / "kernels")
        self.seconds: dict[str, dict[str, float]] = {}

    def make(self) -> None:
        """Make the virtual environment."""
        self.run("python -m venv", self.base, "-m", "venv", self.folder / "venv")

    def install(self, name: str, *requirements: str) -> None:
        """Install what pip takes."""
        pip = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        self.run(name, self.python, *pip, *requirements)

    def run(self, name: str, *command: str | Path) -> str:
        """Run a step in the folder, print its wall and CPU seconds, and return its output.

        CPU time is user and system time of the process and of all that it started.
        """
        before, begun = os.times(), time.perf_counter()
        done = subprocess.run(
            [str(part) for part in command],
            cwd=self.folder,
            env=self.env,
            stdout=subprocess.PIPE,
            encoding="utf-8",
        )
        wall, after = time.perf_counter() - begun, os.times()
        user = after.children_user - before.children_user
        cpu = user + after.children_system - before.children_system
        if done.returncode:
            print(done.stdout)
            raise SystemExit(f"{name} failed with exit code {done.returncode}")
        self.seconds[name] = {"wall": wall, "cpu": cpu}
        print(f"| {name} | {wall:.1f} | {cpu:.1f} |", flush=True)
        return done.stdout
