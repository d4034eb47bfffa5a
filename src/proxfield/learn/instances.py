"""Instances as users have them: features of nodes, edges, features of edges."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse

from proxfield.errors import InputError


@dataclass(frozen=True, eq=False)
class Graph:
    """One instance for `CRF`: nodes with features, and edges between them.

    Args:
        nodes: Features of the nodes, an array or a sparse matrix (n, F); for ``unary="table"`` an
            index of tables (n,).
        edges: Pairs of nodes.  # (m, 2)
        edge_features: Features of the edges, an array or a sparse matrix.  # (m, F)
        edge_index: Instead of features: the table that each edge uses. Without either, all edges
            share one.  # (m,)
        observed: Labels that are given as inputs, -1 for nodes whose labels are to be predicted.
            # (n,)

    Example:
        >>> Graph([[0.1], [0.3]], [[0, 1]]).n_nodes
        2
    """

    nodes: Any
    edges: Any = ()
    edge_features: Any = None
    edge_index: ArrayLike | None = None
    observed: ArrayLike | None = None

    @property
    def n_nodes(self) -> int:
        """Number of nodes."""
        return int(self.nodes.shape[0]) if sparse.issparse(self.nodes) else len(self.nodes)


def as_graph(instance: Any) -> Graph:
    """A `Graph`, also from a tuple (nodes, edges) or (nodes, edges, edge features)."""
    if isinstance(instance, tuple) and 1 <= len(instance) <= 3:
        instance = Graph(*instance)
    if isinstance(instance, Graph):
        _check_rows(instance.nodes, "nodes")
        _check_rows(instance.edges, "edges")
        _check_rows(instance.edge_features, "edge features")
        if np.ndim(instance.nodes) == 0:
            kind = type(instance.nodes).__name__
            raise InputError(f"nodes are a {kind}, expected an array of features or an index")
        if instance.edge_features is not None and instance.edge_index is not None:
            raise InputError("edges have features and an index, expected one of them")
        return instance
    raise InputError(
        f"it is a {type(instance).__name__}, expected a Graph or a tuple "
        "(nodes, edges[, edge_features])"
    )


def _check_rows(values: Any, what: str) -> None:
    """Refuse nested lists that are no array."""
    if isinstance(values, (list, tuple)):
        try:
            np.shape(values)
        except ValueError:
            raise InputError(f"{what} have rows of different lengths, expected one array") from None


def as_sequence(X: Any, what: str = "X") -> Sequence[Any]:
    """Instances as a sequence of at least one."""
    if isinstance(X, (Graph, str, bytes)) or not isinstance(X, Iterable):
        raise InputError(f"{what} is a {type(X).__name__}, expected a list of instances")
    out = list(X)
    if not out:
        raise InputError(f"{what} is empty, expected at least one instance")
    return out


def digest(parts: Iterable[Any]) -> str:
    """A short digest of arrays, which says whether two sets of data are the same."""
    out = hashlib.sha256()
    for part in parts:
        if part is None:
            out.update(b"-")
            continue
        if sparse.issparse(part):
            for array in (part.indptr, part.indices, part.data):
                out.update(np.ascontiguousarray(array).tobytes())
            continue
        array = np.ascontiguousarray(part)
        out.update(f"{array.shape}{array.dtype}".encode())
        out.update(array.tobytes())
    return out.hexdigest()[:16]
