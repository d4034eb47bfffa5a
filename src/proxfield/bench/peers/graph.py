"""A field as a plain factor graph, what other tools get; and exact answers by variable elimination.

The cost of elimination is exponential in the width of the order (found by min-fill) and linear in
the number of variables: a grid of 12 × 12 spins takes tables of 2¹³ entries.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from proxfield.core.terms.base import Ints, offers
from proxfield.errors import UnsupportedError
from proxfield.field import Field

Table = NDArray[np.float64]
Factor = tuple[tuple[int, ...], Table]
"""Variables in rising order, and energies: +inf where a configuration is impossible."""


@dataclass(frozen=True)
class FactorGraph:
    """Tables of energies over the variables that aren't observed, one per set of variables.

    Attributes:
        cardinalities: Number of labels of each variable that is left.
        factors: The tables with their variables; small ones first.
        constant: The energy of what is observed.
        kept: The number in the field of each variable that is left.
        offsets: Where the field's variables begin in flat marginals.
        fixed: The label of each variable of the field; -1 where it is left.
    """

    cardinalities: tuple[int, ...]
    factors: tuple[Factor, ...]
    constant: float
    kept: Ints
    offsets: Ints
    fixed: Ints

    @property
    def n_vars(self) -> int:
        """Number of variables that are left."""
        return len(self.cardinalities)

    def unary(self, variable: int) -> Table:
        """The energy per label of one variable; zeros where it has no table."""
        none = np.zeros(self.cardinalities[variable])
        return next((table for scope, table in self.factors if scope == (variable,)), none)

    def larger(self) -> list[Factor]:
        """The tables over two or more variables."""
        return [factor for factor in self.factors if len(factor[0]) > 1]

    def expand(self, marginals: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
        """Marginals of the field, flat, from those of the variables that are left.

        Args:
            marginals: One array per variable that is left.

        Returns:
            The field's, with all weight on observed labels.  # (layout.size,)
        """
        out = np.zeros(int(self.offsets[-1]))
        seen = np.flatnonzero(self.fixed >= 0)
        out[self.offsets[seen] + self.fixed[seen]] = 1.0
        for variable, values in zip(self.kept, marginals, strict=True):
            out[self.offsets[variable] : self.offsets[variable + 1]] = values
        return out

    def expand_labels(self, labels: Sequence[int] | Ints) -> Ints:
        """A labelling of the field from one of the variables that are left."""
        out = np.array(self.fixed)
        out[self.kept] = np.asarray(labels, dtype=np.int64)
        return out


def factor_graph(field: Field) -> FactorGraph:
    """The tables of a field, with the evidence put in and tables of equal scope added up.

    Args:
        field: A field whose terms can be expressed as tables.

    Returns:
        Its factor graph.

    Raises:
        UnsupportedError: If a term has no tables.

    Example:
        >>> import proxfield as pf
        >>> field = pf.Field(3, n_labels=2, terms=[pf.Potts([[0, 1], [1, 2]], 1.0)])
        >>> graph = factor_graph(field.condition({0: 1}))
        >>> [scope for scope, _ in graph.factors], graph.kept.tolist()
        ([(0,), (0, 1)], [1, 2])
    """
    fixed = np.where(field.cardinalities == 1, 0, np.asarray(field.evidence))
    kept = np.flatnonzero(fixed < 0)
    number = {int(v): k for k, v in enumerate(kept)}
    found: dict[tuple[int, ...], Table] = {}
    for term in field.terms:
        if not offers(term, "as_tables"):
            raise UnsupportedError(f"the term {term.name} can't be expressed as tables")
        for scopes, tables, index in term.as_tables(field.layout):
            which = np.arange(len(scopes)) if index is None else index
            for scope, at in zip(scopes.tolist(), which, strict=True):
                table = np.asarray(tables[at], dtype=np.float64)
                table = table[tuple(slice(None) if fixed[v] < 0 else fixed[v] for v in scope)]
                left = [number[v] for v in scope if fixed[v] < 0]
                key = tuple(sorted(left))
                table = np.transpose(table, np.argsort(left))
                found[key] = found[key] + table if key in found else np.array(table)
    constant = float(found.pop((), np.zeros(())))
    return FactorGraph(
        tuple(field.cardinalities[kept].tolist()),
        tuple(sorted(found.items(), key=lambda item: (len(item[0]), item[0]))),
        constant,
        kept,
        np.asarray(field.layout.offsets),
        fixed,
    )


# ---- exact answers ----


MAX_TABLE = 1 << 22
"""Maximum number of entries of a table."""


@dataclass
class _Bucket:
    """A variable that is eliminated: the table it is summed out of, and what it sends on.

    Attributes:
        scope: The variable first, then those that its message is about.
        table: Log weights over the scope: its own factors and the messages received.
        message: Log weights over ``scope[1:]``.
        parent: The bucket that the message goes to; -1 for none.
    """

    scope: tuple[int, ...]
    table: Table
    message: Table
    parent: int


def elimination_order(graph: FactorGraph) -> list[int]:
    """Variables in the order in which to eliminate them: fewest new edges first (min-fill).

    Example:
        >>> from proxfield.generate import grid
        >>> elimination_order(factor_graph(grid(2, 2)))
        [0, 1, 2, 3]
    """
    near: list[set[int]] = [set() for _ in range(graph.n_vars)]
    for scope, _ in graph.factors:
        for a, b in itertools.combinations(scope, 2):
            near[a].add(b)
            near[b].add(a)
    left = set(range(graph.n_vars))
    cost = {v: _fill(near, v) for v in left}
    order = []
    while left:
        v = min(left, key=lambda u: (cost[u], len(near[u]), u))
        order.append(v)
        left.remove(v)
        around = near[v]
        for a, b in itertools.combinations(sorted(around), 2):
            near[a].add(b)
            near[b].add(a)
        for u in around:
            near[u].discard(v)
        for u in around.union(*(near[w] for w in around)):
            cost[u] = _fill(near, u)
    return order


def _fill(near: list[set[int]], v: int) -> int:
    return sum(b not in near[a] for a, b in itertools.combinations(near[v], 2))


class Elimination:
    """Exact answers about a factor graph.

    Args:
        graph: The factor graph.
        limit: Maximum number of entries of a table.

    Raises:
        UnsupportedError: If a table would be larger.

    Example:
        >>> from proxfield.generate import grid
        >>> from proxfield.testing import enumerate_field
        >>> field = grid(3, 4, strength=2.0)
        >>> exact = Elimination(factor_graph(field))
        >>> bool(np.isclose(exact.log_z, enumerate_field(field).log_z))
        True
    """

    def __init__(self, graph: FactorGraph, *, limit: int = MAX_TABLE) -> None:
        self.graph = graph
        self.order = elimination_order(graph)
        self._limit = limit
        self._rank = {v: k for k, v in enumerate(self.order)}
        self._sums, constant = self._eliminate(maximize=False)
        self.log_z = constant - graph.constant
        """log Σ_x exp(−E(x)); −inf where every labelling is impossible."""

    def marginals(self) -> NDArray[np.float64]:
        """P(x_i = l) of the field, flat; NaN where every labelling is impossible."""
        graph, buckets = self.graph, self._sums
        tables = [bucket.table for bucket in buckets]
        out: list[NDArray[np.float64]] = [np.zeros(0)] * graph.n_vars
        for rank in range(len(buckets) - 1, -1, -1):
            bucket = buckets[rank]
            if bucket.parent >= 0:  # the parent's table has been completed before
                parent = buckets[bucket.parent]
                other = tuple(k for k, v in enumerate(parent.scope) if v not in bucket.scope)
                down = _log_sum(tables[bucket.parent], other)
                kept = [v for v in parent.scope if v in bucket.scope]
                down = np.transpose(down, [kept.index(v) for v in bucket.scope[1:]])
                with np.errstate(invalid="ignore"):  # impossible before is impossible now
                    extra = np.where(np.isneginf(bucket.message), -np.inf, down - bucket.message)
                tables[rank] = tables[rank] + extra
            single = _log_sum(tables[rank], tuple(range(1, tables[rank].ndim)))
            with np.errstate(invalid="ignore"):
                weight = np.exp(single - single.max())
            out[bucket.scope[0]] = weight / weight.sum()
        return graph.expand(out)

    def best_labels(self) -> NDArray[np.int64]:
        """A labelling of lowest energy."""
        buckets, _ = self._eliminate(maximize=True)
        labels = np.zeros(self.graph.n_vars, dtype=np.int64)
        for bucket in reversed(buckets):
            chosen = labels[list(bucket.scope[1:])].tolist()
            row = np.moveaxis(bucket.table, 0, -1)[tuple(chosen)]
            labels[bucket.scope[0]] = int(row.argmax())
        return self.graph.expand_labels(labels)

    def _eliminate(self, maximize: bool) -> tuple[list[_Bucket], float]:
        """Buckets in the order of elimination, and the log of the total (or largest) weight."""
        waiting: list[list[Factor]] = [[] for _ in self.order]
        for scope, table in self.graph.factors:
            waiting[min(self._rank[v] for v in scope)].append((scope, -table))
        total, buckets = 0.0, []
        for rank, v in enumerate(self.order):
            others = sorted({u for scope, _ in waiting[rank] for u in scope} - {v})
            scope = (v, *others)
            sizes = [self.graph.cardinalities[u] for u in scope]
            if math.prod(sizes) > self._limit:
                raise UnsupportedError(
                    f"elimination needs a table of {math.prod(sizes):.2g} entries, expected "
                    f"<= {self._limit}: the treewidth is too large"
                )
            table = np.zeros(sizes)
            for part, values in waiting[rank]:
                table += _aligned(part, values, scope)
            message = table.max(axis=0) if maximize else _log_sum(table, (0,))
            parent = min((self._rank[u] for u in others), default=-1)
            if parent < 0:
                total += float(message)
            else:
                waiting[parent].append((tuple(others), message))
            waiting[rank] = []
            buckets.append(_Bucket(scope, table, message, parent))
        return buckets, total


def _aligned(part: tuple[int, ...], values: Table, scope: tuple[int, ...]) -> Table:
    """A table with its axes where a larger scope has them, for broadcasting."""
    values = np.transpose(values, sorted(range(len(part)), key=lambda k: scope.index(part[k])))
    inside = {scope.index(v) for v in part}
    return np.expand_dims(values, tuple(k for k in range(len(scope)) if k not in inside))


def _log_sum(table: Table, axes: tuple[int, ...]) -> Table:
    """log Σ exp over some axes; −inf where all entries are."""
    if not axes:
        return table
    top = table.max(axis=axes, keepdims=True)
    safe = np.where(np.isneginf(top), 0.0, top)
    with np.errstate(divide="ignore"):
        out = np.log(np.exp(table - safe).sum(axis=axes, keepdims=True)) + safe
    return np.asarray(np.squeeze(out, axis=axes))
