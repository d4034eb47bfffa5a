"""Ranks connected by TCP, without torch: every pair of ranks has a connection."""

from __future__ import annotations

import json
import selectors
import socket
import struct
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from proxfield.core.common.arrays import Floats
from proxfield.distributed.transport import TIMEOUT, Transport, combined

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
        host: Where rank 0 listens.
        port: Its port.
        timeout: Seconds to wait for others.
    """

    def __init__(
        self, rank: int, size: int, host: str, port: int, timeout: float = TIMEOUT
    ) -> None:
        self.rank, self.size, self.timeout = rank, size, timeout
        self.peers: dict[int, socket.socket] = {}
        self.deadline = time.monotonic() + timeout
        try:
            self._meet(host, port)
        except (OSError, ValueError, KeyError) as error:
            missing = [r for r in range(size) if r != rank and r not in self.peers]
            self.close()
            if rank == 0:
                raise self.lost(f"ranks {missing} didn't connect to port {port}", error) from None
            raise self.lost(f"no connection through {host}:{port}", error) from None
        for peer in self.peers.values():
            peer.settimeout(timeout)
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    # ---- meeting ----

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
            for r, part in to_send.items():
                self._whole(r, partial(send_all, data=part))
            for r, room in to_fill.items():
                if room is not None:
                    self._whole(r, partial(read_into, view=room))
            return out
        sending = {r: part for r, part in to_send.items() if len(part)}
        filling = {r: part for r, part in to_fill.items() if part is not None}
        deadline = time.monotonic() + self.timeout
        with selectors.DefaultSelector() as selector:
            for r in sending.keys() | filling.keys():
                self.peers[r].setblocking(False)
                selector.register(self.peers[r], wishes(r, sending, filling), r)
            try:
                while sending or filling:
                    ready = selector.select(max(0.0, deadline - time.monotonic()))
                    if not ready:
                        waiting = sorted(sending.keys() | filling.keys())
                        raise self.lost(f"no answer from ranks {waiting}")
                    for key, events in ready:
                        self._move(key.data, events, sending, filling)
                        wanted = wishes(key.data, sending, filling)
                        if wanted:
                            selector.modify(key.fileobj, wanted, key.data)
                        else:
                            selector.unregister(key.fileobj)
            finally:
                for r in lengths:
                    self.peers[r].settimeout(self.timeout)
        return out

    def _move(
        self, r: int, events: int, sending: dict[int, memoryview], filling: dict[int, memoryview]
    ) -> None:
        """Send to a rank and receive from it what goes without waiting."""
        try:
            if events & selectors.EVENT_WRITE and r in sending:
                sending[r] = sending[r][self.peers[r].send(sending[r]) :]
                if not sending[r]:
                    del sending[r]
            if events & selectors.EVENT_READ and r in filling:
                count = self.peers[r].recv_into(filling[r])
                if count == 0:
                    raise ConnectionError("connection closed")
                filling[r] = filling[r][count:]
                if not filling[r]:
                    del filling[r]
        except BlockingIOError:
            return
        except OSError as error:
            raise self.lost(f"lost rank {r}", error) from None

    def _whole(self, r: int, action: Callable[[socket.socket], None]) -> None:
        """Do something with the connection to a rank."""
        try:
            action(self.peers[r])
        except OSError as error:
            raise self.lost(f"lost rank {r}", error) from None

    def _send(self, r: int, values: Floats) -> None:
        data = np.ascontiguousarray(values, dtype=np.float64).tobytes()
        self._whole(r, lambda peer: peer.sendall(data))

    def _receive(self, r: int, length: int) -> NDArray[np.float64]:
        out = np.empty(length)
        if length:
            self._whole(r, lambda peer: read_into(peer, out.data.cast("B")))
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


def wishes(r: int, sending: Mapping[int, object], filling: Mapping[int, object]) -> int:
    """Events of a connection that are still of interest."""
    return selectors.EVENT_WRITE * (r in sending) | selectors.EVENT_READ * (r in filling)


def send_all(peer: socket.socket, data: memoryview) -> None:
    """Send a buffer."""
    peer.sendall(data)


def send_json(peer: socket.socket, value: object) -> None:
    """A small value as a frame."""
    data = json.dumps(value).encode()
    peer.sendall(HEADER.pack(len(data)) + data)


def read_json(peer: socket.socket) -> dict[str, Any]:
    """The other way."""
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
