"""Where an inference starts: by a word, from marginals, or from another result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from proxfield.core.engines.base import softmax, softmax_rows
from proxfield.core.lowering.lowered import Lowered
from proxfield.core.terms.base import Floats, Layout
from proxfield.errors import InputError, shown
from proxfield.field import Field
from proxfield.result import Result

INITS = "expected uniform, possible, unary, random, marginals or a Result"
Start = str | Result | ArrayLike | Sequence[ArrayLike]
"""Where to start: a word, a result, or marginals, of each variable where labels differ."""


def starting_point(
    field: Field, lowered: Lowered, init: Start, seed: int, *, full: bool = False
) -> NDArray[np.float64]:
    """Marginals to start from, over the lowered field (or the whole one).  # (size,)"""
    layout = field.layout if full else lowered.layout
    q = named_start(layout, lowered, init, seed) if isinstance(init, str) else None
    if q is None:
        q = lowered.reduction.restrict(given_start(field, init))
    return observed(field, layout, q)


def observed(field: Field, layout: Layout, q: NDArray[np.float64]) -> NDArray[np.float64]:
    """Marginals with observed variables at their labels, where they weren't taken out."""
    seen = np.flatnonzero(field.evidence >= 0)
    if layout.size == field.layout.size and len(seen):  # nothing was taken out
        q = np.array(q, dtype=np.float64)
        q[np.isin(layout.owner, seen)] = 0.0
        q[layout.offsets[seen] + field.evidence[seen]] = 1.0
    return q


def given_start(field: Field, init: Start) -> NDArray[np.float64]:
    """Marginals that the user gave, checked.  # (field.layout.size,)"""
    if isinstance(init, Result):
        if not np.array_equal(init.field.cardinalities, field.cardinalities):
            raise InputError("init is a result for variables with other numbers of labels")
        return init.modes[0].q if init.modes else init.q  # of a mixture, its heaviest part
    try:
        return field.flatten(init)
    except InputError:
        raise
    except (TypeError, ValueError):
        raise InputError(f"init={shown(init)}, {INITS}") from None


def named_start(layout: Layout, lowered: Lowered, init: str, seed: int) -> NDArray[np.float64]:
    """Marginals by one of the words that `infer` knows.  # (layout.size,)"""
    if init == "uniform":
        if layout.common:
            return np.full(layout.size, 1.0 / layout.common)
        return np.repeat(1.0 / layout.cardinalities, layout.cardinalities)
    if init == "possible":
        weight = np.isfinite(lowered.unary).astype(np.float64)
        return layout.normalize(weight)
    if init == "unary":
        return softmax_of(layout, lowered.unary)
    if init == "random":
        noise = np.random.default_rng(seed).exponential(size=layout.size)
        return layout.normalize(noise)
    raise InputError(f"init={shown(init)}, {INITS}")


def softmax_of(layout: Layout, energies: Floats) -> NDArray[Any]:
    """q_i = softmax(−energies_i), in the energies' type where all variables are alike."""
    if layout.common is None or layout.common == 1 or layout.size < 2**16:
        return softmax(layout.owner, layout.offsets, energies)
    return softmax_rows(energies, layout.common)
