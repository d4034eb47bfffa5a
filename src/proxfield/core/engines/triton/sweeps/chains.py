# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Cooling chains on a GPU, all at once: a program for each block of variables of each chain.

The same chains as `proxfield.core.engines.numba.chains`. Chains that visit single variables do so
color by color instead of in the order of their numbers; those that move by forests do the same as
in every engine. A chain's random number for a variable and a sweep is the same in
all of them.

In forest moves many variables of a chain are sampled together, exactly. One program has one chain.
Messages go from the leaves to the roots of a forest and labels from the roots to the leaves, a
level at a time, ``BV`` variables at once; a level waits for the one before. Energies are float64.
No two programs write to the same place, and all sums have a fixed order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from proxfield.core.compiled.graphs import tree_levels
from proxfield.core.devices.cuda import constexpr, jit, jit_for_any, launching, record, tl, torch
from proxfield.core.devices.tensors import Tensor
from proxfield.core.engines.numba.general_chains import pack_general_forests
from proxfield.core.engines.numba.pack import pack_general
from proxfield.core.engines.plan import Chains, Explored
from proxfield.core.engines.reference import usable_in_forests
from proxfield.core.engines.triton.sweeps import sweeps as single
from proxfield.core.engines.triton.sweeps.sweep_kernels import (
    Luck,
    VisitKind,
    begin,
    drawn_label,
    gradient,
    some_of,
    uniform,
    visit,
)
from proxfield.core.engines.triton.sweeps.sweeps import Sweeper, VisitOrder
from proxfield.core.lowering.lowered import FORESTS, graph_of, make_forests
from proxfield.core.terms.base import Ints

MAX_CHAINS = 32_768
"""Chains in one launch; CUDA's grids end at 65,535."""
RECORD_FROM = 4_000
"""Launches from which recording a sweep once and replaying it pays."""
FOREST_THREADS = 256
"""Threads of a program that moves one chain by forests."""


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


class ForestRoom(NamedTuple):
    """Room that each program has for itself."""

    energies: Tensor  # of labels, children summed out  # (programs, size) float64
    messages: Tensor  # to parents  # (programs, longest) float64
    labels: Tensor  # (programs, n) int32


class ForestSchedule(NamedTuple):
    """What each program's chain does."""

    chain: Tensor  # of each program
    betas: Tensor  # (times, chains)
    sweeps: Tensor  # (chains,)
    seeds: Tensor  # (chains,)


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
    q, room, schedule, chains, n, size, longest, forests, forest, field, WORKING: constexpr
):
    """All sweeps of some chains, one program each; see `reference.ReferenceProgram`."""
    BV: constexpr = WORKING.block
    L: constexpr = WORKING.labels
    program = tl.program_id(0).to(tl.int64)
    chain = tl.load(schedule.chain + program).to(tl.int64)
    own = q + chain * size
    energies = room.energies + program * size
    messages = room.messages + program * longest
    labels = room.labels + program * n
    seed = tl.load(schedule.seeds + chain)
    label = tl.arange(0, L)[None, :]
    lane = tl.arange(0, BV)
    for t in range(0, tl.load(schedule.sweeps + chain)):
        beta = tl.load(schedule.betas + t * chains + chain)
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


def explore(sweeper: Sweeper, chains: Chains, order: VisitOrder | None = None) -> Explored:
    """Run independent cooling chains, each polished into a local minimum of F.

    While they cool, nothing waits for the device; a chain that needs fewer sweeps than others
    rests. When polishing, each chain stops by itself, and the host looks every few sweeps.
    ``order`` are groups of variables to visit, graph colors by default.
    """
    visits = sweeper.colors if order is None else order
    arrays = [f.name for f in fields(Chains) if isinstance(getattr(chains, f.name), np.ndarray)]
    ends = []
    for k in range(0, max(1, len(chains.hot)), MAX_CHAINS):
        some = {name: getattr(chains, name)[k : k + MAX_CHAINS] for name in arrays}
        ends.append(_explore(sweeper, replace(chains, **some), visits))
    q, f, sweeps = (np.concatenate(parts) for parts in zip(*ends, strict=True))
    return Explored(q, f, sweeps)


def _explore(
    sweeper: Sweeper, chains: Chains, visits: VisitOrder
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    """Run chains that fit into one launch; their marginals, F and sweeps."""
    count = len(chains.hot)
    q = torch.tensor(chains.starts, dtype=sweeper.dtype, device=sweeper.device)
    polished = torch.zeros(count, dtype=torch.int64, device=sweeper.device)
    if q.numel():
        luck = None
        if chains.drawn.any():
            seeds = np.ascontiguousarray(chains.seeds, dtype=np.uint64).view(np.int64)
            luck = Luck(
                torch.tensor(seeds, device=sweeper.device),
                torch.tensor(chains.drawn.astype(np.int8), device=sweeper.device),
            )
        # take impossible labels out of the starts, and draw
        labels = sweeper.working.labels
        block = max(1, single.THREADS // labels)
        with launching(sweeper.device):
            begin[(-(-sweeper.n // block), count)](
                q, luck, sweeper.n, sweeper.size, sweeper.energies, BV=block, L=labels,
                num_warps=single.THREADS // 32, num_stages=1,
            )  # fmt: skip
        by_forests = chains.drawn & chains.forests
        if by_forests.any():
            betas = torch.tensor(inverse_temperatures(chains), device=sweeper.device)
            assert luck is not None, "some are drawn"
            sweeper.forests.run(q, np.flatnonzero(by_forests), betas, chains.sweeps, luck.seeds)
        if not by_forests.all():
            others = replace(chains, sweeps=np.where(by_forests, 0, chains.sweeps))
            betas = torch.tensor(inverse_temperatures(others), device=sweeper.device)
            cooling = sweeper.turns(visits, betas, luck=luck)
            moving = VisitKind(draw=luck is not None, metropolis=chains.metropolis)

            def cool() -> None:
                sweeper.visit(q, visits, cooling, moving)
                cooling.clock.add_(1)

            repeat(cool, len(betas), len(visits.parts), sweeper)
        _polish(sweeper, q, chains, visits, polished)
    f = sweeper.free_energy(q)
    return (
        q.to(torch.float64).cpu().numpy(),
        f.cpu().numpy(),
        chains.sweeps + polished.cpu().numpy(),
    )


def inverse_temperatures(chains: Chains) -> NDArray[np.float64]:
    """β of each chain in each sweep, from 1/hot to 1/cold geometrically; 0 where it rests.

    Returns:
        # (largest number of sweeps, chains)

    Example:
        >>> start = np.full((2, 1), 1.0)
        >>> inverse_temperatures(Chains.make(start, hot=4.0, sweeps=[3, 1]))
        array([[0.25, 1.  ],
               [0.5 , 0.  ],
               [1.  , 0.  ]])
    """
    t = np.arange(int(chains.sweeps.max(initial=0)))[:, None]
    last = chains.sweeps - 1
    way = np.minimum(np.where(last > 0, t / np.maximum(last, 1), 1.0), 1.0)
    return np.where(t <= last, chains.hot ** (way - 1.0) * chains.cold**-way, 0.0)


def _polish(
    sweeper: Sweeper, q: Tensor, chains: Chains, visits: VisitOrder, polished: Tensor
) -> None:
    """Sweeps at temperature 1 until each chain has settled; counts them."""
    betas = torch.ones((1, len(q)), dtype=torch.float64, device=sweeper.device)
    turns = sweeper.turns(visits, betas)

    def step() -> None:
        sweeper.visit(q, visits, turns, VisitKind())
        polished.add_((betas[0] > 0).to(torch.int64))
        betas.mul_(turns.parts[..., 1].amax(1) > chains.tol)  # those that have settled rest

    for first in range(0, chains.polish, single.CHECK_EVERY):
        repeat(step, min(single.CHECK_EVERY, chains.polish - first), len(visits.parts), sweeper)
        if not bool(betas.any()):
            break


def repeat(step: Callable[[], None], times: int, launches: int, sweeper: Sweeper) -> None:
    """Call ``step`` so many times; recorded as a CUDA graph where launching would dominate.

    It makes so many ``launches`` on fixed tensors, and asks nothing of the host.
    """
    recorded = sweeper.device.type == "cuda" and (times - 1) * launches >= RECORD_FROM
    for _ in range(min(times, 1) if recorded else times):  # the first compiles, too
        step()
    if recorded:
        with launching(sweeper.device):
            graph, _ = record(step)
            for _ in range(times - 1):
                graph.replay()
            torch.cuda.current_stream().synchronize()  # before the graph is gone


class DeviceForests:
    """The forests of a sweeper's field, and chains that move by them."""

    def __init__(self, sweeper: Sweeper) -> None:
        self.sweeper = sweeper
        lowered, n = sweeper.lowered, sweeper.n
        graph = graph_of(lowered)
        pack, _ = pack_general(lowered, np.dtype(np.float64))
        made = pack_general_forests(pack, make_forests(graph, usable_in_forests(lowered), FORESTS))
        self.count = len(made.start) - 1
        parent = np.full(len(made.node), -1, dtype=np.int64)
        height, depth = np.zeros_like(parent), np.zeros_like(parent)
        room = np.zeros(n, dtype=np.int64)
        for a, b in pairwise(made.start.tolist()):
            tree_levels(made.node[a:b], made.above[a:b], room, parent[a:b], height[a:b], depth[a:b])
            parent[a:b] += np.where(parent[a:b] >= 0, a, 0)
        kids = np.flatnonzero(parent >= 0)
        child = kids[np.argsort(parent[kids], kind="stable")]
        child_row = np.searchsorted(parent[child], np.arange(len(parent) + 1))
        # messages of each forest one after another, with as many numbers as the parent has labels
        cards = sweeper.layout.cardinalities
        width = np.where(parent >= 0, cards[made.node[np.maximum(parent, 0)]], 0)
        ends = np.concatenate([[0], np.cumsum(width)])
        message_row = ends[:-1] - np.repeat(ends[made.start[:-1]], np.diff(made.start))
        self.longest = max(1, int(np.diff(ends[made.start]).max(initial=1)))
        rest = made.rest.astype(np.int64)
        row, column = sweeper._neighbors
        level = single.level_of(row, column, rest)[rest]
        alike = np.zeros(len(rest), dtype=np.int64)
        ordered, rest_start = single.grouped(np.arange(len(rest)), level, alike)
        levels = np.array(len(rest_start) - 1 if len(rest) else 0)
        put = partial(torch.tensor, device=sweeper.device)

        def ints(values: Ints | NDArray[np.int32]) -> Tensor:
            return put(values if values.size else [0], dtype=sweeper.index)

        weights = put(made.agree if made.agree.size else [0.0], dtype=torch.float64)
        self.forests = ForestArrays(
            ints(made.start), ints(made.node), ints(parent), weights,
            ints(made.table_row), ints(made.table_start), ints(child_row), ints(child),
            ints(message_row), Levels(*map(ints, by_level(made.start, height))),
            Levels(*map(ints, by_level(made.start, depth))),
            ints(rest[ordered]), ints(ordered), ints(rest_start), ints(levels),
        )  # fmt: skip

    def run(self, q: Tensor, which: Ints, betas: Tensor, sweeps: Ints, seeds: Tensor) -> None:
        """All sweeps of some chains, which then have other labels; ``betas`` are (times, chains).

        ``q`` are labellings as marginals, changed in place.  # (chains, size)
        """
        s = self.sweeper
        widths = (s.size, torch.float64), (self.longest, torch.float64), (s.n, torch.int32)
        room = [torch.zeros((len(which), n), dtype=kind, device=s.device) for n, kind in widths]
        chosen, lengths = (torch.tensor(x, dtype=torch.int64, device=s.device)
                           for x in (which, sweeps))  # fmt: skip
        schedule = ForestSchedule(chosen, betas, lengths, seeds)
        block = max(s.working.block, FOREST_THREADS // s.working.labels)
        with launching(s.device):
            forest_chains[(len(which),)](
                q, ForestRoom(*room), schedule, betas.shape[1], s.n, s.size,
                self.longest, self.count, self.forests, s.energies,
                WORKING=s.working._replace(block=block),
                num_warps=FOREST_THREADS // 32, num_stages=1,
            )  # fmt: skip


def by_level(start: Ints, level: Ints) -> tuple[Ints, Ints, Ints]:
    """Places of forests level by level, bounds of levels, and each forest's first level.

    ``start`` is the first place of each forest, ``level`` that of each place in its forest.

    Example:
        >>> by_level(np.array([0, 3, 5]), np.array([1, 0, 0, 0, 1]))
        (array([1, 2, 0, 3, 4]), array([0, 2, 3, 4, 5]), array([0, 2, 4]))
    """
    orders, counts, levels = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)], [0]
    for a, b in pairwise(start.tolist()):
        orders.append(a + np.argsort(level[a:b], kind="stable"))
        counts.append(np.bincount(level[a:b]))
        levels.append(len(counts[-1]))
    bounds = np.concatenate([[0], np.cumsum(np.concatenate(counts))])
    return np.concatenate(orders), bounds.astype(np.int64), np.cumsum(levels)
