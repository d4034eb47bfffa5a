"""Characters as a folder of pictures, for ``proxfield make characters``."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from proxfield.io.folders import new_folder
from proxfield.io.images import import_pillow, png_bytes, write_labels
from proxfield.learn.characters import Characters, CharacterSets

PALETTE = [255, 255, 255, 0, 0, 0]
"""Label 0 is white, label 1 is black."""
NAMES = {"train": "train", "test": "test", "held_out": "held-out"}
"""Folders of the sets."""

_README = """\
Chinese characters with a hole in the middle, for learning to inpaint.
Made by proxfield make characters --hole {hole} --seed {seed}.

{counts}
mask.png        the hole, the same in all images: 255 hidden, 0 visible
characters.csv  the character and the font of each image

Images are label maps (PNG with a palette): 0 is white, 1 is ink. The sets have no characters in
common{fonts}.

  proxfield fit train --mask mask.png -o model.npz
  proxfield inpaint test --mask mask.png --model model.npz -o inpainted
"""


def write_characters(
    sets: CharacterSets, folder: str | os.PathLike[str], *, hole: str, seed: int
) -> None:
    """Write sets of characters into a new or empty folder; all of it or nothing.

    Args:
        sets: What to write.
        folder: Where; see the README.txt in it for its files.
        hole: Size of the hole, for the README.
        seed: Random seed, likewise.

    Raises:
        InputError: If the folder can't be written.
        MissingDependencyError: If Pillow isn't installed.
    """
    some = {name: made for name in NAMES if (made := getattr(sets, name)) is not None}
    with new_folder(folder) as aside:
        rows = ["file,character,font"]
        for name, made in some.items():
            rows += _write_set(aside, NAMES[name], made)
        (aside / "mask.png").write_bytes(mask_bytes(sets.train.masks[0]))
        _write(aside / "characters.csv", "\n".join(rows) + "\n")
        counts = "\n".join(f"{NAMES[n] + '/':<16}{len(made)} images" for n, made in some.items())
        unseen = sets.held_out.fonts[0] if sets.held_out else None
        fonts = "" if unseen is None else f"; held-out/ is in the font {unseen}, the others aren't"
        text = _README.format(hole=hole, seed=seed, counts=counts, fonts=fonts)
        _write(aside / "README.txt", text)


def mask_bytes(mask: NDArray[np.bool_]) -> bytes:
    """A mask as a PNG file: 255 where True."""
    return png_bytes(import_pillow().fromarray(np.where(mask, 255, 0).astype(np.uint8)))


def _write_set(aside: Path, name: str, made: Characters) -> list[str]:
    """The images of a set; returns its lines of the table."""
    (aside / name).mkdir()
    rows = []
    for k, image in enumerate(made.images):
        file = f"{name}/{k:04d}.png"
        write_labels(aside / file, image, 2, palette=PALETTE)
        rows.append(f"{file},{made.text[k]},{made.fonts[k]}")
    return rows


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", newline="\n")
