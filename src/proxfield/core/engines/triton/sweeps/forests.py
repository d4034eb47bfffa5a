"""Forests of a field on a GPU, by levels, and the chains that move by them."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from proxfield.core.compiled.graphs import tree_levels
from proxfield.core.devices.cuda import torch
from proxfield.core.devices.tensors import Tensor
from proxfield.core.engines.numba.general_chains import pack_general_forests
from proxfield.core.engines.numba.pack import pack_general
from proxfield.core.engines.reference import usable_in_forests
from proxfield.core.engines.triton.sweeps.forest_kernels import (
    ChainRoom,
    ForestArrays,
    Levels,
    Schedule,
    forest_chains,
)
from proxfield.core.engines.triton.sweeps.sweep_levels import grouped, level_of
from proxfield.core.lowering.forests import FORESTS, graph_of, make_forests
from proxfield.core.terms.base import Floats, Ints

if TYPE_CHECKING:
    from proxfield.core.engines.triton.sweeps.sweeps import Sweeper

THREADS = 256
"""Threads of a program, which has one chain."""


class DeviceForests:
    """The forests of a sweeper's field, and chains that move by them.

    Args:
        sweeper: The field.
        count: How many forests.
    """

    def __init__(self, sweeper: Sweeper, count: int = FORESTS) -> None:
        self.sweeper = sweeper
        lowered, n = sweeper.lowered, sweeper.n
        graph = graph_of(lowered)
        pack, _ = pack_general(lowered, np.dtype(np.float64))
        made = pack_general_forests(pack, make_forests(graph, usable_in_forests(lowered), count))
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
        self.rest_levels = len(rest_start) - 1 if len(rest) else 0
        ints = self._ints
        self.forests = ForestArrays(
            ints(made.start), ints(made.node), ints(parent), self._floats(made.agree),
            ints(made.table_row), ints(made.table_start), ints(child_row), ints(child),
            ints(message_row), Levels(*map(ints, by_level(made.start, height))),
            Levels(*map(ints, by_level(made.start, depth))),
            ints(rest[ordered]), ints(ordered), ints(rest_start),
        )  # fmt: skip

    def _ints(self, values: Ints | NDArray[np.int32]) -> Tensor:
        values = values if values.size else np.zeros(1, dtype=np.int64)
        return torch.tensor(values, dtype=self.sweeper.index, device=self.sweeper.device)

    def _floats(self, values: Floats) -> Tensor:
        values = values if values.size else np.zeros(1)
        return torch.tensor(values, dtype=torch.float64, device=self.sweeper.device)

    def run(self, q: Tensor, which: Ints, betas: Tensor, sweeps: Ints, seeds: Tensor) -> None:
        """All sweeps of some chains, which then have other labels.

        Args:
            q: Labellings as marginals, changed in place.  # (chains, size)
            which: Chains to move.
            betas: Inverse temperatures.  # (times, chains)
            sweeps: Number of sweeps of each chain.  # (chains,)
            seeds: int64 with the bits of a uint64.  # (chains,)
        """
        s = self.sweeper
        room = torch.zeros((len(which), s.size), dtype=torch.float64, device=s.device)
        messages = torch.zeros((len(which), self.longest), dtype=torch.float64, device=s.device)
        labels = torch.zeros((len(which), s.n), dtype=torch.int32, device=s.device)
        chosen = torch.tensor(which, dtype=torch.int64, device=s.device)
        lengths = torch.tensor(sweeps, dtype=torch.int64, device=s.device)
        working = s.working
        with s.here():
            forest_chains[(len(which),)](
                q, ChainRoom(room, messages, labels), Schedule(chosen, betas, lengths, seeds),
                betas.shape[1], s.n, s.size, self.longest, self.count, self.rest_levels,
                self.forests, s.energies,
                WORKING=working._replace(block=max(working.block, THREADS // working.labels)),
                num_warps=THREADS // 32, num_stages=1,
            )  # fmt: skip


def by_level(start: Ints, level: Ints) -> tuple[Ints, Ints, Ints]:
    """Places of several forests, level by level.

    Args:
        start: First place of each forest.  # (forests + 1,)
        level: Level of each place in its forest: 0, 1, …

    Returns:
        The places; the bounds of all levels; the first level of each forest, and one after the
        last.

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
