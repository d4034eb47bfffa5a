# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""Fields of Potts energies and shared tables between variables near each other, and kernels.

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

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from proxfield.core.devices.cuda import constexpr, jit, jit_for_any, tl, torch
from proxfield.core.devices.tensors import Tensor
from proxfield.core.engines.plan import Kind
from proxfield.core.engines.triton.device_pack import Blocks, Joined, Slot, Tensors, power_of_two
from proxfield.core.engines.triton.general_pack import SMALL_WORK, agreements_of
from proxfield.core.engines.triton.update.board import _DONE, _REDO, _TICK, buffer_at, move_labels
from proxfield.core.engines.triton.update.general import fetch_marginals
from proxfield.core.engines.triton.update.kinds import (
    _NATIVE,
    Entries,
    Movement,
    RuleForm,
    exponential,
)
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

    Neighbor k of place j of a block is at ``start + k·BLOCK + j``. Groups of neighbors that
    share a table are one after another, the tables with the neighbors' labels first; see
    `in_parts`. ``scales`` are what marginals are multiplied with, and what takes this and the
    scale of the tables back.
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

    Of two parts of each number (see `in_parts`), without the product of the smaller
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
        self.edges = PlaneEdges(self.n, t.ints(start), t.ints(length), *self._group_tables(blocks))
        self.shape = Planes(
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

    def step(self, slot: Slot, rule: RuleForm) -> None:
        """One update of all variables; leaves partial sums."""
        # with shared tables a fifth block fits, a twentieth faster
        few = self.dot and self.groups and rule.kind in NO_MOMENT and not rule.adaptive
        plane_step[(self.n_blocks,)](
            slot.buffers, slot.status, self.unary, *slot.movement(rule)[:2], self.to, self.weight,
            self.group_to, self.edges, RULE=rule, P=self.shape,
            num_warps=BLOCK // 32, num_stages=1, maxnreg=96 if few else None,
        )  # fmt: skip

    def product(self, v: Tensor) -> Tensor:
        """The pairwise energies' Hessian times a vector, in float64.  # (size,)"""
        stored = self.stored(v)
        out = torch.zeros_like(stored)
        plane_product[(self.n_blocks,)](
            stored, out, self.to, self.weight, self.group_to, self.edges, P=self.shape,
            num_warps=BLOCK // 32, num_stages=1,
        )  # fmt: skip
        return self.listed(out)
