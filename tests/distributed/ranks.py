"""Processes that act as ranks, for tests."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

LIMIT = 8.0
"""Seconds that ranks wait for each other here."""
HEAD = """
import os, signal, sys, threading
import numpy as np
import proxfield as pf
from proxfield.distributed import Partition, connect, grid_partition, infer
rank = int(os.environ["RANK"])
field = pf.generate.grid(6, 6, seed=1)
try:
    transport = connect({backend!r}, timeout={limit})
"""
TAIL = """
except pf.ProxfieldError as error:
    sys.stderr.write(f"{type(error).__name__}: {error}\\n")
    sys.stderr.flush()
    os._exit(5)
sys.stderr.flush()
os._exit(0)
"""


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def start(size, body, *, absent=(), backend="sockets", before="", limit=LIMIT):
    """Processes that run the same code, each as one rank: stderr and exit status of each.

    Args:
        size: Number of ranks.
        body: The code, which finds ``transport``, ``rank`` and a ``field``.
        absent: Ranks that aren't started.
        backend: As of `connect`.
        before: Code to run before the ranks connect.
        limit: Seconds that ranks wait for each other.
    """
    head = HEAD.format(backend=backend, limit=limit)
    inner = textwrap.indent(textwrap.dedent(body), " " * 4)
    code = textwrap.dedent(before) + head + inner + TAIL
    paths = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]  # tests' modules
    common = {
        **os.environ, "PYTHONPATH": os.pathsep.join(paths),
        "WORLD_SIZE": str(size), "MASTER_PORT": str(free_port()),
        "MASTER_ADDR": "127.0.0.1", "PROXFIELD_QUIET": "1", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    started = {
        r: subprocess.Popen(
            [sys.executable, "-c", code], env={**common, "RANK": str(r)},
            stderr=subprocess.PIPE, text=True,
        )
        for r in range(size) if r not in absent
    }  # fmt: skip
    try:
        return {r: (p.communicate(timeout=240)[1], p.returncode) for r, p in started.items()}
    finally:
        for process in started.values():
            process.kill()


def backends():
    """Of processes: without torch, and with it where it is installed."""
    try:
        import torch  # noqa: F401
    except ImportError:
        return ["sockets"]
    return ["sockets", "gloo"]
