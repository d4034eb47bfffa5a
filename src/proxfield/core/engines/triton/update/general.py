# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Triton kernels for any field: mixed labels, Potts weights, tables of any arity.

Work is cut into tiles of (BLOCK variables, L labels), L a power of two. Each block's neighbors
are a *slice*: as many for each variable as the most has, neighbor k of place j at
``start + k·BLOCK + j``. There are three kinds of slices: agreement weights, pairwise tables, and
larger tables. Tables are stored once for each position a variable can have in them, with that
variable's labels fastest, so that the labels of a tile lie side by side in memory.
"""

from __future__ import annotations

from proxfield.core.devices.cuda import jit, tl
from proxfield.core.engines.triton.update.arithmetic import (
    control,
    exponential,
    label_update,
    larger,
    parameter,
    read_board,
    write_board,
)
from proxfield.core.engines.triton.update.binary import numbers_of, single_loads
from proxfield.core.engines.triton.update.kinds import (
    constexpr,
    fetch_moments,
    put_moments,
)

if tl is not None:
    from proxfield.core.engines.triton.update.arithmetic import BOARD, BUFFERS
    from proxfield.core.engines.triton.update.kinds import _LOOK

    _BOARD: constexpr = tl.constexpr(BOARD)
    _BUFFERS: constexpr = tl.constexpr(BUFFERS)


@jit
def fetch_marginals(pointers, inside, LINEAR: constexpr):
    """exp(−θ), 0 outside; or the numbers themselves, if LINEAR."""
    if LINEAR:
        return tl.load(pointers, mask=inside, other=0.0)
    else:
        return exponential(tl.load(pointers, mask=inside, other=float("inf")))


@jit
def agreements(
    g, source, block, start, length, to, both, weight, place, label, inside,
    SAME: constexpr, BLOCK: constexpr, LINEAR: constexpr,
):  # fmt: skip
    """Adds Σ_j w_ij q_j(l) to the tile."""
    first = tl.load(start + block)
    for k in range(tl.load(length + block)):
        edge = first + k * BLOCK + place
        w = tl.load(weight + edge)[:, None]
        o = tl.load(to + edge)[:, None]
        there = inside
        if not SAME:  # labels that only one of the two has never agree
            there = inside & (label < tl.load(both + edge)[:, None])
        g += w * fetch_marginals(source + o + label, there, LINEAR)
    return g


@jit
def pair_tables(
    g, source, block, start, length, to, count, base, table, place, label, card, inside,
    L: constexpr, BLOCK: constexpr, LINEAR: constexpr, M: constexpr, E: constexpr,
):  # fmt: skip
    """Adds Σ_j Σ_m T_ij(l, m) q_j(m) to the tile.

    E neighbors at a time, and M labels of each: their loads don't wait for each other.
    """
    first = tl.load(start + block)
    edges = tl.load(length + block)
    lane = tl.arange(0, E)[None, :]
    total = tl.zeros((BLOCK, E, L), g.dtype)
    for k in range(0, edges, E):
        here = (k + lane < edges) & (place >= 0)[:, None]
        edge = first + (k + lane) * BLOCK + place[:, None]
        o = tl.load(to + edge, mask=here, other=0)
        labels = tl.load(count + edge, mask=here, other=0)  # 0: nobody
        t = tl.load(base + edge, mask=here, other=0)[:, :, None] + label[:, None, :]
        for m in range(0, tl.max(tl.max(labels, 1), 0), M):
            for j in tl.static_range(M):
                there = m + j < labels
                q = fetch_marginals(source + o + m + j, there, LINEAR)[:, :, None]
                seen = inside[:, None, :] & there[:, :, None]
                energy = tl.load(table + t + (m + j) * card[:, :, None], mask=seen, other=0.0)
                total += tl.where(q != 0, q * energy, 0.0)  # 0 · inf is 0
    return g + tl.sum(total, 1)


@jit
def own_tables(
    g, source, block, start, length, to, count, value, place, label,
    LABELS: constexpr, BLOCK: constexpr, LINEAR: constexpr, M: constexpr,
):  # fmt: skip
    """The same where each edge has a table of its own, stored in the order of the slices.

    Threads are side by side along the variables, in ``value`` too: every load is of a whole line.
    """
    first = tl.load(start + block)
    total = tl.zeros_like(g)
    for k in range(tl.load(length + block)):
        edge = first + k * BLOCK + place
        o = tl.load(to + edge)
        there = tl.load(count + edge) > 0
        seen = (label < LABELS) & there[:, None]
        t = value + (first + k * BLOCK) * (LABELS * LABELS) + place[:, None] + label * BLOCK
        for m in range(0, LABELS, M):
            for j in tl.static_range(M):
                q = fetch_marginals(source + o + m + j, there, LINEAR)[:, None]
                energy = tl.load(t + (m + j) * (LABELS * BLOCK), mask=seen, other=0.0)
                total += tl.where(q != 0, q * energy, 0.0)
    return g + total


@jit
def large_tables(
    g, share, source, block, start, length, configs, part, others, radix, base, table, edges,
    place, label, card, inside, ARITY: constexpr, BLOCK: constexpr,
):  # fmt: skip
    """Adds each larger table's expected energy to the tile, and its share of F to ``share``.

    The other variables' labels are the digits of a number; ``others`` and ``radix`` say where their
    marginals are and how many labels they have, ``edges`` apart for each position.
    """
    first = tl.load(start + block)
    for k in range(tl.load(length + block)):
        edge = first + k * BLOCK + place
        many = tl.load(configs + edge)  # 0: nobody
        t = tl.load(base + edge)[:, None] + label
        fraction = tl.load(part + edge)[:, None]
        message = tl.zeros_like(g)
        for c in range(tl.max(many, 0)):
            q = (c < many).to(g.dtype)
            rest = tl.zeros_like(many) + c
            for j in tl.static_range(ARITY - 1):
                # the last of the others is the fastest digit
                at = edge + (ARITY - 2 - j) * edges
                labels = tl.load(radix + at)
                digit = rest % labels
                rest = rest // labels
                theta = tl.load(source + tl.load(others + at) + digit, mask=labels > 1, other=0.0)
                q *= exponential(theta)
            q = q[:, None]
            energy = tl.load(table + t + c * card, mask=inside & (q > 0), other=0.0)
            message += tl.where(q > 0, q * energy, 0.0)
        g += message
        share += fraction * message
    return g, share


@jit
def tile(
    block, source, target, variable, offset, cards, common, unary, shift, u, v, step, safe,
    a_start, a_length, a_to, a_both, a_weight,
    p_start, p_length, p_to, p_count, p_base, p_value,
    f_start, f_length, f_configs, f_part, f_others, f_radix, f_base, f_edges,
    table, redo, parameters,
    KIND: constexpr, ADAPTIVE: constexpr, TRACE: constexpr, FLAT: constexpr, SAME: constexpr,
    AGREE: constexpr, PAIRS: constexpr, ARITY: constexpr, SHIFT: constexpr,
    L: constexpr, BLOCK: constexpr, M: constexpr, E: constexpr, OWN: constexpr,
):  # fmt: skip
    """Update one tile; returns its (F, change). KIND `LOOK` only looks: ``u`` gets the gradient."""
    place = tl.arange(0, BLOCK)
    who = tl.load(variable + block * BLOCK + place)  # −1: nobody
    real = who >= 0
    label = tl.arange(0, L)[None, :]
    if SAME:
        card = tl.zeros((BLOCK, 1), tl.int32) + common
        at = (who.to(tl.int64) * common)[:, None] + label
    else:
        card = tl.load(cards + who, mask=real, other=0)[:, None]
        at = tl.load(offset + who, mask=real, other=0)[:, None] + label
    inside = real[:, None] & (label < card)
    g = tl.zeros((BLOCK, L), source.dtype.element_ty)
    if OWN == 0:  # else later, since tables of their own take many registers
        theta = tl.load(source + at, mask=inside, other=float("inf"))
        own = tl.load(unary + at, mask=inside, other=0.0)
    if AGREE:
        g = agreements(
            g, source, block, a_start, a_length, a_to, a_both, a_weight, place, label, inside,
            SAME, BLOCK, False,
        )  # fmt: skip
    if OWN > 0:
        g = own_tables(
            g, source, block, p_start, p_length, p_to, p_count, p_value, place, label,
            OWN, BLOCK, False, M,
        )  # fmt: skip
    elif PAIRS:
        g = pair_tables(
            g, source, block, p_start, p_length, p_to, p_count, p_base, table, place, label, card,
            inside, L, BLOCK, False, M, E,
        )  # fmt: skip
    share = 0.5 * g
    if ARITY > 2:
        g, share = large_tables(
            g, share, source, block, f_start, f_length, f_configs, f_part, f_others, f_radix,
            f_base, table, f_edges, place, label, card, inside, ARITY, BLOCK,
        )  # fmt: skip
    if OWN > 0:
        theta = tl.load(source + at, mask=inside, other=float("inf"))
        own = tl.load(unary + at, mask=inside, other=0.0)
    like = theta.dtype
    q = exponential(theta)
    f = tl.zeros((), tl.float64)
    if TRACE:  # log q = −θ
        some = q > 0
        rest = tl.where(some, own + share - tl.where(some, theta, 0.0), 0.0)
        f = tl.sum(tl.sum(tl.where(some, q * rest, 0.0), 1).to(tl.float64), 0)
    g += own
    if SHIFT:
        g += tl.load(shift + at, mask=inside, other=0.0)
    change = tl.zeros((), like)
    if KIND == _LOOK:
        tl.store(u + at, g, mask=inside)
    else:
        beta, g1, g2, eps = numbers_of(parameters, like)
        first, second = fetch_moments(u, v, at, inside, g, KIND, False)
        s = tl.zeros((BLOCK, 1), like) + parameter(parameters, 5, like)
        certified = s
        if not FLAT:
            s = tl.load(step + who, mask=real, other=1.0)[:, None]
        if ADAPTIVE:
            certified = tl.load(safe + who, mask=real, other=1.0)[:, None]
        new, first, second, moved = label_update(
            theta, q, g, first, second, s, certified, redo, beta, g1, g2, eps, inside,
            KIND, ADAPTIVE, True,
        )  # fmt: skip
        tl.store(target + at, new, mask=inside)
        put_moments(u, v, at, first, second, inside, KIND, False)
        change = tl.reduce(tl.where(real, moved, 0.0), 0, larger)
    return f, change


@single_loads("p_value")
def tile_step(
    buffers, stride, field, board, parts, variable, offset, cards, common, unary, shift, u, v,
    step, safe, a_start, a_length, a_to, a_both, a_weight, p_start, p_length, p_to, p_count, p_base,
    p_value,
    f_start, f_length, f_configs, f_part, f_others, f_radix, f_base, f_edges, table, parameters,
    KIND: constexpr, ADAPTIVE: constexpr, TRACE: constexpr, FLAT: constexpr, SAME: constexpr,
    AGREE: constexpr, PAIRS: constexpr, ARITY: constexpr, SHIFT: constexpr,
    L: constexpr, BLOCK: constexpr, M: constexpr, E: constexpr, OWN: constexpr,
):  # fmt: skip
    """One update of all blocks of a bucket, one program each."""
    block = tl.program_id(0).to(tl.int64)
    board += tl.load(field + block).to(tl.int64) * _BOARD
    tick = tl.load(board)
    if tl.load(board + 1) == 0:
        source = buffers + (tick % _BUFFERS).to(tl.int64) * stride
        target = buffers + ((tick + 1) % _BUFFERS).to(tl.int64) * stride
        f, change = tile(
            block, source, target, variable, offset, cards, common, unary, shift, u, v, step, safe,
            a_start, a_length, a_to, a_both, a_weight, p_start, p_length, p_to, p_count, p_base,
            p_value,
            f_start, f_length, f_configs, f_part, f_others, f_radix, f_base, f_edges, table,
            tl.load(board + 5), parameters,
            KIND, ADAPTIVE, TRACE, FLAT, SAME, AGREE, PAIRS, ARITY, SHIFT, L, BLOCK, M, E, OWN,
        )  # fmt: skip
        tl.store(parts + block * 2, f)
        tl.store(parts + block * 2 + 1, change.to(tl.float64))


@jit
def tile_run(
    buffers, stride, first, count, board, numbers, out_f, out_change, capacity,
    variable, offset, cards, common, unary, shift, u, v,
    step, safe, a_start, a_length, a_to, a_both, a_weight, p_start, p_length, p_to, p_count, p_base,
    p_value,
    f_start, f_length, f_configs, f_part, f_others, f_radix, f_base, f_edges, table, parameters,
    KIND: constexpr, ADAPTIVE: constexpr, TRACE: constexpr, FLAT: constexpr, SAME: constexpr,
    AGREE: constexpr, PAIRS: constexpr, ARITY: constexpr, SHIFT: constexpr,
    L: constexpr, BLOCK: constexpr, M: constexpr, E: constexpr, OWN: constexpr,
):  # fmt: skip
    """Many updates of small fields, one program each, until its board says done."""
    field = tl.program_id(0).to(tl.int64)
    board += field * _BOARD
    numbers += field * _BOARD
    out_f += field * capacity
    out_change += field * capacity
    tick, done, row, limit, trial, redo, before, last = read_board(board, numbers)
    constant = tl.load(numbers + 2) + tl.load(numbers + 3)
    tol = tl.load(parameters + 4)
    slack = tl.load(parameters + 6)
    block = tl.load(first + field).to(tl.int64)
    blocks = tl.load(count + field)
    while done == 0:
        source = buffers + (tick % _BUFFERS).to(tl.int64) * stride
        target = buffers + ((tick + 1) % _BUFFERS).to(tl.int64) * stride
        total = tl.zeros((), tl.float64)
        most = tl.zeros((), tl.float64)
        for k in range(blocks):
            f, change = tile(
                block + k, source, target, variable, offset, cards, common, unary, shift, u, v,
                step, safe, a_start, a_length, a_to, a_both, a_weight, p_start, p_length, p_to,
                p_count, p_base, p_value, f_start, f_length, f_configs, f_part, f_others, f_radix,
                f_base, f_edges, table, redo, parameters,
                KIND, ADAPTIVE, TRACE, FLAT, SAME, AGREE, PAIRS, ARITY, SHIFT, L, BLOCK, M, E, OWN,
            )  # fmt: skip
            total += f
            most = larger(most, change.to(tl.float64))
        if TRACE:
            total += constant
        else:
            total = tl.full((), float("nan"), tl.float64)
        tick, done, row, trial, redo, before, last = control(
            total, most, tick, done, row, limit, trial, redo, before, last,
            tol, slack, out_f, out_change, ADAPTIVE,
        )  # fmt: skip
        tl.debug_barrier()  # the others' labels are written before they are read
    write_board(board, numbers, tick, done, row, trial, redo, before, last)
