"""Ranks connected by TCP, without torch: every pair of ranks has a connection."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import combinations
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from proxfield.core.common.arrays import Doubles, Floats
from proxfield.core.common.records import Record
from proxfield.distributed.transport import TIMEOUT, Transport
from proxfield.errors import DistributedError

T = TypeVar("T")

HEADER = struct.Struct("!q")
RETRY_SECONDS = 0.05
HELLO = "proxfield"
SMALL_MESSAGE = 1 << 15
"""Bytes that fit into the buffer of any connection."""


class Sockets(Transport):
    """See the module. Connections aren't encrypted: for one machine or a trusted network.

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
        if self.size == 1:
            return
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

    def exchange(
        self, messages: Mapping[int, Floats], lengths: Mapping[int, int]
    ) -> dict[int, Floats]:
        if not messages:
            return {}
        kind = next(iter(messages.values())).dtype
        out: dict[int, Floats] = {r: np.empty(n, dtype=kind) for r, n in lengths.items()}
        to_send = {r: np.ascontiguousarray(m).data.cast("B") for r, m in messages.items()}
        to_fill = {r: a.data.cast("B") if a.size else None for r, a in out.items()}
        self.bytes_sent += sum(len(part) for part in to_send.values())
        if max(map(len, to_send.values())) <= SMALL_MESSAGE:  # these never wait for the receiver
            self._send_all(to_send)
            self._fill(to_fill)
            return out
        failed: list[DistributedError] = []

        def send() -> None:
            try:
                self._send_all(to_send)
            except DistributedError as error:
                failed.append(error)

        sender = threading.Thread(target=send, daemon=True)
        sender.start()
        self._fill(to_fill)
        sender.join()
        if failed:
            raise failed[0]
        return out

    # in ascending order on every rank, so that some pair of them can always go on

    def _send_all(self, to_send: Mapping[int, memoryview]) -> None:
        for r in sorted(to_send):
            self._whole(r, socket.socket.sendall, to_send[r])

    def _fill(self, to_fill: Mapping[int, memoryview | None]) -> None:
        for r in sorted(to_fill):
            room = to_fill[r]
            if room is not None:
                self._whole(r, read_into, room)

    def _whole(
        self, r: int, action: Callable[[socket.socket, memoryview], None], data: memoryview
    ) -> None:
        """Send data to a rank, or fill them from it."""
        try:
            action(self.peers[r], data)
        except OSError as error:
            raise self.lost(f"lost rank {r}", error) from None

    def _send(self, r: int, values: Doubles) -> None:
        if len(values):
            self._whole(r, socket.socket.sendall, values.data.cast("B"))

    def _receive(self, r: int, length: int) -> NDArray[np.float64]:
        out = np.empty(length)
        if length:
            self._whole(r, read_into, out.data.cast("B"))
        return out

    def reduce(self, values: Floats, how: str = "sum") -> NDArray[np.float64]:
        own = np.array(values, dtype=np.float64)
        if self.rank:
            self._send(0, own)
            return self._receive(0, len(own))
        parts = [own, *(self._receive(r, len(own)) for r in range(1, self.size))]
        return self.broadcast(combined(parts, how))

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
    """A small value as a frame."""
    data = json.dumps(value).encode()
    peer.sendall(HEADER.pack(len(data)) + data)


def read_json(peer: socket.socket) -> Record:
    """A small value from a frame."""
    head = bytearray(HEADER.size)
    read_into(peer, memoryview(head))
    (length,) = HEADER.unpack(head)
    if not 0 <= length <= 1 << 20:
        raise ValueError("not a rank of proxfield")
    data = bytearray(length)
    read_into(peer, memoryview(data))
    found = json.loads(data.decode())
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
    found: dict[int, T] = {}
    errors: list[BaseException] = []
    ranks = [Sockets(rank, size, timeout=timeout) for rank in range(size)]
    for a, b in combinations(ranks, 2):
        a.peers[b.rank], b.peers[a.rank] = socket.socketpair()
    for peer in (peer for rank in ranks for peer in rank.peers.values()):
        peer.settimeout(timeout)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * SMALL_MESSAGE)

    def work(rank: Sockets) -> None:
        try:
            found[rank.rank] = function(rank)
        except BaseException as error:
            errors.append(error)
            rank.close()  # the others see it

    threads = [threading.Thread(target=work, args=(rank,)) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for rank in ranks:
        rank.close()
    if errors:
        raise errors[0]
    return [found[rank] for rank in range(size)]
