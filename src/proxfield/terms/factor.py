"""Explicit tables over any number of variables."""

from __future__ import annotations

import string
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from proxfield.errors import InputError
from proxfield.terms.base import (
    Floats,
    Ints,
    Layout,
    Tables,
    Term,
    as_floats,
    as_indices,
    check_scopes,
    expectation,
)

if TYPE_CHECKING:
    from proxfield.lowering import Builder

CHUNK = 1 << 20
"""Table entries the numpy code expands at a time, so that shared tables stay small."""


@dataclass(frozen=True, eq=False)
class Factor(Term):
    """Tables over k variables each; all scopes of one term have the same shape.

    Args:
        scopes: The variables of each factor; one scope may be given as (k,).  # (m, k)
        tables: Energies; +inf forbids a configuration. One table may be given
            as (c_1, …, c_k).  # (T, c_1, …, c_k)
        index: Which table each scope uses. By default each its own (T = m), or
            the only one there is (T = 1).  # (m,)

    Example:
        >>> import proxfield as pf, numpy as np
        >>> xor = np.where(np.indices((2, 2, 2)).sum(0) % 2, 0.0, 1.5)
        >>> pf.Field([2, 2, 2]).add(Factor([0, 1, 2], xor)).energy([1, 1, 0])
        1.5
    """

    name = "factor"
    arity: ClassVar[int | None] = None
    scopes: Ints
    tables: Floats
    index: Ints

    def __init__(
        self, scopes: ArrayLike, tables: ArrayLike, index: ArrayLike | None = None
    ) -> None:
        raw = np.asarray(scopes)
        scope = as_indices(raw[None] if raw.ndim == 1 else raw, "scopes", 2)
        k = scope.shape[1]
        table = as_floats(tables, "a table's energies", allow_inf=True)
        if table.ndim == k:
            table = table[None]
        if k == 0 or table.ndim != k + 1:
            raise InputError(
                f"tables for {k} variables need {k} dimensions (or {k + 1} for several), "
                f"not shape {np.shape(tables)}"
            )
        if self.arity is not None and k != self.arity:
            raise InputError(f"{type(self).__name__} takes {self.arity} variables a scope, not {k}")
        m = len(scope)
        if index is None:
            which = np.zeros(m, dtype=np.int64) if len(table) == 1 else np.arange(m)
            if len(table) not in (1, m):
                raise InputError(f"{m} scopes but {len(table)} tables; pass index to share tables")
        else:
            which = as_indices(index, "table index", 1)
            if len(which) != m:
                raise InputError(f"{m} scopes but {len(which)} table indices")
            if m and (which.min() < 0 or which.max() >= len(table)):
                raise InputError(f"table index out of range 0 to {len(table) - 1}")
        for key, value in (("scopes", scope), ("tables", table), ("index", which)):
            object.__setattr__(self, key, value)

    @property
    def degree(self) -> int:  # type: ignore[override]
        """The number of variables of a scope."""
        return int(self.scopes.shape[1])

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Labels per position of the scopes."""
        return tuple(int(c) for c in self.tables.shape[1:])

    @cached_property
    def hard(self) -> bool:
        """Does a table forbid a configuration?"""
        return bool(np.isinf(self.tables).any())

    def validate(self, layout: Layout) -> None:
        check_scopes(layout, self.scopes, "scope")
        if self.scopes.size == 0:
            return
        want = layout.cardinalities[self.scopes]
        wrong = (want != np.array(self.shape)).any(axis=1)
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            raise InputError(
                f"scope {self.scopes[row].tolist()} has labels {want[row].tolist()}, "
                f"but its table has shape {list(self.shape)}"
            )

    def labelling_energy(self, layout: Layout, labels: Ints) -> float:
        at = (self.index, *labels[self.scopes].T)
        return float(self.tables[at].sum())

    def _rows(self) -> Iterator[tuple[slice, Floats]]:
        """Slices of scopes with their tables expanded, a bounded amount at a time."""
        per = max(1, CHUNK // max(1, int(np.prod(self.shape))))
        for start in range(0, len(self.scopes), per):
            rows = slice(start, start + per)
            yield rows, self.tables[self.index[rows]]

    def messages(self, layout: Layout, q: Floats, position: int) -> Floats:
        """Expected table for each label at one position of each scope.  # (m, c_position)

        out[f, l] = Σ table[f, x] Π_{p ≠ position} q_p(x_p) over x with x_position = l.
        """
        k = self.degree
        letters = string.ascii_letters[1 : k + 1]
        spec = ",".join(["a" + letters, *(f"a{letters[p]}" for p in range(k) if p != position)])
        spec += f"->a{letters[position]}"
        out = np.empty((len(self.scopes), self.shape[position]))
        for rows, tables in self._rows():
            weights = [
                q[layout.entries(self.scopes[rows, p], self.shape[p])]
                for p in range(k)
                if p != position
            ]
            if not self.hard:
                out[rows] = np.einsum(spec, tables, *weights, optimize=k > 3)
                continue
            forbidden = np.isinf(tables)
            soft = np.einsum(spec, np.where(forbidden, 0.0, tables), *weights)
            hit = np.einsum(spec, forbidden, *[w > 0 for w in weights])
            out[rows] = np.where(hit, np.inf, soft)
        return out

    def add_gradient(self, layout: Layout, q: Floats, out: Floats) -> None:
        for p in range(self.degree):
            at = layout.entries(self.scopes[:, p], self.shape[p])
            np.add.at(out, at, self.messages(layout, q, p))

    def energy(self, layout: Layout, q: Floats) -> float:
        at = layout.entries(self.scopes[:, 0], self.shape[0])
        return expectation(q[at], self.messages(layout, q, 0))

    def curvature(self, layout: Layout) -> Floats:
        return self._block_norms(layout, centred=True)

    def lipschitz(self, layout: Layout) -> float:
        norms = self._block_norms(layout, centred=False)
        return float(norms.max(initial=0.0))

    def _block_norms(self, layout: Layout, *, centred: bool) -> Floats:
        """λ_i = Σ_j max over the other labels of ‖block of the Hessian for i and j‖₂."""
        out = np.zeros(layout.n_vars)
        k = self.degree
        if self.hard:
            out[np.unique(self.scopes)] = np.inf
            return out
        for a in range(k):
            for b in range(a + 1, k):
                blocks = np.moveaxis(self.tables, (a + 1, b + 1), (-2, -1))
                blocks = blocks.reshape(len(self.tables), -1, *blocks.shape[-2:])
                norms = spectral_norms(blocks, centred=centred).max(axis=1)[self.index]
                np.add.at(out, self.scopes[:, a], norms)
                np.add.at(out, self.scopes[:, b], norms)
        return out

    def neighbours(self, layout: Layout) -> Ints:
        k = self.degree
        pairs = [self.scopes[:, [a, b]] for a in range(k) for b in range(a + 1, k)]
        return np.concatenate(pairs) if pairs else np.zeros((0, 2), dtype=np.int64)

    def lower(self, layout: Layout, builder: Builder) -> None:
        builder.add_tables(self.scopes, self.tables, self.index)

    def prune(self, layout: Layout, keep: NDArray[np.bool_]) -> bool:
        """Keep a label only if some allowed configuration of each scope supports it."""
        if not self.hard:
            return False
        before = int(keep.sum())
        k = self.degree
        for rows, tables in self._rows():
            entries = [layout.entries(self.scopes[rows, p], self.shape[p]) for p in range(k)]
            allowed = np.isfinite(tables)
            for p, at in enumerate(entries):  # an outer product of kept labels, axis by axis
                shape = [len(allowed)] + [1] * k
                shape[p + 1] = self.shape[p]
                allowed = allowed & keep[at].reshape(shape)
            for p, at in enumerate(entries):
                others = tuple(a + 1 for a in range(k) if a != p)
                np.logical_and.at(keep, at, allowed.any(axis=others))
        return int(keep.sum()) < before

    def as_tables(self, layout: Layout) -> Iterator[Tables]:
        yield self.scopes, self.tables, self.index


def spectral_norms(blocks: Floats, *, centred: bool) -> Floats:
    """Largest singular value of each matrix, after centring rows and columns if asked.

    Args:
        blocks: Matrices.  # (…, a, b)
        centred: Take P·block·P, with P the projection that removes the mean.

    Example:
        >>> float(spectral_norms(np.eye(2)[None], centred=True)[0])
        1.0
    """
    if centred:
        blocks = blocks - blocks.mean(axis=-1, keepdims=True)
        blocks = blocks - blocks.mean(axis=-2, keepdims=True)
    if blocks.size == 0:
        return np.zeros(blocks.shape[:-2])
    if blocks.shape[-2:] == (2, 2) and centred:  # closed form: ±x in every entry
        return np.asarray(2.0 * np.abs(blocks[..., 0, 0]))
    return np.asarray(np.linalg.norm(blocks, ord=2, axis=(-2, -1)))
