"""Graph coloring of a lowered field, for sweeps that move many variables at once."""

from __future__ import annotations

import numpy as np

from proxfield.core.lowering.lowered import Lowered
from proxfield.core.lowering.merging import compressed_rows
from proxfield.core.terms.base import Ints


def color_graph(lowered: Lowered) -> Ints:
    """A greedy coloring: no two variables of one term get the same color.  # (n_vars,)"""
    from proxfield.core.compiled.coloring import greedy_colors

    n = lowered.layout.n_vars
    none = np.zeros((0, 2), dtype=np.int64)
    pairs = np.concatenate([none, *(t.neighbors(lowered.layout) for t in lowered.terms)])
    row, column, _ = compressed_rows(n, pairs, [])
    colors: Ints = greedy_colors(row, column)
    return colors
