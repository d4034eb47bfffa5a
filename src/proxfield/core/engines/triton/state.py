"""What a state on a GPU is made of: its tensors, its natural parameters, and recorded graphs."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from proxfield.core.devices.cuda import find_device, torch
from proxfield.core.devices.tensors import CudaGraph, Tensor, TorchDevice
from proxfield.core.engines.plan import Kind, Update
from proxfield.core.engines.triton.device_pack import Joined
from proxfield.core.engines.triton.update import kinds
from proxfield.core.engines.triton.update.board import FieldStatus
from proxfield.core.engines.triton.update.kinds import Movement, RuleForm

CAPACITY = 4096
"""Rows that a device keeps before the host takes them."""
FIRST = {int(kind) for kind in Kind if kind.moments >= 1} | {kinds.LOOK}
SECOND = {int(kind) for kind in Kind if kind.moments >= 2}
"""The kinds that need a first and a second moment, or room for a gradient."""
LENGTHS = (64, 8)
"""Iterations in one graph; fewer are launched one by one."""
LENGTHS_WITH_TERMS = (64, 8, 1)
"""The same where an iteration takes many launches."""
MIN_ITERATIONS = 32
"""Iterations asked for so far from which recording pays: it takes as long as launching about a
hundred."""
ENABLED = True
"""Whether to record graphs at all; for measuring what they bring."""


def default_device(device: TorchDevice = None) -> TorchDevice:
    """The requested device, else the current CUDA device, else (in the interpreter) the CPU."""
    return find_device("cuda" if device is None else device)


class Graphs:
    """Recorded blocks of iterations of one state, of each kind of iteration.

    What changes between plans (steps, temperature, tolerances) lives in tensors that the kernels
    read, so that a graph stays right when these change; what it is recorded for is in its key.

    Args:
        device: A device of torch.
        lengths: Iterations in one graph, the longest first.
    """

    def __init__(self, device: TorchDevice, lengths: tuple[int, ...] = LENGTHS) -> None:
        self.device, self.lengths = device, lengths
        self.found: dict[tuple[Hashable, int], CudaGraph] = {}
        self.asked: dict[Hashable, int] = {}
        """Iterations so far, by key."""

    def repeat(self, key: Hashable, once: Callable[[], None], n: int, capturable: bool) -> None:
        """Call ``once`` n times, through graphs where that can be."""
        if not capturable or not ENABLED or self.device.type != "cuda":
            for _ in range(n):
                once()
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
                self._graph(key, once, length).replay()
                n -= length
        for _ in range(n):
            once()

    def _graph(self, key: Hashable, once: Callable[[], None], length: int) -> CudaGraph:
        if (key, length) not in self.found:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for _ in range(length):
                    once()
            self.found[key, length] = graph
        return self.found[key, length]


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

    def movement(self, rule: RuleForm) -> Movement:
        """What a rule moves with; moments that it doesn't keep are left out."""
        u = self.u if rule.kind in FIRST else None
        v = self.v if rule.kind in SECOND else None
        return Movement(u, v, self.step, self.safe, self.parameters)


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

    def plain(self, value: Tensor) -> Tensor:
        """What differs by as much as marginals do: m, or q."""
        return 0.5 * torch.tanh(value) if self.binary else torch.exp(-value)

    def most(self, flat: Tensor) -> Tensor:
        """The largest of each variable's entries.  # (n,)"""
        if self.joined.common:
            return flat.reshape(-1, self.joined.common).amax(1)
        return torch.segment_reduce(flat, "max", offsets=self.bounds)
