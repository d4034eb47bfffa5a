"""Labels of tiles compared with those of the whole image, near the seams, for several halos.

Photographs with a network's probabilities (CamVid, see camvid.py), enlarged; two tiles, the seam in
the middle, at the settings 80/13 ("krahenbuehl") and 40/5 ("gentle").

    python benchmarks/tile_seams.py --data FOLDER [--sigmas 1.6,auto] [--enlarge 4] [--json FILE]

FOLDER holds camvid_val/<stem>.png and camvid_unary/<stem>.npz.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import proxfield as pf
from camvid import read_unary

STEMS = ("0016E5_07959", "0016E5_08055", "0016E5_08159")
SETTINGS = {"krahenbuehl": "80/13", "gentle": "40/5"}
NEAR = 16
"""Pixels on either side of a seam that are compared."""


def measure(data: Path, stem: str, enlarge: int, sigmas: list[str]) -> list[dict[str, Any]]:
    """Agreement of one photograph at all settings and halos."""
    with Image.open(data / f"camvid_val/{stem}.png") as picture:
        size = (picture.width * enlarge, picture.height * enlarge)
        image = np.asarray(picture.convert("RGB").resize(size, Image.Resampling.BICUBIC))
    p = read_unary(data / f"camvid_unary/{stem}.npz", image.shape[:2])
    middle = size[0] // 2
    rows = []
    for preset, name in SETTINGS.items():
        begun = time.process_time()
        whole = pf.DenseCRF(image, p, preset=preset).infer(threads=1).labels
        seconds = time.process_time() - begun
        for sigma in sigmas:
            width = pf.PRESETS[preset].bilateral_sigma
            halo = sigma if sigma == "auto" else round(float(sigma) * width)
            labels = np.zeros(image.shape[:2], dtype=np.uint8)
            begun = time.process_time()
            found = pf.refine_tiles(
                image, p, labels, tile=(size[1], middle), halo=halo, preset=preset, threads=1
            )
            same = labels == whole
            near = same[:, middle - NEAR : middle + NEAR]
            rows.append({
                "photograph": stem,
                "pixels": list(image.shape[:2]),
                "settings": name,
                "halo_sigmas": sigma,
                "halo": found.halo[1],
                "near_equal_percent": 100 * float(near.mean()),
                "near_different": int((~near).sum()),
                "near_pixels": near.size,
                "all_equal_percent": 100 * float(same.mean()),
                "whole_cpu_seconds": seconds,
                "tiles_cpu_seconds": time.process_time() - begun,
            })  # fmt: skip
            print(json.dumps(rows[-1]), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--sigmas", default="1.6,2.4,3.2,4,auto")
    parser.add_argument("--enlarge", type=int, default=4)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    sigmas = options.sigmas.split(",")
    rows = [row for s in STEMS for row in measure(options.data, s, options.enlarge, sigmas)]
    for name in SETTINGS.values():
        for sigma in sigmas:
            of = [r for r in rows if r["settings"] == name and r["halo_sigmas"] == sigma]
            total = sum(r["near_pixels"] for r in of)
            equal = 100 * (1 - sum(r["near_different"] for r in of) / total)
            least = min(r["near_equal_percent"] for r in of)
            print(f"{name}, halo {sigma} σ: {equal:.4f} % equal, least {least:.4f} %")
    if options.json is not None:
        data = {"proxfield": pf.__version__, "python": platform.python_version(), "rows": rows}
        options.json.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
