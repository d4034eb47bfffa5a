"""How many images a second ``proxfield refine --device cuda`` refines, with decoding and writing.

Makes a folder of pictures of 500×375 pixels (JPEG and PNG in turn) and of probabilities (21 labels,
float32 .npy), runs the command on a few of them so that kernels are compiled, then on all, once
for each filter, and reports images over seconds: those of the whole command, start included, and
those that it counts itself, from the first file read to the last one written.

    python benchmarks/gpu_folder.py [--images 150] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from gpu_call import softmaps
from gpu_dense import made_image


def fill(folder: Path, count: int, labels: int) -> None:
    """Pictures and probabilities; shifted, so that no two are alike."""
    image, p = made_image(375, 500), softmaps(375, 500, labels)
    for part in ("photos", "probs", "few", "few_probs"):
        (folder / part).mkdir()
    for k in range(count):
        name = f"{k:04d}"
        picture = Image.fromarray(np.roll(image, 37 * k, axis=1))
        picture.save(folder / "photos" / f"{name}.{'png' if k % 2 else 'jpg'}")
        np.save(folder / "probs" / f"{name}.npy", np.roll(p, 11 * k, axis=0))
    for path in sorted((folder / "photos").iterdir())[:4]:
        os.link(path, folder / "few" / path.name)
        os.link(folder / "probs" / f"{path.stem}.npy", folder / "few_probs" / f"{path.stem}.npy")


def refine(folder: Path, photos: str, probs: str, out: str, options: list[str]) -> dict[str, Any]:
    """Run the command; its summary, and the seconds of the whole process."""
    command = [sys.executable, "-m", "proxfield", "refine", str(folder / photos), "--probs"]
    command += [str(folder / probs), "-o", str(folder / out), "--json"]
    command += ["--preset", "krahenbuehl", *options]
    begin = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    spent = time.perf_counter() - begin
    summary = json.loads(done.stdout)
    summary.pop("files")
    return {**summary, "process seconds": spent}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=150)
    parser.add_argument("--labels", type=int, default=21)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    lines = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        fill(folder, options.images, options.labels)
        for filter in ("lattice", "exact"):
            more = ["--device", options.device, "--filter", filter]
            refine(folder, "few", "few_probs", f"few_{filter}", more)
            found = refine(folder, "photos", "probs", f"out_{filter}", more)
            assert found["refined"] == options.images, found
            assert len(list((folder / f"out_{filter}").glob("*.png"))) == options.images
            line = {
                "filter": filter,
                "images": options.images,
                "seconds": found["seconds"],
                "images a second": options.images / found["seconds"],
                "process seconds": found["process seconds"],
                "images a second, whole process": options.images / found["process seconds"],
            }
            print(line, flush=True)
            lines.append(line)
    if options.json:
        options.json.write_text(json.dumps({"cores": os.cpu_count(), "folders": lines}, indent=1))


if __name__ == "__main__":
    main()
