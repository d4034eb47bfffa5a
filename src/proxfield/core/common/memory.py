"""How much memory is left, and refusing what can't fit before allocating it."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import psutil

from proxfield.core.common.cgroups import memory_left
from proxfield.errors import MemoryLimitError

M_MMAP_THRESHOLD = -3
"""A parameter of glibc's mallopt."""
MAPPED_BYTES = 2**20
"""Arrays of this size are mapped one by one, and go when they are freed."""
_C_LIBRARY: Any = None
"""glibc, once it was looked for; False without."""


def available_memory() -> int | None:
    """Bytes that can still be allocated, or None where the system doesn't tell."""
    try:
        free = int(psutil.virtual_memory().available)
    except (psutil.Error, OSError):
        return memory_left()
    allowed = memory_left()
    return free if allowed is None else min(free, allowed)


def return_freed_arrays() -> None:
    """Let the C library give memory that is free back to the system, now and when arrays are freed.

    glibc keeps freed blocks of up to 32 MiB for itself, once such have been freed, and what is kept
    in pieces is of no use for larger arrays. Elsewhere this does nothing.
    """
    global _C_LIBRARY
    if _C_LIBRARY is None:
        _C_LIBRARY = _open_glibc()
        if _C_LIBRARY is not False:
            _C_LIBRARY.mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES)
    if _C_LIBRARY is not False:
        _C_LIBRARY.malloc_trim(0)


def _open_glibc() -> Any:
    """The C library of this process, if it is glibc; else False."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        library = ctypes.CDLL(None)
        library.gnu_get_libc_version  # noqa: B018 (raises AttributeError elsewhere)
    except (OSError, AttributeError):
        return False
    return library


def human_bytes(n: float) -> str:
    """A byte count as text.

    Example:
        >>> human_bytes(3 * 2**30)
        '3.0 GiB'
    """
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
