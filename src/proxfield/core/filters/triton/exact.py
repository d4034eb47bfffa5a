"""The exact Gaussian filter on a GPU: every pair whose weight counts, recomputed in tiles."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from proxfield.core.devices.cuda import interpreted, need, torch
from proxfield.core.devices.tensors import Tensor
from proxfield.core.filters.plan import Plan
from proxfield.core.filters.triton import encode, kernels, order
from proxfield.errors import InputError

BIAS = 12
"""Weights are held times 2^12, so that the smallest that count are normal float16 numbers."""
PEAK = 14
"""Values are held with their largest below 2^14, for the same reason."""
POLYNOMIALS = 1
"""Of eight exponentials, those computed off the units for them, where products aren't scaled."""
EXPONENTIALS = 2
"""Of four pairs of near weights, those computed by the units for exponentials."""
DROPPED_SHARE = 1e-4
"""Largest share of a row tile's weights that is left out, by an estimate that is too high on
images: sums became smaller by 4e-6 on average on one."""
FAR_SHARE = 0.3
"""Largest share that is computed by centers of blocks, likewise."""
FAR_SQUARE = 18.0
"""A square distance at which most of the far weights are."""
FAR_SCALE = 1.0 / 1.04034
"""1 over the mean of (1 + f) / 2^f, with fractions f cut to 10 bits."""
CHANNELS = 64
"""Maximum number of channels in one pass."""
ITEMS = 1 << 14
"""About how many partial sums are held at a time."""
PAIRS = 64
"""Maximum number of channels of ``a`` (and of ``b``) in one pass of `ExactPlan.pull`."""
SHARED_MEMORY = 120_000
"""Bytes of shared memory that a program with so many channels takes; with half of them, half."""


def as_tf32(x: Tensor) -> Tensor:
    """Float32 numbers rounded to the 11 bits that tensor cores use."""
    return ((x.contiguous().view(torch.int32) + 0x1000) & -0x2000).view(torch.float32)


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
    """Points per box of a row tile; boxes decide which blocks are near."""
    rounds: int = 128
    """Maximum number of rounds per sum: tensor cores round down, so longer sums are less exact."""


class Items:
    """Lists cut into pieces of about the same work, one for each program; on the host.

    A list has whole far rounds of ``many`` entries, then whole near rounds of ``few``; a piece at
    most so many ``rounds``. ``far`` and ``near`` are their numbers in each list.  # (rows,)
    """

    def __init__(
        self, far: NDArray[np.int64], near: NDArray[np.int64], many: int, few: int, rounds: int
    ) -> None:
        turns = far + near
        pieces = np.maximum(1, -(-turns // rounds))
        self.first = np.append(0, np.cumsum(pieces))
        """First item of each row.  # (rows + 1,)"""
        self.row = np.repeat(np.arange(len(far)), pieces)
        inside = np.arange(len(self.row)) - self.first[self.row]
        turns, pieces, own = turns[self.row], pieces[self.row], far[self.row]
        low, high = turns * inside // pieces, turns * (inside + 1) // pieces
        sizes = far * many + near * few
        self.begin = np.cumsum(sizes) - sizes
        """Where each row's list begins."""
        self.start = self.begin[self.row]
        self.start = self.start + np.minimum(low, own) * many + np.maximum(low - own, 0) * few
        """Where its piece begins among all lists."""
        self.far = np.clip(own - low, 0, high - low) * many
        """Far entries in its piece, at its beginning."""
        self.count = self.far + (high - np.clip(own, low, high)) * few
        """Entries in its piece."""
        ends = [0]
        while ends[-1] < len(far):
            enough = int(np.searchsorted(self.first, self.first[ends[-1]] + ITEMS))
            ends.append(max(ends[-1] + 1, min(enough, len(far))))
        self.batches = [
            (low, high, int(self.first[low]), int(self.first[high] - self.first[low]))
            for low, high in pairwise(ends)
        ]
        """Row tiles done together: first, end, first item, number of items."""


class ExactPlan(Plan):
    """out_i = Σ_j exp(−½‖f_i − f_j‖²) v_j over fixed points, for any values, on a CUDA device.

    Weights are recomputed in every application: nothing of size n² is stored. Those under a
    tolerance are left out where whole blocks of points are that far apart, and so are larger ones
    that are less than an estimated `DROPPED_SHARE` of a row's weights. Weights under 2^-5.5 between
    points and compact blocks are those of the block's center. Weights and values are rounded to
    float16, sums are float32. Errors, also those of symmetry, are about 1e-4 of Σ_j k_ij |v_j|.
    Two applications to the same values give the same bits.

    Args:
        features: A floating-point tensor on a CUDA device, in units of standard deviations; any
            number of columns, and any distances.  # (n, d)
        tolerance: Pairs with a smaller weight may be left out in any case.
        tiles: How the work is cut.
    """

    name = "exact"

    def __init__(
        self, features: Tensor, tolerance: float = 1e-6, tiles: Tiles | None = None
    ) -> None:
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
        self.features = features
        self.n, self.d = features.shape
        self.tolerance = tolerance
        self.tiles = Tiles() if tiles is None else tiles
        self.device = features.device
        self.pairs: int = 0
        """Pairs of points whose weights are computed, with padding."""
        self.far_pairs: int = 0
        """Those of them whose weights are computed by centers of blocks."""
        if self.n:
            self._build(features)

    def _build(self, features: Tensor) -> None:
        """Read the ranges of features and the number of near blocks from the device."""
        t = self.tiles
        low, high = torch.stack(torch.aminmax(features, dim=0)).to(torch.float64).tolist()
        scale = math.sqrt(math.log2(math.e))  # weights are 2^(−½ distance²) then
        extents = [scale * 0.5 * (b - a) for a, b in zip(low, high, strict=True)]
        self.largest = max(extents)
        if not all(math.isfinite(x) for x in extents):  # NaN may hide from the largest
            raise InputError("features hold NaN or infinite values")
        points = order.centered(features, low, high) * scale
        coarse = points.to(torch.float32)
        self.order = order.kd_order(coarse, t.block, t.row)
        self.padded = len(self.order)
        self.encoded = self._encode(points, extents)
        reach = math.sqrt(-2.0 * math.log2(self.tolerance))
        reach += self.largest * 2.0**-21  # boxes are rounded to float32
        coarse = coarse[self.order.clamp(max=self.n - 1)]
        shares = order.shares_beyond(coarse, t.row, t.box)
        limits = order.limits(shares, reach, DROPPED_SHARE, FAR_SHARE if self.scaled else 0.0)
        spread = self._encode_blocks(coarse, extents)
        self._list(order.Near(coarse, t.row, t.box, t.block, limits, spread))
        near, far = "near", "far"  # how `kernels.weights_of` makes weights of products
        if not interpreted():
            near, far = kernels.bits_assembly(EXPONENTIALS, True), kernels.bits_assembly(0, False)
        if not self.scaled:
            near, far = "" if interpreted() else kernels.exp2_assembly(POLYNOMIALS), ""
        self.shape = kernels.FilterShape(
            self.d, self.encoded.left.shape[1], encode.first_slots(self.d), BIAS, self.dot,
            near, far if self.far_pairs else "",
            FAR_SCALE * t.block, t.row, t.column, t.block,
        )  # fmt: skip

    def _encode(self, points: Tensor, extents: list[float]) -> kernels.EncodedPoints:
        """What the exponents are computed from, with one block more for lists to point at."""
        more = self.tiles.block
        # centering rounds: a coordinate may be a little larger than half the range
        self.dot = 1.001 * self.largest <= encode.MAX_COORDINATE and self.d <= encode.MAX_NUMBERS
        self.scaled = self.dot and 1.001 * self.largest <= encode.MAX_SCALED_COORDINATE
        if self.dot:
            left, right = encode.encode_in_order(
                points, self.order, more, extents, BIAS, self.scaled
            )
            parts = points.new_zeros(1, dtype=torch.float32)
        else:
            points = points[self.order.clamp(max=self.n - 1)]
            points = torch.cat([points, points.new_zeros((more, self.d))])
            scaled = points.T * math.sqrt(0.5)
            high = scaled.to(torch.float32)
            parts = torch.cat([high, (scaled - high).to(torch.float32)]).contiguous()
            left = right = points.new_zeros((1, 16), dtype=torch.float16)
        return kernels.EncodedPoints(parts, left, right, self.padded + more)

    def _encode_blocks(self, points: Tensor, extents: list[float]) -> Tensor:
        """Centers of blocks, which stand for far ones; their spreads.  # (blocks,)"""
        centers, spread, *_ = order.moments(points, self.tiles.block)
        # what the mean of 2^(−½ distance²) over a block's points is, relative to its center's
        log2 = math.log(2.0)
        second = 0.5 * log2 * (log2 * FAR_SQUARE / self.d - 1.0)
        self.factors = 1.0 + second * spread
        self.centers = self.encoded.right
        if self.scaled:
            number = torch.arange(len(spread), device=self.device)
            _, self.centers = encode.encode_in_order(
                centers.T.to(torch.float64).contiguous(), number, 1, extents, BIAS, scaled=True
            )
        return spread

    def _list(self, near: order.Near) -> None:
        """Lists filled up to whole rounds with the block that has no values."""
        t = self.tiles
        step = t.column // t.block
        counts = near.counts()
        far = counts[:, 1] // t.column
        items = Items(far, -(-(counts.sum(1) - far * t.column) // step), t.column, step, t.rounds)
        self.batches = items.batches
        # everything in one copy to the device
        parts = [items.row, items.count, items.far, items.start, items.first, items.begin]
        sent = torch.from_numpy(np.concatenate(parts)).to(self.device)
        row, count, far, start, self.first_item, begin = torch.split(
            sent, [len(part) for part in parts]
        )
        self.items = kernels.ItemLists(
            row.to(torch.int32), start, far.to(torch.int32), count.to(torch.int32)
        )
        total = int(items.count.sum())
        self.blocks = torch.full(
            (total + t.column,),  # the kernel looks one round ahead
            self.padded // t.block, dtype=torch.int32, device=self.device,
        )  # fmt: skip
        near.fill(begin, self.blocks)
        self.pairs = total * t.block * t.row
        self.far_pairs = int(items.far.sum()) * t.block * t.row

    def ones(self) -> Tensor:
        return torch.ones((self.n, 1), device=self.device)

    def pull(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """See `Plan.pull`. Errors are about 1e-3 of the sums of absolute values.

        With w_ij = k_ij (a_i·b_j + b_i·a_j) it is Σ_j w_ij (f_j − f_i): one pass over the pairs
        gives both sums of it. Filtering f_j times the values would take a pass per feature.
        """
        n, d = self.n, self.d
        features = self.features.to(torch.float32)
        features = features - features.mean(dim=0)  # the nearer to 0, the smaller the errors
        if not n or not a.shape[1]:
            return torch.zeros_like(features), features.new_zeros((n, 1))
        # in two parts, and ones, in the plan's order; 0 for points that aren't there
        width = max(16, 1 << (2 * d).bit_length())
        moments = features.new_zeros((width, self.padded + self.tiles.block))
        real = self.order < n
        mine = features[self.order.clamp(max=n - 1)].T * real  # (d, padded)
        high = as_tf32(mine)
        moments[:d, : self.padded] = high
        moments[d : 2 * d, : self.padded] = as_tf32(mine - high)
        moments[2 * d, : self.padded] = real
        sums = features.new_zeros((n, width))
        # one scale for all channels, since their products are added
        tiny = torch.finfo(torch.float32).tiny
        most_a, most_b = a.abs().amax().clamp(min=tiny), b.abs().amax().clamp(min=tiny)
        together = PAIRS
        if features.is_cuda:
            found = torch.cuda.get_device_properties(features.device)
            if getattr(found, "shared_memory_per_block_optin", 0) < SHARED_MEMORY:
                together = PAIRS // 2
        for start in range(0, a.shape[1], together):
            some = slice(start, start + together)
            sums += self._pull(moments, a[:, some] / most_a, b[:, some] / most_b)
        # values of size 1 are held times 2^(PEAK - 1), weights times 2^BIAS
        sums = sums * (most_a * most_b * 2.0 ** (-2 * (PEAK - 1) - BIAS))
        seen = sums[:, :d] + sums[:, d : 2 * d]
        total = sums[:, 2 * d : 2 * d + 1]
        return seen - features * total, total

    def _pull(self, moments: Tensor, a: Tensor, b: Tensor) -> Tensor:
        """Scaled sums Σ_j k_ij (a_i·b_j + b_i·a_j) m_j of values up to 1.  # (n, moments)"""
        t = self.tiles
        n, c = a.shape
        half = max(16, 1 << (c - 1).bit_length())
        values = a.new_zeros((n, 2 * half))
        values[:, :c] = a
        values[:, half : half + c] = b
        _, packed, _ = self._packed(values, values.new_ones(2 * half), 0)
        width = len(moments)
        partial = values.new_empty((max(count for *_, count in self.batches), t.row, width))
        out = values.new_empty((n, width))
        some = min(32, t.row)
        for low, high, first, count in self.batches:
            kernels.pull_tiles[(count,)](
                self.encoded, packed, moments, self.blocks, self.items, partial, first,
                H=half, M=width, SHAPE=self.shape._replace(far=""), num_warps=8, num_stages=2,
            )  # fmt: skip
            kernels.add_moments[(high - low, t.row // some)](
                partial, self.first_item, low, self.order, out, n, M=width, BM=t.row, ROWS=some
            )
        return out

    def _packed(
        self, values: Tensor, most: Tensor, group: int
    ) -> tuple[kernels.Channels, Tensor, Tensor]:
        """Values as `kernels.pack` leaves them, with means of blocks of ``group`` points."""
        n, c = values.shape
        width = max(16, 1 << (c - 1).bit_length())
        rows = (self.padded + self.tiles.block) // 64 * 64 + 64
        packed = values.new_empty((rows, width), dtype=torch.float16)
        means = values.new_empty((rows // self.tiles.block, width), dtype=torch.float16)
        given = kernels.Channels(values, self.order, most, n, c)
        kernels.pack[(rows // 64,)](
            given, packed, self.factors, means, self.padded, PEAK=PEAK, C=width, ROWS=64, G=group
        )
        return given, packed, means

    def apply(self, values: Tensor, most: Tensor | None = None) -> Tensor:
        """K @ values, which are finite.  # (n, c) -> (n, c) float32

        ``most`` are bounds on the sizes of each channel's values, if they are known: by default
        they are looked for. Values 2^28 times smaller than their bound count as 0.  # (c,) float32
        """
        if values.ndim != 2 or len(values) != self.n:
            raise InputError(
                f"values of shape {tuple(values.shape)} for {self.n} points, expected "
                f"({self.n}, channels)"
            )
        values = values.to(self.device, torch.float32).contiguous()
        if values.numel() == 0:
            return torch.empty_like(values)
        if most is None:
            most = torch.linalg.vector_norm(values, math.inf, 0)
        some = [slice(k, k + CHANNELS) for k in range(0, values.shape[1], CHANNELS)]
        parts = [self._apply(values[:, at].contiguous(), most[at].contiguous()) for at in some]
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)

    def _apply(self, values: Tensor, most: Tensor) -> Tensor:
        t = self.tiles
        given, packed, means = self._packed(values, most, t.block if self.far_pairs else 0)
        out, width = torch.empty_like(values), packed.shape[1]
        largest = max(count for *_, count in self.batches)
        partial = values.new_empty((largest, t.row, width))
        # with at most 128 registers a thread, four programs share a multiprocessor
        registers = 128 if self.dot and width <= 32 else None
        some = min(32, t.row)
        for low, high, first, count in self.batches:
            kernels.filter_tiles[(count,)](
                self.encoded, packed, self.centers, means, self.blocks, self.items, partial, first,
                C=width, SHAPE=self.shape, num_warps=4, num_stages=3, maxnreg=registers,
            )  # fmt: skip
            kernels.add_up[(high - low, t.row // some)](
                partial, self.first_item, low, given, packed, out,
                BIAS=BIAS, PEAK=PEAK, C=width, BM=t.row, ROWS=some,
            )  # fmt: skip
        return out
