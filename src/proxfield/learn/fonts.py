"""Fonts with Chinese characters that are installed on this machine. Needs Pillow."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from proxfield.core.common.extras import import_extra
from proxfield.errors import InputError, shown

if TYPE_CHECKING:
    from PIL.ImageFont import FreeTypeFont

PACKAGES = (
    "fonts-arphic-ukai fonts-arphic-gkai00mp fonts-arphic-uming fonts-arphic-gbsn00lp "
    "fonts-wqy-zenhei fonts-noto-cjk"
)
"""Debian's packages with the fonts of `FONTS`; wqy-microhei has one of its own."""
MISSING = "\U000f0000"
"""A private character, which no font here has: what it draws stands for missing ones."""


@dataclass(frozen=True)
class Font:
    """A font by name.

    Attributes:
        name: Its name here.
        file: Name of its file.
        face: Its number in a file of several fonts.
        weight: How often it is drawn, relative to the others; 0 if only when it is asked for.
    """

    name: str
    file: str
    face: int
    weight: int


FONTS = (
    Font("ukai", "ukai.ttc", 0, 4),
    Font("gkai", "gkai00mp.ttf", 0, 4),
    Font("uming", "uming.ttc", 0, 1),
    Font("sungti", "gbsn00lp.ttf", 0, 1),
    Font("zenhei", "wqy-zenhei.ttc", 0, 1),
    Font("noto-serif", "NotoSerifCJK-Regular.ttc", 2, 1),
    Font("noto-sans", "NotoSansCJK-Regular.ttc", 2, 0),
    Font("microhei", "wqy-microhei.ttc", 0, 0),
)
"""Fonts that are looked for: Kai (as if written by a brush) twice, Song three times, Hei."""


def font_folders() -> list[Path]:
    """Folders in which this system keeps fonts; ``PROXFIELD_FONTS`` names others instead."""
    own = os.environ.get("PROXFIELD_FONTS")
    if own is not None:
        return [Path(part) for part in own.split(os.pathsep) if part]
    home = Path.home()
    if sys.platform == "win32":
        return [Path(os.environ.get("WINDIR", "C:/Windows")) / "Fonts"]
    if sys.platform == "darwin":
        return [Path("/Library/Fonts"), home / "Library/Fonts"]
    shared = [Path("/usr/share/fonts"), Path("/usr/local/share/fonts")]
    return [*shared, home / ".local/share/fonts", home / ".fonts"]


def installed_fonts() -> dict[str, Path]:
    """Files of the fonts of `FONTS` that are on this machine, by name."""
    files: dict[str, Path] = {}
    for folder in font_folders():
        for path in sorted(folder.rglob("*")) if folder.is_dir() else ():
            files.setdefault(path.name, path)
    return {font.name: files[font.file] for font in FONTS if font.file in files}


def choose_fonts(names: tuple[str, ...] | None, held_out: str | None) -> dict[str, int]:
    """Names and weights of the fonts to draw from.

    Args:
        names: Names of fonts, each drawn equally often; None: those with a weight in `FONTS`.
        held_out: The name of a font that isn't drawn from.

    Raises:
        InputError: If a font is unknown or isn't installed, or none is left.
    """
    known, here = {font.name: font for font in FONTS}, installed_fonts()
    for name in (*(names or ()), *([held_out] if held_out else [])):
        if name not in known:
            raise InputError(f"unknown font {shown(name)}, expected some of: {', '.join(known)}")
        if name not in here:
            raise InputError(f"the font {name} ({known[name].file}) isn't installed; {remedy()}")
    wanted = dict.fromkeys(names, 1) if names else {f.name: f.weight for f in FONTS if f.weight}
    chosen = {name: weight for name, weight in wanted.items() if name in here and name != held_out}
    if not chosen:
        what = "no font with Chinese characters is installed" if not here else "no font is left"
        raise InputError(f"{what}; {remedy()}")
    return chosen


def remedy() -> str:
    """How to get fonts."""
    return f"on Debian: apt install {PACKAGES}"


@cache
def open_font(name: str, size: int) -> FreeTypeFont:
    """A font at a size in pixels."""
    fonts = import_extra("PIL.ImageFont", "characters need Pillow", "images")
    font = next(font for font in FONTS if font.name == name)
    path = installed_fonts()[name]
    try:
        found: FreeTypeFont = fonts.truetype(str(path), size, index=font.face)
        return found
    except OSError as error:
        raise InputError(f"can't read the font ({error})", path=str(path)) from None


def has_character(font: FreeTypeFont, character: str) -> bool:
    """Whether a font has a picture of a character."""
    found = font.getmask(character)
    missing = font.getmask(MISSING)
    return found.size != missing.size or bytes(found) != bytes(missing)
