"""Who may talk to the studio: requests from its own page on an allowed host, of limited size.

A page of another site can send requests to 127.0.0.1, and can make a name of its own stand for
127.0.0.1. The first is visible in the header Origin, the second in the header Host.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::[0-9]{1,5})?")

LOCAL_HOSTS = ("127.0.0.1", "localhost", "::1")
OVERHEAD = 65536
"""Bytes that a form adds to a file."""
HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


class TooLargeError(Exception):
    """A request has more bytes than allowed."""


class Guard:
    """An ASGI application around another one.

    Args:
        app: The other one.
        hosts: Names that the header Host may have; None: any.
        max_bytes: Maximum size of a request's body.
    """

    def __init__(self, app: App, hosts: Iterable[str] | None, max_bytes: int) -> None:
        self.app = app
        self.hosts = None if hosts is None else {host.lower() for host in hosts}
        self.max_bytes = max_bytes + OVERHEAD

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        kind = scope["type"]
        if kind not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        refusal = self.refusal(scope["headers"])
        if refusal is not None:
            status, reason = refusal
            if kind == "websocket":
                await send({"type": "websocket.close", "code": 1008, "reason": reason})
            else:
                await _answer(send, status, reason)
            return
        if kind == "websocket":
            await self.app(scope, receive, send)
            return
        await self._limited(scope, receive, send)

    def refusal(self, headers: Iterable[tuple[bytes, bytes]]) -> tuple[int, str] | None:
        """Why a request is refused: a status and a sentence; None if it isn't."""
        given: dict[str, list[str]] = {}
        for name, value in headers:
            given.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
        host = given.get("host", [])
        if len(host) != 1:
            return 400, "expected one Host header"
        if self.hosts is not None and host_name(host[0]) not in self.hosts:
            return 403, "this host name is not allowed; open the address that the studio printed"
        for origin in given.get("origin", []):
            if urlsplit(origin).netloc.lower() != host[0].lower():
                return 403, "requests from other sites are refused"
        if given.get("sec-fetch-site", ["none"])[0] == "cross-site":
            return 403, "requests from other sites are refused"
        length = given.get("content-length", ["0"])[0]
        if not length.isdecimal() or int(length) > self.max_bytes:
            return 413, f"more than {self.max_bytes - OVERHEAD} bytes"
        return None

    async def _limited(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Pass a request on, but no more of its body than allowed, whatever its headers say."""
        seen, begun = 0, False

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self.max_bytes:
                raise TooLargeError
            return message

        async def noted(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                message = {**message, "headers": [*message.get("headers", []), *HEADERS]}
            await send(message)

        try:
            await self.app(scope, counted, noted)
        except TooLargeError:
            if begun:
                raise
            await _answer(send, 413, f"more than {self.max_bytes - OVERHEAD} bytes")


def host_name(host: str) -> str:
    """The name in a Host header, without the port; empty if there is anything else in it.

    Example:
        >>> host_name("127.0.0.1:8080"), host_name("[::1]:80"), host_name("Localhost")
        ('127.0.0.1', '::1', 'localhost')
    """
    found = _HOST.fullmatch(host.lower())
    return "" if found is None else found[1].strip("[]")


async def _answer(send: Send, status: int, text: str) -> None:
    body = f"{text}\n".encode()
    headers = [(b"content-type", b"text/plain; charset=utf-8"), *HEADERS, (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
