"""Limits of containers and batch jobs on Linux (control groups, version 2): psutil has none.

A process belongs to one group, whose limits and those of all groups around it hold.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
"""Where the groups are mounted; inside a container this is the container's own group."""
MEMBERSHIP = Path("/proc/self/cgroup")
"""Says which group this process belongs to."""


def memory_left() -> int | None:
    """Bytes that the limits of memory leave; None without a limit.

    Pages of files that nobody uses count as used, but are given up when memory is needed.
    """
    left = []
    for group in _groups():
        limit, used = _number(group / "memory.max"), _number(group / "memory.current")
        if limit is not None and used is not None:
            left.append(max(0, limit - used + _unused_pages(group / "memory.stat")))
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


def _unused_pages(path: Path) -> int:
    for line in _text(path).splitlines():
        name, _, value = line.partition(" ")
        if name == "inactive_file" and value.isdecimal():
            return int(value)
    return 0


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
