# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Triton kernels for any field: mixed labels, Potts weights, tables of any arity.

Work is cut into tiles of (BLOCK variables, L labels), L a power of two. Each block's neighbors
are a *slice*: as many for each variable as the most has, neighbor k of place j at
``start + k·BLOCK + j``. There are three kinds of slices: agreement weights, pairwise tables, and
larger tables. Tables are stored once for each position a variable can have in them, with that
variable's labels fastest, so that the labels of a tile lie side by side in memory.
"""

from __future__ import annotations

from typing import NamedTuple

from proxfield.core.devices.cuda import constexpr, jit, jit_for_any, tl
from proxfield.core.devices.tensors import Tensor
from proxfield.core.engines.triton.update.board import (
    _BOARD,
    _DONE,
    _REDO,
    _TICK,
    buffer_at,
    control,
    move_labels,
    of_field,
    read_limits,
    read_progress,
    write_progress,
)
from proxfield.core.engines.triton.update.kinds import Entries, exponential, larger


class Shape(NamedTuple):
    """What kernels over tiles are compiled for, beside the rule."""

    common: bool  # do all variables have the same labels?
    labels: int  # labels of a tile, a power of two
    block: int  # variables of a tile
    theirs: int  # labels of a neighbor that are read at a time
    edges: int  # neighbors that are read at a time
    own: int  # labels, where each edge has a table of its own; else 0
    arity: int  # variables of the largest table


class AgreementSlices(NamedTuple):
    """Slices of weights w·[x_i = x_j]."""

    start: Tensor
    length: Tensor
    to: Tensor  # where the neighbor's marginals are
    both: Tensor  # how many labels it has
    weight: Tensor


class PairSlices(NamedTuple):
    """Slices of pairwise tables."""

    start: Tensor
    length: Tensor
    to: Tensor
    count: Tensor  # how many labels the neighbor has; 0: nobody is there
    base: Tensor  # where the table begins


class LargerSlices(NamedTuple):
    """Slices of tables over three or more variables.

    The other variables' labels are the digits of a number; ``others`` and ``radix`` say where their
    marginals are and how many labels they have, ``room`` apart for each position.
    """

    start: Tensor
    length: Tensor
    configs: Tensor
    part: Tensor
    others: Tensor
    radix: Tensor
    base: Tensor
    room: int


class Couplings(NamedTuple):
    """A bucket's slices of each kind that it has, and the entries of all tables."""

    agree: AgreementSlices | None
    pairs: PairSlices | None
    larger: LargerSlices | None
    table: Tensor


class Variables(NamedTuple):
    """The variables of a bucket's blocks, −1 for nobody, and where each one's entries are."""

    which: Tensor
    field: Tensor  # of each block
    offset: Tensor
    cards: Tensor
    common: int  # labels of all variables where they agree


class UnaryEnergies(NamedTuple):
    """Unary energies, and what terms of their own add to the gradient."""

    own: Tensor
    shift: Tensor | None


class LabelTile(NamedTuple):
    """A block of variables in a kernel."""

    block: Tensor
    place: Tensor  # (BLOCK,)
    who: Tensor  # (BLOCK,)
    real: Tensor  # is there somebody?  # (BLOCK,)
    label: Tensor  # (1, L)
    card: Tensor  # (BLOCK, 1)
    at: Tensor  # entries  # (BLOCK, L)
    inside: Tensor  # (BLOCK, L)


@jit
def fetch_marginals(pointers, inside, LINEAR: constexpr):
    """exp(−θ), 0 outside; or the numbers themselves, if LINEAR."""
    if LINEAR:
        return tl.load(pointers, mask=inside, other=0.0)
    else:
        return exponential(tl.load(pointers, mask=inside, other=float("inf")))


@jit
def tile_of(block, variables, SHAPE: constexpr):
    """A block's variables and labels."""
    BLOCK: constexpr = SHAPE.block
    place = tl.arange(0, BLOCK)
    who = tl.load(variables.which + block * BLOCK + place)
    real = who >= 0
    label = tl.arange(0, SHAPE.labels)[None, :]
    if SHAPE.common:
        card = tl.zeros((BLOCK, 1), tl.int32) + variables.common
        at = (who.to(tl.int64) * variables.common)[:, None] + label
    else:
        card = tl.load(variables.cards + who, mask=real, other=0)[:, None]
        at = tl.load(variables.offset + who, mask=real, other=0)[:, None] + label
    inside = real[:, None] & (label < card)
    return LabelTile(block, place, who, real, label, card, at, inside)


@jit
def pair_tables(g, source, tile, p, table, SHAPE: constexpr, LINEAR: constexpr):
    """Adds Σ_j Σ_m T_ij(l, m) q_j(m) to the tile.

    Several neighbors at a time, and several labels of each: their loads don't wait for each other.
    """
    L: constexpr = SHAPE.labels
    BLOCK: constexpr = SHAPE.block
    E: constexpr = SHAPE.edges
    M: constexpr = SHAPE.theirs
    first = tl.load(p.start + tile.block)
    edges = tl.load(p.length + tile.block)
    lane = tl.arange(0, E)[None, :]
    total = tl.zeros((BLOCK, E, L), g.dtype)
    for k in range(0, edges, E):
        here = (k + lane < edges) & (tile.place >= 0)[:, None]
        edge = first + (k + lane) * BLOCK + tile.place[:, None]
        o = tl.load(p.to + edge, mask=here, other=0)
        labels = tl.load(p.count + edge, mask=here, other=0)
        t = tl.load(p.base + edge, mask=here, other=0)[:, :, None] + tile.label[:, None, :]
        for m in range(0, tl.max(tl.max(labels, 1), 0), M):
            for j in tl.static_range(M):
                there = m + j < labels
                q = fetch_marginals(source + o + m + j, there, LINEAR)[:, :, None]
                seen = tile.inside[:, None, :] & there[:, :, None]
                entry = t + (m + j) * tile.card[:, :, None]
                energy = tl.load(table + entry, mask=seen, other=0.0)
                total += tl.where(q != 0, q * energy, 0.0)  # 0 · inf is 0
    return g + tl.sum(total, 1)


@jit
def own_tables(g, source, tile, p, value, SHAPE: constexpr, LINEAR: constexpr):
    """`pair_tables` where each edge has a table of its own, stored in the order of the slices.

    Threads are side by side along the variables, in ``value`` too: every load is of a whole line.
    """
    BLOCK: constexpr = SHAPE.block
    LABELS: constexpr = SHAPE.own
    M: constexpr = SHAPE.theirs
    first = tl.load(p.start + tile.block)
    total = tl.zeros_like(g)
    for k in range(tl.load(p.length + tile.block)):
        edge = first + k * BLOCK + tile.place
        o = tl.load(p.to + edge)
        there = tl.load(p.count + edge) > 0
        seen = (tile.label < LABELS) & there[:, None]
        t = value + (first + k * BLOCK) * (LABELS * LABELS) + tile.place[:, None]
        t += tile.label * BLOCK
        for m in range(0, LABELS, M):
            for j in tl.static_range(M):
                q = fetch_marginals(source + o + m + j, there, LINEAR)[:, None]
                energy = tl.load(t + (m + j) * (LABELS * BLOCK), mask=seen, other=0.0)
                total += tl.where(q != 0, q * energy, 0.0)
    return g + total


@jit
def pairwise_gradient(source, tile, couplings, value, SHAPE: constexpr, LINEAR: constexpr):
    """Σ_j of all neighbors j in pairs with a tile's variables."""
    BLOCK: constexpr = SHAPE.block
    L: constexpr = SHAPE.labels
    g = tl.zeros((BLOCK, L), source.dtype.element_ty)
    if couplings.agree is not None:  # Σ_j w_ij q_j(l)
        a = couplings.agree
        first = tl.load(a.start + tile.block)
        for k in range(tl.load(a.length + tile.block)):
            edge = first + k * BLOCK + tile.place
            w = tl.load(a.weight + edge)[:, None]
            o = tl.load(a.to + edge)[:, None]
            there = tile.inside
            if not SHAPE.common:  # labels that only one of the two has never agree
                there = tile.inside & (tile.label < tl.load(a.both + edge)[:, None])
            g += w * fetch_marginals(source + o + tile.label, there, LINEAR)
    if SHAPE.own > 0:
        g = own_tables(g, source, tile, couplings.pairs, value, SHAPE, LINEAR)
    elif couplings.pairs is not None:
        g = pair_tables(g, source, tile, couplings.pairs, couplings.table, SHAPE, LINEAR)
    return g


@jit
def larger_tables(g, source, tile, f, table, SHAPE: constexpr):
    """Adds each larger table's expected energy to the tile; also returns the tile's share of F."""
    OTHERS: constexpr = SHAPE.arity - 1
    share = 0.5 * g
    first = tl.load(f.start + tile.block)
    for k in range(tl.load(f.length + tile.block)):
        edge = first + k * SHAPE.block + tile.place
        many = tl.load(f.configs + edge)  # 0: nobody
        t = tl.load(f.base + edge)[:, None] + tile.label
        fraction = tl.load(f.part + edge)[:, None]
        message = tl.zeros_like(g)
        for c in range(tl.max(many, 0)):
            q = (c < many).to(g.dtype)
            rest = tl.zeros_like(many) + c
            for j in tl.static_range(OTHERS):
                # the last of the others is the fastest digit
                at = edge + (OTHERS - 1 - j) * f.room
                labels = tl.load(f.radix + at)
                digit = rest % labels
                rest = rest // labels
                other = source + tl.load(f.others + at) + digit
                q *= exponential(tl.load(other, mask=labels > 1, other=0.0))
            q = q[:, None]
            seen = tile.inside & (q > 0)
            energy = tl.load(table + t + c * tile.card, mask=seen, other=0.0)
            message += tl.where(q > 0, q * energy, 0.0)
        g += message
        share += fraction * message
    return g, share


@jit
def update_tile(
    tile, source, target, unary, couplings, value, movement, redo, RULE: constexpr, SHAPE: constexpr
):
    """Update one tile; returns its (F, change). See `move_labels`."""
    if SHAPE.own == 0:  # else later, since tables of their own take many registers
        theta = tl.load(source + tile.at, mask=tile.inside, other=float("inf"))
        own = tl.load(unary.own + tile.at, mask=tile.inside, other=0.0)
    g = pairwise_gradient(source, tile, couplings, value, SHAPE, False)
    if SHAPE.arity > 2:
        g, share = larger_tables(g, source, tile, couplings.larger, couplings.table, SHAPE)
    else:
        share = 0.5 * g
    if SHAPE.own > 0:
        theta = tl.load(source + tile.at, mask=tile.inside, other=float("inf"))
        own = tl.load(unary.own + tile.at, mask=tile.inside, other=0.0)
    q = exponential(theta)
    f = tl.zeros((), tl.float64)
    if RULE.trace:  # log q = −θ
        some = q > 0
        rest = tl.where(some, own + share - tl.where(some, theta, 0.0), 0.0)
        f = tl.sum(tl.sum(tl.where(some, q * rest, 0.0), 1).to(tl.float64), 0)
    g += own
    if unary.shift is not None:
        g += tl.load(unary.shift + tile.at, mask=tile.inside, other=0.0)
    here = Entries(0, tile.at, tile.inside)
    change = move_labels(theta, q, g, target, here, tile.who, tile.real, redo, movement, RULE)
    return f, change


@jit_for_any(pointers=("value",))
def tile_step(
    buffers, status, variables, unary, couplings, value, movement, RULE: constexpr, SHAPE: constexpr
):
    """One update of all blocks of a bucket, one program each."""
    block = tl.program_id(0).to(tl.int64)
    board = status.board + tl.load(variables.field + block).to(tl.int64) * _BOARD
    tick = tl.load(board + _TICK)
    if tl.load(board + _DONE) == 0:
        source = buffer_at(buffers, status.stride, tick)
        target = buffer_at(buffers, status.stride, tick + 1)
        f, change = update_tile(
            tile_of(block, variables, SHAPE), source, target, unary, couplings, value, movement,
            tl.load(board + _REDO), RULE, SHAPE,
        )  # fmt: skip
        tl.store(status.parts + block * 2, f)
        tl.store(status.parts + block * 2 + 1, change.to(tl.float64))


@jit
def tile_run(
    buffers, status, first, count, variables, unary, couplings, value, movement,
    RULE: constexpr, SHAPE: constexpr,
):  # fmt: skip
    """Many updates of small fields, one program each, until its board says done."""
    field = tl.program_id(0).to(tl.int64)
    status = of_field(status, field)
    now = read_progress(status)
    limits = read_limits(status)
    block = tl.load(first + field).to(tl.int64)
    blocks = tl.load(count + field)
    while now.done == 0:
        source = buffer_at(buffers, status.stride, now.tick)
        target = buffer_at(buffers, status.stride, now.tick + 1)
        total = tl.zeros((), tl.float64)
        most = tl.zeros((), tl.float64)
        for k in range(blocks):
            f, change = update_tile(
                tile_of(block + k, variables, SHAPE), source, target, unary, couplings, value,
                movement, now.redo, RULE, SHAPE,
            )  # fmt: skip
            total += f
            most = larger(most, change.to(tl.float64))
        if RULE.trace:
            total += limits.constant
        else:
            total = tl.full((), float("nan"), tl.float64)
        now = control(total, most, now, limits, status, RULE.adaptive)
        tl.debug_barrier()  # the others' labels are written before they are read
    write_progress(status, now)


@jit
def tile_product(source, out, variables, couplings, value, SHAPE: constexpr):
    """What `tile_step` adds up over pairs, of numbers in place of marginals."""
    block = tl.program_id(0).to(tl.int64)
    tile = tile_of(block, variables, SHAPE)
    g = pairwise_gradient(source, tile, couplings, value, SHAPE, True)
    tl.store(out + tile.at, g, mask=tile.inside)
