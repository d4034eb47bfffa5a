"""Parts of a graph with few edges between them, by METIS."""

from __future__ import annotations

import numpy as np

from proxfield.core.lowering.merging import compressed_rows
from proxfield.core.terms.base import Ints, Layout, offers
from proxfield.errors import MissingDependencyError
from proxfield.field import Field


def metis_owner(field: Field, size: int) -> Ints:
    """The rank of each variable of a field, by the graph of its terms.  # (n_vars,)

    Args:
        field: The field.
        size: Number of ranks.
    """
    layout = field.layout
    pairs = [t.neighbors(layout) for t in field.terms if offers(t, "neighbors")]
    return metis_parts(layout, np.concatenate([np.zeros((0, 2), dtype=np.int64), *pairs]), size)


def metis_parts(layout: Layout, edges: Ints, size: int) -> Ints:
    """The part of each variable of a graph.  # (n_vars,)"""
    try:
        import pymetis
    except ImportError:
        raise MissingDependencyError("owner='metis' needs pymetis: pip install pymetis") from None
    if size == 1 or layout.n_vars == 0:
        return np.zeros(layout.n_vars, dtype=np.int64)
    edges = np.unique(np.sort(edges, axis=1), axis=0)
    row, column, _ = compressed_rows(layout.n_vars, edges, [])
    weights = layout.cardinalities.tolist()
    if hasattr(pymetis, "CSRAdjacency"):
        graph = pymetis.CSRAdjacency(row.tolist(), column.tolist())
        _, parts = pymetis.part_graph(size, graph, vweights=weights)
    else:  # before 2025
        _, parts = pymetis.part_graph(
            size, xadj=row.tolist(), adjncy=column.tolist(), vweights=weights
        )
    return np.asarray(parts, dtype=np.int64)
