"""Fields of any kind as tiles of variables by labels, for the kernels of `update.general`."""

from __future__ import annotations

import copy
from typing import TypeVar

import numpy as np

from proxfield.core.devices.cuda import torch
from proxfield.core.devices.tensors import Tensor, TorchDtype
from proxfield.core.engines.triton.device_pack import Blocks, Joined, Slot, Tensors, power_of_two
from proxfield.core.engines.triton.update import general
from proxfield.core.engines.triton.update.kinds import RuleForm
from proxfield.core.terms.base import Doubles, Floats, Ints

T = TypeVar("T")

SMALL_WORK = 1 << 14
"""Entries, tiles included, up to which one program iterates on any field that isn't binary."""
TILE = 1024
"""Entries of a tile."""
TABLE_TILE, TABLE_WARPS = 32, 1
"""The same for pairwise tables of large fields, and the warps of a program."""
TABLE_LABELS = 8
"""Labels of a neighbor whose entries of a table are read at a time."""
WIDE_TABLE_LABELS = 21
"""The same for large fields with more than 16 labels, at most."""
OWN_BLOCK = 128
"""Variables in a block where most edges have a table of their own."""
OWN_SHARE = 0.5
"""Tables per edge from which on they are stored in the order in which they are read."""
OWN_LOADS = 64
"""Numbers of a table that a thread reads at a time."""
OWN_LABELS = 16
"""Labels up to which a thread holds those of a variable."""


def agreements_of(joined: Joined, constants: Doubles) -> tuple[Ints, Ints, Doubles]:
    """Energies w·[x_i = x_j] in both directions; each field's constants are added to.

    Of each the variable where it is wanted, the other one, and the weight.
    """
    ends, weights = [], []
    for name, scale, constant in (("potts", -1.0, 1.0), ("ising", 2.0, -1.0)):
        edges, w = joined.edges(name)
        # w·[x ≠ y] = w − w·[x = y];  J·s·t = 2J·[s = t] − J
        owner = np.searchsorted(joined.bounds, edges[:, 0], side="right") - 1
        np.add.at(constants, owner, constant * w)
        ends.append(edges)
        weights.append(scale * w)
    edges, w = np.concatenate(ends), np.concatenate(weights)
    return edges.T.ravel(), edges[:, ::-1].T.ravel(), np.concatenate([w, w])


def retyped(bundle: T, kind: TorchDtype) -> T:
    """A kernel's argument with its floating-point numbers in another type."""
    if isinstance(bundle, tuple):
        return type(bundle)(*(retyped(part, kind) for part in bundle))
    real = torch.is_tensor(bundle) and bundle.is_floating_point()  # type: ignore[attr-defined]
    return bundle.to(kind) if real else bundle  # type: ignore[attr-defined]


class Bucket:
    """Blocks of variables with about as many labels each, and their slices as tensors.

    If ``own``, tables of pairs are stored for each slice, with the block's variables fastest.
    """

    def __init__(self, pack: GeneralTensors, which: Ints, labels: int) -> None:
        joined, t = pack.joined, pack.tensors
        tables = len(pack.pair_here) > 0 and pack.form == "tiles"
        self.own = pack.own
        self.warps = TABLE_WARPS if tables else 4
        edges = 4 if tables and labels <= 16 else 1  # neighbors that are read at a time
        theirs = min(labels, TABLE_LABELS)
        if tables and labels > 16 and joined.common:
            even = divisor(joined.common, WIDE_TABLE_LABELS)
            theirs = even if even >= TABLE_LABELS // 2 else TABLE_LABELS
        block = max(1, (TABLE_TILE if tables else TILE) // labels)
        if self.own:
            block, self.warps = OWN_BLOCK, OWN_BLOCK // 32
            theirs = divisor(joined.common, max(1, OWN_LOADS // joined.common))
        largest = int(np.bincount(joined.owner()[which]).max(initial=1))
        block = min(block, max(1, power_of_two(largest)))
        blocks = Blocks(which, joined.owner(), pack.degree, block, len(joined.lowereds), self.own)
        self.n_blocks = len(blocks)
        self.first, self.count = blocks.first, blocks.count
        self.variables = general.Variables(
            t.ints(blocks.variable), t.ints(blocks.field), pack.offset, pack.cards, joined.common
        )
        self.value: Tensor | None = None
        """Entries of tables if ``own``."""
        self.couplings = general.Couplings(
            self._agreements(pack, blocks), self._pairs(pack, blocks), self._larger(pack, blocks),
            pack.table,
        )  # fmt: skip
        arity = 0 if self.couplings.larger is None else pack.arity
        self.shape = general.Shape(
            joined.common > 0, labels, block, theirs, edges, joined.common if self.own else 0, arity
        )

    def _agreements(self, pack: GeneralTensors, blocks: Blocks) -> general.AgreementSlices | None:
        t, joined, there = pack.tensors, pack.joined, pack.agree_there
        start, length, (to, both, weight) = blocks.fill(
            pack.agree_here, joined.offsets[there], joined.cards[there], pack.agree_weight
        )
        here = t.ints(start, True), t.ints(length), t.ints(to), t.ints(both)
        return general.AgreementSlices(*here, t.floats(weight)) if len(to) else None

    def _pairs(self, pack: GeneralTensors, blocks: Blocks) -> general.PairSlices | None:
        t, joined, there = pack.tensors, pack.joined, pack.pair_there
        start, length, (to, many, base) = blocks.fill(
            pack.pair_here, joined.offsets[there], joined.cards[there], pack.pair_base
        )
        if self.own:
            # tables as blocks read them: (rows, neighbor's label, own label, block)
            _, _, mine, at, room = blocks.slice(pack.pair_here)
            block, size = blocks.block, joined.common**2
            value = np.zeros((room // block, size, block))
            entries = pack.pair_base[mine][:, None] + np.arange(size)
            value[at // block, :, at % block] = pack.tables[entries]
            self.value = t.floats(value.ravel())
        here = t.ints(start, True), t.ints(length), t.ints(to), t.ints(many)
        return general.PairSlices(*here, t.ints(base, True)) if len(to) else None

    def _larger(self, pack: GeneralTensors, blocks: Blocks) -> general.LargerSlices | None:
        t = pack.tensors
        start, length, (configs, base, part, others, radix) = blocks.fill(
            pack.slot_here, pack.slot_configs, pack.slot_base, pack.slot_share, pack.slot_others,
            pack.slot_radix,
        )  # fmt: skip
        if not len(configs):
            return None
        return general.LargerSlices(
            t.ints(start, True), t.ints(length), t.ints(configs), t.floats(part),
            t.ints(others.T), t.ints(np.maximum(radix.T, 1)), t.ints(base, True), len(configs),
        )  # fmt: skip

    @property
    def kinds(self) -> tuple[bool, ...]:
        """Whether it has agreement weights, pairwise tables, and larger tables."""
        return tuple(slices is not None for slices in self.couplings[:3])

    def retyped(self, tensors: Tensors) -> Bucket:
        """The same with numbers of another type."""
        out = copy.copy(self)
        out.couplings = retyped(self.couplings, tensors.dtype)
        out.value = retyped(self.value, tensors.dtype)
        return out


def divisor(number: int, most: int) -> int:
    """The largest divisor up to ``most``.

    Example:
        >>> divisor(21, 8), divisor(8, 8), divisor(23, 8)
        (7, 8, 1)
    """
    return max(k for k in range(1, most + 1) if number % k == 0)


class GeneralTensors:
    """Fields of all kinds: directed edges and slots of tables, then buckets of them.

    Their ``form`` is "tiles" or "small", by default what fits best.
    """

    def __init__(self, joined: Joined, tensors: Tensors, form: str | None = None) -> None:
        self.joined, self.tensors = joined, tensors
        self.n = joined.n
        self.unary: Tensor | None = None
        self.front, self.stride = 0, 0  # states need no padding
        self.hard = True
        constants = np.array([low.constant for low in joined.lowereds], dtype=np.float64)
        self.agree_here, self.agree_there, self.agree_weight = agreements_of(joined, constants)
        self.constants = torch.as_tensor(constants).to(tensors.device)
        self._list_tables()
        here = np.concatenate([self.agree_here, self.pair_here, self.slot_here])
        self.degree = np.bincount(here, minlength=self.n)
        cards, kind = np.array([joined.common]), np.zeros(self.n, dtype=np.int64)
        if not joined.common:
            cards, kind = np.unique(joined.cards, return_inverse=True)
        padded = np.array([power_of_two(c) for c in cards], dtype=np.int64)
        labels = int(padded.max(initial=1))
        per = np.diff(joined.bounds)
        work = int(per.max(initial=0)) * labels
        if form is None:
            extras = any(low.extras for low in joined.lowereds)
            cost = work + int(self.slot_configs.sum() + joined.cards[self.pair_there].sum())
            form = "small" if cost <= SMALL_WORK and not extras else "tiles"
        self.form = form
        edges = len(self.pair_here) // 2
        own = OWN_SHARE * edges <= self.pair_tables and 1 < joined.common <= OWN_LABELS
        self.own = own and edges > 0 and form == "tiles"
        """Whether most edges have a table of their own; see `Bucket`."""
        if form == "small" or len(joined.lowereds) > 1:  # a field's sums lie side by side
            groups = [(labels, np.arange(self.n))]
        else:
            sizes = padded[kind.ravel()]
            groups = [(int(s), np.flatnonzero(sizes == s)) for s in np.unique(sizes)]
        t = tensors
        self.offset, self.cards = t.ints(joined.offsets[:-1]), t.ints(joined.cards)
        # those that slices hold are not read
        self.table = t.floats(self.tables if not self.own or self.arity else np.zeros(0))
        self.buckets = [Bucket(self, which, size) for size, which in groups if len(which)]
        # where each field's partial sums are: buckets one after another, fields inside
        self.starts = np.cumsum([0, *(b.n_blocks for b in self.buckets)])
        self.n_blocks = int(self.starts[-1])
        fields = len(joined.lowereds)
        alone = len(self.buckets) == 1
        first = self.buckets[0].first if alone else np.zeros(fields, dtype=np.int64)
        count = self.buckets[0].count if alone else np.full(fields, self.n_blocks)
        self.first, self.count = t.ints(first), t.ints(count)

    @property
    def coupled(self) -> bool:
        """Whether it has any coupling, or all terms are iterated on their own."""
        return any(any(bucket.kinds) for bucket in self.buckets)

    def retyped(self, tensors: Tensors) -> GeneralTensors:
        """The same with numbers of another type; the unary energies are to be set again."""
        out = copy.copy(self)
        out.tensors, out.unary = tensors, None
        out.buckets = [bucket.retyped(tensors) for bucket in self.buckets]
        return out

    def set_unary(self, unary: Tensor) -> None:
        """Replace the unary energies, on the device.  # (size,)"""
        if self.unary is None:
            own = unary.to(self.tensors.dtype, copy=True)  # later ones are copied into it
            self.unary = own if self.n else self.tensors.floats(np.zeros(1))
        elif self.n:
            self.unary.copy_(unary)  # where recorded graphs look for them

    def step(self, slot: Slot, rule: RuleForm) -> None:
        """One update of all fields that aren't done; leaves partial sums."""
        for bucket, first in zip(self.buckets, self.starts[:-1], strict=True):
            general.tile_step[(bucket.n_blocks,)](
                slot.buffers, slot.status._replace(parts=slot.parts[int(first) :]),
                bucket.variables, general.UnaryEnergies(self.unary, slot.shift), bucket.couplings,
                bucket.value, slot.movement(rule),
                RULE=rule, SHAPE=bucket.shape, num_warps=bucket.warps,
            )  # fmt: skip

    def run(self, slot: Slot, rule: RuleForm) -> None:
        """All updates of small fields in one launch."""
        bucket = self.buckets[0]
        general.tile_run[(len(self.joined.lowereds),)](
            slot.buffers, slot.status, self.first, self.count, bucket.variables,
            general.UnaryEnergies(self.unary, slot.shift), bucket.couplings, bucket.value,
            slot.movement(rule), RULE=rule, SHAPE=bucket.shape, num_warps=bucket.warps,
        )  # fmt: skip

    def product(self, v: Tensor) -> Tensor:
        """The pairwise energies' Hessian times a vector, in float64.  # (size,)"""
        out = torch.zeros_like(v)
        for bucket in self.buckets:
            general.tile_product[(bucket.n_blocks,)](
                v, out, bucket.variables, bucket.couplings, bucket.value,
                SHAPE=bucket.shape, num_warps=bucket.warps,
            )  # fmt: skip
        return out

    def _list_tables(self) -> None:
        """Tables once for each position in them, the variable's own labels fastest."""
        joined = self.joined
        found = [
            (factor, first)
            for low, first in zip(joined.lowereds, joined.bounds, strict=False)
            for factor in low.factors
        ]
        self.pair_tables = sum(len(f.tables) for f, _ in found if f.degree == 2)
        self.arity = max([0, *(f.degree for f, _ in found if f.degree > 2)])
        width = max(1, self.arity - 1)
        none, wide = np.zeros(0, dtype=np.int64), np.zeros((0, width), dtype=np.int64)
        tables: list[Floats] = [np.zeros(0)]
        pairs, used = [(none, none, none)], 0
        slots = [(none, none, np.zeros(0), wide, wide)]
        for factor, first in found:
            scopes, k = factor.scopes + first, factor.degree
            for position in range(k):
                turned = np.moveaxis(factor.tables, 1 + position, -1)
                base = used + factor.index * int(np.prod(factor.shape))
                tables.append(np.ascontiguousarray(turned).ravel())
                used += turned.size
                here, others = scopes[:, position], np.delete(scopes, position, axis=1)
                if k == 2:
                    pairs.append((here, others[:, 0], base))
                    continue
                # others that a table lacks count as variables of one label
                where = np.zeros((len(here), width), dtype=np.int64)
                radix = np.ones_like(where)
                where[:, width - k + 1 :] = joined.offsets[others]
                radix[:, width - k + 1 :] = joined.cards[others]
                slots.append((here, base, np.full(len(here), 1.0 / k), where, radix))
        self.tables = np.concatenate(tables)
        self.pair_here, self.pair_there, self.pair_base = map(
            np.concatenate, zip(*pairs, strict=True)
        )
        self.slot_here, self.slot_base, self.slot_share, self.slot_others, self.slot_radix = map(
            np.concatenate, zip(*slots, strict=True)
        )
        self.slot_configs = self.slot_radix.prod(axis=1)
