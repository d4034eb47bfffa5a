"""A field: discrete variables and the terms whose energies add up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import index
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from proxfield.common.memory import check_memory
from proxfield.errors import InputError, shown
from proxfield.lowering.lowered import Lowered, lower
from proxfield.lowering.memory import estimate_memory
from proxfield.terms.base import Floats, Ints, Layout, Term, as_indices

STATE_ARRAYS = 8
"""Flat arrays that inference keeps: q twice, theta, gradient, two moments, unary, spare."""
RESTARTS = 8
"""Starts that the rule `restarts` keeps by default, more than any other rule."""
FEW_CHAINS = 4
"""Chains of `auto`, the default rule: a field must have memory for these to be lowered."""


class Field:
    """Discrete variables and a list of terms: P(x) ∝ exp(−Σ_t E_t(x)).

    Args:
        cardinalities: Labels of each variable (1 or more); or, with ``labels``, how
            many variables there are.
        labels: The number of labels of every variable.
        terms: Terms to start with; `add` appends more.

    Example:
        >>> import proxfield as pf
        >>> field = pf.Field(3, labels=2)
        >>> field.add(pf.Unary([[0, 1], [0, 0], [1, 0]])).add(pf.Potts([[0, 1], [1, 2]], 0.5))
        Field(3 variables, 6 entries, terms: unary, potts)
        >>> field.energy([0, 0, 1])
        0.5
    """

    def __init__(
        self,
        cardinalities: ArrayLike | int,
        labels: int | None = None,
        terms: Iterable[Term] = (),
    ) -> None:
        if labels is not None:
            n = int(np.asarray(cardinalities))
            if n < 0:
                raise InputError(f"a field can't have {n} variables")
            check_memory(8 * n * (2 + STATE_ARRAYS * max(1, int(labels))), f"{n:,} variables")
            cardinalities = np.full(min(n, 1), int(labels))
        if labels is None and np.ndim(cardinalities) == 0:
            raise InputError("Field(n) needs labels=, the number of labels of every variable")
        cards = as_indices(cardinalities, "cardinalities", 1)
        if (cards < 1).any():
            v = int(np.flatnonzero(cards < 1)[0])
            raise InputError(f"variable {v} has {int(cards[v])} labels, expected at least 1")
        if labels is not None:
            cards = np.broadcast_to(cards, n)  # one number, however many variables
        total = int(cards.sum(dtype=np.float64)) if len(cards) else 0
        check_memory(8 * STATE_ARRAYS * total, f"{len(cards):,} variables with {total:,} labels")
        self.layout = Layout(cards)
        self.terms: list[Term] = []
        self.evidence: Ints = np.broadcast_to(np.int64(-1), len(cards))
        """Observed label of each variable, -1 where it is free.  # (n_vars,)"""
        self._lowered: Lowered | None = None
        for term in terms:
            self.add(term)

    def add(self, term: Term) -> Field:
        """Append a term, after checking that it fits; returns the field, for chaining."""
        if not isinstance(term, Term):
            raise TypeError(f"add() takes a Term, not {type(term).__name__}")
        term.validate(self.layout)
        self.terms.append(term)
        self._lowered = None
        return self

    @property
    def n_vars(self) -> int:
        """Number of variables, observed ones included."""
        return self.layout.n_vars

    @property
    def cardinalities(self) -> Ints:
        """Labels per variable.  # (n_vars,)"""
        return self.layout.cardinalities

    def __repr__(self) -> str:
        kinds = ", ".join(dict.fromkeys(t.name for t in self.terms)) or "none"
        seen = int((self.evidence >= 0).sum())
        observed = f", {seen} observed" if seen else ""
        return (
            f"Field({self.n_vars} variables, {self.layout.size} entries{observed}, terms: {kinds})"
        )

    def condition(self, evidence: Mapping[int, int]) -> Field:
        """The same field with some variables observed.

        Observed variables are taken out before iterating; results stay in this
        field's numbering, and F bounds −log P(evidence, ·) summed over the rest.

        Args:
            evidence: Label of each observed variable.

        Example:
            >>> Field([2, 3]).condition({1: 2})
            Field(2 variables, 5 entries, 1 observed, terms: none)
        """
        out = Field(self.cardinalities)
        out.terms = list(self.terms)
        out.evidence = self.evidence.copy()
        if not isinstance(evidence, Mapping):
            raise InputError("evidence must be a dictionary from variables to labels")
        for key, value in evidence.items():
            try:
                v, label = index(key), index(value)
            except TypeError:
                raise InputError(
                    f"evidence {shown(key)}: {shown(value)}, expected whole numbers"
                ) from None
            if not 0 <= v < self.n_vars:
                raise InputError(f"evidence names variable {v}, expected 0 to {self.n_vars - 1}")
            if not 0 <= label < self.cardinalities[v]:
                raise InputError(
                    f"evidence gives variable {v} the label {label}, "
                    f"expected 0 to {self.cardinalities[v] - 1}"
                )
            out.evidence[v] = label
        return out

    # ---- energies ----

    def energy(self, labels: ArrayLike) -> float:
        """Energy of a labelling, −log of its unnormalised probability.  # labels: (n_vars,)"""
        x = as_indices(labels, "labels", 1)
        if len(x) != self.n_vars:
            raise InputError(f"{len(x)} labels for {self.n_vars} variables")
        bad = (x < 0) | (x >= self.cardinalities)
        if bad.any():
            v = int(np.flatnonzero(bad)[0])
            top = int(self.cardinalities[v]) - 1
            raise InputError(f"variable {v} has label {int(x[v])}, expected 0 to {top}")
        return float(sum(t.labelling_energy(self.layout, x) for t in self.terms))

    def flatten(self, marginals: Any) -> NDArray[np.float64]:
        """Marginals in any accepted form as one flat array; checked to be distributions."""
        if isinstance(marginals, np.ndarray) and marginals.ndim <= 2:
            flat = marginals.astype(np.float64).ravel()
        else:
            rows = [np.asarray(row, dtype=np.float64).ravel() for row in marginals]
            flat = np.concatenate([np.zeros(0), *rows])
        if len(flat) != self.layout.size:
            raise InputError(f"marginals have {len(flat)} entries, expected {self.layout.size}")
        if not np.isfinite(flat).all() or (flat < 0).any():
            raise InputError("marginals must be finite and not negative")
        sums = self.layout.sum_by_variable(flat)
        if len(sums) and np.abs(sums - 1).max() > 1e-4:
            v = int(np.abs(sums - 1).argmax())
            raise InputError(f"marginals of variable {v} sum to {sums[v]:.6g}, expected 1")
        return np.asarray(flat / sums[self.layout.owner])

    def expected_energy(self, marginals: Any) -> float:
        """E(q) = Σ_t E_t(q), straight from the terms (the slow, readable way)."""
        q = self.flatten(marginals)
        return float(sum(t.energy(self.layout, q) for t in self.terms))

    def free_energy(self, marginals: Any) -> float:
        """F(q) = E(q) − H(q), straight from the terms. Without evidence, F ≥ −log Z."""
        q = self.flatten(marginals)
        return self.expected_energy(q) - entropy(q)

    # ---- getting ready ----

    def lower(self) -> Lowered:
        """The field in its fastest equivalent form (kept until a term is added)."""
        if self._lowered is None:
            needed = self.memory_estimate(FEW_CHAINS)  # the rule isn't known here
            check_memory(needed, f"inference on {self!r}")
            self._lowered = lower(self.layout, self.terms, self.evidence)
        return self._lowered

    def memory_estimate(self, chains: int = RESTARTS) -> int:
        """Bytes that lowering and iterating take at most, beside the field itself.

        An upper bound for all rules on the CPU kernels, in float64. ``step="lipschitz"`` isn't
        covered: it lowers the field once more, as plain tables, and may take twice as much.

        Args:
            chains: How many starts or chains run at a time: 8 in `restarts`, 4 in `auto` without a
                budget and one per thread with one, 1 in all other rules.

        Example:
            >>> field = Field(1000, labels=2)
            >>> field.memory_estimate() < 2**21
            True
        """
        return estimate_memory(self.layout, self.terms, self.evidence, chains)


def entropy(q: Floats) -> float:
    """H(q) = −Σ q log q in nats, with 0 log 0 = 0."""
    positive = q[q > 0]
    return float(-(positive * np.log(positive)).sum())
