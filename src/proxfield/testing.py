"""Tools for testing inference: exact answers for small fields, and a residual from terms alone.

They need numpy alone and no test framework. The project's own tests use them, and they serve to
test a term, a rule or a kernel set of one's own:

    >>> import proxfield as pf
    >>> from proxfield.testing import enumerate_field
    >>> enumerate_field(pf.Field(2, 2, [pf.Potts([[0, 1]], 1.0)])).min_energy
    0.0
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from proxfield.core.terms.base import Ints, offers
from proxfield.errors import InputError
from proxfield.field import Field

MAX_LABELLINGS = 1 << 20
"""Maximum number of labellings that are enumerated by default."""
CHUNK = 1 << 21
"""Table lookups made at a time."""


@dataclass(frozen=True)
class Exact:
    """What enumeration finds out about a field, evidence included.

    Example:
        >>> import proxfield as pf
        >>> exact = enumerate_field(pf.Field([2], terms=[pf.Unary([[0.0, np.log(3)]])]))
        >>> exact.marginals.round(3), round(exact.log_z, 4)
        (array([0.75, 0.25]), 0.2877)
    """

    labellings: Ints
    """Every labelling that agrees with the evidence.  # (count, n_vars)"""
    energies: NDArray[np.float64]
    """Their energies, +inf where impossible.  # (count,)"""
    log_z: float
    """log Σ_x exp(−E(x)); −inf where every labelling is impossible."""
    marginals: NDArray[np.float64]
    """P(x_i = l), flat; NaN where every labelling is impossible.  # (layout.size,)"""
    min_energy: float
    """The smallest energy of a labelling."""
    labels: Ints
    """The first labelling that has it.  # (n_vars,)"""

    @property
    def feasible(self) -> bool:
        """Whether some labelling has a finite energy."""
        return self.min_energy < np.inf


def enumerate_field(field: Field, *, limit: int = MAX_LABELLINGS) -> Exact:
    """Exact log Z, marginals and minimum energy, by enumerating all labellings.

    Args:
        field: A small field; forbidden configurations and evidence are fine.
        limit: Maximum number of labellings.

    Returns:
        The exact answers.

    Raises:
        InputError: If there are more labellings than ``limit``.

    Example:
        >>> import proxfield as pf
        >>> field = pf.Field(3, n_labels=2, terms=[pf.Potts([[0, 1], [1, 2]], 1.0)])
        >>> exact = enumerate_field(field.condition({0: 1}))
        >>> exact.min_energy, exact.labels, exact.marginals[:2]
        (0.0, array([1, 1, 1]), array([0., 1.]))
    """
    x = labellings(field, limit=limit)
    e = labelling_energies(field, x)
    best = int(e.argmin())
    low = float(e[best])
    if low == np.inf:
        nothing = np.full(field.layout.size, np.nan)
        return Exact(x, e, -np.inf, nothing, np.inf, x[best])
    p = np.exp(low - e)
    total = float(p.sum())
    entries = field.layout.offsets[:-1] + x  # (count, n_vars)
    weight = np.broadcast_to((p / total)[:, None], entries.shape)
    sums = np.bincount(entries.ravel(), weights=weight.ravel(), minlength=field.layout.size)
    return Exact(x, e, float(np.log(total)) - low, sums.astype(np.float64), low, x[best])


def labellings(field: Field, *, limit: int = MAX_LABELLINGS) -> Ints:
    """Every labelling that agrees with the evidence, the last variable running fastest.

    Args:
        field: The field.
        limit: Maximum number of labellings.

    Returns:
        One labelling per row.  # (count, n_vars)

    Example:
        >>> labellings(Field([2, 1, 2]).condition({0: 1})).tolist()
        [[1, 0, 0], [1, 0, 1]]
    """
    seen = np.asarray(field.evidence)
    counts = np.where(seen < 0, field.cardinalities, 1)
    total = float(np.prod(counts, dtype=np.float64))
    if total > limit:
        raise InputError(f"{total:.3g} labellings are too many to enumerate, expected <= {limit}")
    index = np.arange(int(total))
    out = np.empty((int(total), field.n_vars), dtype=np.int64)
    for v in range(field.n_vars - 1, -1, -1):  # digits of the index, the last one first
        index, digit = np.divmod(index, counts[v])
        out[:, v] = digit if seen[v] < 0 else seen[v]
    return out


def labelling_energies(field: Field, labels: ArrayLike) -> NDArray[np.float64]:
    """Energies of many labellings at once, from the terms' explicit tables.

    Terms without tables are asked for one labelling at a time.

    Args:
        field: The field.
        labels: One labelling per row.  # (count, n_vars)

    Returns:
        Their energies.  # (count,)

    Example:
        >>> import proxfield as pf
        >>> field = pf.Field(2, n_labels=2, terms=[pf.Potts([[0, 1]], 3.0)])
        >>> labelling_energies(field, [[0, 0], [0, 1]])
        array([0., 3.])
    """
    x = np.asarray(labels, dtype=np.int64).reshape(-1, field.n_vars)
    out = np.zeros(len(x))
    per = max(1, CHUNK // max(1, len(x)))
    for term in field.terms:
        if not offers(term, "as_tables"):
            out += [term.labelling_energy(field.layout, row) for row in x]
            continue
        for scopes, tables, index in term.as_tables(field.layout):
            which = np.arange(len(scopes)) if index is None else index
            flat = np.asarray(tables, dtype=np.float64).reshape(-1)
            for start in range(0, len(scopes), per):
                rows = slice(start, start + per)
                at = np.broadcast_to(which[rows], (len(x), len(which[rows]))).copy()
                for p, size in enumerate(tables.shape[1:]):
                    at = at * size + x[:, scopes[rows, p]]
                out += flat[at].sum(axis=1)
    return out


def fixed_point_residual(field: Field, q: Any) -> float:
    """``max |softmax(−g(q)) − q|``: how far marginals are from a fixed point of mean field.

    The gradient g is summed from the terms' own ``add_gradient`` in float64, without lowering and
    without fused kernels, so that it checks what they compute.

    Args:
        field: The field. An observed variable's target puts all weight on its label.
        q: Marginals in any form that `Field.flatten` accepts.

    Returns:
        The largest difference of an entry; +inf if some variable has no possible label at q.

    Example:
        >>> import proxfield as pf
        >>> field = pf.Field(2, n_labels=2, terms=[pf.Potts([[0, 1]], 1.0)])
        >>> fixed_point_residual(field, np.full((2, 2), 0.5))
        0.0
        >>> round(fixed_point_residual(field, np.array([[1.0, 0.0], [1.0, 0.0]])), 4)
        0.2689
    """
    layout = field.layout
    flat = field.flatten(q)
    if layout.n_vars == 0:
        return 0.0
    g = np.zeros(layout.size)
    for term in field.terms:
        term.add_gradient(layout, flat, g)
    seen = np.flatnonzero(np.asarray(field.evidence) >= 0)
    at = layout.offsets[seen] + field.evidence[seen]
    if np.isinf(g[at]).any():
        return np.inf
    g[(np.asarray(field.evidence) >= 0)[layout.owner]] = np.inf
    g[at] = 0.0
    low = np.minimum.reduceat(g, layout.offsets[:-1])
    if np.isinf(low).any():
        return np.inf
    weight = np.exp(low[layout.owner] - g)
    target = weight / layout.sum_by_variable(weight)[layout.owner]
    return float(np.abs(target - flat).max())
