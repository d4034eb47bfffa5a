"""Ordinary fields as instances: each term gets a weight, and terms of one name share it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from proxfield.core.common.arrays import Ints
from proxfield.core.terms.base import Term, offers
from proxfield.core.terms.pairwise import Ising, Potts
from proxfield.errors import InputError, UnsupportedError, shown
from proxfield.field import Field
from proxfield.learn.blocks import Block
from proxfield.learn.tied import TiedField

FIXED = "(fixed)"
"""Name of the weight 1 of terms that aren't learned."""


def tie(field: Field, share: Sequence[str | None], labels: ArrayLike | None = None) -> TiedField:
    """A field whose terms have learnable weights: E = Σ_t w[share[t]] · E_t.

    Args:
        field: A field of terms that can be expressed as tables. Its evidence counts as observed.
        share: The name of each term's weight, in the order of ``field.terms``. Terms of the same
            name share it; None: the weight stays 1.
        labels: The truth, -1 where unknown.  # (n_vars,)

    Returns:
        An instance; each weight is an array of one number. Terms without a name have the weight
        ``"(fixed)"``.

    Example:
        >>> import proxfield as pf
        >>> field = pf.Field(3, 2, [pf.Unary([[0, 1.0]] * 3), pf.Potts([[0, 1], [1, 2]], 1.0)])
        >>> tie(field, [None, "smooth"], labels=[0, 0, 1]).parameter_shapes()
        {'(fixed)': (1,), 'smooth': (1,)}
    """
    names = check_share(field, share)
    blocks = [
        b for term, name in zip(field.terms, names, strict=True) for b in _blocks(term, name, field)
    ]
    observed = None if (field.evidence < 0).all() else np.array(field.evidence)
    return TiedField(field.cardinalities, blocks, labels, observed)


def check_share(field: Field, share: Sequence[str | None]) -> list[str]:
    """Names of the weights of a field's terms."""
    if isinstance(share, str) or len(share) != len(field.terms):
        raise InputError(
            f"share={shown(share)}, expected {len(field.terms)} names, one per term of the field"
        )
    for name in share:
        if name is not None and (not isinstance(name, str) or name == FIXED):
            raise InputError(f"share has {shown(name)}, expected names or None")
    return [FIXED if name is None else name for name in share]


def is_tabular(term: Term) -> bool:
    """Whether a term can be expressed as tables, and is lowered to them."""
    return offers(term, "lower") and offers(term, "as_tables")


def _blocks(term: Term, name: str, field: Field) -> list[Block]:
    if isinstance(term, (Potts, Ising)):
        return [
            Block(name, term.edges[part], features=term.weights[part, None], form=term.name)
            for part in _by_labels(field, term.edges)
        ]
    if not is_tabular(term):
        raise UnsupportedError(
            f"{type(term).__name__} can't be expressed as tables; use fit_weights with "
            'method="marginals"'
        )
    out = []
    for scopes, tables, index in term.as_tables(field.layout):
        arity = scopes.shape[1]
        if arity == 0:
            continue  # a constant: no label depends on it
        if not np.isfinite(tables).all():
            raise InputError(
                f"{type(term).__name__} forbids configurations, expected finite energies"
            )
        for part in _by_labels(field, scopes):
            shape = tuple(int(c) for c in field.cardinalities[scopes[part[0]]])
            rows = tables[index[part]] if index is not None else tables[part % len(tables)]
            size = int(np.prod(shape))
            form = np.eye(size).reshape(1, size, *shape)
            out.append(Block(name, scopes[part], features=rows.reshape(-1, size), form=form))
    return out


def _by_labels(field: Field, scopes: Ints) -> list[Any]:
    """Rows of scopes whose variables have the same numbers of labels."""
    if len(scopes) == 0:
        return []
    _, which = np.unique(field.cardinalities[scopes], axis=0, return_inverse=True)
    which = which.ravel()
    return [np.flatnonzero(which == k) for k in range(which.max() + 1)]
