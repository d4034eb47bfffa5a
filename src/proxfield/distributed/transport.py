"""How ranks talk: three verbs (exchange, reduce, broadcast), and threads that implement them.

A rank is one of the processes that share a field. Every verb is collective over the ranks that it
names: `exchange` over neighbors, the others over all. Each raises `DistributedError` where another
rank is lost or later than the time limit, so that no rank waits forever.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from proxfield.core.common.arrays import Floats
from proxfield.errors import (
    DistributedError,
    InputError,
    MissingDependencyError,
    ProxfieldError,
    shown,
)

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

    def broadcast(self, values: Floats) -> NDArray[np.float64]:
        """The values of rank 0; all ranks give as many numbers."""
        return self.reduce(values if self.rank == 0 else np.zeros(len(values)))

    def total(self, value: float) -> float:
        """The sum over all ranks."""
        return float(self.reduce(np.array([value]))[0])

    def maximum(self, value: float) -> float:
        """The largest value of a rank; NaN counts as infinite."""
        return float(self.reduce(np.array([np.inf if np.isnan(value) else value]), "max")[0])

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


class MpiTransport(Transport):
    """Ranks connected by MPI, through mpi4py; time limits are MPI's: a lost rank ends the job."""

    def __init__(self, timeout: float = TIMEOUT) -> None:
        try:
            from mpi4py import MPI
        except ImportError:
            raise MissingDependencyError("backend 'mpi' needs mpi4py: pip install mpi4py") from None
        self.mpi, self.comm, self.timeout = MPI, MPI.COMM_WORLD, timeout
        self.rank, self.size = self.comm.Get_rank(), self.comm.Get_size()

    def exchange(
        self, messages: Mapping[int, Floats], lengths: Mapping[int, int]
    ) -> dict[int, Floats]:
        if not messages:
            return {}
        kind = next(iter(messages.values())).dtype
        sent = {r: np.ascontiguousarray(values) for r, values in messages.items()}
        out: dict[int, Floats] = {r: np.empty(n, dtype=kind) for r, n in lengths.items()}
        work = [self.comm.Irecv(values, r) for r, values in out.items()]
        work += [self.comm.Isend(values, r) for r, values in sent.items()]
        self.mpi.Request.Waitall(work)
        self.bytes_sent += sum(values.nbytes for values in sent.values())
        return out

    def reduce(self, values: Floats, how: str = "sum") -> NDArray[np.float64]:
        out = np.array(values, dtype=np.float64)
        self.comm.Allreduce(self.mpi.IN_PLACE, out, self.mpi.MAX if how == "max" else self.mpi.SUM)
        return out


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


@contextmanager
def together(transport: Transport) -> Iterator[None]:
    """Let all ranks fail where one can't do what the block does; collective at its end."""
    try:
        yield
    except ProxfieldError as error:
        with suppress(ProxfieldError):
            fail_together(transport, str(error))
        raise
    fail_together(transport, "")


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
        return Sockets(rank, size, timeout).meet(host, variable("MASTER_PORT"))
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
