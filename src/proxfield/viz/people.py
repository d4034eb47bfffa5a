"""Pictures of occupancy maps: the ground from above, and people in the images of cameras.

Figures need matplotlib (``pip install "proxfield[plot]"``), drawings over images need Pillow
(``pip install "proxfield[images]"``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from proxfield.core.common.records import Record
from proxfield.errors import InputError, shown
from proxfield.io.files import Target, atomic_write, display_name
from proxfield.io.images import import_pillow, png_bytes
from proxfield.io.overlay import displayable
from proxfield.people.scene import Scene
from proxfield.people.silhouettes import Boxes, Runs, Silhouettes
from proxfield.viz.charts import find_figure_class, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.figure import Figure

SHADES = ((0.0, "#FFFFFF"), (0.02, "#E3EFF7"), (0.3, "#8CC3E6"), (0.7, "#0072B2"), (1.0, "#0A2A4A"))
"""Probabilities from above, on white: few are neither 0 nor 1, so that small ones must show."""
TINTS = ((0.0, "#56B4E9"), (0.5, "#F0E442"), (1.0, "#D55E00"))
"""Probabilities over images, which may be dark or bright."""
FOUND, TRUE = "#D55E00", "#111111"
"""Colors of detections and of the truth."""
DRAWN = 0.5
"""People are drawn in images from this probability."""
NARROW = 4.5
"""Width in inches up to which the legend has one column."""
MAX_CELLS = 400
"""Columns of a heat map; of finer grids it shows the maximum over blocks."""

Picture = NDArray[np.uint8]


def probability_colors(p: ArrayLike) -> NDArray[np.uint8]:
    """A color for each probability.  # (n,) -> (n, 3)

    Example:
        >>> probability_colors([0.0, 1.0]).tolist()
        [[86, 180, 233], [213, 94, 0]]
    """
    at = [where for where, _ in TINTS]
    rgb = np.array([[int(c[i : i + 2], 16) for i in (1, 3, 5)] for _, c in TINTS], dtype=float)
    values = np.clip(np.asarray(p, dtype=float).ravel(), 0.0, 1.0)
    channels = [np.interp(values, at, rgb[:, k]) for k in range(3)]
    return np.asarray(np.rint(np.stack(channels, axis=1)), dtype=np.uint8)


# ---- from above ----


def ground_figure(
    scene: Scene,
    q: ArrayLike,
    *,
    detections: ArrayLike | None = None,
    truth: ArrayLike | None = None,
    title: str | None = None,
    width: float = 7.0,
    max_height: float | None = None,
) -> Figure:
    """The ground from above: probabilities as a heat map, detections as rings, truth as crosses.

    Args:
        scene: With the positions of its locations; a grid where it has a shape.
        q: Probability that somebody is at each location.  # (n,)
        detections: Positions in meters.  # (m, 2)
        truth: Positions in meters.  # (k, 2)
        title: A title.
        width: Of the figure, in inches.
        max_height: Of the figure, in inches; as high as the ground needs by default.

    Raises:
        MissingDependencyError: If matplotlib isn't installed.
        InputError: If the scene's locations have no positions, or shapes don't match.
    """
    find_figure_class()
    _placed(scene, q)
    needed = aspect(scene) * (width - 1.6) + 1.2
    tall = needed if max_height is None else min(needed, max_height)
    figure = new_figure(width, tall)
    axes = figure.subplots()
    if title:
        axes.set_title(title, loc="left", fontsize=12, fontweight="bold")
    draw_ground(axes, scene, q, detections=detections, truth=truth)
    return figure


def aspect(scene: Scene) -> float:
    """How high the ground is drawn, relative to its width."""
    if scene.positions is None:
        return 1.0
    wide, high = np.ptp(scene.positions, axis=0)
    return float(min(3.0, max(0.3, high / max(wide, 1e-9))))


def draw_ground(
    axes: Axes,
    scene: Scene,
    q: ArrayLike,
    *,
    detections: ArrayLike | None = None,
    truth: ArrayLike | None = None,
) -> None:
    """`ground_figure` in axes of one's own."""
    from matplotlib.colors import LinearSegmentedColormap

    positions, values = _placed(scene, q)
    x, y = positions.T
    shades = LinearSegmentedColormap.from_list("presence", list(SHADES))
    image: ScalarMappable
    if scene.shape is not None and min(scene.shape) > 1:
        rows, columns = scene.shape
        dx, dy = (x[-1] - x[0]) / (columns - 1), (y[-1] - y[0]) / (rows - 1)
        block = -(-max(scene.shape) // MAX_CELLS)  # the side of squares of which the maximum shows
        more = ((0, -rows % block), (0, -columns % block))
        grid = np.pad(values.reshape(rows, columns), more, mode="edge")
        cells = grid.reshape(-(-rows // block), block, -1, block).max(axis=(1, 3))
        left, bottom = x[0] - dx / 2, y[0] - dy / 2
        down, across = cells.shape
        around = (left, left + across * block * dx, bottom, bottom + down * block * dy)
        image = axes.imshow(
            cells, shades, vmin=0, vmax=1, origin="lower", extent=around, interpolation="nearest"
        )
    else:
        image = axes.scatter(x, y, c=values, cmap=shades, vmin=0, vmax=1, s=9, marker="s")
        axes.set_aspect("equal")
    ring: Record = {"marker": "o", "edgecolors": FOUND, "facecolors": "none", "s": 110}
    cross: Record = {"marker": "+", "c": TRUE, "s": 90, "linewidths": 0.8}
    for what, points, look in (
        ("truth", truth, cross),
        ("detections", detections, {**ring, "linewidths": 1.3}),
    ):
        if points is not None:
            at = np.asarray(points, dtype=np.float64)
            at = at if at.size else at.reshape(0, 2)
            if at.ndim != 2 or at.shape[1] != 2:
                raise InputError(f"{what} of shape {at.shape}, expected x and y for each")
            axes.scatter(at[:, 0], at[:, 1], label=f"{what}, {len(at)}", zorder=3, **look)
    axes.set_xlabel("x in meters")
    axes.set_ylabel("y in meters")
    axes.spines[["top", "right"]].set_visible(False)
    bar = axes.figure.colorbar(image, ax=axes, shrink=0.7, pad=0.02, aspect=24)
    bar.set_label("probability that somebody is there")
    bar.outline.set_visible(False)
    if detections is not None or truth is not None:
        columns = 2 if axes.figure.bbox.width > NARROW * axes.figure.dpi else 1
        where: Record = {"loc": "lower right", "bbox_to_anchor": (1.0, 1.0), "ncols": columns}
        axes.legend(frameon=False, fontsize=9, **where)


# ---- in the images ----


def draw_people(
    image: ArrayLike,
    silhouettes: Silhouettes,
    q: ArrayLike,
    *,
    locations: ArrayLike | None = None,
    threshold: float = DRAWN,
) -> Picture:
    """Rectangles of people over a camera's image or mask, their colors by probability.

    Args:
        image: A frame or a mask; if its size isn't that of the silhouettes, they are scaled.
            # (height, width) or (height, width, 3)
        silhouettes: Of the camera.
        q: Probability that somebody is at each location.  # (n,)
        locations: Which to draw, detections for example; by default all that are probable.
        threshold: Least probability that is drawn.

    Returns:
        RGB.  # (height, width, 3)

    Raises:
        MissingDependencyError: If Pillow isn't installed.
    """
    import_pillow()
    from PIL import Image, ImageDraw

    values = _probabilities(q, silhouettes.n_locations)
    if not 0 <= threshold <= 1:
        raise InputError(f"threshold={shown(threshold)}, expected 0 to 1")
    pixels = to_rgb(image)
    height, width = pixels.shape[:2]
    some = np.arange(len(values)) if locations is None else np.asarray(locations, dtype=np.int64)
    if some.size and not (some.min() >= 0 and some.max() < len(values)):
        raise InputError(f"locations to draw must be 0 to {len(values) - 1}")
    some = some[(values[some] >= threshold) & silhouettes.visible[some]]
    some = some[np.argsort(values[some], kind="stable")]  # the most probable on top
    scale = np.array([width / silhouettes.width, height / silhouettes.height] * 2)
    outlines = np.zeros((len(some), 4))  # left, top, right, bottom
    if isinstance(silhouettes, Boxes):
        outlines[:] = silhouettes.boxes[some]
    else:
        assert isinstance(silhouettes, Runs)
        for k, i in enumerate(some):
            row, first, end = silhouettes.runs[silhouettes.starts[i] : silhouettes.starts[i + 1]].T
            outlines[k] = first.min(), row.min(), end.max(), row.max() + 1
    boxes = np.rint(outlines * scale).astype(np.int64)
    picture = Image.fromarray(pixels)
    draw = ImageDraw.Draw(picture)
    line = max(1, round(height / 360))
    colors = probability_colors(values[some]).tolist()
    for (left, top, right, bottom), (r, g, b) in zip(boxes.tolist(), colors, strict=True):
        corner = max(left, right - 1), max(top, bottom - 1)
        draw.rectangle((left, top, *corner), outline=(r, g, b), width=line)
    return np.array(picture)


def write_picture(path: Target, picture: Picture) -> None:
    """Write a picture as PNG; never leaves a partial file."""
    if not str(path).lower().endswith(".png"):
        raise InputError("pictures of people are written as .png", path=display_name(path))
    atomic_write(path, png_bytes(import_pillow().fromarray(picture)))


# ---- parts ----


def _placed(scene: Scene, q: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Positions of the locations and their probabilities."""
    if scene.positions is None:
        raise InputError("the scene's locations have no positions, so there is no map to draw")
    return scene.positions, _probabilities(q, scene.n_locations)


def _probabilities(q: ArrayLike, n: int) -> NDArray[np.float64]:
    values = np.asarray(q, dtype=np.float64)
    if values.shape != (n,):
        raise InputError(f"probabilities of shape {values.shape} for {n} locations")
    return values


def to_rgb(image: ArrayLike) -> Picture:
    """An image or a mask as 8-bit RGB: shares of 1 and booleans become gray."""
    pixels = np.asarray(image)
    if pixels.ndim not in (2, 3) or pixels.size == 0:
        raise InputError(f"an image of shape {pixels.shape}, expected rows and columns of pixels")
    if pixels.ndim == 2 and pixels.dtype != np.uint8:
        pixels = np.rint(255 * np.clip(pixels.astype(float), 0, 1)).astype(np.uint8)
    return displayable(pixels, pixels.shape[:2]).astype(np.uint8)
