"""An order of points in which neighbors in the order are neighbors in space, and who is near.

A k-d tree splits the widest dimension at the middle until blocks are small; points are listed leaf
by leaf. Everything runs on the device the points are on: a sort per level of the tree, no loop
over points. What the host has to know comes in one piece, since waiting for it costs more than
most of the work.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from proxfield.core.common.arrays import Ints
from proxfield.core.devices.cuda import torch
from proxfield.core.devices.tensors import Tensor
from proxfield.core.filters.triton import order_kernels as kernels

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


def centered(features: Tensor, low: list[float], high: list[float]) -> Tensor:
    """Points in float64 with 0 in the middle of each range.  # (n, d) -> (n, d)"""
    middle = [0.5 * (a + b) for a, b in zip(low, high, strict=True)]
    points = features.to(torch.float64)
    return points - torch.tensor(middle, dtype=torch.float64, device=features.device)


def split_sizes(sizes: list[int]) -> list[int]:
    """Every size over 1 split in two.

    Example:
        >>> split_sizes([7, 1])
        [3, 4, 1]
    """
    return [part for size in sizes for part in (size // 2, size - size // 2) if part]


@lru_cache(maxsize=16)
def tree(tiles: int, device: str) -> tuple[Tensor, ...]:
    """The levels of a tree over tiles: of each tile its segment's number, first tile and end.

    The same for all images of one size, so it is kept.

    Returns:
        A table for each level that splits something.  # (3, tiles) int32
    """
    sizes, levels = [tiles], []
    while max(sizes) > 1:
        ends = np.cumsum(sizes)
        number = np.repeat(np.arange(len(sizes)), sizes)
        levels.append(np.stack([number, (ends - sizes)[number], ends[number]]))
        sizes = split_sizes(sizes)
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
        Numbers below n, and n or more for padding up to a multiple of ``tile``, which stands for
        the last point again.  # (padded,) int64
    """
    n, d = points.shape
    tiles = -(-n // tile)
    order = torch.arange(tiles * tile, device=points.device)
    low = torch.empty((d, tiles), dtype=torch.float32, device=points.device)
    high = torch.empty_like(low)
    keys = torch.empty(tiles * tile, dtype=torch.int32, device=points.device)
    bits = min(24, 31 - tiles.bit_length())  # of a key, for the place within a segment
    for table in tree(tiles, str(points.device)):
        kernels.tile_boxes[(tiles,)](points, order, low, high, n, tiles, D=d, TILE=tile)
        kernels.split_keys[(tiles,)](
            points, order, low, high, table, keys, n, tiles,
            BITS=bits, D=d, TILE=tile, WIDTH=WIDTH,
        )  # fmt: skip
        order = order[torch.sort(keys, stable=True).indices]
    if tile > block:
        levels = (tile // block).bit_length() - 1
        inside = torch.empty_like(order)
        kernels.sort_inside[(tiles,)](
            points, order, inside, n, D=d, TILE=tile, LEVELS=levels, num_warps=8
        )
        order = inside
    return order


def boxes(points: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """Smallest and largest coordinates of consecutive blocks, by dimension.  # 2 × (d, blocks)"""
    low, high = torch.aminmax(points.view(-1, block, points.shape[1]), dim=1)
    return low.T.contiguous(), high.T.contiguous()


def moments(points: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Centers of consecutive points, and their mean square and largest distances from it.

    Returns:
        All three.  # (d, groups), (groups,), (groups,)
    """
    parts = points.view(-1, size, points.shape[1])
    centers = parts.mean(1)
    square = (parts - centers[:, None]).square().sum(2)
    return centers.T.contiguous(), square.mean(1), square.amax(1).sqrt()


def shares_beyond(points: Tensor, tile: int, box: int) -> Tensor:
    """Which share of a row tile's weights lies beyond each level; see `kernels.survey`.

    Args:
        points: In k-d order.  # (padded, d) float32
        tile: Points in a row tile.
        box: Points in one of the boxes of a row tile.

    Returns:
        Falling in each row.  # (rows, LEVELS)
    """
    rows = len(points) // tile
    out = torch.empty((rows, LEVELS), dtype=torch.float32, device=points.device)
    size = min(GROUP, tile)
    mine, theirs = moments(points, box), moments(points, size)
    kernels.survey[(rows,)](
        *mine, *theirs, len(points) // box, len(points) // size, LOWEST_LEVEL, LEVEL_STEP, WIDEST,
        out,
        D=points.shape[1], BOXES=tile // box, WIDTH=GROUPS, LEVELS=LEVELS, num_warps=1,
    )  # fmt: skip
    return out


def limits(shares: Tensor, reach: float, drop: float, far: float) -> Tensor:
    """Square distances up to which blocks are near a row tile, and up to which they count.

    Args:
        shares: Of `shares_beyond`.  # (rows, LEVELS)
        reach: Distance beyond which none counts.
        drop: Share of the weights that may be left out.
        far: Share of the weights that may be far; 0 for none.

    Returns:
        Both, of each row.  # (rows, 2) float32
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
    one around all of it would touch many more blocks.

    Args:
        points: In k-d order.  # (padded, d) float32
        tile: Points in a row tile.
        box: Points in one of the boxes of a row tile, a multiple of ``block``.
        block: Points in a block.
        limits: Square distances up to which blocks are near, and up to which they are within
            reach.  # (rows, 2) float32
        spread: Of each block, see `moments`.  # (blocks,)
    """

    def __init__(
        self, points: Tensor, tile: int, box: int, block: int, limits: Tensor, spread: Tensor
    ) -> None:
        self.rows, self.columns = len(points) // tile, len(points) // block
        theirs = boxes(points, block)
        d = points.shape[1]
        mine = (
            theirs[0].view(d, -1, box // block).amin(2),
            theirs[1].view(d, -1, box // block).amax(2),
        )
        self.sections = -(-self.columns // (WIDTH * STEPS))
        sizes = (len(points) // box, self.columns)
        self.arguments = (*mine, *theirs, spread, *sizes, limits, WIDEST_BLOCK)
        self.options = {"D": d, "BOXES": tile // box, "WIDTH": WIDTH, "STEPS": STEPS}
        self.found = torch.empty(
            (self.rows, self.sections, 2), dtype=torch.int64, device=points.device
        )
        """How many near and far ones there are in each section.  # (rows, sections, 2)"""
        self.classes = torch.empty(
            (self.rows, self.columns), dtype=torch.int8, device=points.device
        )
        """1 for near ones, 2 for far ones.  # (rows, columns)"""
        kernels.near_blocks[(self.rows, self.sections)](
            *self.arguments, self.classes, self.found, self.found, FILL=False, **self.options
        )

    def counts(self) -> Ints:
        """How many near and far blocks each row tile has, on the host.  # (rows, 2)"""
        return np.asarray(self.found.sum(1).cpu().numpy())

    def fill(self, start: Tensor, blocks: Tensor) -> None:
        """Write the numbers of each row's blocks, the far ones before the near ones, both rising.

        Args:
            start: Where each row's begin.  # (rows,) int64
            blocks: Changed in place.  # int32
        """
        at = self.found.cumsum(1) - self.found + start[:, None, None]
        at[:, :, 0] += self.found[:, :, 1].sum(1, keepdim=True)
        kernels.near_blocks[(self.rows, self.sections)](
            *self.arguments, self.classes, at, blocks, FILL=True, **self.options
        )
