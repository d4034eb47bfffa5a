"""An order of points in which neighbours in the order are neighbours in space, and who is near.

A k-d tree splits the widest dimension at the middle until blocks are small; points are listed leaf
by leaf. Everything runs on the device the points are on: a sort per level of the tree, no loop
over points.
"""

from __future__ import annotations

from typing import Any

from proxfield.gpu import kernels
from proxfield.gpu.backend import torch

ROOM = 1 << 27
"""Flags held at a time, one byte each."""


def centred(features: Any) -> Any:
    """Points in float64 with 0 in the middle of each range.  # (n, d) -> (n, d)"""
    points = features.to(torch.float64)
    return points - 0.5 * (points.amin(0) + points.amax(0))


def split_sizes(sizes: list[int]) -> list[int]:
    """Every size over 1 split in two.

    Example:
        >>> split_sizes([7, 1])
        [3, 4, 1]
    """
    return [part for size in sizes for part in (size // 2, size - size // 2) if part]


def kd_order(points: Any, block: int, tile: int) -> Any:
    """Numbers of points, by leaves of a k-d tree.

    Args:
        points: At least one.  # (n, d)
        block: Points in a leaf.
        tile: Points in a row tile, a power of two times ``block``: a subtree of its own.

    Returns:
        Numbers below n, and n or more for padding up to a multiple of ``tile``, which stands for
        the last point again.  # (padded,) int64
    """
    n, d = points.shape
    padded = -(-n // tile) * tile
    order = torch.arange(padded, device=points.device)
    keys = points.to(torch.float32)
    sizes = [padded // tile]
    while max(sizes) > 1:
        lengths = torch.tensor(sizes, device=points.device) * tile
        segment = torch.repeat_interleave(lengths, output_size=padded)
        here = keys[order.clamp(max=n - 1)]
        low, high = _ranges(here, lengths, max(sizes) * tile)
        widest = (high - low).argmax(1)
        key = here.gather(1, widest[segment][:, None])[:, 0]
        order = order[torch.sort(_sortable(key) + (segment << 32), stable=True).indices]
        sizes = split_sizes(sizes)
    while tile > block:  # all of one size now
        here = keys[order.clamp(max=n - 1)].view(-1, tile, d)
        low, high = torch.aminmax(here, dim=1)
        widest = (high - low).argmax(1)
        key = here.gather(2, widest[:, None, None].expand(-1, tile, 1))[:, :, 0]
        inside = torch.sort(key, dim=1, stable=True).indices
        order = order.view(-1, tile).gather(1, inside).view(-1)
        tile //= 2
    return order


def _ranges(points: Any, lengths: Any, longest: int) -> tuple[Any, Any]:
    """Smallest and largest coordinates in each of consecutive segments.  # 2 × (segments, d)"""
    ends = lengths.cumsum(0)
    at = torch.arange(longest, device=points.device)
    at = torch.minimum((ends - lengths)[:, None] + at, ends[:, None] - 1)
    low, high = torch.aminmax(points[at], dim=1)
    return low, high


def _sortable(key: Any) -> Any:
    """Floats as integers in [0, 2³²) of the same order."""
    bits = (key + 0.0).view(torch.int32).to(torch.int64)  # + 0.0: no negative zero
    return torch.where(bits < 0, -(bits & 0x7FFFFFFF), bits) + (1 << 31)


def boxes(points: Any, block: int) -> tuple[Any, Any]:
    """Smallest and largest coordinates of consecutive blocks, by dimension.  # 2 × (d, blocks)"""
    low, high = torch.aminmax(points.view(-1, block, points.shape[1]), dim=1)
    return low.to(torch.float32).T.contiguous(), high.to(torch.float32).T.contiguous()


def near_blocks(points: Any, tile: int, box: int, block: int, reach: float) -> tuple[Any, Any]:
    """The blocks that each row tile is within reach of, by bounding boxes.

    A row tile has several boxes: one around all of it would touch many more blocks.

    Args:
        points: In k-d order.  # (padded, d)
        tile: Points in a row tile.
        box: Points in one of the boxes of a row tile.
        block: Points in a block.
        reach: Distance up to which points are near.

    Returns:
        How many blocks each row tile has, and their numbers, row by row.
        # (rows,) int64 and (total,) int32
    """
    reach += float(points.abs().max()) * 2.0**-21  # boxes are rounded to float32
    rows, columns = len(points) // tile, len(points) // block
    mine, theirs = boxes(points, box), boxes(points, block)
    at_once = max(1, ROOM // columns)
    counts, lists = [], []
    for first in range(0, rows, at_once):
        some = min(at_once, rows - first)
        start, stop = first * tile // box, (first + some) * tile // box
        part = [side[:, start:stop].contiguous() for side in mine]
        flags = torch.empty((some, columns), dtype=torch.int8, device=points.device)
        kernels.near_boxes[(some, -(-columns // 256))](
            *part, *theirs, flags, stop - start, columns, reach * reach,
            D=points.shape[1], BOXES=tile // box, WIDTH=256,
        )  # fmt: skip
        count = flags.sum(1, dtype=torch.int64)
        ends = count.cumsum(0)
        lists.append(torch.empty(int(ends[-1]), dtype=torch.int32, device=points.device))
        kernels.fill_lists[(some,)](flags, ends - count, lists[-1], columns, WIDTH=1024)
        counts.append(count)
    return torch.cat(counts), torch.cat(lists)
