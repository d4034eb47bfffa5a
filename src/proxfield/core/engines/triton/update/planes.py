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

from typing import NamedTuple

from proxfield.core.devices.cuda import constexpr, jit, jit_for_any, tl
from proxfield.core.devices.tensors import Tensor
from proxfield.core.engines.triton.update.arithmetic import exponential, label_update, larger
from proxfield.core.engines.triton.update.board import (
    _DONE,
    _REDO,
    _TICK,
    buffer_at,
    numbers_of,
    step_of,
)
from proxfield.core.engines.triton.update.general import fetch_marginals
from proxfield.core.engines.triton.update.kinds import (
    _LOOK,
    _NATIVE,
    Movement,
    Place,
    Steps,
    fetch_moments,
    put_moments,
)


class Planes(NamedTuple):
    """What kernels over planes are compiled for, beside the rule."""

    labels: int
    lanes: int
    """Labels rounded up to a power of two."""
    block: int
    degree: int
    """Neighbors of each variable, 0 where blocks differ, or −1 where there are none."""
    groups: int
    """Shared tables."""
    table_degree: int
    """Neighbors in each group of each variable, or 0 where blocks differ."""
    dot: bool
    """See `products_added`."""


class Slots(NamedTuple):
    """Where blocks' neighbors begin, and how many each variable has at most.

    Neighbor k of place j of a block is at ``start + k·BLOCK + j``. Groups of neighbors that share a
    table are one after another.
    """

    start: Tensor
    length: Tensor


class SharedTables(NamedTuple):
    """Tables of all groups, with the neighbors' labels first; see `planes_pack.in_parts`.

    ``scales`` are what marginals are multiplied with, and what takes this and the scale of the
    tables back.
    """

    entries: Tensor
    scales: Tensor


@jit
def agreement(g, source, to, weight, edge, offset, inside, LINEAR: constexpr):
    """Adds w q_j(l) of one neighbor of each variable."""
    w = tl.load(weight + edge)[:, None]
    j = tl.load(to + edge)[:, None]
    return g + w * fetch_marginals(source + j + offset, inside, LINEAR)


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
    g, source, to, block, place, offset, inside, groups, tables,
    P: constexpr, LINEAR: constexpr, DOT: constexpr,
):  # fmt: skip
    """Adds Σ_k T_k Σ_j q_j of all groups k of neighbors j.

    DOT: see `products_added`. Otherwise one label of the neighbors after another.
    """
    BLOCK: constexpr = P.block
    DEGREE: constexpr = P.table_degree
    GROUPS: constexpr = P.groups
    L: constexpr = P.lanes
    label = tl.arange(0, L)[None, :]
    blocks = tl.num_programs(0)
    total = tl.zeros_like(g)
    across = tl.arange(0, L)[:, None] * L + label
    if DOT:
        scale = tl.load(tables.scales)
        for k in tl.static_range(GROUPS):
            first = tl.load(groups.start + k * blocks + block)
            degree = 0
            if DEGREE == 0:
                degree = tl.load(groups.length + k * blocks + block)
            s = group_marginals(
                tl.zeros_like(g), source, to, first, degree, place, offset, inside,
                DEGREE, BLOCK, LINEAR,
            )  # fmt: skip
            total = products_added(total, s, scale, tables.entries + 2 * k * (L * L), across, L)
        # turned twice, else what follows would be computed in the layout of products
        total = tl.trans(pinned(tl.trans(total))) * tl.load(tables.scales + 1)
    else:
        everywhere = (place >= 0)[:, None]
        for k in range(GROUPS):
            first = tl.load(groups.start + k * blocks + block)
            degree = 0
            if DEGREE == 0:
                degree = tl.load(groups.length + k * blocks + block)
            for m in range(P.labels):
                q = group_marginals(
                    tl.zeros((BLOCK, 1), g.dtype), source, to, first, degree, place,
                    m * BLOCK, everywhere, DEGREE, BLOCK, LINEAR,
                )  # fmt: skip
                total += q * tl.load(tables.entries + (k * L + m) * L + label)
    return g + total


@jit_for_any(
    pointers=(
        "buffers",
        "parts",
        "unary",
        "u",
        "v",
        "step",
        "safe",
        "to",
        "weight",
        "group_to",
    ),
)
def plane_step(
    buffers, stride, n, board, parts, unary, u, v, step, safe, parameters, to, weight, group_to,
    slots, groups, tables, RULE: constexpr, P: constexpr,
):  # fmt: skip
    """One update of all variables, a program for each block.

    ``to`` are entries of the neighbors' first labels, and ``group_to`` those of neighbors by group,
    −1 where a variable has fewer of them.
    The kind `LOOK` only looks: ``u`` gets the gradient.
    """
    BLOCK: constexpr = P.block
    L: constexpr = P.lanes
    DEGREE: constexpr = P.degree
    movement = Movement(u, v, step, safe, parameters)
    block = tl.program_id(0)
    tick = tl.load(board + _TICK)
    if tl.load(board + _DONE) == 0:
        source = buffer_at(buffers, stride, tick)
        target = buffer_at(buffers, stride, tick + 1)
        place = tl.arange(0, BLOCK)
        who = block * BLOCK + place
        real = who < n
        label = tl.arange(0, L)[None, :]
        # of constants for each register, so that labels beyond the last cost nothing
        inside = (label < P.labels) & (place >= 0)[:, None]
        offset = label * BLOCK
        at = block * (P.labels * BLOCK) + place[:, None] + offset
        first = tl.load(slots.start + block)
        g = tl.zeros((BLOCK, L), buffers.dtype.element_ty)
        if P.groups > 0:
            g = shared_tables(
                g, source, group_to, block, place, offset, inside, groups, tables, P, False, P.dot
            )
        if DEGREE > 0:
            for k in tl.static_range(DEGREE):
                g = agreement(
                    g, source, to, weight, first + k * BLOCK + place, offset, inside, False
                )
        elif DEGREE == 0:
            for k in range(tl.load(slots.length + block)):
                g = agreement(
                    g, source, to, weight, first + k * BLOCK + place, offset, inside, False
                )
        theta = tl.load(source + at, mask=inside, other=float("inf"))
        own = tl.load(unary + at, mask=inside, other=0.0)
        like = theta.dtype
        q = exponential(theta)
        f = tl.zeros((BLOCK,), like)
        if RULE.trace:  # log q = −θ
            rest = own + 0.5 * g - theta
            f = tl.sum(tl.where(inside & (q > 0), q * rest, 0.0), 1)
        g += own
        change = tl.zeros((BLOCK,), like)
        if RULE.kind == _LOOK:
            tl.store(movement.u + at, g, mask=inside)
        else:
            numbers = numbers_of(movement.parameters, like)
            here = Place(0, at, inside)
            m1, m2 = fetch_moments(movement, here, g, RULE, False)
            s = tl.zeros((BLOCK, 1), like) + step_of(movement.parameters, like)
            certified = s
            if not RULE.flat:
                s = tl.load(movement.step + who, mask=real, other=1.0)[:, None]
            if RULE.adaptive:
                certified = tl.load(movement.safe + who, mask=real, other=1.0)[:, None]
            steps = Steps(s, certified, tl.load(board + _REDO))
            new, m1, m2, change = label_update(theta, q, g, m1, m2, steps, numbers, inside, RULE)
            tl.store(target + at, new, mask=inside)
            put_moments(movement, here, m1, m2, RULE, False)
        tl.store(parts + block * 2, tl.sum(tl.where(real, f, 0.0).to(tl.float64), 0))
        most = tl.reduce(tl.where(real, change, 0.0), 0, larger)
        tl.store(parts + block * 2 + 1, most.to(tl.float64))


@jit
def plane_product(source, out, to, weight, group_to, slots, groups, tables, P: constexpr):
    """What `plane_step` adds up, of numbers in place of marginals."""
    BLOCK: constexpr = P.block
    L: constexpr = P.lanes
    block = tl.program_id(0)
    place = tl.arange(0, BLOCK)
    label = tl.arange(0, L)[None, :]
    inside = (label < P.labels) & (place >= 0)[:, None]
    offset = label * BLOCK
    at = block * (P.labels * BLOCK) + place[:, None] + offset
    first = tl.load(slots.start + block)
    g = tl.zeros((BLOCK, L), out.dtype.element_ty)
    for k in range(tl.load(slots.length + block)):
        g = agreement(g, source, to, weight, first + k * BLOCK + place, offset, inside, True)
    if P.groups > 0:
        g = shared_tables(
            g, source, group_to, block, place, offset, inside, groups, tables, P, True, False
        )
    tl.store(out + at, g, mask=inside)
