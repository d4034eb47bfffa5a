# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Triton kernel for Potts energies between variables with the same labels, near each other.

A block of variables is stored label by label: entry (i, l) is at
``(i // BLOCK)·LABELS·BLOCK + l·BLOCK + i % BLOCK``. A thread has all labels of one variable, so no
thread is idle whatever their number, sums over labels need no exchange between threads, and
neighboring threads read neighboring numbers, of the neighbors too where these lie side by side as
on a grid. The distance between labels is a constant: one address serves all labels.
"""

from __future__ import annotations

from proxfield.backends.triton.update.arithmetic import (
    exponential,
    label_update,
    larger,
    parameter,
)
from proxfield.backends.triton.update.binary import numbers_of, single_loads
from proxfield.backends.triton.update.kinds import constexpr, fetch_moments, put_moments
from proxfield.devices.cuda import jit, tl

if tl is not None:
    from proxfield.backends.triton.update.arithmetic import BUFFERS
    from proxfield.backends.triton.update.kinds import _LOOK

    _BUFFERS: constexpr = tl.constexpr(BUFFERS)


@jit
def agreement(g, source, to, weight, edge, offset, inside):
    """Adds w q_j(l) of one neighbor of each variable."""
    w = tl.load(weight + edge)[:, None]
    j = tl.load(to + edge)[:, None]
    return g + w * exponential(tl.load(source + j + offset, mask=inside, other=float("inf")))


@single_loads("buffers", "unary", "u", "v", "step", "safe", "start", "to", "weight", "parts")
def plane_step(
    buffers, stride, n, board, parts, unary, u, v, step, safe, start, length, to, weight,
    parameters,
    KIND: constexpr, ADAPTIVE: constexpr, TRACE: constexpr, FLAT: constexpr, HARD: constexpr,
    DEGREE: constexpr, LABELS: constexpr, L: constexpr, BLOCK: constexpr,
):  # fmt: skip
    """One update of all variables, a program for each block.

    Neighbor k of place j of a block is at ``start + k·BLOCK + j``, in ``to`` by the entry of its
    first label. DEGREE: as many for each variable, or 0 where blocks differ. KIND `LOOK` only
    looks: ``u`` gets the gradient.
    """
    block = tl.program_id(0)
    tick = tl.load(board)
    if tl.load(board + 1) == 0:
        source = buffers + (tick % _BUFFERS).to(tl.int64) * stride
        target = buffers + ((tick + 1) % _BUFFERS).to(tl.int64) * stride
        place = tl.arange(0, BLOCK)
        who = block * BLOCK + place
        real = who < n
        label = tl.arange(0, L)[None, :]
        # of constants for each register, so that labels beyond the last cost nothing
        inside = (label < LABELS) & (place >= 0)[:, None]
        offset = label * BLOCK
        at = block * (LABELS * BLOCK) + place[:, None] + offset
        first = tl.load(start + block)
        g = tl.zeros((BLOCK, L), buffers.dtype.element_ty)
        if DEGREE > 0:
            for k in tl.static_range(DEGREE):
                g = agreement(g, source, to, weight, first + k * BLOCK + place, offset, inside)
        else:
            for k in range(tl.load(length + block)):
                g = agreement(g, source, to, weight, first + k * BLOCK + place, offset, inside)
        theta = tl.load(source + at, mask=inside, other=float("inf"))
        own = tl.load(unary + at, mask=inside, other=0.0)
        like = theta.dtype
        q = exponential(theta)
        f = tl.zeros((BLOCK,), like)
        if TRACE:  # log q = −θ
            rest = own + 0.5 * g - theta
            f = tl.sum(tl.where(inside & (q > 0), q * rest, 0.0), 1)
        g += own
        change = tl.zeros((BLOCK,), like)
        if KIND == _LOOK:
            tl.store(u + at, g, mask=inside)
        else:
            beta, g1, g2, eps = numbers_of(parameters, like)
            m1, m2 = fetch_moments(u, v, at, inside, g, KIND, False)
            s = tl.zeros((BLOCK, 1), like) + parameter(parameters, 5, like)
            certified = s
            if not FLAT:
                s = tl.load(step + who, mask=real, other=1.0)[:, None]
            if ADAPTIVE:
                certified = tl.load(safe + who, mask=real, other=1.0)[:, None]
            new, m1, m2, change = label_update(
                theta, q, g, m1, m2, s, certified, tl.load(board + 5), beta, g1, g2, eps, inside,
                KIND, ADAPTIVE, HARD,
            )  # fmt: skip
            tl.store(target + at, new, mask=inside)
            put_moments(u, v, at, m1, m2, inside, KIND, False)
        tl.store(parts + block * 2, tl.sum(tl.where(real, f, 0.0).to(tl.float64), 0))
        most = tl.reduce(tl.where(real, change, 0.0), 0, larger)
        tl.store(parts + block * 2 + 1, most.to(tl.float64))
