# mypy: disable-error-code="no-untyped-def, no-untyped-call"
"""Sums over segments by gathering: no two programs write to one place, and the order is fixed.

Adding rows where several belong to one place needs atomic additions, whose order changes from run
to run. Here the entries are listed segment by segment instead, and each program adds up one
*piece* of a list. Long lists are several pieces, which are added up in the same way.
"""

from __future__ import annotations

from proxfield.core.devices.cuda import constexpr, interpreted, jit, tl, torch, triton
from proxfield.core.devices.tensors import Tensor
from proxfield.core.filters.plan import held_bytes

PIECE = 128
"""Maximum number of entries that one program adds up."""
CHANNELS = 64
"""Maximum number of channels of one program."""


def has_kernels(tensor: Tensor) -> bool:
    """Whether Triton's kernels can run on this tensor; otherwise plain torch is used."""
    return triton is not None and (bool(tensor.is_cuda) or interpreted())


def channel_block(channels: int) -> int:
    """Channels of one program, a power of two.

    Example:
        >>> channel_block(1), channel_block(21), channel_block(100)
        (1, 32, 64)
    """
    return min(CHANNELS, 1 << (channels - 1).bit_length())


@jit
def sum_pieces(
    table, index, weight, start, count, out, c,
    INDEXED: constexpr, WEIGHTED: constexpr, ROWS: constexpr, C: constexpr,
):  # fmt: skip
    """out_p = Σ weight_e · table[index_e] over the entries e of piece p."""
    piece = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * C + tl.arange(0, C)
    low = tl.load(start + piece)
    high = low + tl.load(count + piece)
    total = tl.zeros((ROWS, C), table.dtype.element_ty)
    for first in range(low, high, ROWS):
        entry = first + tl.arange(0, ROWS)
        inside = entry < high
        row = entry.to(tl.int64)
        if INDEXED:
            row = tl.load(index + entry, mask=inside, other=0).to(tl.int64)
        real = inside[:, None] & (channel < c)[None, :]
        v = tl.load(table + row[:, None] * c + channel[None, :], mask=real, other=0.0)
        if WEIGHTED:
            v = v * tl.load(weight + entry, mask=inside, other=0.0)[:, None]
        total += v.to(total.dtype)
    tl.store(out + piece * c + channel, tl.sum(total, 0), mask=channel < c)


class SegmentSum:
    """out_s = Σ_{e in segment s} weight_e · table[index_e], for any table.

    Args:
        starts: First entry of each segment, and their ``counts``.  # (segments,) int64
        index: Row of each entry; the entry's own number by default.  # (entries,) int32
        weight: Weight of each entry; 1 by default.  # (entries,)
        fixed: Never wait for the device: room for as many pieces as there may be.
    """

    def __init__(
        self, starts: Tensor, counts: Tensor, index: Tensor | None = None,
        weight: Tensor | None = None, fixed: bool = False,
    ) -> None:  # fmt: skip
        self.index, self.weight = index, weight
        self.segments = len(starts)
        self.rest: SegmentSum | None = None
        """Adds up the pieces, where a segment has several."""
        self.start, self.count = starts, counts
        if not has_kernels(starts):
            owner = torch.repeat_interleave(torch.arange(len(starts)).to(counts.device), counts)
            self.owner = owner  # (entries of all segments,)
            inside = torch.arange(len(owner), device=counts.device)
            inside -= torch.repeat_interleave(counts.cumsum(0) - counts, counts)
            self.entry = starts[owner] + inside
            return
        pieces = torch.clamp((counts + (PIECE - 1)) // PIECE, min=1)
        end = pieces.cumsum(0)
        if fixed:  # of those without an index, the pieces themselves, each is one
            total = self.segments + (0 if index is None else len(index) // PIECE)
        else:
            total = int(end[-1]) if self.segments else 0
        if total > self.segments:
            first = end - pieces
            numbers = torch.arange(total, device=starts.device)
            owner = torch.searchsorted(end, numbers, right=True).clamp_(max=self.segments - 1)
            before = (numbers - first[owner]) * PIECE
            self.start = starts[owner] + before
            # of pieces that aren't there, none
            self.count = torch.clamp(counts[owner] - before, min=0, max=PIECE)
            self.rest = SegmentSum(first, pieces, fixed=fixed)

    @property
    def nbytes(self) -> int:
        """Bytes of the lists."""
        return held_bytes(tuple(vars(self).values()))

    def __call__(self, table: Tensor) -> Tensor:
        """The sums, in the table's type.  # (rows, c) -> (segments, c)"""
        c = table.shape[1]
        if not has_kernels(table):
            row = self.entry if self.index is None else self.index[self.entry].long()
            parts = table[row]
            if self.weight is not None:
                parts = parts * self.weight[self.entry, None].to(table.dtype)
            out = torch.zeros((self.segments, c), dtype=table.dtype, device=table.device)
            return out.index_add_(0, self.owner, parts)
        out = torch.empty((len(self.start), c), dtype=table.dtype, device=table.device)
        if out.numel():
            block = channel_block(c)
            sum_pieces[(len(self.start), -(-c // block))](
                table.contiguous(), self.index, self.weight, self.start, self.count, out, c,
                INDEXED=self.index is not None, WEIGHTED=self.weight is not None,
                ROWS=max(8, 256 // block), C=block, num_warps=1,
            )  # fmt: skip
        return out if self.rest is None else self.rest(out)
