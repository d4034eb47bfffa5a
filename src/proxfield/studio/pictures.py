"""Pictures for the page: label maps with transparent pixels, the photograph, the curve of F."""

from __future__ import annotations

import math
from collections.abc import Sequence
from io import BytesIO

import numpy as np
from numpy.typing import NDArray

from proxfield.core.common.arrays import Pixels
from proxfield.io.images import import_pillow, label_colors
from proxfield.io.overlay import displayable

MAX_PALETTE = 255
"""Labels of a picture with a palette; the last entry is for transparent pixels."""
WIDTH, HEIGHT = 560, 170
LEFT, RIGHT, TOP, BOTTOM = 8, 8, 12, 24
"""The curve: its size, and the margins inside."""
MIN_SPAN = 1e-6
"""Smaller differences of F, relative to it, are drawn as such: they are rounding."""


def label_png(labels: NDArray[np.int64], n_labels: int, shown: Pixels | None = None) -> bytes:
    """A label map as PNG.

    Args:
        labels: The labels; values beyond the last label are transparent.  # (height, width)
        n_labels: Number of labels.
        shown: Which pixels aren't transparent; None: all.  # (height, width)
    """
    image = import_pillow()
    visible = (labels >= 0) & (labels < n_labels)
    if shown is not None:
        visible &= shown
    out = BytesIO()
    colors = label_colors(n_labels)
    if n_labels <= MAX_PALETTE:
        entries = np.where(visible, labels, n_labels).astype(np.uint8)
        picture = image.fromarray(entries)
        picture.putpalette([*colors.ravel().tolist(), 0, 0, 0])
        picture.save(out, format="PNG", transparency=n_labels, compress_level=1)
    else:
        rgba = np.zeros((*labels.shape, 4), dtype=np.uint8)
        rgba[visible, :3] = colors[labels[visible]]
        rgba[visible, 3] = 255
        image.fromarray(rgba).save(out, format="PNG", compress_level=1)
    return out.getvalue()


def photo_jpeg(channels: Pixels) -> bytes:
    """The image as people see it, as JPEG.  # (height, width, channels)"""
    rgb = displayable(channels, channels.shape[:2]).round().astype(np.uint8)
    out = BytesIO()
    import_pillow().fromarray(rgb).save(out, format="JPEG", quality=92)
    return out.getvalue()


def css_color(label: int) -> str:
    """The color of a label for style sheets.

    Example:
        >>> css_color(1)
        '#e69f00'
    """
    r, g, b = label_colors(label + 1)[label].tolist()
    return f"#{r:02x}{g:02x}{b:02x}"


def curve_svg(iterations: Sequence[int], free_energy: Sequence[float], last: int) -> str:
    """F over the iterations as SVG; its colors are those of the page.

    Args:
        iterations: Their numbers.
        free_energy: F; entries that aren't finite are left out.
        last: The right end of the axis.
    """
    points = [(t, f) for t, f in zip(iterations, free_energy, strict=True) if math.isfinite(f)]
    name = "Free energy F per iteration"
    head = (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{name}" class="pf-curve">'
        f"<title>{name}</title>"
    )
    floor = HEIGHT - BOTTOM
    axis = f'<line x1="{LEFT}" y1="{floor}" x2="{WIDTH - RIGHT}" y2="{floor}" class="pf-axis"/>'
    if not points:
        return f"{head}{axis}</svg>"
    end = max(1, last, points[-1][0])
    low, high = min(f for _, f in points), max(f for _, f in points)
    span = max(high - low, MIN_SPAN * (1.0 + abs(high)))

    def place(t: int, f: float) -> tuple[float, float]:
        x = LEFT + (WIDTH - LEFT - RIGHT) * t / end
        return x, TOP + (floor - TOP - 8) * (high - f) / span

    line = " ".join("{:.1f},{:.1f}".format(*place(t, f)) for t, f in points)
    every = max(1, len(points) // 60)
    dot = '<circle cx="{:.1f}" cy="{:.1f}" r="3"><title>iteration {}: F = {:.6g}</title></circle>'
    dots = "".join(dot.format(*place(t, f), t, f) for t, f in points[::every])
    text = (
        f'<text x="{LEFT}" y="{HEIGHT - 7}">iteration 0: F = {points[0][1]:.6g}</text>'
        f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 7}" text-anchor="end">'
        f"iteration {points[-1][0]}: F = {points[-1][1]:.6g}</text>"
    )
    return f'{head}{axis}<polyline points="{line}"/>{dots}{text}</svg>'
