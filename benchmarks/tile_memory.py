"""Memory of `refine_tiles` over a zarr image of 20,000×20,000 pixels, of which a part is filled.

    python benchmarks/tile_memory.py FOLDER [--tiles N] [--tile N] [--preset NAME] [--json FILE]

FOLDER gets the arrays (some hundreds of MB), made by a process of their own. Tiles are those of the
second row and the next ones: the first has less of a halo. Resident memory is read after each tile;
the largest ever is that of the operating system, with Python and all libraries.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import time
from multiprocessing import Process
from pathlib import Path

import numpy as np
import zarr

import proxfield as pf

SIDE = 20_000
CHUNK = 1000
NOISE = 3.0
"""Levels of noise, as in a photograph; more noise makes more vertices, and these take memory."""


def texture(rng: np.random.Generator) -> np.ndarray:
    """A picture of soft areas with noise."""
    coarse = rng.normal(size=(26, 26, 3))
    weight = np.linspace(0, 24.99, CHUNK)
    first = weight.astype(int)
    share = (weight - first)[:, None, None]
    rows = coarse[first] * (1 - share) + coarse[first + 1] * share
    share = (weight - first)[None, :, None]
    smooth = rows[:, first] * (1 - share) + rows[:, first + 1] * share
    values = 128 + 50 * smooth + rng.normal(scale=NOISE, size=smooth.shape)
    return values.clip(0, 255).astype(np.uint8)


def make_arrays(folder: Path, filled_rows: int) -> None:
    """An image and probabilities, sparse but for the first rows."""
    shape, chunks = (SIDE, SIDE), (CHUNK, CHUNK)
    image = zarr.open(
        str(folder / "image.zarr"), mode="w", shape=(*shape, 3), chunks=(*chunks, 3), dtype="u1"
    )
    p = zarr.open(
        str(folder / "p.zarr"), mode="w", shape=(*shape, 2), chunks=(*chunks, 2), dtype="f4",
        fill_value=0.5,
    )  # fmt: skip
    picture = texture(np.random.default_rng(0))
    bright = (0.1 + 0.8 * picture.mean(axis=-1) / 255).astype(np.float32)
    for y in range(0, filled_rows, CHUNK):
        for x in range(0, SIDE, CHUNK):
            area = slice(y, y + CHUNK), slice(x, x + CHUNK)
            image[area] = picture
            p[area] = np.stack([1 - bright, bright], axis=-1)


def resident() -> float:
    """MiB in use now."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    return float("nan")


def peak() -> float:
    """MiB at most so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tiles", type=int, default=100)
    parser.add_argument("--tile", type=int, default=1024)
    parser.add_argument("--preset", default="gentle")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    across = -(-SIDE // options.tile)
    down = 1 + -(-options.tiles // across)
    maker = Process(target=make_arrays, args=(options.folder, min(SIDE, (down + 1) * options.tile)))
    maker.start()
    maker.join()
    shutil.rmtree(options.folder / "out.zarr.tiles", ignore_errors=True)
    before, rows = peak(), []
    begun = time.process_time()

    def noted(done: int, _: int) -> None:
        rows.append([done, round(resident(), 1), round(peak(), 1)])
        if done % 10 == 0 or done < 10:
            print(f"{done} tiles: {rows[-1][1]} MiB, at most {rows[-1][2]}", flush=True)

    paths = [options.folder / name for name in ("image.zarr", "p.zarr", "out.zarr")]
    found = pf.refine_tiles(
        *paths,
        tile=options.tile,
        parts=range(across, across + options.tiles),
        preset=options.preset,
        threads=1,
        callback=noted,
    )
    seconds = time.process_time() - begun
    data = {
        "proxfield": pf.__version__,
        "preset": options.preset,
        "pixels": list(found.pixels),
        "tile": options.tile,
        "halo": list(found.halo),
        "tiles": options.tiles,
        "before_mib": round(before, 1),
        "peak_mib": rows[-1][2],
        "peak_after_10_tiles_mib": rows[min(10, len(rows) - 1)][2],
        "cpu_seconds": round(seconds, 1),
        "tiles_resident_peak": rows,
    }
    print(json.dumps({k: v for k, v in data.items() if k != "tiles_resident_peak"}))
    if options.json is not None:
        options.json.write_text(json.dumps(data) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
