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
from scipy.special import logsumexp

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
Bucket = tuple[tuple[int, ...], Table, Table, int]
"""A variable that is eliminated: its scope (the variable first, then those that its message is
about), log weights over the scope, the message, and the bucket that it goes to (-1 for none)."""


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

    def fill(v: int) -> int:
        return sum(b not in near[a] for a, b in itertools.combinations(near[v], 2))

    left = set(range(graph.n_vars))
    cost = {v: fill(v) for v in left}
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
            cost[u] = fill(u)
    return order


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
        self._limit = limit
        self._sums, constant = self._eliminate(maximize=False)
        self.log_z = constant - graph.constant
        """log Σ_x exp(−E(x)); −inf where every labelling is impossible."""

    def marginals(self) -> NDArray[np.float64]:
        """P(x_i = l) of the field, flat; NaN where every labelling is impossible."""
        tables = [table for _, table, _, _ in self._sums]
        out: list[NDArray[np.float64]] = [np.zeros(0)] * len(tables)
        for rank in reversed(range(len(tables))):
            scope, _, message, parent = self._sums[rank]
            with np.errstate(invalid="ignore"):  # impossible before is impossible now
                if parent >= 0:  # the parent's table has been completed before
                    above = self._sums[parent][0]
                    other = tuple(k for k, v in enumerate(above) if v not in scope)
                    down = logsumexp(tables[parent], axis=other) if other else tables[parent]
                    kept = [v for v in above if v in scope]
                    down = np.transpose(down, [kept.index(v) for v in scope[1:]])
                    extra = np.where(np.isneginf(message), -np.inf, down - message)
                    tables[rank] = tables[rank] + extra
                single = logsumexp(tables[rank].reshape(len(tables[rank]), -1), axis=1)
                weight = np.exp(single - single.max())
            out[scope[0]] = weight / weight.sum()
        return self.graph.expand(out)

    def best_labels(self) -> NDArray[np.int64]:
        """A labelling of lowest energy."""
        buckets, _ = self._eliminate(maximize=True)
        labels = np.zeros(self.graph.n_vars, dtype=np.int64)
        for scope, table, _, _ in reversed(buckets):
            row = (slice(None), *labels[list(scope[1:])].tolist())
            labels[scope[0]] = int(table[row].argmax())
        return self.graph.expand_labels(labels)

    def _eliminate(self, maximize: bool) -> tuple[list[Bucket], float]:
        """Buckets in the order of elimination, and the log of the total (or largest) weight."""
        order = elimination_order(self.graph)
        ranks = {v: k for k, v in enumerate(order)}
        waiting: list[list[Factor]] = [[] for _ in order]
        for scope, table in self.graph.factors:
            waiting[min(ranks[v] for v in scope)].append((scope, -table))
        total, buckets = 0.0, list[Bucket]()
        for rank, v in enumerate(order):
            others = sorted({u for scope, _ in waiting[rank] for u in scope} - {v})
            scope = (v, *others)
            sizes = [self.graph.cardinalities[u] for u in scope]
            if math.prod(sizes) > self._limit:
                raise UnsupportedError(
                    f"elimination needs a table of {math.prod(sizes):.2g} entries, expected "
                    f"<= {self._limit}: the treewidth is too large"
                )
            table = np.zeros(sizes)
            for part, values in waiting[rank]:  # variables of a part rise, as the others do
                shape = [n if u in part else 1 for u, n in zip(scope, sizes, strict=True)]
                table += np.moveaxis(values, part.index(v), 0).reshape(shape)
            message = table.max(axis=0) if maximize else np.asarray(logsumexp(table, axis=0))
            parent = min((ranks[u] for u in others), default=-1)
            if parent < 0:
                total += float(message)
            else:
                waiting[parent].append((tuple(others), message))
            waiting[rank] = []
            buckets.append((scope, table, message, parent))
        return buckets, total
