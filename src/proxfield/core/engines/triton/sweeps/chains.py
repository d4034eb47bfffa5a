"""Cooling chains on a GPU, all at once: a program for each block of variables of each chain.

The same chains as `proxfield.core.engines.numba.chains`. Chains that visit single variables do so
color by color instead of in the order of their numbers; those that move by forests do the same as
in every engine. A chain's random number for a variable and a sweep is the same in
all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from proxfield.core.compiled.graphs import tree_levels
from proxfield.core.devices.cuda import launching, record, torch
from proxfield.core.devices.tensors import Tensor
from proxfield.core.engines.numba.general_chains import pack_general_forests
from proxfield.core.engines.numba.pack import pack_general
from proxfield.core.engines.plan import Chains, Explored
from proxfield.core.engines.reference import usable_in_forests
from proxfield.core.engines.triton.sweeps.forest_kernels import (
    ForestArrays,
    Levels,
    forest_chains,
)
from proxfield.core.engines.triton.sweeps.sweep_kernels import Luck, VisitKind, begin
from proxfield.core.engines.triton.sweeps.sweeps import (
    CHECK_EVERY,
    THREADS,
    Sweeper,
    VisitOrder,
    grouped,
    level_of,
)
from proxfield.core.lowering.forests import FORESTS, graph_of, make_forests
from proxfield.core.terms.base import Ints

MAX_CHAINS = 32_768
"""Chains in one launch; CUDA's grids end at 65,535."""
RECORD_FROM = 4_000
"""Launches from which recording a sweep once and replaying it pays."""
FOREST_THREADS = 256
"""Threads of a program that moves one chain by forests."""


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
        block = max(1, THREADS // labels)
        with launching(sweeper.device):
            begin[(-(-sweeper.n // block), count)](
                q, luck, sweeper.n, sweeper.size, sweeper.energies, BV=block, L=labels,
                num_warps=THREADS // 32, num_stages=1,
            )  # fmt: skip
        by_forests = chains.drawn & chains.forests
        if by_forests.any():
            betas = torch.tensor(inverse_temperatures(chains), device=sweeper.device)
            assert luck is not None, "some are drawn"
            sweeper.forests.run(q, np.flatnonzero(by_forests), betas, chains.sweeps, luck.seeds)
        if not by_forests.all():
            others = replace(chains, sweeps=np.where(by_forests, 0, chains.sweeps))
            _cool(sweeper, q, others, visits, luck)
        _polish(sweeper, q, chains, visits, polished)
    f = sweeper.free_energy(q)
    return (
        q.to(torch.float64).cpu().numpy(),
        f.cpu().numpy(),
        chains.sweeps + polished.cpu().numpy(),
    )


def inverse_temperatures(chains: Chains) -> NDArray[np.float64]:
    """β of each chain in each sweep, from 1/hot to 1/cold geometrically; 0 where it rests.

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


def _cool(
    sweeper: Sweeper, q: Tensor, chains: Chains, visits: VisitOrder, luck: Luck | None
) -> None:
    """All sweeps that cool, without a look back."""
    schedule = inverse_temperatures(chains)
    betas = torch.tensor(schedule, device=sweeper.device)
    turns = sweeper.turns(visits, betas, luck=luck)
    moving = VisitKind(draw=luck is not None, metropolis=chains.metropolis)

    def step() -> None:
        sweeper.visit(q, visits, turns, moving)
        turns.clock.add_(1)

    repeat(step, len(schedule), len(visits.parts), sweeper)


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

    for first in range(0, chains.polish, CHECK_EVERY):
        repeat(step, min(CHECK_EVERY, chains.polish - first), len(visits.parts), sweeper)
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
        level = level_of(row, column, rest)[rest]
        ordered, rest_start = grouped(np.arange(len(rest)), level, np.zeros(len(rest), np.int64))
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
        block = max(s.working.block, FOREST_THREADS // s.working.labels)
        with launching(s.device):
            forest_chains[(len(which),)](
                q, *room, chosen, betas, lengths, seeds, betas.shape[1], s.n, s.size,
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
