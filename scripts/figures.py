"""Make the pictures of docs/images again, or check that they show what the code gives today.

    python scripts/figures.py [NAME ...]           make all pictures, or those named
    python scripts/figures.py --quick              only those that take seconds
    python scripts/figures.py --check [--quick]    compare with new ones; exits with 1 if stale

Every picture is made by one function here. `docs/images/figures.json` keeps for each the numbers it
shows and a digest of the files that draw it. The check compares the numbers, the pixels (coarsely,
since fonts differ between machines), and for pictures that take minutes the digests alone.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
RECORD = IMAGES / "figures.json"
PYTHON = sys.executable
DEMO_RULES = "sweep,full-parallel,adhoc,fixed,auto"
"""The five methods of the first picture; `make demo` draws the same."""
DEMO_GRID = "--rows 40 --cols 40 --strength 3 --repulsive --seed 1"
CELLS = 48
"""Pictures are compared as averages over at most this many cells per side."""
MEAN_DIFFERENCE, CELL_DIFFERENCE = 2.0, 40.0
"""Largest difference of two pictures that are the same, of 255: on average, and of one cell."""
NUMBER_TOLERANCE = 2e-4
Numbers = dict[str, float]


@dataclass(frozen=True)
class Picture:
    """One picture of the documentation.

    Attributes:
        make: Draws it into a folder under its own name; returns the numbers it shows.
        sources: Files that draw it.
        seconds: CPU seconds that it takes, roughly.
        modules: Packages it needs.
        fonts: Whether it needs the fonts of `proxfield make characters`.
        browser: Whether it needs Chromium on the PATH.
        part: Share of the width that is compared; the rest shows times.
    """

    make: Callable[[Path], Numbers]
    sources: tuple[str, ...]
    seconds: float
    modules: tuple[str, ...] = ("matplotlib", "PIL")
    fonts: bool = False
    browser: bool = False
    part: float = 1.0


def run(*command: str, folder: Path) -> str:
    """What a command prints; it runs in a folder."""
    done = subprocess.run(
        [PYTHON, *command], cwd=folder, capture_output=True, text=True, encoding="utf-8"
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")
    return done.stdout


def convergence(folder: Path) -> Numbers:
    """Five methods on a repulsive grid; seconds are processor time, for busy machines."""
    run("-m", "proxfield", "make", "grid", *DEMO_GRID.split(), "-o", "grid.uai", folder=folder)
    clock = str(ROOT / "benchmarks/cpu_clock.py")
    compare = ("compare", "grid.uai", "--rules", DEMO_RULES, "--max-iters", "2000")
    draw = ("--threads", "1", "--plot", "convergence.png", "--json")
    text = run(clock, *compare, *draw, folder=folder)
    return {f"F of {r['rule']}": r["free_energy"] for r in json.loads(text)["results"]}


def dense_crf(folder: Path) -> Numbers:
    """The code of the page on dense CRFs, down to the picture."""
    page = (ROOT / "docs/concepts/dense-crf.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    last = next(k for k, block in enumerate(blocks) if 'save("dense-crf.png")' in block)
    (folder / "page.py").write_text(
        "\n".join(blocks[: last + 1])
        + '\nprint("right", (guess == truth).mean(), (result.labels == truth).mean())\n',
        encoding="utf-8",
    )
    *_, before, after = run("page.py", folder=folder).split()
    return {"right before": float(before), "right after": float(after)}


def gaussian_filter(folder: Path) -> Numbers:
    """The example of the Gaussian filter."""
    target = str(folder / "gaussian-filter.png")
    text = run("examples/gaussian_filter.py", "-o", target, folder=ROOT)
    out = {}
    of = ""
    for line in text.splitlines():
        found = re.fullmatch(r"  (.*?) +([\d.]+)", line)
        if found is None:
            of = line.split(",")[0]
        else:
            out[f"error of the {of}, {found[1]}"] = float(found[2])
    return out


def inpainting(folder: Path) -> Numbers:
    """Characters completed by four models."""
    target = str(folder / "inpainting.png")
    text = run("examples/inpainting.py", "--seed", "1", "--picture", target, folder=ROOT)
    rows = re.findall(r"^(.*?) +([\d.]+) % right, log", text, re.MULTILINE)
    return {f"% right, {name}": float(share) for name, share in rows}


def paper_grid(folder: Path) -> Numbers:
    """How F falls on one of the paper's grids, from the stored results."""
    from proxfield.bench.charts import convergence as draw
    from proxfield.bench.charts import make_curves
    from proxfield.bench.store import read_records
    from proxfield.viz import save_figure

    _, records = read_records(ROOT / "benchmarks/results/paper/paper.jsonl")
    traces = [r for r in records if r["kind"] == "trace" and r["suite"] == "GRID"]
    curves = make_curves(traces, records)
    assert curves is not None
    save_figure(draw(curves), folder / "paper-grid.png")
    ends = {f"F of {rule}": float(fs[-1] or np.inf) for rule, (*_, fs) in curves.rows.items()}
    return {"lowest F": curves.lowest, **ends}


def people(folder: Path) -> Numbers:
    """The page on people: a simulated square, and what is found in its first frame."""
    from PIL import Image

    make = ("make", "people", "square", "--kind", "square", "--people", "12", "--frames", "1")
    run("-m", "proxfield", *make, folder=folder)
    options = ("--calibration", "square/calibration.json", "--grid", "0.25")
    options += ("--region=-10,-10,10,10", "--masks", "square/mask-f%f-c%c.png", "-o", "found")
    run("-m", "proxfield", "detect", *options, "--pictures", folder=folder)
    with Image.open(folder / "found/pictures/00000000.png") as image:
        small = image.convert("RGB").resize((760, round(760 * image.height / image.width)))
        small.quantize(64).save(folder / "people.png")
    rows = (folder / "found/detections.csv").read_text(encoding="utf-8").splitlines()[1:]
    return {"people found": float(len(rows))}


def studio(folder: Path) -> Numbers:
    """The studio's page with its generated scene, in Chromium."""
    target = str(folder / "studio.png")
    *_, before, after = run("scripts/studio_screenshot.py", "-o", target, folder=ROOT).split()
    return {"mean IoU before": float(before), "mean IoU after": float(after)}


def torch_training(folder: Path) -> Numbers:
    """A layer trained in four ways."""
    target = str(folder / "torch-training.png")
    text = run("examples/train_crf_layer.py", "--device", "cpu", "--picture", target, folder=ROOT)
    rows = re.findall(r"^(.*?) +([\d.]+) +([\d.]+) +[\d.]+$", text, re.MULTILINE)
    return {f"mean IoU of {name}": float(iou) for name, _, iou in rows}


def when_a_crf_helps(folder: Path) -> Numbers:
    """Two scenes, refined gently and strongly."""
    code = "import sys, refine_sets, pathlib; refine_sets.draw(pathlib.Path(sys.argv[1]))"
    run("-c", code, str(folder / "when-a-crf-helps.png"), folder=ROOT / "benchmarks")
    return {}


STUDIO_SOURCES = (
    "scripts/studio_screenshot.py",
    *(f"src/proxfield/studio/{name}" for name in ("page.py", "inputs.py", "static/studio.css")),
)
PICTURES = {
    "convergence": Picture(convergence, ("scripts/figures.py",), 4, part=0.47),
    "dense-crf": Picture(dense_crf, ("docs/concepts/dense-crf.md",), 3),
    "gaussian-filter": Picture(gaussian_filter, ("examples/gaussian_filter.py",), 5),
    "inpainting": Picture(inpainting, ("examples/inpainting.py",), 120, fonts=True),
    "paper-grid": Picture(paper_grid, ("benchmarks/results/paper/paper.jsonl",), 3),
    "people": Picture(people, ("docs/how-to/people.md",), 6),
    "studio": Picture(studio, STUDIO_SOURCES, 30, ("nicegui", "playwright"), browser=True),
    "torch-training": Picture(
        torch_training, ("examples/train_crf_layer.py",), 240, ("matplotlib", "torch")
    ),
    "when-a-crf-helps": Picture(when_a_crf_helps, ("benchmarks/refine_sets.py",), 6),
}
QUICK_SECONDS = 10
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def missing(picture: Picture) -> str | None:
    """Why a picture can't be made here; None if it can."""
    absent = [name for name in picture.modules if find_spec(name) is None]
    if absent:
        return f"{' and '.join(absent)} isn't installed"
    if picture.fonts:
        from proxfield.learn.characters import installed_fonts

        if not installed_fonts():
            return "no fonts with Chinese characters are installed"
    if picture.browser and not any(map(shutil.which, BROWSERS)):
        return "Chromium isn't on the PATH"
    return None


def digest(files: tuple[str, ...]) -> str:
    """Of the content of some files of the repository."""
    parts = [(ROOT / name).read_bytes() for name in files]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def coarse(path: Path, part: float) -> Any:
    """A picture as averages over cells, down to the share of its width that is compared."""
    from PIL import Image

    with Image.open(path) as image:
        gray = image.convert("RGB")
        gray = gray.crop((0, 0, max(1, round(part * gray.width)), gray.height))
        size = (min(CELLS, gray.width), min(CELLS, gray.height))
        return np.asarray(gray.resize(size, Image.Resampling.BOX), dtype=float)


def differences(old: Path, new: Path, part: float) -> list[str]:
    """What tells two pictures apart."""
    from PIL import Image

    with Image.open(old) as a, Image.open(new) as b:
        if a.size != b.size:
            return [f"{a.width}×{a.height} pixels, now {b.width}×{b.height}"]
    gap = np.abs(coarse(old, part) - coarse(new, part))
    if gap.mean() > MEAN_DIFFERENCE or gap.max() > CELL_DIFFERENCE:
        return [f"pixels differ by {gap.mean():.2f} on average and {gap.max():.0f} at most"]
    return []


def changed_numbers(old: Numbers, new: Numbers) -> list[str]:
    """Numbers that aren't what was recorded."""
    out = [f"{name} is no longer shown" for name in old.keys() - new.keys()]
    for name, value in new.items():
        if name not in old:
            out.append(f"{name} is new")
        elif abs(value - old[name]) > NUMBER_TOLERANCE * max(1.0, abs(old[name])):
            out.append(f"{name} was {old[name]:g}, is {value:g}")
    return out


def check(name: str, picture: Picture, record: dict[str, Any], quick: bool) -> list[str]:
    """Why a committed picture is stale."""
    committed = IMAGES / f"{name}.png"
    if not committed.exists() or name not in record:
        return ["it was never made"]
    known = record[name]
    out = []
    if hashlib.sha256(committed.read_bytes()).hexdigest()[:16] != known["picture"]:
        out.append("it isn't the recorded picture")
    if quick and picture.seconds > QUICK_SECONDS:
        if digest(picture.sources) != known["sources"]:
            out.append(f"{', '.join(picture.sources)} changed since it was made")
        return out
    with tempfile.TemporaryDirectory() as folder:
        numbers = picture.make(Path(folder))
        out += changed_numbers(known["numbers"], numbers)
        out += differences(committed, Path(folder) / f"{name}.png", picture.part)
    return out


def read_record() -> dict[str, Any]:
    """What is known of the committed pictures."""
    return json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}


def remake(name: str, picture: Picture) -> None:
    """Make a picture and record what it shows."""
    with tempfile.TemporaryDirectory() as folder:
        numbers = picture.make(Path(folder))
        data = (Path(folder) / f"{name}.png").read_bytes()
    (IMAGES / f"{name}.png").write_bytes(data)
    record = read_record()
    record[name] = {
        "picture": hashlib.sha256(data).hexdigest()[:16],
        "sources": digest(picture.sources),
        "numbers": {key: round(value, 6) for key, value in numbers.items()},
    }
    text = json.dumps(dict(sorted(record.items())), indent=1, ensure_ascii=False)
    RECORD.write_text(text + "\n", encoding="utf-8")


def main() -> None:
    """Make or check."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="of pictures; all by default")
    parser.add_argument("--check", action="store_true", help="compare, change nothing")
    parser.add_argument("--quick", action="store_true", help="leave out what takes minutes")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in PICTURES]
    if unknown:
        parser.error(f"{unknown[0]!r}, expected some of: {', '.join(PICTURES)}")
    record = read_record()
    stale = 0
    for name in options.names or PICTURES:
        picture = PICTURES[name]
        slow = options.quick and picture.seconds > QUICK_SECONDS
        why = None if slow else missing(picture)
        if options.check:
            if why is not None:
                print(f"{name}: skipped, {why}")
                continue
            problems = check(name, picture, record, options.quick)
            stale += bool(problems)
            fine = "its code hasn't changed" if slow else "up to date"
            print(f"{name}: {'; '.join(problems) or fine}", flush=True)
        elif slow or why is not None:
            print(f"{name}: skipped, {why or 'it takes minutes'}")
        else:
            remake(name, picture)
            print(f"{name}: made", flush=True)
    if stale:
        raise SystemExit(f"{stale} pictures are stale: make figures")


if __name__ == "__main__":
    main()
