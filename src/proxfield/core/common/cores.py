"""How many cores this process may use."""

from __future__ import annotations

from functools import cache

import psutil

from proxfield.core.common.cgroups import cpu_limit


@cache
def available_cores() -> int:
    """Cores that this process may run on, at most what a container or a batch job is allowed.

    Example:
        >>> available_cores() >= 1
        True
    """
    try:
        cores = len(psutil.Process().cpu_affinity())  # Linux, Windows, FreeBSD
    except (AttributeError, psutil.Error, OSError):
        cores = psutil.cpu_count() or 1
    return min(cores, cpu_limit() or cores)
