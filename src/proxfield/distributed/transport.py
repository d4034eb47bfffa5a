"""How ranks talk: three verbs (exchange, reduce, broadcast), by TCP or MPI; torch has its own file.

A rank is one of the processes that share a field. Every verb is collective over the ranks that it
names: `exchange` over neighbors, the others over all. Each raises `DistributedError` where another
rank is lost or later than the time limit, so that no rank waits forever.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import reduce
from importlib.util import find_spec
from itertools import combinations
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from proxfield.core.common.arrays import Doubles, Floats
from proxfield.core.common.records import Record
from proxfield.errors import (
    DistributedError,
    InputError,
    MissingDependencyError,
    ProxfieldError,
    shown,
)

TIMEOUT = 300.0
"""Seconds that a rank waits for the others."""
RETRY_SECONDS = 0.05
HELLO = "proxfield"
SMALL_MESSAGE = 1 << 15
"""Bytes that fit into the buffer of any connection."""
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
        if not messages:
            return {}
        kind = next(iter(messages.values())).dtype
        out: dict[int, Floats] = {r: np.empty(n, dtype=kind) for r, n in lengths.items()}
        sent: dict[int, Floats] = {r: np.ascontiguousarray(m) for r, m in messages.items()}
        self.bytes_sent += sum(values.nbytes for values in sent.values())
        self.swap(sent, out)
        return out

    def swap(self, sent: Mapping[int, Floats], received: Mapping[int, Floats]) -> None:
        """Send arrays to neighbors, and fill those that are received: the work of `exchange`."""
        raise NotImplementedError

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

    def swap(self, sent: Mapping[int, Floats], received: Mapping[int, Floats]) -> None:
        work = [self.comm.Irecv(values, r) for r, values in received.items()]
        work += [self.comm.Isend(values, r) for r, values in sent.items()]
        self.mpi.Request.Waitall(work)

    def reduce(self, values: Floats, how: str = "sum") -> NDArray[np.float64]:
        out = np.array(values, dtype=np.float64)
        self.comm.Allreduce(self.mpi.IN_PLACE, out, self.mpi.MAX if how == "max" else self.mpi.SUM)
        return out


class Sockets(Transport):
    """Ranks connected by TCP, without torch: every pair of ranks has a connection.

    Connections aren't encrypted: for one machine or a trusted network.

    Args:
        rank: The number of this rank.
        size: Number of ranks.
        timeout: Seconds to wait for others.
    """

    def __init__(self, rank: int, size: int, timeout: float = TIMEOUT) -> None:
        self.rank, self.size, self.timeout = rank, size, timeout
        self.peers: dict[int, socket.socket] = {}

    # ---- meeting ----

    def meet(self, host: str, port: int) -> Sockets:
        """Connect all ranks, of which rank 0 listens there; returns this one."""
        self.deadline = time.monotonic() + self.timeout
        try:
            if self.size > 1:
                self._meet(host, port)
        except (OSError, ValueError, KeyError) as error:
            missing = [r for r in range(self.size) if r != self.rank and r not in self.peers]
            self.close()
            if self.rank == 0:
                raise self.lost(f"ranks {missing} didn't connect to port {port}", error) from None
            raise self.lost(f"no connection through {host}:{port}", error) from None
        for peer in self.peers.values():
            peer.settimeout(self.timeout)
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self

    def _left(self) -> float:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("time limit")
        return left

    def _meet(self, host: str, port: int) -> None:
        """Everybody calls rank 0, learns where the others listen, and calls those before it."""
        listener = socket.create_server((host if self.rank == 0 else "", port * (self.rank == 0)))
        with listener:
            if self.rank == 0:
                places: list[tuple[str, int]] = [("", 0)] * self.size
                for _ in range(self.size - 1):
                    who, its_port, address = self._accept(listener)
                    places[who] = address, its_port
                for peer in self.peers.values():
                    send_json(peer, {"places": places})
                return
            first = self._call(host, port, listener.getsockname()[1])
            self.peers[0] = first
            places = read_json(first)["places"]
            for other in range(1, self.rank):
                self.peers[other] = self._call(places[other][0], places[other][1], 0)
            for _ in range(self.rank + 1, self.size):
                self._accept(listener)

    def _accept(self, listener: socket.socket) -> tuple[int, int, str]:
        while True:
            listener.settimeout(self._left())
            peer, address = listener.accept()
            peer.settimeout(self._left())
            hello = read_json(peer)
            who = hello.get("rank")
            who = who if isinstance(who, int) else -1
            known = 0 <= who < self.size and who not in self.peers
            if hello.get("hello") != HELLO or hello.get("size") != self.size or not known:
                peer.close()  # somebody else
                continue
            self.peers[who] = peer
            return who, int(hello["port"]), address[0]

    def _call(self, host: str, port: int, own_port: int) -> socket.socket:
        while True:
            try:
                peer = socket.create_connection((host, port), self._left())
            except (ConnectionError, socket.gaierror):  # it isn't there yet
                self._left()
                time.sleep(RETRY_SECONDS)
                continue
            peer.settimeout(self._left())
            hello = {"hello": HELLO, "rank": self.rank, "size": self.size, "port": own_port}
            send_json(peer, hello)
            return peer

    # ---- the three verbs ----

    def swap(self, sent: Mapping[int, Floats], received: Mapping[int, Floats]) -> None:
        # in ascending order on every rank, so that some pair of them can always go on
        to_send = {r: sent[r].data.cast("B") for r in sorted(sent)}
        to_fill = {r: received[r].data.cast("B") for r in sorted(received) if received[r].size}
        if max(map(len, to_send.values())) <= SMALL_MESSAGE:  # these never wait for the receiver
            self._each(socket.socket.sendall, to_send)
            self._each(read_into, to_fill)
            return
        failed: list[DistributedError] = []

        def send() -> None:
            try:
                self._each(socket.socket.sendall, to_send)
            except DistributedError as error:
                failed.append(error)

        sender = threading.Thread(target=send, daemon=True)
        sender.start()
        self._each(read_into, to_fill)
        sender.join()
        if failed:
            raise failed[0]

    def _each(
        self, action: Callable[[socket.socket, memoryview], None], data: Mapping[int, memoryview]
    ) -> None:
        """Send data to ranks, or fill them from these."""
        r = self.rank
        try:
            for r, some in data.items():
                action(self.peers[r], some)
        except OSError as error:
            raise self.lost(f"lost rank {r}", error) from None

    def _send(self, r: int, values: Doubles) -> None:
        if len(values):
            self._each(socket.socket.sendall, {r: values.data.cast("B")})

    def _receive(self, r: int, length: int) -> NDArray[np.float64]:
        out = np.empty(length)
        if length:
            self._each(read_into, {r: out.data.cast("B")})
        return out

    def reduce(self, values: Floats, how: str = "sum") -> NDArray[np.float64]:
        own = np.array(values, dtype=np.float64)
        if self.rank:
            self._send(0, own)
            return self._receive(0, len(own))
        parts = [own, *(self._receive(r, len(own)) for r in range(1, self.size))]
        return self.broadcast(reduce(np.maximum if how == "max" else np.add, parts))

    def broadcast(self, values: Floats) -> NDArray[np.float64]:
        own = np.array(values, dtype=np.float64)
        if self.rank:
            return self._receive(0, len(own))
        for r in range(1, self.size):
            self._send(r, own)
        return own

    def close(self) -> None:
        for peer in self.peers.values():
            with suppress(OSError):
                peer.close()


def send_json(peer: socket.socket, value: object) -> None:
    """Send a small value as a line."""
    peer.sendall(json.dumps(value).encode() + b"\n")


def read_json(peer: socket.socket) -> Record:
    """A small value from a line; what comes after it stays in the socket."""
    with peer.makefile("rb", buffering=0) as file:
        line = file.readline(1 << 20)
    if not line:
        raise ConnectionError("connection closed")
    found = json.loads(line)
    if not isinstance(found, dict):
        raise ValueError("not a rank of proxfield")
    return found


def read_into(peer: socket.socket, view: memoryview) -> None:
    """Fill a buffer."""
    while len(view):
        count = peer.recv_into(view)
        if count == 0:
            raise ConnectionError("connection closed")
        view = view[count:]


def run_threads(size: int, function: Callable[[Transport], T], timeout: float = TIMEOUT) -> list[T]:
    """Run a function on so many ranks, which are threads of this process: to try a partition out.

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
    errors: list[BaseException] = []
    ranks = [Sockets(rank, size, timeout=timeout) for rank in range(size)]
    for a, b in combinations(ranks, 2):
        a.peers[b.rank], b.peers[a.rank] = socket.socketpair()
    for peer in (peer for rank in ranks for peer in rank.peers.values()):
        peer.settimeout(timeout)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * SMALL_MESSAGE)

    def work(rank: Sockets) -> T:
        try:
            return function(rank)
        except BaseException as error:
            errors.append(error)
            rank.close()  # the others see it
            raise

    with ThreadPoolExecutor(max(1, size)) as pool:
        found = [pool.submit(work, rank) for rank in ranks]
    for rank in ranks:
        rank.close()
    if errors:
        raise errors[0]
    return [each.result() for each in found]


# ---- what ranks agree on ----


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
