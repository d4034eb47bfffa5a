"""What the suites share: exact answers by enumeration, random fields, awkward terms."""

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

import proxfield as pf
from proxfield.core.terms.base import Layout
from proxfield.testing import labellings

Array = NDArray[Any]

KERNELS = tuple(os.environ.get("PROXFIELD_TEST_KERNELS", "reference,cpu").split(","))
"""Kernel sets that tests run over; the first is compared with the others."""
DTYPES = ("float64", "float32")
INTERPRETED = (
    "cuda" in KERNELS
    and os.environ.get("TRITON_INTERPRET") == "1"
    and os.environ.get("PROXFIELD_TEST_ALL") != "1"
)
"""Triton's interpreter takes seconds for what a GPU does in milliseconds: test fewer cases."""

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "sweep": ("sweep", {}),
    "sweep-random": ("sweep", {"order": "random"}),
    "colored": ("colored", {}),
    "full-parallel": ("full-parallel", {}),
    "adhoc": ("adhoc", {}),
    "adhoc-0.2": ("adhoc", {"eta": 0.2}),
    "fixed": ("fixed", {}),
    "fixed-local": ("fixed", {"step": "certified-local"}),
    "fixed-lipschitz": ("fixed", {"step": "lipschitz"}),
    "fixed-0.7": ("fixed", {"step": 0.7}),
    "adaptive": ("adaptive", {}),
    "adaptive-local": ("adaptive", {"step": "certified-local"}),
    "adaptive-0.9": ("adaptive", {"step": 0.9}),
    "backtracking": ("backtracking", {}),
    "backtracking-large": ("backtracking", {"first": 0.9, "growth": 1.3, "largest": 1.0}),
    "momentum": ("momentum", {}),
    "momentum-certified": ("momentum", {"step": "certified", "gamma": 0.8}),
    "momentum-printed": ("momentum", {"variant": "printed"}),
    "adam": ("adam", {}),
    "adam-slow": ("adam", {"step": 0.1, "epsilon": 1e-3}),
    "adam-printed": ("adam", {"variant": "printed"}),
}
"""Every rule, with the parameters that change which code runs."""

SINGLE = ("sweep", "sweep-random", "colored")
"""Variants that visit single variables."""

SOLVERS: dict[str, tuple[str, dict[str, Any]]] = {
    "anneal": ("anneal", {}),
    "anneal-sweep": ("anneal", {"inner": "sweep", "levels": 5}),
    "anneal-adam": ("anneal", {"inner": "adam", "hot": 3.0}),
    "restarts": ("restarts", {}),
    "restarts-adam": ("restarts", {"inner": "adam", "count": 3, "noise": 0.5}),
    "portfolio": ("portfolio", {}),
    "auto": ("auto", {}),
}
"""Rules that run others."""

MONOTONE = (
    "sweep",
    "sweep-random",
    "colored",
    "fixed",
    "fixed-local",
    "adaptive",
    "adaptive-local",
    "adaptive-0.9",
)
"""Variants that promise never to raise F."""


def infer(field: pf.Field, variant: str, **options: Any) -> pf.Result:
    """`proxfield.infer` with a rule from `VARIANTS`, in float64 unless something else is said."""
    rule, params = {**VARIANTS, **SOLVERS}[variant]
    options.setdefault("dtype", "float64")
    return pf.infer(field, rule, **params, **options)


# ---- exact answers ----


def energies(field: pf.Field) -> Array:
    """The energy of each of `labellings`, one call at a time.  # (count,)

    `proxfield.testing.labelling_energies` looks them up in tables: this is the check on it.
    """
    for known, n_terms, found in _ENERGIES:
        if known is field and n_terms == len(field.terms):
            return found
    found = np.array([field.energy(x) for x in labellings(field)])
    _ENERGIES.append((field, len(field.terms), found))
    return found


_ENERGIES: deque[tuple[pf.Field, int, Array]] = deque(maxlen=256)
"""The last answers of `energies`."""


def exact_log_z(field: pf.Field) -> float:
    """log Σ_x exp(−E(x)) over the labellings that agree with the evidence."""
    return log_sum_exp(-energies(field))


def exact_free_energy(field: pf.Field, q: Array) -> float:
    """Σ_x Q(x) (E(x) + log Q(x)), with 0 · anything = 0."""
    p, e = probabilities(field, q), energies(field)
    seen = p > 0
    return float((p[seen] * (e[seen] + np.log(p[seen]))).sum())


def energy_tensor(field: pf.Field) -> Array:
    """The energy of every labelling as one array, from ``as_tables``.  # (c_1, …, c_n)"""
    total = np.zeros(tuple(field.cardinalities))
    for scope, table in explicit_tables(field):
        order = np.argsort(scope)
        shape = np.ones(field.n_vars, dtype=np.int64)
        shape[np.sort(scope)] = field.cardinalities[np.sort(scope)]
        total = total + np.transpose(table, order).reshape(shape)
    return total


# ---- fields at random ----


def random_field(
    rng: np.random.Generator,
    *,
    n_labels: tuple[int, ...] = (1, 2, 3, 4),
    n_vars: tuple[int, int] = (2, 5),
    arity: int = 4,
    sign: float | None = None,
) -> pf.Field:
    """A small field of mixed terms; its couplings' scale is drawn from 0.1 to 20.

    Args:
        rng: Where everything random comes from.
        labels: Numbers of labels to draw from.
        n_vars: Fewest and most variables.
        arity: Most variables of a table.
        sign: +1 attracts, -1 repels, 0 mixes; None draws one of the three.
    """
    n = int(rng.integers(n_vars[0], n_vars[1] + 1))
    cards = rng.choice(n_labels, size=n)
    field = pf.Field(cards)
    scale = 10 ** rng.uniform(-1, np.log10(20))
    sign = float(rng.choice([-1, 0, 1])) if sign is None else sign
    for v, c in enumerate(cards):
        if rng.random() < 0.8:
            field.add(pf.Unary(rng.normal(scale=rng.uniform(0, 2), size=(1, c)), [v]))
    for i, j in itertools.combinations(range(n), 2):
        weight = scale * (rng.normal() if sign == 0 else sign * abs(rng.normal()))
        kind = rng.random()
        if kind < 0.35:
            field.add(pf.Potts([[i, j]], [weight]))
        elif kind < 0.5 and cards[i] == cards[j] == 2:
            field.add(pf.Ising([[j, i]], [-0.5 * weight]))
        elif kind < 0.75:
            table = weight * (1 - np.eye(cards[i], cards[j]))
            table += 0.2 * scale * rng.normal(size=table.shape)
            field.add(pf.Pairwise([[i, j]], table))
    for k in range(3, min(arity, n) + 1):
        if rng.random() < 0.4:
            scope = rng.choice(n, size=k, replace=False)
            field.add(pf.Factor(scope, 0.5 * scale * rng.normal(size=cards[scope])))
    return field


def grid_edges(height: int, width: int) -> Array:
    """Edges of a grid, variables numbered row by row.  # (m, 2)"""
    at = np.arange(height * width).reshape(height, width)
    across = np.stack([at[:, :-1].ravel(), at[:, 1:].ravel()], axis=1)
    down = np.stack([at[:-1].ravel(), at[1:].ravel()], axis=1)
    return np.concatenate([across, down])


def repulsive_grid(side: int = 6, weight: float = 3.0, bias: float = 0.0) -> pf.Field:
    """A binary grid whose neighbors want to differ, with weak unaries.

    A common bias makes undamped parallel updates flip all variables at once.
    """
    rng = np.random.default_rng(0)
    noise = rng.normal(scale=0.3, size=(side * side, 2))
    unary = pf.Unary(noise + np.array([0.0, bias]))
    return pf.Field(
        side * side, n_labels=2, terms=[unary, pf.Potts(grid_edges(side, side), -weight)]
    )


# ---- terms of a user's own ----


class Chain(pf.Term):
    """w·[x_i ≠ x_{i+1}] along a chain: enough for parallel rules, nothing more."""

    name = "chain"
    degree = 2

    def __init__(self, weight: float) -> None:
        self.weight = weight

    def validate(self, layout: Layout) -> None:
        if layout.common is None:
            raise pf.InputError("a chain needs the same labels everywhere")

    def labelling_energy(self, layout: Layout, labels: Array) -> float:
        return self.weight * float((labels[1:] != labels[:-1]).sum())

    def add_gradient(self, layout: Layout, q: Array, out: Array) -> None:
        rows, g = q.reshape(layout.n_vars, -1), out.reshape(layout.n_vars, -1)
        g[1:] += self.weight * (1 - rows[:-1])
        g[:-1] += self.weight * (1 - rows[1:])

    def as_potts(self, n: int) -> pf.Potts:
        """The same energy in the library's words."""
        return pf.Potts(np.stack([np.arange(n - 1), np.arange(1, n)], axis=1), self.weight)


class CurvedChain(Chain):
    """A chain that also knows its curvature, so that steps can be certified."""

    def curvature(self, layout: Layout) -> Array:
        ends = np.full(layout.n_vars, 2.0)
        ends[[0, -1]] = 1.0
        return abs(self.weight) * ends

    def lipschitz(self, layout: Layout) -> float:
        return 2.0 * abs(self.weight) * max(1, int(layout.cardinalities.max()) - 1)


# ---- second references ----


def log_sum_exp(values: Array) -> float:
    """log Σ exp(values); −inf if all values are −inf.

    Example:
        >>> round(log_sum_exp(np.log([1.0, 2.0, 5.0])), 4)
        2.0794
    """
    top = float(np.max(values))
    return top if top == -np.inf else top + float(np.log(np.exp(values - top).sum()))


def probabilities(field: pf.Field, q: Array) -> NDArray[np.float64]:
    """Q(x) = Π_i q_i(x_i) of each of `labellings`.  # (size,) -> (count,)"""
    return np.asarray(q[field.layout.offsets[:-1] + labellings(field)].prod(axis=1))


def random_marginals(layout: Layout, rng: np.random.Generator) -> NDArray[np.float64]:
    """Distributions drawn uniformly from the simplices, flat.  # (size,)"""
    noise = rng.exponential(size=layout.size)
    return np.asarray(noise / layout.sum_by_variable(noise)[layout.owner])


def explicit_tables(field: pf.Field) -> Iterator[tuple[Array, Array]]:
    """Every scope of every term with its own table."""
    for term in field.terms:
        for scopes, tables, index in term.as_tables(field.layout):
            which = np.arange(len(scopes)) if index is None else index
            yield from zip(scopes, tables[which], strict=True)


def exact_hessian(field: pf.Field, q: Array | None = None) -> NDArray[np.float64]:
    """The Hessian of E at q, by contracting explicit tables.

    Args:
        field: A field whose terms can be expressed as tables.
        q: Marginals, flat; not needed where no table has more than two variables.  # (size,)

    Returns:
        The matrix of second derivatives.  # (size, size)
    """
    offsets, cards = field.layout.offsets, field.cardinalities
    out = np.zeros((field.layout.size, field.layout.size))
    for scope, table in explicit_tables(field):
        for a, b in itertools.combinations(range(len(scope)), 2):
            block = np.moveaxis(table, (a, b), (0, 1))
            for p in range(len(scope) - 1, -1, -1):
                if p not in (a, b):
                    if q is None:
                        raise ValueError("tables of three or more variables need marginals q")
                    i = scope[p]
                    block = block @ q[offsets[i] : offsets[i + 1]]
            i, j = scope[a], scope[b]
            rows = slice(offsets[i], offsets[i] + cards[i])
            columns = slice(offsets[j], offsets[j] + cards[j])
            out[rows, columns] += block
            out[columns, rows] += block.T
    return out


def projected(layout: Layout, matrix: Array) -> NDArray[np.float64]:
    """P M P, with P the projection that centers each variable's block."""
    p = np.stack([layout.center(e) for e in np.eye(layout.size)])
    return np.asarray(p @ matrix @ p)
