"""All cameras of a frame and the ground from above in one picture. Needs Pillow and matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO

import numpy as np
from numpy.typing import ArrayLike

from proxfield.errors import InputError
from proxfield.io.images import import_pillow
from proxfield.people.scene import Scene
from proxfield.viz.people import DRAWN, Picture, aspect, draw_people, ground_figure, to_rgb
from proxfield.viz.tiles import BACKGROUND, INK, join_pictures, label_picture, pillow_font

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
    from PIL import Image, ImageDraw

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
        buffer = BytesIO()
        above.savefig(buffer, format="png", dpi=DENSITY)
        sheet = join_pictures([sheet, Image.open(buffer).convert("RGB")], 0 if ratio > TALL else 1)
    if title:
        head = Image.new("RGB", (sheet.width, 26), BACKGROUND)
        ImageDraw.Draw(head).text((2, 4), title, fill=INK, font=pillow_font(16))
        sheet = join_pictures([head, sheet], 1)
    return np.array(sheet)
