# mypy: disable-error-code="no-untyped-def, no-untyped-call"
"""An order of points in which neighbors in the order are neighbors in space, and who is near.

A k-d tree splits the widest dimension at the middle until blocks are small; points are listed leaf
by leaf. Everything runs on the device the points are on: a sort per level of the tree, no loop
over points. What the host has to know comes in one piece, since waiting for it costs more than
most of the work.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from proxfield.core.common.arrays import Ints
from proxfield.core.devices.cuda import constant, constexpr, jit, tl, torch
from proxfield.core.devices.tensors import Tensor

WIDTH = 256
"""Blocks that a program compares with a row tile at a time."""
STEPS = 16
"""How often it does that."""
GROUP = 64
"""Points in a group, whose center stands for all where weights are estimated."""
GROUPS = 128
"""Groups that a program looks at together."""
LEVELS = 8
"""Distances for which it is estimated what lies beyond."""
LOWEST_LEVEL = 5.5
"""The first of them: weights of 2^-5.5. No larger ones are far."""
LEVEL_STEP = 1.6875
"""From one to the next."""
WIDEST = 0.25
"""Largest mean square distance from their center for points whose center stands for them."""
WIDEST_BLOCK = 0.2
"""The same for far blocks, which are computed by their centers."""

_LEVELS: constexpr = constant(LEVELS)
_LOWEST: constexpr = constant(LOWEST_LEVEL)
_STEP: constexpr = constant(LEVEL_STEP)
_WIDEST: constexpr = constant(WIDEST)
_WIDEST_BLOCK: constexpr = constant(WIDEST_BLOCK)


class Centers(NamedTuple):
    """Centers of consecutive points, and their mean square and largest distances from it."""

    centers: Tensor  # (d, groups)
    spread: Tensor  # (groups,)
    radius: Tensor  # (groups,)
    many: int


class Surroundings(NamedTuple):
    """Boxes of row tiles and of blocks, and which blocks are near."""

    row_low: Tensor  # (d, boxes)
    row_high: Tensor
    low: Tensor  # (d, columns)
    high: Tensor
    spread: Tensor  # of each block, see `moments`  # (columns,)
    boxes: int
    columns: int
    limits: Tensor  # see `limits`  # (rows, 2)


@jit
def tile_boxes(points, order, bounds, n, tiles, D: constexpr, TILE: constexpr):
    """Smallest and largest coordinates of each tile.  # (2, D, tiles)"""
    tile = tl.program_id(0)
    at = tl.load(order + tile.to(tl.int64) * TILE + tl.arange(0, TILE))
    at = tl.minimum(at, n - 1)
    for k in tl.static_range(D):
        x = tl.load(points + at * D + k)
        tl.store(bounds + k * tiles + tile, tl.min(x, 0))
        tl.store(bounds + (D + k) * tiles + tile, tl.max(x, 0))


@jit
def split_keys(
    points, order, bounds, table, keys, n, tiles,
    BITS: constexpr, D: constexpr, TILE: constexpr, WIDTH: constexpr,
):  # fmt: skip
    """A point's segment, and its place along the segment's widest dimension, as one integer."""
    tile = tl.program_id(0)
    segment = tl.load(table + tile)
    begin = tl.load(table + tiles + tile)
    end = tl.load(table + 2 * tiles + tile)
    widest = 0
    best = -1.0
    origin = 0.0
    for k in tl.static_range(D):
        least = tl.full((WIDTH,), float("inf"), tl.float32)
        most = tl.full((WIDTH,), float("-inf"), tl.float32)
        for first in range(begin, end, WIDTH):
            at = first + tl.arange(0, WIDTH)
            inside = at < end
            a = tl.load(bounds + k * tiles + at, mask=inside, other=float("inf"))
            b = tl.load(bounds + (D + k) * tiles + at, mask=inside, other=float("-inf"))
            least = tl.minimum(least, a)
            most = tl.maximum(most, b)
        bottom = tl.min(least, 0)
        width = tl.max(most, 0) - bottom
        widest = tl.where(width > best, k, widest)
        origin = tl.where(width > best, bottom, origin)
        best = tl.maximum(width, best)
    place = tile.to(tl.int64) * TILE + tl.arange(0, TILE)
    point = tl.minimum(tl.load(order + place), n - 1)
    x = tl.load(points + point * D + widest) - origin
    share = x / tl.maximum(best, 1e-30)  # 0 to 1
    whole = tl.minimum((share * (1 << BITS)).to(tl.int32), (1 << BITS) - 1)
    tl.store(keys + place, (segment << BITS) | whole)


@jit
def sort_inside(points, order, out, n, D: constexpr, TILE: constexpr, LEVELS: constexpr):
    """Split each tile in two, ``LEVELS`` times, along the widest dimension of each part.

    Points stay where they are and learn their slots: each counts those of its part before it.
    """
    first = tl.program_id(0).to(tl.int64) * TILE
    number = tl.load(order + first + tl.arange(0, TILE))
    at = tl.minimum(number, n - 1)
    slot = tl.arange(0, TILE)
    for level in range(LEVELS):  # unrolled, this and the next would take long to compile
        size = TILE >> level
        part = slot // size
        same = part[:, None] == part[None, :]
        best = tl.full((TILE,), -1.0, tl.float32)
        x = tl.zeros((TILE,), tl.float32)
        for k in range(D):
            y = tl.load(points + at * D + k)
            high = tl.max(tl.where(same, y[None, :], float("-inf")), 1)
            width = high - tl.min(tl.where(same, y[None, :], float("inf")), 1)
            x = tl.where(width > best, y, x)
            best = tl.maximum(width, best)
        earlier = (x[None, :] == x[:, None]) & (slot[None, :] < slot[:, None])
        before = same & ((x[None, :] < x[:, None]) | earlier)
        slot = part * size + tl.sum(before.to(tl.int32), 1)
    tl.store(out + first + slot, number)


@jit
def survey(mine, theirs, shares, D: constexpr, BOXES: constexpr, WIDTH: constexpr):
    """Which share of a row tile's weights lies beyond each level of distance, estimated.

    From centers of its boxes and of groups of points: level k holds what is at ½ distance² >
    `LOWEST_LEVEL` + k `LEVEL_STEP`. A weight's mean over points around two centers is at least that
    of the mean square distance, which gives the total; by how much it may be larger than that of
    the centers depends on the spreads, which gives the rest. Points of wide groups are bounded
    by their radius and the level. Where a box is wide, shares are infinite.
    """
    boxes = mine.many
    groups = theirs.many
    row = tl.program_id(0)
    box = row * BOXES + tl.arange(0, BOXES)
    level = tl.arange(0, _LEVELS)
    mass = tl.zeros((BOXES,), tl.float32)
    beyond = tl.zeros((BOXES, _LEVELS), tl.float32)
    own = tl.load(mine.spread + box)
    my_reach = tl.load(mine.radius + box)[:, None]
    for start in range(0, groups, WIDTH):
        group = start + tl.arange(0, WIDTH)
        there = group < groups
        square = tl.zeros((BOXES, WIDTH), tl.float32)
        for k in tl.static_range(D):
            x = tl.load(mine.centers + k * boxes + box)[:, None]
            y = tl.load(theirs.centers + k * groups + group, mask=there, other=0.0)[None, :]
            square += (x - y) * (x - y)
        width = tl.load(theirs.spread + group, mask=there, other=0.0)[None, :]
        both = own[:, None] + width
        mass += tl.sum(tl.where(there[None, :], tl.exp2(-0.5 * (square + both)), 0.0), 1)
        wide = width > _WIDEST
        reach = tl.load(theirs.radius + group, mask=there, other=0.0)[None, :]
        gap = tl.maximum(tl.sqrt(square) - reach - my_reach, 0.0)
        narrow = 0.5 * square * tl.maximum(1.0 - both * (1.4 / D), 0.0)
        weight = tl.exp2(-tl.where(wide, 0.5 * gap * gap, narrow))
        weight = tl.where(there[None, :], weight, 0.0)
        for k in tl.static_range(_LEVELS):
            bound = _LOWEST + k * _STEP + tl.zeros((1, 1), tl.float32)
            outside = tl.where(0.5 * square > bound, weight, 0.0)
            bound = tl.exp2(-bound)
            part = tl.sum(tl.where(wide, tl.minimum(weight, bound), outside), 1)
            beyond += tl.where(level == k, 1.0, 0.0)[None, :] * part[:, None]
    share = beyond / tl.maximum(mass, 1e-30)[:, None]
    share = tl.where((own <= _WIDEST)[:, None], share, float("inf"))
    tl.store(shares + row * _LEVELS + level, tl.max(share, 0))


@jit
def near_blocks(
    given, classes, at, blocks,
    D: constexpr, BOXES: constexpr, WIDTH: constexpr, STEPS: constexpr, FILL: constexpr,
):  # fmt: skip
    """How many blocks of a section are near a row tile, and how many far but within reach.

    By the nearest of the tile's boxes. Wide blocks within reach are near.
    ``classes`` takes 1 for near and 2 for far ones, ``at`` both counts. With FILL the former is
    known, and the latter says where to write the blocks' numbers.
    """
    boxes = given.boxes
    columns = given.columns
    row = tl.program_id(0)
    mine = row * BOXES + tl.arange(0, BOXES)
    cell = at + 2 * (row.to(tl.int64) * tl.num_programs(1) + tl.program_id(1))
    first = tl.program_id(1) * (WIDTH * STEPS)
    own = classes + row.to(tl.int64) * columns
    near_limit = tl.load(given.limits + 2 * row)
    far_limit = tl.load(given.limits + 2 * row + 1)
    near_to = tl.zeros((), tl.int64)
    far_to = tl.zeros((), tl.int64)
    if FILL:
        near_to = tl.load(cell)
        far_to = tl.load(cell + 1)
    for start in range(first, tl.minimum(first + WIDTH * STEPS, columns), WIDTH):
        block = start + tl.arange(0, WIDTH)
        inside = block < columns
        if FILL:
            distance_class = tl.load(own + block, mask=inside, other=0).to(tl.int32)
        else:
            square = tl.zeros((BOXES, WIDTH), tl.float32)
            for k in tl.static_range(D):
                a = tl.load(given.row_low + k * boxes + mine)[:, None]
                b = tl.load(given.row_high + k * boxes + mine)[:, None]
                c = tl.load(given.low + k * columns + block, mask=inside, other=0.0)[None, :]
                d = tl.load(given.high + k * columns + block, mask=inside, other=0.0)[None, :]
                gap = tl.maximum(tl.maximum(c - b, a - d), 0.0)
                square += gap * gap
            nearest = tl.min(square, 0)
            wide = tl.load(given.spread + block, mask=inside, other=0.0) > _WIDEST_BLOCK
            distance_class = tl.where(wide | (nearest <= near_limit), 1, 2)
            distance_class = tl.where(inside & (nearest <= far_limit), distance_class, 0)
            tl.store(own + block, distance_class.to(tl.int8), mask=inside)
        near = (distance_class == 1).to(tl.int32)
        far = (distance_class == 2).to(tl.int32)
        if FILL:
            tl.store(blocks + near_to + tl.cumsum(near, 0) - 1, block, mask=near != 0)
            tl.store(blocks + far_to + tl.cumsum(far, 0) - 1, block, mask=far != 0)
        near_to += tl.sum(near, 0)
        far_to += tl.sum(far, 0)
    if not FILL:
        tl.store(cell, near_to)
        tl.store(cell + 1, far_to)


def centered(features: Tensor, low: list[float], high: list[float]) -> Tensor:
    """Points in float64 with 0 in the middle of each range.  # (n, d) -> (n, d)"""
    middle = [0.5 * (a + b) for a, b in zip(low, high, strict=True)]
    points = features.to(torch.float64)
    return points - torch.tensor(middle, dtype=torch.float64, device=features.device)


@lru_cache(maxsize=16)
def tree(tiles: int, device: str) -> tuple[Tensor, ...]:
    """The levels of a tree over tiles: of each tile its segment's number, first tile and end.

    A table for each level that splits something.  # (3, tiles) int32
    It is the same for all images of one size, so it is kept.
    """
    sizes, levels = [tiles], []
    while max(sizes) > 1:
        ends = np.cumsum(sizes)
        number = np.repeat(np.arange(len(sizes)), sizes)
        levels.append(np.stack([number, (ends - sizes)[number], ends[number]]))
        sizes = [part for size in sizes for part in (size // 2, size - size // 2) if part]
    return tuple(torch.from_numpy(table.astype(np.int32)).to(device) for table in levels)


def kd_order(points: Tensor, block: int, tile: int) -> Tensor:
    """Numbers of points, by leaves of a k-d tree.

    Coordinates are compared to 20 bits of their segment's range (fewer for more than 262144
    points): near enough for an order.

    Args:
        points: At least one, contiguous.  # (n, d) float32
        block: Points in a leaf.
        tile: Points in a row tile, a power of two times ``block``: a subtree of its own.

    Returns:
        Also numbers from n on, for padding up to whole tiles: the last point again.  # (padded,)
    """
    n, d = points.shape
    tiles = -(-n // tile)
    order = torch.arange(tiles * tile, device=points.device)
    bounds = torch.empty((2, d, tiles), dtype=torch.float32, device=points.device)
    keys = torch.empty(tiles * tile, dtype=torch.int32, device=points.device)
    bits = min(24, 31 - tiles.bit_length())  # of a key, for the place within a segment
    for table in tree(tiles, str(points.device)):
        tile_boxes[(tiles,)](points, order, bounds, n, tiles, D=d, TILE=tile)
        split_keys[(tiles,)](
            points, order, bounds, table, keys, n, tiles, BITS=bits, D=d, TILE=tile, WIDTH=WIDTH
        )
        order = order[torch.sort(keys, stable=True).indices]
    if tile > block:
        levels = (tile // block).bit_length() - 1
        inside = torch.empty_like(order)
        sort_inside[(tiles,)](points, order, inside, n, D=d, TILE=tile, LEVELS=levels, num_warps=8)
        order = inside
    return order


def boxes(points: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """Smallest and largest coordinates of consecutive blocks, by dimension.  # 2 × (d, blocks)"""
    low, high = torch.aminmax(points.view(-1, block, points.shape[1]), dim=1)
    return low.T.contiguous(), high.T.contiguous()


def moments(points: Tensor, size: int) -> Centers:
    """Centers of consecutive points, so many at a time."""
    parts = points.view(-1, size, points.shape[1])
    centers = parts.mean(1)
    square = (parts - centers[:, None]).square().sum(2)
    return Centers(centers.T.contiguous(), square.mean(1), square.amax(1).sqrt(), len(parts))


def shares_beyond(points: Tensor, tile: int, box: int) -> Tensor:
    """Which share of a row tile's weights lies beyond each level; see `survey`.

    Points are in k-d order, ``box`` are those in a box of a row tile.
    # (padded, d) float32 -> (rows, LEVELS)
    """
    rows = len(points) // tile
    out = torch.empty((rows, LEVELS), dtype=torch.float32, device=points.device)
    survey[(rows,)](
        moments(points, box), moments(points, min(GROUP, tile)), out,
        D=points.shape[1], BOXES=tile // box, WIDTH=GROUPS, num_warps=1,
    )  # fmt: skip
    return out


def limits(shares: Tensor, reach: float, drop: float, far: float) -> Tensor:
    """Square distances up to which blocks are near a row tile, and up to which they count.

    From `shares_beyond`, the ``reach`` beyond which none counts, and the shares of the weights that
    may be left out and that may be far.  # (rows, LEVELS) -> (rows, 2) float32
    """
    bounds = torch.tensor([far, drop], device=shares.device)
    level = (shares[:, :, None] > bounds).sum(1)  # the first that is at most that
    square = torch.where(level < LEVELS, 2.0 * (LOWEST_LEVEL + LEVEL_STEP * level), math.inf)
    square = square.to(torch.float32).clamp(max=reach * reach)
    if not far:
        square[:, 0] = square[:, 1]
    return square.contiguous()


class Near:
    """The blocks that each row tile is within reach of, by bounding boxes: near ones and far ones.

    Wide blocks are never far: their centers can't stand for them. A row tile has several boxes:
    one around all of it would touch many more blocks. Points are in k-d order; ``box`` is a
    multiple of ``block``.
    """

    def __init__(
        self, points: Tensor, tile: int, box: int, block: int, limits: Tensor, spread: Tensor
    ) -> None:
        self.rows, self.columns = len(points) // tile, len(points) // block
        theirs = boxes(points, block)
        d = points.shape[1]
        self.sections = -(-self.columns // (WIDTH * STEPS))
        self.given = Surroundings(
            theirs[0].view(d, -1, box // block).amin(2),
            theirs[1].view(d, -1, box // block).amax(2),
            *theirs, spread, len(points) // box, self.columns, limits,
        )  # fmt: skip
        self.shape = {"D": d, "BOXES": tile // box, "WIDTH": WIDTH, "STEPS": STEPS}
        self.found = torch.empty(
            (self.rows, self.sections, 2), dtype=torch.int64, device=points.device
        )
        """How many near and far ones there are in each section.  # (rows, sections, 2)"""
        self.classes = torch.empty(
            (self.rows, self.columns), dtype=torch.int8, device=points.device
        )
        """1 for near ones, 2 for far ones.  # (rows, columns)"""
        near_blocks[(self.rows, self.sections)](
            self.given, self.classes, self.found, self.found, **self.shape, FILL=False
        )

    def counts(self) -> Ints:
        """How many near and far blocks each row tile has, on the host.  # (rows, 2)"""
        return np.asarray(self.found.sum(1).cpu().numpy())

    def fill(self, start: Tensor, blocks: Tensor) -> None:
        """Write the numbers of each row's blocks, the far ones before the near ones, both rising.

        ``start`` says where each row's begin.  # (rows,) int64
        """
        at = self.found.cumsum(1) - self.found + start[:, None, None]
        at[:, :, 0] += self.found[:, :, 1].sum(1, keepdim=True)
        near_blocks[(self.rows, self.sections)](
            self.given, self.classes, at, blocks, **self.shape, FILL=True
        )
