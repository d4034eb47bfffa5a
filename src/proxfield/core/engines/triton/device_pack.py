"""Lowered fields as the flat tensors that the kernels on a GPU read; several fields as one.

Fields of a batch are laid side by side: their variables are numbered through, and no block of
variables holds those of two fields, so that each field has sums and a board of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from proxfield.core.devices.cuda import torch
from proxfield.core.devices.tensors import Tensor, TorchDevice, TorchDtype
from proxfield.core.engines.numba.pack import is_binary
from proxfield.core.lowering.lowered import Lowered
from proxfield.core.terms.base import Floats, Ints

V = TypeVar("V", bound=np.generic)

MAX_PINNED_BYTES = 2**26
"""Bytes of an array up to which the device has room for it in two types."""
SMALL_WORK = 1 << 14
"""Entries, tiles included, up to which one program iterates on any other field."""


@dataclass
class Joined:
    """Several lowered fields as one."""

    lowereds: list[Lowered]
    cards: Ints = field(init=False)
    bounds: Ints = field(init=False)
    """First variable of each field.  # (fields + 1,)"""

    def __post_init__(self) -> None:
        self.cards = _cat([low.layout.cardinalities for low in self.lowereds], np.int64)
        self.bounds = np.cumsum([0, *(low.layout.n_vars for low in self.lowereds)])
        self.offsets = np.concatenate([[0], np.cumsum(self.cards)])
        self.n, self.size = len(self.cards), int(self.offsets[-1])
        self.binary = all(is_binary(low) and not low.extras for low in self.lowereds) and self.n > 0
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
    if all(same_memory(each, arrays[0]) for each in arrays[1:]):
        return first.to(device).repeat(len(arrays))
    place = torch.device(device)
    total = sum(len(each) for each in arrays)
    staging = torch.empty(total, dtype=first.dtype, pin_memory=place.type == "cuda")
    torch.cat([from_numpy(each) for each in arrays], out=staging)  # on all cores
    return staging.to(place, non_blocking=True)


def same_memory(a: Floats, b: Floats) -> bool:
    """Whether two arrays show the same numbers without looking at them."""
    return a is b or (
        a.__array_interface__["data"] == b.__array_interface__["data"]
        and (a.dtype, a.shape, a.strides) == (b.dtype, b.shape, b.strides)
    )


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
        degree: What to sort by, of every variable; only its power of two counts, so that
            neighbors mostly stay together.  # (n,)
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

    def slice(self, here: Ints) -> tuple[Ints, Ints, Ints, Ints, int]:
        """Room for values of directed edges, by the variable at which they are wanted.

        Args:
            here: That variable.  # (m,)

        Returns:
            Start and length of each block's slice, which edges are of these blocks, their places,
            and the room.
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
        start = np.cumsum(length * self.block) - length * self.block
        at = start[place // self.block] + rank * self.block + place % self.block
        return start, length, mine, at, int((length * self.block).sum())


def power_of_two(n: int) -> int:
    """The least power of two that is at least n."""
    return 1 << max(0, int(n) - 1).bit_length()


def processors(device: TorchDevice) -> int:
    """Programs that surely run at the same time."""
    if device.type != "cuda":
        return 2**31  # the interpreter: one after another
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


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
