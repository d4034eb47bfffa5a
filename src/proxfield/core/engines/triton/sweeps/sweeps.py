"""Sweeps on a GPU: one variable after another, or groups that don't interact at once.

A sweep in any order is also a sweep by *levels* (see `level_of`): neighbors are never on one level,
and whoever comes first stays first, so doing a level at a time changes nothing about the result.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from proxfield.core.common.arrays import Array, Floats, Ints
from proxfield.core.compiled.graphs import greedy_colors
from proxfield.core.compiled.jit import kernel
from proxfield.core.devices.cuda import find_device, launching, torch
from proxfield.core.devices.tensors import Tensor, TorchDevice, TorchDtype
from proxfield.core.engines.numba.general import GeneralPack
from proxfield.core.engines.numba.pack import pack_general
from proxfield.core.engines.triton.device_pack import power_of_two
from proxfield.core.engines.triton.sweeps import sweep_kernels as kernels
from proxfield.core.engines.triton.sweeps.sweep_kernels import Turns, VisitKind
from proxfield.core.lowering.lowered import Lowered

if TYPE_CHECKING:
    from proxfield.core.engines.triton.sweeps.chains import DeviceForests

GROUPED_FROM = 8
"""Variables per level from which levels pay: one launch takes about as long as eight visits."""
CHECK_EVERY = 4
"""Sweeps between two looks at whether anything still changes: a look waits for the device."""
WORKING_SET = 1024
"""Numbers that a program's threads hold together in their largest array, if they can."""
THREADS = 128
"""Threads in a program for groups."""


@dataclass(frozen=True)
class VisitOrder:
    """An order of visits on the device."""

    members: Tensor  # the variables  # (m,)
    starts: list[int] | None
    """Bounds of the groups that move together; None: each alone, in this order."""
    parts: list[int]  # where each group's partial sums start, and their number  # (groups + 1,)


class Sweeper:
    """A lowered field on a device, visited variable by variable.

    All numbers of labels, Potts and Ising weights, tables of any arity. Energies are held in the
    type of q; gradients, sums and changes of F are float64. No atomics: the same input gives the
    same bits. All terms of the field must be lowered to tables; ``dtype`` is the type of q.
    """

    def __init__(self, lowered: Lowered, dtype: str, device: TorchDevice = None) -> None:
        self.lowered, self.layout = lowered, lowered.layout
        self.n, self.size = self.layout.n_vars, self.layout.size
        self.device = find_device(device)
        self.dtype = getattr(torch, str(np.dtype(dtype)))
        pack, self.constant = pack_general(lowered, np.dtype(dtype))
        self.energies, self.index = self._upload(pack)
        self._recent: list[tuple[Array, Array | None, VisitOrder]] = []
        # which parts of the kernels this field needs, and the shapes they work in
        cards = np.diff(pack.offset)
        labels = power_of_two(int(cards.max(initial=1)))
        degree = power_of_two(int(np.diff(pack.agree_row).max(initial=1)))
        agree, tables = len(pack.agree_column) > 0, len(pack.table_column) > 0
        larger = len(pack.slot_list) > 0
        theirs = min(labels, 16) if tables else 1
        rows = min(power_of_two(pack.scratch), 16) if larger else 1
        edges = min(degree, 4) if agree else 1
        block = max(WORKING_SET // (labels * max(edges, theirs, rows)), THREADS // labels, 1)
        self.working = kernels.Working(
            agree, tables, larger, self.layout.common is None, min(THREADS, block), labels, edges,
            theirs, rows,
        )  # fmt: skip
        # one variable at a time has more lanes for edges
        alone = min(degree, max(1, 512 // labels), 32) if agree else 1
        self.turn_working = self.working._replace(block=1, edges=alone)

    def _upload(self, pack: GeneralPack) -> tuple[kernels.DeviceEnergies, TorchDtype]:
        """The field on the device, and the type of its indices."""
        cards = np.diff(pack.offset)
        here = np.repeat(np.arange(self.n), np.diff(pack.agree_row))
        edge = np.stack(
            [pack.offset[pack.table_column], cards[pack.table_column], pack.table_start], axis=1
        )
        slot, other = slots_of(pack)
        whole = {
            "offset": pack.offset,
            "agree_row": pack.agree_row,
            "agree_first": pack.offset[pack.agree_column],
            "agree_count": np.minimum(cards[here], cards[pack.agree_column]),
            "table_row": pack.table_row,
            "table_edge": edge,
            "slot_row": pack.slot_row,
            "slot": slot,
            "other": other,
        }
        most = max(self.size, len(pack.table), *(a.size for a in whole.values()))
        index = torch.int32 if most < 2**31 else torch.int64

        def up(array: Floats | Ints, kind: TorchDtype) -> Tensor:
            flat = array.ravel() if array.size else np.zeros(1, dtype=array.dtype)
            return torch.tensor(flat, dtype=kind, device=self.device)

        ints = {name: up(array, index) for name, array in whole.items()}
        floats = {k: up(getattr(pack, k), self.dtype) for k in ("unary", "agree_weight", "table")}
        return kernels.DeviceEnergies(**ints, **floats), index

    @cached_property
    def _neighbors(self) -> tuple[Ints, NDArray[np.int32]]:
        return self.lowered.neighbor_rows()

    @cached_property
    def colors(self) -> VisitOrder:
        """All variables by graph color, in which `descend` and chains visit them."""
        row, column = self._neighbors
        colors = greedy_colors(row, column)
        return self._visits(*grouped(np.arange(self.n), colors, np.diff(row)))

    @cached_property
    def forests(self) -> DeviceForests:
        """Forests for chains that move by them, made when they are first needed."""
        module = import_module("proxfield.core.engines.triton.sweeps.chains")
        made: DeviceForests = module.DeviceForests(self)
        return made

    def in_order(self, variables: Ints) -> VisitOrder:
        """Visits that do the same as going through ``variables`` one after another.

        By levels where these are large enough to gain by it.
        """
        row, column = self._neighbors
        level = level_of(row, column, variables)[variables]
        if len(variables) < GROUPED_FROM * (level.max(initial=0) + 1):
            return VisitOrder(self._indices(variables), None, [0, 1])
        return self._visits(*grouped(variables, level, np.diff(row)))

    def _visits(self, members: Ints, starts: Ints) -> VisitOrder:
        parts = np.concatenate([[0], np.cumsum(-(-np.diff(starts) // self.working.block))])
        return VisitOrder(self._indices(members), starts.tolist(), parts.tolist())

    def _indices(self, values: Ints) -> Tensor:
        return torch.tensor(values, dtype=self.index, device=self.device)

    def _prepared(self, variables: Array, starts: Array | None) -> VisitOrder:
        """The order on the device; the last few are kept, since plans come back."""
        for v, s, visits in self._recent:
            if v is variables and s is starts:
                return visits
        order = host(variables)
        visits = self.in_order(order) if starts is None else self._visits(order, host(starts))
        self._recent = [(variables, starts, visits), *self._recent[:3]]
        return visits

    def set_unary(self, unary: Tensor) -> None:
        """Replace the unary energies; nothing else is packed again.  # (size,)"""
        self.energies.unary[: self.size].copy_(torch.as_tensor(unary))

    def sweep(
        self, q: Tensor, variables: Array, starts: Array | None = None, beta: float = 1.0
    ) -> tuple[Tensor, Tensor]:
        """One sweep: each variable's q to the minimum of E − H/β.

        Without ``starts`` the result is that of one variable after another. Such an order is done
        by levels where that is possible; otherwise a single program walks through it, which
        takes about a microsecond a variable however many processors there are. The same array
        object of ``variables`` is prepared only once.

        Returns:
            The change of F and the largest change of q, float64 tensors on the device (nothing
            waits for it). The change of F is −inf if q gave weight to an impossible label.
        """
        visits = self._prepared(variables, starts)
        betas = torch.full((1, 1), beta, dtype=torch.float64, device=self.device)
        turns = self.turns(visits, betas)
        if visits.starts is None:
            with launching(self.device):
                kernels.visit_in_turn[(1,)](
                    q, turns, len(visits.members), self.energies,
                    MOVING=VisitKind(delta=True), WORKING=self.turn_working,
                    num_warps=1, num_stages=1,
                )  # fmt: skip
        else:
            self.visit(q, visits, turns, VisitKind(delta=True))
        return turns.parts[..., 0].sum(), turns.parts[..., 1].max()

    def descend(self, q: Tensor, sweeps: int) -> Tensor:
        """Cheapest labels, a color after another, until none changes: E never rises.

        An equally cheap label that is held stays. Returns a new tensor, one-hot wherever a label is
        possible.  # (size,)
        """
        q = q.clone()
        betas = torch.ones((1, 1), dtype=torch.float64, device=self.device)
        turns = self.turns(self.colors, betas)
        for k in range(1, sweeps + 1):
            self.visit(q, self.colors, turns, VisitKind(greedy=True))
            if k % CHECK_EVERY == 0 and k < sweeps and float(turns.parts[..., 1].max()) == 0.0:
                break
        return q

    def free_energy(self, q: Tensor) -> Tensor:
        """F of one state or of many, in float64.  # (size,) or (chains, size) -> () or (chains,)"""
        many = q.reshape(-1, self.size) if self.size else q.reshape(len(q) if q.ndim > 1 else 1, 0)
        blocks = -(-self.n // self.working.block)
        parts = torch.zeros((len(many), blocks), dtype=torch.float64, device=self.device)
        if parts.numel():
            with launching(self.device):
                kernels.free_energies[(blocks, len(many))](
                    many, parts, blocks, self.n, self.size, self.energies, WORKING=self.working,
                    num_warps=THREADS // 32, num_stages=1,
                )  # fmt: skip
        f = parts.sum(1) + self.constant
        return f[0] if q.ndim == 1 else f

    def turns(self, visits: VisitOrder, betas: Tensor, luck: kernels.Luck | None = None) -> Turns:
        """What `visit` reads and leaves, at time 0; see `Turns`."""
        shape = (betas.shape[1], max(1, visits.parts[-1]), 2)
        parts = torch.zeros(shape, dtype=torch.float64, device=self.device)
        clock = torch.zeros(1, dtype=torch.int64, device=self.device)
        return Turns(visits.members, betas, clock, luck, parts)

    def visit(self, q: Tensor, visits: VisitOrder, turns: Turns, moving: VisitKind) -> None:
        """Visit group after group in each of some chains; only launches, nothing is allocated.

        ``q`` is changed in place.  # (chains, size) or (size,)
        """
        assert visits.starts is not None, "an order without groups"
        with launching(self.device):
            for g, first in enumerate(visits.starts[:-1]):
                blocks = visits.parts[g + 1] - visits.parts[g]
                if blocks == 0:
                    continue
                kernels.visit_group[(blocks, turns.betas.shape[1])](
                    q, turns, first, visits.starts[g + 1] - first, visits.parts[g],
                    visits.parts[-1], self.n, self.size, self.energies,
                    MOVING=moving, WORKING=self.working, num_warps=THREADS // 32, num_stages=1,
                )  # fmt: skip


def slots_of(pack: GeneralPack) -> tuple[Ints, Ints]:
    """Tables over three or more variables, as the kernels walk them.

    For each slot, by variable: the table's position, the stride of the slot's label, the number of
    rows that the other labels make, the factor's first slot, its arity, and the slot's place in it;
    and for each slot in the factors' order the first entry of its variable, its number of labels
    and the stride.  # (slots, 6), (slots, 3)
    """
    first, end = pack.factor_slot[:-1], pack.factor_slot[1:]
    cards = np.diff(pack.offset)[pack.slot_variable]
    stride = np.ones(len(cards), dtype=np.int64)
    for back in range(1, int((end - first).max(initial=0))):  # from the last label on
        at = (end - 1 - back)[end - back > first]
        stride[at] = stride[at + 1] * cards[at + 1]
    factor = pack.slot_factor[pack.slot_list]
    home = first[factor]
    rows = stride[home] * cards[home] // cards[pack.slot_list]
    slot = np.stack(
        [
            pack.factor_start[factor], stride[pack.slot_list], rows, home,
            (end - first)[factor], pack.slot_list - home,
        ],
        axis=1,
    )  # fmt: skip
    other = np.stack([pack.offset[pack.slot_variable], cards, stride], axis=1)
    return slot.astype(np.int64), other.astype(np.int64)


def host(values: Array) -> Ints:
    """Integers as a numpy array, wherever they are."""
    return np.asarray(values.cpu().numpy() if hasattr(values, "cpu") else values, dtype=np.int64)


@kernel
def level_of(row: Ints, column: NDArray[np.int32], order: Ints) -> Ints:
    """The level of each variable, one more than the highest among its earlier neighbors.  # (n,)

    A random order has few levels (about as many as its longest rising path through the graph), the
    reading order of a grid has rows + columns. Neighbors are in compressed rows.
    """
    level = np.full(len(row) - 1, -1, dtype=np.int64)
    for k in range(len(order)):
        i = order[k]
        highest = -1
        for e in range(row[i], row[i + 1]):
            highest = max(highest, level[column[e]])
        level[i] = highest + 1
    return level


def grouped(variables: Ints, group: Ints, degree: Ints) -> tuple[Ints, Ints]:
    """Variables by group, and inside it by degree, so that those done together take as long.

    ``group`` is that of each of them, ``degree`` of all variables of the field. Also the bounds of
    groups.  # (m,), (groups + 1,)

    Example:
        >>> grouped(np.array([2, 0, 1]), np.array([1, 0, 1]), np.array([1, 2, 1]))
        (array([0, 2, 1]), array([0, 1, 3]))
    """
    order = np.lexsort((degree[variables], group))
    starts = np.concatenate([[0], np.cumsum(np.bincount(group))]).astype(np.int64)
    return variables[order], starts
