# mypy: disable-error-code="no-untyped-def, no-untyped-call"
"""Marginals of variables with two labels from the present state, in one launch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from proxfield.core.devices.cuda import jit, tl
from proxfield.core.engines.triton.update import arithmetic

if TYPE_CHECKING:
    from proxfield.core.devices.tensors import constexpr
    from proxfield.core.engines.triton.state import Slot
else:
    constexpr = str if tl is None else tl.constexpr

BLOCK = 1024
"""Entries of one program."""


@jit
def read_pairs(
    buffers, stride, board, q, shift, entries,
    BOARD: constexpr, TICK: constexpr, BUFFERS: constexpr, BLOCK: constexpr,
):  # fmt: skip
    """Normalized marginals of natural parameters into ``q``, and zeros into ``shift``.

    buffers: the states, of which each field's tick says the present one; fields have so many
    ``entries``, two for each variable.
    """
    field = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < entries
    which = (tl.load(board + field * BOARD + TICK) % BUFFERS).to(tl.int64)
    buffers += which * stride + field * entries
    mine = tl.exp(-tl.load(buffers + at, mask=inside, other=0.0))
    other = tl.exp(-tl.load(buffers + (at ^ 1), mask=inside, other=0.0))
    total = mine + other
    to = field * entries + at
    tl.store(q + to, mine / tl.where(total > 0, total, 1.0), mask=inside)
    tl.store(shift + to, tl.zeros((BLOCK,), shift.dtype.element_ty), mask=inside)


def read(slot: Slot, front: int, stride: int, fields: int, entries: int) -> None:
    """Marginals of all fields into ``slot.q``, and zeros into ``slot.shift``."""
    read_pairs[(-(-entries // BLOCK), fields)](
        slot.buffers[0, front:], stride, slot.board, slot.q, slot.shift, entries,
        BOARD=arithmetic.BOARD, TICK=arithmetic.TICK, BUFFERS=arithmetic.BUFFERS, BLOCK=BLOCK,
        num_warps=4,
    )  # fmt: skip
