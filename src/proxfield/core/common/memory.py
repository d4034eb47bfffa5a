"""How much memory is left and how many cores there are; refusing what can't fit.

Containers and batch jobs on Linux are limited by control groups (version 2), of which psutil knows
nothing. A process belongs to one group, whose limits and those of all groups around it hold.
"""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import psutil

from proxfield.errors import MemoryLimitError

ROOT = Path("/sys/fs/cgroup")
"""Where the groups are mounted; inside a container this is the container's own group."""
MEMBERSHIP = Path("/proc/self/cgroup")
"""Says which group this process belongs to."""
M_MMAP_THRESHOLD = -3
"""A parameter of glibc's mallopt."""
MAPPED_BYTES = 2**20
"""Arrays of this size are mapped one by one, and go when they are freed."""


def available_memory() -> int | None:
    """Bytes that can still be allocated, or None where the system doesn't tell."""
    free = memory_left()
    try:
        system = int(psutil.virtual_memory().available)
    except (psutil.Error, OSError):
        return free
    return system if free is None else min(system, free)


def return_freed_arrays() -> None:
    """Let the C library give memory that is free back to the system, now and when arrays are freed.

    glibc keeps freed blocks of up to 32 MiB for itself, once such have been freed, and what is kept
    in pieces is of no use for larger arrays. Elsewhere this does nothing.
    """
    library = _glibc()
    if library is not None:
        library.malloc_trim(0)


@cache
def _glibc() -> Any:
    """The C library of this process, told to map large arrays one by one; None if not glibc."""
    try:
        library = ctypes.CDLL(None) if sys.platform.startswith("linux") else None
        if library is not None:
            library.gnu_get_libc_version  # noqa: B018 (raises AttributeError elsewhere)
            library.mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES)
    except (OSError, AttributeError):
        return None
    return library


def human_bytes(n: float) -> str:
    """A byte count as text."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(n) < 1024:
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1024
    return f"{n:,.1f} PiB"


def check_memory(needed: int, what: str) -> None:
    """Raise `MemoryLimitError` with the estimate if ``needed`` bytes can't be had."""
    left = available_memory()
    if left is not None and needed > left:
        raise MemoryLimitError(
            f"{what} would need about {human_bytes(needed)}, but {human_bytes(left)} are available"
        )


@cache
def available_cores() -> int:
    """Cores that this process may run on, at most what a container or a batch job is allowed."""
    try:
        cores = len(psutil.Process().cpu_affinity())  # Linux, Windows, FreeBSD
    except (AttributeError, psutil.Error, OSError):
        cores = psutil.cpu_count() or 1
    return min(cores, cpu_limit() or cores)


def memory_left() -> int | None:
    """Bytes that the limits of memory leave; None without a limit.

    Pages of files that nobody uses count as used, but are given up when memory is needed.
    """
    left = []
    for group in _groups():
        limit, used = _number(group / "memory.max"), _number(group / "memory.current")
        if limit is not None and used is not None:
            lines = _text(group / "memory.stat").splitlines()
            unused = dict(line.partition(" ")[::2] for line in lines).get("inactive_file", "")
            left.append(max(0, limit - used + (int(unused) if unused.isdecimal() else 0)))
    return min(left, default=None)


def cpu_limit() -> int | None:
    """Cores that the limits of CPU time are worth, rounded up; None without a limit."""
    limits = []
    for group in _groups():
        quota, _, period = _text(group / "cpu.max").partition(" ")
        if quota.isdecimal() and period.isdecimal() and int(period) > 0:
            limits.append(max(1, math.ceil(int(quota) / int(period))))
    return min(limits, default=None)


def _groups() -> Iterator[Path]:
    """The group of this process and those around it, up to the root."""
    own = ROOT
    for line in _text(MEMBERSHIP).splitlines():
        if line.startswith("0::/"):
            own = ROOT / line.removeprefix("0::").lstrip("/")
    yield own
    while own != ROOT:
        own = own.parent
        yield own


def _number(path: Path) -> int | None:
    """The number in a file; None for "max" and where there is no such file."""
    text = _text(path)
    return int(text) if text.isdecimal() else None


def _text(path: Path) -> str:
    """What a file holds; nothing where it can't be read, as on other systems."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""
