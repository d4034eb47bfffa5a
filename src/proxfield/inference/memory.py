"""How much memory is left, and refusing what can't fit before allocating it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from proxfield.errors import MemoryLimitError

if TYPE_CHECKING:
    from proxfield.terms.base import Ints, Layout, Term

BASE_BYTES = 1 << 18
"""What even the smallest field takes."""
SPIN_BYTES = 90
"""State per entry of a binary field: a state and its copy while kernels warm up, marginals."""
ENTRY_BYTES = 200
"""The same for any other field."""
SECOND_ORDER_BYTES = 200
"""Vectors of the test that tells minima from saddles."""
LANCZOS_BYTES = 200
"""Per entry: 25 vectors (of half the length where spins stand for two entries)."""
CHAIN_BYTES = 40
"""Per entry and chain: start, marginals, natural parameters and result."""
EXTRA_BYTES = 50
"""Per entry, if a term adds its own gradient."""
REDUCTION_BYTES = 60
"""Per entry, if variables or labels are taken out: numbers old and new."""


def available_memory() -> int | None:
    """Bytes that can still be allocated, or None where the system doesn't tell."""
    limits = [_meminfo_available(), _cgroup_left()]
    known = [x for x in limits if x is not None]
    if known:
        return min(known)
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def _meminfo_available() -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return None


def _cgroup_left() -> int | None:
    """What a container's limit leaves (cgroup v2); None without a limit."""
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = Path("/sys/fs/cgroup/memory.current").read_text().strip()
        return None if limit == "max" else int(limit) - int(used)
    except (OSError, ValueError):
        return None


def human_bytes(n: float) -> str:
    """A byte count for people.

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


def estimate_memory(layout: Layout, terms: Sequence[Term], evidence: Ints, chains: int) -> int:
    """An upper bound on the bytes that inference takes beside the field; see `Field`."""
    from proxfield.terms import Constant, Factor, Ising, Potts, Unary
    from proxfield.terms.base import offers

    spins = layout.common == 2 and all(
        isinstance(t, (Constant, Unary, Ising, Potts))
        or (isinstance(t, Factor) and t.degree <= 2 and not t.hard)
        for t in terms
    )
    hard = any(isinstance(t, Factor) and t.hard for t in terms)
    per_entry = SPIN_BYTES if spins else ENTRY_BYTES
    extras = not all(offers(t, "lower") for t in terms)
    per_entry += EXTRA_BYTES if extras else 0
    search = 0 if extras else CHAIN_BYTES * chains
    if any(t.degree == 2 and not offers(t, "spectrum") for t in terms):
        search = max(search, LANCZOS_BYTES // 2 if spins else LANCZOS_BYTES)
    per_entry += max(search, SECOND_ORDER_BYTES)
    if hard or bool((evidence >= 0).any()):
        per_entry += REDUCTION_BYTES
    return BASE_BYTES + per_entry * layout.size + sum(t.workspace(layout) for t in terms)
