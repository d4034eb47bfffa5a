# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Triton kernel for Potts energies and shared tables between variables near each other.

All variables have the same labels.

A block of variables is stored label by label: entry (i, l) is at
``(i // BLOCK)·LABELS·BLOCK + l·BLOCK + i % BLOCK``. A thread has all labels of one variable, so no
thread is idle whatever their number, sums over labels need no exchange between threads, and
neighboring threads read neighboring numbers, of the neighbors too where these lie side by side as
on a grid. The distance between labels is a constant: one address serves all labels.

Directed edges that share a table are a *group*: Σ_j T q_j = T Σ_j q_j, so marginals are added up
first, and each variable has one product with the table of each group.
"""

from __future__ import annotations

from proxfield.core.devices.cuda import jit, tl
from proxfield.core.engines.triton.update.arithmetic import (
    exponential,
    label_update,
    larger,
    parameter,
)
from proxfield.core.engines.triton.update.binary import numbers_of, single_loads
from proxfield.core.engines.triton.update.general import fetch_marginals
from proxfield.core.engines.triton.update.kinds import constexpr, fetch_moments, put_moments

if tl is not None:
    from proxfield.core.engines.triton.update.arithmetic import BUFFERS
    from proxfield.core.engines.triton.update.kinds import _LOOK, _NATIVE

    _BUFFERS: constexpr = tl.constexpr(BUFFERS)


@jit
def agreement(g, source, to, weight, edge, offset, inside):
    """Adds w q_j(l) of one neighbor of each variable."""
    w = tl.load(weight + edge)[:, None]
    j = tl.load(to + edge)[:, None]
    return g + w * exponential(tl.load(source + j + offset, mask=inside, other=float("inf")))


@jit
def marginals_added(s, source, to, edge, offset, inside, LINEAR: constexpr):
    """Adds q_j(l) of one neighbor of each variable, if it has that many."""
    j = tl.load(to + edge)[:, None]  # −1: nobody
    w = (j >= 0).to(s.dtype)
    return s + w * fetch_marginals(source + tl.maximum(j, 0) + offset, inside, LINEAR)


@jit
def group_marginals(
    s, source, to, first, degree, place, offset, inside,
    DEGREE: constexpr, BLOCK: constexpr, LINEAR: constexpr,
):  # fmt: skip
    """Adds Σ_j q_j(l) over a group's neighbors of each variable: DEGREE, or ``degree`` if 0."""
    if DEGREE > 0:
        for k in tl.static_range(DEGREE):
            edge = first + k * BLOCK + place
            s = marginals_added(s, source, to, edge, offset, inside, LINEAR)
    else:
        for k in range(degree):
            edge = first + k * BLOCK + place
            s = marginals_added(s, source, to, edge, offset, inside, LINEAR)
    return s


@jit
def pinned(s):
    """The same numbers; the compiler doesn't compute what they come from in another layout."""
    if _NATIVE:
        return tl.inline_asm_elementwise(
            "mov.f32 $0, $1;", "=f,f", [s], dtype=tl.float32, is_pure=False, pack=1
        )
    else:
        return s


@jit
def products_added(total, s, scale, table, across, L: constexpr):
    """Adds s·T times a power of two, by the units for products of float16.

    Of two parts of each number (see `planes_pack.in_parts`), without the product of the smaller
    ones: 22 bits.
    """
    s = pinned(s) * scale
    high = s.to(tl.float16)
    low = (s - high.to(tl.float32)).to(tl.float16)
    t_high = tl.load(table + across)
    t_low = tl.load(table + L * L + across)
    total = tl.dot(low, t_high, total)
    total = tl.dot(high, t_low, total)
    return tl.dot(high, t_high, total)


@jit
def shared_tables(
    g, source, block, blocks, start, length, to, table, scales, place, label, offset, inside,
    GROUPS: constexpr, DEGREE: constexpr, LABELS: constexpr, L: constexpr, BLOCK: constexpr,
    LINEAR: constexpr, DOT: constexpr,
):  # fmt: skip
    """Adds Σ_k T_k Σ_j q_j of all groups k of neighbors j.

    Rows of ``table`` are labels of the neighbors, L of them like the columns; see
    `planes_pack.in_parts`. DEGREE: as many neighbors in each group of each variable, or 0 where
    blocks differ. DOT: see `products_added`; ``scales`` are what marginals are multiplied with, and
    what takes this and the scale of the tables back. Otherwise one label of the neighbors after
    another.
    """
    total = tl.zeros_like(g)
    across = tl.arange(0, L)[:, None] * L + label
    if DOT:
        scale = tl.load(scales)
        for k in tl.static_range(GROUPS):
            first = tl.load(start + k * blocks + block)
            degree = 0
            if DEGREE == 0:
                degree = tl.load(length + k * blocks + block)
            s = group_marginals(
                tl.zeros_like(g), source, to, first, degree, place, offset, inside,
                DEGREE, BLOCK, LINEAR,
            )  # fmt: skip
            total = products_added(total, s, scale, table + 2 * k * (L * L), across, L)
        # turned twice, else what follows would be computed in the layout of products
        total = tl.trans(pinned(tl.trans(total))) * tl.load(scales + 1)
    else:
        everywhere = (place >= 0)[:, None]
        for k in range(GROUPS):
            first = tl.load(start + k * blocks + block)
            degree = 0
            if DEGREE == 0:
                degree = tl.load(length + k * blocks + block)
            for m in range(LABELS):
                q = group_marginals(
                    tl.zeros((BLOCK, 1), g.dtype), source, to, first, degree, place, m * BLOCK,
                    everywhere, DEGREE, BLOCK, LINEAR,
                )  # fmt: skip
                total += q * tl.load(table + (k * L + m) * L + label)
    return g + total


@single_loads(
    "buffers", "unary", "u", "v", "step", "safe", "start", "to", "weight", "t_start", "t_to",
    "parts",
)  # fmt: skip
def plane_step(
    buffers, stride, n, board, parts, unary, u, v, step, safe, start, length, to, weight,
    t_start, t_length, t_to, table, scales, parameters,
    KIND: constexpr, ADAPTIVE: constexpr, TRACE: constexpr, FLAT: constexpr, HARD: constexpr,
    DEGREE: constexpr, GROUPS: constexpr, T_DEGREE: constexpr, DOT: constexpr,
    LABELS: constexpr, L: constexpr, BLOCK: constexpr,
):  # fmt: skip
    """One update of all variables, a program for each block.

    Neighbor k of place j of a block is at ``start + k·BLOCK + j``, in ``to`` by the entry of its
    first label. DEGREE: as many for each variable, 0 where blocks differ, or −1 where there are
    none. For the rest see `shared_tables`. KIND `LOOK` only looks: ``u`` gets the gradient.
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
        if GROUPS > 0:
            g = shared_tables(
                g, source, block, tl.num_programs(0), t_start, t_length, t_to, table, scales,
                place, label, offset, inside, GROUPS, T_DEGREE, LABELS, L, BLOCK, False, DOT,
            )  # fmt: skip
        if DEGREE > 0:
            for k in tl.static_range(DEGREE):
                g = agreement(g, source, to, weight, first + k * BLOCK + place, offset, inside)
        elif DEGREE == 0:
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
