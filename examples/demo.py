"""What proxfield does, in one minute and one picture: `make demo` runs this.

A photograph (one that matplotlib ships) has rough labels: blocks of 32 pixels, as a segmentation
network with a coarse output gives them. A dense CRF moves their borders to those in the image. And
five methods run on a grid whose couplings repel, where parallel updates without damping oscillate.

Run ``python examples/demo.py`` (needs matplotlib); pictures are written to the folder ``out``.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from matplotlib.cbook import get_sample_data
from matplotlib.figure import Figure
from PIL import Image, ImageDraw

import proxfield as pf
from proxfield.io.overlay import overlay

NAMES = ("wall", "flag", "face", "uniform")
COLORS = [86, 180, 233, 213, 94, 0, 240, 228, 66, 0, 158, 115]
"""Red, green and blue of each label."""
PRESET = "krahenbuehl"
"""Settings that move borders far; the default ones change little."""
BLOCK = 32
"""Pixels per side of a rough label."""
OUTLINES = (
    ("flag", "0,0 235,0 175,65 145,115 165,290 200,320 50,375 0,600"),
    ("uniform", "10,600 35,410 65,375 195,322 335,320 490,390 512,600"),
    ("face", "155,190 200,140 330,140 375,190 350,300 325,370 265,412 200,330 165,270"),
    ("uniform", "150,175 148,100 178,60 230,27 290,27 350,75 370,100 368,170"),  # the hat
)
"""Corners, drawn by hand and roughly: what a network would have to find out."""
GRID = "--rows 40 --cols 40 --strength 3 --repulsive --seed 1"
RULES = "sweep,full-parallel,adhoc,fixed,auto"


def rough_labels(width: int, height: int) -> np.ndarray:
    """Labels of the photograph in blocks.  # (height, width)"""
    drawing = Image.new("L", (width, height), 0)
    draw = ImageDraw.Draw(drawing)
    for name, corners in OUTLINES:
        numbers = [int(number) for number in corners.replace(",", " ").split()]
        draw.polygon(numbers, fill=NAMES.index(name))
    small = np.asarray(drawing)[BLOCK // 2 :: BLOCK, BLOCK // 2 :: BLOCK]
    large = np.kron(small, np.ones((BLOCK, BLOCK), dtype=small.dtype))
    return np.pad(large, ((0, BLOCK), (0, BLOCK)), mode="edge")[:height, :width]


def draw_panels(photo: np.ndarray, rough: np.ndarray, refined: np.ndarray, path: Path) -> None:
    """The photograph, its rough labels and the refined ones, side by side."""
    panels = {
        "the photograph": photo,
        f"rough labels, in blocks of {BLOCK} pixels": overlay(photo, rough, palette=COLORS),
        "refined by a dense CRF": overlay(photo, refined, palette=COLORS),
    }
    figure = Figure(figsize=(13, 5.5), layout="constrained")
    for axes, (title, picture) in zip(figure.subplots(1, 3), panels.items(), strict=True):
        axes.imshow(picture)
        axes.set_title(title)
        axes.axis("off")
    figure.savefig(path, dpi=110)


def start_comparison(out: Path) -> subprocess.Popen[str]:
    """Five methods on a grid of 40 × 40 variables, in a process of its own."""
    command = (sys.executable, "-m", "proxfield")
    grid, plot = str(out / "grid.uai"), str(out / "convergence.png")
    make = [*command, "make", "grid", *GRID.split(), "-o", grid]
    subprocess.run(make, check=True, stdout=subprocess.DEVNULL)
    return subprocess.Popen(
        [*command, "compare", grid, "--rules", RULES, "--max-iters", "2000", "--plot", plot],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )


def refine_photograph(out: Path) -> None:
    """A photograph with rough labels, which a dense CRF refines."""
    with Image.open(get_sample_data("grace_hopper.jpg")) as picture:
        photo = np.asarray(picture.convert("RGB"))
    height, width, _ = photo.shape
    rough = rough_labels(width, height)
    Image.fromarray(photo).save(out / "photo.png")
    Image.fromarray(rough).save(out / "rough.png")
    print(f"2  A photograph of {width} × {height} pixels, with labels in blocks of {BLOCK}")
    crf = pf.DenseCRF.from_labels(photo, rough, preset=PRESET)
    crf.infer()  # compiles the kernels
    begin = time.perf_counter()
    refined = crf.infer().labels
    seconds = time.perf_counter() - begin
    changed = 100 * np.mean(refined != rough)
    print(f"   refined in {seconds:.1f} s: {changed:.0f} % of the pixels have another label")
    draw_panels(photo, rough, refined, out / "demo.png")


def main() -> None:
    """Run both parts at the same time."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, default=Path("out"), help="folder")
    out: Path = parser.parse_args().output
    out.mkdir(parents=True, exist_ok=True)
    sys.stdout.reconfigure(line_buffering=True)  # also in a pipe
    print("1  Five methods on a grid whose couplings repel: they run in the background")
    comparison = start_comparison(out)
    refine_photograph(out)
    table, errors = comparison.communicate()
    if comparison.returncode:
        raise SystemExit(errors)
    print("3  The five methods have ended (the lowest F is best; auto is the default)")
    print("\n".join(f"   {line}" for line in table.splitlines()))
    refine = f"proxfield refine {out}/photo.png --labels {out}/rough.png --preset {PRESET}"
    print(f"""
Look at {out}/demo.png (the photograph) and {out}/convergence.png (how F falls).
Try next, in a shell with the environment (source .venv/bin/activate):
  {refine} -o {out}/refined.png
  proxfield solve {out}/grid.uai
  proxfield doctor""")


if __name__ == "__main__":
    main()
