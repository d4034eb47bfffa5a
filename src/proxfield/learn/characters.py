"""Chinese characters with a hole in the middle, rendered from fonts: a data set for inpainting.

The characters are those of GB 2312, in several fonts, with random affine and elastic warps and
strokes of varying thickness. Train and test characters are disjoint, so that a model can't
have seen what it is to complete. Needs Pillow and some of the fonts in `FONTS`.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import distance_transform_edt, gaussian_filter, map_coordinates

from proxfield.core.common.checks import one_of, whole_number
from proxfield.core.common.extras import import_extra
from proxfield.errors import InputError, shown
from proxfield.io.folders import new_folder
from proxfield.io.images import import_pillow, png_bytes, write_labels

if TYPE_CHECKING:
    from PIL.ImageFont import FreeTypeFont

SIDE = 72
"""Height and width of an image."""
HOLES = {"small": (22, 23), "large": (32, 37)}
"""Height and width of the hole: 9.8 % and 22.8 % of the image."""
SCALE = 2
"""Glyphs are drawn so many times larger, and shrunk by the warp."""
GLYPH = 0.86
"""Height of a glyph as a share of the image."""
THICKNESS = (0.0, 1.2)
"""By how many pixels strokes grow on either side, at least and at most."""
TRIES = 200
"""Characters that are tried for one that the font has."""
REMEDY = (
    "on Debian: apt install fonts-arphic-ukai fonts-arphic-gkai00mp fonts-arphic-uming "
    "fonts-arphic-gbsn00lp fonts-wqy-zenhei fonts-noto-cjk"
)
"""Debian's packages with the fonts of `FONTS`; wqy-microhei has one of its own."""
MISSING = "\U000f0000"
"""A private character, which no font here has: what it draws stands for missing ones."""


@dataclass(frozen=True)
class Characters:
    """Images of characters.

    Attributes:
        images: 1 is ink, 0 is white.  # (n, 72, 72)
        masks: True where a pixel is hidden.  # (n, 72, 72)
        text: The characters, one each.
        fonts: The names of their fonts.
    """

    images: NDArray[np.int64]
    masks: NDArray[np.bool_]
    text: str
    fonts: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.images)


@dataclass(frozen=True)
class CharacterSets:
    """What a model is trained and tested on; no character is in two of the sets.

    Attributes:
        train: For training.
        test: For testing, in the same fonts.
        held_out: For testing, in a font that isn't in the others; None without one.
    """

    train: Characters
    test: Characters
    held_out: Characters | None


def gb2312() -> str:
    """The 6,763 characters of GB 2312, the frequent ones first.

    Example:
        >>> len(gb2312()), gb2312()[0]
        (6763, '啊')
    """
    cells = ((row, column) for row in range(0xB0, 0xF8) for column in range(0xA1, 0xFF))
    codes = (bytes(cell).decode("gb2312", "ignore") for cell in cells)
    return "".join(codes)


def hole_mask(hole: str = "small", side: int = SIDE) -> NDArray[np.bool_]:
    """True in a rectangle in the middle.  # (side, side)

    Example:
        >>> [round(100 * float(hole_mask(name).mean()), 1) for name in ("small", "large")]
        [9.8, 22.8]
    """
    one_of("hole", hole, HOLES)
    height, width = HOLES[hole]
    top, left = (side - height) // 2, (side - width) // 2
    out = np.zeros((side, side), dtype=bool)
    out[top : top + height, left : left + width] = True
    return out


def make_characters(
    train: int = 300,
    test: int = 100,
    *,
    hole: str = "small",
    fonts: Sequence[str] | None = None,
    held_out: str | None = None,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> CharacterSets:
    """Render characters for training and testing.

    The same arguments give the same images, as long as fonts and FreeType are the same.

    Args:
        train: Number of training images.
        test: Number of test images, and of those in the font that is held out.
        hole: "small" (9.8 % of the image is hidden) or "large" (22.8 %).
        fonts: Names of fonts; those of `FONTS` that are installed by default, mostly Kai.
        held_out: The name of a font for a second test set; the other sets don't use it.
        seed: Random seed.
        progress: Called with the number of images that are done.

    Returns:
        The sets.

    Raises:
        InputError: If an argument is wrong or a font is missing.
        MissingDependencyError: If Pillow isn't installed.
    """
    counts = [whole_number(train, "train", 1), whole_number(test, "test", 1)]
    counts += [counts[1]] if held_out else []
    mask = hole_mask(hole)
    whole_number(seed, "seed", 0)
    every = gb2312()
    if sum(counts) > len(every) // 2:
        raise InputError(f"{sum(counts)} characters, expected at most {len(every) // 2}")
    chosen = choose_fonts(None if fonts is None else tuple(fonts), held_out)
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(every))
    sets: list[Characters] = []
    # each set draws from characters of its own: some are passed over, where fonts lack them
    bounds = np.rint(np.cumsum([0, *counts]) / sum(counts) * len(every)).astype(int)
    for k, count in enumerate(counts):
        characters = [every[c] for c in order[bounds[k] : bounds[k + 1]]]
        weights = {str(held_out): 1} if k == 2 else chosen
        names, share = list(weights), np.array(list(weights.values())) / sum(weights.values())
        left = iter(characters)
        images, text, used = [], [], []
        for number in range(count):  # random numbers of its own: more images don't change the first
            rng = np.random.default_rng([seed, k, number])
            name = names[int(rng.choice(len(names), p=share))]
            font = open_font(name, round(GLYPH * SIDE * SCALE))
            missing = font.getmask(MISSING)
            for character in islice(left, TRIES):
                found = font.getmask(character)
                if found.size != missing.size or bytes(found) != bytes(missing):
                    break
            else:
                raise InputError(
                    f"the font {name} lacks most characters of GB 2312, expected others"
                )
            images.append(render(character, font, rng))
            text.append(character)
            used.append(name)
            if progress is not None:
                progress(sum(map(len, sets)) + number + 1)
        masks = np.repeat(mask[None], count, axis=0)
        sets.append(Characters(np.array(images, np.int64), masks, "".join(text), tuple(used)))
    return CharacterSets(sets[0], sets[1], sets[2] if held_out else None)


def render(character: str, font: FreeTypeFont, rng: np.random.Generator) -> NDArray[np.bool_]:
    """A character, warped at random.  # (72, 72)

    Pixels are looked up in the distance to the strokes, so that a threshold sets the thickness.
    """
    from PIL import Image, ImageDraw

    side = SIDE * SCALE
    picture = Image.new("L", (side, side))
    left, top, right, bottom = font.getbbox(character)
    at = ((side - right - left) / 2, (side - bottom - top) / 2)
    ImageDraw.Draw(picture).text(at, character, fill=255, font=font)
    ink = np.array(picture) >= 128
    distance = distance_transform_edt(~ink) - distance_transform_edt(ink)
    # where each pixel comes from, relative to the center, in pixels
    angle = rng.normal(0, math.radians(3))
    shear = rng.normal(0, 0.05, size=2)
    zoom = np.exp(rng.normal(0, 0.05, size=2))
    turn = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    matrix = turn @ (np.diag(zoom) + np.array([[0, shear[0]], [shear[1], 0]]))
    shift = rng.normal(0, 1.0, size=(2, 1, 1))
    grid = np.mgrid[0:SIDE, 0:SIDE] - (SIDE - 1) / 2
    bend = np.stack([gaussian_filter(rng.normal(size=(SIDE, SIDE)), 8) for _ in range(2)])
    bend *= rng.uniform(0, 1.2) / bend.std()
    where = (np.tensordot(matrix, grid, axes=1) + shift + bend) * SCALE + (side - 1) / 2
    height = map_coordinates(distance, where, order=1, mode="nearest")
    return np.asarray(height <= SCALE * rng.uniform(*THICKNESS))


# ---- fonts ----

FONT_FOLDERS = {
    "win32": ("$WINDIR/Fonts",),
    "darwin": ("/Library/Fonts", "~/Library/Fonts"),
    "linux": (
        *("/usr/share/fonts", "/usr/local/share/fonts"),
        *("~/.local/share/fonts", "~/.fonts"),
    ),
}
FONTS = {
    "ukai": ("ukai.ttc", 0, 4),
    "gkai": ("gkai00mp.ttf", 0, 4),
    "uming": ("uming.ttc", 0, 1),
    "sungti": ("gbsn00lp.ttf", 0, 1),
    "zenhei": ("wqy-zenhei.ttc", 0, 1),
    "noto-serif": ("NotoSerifCJK-Regular.ttc", 2, 1),
    "noto-sans": ("NotoSansCJK-Regular.ttc", 2, 0),
    "microhei": ("wqy-microhei.ttc", 0, 0),
}
"""Fonts that are looked for: Kai (as if written by a brush) twice, Song three times, Hei. By name
the file, the number in a file of several fonts, and how often it is drawn, relative to the others;
0 if only when it is asked for."""


def installed_fonts() -> dict[str, Path]:
    """Files of the fonts of `FONTS` that are on this machine, by name.

    They are looked for where the system keeps fonts; ``PROXFIELD_FONTS`` names other folders.
    """
    usual = FONT_FOLDERS.get(sys.platform, FONT_FOLDERS["linux"])
    folders = os.environ.get("PROXFIELD_FONTS", os.path.expandvars(os.pathsep.join(usual)))
    files: dict[str, Path] = {}
    for folder in (Path(part).expanduser() for part in folders.split(os.pathsep) if part):
        for path in sorted(folder.rglob("*")) if folder.is_dir() else ():
            files.setdefault(path.name, path)
    return {name: files[file] for name, (file, _, _) in FONTS.items() if file in files}


def choose_fonts(names: tuple[str, ...] | None, held_out: str | None) -> dict[str, int]:
    """Names and weights of the fonts to draw from; None: those with a weight in `FONTS`."""
    here = installed_fonts()
    for name in (*(names or ()), *([held_out] if held_out else [])):
        if name not in FONTS:
            raise InputError(f"unknown font {shown(name)}, expected some of: {', '.join(FONTS)}")
        if name not in here:
            raise InputError(f"the font {name} ({FONTS[name][0]}) isn't installed; {REMEDY}")
    usual = {name: weight for name, (_, _, weight) in FONTS.items() if weight}
    wanted = dict.fromkeys(names, 1) if names else usual
    chosen = {name: weight for name, weight in wanted.items() if name in here and name != held_out}
    if not chosen:
        what = "no font with Chinese characters is installed" if not here else "no font is left"
        raise InputError(f"{what}; {REMEDY}")
    return chosen


@cache
def open_font(name: str, size: int) -> FreeTypeFont:
    """A font at a size in pixels."""
    fonts = import_extra("PIL.ImageFont", "characters need Pillow", "images")
    path = installed_fonts()[name]
    try:
        found: FreeTypeFont = fonts.truetype(str(path), size, index=FONTS[name][1])
        return found
    except OSError as error:
        raise InputError(f"can't read the font ({error})", path=str(path)) from None


# ---- files ----

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
    """Write sets of characters into a new or empty folder, all of it or nothing.

    Its README.txt says how they were made, and which files there are.
    """
    some = {NAMES[name]: made for name in NAMES if (made := getattr(sets, name)) is not None}
    with new_folder(folder) as aside:
        rows = ["file,character,font"]
        for name, made in some.items():
            (aside / name).mkdir()
            for k, image in enumerate(made.images):
                file = f"{name}/{k:04d}.png"
                write_labels(aside / file, image, 2, palette=PALETTE)
                rows.append(f"{file},{made.text[k]},{made.fonts[k]}")
        mask = np.where(sets.train.masks[0], 255, 0).astype(np.uint8)
        (aside / "mask.png").write_bytes(png_bytes(import_pillow().fromarray(mask)))
        counts = "\n".join(f"{name + '/':<16}{len(made)} images" for name, made in some.items())
        unseen = sets.held_out.fonts[0] if sets.held_out else None
        fonts = "" if unseen is None else f"; held-out/ is in the font {unseen}, the others aren't"
        text = _README.format(hole=hole, seed=seed, counts=counts, fonts=fonts)
        for file, content in (("characters.csv", "\n".join(rows) + "\n"), ("README.txt", text)):
            (aside / file).write_text(content, encoding="utf-8", newline="\n")
