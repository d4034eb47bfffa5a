"""Pictures beside each other: images whose holes were filled, and all cameras of a frame.

Needs Pillow; `contact_sheet` needs matplotlib, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from proxfield.core.common.arrays import Doubles
from proxfield.errors import InputError
from proxfield.io.images import import_pillow, label_colors
from proxfield.people.scene import Scene
from proxfield.viz.charts import figure_bytes
from proxfield.viz.people import DRAWN, Picture, aspect, draw_people, ground_figure, to_rgb

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
    from PIL import ImageDraw, ImageOps

    out = ImageOps.expand(picture.convert("RGB"), border=(0, 22, 0, 0), fill=BACKGROUND)
    ImageDraw.Draw(out).text((0, 3), text, fill=INK, font=pillow_font(13))
    return out


def pillow_font(size: int) -> FreeTypeFont | BitmapFont:
    """Pillow's font; versions before 10.1 have it in one size."""
    from PIL import ImageFont

    try:
        return ImageFont.load_default(size)
    except TypeError:
        return ImageFont.load_default()


# ---- images with holes ----


HOLE = np.array([198, 208, 224], dtype=np.uint8)
"""Color of hidden pixels."""
WRONG = np.array([213.0, 94.0, 0.0])
"""Color of pixels that aren't the true ones."""
CERTAIN, UNCERTAIN = np.array([247.0, 251.0, 255.0]), np.array([8.0, 48.0, 107.0])
"""Colors of no uncertainty and of all labels alike."""
BLACK_ON_WHITE = (255, 255, 255, 0, 0, 0)
"""Colors of two labels, where an image has no palette."""
WIDTH = 260
"""Least width of each picture; pixels are enlarged by a whole number."""


def uncertainty(marginals: ArrayLike) -> Doubles:
    """Probability of other labels than the most probable one, 1 if all are alike.  # (…, K) -> (…)

    The entropy would hardly tell 0.7 from 0.5; this is 0.6 for two labels of 0.7 and 0.3.

    Example:
        >>> uncertainty([[0.5, 0.5], [0.75, 0.25], [1.0, 0.0]]).tolist()
        [1.0, 0.5, 0.0]
    """
    q = np.asarray(marginals, dtype=np.float64)
    return np.asarray((1 - q.max(axis=-1)) / (1 - 1 / max(2, q.shape[-1])))


def inpainting_sheet(
    image: ArrayLike,
    mask: ArrayLike,
    marginals: ArrayLike,
    *,
    truth: bool = False,
    palette: Sequence[int] | None = None,
    title: str | None = None,
) -> Picture:
    """An image before and after, and its uncertainty, beside each other.

    Args:
        image: Label image.  # (height, width)
        mask: True where pixels were hidden.  # (height, width)
        marginals: Probabilities of labels.  # (height, width, K)
        truth: Whether the image has the true labels in the hole: draws them too, and what is wrong.
        palette: Colors of labels as from `read_labels`; black on white by default for two.
        title: A title.

    Returns:
        RGB.  # (h, w, 3)

    Raises:
        InputError: If shapes don't fit.
        MissingDependencyError: If Pillow isn't installed.
    """
    pillow = import_pillow()
    labels, hidden = np.asarray(image), np.asarray(mask, dtype=bool)
    q = np.asarray(marginals, dtype=np.float64)
    if labels.ndim != 2 or hidden.shape != labels.shape or q.shape[:2] != labels.shape:
        raise InputError(
            f"image {labels.shape}, mask {hidden.shape} and marginals {q.shape} don't fit"
        )
    count = q.shape[2]
    colors = label_colors(count, BLACK_ON_WHITE if palette is None and count == 2 else palette)
    found = np.where(hidden, q.argmax(axis=2), labels)
    seen, unsure = colors[np.where(hidden, 0, labels)], uncertainty(q)[..., None]
    pictures = {
        "before": np.where(hidden[..., None], HOLE, seen),
        "after": colors[found],
        # hidden pixels from light (certain) to dark blue (all labels alike), others pale
        "uncertainty": np.where(
            hidden[..., None],
            (1 - unsure) * CERTAIN + unsure * UNCERTAIN,
            0.25 * seen + 0.75 * 255,
        ),
    }
    if truth:
        wrong = hidden & (found != labels)
        share = 100 * (1 - wrong.sum() / max(1, hidden.sum()))
        pictures["truth"] = colors[labels]
        mixed = 0.35 * colors[labels] + 0.65 * WRONG
        name = f"wrong pixels ({share:.1f} % right)"
        pictures[name] = np.where(wrong[..., None], mixed, 0.75 * colors[labels] + 64)
    scale = max(1, -(-WIDTH // labels.shape[1]))
    tiles = []
    for name, pixels in pictures.items():
        small = pillow.fromarray(np.asarray(pixels, dtype=np.uint8))
        size = (small.width * scale, small.height * scale)
        tiles.append(caption_picture(frame_picture(small.resize(size, pillow.NEAREST)), name))
    sheet = join_pictures(tiles, 0)
    return np.array(caption_picture(sheet, title) if title else sheet)


# ---- cameras and the ground ----


MISSING = "#DDDDDD"
DENSITY = 120
"""Pixels per inch of the ground."""
TALL = 1.2
"""Grounds that are higher than this, relative to their width, stand beside the cameras."""


def contact_sheet(
    scene: Scene,
    images: Sequence[ArrayLike | None],
    q: ArrayLike,
    *,
    detections: ArrayLike | None = None,
    locations: ArrayLike | None = None,
    truth: ArrayLike | None = None,
    threshold: float = DRAWN,
    title: str | None = None,
    columns: int | None = None,
    width: int = 480,
) -> Picture:
    """All cameras of a frame with the people in them, and the ground from above.

    Args:
        scene: The scene; without positions of its locations there is no ground to draw.
        images: A frame or a mask of each camera; None for one that is missing.
        q: Probability that somebody is at each location.  # (n,)
        detections: As in `ground_figure`.
        locations: As in `draw_people`.
        truth: As in `ground_figure`.
        threshold: As in `draw_people`.
        title: A title.
        columns: Cameras per row; two, or three if there are more than four, by default.
        width: Of each camera's picture, in pixels.

    Returns:
        RGB.  # (height, width, 3)
    """
    import_pillow()
    from PIL import Image, ImageDraw, ImageOps

    if len(images) != len(scene.silhouettes):
        raise InputError(f"{len(scene.silhouettes)} cameras but {len(images)} images")
    across = columns or min(len(images), 3 if len(images) > 4 else 2)
    cells = []
    for s, image, name in zip(scene.silhouettes, images, scene.names, strict=True):
        size = (width, max(1, round(width * s.height / s.width)))
        if image is None:
            cell = label_picture(Image.new("RGB", size, MISSING), f"camera {name}: no image")
        else:
            base = np.array(Image.fromarray(to_rgb(image)).resize(size))
            drawn = draw_people(base, s, q, locations=locations, threshold=threshold)
            cell = label_picture(Image.fromarray(drawn), f"camera {name}")
        cells.append(cell)
    rows = [join_pictures(cells[k : k + across], 0) for k in range(0, len(cells), across)]
    sheet = join_pictures(rows, 1)
    if scene.positions is not None:
        ratio = aspect(scene)
        if ratio > TALL:
            most = max(sheet.height / DENSITY, 4.0)
            inches = max(3.0, (most - 1.2) / ratio + 1.6)
        else:
            inches = sheet.width / DENSITY
            most = 0.66 * inches
        above = ground_figure(
            scene, q, detections=detections, truth=truth, width=inches, max_height=most
        )
        ground = Image.open(BytesIO(figure_bytes(above, "png", dpi=DENSITY))).convert("RGB")
        sheet = join_pictures([sheet, ground], 0 if ratio > TALL else 1)
    if title:
        sheet = ImageOps.expand(sheet, border=(0, 26 + GAP, 0, 0), fill=BACKGROUND)
        ImageDraw.Draw(sheet).text((2, 4), title, fill=INK, font=pillow_font(16))
    return np.array(sheet)
