"""A few cases that cover many combinations: every pair of values occurs in one of them.

A test over axes of a, b, c and d values has a·b·c·d combinations, but most faults need only two of
the values to show: this rule with that kind of term, that term in this floating-point type. A
pairwise covering holds every such pair in about as many cases as the two longest axes have pairs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Case: TypeAlias = dict[str, Hashable]
"""A value for each axis, by the axis's name."""


def combinations(axes: Mapping[str, Sequence[Hashable]]) -> list[Case]:
    """All combinations of the values of some axes.

    Args:
        axes: Values by the name of their axis.

    Example:
        >>> combinations({"a": [1, 2], "b": "x"})
        [{'a': 1, 'b': 'x'}, {'a': 2, 'b': 'x'}]
    """
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def numbered(values: Sequence[Hashable]) -> NDArray[np.int64]:
    """A number for each value, the same for equal ones.

    Example:
        >>> numbered("abca")
        array([0, 1, 2, 0])
    """
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(value, len(numbers)) for value in values])


def cover(
    axes: Mapping[str, Sequence[Hashable]],
    *,
    allowed: Callable[[Case], bool] = lambda case: True,
    features: Mapping[str, Callable[[Case], Hashable]] | None = None,
    apart: Iterable[tuple[str, ...]] = (),
    strength: int = 2,
    seed: int = 0,
) -> list[Case]:
    """Choose cases until every pair of values of two axes is in one of them.

    Greedy: the next case is the one that holds most of the pairs that are still missing; a seeded
    order decides among equals. The same arguments give the same cases.

    Args:
        axes: Values by the name of their axis.
        allowed: Whether a combination makes sense. Pairs that no such combination holds aren't
            asked for.
        features: Axes whose value follows from the others (the kind of a field, say). Their
            pairs are covered too; the cases that are returned don't hold them.
        apart: Axes that needn't be covered together.
        strength: 2 for pairs; with 1 every value occurs, with 3 every triple.
        seed: Random seed of the order among equals.

    Returns:
        Cases, in a fixed order.

    Example:
        >>> cases = cover({"a": [0, 1], "b": [0, 1], "c": [0, 1]})
        >>> len(cases)  # of 8 combinations
        4
    """
    features = features or {}
    candidates = [case for case in combinations(axes) if allowed(case)]
    order = np.random.default_rng(seed).permutation(len(candidates))
    candidates = [candidates[k] for k in order]
    ignored = {frozenset(names) for names in apart}
    together = [
        names
        for names in itertools.combinations([*axes, *features], strength)
        if frozenset(names) not in ignored
    ]
    if not candidates:
        return []
    values: dict[str, list[Hashable]] = {name: [case[name] for case in candidates] for name in axes}
    values |= {name: [value(case) for case in candidates] for name, value in features.items()}
    columns = {name: numbered(column) for name, column in values.items()}
    held = np.zeros((len(candidates), len(together)), dtype=np.int64)
    count = 0
    for k, names in enumerate(together):
        rows = np.stack([columns[name] for name in names])
        found, which = np.unique(rows, axis=1, return_inverse=True)
        held[:, k] = count + which.ravel()
        count += found.shape[1]
    missing = np.ones(count, dtype=bool)
    chosen = []
    while missing.any():
        best = int(missing[held].sum(axis=1).argmax())
        missing[held[best]] = False
        chosen.append(candidates[best])
    return chosen
