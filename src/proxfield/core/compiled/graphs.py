"""Graphs, compiled: greedy colors, connected components, and induced forests.

``row`` holds the starts of each variable's neighbors in ``column``, each once.  # (n + 1,)
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from proxfield.core.common.arrays import Ints
from proxfield.core.compiled.jit import inlined, integer_kernel, kernel
from proxfield.core.compiled.math import uniform


@inlined
def root_of(joined: Ints, i: int) -> int:
    """The root of a variable's tree; halves the way there."""
    while joined[i] != i:
        joined[i] = joined[joined[i]]
        i = joined[i]
    return i


@integer_kernel
def induced_forest(
    row: Ints, column: Ints, member_row: Ints, member: Ints, taken: Ints, covered: Ints, seed: int,
    room: Ints, node: Ints, above: Ints, edge: Ints,
) -> int:  # fmt: skip
    """Choose variables in random order, those first that aren't covered yet, and order them.

    A variable is kept if it has at most one neighbor in each tree so far, and shares no larger
    factor with another one that is kept.

    Args:
        row: See the module.
        column: See the module.
        member_row: Starts of each variable's larger factors.  # (n + 1,)
        member: Factors.
        taken: Receives which factors have a variable in the forest.  # (factors,)
        covered: 1 for variables that have been in a forest (those of this one are added), 2 for
            those that mustn't be.  # (n,)
        seed: Random seed (uint64).
        room: Overwritten.  # (3, n)
        node: Receives the variables, children before their parents.  # (n,)
        above: Receives the parent of each, −1 at roots.  # (n,)
        edge: Receives the position of the parent in ``column``.  # (n,)

    Returns:
        How many variables the forest has.
    """
    n = len(row) - 1
    joined, seen_by, order = room[0], room[1], room[2]
    for k in range(len(taken)):
        taken[k] = 0
    for i in range(n):  # each order equally likely (Fisher and Yates)
        joined[i] = -1  # union-find; −1: not in the forest
        seen_by[i] = -1
        j = min(np.int64(uniform(seed, np.uint64(i)) * (i + 1)), i)
        order[i] = order[j]
        order[j] = i
    count = 0
    for t in range(2 * n):
        i = order[t % n]
        clashes = joined[i] >= 0 or covered[i] != t // n
        for k in range(member_row[i], member_row[i + 1]):
            clashes |= taken[member[k]] > 0
        for e in range(row[i], row[i + 1]):
            if clashes:
                break
            if joined[column[e]] >= 0:
                root = root_of(joined, column[e])
                clashes = seen_by[root] == i
                seen_by[root] = i
        if clashes:
            continue
        joined[i] = i
        count += 1
        for e in range(row[i], row[i + 1]):
            if joined[column[e]] >= 0:
                joined[root_of(joined, column[e])] = i
        for k in range(member_row[i], member_row[i + 1]):
            taken[member[k]] = 1
    # leaves first: a variable is next when all of its neighbors but one have been taken away
    left, place = seen_by, order
    last = 0
    for i in range(n):
        place[i] = -1
        left[i] = 0
        if joined[i] >= 0:
            covered[i] = 1
            for e in range(row[i], row[i + 1]):
                left[i] += joined[column[e]] >= 0
            if left[i] <= 1:
                node[last] = i
                place[i] = last
                last += 1
    for k in range(count):
        i = node[k]
        above[k] = -1
        edge[k] = -1
        for e in range(row[i], row[i + 1]):
            j = column[e]
            if joined[j] >= 0 and (place[j] < 0 or place[j] > k):
                above[k] = j
                edge[k] = e
                left[j] -= 1
                if left[j] == 1 and place[j] < 0:
                    node[last] = j
                    place[j] = last
                    last += 1
    return count


@integer_kernel
def tree_levels(
    node: Ints, above: Ints, place: Ints, parent: Ints, height: Ints, depth: Ints
) -> None:  # fmt: skip
    """Places of the parents in a forest (−1 at roots), heights over the leaves and depths under
    the roots of its variables, which `induced_forest` made; ``place`` is room for all variables.
    """
    for k in range(len(node)):
        place[node[k]] = k
        height[k] = 0
    for k in range(len(node)):
        parent[k] = -1
        if above[k] >= 0:
            parent[k] = place[above[k]]
            height[parent[k]] = max(height[parent[k]], height[k] + 1)
    for k in range(len(node) - 1, -1, -1):
        depth[k] = 0 if parent[k] < 0 else depth[parent[k]] + 1


@kernel
def greedy_colors(row: Ints, column: Ints) -> Ints:
    """Give each variable in turn the smallest color that no neighbor has."""
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


@integer_kernel
def label_components(
    row: Ints, column: Ints, chosen: NDArray[np.bool_], component: Ints, queue: Ints
) -> int:
    """Number the connected components of the chosen variables; the others get −1.

    ``component`` receives the numbers, and ``queue`` is room.  # (n,) each
    Returns how many components there are.
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
