# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Triton kernel for forest moves: many variables of a chain sampled together, exactly.

One program has one chain. Messages go from the leaves to the roots of a forest and labels from the
roots to the leaves, a level at a time, ``BV`` variables at once; a level waits for the one before.
Energies are float64. No two programs write to the same place, and all sums have a fixed order.
"""

from __future__ import annotations

from typing import NamedTuple

from proxfield.core.devices.cuda import constexpr, jit, jit_for_any, tl
from proxfield.core.devices.tensors import Tensor
from proxfield.core.engines.triton.sweeps.sweep_kernels import (
    VisitKind,
    drawn_label,
    gradient,
    some_of,
    uniform,
    visit,
)


class Levels(NamedTuple):
    """Places in forests level by level, bounds of levels, and the first level of each forest."""

    place: Tensor
    start: Tensor
    first: Tensor


class ForestArrays(NamedTuple):
    """Forests of a field on a device, one after another."""

    start: Tensor
    node: Tensor
    parent: Tensor  # places of the parents; −1 at roots
    agree: Tensor
    table_row: Tensor
    table_start: Tensor
    child_row: Tensor
    child: Tensor  # places of the children
    message_row: Tensor  # where each one's message is
    up: Levels  # by height
    down: Levels  # by depth
    rest: Tensor  # variables in no forest, by level
    rest_rank: Tensor  # their numbers
    rest_start: Tensor  # bounds of their levels
    rest_levels: Tensor  # how many of these there are  # ()


@jit
def edge_energies(
    energy, at, theirs, some, parent, live, mine, forest, table, TABLES: constexpr, L: constexpr
):
    """Adds what each label of a variable pays with one label of its parent.

    at: places of the variables in their forests.  # (BV,)
    theirs: the parent's label.  # (BV,)
    """
    label = tl.arange(0, L)[None, :]
    w = tl.load(forest.agree + at, mask=live, other=0.0)
    energy += tl.where(label == theirs[:, None], w[:, None], 0.0)
    if TABLES:
        start = tl.load(forest.table_row + at, mask=live, other=0)
        count = tl.load(forest.table_row + at + 1, mask=live, other=0) - start
        for e in range(0, tl.max(count, 0)):
            there = e < count
            place = tl.load(forest.table_start + start + e, mask=there, other=0)
            forward = place >= 0  # else the table is the parent's, transposed
            base = tl.where(forward, place, -1 - place)
            across = tl.where(forward, parent.count, 1)
            along = tl.where(forward, 1, some.count)
            entry = (base + theirs * along)[:, None] + label * across[:, None]
            energy += tl.load(table + entry, mask=mine & there[:, None], other=0.0)
    return energy


@jit
def soft_minimum(energy, beta):
    """−log Σ exp(−β energy) / β over the labels; +inf where all are.  # (BV,)"""
    low = tl.min(energy, 1)
    base = tl.where(low < float("inf"), low, 0.0)
    return base - tl.log(tl.sum(tl.exp(beta * (base[:, None] - energy)), 1)) / beta


@jit_for_any("chains", "n", "size", "longest", "forests")
def forest_chains(
    q, energies, messages, labels, chosen, betas, sweeps, seeds, chains, n, size, longest, forests,
    forest, field, WORKING: constexpr,
):  # fmt: skip
    """All sweeps of the chosen chains, one program each; see `reference.ReferenceChains`.

    Each has room for energies of labels with children summed out, messages to parents, and labels.
    """
    BV: constexpr = WORKING.block
    L: constexpr = WORKING.labels
    program = tl.program_id(0).to(tl.int64)
    chain = tl.load(chosen + program).to(tl.int64)
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
        which = (number % forests.to(tl.uint64)).to(tl.int64)
        first = tl.load(forest.start + which)
        end = tl.load(forest.start + which + 1)
        for k in range(first, end, BV):  # remember the labels, and leave the forest out of q
            live = k + lane < end
            i = tl.load(forest.node + k + lane, mask=live, other=0)
            some = some_of(i, live, field.offset, L)
            at = own + some.first[:, None] + label
            held = tl.load(at, mask=some.mine, other=0.0)
            tl.store(labels + i, tl.max(tl.where(held > 0.0, label, 0), 1), mask=live)
            tl.debug_barrier()  # small tiles are held by several threads
            tl.store(at, tl.zeros_like(held), mask=some.mine)
        tl.debug_barrier()
        for k in range(first, end, BV):  # energies given the rest
            live = k + lane < end
            i = tl.load(forest.node + k + lane, mask=live, other=0)
            some = some_of(i, live, field.offset, L)
            g = gradient(own, some, field, False, WORKING)
            tl.store(energies + some.first[:, None] + label, g, mask=some.mine)
        tl.debug_barrier()
        for level in range(tl.load(forest.up.first + which), tl.load(forest.up.first + which + 1)):
            last = tl.load(forest.up.start + level + 1)
            for k in range(tl.load(forest.up.start + level), last, BV):
                live = k + lane < last
                place = tl.load(forest.up.place + k + lane, mask=live, other=0)
                i = tl.load(forest.node + place, mask=live, other=0)
                some = some_of(i, live, field.offset, L)
                mine = some.mine
                at = energies + some.first[:, None] + label
                energy = tl.load(at, mask=mine, other=float("inf"))
                kids = tl.load(forest.child_row + place, mask=live, other=0)
                count = tl.load(forest.child_row + place + 1, mask=live, other=0) - kids
                for a in range(0, tl.max(count, 0)):  # what the children have sent
                    there = a < count
                    kid = tl.load(forest.child + kids + a, mask=there, other=0)
                    row = tl.load(forest.message_row + kid, mask=there, other=0)[:, None]
                    energy += tl.load(messages + row + label, mask=mine & there[:, None], other=0.0)
                tl.debug_barrier()
                tl.store(at, energy, mask=mine)
                above = tl.load(forest.parent + place, mask=live, other=-1)
                below = live & (above >= 0)
                j = tl.load(forest.node + above, mask=below, other=0)
                parent = some_of(j, below, field.offset, L)
                to = messages + tl.load(forest.message_row + place, mask=live, other=0)
                for m in range(0, tl.max(parent.count, 0)):
                    with_parent = edge_energies(
                        energy, place, tl.zeros_like(i) + m, some, parent, below,
                        mine & (m < parent.count)[:, None], forest, field.table, WORKING.tables, L,
                    )  # fmt: skip
                    tl.store(to + m, soft_minimum(with_parent, beta), mask=m < parent.count)
            tl.debug_barrier()
        for level in range(
            tl.load(forest.down.first + which), tl.load(forest.down.first + which + 1)
        ):
            last = tl.load(forest.down.start + level + 1)
            for k in range(tl.load(forest.down.start + level), last, BV):
                live = k + lane < last
                place = tl.load(forest.down.place + k + lane, mask=live, other=0)
                i = tl.load(forest.node + place, mask=live, other=0)
                some = some_of(i, live, field.offset, L)
                mine = some.mine
                energy = tl.load(
                    energies + some.first[:, None] + label, mask=mine, other=float("inf")
                )
                above = tl.load(forest.parent + place, mask=live, other=-1)
                below = live & (above >= 0)
                j = tl.load(forest.node + above, mask=below, other=0)
                parent = some_of(j, below, field.offset, L)
                theirs = tl.load(labels + j, mask=below, other=-1)
                energy = edge_energies(
                    energy, place, theirs, some, parent, below, mine & below[:, None], forest,
                    field.table, WORKING.tables, L,
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
                tl.store(own + some.first[:, None] + label, hot, mask=mine)
            tl.debug_barrier()
        for level in range(0, tl.load(forest.rest_levels)):
            last = tl.load(forest.rest_start + level + 1)
            for k in range(tl.load(forest.rest_start + level), last, BV):
                live = k + lane < last
                i = tl.load(forest.rest + k + lane, mask=live, other=0)
                rank = tl.load(forest.rest_rank + k + lane, mask=live, other=0)
                u = uniform(seed, (end - first + rank).to(tl.int64) + (t + 1) * n)
                visit(own, i, live, beta, u, True, field, VisitKind(draw=True), WORKING)
            tl.debug_barrier()
