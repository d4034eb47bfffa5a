"""How strongly the variables of a lowered field interact."""

from __future__ import annotations

import numpy as np

from proxfield.core.lowering.lowered import Lowered

MAX_EXPONENT = 400
"""Of 2, of the largest interaction: beyond, all are scaled before squares are taken."""


def interaction_scale(lowered: Lowered) -> float:
    """A typical critical temperature: the root of the summed squares of a variable's interactions.

    It is averaged over the variables that interact. The size of an interaction is the root mean
    square of its table without the mean of each row and column; that of J·s·t is |J|. Where nothing
    interacts, it is 0.

    Example:
        >>> import proxfield as pf
        >>> field = pf.Field(5, n_labels=2).add(pf.Ising([[0, i] for i in range(1, 5)], 3.0))
        >>> interaction_scale(field.lower())  # one variable has four neighbors, four have one
        3.6
    """
    weighted = [t.weights for t in (lowered.ising, lowered.potts) if t is not None]
    weighted += [np.where(np.isfinite(f.tables), f.tables, 0.0) for f in lowered.factors]
    largest = max((float(np.abs(a).max(initial=0.0)) for a in weighted), default=0.0)
    exponent = int(np.frexp(largest)[1])
    if abs(exponent) > MAX_EXPONENT:  # squares would overflow, or vanish
        return float(np.ldexp(interaction_scale(lowered.scaled(-exponent)), exponent))
    n, layout = lowered.layout.n_vars, lowered.layout
    total = np.zeros(n)
    if lowered.ising is not None:
        for end in lowered.ising.edges.T:
            total += np.bincount(end, lowered.ising.weights**2, minlength=n)
    if lowered.potts is not None:
        c = layout.cardinalities[lowered.potts.edges].max(axis=1)
        size = lowered.potts.weights**2 * (c - 1) / c**2
        for end in lowered.potts.edges.T:
            total += np.bincount(end, size, minlength=n)
    for factor in lowered.factors:
        tables, axes = factor.tables, range(1, factor.tables.ndim)
        rest = tables - tables.mean(axis=tuple(axes), keepdims=True)
        effects = [rest.mean(axis=tuple(a for a in axes if a != b), keepdims=True) for b in axes]
        square = ((rest - sum(effects)) ** 2).mean(axis=tuple(axes))[factor.index]
        for column in factor.scopes.T:
            total += np.bincount(column, square, minlength=n)
    strength = np.sqrt(total)
    return float(strength[strength > 0].mean()) if strength.any() else 0.0


def unary_scale(lowered: Lowered) -> float:
    """How far apart the unary energies of a variable are, averaged over variables.

    Example:
        >>> import proxfield as pf
        >>> field = pf.Field(2, 3).add(pf.Unary([[0.0, 2.0, 1.0], [1.0, 5.0, np.inf]]))
        >>> unary_scale(field.lower())
        3.0
    """
    layout, unary = lowered.layout, lowered.unary
    if layout.n_vars == 0:
        return 0.0
    start, possible = layout.offsets[:-1], np.isfinite(unary)
    high = np.maximum.reduceat(np.where(possible, unary, -np.inf), start)
    low = np.minimum.reduceat(np.where(possible, unary, np.inf), start)
    return float((high - low).mean())
