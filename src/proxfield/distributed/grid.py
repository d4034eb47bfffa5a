"""Grids in parts: each rank makes or reads its own box of pixels."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from proxfield.core.common.arrays import Floats, Ints
from proxfield.core.lowering.lowered import Lowered
from proxfield.core.lowering.reduction import Untouched
from proxfield.core.terms.base import Layout, Term, as_floats, as_indices, largest_finite
from proxfield.core.terms.pairwise import BandedIsing, Ising, Potts
from proxfield.distributed.cut import Cut
from proxfield.distributed.partition import Partition
from proxfield.distributed.transport import Transport, together
from proxfield.errors import InputError, shown
from proxfield.field import Field

PIECE = 1 << 20
"""Pixels made or read at a time."""

Box = tuple[slice, ...]
"""Pixels from start to stop along each axis, in coordinates of the whole grid."""
Source = Callable[[Box], ArrayLike]
Weights = dict[tuple[int, ...], Source | float]
"""Numbers or functions of boxes, by offset."""


def grid_partition(
    transport: Transport,
    shape: Sequence[int],
    unary: Source | NDArray[np.floating],
    weights: float | Mapping[tuple[int, ...], float | Source] = 1.0,
    *,
    n_labels: int = 2,
    parts: Sequence[int] | None = None,
    dtype: str = "float64",
) -> Partition:
    """A grid with Potts weights between pixels at some offsets, built from parts.

    Pixels are numbered in C order, by each rank within its box. No rank holds more than its box and
    one layer of ghosts per neighbor.

    Args:
        transport: Connects the ranks.
        shape: Pixels along each axis, the same on every rank.
        unary: Unary energies: an array, of which each rank reads its box (`numpy.memmap`, say), or
            a function of a box (slices in coordinates of the whole grid).  # (*box, n_labels)
        weights: What it costs that labels at both ends differ: one number for all neighbors along
            the axes, or by offset (8 neighbors, say) a number or a function of the box of the
            first pixels p of pairs p, p + offset.  # (*box)
        n_labels: Number of labels of every pixel.
        parts: Number of boxes along each axis; by default as compact as possible.
        dtype: Type in which energies are kept, that of the inference: "float32" takes half the
            memory.

    Example:
        >>> from proxfield.distributed import Alone, infer
        >>> part = grid_partition(Alone(), (4, 5), lambda box: np.zeros((4, 5, 2)), 0.5)
        >>> infer(part, "fixed", max_iters=1).q[:2]
        array([0.5, 0.5])
    """
    with together(transport):
        plan = Tiling.make(transport, shape, parts)
        if dtype not in ("float32", "float64"):
            raise InputError(f"dtype={shown(dtype)}, expected float32 or float64")
        if not isinstance(n_labels, (int, np.integer)) or n_labels < 2:
            raise InputError(f"n_labels={shown(n_labels)}, expected 2 or more")
        if not isinstance(weights, Mapping):
            unit = np.eye(len(plan.shape), dtype=np.int64)
            weights = {tuple(row): weights for row in unit.tolist()}
        by_offset: Weights = {}
        for offset, value in weights.items():
            if len(offset) != len(plan.shape) or not any(offset):
                raise InputError(
                    f"offset {shown(offset)}, expected {len(plan.shape)} numbers, not all 0"
                )
            by_offset[tuple(map(int, offset))] = value if callable(value) else float(value)
        energies = read_unary(unary, plan, int(n_labels), np.dtype(dtype))
        lowered = lower_box(plan, energies, by_offset, int(n_labels), np.dtype(dtype))
        cut = cut_of(plan, by_offset, int(n_labels))
    return Partition(transport, Field.bare(lowered.layout), lowered, cut)


@dataclass(frozen=True)
class Tiling:
    """Which pixels each rank has."""

    shape: tuple[int, ...]  # of the whole grid
    bounds: tuple[Ints, ...]  # along each axis, where boxes begin, and the end
    box: Box  # this rank's

    @classmethod
    def make(
        cls, transport: Transport, shape: Sequence[int], parts: Sequence[int] | None
    ) -> Tiling:
        """A plan, checked."""
        sizes = tuple(as_indices(shape, "a grid's shape", 1).tolist())
        if not sizes or min(sizes) < 1:
            raise InputError(f"a grid of shape {sizes}, expected sizes of at least 1")
        counts = compact_parts(sizes, transport.size) if parts is None else tuple(parts)
        if len(counts) != len(sizes) or math.prod(counts) != transport.size:
            raise InputError(
                f"parts={shown(parts)} of a grid of shape {sizes}, expected one number per axis "
                f"whose product is {transport.size}"
            )
        if any(c < 1 or c > n for c, n in zip(counts, sizes, strict=True)):
            raise InputError(f"{counts} boxes along axes of {sizes} pixels: some would be empty")
        bounds = tuple(
            np.array([k * n // c for k in range(c + 1)]) for n, c in zip(sizes, counts, strict=True)
        )
        place = np.unravel_index(transport.rank, counts)
        starts = zip(bounds, place, strict=True)
        return cls(sizes, bounds, tuple(slice(int(b[k]), int(b[k + 1])) for b, k in starts))

    def find(self, pixels: list[Ints]) -> tuple[Ints, Ints]:
        """The rank of some pixels, given by coordinates, and their numbers there."""
        rank = number = np.zeros(len(pixels[0]), dtype=np.int64)
        for at, bounds in zip(pixels, self.bounds, strict=True):
            part = np.searchsorted(bounds, at, side="right") - 1
            rank = rank * (len(bounds) - 1) + part
            number = number * (bounds[part + 1] - bounds[part]) + (at - bounds[part])
        return rank, number


def compact_parts(shape: tuple[int, ...], size: int) -> tuple[int, ...]:
    """Numbers of boxes along each axis with the least surface between them.

    Example:
        >>> compact_parts((100, 100), 4), compact_parts((1000, 10), 4)
        ((2, 2), (4, 1))
    """
    divisors = [d for d in range(1, size + 1) if size % d == 0]
    able = [
        counts
        for counts in itertools.product(divisors, repeat=len(shape))
        if math.prod(counts) == size and all(c <= n for c, n in zip(counts, shape, strict=True))
    ]
    if not able:
        raise InputError(f"a grid of shape {shape} can't be divided among {size} ranks")

    def surface(counts: tuple[int, ...]) -> tuple[float, tuple[int, ...]]:
        between = sum((c - 1) / n for c, n in zip(counts, shape, strict=True))
        return between, tuple(-c for c in counts)

    return min(able, key=surface)


def extent(box: Box) -> tuple[int, ...]:
    """Pixels along each axis of a box."""
    return tuple(max(0, s.stop - s.start) for s in box)


def pieces(box: Box) -> Iterator[Box]:
    """A box in slices along the first axis, of a limited number of pixels each."""
    if 0 in extent(box):
        return
    rows = max(1, PIECE // max(1, math.prod(extent(box)[1:])))
    for start in range(box[0].start, box[0].stop, rows):
        yield (slice(start, min(box[0].stop, start + rows)), *box[1:])


def read_unary(
    unary: Source | NDArray[np.floating], plan: Tiling, n_labels: int, dtype: np.dtype[np.floating]
) -> NDArray[np.floating]:
    """This rank's unary energies, flat."""
    if not callable(unary) and np.shape(unary) != (*plan.shape, n_labels):
        raise InputError(
            f"unary energies of shape {np.shape(unary)}, expected {(*plan.shape, n_labels)}"
        )
    box, done = plan.box, 0
    out = np.empty(math.prod(extent(box)) * n_labels, dtype=dtype)
    for piece in pieces(box):
        given = unary(piece) if callable(unary) else unary[piece]
        values = as_floats(given, "unary energies", allow_inf=True, share_single=True)
        wanted = (*extent(piece), n_labels)
        if values.shape != wanted:
            raise InputError(f"unary energies of shape {values.shape} for a box of {wanted}")
        out[done : done + values.size] = values.ravel()
        done += values.size
    return out


def weights_in(source: Source | float, box: Box) -> NDArray[np.float64]:
    """Weights of pairs whose first pixels are in a box."""
    given = source(box) if callable(source) else np.broadcast_to(source, extent(box))
    found = as_floats(given, "weights")
    if found.shape != extent(box):
        raise InputError(f"weights of shape {found.shape} for a box of {extent(box)}")
    return found


def lower_box(
    plan: Tiling, unary: Floats, weights: Weights, n_labels: int, dtype: np.dtype[np.floating]
) -> Lowered:
    """This rank's box with the pairs inside it."""
    box = plan.box
    shape, n = extent(box), math.prod(extent(box))
    layout = Layout(np.broadcast_to(np.int64(n_labels), n))
    strides = np.array([math.prod(shape[k + 1 :]) for k in range(len(shape))], dtype=np.int64)
    found: list[tuple[int, tuple[int, ...], Box]] = []
    for offset in weights:
        first = tuple(
            slice(s.start + max(0, -o), s.stop - max(0, o))
            for s, o in zip(box, offset, strict=True)
        )
        if 0 not in extent(first):
            found.append((int(strides @ np.array(offset)), offset, first))
    total, size = 0.0, largest_finite(unary) * n
    if n_labels > 2:
        edges, values = [np.zeros((0, 2), dtype=np.int64)], [np.zeros(0)]
        for distance, offset, first in found:
            at = numbers_in(first, box, shape)
            edges.append(np.stack([at, at + distance], axis=1))
            values.append(weights_in(weights[offset], first).ravel())
        all_edges, all_values = np.concatenate(edges), np.concatenate(values)
        size += float(np.abs(all_values).sum())
        potts = Potts.trusted(all_edges, all_values) if len(all_edges) else None
        return Lowered(Untouched(layout), 0.0, unary, potts=potts, magnitude=size)
    distances = np.unique([abs(d) for d, _, _ in found]).astype(np.int64)
    pad = int(distances.max(initial=0))
    padded = np.zeros((len(distances), n + 2 * pad), dtype=dtype)
    for distance, offset, first in found:
        row = padded[np.searchsorted(distances, abs(distance)), pad : pad + n].reshape(shape)
        back = offset if distance < 0 else (0,) * len(shape)  # diagonals hold the smaller end
        for piece in pieces(first):
            w = weights_in(weights[offset], piece)
            total += 0.5 * float(w.sum())
            size += float(np.abs(w).sum())
            here = tuple(
                slice(p.start - b.start + o, p.stop - b.start + o)
                for p, b, o in zip(piece, box, back, strict=True)
            )
            row[here] -= 2.0 * w  # 4 J, and w·[x ≠ y] = w/2 − w/2·s·t
    ising = BandedIsing(distances, padded) if len(distances) else None
    return Lowered(Untouched(layout), total, unary, ising=ising, magnitude=size)


def numbers_in(inner: Box, box: Box, shape: tuple[int, ...]) -> Ints:
    """Numbers of the pixels of a smaller box within a rank's box."""
    along = [
        np.arange(i.start - b.start, i.stop - b.start) for i, b in zip(inner, box, strict=True)
    ]
    return np.asarray(np.ravel_multi_index(np.ix_(*along), shape), dtype=np.int64).ravel()


def leaving(box: Box, offset: tuple[int, ...], shape: tuple[int, ...]) -> Iterator[Box]:
    """Pixels p of a box with p + offset in the grid but outside of the box, as disjoint boxes."""
    inside = list(box)
    for axis, (part, o) in enumerate(zip(box, offset, strict=True)):
        if o == 0:
            continue
        stay = slice(max(part.start, part.start - o), min(part.stop, part.stop - o))
        if stay.stop <= stay.start:
            go, stay = part, slice(part.start, part.start)
        else:
            go = slice(stay.stop, part.stop) if o > 0 else slice(part.start, stay.start)
        some = [*inside[:axis], go, *box[axis + 1 :]]
        clipped = tuple(
            slice(max(s.start, -k), min(s.stop, n - k))
            for s, k, n in zip(some, offset, shape, strict=True)
        )
        if 0 not in extent(clipped):
            yield clipped
        inside[axis] = stay


def cut_of(plan: Tiling, weights: Weights, n_labels: int) -> Cut:
    """The pairs across this rank's border."""
    box = plan.box
    shape = extent(box)
    own, rank, number, value = [], [], [], []
    for offset, source in weights.items():
        back = tuple(-o for o in offset)
        for way in (offset, back):
            for some in leaving(box, way, plan.shape):
                first = some
                if way is back:  # the other end is the first of the pair
                    first = tuple(
                        slice(s.start + o, s.stop + o) for s, o in zip(some, way, strict=True)
                    )
                maps = np.meshgrid(*(np.arange(s.start, s.stop) for s in some), indexing="ij")
                there = [a.ravel() + o for a, o in zip(maps, way, strict=True)]
                its_rank, its_number = plan.find(there)
                own.append(numbers_in(some, box, shape))
                rank.append(its_rank)
                number.append(its_number)
                value.append(weights_in(source, first).ravel())
    none = np.zeros(0, dtype=np.int64)
    mine, ranks, numbers = (np.concatenate([none, *x]) for x in (own, rank, number))
    w = np.concatenate([np.zeros(0), *value])
    border, here = np.unique(mine, return_inverse=True)
    largest = int(numbers.max(initial=0)) + 1
    keys, place = np.unique(ranks * largest + numbers, return_inverse=True)
    edges = np.stack([here.ravel(), len(border) + place.ravel()], axis=1).astype(np.int64)
    binary = n_labels == 2
    pairs: tuple[Term, ...] = ()
    if len(edges):
        pairs = (Ising.trusted(edges, -0.5 * w) if binary else Potts.trusted(edges, w),)
    return Cut(
        layout=Layout(np.full(len(border) + len(keys), n_labels, dtype=np.int64)),
        border=border,
        pairs=pairs,
        constant=0.25 * float(w.sum()) if binary else 0.0,  # half of it is the other rank's
        owners=keys // largest,
        numbers=keys % largest,
    )
