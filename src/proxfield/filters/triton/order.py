"""An order of points in which neighbors in the order are neighbors in space, and who is near.

A k-d tree splits the widest dimension at the middle until blocks are small; points are listed leaf
by leaf. Everything runs on the device the points are on: a sort per level of the tree, no loop
over points. What the host has to know comes in one piece, since waiting for it costs more than
most of the work.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from proxfield.common.arrays import Ints
from proxfield.devices.cuda import torch
from proxfield.devices.tensors import Tensor
from proxfield.filters.triton import order_kernels as kernels

WIDTH = 256
"""Blocks that a program compares with a row tile at a time."""
STEPS = 16
"""How often it does that."""


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


class Near:
    """The blocks that each row tile is within reach of, by bounding boxes.

    A row tile has several boxes: one around all of it would touch many more blocks.

    Args:
        points: In k-d order.  # (padded, d) float32
        tile: Points in a row tile.
        box: Points in one of the boxes of a row tile, a multiple of ``block``.
        block: Points in a block.
        reach: Distance up to which points are near.
    """

    def __init__(self, points: Tensor, tile: int, box: int, block: int, reach: float) -> None:
        self.rows, self.columns = len(points) // tile, len(points) // block
        theirs = boxes(points, block)
        d = points.shape[1]
        mine = (
            theirs[0].view(d, -1, box // block).amin(2),
            theirs[1].view(d, -1, box // block).amax(2),
        )
        self.sections = -(-self.columns // (WIDTH * STEPS))
        self.arguments = (*mine, *theirs, len(points) // box, self.columns, reach * reach)
        self.options = {"D": d, "BOXES": tile // box, "WIDTH": WIDTH, "STEPS": STEPS}
        self.found = torch.empty(
            (self.rows, self.sections), dtype=torch.int64, device=points.device
        )
        """How many there are in each section of the blocks.  # (rows, sections)"""
        kernels.near_blocks[(self.rows, self.sections)](
            *self.arguments, self.found, self.found, FILL=False, **self.options
        )

    def counts(self) -> Ints:
        """How many blocks each row tile has, on the host.  # (rows,)"""
        return np.asarray(self.found.sum(1).cpu().numpy())

    def fill(self, start: Tensor, blocks: Tensor) -> None:
        """Write the numbers of each row's blocks, rising.

        Args:
            start: Where each row's begin.  # (rows,) int64
            blocks: Changed in place.  # int32
        """
        at = self.found.cumsum(1) - self.found + start[:, None]
        kernels.near_blocks[(self.rows, self.sections)](
            *self.arguments, at, blocks, FILL=True, **self.options
        )
