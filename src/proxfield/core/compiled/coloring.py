"""Greedy graph coloring, compiled."""

from __future__ import annotations

from typing import Any

import numpy as np

from proxfield.core.compiled.jit import kernel


@kernel
def greedy_colors(row: Any, column: Any) -> Any:
    """Give each variable in turn the smallest color that no neighbor has.

    Args:
        row: Starts of each variable's neighbors.  # (n + 1,)
        column: Neighbors.
    """
    n = len(row) - 1
    colors = np.full(n, -1, dtype=np.int64)
    taken_by = np.full(n + 1, -1, dtype=np.int64)  # color -> the last variable that saw it
    for i in range(n):
        for e in range(row[i], row[i + 1]):
            c = colors[column[e]]
            if c >= 0:
                taken_by[c] = i
        c = 0
        while taken_by[c] == i:
            c += 1
        colors[i] = c
    return colors
