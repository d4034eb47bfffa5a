"""Connected components of some of a field's variables: sets that don't interact."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from proxfield.core.lowering.lowered import Lowered
from proxfield.core.lowering.merging import compressed_rows


class Components:
    """Which variables of a field share a term.

    Args:
        lowered: A field whose terms all know the neighbors of a variable.

    Attributes:
        row: Starts of each variable's neighbors.  # (n_vars + 1,)
        column: Neighbors.

    Example:
        >>> import proxfield as pf
        >>> field = pf.Field(5, n_labels=2).add(pf.Ising([[0, 1], [1, 2], [2, 3], [3, 4]], 1.0))
        >>> Components(field.lower()).of(np.array([True, True, False, True, True]))
        (array([ 0,  0, -1,  1,  1], dtype=int32), 2)
    """

    def __init__(self, lowered: Lowered) -> None:
        layout = lowered.layout
        none = np.zeros((0, 2), dtype=np.int64)
        pairs = np.concatenate([none, *(t.neighbors(layout) for t in lowered.terms)])
        self.row, self.column, _ = compressed_rows(layout.n_vars, pairs, [])
        self._waiting = np.empty(layout.n_vars, dtype=np.int32)

    def of(self, chosen: NDArray[np.bool_]) -> tuple[NDArray[np.int32], int]:
        """The component of each chosen variable (−1: it isn't), and how many there are."""
        from proxfield.core.compiled.graphs import label_components

        component = np.empty(len(chosen), dtype=np.int32)
        count = label_components(self.row, self.column, chosen, component, self._waiting)
        return component, int(count)

    @staticmethod
    def warm_up() -> None:
        """Compile or load what it needs."""
        from proxfield.core.compiled.graphs import label_components

        label_components.warm_up()
        row, column = np.zeros(2, dtype=np.int64), np.zeros(0, dtype=np.int32)
        one = np.zeros(1, dtype=np.int32)
        label_components(row, column, np.ones(1, dtype=bool), one, one.copy())
