"""Where results come from: the machine, the versions, the command."""

from __future__ import annotations

import os
import platform
import shlex
import sys
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path

import psutil

from proxfield._version import __version__
from proxfield.core.common.records import Record

PACKAGES = ("numpy", "scipy", "numba")


def metadata(data: str | None, threads: int) -> Record:
    """What the first line of a results file says.

    Args:
        data: The folder of the instances; None if they are generated.
        threads: Threads that inference may use.
    """
    return {
        "when": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "command": command_line(),
        "data": "generated" if data is None else data,
        "threads": threads,
        "machine": {
            "processor": processor(),
            "cores": os.cpu_count(),
            "memory_gib": round(int(psutil.virtual_memory().total) / 2**30, 1),
            "system": f"{platform.system()} {platform.release()}",
        },
        "versions": {
            "proxfield": __version__,
            "python": platform.python_version(),
            **{name: version(name) for name in PACKAGES},
        },
        # processes that compete for the cores: timings are worth little when it is high
        "load_average": round(float(psutil.getloadavg()[0]), 2),
    }


def command_line() -> str:
    """The command as a user would type it."""
    program = Path(sys.argv[0]).name if sys.argv else ""
    known = program in ("proxfield", "__main__.py")
    return shlex.join(["proxfield", *sys.argv[1:]]) if known else "proxfield bench (from Python)"


def processor() -> str:
    """The processor's name."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine() or "unknown"
