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
from proxfield.distributed.sockets import Sockets
from proxfield.distributed.transport import TIMEOUT, Transport
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
        self.lines = self._connect()
        """Of gloo: connections for the exchange, which takes gloo three times the CPU time."""

    def _connect(self) -> Sockets | None:
        """Connections between all ranks, where rank 0's address is known to all of them."""
        host = os.environ.get("MASTER_ADDR")
        unknown = self.maximum(host is None or self.device.type != "cpu")
        if self.size == 1 or unknown or host is None:
            return None
        port = 0
        if self.rank == 0:
            with socket.create_server((host, 0)) as free:
                port = int(free.getsockname()[1])
        port = int(self.broadcast(np.array([float(port)]))[0])
        return Sockets(self.rank, self.size, self.timeout).meet(host, port)

    def _try(self, function: Callable[[], T], what: str) -> T:
        try:
            return function()
        except (RuntimeError, ValueError, OSError) as error:
            raise self.lost(what, error) from None

    def exchange(
        self, messages: Mapping[int, Floats], lengths: Mapping[int, int]
    ) -> dict[int, Floats]:
        if self.lines is not None:
            found = self.lines.exchange(messages, lengths)
            self.bytes_sent = self.lines.bytes_sent
            return found
        if not messages:
            return {}
        kind = torch.from_numpy(next(iter(messages.values()))[:0]).dtype
        out = {r: torch.empty(n, dtype=kind, device=self.device) for r, n in lengths.items()}
        sent = {
            r: torch.from_numpy(np.ascontiguousarray(values)).to(self.device)
            for r, values in messages.items()
        }
        self.bytes_sent += sum(values.nbytes for values in messages.values())

        def wait() -> None:
            for request in self._begin(sent, out):
                request.wait(timedelta(seconds=self.timeout))

        self._try(wait, f"the exchange with ranks {sorted(messages)} failed")
        return {r: values.cpu().numpy() for r, values in out.items()}

    def _begin(self, sent: dict[int, Any], out: dict[int, Any]) -> list[Any]:
        """Requests to send and to receive."""
        sends = [(dist.isend, values, r) for r, values in sent.items() if len(values)]
        receives = [(dist.irecv, values, r) for r, values in out.items() if len(values)]
        if self.device.type == "cpu":  # one by one: that is half the work of a batch
            return [begin(values, r) for begin, values, r in (*receives, *sends)]
        batch = [dist.P2POp(*operation) for operation in (*sends, *receives)]
        return list(dist.batch_isend_irecv(batch)) if batch else []

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
