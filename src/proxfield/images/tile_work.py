"""What is done with each tile of an image, decided once for the whole image."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from proxfield.core.common.arrays import Doubles, Ints, Pixels
from proxfield.core.common.memory import return_freed_arrays
from proxfield.core.common.records import Record
from proxfield.core.compiled.threads import current_threads, thread_count
from proxfield.core.filters import choose
from proxfield.core.filters.geometry import SAMPLE_STRIDE, STAR, choose_blur
from proxfield.core.filters.lattice import corner_arrays, place_points
from proxfield.core.filters.numba.lattice import chunk_size, make_chunks
from proxfield.core.filters.points import PixelPoints
from proxfield.core.terms.gaussian import Gaussian
from proxfield.errors import InputError, shown
from proxfield.images.densecrf import DenseCRF, infer_dense
from proxfield.images.known import CONFIDENCE, are_labels
from proxfield.images.pixels import (
    Axes,
    color_bandwidth,
    find_axes,
    first_pixel,
    possible_axes,
    widths,
)
from proxfield.images.settings import DenseSettings
from proxfield.images.tile_grid import ImageTile, TileGrid
from proxfield.io.folders import ProgressFolder
from proxfield.io.images import as_probabilities
from proxfield.io.windows import Sliced, Window

INPUTS = ("probabilities", "logits", "labels")
NOT_PARAMETERS = ("threads", "callback", "progress")
"""Options that don't change a result."""
SAMPLED_TILES = 8
"""Tiles, spread over the image, that decide on the lattice's blur."""
MAX_KEYS = 1 << 22
"""Vertices that are held to count them; the rest of the image is taken to be alike."""


@dataclass(frozen=True)
class TileWork:
    """How to refine a tile; see `make_tile`. It travels to other processes.

    Attributes:
        image: The whole image; None without.
        unary: Probabilities, logits or labels of all its pixels.
        kind: Which of them.
        output: "labels" or "probabilities".
        dtype: The type of probabilities that are written.
        axes: Where pixels, labels and channels are.
        mask: There is no axis of labels.
        n_labels: Number of labels.
        settings: All settings of the terms.
        build: Options of `DenseCRF`.
        run: Options of `DenseCRF.infer`.
        blurs: Those of the lattices, term by term; None where there is nothing to choose.
        certain: Whether probabilities or logits of the whole image are labels.
    """

    image: Sliced | None
    unary: Sliced
    kind: str
    output: str
    dtype: str
    axes: Axes
    mask: bool
    n_labels: int
    settings: DenseSettings
    build: Record
    run: Record
    blurs: tuple[str | None, ...] = ()
    certain: bool = False

    # ---- shapes ----

    @property
    def pixels(self) -> tuple[int, ...]:
        """Shape of the image without channels."""
        return self.axes.pixels

    @property
    def ignored(self) -> int | None:
        """A value of labels that results keep, if it was named."""
        value = self.build.get("ignore")
        return value if isinstance(value, int) else None

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Shape of all results."""
        return self.with_labels(self.pixels, self.n_labels)

    @property
    def output_dtype(self) -> np.dtype[Any]:
        """Their type."""
        if self.output == "probabilities":
            return np.dtype(self.dtype)
        return np.min_scalar_type(max(self.n_labels - 1, self.ignored or 0, 1))

    def with_labels(self, shape: tuple[int, ...], n_labels: int) -> tuple[int, ...]:
        """A shape of pixels as that of results."""
        if self.output == "labels" or (self.mask and self.unary.shape == self.pixels):
            return shape
        out = list(shape)
        count = n_labels if self.kind == "labels" else self.unary.shape[self.axes.labels]
        out.insert(self.axes.labels, count)
        return tuple(out)

    def window(self, core: Window) -> Window:
        """A window of pixels as one of results."""
        if self.output == "labels" or (self.mask and self.unary.shape == self.pixels):
            return core
        return _inserted(core, self.axes.labels, self.output_shape)

    # ---- decisions about the whole image ----

    @property
    def parameters(self) -> Record:
        """All that decides on the results, for a record of the work in progress."""
        return {
            "image": None if self.image is None else self.image.identity(),
            self.kind: self.unary.identity(),
            "dtype": self.dtype if self.output == "probabilities" else None,
            "build": {k: _plain(v) for k, v in self.build.items()},
            "run": {k: _plain(v) for k, v in self.run.items() if k not in NOT_PARAMETERS},
        }

    @property
    def reach(self) -> tuple[float, ...]:
        """Largest standard deviation of a term in pixels, along each axis."""
        found = [sigma for sigma, _ in self._terms()]
        return tuple(np.max(found, axis=0)) if found else (0.0,) * len(self.pixels)

    def _terms(self) -> list[tuple[Doubles, bool]]:
        """Standard deviations in pixels of each term, and whether it sees colors."""
        out = []
        spacing = widths(self.build.get("spacing", 1.0), len(self.pixels), "spacing", "axis")
        sigmas = {
            "spatial": self.settings.spatial_sigma,
            "bilateral": self.settings.bilateral_sigma,
        }
        for name, sigma in sigmas.items():
            colored = name == "bilateral"
            if self.settings.weight(name) == 0 or (colored and self.image is None):
                continue
            each = widths(sigma, len(self.pixels), f"{name}_sigma", "axis")
            out.append((np.asarray(each / spacing), colored))
        return out

    def decided(self, grid: TileGrid, held: ProgressFolder) -> TileWork:
        """The same with the width of colors, the filter and its blurs as the whole image has them.

        Args:
            grid: The tiles.
            held: Keeps what was decided for runs that go on.
        """
        build = dict(self.build)
        count = int(np.prod(self.pixels, dtype=np.int64))
        build["filter"] = choose(self.settings.filter, count)
        kept = held.note("decisions")
        if kept is None:
            color = self._color(grid)
            blurs = self._blurs(grid, color) if build["filter"] == "lattice" else []
            kept = {"color": None if color is None else color.tolist(), "blurs": blurs}
            kept["certain"] = self._certain(grid)
            held.note("decisions", kept)
        if kept["color"] is not None:
            build["bilateral_color"] = kept["color"]
        if self.kind != "labels" and not kept["certain"]:
            build["confidence"] = 1.0  # a tile whose pixels are certain is taken as it is
        certain = bool(kept["certain"])
        return replace(self, build=build, blurs=tuple(kept["blurs"]), certain=certain)

    def _certain(self, grid: TileGrid) -> bool:
        """Whether probabilities or logits are labels, see `are_labels`; looks at all if so."""
        if self.kind == "labels" or self.build["confidence"] == 1:
            return False
        parts = (self.read_unary(grid.part(k).core) for k in range(len(grid)))
        axis = None if self.mask and self.unary.shape == self.pixels else self.axes.labels
        if self.mask and axis is not None:  # an axis of length 1
            parts, axis = (np.squeeze(part, self.axes.labels) for part in parts), None
        return are_labels(parts, axis, self.kind, bool(self.build.get("normalize", False)))

    def _color(self, grid: TileGrid) -> Doubles | None:
        """Standard deviations of colors in the image's own units."""
        if self.image is None or self.settings.bilateral_weight == 0:
            return None
        sigma, of = self.settings.bilateral_color, self.settings.color_range
        if of is None:
            return np.asarray(sigma, dtype=np.float64)
        if self.image.dtype == np.uint8:
            ends = np.zeros(1, dtype=np.uint8)
        else:  # what the values are says how far they reach: all have to be looked at
            parts = (self.read_image(grid.part(k).core) for k in range(len(grid)))
            ends = np.array([(x.min(), x.max()) for x in parts]).astype(self.image.dtype)
        return color_bandwidth(ends, sigma, of)

    def _blurs(self, grid: TileGrid, color: Doubles | None) -> list[str | None]:
        """The blur of each term's lattice, by the pixels that the whole image would look at."""
        numbers = np.unique(
            np.linspace(0, len(grid) - 1, min(len(grid), SAMPLED_TILES)).astype(int)
        )
        out: list[str | None] = []
        total = int(np.prod(self.pixels, dtype=np.int64))
        for sigma, colored in self._terms():
            found: list[Ints] = []
            seen, d = 0, len(self.pixels)
            for number in numbers:
                core = grid.part(int(number)).core
                points = self._sample(core, sigma, color if colored else None)
                d = points.shape[1]
                found.append(_touched(points))
                seen += len(points)
                if sum(map(len, found)) > MAX_KEYS:
                    break
            share = seen / max(1, -(-total // SAMPLE_STRIDE))
            touched = len(np.unique(np.concatenate(found))) / share
            out.append(choose_blur(total, d, int(touched)).name)
        return out

    def _sample(self, core: Window, sigma: Doubles, color: Doubles | None) -> Doubles:
        """Features of every so many pixels of the whole image, those within a window."""
        size = tuple(c.stop - c.start for c in core)
        first = first_pixel([c.start for c in core], len(core))
        channels = None
        if color is not None:
            seen = self.read_image(core)
            at = self.axes.channels
            channels = seen[..., None] if at is None else np.moveaxis(seen, at, -1)
            color = np.broadcast_to(color, channels.shape[-1:])
        number = np.zeros(size, dtype=np.int64)
        for axis, (start, n) in enumerate(zip(first, size, strict=True)):
            stride = int(np.prod(self.pixels[axis + 1 :], dtype=np.int64))
            along = (start + np.arange(n)) * stride
            number += along.reshape(-1, *[1] * (len(size) - 1 - axis))
        chosen = number.ravel() % SAMPLE_STRIDE == 0
        found = PixelPoints(size, 1.0 / sigma, channels, color, first).array()
        return np.asarray(found[chosen])

    # ---- one tile ----

    def reading(self, image: Sliced | None, unary: Sliced) -> TileWork:
        """The same from other files with the same numbers."""
        return replace(self, image=image, unary=unary)

    def read_image(self, window: Window) -> Pixels:
        """A window of pixels of the image, with all channels."""
        assert self.image is not None
        if self.axes.channels is None:
            return self.image.read(window)
        return self.image.read(_inserted(window, self.axes.channels, self.image.shape))

    def read_unary(self, window: Window) -> Pixels:
        """The same of what is known about pixels."""
        if self.kind == "labels" or self.unary.shape == self.pixels:
            found = self.unary.read(window)
        else:
            found = self.unary.read(_inserted(window, self.axes.labels, self.unary.shape))
        if self.kind == "probabilities":
            return as_probabilities(found, self.unary.name)
        return found.astype(np.float32) if found.dtype == np.float16 else found

    def refine(self, part: ImageTile) -> tuple[Pixels, str, int]:
        """The results of a tile without its halo, how inference ended, and changed pixels."""
        return_freed_arrays()
        try:
            return self._refine(part)
        finally:
            gc.collect()  # fields and programs refer to each other: the next tile needs the room

    def _refine(self, part: ImageTile) -> tuple[Pixels, str, int]:
        image = None if self.image is None else self.read_image(part.around)
        unary = self.read_unary(part.around)
        options = {**self.build, "channel_axis": self.axes.channels, "batch": False}
        options["origin"] = part.origin
        if self.kind == "labels":
            crf = DenseCRF.from_labels(image, unary, **options)
        else:
            options["labels_axis"] = self.axes.labels
            if self.mask and unary.ndim == len(self.pixels):
                options["labels_axis"] = None
            options[self.kind] = unary
            crf = DenseCRF(image, **options)
        del image, unary, options  # room for what follows
        gaussians = [term for term in crf.terms if isinstance(term, Gaussian)]
        for term, blur in zip(gaussians, self.blurs, strict=False):
            term.blur = blur
        if self.run.get("device", "cpu") == "cpu" and self.run.get("kernels") is None:
            with thread_count(self.run.get("threads") or current_threads()):
                for term in gaussians:  # features of one term at a time, none while iterating
                    term.build(drop_features=True)
                    term.operator.compact()
        return_freed_arrays()
        result = infer_dense(crf, **self.run)  # `refine_tiles` counts the changes of all tiles
        if result.status.name == "INTERRUPTED":  # never pass for finished
            raise KeyboardInterrupt
        status = result.status.label
        changed = int(result.changed[part.inner].sum())
        if self.output == "labels":
            values = np.asarray(result.labels)[part.inner]
        else:
            values = np.asarray(result.probabilities)[self.window(part.inner)]
        return values.astype(self.output_dtype), status, changed


def make_tile(
    image: Sliced | None,
    unary: Sliced,
    kind: str,
    output: str,
    dtype: str,
    build: Record,
    run: Record,
) -> TileWork:
    """How to refine the tiles of an image, from the shapes of what was given.

    Args:
        image: The image; None without.
        unary: Probabilities, logits or labels.
        kind: Which of them.
        output: "labels" or "probabilities".
        dtype: Type of the probabilities to write.
        build: Options of `DenseCRF` and, for labels, of `DenseCRF.from_labels`.
        run: Options of `DenseCRF.infer`.
    """
    build = dict(build)
    labels_axis = build.pop("labels_axis", "auto")
    channel_axis = build.pop("channel_axis", "auto")
    picture = None if image is None else _stand_in(image.shape)
    settings = DenseSettings.chosen(build)
    common = (output, dtype)
    if kind == "labels":
        if "n_labels" not in build:
            raise InputError("label maps in tiles need n_labels, expected the number of labels")
        axes = find_axes(picture, _stand_in((*unary.shape, 2)), "labels", -1, channel_axis)
        count = int(build["n_labels"])
        return TileWork(image, unary, kind, *common, axes, False, count, settings, build, run)
    for name in ("n_labels", "unsure", "ignore"):
        if name in build:
            raise InputError(f"{name} goes with kind='labels' only")
    build["confidence"] = CONFIDENCE if settings.confidence is None else settings.confidence
    masks = _mask_axes(image, unary, channel_axis) if labels_axis in ("auto", None) else None
    many = [] if labels_axis is None or len(unary.shape) < 2 else possible_axes(
        picture, _stand_in(unary.shape), "energies", labels_axis, channel_axis
    )  # fmt: skip
    if masks is not None and not many:
        return TileWork(image, unary, kind, *common, masks, True, 2, settings, build, run)
    if labels_axis is None:
        raise InputError(
            f"{kind} of shape {unary.shape}, expected a mask with one number per pixel"
        )
    axes = find_axes(picture, _stand_in(unary.shape), kind, labels_axis, channel_axis) if (
        len(many) != 1
    ) else many[0]  # fmt: skip
    count = unary.shape[axes.labels]
    mask = count == 1
    return TileWork(
        image, unary, kind, *common, axes, mask, 2 if mask else count, settings, build, run
    )


def _mask_axes(image: Sliced | None, unary: Sliced, channel_axis: int | str | None) -> Axes | None:
    """The axes of an image whose pixels have one number each; None if they don't."""
    if image is None:
        return Axes(unary.shape, 0, None) if channel_axis is None else None
    n = len(image.shape)
    if image.shape == unary.shape and channel_axis in ("auto", None):
        return Axes(unary.shape, 0, None)
    candidates = (0, n - 1) if channel_axis == "auto" else (channel_axis,)
    for c in candidates:
        if isinstance(c, int) and image.shape[: c % n] + image.shape[c % n + 1 :] == unary.shape:
            return Axes(unary.shape, 0, c % n)
    return None


def _stand_in(shape: tuple[int, ...]) -> Pixels:
    """An array of a shape that takes no memory."""
    return np.broadcast_to(np.zeros((), dtype=np.float32), shape)


def _inserted(window: Window, axis: int, shape: Sequence[int]) -> Window:
    """A window of pixels with everything along one more axis."""
    return (*window[:axis], slice(0, shape[axis]), *window[axis:])


def _touched(points: Doubles) -> Ints:
    """Keys of the coarser lattice's vertices that some points touch."""
    n, d = points.shape
    if n == 0:
        return np.zeros(0, dtype=np.int64)
    row, weight = corner_arrays(n, d)
    chunks = make_chunks(n, 0, chunk_size(d))
    return place_points(np.ascontiguousarray(points), STAR, chunks, row, weight).keys


def _plain(value: object) -> object:
    """An option as JSON has it."""
    if isinstance(value, DenseSettings):
        return value.to_dict()
    if hasattr(value, "tolist"):
        return value.tolist()
    return value if isinstance(value, str | int | float | bool | None) else shown(value)
