"""Chains in numpy, written to be read: the reference of `numba.binary_chains` and others.

Random numbers are by counting. With n variables, the first n of a chain draw its labelling from the
start, and sweep t uses those from n·(t + 1) on: of the variables in their order, or of a
forest's from its roots to its leaves (the last variable first), then of those in no forest.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from proxfield.core.compiled.random import uniforms
from proxfield.core.lowering.forests import Forests, graph_of, make_forests
from proxfield.core.lowering.lowered import Lowered
from proxfield.core.terms.base import Doubles, Floats, Ints


def temperature(t: int, sweeps: int, hot: float, cold: float) -> float:
    """A geometric schedule from ``hot`` to ``cold``.

    Example:
        >>> [temperature(t, 3, 4.0, 1.0) for t in range(3)]
        [4.0, 2.0, 1.0]
    """
    return hot * (cold / hot) ** (t / (sweeps - 1)) if sweeps > 1 else cold


def soft_minimum(energy: Doubles, heat: float) -> Doubles:
    """−T log Σ exp(−energy / T) over the first axis; +inf where all are."""
    low = energy.min(axis=0)
    base = np.where(np.isinf(low), 0.0, low)
    with np.errstate(divide="ignore"):
        return np.asarray(base - heat * np.log(np.exp((base - energy) / heat).sum(axis=0)))


def usable_in_forests(lowered: Lowered) -> NDArray[np.bool_]:
    """Which variables may be in a forest: of binary fields, those with both labels possible."""
    layout = lowered.layout
    binary = layout.common == 2 and not (lowered.potts or lowered.factors)
    if not binary or not layout.n_vars:
        return np.ones(layout.n_vars, dtype=bool)
    # the compact kernels take variables with an impossible label out
    return np.asarray(np.maximum.reduceat(lowered.unary, layout.offsets[:-1]) < np.inf)


class ReferenceChains:
    """Chains of one field.

    Args:
        lowered: The field.
    """

    def __init__(self, lowered: Lowered) -> None:
        self.lowered, self.layout = lowered, lowered.layout
        o = self.layout.offsets
        self.at = [slice(int(o[i]), int(o[i + 1])) for i in range(self.layout.n_vars)]
        self._forests: Forests | None = None

    @property
    def forests(self) -> Forests:
        """The forests of the compiled chains."""
        if self._forests is None:
            self._forests = make_forests(graph_of(self.lowered), usable_in_forests(self.lowered))
        return self._forests

    # ---- energies ----

    def interactions(self, q: Floats) -> Doubles:
        """What labels pay by all terms but the unary energies; variables where q is 0 are left
        out, since every term is linear in each variable's marginals."""
        g = np.zeros(self.layout.size)
        for term in self.lowered.terms:
            term.add_gradient(self.layout, q, g)
        return g

    def one_hot(self, labels: Ints) -> Doubles:
        """Marginals of a labelling."""
        q = np.zeros(self.layout.size)
        q[self.layout.offsets[:-1] + labels] = 1.0
        return q

    def local(self, labels: Ints, i: int) -> Doubles:
        """Energies of the labels of one variable given all others."""
        at = self.at[i]
        return np.asarray(self.lowered.unary[at] + self.interactions(self.one_hot(labels))[at])

    def between(self, i: int, j: int) -> Doubles:
        """Energies of the labels of two variables together.  # (c_i, c_j)"""
        columns = []
        for entry in range(self.at[j].start, self.at[j].stop):
            q = np.zeros(self.layout.size)
            q[entry] = 1.0
            columns.append(self.interactions(q)[self.at[i]])
        return np.stack(columns, axis=1)

    # ---- moves ----

    def draw(self, energy: Doubles, heat: float, u: float, held: int) -> int:
        """A label with probability ∝ exp(−energy / T); the one held if all are impossible."""
        if np.isinf(energy).all():
            return held
        p = np.exp((energy.min() - energy) / heat)
        return int(np.searchsorted(np.cumsum(p / p.sum()), u, "right"))

    def move(self, energy: Doubles, heat: float, u: float, held: int) -> int:
        """Another label l with probability w_l / (W − min(w_l, w_held)), w ∝ exp(−energy / T)."""
        if np.isinf(energy).all():
            return held
        w = np.exp((energy.min() - energy) / heat)
        other = (w > 0) & (np.arange(len(w)) != held)
        moves = np.zeros(len(w))
        moves[other] = w[other] / (w.sum() - np.minimum(w[other], w[held]))
        new = int(np.searchsorted(np.cumsum(moves), u, "right"))
        if new < len(w):
            return new
        return held if w[held] > 0 else int(np.flatnonzero(w)[-1])

    def visit_all(self, labels: Ints, heat: float, u: Doubles, metropolis: bool) -> None:
        """One variable after another, given all others."""
        take = self.move if metropolis else self.draw
        for i in range(self.layout.n_vars):
            labels[i] = take(self.local(labels, i), heat, u[i], labels[i])

    def sample_forest(self, which: int, labels: Ints, heat: float, u: Doubles) -> None:
        """All variables of a forest together, given the others."""
        some = slice(self.forests.start[which], self.forests.start[which + 1])
        node, above = self.forests.node[some], self.forests.above[some]
        q = self.one_hot(labels)
        for i in node:
            q[self.at[i]] = 0.0
        given = self.lowered.unary + self.interactions(q)
        energy = {i: given[self.at[i]] for i in node}
        table = {i: self.between(i, p) for i, p in zip(node, above, strict=True) if p >= 0}
        for i, p in zip(node, above, strict=True):  # children before their parents
            if p >= 0:
                energy[p] = energy[p] + soft_minimum(energy[i][:, None] + table[i], heat)
        for k, (i, p) in enumerate(zip(node[::-1], above[::-1], strict=True)):
            own = energy[i] if p < 0 else energy[i] + table[i][:, labels[p]]
            labels[i] = self.draw(own, heat, u[k], labels[i])
        for k, i in enumerate(self.forests.rest):
            labels[i] = self.draw(self.local(labels, i), heat, u[len(node) + k], labels[i])

    def possible(self, start: Floats) -> Doubles:
        """A start without impossible labels."""
        layout = self.layout
        q = start.astype(np.float64)
        gone = np.isinf(self.lowered.unary)
        q[gone] = 0.0
        none_left = layout.sum_by_variable(q)[layout.owner] == 0
        q[none_left & ~gone] = 1.0
        return np.asarray(q / layout.sum_by_variable(q)[layout.owner])

    def drawn(
        self, q: Doubles, hot: float, cold: float, sweeps: int, seed: int, by_forests: bool,
        metropolis: bool,
    ) -> Doubles:  # fmt: skip
        """One chain of labellings; returns the last one as marginals.

        Args:
            q: Where it starts, without impossible labels.
            hot: Temperature of the first sweep.
            cold: Temperature of the last one.
            sweeps: How many.
            seed: Random seed.
            by_forests: Forests in turn, or one variable after another?
            metropolis: Are these Metropolis moves, or a heat bath?
        """
        n = self.layout.n_vars
        u = uniforms(seed, np.arange(n))
        first = [np.searchsorted(np.cumsum(q[self.at[i]]), u[i], "right") for i in range(n)]
        labels: NDArray[np.int64] = np.array(first, dtype=np.int64)
        for t in range(sweeps):
            heat = temperature(t, sweeps, hot, cold)
            u = uniforms(seed, n * (t + 1) + np.arange(n))
            if by_forests:
                which = (seed + t) % 2**64 % (len(self.forests.start) - 1)
                self.sample_forest(which, labels, heat, u)
            else:
                self.visit_all(labels, heat, u, metropolis)
        return self.one_hot(labels)
