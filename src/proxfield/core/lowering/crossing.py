"""The best of two labellings, part by part.

Where two labellings x and y differ, the variables that differ form connected components: no term
holds variables of two of them. Changing x to y in one component therefore changes the energy by an
amount that doesn't depend on the others, and each component can be decided by itself. The
result is at most as high in energy as the better of the two, and usually lower than both.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from proxfield.core.lowering.components import Components
from proxfield.core.lowering.lowered import Lowered
from proxfield.core.lowering.merging import group_positions
from proxfield.core.terms.base import Ints
from proxfield.core.terms.factor import Factor
from proxfield.core.terms.pairwise import Ising, Potts


class Crossing:
    """Combines labellings of one lowered field.

    Args:
        lowered: A field whose terms are all lowered to tables, without forbidden configurations.

    Example:
        >>> import proxfield as pf
        >>> field = pf.Field(4, n_labels=2).add(pf.Ising([[0, 1], [2, 3]], 1.0))
        >>> crossing = Crossing(field.lower())
        >>> crossing.improved(np.array([0, 0, 0, 1]), np.array([0, 1, 1, 1]))
        (array([0, 1, 0, 1]), -2.0)
    """

    def __init__(self, lowered: Lowered) -> None:
        self.lowered, self.layout = lowered, lowered.layout
        n = self.layout.n_vars
        self.components = Components(lowered)
        weighted = [t for t in (lowered.ising, lowered.potts) if t is not None]
        self.terms = [Incidence(t, t.edges, n) for t in weighted]
        self.terms += [Incidence(f, f.scopes, n) for f in lowered.factors]

    def changes(
        self, x: Ints, y: Ints, component: NDArray[np.int32], count: int
    ) -> NDArray[np.float64]:
        """The change of the energy of x where one component takes the labels of y.  # (count,)"""
        unary, at = self.lowered.unary, np.flatnonzero(component >= 0)
        here = self.layout.offsets[at]
        change = unary[here + y[at]] - unary[here + x[at]]
        out: NDArray[np.float64] = np.bincount(component[at], change, minlength=count).astype(float)
        for term in self.terms:
            some = term.touching(at)
            scopes = term.scopes[some].T
            place = component[scopes[0]]
            for part in scopes[1:]:
                place = np.maximum(place, component[part])
            change = term.energies(some, y[scopes]) - term.energies(some, x[scopes])
            out += np.bincount(place, change, minlength=count)
        return out

    def improved(self, x: Ints, y: Ints, difference: float | None = None) -> tuple[Ints, float]:
        """x with the components of y that don't raise its energy, and the change of the energy.

        Args:
            x: A labelling.  # (n_vars,)
            y: Another one.
            difference: E(y) − E(x), if it is known; saves time where there is one component.
        """
        differs = x != y
        if not differs.any():
            return x, 0.0
        component, count = self.components.of(differs)
        if count == 1 and difference is not None:
            return (y, difference) if difference <= 0.0 else (x, 0.0)
        change = self.changes(x, y, component, count)
        taken = np.append(change <= 0.0, False)  # the last one is for variables without component
        return np.where(taken[component], y, x), float(change[change <= 0.0].sum())


class Incidence:
    """A term and the scopes that each variable is in.

    Args:
        term: The term.
        scopes: Its scopes.  # (m, k)
        n: Number of variables.
    """

    def __init__(self, term: Ising | Potts | Factor, scopes: Ints, n: int) -> None:
        self.term, self.scopes = term, scopes
        self.row, position = group_positions(scopes.ravel(), n)
        self.scope = position // max(1, scopes.shape[1])

    def touching(self, variables: Ints) -> Ints:
        """Scopes that hold some of the variables, in order."""
        first = self.row[variables]
        length = self.row[variables + 1] - first
        skipped = np.cumsum(length) - length
        places = np.repeat(first - skipped, length) + np.arange(int(length.sum()))
        touched = np.zeros(len(self.scopes), dtype=bool)
        touched[self.scope[places]] = True
        return np.flatnonzero(touched)

    def energies(self, some: Ints, labels: Ints) -> NDArray[np.float64]:
        """The energy of some scopes.

        Args:
            some: Which.  # (s,)
            labels: Labels of their variables.  # (k, s)
        """
        term = self.term
        if isinstance(term, Factor):
            at = (term.index[some], *labels)
            return np.asarray(term.tables[at])
        unequal = labels[0] != labels[1]
        if isinstance(term, Potts):
            return np.asarray(term.weights[some] * unequal)
        return np.asarray(term.weights[some] * (1.0 - 2.0 * unequal))
