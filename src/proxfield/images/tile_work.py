"""What is done with each tile of an image, decided once for the whole image."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from proxfield.core.common.arrays import Doubles, Dtype, Ints, Pixels
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
from proxfield.images.axes import Axes, AxisReader
from proxfield.images.densecrf import DenseCRF
from proxfield.images.inputs import CONFIDENCE, are_labels
from proxfield.images.pixels import color_bandwidth, widths
from proxfield.images.settings import DenseSettings
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
    """How to refine a tile; see `make_tile`. It travels to other processes."""

    image: Sliced | None  # the whole image
    unary: Sliced  # probabilities, logits or labels of all its pixels
    kind: str  # which of them
    output: str  # "labels" or "probabilities"
    dtype: str  # of probabilities that are written
    axes: Axes
    n_labels: int
    settings: DenseSettings
    build: Record  # options of `DenseCRF` and, for labels, of `DenseCRF.from_labels`
    run: Record  # options of `DenseCRF.infer`
    blurs: tuple[str | None, ...] = ()  # of each term's lattice; None: nothing to choose
    certain: bool = False  # whether probabilities or logits of the whole image are labels

    @property
    def ignored(self) -> int | None:
        """A value of labels that results keep, if it was named."""
        value = self.build.get("ignore")
        return value if isinstance(value, int) else None

    @property
    def output_dtype(self) -> Dtype:
        """Their type."""
        if self.output == "probabilities":
            return np.dtype(self.dtype)
        return np.min_scalar_type(max(self.n_labels - 1, self.ignored or 0, 1))

    def with_labels(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """A shape of pixels as that of results."""
        axis = self.axes.labels
        if self.output == "labels" or axis is None:
            return shape
        count = self.n_labels if self.kind == "labels" else self.unary.shape[axis]
        return (*shape[:axis], count, *shape[axis:])

    def window(self, core: Window) -> Window:
        """A window of pixels as one of results."""
        axis = None if self.output == "labels" else self.axes.labels
        return _inserted(core, axis, self.with_labels(self.axes.pixels))

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
        return tuple(np.max(found, axis=0)) if found else (0.0,) * len(self.axes.pixels)

    def _terms(self) -> list[tuple[Doubles, bool]]:
        """Standard deviations in pixels of each term, and whether it sees colors."""
        n_axes = len(self.axes.pixels)
        spacing = widths(self.build.get("spacing", 1.0), n_axes, "spacing", "axis")
        kinds = self.settings.kinds(self.image is not None)
        return [(self.settings.sigmas(k, n_axes) / spacing, k == "bilateral") for k in kinds]

    def decided(self, grid: TileGrid, held: ProgressFolder) -> TileWork:
        """The same with the width of colors, the filter and its blurs as the whole image has them.

        Args:
            grid: The tiles.
            held: Keeps what was decided for runs that go on.
        """
        build = dict(self.build)
        count = int(np.prod(self.axes.pixels, dtype=np.int64))
        build["filter"] = choose(self.settings.filter, count)
        kept = held.note("decisions")
        if kept is None:
            color = None  # standard deviations in the image's own units
            if self.image is not None and self.settings.bilateral_weight != 0:
                sigma, of = self.settings.bilateral_color, self.settings.color_range
                ends = np.zeros((1, 1), dtype=np.uint8)
                if of is not None and self.image.dtype != np.uint8:
                    # what the values are says how far they reach: all have to be looked at
                    parts = (self.read_image(grid.part(k).core) for k in range(len(grid)))
                    ends = np.array([(x.min(), x.max()) for x in parts]).astype(self.image.dtype)
                color = color_bandwidth(ends, sigma, of)
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
        axis = self.axes.labels
        if self.axes.mask and axis is not None:  # an axis of length 1
            parts, axis = (np.squeeze(part, self.axes.labels) for part in parts), None
        return are_labels(parts, axis, self.kind, bool(self.build.get("normalize", False)))

    def _blurs(self, grid: TileGrid, color: Doubles | None) -> list[str | None]:
        """The blur of each term's lattice, by the pixels that the whole image would look at."""
        numbers = np.unique(
            np.linspace(0, len(grid) - 1, min(len(grid), SAMPLED_TILES)).astype(int)
        )
        out: list[str | None] = []
        total = int(np.prod(self.axes.pixels, dtype=np.int64))
        for sigma, colored in self._terms():
            found: list[Ints] = [np.zeros(0, dtype=np.int64)]
            seen, d = 0, len(self.axes.pixels)
            for number in numbers:
                core = grid.part(int(number)).core
                points = self._sample(core, sigma, color if colored else None)
                d = points.shape[1]
                if not len(points):
                    continue
                row, weight = corner_arrays(len(points), d)
                chunks = make_chunks(len(points), 0, chunk_size(d))
                placed = place_points(np.ascontiguousarray(points), STAR, chunks, row, weight)
                found.append(placed.keys)
                seen += len(points)
                if sum(map(len, found)) > MAX_KEYS:
                    break
            share = seen / max(1, -(-total // SAMPLE_STRIDE))
            touched = len(np.unique(np.concatenate(found))) / share
            out.append(choose_blur(total, d, int(touched)).name)
        return out

    def _sample(self, core: Window, sigma: Doubles, color: Doubles | None) -> Doubles:
        """Features of every so many pixels of the whole image, those within a window."""
        size, first = zip(*((c.stop - c.start, c.start) for c in core), strict=True)
        channels = None
        if color is not None:
            seen, at = self.read_image(core), self.axes.channels
            channels = seen[..., None] if at is None else np.moveaxis(seen, at, -1)
            color = np.broadcast_to(color, channels.shape[-1:])
        places = np.ix_(*(np.arange(c.start, c.stop) for c in core))
        chosen = np.ravel_multi_index(places, self.axes.pixels).ravel() % SAMPLE_STRIDE == 0
        found = PixelPoints(size, 1.0 / sigma, channels, color, first).array()
        return np.asarray(found[chosen])

    def read_image(self, window: Window) -> Pixels:
        """The image in a window of pixels, with all channels."""
        assert self.image is not None
        return self.image.read(_inserted(window, self.axes.channels, self.image.shape))

    def read_unary(self, window: Window) -> Pixels:
        """What is known about the pixels in a window, of all labels."""
        axis = None if self.kind == "labels" else self.axes.labels
        found = self.unary.read(_inserted(window, axis, self.unary.shape))
        if self.kind == "probabilities":
            return as_probabilities(found, self.unary.name)
        return found.astype(np.float32) if found.dtype == np.float16 else found

    def refine(self, part: ImageTile) -> tuple[Pixels, str, int]:
        """The results of a tile without its halo, how inference ended, and changed pixels."""
        image = None if self.image is None else self.read_image(part.around)
        unary = self.read_unary(part.around)
        options = {**self.build, "channel_axis": self.axes.channels, "batch": False}
        options["origin"] = tuple(a.start for a in part.around)
        if self.kind == "labels":
            crf = DenseCRF.from_labels(image, unary, **options)
        else:
            options.update({"labels_axis": self.axes.labels, self.kind: unary})
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
        crf.tells = False  # `refine_tiles` counts the changes of all tiles
        result = crf.infer(**self.run)
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
    """How to refine the tiles of an image, from the shapes of what was given; see `TileWork`."""
    build = dict(build)
    labels_axis = build.pop("labels_axis", "auto")
    channel_axis = build.pop("channel_axis", "auto")
    picture = None if image is None else _stand_in(image.shape)
    settings = DenseSettings.chosen(build)
    if kind == "labels":
        if "n_labels" not in build:
            raise InputError("label maps in tiles need n_labels, expected the number of labels")
        whole = _stand_in((*unary.shape, 2))
        axes = AxisReader(picture, whole, "labels", -1, channel_axis).only_way()
        count = int(build["n_labels"])
    else:
        for name in ("n_labels", "unsure", "ignore"):
            if name in build:
                raise InputError(f"{name} goes with kind='labels' only")
        build["confidence"] = CONFIDENCE if settings.confidence is None else settings.confidence
        whole = _stand_in(unary.shape)
        axes = _axes(AxisReader(picture, whole, kind, labels_axis, channel_axis))
        count = 2 if axes.labels is None else max(2, unary.shape[axes.labels])
    return TileWork(image, unary, kind, output, dtype, axes, count, settings, build, run)


def _axes(reader: AxisReader) -> Axes:
    """The way to read probabilities or logits, by their shape alone."""
    unary = reader.values
    ways = []
    if reader.labels_axis is not None and unary.ndim > 1:
        ways = replace(reader, what="energies").ways()
    pixels_known = reader.image is not None or reader.channel_axis is None
    may_be_mask = pixels_known and reader.labels_axis in ("auto", None)
    if not ways and may_be_mask and (masks := reader.masks()):
        return masks[0]
    if reader.labels_axis is None:
        return replace(reader, image=None).refuse_mask()
    axes = ways[0] if len(ways) == 1 else reader.only_way()
    return replace(axes, mask=axes.labels is not None and unary.shape[axes.labels] == 1)


def _stand_in(shape: tuple[int, ...]) -> Pixels:
    """An array of a shape that takes no memory."""
    return np.broadcast_to(np.zeros((), dtype=np.float32), shape)


def _inserted(window: Window, axis: int | None, shape: Sequence[int]) -> Window:
    """A window of pixels with everything along one more axis, if there is one."""
    if axis is None:
        return window
    return (*window[:axis], slice(0, shape[axis]), *window[axis:])


def _plain(value: object) -> object:
    """An option as JSON has it."""
    if isinstance(value, DenseSettings):
        return value.to_dict()
    if hasattr(value, "tolist"):
        return value.tolist()
    return value if isinstance(value, str | int | float | bool | None) else shown(value)


# ---- the grid of tiles ----


HALO_SIGMAS = 5.0
"""Halo for ``halo="auto"``, in standard deviations of the widest term. Labels within 16 pixels of a
seam are then those of the whole image for 99.99 % of the pixels; see benchmarks/tile_seams.py."""


@dataclass(frozen=True)
class ImageTile:
    """One tile of an image."""

    number: int  # row by row from 0
    core: Window  # its pixels, of which results are kept
    around: Window  # the pixels that are refined, with the halo

    @property
    def inner(self) -> Window:
        """The core, counted from the first pixel that is refined."""
        pairs = zip(self.core, self.around, strict=True)
        return tuple(slice(c.start - a.start, c.stop - a.start) for c, a in pairs)

    def __str__(self) -> str:
        area = ", ".join(f"{a.start}:{a.stop}" for a in self.around)
        return f"tile {self.number} (pixels {area})"


@dataclass(frozen=True)
class TileGrid:
    """All tiles of an image."""

    pixels: tuple[int, ...]  # shape of the image without channels
    tile: tuple[int, ...]  # length of a tile along each axis
    halo: tuple[int, ...]  # pixels around it along each axis

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of tiles along each axis."""
        return tuple(-(-n // t) for n, t in zip(self.pixels, self.tile, strict=True))

    def __len__(self) -> int:
        return math.prod(self.counts)

    def part(self, number: int) -> ImageTile:
        """The tile of a number."""
        core, around = [], []
        place = np.unravel_index(number, self.counts)
        for k, n, t, h in zip(place, self.pixels, self.tile, self.halo, strict=True):
            first, last = int(k) * t, min(n, (int(k) + 1) * t)
            core.append(slice(first, last))
            around.append(slice(max(0, first - h), min(n, last + h)))
        return ImageTile(number, tuple(core), tuple(around))


def make_grid(
    pixels: tuple[int, ...],
    tile: int | Sequence[int],
    halo: int | Sequence[int] | str,
    reach: Sequence[float],
) -> TileGrid:
    """The tiles of an image.

    Args:
        pixels: Shape of the image without channels.
        tile: Length of a tile: one number, or one per axis.
        halo: Likewise, or "auto".
        reach: Largest standard deviation of a term in pixels, along each axis.

    Example:
        >>> make_grid((3000, 2000), 1024, "auto", (40.0, 40.0)).halo
        (200, 200)
    """
    lengths = _whole(tile, len(pixels), "tile", 1)
    if isinstance(halo, str):
        if halo != "auto":
            raise InputError(f"halo={shown(halo)}, expected a number of pixels or 'auto'")
        around = tuple(math.ceil(HALO_SIGMAS * sigma) for sigma in reach)
    else:
        around = _whole(halo, len(pixels), "halo", 0)
    return TileGrid(pixels, lengths, around)


def _whole(given: int | Sequence[int], count: int, name: str, least: int) -> tuple[int, ...]:
    """One whole number for all axes, or one for each, as one for each."""
    values = np.atleast_1d(np.asarray(given))
    if values.dtype.kind not in "iu" or values.ndim != 1 or len(values) not in (1, count):
        raise InputError(f"{name}={shown(given)}, expected a whole number or {count}, one per axis")
    if (values < least).any():
        raise InputError(f"{name}={shown(given)}, expected {least} or more")
    return tuple(int(x) for x in np.broadcast_to(values, (count,)))
