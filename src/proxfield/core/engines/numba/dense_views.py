"""The lattices that the pixels of a dense field are filtered with, and how they are blurred.

Fields of two labels under Potts terms need one number per pixel. With v = q₁ − q₀ the labels'
energies differ by u₁ − u₀ − Σ w (K v), so one channel is filtered instead of two, a row of a
lattice is one number, and the softmax is a logistic function. For full steps without a trace, in
half the time that `proxfield.core.engines.numba.dense` takes (5.4 and 2.9 ms for 77,000 pixels on
one thread); everything else goes through that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from proxfield.core.common.arrays import Doubles, Floats, Ints
from proxfield.core.compiled.jit import inlined, parallel_kernel
from proxfield.core.compiled.math import exp_nonpositive
from proxfield.core.compiled.simd import LANES, padded
from proxfield.core.engines.numba.dense import LatticeArrays
from proxfield.core.filters.lattice import Separable
from proxfield.core.filters.numba import lattice
from proxfield.core.filters.numba.lattice import CHUNK, RUN, Chunks, Indices, Rows
from proxfield.core.terms.base import Term
from proxfield.core.terms.gaussian import Gaussian

TOGETHER = 4
"""Tuples of arrays for kernels have a multiple of this length."""


def together(arrays: list[Any]) -> tuple[Any, ...]:
    """Arrays of several lattices for a kernel, with copies of the last (never read) at the end.

    A kernel is compiled for each length of a tuple; few lengths are few kernels.

    Example:
        >>> together(["a", "b"])
        ('a', 'b', 'b', 'b')
    """
    return (*arrays, *arrays[-1:] * (-len(arrays) % TOGETHER))


@dataclass(eq=False)
class View:
    """One lattice with the scales before and after it, and the compatibility behind it."""

    filter: Any  # LatticeFilter
    factor_in: Floats  # (n,)
    factor_out: Floats  # (n,)
    table: Floats  # (1, 1) or (labels, labels)
    rows: Floats


class Views:
    """All of them, in the same chunks of pixels, and the room to blur them in.

    Args:
        terms: Gaussian terms over the lattice, all of the same points.
        labels: Number of labels of each point.
        dtype: Floating-point type.
        threads: Threads that work on them.
    """

    fused = True
    """Made by `DenseProgram` from all terms together, never from one term."""

    @staticmethod
    def accepts(term: Term) -> bool:
        """Whether this is a term over the first variables, filtered with a lattice."""
        assert isinstance(term, Gaussian)
        return term.first == 0 and term.n_points > 0 and term.filter_kind == "lattice"

    def __init__(
        self, terms: list[Gaussian], labels: int, dtype: np.dtype[np.floating], threads: int
    ) -> None:
        self.labels, self.dtype, self.threads = labels, dtype, threads
        self.views = [view for term in terms for view in self._views(term)]
        # all lattices have the same chunks of pixels: blocks of the image if any has those
        width = max(v.filter.width for v in self.views)
        most = min(lattice.chunk_size(v.filter.row.shape[1] - 1) for v in self.views)
        self.chunks = lattice.make_chunks(terms[0].n_points, width, most)
        """Which pixels are handled together."""
        found: dict[int, Any] = {}  # of each filter: a term may have two views of one
        for view in self.views:
            mine = view.filter
            same = zip(mine.chunks, self.chunks, strict=True)
            if not all(np.array_equal(a, b) for a, b in same):
                if id(mine) not in found:
                    found[id(mine)] = mine.regrouped(width, most)
                view.filter = found[id(mine)]
        self.longest = int(sum(np.diff(v.filter.chunk) for v in self.views).max())
        """Rows of the largest chunk, of all lattices together."""
        self.separable = [v for v in self.views if isinstance(v.filter.blurring, Separable)]
        """Those that may be blurred together."""
        self.others = [v for v in self.views if not isinstance(v.filter.blurring, Separable)]
        self.most = 1 + max((v.filter.n_vertices for v in self.separable), default=0)
        """Vertices of the largest of the separable lattices, and one that stands for none."""
        tasks = len(self.separable) * (padded(labels) // LANES)
        cached = 2 * self.most * LANES * self.dtype.itemsize <= lattice.CACHE_BYTES
        self.blur_by(cached and tasks >= threads, self.most < lattice.FEW_VERTICES)

    def __iter__(self) -> Iterator[View]:
        return iter(self.views)

    def _views(self, term: Gaussian) -> list[View]:
        table = term.compatibility(self.labels)
        scaled = (table == table[0, 0] * np.eye(self.labels)).all()
        table = (table[:1, :1] if scaled else table).astype(self.dtype)
        out = []
        for scales in term.scales:
            kept = [None if s is None else s.astype(self.dtype, copy=False) for s in scales]
            inward, outward = (np.ones(term.n_points, self.dtype) if s is None else s for s in kept)
            outward = inward if scales[0] is scales[1] else outward  # one array in the cache
            none = np.empty((0, padded(self.labels)), dtype=self.dtype)
            out.append(View(term.filter, inward, outward, table, none))
        return out

    def lattices(self, rows: list[Floats] | None = None) -> LatticeArrays:
        """What the kernels read.

        Args:
            rows: Rows with one number each, for `advance_pair`; by default those of the views, for
                `dense`, with all arrays in one dimension (which compiles faster than doing it
                there).
        """
        each = (
            (v.filter.row, v.filter.weight, v.filter.chunk, v.factor_in, v.factor_out, v.rows)
            for v in self.views
        )
        *arrays, own = map(list, zip(*each, strict=True))
        arrays.append(own if rows is None else rows)
        if rows is None:
            arrays = [[a.reshape(-1) for a in some] for some in arrays]
        return LatticeArrays._make([*map(together, arrays), len(self.views), self.longest])

    # ---- blurring: rows as splatted → rows to slice from ----

    def blur_by(self, apart: bool, few: bool) -> None:
        """Choose who blurs separable lattices.

        Args:
            apart: One thread has eight channels of a lattice; else all threads have each step.
            few: One thread has a lattice where there is one channel; else all have each step.
        """
        self.apart, self.few = apart, few
        self._spare: dict[int, Floats] = {}

    def _room(self, view: View | None) -> Floats:
        """What a lattice is blurred in; separable ones share it."""
        key = -1 if view is None else id(view.filter)
        if key not in self._spare:
            width = padded(self.labels)
            if view is not None:
                room = view.filter.blurring.workspace(view.filter.own, width, self.dtype)
            else:
                lanes = (self.threads, 2) if self.apart else (2 * width // LANES,)
                room = np.empty((*lanes, self.most, LANES), dtype=self.dtype)
            self._spare[key] = room
        return self._spare[key]

    def blur(self) -> None:
        """The rows of each view."""
        for view in self.others:
            before, room = view.rows, self._room(view)
            view.rows = view.filter.blur(before, view.table, room)
            self._spare[id(view.filter)] = room if view.rows is before else before
        if not self.apart:
            for view in self.separable:
                view.filter.blur(view.rows, view.table, self._room(None))
        elif self.separable:
            rows = together([v.rows for v in self.separable])
            lattice.blur_apart(*self._apart, rows, self._bounds, self._room(None))
            for view in self.separable:
                if len(view.table) > 1:
                    lattice.mix_labels(view.rows, view.table)

    def blur_one(self, rows: list[Any], spare: list[Floats]) -> None:
        """Rows with one number each, under Potts terms."""
        alike = self.separable if self.few else []
        if alike:
            theirs = [r for r, v in zip(rows, self.views, strict=True) if v in alike]
            lattice.blur_apart_one(*self._apart, together(theirs), spare[-1])
        for t, view in enumerate(self.views):
            if view not in alike:
                seen = view.filter.blur_one(rows[t], *spare[t], self.few)
                distribute_pair(view.filter.own.vertex, seen, view.table[0, 0], rows[t])

    @cached_property
    def _apart(self) -> tuple[Any, ...]:
        """The separable lattices: rows by vertex, neighbors, shares of the blur, and what rows are
        multiplied with (1 where a matrix over the labels follows)."""
        parts = [(v.filter.own, v.filter.blurring) for v in self.separable]
        weights = [v.table[0, 0] if len(v.table) == 1 else 1.0 for v in self.separable]
        arrays = [(o.start, o.member, o.vertex, b.next_to, b.there_and_back) for o, b in parts]
        lists = map(together, map(list, zip(*arrays, strict=True)))
        return *lists, np.array([b.share for _, b in parts]), np.array(weights, dtype=self.dtype)

    @cached_property
    def _bounds(self) -> Ints:
        """Which thread blurs which eight channels of which of the separable lattices."""
        passes = [v.filter.n_vertices * (2 + 2 * v.filter.row.shape[1]) for v in self.separable]
        return lattice.share_tasks(np.repeat(passes, padded(self.labels) // LANES), self.threads)


# ---- one number per pixel ----


@parallel_kernel
def spins(q: Floats, out: Floats) -> None:
    """q₁ − q₀ of each pixel.  # (2n,) -> (n,)"""
    for c in numba.prange((len(out) + CHUNK - 1) // CHUNK):
        for i in range(c * CHUNK, min(len(out), (c + 1) * CHUNK)):
            out[i] = q[2 * i + 1] - q[2 * i]


@parallel_kernel
def distribute_pair(vertex: Indices, vertices: Floats, weight: float, rows: Floats) -> None:
    """Give each row its vertex's number times a weight."""
    n = len(vertex)
    for task in numba.prange((n + lattice.VERTICES - 1) // lattice.VERTICES):
        for r in range(task * lattice.VERTICES, min(n, (task + 1) * lattice.VERTICES)):
            rows[r] = vertices[vertex[r]] * weight


@inlined
def see_pair(
    row: Rows, weight: NDArray[np.float32], factor: Floats, begin: int, rows: Floats, i0: int,
    i1: int, x: Floats,
) -> None:  # fmt: skip
    """Add the filtered values of pixels from one lattice."""
    corners = row.shape[1]
    mine = rows[begin:]
    for i in range(i0, i1):
        seen = x.dtype.type(0.0)
        for k in range(corners):
            seen += weight[i, k] * mine[row[i, k]]
        x[i - i0] += factor[i] * seen


@inlined
def splat_pair(
    row: Rows, weight: NDArray[np.float32], factor: Floats, begin: int, rows: Floats, i0: int,
    i1: int, v: Floats,
) -> None:  # fmt: skip
    """Spread pixels over one lattice."""
    corners = row.shape[1]
    mine = rows[begin:]
    for i in range(i0, i1):
        value = v[i - i0] * factor[i]
        for k in range(corners):
            mine[row[i, k]] += weight[i, k] * value


@parallel_kernel
def advance_pair(
    unary: Floats, q: Floats, chunks: Chunks, lattices: LatticeArrays, fresh: tuple[Floats, ...],
    blind: bool, passing: bool, change: Doubles,
) -> None:  # fmt: skip
    """One full step in place; ``change`` gets the largest one of each chunk (+inf if blind).

    fresh: The rows as splatted afterwards.
    passing: don't store the marginals, only splat them.
    """
    run, first, end = chunks
    row, weight, chunk, factor_in, factor_out, rows, number, _ = lattices
    for c in numba.prange(len(change)):
        x = np.empty(RUN, dtype=q.dtype)
        e = np.empty(RUN, dtype=q.dtype)
        one, zero = q.dtype.type(1.0), q.dtype.type(0.0)
        largest = zero
        for t in range(number):
            target = fresh[t]
            for k in range(chunk[t][c], chunk[t][c + 1]):
                target[k] = 0.0
        for r in range(run[c], run[c + 1]):
            i0, i1 = first[r], end[r]
            for i in range(i0, i1):
                x[i - i0] = unary[2 * i + 1] - unary[2 * i]
            for t in range(number):
                see_pair(row[t], weight[t], factor_out[t], chunk[t][c], rows[t], i0, i1, x)
            for k in range(i1 - i0):
                e[k] = exp_nonpositive(-abs(x[k]))
            for i in range(i0, i1):
                k = i - i0
                small = e[k] / (one + e[k])
                up = small if x[k] > zero else one - small
                if not blind:
                    moved = abs(up - q[2 * i + 1])
                    if moved > largest or moved != moved:
                        largest = moved
                down = one - small if x[k] > zero else small
                if not passing:
                    q[2 * i + 1] = up
                    q[2 * i] = down
                x[k] = up - down
            for t in range(number):
                splat_pair(row[t], weight[t], factor_in[t], chunk[t][c], fresh[t], i0, i1, x)
        change[c] = np.inf if blind else np.float64(largest)
