# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Triton kernel for forest moves: many variables of a chain sampled together, exactly.

One program has one chain. Messages go from the leaves to the roots of a forest and labels from the
roots to the leaves, a level at a time, ``BV`` variables at once; a level waits for the one before.
Energies are float64. No two programs write to the same place, and all sums have a fixed order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from proxfield.core.devices.cuda import jit, tl
from proxfield.core.engines.triton.sweeps.sweep_kernels import (
    drawn_label,
    gradient,
    jit_for_any,
    uniform,
    visit,
)

if TYPE_CHECKING:
    from proxfield.core.devices.tensors import constexpr
else:
    constexpr = str if tl is None else tl.constexpr


@jit
def where_labels_are(i, live, offset, L: constexpr):
    """First entries, numbers of labels, and which entries of a tile there are."""
    o = tl.load(offset + i, mask=live, other=0)
    c = tl.load(offset + i + 1, mask=live, other=0) - o
    return o, c, live[:, None] & (tl.arange(0, L)[None, :] < c[:, None])


@jit
def edge_energies(
    energy, at, theirs, c, d, live, mine, agree, table_row, table_start, table,
    TABLES: constexpr, L: constexpr,
):  # fmt: skip
    """Adds what each label of a variable pays with one label of its parent.

    at: places of the variables in their forests.  # (BV,)
    theirs: the parent's label.  # (BV,)
    c, d: numbers of labels, of the variable and of its parent.  # (BV,)
    """
    label = tl.arange(0, L)[None, :]
    w = tl.load(agree + at, mask=live, other=0.0)
    energy += tl.where(label == theirs[:, None], w[:, None], 0.0)
    if TABLES:
        start = tl.load(table_row + at, mask=live, other=0)
        count = tl.load(table_row + at + 1, mask=live, other=0) - start
        for e in range(0, tl.max(count, 0)):
            there = e < count
            place = tl.load(table_start + start + e, mask=there, other=0)
            forward = place >= 0  # else the table is the parent's, transposed
            base = tl.where(forward, place, -1 - place)
            across = tl.where(forward, d, 1)
            along = tl.where(forward, 1, c)
            entry = (base + theirs * along)[:, None] + label * across[:, None]
            energy += tl.load(table + entry, mask=mine & there[:, None], other=0.0)
    return energy


@jit
def soft_minimum(energy, beta):
    """−log Σ exp(−β energy) / β over the labels; +inf where all are.  # (BV,)"""
    low = tl.min(energy, 1)
    base = tl.where(low < float("inf"), low, 0.0)
    return base - tl.log(tl.sum(tl.exp(beta * (base[:, None] - energy)), 1)) / beta


@jit
def add_messages(energy, place, live, mine, child_row, child, message_row, messages, L: constexpr):
    """Adds what the children of each variable have sent."""
    label = tl.arange(0, L)[None, :]
    first = tl.load(child_row + place, mask=live, other=0)
    count = tl.load(child_row + place + 1, mask=live, other=0) - first
    for a in range(0, tl.max(count, 0)):
        there = a < count
        kid = tl.load(child + first + a, mask=there, other=0)
        row = tl.load(message_row + kid, mask=there, other=0)
        energy += tl.load(messages + row[:, None] + label, mask=mine & there[:, None], other=0.0)
    return energy


@jit_for_any("chains", "n", "size", "longest", "forests", "rest_levels")
def forest_chains(
    q, energies, messages, labels, which_chains, betas, sweeps, seeds, chains, n, size, longest,
    forests, rest_levels,
    start, node, parent, agree, table_row, table_start, child_row, child, message_row,
    up, up_start, up_level, down, down_start, down_level, rest, rest_rank, rest_start,
    offset, unary, agree_row, agree_first, agree_count, agree_weight,
    table_edge_row, table_edge, table, slot_row, slot, other,
    AGREE: constexpr, TABLES: constexpr, LARGER: constexpr, MIXED: constexpr,
    BV: constexpr, L: constexpr, E: constexpr, M: constexpr, R: constexpr,
):  # fmt: skip
    """All sweeps of some chains, one program each; see `reference_chains.ReferenceChains`.

    energies: room for energies of labels, children summed out.  # (programs, size) float64
    messages: room for what variables send to their parents.  # (programs, longest) float64
    labels: room for labels.  # (programs, n) int32
    which_chains: the chain of each program.
    parent: places of the parents; −1 at roots.
    child_row, child: places of the children.
    message_row: where each one's message is.
    up, up_start, up_level: places by height, bounds of the heights, first height of each forest.
    down, …: the same by depth.
    rest, rest_rank, rest_start: variables in no forest by level, their numbers, bounds of levels.
    """
    program = tl.program_id(0).to(tl.int64)
    chain = tl.load(which_chains + program).to(tl.int64)
    own = q + chain * size
    energies += program * size
    messages += program * longest
    labels += program * n
    seed = tl.load(seeds + chain)
    label = tl.arange(0, L)[None, :]
    lane = tl.arange(0, BV)
    for t in range(0, tl.load(sweeps + chain)):
        beta = tl.load(betas + t * chains + chain)
        number = (seed + t).to(tl.uint64, bitcast=True)
        forest = (number % forests.to(tl.uint64)).to(tl.int64)
        first = tl.load(start + forest)
        end = tl.load(start + forest + 1)
        for k in range(first, end, BV):  # remember the labels, and leave the forest out of q
            live = k + lane < end
            i = tl.load(node + k + lane, mask=live, other=0)
            o, c, mine = where_labels_are(i, live, offset, L)
            at = own + o[:, None] + label
            held = tl.load(at, mask=mine, other=0.0)
            tl.store(labels + i, tl.max(tl.where(held > 0.0, label, 0), 1), mask=live)
            tl.debug_barrier()  # small tiles are held by several threads
            tl.store(at, tl.zeros_like(held), mask=mine)
        tl.debug_barrier()
        for k in range(first, end, BV):  # energies given the rest
            live = k + lane < end
            i = tl.load(node + k + lane, mask=live, other=0)
            o, c, mine = where_labels_are(i, live, offset, L)
            g = gradient(
                own, i, o, c, live, mine, unary, agree_row, agree_first, agree_count,
                agree_weight, table_edge_row, table_edge, table, slot_row, slot, other, False,
                AGREE, TABLES, LARGER, MIXED, BV, L, E, M, R,
            )  # fmt: skip
            tl.store(energies + o[:, None] + label, g, mask=mine)
        tl.debug_barrier()
        for level in range(tl.load(up_level + forest), tl.load(up_level + forest + 1)):
            last = tl.load(up_start + level + 1)
            for k in range(tl.load(up_start + level), last, BV):
                live = k + lane < last
                place = tl.load(up + k + lane, mask=live, other=0)
                i = tl.load(node + place, mask=live, other=0)
                o, c, mine = where_labels_are(i, live, offset, L)
                at = energies + o[:, None] + label
                energy = tl.load(at, mask=mine, other=float("inf"))
                energy = add_messages(
                    energy, place, live, mine, child_row, child, message_row, messages, L
                )
                tl.debug_barrier()
                tl.store(at, energy, mask=mine)
                above = tl.load(parent + place, mask=live, other=-1)
                below = live & (above >= 0)
                j = tl.load(node + above, mask=below, other=0)
                _, d, _ = where_labels_are(j, below, offset, L)
                to = messages + tl.load(message_row + place, mask=live, other=0)
                for m in range(0, tl.max(d, 0)):
                    with_parent = edge_energies(
                        energy, place, tl.zeros_like(i) + m, c, d, below,
                        mine & (m < d)[:, None], agree, table_row, table_start, table, TABLES, L,
                    )  # fmt: skip
                    tl.store(to + m, soft_minimum(with_parent, beta), mask=m < d)
            tl.debug_barrier()
        for level in range(tl.load(down_level + forest), tl.load(down_level + forest + 1)):
            last = tl.load(down_start + level + 1)
            for k in range(tl.load(down_start + level), last, BV):
                live = k + lane < last
                place = tl.load(down + k + lane, mask=live, other=0)
                i = tl.load(node + place, mask=live, other=0)
                o, c, mine = where_labels_are(i, live, offset, L)
                energy = tl.load(energies + o[:, None] + label, mask=mine, other=float("inf"))
                above = tl.load(parent + place, mask=live, other=-1)
                below = live & (above >= 0)
                j = tl.load(node + above, mask=below, other=0)
                _, d, _ = where_labels_are(j, below, offset, L)
                theirs = tl.load(labels + j, mask=below, other=-1)
                energy = edge_energies(
                    energy, place, theirs, c, d, below, mine & below[:, None], agree, table_row,
                    table_start, table, TABLES, L,
                )  # fmt: skip
                low = tl.min(energy, 1)
                base = tl.where(low < float("inf"), low, 0.0)
                p = tl.where(mine, tl.exp(beta * (base[:, None] - energy)), 0.0)
                u = uniform(seed, (end - 1 - place).to(tl.int64) + (t + 1) * n)
                chosen = drawn_label(p, tl.sum(p, 1), u, mine, L)
                held = tl.load(labels + i, mask=live, other=0)
                chosen = tl.where(low < float("inf"), chosen, held)
                tl.debug_barrier()
                tl.store(labels + i, chosen, mask=live)
                hot = tl.where(label == chosen[:, None], 1.0, 0.0).to(q.dtype.element_ty)
                tl.store(own + o[:, None] + label, hot, mask=mine)
            tl.debug_barrier()
        for level in range(0, rest_levels):
            last = tl.load(rest_start + level + 1)
            for k in range(tl.load(rest_start + level), last, BV):
                live = k + lane < last
                i = tl.load(rest + k + lane, mask=live, other=0)
                rank = tl.load(rest_rank + k + lane, mask=live, other=0)
                u = uniform(seed, (end - first + rank).to(tl.int64) + (t + 1) * n)
                visit(
                    own, own, i, live, beta, u, True, offset, unary, agree_row, agree_first,
                    agree_count, agree_weight, table_edge_row, table_edge, table, slot_row, slot,
                    other, False, True, False, False, False, AGREE, TABLES, LARGER, MIXED,
                    BV, L, E, M, R,
                )  # fmt: skip
            tl.debug_barrier()
