"""Pictures beside each other, with names in their corners. Needs Pillow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from PIL.Image import Image as PillowImage
    from PIL.ImageFont import FreeTypeFont
    from PIL.ImageFont import ImageFont as BitmapFont

BACKGROUND, INK, FRAME = "#FFFFFF", "#222222", "#BBBBBB"
GAP = 8
"""Pixels between pictures."""


def join_pictures(pictures: Sequence[PillowImage], axis: int) -> PillowImage:
    """Pictures beside each other (axis 0) or below each other (axis 1)."""
    from PIL import Image

    sizes = np.array([picture.size for picture in pictures])
    total = sizes.max(axis=0)
    total[axis] = sizes[:, axis].sum() + GAP * (len(pictures) - 1)
    out = Image.new("RGB", (int(total[0]), int(total[1])), BACKGROUND)
    at = [0, 0]
    for picture in pictures:
        out.paste(picture, (at[0], at[1]))
        at[axis] += picture.size[axis] + GAP
    return out


def label_picture(picture: PillowImage, text: str) -> PillowImage:
    """A picture with a name in its corner, legible on any image."""
    from PIL import ImageDraw

    draw, font = ImageDraw.Draw(picture), pillow_font(13)
    box = draw.textbbox((4, 3), text, font=font)
    draw.rectangle((0, 0, box[2] + 4, box[3] + 3), fill=BACKGROUND)
    draw.text((4, 3), text, fill=INK, font=font)
    return picture


def frame_picture(picture: PillowImage) -> PillowImage:
    """A picture with a thin frame, so that its border shows on white."""
    from PIL import ImageOps

    return ImageOps.expand(picture, border=1, fill=FRAME)


def caption_picture(picture: PillowImage, text: str) -> PillowImage:
    """A picture with a line of text above it."""
    from PIL import Image, ImageDraw

    head = Image.new("RGB", (picture.width, 22), BACKGROUND)
    ImageDraw.Draw(head).text((0, 3), text, fill=INK, font=pillow_font(13))
    out = Image.new("RGB", (picture.width, picture.height + head.height), BACKGROUND)
    out.paste(head, (0, 0))
    out.paste(picture, (0, head.height))
    return out


def pillow_font(size: int) -> FreeTypeFont | BitmapFont:
    """Pillow's font; versions before 10.1 have it in one size."""
    from PIL import ImageFont

    try:
        return ImageFont.load_default(size)
    except TypeError:
        return ImageFont.load_default()
