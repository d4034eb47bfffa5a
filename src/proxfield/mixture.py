"""Mixtures of mean fields over disjoint cells of the state space.

A partition of all labellings into cells C_k makes Z = Σ_k Z_k, and mean field inside a cell gives
Z_k ≥ exp(−F_k). So log Σ_k exp(−F_k) is a lower bound on log Z. It is −F of the mixture Σ_k w_k q_k
with w_k ∝ exp(−F_k): the parts have disjoint supports, hence the entropy of the mixture is exactly
Σ_k w_k (H(q_k) − log w_k).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from proxfield.core.common.records import Record
from proxfield.core.terms.base import Floats, Ints, Layout


@dataclass(frozen=True)
class Clamp:
    """One decision that bounds a cell: a variable has a label, or doesn't have it.

    Attributes:
        variable: Number of the variable.
        label: Number of the label.
        held: True for "has the label", False for "doesn't have it".
    """

    variable: int
    label: int
    held: bool


@dataclass(frozen=True, eq=False)
class Mode:
    """Mean field inside one cell of a partition; a part of a mixture.

    Attributes:
        free_energy: F of its marginals. exp(−F) bounds the cell's share of Z from below.
        weight: Its weight in the mixture, proportional to exp(−F).
        q: Its marginals, flat.  # (layout.size,)
        clamps: The decisions that bound its cell; labellings outside have probability 0 in it.
        layout: Where each variable's labels are in ``q``.
    """

    free_energy: float
    weight: float
    q: NDArray[np.float64]
    clamps: tuple[Clamp, ...]
    layout: Layout

    def __repr__(self) -> str:
        cell = self.cell or "everything"
        return f"Mode(free energy {self.free_energy:.6g}, weight {self.weight:.3g}, {cell})"

    @property
    def marginals(self) -> Floats | list[Floats]:
        """(n_vars, n_labels) where all variables have as many labels, else one array each."""
        return self.layout.split(self.q)

    @property
    def labels(self) -> Ints:
        """The most probable labelling of the mode.  # (n_vars,)"""
        return self.layout.best_labels(self.q)

    def summary(self) -> Record:
        """Its numbers as a plain dictionary."""
        clamps = [[c.variable, "=" if c.held else "!=", c.label] for c in self.clamps]
        return {"free_energy": self.free_energy, "weight": self.weight, "clamps": clamps}

    @property
    def cell(self) -> str:
        """The decisions in words, with the field's names: ``rain = yes, grass ≠ dry``."""
        names = self.layout.names
        shown = []
        for clamp in self.clamps:
            v, label = clamp.variable, clamp.label
            words = None if names is None else names.labels(v)
            variable = v if names is None or names.variables is None else names.variables[v]
            sign = "=" if clamp.held else "≠"
            shown.append(f"{variable} {sign} {label if words is None else words[label]}")
        return ", ".join(shown)


def mixture_free_energy(free_energies: ArrayLike) -> float:
    """F of the best mixture of parts with disjoint supports: −log Σ_k exp(−F_k)."""
    f = np.asarray(free_energies, dtype=np.float64)
    low = float(f.min(initial=np.inf))
    if not np.isfinite(low):
        return low
    return low - float(np.log(np.exp(low - f).sum()))


def mixture_weights(free_energies: ArrayLike) -> NDArray[np.float64]:
    """Weights proportional to exp(−F_k), which sum to 1; equal ones if no F is finite."""
    f = np.asarray(free_energies, dtype=np.float64)
    low = f.min(initial=np.inf)
    weight = np.exp(low - f) if np.isfinite(low) else np.ones(len(f))
    return np.asarray(weight / weight.sum())


def make_modes(
    layout: Layout, parts: Sequence[tuple[float, NDArray[np.float64], tuple[Clamp, ...]]]
) -> tuple[Mode, ...]:
    """Modes of (F, marginals, what bounds the cell), the heaviest first."""
    ordered = sorted(parts, key=lambda part: part[0])  # stable
    weights = mixture_weights([f for f, _, _ in ordered])
    return tuple(
        Mode(float(f), float(w), q, clamps, layout)
        for w, (f, q, clamps) in zip(weights, ordered, strict=True)
    )


def mixture_marginals(modes: Sequence[Mode]) -> NDArray[np.float64]:
    """Σ_k w_k q_k.  # (size,)"""
    q = np.zeros_like(modes[0].q, dtype=np.float64)
    for mode in modes:
        q += mode.weight * mode.q
    return modes[0].layout.normalize(q)


def draw(layout: Layout, q: Floats, count: int, rng: np.random.Generator) -> Ints:
    """Independent labellings drawn from a product of marginals.  # (count, n_vars)"""
    cumulative = np.cumsum(q)
    before = np.concatenate([[0.0], cumulative])[layout.offsets[:-1]]
    out = np.empty((count, layout.n_vars), dtype=np.int64)
    for row in out:
        u = rng.random(layout.n_vars)
        # first entry of the variable whose running sum exceeds u
        passed = (cumulative - before[layout.owner]) <= u[layout.owner]
        row[:] = np.minimum(
            layout.sum_by_variable(passed).astype(np.int64), layout.cardinalities - 1
        )
    return out


def draw_mixture(modes: Sequence[Mode], count: int, rng: np.random.Generator) -> Ints:
    """Independent labellings drawn from a mixture: first a mode, then a labelling of it."""
    layout = modes[0].layout
    which = rng.choice(len(modes), size=count, p=[mode.weight for mode in modes])
    out = np.empty((count, layout.n_vars), dtype=np.int64)
    for k, mode in enumerate(modes):
        rows = np.flatnonzero(which == k)
        out[rows] = draw(layout, mode.q, len(rows), rng)
    return out
