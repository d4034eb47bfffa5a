"""Explicit tables over any number of variables."""

from __future__ import annotations

import itertools
import string
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from proxfield.core.common.arrays import Floats, Ints
from proxfield.core.terms import base
from proxfield.core.terms.base import Layout, Tables, Term
from proxfield.errors import InputError

if TYPE_CHECKING:
    from proxfield.core.lowering.builder import Builder

CHUNK = 1 << 20
"""Table entries the numpy code expands at a time, so that shared tables stay small."""
SLOT_BYTES = 80
"""Indices per variable of a scope, temporary ones included."""
NORM_CHUNK = 1 << 18
"""Table entries whose norms are computed at a time, between looks at the clock."""


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
        scope = base.as_indices(raw[None] if raw.ndim == 1 else raw, "scopes", 2)
        k = scope.shape[1]
        if k == 0:
            raise InputError(
                "a factor needs at least one variable; Constant(3.0), say, is an energy without any"
            )
        table = base.as_floats(tables, "a table's energies", allow_inf=True)
        if table.ndim == k:
            table = table[None]
        if table.ndim != k + 1:
            raise InputError(
                f"tables for {k} variables need {k} dimensions (or {k + 1} for several), "
                f"not shape {np.shape(tables)}"
            )
        if self.arity is not None and k != self.arity:
            raise InputError(f"{type(self).__name__} takes {self.arity} variables a scope, not {k}")
        which = base.table_index(index, len(scope), len(table), "scopes")
        self._hold(scope, table, which)

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
        """Whether a table forbids a configuration."""
        return bool(self.tables.max(initial=0.0) == np.inf)

    def validate(self, layout: Layout) -> None:
        base.check_scopes(layout, self.scopes, "scope")
        if self.scopes.size == 0:
            return
        if layout.common is not None and set(self.shape) == {layout.common}:
            return
        want = layout.cardinalities[self.scopes]
        wrong = (want != np.array(self.shape)).any(axis=1)
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            raise InputError(
                f"scope {layout.show_scope(self.scopes[row])} has labels {want[row].tolist()}, "
                f"but its table has shape {list(self.shape)}"
            )

    def labelling_energy(self, layout: Layout, labels: Ints) -> float:
        at = (self.index, *labels[self.scopes].T)
        return float(self.tables[at].sum())

    def _rows(self, some: Ints | None = None) -> Iterator[tuple[Any, Floats]]:
        """Scopes (all by default) with their tables expanded, a bounded amount at a time."""
        per = max(1, CHUNK // max(1, int(np.prod(self.shape))))
        for start in range(0, len(self.scopes) if some is None else len(some), per):
            part = slice(start, start + per)
            rows = part if some is None else some[part]
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
        return base.expectation(q[at], self.messages(layout, q, 0))

    def curvature(self, layout: Layout, late: Callable[[], bool] = lambda: False) -> Floats:
        """As in `Term`; where it is ``late``, tables get a bound that is easy to compute."""
        return self._block_norms(layout, centered=True, late=late)

    def lipschitz(self, layout: Layout) -> float:
        norms = self._block_norms(layout, centered=False)
        return float(norms.max(initial=0.0))

    def _block_norms(
        self, layout: Layout, *, centered: bool, late: Callable[[], bool] = lambda: False
    ) -> NDArray[np.float64]:
        """λ_i = Σ_j max over the other labels of ‖block of the Hessian for i and j‖₂."""
        out = np.zeros(layout.n_vars)
        if self.hard:
            out[self.scopes.ravel()] = np.inf
            return out
        for a, b in itertools.combinations(range(self.degree), 2):
            norms = self.table_norms(a, b, centered=centered, late=late)
            np.add.at(out, self.scopes[:, a], norms[self.index])
            np.add.at(out, self.scopes[:, b], norms[self.index])
        return out

    def table_norms(
        self, a: int, b: int, *, centered: bool, late: Callable[[], bool] = lambda: False
    ) -> NDArray[np.float64]:
        """The largest norm of a block of two positions (rows a, columns b), of each table.  # (T,)

        centered: Of P·block·P, with P the projection that removes the mean; late: is there no more
        time? Then bounds that are easy to compute.
        """
        per = max(1, NORM_CHUNK // max(1, int(np.prod(self.shape))))
        norms = np.empty(len(self.tables))
        for start in range(0, len(self.tables), per):
            some = self.tables[start : start + per]
            if centered and max(self.shape[a], self.shape[b]) <= 3:
                norms[start : start + per] = small_block_norms(some, a, b)
                continue
            blocks = np.moveaxis(some, (a + 1, b + 1), (-2, -1))
            blocks = blocks.reshape(len(some), -1, *blocks.shape[-2:])
            found = spectral_norms(blocks, centered=centered, exact=not late())
            norms[start : start + per] = found.max(axis=1)
        return norms

    def workspace(self, layout: Layout) -> int:
        # tables are copied where scopes are turned round, joined or cut; each slot (a variable of
        # a scope) has places in lists by factor and by variable, and a message
        copies = 3.5 if self.degree == 2 or self.hard else 1.5
        per_slot = sum(SLOT_BYTES + 16 * c for c in self.shape)
        return int(copies * self.tables.nbytes) + per_slot * len(self.scopes)

    def neighbors(self, layout: Layout) -> Ints:
        pairs = itertools.combinations(range(self.degree), 2)
        none = np.zeros((0, 2), dtype=np.int64)
        return np.concatenate([none, *(self.scopes[:, pair] for pair in map(list, pairs))])

    def lower(self, layout: Layout, builder: Builder) -> None:
        builder.add_tables(self.scopes, self.tables, self.index)

    def prune(self, layout: Layout, keep: NDArray[np.bool_]) -> bool:
        """Keep a label only if some allowed configuration of each scope supports it."""
        return self.hard and len(self.unsupported(layout, keep, None)) > 0

    def unsupported(self, layout: Layout, keep: NDArray[np.bool_], some: Ints | None) -> Ints:
        """Clear in ``keep`` the labels that no allowed configuration of a scope supports.

        some: The scopes to look at, all by default.

        Returns:
            Variables that lost a label, possibly repeated.
        """
        k = self.degree
        lost = [np.zeros(0, dtype=np.int64)]
        for rows, tables in self._rows(some):
            scopes = self.scopes[rows]
            entries = [layout.entries(scopes[:, p], self.shape[p]) for p in range(k)]
            allowed = np.isfinite(tables)
            for p, at in enumerate(entries):  # an outer product of kept labels, axis by axis
                shape = [len(allowed)] + [1] * k
                shape[p + 1] = self.shape[p]
                allowed &= keep[at].reshape(shape)
            for p, at in enumerate(entries):
                others = tuple(a + 1 for a in range(k) if a != p)
                gone = keep[at] & ~allowed.any(axis=others)
                if gone.any():
                    keep[at[gone]] = False
                    lost.append(scopes[gone.any(axis=1), p])
        return np.concatenate(lost)

    def as_tables(self, layout: Layout) -> Iterator[Tables]:
        yield self.scopes, self.tables, self.index


def small_block_norms(tables: Floats, a: int, b: int) -> NDArray[np.float64]:
    """Largest ‖P·block·P‖₂ over the blocks of two positions with up to 3 labels each.  # (m,)

    In an orthonormal basis of the centered vectors a block has at most 2 rows and columns, and
    the norm of [[p, q], [r, s]] is half of √((p+s)² + (r−q)²) + √((p−s)² + (r+q)²).
    """
    # tables last: everything below is arithmetic on contiguous arrays of m numbers
    moved = np.moveaxis(tables, (a + 1, b + 1, 0), (0, 1, -1))
    moved = np.ascontiguousarray(moved).reshape(*moved.shape[:2], -1, len(tables))
    out = np.zeros(len(tables))
    for other in range(moved.shape[2]):
        rows = [centered_parts(list(row)) for row in moved[:, :, other]]
        block = [centered_parts(list(column)) for column in zip(*rows, strict=True)]
        numbers = [x for column in block for x in column]
        if len(numbers) == 4:
            p, r, q, s = numbers
            norm = 0.5 * (np.hypot(p + s, r - q) + np.hypot(p - s, r + q))
        elif numbers:
            norm = np.abs(numbers[0]) if len(numbers) == 1 else np.hypot(*numbers)
        if numbers:
            np.maximum(out, norm, out=out)
    return out


def centered_parts(values: list[Floats]) -> list[Floats]:
    """Up to 3 numbers per table in an orthonormal basis of those that sum to 0."""
    if len(values) == 3:
        x, y, z = values
        return [(x - y) * 0.5**0.5, (x + y - 2.0 * z) * (1 / 6) ** 0.5]
    return [(values[0] - values[1]) * 0.5**0.5] if len(values) == 2 else []


def spectral_norms(blocks: Floats, *, centered: bool, exact: bool = True) -> Floats:
    """Largest singular value of each matrix, after centering rows and columns if asked.

    exact: Otherwise the Frobenius norm, which is no smaller and takes less time.
    """
    if blocks.size == 0:
        return np.zeros(blocks.shape[:-2])
    if centered:
        blocks = blocks - blocks.mean(axis=-1, keepdims=True)
        blocks -= blocks.mean(axis=-2, keepdims=True)
    if blocks.shape[-2:] == (2, 2) and centered:  # closed form: ±x in every entry
        return np.asarray(2.0 * np.abs(blocks[..., 0, 0]))
    if exact:
        return np.asarray(np.linalg.norm(blocks, ord=2, axis=(-2, -1)))
    size = np.maximum(blocks.max(axis=(-2, -1)), -blocks.min(axis=(-2, -1)))
    scale = np.where(size > 0, size, 1.0)[..., None, None]  # squares of large numbers overflow
    return np.asarray(size * np.linalg.norm(blocks / scale, axis=(-2, -1)))
