"""Ranks connected by torch.distributed: gloo on hosts, nccl between NVIDIA GPUs.

Under gloo, ranks meet and reduce by it, and exchange borders through connections of their own.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from datetime import timedelta
from importlib import import_module
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from proxfield.core.common.arrays import Floats
from proxfield.core.common.extras import install_hint
from proxfield.core.devices.cuda import torch
from proxfield.distributed.transport import TIMEOUT, Sockets, Transport
from proxfield.errors import MissingDependencyError

dist: Any = None if torch is None else import_module("torch.distributed")

T = TypeVar("T")


class TorchTransport(Transport):
    """See `Transport`. A process group that exists already is used, else one is made.

    Args:
        backend: "gloo" or "nccl".
        rank: The number of this rank.
        size: Number of ranks.
        timeout: Seconds to wait for others.
    """

    def __init__(self, backend: str, rank: int, size: int, timeout: float = TIMEOUT) -> None:
        if torch is None:
            raise MissingDependencyError(
                f"backend {backend!r} needs torch: {install_hint('distributed')}, or use sockets"
            )
        self.rank, self.size, self.timeout = rank, size, timeout
        cards = torch.cuda.device_count()
        if cards > 1 and "LOCAL_RANK" in os.environ:  # each process of a machine takes its own
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % cards)
        self.made = not dist.is_initialized()
        if self.made:
            limit = timedelta(seconds=timeout)
            self._try(
                lambda: dist.init_process_group(backend, rank=rank, world_size=size, timeout=limit),
                "the ranks didn't meet",
            )
        self.device = torch.device("cpu")
        if dist.get_backend() == "nccl":
            self.device = torch.device("cuda", torch.cuda.current_device())
        self.lines: Sockets | None = None
        """Of gloo: connections for the exchange, which takes gloo three times the CPU time."""
        host, port = os.environ.get("MASTER_ADDR"), 0
        unknown = self.maximum(host is None or self.device.type != "cpu")  # to any of the ranks
        if size > 1 and not unknown and host is not None:
            if rank == 0:
                with socket.create_server((host, 0)) as free:
                    port = int(free.getsockname()[1])
            port = int(self.broadcast(np.array([float(port)]))[0])
            self.lines = Sockets(rank, size, timeout).meet(host, port)

    def _try(self, function: Callable[[], T], what: str) -> T:
        try:
            return function()
        except (RuntimeError, ValueError, OSError) as error:
            raise self.lost(what, error) from None

    def swap(self, sent: Mapping[int, Floats], received: Mapping[int, Floats]) -> None:
        if self.lines is not None:
            self.lines.swap(sent, received)
            return
        out = {r: torch.from_numpy(values).to(self.device) for r, values in received.items()}
        gone = {r: torch.from_numpy(values).to(self.device) for r, values in sent.items()}

        def wait() -> None:
            sends = [(dist.isend, values, r) for r, values in gone.items() if len(values)]
            receives = [(dist.irecv, values, r) for r, values in out.items() if len(values)]
            if self.device.type == "cpu":  # one by one: that is half the work of a batch
                requests = [begin(values, r) for begin, values, r in (*receives, *sends)]
            else:
                batch = [dist.P2POp(*operation) for operation in (*sends, *receives)]
                requests = dist.batch_isend_irecv(batch) if batch else []
            for request in requests:
                request.wait(timedelta(seconds=self.timeout))

        self._try(wait, f"the exchange with ranks {sorted(sent)} failed")
        for r, values in out.items():
            received[r][:] = values.cpu().numpy()

    def reduce(self, values: Floats, how: str = "sum") -> NDArray[np.float64]:
        tensor = torch.from_numpy(np.array(values, dtype=np.float64)).to(self.device)
        op = dist.ReduceOp.MAX if how == "max" else dist.ReduceOp.SUM
        self._try(lambda: dist.all_reduce(tensor, op), "a reduction failed")
        return np.asarray(tensor.cpu().numpy())

    def close(self) -> None:
        if self.lines is not None:
            self.lines.close()
        if self.made and dist.is_initialized():
            dist.destroy_process_group()
            self.made = False
