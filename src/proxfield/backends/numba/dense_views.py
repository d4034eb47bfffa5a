"""The lattices that the pixels of a dense field are filtered with, and how they are blurred."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from proxfield.backends.numba import dense_pair
from proxfield.compiled.simd import LANES, padded
from proxfield.filters.geometry import NEIGHBOR_SHARE
from proxfield.filters.numba import lattice
from proxfield.filters.numba.lattice import CACHE_BYTES, FEW_VERTICES
from proxfield.terms.base import Term
from proxfield.terms.gaussian import Gaussian

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


@dataclass
class View:
    """One lattice with the scales before and after it, and the compatibility behind it."""

    filter: Any  # LatticeFilter
    factor_in: NDArray[Any]  # (n,)
    factor_out: NDArray[Any]  # (n,)
    table: NDArray[Any]  # (1, 1) or (labels, labels)
    rows: NDArray[Any]
    row: NDArray[Any]  # of each corner, within its chunk  # (n, d + 1)


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

    def __init__(self, terms: list[Gaussian], labels: int, dtype: Any, threads: int) -> None:
        self.labels, self.dtype, self.threads = labels, np.dtype(dtype), threads
        self.views = [view for term in terms for view in self._views(term)]
        self._share_chunks(terms[0].n_points)
        kinds = {v.filter.row.dtype for v in self.views}
        if len(kinds) > 1:  # kernels take arrays of one type
            for view in self.views:
                view.row = view.filter.row.astype(np.int32, copy=False)
        self.longest = int(sum(np.diff(v.filter.chunk) for v in self.views).max())
        """Rows of the largest chunk, of all lattices together."""
        self.most = 1 + max(v.filter.n_vertices for v in self.views)
        tasks = len(self.views) * (padded(labels) // LANES)
        cached = 2 * self.most * LANES * self.dtype.itemsize <= CACHE_BYTES
        self.blur_by(cached and tasks >= threads, self.most < FEW_VERTICES)

    def __iter__(self) -> Iterator[View]:
        return iter(self.views)

    def __len__(self) -> int:
        return len(self.views)

    def _views(self, term: Gaussian) -> list[View]:
        table = term.compatibility(self.labels)
        scaled = (table == table[0, 0] * np.eye(self.labels)).all()
        table = table[:1, :1] if scaled else table
        out = []
        for inward, outward in term.scales:
            same = outward is inward
            inward = self._factor(inward, term.n_points)
            outward = inward if same else self._factor(outward, term.n_points)
            none = np.empty((0, padded(self.labels)), dtype=self.dtype)
            made: Any = term.filter
            out.append(View(made, inward, outward, table.astype(self.dtype), none, made.row))
        return out

    def _factor(self, scale: NDArray[Any] | None, n: int) -> NDArray[Any]:
        if scale is None:
            return np.ones(n, dtype=self.dtype)
        return scale.astype(self.dtype, copy=False)

    def _share_chunks(self, n: int) -> None:
        """Let all lattices have the same chunks of pixels: blocks of the image if any has those."""
        width = max(v.filter.width for v in self.views)
        self.chunks = lattice.make_chunks(n, width)
        """Which pixels are handled together."""
        found: dict[int, Any] = {}  # of each filter: a term may have two views of one
        for view in self.views:
            mine = view.filter
            if not np.array_equal(mine.chunks.begin, self.chunks.begin):
                if id(mine) not in found:
                    found[id(mine)] = mine.regrouped(width)
                view.filter = found[id(mine)]
                view.row = view.filter.row

    def through(self, *names: str) -> tuple[tuple[Any, ...], ...]:
        """Attributes of all views (or of their lattices), `together`."""
        return tuple(
            together([getattr(v if hasattr(v, name) else v.filter, name) for v in self.views])
            for name in names
        )

    def flat(self, *names: str) -> tuple[tuple[Any, ...], ...]:
        """The same, each array in one dimension (which compiles faster than doing it there)."""
        return tuple(tuple(a.reshape(-1) for a in arrays) for arrays in self.through(*names))

    # ---- blurring: rows as splatted → rows to slice from ----

    def blur_by(self, apart: bool, few: bool) -> None:
        """Choose who blurs what.

        Args:
            apart: One thread has eight channels of a lattice; else all threads have each step.
            few: One thread has a lattice where there is one channel; else all have each step.
        """
        self.apart, self.few = apart, few
        lanes = (self.threads, 2) if apart else (2 * padded(self.labels) // LANES,)
        self.spare = np.empty((*lanes, self.most, LANES), dtype=self.dtype)

    def blur(self) -> None:
        """The rows of each view."""
        if not self.apart:
            for view in self.views:
                view.filter.blur(view.rows, view.table, self.spare)
            return
        lattice.blur_apart(
            *self._lattices, NEIGHBOR_SHARE, self._weights, *self.through("rows"), self.spare
        )
        for view in self.views:
            if len(view.table) > 1:
                lattice.mix_labels(view.rows, view.table)

    def room_for_one(self) -> NDArray[Any]:
        """What `blur_one` works in."""
        return np.empty((len(self.views), 2, self.most), dtype=self.dtype)

    def blur_one(self, rows: list[Any], spare: NDArray[Any]) -> None:
        """Rows with one number each, under Potts terms."""
        if self.few:
            lattice.blur_apart_one(
                *self._lattices, NEIGHBOR_SHARE, self._weights, together(rows), spare
            )
            return
        for t, view in enumerate(self.views):
            seen = view.filter.blur_one(rows[t], *spare[t], False)
            dense_pair.distribute_pair(view.filter.vertex, seen, view.table[0, 0], rows[t])

    @cached_property
    def _lattices(self) -> tuple[tuple[Any, ...], ...]:
        return self.through("start", "member", "vertex", "next_to", "there_and_back")

    @cached_property
    def _weights(self) -> NDArray[Any]:
        """What rows are multiplied with; 1 where a matrix over the labels follows."""
        weights = [v.table[0, 0] if len(v.table) == 1 else 1.0 for v in self.views]
        return np.array(weights, dtype=self.dtype)
