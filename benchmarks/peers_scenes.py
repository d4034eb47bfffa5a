"""Road scenes as ``proxfield bench peers --scenes`` reads them.

    python benchmarks/peers_scenes.py --data FOLDER --out DIR [--every 5]

FOLDER is that of ``camvid.py``. Every fifth of its 26 images is written to DIR as an ``.npz`` file
with the arrays image, probabilities and truth (255 where there is none).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from proxfield.bench.peers.problems import VOID as UNKNOWN
from tune_camvid import VOID, read_scenes


def main() -> None:
    """Write them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--every", type=int, default=5)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for number, (image, p, truth) in enumerate(read_scenes(options.data)):
        if number % options.every == 0:
            known = np.where(truth == VOID, UNKNOWN, truth)
            path = options.out / f"scene-{number:02}.npz"
            np.savez(path, image=image, probabilities=p.astype(np.float32), truth=known)


if __name__ == "__main__":
    main()
