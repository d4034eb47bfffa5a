"""A field as a plain factor graph: what adapters of other tools build their models from."""

from __future__ import annotations

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
