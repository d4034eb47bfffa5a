"""Orders of visits as groups that may move together.

A sweep in any order is also a sweep by *levels*: a variable's level is one more than the highest
level among its neighbors that come before it. Neighbors are never on one level, and whoever
comes first stays first, so doing a level at a time changes nothing about the result. A random
order has few levels (about as many as its longest rising path through the graph), the reading
order of a grid has rows + columns.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from proxfield.core.compiled.jit import kernel
from proxfield.core.lowering.lowered import Lowered
from proxfield.core.lowering.merging import compressed_rows
from proxfield.core.terms.base import Ints


@kernel
def level_of(row: Ints, column: NDArray[np.int32], order: Ints) -> Ints:
    """The level of each variable.  # (n,)

    Args:
        row: Starts of each variable's neighbors.  # (n + 1,)
        column: Neighbors.
        order: Variables in the order of their visits.
    """
    level = np.full(len(row) - 1, -1, dtype=np.int64)
    for k in range(len(order)):
        i = order[k]
        highest = -1
        for e in range(row[i], row[i + 1]):
            highest = max(highest, level[column[e]])
        level[i] = highest + 1
    return level


def neighbor_rows(lowered: Lowered) -> tuple[Ints, NDArray[np.int32]]:
    """Who shares a term with whom, in compressed rows.  # (n + 1,), (ends,)"""
    layout = lowered.layout
    none = np.zeros((0, 2), dtype=np.int64)
    pairs = np.concatenate([none, *(t.neighbors(layout) for t in lowered.terms)])
    row, column, _ = compressed_rows(layout.n_vars, pairs, [])
    return row, column


def grouped(variables: Ints, group: Ints, degree: Ints) -> tuple[Ints, Ints]:
    """Variables by group, and inside it by degree, so that those done together take as long.

    Args:
        variables: The order so far.  # (m,)
        group: Group of each of them: 0, 1, …  # (m,)
        degree: Degree of each variable of the field.  # (n,)

    Returns:
        The new order and the bounds of its groups.  # (m,), (groups + 1,)

    Example:
        >>> grouped(np.array([2, 0, 1]), np.array([1, 0, 1]), np.array([1, 2, 1]))
        (array([0, 2, 1]), array([0, 1, 3]))
    """
    order = np.lexsort((degree[variables], group))
    starts = np.concatenate([[0], np.cumsum(np.bincount(group))]).astype(np.int64)
    return variables[order], starts
