"""Connected components of some of the variables of a graph, compiled."""

from __future__ import annotations

from typing import Any

from proxfield.core.compiled.jit import integer_kernel


@integer_kernel
def label_components(row: Any, column: Any, chosen: Any, component: Any, queue: Any) -> int:
    """Number the connected components of the chosen variables; the others get −1.

    Args:
        row: Starts of each variable's neighbors.  # (n + 1,)
        column: Neighbors.
        chosen: Which variables to look at.  # (n,)
        component: Where the numbers go.  # (n,)
        queue: Room for variables.  # (n,) int32

    Returns:
        How many components there are.
    """
    count = 0
    for i in range(len(chosen)):
        component[i] = -1
    for i in range(len(chosen)):
        if not chosen[i] or component[i] >= 0:
            continue
        component[i] = count
        queue[0] = i
        done, end = 0, 1
        while done < end:
            for e in range(row[queue[done]], row[queue[done] + 1]):
                j = column[e]
                if chosen[j] and component[j] < 0:
                    component[j] = count
                    queue[end] = j
                    end += 1
            done += 1
        count += 1
    return count
