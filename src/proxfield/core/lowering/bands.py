"""Ising couplings of a grid as diagonals: one number per offset and variable, no list of edges."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from proxfield.core.terms.base import Floats, Ints, Layout
from proxfield.core.terms.pairwise import Ising

CHUNK = 1 << 20
"""Variables worked on at a time."""


class BandedIsing(Ising):
    """Couplings J·s_i·s_j between variables at a few distances j − i.

    Edges are listed only when something asks for them.

    Args:
        distances: Ascending, positive.  # (D,)
        padded: 4 J of i and i + distance at [d, pad + i], 0 without a coupling, where pad is the
            largest distance.  # (D, n + 2 pad)

    Example:
        >>> padded = np.zeros((1, 5))
        >>> padded[0, 1:3] = 4.0
        >>> BandedIsing(np.array([1]), padded).edges.tolist()
        [[0, 1], [1, 2]]
    """

    distances: Ints
    padded: Floats

    def __init__(self, distances: Ints, padded: Floats) -> None:
        object.__setattr__(self, "distances", distances)
        object.__setattr__(self, "padded", padded)

    @property
    def pad(self) -> int:
        """Entries without a variable at each end of ``padded``."""
        return int(self.distances[-1]) if len(self.distances) else 0

    @property
    def couplings(self) -> Floats:
        """4 J of each variable and the one at each distance.  # (D, n)"""
        return self.padded[:, self.pad : self.padded.shape[1] - self.pad]

    @property
    def n_edges(self) -> int:
        return int(np.count_nonzero(self.couplings))

    @cached_property
    def _listed(self) -> tuple[Ints, NDArray[np.float64]]:
        which, first = np.nonzero(self.couplings)
        order = np.lexsort((which, first))
        which, first = which[order], first[order]
        edges = np.stack([first, first + self.distances[which]], axis=1).astype(np.int64)
        return edges, 0.25 * self.couplings[which, first].astype(np.float64)

    @property
    def edges(self) -> Ints:
        """The edges.  # (m, 2)"""
        return self._listed[0]

    @property
    def weights(self) -> NDArray[np.float64]:
        """J of each edge.  # (m,)"""
        return self._listed[1]

    def _sum_abs(self, layout: Layout, scale: float) -> NDArray[np.float64]:
        out, values = np.zeros(layout.n_vars), self.couplings
        for distance, row in zip(self.distances.tolist(), values, strict=True):
            for start in range(0, layout.n_vars, CHUNK):
                size = (0.25 * scale) * np.abs(row[start : start + CHUNK].astype(np.float64))
                out[start : start + len(size)] += size
                after = size[: max(0, layout.n_vars - start - distance)]
                out[start + distance : start + distance + len(after)] += after
        return out
