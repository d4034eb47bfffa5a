"""Fields whose variables are stored label by label, for the kernel of `update.planes`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from proxfield.core.devices.cuda import torch
from proxfield.core.devices.tensors import Tensor
from proxfield.core.engines.plan import Kind
from proxfield.core.engines.triton.device_pack import (
    SMALL_WORK,
    Blocks,
    Joined,
    Slot,
    Tensors,
    power_of_two,
)
from proxfield.core.engines.triton.general_pack import agreements_of
from proxfield.core.engines.triton.update import planes
from proxfield.core.engines.triton.update.kinds import RuleForm
from proxfield.core.terms.base import Ints
from proxfield.core.terms.factor import Factor

NO_MOMENT = tuple(kind for kind in Kind if kind.moments == 0)
BLOCK = 128
"""Variables in a block, and threads in a program."""
MAX_LABELS = 32
"""Labels that a thread holds in registers."""
MAX_DEGREE = 8
"""Neighbors up to which all blocks look at as many."""
MAX_GROUPS = 8
"""Shared tables, counted once for each direction unless they are symmetric."""
MAX_SLOTS = 16
"""Neighbors in all groups of a variable up to which all blocks look at as many."""
MAX_TABLE_ENERGY = 1e30
"""Energies in tables up to which nothing overflows in float32."""
MIN_DOT_LABELS = 16
"""Labels, rounded up to a power of two, from which on the units for products take them."""
MAX_DOT_ENERGY = 1e5
"""Energies in tables up to which products of float16 are as exact as float32: to 2e-6 or better."""
MAX_HALF = 2.0**14
"""What marginals and tables are scaled to, so that float16 has small ones too."""
MIN_LOCALITY = 0.75
"""Share of the edges, at least, that run beside one of the next variable's edges."""


def suits(joined: Joined) -> bool:
    """Whether a batch is one field that is stored like this by default.

    Its pairs share few tables, none of which forbids anything, and it is local like a grid.
    """
    low = joined.lowereds[0]
    if len(joined.lowereds) > 1 or low.extras or not (low.factors or low.potts is not None):
        return False
    labels, n = joined.common, joined.n
    if not 2 < labels <= MAX_LABELS or not SMALL_WORK < n * labels < 2**31 - 2**20:
        return False
    if any(factor.degree != 2 for factor in low.factors):
        return False
    if sum(len(factor.tables) for factor in low.factors) > MAX_GROUPS:
        return False
    if any(np.abs(factor.tables).max(initial=0.0) > MAX_TABLE_ENERGY for factor in low.factors):
        return False
    if len(oriented(low.factors)[0]) > MAX_GROUPS:
        return False
    ends = [factor.scopes for factor in low.factors]
    return locality(np.concatenate(ends if low.potts is None else [*ends, low.potts.edges])) >= (
        MIN_LOCALITY
    )


def oriented(factors: Sequence[Factor]) -> tuple[NDArray[np.float64], list[tuple[Ints, Ints]]]:
    """Tables of pairs with equal shapes, in both directions, each distinct one once.

    The neighbor's labels come first  # (groups, labels, labels). Also for each factor the group of
    its tables at their first variable and at their second one.  # (T,), (T,)

    Example:
        >>> from proxfield.core.terms.factor import Factor
        >>> oriented([Factor([[0, 1]], [[1.0, 2.0], [3.0, 4.0]])])[0].tolist()
        [[[1.0, 2.0], [3.0, 4.0]], [[1.0, 3.0], [2.0, 4.0]]]
    """
    every = [turn for f in factors for turn in (f.tables.transpose(0, 2, 1), f.tables)]
    if not every:
        return np.zeros((0, 0, 0)), []
    tables = np.concatenate(every)
    found, which = np.unique(tables.reshape(len(tables), -1), axis=0, return_inverse=True)
    groups = np.split(which.ravel(), np.cumsum([len(turn) for turn in every])[:-1])
    ends = list(zip(groups[::2], groups[1::2], strict=True))
    return found.reshape(-1, *tables.shape[1:]), ends


def locality(edges: Ints) -> float:
    """Share of the edges (i, j) that have a neighbor (i + 1, j + 1).

    Example:
        >>> locality(np.array([[0, 7], [1, 8], [5, 6]]))
        0.3333333333333333
    """
    if not len(edges):
        return 0.0
    width = int(edges.max()) + 2
    key = np.sort(edges.astype(np.int64), axis=1)
    key = key[:, 0] * width + key[:, 1]
    key.sort()
    beside = np.searchsorted(key, key + width + 1)
    found = key[np.minimum(beside, len(key) - 1)] == key + width + 1
    return float(found.mean())


def in_parts(tables: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
    """Tables times a power of two, each as two of float16 whose sum it is to 22 bits.

    Both parts of each (T, 2, a, b), and the power of two.

    Example:
        >>> parts, scale = in_parts(np.array([[[1.0 + 2.0**-12]]]))
        >>> (parts / scale).ravel().tolist()
        [1.0, 0.000244140625]
    """
    scale = power_below(MAX_HALF / max(float(np.abs(tables).max(initial=0.0)), 1e-30))
    high = (tables * scale).astype(np.float16).astype(np.float64)
    return np.stack([high, tables * scale - high], axis=1), scale


def power_below(value: float) -> float:
    """The largest power of two up to a positive number.

    Example:
        >>> power_below(9.0), power_below(0.3)
        (8.0, 0.25)
    """
    return float(2.0 ** np.floor(np.log2(value)))


class PlaneTensors:
    """One field of Potts weights and shared tables, with the same labels for all variables."""

    form, front = "planes", 0

    def __init__(self, joined: Joined, tensors: Tensors) -> None:
        self.joined, self.tensors, self.n = joined, tensors, joined.n
        self.labels, self.lanes = joined.common, power_of_two(joined.common)
        self.unary: Tensor | None = None
        self.hard = False
        constants = np.array([low.constant for low in joined.lowereds], dtype=np.float64)
        here, there, weights = agreements_of(joined, constants)
        none = np.zeros(self.n, dtype=np.int64)
        blocks = Blocks(np.arange(self.n), joined.owner(), none, BLOCK, 1)
        self.n_blocks = len(blocks)
        self.stride = self.n_blocks * BLOCK * self.labels
        most = int(np.bincount(here, minlength=self.n).max(initial=0))
        self.degree = power_of_two(most) if most else -1
        if self.degree > MAX_DEGREE:
            self.degree = 0
        start, length, (to, weight) = blocks.fill(
            here, self.first_entry(there), weights, degree=max(0, self.degree)
        )
        t = tensors
        self.to, self.weight = t.ints(to), t.floats(weight)
        self.edges = planes.PlaneEdges(
            self.n, t.ints(start), t.ints(length), *self._group_tables(blocks)
        )
        self.shape = planes.Planes(
            self.labels, self.lanes, BLOCK, self.degree, self.groups, self.table_degree, self.dot
        )
        self.constants = torch.as_tensor(constants).to(t.device)
        zero = np.zeros(1, dtype=np.int64)
        self.first, self.count = t.ints(zero), t.ints(zero + self.n_blocks)

    def _group_tables(self, blocks: Blocks) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Starts and lengths of the groups in blocks, the tables and their scales.

        Neighbors by the table that they share are put down as `group_to`.
        """
        factors = self.joined.lowereds[0].factors
        tables, groups = oriented(factors)
        none = np.zeros(0, dtype=np.int64)
        ends = [(f.scopes, k[f.index]) for f, both in zip(factors, groups, strict=True)
                for k in both]  # fmt: skip
        here = np.concatenate([none, *(s[:, k % 2] for k, (s, _) in enumerate(ends))])
        there = np.concatenate([none, *(s[:, 1 - k % 2] for k, (s, _) in enumerate(ends))])
        which = np.concatenate([none, *(group for _, group in ends)])
        self.groups = len(tables)
        counts = np.bincount(here * max(1, self.groups) + which)
        self.table_degree = int(counts.max(initial=0))
        if self.table_degree * self.groups > MAX_SLOTS:
            self.table_degree = 0
        starts, lengths, to, used = [none], [none], [none], 0
        for k in range(self.groups):
            mine = which == k
            start, length, (after,) = blocks.fill(
                here[mine], self.first_entry(there[mine]) + 1, degree=self.table_degree
            )
            starts.append(start + used)
            lengths.append(length)
            to.append(after - 1)
            used += len(after)
        t = self.tensors
        padded = np.zeros((self.groups, self.lanes, self.lanes))
        if self.groups:
            padded[:, : self.labels, : self.labels] = tables
        self.group_to = t.ints(np.concatenate(to))
        largest = float(np.abs(padded).max(initial=0.0))
        self.dot = (
            t.name == "float32" and self.lanes >= MIN_DOT_LABELS and largest <= MAX_DOT_ENERGY
        )
        """Whether products with tables are those of float16."""
        scale = power_below(MAX_HALF / max(1, counts.max(initial=0)))
        if self.dot:
            parts, back = in_parts(padded)
            entries = Tensors("float16", t.device).floats(parts)
        else:
            entries, back = t.floats(padded), 1.0
        scales = t.floats(np.array([scale, 1.0 / (scale * back)]))
        return t.ints(np.concatenate(starts)), t.ints(np.concatenate(lengths)), entries, scales

    def first_entry(self, variables: Ints) -> Ints:
        """Where the first label of variables is."""
        return np.asarray(variables // BLOCK * (BLOCK * self.labels) + variables % BLOCK)

    def stored(self, values: Tensor) -> Tensor:
        """Entries in the order of the kernel, 0 where nobody is.  # (size,) -> (stride,)"""
        room = values.new_zeros(self.n_blocks * BLOCK, self.labels)
        room[: self.n] = values.reshape(self.n, self.labels)
        return room.unflatten(0, (-1, BLOCK)).transpose(1, 2).reshape(-1)

    def listed(self, values: Tensor) -> Tensor:
        """Stored entries, variable by variable.  # (stride,) -> (size,)"""
        blocks = values.reshape(-1, self.labels, BLOCK).transpose(1, 2)
        return blocks.reshape(-1, self.labels)[: self.n].reshape(-1)

    def set_unary(self, unary: Tensor) -> None:
        """Replace the unary energies, on the device.  # (size,)"""
        self.hard = bool(torch.isinf(unary).any())
        own = self.stored(unary.to(self.tensors.dtype))
        if self.unary is None:
            self.unary = own
        else:
            self.unary.copy_(own)  # where recorded graphs look for them

    # ---- launches ----

    def step(self, slot: Slot, rule: RuleForm) -> None:
        """One update of all variables; leaves partial sums."""
        # with shared tables a fifth block fits, a twentieth faster
        few = self.dot and self.groups and rule.kind in NO_MOMENT and not rule.adaptive
        planes.plane_step[(self.n_blocks,)](
            slot.buffers, slot.status, self.unary, *slot.movement(rule)[:2], self.to, self.weight,
            self.group_to, self.edges, RULE=rule, P=self.shape,
            num_warps=BLOCK // 32, num_stages=1, maxnreg=96 if few else None,
        )  # fmt: skip

    def product(self, v: Tensor) -> Tensor:
        """The pairwise energies' Hessian times a vector, in float64.  # (size,)"""
        stored = self.stored(v)
        out = torch.zeros_like(stored)
        planes.plane_product[(self.n_blocks,)](
            stored, out, self.to, self.weight, self.group_to, self.edges, P=self.shape,
            num_warps=BLOCK // 32, num_stages=1,
        )  # fmt: skip
        return self.listed(out)
