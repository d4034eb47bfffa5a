"""The reference kernels: numpy alone, written to be read. Every other set is tested against it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from proxfield.core.common.arrays import Array
from proxfield.core.compiled.math import uniforms
from proxfield.core.engines import plan as plans
from proxfield.core.engines.base import Program, Rows, State, slack, softmax
from proxfield.core.lowering.lowered import Forests, Lowered, graph_of, make_forests
from proxfield.core.terms.base import Doubles, Floats, Ints, expectation

TINY = 1e-30
"""A marginal of 0 in a start would stay 0 under damping; it counts as this instead."""


class ReferenceState:
    """Flat arrays: marginals, natural parameters, first and second moments."""

    def __init__(self, q: Floats, dtype: np.dtype[np.floating]) -> None:
        self.q = q.astype(dtype)
        self.theta = -np.log(np.maximum(self.q, TINY))
        self.u = np.zeros_like(self.q)
        self.v = np.zeros_like(self.q)
        self.before = self.q.copy()
        self.size: float | None = None  # the next step of a `Search`


class ReferenceProgram(Program):
    """See `Program`. One iteration is a handful of numpy calls."""

    def __init__(self, lowered: Lowered, dtype: str = "float64", threads: int = 1) -> None:
        self.lowered = lowered
        self.layout = lowered.layout
        self.dtype = np.dtype(dtype)

    def start(self, q: Floats) -> State:
        return State(ReferenceState(q, self.dtype))

    def marginals(self, state: State) -> NDArray[np.float64]:
        return np.array(state.arrays.q, dtype=np.float64)

    def gradient(self, q: Floats) -> NDArray[np.float64]:
        g = np.array(self.lowered.unary, dtype=np.float64)
        for term in self.lowered.terms:
            term.add_gradient(self.layout, q, g)
        return g

    def _free_energy(self, q: Floats) -> float:
        e = self.lowered.constant + expectation(q, self.lowered.unary)
        e += sum(t.energy(self.layout, q) for t in self.lowered.terms)
        positive = q[q > 0].astype(np.float64)
        return e + float((positive * np.log(positive)).sum())

    def free_energy(self, state: State) -> float:
        return self._free_energy(state.arrays.q)

    def _softmax(self, theta: Floats) -> NDArray[np.floating]:
        return softmax(self.layout.owner, self.layout.offsets, theta).astype(self.dtype)

    def advance(self, state: State, plan: plans.Plan, n: int, tol: float, trace: bool) -> Rows:
        energies: list[float] = []
        changes: list[float] = []
        period2 = np.inf
        s = state.arrays
        for _ in range(n):
            energies.append(self._free_energy(s.q))
            old = s.q.copy()
            scale: Floats | float
            if isinstance(plan, plans.Update):
                with np.errstate(over="ignore", invalid="ignore"):  # a rule may diverge
                    scale = self._parallel(s, plan, energies[-1])
            elif isinstance(plan, plans.Order):
                scale = self._sweep(s, plan)
            else:
                theta = plan.function(s.theta, s.q, self.gradient(s.q), state.memory)
                s.theta, scale = theta.astype(self.dtype), plan.step
                s.q = self._softmax(s.theta)
            moved = np.abs(s.q - old) / scale
            lost = not np.isfinite(s.q).all()
            changes.append(np.nan if lost else float(moved.max(initial=0.0)))
            period2 = float((np.abs(s.q - s.before) / scale).max(initial=0.0))
            s.before = old
            if not changes[-1] > tol:  # NaN ends it too
                break
        return Rows(np.array(energies), np.array(changes), period2)

    def _parallel(self, s: ReferenceState, plan: plans.Update, f: float) -> Floats:
        owner = self.layout.owner
        target: Floats = plan.inverse_temperature * self.gradient(s.q)
        impossible = np.isinf(target)  # θ = +inf, q = 0 from here on
        target = np.where(impossible, 0.0, target)
        theta = np.where(impossible | np.isinf(s.theta), target, s.theta)
        step = plan.step[owner]
        if plan.adaptive:
            spread = np.maximum.reduceat(4 * s.q * (1 - s.q), self.layout.offsets[:-1])
            step = 1 / (1 + (1 / step - 1) * spread[owner])
            trial = np.where(impossible, np.inf, theta - step * (theta - target))
            if self._free_energy(self._softmax(trial)) > f + slack(f, self.dtype):
                step = plan.step if plan.fallback is None else plan.fallback
                step = step[owner]  # the certified step can't fail
        if plan.search is not None:
            residual = theta - target

            def free_energy(size: float) -> float:
                trial = np.where(impossible, np.inf, theta - size * residual)
                return self._free_energy(self._softmax(trial))

            size, s.size = searched(plan.search, s.size, f, free_energy, self.dtype)
            step = np.full(len(owner), size)

        def center(x: Floats) -> Floats:
            """Subtract the mean over possible labels."""
            count = np.maximum(1.0, self.layout.sum_by_variable(~impossible))
            mean = self.layout.sum_by_variable(np.where(impossible, 0.0, x)) / count
            return np.asarray(x - mean[owner])

        new = np.where(impossible, np.inf, moved(s, plan, theta, target, step, center))
        if plan.kind.averages_marginals:
            s.theta = new
            mixed = np.where(impossible, 0.0, (1 - step) * s.q + step * self._softmax(s.theta))
            s.q = (mixed / self.layout.sum_by_variable(mixed)[owner]).astype(self.dtype)
        else:
            s.theta = new.astype(self.dtype)
            s.q = self._softmax(s.theta)
        return step

    def _sweep(self, s: ReferenceState, plan: plans.Order) -> float:
        self.need_visits(plan)
        for i in plan.drawn():
            at = self.at[i]
            g = plan.inverse_temperature * self.gradient(s.q)[at]
            if np.isinf(g).all():
                continue
            e = np.exp(g.min() - g)
            s.theta[at] = g
            s.q[at] = e / e.sum()
        return 1.0

    def descend(self, labels: Floats, sweeps: int) -> NDArray[np.float64]:
        self.need_sweeps()
        q = labels.astype(np.float64)
        for _ in range(sweeps):
            changed = False
            for i in range(self.layout.n_vars):
                at = self.at[i]
                g = self.gradient(q)[at]
                new = np.zeros(len(g))
                best = int(g.argmin())
                held = int(q[at].argmax())
                new[held if g[held] <= g[best] and q[at][held] == 1 else best] = 1.0
                changed |= bool((new != q[at]).any())
                q[at] = new
            if not changed:
                break
        return q

    def explore(self, chains: plans.Chains, threads: int | None = None) -> plans.Explored:
        self.need_sweeps()
        with np.errstate(over="ignore"):  # an energy over a low temperature: probability 0
            ends = [self._chain(chains, b) for b in range(len(chains.hot))]
        q = np.stack([end[0] for end in ends])
        f = np.array([self._free_energy(row) for row in q])
        return plans.Explored(q, f, chains.sweeps + np.array([end[1] for end in ends]))

    def _chain(self, chains: plans.Chains, b: int) -> tuple[NDArray[np.float64], int]:
        """One chain; returns its marginals and the sweeps of polish."""
        n = self.layout.n_vars
        hot, cold, sweeps = float(chains.hot[b]), float(chains.cold[b]), int(chains.sweeps[b])
        q = chains.starts[b].astype(np.float64)
        gone = np.isinf(self.lowered.unary)
        q[gone] = 0.0  # impossible labels
        none_left = self.layout.sum_by_variable(q)[self.layout.owner] == 0
        q[none_left & ~gone] = 1.0
        q = np.asarray(q / self.layout.sum_by_variable(q)[self.layout.owner])
        if chains.drawn[b]:
            seed, by_forests = int(chains.seeds[b]), bool(chains.forests[b])
            q = self.drawn(q, hot, cold, sweeps, seed, by_forests, chains.metropolis)
        else:
            for t in range(sweeps):
                for i in range(n):
                    at = self.at[i]
                    g = self.gradient(q)[at] / temperature(t, sweeps, hot, cold)
                    e = np.exp(g.min() - g)
                    q[at] = e / e.sum()
        s = ReferenceState(q, np.dtype(np.float64))
        for t in range(chains.polish):
            old = s.q.copy()
            self._sweep(s, plans.Order(np.arange(n)))
            if np.abs(s.q - old).max(initial=0.0) <= chains.tol:
                return s.q, t + 1
        return s.q, chains.polish

    # ---- chains of labellings, written to be read ----

    @cached_property
    def at(self) -> list[slice]:
        """The entries of each variable."""
        return [slice(a, b) for a, b in pairwise(self.layout.offsets.tolist())]

    @cached_property
    def forests(self) -> Forests:
        """The forests of the compiled chains."""
        return make_forests(graph_of(self.lowered), usable_in_forests(self.lowered))

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

    def drawn(
        self, q: Doubles, hot: float, cold: float, sweeps: int, seed: int, by_forests: bool,
        metropolis: bool,
    ) -> Doubles:  # fmt: skip
        """One chain of labellings from q, which has no impossible labels; returns the last one as
        marginals. The other arguments are those of `Chains`.

        Random numbers are by counting. With n variables, the first n of a chain draw its labelling
        from the start, and sweep t uses those from n·(t + 1) on: of the variables in their order,
        or of a forest's from its roots to its leaves (the last first), then of those in no forest.
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
                continue
            take = self.move if metropolis else self.draw
            for i in range(n):  # one variable after another, given all others
                labels[i] = take(self.local(labels, i), heat, u[i], labels[i])
        return self.one_hot(labels)


def searched(
    search: plans.Search, size: float | None, f: float, free_energy: Callable[[float], float],
    dtype: np.dtype[np.floating],
) -> tuple[float, float]:  # fmt: skip
    """The first step tried that doesn't raise F, and the one to try next.

    Args:
        search: How to search.
        size: The step to try first; None at the beginning.
        f: F before the update.
        free_energy: F after an update with a given step.
        dtype: Type of the marginals: says how much F may rise by rounding.
    """
    size = search.first if size is None else size
    while not free_energy(size) <= f + slack(f, dtype) and size > plans.SMALLEST_STEP:
        size *= search.shrinkage
    return size, min(search.largest, size * search.growth)


def moved(
    s: Any, plan: plans.Update, theta: Array, target: Array, step: Array,
    center: Callable[[Array], Array],
) -> Array:  # fmt: skip
    """New natural parameters: the formula of every `Kind`, for arrays of numpy and of torch.

    Args:
        s: A state with the moments ``u`` and ``v``, which are moved on.
        plan: The rule.
        theta: Natural parameters.
        target: θ*.
        step: The step of each entry.
        center: Subtracts each variable's mean over its possible labels.
    """
    kind, g1, g2, eps = plan.kind, plan.gamma1, plan.gamma2, plan.epsilon
    residual = theta - target
    if kind == plans.Kind.PROXIMAL:
        return theta - step * residual
    if kind == plans.Kind.MEAN:
        return target
    if kind == plans.Kind.MOMENTUM:
        s.u = g1 * s.u + (1 - g1) * residual
        return theta - step * s.u
    if kind == plans.Kind.MOMENTUM_PRINTED:
        s.u = g1 * s.u + (1 - g1) * target
        return theta - step * (theta - s.u)
    if kind == plans.Kind.ADAM:
        residual = center(residual)
        s.u = g1 * s.u + (1 - g1) * residual
        s.v = g2 * s.v + (1 - g2) * residual**2
        return theta - step * (s.u / (s.v**0.5 + eps))
    if kind == plans.Kind.ADAM_PRINTED:
        target = center(target)
        s.u = g1 * s.u + (1 - g1) * target
        s.v = (1 - g2) * s.v + g2 * target**2
        return theta - step * ((center(theta) - s.u) / (s.v**0.5 + eps))
    raise NotImplementedError(kind)


# ---- chains ----


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
