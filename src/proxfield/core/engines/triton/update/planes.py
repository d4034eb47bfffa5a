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
from proxfield.core.engines.triton.update.board import (
    _DONE,
    _REDO,
    _TICK,
    buffer_at,
    move_labels,
)
from proxfield.core.engines.triton.update.general import fetch_marginals
from proxfield.core.engines.triton.update.kinds import _NATIVE, Entries, Movement, exponential


class Planes(NamedTuple):
    """What kernels over planes are compiled for, beside the rule."""

    labels: int
    lanes: int  # labels rounded up to a power of two
    block: int
    degree: int  # neighbors of each variable, 0 where blocks differ, or −1 where there are none
    groups: int  # shared tables
    table_degree: int  # neighbors in each group of each variable, or 0 where blocks differ
    dot: bool  # see `products_added`


class PlaneEdges(NamedTuple):
    """Where blocks' neighbors begin, how many each variable has at most, and shared tables.

    Neighbor k of place j of a block is at ``start + k·BLOCK + j``. Groups of neighbors that share a
    table are one after another, the tables with the neighbors' labels first; see
    `planes_pack.in_parts`. ``scales`` are what marginals are multiplied with, and what takes this
    and the scale of the tables back.
    """

    n: int  # variables
    start: Tensor
    length: Tensor
    group_start: Tensor
    group_length: Tensor
    tables: Tensor
    scales: Tensor


class PlaneBlock(NamedTuple):
    """A block of variables in a kernel."""

    block: Tensor
    place: Tensor  # (BLOCK,)
    offset: Tensor  # of each label  # (1, L)
    at: Tensor  # entries  # (BLOCK, L)
    inside: Tensor  # (BLOCK, L)


@jit
def block_of(P: constexpr):
    """The variables of this program."""
    block = tl.program_id(0)
    place = tl.arange(0, P.block)
    label = tl.arange(0, P.lanes)[None, :]
    # of constants for each register, so that labels beyond the last cost nothing
    inside = (label < P.labels) & (place >= 0)[:, None]
    offset = label * P.block
    at = block * (P.labels * P.block) + place[:, None] + offset
    return PlaneBlock(block, place, offset, at, inside)


@jit
def agreement(g, source, to, weight, edge, here, LINEAR: constexpr):
    """Adds w q_j(l) of one neighbor of each variable."""
    w = tl.load(weight + edge)[:, None]
    j = tl.load(to + edge)[:, None]
    return g + w * fetch_marginals(source + j + here.offset, here.inside, LINEAR)


@jit
def marginals_added(s, source, to, edge, offset, inside, LINEAR: constexpr):
    """Adds q_j(l) of one neighbor of each variable, if it has that many."""
    j = tl.load(to + edge)[:, None]  # −1: nobody
    w = (j >= 0).to(s.dtype)
    return s + w * fetch_marginals(source + tl.maximum(j, 0) + offset, inside, LINEAR)


@jit
def group_marginals(s, source, to, edge, degree, offset, inside, P: constexpr, LINEAR: constexpr):
    """Adds Σ_j q_j(l) over a group's neighbors of each variable, of which ``edge`` is the first.

    There are ``degree`` of them where their number isn't known when compiling.
    """
    DEGREE: constexpr = P.table_degree
    to += tl.arange(0, P.block)
    if DEGREE > 0:
        for k in tl.static_range(DEGREE):
            s = marginals_added(s, source, to, edge + k * P.block, offset, inside, LINEAR)
    else:
        for k in range(degree):
            s = marginals_added(s, source, to, edge + k * P.block, offset, inside, LINEAR)
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
def shared_tables(g, source, to, here, edges, P: constexpr, LINEAR: constexpr, DOT: constexpr):
    """Adds Σ_k T_k Σ_j q_j of all groups k of neighbors j.

    DOT: see `products_added`. Otherwise one label of the neighbors after another.
    """
    BLOCK: constexpr = P.block
    GROUPS: constexpr = P.groups
    L: constexpr = P.lanes
    label = tl.arange(0, L)[None, :]
    blocks = tl.num_programs(0)
    total = tl.zeros_like(g)
    across = tl.arange(0, L)[:, None] * L + label
    if DOT:
        scale = tl.load(edges.scales)
        for k in tl.static_range(GROUPS):
            edge = tl.load(edges.group_start + k * blocks + here.block)
            degree = 0
            if P.table_degree == 0:
                degree = tl.load(edges.group_length + k * blocks + here.block)
            s = group_marginals(
                tl.zeros_like(g), source, to, edge, degree, here.offset, here.inside, P, LINEAR
            )
            total = products_added(total, s, scale, edges.tables + 2 * k * (L * L), across, L)
        # turned twice, else what follows would be computed in the layout of products
        total = tl.trans(pinned(tl.trans(total))) * tl.load(edges.scales + 1)
    else:
        everywhere = (here.place >= 0)[:, None]
        for k in range(GROUPS):
            edge = tl.load(edges.group_start + k * blocks + here.block)
            degree = 0
            if P.table_degree == 0:
                degree = tl.load(edges.group_length + k * blocks + here.block)
            for m in range(P.labels):
                none = tl.zeros((BLOCK, 1), g.dtype)
                q = group_marginals(
                    none, source, to, edge, degree, m * BLOCK, everywhere, P, LINEAR
                )
                total += q * tl.load(edges.tables + (k * L + m) * L + label)
    return g + total


@jit_for_any(pointers=("buffers", "unary", "u", "v", "to", "weight", "group_to"))
def plane_step(
    buffers, status, unary, u, v, to, weight, group_to, edges, RULE: constexpr, P: constexpr
):
    """One update of all variables, a program for each block.

    ``to`` are entries of the neighbors' first labels, and ``group_to`` those of neighbors by group,
    −1 where a variable has fewer of them.
    """
    BLOCK: constexpr = P.block
    L: constexpr = P.lanes
    DEGREE: constexpr = P.degree
    tick = tl.load(status.board + _TICK)
    if tl.load(status.board + _DONE) == 0:
        source = buffer_at(buffers, status.stride, tick)
        target = buffer_at(buffers, status.stride, tick + 1)
        here = block_of(P)
        who = here.block * BLOCK + here.place
        real = who < edges.n
        first = tl.load(edges.start + here.block)
        g = tl.zeros((BLOCK, L), buffers.dtype.element_ty)
        if P.groups > 0:
            g = shared_tables(g, source, group_to, here, edges, P, False, P.dot)
        if DEGREE > 0:
            for k in tl.static_range(DEGREE):
                g = agreement(g, source, to, weight, first + k * BLOCK + here.place, here, False)
        elif DEGREE == 0:
            for k in range(tl.load(edges.length + here.block)):
                g = agreement(g, source, to, weight, first + k * BLOCK + here.place, here, False)
        theta = tl.load(source + here.at, mask=here.inside, other=float("inf"))
        own = tl.load(unary + here.at, mask=here.inside, other=0.0)
        q = exponential(theta)
        f = tl.zeros((BLOCK,), theta.dtype)
        if RULE.trace:  # log q = −θ
            rest = own + 0.5 * g - theta
            f = tl.sum(tl.where(here.inside & (q > 0), q * rest, 0.0), 1)
        movement = Movement(u, v, status.step, status.safe, status.parameters)
        place = Entries(0, here.at, here.inside)
        redo = tl.load(status.board + _REDO)
        parts = status.parts + here.block * 2
        # before the move, which needs all registers: up to a tenth faster
        tl.store(parts, tl.sum(tl.where(real, f, 0.0).to(tl.float64), 0))
        change = move_labels(theta, q, g + own, target, place, who, real, redo, movement, RULE)
        tl.store(parts + 1, change.to(tl.float64))


@jit
def plane_product(source, out, to, weight, group_to, edges, P: constexpr):
    """What `plane_step` adds up, of numbers in place of marginals."""
    BLOCK: constexpr = P.block
    L: constexpr = P.lanes
    here = block_of(P)
    first = tl.load(edges.start + here.block)
    g = tl.zeros((BLOCK, L), out.dtype.element_ty)
    for k in range(tl.load(edges.length + here.block)):
        g = agreement(g, source, to, weight, first + k * BLOCK + here.place, here, True)
    if P.groups > 0:
        g = shared_tables(g, source, group_to, here, edges, P, True, False)
    tl.store(out + here.at, g, mask=here.inside)
