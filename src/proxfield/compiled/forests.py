"""Induced forests of a graph, compiled: sets of variables among which the edges form trees."""

from __future__ import annotations

from typing import Any

import numpy as np

from proxfield.compiled.jit import inlined, kernel
from proxfield.compiled.random import uniform


@inlined
def shuffle(order: Any, seed: Any) -> None:
    """Put the numbers 0, 1, … into ``order``, each order equally likely (Fisher and Yates)."""
    for i in range(len(order)):
        j = min(np.int64(uniform(seed, np.uint64(i)) * (i + 1)), i)
        order[i] = order[j]
        order[j] = i


@inlined
def root_of(above: Any, i: int) -> int:
    """The root of a variable's tree; halves the way there."""
    while above[i] != i:
        above[i] = above[above[i]]
        i = above[i]
    return i


@inlined
def touches_once(row: Any, column: Any, above: Any, seen_by: Any, i: int) -> bool:
    """Whether a variable has at most one neighbor in each tree."""
    for e in range(row[i], row[i + 1]):
        if above[column[e]] >= 0:
            root = root_of(above, column[e])
            if seen_by[root] == i:
                return False
            seen_by[root] = i
    return True


@inlined
def stands_apart(member_row: Any, member: Any, taken: Any, i: int) -> bool:
    """Whether no other variable of the larger factors of a variable is in the forest."""
    clashes = 0
    for k in range(member_row[i], member_row[i + 1]):
        clashes += taken[member[k]]
    return clashes == 0


@kernel
def induced_forest(
    row: Any, column: Any, member_row: Any, member: Any, n_factors: int, usable: Any, covered: Any,
    seed: Any, node: Any, parent: Any,
) -> int:  # fmt: skip
    """Choose variables in random order, those first that aren't covered yet, and order them.

    A variable is kept if it has at most one neighbor in each tree so far, and shares no larger
    factor with another one that is kept.

    Args:
        row: Starts of each variable's neighbors.  # (n + 1,)
        column: Neighbors, each once.
        member_row: Starts of each variable's larger factors.  # (n + 1,)
        member: Factors.
        n_factors: How many there are.
        usable: Which variables may be in a forest.  # (n,)
        covered: Which variables have been in one; those of this forest are added.  # (n,)
        seed: Random seed (uint64).
        node: Receives the variables, children before their parents.  # (n,)
        parent: Receives the position of each one's parent in ``node``, −1 at roots.  # (n,)

    Returns:
        How many variables the forest has.
    """
    n = len(row) - 1
    above = np.full(n, -1, dtype=np.int64)  # union-find; −1: not in the forest
    scratch = np.empty(n, dtype=np.int64)
    order = np.empty(n, dtype=np.int64)
    shuffle(order, seed)
    seen_by = scratch
    for i in range(n):
        seen_by[i] = -1
    taken = np.zeros(n_factors, dtype=np.bool_)
    count = 0
    for again in range(2):
        for k in range(n):
            i = order[k]
            if not usable[i] or above[i] >= 0 or covered[i] != (again == 1):
                continue
            if not stands_apart(member_row, member, taken, i):
                continue
            if not touches_once(row, column, above, seen_by, i):
                continue
            above[i] = i
            count += 1
            for e in range(row[i], row[i + 1]):
                if above[column[e]] >= 0:
                    above[root_of(above, column[e])] = i
            for e in range(member_row[i], member_row[i + 1]):
                taken[member[e]] = True
    # leaves first: a variable is next when all of its neighbors but one have been taken away
    left = scratch
    place = order
    last = 0
    for i in range(n):
        place[i] = -1
        left[i] = 0
        if above[i] < 0:
            continue
        covered[i] = True
        for e in range(row[i], row[i + 1]):
            if above[column[e]] >= 0:
                left[i] += 1
        if left[i] <= 1:
            node[last] = i
            place[i] = last
            last += 1
    for k in range(count):
        i = node[k]
        parent[k] = -1
        for e in range(row[i], row[i + 1]):
            j = column[e]
            if above[j] >= 0 and (place[j] < 0 or place[j] > k):
                parent[k] = j
                left[j] -= 1
                if left[j] == 1 and place[j] < 0:
                    node[last] = j
                    place[j] = last
                    last += 1
    for k in range(count):
        if parent[k] >= 0:
            parent[k] = place[parent[k]]
    return count
