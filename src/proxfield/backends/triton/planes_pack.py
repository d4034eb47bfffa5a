"""Potts fields whose variables are stored label by label, for the kernel of `update.planes`."""

from __future__ import annotations

import numpy as np

from proxfield.backends.triton.device_pack import (
    SMALL_WORK,
    Blocks,
    Joined,
    Tensors,
    power_of_two,
)
from proxfield.backends.triton.general_pack import agreements_of
from proxfield.devices.cuda import torch
from proxfield.devices.tensors import Tensor
from proxfield.terms.base import Ints

BLOCK = 128
"""Variables in a block, and threads in a program."""
MAX_LABELS = 32
"""Labels that a thread holds in registers."""
MAX_DEGREE = 8
"""Neighbors up to which all blocks look at as many."""
MIN_LOCALITY = 0.75
"""Share of the edges, at least, that run beside one of the next variable's edges."""


def suits(joined: Joined) -> bool:
    """Whether a batch is one field that is stored like this by default."""
    low = joined.lowereds[0]
    if len(joined.lowereds) > 1 or low.extras or low.factors or low.potts is None:
        return False
    labels, n = joined.common, joined.n
    if not 2 < labels <= MAX_LABELS or not SMALL_WORK < n * labels < 2**31 - 2**20:
        return False
    return locality(low.potts.edges) >= MIN_LOCALITY


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


class PlaneTensors:
    """One Potts field with the same labels for all variables.

    Args:
        joined: The field.
        tensors: Where to, and the type.
        form: "planes".
    """

    coupled = True

    def __init__(self, joined: Joined, tensors: Tensors, form: str | None = None) -> None:
        self.form = "planes"
        self.joined, self.tensors, self.n = joined, tensors, joined.n
        self.labels, self.lanes = joined.common, power_of_two(joined.common)
        self.unary: Tensor | None = None
        self.hard = False
        constants = np.array([low.constant for low in joined.lowereds], dtype=np.float64)
        here, there, weights = agreements_of(joined, constants)
        none = np.zeros(self.n, dtype=np.int64)
        blocks = Blocks(np.arange(self.n), joined.owner(), none, BLOCK, 1)
        self.n_blocks = len(blocks)
        self.front, self.stride = 0, self.n_blocks * BLOCK * self.labels
        degree = np.bincount(here, minlength=self.n)
        self.degree = power_of_two(int(degree.max(initial=1)))
        if self.degree > MAX_DEGREE:
            self.degree = 0
        start, length, mine, at, room = blocks.slice(here)
        if self.degree:
            start = np.arange(self.n_blocks) * self.degree * BLOCK
            rank = at - (np.cumsum(length) - length)[blocks.place[here[mine]] // BLOCK] * BLOCK
            at = start[blocks.place[here[mine]] // BLOCK] + rank
            room = self.n_blocks * self.degree * BLOCK
        to, weight = np.zeros(room, np.int64), np.zeros(room)
        to[at] = self.first_entry(there[mine])
        weight[at] = weights[mine]
        t = tensors
        self.start, self.length = t.ints(start), t.ints(length)
        self.to, self.weight = t.ints(to), t.floats(weight)
        self.constants = torch.as_tensor(constants).to(t.device)
        zero = np.zeros(1, dtype=np.int64)
        self.first, self.count = t.ints(zero), t.ints(zero + self.n_blocks)

    def first_entry(self, variables: Ints) -> Ints:
        """Where the first label of variables is."""
        return np.asarray(variables // BLOCK * (BLOCK * self.labels) + variables % BLOCK)

    def stored(self, values: Tensor) -> Tensor:
        """Entries in the order of the kernel, 0 where nobody is.  # (size,) -> (stride,)"""
        room = values.new_zeros(self.n_blocks * BLOCK, self.labels)
        room[: self.n] = values.reshape(self.n, self.labels)
        return room.unflatten(0, (-1, BLOCK)).transpose(1, 2).reshape(-1)

    def listed(self, values: Tensor) -> Tensor:
        """Entries variable by variable: the other way.  # (stride,) -> (size,)"""
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
