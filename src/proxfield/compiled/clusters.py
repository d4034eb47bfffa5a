"""Connected parts of a subset of a graph's vertices, compiled."""

from __future__ import annotations

from typing import Any

import numpy as np

from proxfield.compiled.jit import kernel


@kernel
def label_parts(row: Any, column: Any, inside: Any, label: Any) -> int:
    """Number the connected parts of the vertices inside; returns how many there are.

    Args:
        row: Starts of each vertex's neighbors.  # (n + 1,)
        column: Neighbors.
        inside: Which vertices count.  # (n,)
        label: Gets the number of each one's part, −1 outside.  # (n,)
    """
    n = len(inside)
    waiting = np.empty(n, dtype=np.int32)
    count = 0
    for i in range(n):
        label[i] = -1
    for first in range(n):
        if not inside[first] or label[first] >= 0:
            continue
        label[first] = count
        waiting[0] = first
        left = 1
        while left > 0:
            left -= 1
            i = waiting[left]
            for e in range(row[i], row[i + 1]):
                j = column[e]
                if inside[j] and label[j] < 0:
                    label[j] = count
                    waiting[left] = j
                    left += 1
        count += 1
    return count
