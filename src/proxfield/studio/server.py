"""The server: one process, one address, one temporary folder."""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
import socket
import tempfile
import threading
import webbrowser
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from proxfield.core.common.extras import install_hint
from proxfield.errors import InputError, MissingDependencyError
from proxfield.images.settings import DenseSettings
from proxfield.studio.guard import LOCAL_HOSTS, Guard
from proxfield.studio.inputs import StudioInputs

KEPT_PICTURES = 4
"""Versions of a picture that a browser may still ask for."""
MAX_TABS = 32
"""Tabs that may be open at once: each has a copy of the classifier's energies."""
WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Addresses that stand for all of this machine's, and what a browser on it calls them."""
SHUTDOWN_SECONDS = 1


class Pictures:
    """Pictures that pages show, by addresses nobody can guess."""

    def __init__(self) -> None:
        self.held: dict[object, dict[str, OrderedDict[str, tuple[bytes, str]]]] = {}

    def put(self, owner: object, name: str, data: bytes, kind: str) -> str:
        """Keep a picture; returns its address. The oldest of the same name are dropped."""
        kept = self.held.setdefault(owner, {}).setdefault(name, OrderedDict())
        token = secrets.token_urlsafe(16)
        kept[token] = (data, kind)
        while len(kept) > KEPT_PICTURES:
            kept.popitem(last=False)
        return f"/picture/{token}"

    def get(self, token: str) -> tuple[bytes, str] | None:
        """A picture and its type."""
        for named in self.held.values():
            for kept in named.values():
                if token in kept:
                    return kept[token]
        return None

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
        from proxfield.studio.session import warm_up

        def work() -> None:
            try:
                warm_up()
            finally:
                self.ready.set()

        threading.Thread(target=work, name="proxfield-studio-warm-up", daemon=True).start()

    async def wait_ready(self) -> None:
        """Until kernels are loaded."""
        while not self.ready.is_set():
            await asyncio.sleep(0.1)

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
    from importlib.util import find_spec

    missing = [name for name in ("nicegui", "PIL") if find_spec(name) is None]
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


def is_local(host: str) -> bool:
    """Whether an address can be reached from this machine alone.

    Example:
        >>> is_local("127.0.0.1"), is_local("localhost"), is_local("0.0.0.0")
        (True, True, False)
    """
    return host in LOCAL_HOSTS


def allowed_hosts(host: str) -> tuple[str, ...] | None:
    """Names by which a browser may call the studio; None: any.

    Example:
        >>> allowed_hosts("127.0.0.1")
        ('127.0.0.1', 'localhost', '::1')
    """
    if is_local(host):
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
