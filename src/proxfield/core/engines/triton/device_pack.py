"""Lowered fields and their states as tensors on a GPU; several fields as one.

Fields of a batch are laid side by side: their variables are numbered through, and no block of
variables holds those of two fields, so that each field has sums and a board of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from proxfield.core.devices.cuda import record, torch
from proxfield.core.devices.tensors import CudaGraph, Tensor, TorchDevice, TorchDtype
from proxfield.core.engines.numba.pack import is_binary
from proxfield.core.engines.plan import Kind, Update
from proxfield.core.engines.triton.update import kinds
from proxfield.core.engines.triton.update.board import FieldStatus
from proxfield.core.lowering.lowered import Lowered
from proxfield.core.terms.base import Floats, Ints

V = TypeVar("V", bound=np.generic)

CAPACITY = 4096
"""Rows that a device keeps before the host takes them."""
FIRST = {int(kind) for kind in Kind if kind.moments >= 1} | {kinds.LOOK}
SECOND = {int(kind) for kind in Kind if kind.moments >= 2}
"""The kinds that need a first and a second moment, or room for a gradient."""
LENGTHS = (64, 8)
"""Iterations in one graph; fewer are launched one by one, unless each takes many launches."""
MIN_ITERATIONS = 32
"""Iterations asked for so far from which recording pays: it takes as long as launching about a
hundred."""
ENABLED = True
"""Whether to record graphs at all; for measuring what they bring."""


MAX_PINNED_BYTES = 2**26
"""Bytes of an array up to which the device has room for it in two types."""


class Joined:
    """Several lowered fields as one."""

    def __init__(self, lowereds: list[Lowered]) -> None:
        self.lowereds = lowereds
        self.cards: Ints = _cat([low.layout.cardinalities for low in lowereds], np.int64)
        self.bounds: Ints = np.cumsum([0, *(low.layout.n_vars for low in lowereds)])
        """First variable of each field.  # (fields + 1,)"""
        self.offsets = np.concatenate([[0], np.cumsum(self.cards)])
        self.n, self.size = len(self.cards), int(self.offsets[-1])
        self.binary = all(is_binary(low) and not low.extras for low in lowereds) and self.n > 0
        same = self.n > 0 and bool((self.cards == self.cards[0]).all())
        self.common = int(self.cards[0]) if same else 0
        """Labels of all variables where they agree, else 0."""

    @property
    def unary(self) -> Floats:
        """Unary energies of all entries.  # (size,)"""
        return _cat([low.unary for low in self.lowereds], np.float64)

    def edges(self, name: str) -> tuple[Ints, NDArray[np.float64]]:
        """Edges and weights of ``ising`` or ``potts`` in all fields.  # (m, 2), (m,)"""
        ends, weights = [np.zeros((0, 2), dtype=np.int64)], [np.zeros(0)]
        for low, first in zip(self.lowereds, self.bounds, strict=False):
            term = getattr(low, name)
            if term is not None:
                ends.append(term.edges + first)
                weights.append(term.weights)
        return np.concatenate(ends), np.concatenate(weights)

    def owner(self) -> Ints:
        """The field of each variable.  # (n,)"""
        return np.repeat(np.arange(len(self.lowereds)), np.diff(self.bounds))


def _cat(arrays: list[NDArray[V]], dtype: type[np.generic]) -> NDArray[V]:
    if len(arrays) == 1:
        return np.asarray(arrays[0])
    return np.concatenate([np.zeros(0, dtype=dtype), *arrays])


def upload(arrays: Sequence[Floats], device: TorchDevice) -> Tensor:
    """Arrays one after another on a device; those that are the same memory are copied once."""
    if len({each.dtype for each in arrays}) > 1:
        arrays = [each.astype(np.float64) for each in arrays]
    first = from_numpy(arrays[0])
    # the same numbers, without looking at them
    seen = [(a.__array_interface__["data"], a.dtype, a.shape, a.strides) for a in arrays]
    if all(each == seen[0] for each in seen):
        return first.to(device).repeat(len(arrays))
    place = torch.device(device)
    total = sum(len(each) for each in arrays)
    staging = torch.empty(total, dtype=first.dtype, pin_memory=place.type == "cuda")
    torch.cat([from_numpy(each) for each in arrays], out=staging)  # on all cores
    return staging.to(place, non_blocking=True)


def download(values: Tensor) -> NDArray[np.float64]:
    """A tensor on the host, through memory that the device can write to by itself."""
    if values.device.type != "cuda":
        return np.asarray(values.cpu().numpy())
    staging = torch.empty(values.shape, dtype=values.dtype, pin_memory=True).copy_(values)
    # an array that isn't pinned; numpy asks for large pages, which torch doesn't
    out: NDArray[np.float64] = np.empty_like(staging.numpy())
    torch.from_numpy(out).copy_(staging)
    return out


class Blocks:
    """Variables cut into blocks of about equal degree, none of two fields.

    Args:
        which: The variables.  # (m,)
        owner: The field of every variable.  # (n,)
        degree: What to sort by; only its power of two counts, so that neighbors mostly stay
            together.  # (n,)
        block: Variables in a block.
        fields: Number of fields.
        exact: Sort by the degree itself, the largest first?
    """

    def __init__(
        self, which: Ints, owner: Ints, degree: Ints, block: int, fields: int, exact: bool = False
    ) -> None:
        self.block = block
        rank = -degree[which]
        if not exact:
            rank = np.ceil(np.log2(np.maximum(degree[which], 1))).astype(np.int64)
        ordered = which
        if fields > 1 or (len(rank) and (rank != rank[0]).any()):
            ordered = which[np.lexsort((rank, owner[which]))]
        counts = np.bincount(owner[ordered], minlength=fields)
        blocks = -(-counts // block)
        self.first = np.cumsum(blocks) - blocks
        self.count = blocks
        """Blocks of each field, and the first of them.  # (fields,)"""
        self.field = np.repeat(np.arange(fields), blocks)
        self.variable = np.full(int(blocks.sum()) * block, -1, dtype=np.int64)
        inside = np.arange(len(ordered)) - np.repeat(np.cumsum(counts) - counts, counts)
        at = np.repeat(self.first * block, counts) + inside
        self.variable[at] = ordered
        self.place = np.full(len(owner), -1, dtype=np.int64)
        """Where each variable is.  # (n,)"""
        self.place[ordered] = at

    def __len__(self) -> int:
        return len(self.field)

    def fill(
        self, here: Ints, *values: Floats | Ints, degree: int = 0
    ) -> tuple[Ints, Ints, list[NDArray[Any]]]:
        """Start and length of each block's slice, and values in it; see `slice`."""
        start, length, mine, at, room = self.slice(here, degree)
        filled = []
        for each in values:
            filled.append(np.zeros((room, *each.shape[1:]), each.dtype))
            filled[-1][at] = each[mine]
        return start, length, filled

    def slice(self, here: Ints, degree: int = 0) -> tuple[Ints, Ints, Ints, Ints, int]:
        """Room for values of directed edges, by the variable ``here`` at which they are wanted.

        Start and length of each block's slice, which edges are of these blocks, their places, and
        the room. With a ``degree`` every block has room for as many.
        """
        mine = np.flatnonzero(self.place[here] >= 0)
        place = self.place[here[mine]]
        order = np.argsort(place, kind="stable")
        mine, place = mine[order], place[order]
        new = np.flatnonzero(np.diff(place, prepend=-1))
        runs = np.diff(np.append(new, len(place)))
        rank = np.arange(len(place)) - np.repeat(new, runs)
        length = np.zeros(len(self), dtype=np.int64)
        np.maximum.at(length, place // self.block, rank + 1)
        room = (np.full_like(length, degree) if degree else length) * self.block
        start = np.cumsum(room) - room
        at = start[place // self.block] + rank * self.block + place % self.block
        return start, length, mine, at, int(room.sum())


def power_of_two(n: int) -> int:
    """The least power of two that is at least n."""
    return 1 << max(0, int(n) - 1).bit_length()


def from_numpy(values: NDArray[np.generic]) -> Tensor:
    """A tensor of an array on the host, without copying it unless it can't be written to."""
    values = np.ascontiguousarray(values)
    return torch.from_numpy(values if values.flags.writeable else values.copy())


class Tensors:
    """Numpy arrays to tensors of one device and floating-point type."""

    def __init__(self, dtype: str, device: TorchDevice) -> None:
        self.name, self.dtype, self.device = dtype, getattr(torch, dtype), device

    def floats(self, values: Floats) -> Tensor:
        """In the state's type; never empty, so that it has an address."""
        values = values if values.size else np.zeros(1)
        return self._put(values, self.dtype)

    def ints(self, values: Ints, wide: bool = False) -> Tensor:
        """32-bit integers, or 64-bit ones."""
        values = values if values.size else np.zeros(1, dtype=np.int64)
        kind = torch.int64 if wide or values.max() >= 2**31 else torch.int32
        return self._put(values, kind)

    def _put(self, values: Floats | Ints, kind: TorchDtype) -> Tensor:
        """On the device in a type: converted there if it is little, which is faster."""
        if values.nbytes <= MAX_PINNED_BYTES:
            return from_numpy(values).to(self.device).to(kind)
        return from_numpy(values).to(self.device, kind)


class Graphs:
    """Recorded blocks of iterations of one state, of each kind of iteration.

    What changes between plans (steps, temperature, tolerances) lives in tensors that the kernels
    read, so that a graph stays right when these change; what it is recorded for is in its key.
    """

    def __init__(self, device: TorchDevice, many_launches: bool) -> None:
        self.device, self.lengths = device, (*LENGTHS, 1) if many_launches else LENGTHS
        self.found: dict[tuple[Hashable, int], CudaGraph] = {}
        self.asked: dict[Hashable, int] = {}
        """Iterations so far, by key."""

    def repeat(self, key: Hashable, once: Callable[[], None], n: int, capturable: bool) -> None:
        """Call ``once`` n times, through graphs where that can be."""
        if not capturable or not ENABLED or self.device.type != "cuda":
            times(once, n)
            return
        before = self.asked.get(key, 0)
        self.asked[key] = before + n
        if before == 0 and n:  # compiles kernels and fills caches, outside of recording
            once()
            n -= 1
        for length in self.lengths:
            if self.asked[key] < MIN_ITERATIONS and (key, length) not in self.found:
                continue
            while n >= length:
                if (key, length) not in self.found:
                    self.found[key, length], _ = record(partial(times, once, length))
                self.found[key, length].replay()
                n -= length
        times(once, n)


def times(once: Callable[[], None], n: int) -> None:
    """Call it n times."""
    for _ in range(n):
        once()


@dataclass(eq=False)
class Slot:
    """The tensors of one state. Slots are used again, so that recorded graphs stay valid."""

    stride: int
    buffers: Tensor  # natural parameters; see `update.board`  # (BUFFERS, stride)
    spins: Tensor  # v of small binary fields, else one number  # (BUFFERS, stride)
    board: Tensor  # (fields, BOARD) int32
    numbers: Tensor  # (fields, BOARD) float64
    parameters: Tensor  # (PARAMETERS,) float64
    step: Tensor  # (n,)
    safe: Tensor  # (n,)
    parts: Tensor  # (blocks, 2) float64
    out: Tensor  # F and change of each row  # (2, fields, CAPACITY) float64
    graphs: Graphs
    u: Tensor | None = None
    v: Tensor | None = None
    shift: Tensor | None = None
    q: Tensor | None = None
    meeting: tuple[Tensor, Tensor] | None = None
    """Where programs that share a field wait and add up; see `binary.SmallFields`."""
    plan: Update | None = None  # whose numbers are in ``parameters``, ``step`` and ``safe``
    flat: bool = True  # has it one step for all variables?

    def __post_init__(self) -> None:
        self.status = FieldStatus(
            self.board, self.numbers, self.out[0], self.out[1], self.out.shape[2], self.parts,
            self.step, self.safe, self.parameters, self.stride,
        )  # fmt: skip

    def movement(self, rule: kinds.RuleForm) -> kinds.Movement:
        """What a rule moves with; moments that it doesn't keep are left out."""
        moments = (self.u if rule.kind in FIRST else None, self.v if rule.kind in SECOND else None)
        return kinds.Movement(*moments, self.step, self.safe, self.parameters)


@dataclass
class BatchState:
    """Where a batch stands."""

    slot: Slot
    pool: list[Slot]
    pending: NDArray[np.bool_]
    """Fields whose impossible labels still have weight: their F is +inf.  # (fields,)"""
    extra: dict[str, Any] = field(default_factory=dict)
    known: tuple[int, float] | None = None
    """F of a single field, if it has been computed, and the unary energies it belongs to."""

    def __del__(self) -> None:
        if "pool" in vars(self):  # torch.compile makes objects without calling __init__
            self.pool.append(self.slot)


class Natural:
    """Conversions for the variables of some fields.

    Args:
        joined: The fields.
        device: Where they are.
    """

    def __init__(self, joined: Joined, device: TorchDevice) -> None:
        self.joined, self.device, self.binary = joined, device, joined.binary
        self.bounds: Tensor | None = None
        """Where each variable's entries start, where numbers of labels differ.  # (n + 1,)"""
        if not joined.common:  # now: while a graph is recorded nothing can be copied
            self.bounds = torch.as_tensor(joined.offsets).to(device)
            self.counts = self.bounds.diff()

    def of(self, q: Tensor) -> Tensor:
        """Natural parameters of marginals, as the kernels hold them; float64."""
        if self.binary:
            pairs = q.reshape(-1, 2).clamp(min=1e-30).log()
            return 0.5 * (pairs[:, 0] - pairs[:, 1])
        return torch.where(q > 0, -q.clamp(min=1e-300).log(), kinds.START_ZERO)

    def marginals(self, value: Tensor) -> Tensor:
        """Normalized marginals of natural parameters.  # (size,)"""
        if self.binary:
            small = torch.sigmoid(-2.0 * value.abs())
            up = value > 0
            one = torch.where(up, small, 1.0 - small)
            return torch.stack([torch.where(up, 1.0 - small, small), one], 1).ravel()
        q = torch.exp(-value)
        return q / self.sums(q)

    def sums(self, q: Tensor, empty: float = 1.0) -> Tensor:
        """Sum of its variable's entries for each entry.

        Args:
            q: # (size,)
            empty: Instead of sums that aren't positive, to divide by; 0 leaves all as they are.
        """
        if self.joined.common:
            rows = q.reshape(-1, self.joined.common).sum(1, keepdim=True)
            total = rows.expand(-1, self.joined.common).reshape(-1)
        else:
            each = torch.segment_reduce(q, "sum", offsets=self.bounds)
            total = torch.repeat_interleave(each, self.counts, output_size=len(q))
        return total if empty == 0.0 else torch.where(total > 0, total, empty)

    def most(self, flat: Tensor) -> Tensor:
        """The largest of each variable's entries.  # (n,)"""
        if self.joined.common:
            return flat.reshape(-1, self.joined.common).amax(1)
        return torch.segment_reduce(flat, "max", offsets=self.bounds)
