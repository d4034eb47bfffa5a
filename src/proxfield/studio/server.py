"""The server: one process, one address, one temporary folder, and who may talk to it.

Requests must come from its own page on an allowed host, and are limited in size. A page of another
site can send requests to 127.0.0.1, and can make a name of its own stand for 127.0.0.1. The first
is visible in the header Origin, the second in the header Host.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import socket
import tempfile
import threading
import webbrowser
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from importlib import util
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from proxfield.core.common.extras import install_hint
from proxfield.errors import InputError, MissingDependencyError
from proxfield.images.settings import DenseSettings
from proxfield.studio.inputs import StudioInputs
from proxfield.studio.session import warm_up

KEPT_PICTURES = 4
"""Versions of a picture that a browser may still ask for."""
MAX_TABS = 32
"""Tabs that may be open at once: each has a copy of the classifier's energies."""
WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Addresses that stand for all of this machine's, and what a browser on it calls them."""
SHUTDOWN_SECONDS = 1
Picture = tuple[bytes, str]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

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


class Pictures:
    """Pictures that pages show, by addresses nobody can guess."""

    def __init__(self) -> None:
        self.held: dict[object, dict[str, dict[str, Picture]]] = {}
        """By page, by name and by address, the newest last."""

    def put(self, owner: object, name: str, data: bytes, kind: str) -> str:
        """Keep a picture; returns its address. The oldest of the same name are dropped."""
        kept = self.held.setdefault(owner, {}).setdefault(name, {})
        token = secrets.token_urlsafe(16)
        kept[token] = (data, kind)
        for old in list(kept)[:-KEPT_PICTURES]:
            del kept[old]
        return f"/picture/{token}"

    def get(self, token: str) -> Picture | None:
        """A picture and its type."""
        named = (kept for pictures in self.held.values() for kept in pictures.values())
        return next((kept[token] for kept in named if token in kept), None)

    def drop(self, owner: object) -> None:
        """Forget the pictures of a page."""
        self.held.pop(owner, None)


class Studio:
    """What all tabs share: the inputs to begin with, limits, and pictures.

    Args:
        inputs: What a new tab shows.
        preset: The name of a preset or settings.
        rule: The name of a rule.
        max_bytes: Maximum size of an upload.
        folder: Where uploads may be written while they are read.
    """

    def __init__(
        self,
        inputs: StudioInputs,
        preset: str | DenseSettings,
        rule: str,
        max_bytes: int,
        folder: Path,
    ) -> None:
        self.inputs, self.preset, self.rule = inputs, preset, rule
        self.max_bytes, self.folder = max_bytes, folder
        self.pictures = Pictures()
        self.pages: set[object] = set()
        """The tabs that are open."""
        self.ready = threading.Event()
        """Set when kernels are loaded."""

    def warm_up(self) -> None:
        """Compile or load kernels in a thread of its own."""

        def work() -> None:
            try:
                warm_up()
            finally:
                self.ready.set()

        threading.Thread(target=work, name="proxfield-studio-warm-up", daemon=True).start()

    def app(self) -> Any:
        """The ASGI application, without `Guard`."""
        from fastapi import FastAPI, Response
        from nicegui import ui

        from proxfield.studio.page import Page

        app = FastAPI(openapi_url=None)

        @app.get("/picture/{token}")
        async def picture(token: str) -> Response:  # in the thread that changes the pictures
            found = self.pictures.get(token)
            if found is None:
                return Response(status_code=404)
            headers = {"cache-control": "private, max-age=600"}
            return Response(found[0], media_type=found[1], headers=headers)

        def root() -> None:
            if len(self.pages) < MAX_TABS:
                Page(self)
            else:
                ui.label(f"{MAX_TABS} tabs of the studio are open; close one, then load this again")

        ui.run_with(
            app,
            root=root,
            title="proxfield studio",
            favicon=FAVICON,
            dark=None,
            tailwind=False,
            show_welcome_message=False,
            reconnect_timeout=10.0,
        )
        return app


FAVICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16"><rect width="16" height="16" '
    'rx="3" fill="#0b6e8f"/><path d="M2 5c3 0 4 7 12 7" stroke="#fff" stroke-width="2" '
    'fill="none" stroke-linecap="round"/></svg>'
)


def check_packages() -> None:
    """Raise `MissingDependencyError` unless the extra is installed."""
    missing = [name for name in ("nicegui", "PIL") if util.find_spec(name) is None]
    if missing:
        hint = install_hint("studio")
        raise MissingDependencyError(f"the studio needs NiceGUI and Pillow: {hint}")


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 stands for any that is free.

    Raises:
        InputError: If the address can't be used.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        bound = socket.socket(family, socket.SOCK_STREAM)
        try:
            if os.name == "posix":  # elsewhere it would take a port that another program has
                bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind((host, port))
            bound.listen(128)
        except OSError:
            bound.close()
            raise
    except (OSError, UnicodeError) as error:
        if getattr(error, "errno", None) == errno.EADDRINUSE:
            raise InputError(f"port {port} is in use, expected a free one (try --port 0)") from None
        reason = getattr(error, "strerror", None) or error
        raise InputError(
            f"can't listen on {host}:{port} ({reason}), expected a local address"
        ) from None
    return bound


def allowed_hosts(host: str) -> tuple[str, ...] | None:
    """Names by which a browser may call the studio; None: any.

    Example:
        >>> allowed_hosts("127.0.0.1")
        ('127.0.0.1', 'localhost', '::1')
    """
    if host in LOCAL_HOSTS:
        return LOCAL_HOSTS
    return None if host in WILDCARDS else (host, *LOCAL_HOSTS)


def serve(
    inputs: StudioInputs,
    preset: str | DenseSettings,
    rule: str,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    max_bytes: int,
    browser: bool = True,
    announce: Callable[[str], object] = print,
) -> None:
    """Serve the studio until Ctrl-C.

    Args:
        inputs: What a new tab shows.
        preset: The name of a preset or settings.
        rule: The name of a rule.
        host: The address to listen on.
        port: The port; 0: any that is free.
        max_bytes: Maximum size of an upload.
        browser: Open a browser.
        announce: Called with the studio's address.
    """
    check_packages()
    bound = bind(host, port)
    import uvicorn

    with bound, tempfile.TemporaryDirectory(prefix="proxfield-studio-") as name:
        before, tempfile.tempdir = tempfile.tempdir, name  # parts of forms go there too
        try:
            studio = Studio(inputs, preset, rule, max_bytes, Path(name))
            app = Guard(studio.app(), allowed_hosts(host), max_bytes)
            config = uvicorn.Config(
                app,
                log_level="warning",
                access_log=False,
                ws_max_size=2**20,
                server_header=False,
                timeout_graceful_shutdown=SHUTDOWN_SECONDS,
            )
            server = uvicorn.Server(config)
            shown = WILDCARDS.get(host, host)
            shown = f"[{shown}]" if ":" in shown else shown
            address = f"http://{shown}:{bound.getsockname()[1]}/"
            studio.warm_up()
            announce(address)
            if browser:
                timer = threading.Timer(0.7, webbrowser.open, [address])
                timer.daemon = True  # a browser in the terminal may stay
                timer.start()
            server.run(sockets=[bound])
        finally:
            tempfile.tempdir = before


# ---- who may talk to it ----


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

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        kind = scope["type"]
        refusal = self.refusal(scope["headers"]) if kind in ("http", "websocket") else None
        if refusal is not None and kind == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": refusal[1]})
        elif refusal is not None:
            await _answer(send, *refusal)
        elif kind == "http":
            await self._limited(scope, receive, send)
        else:
            await self.app(scope, receive, send)

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
        origins = [urlsplit(origin).netloc.lower() for origin in given.get("origin", [])]
        foreign = any(origin != host[0].lower() for origin in origins)
        if foreign or given.get("sec-fetch-site", ["none"])[0] == "cross-site":
            return 403, "requests from other sites are refused"
        length = given.get("content-length", ["0"])[0]
        if not length.isdecimal() or int(length) > self.max_bytes:
            return 413, f"more than {self.max_bytes - OVERHEAD} bytes"
        return None

    async def _limited(self, scope: Message, receive: Receive, send: Send) -> None:
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
