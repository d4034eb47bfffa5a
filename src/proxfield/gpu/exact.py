"""The exact Gaussian filter on a GPU: every pair whose weight counts, recomputed in tiles."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from proxfield.errors import InputError
from proxfield.gpu import encode, order
from proxfield.gpu.backend import interpreted, need, torch
from proxfield.gpu.kernels import add_up, exp2_assembly, filter_tiles, pack

BIAS = 12
"""Weights are held times 2^12, so that the smallest that count are normal float16 numbers."""
PEAK = 14
"""Values are held with their largest below 2^14, for the same reason."""
POLYNOMIALS = 1
"""Of eight exponentials, those computed off the units for them."""
CHANNELS = 64
"""Most channels in one pass."""
ITEMS = 1 << 14
"""About how many partial sums are held at a time."""


def reference_filter(features: Any, values: Any, rows: Any = None, block: int = 1024) -> Any:
    """Σ_j exp(−½‖f_i − f_j‖²) v_j in float64, some rows at a time: the plain way, on any device.

    Args:
        features: A tensor, in units of standard deviations.  # (n, d)
        values: # (n, c)
        rows: Numbers of the rows wanted; all by default.  # (m,)
        block: Rows at a time.

    Returns:
        The sums.  # (m, c) float64
    """
    need("torch")
    f, v = features.to(torch.float64), values.to(torch.float64)
    mine = f if rows is None else f[rows]
    out = v.new_empty((len(mine), v.shape[1]))
    for first in range(0, len(mine), block):
        square = torch.zeros((), dtype=torch.float64, device=f.device)
        for k in range(f.shape[1]):  # differences: norms and products would cancel
            gap = mine[first : first + block, k, None] - f[None, :, k]
            square = square + gap * gap
        out[first : first + block] = torch.exp(-0.5 * square) @ v
    return out


@dataclass(frozen=True)
class Tiles:
    """How the work is cut; the defaults are the fastest on an H200."""

    row: int = 128
    """Points in a row tile, for which one program sums."""
    column: int = 64
    """Points it looks at together: a round."""
    block: int = 8
    """Points that are kept or skipped together."""
    box: int = 16
    """Points in one of the boxes of a row tile, by which it knows who is near."""
    rounds: int = 256
    """Most rounds in one sum. Tensor cores round sums down, so longer ones are less exact."""


class Items:
    """Lists cut into pieces of about the same length, one for each program.

    Args:
        counts: Lengths of the lists, multiples of ``step``.  # (rows,)
        step: Entries in a round.
        rounds: Most rounds in a piece.
    """

    def __init__(self, counts: Any, step: int, rounds: int) -> None:
        turns = counts // step
        pieces = torch.clamp(-(-turns // rounds), min=1)
        self.first = torch.zeros(len(counts) + 1, dtype=torch.int64, device=counts.device)
        """First item of each row.  # (rows + 1,)"""
        self.first[1:] = pieces.cumsum(0)
        count = int(self.first[-1])
        row = torch.repeat_interleave(pieces, output_size=count)
        inside = torch.arange(count, device=counts.device) - self.first[row]
        turns, pieces = turns[row], pieces[row]
        low, high = turns * inside // pieces, turns * (inside + 1) // pieces
        self.row = row.to(torch.int32)
        self.start = (counts.cumsum(0) - counts)[row] + low * step
        """Where its piece begins among all lists."""
        self.count = ((high - low) * step).to(torch.int32)
        """Entries in its piece."""
        firsts = self.first.tolist()
        ends = [0]
        for stop in range(1, len(firsts)):
            if firsts[stop] - firsts[ends[-1]] >= ITEMS or stop == len(firsts) - 1:
                ends.append(stop)
        self.batches = [
            (low, high, firsts[low], firsts[high] - firsts[low]) for low, high in pairwise(ends)
        ]
        """Row tiles done together: first, end, first item, number of items."""


class ExactPlan:
    """out_i = Σ_j exp(−½‖f_i − f_j‖²) v_j over fixed points, for any values, on a CUDA device.

    Weights under a tolerance are left out where whole blocks of points are that far apart, and
    the others are recomputed in every application: nothing of size n² is stored. Weights and
    values are rounded to float16, sums are float32: errors are about 1e-4 of Σ_j k_ij |v_j|. Two
    applications to the same values give the same bits.

    Args:
        features: A floating-point tensor on a CUDA device, in units of standard deviations; any
            number of columns, and any distances.  # (n, d)
        tolerance: Pairs with a smaller weight may be left out.
        tiles: How the work is cut.

    Example:
        >>> plan = ExactPlan(features)  # doctest: +SKIP
        >>> plan.apply(values)  # doctest: +SKIP
    """

    def __init__(self, features: Any, tolerance: float = 1e-6, tiles: Tiles | None = None) -> None:
        need("torch", "triton")
        if features.ndim != 2 or not features.is_floating_point() or not features.shape[1]:
            raise InputError("features must be a floating-point tensor of shape (points, features)")
        if not (features.is_cuda or interpreted()):
            raise InputError(
                f"ExactPlan needs features on a CUDA device, not on {features.device}; "
                "reference_filter runs anywhere"
            )
        if not 0.0 < tolerance < 1.0:
            raise InputError(f"a tolerance lies between 0 and 1, {tolerance} does not")
        self.n, self.d = features.shape
        self.tolerance = tolerance
        self.tiles = Tiles() if tiles is None else tiles
        self.device = features.device
        self.pairs: int = 0
        """Pairs of points whose weights are computed, with padding."""
        if self.n:
            self._build(features)

    def _build(self, features: Any) -> None:
        t = self.tiles
        points = order.centred(features) * math.sqrt(math.log2(math.e))
        self.largest = float(points.abs().max())
        if not math.isfinite(self.largest):
            raise InputError("features hold NaN or infinite values")
        self.order = order.kd_order(points, t.block, t.row)
        self.padded = len(self.order)
        points = points[self.order.clamp(max=self.n - 1)]
        self._encode(points)
        # weights are 2^(−½ distance²) now
        reach = math.sqrt(-2.0 * math.log2(self.tolerance))
        counts, blocks = order.near_blocks(points, t.row, t.box, t.block, reach)
        self._list(counts, blocks)

    def _encode(self, points: Any) -> None:
        """What the exponents are computed from, with one block more for lists to point at."""
        points = torch.cat([points, points.new_zeros((self.tiles.block, self.d))])
        self.dot = self.largest <= encode.FURTHEST and self.d <= encode.MOST_FEATURES
        if self.dot:
            self.left, self.right = encode.encode(points, BIAS)
            self.points = points.new_zeros(1, dtype=torch.float32)
        else:
            scaled = points.T * math.sqrt(0.5)
            high = scaled.to(torch.float32)
            self.points = torch.cat([high, (scaled - high).to(torch.float32)]).contiguous()
            self.left = self.right = points.new_zeros((1, 16), dtype=torch.float16)

    def _list(self, counts: Any, blocks: Any) -> None:
        """Lists filled up to whole rounds with the block that has no values."""
        t = self.tiles
        step = t.column // t.block
        full = -(-counts // step) * step
        shift = (full.cumsum(0) - full) - (counts.cumsum(0) - counts)
        at = torch.arange(len(blocks), device=self.device)
        at += torch.repeat_interleave(shift, counts, output_size=len(blocks))
        total = int(full.sum())
        size = total + step  # the kernel looks one round ahead
        self.blocks = torch.full(
            (size,), self.padded // t.block, dtype=torch.int32, device=self.device
        )
        self.blocks[at] = blocks
        self.items = Items(full, step, t.rounds)
        self.pairs = total * t.block * t.row

    @property
    def kept(self) -> float:
        """Pairs computed, as a fraction of n²."""
        return self.pairs / float(max(1, self.n)) ** 2

    @property
    def nbytes(self) -> int:
        """Bytes the plan holds; an application needs up to 300 MB more for 32 channels."""
        if not self.n:
            return 0
        held = (self.order, self.points, self.left, self.right, self.blocks)
        return sum(int(x.numel() * x.element_size()) for x in held)

    def apply(self, values: Any) -> Any:
        """K @ values.

        Args:
            values: Finite numbers, on the plan's device.  # (n, c)

        Returns:
            The sums.  # (n, c) float32
        """
        if values.ndim != 2 or len(values) != self.n:
            raise InputError(
                f"values of shape {tuple(values.shape)} for {self.n} points, expected "
                f"({self.n}, channels)"
            )
        values = values.to(self.device, torch.float32).contiguous()
        out = torch.empty_like(values)
        if values.numel() == 0:
            return out
        channels = values.shape[1]
        if channels <= CHANNELS:
            self._apply(values, out)
            return out
        for first in range(0, channels, CHANNELS):
            some = values[:, first : first + CHANNELS].contiguous()
            part = torch.empty_like(some)
            self._apply(some, part)
            out[:, first : first + CHANNELS] = part
        return out

    def _apply(self, values: Any, out: Any) -> None:
        t, items = self.tiles, self.items
        n, c = values.shape
        width = max(16, 1 << (c - 1).bit_length())
        most = torch.linalg.vector_norm(values, math.inf, 0)
        rows = (self.padded + t.block) // 64 * 64 + 64
        packed = values.new_empty((rows, width), dtype=torch.float16)
        pack[(rows // 64,)](
            values, self.order, most, packed, n, c, self.padded, PEAK=PEAK, C=width, ROWS=64
        )
        largest = max(count for *_, count in items.batches)
        partial = values.new_empty((largest, t.row, width))
        # with at most 128 registers a thread, four programs share a multiprocessor
        registers = 128 if self.dot and width <= 32 else None
        some = min(32, t.row)
        for low, high, first, count in items.batches:
            filter_tiles[(count,)](
                self.points, self.left, self.right, self.padded + t.block, packed, self.blocks,
                items.row, items.start, items.count, partial, first,
                D=self.d, K=self.left.shape[1], C=width, BIAS=BIAS, DOT=self.dot,
                ASSEMBLY="" if interpreted() else exp2_assembly(POLYNOMIALS),
                BM=t.row, BN=t.column, G=t.block, num_warps=4, num_stages=3, maxnreg=registers,
            )  # fmt: skip
            add_up[(high - low, t.row // some)](
                partial, items.first, low, values, packed, self.order, most, out, n, c,
                BIAS=BIAS, PEAK=PEAK, C=width, BM=t.row, ROWS=some,
            )  # fmt: skip
