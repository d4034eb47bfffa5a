"""What a dense CRF did to an image: the image, labels before and after, and where they differ."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from proxfield.core.common.arrays import Pixels
from proxfield.core.common.records import Record
from proxfield.core.filters.points import PixelPoints
from proxfield.core.terms.gaussian import Gaussian
from proxfield.errors import InputError, UnsupportedError
from proxfield.images.inputs import to_host
from proxfield.images.metrics import share_of
from proxfield.io.images import label_colors
from proxfield.io.overlay import displayable, overlay
from proxfield.viz.charts import INK, SOFT, find_figure_class
from proxfield.viz.plots import save_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from proxfield.images.dense_result import DenseResult
    from proxfield.images.densecrf import DenseCRF

PANEL = 3.4
"""Longer side of a panel, in inches."""
OPACITY = 0.6
"""That of labels over the image."""
DIMMED = 0.25
"""How much of the image is left where nothing changed."""
LEAST_WIDTH = 2.6
"""Width of a panel, in inches, however narrow the image is."""
MAX_ENTRIES = 24
"""Maximum number of labels in the legend."""


def segmentation_figure(
    result: DenseResult,
    image: ArrayLike | None = None,
    path: str | PathLike[str] | None = None,
    *,
    names: Sequence[str] | None = None,
    title: str | None = None,
) -> Figure:
    """The image, the labels before and after inference, and the pixels that changed.

    Arguments and errors are those of `DenseResult.show`. Of a volume, the middle slice along the
    first axis is drawn; the counts are those of all pixels.

    Example:
        >>> import proxfield as pf
        >>> p = np.full((6, 8, 2), 0.5)
        >>> p[:, :4], p[:, 4:] = (0.8, 0.2), (0.2, 0.8)
        >>> result = pf.DenseCRF(np.zeros((6, 8), dtype=np.uint8), p).infer()
        >>> len(segmentation_figure(result).axes)
        4
    """
    figure_class = find_figure_class()
    field = result.field
    if not field.has_terms:
        raise UnsupportedError(
            "this result was passed on without the terms of its field, which know the labels "
            "before; set with_field=True on it before"
        )
    if len(field.pixels) < 2:
        raise InputError(f"pixels {field.pixels}, expected two axes or more to draw")
    shown = None if image is None else np.asarray(to_host(image))
    if image is None:  # as the field's bilateral term has it: (*pixels, channels)
        points = [term.points for term in field.terms if isinstance(term, Gaussian)]
        seen = (p.channels for p in points if isinstance(p, PixelPoints))
        shown = next((channels for channels in seen if channels is not None), None)
    panels = _panels(result, shown, field)
    rows, columns = panels[0][1].shape[:2]
    wide, high = (PANEL * side / max(rows, columns) for side in (columns, rows))
    wide = max(wide, LEAST_WIDTH)  # the titles need it
    entries = _entries(result, names)
    gap, width = 0.12, len(panels) * (wide + 0.12) + 0.12
    longest = max(len(entry.get_label()) for entry in entries)
    columns = max(1, min(len(entries), int(width / (0.5 + 0.07 * longest))))
    below = 0.2 + 0.2 * -(-len(entries) // columns)
    above = 0.3 + 0.3 * (title is not None)
    size = (width, above + high + below)
    figure = figure_class(figsize=size, facecolor="white")
    for k, (name, picture) in enumerate(panels):
        left = (gap + k * (wide + gap)) / size[0]
        axes = figure.add_axes((left, below / size[1], wide / size[0], high / size[1]))
        axes.imshow(picture, interpolation="nearest" if max(rows, columns) < 200 else "auto")
        axes.set_title(name, fontsize=9, color=INK, pad=5)
        axes.set_xticks([])
        axes.set_yticks([])
        axes.spines[:].set_visible(False)
    if title is not None:
        figure.text(0.5, 1 - 0.2 / size[1], title, ha="center", va="center", color=INK, fontsize=11)
    look: Record = {"frameon": False, "fontsize": 8, "labelcolor": INK, "columnspacing": 1.2}
    square: Record = {"handlelength": 1.0, "handleheight": 1.0}
    figure.legend(handles=entries, loc="lower center", ncol=columns, **look, **square)
    if path is not None:
        save_figure(figure, path)
    return figure


def _panels(
    result: DenseResult, image: Pixels | None, field: DenseCRF
) -> list[tuple[str, NDArray[np.uint8]]]:
    """Titles and pictures."""
    n = len(field.pixels)
    middle = tuple(size // 2 for size in field.pixels[: n - 2])
    where = "" if not middle else f", slice {', '.join(map(str, middle))}"
    before, after = (
        np.maximum(np.asarray(to_host(x))[middle], 0) for x in (field.input_labels, result.labels)
    )
    changed = result.changed[middle]
    picture = None
    if image is not None:  # the slice, with its channels last
        if image.shape[:n] != field.pixels and image.shape[1:] == field.pixels:
            image = np.moveaxis(image, 0, -1)
        if image.shape[:n] != field.pixels or image.ndim > n + 1:
            raise InputError(f"an image of shape {image.shape}, expected pixels {field.pixels}")
        picture = np.asarray(image[middle])
    panels: list[tuple[str, NDArray[np.uint8]]] = []
    if picture is not None:
        base = displayable(picture, before.shape)
        panels.append((f"image{where}", base.round().astype(np.uint8)))
        gray = base.mean(axis=-1, keepdims=True)
        where = ""
    else:
        gray = np.full((*before.shape, 1), 128.0, dtype=np.float32)
    for name, labels in (("before", before), ("after", after)):
        panels.append((name + where, overlay(picture, labels, opacity=OPACITY)))
    dim = np.repeat(255 - DIMMED * (255 - gray), 3, axis=-1)
    dim[changed] = label_colors(int(after.max()) + 1)[after[changed]]
    count = share_of(int(result.changed.sum()), result.changed.size)
    panels.append((f"changed: {count}", dim.round().astype(np.uint8)))
    return panels


def _entries(result: DenseResult, names: Sequence[str] | None) -> list[Any]:
    """The labels that occur, for the legend."""
    from matplotlib.patches import Patch

    after = np.asarray(to_host(result.labels))
    found = np.union1d(after, result.field.input_labels)
    colors = label_colors(int(found.max(initial=0)) + 1) / 255
    void = None if result.field.ignored is None else result.field.ignored[0]
    entries = []
    for label in found[:MAX_ENTRIES].tolist():
        name = f"label {label}" if label != void else "ignored"
        if names is not None and 0 <= label < len(names):
            name = names[label]
        color = colors[max(label, 0)]
        entries.append(Patch(facecolor=color, edgecolor=SOFT, linewidth=0.5, label=name))
    if len(found) > MAX_ENTRIES:
        entries.append(Patch(facecolor="none", label=f"and {len(found) - MAX_ENTRIES} more"))
    return entries
