"""How many bytes inference takes beside the field, from above."""

from __future__ import annotations

from collections.abc import Sequence

from proxfield.terms.base import Ints, Layout, Term, offers
from proxfield.terms.factor import Factor
from proxfield.terms.pairwise import Ising, Potts
from proxfield.terms.unary import Constant, Unary

BASE_BYTES = 1 << 18
"""What even the smallest field takes."""
SPIN_BYTES = 90
"""State per entry of a binary field: a state and its copy while kernels warm up, marginals."""
ENTRY_BYTES = 200
"""The same for any other field."""
SECOND_ORDER_BYTES = 200
"""Vectors of the test that tells minima from saddles."""
LANCZOS_BYTES = 200
"""Per entry: 25 vectors (of half the length where spins stand for two entries)."""
CHAIN_BYTES = 40
"""Per entry and chain: start, marginals, natural parameters and result."""
EXTRA_BYTES = 50
"""Per entry, if a term adds its own gradient."""
REDUCTION_BYTES = 60
"""Per entry, if variables or labels are taken out: numbers old and new."""


def estimate_memory(layout: Layout, terms: Sequence[Term], evidence: Ints, chains: int) -> int:
    """An upper bound on the bytes that inference takes in addition to the field; see `Field`."""
    terms = [t for t in terms if not t.omitted]
    spins = layout.common == 2 and all(
        isinstance(t, (Constant, Unary, Ising, Potts))
        or (isinstance(t, Factor) and t.degree <= 2 and not t.hard)
        for t in terms
    )
    hard = any(isinstance(t, Factor) and t.hard for t in terms)
    per_entry = SPIN_BYTES if spins else ENTRY_BYTES
    extras = not all(offers(t, "lower") for t in terms)
    per_entry += EXTRA_BYTES if extras else 0
    search = 0 if extras else CHAIN_BYTES * chains
    if any(t.degree == 2 and not offers(t, "spectrum") for t in terms):
        search = max(search, LANCZOS_BYTES // 2 if spins else LANCZOS_BYTES)
    per_entry += max(search, SECOND_ORDER_BYTES)
    if hard or bool((evidence >= 0).any()):
        per_entry += REDUCTION_BYTES
    return BASE_BYTES + per_entry * layout.size + sum(t.workspace(layout) for t in terms)
