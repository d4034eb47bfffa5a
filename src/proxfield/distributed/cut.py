"""The terms across a cut: a small field over the border of a rank and its ghosts.

Ghosts are variables of other ranks that share a term with this one's; border are the variables of
this rank that share one with them. The gradient of these terms at the border enters the rank's own
program through its unary energies, so that kernels run as they are.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_matrix, csr_matrix

from proxfield.core.terms.base import (
    Doubles,
    Floats,
    Ints,
    Layout,
    Term,
    expectation,
    missing,
)
from proxfield.core.terms.factor import Factor
from proxfield.core.terms.gaussian import Gaussian
from proxfield.core.terms.pairwise import Ising, Potts
from proxfield.errors import UnsupportedError


class Embedded:
    """A term that isn't lowered, computed by itself on arrays of the whole field.

    Args:
        term: The term.
        whole: The layout of the whole field.
        variables: The whole field's number of each variable of the rank's layout; all that the
            term has an energy for must be among them.  # (n_vars,)
    """

    def __init__(self, term: Term, whole: Layout, variables: Ints) -> None:
        self.term, self.whole, self.entries = term, whole, entries_of(whole, variables)

    def evaluate(self, q: Doubles) -> tuple[float, Doubles]:
        """Energy and gradient at the rank's marginals; those of other variables don't count."""
        full = np.repeat(1.0 / self.whole.cardinalities, self.whole.cardinalities)
        full[self.entries] = q
        out = np.zeros(self.whole.size)
        return self.term.evaluate(self.whole, full, out), out[self.entries]


@dataclass(frozen=True, eq=False)
class Cut:
    """Terms across the cut of one rank.

    Args:
        layout: The border's variables, then the ghosts.
        border: The border, as numbers of the rank's own lowered variables.  # (b,)
        pairs: Ising, Potts and pairwise tables between a variable of the border and a ghost.
        larger: Multilinear terms of more variables.
        extras: Terms that give their own energy, and whether this rank counts it.
        constant: This rank's part of constants that belong to these terms.
    """

    layout: Layout
    border: Ints
    pairs: tuple[Term, ...] = ()
    larger: tuple[Factor, ...] = ()
    extras: tuple[tuple[Embedded, bool], ...] = ()
    constant: float = 0.0
    owners: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """The rank of each ghost, ascending.  # (layout.n_vars - b,)"""
    numbers: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """The number of each ghost among its rank's lowered variables.  # (layout.n_vars - b,)"""

    @cached_property
    def width(self) -> int:
        """Entries of the border."""
        return int(self.layout.offsets[len(self.border)])

    @cached_property
    def matrix(self) -> csr_matrix:
        """From marginals of ghosts to the pairs' gradient at the border."""
        rows, columns, values = [], [], []
        for term in self.pairs:
            for edges, tables in tables_of(term, self.layout):
                back = edges[:, 0] >= len(self.border)
                for flip in (False, True):
                    ends, some = edges[back == flip], tables[back == flip]
                    if flip:
                        ends, some = ends[:, ::-1], np.swapaxes(some, 1, 2)
                    here = self.layout.entries(ends[:, 0], some.shape[1])
                    there = self.layout.entries(ends[:, 1], some.shape[2]) - self.width
                    shape = some.shape
                    rows.append(np.broadcast_to(here[:, :, None], shape).ravel())
                    columns.append(np.broadcast_to(there[:, None, :], shape).ravel())
                    values.append(some.ravel())
        none = np.zeros(0, dtype=np.int64)
        at = np.concatenate([none, *rows]), np.concatenate([none, *columns])
        shape = self.width, self.layout.size - self.width
        return coo_matrix((np.concatenate([np.zeros(0), *values]), at), shape=shape).tocsr()

    def gradient(self, border: Doubles, ghosts: Doubles) -> tuple[NDArray[np.float64], float]:
        """The gradient at the border, and what makes F of a rank its part of the whole F.

        A program whose unary energies hold the gradient g counts ⟨q, g⟩ for the cut. A term of k
        variables is counted once by each of them, so that 1/k of it is each variable's part.

        Args:
            border: Marginals of the border.
            ghosts: Marginals of the ghosts.
        """
        g = np.asarray(self.matrix @ ghosts)
        correction = self.constant - 0.5 * float(border @ g)
        if self.larger or self.extras:
            q = np.concatenate([border, ghosts])
            for factor in self.larger:
                out = np.zeros(self.layout.size)
                factor.add_gradient(self.layout, q, out)
                own = out[: self.width]
                correction -= (1.0 - 1.0 / factor.degree) * float(border @ own)
                g += own
            for term, counted in self.extras:
                energy, out = term.evaluate(q)
                own = out[: self.width]
                correction += energy * counted - expectation(border, own)
                g += own
        return g, correction

    def local_curvature(self) -> NDArray[np.float64]:
        """λ_i that these terms add to each variable of the border.  # (b,)"""
        total = np.zeros(self.layout.n_vars)
        for term in (*self.pairs, *self.larger):
            total += term.curvature(self.layout)
        for extra, _ in self.extras:
            raise missing(extra.term, "curvature", "a certified step")
        return total[: len(self.border)]


def tables_of(term: Term, layout: Layout) -> list[tuple[Ints, Floats]]:
    """A pairwise term as one table per edge: edges and tables of one shape each."""
    if isinstance(term, Ising):
        block = np.array([[1.0, -1.0], [-1.0, 1.0]])
        return [(term.edges, term.weights[:, None, None] * block)]
    if isinstance(term, Potts):
        cards = layout.cardinalities[term.edges]
        found = []
        for a, b in np.unique(cards, axis=0).tolist():
            rows = (cards == (a, b)).all(axis=1)
            differ = np.arange(a)[:, None] != np.arange(b)
            found.append((term.edges[rows], term.weights[rows, None, None] * differ))
        return found
    if isinstance(term, Factor) and term.degree == 2:
        return [(term.scopes, term.tables[term.index])]
    raise UnsupportedError(f"{type(term).__name__} is no pairwise term")


def refuse_gaussian(terms: list[Term]) -> None:
    """Raise `UnsupportedError` for terms that couple every pair of variables."""
    if any(isinstance(t, Gaussian) and not t.omitted for t in terms):
        raise UnsupportedError(
            "a Gaussian term couples every pair of variables, so that each rank would need all "
            "marginals of all others; refine large images by tiles instead"
        )


def forbidden() -> UnsupportedError:
    """The error for tables with +inf."""
    return UnsupportedError(
        "forbidden configurations aren't supported over several ranks; forbid single labels by "
        "unary energies, or use a large finite energy"
    )


def entries_of(layout: Layout, variables: Ints) -> Ints:
    """Entries of some variables, in their order."""
    counts = layout.cardinalities[variables]
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    common = layout.common  # without the offsets of all variables, where that is possible
    starts = layout.offsets[variables] if common is None else variables * common
    return np.repeat(starts - (ends - counts), counts) + np.arange(total)


def consecutive(entries: Ints) -> Ints | slice:
    """Entries as a slice, if they follow one another.

    Example:
        >>> consecutive(np.array([3, 4, 5])), consecutive(np.array([3, 5]))
        (slice(3, 6, None), array([3, 5]))
    """
    if len(entries) and (np.diff(entries) == 1).all():
        return slice(int(entries[0]), int(entries[-1]) + 1)
    return entries
