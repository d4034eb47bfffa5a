"""How ranks talk: three verbs (exchange, reduce, broadcast), and threads that implement them.

A rank is one of the processes that share a field. Every verb is collective over the ranks that it
names: `exchange` over neighbors, the others over all. Each raises `DistributedError` where another
rank is lost or later than the time limit, so that no rank waits forever.
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from proxfield.core.common.arrays import Doubles, Floats
from proxfield.errors import DistributedError, InputError, shown

TIMEOUT = 300.0
"""Seconds that a rank waits for the others."""
TEXT_BYTES = 96
"""Bytes of a text that ranks compare; longer ones are cut."""

T = TypeVar("T")


class Transport(ABC):
    """Connects one rank with the others.

    Attributes:
        rank: The number of this rank, from 0.
        size: How many ranks there are.
        timeout: Seconds that a rank waits for the others.
        bytes_sent: Bytes that this rank has sent to neighbors.
    """

    rank: int
    size: int
    timeout: float = TIMEOUT
    bytes_sent: int = 0

    @abstractmethod
    def exchange(
        self, messages: Mapping[int, Floats], lengths: Mapping[int, int]
    ) -> dict[int, Floats]:
        """Send an array to each neighbor and receive one from each.

        Args:
            messages: What to send, by rank; all in one floating-point type.
            lengths: How many numbers each neighbor sends; the same ranks.

        Returns:
            What was received, by rank, in the same type.
        """

    @abstractmethod
    def reduce(self, values: Floats, how: str = "sum") -> NDArray[np.float64]:
        """The sum or the maximum over all ranks, entry by entry: the same bits on every rank.

        Args:
            values: As many numbers on every rank, none of them NaN for the maximum.
            how: "sum" or "max".
        """

    @abstractmethod
    def broadcast(self, values: Floats) -> NDArray[np.float64]:
        """The values of rank 0; all ranks give as many numbers."""

    def close(self) -> None:  # noqa: B027 (most have nothing to close)
        """Give back connections."""

    def __enter__(self: T) -> T:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def lost(self, what: str, why: object = "") -> DistributedError:
        """The error of a rank that can't go on."""
        reason = " ".join(str(why).split())
        reason = f" ({reason[:80]})" if reason else ""
        return DistributedError(
            f"rank {self.rank} of {self.size}: {what}{reason}; expected every rank to answer "
            f"within {self.timeout:g} s (see the other ranks' messages)"
        )


class Alone(Transport):
    """The only rank there is."""

    rank, size = 0, 1

    def exchange(
        self, messages: Mapping[int, Floats], lengths: Mapping[int, int]
    ) -> dict[int, Floats]:
        return {}

    def reduce(self, values: Floats, how: str = "sum") -> NDArray[np.float64]:
        return np.array(values, dtype=np.float64)

    def broadcast(self, values: Floats) -> NDArray[np.float64]:
        return np.array(values, dtype=np.float64)


class Hub:
    """What threads that act as ranks share."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size)
        self.slots: list[NDArray[np.float64]] = [np.zeros(0)] * size
        self.queues: dict[tuple[int, int], SimpleQueue[Floats]] = {
            (a, b): SimpleQueue() for a in range(size) for b in range(size)
        }


class Threads(Transport):
    """Threads of one process as ranks: for tests, and to try a partition out. See `run_threads`."""

    def __init__(self, hub: Hub, rank: int, timeout: float = TIMEOUT) -> None:
        self.hub, self.rank, self.timeout = hub, rank, timeout
        self.size = len(hub.slots)

    def _wait(self) -> None:
        try:
            self.hub.barrier.wait(self.timeout)
        except threading.BrokenBarrierError:
            raise self.lost("another rank is lost or late") from None

    def exchange(
        self, messages: Mapping[int, Floats], lengths: Mapping[int, int]
    ) -> dict[int, Floats]:
        for other, values in messages.items():
            self.bytes_sent += values.nbytes
            self.hub.queues[self.rank, other].put(np.array(values))
        out: dict[int, Floats] = {}
        try:
            for other in lengths:
                out[other] = self.hub.queues[other, self.rank].get(timeout=self.timeout)
        except Empty:
            raise self.lost(f"no answer from rank {other}") from None
        return out

    def _all(self, values: Floats) -> list[Doubles]:
        self.hub.slots[self.rank] = np.array(values, dtype=np.float64)
        self._wait()
        found = list(self.hub.slots)
        self._wait()
        return found

    def reduce(self, values: Floats, how: str = "sum") -> NDArray[np.float64]:
        return np.asarray(combined(self._all(values), how))

    def broadcast(self, values: Floats) -> NDArray[np.float64]:
        return np.array(self._all(values)[0])


def combined(values: list[Doubles], how: str) -> Doubles:
    """Sum or maximum of arrays, in their order."""
    out = np.array(values[0])
    for other in values[1:]:
        if how == "max":
            np.maximum(out, other, out=out)
        else:
            out += other
    return out


def run_threads(size: int, function: Callable[[Transport], T], timeout: float = TIMEOUT) -> list[T]:
    """Run a function on so many ranks, which are threads of this process.

    Args:
        size: Number of ranks.
        function: Called with each rank's transport.
        timeout: Seconds that a rank waits for the others.

    Returns:
        What each rank returned. The first error of a rank is raised, after all have ended.

    Example:
        >>> run_threads(3, lambda transport: float(transport.reduce(np.ones(1))[0]))
        [3.0, 3.0, 3.0]
    """
    hub = Hub(size)
    found: list[Any] = [None] * size
    errors: list[BaseException] = []

    def work(rank: int) -> None:
        try:
            found[rank] = function(Threads(hub, rank, timeout))
        except BaseException as error:
            errors.append(error)
            hub.barrier.abort()

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return found


def gather_texts(transport: Transport, text: str) -> list[str]:
    """A short text of every rank."""
    table = np.zeros((transport.size, TEXT_BYTES))
    code = np.frombuffer(text.encode()[:TEXT_BYTES], dtype=np.uint8)
    table[transport.rank, : len(code)] = code
    rows = transport.reduce(table.ravel()).reshape(transport.size, -1).astype(np.uint8)
    return [bytes(row[row > 0]).decode(errors="replace") for row in rows]


def agree(transport: Transport, text: str, what: str) -> None:
    """Raise `DistributedError` on every rank unless all have the same text.

    Args:
        transport: Connects the ranks.
        text: What this rank has.
        what: What it is, for the message.
    """
    texts = gather_texts(transport, text)
    other = next((r for r, t in enumerate(texts) if t != texts[0]), None)
    if other is not None:
        raise DistributedError(
            f"ranks have different {what}: rank 0 {shown(texts[0])}, rank {other} "
            f"{shown(texts[other])}; expected the same on all {transport.size} ranks"
        )


def fail_together(transport: Transport, message: str) -> None:
    """Raise `DistributedError` on every rank if any of them has a message."""
    texts = gather_texts(transport, message)
    bad = next((r for r, t in enumerate(texts) if t), None)
    if bad is not None:
        raise DistributedError(f"rank {bad}: {texts[bad]}")


def connect(backend: str | None = None, *, timeout: float = TIMEOUT) -> Transport:
    """Connect this process with the others of the same run.

    Rank, number of ranks and address are taken from the environment variables RANK, WORLD_SIZE,
    MASTER_ADDR and MASTER_PORT, which ``torchrun`` sets (of MPI, from its launcher).

    Args:
        backend: "gloo" or "nccl" (torch.distributed), "sockets" (plain TCP, without torch) or "mpi"
            (mpi4py). By default "gloo" where torch is installed, else "sockets"; without
            WORLD_SIZE in the environment, a single rank.
        timeout: Seconds that a rank waits for the others, here and in every later step.

    Example:
        >>> connect().size  # no launcher
        1
    """
    if not timeout > 0:
        raise InputError(f"timeout={shown(timeout)}, expected seconds above 0")
    if backend not in (None, "gloo", "nccl", "sockets", "mpi"):
        raise InputError(f"backend={shown(backend)}, expected gloo, nccl, sockets or mpi")
    if backend == "mpi":
        from proxfield.distributed.mpi import MpiTransport

        return MpiTransport(timeout)
    if "WORLD_SIZE" not in os.environ and backend is None:
        return Alone()
    if backend is None:
        backend = "sockets" if find_spec("torch") is None else "gloo"
    rank, size = variable("RANK"), variable("WORLD_SIZE")
    if not 0 <= rank < size:
        raise InputError(f"RANK={rank} with WORLD_SIZE={size}, expected 0 to {size - 1}")
    if backend == "sockets":
        from proxfield.distributed.sockets import Sockets

        host = os.environ.get("MASTER_ADDR", "127.0.0.1")
        return Sockets(rank, size, host, variable("MASTER_PORT"), timeout)
    from proxfield.distributed.torch_transport import TorchTransport

    return TorchTransport(backend, rank, size, timeout)


def variable(name: str) -> int:
    """A number from the environment."""
    text = os.environ.get(name, "")
    if not text.isdigit():
        raise InputError(
            f"environment variable {name}={shown(text)}, expected a number (start with torchrun)"
        )
    return int(text)
