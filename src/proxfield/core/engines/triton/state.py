"""What a state on a GPU is made of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from proxfield.core.devices.cuda import find_device
from proxfield.core.devices.tensors import Tensor, TorchDevice
from proxfield.core.engines.plan import Update
from proxfield.core.engines.triton.graphs import Graphs

CAPACITY = 4096
"""Rows that a device keeps before the host takes them."""


def default_device(device: TorchDevice = None) -> TorchDevice:
    """The requested device, else the current CUDA device, else (in the interpreter) the CPU."""
    return find_device("cuda" if device is None else device)


@dataclass(eq=False)
class Slot:
    """The tensors of one state. Slots are used again, so that recorded graphs stay valid."""

    buffers: Tensor  # natural parameters; see `arithmetic`  # (BUFFERS, stride)
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
    """Where programs that share a field wait and add up; see `team`."""
    plan: Update | None = None  # whose numbers are in ``parameters``, ``step`` and ``safe``
    flat: bool = True  # has it one step for all variables?


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
